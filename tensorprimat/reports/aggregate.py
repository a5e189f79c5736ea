"""A folder of cells as a document: the complete table, the same by size and by context, pass against pass, pivots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tensorprimat.analysis.aggregate import (
    LEAST_POINTS,
    PassPair,
    Pivot,
    SizeScaling,
    by_value,
    pass_pairs,
    with_distinct_labels,
)
from tensorprimat.core import quantities
from tensorprimat.core.units import TERA
from tensorprimat.reports import markdown
from tensorprimat.reports.micro_tables import milliseconds, one_decimal, two_decimals
from tensorprimat.reports.tables import Column, Table, TableCell, table_of
from tensorprimat.storage.cell_rows import is_figure, plain
from tensorprimat.system.safe_text import markdown as safe

if TYPE_CHECKING:
    import pandas as pd

TITLES = {
    "model_size": "Model",
    "d_model": "Width",
    "num_layers": "Layers",
    "num_heads": "Heads",
    "num_parameters": "Parameters",
    "context_length": "Context",
    "batch_size": "Batch",
    "precision": "Precision",
    "autocast": "Autocast",
    "compile": "Compiled",
    "attention": "Attention",
    "vocab": "Vocabulary",
    "device_name": "Device",
    "pass": "Pass",
    "forward_only": "Forward only",
    "mean_time_ms": "Mean, ms",
    "std_time_ms": "Std, ms",
    "cv_percent": "CV, %",
    "median_time_ms": "Median, ms",
    "forward_time_ms": "Forward, ms",
    "backward_time_ms": "Backward, ms",
    "backward_std_ms": "Backward std, ms",
    "backward_cv_percent": "Backward CV, %",
    "optimizer_time_ms": "Optimizer, ms",
    "launch_time_ms": "Launch, ms",
    "backward_forward_ratio": "Backward / forward",
    "tokens_per_second": "Tokens/s",
    "flops_per_second": "Model TFLOP/s",
    "mfu": "MFU",
    "peak_memory_gb": "Peak memory",
    "fit_batch_size": "Largest batch",
    "fit_context_length": "Largest context",
}
"""The columns of the complete table, and their headings; a column that no cell fills is left out."""
MOST_TABLES = 100  # of one model or context each; the first table contains the rows of all
_LABELS = {"model_size", "precision", "autocast", "compile", "attention", "device_name", "pass", "forward_only"}
ONLY_WHERE_THEY_DIFFER = {"autocast", "compile", "attention", "vocab", "device_name"}
_FORMS: dict[str, quantities.Form] = {
    "num_parameters": quantities.count,
    "flops_per_second": lambda value: quantities.rate(None if value is None else value / TERA),
    "mfu": quantities.percent,
    "peak_memory_gb": quantities.gigabytes,
    "cv_percent": one_decimal,
    "backward_cv_percent": one_decimal,
    "backward_forward_ratio": two_decimals,
}


def shown(key: str, value: Any) -> str:
    """Return one value of a column as a reader sees it."""
    if value is None:
        return quantities.UNMEASURED
    if not is_figure(value):
        return quantities.shown_value(value)
    form = _FORMS.get(key) or (milliseconds if key.endswith("_ms") else None)
    if form is None:
        return quantities.count(value) if isinstance(value, int) else quantities.rate(value)
    return form(value)


@lru_cache(maxsize=2**18, typed=True)  # the tables by model and by context repeat the cells of the first
def _cell(key: str, value: Any) -> TableCell:
    return TableCell(text=shown(key, value), value=value if value is None or is_figure(value) else str(value))


def _status(status: Any, *, is_timed: bool) -> str:
    """Return the outcome of a cell in a word; cells of other tools have no status, and their time tells it."""
    if status is None:
        return "measured" if is_timed else "not measured"
    return {"ok": "measured", "oom": "OOM"}.get(str(status), "failed")


def all_cells_table(cells: pd.DataFrame, *, added: Sequence[str] = (), title: str = "All cells") -> Table:
    """Return one row per cell. added: columns that the user added."""
    filled = cells.columns[cells.notna().any()]
    keys = [
        key
        for key in TITLES
        if key in filled and (key not in ONLY_WHERE_THEY_DIFFER or cells[key].nunique(dropna=False) > 1)
    ]
    if "pass" in keys and cells["pass"].notna().all() and "forward_only" in keys:
        keys.remove("forward_only")  # the pass implies it
    keys += [key for key in added if key not in keys]
    columns = [Column(title=TITLES.get(key, key), numeric=key not in _LABELS) for key in keys]
    texts = [[_cell(key, value) for value in plain(cells[key])] for key in keys]
    if "status" in filled and cells["status"].ne("ok").any():
        columns.append(Column(title="Status"))
        rows = plain(cells[["status", "mean_time_ms"]])
        texts.append([TableCell(text=_status(status, is_timed=time is not None)) for status, time in rows])
    return Table(key="all", title=title, columns=tuple(columns), rows=tuple(zip(*texts, strict=True)))


def pass_table(pairs: Sequence[PassPair]) -> Table:
    """Return the table of forward only against forward and backward."""
    rows = [
        {
            **{
                TITLES[key]: _cell(key, pair.row.get(key))
                for key in ("model_size", "context_length", "batch_size", "precision")
            },
            "Forward, ms": _time(pair.forward_ms),
            "Forward + backward, ms": _time(pair.forward_backward_ms),
            "Backward, ms": _time(pair.backward_ms),
            "Forward + backward / forward": TableCell(text=two_decimals(pair.ratio), value=pair.ratio),
            "Backward std, ms": _time(pair.backward_std_ms),
            "Backward CV, %": _cell("backward_cv_percent", pair.backward_cv_percent),
        }
        for pair in pairs
    ]
    title = "Forward only against forward and backward"
    note = "; ".join(dict.fromkeys(pair.method for pair in pairs)) + "."
    return table_of("passes", title, rows, words=("Model", "Precision"), note=note)


def _time(value: float | None) -> TableCell:
    return TableCell(text=milliseconds(value), value=value)


def pivot_table(content: Pivot) -> Table:
    """Return the table of a column's means by two other columns."""
    rows, columns = content.means.index, content.means.columns
    note = f"Means of up to {content.most_cells} cells that differ in other columns; use --filter to select one kind."
    return Table(
        key="pivot",
        title=f"{content.values} by {rows.name} and {columns.name}"
        + (f", {content.pass_name}" if content.pass_name else ""),
        columns=(
            Column(title=f"{rows.name} / {columns.name}"),
            *(Column(title=shown(columns.name, value), numeric=True) for value in columns),
        ),
        rows=tuple(
            (TableCell(text=shown(rows.name, value)), *(_cell(content.values, mean) for mean in means))
            for value, means in zip(rows, plain(content.means), strict=True)
        ),
        note=note if content.most_cells > 1 else None,
    )


