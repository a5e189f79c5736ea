"""The steps of a table of metrics, merged from its rows: their times, tokens and clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import numpy as np

from tensorprimat.audit import evidence
from tensorprimat.audit.evidence import ByStep, Elapsed
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import counted
from tensorprimat.core.steady import median
from tensorprimat.core.steps import INTERRUPTIONS, LONGEST_STEP_SECONDS, FloatArray, Steps
from tensorprimat.logs import fields, work
from tensorprimat.logs.clocks import Moment, TimeMark, longest_gap

TOTAL_TOKENS = ("total_tokens", "tokens_before")
"""Total tokens, with those of the step or without them."""
_OTHER_WORK = "other_work"
SO_FAR = "seconds_so_far"
HOOKS = "hooks"
EPOCH = "epoch"
"""Share of the training data seen so far; rows of evaluations have one, too."""
TOTAL_SAMPLES = "total_samples"
_NO_COLUMNS = (*TOTAL_TOKENS, TOTAL_SAMPLES, _OTHER_WORK, SO_FAR, HOOKS, EPOCH)
FEWEST_WAITS = 3  # that show how long a wait usually is
_SLOW_START = 1.5  # times the median step: less is no sign of a new process
_FEWEST_WHOLE = 2  # different whole step times by which they are taken for rounded
MOST_OF_A_STEP = 3.0  # ratio of a step's time to the time between rows, which distinguishes milliseconds from seconds


class RowClock(NamedTuple):
    """The moments of steps, NaN where unknown."""

    seconds: FloatArray
    resolutions: FloatArray
    has_year: np.ndarray


class Merged(NamedTuple):
    """The steps of a table, in the order in which they were logged."""

    lines: np.ndarray
    """Line of each step, (steps,); -1 in a document, which has no lines."""
    steps: np.ndarray
    columns: Mapping[str, tuple[FloatArray, np.ndarray]]
    """Field of Step, or one of TOTAL_TOKENS → values, and a mask of those that were logged."""
    interrupted: np.ndarray
    """True where an evaluation was logged since the step before."""
    evaluations: np.ndarray
    """Numbers of the steps at which an evaluation was logged."""
    clock: RowClock
    is_dated: bool
    """True if the clock is the training's own, not that of calls of a logger."""

    def rows(self) -> Steps:
        """Return each step once; if step times follow from the total training time, only the steps that state it."""
        columns: dict[str, np.ndarray] = {"index": self.steps}
        if self.has_lines:
            columns["line"] = self.lines
        if self.is_dated:
            columns["ended_at"] = self.clock.seconds
        if _OTHER_WORK in self.columns:
            columns["interrupted_by"] = self.columns[_OTHER_WORK][1] * np.int8(INTERRUPTIONS.index("validation"))
        known = {name: column for name, column in self.columns.items() if name not in _NO_COLUMNS}
        columns |= {name: values for name, (values, _) in known.items()}
        masks = {name: mask & np.isnan(values) for name, (values, mask) in known.items()}
        if SO_FAR not in self.columns or "seconds" in known:
            return fields.merged_columns(Steps(columns, logged_nan=masks)) if known else Steps({})
        so_far, rows = self.columns[SO_FAR][0], np.flatnonzero(self.columns[SO_FAR][1])
        grown, covers = np.diff(so_far[rows], prepend=np.nan), np.diff(self.steps[rows], prepend=0)
        seconds = grown / np.maximum(covers, 1)
        forward = (covers > 0) & (seconds > 0) & (seconds < LONGEST_STEP_SECONDS)
        steps = Steps(columns, logged_nan=masks).take(rows)
        return fields.merged_columns(
            steps.replace(seconds=np.where(forward, seconds, np.nan), covers=np.where(forward, covers, 1))
        )

    def unit_of_times(self) -> float | None:
        """Return the unit of the step times, 1 or 0.001 s, by the time between the rows; None where that shows none."""
        times, (moments, *_) = self.columns.get("seconds", (np.empty(0), None))[0], self.clock
        with np.errstate(invalid="ignore", divide="ignore"):
            slower = times[1:] * np.diff(self.steps) / np.diff(moments) if len(times) else times
        known = slower[np.isfinite(slower) & (slower > 0)]
        ratio = median(known) if len(known) else 0.0
        return next((unit for unit in (1.0, 1e-3) if 1 / MOST_OF_A_STEP < ratio * unit < MOST_OF_A_STEP), None)

    @property
    def has_lines(self) -> bool:
        """Return True if every row has a line."""
        return bool(self.lines.min(initial=0) >= 0)

    @property
    def has_clock(self) -> bool:
        """Return True if rows have a moment of the logger's calls."""
        return not self.is_dated and bool(np.isfinite(self.clock.seconds).any())

    def elapsed(self) -> Elapsed | None:
        """Return the clock of the logger's calls; None where the rows of a document have no lines and the number of a
        step goes back.
        """
        known = ~np.isnan(self.clock.seconds)
        numbers = self.lines if self.has_lines else self.steps
        if not self.has_clock or not (np.diff(numbers) > 0).all():
            return None
        return Elapsed(
            name="the clock of the logged rows",
            seconds=ByStep(numbers[known], self.clock.seconds[known]),
            resolution=float(self.clock.resolutions.max()),
            by=self._by,
            of_calls=True,
        )

    def with_tokens(self, steps: Steps) -> Steps:
        """Return the steps with tokens and samples from the growth of their totals.

        The total of a step is found by line; in a document, which has no lines and repeats no step, by step number.
        """
        if TOTAL_SAMPLES in self.columns and not steps.has("samples"):
            total = evidence.at(self._by_row(self.columns[TOTAL_SAMPLES][0]), steps.column(self._by))
            steps = steps.replace(samples=fields.growth_of(total, steps))
        return work.with_tokens(steps, self._totals(), by=self._by, before_step="total_tokens" not in self.columns)

    def restarts(self, steps: Steps) -> list[tuple[int, str]]:
        """Return the rows at which the total of tokens goes back."""
        return work.restarts(steps, self._totals()) if self.has_lines else []

    def with_resumes(self, steps: Steps) -> Steps:
        """Return the steps with a new segment from each step on at which a new process resumed the training.

        Such a step has the next number, but it was logged long after the step before, and it took far longer than
        others: kernels were compiled, caches were empty. A wait with an evaluation is compared with other such waits,
        if there are enough of them.
        """
        moments, seconds = self.moments(steps), steps.column("seconds")
        at = np.isin(self.steps, self.evaluations) | self.interrupted
        at = evidence.at(self._by_row(at.astype(np.float64)), steps.column(self._by)) > 0
        evaluated = at | np.concatenate([[False], at[:-1]])  # it may run before the row of its step is logged, or after
        usual = median(seconds[np.isfinite(seconds)]) if np.isfinite(seconds).any() else 0.0
        idle = np.diff(moments, prepend=np.nan) - seconds * steps.column("covers")
        waits = idle[np.isfinite(idle) & ~evaluated].clip(min=usual)
        of_evaluations = np.fmax(idle, np.append(idle[1:], np.nan))[at].clip(min=usual)
        longest = np.full(len(steps), longest_gap(waits))
        if np.isfinite(of_evaluations).sum() >= FEWEST_WAITS:
            longest[evaluated] = longest_gap(of_evaluations)
        new = (idle > longest) & (seconds > _SLOW_START * usual)
        return steps.replace(segment=steps.column("segment") + np.cumsum(new)) if new.any() else steps

    def moments(self, steps: Steps) -> FloatArray:
        """Return when the row of each step was logged, in seconds, (steps,); NaN where unknown."""
        return evidence.at(self._by_row(self.clock.seconds), steps.column(self._by))

    def hooks(self, steps: Steps) -> FloatArray:
        """Return the seconds after each step that its time leaves out, (steps,); NaN where none are logged."""
        return evidence.at(self._by_row(self.column_of(HOOKS)), steps.column(self._by))

    def _totals(self) -> ByStep:
        return self._by_row(self.column_of(next((name for name in TOTAL_TOKENS if name in self.columns), "")))

    def column_of(self, name: str) -> FloatArray:
        """Return a column by its name, NaN if the table has none."""
        return self.columns[name][0] if name in self.columns else np.full(len(self.steps), np.nan)

    @property
    def _by(self) -> Literal["line", "index"]:
        """Return the column that finds the row of a step: its line, or its number in a document."""
        return "line" if self.has_lines else "index"

    def _by_row(self, values: FloatArray) -> ByStep:
        """Return the values of the rows, by line or by number as `_by`."""
        numbers = self.lines if self.has_lines else self.steps
        order = np.argsort(numbers, kind="stable")
        return ByStep(numbers[order], values[order])

    def marks(self) -> Iterator[TimeMark]:
        """Yield the rows with a clock and a loss."""
        if "loss" not in self.columns:
            return
        losses, has_loss = self.columns["loss"]
        rates = self.column_of("learning_rate")
        timed = np.flatnonzero(has_loss & ~np.isnan(self.clock.seconds))
        clock = [column[timed].tolist() for column in self.clock]
        columns = (column[timed].tolist() for column in (self.lines, self.steps, losses, rates, self.interrupted))
        for line, step, loss, rate, interrupted, *moment in zip(*columns, *clock, strict=True):
            yield TimeMark(
                line=line if line >= 0 else None,
                step=step,
                moment=Moment(*moment),
                loss=loss,
                learning_rate=rate if rate == rate else None,
                interrupted_by="validation" if interrupted else "",
            )


