"""Records of a log's own clock, which readers pass on for the closing audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class LogClock:
    """The total time that a log itself states for one run."""

    name: str
    """As a sentence names it: "run_start to run_stop", "train_runtime"."""
    seconds: float
    steps: float | None = None
    """Optimizer steps by the log's own count; None for those of the rows."""
    spent: tuple[tuple[str, float], ...] = ()
    """(what, seconds) of the clock that are no training and that the log itself tells."""
    first: tuple[float, float] | None = None
    """(steps done, seconds) of the same clock at the first row that it times."""
    last: tuple[float, float] | None = None
    """The same at the last row that it times."""
    tells_all: bool = False
    """`spent` holds every pause of the run, so the dates of rows add nothing."""
    resolution: float = 0.0
    """Seconds that rounding can hide."""
    is_certain: bool = True
    """False for a clock that may leave out or hold more than the steps: it warns, and refuses nothing."""
    run: int = 0


@dataclass(frozen=True, kw_only=True)
class Elapsed:
    """A clock that a log tells row by row, as seconds since some beginning."""

    name: str
    """As a sentence names it: "_runtime"."""
    seconds: Mapping[int, float]
    """Number of the step → the clock at the end of its row."""
    resolution: float
    """Of a reading, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that a reader passes on for the audit."""

    clocks: tuple[LogClock, ...] = ()
    announced: Mapping[int, str] = field(default_factory=dict)
    """Line → "validation" or "checkpoint", for what a log announces between rows whose times leave it out."""
    elapsed: Elapsed | None = None
    """Held against the rows in place of their dates."""
