"""A table of metrics stored as columns, because a history may have millions of rows."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Any

import numpy as np

from tensorprimat.audit.rounding import as_decimals
from tensorprimat.core.notices import Notice
from tensorprimat.core.steady import median
from tensorprimat.core.steps import LONGEST_STEP_SECONDS, FloatArray, Step
from tensorprimat.core.units import MIB
from tensorprimat.logs import fields, headers
from tensorprimat.logs.clocks import Moment, moment_in
from tensorprimat.logs.metric_names import (
    CLOCKS,
    EVALUATION_PREFIXES,
    OF_SUMMARY,
    OTHERWISE,
    RUNS,
    STEPS,
    field_of,
    is_known,
    listed_field,
)
from tensorprimat.logs.metric_steps import EPOCH, SO_FAR, Merged, RowClock
from tensorprimat.logs.repeats import Repeats
from tensorprimat.logs.text import UnreadText

EXACT_CLOCK = 1e-3  # seconds; W&B's clocks have microseconds, but a call takes a millisecond
_UNITS_SINCE_1970 = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
"""Least number of a moment → its unit: as seconds, such a number would be a year beyond 5000."""
EMPTY = frozenset(("", "NaN", "None"))
"""Cells of a CSV that contain nothing."""
_NOTHING = frozenset(("", "nan", "none", "null", "n/a", "na", "-", "--"))
"""Other spellings of nothing, in small letters."""
_ROWS_AT_ONCE = 10_000
_COMPARED = ("loss", SO_FAR, *fields.MEASURES)
"""Fields whose values two rows about one step share, if they are of one job."""
MAY_BE_NAN = ("loss", "gradient_norm", "learning_rate")

MetricRow = Mapping[str, Any]


@cache
def _is_of_evaluation(name: str) -> bool:
    return name.startswith(EVALUATION_PREFIXES)


def _number(value: object) -> float | None:
    """Return a cell as a number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


Cells = tuple[str, Sequence[int] | np.ndarray, Sequence[Any]]
"""Name, positions of the rows that have a value, and the values."""


