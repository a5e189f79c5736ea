"""MLflow's database, `mlflow.db`, SQLite, to which recent versions log by default (seen with 3.17.2).

The tables metrics (key, value, timestamp in milliseconds, step, is_nan), params and runs hold what the file store keeps
in files; mlflow/store/tracking/dbmodels/models.py.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from tensorprimat.core.errors import InputError
from tensorprimat.logs import files

_MAGIC = b"SQLite format 3\0"
_TABLES = {"metrics", "params", "runs"}
_NAMED_RUNS = 10  # in a refusal


def is_database(path: Path) -> bool:
    """Return True for a SQLite file with MLflow's tables."""
    try:
        if files.first_bytes(path, len(_MAGIC)) != _MAGIC:
            return False
        return {name for (name,) in _rows(path, "SELECT name FROM sqlite_master WHERE type = 'table'")} >= _TABLES
    except InputError:
        return False


def stored_runs(path: Path) -> list[tuple[str, str]]:
    """Return (identifier, name) of the runs with metrics that were not deleted, in the order in which they began."""
    found = _rows(
        path,
        "SELECT run_uuid, name FROM runs WHERE lifecycle_stage = 'active' "
        "AND run_uuid IN (SELECT run_uuid FROM latest_metrics) ORDER BY start_time, run_uuid",
    )
    return [(str(run), str(name or "unnamed")) for run, name in found]


def only_run(path: Path) -> str:
    """Return the identifier of the only run with metrics that was not deleted.

    Raises InputError for several runs or none.
    """
    found = stored_runs(path)
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


def metric_names(path: Path, run: str) -> list[str]:
    """Return the names of a run's metrics."""
    return [str(name) for (name,) in _rows(path, "SELECT key FROM latest_metrics WHERE run_uuid = ? ORDER BY key", run)]


def metric_entries(path: Path, run: str, name: str) -> Iterator[tuple[int, int, str, float]]:
    """Yield (milliseconds since 1970, step, name, value) of a metric, in the order of its steps."""
    for time, step, value, is_nan in _rows(
        path,
        "SELECT timestamp, step, value, is_nan FROM metrics WHERE run_uuid = ? AND key = ? ORDER BY step, timestamp",
        run,
        name,
    ):
        yield int(time), int(step), name, math.nan if is_nan else float(value)


def run_parameters(path: Path, run: str) -> dict[str, str]:
    """Return the parameters of a run."""
    return {
        str(name): str(value) for name, value in _rows(path, "SELECT key, value FROM params WHERE run_uuid = ?", run)
    }


def _rows(path: Path, query: str, *values: str) -> list[tuple[Any, ...]]:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return database.execute(query, values).fetchall()
    except sqlite3.Error as error:
        raise InputError(f"cannot be read as a database: {error}", path=str(path)) from error
