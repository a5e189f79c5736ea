"""Tables of metrics by name: histories of Weights & Biases (CSV, JSON, JSON lines; wandb-summary.json), CSV and JSON
lines of any trainer (NeMo Automodel's training.jsonl, Lightning's metrics.csv with step times or rates only), the
golden values of Megatron-LM's tests, and the records of Levanter's JSON logger in a console log.

`metric_names` has the meaning of each name. Where a table has neither a step time nor a rate, its clock (`_timestamp`,
`_runtime`) times the steps, and the result says so. A summary contains the last row alone: its rates are those of one
moment, and are reported, without steps.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import chain, compress, islice, pairwise
from typing import Any, Literal

import numpy as np

from tensorprimat.audit.agreement import PER_GPU, TOTAL
from tensorprimat.audit.evidence import Evidence
from tensorprimat.core.errors import InputError
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import count
from tensorprimat.core.steps import FLOAT_COLUMNS, Steps
from tensorprimat.core.terms import PRINTED, combined
from tensorprimat.logs import (
    automodel_tables,
    fields,
    headers,
    levanter,
    maxtext,
    metric_columns,
    prefixes,
    sliding,
    torchtitan,
    work,
    xtuner,
)
from tensorprimat.logs.clocks import pauses, timed_steps
from tensorprimat.logs.format import Reading
from tensorprimat.logs.huggingface import run as trainer_run
from tensorprimat.logs.huggingface.rows import AXOLOTL_RATE
from tensorprimat.logs.metric_columns import EMPTY, Cells, MetricColumns, MetricRow
from tensorprimat.logs.metric_names import (
    OF_RUN,
    STEPS,
    WANDB_MARKS,
    field_of,
    is_lightnings,
    is_unitless,
    names_a_table,
    without_run,
)
from tensorprimat.logs.metric_steps import Merged, in_whole_seconds
from tensorprimat.logs.text import Log, UnreadText, lines_of

_COMMENT = "#"
_NO_NAME = "0123456789"  # a name that begins so, or is empty, is a number or the date of a console log
_NO_CLOCK = ("clock_too_coarse", "rows_undated")
"""Notices that say why the clock of a table times no step."""
_LONGEST_ROW = 2**20  # characters: a history may contain the configuration in a cell
GOLDEN = "step_interval"  # of the golden values of Megatron-LM's functional tests
DOCUMENT_MARKS = {"[": tuple(f'"{name}"' for name in STEPS), "{": ('"_step"', '"_runtime"', '"_wandb"', f'"{GOLDEN}"')}
"""First character of a JSON document → names of which a table has one."""
DLLOGGER = "DLLL {"
LINGUA = "speed/wps"  # a mean over the steps since the row before
WINDOWED = ("throughput/batches_per_sec", "device/batches_per_sec")  # metrics of Composer and of Lightning's Throughput

OF_UNKNOWN_SCOPE = frozenset(
    f"{section}{name}"
    for section in ("", "train/", "train_", "metrics/")
    for name in ("tokens_per_sec", "tokens_per_second", "tokens/s", "tok_per_sec", "tok/sec", "tps")
)
"""Names of rates that any training loop may use, for one GPU or for all."""
NANOTRONS = "time_per_iteration_ms"  # its tokens_per_sec counts all GPUs


def detect(log: Log) -> int:
    shape, _, first = _opening(log)
    if shape == "document":
        marks = DOCUMENT_MARKS[first.lstrip("\ufeff \t")[:1]]
        may_be = any(mark in text for _, text in log.head() for mark in marks)
        return sum(names_a_table(row) or _is_summary(row) for _, row in _document(log)) if may_be else 0
    if shape == "lines":
        found = (_object(text) for _, text in islice(log.head(), 200_000))
        return sum(1 for row in found if row is not None and (names_a_table(row) or _is_summary(row)))
    names = csv_cells(first)
    return rows_in_head(log) if names_a_table(names) and not is_lightnings(names) else 0


def names_in(log: Log) -> list[str]:
    """Return the names of the numbers in the first row of a table; none for another text."""
    shape, _, text = _opening(log)
    if shape == "lines":
        row = next((row for _, text in islice(log.head(), 1000) if (row := _object(text))), {})
        return [name for name, value in row.items() if isinstance(value, int | float) and not isinstance(value, bool)]
    names = csv_cells(text) if shape == "csv" else []
    return names if len(names) > 1 and not any(name.strip()[:1] in _NO_NAME for name in names) else []


def header_of(log: Log) -> list[str]:
    """Return the names of a CSV's columns; none for another shape of table and for no table."""
    shape, _, first = _opening(log)
    return csv_cells(first) if shape == "csv" else []


