"""Logs of Megatron-DeepSpeed, where the engine's timer prints rows among those of Megatron."""

from pathlib import Path

import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.core.result import Result
from tensorprimat.logs.megatron import reader

GBS, LENGTH, GPUS = 1152, 4096, 24


def keyed_row(number: int, milliseconds: float) -> str:
    """Return an iteration of Argonne's Megatron-DeepSpeed (training_log.py)."""
    samples = GBS / milliseconds * 1000
    return (
        f"[2025-11-10 09:43:{number % 60:02d},161992][I][megatron/training_log:402:training_log]  "
        f"iteration={number:8d}/{10_000:8d} | consumed_samples={number * GBS:12d} | "
        f"consumed_tokens={number * GBS * LENGTH:12d} | elapsed_time_per_iteration_ms={milliseconds:.1f} | "
        f"learning_rate=2.0127e-05 | global_batch_size={GBS:5d} | lm loss=11.198063 | loss_scale=1.0 | "
        f"grad_norm=1.352 | actual_seqlen={LENGTH:5d} | number_of_skipped_iterations=  0 | "
        f"number_of_nan_iterations=  0 | samples_per_second={samples:.3f} | "
        f"tokens_per_gpu_per_second_tgs={samples * LENGTH / GPUS:.3f} | TFLOPs=72.91 |"
    )


def usual_row(number: int, milliseconds: float) -> str:
    return reader.respelled(keyed_row(number, milliseconds).encode()).decode()


def timer_row(number: int) -> str:
    """Return a row of the engine, whose rate leaves a part of the iteration out."""
    return (
        f"[2025-11-10 09:43:{number % 60:02d},109] [INFO] [timer.py:264:stop] epoch=0/micro_step={number}/"
        f"global_step={number}, RunningAvgSamplesPerSec=151.2, CurrSamplesPerSec=151.{100 + number}, "
        "MemAllocated=3.71GB, MaxMemAllocated=39.0GB"
    )


def read(tmp_path: Path, lines: list[str]) -> Result:
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return logs.read(path)


def test_rows_of_name_and_value_are_read_as_megatrons(tmp_path: Path) -> None:
    rows = [
        line
        for number in range(1, 31)
        for line in (timer_row(number), keyed_row(number, 62_900.0 + number % 3))
        if number > 2 or "iteration=" in line
    ]
    result = read(tmp_path, rows)
    assert result.provenance is not None
    assert result.provenance.format == "megatron"
    assert result.training_config.global_batch_size == GBS
    assert result.training_config.sequence_length == LENGTH
    assert "formats_doubted" not in [one.code for one in result.remarks]
    metrics = result.performance_metrics
    assert metrics.avg_step_time_seconds == pytest.approx(62.901, rel=1e-4)
    assert metrics.tokens_per_second_per_gpu == pytest.approx(GBS * LENGTH / GPUS / 62.901, rel=1e-4)
    assert result.timestamp.startswith("2025-11-10")


def test_rows_of_name_and_value_are_found_behind_much_other_text(tmp_path: Path) -> None:
    rows = [keyed_row(number, 62_900.0) for number in range(1, 11)]
    assert len(read(tmp_path, ["x" * 1000] * 3000 + rows).steps) == 10


@in_each("mark", ["> ", "rank0: ", "\x1b[36m"])
def test_a_prefix_changes_no_row_of_name_and_value(tmp_path: Path, mark: str) -> None:
    rows = [keyed_row(number, 62_900.0 + number % 3) for number in range(1, 31)]
    plain, marked = read(tmp_path, rows), read(tmp_path, [mark + row for row in rows])
    assert marked.provenance is not None
    assert marked.provenance.format == "megatron"
    assert marked.performance_metrics == plain.performance_metrics


def test_megatrons_iterations_are_preferred_to_the_engines_more_frequent_rows(tmp_path: Path) -> None:
    rows = [
        line
        for number in range(1, 61)
        for line in (timer_row(number), *([usual_row(number, 62_900.0)] if number % 10 == 0 else []))
    ]
    result = read(tmp_path, rows)
    assert result.performance_metrics.samples_per_second == pytest.approx(GBS / 62.9)


def test_the_engines_rows_are_read_where_megatron_printed_too_few(tmp_path: Path) -> None:
    rows = [*(timer_row(number) for number in range(1, 31)), usual_row(30, 62_900.0)]
    result = read(tmp_path, rows)
    assert result.provenance is not None
    assert result.provenance.format == "deepspeed"
