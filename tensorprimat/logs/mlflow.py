"""MLflow's file store: one file for each metric of a run, `timestamp value step` a line, the timestamp in milliseconds;
and its database, mlflow.db (SQLite), to which recent versions log by default (seen with 3.17.2): its tables metrics,
params and runs hold what the file store keeps in files (mlflow/store/tracking/dbmodels/models.py).

The metric's name is the file's, below the folder `metrics`; naming the run's folder, its `metrics`, or any file in it
reads the whole run, with the settings from its `params` folder. `metric_names` has the meaning of each name.
"""

from __future__ import annotations

import math
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tensorprimat.core.errors import InputError
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import count
from tensorprimat.logs import fields, files, headers, metric_columns
from tensorprimat.logs.format import Reading
from tensorprimat.logs.metric_columns import Scalars
from tensorprimat.logs.metric_names import EVALUATION_PREFIXES, OTHERWISE, field_of, is_of_summary
from tensorprimat.logs.metrics import read_columns
from tensorprimat.logs.model_names import model_name
from tensorprimat.logs.text import Log

_MAGIC = b"SQLite format 3\0"
_TABLES = {"metrics", "params", "runs"}
_NAMED_RUNS = 10  # in a refusal

LoggedValue = tuple[int, int, str, float]
"""Milliseconds since 1970, step, name, value."""
ValuesByMetric = dict[str, Callable[[], Iterator[LoggedValue]]]
"""Name of a metric → its values."""
FOLDER, _PARAMETERS = "metrics", "params"
MOST_FILES = 100_000  # listed within a second; a run that logs a metric for each tensor has tens of thousands
MOST_VALUES = 1_000_000  # of all metrics that are read; three metrics of 300,000 steps
_MODEL_PARAMETERS = ("model_name", "model_name_or_path")
LARGEST_PARAMETER = 2**12

_LINE = re.compile(
    r"(?P<time>\d{12,14}) (?P<value>[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d{1,3})?|nan|inf)) (?P<step>\d{1,15})"
    r"(?: \S{1,500} \S{1,100})?"  # MLflow 3: name and digest of the data set that a metric is about
)


def detect(log: Log) -> int:
    if log.is_binary:
        return 1 if _is_database(log.path) else 0
    if log.is_folder:
        names = [name for name, _ in _metric_files(_root(log.path))]
        return 1 if len(names) > MOST_FILES or any(map(field_of, names)) else 0
    found = 0
    for _, text in log.head():
        if text.strip():
            if _LINE.fullmatch(text.rstrip()) is None:
                return 0
            found += 1
    return found


def read(log: Log) -> Reading:
    reading = Reading(source="MLflow")
    found, parameters = _of_database(log) if log.is_binary else _of_folder(log.path)
    known = [name for name in found if field_of(name) or name in OTHERWISE or is_of_summary(name)]
    evaluations = [name for name in found if name.startswith(EVALUATION_PREFIXES)]
    if not known:
        some = ", ".join(list(found)[:5])
        reading.warnings.append(Notice("no_metric_known", "steps", some=some))
        return reading
    scalars = Scalars()
    entries = chain.from_iterable(found[name]() for name in (*known, *evaluations))
    for time, step, name, value in islice(entries, MOST_VALUES + 1):
        scalars.add(step, time / 1000, name, value)
    if len(scalars.steps) > MOST_VALUES:
        raise InputError(
            f"holds more than {count(MOST_VALUES)} values",
            path=log.name,
            remedy="copy the folder without the metrics that are logged most often, or export the run to CSV",
        )
    scalars.sort()
    headers.configure(reading, parameters, of="the run's parameters")
    if spelled := next((parameters[name] for name in _MODEL_PARAMETERS if parameters.get(name)), None):
        reading.model["name"] = model_name(spelled)
    reading.timestamp = fields.iso(scalars.times[0]) if scalars.times else None
    return read_columns(log, metric_columns.of_scalars(scalars), reading)


def _of_folder(path: Path) -> tuple[ValuesByMetric, dict[str, str]]:
    """Return the metrics of a run in files, and its parameters. Raises InputError for more than MOST_FILES."""
    root = _root(path)
    metrics = list(_metric_files(root)) if os.path.isdir(root) else [(path.name, path)]
    if len(metrics) > MOST_FILES:
        raise InputError(
            f"holds more than {count(MOST_FILES)} metric files",
            path=str(root),
            remedy="copy the folder without those of single tensors or devices, or export the run to CSV",
        )
    values: ValuesByMetric = {name: partial(_entries, name, file) for name, file in metrics}
    return values, _parameters(root.parent / _PARAMETERS)


