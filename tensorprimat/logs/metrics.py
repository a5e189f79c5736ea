"""Tables of metrics by name: histories of Weights & Biases (CSV, JSON, JSON lines; wandb-summary.json), CSV and JSON
lines of any trainer (NeMo Automodel's training.jsonl, Lightning's metrics.csv with step times or rates only).

`metric_names` says what a name means. Where a table has neither a step time nor a rate, its clock (`_timestamp`,
`_runtime`) times the steps, and the result says so. A summary holds the last row alone: its rates are those of one
moment, and are reported, without steps.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice

import numpy as np

from tensorprimat.core.clocks import Evidence
from tensorprimat.core.errors import InputError
from tensorprimat.core.steps import Steps
from tensorprimat.logs import fields, metric_columns, prefixes, work
from tensorprimat.logs.clocks import pauses, timed_steps
from tensorprimat.logs.format import Reading
from tensorprimat.logs.metric_columns import EMPTY, Merged, MetricColumns, MetricRow
from tensorprimat.logs.metric_names import MEASURES, STEPS, UNITLESS_TIMES, field_of
from tensorprimat.logs.text import Log, lines_of

LONGEST_ROW = 2**20  # characters: a history may hold the configuration in a cell
WANDB_MARKS = ("_step", "_runtime", "_timestamp", "_wandb")

_OF_RUN = re.compile(r"^(?P<run>.{1,200}?) - (?P<name>[^-].{0,199})$")


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
    head, text = next(((line, text) for line, text in log.lines() if text.strip()), (0, ""))
    if text.lstrip("\ufeff \t")[:1] not in ("[", "{"):
        return _filled(reading, _of_csv(log, head, _header(text)))
    return read_table(chain(first, table), reading)


def read_table(table: Iterable[tuple[int | None, MetricRow]], reading: Reading) -> Reading:
    """Fill a reading with the steps of (line, metrics by name) in the order in which they were logged."""
    return _filled(reading, metric_columns.of_rows(table))


def _filled(reading: Reading, columns: MetricColumns) -> Reading:
    reading.reported.update(columns.totals)
    found = columns.merged()
    steps = found.rows()
    if steps.has("seconds") or any(steps.has(name) for name in MEASURES):
        elapsed = found.elapsed()
        reading.steps, uneven = work.weighed(found.with_tokens(steps), elapsed, None, None, varies=False)
        reading.warnings += uneven
        reading.begins = found.restarts(steps)
        reading.evidence = Evidence(elapsed=elapsed)
        if any(name.rpartition("/")[2] in UNITLESS_TIMES for name in columns.names):
            reading.warnings.append(
                "steps: the table gives no unit for its step time; seconds are assumed; milliseconds would make "
                "every figure 1,000 times too slow"
            )
        return reading
    return _by_clock(found, reading)


def _of_csv(log: Log, head: int, header: list[str]) -> MetricColumns:
    """Return the columns of a CSV. head: the line of its header.

    A stretch of plain rows is read column by column, in a quarter of the time; one with quotes or prefixes row by row.
    """
    names = [_plain(name) for name in header]
    columns = MetricColumns(names)
    for number, block in log.numbered_blocks():
        rows = [(line, text) for line, text in lines_of(number, block) if line > head]
        plain = [(line, text) for line, text in rows if text.count(",") == len(names) - 1]
        cells = ",".join(text for _, text in plain).split(",")
        by_column = [cells[place :: len(names)] for place in range(len(names))]
        is_plain = b'"' not in block and len(plain) == len(rows) and bool(plain)
        if not (is_plain and columns.add_numbers([line for line, _ in plain], names, by_column)):
            for line, row in _csv(header, ((line, prefixes.strip(text)) for line, text in rows), log):
                columns.add(line, row)
    return columns


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
            yield line, {name: cell for name, cell in zip(names, cells, strict=True) if cell not in EMPTY}


def _by_clock(found: Merged, reading: Reading) -> Reading:
    marks = list(found.marks())
    steps = fields.merged_columns(timed_steps(marks))
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


def _summary(row: MetricRow, reading: Reading) -> Reading:
    """Return the last value of every metric: means of the run where a trainer logs them, else rates of
    the last step.
    """
    columns = metric_columns.of_rows([(None, row)])
    reading.reported.update(columns.totals)
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
    for kind, target in names.items():
        if (value := columns.last(kind)) is not None:
            reading.reported[target] = value
    reading.warnings.append(
        "steps: a summary holds the last logged row alone; its rates are those of one moment, not means. The history "
        "of the run has them all"
        if reading.reported
        else "steps: the summary holds neither a step time nor a rate"
    )
    return reading
