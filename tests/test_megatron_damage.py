"""Logs of the Megatron family that end early, are cut or were written into by several processes."""

import re
from pathlib import Path

import pytest
from drawn import examples
from each import in_each
from hypothesis import given
from hypothesis import strategies as st
from job_logs import JOBS, Job
from test_megatron import PREFIXES, SPELLINGS, read, row

from tensorprimat import logs
from tensorprimat.core.errors import NotALogError, TensorPrimatError


def test_a_crash_at_the_end_leaves_an_incomplete_result(tmp_path: Path) -> None:
    crash = [
        "Traceback (most recent call last):",
        '  File "train.py", line 1',
        "torch.OutOfMemoryError: HIP out of memory.",
    ]
    lines = [row("P7", i, 2500.0) for i in range(1, 12)]
    result = read(tmp_path, lines + crash)
    assert not result.complete
    assert result.runs[0].ended_by == "out of memory"
    assert read(tmp_path, [*lines[:5], *crash, *lines[5:]]).is_usable, "a crash that training survived is none"


@in_each(
    ("last", "cause"),
    [
        ("Killed", "killed by a signal"),
        ("run.sh: line 12:  3456 Killed                  python train.py", "killed by a signal"),
        ("srun: error: node7: task 3: Killed", "killed by a signal"),
        ("Out of memory: Killed process 3456 (python) total-vm:9kB", "out of memory"),
        ("Killed two birds with one stone", None),
        ("Killed the old server: 3 workers", None),
    ],
)
def test_a_process_that_the_system_killed_ended_early(tmp_path: Path, last: str, cause: str | None) -> None:
    result = read(tmp_path, [*(row("P7", i, 2500.0) for i in range(1, 12)), last])
    assert result.runs[0].ended_by == cause
    assert result.is_usable is (cause is None)


@in_each("spelling", SPELLINGS)
def test_a_last_line_cut_anywhere_is_whole_or_left_out(tmp_path: Path, spelling: str) -> None:
    lines = [" " + row(spelling, i, 2500.0 + i) for i in range(1, 8)]
    for cut in range(1, len(lines[-1]), 29):
        result = read(tmp_path, [*lines[:-1], lines[-1][:cut]], end="")
        for step in result.steps[:]:
            assert step.seconds == pytest.approx((2500.0 + step.index) / 1000)
            assert step.loss in (11.5, None)
    assert len(read(tmp_path, lines, end="").steps) == 7, "a whole line without a line end counts"


def test_a_number_that_another_process_wrote_into_is_left_out_and_reported(tmp_path: Path) -> None:
    lines = [row("P0", i, 2500.0) for i in range(1, 8)]
    lines[3] = lines[3].replace("2500.0", "25NCCL INFO Channel 00.0")
    result = read(tmp_path, lines)
    assert [step.index for step in result.steps] == [1, 2, 3, 5, 6, 7]
    assert any("line 4" in warning for warning in result.warnings)


def test_two_iterations_run_together_on_one_line_are_left_out_and_reported(tmp_path: Path) -> None:
    rows = [row("2021", i, 2500.0 + 100 * i) for i in range(1, 9)]
    result = read(tmp_path, [*rows[:3], rows[3] + rows[4], *rows[5:]])
    assert [step.seconds for step in result.steps] == [2.6, 2.7, 2.8, 3.1, 3.2, 3.3]
    assert any("1 iteration line without" in warning and "on line 4" in warning for warning in result.warnings)


def test_a_log_of_one_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotALogError, match=r"the first never counts.*give more rows"):
        read(tmp_path, [row("P0", 1, 2500.0)])


@in_each(
    ("iterations", "steps"),
    [((126, 261, 396), 3), ((10, 280, 396), 3), ((268, 269, 270), 3), ((100, 200, 300), 300), ((1, 10, 20), 20)],
)
def test_rows_picked_out_of_a_log_count_as_steps_unless_they_are_multiples_of_their_distance(
    tmp_path: Path, iterations: tuple[int, ...], steps: int
) -> None:
    result = read(tmp_path, [row("2021", number, 2500.0 + number % 7) for number in iterations])
    assert result.performance_metrics.total_steps == steps


NOISE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), max_size=80).filter(
    lambda text: "iteration" not in text
)


@examples(20)
@given(
    spellings=st.lists(st.sampled_from([*SPELLINGS, "2021"]), min_size=2, max_size=12),
    prefixes=st.lists(st.sampled_from(sorted(PREFIXES)), min_size=12, max_size=12),
    milliseconds=st.lists(st.integers(10**4, 7 * 10**4), min_size=12, max_size=12),
    noise=st.lists(NOISE, min_size=12, max_size=12),
    line_end=st.sampled_from(["\n", "\r\n"]),
    cut=st.integers(0, 400),
)
def test_any_mixture_of_lines_gives_exactly_the_planted_steps(
    tmp_path: Path,
    spellings: list[str],
    prefixes: list[str],
    milliseconds: list[int],
    noise: list[str],
    line_end: str,
    cut: int,
) -> None:
    lines, planted = [], []
    milliseconds[:2] = sorted(milliseconds[:2])  # a slower first one can mean a timer that ran on (order.py)
    for number, (spelling, prefix, tenths, text) in enumerate(
        zip(spellings, prefixes, milliseconds, noise, strict=False), start=1
    ):
        lines += [text, PREFIXES[prefix] + row(spelling, number, tenths / 10)]
        planted.append((number, tenths / 10**4))
    path = tmp_path / "mixed.log"
    content = line_end.join(lines) + line_end
    path.write_bytes(content.encode("utf-8", "replace"))
    result = logs.read(path, format="megatron")
    assert [(step.index, step.seconds) for step in result.steps] == planted
    path.write_bytes(content[: max(1, len(content) - cut)].encode("utf-8", "replace"))
    try:
        result = logs.read(path, format="megatron")
    except TensorPrimatError:
        return
    assert {(step.index, step.seconds) for step in result.steps} <= set(planted)


@pytest.mark.parametrize(
    ("old", "new", "named"), [(" 10/", f" {2**63 - 1}/", True), ("batch size:    64", "batch size:    0", False)]
)
def test_a_number_that_no_row_can_have_is_unknown(tmp_path: Path, old: str, new: str, named: bool) -> None:
    lines = JOBS["megatron"](Job())
    place = next(place for place, line in enumerate(lines) if "iteration" in line and " 10/" in line)
    assert old in lines[place]
    lines[place] = lines[place].replace(old, new)
    result = read(tmp_path, lines)
    assert result.training_config.global_batch_size == 64
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0, rel=0.002)
    assert any(f"(line {place + 1})" in warning for warning in result.warnings) == named


def test_a_log_whose_rows_all_have_an_impossible_number_is_refused(tmp_path: Path) -> None:
    lines = [re.sub(r"(iteration +)\d+/", rf"\g<1>{2**63 - 1}/", line) for line in JOBS["megatron"](Job())]
    with pytest.raises(NotALogError):
        read(tmp_path, lines)