def scaling_table(found: Sequence[SizeScaling]) -> Table:
    """Return the table of the fitted exponents."""
    rows: list[dict[str, TableCell | str | None]] = [
        {
            "Axis": scaling.axis,
            "Cells": scaling.label,
            "Points": TableCell(text=str(len(scaling.points)), value=len(scaling.points)),
            "Exponent": TableCell(text=two_decimals(scaling.exponent), value=scaling.exponent),
        }
        for scaling in found
    ]
    note = (
        f"Time grows with this power of the axis (least squares of the logarithms); a fit needs {LEAST_POINTS} points."
    )
    return table_of("scaling", "Scaling of time", rows, words=("Axis", "Cells"), note=note)


def aggregate_tables(
    cells: pd.DataFrame, *, added: Sequence[str], pivots: Sequence[Pivot], fits: Sequence[SizeScaling]
) -> list[Table]:
    """Return every table of the document, in order."""
    cells = with_distinct_labels(cells)
    of_all, left_out = all_cells_table(cells, added=added), []
    found = [of_all, *map(pivot_table, pivots)]
    for key, name in (("model_size", "Model"), ("context_length", "Context")):
        values, places = by_value(cells, key) if key in cells else ([], None)
        if len(values) > MOST_TABLES:
            left_out.append(
                f"{quantities.count(len(values))} values of {key} are more than {MOST_TABLES}, so none has a table "
                "of its own; --filter selects some."
            )
        elif len(values) > 1:
            found += [
                all_cells_table(group, added=added, title=f"{name} {shown(key, values[place])}")
                for place, group in cells.groupby(places)
            ]
    if pairs := pass_pairs(cells):
        found.append(pass_table(pairs))
    if fits:
        found.append(scaling_table(fits))
    if left_out:
        found[0] = replace(of_all, note=" ".join(left_out))
    return found


def render_markdown(content: Sequence[Table], *, heading: str, plot: str | None = None) -> str:
    """Return the document. plot: file name of the picture in the same folder."""
    parts = [f"# {safe(heading)}"]
    for one in content:
        parts += [f"## {safe(one.title)}", markdown.table(one)]
    if plot is not None:
        parts.append(f"![Time against parameters and context]({plot})")
    return "\n\n".join(parts) + "\n"