def rows_in_head(log: Log) -> int:
    """Return the number of a CSV's rows in the lines that detection looks at."""
    lines = [text for _, text in log.head() if text.strip()]
    return sum(text.count(",") >= lines[0].count(",") for text in lines[1:])


def read(log: Log) -> Reading:
    reading = Reading(source="Table of metrics")
    shape, line, text = _opening(log)
    if shape == "csv":
        if any(without_run(name) in WANDB_MARKS for name in csv_cells(text)):
            reading.source = "Weights & Biases"
        if is_lightnings(csv_cells(text)):
            reading.source = "Lightning"
        reading = read_columns(log, _of_csv(log, line, csv_cells(text), reading), reading)
        headers.configure(reading, headers.texts_beside(log), of="the file of settings")
        return reading
    torn = UnreadText()
    of_lines = _of_lines(log, torn)
    table = iter(_document(log)) if shape == "document" else of_lines
    first = list(islice(table, 50))
    if any(mark in row for _, row in first for mark in WANDB_MARKS):
        reading.source = "Weights & Biases"
    if any(GOLDEN in row for _, row in first):
        reading.source = "Megatron-LM"
    if len(first) == 1 and _is_summary(first[0][1]):
        headers.configure(reading, headers.texts_beside(log), of="the file of settings")
        return _summary(first[0][1], reading)
    texts: dict[str, str] = {}
    columns = metric_columns.of_rows(levanter.rows_noting_texts(chain(first, table), texts))
    columns.torn = torn
    reading = read_columns(log, columns, reading)
    configure(reading, columns, headers.texts_beside(log) | texts, of="the logger's settings")
    return reading


def _of_lines(log: Log, torn: UnreadText) -> Iterator[tuple[int, MetricRow]]:
    """Yield the rows of JSON lines. torn: receives lines that begin as rows do, but are none."""
    number = 0
    for number, text in log.lines():
        if (row := _object(text)) is not None:
            yield number, row
        elif text.startswith("{"):
            torn.add(number, text)
    torn.spare(number, log)


def configure(reading: Reading, columns: MetricColumns, texts: dict[str, str], *, of: str) -> None:
    """Take settings, the model and the device from what a trainer handed to a logger. of: see headers.configure."""
    headers.configure(reading, texts, of=of)
    config, name = reading.training_config, "global_batch_size"
    if batch := config.get(name):  # a batch that ramps up to the stated one is smaller
        counted = work.batch_and_length(reading.steps.column("samples"), np.array([np.nan]), ()).get(name, batch)
        if counted != batch:
            config[name] = counted
            stated = {"batch": batch, "rows": count(counted), "what": "the log's own count"}
            reading.warnings.append(Notice("batch_of_rows", name, **stated))
    if levanter.LEVANTER_METRICS & columns.names.keys():
        levanter.configure(reading, texts)


def _opening(log: Log) -> tuple[Literal["document", "lines", "csv"], int, str]:
    """Return the shape of a table, and the number and text of its first line."""
    line, text = next(((line, text) for line, text in log.head() if text.strip()), (0, ""))
    start = text.lstrip("\ufeff \t")[:1]
    if start == "[" or (start == "{" and not _object(text)):
        return "document", line, text
    is_json = start == "{" or any(levanter.RECORD in text or text.startswith(DLLOGGER) for _, text in log.head())
    return "lines" if is_json else "csv", line, text


