"""Many results on the terminal, as a page and as JSON: the list, its groups, what a planned matrix lacks, an answer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorprimat.analysis.collection import RESULT_COLUMNS
from tensorprimat.core import quantities
from tensorprimat.core.figures import Definition
from tensorprimat.core.folders import common_folder
from tensorprimat.reports import console, harmless
from tensorprimat.reports.tables import Column, Table, TableCell
from tensorprimat.storage.cell_rows import is_figure, plain
from tensorprimat.system.safe_text import middle_cut

if TYPE_CHECKING:
    import pandas as pd

_TITLES = {
    "model": "Model", "preset": "Preset", "gpu": "GPU", "num_gpus": "GPUs", "precision": "Precision",
    "sequence_length": "Sequence", "global_batch_size": "Batch", "runs": "Runs", "timestamp": "Date",
    "usable": "Usable", "file": "File",
}  # fmt: skip
"""Columns of the list before and after its metric, and their headings; a column that no result fills is left out."""
_WHERE_THEY_DIFFER = {"preset", "usable"}
_IN_PLACE_OF_FILE = 12  # characters of a file's name that a narrow terminal shows at least
_BREAKS_BEFORE = 6  # columns: rich breaks the name of a file in a table that only just fits
_LESS_OFTEN_READ = ("Date", "Runs", "Batch", "Sequence", "Preset")
"""Columns that a narrow terminal leaves out, the first one first."""
_MOST_SHOWN = 1000  # rows of a table on the terminal or on a page; --json has all


def _cell(key: str, value: Any, metric: Definition | None) -> TableCell:
    if value is None or isinstance(value, list | dict):
        return TableCell(text=quantities.UNMEASURED if value is None else json.dumps(value, default=str))
    if metric is not None and key in (metric.name, "lowest", "median", "highest"):
        return TableCell(text=metric.form(value), value=value)
    if key == "timestamp":
        return TableCell(text=str(value)[:10], value=value)
    if not is_figure(value):
        return TableCell(text=quantities.shown_value(value), value=str(value))
    return TableCell(text=quantities.count(value) if isinstance(value, int) else quantities.rate(value), value=value)


def _table(key: str, title: str, rows: pd.DataFrame, titles: dict[str, str], metric: Definition | None) -> Table:
    values = {name: plain(rows[name].head(_MOST_SHOWN)) for name in titles}
    cells = [[_cell(name, value, metric) for value in column] for name, column in values.items()]
    columns = tuple(Column(title=titles[name], numeric=any(map(is_figure, column))) for name, column in values.items())
    more = len(rows) - _MOST_SHOWN
    note = f"{quantities.count(more)} more rows; --json has all." if more > 0 else None
    return Table(key=key, title=title, columns=columns, rows=tuple(zip(*cells, strict=True)), note=note)


def results_table(rows: pd.DataFrame, metric: Definition) -> Table:
    """Return a row per result: what ran on what, the metric, and the file."""
    titles = dict(_TITLES)
    last = {name: titles.pop(name) for name in ("runs", "timestamp", "usable", "file")}
    shown = {
        name: title
        for name, title in {**titles, metric.name: metric.title, **last}.items()
        if name == metric.name
        or (rows[name].nunique(dropna=False) > 1 if name in _WHERE_THEY_DIFFER else rows[name].notna().any())
    }
    folder = common_folder(map(Path, rows["file"]))
    title = quantities.counted(len(rows), "result") + (f" in {folder}" if folder != Path() else "")
    files = [os.path.relpath(file, folder) for file in rows["file"]]
    return _table("results", title, rows.assign(file=files), shown, metric)


def groups_table(rows: pd.DataFrame, metric: Definition) -> Table:
    """Return a row per group of results."""
    titles = {name: _TITLES.get(name, name.capitalize() if name not in RESULT_COLUMNS else name) for name in rows}
    return _table("groups", f"{metric.title} of usable results", rows, titles, metric)


def missing_table(absent: Sequence[dict[str, str]]) -> Table:
    """Return a row per combination of the planned matrix that no usable result has."""
    return Table(
        key="missing", title=f"Missing of the planned matrix: {quantities.count(len(absent))}",
        columns=tuple(Column(title=_TITLES.get(name, name)) for name in (absent[0] if absent else ())),
        rows=tuple(tuple(TableCell(text=value, value=value) for value in one.values()) for one in absent),
    )  # fmt: skip


def answer_table(rows: pd.DataFrame) -> Table:
    """Return the answer to a query, under the names of its columns."""
    return _table("answer", quantities.counted(len(rows), "row"), rows, {name: str(name) for name in rows}, None)


def print_tables(tables: Sequence[Table]) -> None:
    """Print tables in the width of the terminal; a table that does not fit loses columns, then becomes a list."""
    screen = harmless.console(highlight=False)
    for table in tables:
        screen.print(console.safe(table.title, "bold"))
        if table.rows:
            screen.print(console.fitting(table, *_narrower(table), width=screen.width - _BREAKS_BEFORE))
        if table.note:
            screen.print(console.safe(table.note, "dim"))
        screen.print()


def _narrower(table: Table) -> Iterator[Table]:
    """Yield the table of results with shorter names of files, its last column, then with ever fewer columns."""
    lengths = (40, *[24] * (len(_LESS_OFTEN_READ) + 1), _IN_PLACE_OF_FILE)
    for place, longest in enumerate(lengths if table.key == "results" else ()):
        kept = console.without_columns(table, *_LESS_OFTEN_READ[: max(0, place - 1)])
        yield replace(
            kept, rows=tuple((*row, replace(file, text=middle_cut(file.text, longest))) for *row, file in kept.rows)
        )


def list_json(**parts: Any) -> str:
    """Return the parts of a list as JSON; a table becomes a list of rows, with null where nothing was measured."""
    import pandas as pd

    plain_parts = {
        name: [dict(zip(part, row, strict=True)) for row in plain(part)] if isinstance(part, pd.DataFrame) else part
        for name, part in parts.items()
        if part is not None
    }
    return json.dumps({"kind": "list", **plain_parts}, indent=2, default=str)
