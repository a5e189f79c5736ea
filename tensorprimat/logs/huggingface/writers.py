"""Rows of several processes in one file: LLaMA-Factory's ranks, and trainings side by side, may append to the same log.

Their steps and clocks alternate, so the time between two lines is that of no process. `of_one_process` distinguishes
them by their clocks, and keeps the rows of the one that wrote most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import multimode

from tensorprimat.logs.huggingface.rows import Row
from tensorprimat.logs.newest_first import goes_back

_LEAST_ROWS = 8
ALTERNATING = 0.25  # of the rows that go back, or repeat a step: restarts are far fewer
_LOOKED_AT = 8  # processes that began last
_FARTHEST = 3  # times the usual distance between two rows of one process: two rows may be lost


@dataclass(kw_only=True)
class _Process:
    rows: list[Row]
    longest: int
    """Most steps between two rows that follow each other."""
    pace: float | None = None
    """Seconds of a step between its last two rows."""

    def gap(self, row: Row) -> tuple[float, float] | None:
        """Return the distance of a row from the last of this process: steps, and the change of the seconds per step.

        None if the row cannot follow: its step or clock is not later, its step is too far away, or it has no clock.
        """
        last = self.rows[-1]
        steps = (row.step or 0) - (last.step or 0)
        if not 0 < steps <= self.longest or row.clock is None or last.clock is None or row.clock[0] < last.clock[0]:
            return None
        pace = (row.clock[0] - last.clock[0]) / steps
        return steps, abs(pace - self.pace) if self.pace is not None else 0.0

    def add(self, row: Row) -> None:
        """Take the row as the next of this process."""
        last = self.rows[-1]
        if row.clock and last.clock:
            self.pace = (row.clock[0] - last.clock[0]) / ((row.step or 0) - (last.step or 0))
        self.rows.append(row)


def of_one_process(found: Sequence[Row]) -> tuple[list[Row], int]:
    """Return the rows of the process that wrote most, and the number of processes that wrote about as many.

    Rows of one process, with a restart or two or from the newest to the oldest, are returned as they are.
    """
    rows = list(found)
    if len(rows) < _LEAST_ROWS or any(row.step is None or row.clock is None for row in rows):
        return rows, 1
    if goes_back([row.step or 0 for row in rows]):
        return rows, 1  # of one process, the newest first
    back = sum((after.step or 0) <= (before.step or 0) for before, after in pairwise(rows))
    if back < ALTERNATING * len(rows):
        return rows, 1
    longest = _FARTHEST * _interval([row.step or 0 for row in rows])
    processes: list[_Process] = []
    for row in rows:
        near = [(gap, process) for process in processes[-_LOOKED_AT:] if (gap := process.gap(row))]
        if near:
            min(near, key=lambda each: each[0])[1].add(row)
        else:
            processes.append(_Process(rows=[row], longest=longest))
    most = max(processes, key=lambda process: len(process.rows)).rows
    return most, sum(2 * len(process.rows) > len(most) for process in processes)


def _interval(steps: Sequence[int]) -> int:
    """Return the usual distance between two rows of one process, with up to _LOOKED_AT processes in turn."""
    distances = (
        after - before
        for ahead in range(1, _LOOKED_AT + 1)
        for before, after in zip(steps, steps[ahead:], strict=False)
        if after > before
    )
    return min(multimode(distances))