class MetricColumns:
    """The rows of a table, in the order in which they were added."""

    def __init__(self) -> None:
        """Start without rows."""
        self.lines = array("q")
        self.names = dict[str, None]()
        """Every name that any row has."""
        self.summary = dict[str, str]()
        """Name → value that the Hugging Face Trainer logged last of its whole training, as text."""
        self._summary_row = 0
        self._stated = dict[str, set[str]]()
        self.is_dated = False
        """True if the clock is the training's own, not that of calls of a logger."""
        self.runs = set[str]()
        """Names of runs, where a column contains them."""
        self.torn = UnreadText()
        """Lines that are no row: of other cells than the header, or of JSON that ends too early."""
        self._no_numbers = dict[str, UnreadText]()
        self._numbers = dict[str, list[tuple[np.ndarray, FloatArray]]]()
        """Name → rows and values, in stretches."""
        self._clocks = dict[str, list[FloatArray]]()
        """Name → row, seconds, resolution and has_year of moments, in stretches of shape (moments, 4)."""
        self._evaluated = array("q")

    def add(self, lines: Iterable[int], table: Iterable[Cells]) -> None:
        """Add rows, column by column. lines: -1 for a row of a document."""
        first = len(self.lines)
        self.lines.extend(lines)
        for name, places, cells in table:
            is_read = is_known(name) and name not in CLOCKS
            if is_read:
                self._numbers.setdefault(name, [])
            if not len(cells):
                continue
            self.names.setdefault(name)
            rows = np.asarray(places) + first
            if name in RUNS:
                self.runs.update(map(str, cells))
            for cell in cells if name in headers.STATED_IN_COLUMNS else ():
                if len(stated := self._stated.setdefault(name, set())) > 1:  # two values already state nothing
                    break
                stated |= {str(cell)} if isinstance(cell, str | int | float) else set()
            if _is_of_evaluation(name):
                self._evaluated.extend(rows.tolist())
            if name in CLOCKS:
                self._clocks.setdefault(name, []).append(np.column_stack([rows, _moments(name, cells)]))
            if is_read or name.removeprefix("train/") in OF_SUMMARY:
                values, known = _numbers(cells)
                if known.any():
                    last = int(np.flatnonzero(known)[-1])
                    self._sum_up(name, str(cells[last]), int(rows[last]))
            if is_read:
                self._numbers[name].append((rows[known], values[known]))
                for place in np.flatnonzero(~known).tolist():
                    if isinstance(cells[place], str) and cells[place].strip().lower() not in _NOTHING:
                        unread = self._no_numbers.setdefault(name, UnreadText())
                        unread.add(max(self.lines[rows[place]], 0), cells[place])

    def _index(self) -> np.ndarray:
        """Return the number of the step of every row, -1 where it has none; (rows,)."""
        index = np.full(len(self.lines), -1, np.int64)
        has_epochs = any((field := self._field_of(name)) and field[0] == EPOCH for name in self._numbers)
        for name in reversed([name for name in STEPS if name in self._numbers]):
            rows, values = self._of(name)
            if name == "iter" and has_epochs and (np.diff(values) < 0).any():
                continue  # it counts within an epoch
            whole = (values >= 0) & (values < fields.LARGEST_STEP) & (values == np.floor(values))
            index[rows[whole]] = values[whole].astype(np.int64)
        return index

    def merged(self) -> Merged:
        """Return the training steps; rows that follow each other with one number (calls of a logger) are one
        step with the first value of each metric.
        """
        length, index = len(self.lines), self._index()
        kinds = dict.fromkeys(field[0] for name in self._numbers if (field := self._field_of(name)))
        found = {kind: self._values(kind) for kind in kinds}
        has_any = np.zeros(length, np.bool_)
        for kind, (present, _) in found.items():
            has_any |= present & (kind != EPOCH)
        numbered = index >= 0
        rows = np.flatnonzero(numbered & has_any)
        other = np.diff(index[rows], prepend=-1) != 0
        if "loss" in found:
            other |= self._trained_again(rows, other, found["loss"][0])
        begins = np.flatnonzero(other)
        opening = rows[begins]
        columns, lines = {}, np.array(self.lines)[opening]
        for kind, (present, values) in found.items():
            holder, known = _first_known(present[rows], begins)
            if known.any():
                columns[kind] = np.where(known, values[rows[holder]], np.nan), known
            if kind in ("seconds", SO_FAR):  # cite the row that states the time
                lines = np.where(known, np.array(self.lines)[rows[holder]], lines)
        evaluated = np.zeros(length, np.bool_)
        evaluated[np.array(self._evaluated, np.int64)] = True
        seen = np.cumsum(evaluated & numbered)[opening]
        return Merged(
            lines=lines,
            steps=index[opening],
            columns=columns,
            interrupted=np.diff(seen, prepend=0) > 0,
            evaluations=np.unique(index[evaluated & numbered]),
            clock=self._clock(opening),
            is_dated=self.is_dated,
        )

    def _trained_again(self, rows: np.ndarray, other: np.ndarray, has_loss: np.ndarray) -> np.ndarray:
        """Return True for a row that states a loss long after another row with a loss of the same step; (rows,).

        A training that was resumed from the checkpoint of a logged step logs this step once more. Without a clock each
        second loss is such a row in the Trainer's record, which has one for a step. other: True for a row with another
        number than the row before.
        """
        losses, steps = np.flatnonzero(has_loss[rows]), np.cumsum(other)
        seconds, again = self._clock(rows).seconds, np.zeros(len(rows), np.bool_)
        gaps = np.diff(seconds[losses])
        usual = gaps[gaps > 0]
        late = gaps > median(usual) / 2 if len(usual) else np.full(len(gaps), "train_runtime" in self.summary)
        again[losses[1:][late & (np.diff(steps[losses]) == 0)]] = True
        return again

    def unread(self) -> Iterator[str]:
        """Yield warnings about lines and cells that were not read."""
        yield from self.torn.warnings()
        for name, cells in self._no_numbers.items():
            are = "are" if cells.count > 1 else "is"
            yield Notice("cells_left_out", "steps", cells=cells.count, column=name, are=are, place=cells.place)

    def repeats(self) -> list[str]:
        """Return a warning if rows that follow each other with one number contradict each other in a metric."""
        index, found = self._index(), Repeats()
        for name in self._numbers:
            field = self._field_of(name)
            if field is None or field[0] not in _COMPARED:
                continue
            kind = "seconds" if field[0] == SO_FAR else field[0]
            rows, values = self._of(name)
            again = np.flatnonzero((np.diff(index[rows]) == 0) & (index[rows[1:]] >= 0))
            for place in again[values[again] != values[again + 1]].tolist():
                lines = (self.lines[row] if self.lines[row] >= 0 else None for row in rows[place : place + 2])
                step = Step(index=int(index[rows[place]]), seconds=None)
                pair = (
                    step.changed(line=line, **{kind: float(value)})
                    for line, value in zip(lines, values[place : place + 2], strict=True)
                )
                found.add(*pair)
        return list(found.warnings())

    def _sum_up(self, name: str, printed: str, row: int) -> None:
        """Note a value of the Hugging Face Trainer's summary; of several the last one counts."""
        plain = name.removeprefix("train/")
        if plain in OF_SUMMARY:
            self.summary[plain], self._summary_row = printed, max(row, self._summary_row)

    def arguments(self) -> dict[str, str]:
        """Return the columns that repeat the value of an argument in every row."""
        return {
            name: next(iter(values))
            for name, values in self._stated.items()
            if len(values) == 1 and OTHERWISE.get(name, ("",))[0] not in self.names
        }

    def factors(self) -> dict[str, float]:
        """Return the factor from the numbers of a column to the unit of its field, of fields that one column states."""
        found: dict[str, set[float]] = {}
        for name in self._numbers:
            if field := self._field_of(name):
                found.setdefault(field[0], set()).add(field[1])
        return {kind: factors.pop() for kind, factors in found.items() if len(factors) == 1}

    def end_of_summary(self) -> dict[str, str]:
        """Return the step and the moment of the row with the summary, by the names that the Trainer's rows have."""
        step, clock = self._index()[self._summary_row], self._clock(np.array([self._summary_row]))
        moment = {"_timestamp": repr(float(clock.seconds[0]))} if np.isfinite(clock.seconds[0]) else {}
        return ({"step": str(step)} if step > 0 else {}) | moment

    def last(self, kind: str) -> float | None:
        """Return the last value of a kind."""
        present, values = self._values(kind)
        return float(values[present][-1]) if present.any() else None

    def _field_of(self, name: str) -> tuple[str, float] | None:
        """Return the field that a metric means in this table, and the factor to its unit."""
        if name == "train_loss" and "train_runtime" in self.summary:
            return None
        companion, field = OTHERWISE.get(name, (None, ""))
        return (field, 1.0) if companion in self.names else field_of(name)

    def _of(self, name: str) -> tuple[np.ndarray, FloatArray]:
        parts = self._numbers[name]
        if len(parts) != 1:
            rows, values = zip(*parts, strict=True) if parts else ([np.empty(0, np.int64)], [np.empty(0)])
            parts[:] = [(np.concatenate(rows), np.concatenate(values))]
        return parts[0]

    def _values(self, kind: str) -> tuple[np.ndarray, FloatArray]:
        """Return a mask of the rows that contain a kind of value, and the values.

        Of several names the first counts, and a listed one before one that only its words explain.
        """
        present, dense = np.zeros(len(self.lines), np.bool_), np.full(len(self.lines), np.nan)
        first_last = [*self._numbers][::-1]
        for name in sorted(first_last, key=lambda one: listed_field(one) is not None):
            field = self._field_of(name)
            if field is None or field[0] != kind:
                continue
            rows, values = self._of(name)
            values = as_decimals(values)
            scaled = values * field[1]
            usable = np.ones(len(rows), np.bool_) if kind in MAY_BE_NAN else (values > 0) & (values < math.inf)
            if kind == "seconds":
                usable = (values >= 0) & (scaled < LONGEST_STEP_SECONDS)  # 0: see `metric_steps.in_whole_seconds`
            if kind.startswith("memory_"):
                usable &= scaled >= MIB  # less is a size in another unit than bytes
            present[rows[usable]], dense[rows[usable]] = True, scaled[usable]
        return present, dense

    def _clock(self, opening: np.ndarray) -> RowClock:
        columns = np.full((len(self.lines), 3), (np.nan, 0.0, 0.0))
        for name in reversed([name for name in CLOCKS if name in self._clocks]):
            moments = np.concatenate(self._clocks[name])
            moments = moments[~np.isnan(moments[:, 1])]
            columns[moments[:, 0].astype(np.int64)] = moments[:, 1:]
        seconds, resolutions, years = columns[opening].T
        return RowClock(seconds, resolutions, years.astype(np.bool_))


