"""Rows that several processes append to one file are read as those of one process."""

import json
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.core.result import Result
from tensorprimat.core.steady import Steady, within_half

ALTERNATE = "processes alternate"


def row(step: int, seconds: float, loss: float) -> str:
    elapsed = str(timedelta(seconds=round(seconds)))
    return json.dumps(
        {"current_steps": step, "total_steps": 900, "loss": round(loss, 4), "lr": 1e-5, "epoch": step / 100,
         "percentage": round(step / 9, 2), "elapsed_time": elapsed, "remaining_time": "0:10:00"}
    )  # fmt: skip


def read(folder: Path, written: list[tuple[float, str]]) -> Result:
    """Read rows in the order in which they were written. written: (when, row)."""
    path = folder / "trainer_log.jsonl"
    path.write_text("\n".join(text for _, text in sorted(written, key=lambda each: each[0])) + "\n")
    return logs.read(path)


def process(pace: float, late: float, *, loss: float, steps: int = 600) -> list[tuple[float, str]]:
    """Return the rows of a process that takes `pace` seconds a step and began `late` seconds after the first one."""
    return [
        (late + pace * step, row(step, pace * step, loss - step / 1000 + step % 7 / 100))
        for step in range(10, steps + 1, 10)
    ]


@in_each("pace", [15.0, 15.1, 14.0])
def test_a_step_takes_the_time_between_rows_of_one_process(tmp_path, pace):
    result = read(tmp_path, [*process(15.0, 0.0, loss=2.0), *process(pace, 1.0, loss=2.1)])
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(15.0, rel=0.01 if pace > 14 else 0.08)
    assert result.performance_metrics.measured_steps > 500
    assert sum(ALTERNATE in warning for warning in result.warnings) == 1


def test_a_restart_of_one_process_is_not_taken_for_several_processes(tmp_path):
    first, again = process(15.0, 0.0, loss=2.0, steps=300), process(15.0, 1e5, loss=1.8)
    result = read(tmp_path, [*first, *again])
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(15.0)
    assert not [warning for warning in result.warnings if ALTERNATE in warning]


def test_warm_up_ends_within_half_of_the_steps_where_rows_cover_different_numbers_of_them():
    covers = np.array([125] * 24 + [2] * 88)
    assert within_half(Steady(start=50, settled=True), covers) == Steady(start=12, settled=False)
    assert within_half(Steady(start=3, settled=True), covers) == Steady(start=3, settled=True)
    assert within_half(Steady(start=8, settled=True), np.full(10, 5)) == Steady(start=8, settled=True)


def test_many_short_rows_at_the_end_do_not_pass_for_the_level_of_a_run(tmp_path):
    steps = [*range(125, 3001, 125), *range(3002, 3177, 2)]
    times = np.cumsum([(350 if step <= 3000 else 331) * (125 if step <= 3000 else 2) for step in steps])
    path = tmp_path / "run.log"
    path.write_text(
        "".join(f"step:{n}/3176 train_time:{ms}ms step_avg:1.00ms\n" for n, ms in zip(steps, times, strict=True))
    )
    assert logs.read(path).performance_metrics.avg_step_time_seconds == pytest.approx(0.348, abs=0.002)
