"""Numbers of rows that damage changed are left out and named, however many there are; slow and uneven rows stay."""

import re
from collections.abc import Callable, Sequence

import pytest
from each import in_each
from job_logs import JOBS, Job
from keyvalue_rows import ROWS

from tensorprimat import logs
from tensorprimat.core.result import Result
from tensorprimat.core.steps import Step, Steps
from tensorprimat.logs import damage
from tensorprimat.logs.format import Reading

Reader = Callable[[Sequence[str]], Result]
GB = 1e9


@pytest.fixture
def read(tmp_path):
    def read(rows):
        path = tmp_path / "run.log"
        path.write_text("\n".join(rows) + "\n")
        return logs.read(path)

    return read


def damaged(name, old, new, rows):
    """Return 40 rows of a framework, some of which have another text."""
    lines = [ROWS[name](number) for number in range(1, 41)]
    for row in rows:
        assert old in lines[row]
        lines[row] = lines[row].replace(old, new)
    return lines


def left_out(result):
    return [one for one in result.remarks if one.code == "damaged_values"]


def in_doubt(result):
    return [one for one in result.remarks if one.code == "doubtful_values"]


@in_each("count", [1, 2, 5, 12])
@in_each("rate", ["624.4K", "6.24K", "26.4K"])
def test_rates_that_the_other_numbers_of_their_rows_contradict_are_left_out(count, rate, read):
    rows = range(10, 10 + 2 * count, 2)
    result = read(damaged("nanotron", "tokens_per_sec_per_gpu: 62.4K", f"tokens_per_sec_per_gpu: {rate}", rows))
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(62_400, rel=1e-3)
    (told,) = left_out(result)
    assert "tokens/s/GPU" in told
    assert ("on line 11," if count == 1 else f"in {count} rows (first on line 11)" if count > 5 else "lines 11") in told


def test_damage_of_two_rows_in_five_is_in_doubt(read):
    rows = [row for row in range(40) if row % 5 in (1, 3)]
    result = read(damaged("nanotron", "tokens_per_sec_per_gpu: 62.4K", "tokens_per_sec_per_gpu: 624.4K", rows))
    assert not left_out(result)
    assert "tokens/s/GPU is in doubt in 16 rows" in in_doubt(result)[0]


def test_rates_alone_are_left_out_where_they_are_far_above_the_others(read):
    result = read(damaged("torchtune", "per_gpu:16384.5", "per_gpu:163846.5", range(10, 16)))
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(16_384.5)
    assert left_out(result)


@pytest.mark.parametrize("rows", [range(20, 22), range(40)])
def test_no_device_is_so_fast_or_has_so_much_memory(rows, read):
    lines = damaged("fms_fsdp", "current token per gpu per sec: 8192", f"current token per gpu per sec: {2**63}", rows)
    for row in rows:
        lines[row] = re.sub(r"(allocated memory: )\d+", rf"\g<1>{2**63}", lines[row])
    result = read(lines)
    assert result.memory_metrics is not None
    assert (result.memory_metrics.peak_memory_allocated_gb or 0) < 100
    assert (result.performance_metrics.tokens_per_second_per_gpu or 0) < 10_000
    assert len(left_out(result)) == 2


def test_no_step_does_so_much_work(read):
    for batch, samples in ("16", pytest.approx(16 / 0.5, rel=0.1)), ("1e300", None):
        row = '{"step": %d, "loss": 3.1, "step_time_s": 0.50%d, "global_batch_size": %s}'
        result = read([row % (number, number, batch) for number in range(10, 50)])
        assert result.performance_metrics.samples_per_second == samples
        assert len(left_out(result)) == (samples is None)


@in_each(
    "device",
    [
        "CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory",
        "CUDA capacity: AMD Instinct MI250X with 63.98GiB memory",
    ],
)
def test_no_device_has_more_memory_than_its_own(device, shared, read):
    lines = (shared / "cases" / "A-validate-split" / "val_at_1.log").read_text().splitlines()
    lines = [re.sub("CUDA capacity: .*", device, line) for line in lines]
    rows = [number for number, line in enumerate(lines) if "memory: " in line]
    for row in rows[5:17]:
        lines[row] = re.sub(r"memory: (\d+)", r"memory: \g<1>7", lines[row])
    result = read(lines)
    assert result.memory_metrics is not None
    assert (result.memory_metrics.peak_memory_reserved_gb or 0) < 30
    assert ["because the device has" in one for one in left_out(result)] == [True]


