"""Tables of metrics by name: histories of Weights & Biases (CSV, JSON, JSON lines; wandb-summary.json), CSV and JSON
lines of any trainer (NeMo Automodel's training.jsonl, Lightning's metrics.csv with step times or rates only).

`metric_names` says what a name means. Where a table has neither a step time nor a rate, its clock (`_timestamp`,
`_runtime`) times the steps, and the result says so. A summary holds the last row alone: its rates are those of one
moment, and are reported, without steps.
"""

from __future__ import annotations

import csv
import json
import math
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from tensorprimat.core.clocks import ByStep, Elapsed, Evidence
from tensorprimat.core.errors import InputError
from tensorprimat.core.steps import Step, Steps
from tensorprimat.logs import fields, keyvalue
from tensorprimat.logs.clocks import Moment, TimeMark, moment_in, pauses, steps_between
from tensorprimat.logs.format import Reading
from tensorprimat.logs.metric_names import CLOCK_MS, CLOCKS, MEASURES, STEPS, TOTALS, UNITLESS_TIMES, field_of
from tensorprimat.logs.tensorboard import EVALUATION
from tensorprimat.logs.text import Log

LONGEST_ROW = 2**20  # characters: a history may hold the configuration in a cell
LARGEST_STEP = 2**53  # whole numbers beyond are not exact
EXACT_CLOCK = 1e-3  # W&B's clocks have microseconds; a millisecond is what a call takes
WANDB_MARKS = ("_step", "_runtime", "_timestamp", "_wandb")

_OF_RUN = re.compile(r"^(?P<run>.{1,200}?) - (?P<name>[^-].{0,199})$")

MetricRow = Mapping[str, Any]


class _Merged(NamedTuple):
    """All values that were logged for one step."""

    line: int | None
    step: int
    values: dict[str, float]
    moment: Moment | None
    interrupted_by: str
    """Work logged since the previous step."""


def detect(log: Log) -> int:
    first = next((text for _, text in log.head() if text.strip()), "")
    start = first.lstrip("\ufeff \t")[:1]
    if start == "[" or (start == "{" and not _object(first)):
        return len(_document(log)) if _may_be_document(log) else 0
    if start == "{":
        found = (_object(text) for _, text in islice(log.head(), 200_000))
        return sum(1 for row in found if row is not None and (_is_row(row) or _is_summary(row)))
    names = _header(first)
    return sum(text.count(",") >= len(names) - 1 for _, text in log.head()) - 1 if _names_a_table(names) else 0


def read(log: Log) -> Reading:
    reading = Reading(steps=Steps({}), source="Table of metrics")
    table = _rows(log)
    first = list(islice(table, 50))
    if any(mark in row for _, row in first for mark in WANDB_MARKS):
        reading.source = "Weights & Biases"
    if len(first) == 1 and _is_summary(first[0][1]):
        return _summary(first[0][1], reading)
    return read_table(chain(first, table), reading)


def read_table(table: Iterable[tuple[int | None, MetricRow]], reading: Reading) -> Reading:
    """Fill a reading with the steps of (line, metrics by name) in the order in which they were logged."""
    names, found = set[str](), _Table()
    steps = fields.merged((None, _step(row)) for row in found.noted(_merged(_with_totals(table, names, reading))))
    if steps.has("seconds") or any(steps.has(name) for name in MEASURES):
        reading.steps = keyvalue.with_times(found.with_tokens(steps))
        reading.begins = found.restarts(steps)
        reading.evidence = Evidence(elapsed=found.elapsed())
        if any(name.rpartition("/")[2] in UNITLESS_TIMES for name in names):
            reading.warnings.append(
                "steps: the table gives no unit for its step time; seconds are assumed; milliseconds would make "
                "every figure 1,000 times too slow"
            )
        return reading
    return _by_clock(found, reading)


def _header(text: str) -> list[str]:
    """Return the names of a CSV's columns; none for a line that is no head of one."""
    text = text.lstrip("\ufeff")
    if "," not in text or len(text) > LONGEST_ROW:
        return []
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        return []


def _names_a_table(names: Iterable[str]) -> bool:
    plain = [_plain(name) for name in names]
    if not any(name in STEPS for name in plain):
        return False
    found = [field[0] for name in plain if (field := field_of(name))]
    return any(field in MEASURES for field in found) or (any(name in WANDB_MARKS for name in plain) and "loss" in found)


def _is_row(row: MetricRow) -> bool:
    return _names_a_table(row)


def _is_summary(row: MetricRow) -> bool:
    return "_wandb" in row or ("_runtime" in row and "_step" in row)


def _plain(name: str) -> str:
    """Return a column's name without the run that W&B's plots put before it."""
    match = _OF_RUN.match(name)
    return match["name"] if match else name


def _object(text: str) -> MetricRow | None:
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")) or len(text) > LONGEST_ROW:
        return None
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _may_be_document(log: Log) -> bool:
    return any(mark in text for _, text in log.head() for mark in ('"_step"', '"_runtime"', '"_wandb"'))


