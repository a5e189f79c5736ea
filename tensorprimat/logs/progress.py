"""Readings of a progress bar, or of another clock that a log prints with a count of steps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tensorprimat.logs import fields
from tensorprimat.logs.clocks import Moment, TimeMark, date_in
from tensorprimat.logs.dialects import Dialect

_LONGEST_BAR = 2**12  # characters
TOO_MANY = 5.0  # times the clock that the first steps would have taken at the later pace


class ClockReading(NamedTuple):
    """One reading: the steps done, and the seconds since this process began to train."""

    steps: int
    seconds: float


def resumed_before(first: ClockReading, last: ClockReading) -> bool:
    """Return True if the steps of the first reading are too many for its clock: a checkpoint contains most of them.

    A resumed training numbers its steps on, while its clock begins anew.

    >>> last = ClockReading(504, 315.0)
    >>> resumed_before(ClockReading(501, 121.0), last), resumed_before(ClockReading(1, 30.0), last)
    (True, False)
    """
    if last.steps <= first.steps or last.seconds <= first.seconds:
        return False
    pace = (last.seconds - first.seconds) / (last.steps - first.steps)
    return first.steps * pace > TOO_MANY * (first.seconds + 1)  # clocks print whole seconds


class DrawnBar(NamedTuple):
    """One drawing of a bar that begins anew with every epoch."""

    line: int
    step: int
    """Number of the step that its description names, over all epochs."""
    done: int
    """Steps done in this epoch."""
    of: int
    """Steps of an epoch."""
    elapsed: float
    """Seconds since the beginning of the epoch."""
    loss: float | None
    interrupted_by: str
    """Validation or checkpoint announced since the previous drawing; empty for none."""
    rounded_to: int = 1
    """Steps to which the bar rounds the number done."""
    ended_at: float | None = None


def marks_of(drawings: Sequence[DrawnBar]) -> Iterator[TimeMark]:
    """Yield the steps of a bar with its clock, which is assumed to stop between epochs.

    A drawing whose description is of another step than its count is left out: the bar is drawn once before the
    description changes. A validation or checkpoint at the end of an epoch is in no step. Where a bar rounds the number
    done, the moment of that step is as uncertain as the time of the steps in doubt.
    """
    first, end = drawings[0], drawings[-1]
    pace = (end.elapsed - first.elapsed) / (end.done - first.done) if end.done > first.done else 0.0
    before, last, interrupted_by = 0.0, None, ""
    for drawn in drawings:
        interrupted_by = drawn.interrupted_by or interrupted_by
        if (drawn.step - drawn.done) % drawn.of or (last is not None and drawn.step == last.step):
            continue
        if last is not None and drawn.done < last.done:
            before, interrupted_by = before + last.elapsed, ""
        yield TimeMark(
            line=drawn.line,
            step=drawn.step,
            moment=Moment(before + drawn.elapsed, max(1.0, pace * drawn.rounded_to * (drawn.rounded_to > 1)), False),
            loss=drawn.loss,
            interrupted_by=interrupted_by,
        )
        last, interrupted_by = drawn, ""


def drawing_in(text: str, dialect: Dialect) -> DrawnBar | None:
    """Return a drawing of the bar that may time the steps, as one of line 0; None for another text."""
    if not any(mark in text for mark in dialect.bar_marks):
        return None
    match = re.search(dialect.bar_row, text[:_LONGEST_BAR])
    if match is None or not (of := _counted(match["all"])[0]):
        return None
    done, rounded_to = _counted(match["done"])
    step = int(match.groupdict().get("step") or done)
    elapsed, loss = fields.clock_seconds(match["elapsed"]), fields.number(match["loss"])
    return DrawnBar(0, step, done, of, elapsed, loss, "", rounded_to, date_in(text[: match.start()]))


def _counted(text: str) -> tuple[int, int]:
    """Return the number of steps that a bar prints, and the steps to which it rounds that number.

    >>> _counted("504"), _counted("19.0"), _counted("2.99k"), _counted("120k")
    ((504, 1), (19, 1), (2990, 10), (120000, 1000))
    """
    digits = text.rstrip("kM")
    unit = {"k": 1000, "M": 1_000_000}.get(text[-1], 1)
    return round(float(digits) * unit), max(1, unit // 10 ** len(digits.partition(".")[2]))