@in_each("count", [1, 3, 15])
def test_a_long_time_is_left_out_where_the_dates_of_rows_show_a_usual_step(count, shared, read):
    lines = (shared / "cases" / "S-merged-runs" / "full.log").read_text().splitlines()
    rows = [number for number, line in enumerate(lines) if " iteration " in line]
    for row in rows[5 : 5 + 3 * count : 3]:
        lines[row] = re.sub(r"iteration \(ms\): (\d+)", r"iteration (ms): \g<1>5", lines[row])
    result = read(lines)
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0005, rel=1e-4)
    assert ["the dates of the rows show a usual step" in one for one in left_out(result)] == [True]


def test_a_single_peak_far_above_all_memory_is_left_out(read):
    usual = read(damaged("mlx", "Peak mem 12.345", "Peak mem 12.345", range(40))).memory_metrics
    result = read(damaged("mlx", "Peak mem 12.345", "Peak mem 123.45", range(20, 21)))
    assert result.memory_metrics == usual
    assert len(left_out(result)) == 1


@in_each("count", [1, 2, 6, 12])
def test_single_peaks_of_level_memory_stay_with_a_warning(count, read):
    rows = range(10, 10 + 2 * count, 2)
    result = read(damaged("mlx", "Peak mem 12.345", "Peak mem 21.345", rows))
    assert result.memory_metrics is not None
    assert result.memory_metrics.peak_memory_allocated_gb == 21.345
    (doubt,) = in_doubt(result)
    assert "peak of allocated memory" in doubt


def test_peaks_that_contradict_each_other_are_left_out(read):
    lines = JOBS["megatron"](Job())
    printed = "[Rank {}] (after 2 iterations) memory (MB) | allocated: 9.0 | max allocated: {}.5 | reserved: 109.0 | "
    lines[-2:-2] = [printed.format(rank, size) + "max reserved: 112.0" for rank, size in ((0, 100), (1, 900))]
    memory = read(lines).memory_metrics
    assert memory is None or memory.peak_memory_allocated_gb is None


def test_memory_that_follows_the_length_of_sequences_stays(read):
    sizes = [24.5, 23.5, 68.5, 30.5, 20.5] * 8
    rows = damaged(
        "torchtune", "alloc:20.125 peak_memory_reserved:24.5", "alloc:{} peak_memory_reserved:80.5", range(40)
    )
    result = read([row.format(size) for row, size in zip(rows, sizes, strict=True)])
    assert result.memory_metrics is not None
    assert result.memory_metrics.peak_memory_allocated_gb == pytest.approx(68.5 * 2**30 / GB, rel=1e-3)
    assert not left_out(result) + in_doubt(result)


def megatron(old, new, steps=(20,)):
    """Return the rows of 40 steps, of which some have another text; each takes 2 s at 400 TFLOP/s."""
    lines = JOBS["megatron"](Job())
    return [re.sub(old, new, line) if any(f" {step}/" in line for step in steps) else line for line in lines]


def test_rows_that_are_slow_by_all_of_their_numbers_stay(read):
    result = read(megatron(r"\(ms\): [\d.]+(.*GPU\)): [\d.]+", r"(ms): 8000.0\1: 100.0"))
    assert not left_out(result) + in_doubt(result)
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2 + 6 / 39, rel=1e-3)


def test_a_long_time_whose_rate_is_usual_stays_with_a_warning(read):
    """Without dates, a checkpoint or an evaluation that the rate leaves out explains it as well as a damaged digit."""
    rows = megatron(r"\(ms\): [\d.]+", "(ms): 8000.0", (12, 20, 28))
    result = read([re.sub(r"\[2026-[^]]*\] (?= *iteration)", "", line) for line in rows])
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2 + 18 / 39, rel=1e-3)
    assert not left_out(result)
    (doubt,) = in_doubt(result)
    assert "time is in doubt on lines" in doubt


