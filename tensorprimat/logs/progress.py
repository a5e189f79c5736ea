"""Readings of a progress bar, or of another clock that runs beside a count of steps."""

from __future__ import annotations

from typing import NamedTuple

TOO_MANY = 5.0  # times the clock that the first steps would have taken at the later pace


class ClockReading(NamedTuple):
    """One reading: the steps done, and the seconds since this process began to train."""

    steps: int
    seconds: float


def resumed_before(first: ClockReading, last: ClockReading) -> bool:
    """Return True if the steps of the first reading are too many for its clock: a checkpoint holds most of them.

    A resumed training numbers its steps on, while its clock begins anew.

    >>> last = ClockReading(504, 315.0)
    >>> resumed_before(ClockReading(501, 121.0), last), resumed_before(ClockReading(1, 30.0), last)
    (True, False)
    """
    if last.steps <= first.steps or last.seconds <= first.seconds:
        return False
    pace = (last.seconds - first.seconds) / (last.steps - first.steps)
    return first.steps * pace > TOO_MANY * (first.seconds + 1)  # clocks print whole seconds
