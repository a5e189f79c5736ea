"""Functions that readers of framework logs share: printed numbers, merging the rows of several ranks, log intervals."""

from __future__ import annotations

import json
import math
import re
from array import array
from bisect import bisect_left
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

import numpy as np

from tensorprimat.core.steps import FLOAT_COLUMNS, LONGEST_STEP_SECONDS, Step, Steps, StepsBuilder
from tensorprimat.core.terms import RATES
from tensorprimat.logs.repeats import Repeats

UNGROUPED = r"(?:\d{1,3}(?![ \u00a0\u2009\u202f]\d{3}(?![\d%]))|\d{4,15})"
"""Digits before a decimal point, without separators; not the first group of 2 048, but the 3 of "epoch 3 100%"."""
ENDS = r"(?![.,'\u2019_]?\d|[eE][-+]?\d|[x\u00d7^]\d| ?\*{1,2} ?\d)"
"""The end of a number: nothing continues it, as in 1.2.3, 1234,567, 2701,3, 2'048, 1.6e+01e5, 2**11 or 4096x8."""
NUMBER = (
    rf"[-+]?(?:(?:[1-9]\d{{0,2}}(?:,\d{{3}})+|{UNGROUPED}|\d{{16,}})(?:\.\d*)?(?:[eE][-+]?\d{{1,3}})?{ENDS}"
    r"|nan\b|NaN\b|inf\b)"
)
"""A printed number, thousands separators allowed, nan and inf among them; not the beginning of something longer."""

WHOLE = rf"((?:[1-9]\d{{0,2}}(?:,\d{{3}})+|{UNGROUPED})(?:\.0{{1,9}})?(?![\w'\"*%/]){ENDS})"
"""A printed whole number, as a group; not the beginning of something longer."""
SETTING = rf"({UNGROUPED})(?:\.0)?{ENDS}(?=[\s,)}}\]│|]|$)"
"""The whole number of a setting, as a group, without separators; its token ends behind it."""
_GROUPED = re.compile(r"\s*[-+]?[1-9]\d{0,2}(?:([,_])\d{3})(?:\1\d{3})*(?:\.\d*)?(?:[eE][-+]?\d{1,3})?\s*")

LARGEST_STEP = 2**53  # whole numbers beyond are not exact in a column of floats
LARGEST_INDEX_DIGITS = 15  # a whole number of so many digits is exact in a column

CLOCK_RESOLUTION = 0.005
"""A printed time or clock measures nothing if it is rounded to more than 0.5 % of the value in question."""

MEASURES = ("seconds", *RATES)
"""Columns of which a row needs one to be measured."""
_OTHER_TIME = 0.3  # logarithm of the ratio of two times (35 %); ranks wait for one another in every step
_PEAKS = ("memory_allocated_peak_bytes", "memory_reserved_peak_bytes", "memory_device_used_bytes")


def number(text: str | None) -> float | None:
    """Return a printed number; None for nothing and for text that is not wholly a number.

    >>> number("1,000.13"), number("2.534e+04"), number("2_048"), number("nan")
    (1000.13, 25340.0, 2048.0, nan)
    >>> [number(text) for text in ("N/A", "1,5", "0,512", "2 048", "2'048", "2**11", "3/4", "8x", "1_0")]
    [None, None, None, None, None, None, None, None, None]
    """
    if text is None or (("," in text or "_" in text) and not _GROUPED.fullmatch(text)):
        return None
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def positive(text: str | None, scale: float = 1.0) -> float | None:
    """Return a printed time, rate or size, scaled; None where it cannot be one (0, negative, nan, inf)."""
    value = number(text)
    return value * scale if value is not None and 0 < value < math.inf else None


def printed_seconds(text: str | None, scale: float = 1.0) -> float | None:
    """Return a printed step time in seconds; None where it is none."""
    value = positive(text, scale)
    return value if value is not None and value < LONGEST_STEP_SECONDS else None


