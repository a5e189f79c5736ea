"""Checks of the rows of the tables in tensorprimat/data; a wrong value is refused by file, row and field."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from tensorprimat.core.errors import InputError
from tensorprimat.core.records import first_fault

_Kind = TypeVar("_Kind")


class WrongRowError(Exception):
    """A fault of one row, without the place of the row."""


def checked_rows(
    document: Mapping[str, Any], table: str, file: str, make: Callable[[dict[str, Any]], _Kind]
) -> tuple[_Kind, ...]:
    """Return every row of a table as a record. make: returns the record of a row, or raises WrongRowError.

    Raises InputError that names file, row and fault.
    """
    path, rows, made = f"tensorprimat/data/{file}.toml", document.get(table), []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{table}: must be a list of tables, [[{table}]]", path=path)
    for number, row in enumerate(rows, start=1):
        try:
            made.append(make(row))
        except WrongRowError as error:
            named = next((f" ({row[key]})" for key in ("name", "title", "gpu", "model") if row.get(key)), "")
            raise InputError(f"{table} {number}{named}: {error}", path=path) from error
    return tuple(made)


def record_of(kind: type[_Kind], values: Mapping[str, Any], *, extra: bool = False) -> _Kind:
    """Return a dataclass of these values. extra: values without a field are left out.

    Raises WrongRowError that names the field, for a value of a wrong type or out of range, an unknown field, and a
    missing one.
    """
    known = {one.name: one for one in fields(kind)}  # type: ignore[arg-type]  # every caller hands over a dataclass
    checks = _adapters(kind)  # type: ignore[arg-type]  # a class is hashable
    if wrong := [] if extra else [name for name in values if name not in known]:
        raise WrongRowError(f"{wrong[0]}: no such field; there are {', '.join(known)}")
    for name, one in known.items():
        if name in values:
            try:
                checks[name].validate_python(values[name], strict=True)
            except ValidationError as error:
                raise WrongRowError(f"{name}: {first_fault(error)}, not {values[name]!r}") from error
        elif one.default is MISSING and one.default_factory is MISSING:
            raise WrongRowError(f"{name}: is missing")
    return kind(**{name: value for name, value in values.items() if name in known})


@cache
def _adapters(kind: type) -> Mapping[str, TypeAdapter[Any]]:
    return {name: TypeAdapter(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}


def tupled(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return a row with the lists of these fields as tuples; what is no list stays, for `record_of` to refuse."""
    return {**row, **{name: tuple(row[name]) for name in names if isinstance(row.get(name), list)}}


def table_in(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a table within a row, empty if there is none. Raises WrongRowError where something else has its name."""
    table = row.get(name, {})
    if not isinstance(table, dict):
        raise WrongRowError(f"{name}: must be a table, not {table!r}")
    return table


def read_table(file: str) -> dict[str, Any]:
    """Return the document of data/FILE.toml. Raises InputError for one that is not TOML."""
    try:
        return read_data(file)
    except ValueError as error:  # tomllib's own error, and that of bytes that are not UTF-8
        raise InputError(f"not TOML: {error}", path=f"tensorprimat/data/{file}.toml") from error


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]  # only there before 3.11


def read_data(name: str) -> dict[str, Any]:
    """Return the document of data/NAME.toml."""
    text = (files("tensorprimat") / "data" / f"{name}.toml").read_text("utf-8")
    document: dict[str, Any] = tomllib.loads(text)
    return document