def read_columns(
    log: Log, columns: MetricColumns, reading: Reading, *, clock: str = "timestamps of the logger's calls"
) -> Reading:
    """Fill a reading with the steps of a table. clock: the clock that times them if no column does."""
    _refuse_several(log, columns.runs)
    reading.unread += columns.unread()
    reading.warnings += columns.repeats()
    headers.configure(reading, columns.arguments(), of="the columns")
    found = columns.merged()
    reading = _of_columns(log, columns, found, reading, clock)
    if content := trainer_run.of_table(columns, found, reading):
        trainer_run.add_summary(content, reading)
        if not len(reading.steps) and reading.reported and not found.has_clock:
            kept = [one for one in reading.warnings if Notice.of(one).code not in _NO_CLOCK]
            reading.warnings = [*kept, Notice("means_only", "steps", stated="")]
    return reading


def _of_columns(log: Log, columns: MetricColumns, found: Merged, reading: Reading, clock: str) -> Reading:
    """Fill a reading with the steps of merged columns."""
    steps = found.rows()
    unitless = any(is_unitless(name) and field_of(name) for name in columns.names)
    unit = found.unit_of_times() if unitless else 1.0
    if unit == 1e-3:
        steps = steps.replace(seconds=steps.column("seconds") * unit)
    steps, whole = in_whole_seconds(steps) if steps.has("seconds") else (steps, [])
    stated = steps
    if any(name.endswith(AXOLOTL_RATE) for name in columns.names):  # what it counts depends on the version
        timed = _by_clock(found, replace(reading, warnings=[*reading.warnings]), clock)
        if timed.steps.has("tokens") and (rate := combined(steps, PER_GPU)):
            timed.reported["tokens_per_second_per_gpu"] = rate.value
            return timed
    if any(map(steps.has, fields.MEASURES)):
        reading.warnings += whole
        elapsed = found.elapsed()
        if elapsed is None and found.has_clock:
            reading.warnings.append(Notice("clock_not_checked", "steps"))
        is_automodels = columns.names.keys() >= automodel_tables.MARKS
        if is_automodels:
            reading.source = "NeMo Automodel"
            reading.warnings.append(work.OF_REPLICAS)
        if LINGUA in columns.names:
            reading.source = "Lingua"
            steps = automodel_tables.with_linguas_checkpoints(log, steps)
        windows = not steps.has("seconds") and any(name.endswith(WINDOWED) for name in columns.names)
        steps = found.with_resumes(found.with_tokens(steps))
        if found.has_lines:
            reading.begins += pauses(steps)
        if is_automodels:
            steps, unseen = automodel_tables.with_interruptions(log, steps, found.moments(steps), found.evaluations)
            reading.warnings += unseen
        if windows:
            steps, windowed = sliding.without_overlap(steps, late=True)
            reading.warnings += windowed
        if torchtitan.TORCHTITAN_STEP_TIME in columns.names:
            steps, unknown = torchtitan.with_step_times(steps, found.evaluations)
            reading.warnings += unknown
        if levanter.LEVANTER_METRICS & columns.names.keys():
            reading.source = "Levanter"
            steps, hooks = levanter.whole_steps(steps, found.hooks(steps))
            reading.warnings += hooks
        if columns.names.keys() >= xtuner.XTUNER_METRICS:
            reading.source = "XTuner"
            steps, waits = xtuner.with_waits(steps)
            reading.warnings += waits
        if maxtext.MAXTEXT_STEP_TIME in columns.names:
            steps, left_out = maxtext.without_waits(steps, dict.fromkeys(found.evaluations.tolist(), "validation"))
            reading.warnings += left_out
        if _has_rate_of_unknown_scope(columns, steps) and not is_automodels:
            reading.warnings.append(Notice("rate_of_all_assumed", "tokens_per_second", work="tokens"))
        reading.steps, uneven = work.weighted(steps, elapsed, None, None, varies=False)
        reading.warnings += uneven
        reading.begins = sorted([*reading.begins, *found.restarts(steps)])
        reading.evidence = Evidence(
            elapsed=elapsed,
            evaluated_after=frozenset(found.evaluations.tolist()),
            factors=_unchanged(columns.factors() | ({"seconds": unit} if unit == 1e-3 else {}), stated, steps),
        )
        if unit != 1:
            reading.warnings.append(Notice("milliseconds_by_clock" if unit else "seconds_assumed", "steps"))
        return reading
    return _by_clock(found, reading, clock)