def runs(log: Log) -> list[str]:
    """Return the identifiers of the runs in a database; none for files."""
    return [run for run, _ in _stored_runs(log.path)] if log.is_binary else []


def _of_database(log: Log) -> tuple[ValuesByMetric, dict[str, str]]:
    """Return the metrics of a run in a database, and its parameters.

    Raises InputError if several runs have metrics and none is chosen, or if no run has any.
    """
    path, run = log.path, log.run or _only_run(log.path)
    names = _rows(path, "SELECT key FROM latest_metrics WHERE run_uuid = ? ORDER BY key", run)
    parameters = _rows(path, "SELECT key, value FROM params WHERE run_uuid = ?", run)
    metrics: ValuesByMetric = {str(name): partial(_stored_entries, path, run, str(name)) for (name,) in names}
    return metrics, {str(name): str(value) for name, value in parameters}


def _root(path: Path) -> Path:
    """Return the folder of all metrics of the run; the path itself if it is in none."""
    if os.path.isdir(path / FOLDER):
        return path / FOLDER
    return next(
        (parent for parent in (path, *path.parents[:4]) if parent.name == FOLDER and os.path.isdir(parent)), path
    )


def _metric_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield (name of the metric, file) of a run, and at most one more than MOST_FILES."""
    if root.name != FOLDER:
        return
    for path in islice(files.files_below(root), MOST_FILES + 1):
        yield path.relative_to(root).as_posix(), path


def _entries(name: str, path: Path) -> Iterator[LoggedValue]:
    """Yield the values of a metric's file; a truncated line is left out."""
    for block in files.blocks(path):
        for text in block.decode("utf-8", "replace").split("\n")[: None if block.endswith(b"\n") else -1]:
            if match := _LINE.fullmatch(text.rstrip("\r")):
                yield int(match["time"]), int(match["step"]), name, float(match["value"])


def _parameters(folder: Path) -> dict[str, str]:
    """Return the parameters of the run that state settings: a file for each, its value inside."""
    return {
        name: path.read_text(encoding="utf-8", errors="replace").strip()
        for name in headers.STATED_IN_COLUMNS
        if os.path.isfile(path := folder / name) and path.stat().st_size <= LARGEST_PARAMETER
    }


def _is_database(path: Path) -> bool:
    """Return True for a SQLite file with MLflow's tables."""
    try:
        if files.first_bytes(path, len(_MAGIC)) != _MAGIC:
            return False
        return {name for (name,) in _rows(path, "SELECT name FROM sqlite_master WHERE type = 'table'")} >= _TABLES
    except InputError:
        return False


def _stored_runs(path: Path) -> list[tuple[str, str]]:
    """Return (identifier, name) of the runs with metrics that were not deleted, in the order in which they began."""
    found = _rows(
        path,
        "SELECT run_uuid, name FROM runs WHERE lifecycle_stage = 'active' "
        "AND run_uuid IN (SELECT run_uuid FROM latest_metrics) ORDER BY start_time, run_uuid",
    )
    return [(str(run), str(name or "unnamed")) for run, name in found]


def _only_run(path: Path) -> str:
    """Return the identifier of the only run with metrics that was not deleted. Raises InputError if it is not one."""
    found = _stored_runs(path)
    if len(found) == 1:
        return found[0][0]
    if not found:
        raise InputError("is an MLflow database without a run that logged a metric", path=str(path))
    some = ", ".join(f"{number}: {name} {run}" for number, (run, name) in enumerate(found[:_NAMED_RUNS], start=1))
    raise InputError(
        f"is an MLflow database of {len(found)} runs ({some}{', …' if len(found) > _NAMED_RUNS else ''})",
        path=str(path),
        remedy="tprimat extract --segment N reads one of them, --segment all writes a result for each",
    )


def _stored_entries(path: Path, run: str, name: str) -> Iterator[LoggedValue]:
    """Yield the values of a metric in a database, in the order of its steps."""
    query = "SELECT timestamp, step, value, is_nan FROM metrics WHERE run_uuid = ? AND key = ? ORDER BY step, timestamp"
    for time, step, value, is_nan in _rows(path, query, run, name):
        yield int(time), int(step), name, math.nan if is_nan else float(value)


def _rows(path: Path, query: str, *values: str) -> list[tuple[Any, ...]]:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return database.execute(query, values).fetchall()
    except sqlite3.Error as error:
        raise InputError(f"cannot be read as a database: {error}", path=str(path)) from error
