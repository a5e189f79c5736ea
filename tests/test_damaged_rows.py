"""Numbers of rows that damage changed are left out and named, however many there are; slow and uneven rows stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from job_logs import JOBS, Job
from keyvalue_rows import ROWS

from tensorprimat import logs
from tensorprimat.core.result import Result

Reader = Callable[[Sequence[str]], Result]
GB = 1e9


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    def read(rows: Sequence[str]) -> Result:
        path = tmp_path / "run.log"
        path.write_text("\n".join(rows) + "\n")
        return logs.read(path)

    return read


def damaged(name: str, old: str, new: str, rows: range) -> list[str]:
    """Return 40 rows of a framework, some of which have another text."""
    lines = [ROWS[name](number) for number in range(1, 41)]
    for row in rows:
        assert old in lines[row]
        lines[row] = lines[row].replace(old, new)
    return lines


def left_out(result: Result) -> list[str]:
    return [warning for warning in result.warnings if "left out as damaged" in warning]


@pytest.mark.parametrize("count", [1, 2, 5, 12])
@pytest.mark.parametrize("rate", ["624.4K", "6.24K", "26.4K"])
def test_rates_that_the_other_numbers_of_their_rows_contradict_are_left_out(
    count: int, rate: str, read: Reader
) -> None:
    rows = range(10, 10 + 2 * count, 2)
    result = read(damaged("nanotron", "tokens_per_sec_per_gpu: 62.4K", f"tokens_per_sec_per_gpu: {rate}", rows))
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(62_400, rel=1e-3)
    (told,) = left_out(result)
    assert "tokens/s/GPU" in told
    assert ("line 11 " if count == 1 else f"in {count} rows (first on line 11)" if count > 5 else "lines 11") in told


def test_rates_alone_are_left_out_where_they_are_far_above_the_others(read: Reader) -> None:
    result = read(damaged("torchtune", "per_gpu:16384.5", "per_gpu:163846.5", range(10, 16)))
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(16_384.5)
    assert left_out(result)


def test_no_device_is_so_fast_or_has_so_much_memory(read: Reader) -> None:
    blocks = [ROWS["fms_fsdp"](number) for number in range(1, 41)]
    for name in ("current token per gpu per sec: ", "allocated memory: "):
        before, label, behind = blocks[20].partition(name)
        blocks[20] = before + label + str(2**63) + behind[behind.index("\n") :]
    result = read(blocks)
    assert result.memory_metrics is not None
    assert (result.memory_metrics.peak_memory_allocated_gb or 0) < 100
    assert (result.performance_metrics.tokens_per_second_per_gpu or 0) < 10_000
    assert len(left_out(result)) == 2


@pytest.mark.parametrize(("name", "old", "new"), [("torchtune", "alloc:20.125", "alloc:201.25"),
                                                  ("mlx", "Peak mem 12.345", "Peak mem 21.345")])  # fmt: skip
def test_a_single_peak_of_level_memory_is_left_out(name: str, old: str, new: str, read: Reader) -> None:
    usual = read(damaged(name, old, old, range(40))).memory_metrics
    result = read(damaged(name, old, new, range(20, 21)))
    assert result.memory_metrics == usual
    assert len(left_out(result)) == 1


def test_peaks_that_contradict_each_other_are_left_out(read: Reader) -> None:
    lines = JOBS["megatron"](Job())
    printed = "[Rank {}] (after 2 iterations) memory (MB) | allocated: 9.0 | max allocated: {}.5 | reserved: 109.0 | "
    lines[-2:-2] = [printed.format(rank, size) + "max reserved: 112.0" for rank, size in ((0, 100), (1, 900))]
    memory = read(lines).memory_metrics
    assert memory is None or memory.peak_memory_allocated_gb is None


def test_memory_that_follows_the_length_of_sequences_stays(read: Reader) -> None:
    sizes = [24.5, 23.5, 68.5, 30.5, 20.5] * 8
    rows = damaged("torchtune", "alloc:20.125", "alloc:{}", range(40))
    result = read([row.format(size) for row, size in zip(rows, sizes, strict=True)])
    assert result.memory_metrics is not None
    assert result.memory_metrics.peak_memory_allocated_gb == pytest.approx(68.5 * 2**30 / GB, rel=1e-3)
    assert not left_out(result)


def test_rows_that_are_slow_by_all_of_their_numbers_stay(read: Reader) -> None:
    lines = JOBS["megatron"](Job())
    slow = [
        line.replace("(ms): 2000.0", "(ms): 8000.0").replace("GPU): 400.0", "GPU): 100.0")
        if line.find(" 20/") > 0
        else line
        for line in lines
    ]
    assert not left_out(read(slow))


@pytest.mark.parametrize(("old", "new"), [(" 10/", " 9223372036854775807/"), ("batch size:    64", "batch size:    0")])
def test_a_number_that_no_row_can_have_is_unknown(old: str, new: str, read: Reader) -> None:
    lines = JOBS["megatron"](Job())
    row = next(place for place, line in enumerate(lines) if "iteration" in line and " 10/" in line)
    assert old in lines[row]
    lines[row] = lines[row].replace(old, new)
    result = read(lines)
    assert result.training_config.global_batch_size == 64
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0, rel=0.002)


def test_a_number_of_the_loss_is_no_rate(read: Reader) -> None:
    result = read([f"step {n} loss {9.99 - n / 100:.3f} tokens/s (per gpu) 32768.0" for n in range(1, 13)])
    assert result.performance_metrics.tokens_per_second_per_gpu == 32_768
