"""Rows out of order: those that repeat the number of a step with other values, the sign of two jobs that write into one
log, and those from the newest to the oldest.

The rows of several ranks about one step agree, and only the first of them counts. Rows of two jobs without the prefixes
of launchers look the same, but have other losses, or times that differ in every step.

Rows in the order of a log service, the newest first, are refused: each would be a restart, and a row of MLPerf would
even be timed by the marks of another block.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence

import numpy as np

from tensorprimat.core.errors import InputError
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import significant
from tensorprimat.core.steady import median
from tensorprimat.core.steps import Step, Steps
from tensorprimat.core.terms import RATES

SAME_LOSS = 1e-6  # relative difference: ranks print one mean over all of them
FEWEST_LOSSES = 3  # repeated rows with other losses: one or two may be steps repeated after a restart
FEWEST_TIMES = 5
OTHER_PACE = 0.03  # ranks wait for one another in every step, so their times do not differ by as much in the median
_MEASURES = ("seconds", *RATES)
_LEAST_ROWS = 3  # whose order says something
MOSTLY = 0.8  # of the lines go back; those of several ranks or restarts do so far less often


class Repeats:
    """Rows that repeat the number of a step, as far as their values contradict those of the row that counts."""

    def __init__(self) -> None:
        """Start without rows."""
        self._losses = 0
        self._shown = ""
        self._ratios = array("d")

    def add(self, first: Step, again: Step) -> None:
        """Compare a row with the one of the same step that counts. They must not be of two known ranks."""
        self.add_losses(first.loss, again.loss, step=first.index, lines=(first.line, again.line))
        for name in _MEASURES:
            mine, theirs = getattr(first, name), getattr(again, name)
            if mine and theirs and mine > 0 and theirs > 0:
                ratio = math.log(theirs / mine)
                self._ratios.append(ratio if name == "seconds" else -ratio)
                break

    def add_losses(
        self, first: float | None, again: float | None, *, step: int, lines: tuple[int | None, int | None]
    ) -> None:
        """Compare the losses of two rows. lines: of the row that counts and of the other one."""
        if first is None or again is None or not math.isfinite(first) or not math.isfinite(again):
            return
        if abs(again - first) > SAME_LOSS * abs(first):
            self._losses += 1
            place = "" if None in lines else f", lines {lines[0]} and {lines[1]}"
            self._shown = self._shown or f"step {step}{place}: {significant(first, 5)} and {significant(again, 5)}"

    def warnings(self) -> Iterator[str]:
        """Yield a warning if the rows may be those of two jobs."""
        of_one = (
            "only the first row of each step counts, so the figures may mix both; give a file with the lines of one"
        )
        if self._losses >= FEWEST_LOSSES:
            yield Notice("rows_of_two_jobs", "steps", rows=self._losses, shown=self._shown, of_one=of_one)
        elif len(self._ratios) >= FEWEST_TIMES:
            pace = math.expm1(median(np.array(self._ratios)))
            if abs(pace) > OTHER_PACE:
                direction, rows = "longer" if pace > 0 else "less", len(self._ratios)
                yield Notice("rows_repeated", "steps", rows=rows, off=abs(pace), direction=direction, of_one=of_one)


def goes_back(values: Sequence[float] | np.ndarray) -> bool:
    """Return True if numbers or times, in the order of their lines, fall at nearly every change. NaN is left out."""
    known = np.asarray(values, np.float64)
    growth = np.diff(known[np.isfinite(known)])
    growth = growth[growth != 0]  # ranks, and marks of one moment, repeat a value
    return len(growth) >= _LEAST_ROWS - 1 and bool(np.mean(growth < 0) >= MOSTLY)


def refuse_newest_first(steps: Steps, path: str) -> None:
    """Raise InputError if the numbers of the rows go back. Dates are not compared: they may be of several logs."""
    lines = steps.column("line")
    order = np.argsort(lines[lines > 0], kind="stable")
    if goes_back(steps.column("index")[lines > 0][order]):
        raise refusal_of_order(path)


def refusal_of_order(path: str) -> InputError:
    """Return the error for a log whose lines go from the newest to the oldest."""
    remedy = "put the oldest first: tac LOG, or gcloud logging read --order=asc"
    return InputError("its rows go from the newest to the oldest", path=path, remedy=remedy)