def _unchanged(factors: dict[str, float], stated: Steps, steps: Steps) -> dict[str, float]:
    """Return the factors of those columns that have the numbers of the table, not sums or other figures of them."""
    return {
        name: factor
        for name, factor in factors.items()
        if name in FLOAT_COLUMNS and np.array_equal(stated.column(name), steps.column(name), equal_nan=True)
    }


def _has_rate_of_unknown_scope(columns: MetricColumns, steps: Steps) -> bool:
    """Return True if the rate of tokens may be that of one GPU, because neither its name nor another column says."""
    names = columns.names.keys()
    is_counted = steps.has("tokens") and steps.has("seconds")  # then these give the rate
    is_known = is_counted or steps.has(PER_GPU) or NANOTRONS in names
    return steps.has(TOTAL) and not is_known and not OF_UNKNOWN_SCOPE.isdisjoint(names)


def _of_csv(log: Log, head: int, header: list[str], reading: Reading) -> MetricColumns:
    """Return the columns of a CSV. head: the line of its header; another header may follow, of an appended table."""
    columns, last = MetricColumns(), -1
    for number, block in log.numbered_blocks():
        rows = [(line, text) for line, text in lines_of(number, block) if line > head]
        likely = [(place, text) for place, (_, text) in enumerate(rows) if "tep" in text or "iteration" in text]
        heads = [place for place, text in likely if names_a_table(names := csv_cells(text)) or is_lightnings(names)]
        for begin, end in pairwise([0, *heads, len(rows)]):
            if begin in heads:
                header = csv_cells(rows[begin][1])
                reading.begins.append((rows[begin][0], f"another header in line {rows[begin][0]}"))
            _add_rows(columns, header, rows[begin + (begin in heads) : end], log)
        last = rows[-1][0] if rows else last
    columns.torn.spare(last, log)
    return columns


def _add_rows(columns: MetricColumns, header: list[str], rows: list[tuple[int, str]], log: Log) -> None:
    """Add rows under one header."""
    runs = {match["run"] for name in header if (match := OF_RUN.match(name)) and not name.endswith(("__MIN", "__MAX"))}
    _refuse_several(log, runs)
    names = [without_run(name) for name in header]
    lines, cells = list[int](), list[str]()
    for line, text in rows:
        if ":" in text or " " in text:  # as the prefixes of launchers have
            text = prefixes.strip(text)
        row = csv_cells(text) if '"' in text else text.split(",")
        if len(row) == len(names):
            lines.append(line)
            cells += row
        elif text.strip() and not text.startswith(_COMMENT):
            columns.torn.add(line, text)
    every_row, by_column = np.arange(len(lines)), (cells[place :: len(names)] for place in range(len(names)))
    columns.add(lines, (_filled(name, every_row, column) for name, column in zip(names, by_column, strict=True)))


def _filled(name: str, rows: np.ndarray, cells: list[str]) -> Cells:
    """Return the cells of a column that contain something."""
    if EMPTY.isdisjoint(cells):
        return name, rows, cells
    filled = [cell not in EMPTY for cell in cells]
    return name, rows[filled], list(compress(cells, filled))


def csv_cells(text: str) -> list[str]:
    """Return the cells of a line of a CSV; none for a line without a comma."""
    text = text.lstrip("\ufeff")
    if "," not in text or len(text) > _LONGEST_ROW:
        return []
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        return []


def _is_summary(row: MetricRow) -> bool:
    return "_wandb" in row or ("_runtime" in row and "_step" in row)


