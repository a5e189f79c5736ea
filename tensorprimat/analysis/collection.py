"""Many results as one table: the columns of a result, of its runs and of its steps; filters, groups, best results, and
what is missing of a planned matrix.
"""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from tensorprimat.analysis.aggregate import filtered, is_said
from tensorprimat.analysis.expressions import column_named
from tensorprimat.core import steps
from tensorprimat.core.errors import UsageError
from tensorprimat.core.figures import STEP_FIGURES, Definition
from tensorprimat.core.quantities import count
from tensorprimat.core.records import Record
from tensorprimat.core.result import (
    GpuInfo,
    MemoryMetrics,
    PerformanceMetrics,
    PowerMetrics,
    Reported,
    Result,
    Run,
    TrainingConfig,
)
from tensorprimat.facts import catalogue
from tensorprimat.facts.devices import short_device
from tensorprimat.models import names
from tensorprimat.storage.cell_rows import plain

if TYPE_CHECKING:
    import pandas as pd

GROUP = ("model", "preset", "gpu")
"""Columns in which results have to agree to be compared in a list: a tiny model is none of full size."""
MOST_PLANNED = 10_000  # combinations of a planned matrix; a person reads no more
RANKED_METRICS: Mapping[str, Definition] = {
    name: row for name, row in STEP_FIGURES["performance_metrics"].items() if row.better is not None
}
"""Figures of a result that have a better direction."""


def _kind(annotation: Any) -> type | None:
    """Return bool, int, float or str for the annotation of a single value; None for lists, records and mappings."""
    if annotation in (bool, int, float, str):
        return annotation  # type: ignore[no-any-return]
    if get_origin(annotation) in (Literal, tuple, dict):
        return str if get_origin(annotation) is Literal else None
    return next(filter(None, map(_kind, get_args(annotation))), None)


def _scalars(record: type[Record]) -> dict[str, type]:
    """Return the fields of a record that hold a single value, with their type."""
    kinds = {name: _kind(field.annotation) for name, field in record.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if kind is not None}


_SECTIONS: Mapping[str, type[Record]] = {
    "gpu_info": GpuInfo,
    "training_config": TrainingConfig,
    "performance_metrics": PerformanceMetrics,
    "memory_metrics": MemoryMetrics,
    "power_metrics": PowerMetrics,
}
"""Sections of a result whose keys become columns."""
_REPORTED = {f"reported_{name}": kind for name, kind in _scalars(Reported).items()}
RESULT_COLUMNS: Mapping[str, type] = (
    {"file": str, "sha256": str, "timestamp": str, "platform": str, "engine": str, "model": str, "preset": str,
     "parameters": int, "gpu": str, "methodology": str, "runs": int, "complete": bool, "usable": bool,
     "profiled": bool, "warnings": int}
    | {name: kind for section in _SECTIONS.values() for name, kind in _scalars(section).items()}
    | _REPORTED
)  # fmt: skip
"""Columns of a table of results. Apart from the first ones they are keys of the result file."""
RUN_COLUMNS: Mapping[str, type] = {"file": str} | _scalars(Run)
STEP_COLUMNS: Mapping[str, type] = (
    {"file": str, "row": int} | {
        name: int if name in steps.INTEGER_COLUMNS else float if name in steps.FLOAT_COLUMNS
        else str if name == "interrupted_by" else bool
        for name in steps.COLUMNS
    }
)  # fmt: skip


def result_row(result: Result, file: str, sha256: str) -> dict[str, Any]:
    """Return a result as a row of RESULT_COLUMNS. `usable` says that it may be compared: it ended, without a profiler.

    `model` and `gpu` are the names that all spellings of a model and of a GPU share.
    """
    device, reported = result.gpu_info.device_name, result.performance_metrics.reported
    gpu = catalogue.find_gpu_of(result.gpu_info)
    row: dict[str, Any] = {}
    for section in _SECTIONS:
        record = getattr(result, section)
        row |= record.model_dump(mode="json") if record is not None else {}
    row |= {f"reported_{name}": value for name, value in reported.model_dump(mode="json").items()}
    row |= {
        "file": file, "sha256": sha256, "timestamp": result.timestamp, "platform": result.platform,
        "engine": result.provenance.engine, "model": names.key(result.model.name) if result.model.name else None,
        "preset": result.model.preset, "parameters": result.model.parameters,
        "gpu": gpu.name if gpu else short_device(device) if device else None, "methodology": result.methodology,
        "runs": len(result.runs), "complete": result.complete,
        "usable": result.is_usable and not result.provenance.profiled, "profiled": bool(result.provenance.profiled),
        "warnings": len(result.warnings),
    }  # fmt: skip
    return {name: row.get(name) for name in RESULT_COLUMNS}


