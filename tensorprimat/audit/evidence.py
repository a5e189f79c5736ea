"""Records of a log's own clock, which readers pass on for the closing audit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from tensorprimat.core.steps import FloatArray, Steps

FINEST = 1e-3  # seconds; dates with more than three decimals count as milliseconds
_LOOKED_AT = 1000  # gaps that are tested before all of them: they rule out most wrong resolutions
DATES = "the timestamps of the rows"  # name of this clock in messages


def resolution_of(moments: np.ndarray) -> float:
    """Return the resolution of printed moments in seconds, from their differences: 60, 1 or FINEST.

    Moments whose fraction of a second never changes have a resolution of 1 s.

    >>> resolution_of(np.array([60.0, 180.0])), resolution_of(np.array([0.25, 2.25])), resolution_of(np.array([1, 1.5]))
    (60.0, 1.0, 0.001)
    """
    gaps = np.diff(moments)
    for grain in (60.0, 1.0):
        if all((np.abs(part - grain * np.round(part / grain)) < FINEST).all() for part in (gaps[:_LOOKED_AT], gaps)):
            return grain
    return FINEST


@dataclass(frozen=True, kw_only=True)
class LogClock:
    """The total time that a log itself states for one run."""

    name: str
    """Name of the clock in messages: "run_start to run_stop", "train_runtime"."""
    seconds: float
    steps: float | None = None
    """Optimizer steps between start and end by the log's own count; None means the steps that the rows add up to."""
    spent: tuple[tuple[str, float], ...] = ()
    """(activity, seconds) that the log's own clock includes and that are not training."""
    first: tuple[float, float] | None = None
    """(steps done, seconds) of the same clock at the first row that it times."""
    last: tuple[float, float] | None = None
    """(steps done, seconds) at the last row that it times."""
    after_step: int | None = None
    """Number of the step at whose end the clock begins, where it leaves out the rows before."""
    in_rows: bool = False
    """True if the times of interrupted rows include the seconds of `spent`."""
    has_every_pause: bool = False
    """True if `spent` contains every pause of the run, so that the dates of rows add no information."""
    resolution: float = 0.0
    """Seconds that rounding can hide."""
    is_certain: bool = True
    """False for a clock that may leave out or hold more than the steps: it warns, and refuses nothing."""
    run: int = 0


@dataclass(frozen=True, kw_only=True)
class Elapsed:
    """A clock that a log states row by row, as seconds since some beginning."""

    name: str
    """Name of the clock in messages: "_runtime"."""
    seconds: Mapping[int, float]
    """Number of the step, or line of the row → the clock at the end of the row, in seconds."""
    resolution: float
    """Resolution of one clock reading, in seconds."""
    by: Literal["index", "line"] = "index"
    """Column of the steps by which a reading is found: "line" where step numbers repeat in several segments."""
    of_calls: bool = False
    """True if the readings are the moments at which a logger was called, which dates inside the rows state, too."""

    def of(self, steps: Steps) -> FloatArray:
        """Return the reading at the end of each row, NaN where unknown; (rows,)."""
        return at(self.seconds, steps.column(self.by))


class ByStep(Mapping[int, float]):
    """A mapping from step number to value in two columns; a dictionary of a million takes ten times the memory."""

    def __init__(self, steps: np.ndarray, values: np.ndarray) -> None:
        """Keep columns. steps: ascending."""
        self._steps, self._values = steps, values

    def __getitem__(self, step: int) -> float:
        place = int(np.searchsorted(self._steps, step, side="right")) - 1
        if place < 0 or self._steps[place] != step:
            raise KeyError(step)
        return float(self._values[place])

    def at(self, steps: np.ndarray) -> np.ndarray:
        """Return the value of each of these steps, NaN for a step without one; shape (steps,)."""
        if not len(self._steps):
            return np.full(len(steps), np.nan)
        places = np.maximum(np.searchsorted(self._steps, steps, side="right") - 1, 0)
        return np.where(self._steps[places] == steps, self._values[places], np.nan)

    def __iter__(self) -> Iterator[int]:
        return iter(self._steps.tolist())

    def __len__(self) -> int:
        return len(self._steps)


def at(values: Mapping[int, float | None], steps: np.ndarray) -> np.ndarray:
    """Return the value of each of these steps, NaN for a step without one; shape (steps,)."""
    if isinstance(values, ByStep):
        return values.at(steps)
    return np.array([values.get(int(step)) for step in steps], np.float64)  # None becomes NaN


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that a reader passes on for the audit."""

    clocks: tuple[LogClock, ...] = ()
    announced: Mapping[int, str] = field(default_factory=dict)
    """Line → "validation" or "checkpoint", which a log announces between rows and leaves out of their times."""
    evaluated_after: frozenset[int] = frozenset()
    """Numbers of the steps after which a table, which has no such lines, contains the metrics of an evaluation."""
    elapsed: Elapsed | None = None
    """Clock that the rows state, which the audit uses like their dates."""
    factors: Mapping[str, float] | None = None
    """Column of the steps that has the numbers of a table → factor from them to the column's unit; None: no table."""
    dates: Elapsed | None = None
    """Dates of the rows if they lack the year; dates with a year are in the steps."""


def together(clocks: Sequence[Elapsed | None]) -> Elapsed | None:
    """Return the clocks of several segments as one; None unless all are the same, read by the lines of their rows."""
    known = [clock for clock in clocks if clock is not None]
    alike = {(clock.name, clock.of_calls, clock.by) for clock in known}
    if len(known) < len(clocks) or len(alike) != 1 or known[0].by != "line":
        return None
    lines = np.concatenate([np.fromiter(clock.seconds.keys(), np.int64) for clock in known])
    seconds = np.concatenate([np.fromiter(clock.seconds.values(), np.float64) for clock in known])
    order = np.argsort(lines, kind="stable")
    return replace(
        known[0],
        seconds=ByStep(lines[order], seconds[order]),
        resolution=max(clock.resolution for clock in known),
    )
