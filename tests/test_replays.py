"""A log that repeats earlier text word for word: every row counts once, with the settings of its own training."""

# ruff: noqa: F811  # `read` is a fixture of test_segments
from dataclasses import replace

import pytest
from each import in_each
from job_logs import JOBS
from test_segments import LONG, OTHER, Reader, assert_figures_of, each_format, read  # noqa: F401  # read: a fixture

from tensorprimat.core.errors import InputError
from tensorprimat.core.result import Result


def told(result: Result) -> list[str]:
    return [one for one in result.remarks if one.code == "text_repeated"]


@each_format
def test_a_log_that_is_joined_with_itself_counts_once(name: str, read: Reader) -> None:
    result = read(JOBS[name](LONG), JOBS[name](LONG))
    assert_figures_of(result, LONG)
    assert len(result.steps) == LONG.last


@each_format
def test_a_log_that_is_repeated_after_another_one_counts_once(name: str, read: Reader) -> None:
    first, second = JOBS[name](LONG), JOBS[name](OTHER)
    result = read(first, second, first)
    assert_figures_of(result, LONG)
    assert len(result.provenance.segments) == 2
    assert told(result)
    assert_figures_of(read(second, first, second), LONG)


@in_each("name", [name for name in JOBS if name != "mlperf"])  # its half would contradict its clock
def test_the_beginning_of_a_log_before_another_training_is_not_mixed_with_it(name: str, read: Reader) -> None:
    first = JOBS[name](LONG)
    result = read(first, JOBS[name](replace(LONG, last=25)), JOBS[name](OTHER))
    assert_figures_of(result, LONG)
    assert told(result)


@in_each("name", ["megatron", "primus", "nemo", "torchtitan", "maxtext", "nanochat", "olmo", "litgpt"])
@in_each("seconds", [0.5, 2.0])
def test_rows_after_a_replay_behind_another_training_are_refused(name: str, seconds: float, read: Reader) -> None:
    first, second = JOBS[name](LONG), JOBS[name](replace(OTHER, seconds=seconds))
    further = JOBS[name](replace(LONG, last=80))[len(first) :]
    with pytest.raises(InputError, match="repeat earlier ones, and the rows after them may belong"):
        read(first, second, first[-15:], further)
    assert read(first, first[-15:], further).performance_metrics.total_steps == 80


def test_the_end_of_a_log_that_is_printed_twice_is_told(read: Reader) -> None:
    lines = JOBS["nanochat"](LONG)
    result = read(lines, lines[-15:])
    assert_figures_of(result, LONG)
    assert told(result)


def test_equal_lines_of_several_ranks_are_not_a_replay(read: Reader) -> None:
    lines = [line for line in JOBS["megatron"](LONG) for _ in range(8)]
    result = read(lines)
    assert_figures_of(result, LONG)
    assert not told(result)


def test_another_training_with_the_same_losses_is_not_a_repetition(read: Reader) -> None:
    """Rows of the Trainer hold no time: a training with the same seed prints them again, at its own speed."""
    head = ("***** Running training *****", "  Total train batch size = 8", "  Total optimization steps = 200")
    rows = [
        f"{{'loss': {3 - step / 200:.4f}, 'learning_rate': 1e-05, 'epoch': {step / 100:.2f}}}"
        for step in range(10, 210, 10)
    ]
    ends = [
        f"{{'train_runtime': {seconds}, 'train_samples_per_second': {1600 / seconds}, "
        f"'train_steps_per_second': {200 / seconds}, 'train_loss': 2.5, 'epoch': 2.0}}"
        for seconds in (100.0, 200.0)
    ]
    result = read([*head, *rows, ends[0]], [*head, *rows, ends[1]])
    assert not told(result)
    assert result.performance_metrics.samples_per_second == pytest.approx(8.0)
    assert len(result.provenance.segments) == 2


@each_format
def test_a_replay_with_other_stamps_of_a_collector_counts_once(name: str, read: Reader) -> None:
    def dated(lines: list[str], hour: int) -> list[str]:
        return [f"2026-01-05T{hour:02}:{n // 60 % 60:02}:{n % 60:02}.5Z {line}" for n, line in enumerate(lines)]

    first, second = JOBS[name](LONG), JOBS[name](OTHER)
    result = read(dated(first, 8), dated(second, 9), dated(first, 10))
    assert told(result)
    assert len(result.provenance.segments) == 2
