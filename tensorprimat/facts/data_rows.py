"""Tables in tensorprimat/data and checks of their rows; a wrong value is refused by file, row and field."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from importlib.resources import files
from inspect import signature
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from tensorprimat.core.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]  # only there before 3.11

_Kind = TypeVar("_Kind")


@cache
def read_data(name: str) -> dict[str, Any]:
    """Return the document of data/NAME.toml, which nobody changes. Raises InputError for one that is not TOML."""
    try:
        document: dict[str, Any] = tomllib.loads((files("tensorprimat") / "data" / f"{name}.toml").read_text("utf-8"))
    except ValueError as error:  # tomllib's own error, and that of bytes that are not UTF-8
        raise InputError(f"not TOML: {error}", path=f"tensorprimat/data/{name}.toml") from error
    return document


def checked_rows(
    file: str, table: str, kind: type[_Kind], *, rows: Any = None, extra: bool = False
) -> tuple[_Kind, ...]:
    """Return every row of a table of data/FILE.toml as a record of this kind.

    rows: those to check instead of the table's own. extra: values without a field are left out. Cells that name one of
    the document's [sources] get its title, address and date. Raises InputError that names file, row, field and fault,
    for a value of a wrong type or out of range, an unknown field, and a missing one.
    """
    document, path = read_data(file), f"tensorprimat/data/{file}.toml"
    rows = document.get(table) if rows is None else rows
    known = list(signature(kind).parameters)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{table}: must be a list of tables, [[{table}]]", path=path)
    if extra:
        rows = [{name: value for name, value in row.items() if name in known} for row in rows]

    def refused(number: int, place: Iterable[object], fault: str) -> InputError:
        row = rows[number]
        name = next((f" ({row[key]})" for key in ("name", "title", "gpu", "model") if row.get(key)), "")
        where = ".".join(str(one) for one in place if one != "[key]")
        return InputError(f"{table} {number + 1}{name}: {where}: {fault}", path=path)

    stated = rows
    if "sources" in document:
        stated = [_sourced(row, document["sources"], partial(refused, number)) for number, row in enumerate(rows)]
    try:
        return _adapter(kind).validate_json(json.dumps(stated, default=str), strict=True)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        row_number, *place = first["loc"]
        fault = f"{first['msg'].removeprefix('Value error, ')}, not {first['input']!r}"
        if first["type"] == "missing":
            fault = "is missing"
        elif first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            fault = "no such field" + (f"; there are {', '.join(known)}" if len(place) == 1 else "")
        raise refused(int(row_number), place, fault) from error


def _sourced(
    cells: Mapping[str, Any],
    sources: Mapping[str, Any],
    refused: Callable[[tuple[str, ...], str], InputError],
    place: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return cells, each with title, address and date of the source that it names, also within tables of cells."""
    if "source" not in cells:
        return {
            name: _sourced(cell, sources, refused, (*place, name)) if isinstance(cell, dict) else cell
            for name, cell in cells.items()
        }
    source = sources.get(cells["source"])
    if source is None:
        raise refused(place, f"source {cells['source']!r} is none of [sources]")
    return {**cells, "source": source["title"], "url": source.get("url"), "date": source["date"]}


@cache
def _adapter(kind: type[_Kind]) -> TypeAdapter[tuple[_Kind, ...]]:
    kind.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]  # where pydantic looks for it
    return TypeAdapter(tuple[kind, ...])  # type: ignore[valid-type]
