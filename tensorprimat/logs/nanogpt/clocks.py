"""Clocks of the nanoGPT family: nanochat's total time, and modded-nanogpt's train_time, which becomes step times."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tensorprimat.audit.evidence import LogClock
from tensorprimat.core.steps import LONGEST_STEP_SECONDS, Step
from tensorprimat.logs import fields
from tensorprimat.logs.fields import NUMBER
from tensorprimat.logs.nanogpt.rows import MILLISECOND
from tensorprimat.logs.repeats import Repeats

_UNTIMED = 10  # nanochat's total time begins after this step
_OTHERS = rf"(?P<others>(?:[A-Za-z]\w{{0,30}}: ?{NUMBER} ){{0,9}})"
_CLOCK = re.compile(
    rf"\bstep:(?P<step>\d{{1,15}})/(?P<last>\d{{1,15}}) {_OTHERS}"
    rf"(?:train_time:|t:(?=[\d.]{{1,20}}m?s (?:step_)?avg:))(?P<time>{NUMBER})(?P<unit>m?s)\b"
)
_RATE = re.compile(
    rf"(?<![\w./:-])(?P<step>\d{{1,15}})/(?P<last>\d{{1,15}}) {_OTHERS}"
    rf"train_time: {NUMBER}m tok/s: (?P<rate>{NUMBER})(?![\w.])"
)
_LOSS = re.compile(rf"(?<!\w)(?:train_)?loss: ?({NUMBER})")
CLOCK_MARKS = ("train_time:", " step_avg:", "ms avg:")
_HAS_LOSS, _IS_VALIDATION = 1, 2


@dataclass(kw_only=True)
class TotalTime:
    """Clock of nanochat: the times of all steps after _UNTIMED added up, in minutes with two decimals."""

    first: tuple[int, float] | None = None
    """(step, seconds) of the first row that states the clock."""
    last: tuple[int, float] | None = None
    is_one_run: bool = True
    """True if neither the clock nor the step number ever went back."""

    def note(self, step: int, minutes: float | None) -> None:
        """Take in the clock of one row."""
        if minutes is None or step < _UNTIMED:
            return
        reading = (step, 60 * minutes)
        if self.last is not None and (step <= self.last[0] or reading[1] < self.last[1]):
            self.is_one_run = reading == self.last and self.is_one_run  # a row may be printed twice
        self.first, self.last = self.first or reading, reading

    @property
    def clock(self) -> LogClock | None:
        """Return the time between the first and the last row that state it."""
        if self.first is None or self.last is None or not self.is_one_run or self.last[0] == self.first[0]:
            return None
        return LogClock(
            name="total time",
            seconds=self.last[1] - self.first[1],
            steps=float(self.last[0] - self.first[0]),
            after_step=self.first[0],
            has_every_pause=True,
            resolution=0.6,
        )


def clock_parts(text: str) -> re.Match[str] | None:
    """Return the parts of a line with train_time, or None for another line."""
    has_mark = CLOCK_MARKS[0] in text or CLOCK_MARKS[1] in text or CLOCK_MARKS[2] in text
    return _CLOCK.search(text) or _RATE.search(text) if has_mark else None


class _Reading(NamedTuple):
    """One line of modded-nanogpt with a reading of the run's clock."""

    line: int
    step: int
    clock: float
    loss: float | None
    validation: bool


class TrainTime:
    """The running clock of modded-nanogpt, converted to step times. Lines are kept as numbers: they may be millions."""

    def __init__(self) -> None:
        self._lines, self._steps, self._clocks = array("q"), array("q"), array("d")
        self._losses, self._flags = array("d"), array("b")
        self.repeats = Repeats()
        """Rows that `steps` found to repeat the number of a step."""
        self._counts_seconds = True
        """False if the clock counts seconds per token of a step, because the tokens of a step are unknown."""

    def note(self, line: int, match: re.Match[str], tokens_per_step: int | None) -> None:
        """Take in one line with train_time.

        parameter-golf prints minutes with one decimal, and the tokens of all steps so far over their time: with the
        tokens of a step this is the finer clock. Without them, it still gives the rate between two rows.
        """
        if match.re is _RATE:
            rate = fields.positive(match["rate"])
            clock = int(match["step"]) * (tokens_per_step or 1) / rate if rate else None
            self._counts_seconds = self._counts_seconds and tokens_per_step is not None
        else:
            clock = fields.number(match["time"])
        if clock is not None:
            found = _LOSS.search(match["others"])
            loss = fields.number(found[1]) if found else None
            self._lines.append(line)
            self._steps.append(int(match["step"]))
            self._clocks.append(clock * (MILLISECOND if match.groupdict().get("unit") == "ms" else 1.0))
            self._losses.append(math.nan if loss is None else loss)
            self._flags.append(_HAS_LOSS * (loss is not None) + _IS_VALIDATION * ("val_" in match["others"]))

    def _readings(self) -> Iterator[_Reading]:
        for line, step, clock, loss, flags in zip(
            self._lines, self._steps, self._clocks, self._losses, self._flags, strict=True
        ):
            yield _Reading(line, step, clock, loss if flags & _HAS_LOSS else None, bool(flags & _IS_VALIDATION))

    @property
    def total(self) -> LogClock | None:
        """Return the clock of the whole run, if it was never set back."""
        if (
            not self._lines
            or not self._counts_seconds
            or (np.diff(self._clocks) < 0).any()
            or (np.diff(self._steps) < 0).any()
        ):
            return None
        return LogClock(name="train_time", seconds=self._clocks[-1], steps=float(self._steps[-1]), resolution=1.0)

    def steps(self) -> Iterator[Step]:
        """Yield a row for every line of training; for every validation where only those were printed.

        The host runs ahead of the device until a validation waits for it: the wait is in the row after the validation.

        The clock may be set back (early versions leave out the first ten steps): such a row has no time.
        """
        trains = any(not flags & _IS_VALIDATION for flags in self._flags)
        before: _Reading | None = None
        for mark in self._readings():
            if before is not None and mark.step == before.step and not (mark.validation or before.validation):
                self.repeats.add(
                    *(Step(index=m.step, seconds=m.clock, loss=m.loss, line=m.line) for m in (before, mark))
                )
            if before is not None and mark.step < before.step:
                before = None  # a restart
            if mark.validation and trains:
                before = before or mark  # the clock's start, printed at step 0
                continue
            is_first = mark.line == self._lines[0] and len(self._steps) > 1
            distance = mark.step - before.step if before else fields.first_interval(*self._steps[:2]) if is_first else 1
            if distance > 0 and (before or not mark.validation):
                grown = (mark.clock - before.clock) / distance if before else mark.clock
                usable = 0 < grown < LONGEST_STEP_SECONDS and (before is not None or mark.step == 1)
                yield Step(
                    index=mark.step,
                    seconds=grown if usable and self._counts_seconds else None,
                    reported_tokens_per_second=1 / grown if usable and not self._counts_seconds else None,
                    covers=distance,
                    loss=mark.loss,
                    line=mark.line,
                )
            before = mark
