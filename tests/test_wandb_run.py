"""Run files of Weights & Biases, in the bytes that its client writes: blocks, checksums, protocol buffers."""

import json
from contextlib import suppress
from typing import Any

import pytest
import scripts
from each import in_each
from hypothesis import given as property_given
from hypothesis import strategies as st

from tensorprimat import logs
from tensorprimat.core.errors import NotALogError, TensorPrimatError
from tensorprimat.logs.wandb_run import CONFIG_FIELD, ENVIRONMENT_FIELD, HISTORY_FIELD, RUN_FIELD, WANDB_BLOCK_BYTES
from tests import scratch
from tests.drawn import examples

CALLS = [
    {"train/global_step": step, "train/loss": 3 - step / 100, "_timestamp": 1760000000.25 + 2 * step, "_step": n}
    for n, step in enumerate(range(10, 310, 10))
]
SETTINGS = {"per_device_train_batch_size": 4, "trainer": {"max_steps": 300}, "model/num_parameters": 8030261248}


FILES = scripts.load("perf/fuzz_readers.py")
message = FILES.protobuf


def items(values: dict[str, Any]) -> bytes:
    return FILES.protobuf_items({name: json.dumps(value) for name, value in values.items()})


def run_file(calls: list[dict[str, Any]] = CALLS) -> bytes:
    number = bytes([1 << 3, 1])  # of the record: a field that is passed over
    return FILES.run_file_of(
        [
            number + message(RUN_FIELD, message(1, b"abc") + message(4, items({"seed": 7}))),
            number + message(ENVIRONMENT_FIELD, message(5, b"\n\x15NVIDIA H100 80GB HBM3\x10\x80")),
            number + message(CONFIG_FIELD, items({**SETTINGS, "notes": "x" * 2 * WANDB_BLOCK_BYTES})),
            *(number + message(HISTORY_FIELD, items(call)) for call in calls),
        ]
    )


def read(tmp_path, content: bytes) -> Any:
    path = tmp_path / "run-abc.wandb"
    path.write_bytes(content)
    return logs.read(path)


def test_calls_of_an_offline_run_are_the_rows_of_a_table(tmp_path):
    result = read(tmp_path, run_file())
    assert (result.provenance.format, result.source) == ("wandb", "Weights & Biases")
    assert result.steps.column("index").tolist() == list(range(10, 310, 10))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0)
    assert result.timestamp.startswith("2025-10-09")


def test_settings_and_the_device_come_from_the_configuration(tmp_path):
    result = read(tmp_path, run_file())
    config = result.training_config
    assert (config.micro_batch_size, config.max_steps, config.seed) == (4, 300, 7)
    assert (result.gpu_info.device_name, result.platform) == ("NVIDIA H100 80GB HBM3", "nvd")
    assert result.model.parameters == 8030261248


def test_a_record_that_a_killed_run_left_unfinished_is_left_out(tmp_path):
    result = read(tmp_path, run_file()[:-5])
    assert result.steps.column("index").tolist() == list(range(10, 300, 10))


def test_nothing_after_a_damaged_record_is_read(tmp_path):
    whole, fewer = run_file(), run_file(CALLS[:20])
    damaged = bytearray(whole)
    damaged[len(fewer) + 12] ^= 1
    assert read(tmp_path, bytes(damaged)).steps.column("index").tolist() == list(range(10, 210, 10))


def test_a_run_without_a_call_is_refused_with_the_reason(tmp_path):
    with pytest.raises(NotALogError, match=r"holds no call of wandb\.log"):
        read(tmp_path, run_file([]))


@examples(40)
@property_given(place=st.integers(0, 3000), inserted=st.binary(max_size=9))
def test_damage_raises_nothing_but_the_tools_own_errors(place, inserted):
    content = FILES.run_file_of([message(HISTORY_FIELD, items(call)) for call in CALLS])
    checked = FILES.run_file_of([(content[:place] + inserted + content[place:])[7:9000]])  # with a checksum that agrees
    for damaged in (content[:place] + inserted + content[place:], checked):
        with scratch.written(damaged, ending=".wandb") as path, suppress(TensorPrimatError):
            logs.read(path)


@in_each("moment", [-1e30, float("nan"), float("inf")])
def test_a_moment_that_no_calendar_has_is_no_date_of_the_run(tmp_path, moment):
    result = read(tmp_path, run_file([{**CALLS[0], "_timestamp": moment}, *CALLS[1:]]))
    assert result.timestamp is None
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0)