def _says(column: str, value: Any, wanted: str) -> bool:
    """Return True if a cell has the value that a user typed, in any spelling of a model or a GPU: H100 is an H100 SXM.

    >>> _says("gpu", "H100 SXM", "h100"), _says("model", "llama3.1-70b", "Llama-3.1-70B"), _says("gpu", "A100X", "A100")
    (True, True, False)
    """
    if column == "gpu" and value is not None:
        known = {catalogue.typed_gpu(wanted), *(gpu.name for gpu in catalogue.variants(wanted))}
        return value in known or is_said(value, wanted)
    return is_said(value, names.key(wanted) if column == "model" else wanted)


def rows_chosen(rows: pd.DataFrame, conditions: Sequence[str]) -> pd.DataFrame:
    """Return the rows for which every condition holds. Raises UsageError for a bad condition, or where none is left."""
    return filtered(rows, conditions, says=_says)


def metric_named(name: str) -> Definition:
    """Return the figure that results are ordered by. Raises UsageError for one without a better direction."""
    if name not in RANKED_METRICS:
        raise UsageError(f"--metric {name}: must be one of {', '.join(RANKED_METRICS)}")
    return RANKED_METRICS[name]


def rows_in_order(rows: pd.DataFrame, keys: Sequence[str], metric: Definition) -> pd.DataFrame:
    """Return the rows by the typed keys ("-runs": largest first), else by model and GPU, the best of each first.

    An unmeasured value comes last. Raises UsageError for a key that is no column.
    """
    typed = [(key.removeprefix("-"), not key.startswith("-")) for key in keys]
    for name, _ in typed:
        column_named(name, rows, flag="--sort")
    usual = [*((name, True) for name in GROUP if name in rows), (metric.name, metric.better == "lower")]
    found = typed or [(name, ascending) for name, ascending in usual if name in rows]
    if not found:
        return rows
    names_of, ascending = zip(*found, strict=True)
    return rows.sort_values(list(names_of), ascending=list(ascending), na_position="last", kind="stable")


def best_of_groups(rows: pd.DataFrame, group: Sequence[str], metric: Definition) -> pd.DataFrame:
    """Return the usable result of each group with the best metric; a group without one has none.

    Raises UsageError for a column that is none.
    """
    for name in group:
        column_named(name, rows, flag="--group")
    measured = rows[rows["usable"].fillna(False) & rows[metric.name].notna()]
    ordered = measured.sort_values(metric.name, ascending=metric.better == "lower", kind="stable")
    return ordered.groupby(list(group), dropna=False, sort=False).head(1)


def grouped(rows: pd.DataFrame, group: Sequence[str], metric: Definition) -> pd.DataFrame:
    """Return a row for each group: its columns, results, measured ones, and lowest, median and highest metric.

    Only usable results are measured. Raises UsageError for a column that is none.
    """
    for name in group:
        column_named(name, rows, flag="--group")
    counted = rows.assign(_measured=rows[metric.name].where(rows["usable"].fillna(False)))
    return counted.groupby(list(group), dropna=False, sort=True).agg(
        results=("file", "size"), measured=("_measured", "count"), lowest=("_measured", "min"),
        median=("_measured", "median"), highest=("_measured", "max"),
    ).reset_index()  # fmt: skip


def missing_of_plan(rows: pd.DataFrame, planned: str) -> list[dict[str, str]]:
    """Return the combinations of a planned matrix that no usable result has: "model=llama,qwen gpu=H100,MI300X".

    Raises UsageError for a text that is none, a column that no result has, or more than MOST_PLANNED combinations.
    """
    axes = dict(_axes(planned))
    for name in axes:
        column_named(name, rows, flag="--expect")
    if not axes or (size := math.prod(map(len, axes.values()))) > MOST_PLANNED:
        why = f"{count(size)} combinations, more than {count(MOST_PLANNED)}" if axes else "nothing is planned"
        raise UsageError(f"--expect {planned!r}: {why}")
    usable = rows[rows["usable"].fillna(False)]
    present = {
        (name, wanted): {place for place, value in enumerate(plain(usable[name])) if _says(name, value, wanted)}
        for name, values in axes.items()
        for wanted in values
    }
    return [
        dict(zip(axes, wanted, strict=True))
        for wanted in itertools.product(*axes.values())
        if not set.intersection(*(present[pair] for pair in zip(axes, wanted, strict=True)))
    ]


def _axes(planned: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each column of a planned matrix with its values; a value with spaces is quoted, as in a shell."""
    try:
        words = shlex.split(planned)
    except ValueError as error:
        raise UsageError(f"--expect {planned!r}: {error}") from None
    seen = set[str]()
    for word in words:
        name, equals, values = word.partition("=")
        found = list(dict.fromkeys(value.strip() for value in values.split(",")))
        if not equals or not name or not all(found) or name in seen:
            raise UsageError(f'--expect {planned!r}: write it like "model=llama,qwen gpu=H100,MI300X"')
        seen.add(name)
        yield name, found