def in_whole_seconds(steps: Steps) -> tuple[Steps, list[str]]:
    """Return the steps with times above 0, and a warning if they were rounded to whole seconds.

    A step of 0 s counts with the next one that has a time: left out, it would make the mean too long. In a table of
    finer times, 0 is no time.
    """
    seconds, covers, segment = (steps.column(name) for name in ("seconds", "covers", "segment"))
    timed = np.flatnonzero(np.isfinite(seconds))
    none = seconds == 0
    rest = seconds[timed[1:]]
    is_whole = len(np.unique(rest)) >= _FEWEST_WHOLE and bool((rest == np.floor(rest)).all())
    off = 0.5 / float(rest.mean()) if is_whole and rest.any() else 0.0
    if off <= fields.CLOCK_RESOLUTION:
        return (steps.replace(seconds=np.where(none, np.nan, seconds)), []) if none.any() else (steps, [])
    covers, owed, last = covers.copy(), 0, -1
    for place in timed.tolist():
        owed = owed if segment[place] == last else 0
        last = int(segment[place])
        if none[place]:
            owed, covers[place] = owed + int(covers[place]), 0
        else:
            covers[place], owed = covers[place] + owed, 0
    each = np.where(none, np.nan, seconds * steps.column("covers") / np.maximum(covers, 1))
    joined = f"; {counted(int(none.sum()), 'step')} of 0 s count with the steps after them" if none.any() else ""
    return steps.replace(seconds=each, covers=covers), [Notice("whole_seconds", "step_time", off=off, joined=joined)]
