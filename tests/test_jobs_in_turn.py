"""Rows of two jobs that alternate in one log: every format refuses it, or a warning says that two jobs may be mixed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from each import in_each
from job_logs import Job
from table_logs import ALL_JOBS

from tensorprimat import logs
from tensorprimat.core.errors import InputError

ONE = Job(last=60)
OTHERS = {
    "another loss": replace(ONE, loss=6.0),
    "another pace": replace(ONE, seconds=2.2, startup=3.0),
    "both": replace(ONE, loss=6.0, seconds=3.1, startup=3.9),
    "another batch": replace(ONE, loss=6.0, seconds=3.7, startup=4.9, batch=128),
    "later steps": replace(ONE, loss=6.0, first=1001, last=1060),
    "later steps at another pace": replace(ONE, loss=6.0, seconds=3.1, first=1001, last=1060),
    "some of the steps": replace(ONE, loss=6.0, seconds=2.2, first=31, last=90),
}
TOLD = (
    "rows repeat the number of a step|processes alternate in the file|rows of 2 trainings in turn|"
    "too few to measure one|none to measure|no step times found|state no more progress|by run_start to run_stop"
)
LAST_LINES = {"huggingface": 1, "mlperf": 1, "modded-nanogpt": 1}
"""Lines of a log after its last row."""
STAMP = re.compile(r"\[?20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?\]?|\"time_ms\": \d+")


def parts_of(name: str, job: Job) -> tuple[list[str], list[list[str]]]:
    """Return the lines before the rows of a job, and the lines of each row."""
    lines, more = (ALL_JOBS[name](one) for one in (job, replace(job, last=job.last + 1)))
    size, rows = len(more) - len(lines), job.last - job.first + 1
    head = len(lines) - LAST_LINES.get(name, 0) - size * rows
    return lines[:head], [lines[head + size * row : head + size * (row + 1)] for row in range(rows)]


def in_turn(name: str, one: Job, other: Job, block: int) -> list[str]:
    """Return a log to which two jobs write in turn, so many rows at a time."""
    (head, rows), (other_head, other_rows) = parts_of(name, one), parts_of(name, other)
    turns = [
        some[begin : begin + block]
        for begin in range(0, max(len(rows), len(other_rows)), block)
        for some in (rows, other_rows)
    ]
    return [
        *head,
        *(other_head if other_head != head else ()),
        *(line for turn in turns for row in turn for line in row),
    ]


@pytest.fixture
def read(tmp_path: Path) -> Callable[[list[str]], logs.Result]:
    def read(lines: list[str]) -> logs.Result:
        (tmp_path / "run.log").write_text("\n".join(lines) + "\n")
        return logs.read(tmp_path / "run.log")

    return read


@pytest.mark.parametrize(
    ("block", "dated"),
    [
        (1, True),
        (3, False),
        pytest.param(1, False, marks=pytest.mark.thorough),
        pytest.param(3, True, marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("name", ALL_JOBS)
def test_rows_of_two_jobs_in_turn_are_refused_or_told(name, block, dated, read):
    for case, other in OTHERS.items():
        lines = in_turn(name, ONE, other, block)
        rows, others = ([STAMP.sub("", line) for row in parts_of(name, job)[1] for line in row] for job in (ONE, other))
        if rows == others:
            continue  # a log without losses, of two jobs at one rate: the figures of one are those of the other
        lines = lines if dated else [STAMP.sub("", line) for line in lines]
        try:
            said = read(lines).warnings
        except InputError as refusal:
            said = (str(refusal),)
        assert any(re.search(TOLD, text) for text in said), (case, said)


@in_each("case", OTHERS)
def test_rows_with_clocks_of_two_processes_give_the_time_of_one(case, read):
    other = OTHERS[case]
    seconds = read(in_turn("huggingface", ONE, other, 1)).performance_metrics.avg_step_time_seconds
    assert seconds in (pytest.approx(ONE.seconds, rel=0.002), pytest.approx(other.seconds, rel=0.002))


@in_each("name", ["megatron", "torchtitan", "loop", "timestamps", "metrics table"])
def test_ranks_that_agree_are_read_without_a_word(name, read):
    result = read(in_turn(name, ONE, replace(ONE, seconds=2.001), 1))
    assert {"rows_of_two_jobs", "rows_repeated"}.isdisjoint(one.code for one in result.remarks)


@in_each("name", ["megatron", "torchtitan", "loop", "metrics table"])
def test_restarts_that_repeat_steps_since_a_checkpoint_are_not_two_jobs(name, read):
    ends = (17, 26, 38, 51, 63, 78, 90)
    jobs = [replace(ONE, first=max(1, end - 16), last=end, loss=9 + end / 1000, banner=end == 17) for end in ends]
    lines = [line for job in jobs for line in ALL_JOBS[name](job)]
    result = read(lines)
    assert result.performance_metrics.total_steps > 60
    assert {"rows_of_two_jobs", "rows_repeated"}.isdisjoint(one.code for one in result.remarks)