def _document(log: Log) -> list[tuple[int | None, MetricRow]]:
    """Return the rows of one JSON document: a list of objects, or a summary."""
    try:
        document = json.loads(log.text())
    except (ValueError, RecursionError):
        return []
    entries = document if isinstance(document, list) else [document]
    return [(None, row) for row in entries if isinstance(row, dict) and (_is_row(row) or _is_summary(row))]


def _rows(log: Log) -> Iterator[tuple[int | None, MetricRow]]:
    """Yield (line, values by name) of a table in any of its shapes."""
    lines = log.lines()
    number, first = next(((line, text) for line, text in lines if text.strip()), (0, ""))
    start = first.lstrip("\ufeff \t")[:1]
    if start == "[" or (start == "{" and _object(first) is None):
        yield from _document(log)
    elif start == "{":
        for line, text in chain([(number, first)], lines):
            if (row := _object(text)) is not None:
                yield line, row
    else:
        yield from _csv(_header(first), lines, log)


def _csv(header: list[str], lines: Iterator[tuple[int, str]], log: Log) -> Iterator[tuple[int, MetricRow]]:
    runs = {match["run"] for name in header if (match := _OF_RUN.match(name)) and not name.endswith(("__MIN", "__MAX"))}
    if len(runs) > 1:
        some = ", ".join(sorted(runs)[:3])
        raise InputError(f"holds {len(runs)} runs ({some})", path=log.name, remedy="export one run at a time")
    names = [_plain(name) for name in header]
    for line, text in lines:
        if len(text) > LONGEST_ROW:
            continue
        cells = (_header(text) or [text]) if '"' in text else text.split(",")
        if len(cells) == len(names):  # a row of another width is a torn one
            yield line, {name: cell for name, cell in zip(names, cells, strict=True) if cell not in _EMPTY}


_EMPTY = frozenset(("", "NaN", "None"))


def _merged(table: Iterable[tuple[int | None, MetricRow]]) -> Iterator[_Merged]:
    """Yield steps of the train set; rows that follow each other with one number (calls of a logger) are one step."""
    interrupted_by = ""
    open_row: _Merged | None = None
    for line, row in table:
        index = _index(row)
        if index is None:
            continue
        if any(map(_is_of_evaluation, row)):
            interrupted_by = "validation"
        values = dict(_values(row))
        if not values:
            continue
        if open_row and open_row.step == index:
            open_row.values.update({name: value for name, value in values.items() if name not in open_row.values})
            continue
        if open_row:
            yield open_row
        open_row, interrupted_by = _Merged(line, index, values, _moment(row), interrupted_by), ""
    if open_row:
        yield open_row


@cache
def _is_of_evaluation(name: str) -> bool:
    return name.startswith(EVALUATION)


_field_of = cache(field_of)


def _index(row: MetricRow) -> int | None:
    for name in STEPS:
        if name not in row:
            continue
        value = _number(row[name])
        if value is not None and 0 <= value < LARGEST_STEP and value == int(value):
            return int(value)
    return None


def _values(row: MetricRow) -> Iterator[tuple[str, float]]:
    seen = set()
    for name, said in row.items():
        if (field := _field_of(name)) is None or field[0] in seen or (value := _number(said)) is None:
            continue
        kind, scale = field
        if kind not in ("loss", "gradient_norm", "learning_rate") and not 0 < value < math.inf:
            continue
        if kind == "seconds" and not value * scale < fields.LONGEST_STEP_SECONDS:
            continue
        seen.add(kind)
        yield kind, value * scale


def _number(said: object) -> float | None:
    if isinstance(said, bool) or not isinstance(said, int | float | str):
        return None
    try:
        return float(said)
    except (ValueError, OverflowError):
        return None


def _moment(row: MetricRow) -> Moment | None:
    for name in CLOCKS:
        if name not in row:
            continue
        said = row[name]
        value = _number(said)
        if value is not None and name == CLOCK_MS:
            return Moment(seconds=value / 1000, resolution=EXACT_CLOCK)
        if value is not None and math.isfinite(value) and value > 0:
            whole = value == int(value)
            return Moment(
                seconds=value, resolution=1.0 if whole else EXACT_CLOCK, has_year=name != "_runtime" and value < 1e11
            )
        if isinstance(said, str) and (moment := moment_in(said)):
            return moment
    return None


def _step(row: _Merged) -> Step:
    fields: dict[str, Any] = {name: value for name, value in row.values.items() if name != "total_tokens"}
    return Step(**{"seconds": None, **fields, "index": row.step, "line": row.line})