def _first_known(present: np.ndarray, begins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for every stretch the position of its first present row (0 without one), and a mask of those with one."""
    if len(begins) == len(present):
        return np.arange(len(present)), present
    length = len(present)
    holder = np.minimum.reduceat(np.where(present, np.arange(length), length), begins)
    return np.where(holder < length, holder, 0), holder < length


def _numbers(cells: Sequence[Any]) -> tuple[FloatArray, np.ndarray]:
    """Return cells as numbers, and a mask of those that are numbers."""
    if {*map(type, cells)} <= {str, int, float}:
        with suppress(ValueError, OverflowError):
            values = np.array(list(map(float, cells)))
            return values, np.ones(len(values), np.bool_)
    found = list(map(_number, cells))
    return np.array(found, np.float64), np.array([number is not None for number in found])


def moment_of(name: str, printed: object) -> Moment | None:
    """Return the moment that a cell of one of CLOCKS states."""
    seconds, resolution, has_year = _moments(name, [printed])[0].tolist()
    return None if seconds != seconds else Moment(seconds, resolution, bool(has_year))


def _moments(name: str, cells: Sequence[Any]) -> FloatArray:
    """Return seconds, resolution and has_year of each cell of one of CLOCKS; (cells, 3), NaN where it is no moment."""
    values, known = _numbers(cells)
    known &= np.isfinite(values) & (values > 0)
    unit = np.select([values >= least for least, _ in _UNITS_SINCE_1970], [unit for _, unit in _UNITS_SINCE_1970], 1.0)
    resolution = np.where(values == np.floor(values), np.maximum(unit, EXACT_CLOCK), EXACT_CLOCK)
    found = np.column_stack([values * unit, resolution, np.full(len(cells), name != "_runtime")])
    for place in np.flatnonzero(~known).tolist():
        found[place] = (moment_in(cells[place]) if isinstance(cells[place], str) else None) or np.nan
    return found


class Scalars:
    """Scalars with the tag, step and date of each, in the order in which they were written."""

    def __init__(self) -> None:
        self.steps, self.times, self.values = array("q"), array("d"), array("d")
        self.tag_numbers = array("i")
        self.tags = dict[str, int]()
        """Number of each tag that a scalar has."""

    def add(self, step: int, time: float, tag: str, value: float) -> None:
        """Add a scalar. time: seconds since 1970."""
        self.steps.append(step)
        self.times.append(time)
        self.values.append(value)
        self.tag_numbers.append(self.tags.setdefault(tag, len(self.tags)))

    def sort(self) -> None:
        """Sort by date, then by step, for files that were written side by side."""
        order = np.lexsort((np.array(self.steps), np.array(self.times)))
        for name in ("steps", "times", "values", "tag_numbers"):
            column = getattr(self, name)
            setattr(self, name, array(column.typecode, np.array(column)[order].tobytes()))


def of_scalars(scalars: Scalars, *, is_dated: bool = False) -> MetricColumns:
    """Return scalars as a table with a row for each. is_dated: see MetricColumns."""
    columns, length = MetricColumns(), len(scalars.steps)
    columns.is_dated = is_dated
    columns.lines = array("q", [-1]) * length
    columns.names = dict.fromkeys(scalars.tags)
    every_row = np.arange(length)
    columns._numbers[STEPS[0]] = [(every_row, np.array(scalars.steps, np.float64))]
    clock = np.column_stack([every_row, scalars.times, np.full(length, EXACT_CLOCK), np.ones(length)])
    columns._clocks["_timestamp"] = [clock]
    values, numbers = np.array(scalars.values), np.array(scalars.tag_numbers)
    for tag, number in scalars.tags.items():
        if not (is_known(tag) or _is_of_evaluation(tag) or tag.removeprefix("train/") in OF_SUMMARY):
            continue
        rows = np.flatnonzero(numbers == number)
        columns._sum_up(tag, str(np.float32(values[rows[-1]])), int(rows[-1]))
        if _is_of_evaluation(tag):
            columns._evaluated.extend(rows.tolist())
        if columns._field_of(tag):
            columns._numbers[tag] = [(rows, values[rows])]
    return columns


def of_rows(table: Iterable[tuple[int | None, MetricRow]]) -> MetricColumns:
    """Return a table of rows as columns. table: (line, values by name) of each row; None is no value."""
    columns, rows = MetricColumns(), iter(table)
    while stretch := list(islice(rows, _ROWS_AT_ONCE)):
        cells = defaultdict[str, tuple[list[int], list[Any]]](lambda: ([], []))
        for place, (_, row) in enumerate(stretch):
            for name, value in row.items():
                if value is not None:
                    places, values = cells[name]
                    places.append(place)
                    values.append(value)
        lines = (-1 if line is None else line for line, _ in stretch)
        columns.add(lines, ((name, *found) for name, found in cells.items()))
    return columns