def number_in(value: object) -> float | None:
    """Return the finite number that a value of JSON or a cell of a workbook is; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return None
    return number if math.isfinite(number) else None


def json_in(text: str | bytes) -> Any:
    """Return the content of a JSON text; None for another text, and for one that is nested too deep."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def count_in(value: object) -> float | None:
    """Return the number of steps, samples or tokens that a value of JSON is; None for one that is not exact."""
    number = number_in(value)
    return number if number is not None and abs(number) < LARGEST_STEP else None


def clock_seconds(text: str) -> float:
    """Return the seconds of a clock, as progress bars and Python's timedelta print it.

    >>> clock_seconds("02:05"), clock_seconds("1:00:01.5"), clock_seconds("2 days, 0:00:01")
    (125.0, 3601.5, 172801.0)
    """
    days, _, clock = text.rpartition(", ")
    seconds = 0.0
    for part in clock.split(":"):
        seconds = 60 * seconds + float(part)
    return seconds + 86400 * int(days.partition(" ")[0] or 0)


def whole(text: str | None) -> int | None:
    """Return a printed whole number above zero, as configuration contains it; None for anything else.

    >>> whole("1,280"), whole("24.0"), whole("-1"), whole("0.5")
    (1280, 24, None, None)
    """
    value = positive(text)
    return int(value) if value is not None and value.is_integer() and value < 10**LARGEST_INDEX_DIGITS else None


def half_digit(text: str) -> float:
    """Return half a unit of the last digit of a printed number.

    >>> half_digit("836.3940"), half_digit("2.534e+04"), half_digit("nan")
    (5e-05, 5.0, inf)
    """
    mantissa, _, exponent = text.lower().partition("e")
    if not mantissa[-1:].isdigit():
        return math.inf
    decimals = len(mantissa.partition(".")[2])
    return 0.5 * 10.0 ** (int(exponent or 0) - decimals)


