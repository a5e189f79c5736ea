"""Tables as spreadsheets write them, turned into a CSV with commas between cells and with decimal points.

Where numbers have decimal commas, columns are separated by semicolons or tabs, and points may separate thousands:
`20;0,512;15.145`. The numbers of the table show which of the two a mark is: 0,512 and 1,5 and 15.145,3 have a decimal
comma. A number such as 15.145 may be either, so a table without any other number with a mark is refused. A table
separated by commas has decimal points unless a cell in quotes shows otherwise.

A line stays one line, so that line numbers are those of the file.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tensorprimat.core.errors import InputError
from tensorprimat.logs import metric_names

_SEPARATORS = (";", "\t", ",")
_STATES_SEPARATOR = re.compile(r"\"?sep=(?P<separator>[;\t,])\"?", re.IGNORECASE)
"""The first line of some tables, for spreadsheets; it is no row."""
_BLANK = " '’\u00a0\u202f\ufffd"
"""Characters between the thousands of a number; U+FFFD is left of a hard space in another encoding than UTF-8."""
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)(?P<digits>\d{{1,3}}(?:[{_BLANK}]\d{{3}})+(?:[.,]\d*)?|[\d.,]+)(?P<exponent>[eE][+-]?\d{{1,3}})?"
)
_OTHER_CELLS = re.compile(rf"\"|\d[{_BLANK}]\d{{3}}(?!\d)")
"""Cells that a plain CSV may have, but that need a look."""
_WITHOUT_BLANKS = str.maketrans("", "", _BLANK)
_THOUSANDS = {mark: re.compile(rf"\d{{1,3}}(?:\{mark}\d{{3}})+") for mark in ".,"}
_OTHER = {".": ",", ",": "."}
_SPELLED = {".": "decimal points", ",": "decimal commas"}
_EITHER = "either"
_NEEDS_CELLS = re.compile(rb"[\"' \x80-\xff]")
"""Bytes of quotes, and of numbers whose thousands are separated by blanks."""
_CELLS_OF_THOUSANDS = {
    mark: re.compile(rf"(?<![^;\t\n+-])[1-9]\d{{0,2}}(?:\{mark}\d{{3}})+(?=[;\t\r\n]|\{other}\d|\Z)".encode())
    for mark, other in _OTHER.items()
}
"""Numbers with this mark between their thousands."""
_TO_POINTS = {separator: bytes.maketrans(separator.encode() + b",", b",.") for separator in ";\t"}
_ROW_OF_NUMBERS = re.compile(r"[\d.eE+-]+(?:,[\d.eE+-]+)*")
_FEWEST_ROWS = 3
_SHOWN_CHARACTERS = 40
_LONGEST_HEADER = 2**16  # bytes


@dataclass(frozen=True)
class Spreadsheet:
    """The marks of a table that is no plain CSV."""

    names: tuple[str, ...]
    """Names of its columns."""
    separator: str
    decimal: str | None = None
    """The mark before decimals, a point or a comma; None if no number at the top of the table shows it."""
    refusal: str | None = None
    """Reason why the table cannot be read."""

    def is_read(self, place: int) -> bool:
        """Return True if the numbers of a column become figures."""
        if place >= len(self.names):
            return False
        name = self.names[place]
        return metric_names.is_known(metric_names.without_run(name)) or name in (
            *metric_names.MADENGINE,
            *metric_names.TOTALS,
            *metric_names.LIGHTNING,
        )


def spreadsheet_in(head: bytes) -> Spreadsheet | None:
    """Return the marks of the table that begins with these bytes; None for a plain CSV and for any other text."""
    first, *others = head.removeprefix(codecs.BOM_UTF8).lstrip().split(b"\n", 2)
    stated = _STATES_SEPARATOR.fullmatch(_text(first))
    header = _text(others[0] if stated and others else first)
    for separator in stated["separator"] if stated else _SEPARATORS:
        names = tuple(name.strip() for name in _cells(header, separator)) if separator in header else ()
        if metric_names.are_of_table(names):
            table = Spreadsheet(names, separator)
            *rows, _ = b"\n".join(others[bool(stated) :]).decode("utf-8", "replace").split("\n")
            rows = [row.rstrip("\r") for row in rows if row.strip()]
            is_plain = separator == "," and not stated and not any(map(_OTHER_CELLS.search, rows))
            return _of_wide_rows(table, rows) if is_plain else _of_cells(table, rows)
    return None


def _text(line: bytes) -> str:
    return line[:_LONGEST_HEADER].decode("utf-8", "replace").rstrip("\r")


def _of_wide_rows(table: Spreadsheet, rows: Sequence[str]) -> Spreadsheet | None:
    """Return a table without quotes to refuse if every row has more numbers than the header has names."""
    width = len(table.names)
    if len(rows) < _FEWEST_ROWS or not all(row.count(",") >= width and _ROW_OF_NUMBERS.fullmatch(row) for row in rows):
        return None
    return replace(
        table,
        refusal=f"the header has {width} cells, the row {rows[0][:_SHOWN_CHARACTERS]} has {rows[0].count(',') + 1}, as "
        "if decimal commas and the commas between cells were mixed",
    )


def _of_cells(table: Spreadsheet, rows: Sequence[str]) -> Spreadsheet:
    """Return the table with the decimal mark that its numbers show: those that become figures, or else all others."""
    shown: dict[tuple[bool, str], tuple[int, str]] = {}
    for row in rows:
        for place, cell in enumerate(_cells(row, table.separator)):
            if mark := _mark_in(cell.strip()):
                shown.setdefault((table.is_read(place), mark), (place, cell.strip()))
    for is_read in (True, False):
        found = [mark for mark in _OTHER if (is_read, mark) in shown]
        if len(found) == len(_OTHER) and is_read:
            cells = (shown[is_read, mark] for mark in found)
            (point, with_point), (comma, with_comma) = cells
            return replace(
                table,
                refusal=f"the column {table.names[point]} has {_SPELLED['.']} ({with_point}) and the column "
                f"{table.names[comma]} {_SPELLED[',']} ({with_comma})",
            )
        if len(found) == 1:
            return replace(table, decimal=found[0])
    place, cell = shown.get((True, _EITHER), (0, ""))
    if table.separator == "," and "," not in cell:
        return replace(table, decimal=".")
    return replace(table, refusal=_undecided(table, place, cell)) if cell else table


def _undecided(table: Spreadsheet, place: int, cell: str) -> str:
    return (
        f"{cell} in the column {table.names[place]} may have decimals or a separator of thousands; no other number of "
        "the table shows which"
    )


def _mark_in(cell: str) -> str | None:
    """Return the decimal mark of a number, _EITHER for one like 15.145, and None for one without and for other text.

    >>> _mark_in("0,512"), _mark_in("15.145,3"), _mark_in("1.234.567"), _mark_in("1 024.5"), _mark_in("15.145")
    (',', ',', ',', '.', 'either')
    >>> _mark_in("15145"), _mark_in("25.11.2026"), _mark_in("1,5 GB")
    (None, None, None)
    """
    match = _NUMBER.fullmatch(cell)
    if match is None:
        return None
    digits = match["digits"].translate(_WITHOUT_BLANKS)
    marks = [character for character in digits if character in _OTHER]
    if not marks or len(digits) == len(marks):
        return None
    last, before = marks[-1], digits.rpartition(marks[-1])[0]
    if len(set(marks)) == 2:
        return last if _THOUSANDS[_OTHER[last]].fullmatch(before) else None
    are_thousands = _THOUSANDS[last].fullmatch(digits) and digits[0] != "0"
    if len(marks) > 1:
        return _OTHER[last] if are_thousands else None
    has_blanks = len(digits) < len(match["digits"])
    return _EITHER if are_thousands and not has_blanks and not match["exponent"] else last


def as_plain_csv(blocks: Iterable[bytes], table: Spreadsheet, path: Path) -> Iterator[bytes]:
    """Yield blocks of whole lines as those of a plain CSV. Raises InputError where the meaning of a number is unknown.

    path: for messages.
    """
    if table.refusal:
        raise _error(table.refusal, path)
    separator = table.separator.encode()
    for block in blocks:
        simple = None
        if table.decimal and separator != b"," and not _NEEDS_CELLS.search(block) and b"=" not in block:
            other = _OTHER[table.decimal]
            simple = _CELLS_OF_THOUSANDS[other].sub(partial(_joined, other.encode()), block)
        if simple is not None and other.encode() not in simple:
            yield (
                simple.translate(_TO_POINTS[table.separator])
                if table.decimal == ","
                else simple.replace(separator, b",")
            )
        else:
            *lines, cut = block.decode("utf-8", "replace").split("\n")
            plain = []
            for line in lines:
                line, table = _line(line, table, path)
                plain.append(line)
            yield "\n".join([*plain, _line(cut, table, path, is_cut=True)[0]]).encode()


def of_plain_csv(header: Sequence[str], rows: Sequence[str]) -> Spreadsheet:
    """Return the marks of a plain CSV by its first rows, for `plain_row` of rows further down."""
    table = Spreadsheet(tuple(name.strip() for name in header), ",")
    return replace(table, decimal=_of_cells(table, rows).decimal)


def plain_row(text: str, table: Spreadsheet, path: Path) -> tuple[str, Spreadsheet]:
    """Return a row of a plain CSV without quotes and separators of thousands in its numbers, and the table with the
    decimal mark as far as it is known now.

    Such numbers may begin below the part of a table that `spreadsheet_in` examines. Raises InputError where the meaning
    of a number is unknown. A row that ends inside quotes is returned as it is.
    """
    if not _OTHER_CELLS.search(text) or text.count('"') % 2:
        return text, table
    return _line(text, table, path)


def _joined(mark: bytes, match: re.Match[bytes]) -> bytes:
    return match[0].replace(mark, b"")


def _line(line: str, table: Spreadsheet, path: Path, *, is_cut: bool = False) -> tuple[str, Spreadsheet]:
    """Return a line as one of a plain CSV, and the table with the decimal mark as far as it is known now."""
    text = line.rstrip("\r")
    end = line[len(text) :]
    if _STATES_SEPARATOR.fullmatch(text):
        return end, table
    if table.separator == "," and table.decimal == "." and not _OTHER_CELLS.search(text):
        return line, table
    cells = [cell.strip() for cell in _cells(text, table.separator)]
    for place, cell in enumerate(cells):
        mark = _mark_in(cell)
        if mark in _OTHER and table.decimal is None and table.is_read(place):
            table = replace(table, decimal=mark)
        is_certain = table.is_read(place) and not (is_cut and cell is cells[-1])  # it may lack digits
        if mark == _EITHER and table.decimal is None and is_certain:
            raise _error(_undecided(table, place, cell), path)
        if mark in _OTHER and mark != table.decimal and is_certain and table.decimal:
            raise _error(
                f"{cell} in the column {table.names[place]} is no number with {_SPELLED[table.decimal]}, which other "
                "numbers of the table have",
                path,
            )
        cells[place] = _plain_cell(cell, table.decimal)
    return ",".join(cells) + end, table


def _plain_cell(cell: str, decimal: str | None) -> str:
    """Return a cell for a plain CSV: a number with a decimal point and without separators of thousands."""
    mark = _mark_in(cell)
    if _NUMBER.fullmatch(cell):
        cell = cell.translate(_WITHOUT_BLANKS)
    if decimal and mark in (decimal, _EITHER):
        return cell.replace(_OTHER[decimal], "").replace(decimal, ".")
    return '"' + cell.replace('"', '""') + '"' if "," in cell or '"' in cell else cell


def _cells(text: str, separator: str) -> list[str]:
    if '"' not in text:
        return text.split(separator)
    try:
        return next(csv.reader([text], delimiter=separator), [])
    except csv.Error:
        return text.split(separator)


def _error(reason: str, path: Path) -> InputError:
    return InputError(reason, path=path, remedy="export it with decimal points and without separators of thousands")
