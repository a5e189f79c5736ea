"""`Table`, the one form in which every report shows figures, and the ways to build one.

A table is data: console, Markdown, HTML and CSV each render the same object. Texts are as they came (untrusted); the
renderers make them harmless.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorprimat.core.quantities import UNMEASURED
from tensorprimat.system.safe_text import csv_cell

TableValue = float | int | str | None


@dataclass(frozen=True, kw_only=True)
class TableCell:
    """One place of a table: its text, the value to sort by, and its source."""

    text: str
    value: TableValue = None
    """Unrounded, for sorting and CSV; None where unmeasured."""
    source: str | None = None
    """Origin of a figure as text; shown on demand."""
    terms: tuple[str, ...] = ()
    """Formula of the figure and the formula with its numbers, a line each; shown with the source."""


TableRow = Mapping[str, TableCell | str | None]
"""Heading → the cell, or its words; None where nothing is known."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column and its heading."""

    title: str
    numeric: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells under columns; `key` names it in CSV and in links."""

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[TableCell, ...], ...]
    note: str | None = None
    remarks: tuple[str, ...] = ()
    """Sentences listed below the table."""
    sortable: bool = True
    """True if the rows are of one kind, so that they can be sorted."""


UNMEASURED_CELL = TableCell(text=UNMEASURED)


def text_cell(value: str | None) -> TableCell:
    """Return a cell of words."""
    return UNMEASURED_CELL if value is None else TableCell(text=value, value=value)


def figure_cell(
    value: float | None,
    form: Callable[[float | None], str],
    source: str | None = None,
    terms: tuple[str, ...] = (),
) -> TableCell:
    """Return a cell of one number; an unmeasured one has no source."""
    if value is None:
        return TableCell(text=form(value))
    return TableCell(text=form(value), value=value, source=source, terms=terms)


def headed(titles: Iterable[str], *, words: Collection[str] = ()) -> tuple[Column, ...]:
    """Return a column for each title. words: titles of the columns that contain no numbers."""
    return tuple(Column(title=title, numeric=title not in words) for title in titles)


def table_of(
    key: str,
    title: str,
    rows: Sequence[TableRow],
    *,
    words: Collection[str] = (),
    note: str | None = None,
    remarks: tuple[str, ...] = (),
) -> Table:
    """Return a table. rows: all with the same headings; words: as in `headed`."""
    cells = [tuple(cell if isinstance(cell, TableCell) else text_cell(cell) for cell in row.values()) for row in rows]
    columns = headed(rows[0] if rows else (), words=words)
    return Table(key=key, title=title, columns=columns, rows=tuple(cells), note=note, remarks=remarks)


def csv_of(titles: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a file for spreadsheets: numbers unrounded, None empty, no text that would run as a formula."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for row in (titles, *rows):
        writer.writerow([csv_cell(value) if isinstance(value, str) else value for value in row])
    return buffer.getvalue()