def iso(stamp: float | None) -> str | None:
    """Return the seconds since the epoch as ISO 8601, without a zone: the log names none. None if no calendar has them.

    >>> iso(1767600000.25), iso(1e30)
    ('2026-01-05T08:00:00', None)
    """
    if stamp is None:
        return None
    try:
        moment = datetime.fromtimestamp(stamp, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return None
    return moment.replace(tzinfo=None).isoformat(timespec="seconds")


def merged(rows: Iterable[tuple[int | None, Step]], warnings: list[str] | None = None) -> Steps:
    """Return each optimizer step once, with the number of its stretch between restarts, in the order of first
    appearance.

    rows: (rank that printed the row, or None; the row). Rows of several ranks about one step become one: the first
    printed counts, memory peaks are the largest over ranks, and values that the first row lacks (the loss, on all but
    the last pipeline stage) come from the rank that has them. A rank whose step number goes back has restarted, unless
    it repeats earlier lines word for word (Ray, tee); so has a rank that repeats a number with a very different time.
    warnings: a list that takes a warning about rows which may be those of two jobs (`repeats`).

    >>> row = lambda index, seconds=1.0, loss=None: Step(index=index, seconds=seconds, loss=loss)
    >>> rows = [(0, row(1)), (3, row(1, loss=9.5)), (0, row(2)), (0, row(1)), (0, row(1, 1.25))]
    >>> [(step.index, step.seconds, step.loss, step.segment) for step in merged(rows)]
    [(1, 1.0, 9.5, 0), (2, 1.0, None, 0), (1, 1.25, None, 1)]
    """
    kept, places, repeats = StepsBuilder(), [_Printed()], Repeats()
    owners = list[int | None]()  # rank that printed each row of `kept` first
    again = dict[tuple[int | None, int], int]()  # of a rank and such a row: hash of what it printed, if that is another
    at = dict[int | None, tuple[int, int]]()  # rank → its stretch, and the last number that it printed there
    for rank, step in rows:
        index, (segment, last) = step.index, at.get(rank, (0, -1))
        place = places[segment].value(index)
        if index <= last:
            known = None if place is None else again.get((rank, place))
            if place is not None and _hash(step) == (_hash(kept[place]) if known is None else known):
                continue
            if index < last or (place is not None and _has_other_time(kept[place], step)):
                segment += 1
                place = places[segment].value(index) if segment < len(places) else None
            elif place is not None:
                repeats.add(kept[place], step)
        at[rank] = segment, index
        if place is not None:
            again.setdefault((owners[place], place), _hash(kept[place]))
            again[rank, place] = _hash(step)
            kept.change(place, **_new_of(kept[place], step))
            continue
        if segment == len(places):
            places.append(_Printed())
        places[segment].add(index, len(kept))
        owners.append(rank)
        kept.append(step.changed(segment=step.segment + segment) if segment else step)
    if warnings is not None:
        warnings.extend(repeats.warnings())
    return kept.build()


def merged_columns(steps: Steps) -> Steps:
    """Return rows of one process as `merged` does."""
    is_ascending = (np.diff(steps.column("index")) > 0).all()
    return steps if is_ascending else merged((None, row) for row in steps)


def growth_of(total: np.ndarray, steps: Steps) -> np.ndarray:
    """Return by how much a total grows in a step; NaN in the first row of a stretch, and where it does not grow.

    total: at the end of each row, NaN where unknown; shape (rows,), as the result.
    """
    with np.errstate(invalid="ignore"):
        grown = np.diff(total, prepend=np.nan) / np.diff(steps.column("index"), prepend=0).clip(min=1)
        grown[(np.diff(steps.column("segment"), prepend=-1) != 0) | ~(grown > 0)] = np.nan
    return np.asarray(grown)


def usual_distance(distances: np.ndarray) -> int:
    """Return the most frequent of the distances between numbers of rows, the log interval; 1 if there are none."""
    if len(distances) and (distances == distances[0]).all():  # as in most logs: millions need no sorting
        return int(distances[0])
    sizes, counts = np.unique(distances, return_counts=True)
    return int(sizes[counts.argmax()]) if len(sizes) else 1


MOST_PICKED = 5  # rows that someone may have picked out of a log: their distance alone shows no log interval


def fits_interval(interval: int, numbers: np.ndarray) -> bool:
    """Return True if rows of these numbers may be a log interval apart; of many rows, their distance shows it.

    Frameworks print the multiples of the interval, counted from 0 or from 1, and often the first step of a process and
    the last one.

    >>> rows = ((9, 19, 29), (1, 100, 200), (10, 20, 30, 37), (126, 261, 396))
    >>> [fits_interval(row[2] - row[1], np.array(row)) for row in rows]
    [True, True, True, False]
    """
    if len(numbers) > MOST_PICKED or interval <= 1:
        return True
    inner = numbers[:-1] if len(numbers) > 3 else numbers
    inner = inner[1:] if (inner[0] - 1) % interval == 0 else inner
    return len(inner) < 2 or any(((inner + offset) % interval == 0).all() for offset in (0, 1))


def first_interval(first: int, second: int) -> int:
    """Return the steps up to the first row, if the second is as far from it; else 1, for rows before it are missing.

    >>> first_interval(10, 20), first_interval(9, 19), first_interval(1, 2), first_interval(30, 40)
    (10, 10, 1, 1)
    """
    return next((first + offset for offset in (0, 1) if second + offset == 2 * (first + offset) > 0), 1)


class _Printed:
    """Map of step numbers, in ascending order, to whole numbers; it takes a tenth of a dictionary's memory."""

    __slots__ = ("numbers", "values")

    def __init__(self) -> None:
        self.numbers, self.values = array("q"), array("q")

    def value(self, number: int) -> int | None:
        """Return the value added for a number, or None."""
        if not self.numbers or number > self.numbers[-1]:
            return None
        place = bisect_left(self.numbers, number)
        return self.values[place] if self.numbers[place] == number else None

    def add(self, number: int, value: int) -> None:
        """Add a number with its value, or replace the value of one already added."""
        if not self.numbers or number > self.numbers[-1]:
            self.numbers.append(number)
            self.values.append(value)
            return
        place = bisect_left(self.numbers, number)
        if self.numbers[place] == number:
            self.values[place] = value
        else:
            self.numbers.insert(place, number)
            self.values.insert(place, value)


def _hash(step: Step) -> int:
    """Return a number of the content of a row: equal for a row that is printed again, on another line."""
    content = {
        name: value for name, value in vars(step).items() if value is not None and value != getattr(Step, name, None)
    }
    content.pop("line", None)
    content.pop("segment", None)
    return hash(frozenset((name, "nan" if value != value else value) for name, value in content.items()))


def _has_other_time(before: Step | None, again: Step) -> bool:
    """Return True if a number was printed twice with times too different for two ranks in one step."""
    if before is None or not before.seconds or not again.seconds:
        return False
    return abs(math.log(again.seconds / before.seconds)) > _OTHER_TIME


def _new_of(first: Step, other: Step) -> dict[str, float]:
    """Return the numbers of a step that the other row states and the first does not, and the higher of their peaks."""
    values: dict[str, float] = {}
    for name in FLOAT_COLUMNS:
        mine, theirs = getattr(first, name), getattr(other, name)
        if theirs is None:
            continue
        if mine is None or (name in _PEAKS and theirs > mine):
            values[name] = theirs
    return values


def with_intervals(
    steps: Steps, *, starts: dict[int, int] | None = None, extra_boundaries: Iterable[int] = ()
) -> Steps:
    """Return the rows with `covers` from the distance between them: a training whose counter says 500 has 500 steps.

    This holds for every format whose reader states nothing else, be a row the mean over a log interval or the time of
    one of its steps: `segments` applies it to the rows of each training.
    starts: stretch → number of the step before its first, where the log states it; without it a stretch is taken to
    begin at its first row, which is never measured, or at step 0 if that is one interval before it. extra_boundaries:
    steps at which the framework's clock was started anew.
    A row that is missing (cut off, lost) does not lengthen the next: no row covers more than the shortest distance
    between consecutive rows. The distances to the second row and to the last do not count: frameworks print step 1 and
    the last step whatever the interval. Of a few rows that are no multiples of their distance, each covers one step.
    """
    index, segment, run = (steps.column(name) for name in ("index", "segment", "run"))
    covers = np.ones(len(steps), np.int64)
    boundaries = np.array(sorted(extra_boundaries), np.int64)
    stretches = run * (segment.max(initial=0) + 1) + segment
    for stretch in np.unique(stretches):
        rows = np.flatnonzero(stretches == stretch)
        numbers = index[rows]
        before = np.concatenate([[(starts or {}).get(int(stretch), numbers[0] - 1)], numbers[:-1]])
        distances = np.maximum(numbers - before, 1)
        if len(rows) > 1:
            interval = distances[min(2, len(rows) - 1) : -1 if len(rows) > 3 else None].min()
            distances = np.minimum(distances, interval)
            if numbers[0] in (interval, interval - 1) and not (starts or {}).get(int(stretch)):
                distances[0] = interval  # the first row of a training stands for all since its beginning, as the others
        if len(rows) > 1 and not fits_interval(int(distances[1:].max()), numbers):
            distances = np.ones_like(distances)
        if len(boundaries):
            nearest = boundaries[np.maximum(np.searchsorted(boundaries, numbers) - 1, 0)]
            inside = (nearest > before) & (nearest < numbers)
            distances = np.where(inside, np.minimum(distances, numbers - nearest), distances)
        covers[rows] = distances
    return steps.replace(covers=covers) if (covers != 1).any() else steps