class _Table:
    """The rows that were read, in columns: a history may have millions."""

    def __init__(self) -> None:
        self.lines, self.steps, self.tokens = array("q"), array("q"), array("d")
        self.clocks, self.resolutions, self.years = array("d"), array("d"), array("b")
        self.losses, self.rates, self.interruptions = array("d"), array("d"), list[str]()
        self.has_loss = array("b")

    def noted(self, rows: Iterable[_Merged]) -> Iterator[_Merged]:
        """Yield rows, each noted."""
        for row in rows:
            self.lines.append(-1 if row.line is None else row.line)
            self.steps.append(row.step)
            self.tokens.append(row.values.get("total_tokens", math.nan))
            self.clocks.append(row.moment.seconds if row.moment else math.nan)
            self.resolutions.append(row.moment.resolution if row.moment else 0.0)
            self.years.append(row.moment is not None and row.moment.has_year)
            self.losses.append(row.values.get("loss", math.nan))
            self.has_loss.append("loss" in row.values)
            self.rates.append(row.values.get("learning_rate", math.nan))
            self.interruptions.append(row.interrupted_by)
            yield row

    def elapsed(self) -> Elapsed | None:
        """Return the clock of the logger's calls; None where numbers of steps go back, so that a number names several
        rows.
        """
        steps, clocks = np.array(self.steps), np.array(self.clocks)
        known = ~np.isnan(clocks)
        if not known.any() or not (np.diff(steps) > 0).all():
            return None
        return Elapsed(
            name="the clock of the logged rows",
            seconds=ByStep(steps[known], clocks[known]),
            resolution=max(self.resolutions),
        )

    def with_tokens(self, steps: Steps) -> Steps:
        """Return the tokens from the growth of their total; a document has no lines, and its steps do not repeat."""
        return keyvalue.with_tokens(steps, self._totals(), by="line" if self.has_lines else "index")

    @property
    def has_lines(self) -> bool:
        """Return True if every row has a line."""
        return min(self.lines, default=0) >= 0

    def restarts(self, steps: Steps) -> list[tuple[int, str]]:
        """Return the rows at which the total of tokens goes back."""
        return keyvalue.restarts(steps, self._totals()) if self.has_lines else []

    def _totals(self) -> ByStep:
        numbers = np.array(self.lines if self.has_lines else self.steps)
        order = np.argsort(numbers, kind="stable")
        return ByStep(numbers[order], np.array(self.tokens)[order])

    def marks(self) -> Iterator[TimeMark]:
        """Yield the rows with a clock and a loss."""
        for place, clock in enumerate(self.clocks):
            if clock == clock and self.has_loss[place]:
                rate = self.rates[place]
                yield TimeMark(
                    line=self.lines[place] if self.lines[place] >= 0 else None,
                    index=self.steps[place],
                    moment=Moment(seconds=clock, resolution=self.resolutions[place], has_year=bool(self.years[place])),
                    loss=self.losses[place],
                    learning_rate=rate if rate == rate else None,
                    interrupted_by=self.interruptions[place],
                )


def _by_clock(found: _Table, reading: Reading) -> Reading:
    marks = list(found.marks())
    steps = fields.merged((None, step) for step in steps_between(marks))
    if not len(steps) or not np.isfinite(steps.column("seconds")).any():
        reading.warnings.append(
            "steps: the table has neither step times nor rates, and its clock is too coarse for any"
        )
        return reading
    reading.steps, reading.timing = found.with_tokens(steps), "timestamps"
    if found.has_lines:
        reading.begins = pauses(reading.steps)
    reading.warnings.append(
        "steps: timed from timestamps of the logger's calls; each time includes everything the loop did between rows"
    )
    return reading


def _with_totals(
    table: Iterable[tuple[int | None, MetricRow]], names: set[str], reading: Reading
) -> Iterator[tuple[int | None, MetricRow]]:
    """Yield the rows, with means over the whole run that a trainer logged once kept, and all names."""
    totals = set[str]()
    for line, row in table:
        if not names.issuperset(row):
            names.update(row)
            totals = {name for name in names if name.removeprefix("train/") in TOTALS}
        for name in totals.intersection(row) if totals else ():
            value = _number(row[name])
            if value is not None and 0 < value < math.inf:
                reading.reported[TOTALS[name.removeprefix("train/")]] = value
        yield line, row


def _summary(row: MetricRow, reading: Reading) -> Reading:
    """Return the last value of every metric: means of the run where a trainer logs them, else rates of
    the last step.
    """
    list(_with_totals([(None, row)], set(), reading))
    if "samples_per_second" in reading.reported or "tokens_per_second" in reading.reported:
        reading.warnings.append(
            "steps: a summary has no step times, only means over the whole run, start, evaluations and checkpoints "
            "included; so no variance is known"
        )
        return reading
    names = {
        "seconds": "step_time_seconds",
        "reported_tokens_per_second": "tokens_per_second",
        "reported_tokens_per_second_per_gpu": "tokens_per_second_per_gpu",
        "reported_samples_per_second": "samples_per_second",
    }
    for kind, value in _values(row):
        if kind in names:
            reading.reported[names[kind]] = value
    reading.warnings.append(
        "steps: a summary holds the last logged row alone; its rates are those of one moment, not means. The history "
        "of the run has them all"
        if reading.reported
        else "steps: the summary holds neither a step time nor a rate"
    )
    return reading