def _object(text: str) -> MetricRow | None:
    """Return the values of a JSON line by name; of Levanter's logger, those of the record that the line ends with.

    NVIDIA's DLLogger puts a mark before each record, and calls the one of the settings step PARAMETER.
    """
    text = text[max(0, text.find(levanter.RECORD)) :].removeprefix(DLLOGGER[:-1]).strip()
    if not (text.startswith("{") and text.endswith("}")) or len(text) > _LONGEST_ROW:
        return None
    if not isinstance(row := fields.json_in(text), dict):
        return None
    if row.get("event") == "log" and isinstance(row.get("metrics"), dict):
        return {**row["metrics"], "step": row.get("step")}
    if row.get("type") == "LOG" and isinstance(data := row.get("data"), dict):
        if row.get("step") == "PARAMETER":
            return {"hparams": {name.rpartition("/")[2]: value for name, value in data.items()}}
        return {**data, "step": row.get("step"), "timestamp": fields.number(str(row.get("timestamp")))}
    return row


def _document(log: Log) -> list[tuple[int | None, MetricRow]]:
    """Return the rows of one JSON document: a list of objects, or a summary; none if no object is a row of a table."""
    document = fields.json_in(log.text())
    entries = document if isinstance(document, list) else _golden_rows(document) or [document]
    rows = [row for row in entries if isinstance(row, dict)]
    return [(None, row) for row in rows] if any(names_a_table(row) or _is_summary(row) for row in rows) else []


def _golden_rows(document: Any) -> list[MetricRow]:
    """Return golden values of Megatron-LM's tests, metric by metric, as rows; none for another document."""
    metrics = document.items() if isinstance(document, dict) else ()
    rows = dict[int, dict[str, Any]]()
    for name, metric in metrics:
        if not isinstance(metric, dict) or GOLDEN not in metric:
            continue
        values, start, interval = metric.get("values"), metric.get("start_step"), metric[GOLDEN]
        if isinstance(values, list) and isinstance(start, int) and isinstance(interval, int):
            values = {str(start + place * interval): value for place, value in enumerate(values)}
        for step, value in values.items() if isinstance(values, dict) else ():
            if str(step).isdecimal() and len(str(step)) <= fields.LARGEST_INDEX_DIGITS:
                rows.setdefault(int(step), {"step": int(step), GOLDEN: interval})[name] = value
    return [rows[step] for step in sorted(rows)]


def _refuse_several(log: Log, runs: Collection[str]) -> None:
    if len(runs) > 1:
        some = ", ".join(sorted(runs)[:3])
        raise InputError(f"holds {len(runs)} runs ({some})", path=log.name, remedy="export one run at a time")


def _by_clock(found: Merged, reading: Reading, clock: str) -> Reading:
    marks = list(found.marks())
    steps = fields.merged_columns(timed_steps(marks))
    if not len(steps) or not np.isfinite(steps.column("seconds")).any():
        reading.warnings.append(Notice("clock_too_coarse" if len(marks) > 1 else "rows_undated", "steps"))
        return reading
    reading.steps, reading.timing = found.with_tokens(steps), "timestamps"
    if found.has_lines:
        reading.begins = sorted([*reading.begins, *pauses(reading.steps)])
    reading.warnings.append(Notice("timed_by_clock", "steps", clock=clock))
    return reading


def _summary(row: MetricRow, reading: Reading) -> Reading:
    """Return each metric's last value: a mean of the run where a trainer logs one, else the last step's rate."""
    columns = metric_columns.of_rows([(None, row)])
    if content := trainer_run.of_table(columns, columns.merged(), reading):
        trainer_run.add_summary(content, reading)
    if any(name.endswith(("_per_second", "_per_second_per_process")) for name in reading.reported):
        reading.warnings.append(Notice("summary_only", "steps"))
        if "samples_per_second" in reading.reported:
            reading.warnings.append(Notice("samples_of_others", "samples_per_second"))
        return reading
    rates = (TOTAL, PER_GPU, "reported_samples_per_second")
    for kind, target in {"seconds": "step_time_seconds", **{one: one.removeprefix(PRINTED) for one in rates}}.items():
        if value := columns.last(kind):
            reading.reported[target] = value
    reading.warnings.append(Notice("last_row_only" if reading.reported else "summary_without_rate", "steps"))
    return reading
