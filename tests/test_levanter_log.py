"""Metrics of Levanter, in the records of its JSON logger, as event files and as a run file of Weights & Biases."""

import json
from typing import Any

import pytest
from each import in_each

from tensorprimat import logs
from tests.test_tensorboard_log import Events
from tests.test_wandb_run import CONFIG_FIELD, FILES, HISTORY_FIELD, items, message, read

DEVICES = [{"id": n, "platform": "gpu", "device_kind": "NVIDIA H100 80GB HBM3"} for n in range(8)]
SETTINGS = {
    "data": {"cache_options": {"batch_size": 128}, "tokenizer": "meta-llama/Llama-3.1-8B"},
    "trainer": {
        "mp": {"compute_dtype": "<class 'jax.numpy.bfloat16'>"},
        "train_batch_size": 256,
        "num_train_steps": 40,
    },
    "train_seq_len": 4096,
}
TOKENS = 256 * 4096


def rows(n: int, seconds: float = 2.0, waiting: float = 0.001, hooks: float = 0.001) -> list[dict[str, float]]:
    """Return the metrics of a step as Levanter logs them: the loss, the rates, the hooks, the wait for the batch."""
    rates = {"throughput/tokens_per_second": TOKENS / seconds, "throughput/examples_per_second": 256 / seconds}
    return [
        {"train/loss": 3 - n / 100, "global_step": n},
        {"throughput/total_tokens": (n + 1) * TOKENS, "throughput/duration": seconds, "throughput/mfu": 45.0, **rates},
        {"throughput/hook_time": hooks},
        {"throughput/loading_time": waiting},
    ]


def console(step: int, metrics: dict[str, float], at: float) -> str:
    record = {"tracker": "json_logger", "event": "log", "step": step, "metrics": metrics}
    return f"I20260105 08:{int(at) // 60:02}:{int(at) % 60:02} 42 levanter.json_logger {json.dumps(record)}\n"


def levanter(n: int, **more: float) -> str:
    return "".join(console(n, metrics, 2 * n) for metrics in rows(n, **more))


def opening() -> str:
    facts = {"hardware_topology": {"devices": DEVICES}}, {"throughput/device_kind": "NVIDIA H100 80GB HBM3"}
    records = [{"event": "hparams", "hparams": SETTINGS}, *({"event": "summary", "metrics": fact} for fact in facts)]
    return "".join(
        f"I20260105 08:00:00 42 levanter.json_logger {json.dumps({'tracker': 'json_logger', **record})}\n"
        for record in records
    )


def test_the_records_of_the_json_logger_are_rows_of_metrics(read_text: Any) -> None:
    result = read_text("Starting from scratch\n" + "".join(levanter(n, waiting=0.0) for n in range(40)), num_gpus=8)
    performance = result.performance_metrics
    assert (result.provenance.format, performance.avg_step_time_seconds) == ("metrics", 2.0)
    assert (performance.tokens_per_step, performance.tokens_per_second_per_gpu) == (TOKENS, TOKENS / 16)
    assert (result.steps[5].loss, result.steps[5].reported_mfu) == (2.95, pytest.approx(0.45))
    assert result.audit.ratio == pytest.approx(1)


def test_the_wait_for_data_is_part_of_the_step_though_levanters_rates_leave_it_out(read_text: Any) -> None:
    result = read_text("".join(levanter(n, waiting=0.5) for n in range(40)), num_gpus=8)
    performance = result.performance_metrics
    assert performance.avg_step_time_seconds == pytest.approx(2.5)
    assert performance.tokens_per_second == pytest.approx(TOKENS / 2.5)
    assert performance.samples_per_second == pytest.approx(256 / 2.5)
    assert result.steps[5].data_wait_seconds == 0.5


@pytest.mark.parametrize(("hooks", "warned"), [(0.002, 0), (0.3, 1)])
def test_hooks_that_take_more_than_a_hundredth_of_the_step_are_named_in_a_warning(
    read_text: Any, hooks: float, warned: int
) -> None:
    result = read_text("".join(levanter(n, hooks=hooks) for n in range(40)))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.001)
    assert sum("hooks after each step" in warning and "15" in warning for warning in result.warnings) == warned


def test_settings_and_devices_come_from_the_records_before_the_first_step(read_text: Any) -> None:
    result = read_text(opening() + "".join(levanter(n) for n in range(40)))
    config = result.training_config
    assert (config.global_batch_size, config.sequence_length, config.num_gpus) == (256, 4096, 8)
    assert (config.precision, config.max_steps) == ("bf16", 40)
    assert (result.source, result.gpu_info.device_name) == ("Levanter", "NVIDIA H100 80GB HBM3")


def test_event_files_give_the_same_steps_batch_and_devices(tmp_path: Any, read_text: Any) -> None:
    events = Events(tmp_path / "events")
    events.text("hardware_topology/devices", str(DEVICES))
    events.text("throughput/device_kind", "NVIDIA H100 80GB HBM3")
    for n in range(40):
        for metrics in rows(n, seconds=1.7, waiting=0.3):
            events.log(n, 2.0 * n, metrics)
    result, same = (
        logs.read(events.close()),
        read_text("".join(levanter(n, seconds=1.7, waiting=0.3) for n in range(40))),
    )
    for figure in ("avg_step_time_seconds", "tokens_per_second", "tokens_per_step", "samples_per_second"):
        expected = getattr(same.performance_metrics, figure)
        assert getattr(result.performance_metrics, figure) == pytest.approx(expected, rel=1e-6), figure
    config = result.training_config
    assert (config.global_batch_size, config.sequence_length, config.num_gpus) == (256, 4096, 8)


def test_a_run_file_gives_the_same_steps_and_settings(tmp_path: Any) -> None:
    number = bytes([1 << 3, 1])
    calls = [(n, metrics) for n in range(40) for metrics in rows(n, waiting=0.5)]
    content = FILES.run_file_of(
        [
            number + message(CONFIG_FIELD, items(SETTINGS)),
            number + message(3, items({"num_devices": 8})),
            number + message(3, items({"global_batch_size": 1024})),
            *(
                number + message(HISTORY_FIELD, items({**row, "_step": n, "_timestamp": 1.76e9 + 2.5 * n}))
                for n, row in calls
            ),
        ]
    )
    result = read(tmp_path, content)
    config = result.training_config
    assert (config.global_batch_size, config.sequence_length, config.num_gpus) == (256, 4096, 8)
    assert (config.precision, result.source) == ("bf16", "Levanter")
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.5)
    assert result.audit.ratio == pytest.approx(1)


@in_each("topology", [None, True, 8, "8 x H100", [8], {}, {"devices": 8}, {"devices": None}])
@in_each("section", ["hparams", "metrics"])
def test_a_topology_that_lists_no_devices_states_no_number_of_them(
    read_text: Any, section: str, topology: object
) -> None:
    record = {"tracker": "json_logger", "event": section, section: {"hardware_topology": topology, "seed": 7}}
    result = read_text(json.dumps(record) + "\n" + "".join(levanter(n) for n in range(20)))
    assert (result.training_config.num_gpus, result.training_config.seed) == (None, 7)
    assert len(result.steps) == 20