@pytest.mark.parametrize("gap", [12.0, 0.05])
def test_a_pause_between_dates_and_rows_written_together_are_no_damage(gap):
    steps = [Step(index=n, seconds=gap if n == 20 else 2.0, reported_tokens_per_second=65_536.0) for n in range(1, 41)]
    assert not damage.leave_out(Reading(steps=Steps.of(steps), timing="timestamps"))
    assert damage.leave_out(Reading(steps=Steps.of(steps)))


@pytest.mark.parametrize("kind", ["", "validation"])
def test_a_row_with_an_announced_validation_is_no_damage(kind):
    steps = [Step(index=n, seconds=2.0, reported_tokens_per_second=65_536.0) for n in range(1, 41)]
    steps[20] = steps[20].changed(seconds=12.0, memory_allocated_bytes=1e11, interrupted_by=kind)
    steps = [step.changed(memory_allocated_bytes=step.memory_allocated_bytes or 5e10) for step in steps]
    told = damage.leave_out(Reading(steps=Steps.of(steps)))
    assert [text.split(" is in doubt")[0] for text in told] == (["steps: time", "steps: allocated memory"], [])[
        bool(kind)
    ]


@in_each("rows", [range(10, 11), range(10, 13)])
def test_a_rate_a_hundred_times_as_low_as_the_others_is_a_slow_row(rows: range, read: Reader) -> None:
    result = read(damaged("torchtune", "per_gpu:16384.5", "per_gpu:14.5", rows))
    assert any(one.code == "slow_rows" and one.values["share"].startswith("0.00") for one in result.remarks)


def test_two_paces_in_turn_are_no_damage(read):
    fast = {n: "per_gpu:204800.5" for n in range(40) if n % 2}
    rows = damaged("torchtune", "per_gpu:16384.5", "per_gpu:16384.5", range(40))
    assert not left_out(
        read([row.replace("per_gpu:16384.5", fast.get(n, "per_gpu:16384.5")) for n, row in enumerate(rows)])
    )


def test_damage_of_a_few_rows_is_in_doubt(read):
    rows = damaged("nanotron", "tokens_per_sec_per_gpu: 62.4K", "tokens_per_sec_per_gpu: 624.4K", range(5, 7))[:12]
    result = read(rows)
    assert not left_out(result)
    (doubt,) = in_doubt(result)
    assert "tokens/s/GPU is in doubt on lines 6 and 7" in doubt


def test_a_long_time_stays_where_three_rates_are_usual(read):
    result = read(damaged("nanotron", "time_per_iteration_ms: 1.05K", "time_per_iteration_ms: 5.05K", range(20, 22)))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(1.05 + 2 * 4 / 39, rel=1e-3)
    assert not left_out(result)
    assert "time is in doubt on lines 21 and 22" in in_doubt(result)[0]


def test_a_rate_of_steps_that_no_row_has_gives_no_number_of_steps(read):
    rows = damaged("paddle", "steps_per_second: 0.4883", f"steps_per_second: {2**63}", range(20, 21))
    assert read(rows).performance_metrics.avg_step_time_seconds == pytest.approx(2.048)


NANOTRON = "time_per_iteration_ms: 1.05K | tokens_per_sec: 499K | tokens_per_sec_per_gpu: 62.4K"
SLOW = "time_per_iteration_ms: {} | tokens_per_sec: {} | tokens_per_sec_per_gpu: {}"


def test_rates_that_contain_an_evaluation_leave_the_usual_time(read):
    rows = damaged("nanotron", NANOTRON, SLOW.format("1.05K", "125K", "15.6K"), range(20, 21))
    result = read([row.replace("gpu: 420", "gpu: 105") if "125K" in row else row for row in rows])
    assert not left_out(result)
    assert "time is in doubt on line 21" in in_doubt(result)[0]


def test_of_a_slow_row_the_number_that_contradicts_all_others_is_in_doubt(read):
    rows = damaged("nanotron", NANOTRON, SLOW.format("4.20K", "125K", "62.4K"), range(20, 21))
    result = read([row.replace("gpu: 420", "gpu: 105") if "125K" in row else row for row in rows])
    assert not left_out(result)
    (doubt,) = in_doubt(result)
    assert "steps: tokens/s/GPU is in doubt on line 21" in doubt


def test_the_first_row_contains_a_compilation(read):
    rows = damaged("nanotron", "time_per_iteration_ms: 1.05K", "time_per_iteration_ms: 9.05K", range(1))
    assert not in_doubt(read(rows))
