"""The table of log formats, from data/formats.toml.

The reader of a format is imported when the first log of that format is met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

from tensorprimat.core import data_files
from tensorprimat.logs.dialects import DIALECTS, Dialect
from tensorprimat.logs.format import Format


def _late(module: str, function: str) -> Callable[..., Any]:
    """Return a function of a reader that imports the reader when it is called.

    All readers together take as long to import as 20 MB of a log to read, because they compile regular expressions.
    """

    def call(*arguments: Any, **named: Any) -> Any:
        return getattr(import_module(f"tensorprimat.logs.{module}"), function)(*arguments, **named)

    return call


LEAST_OPENING = 6  # characters of a setting's text that identify it


def _format(name: str, table: Mapping[str, Any]) -> Format:
    """Return a format of data/formats.toml, whose module has `detect` and `read`, and `runs` if the table says so."""
    stated: dict[str, Any] = {
        field: _bytes(value) if field in IN_BYTES else tuple(value) if isinstance(value, list) else value
        for field, value in table.items()
    }
    module = stated.pop("module", name)
    if stated.pop("holds_runs", False):
        stated["runs"] = _late(module, "runs")
    return Format(name=name, detect=_late(module, "detect"), read=_late(module, "read"), **stated)


def _of_dialect(dialect: Dialect) -> Format:
    return Format(
        name=dialect.name,
        reads=dialect.reads,
        looks_for=dialect.looks_for,
        needles=_bytes(dialect.marks + dialect.bar_marks),
        starts=_bytes(dialect.starts),
        settings=_bytes(one.before for one in dialect.settings if len(one.before) >= LEAST_OPENING),
        together=dialect.together,
        yields_to=dialect.yields_to,
        detect=partial(_late("keyvalue", "detect"), dialect=dialect),
        read=partial(_late("keyvalue", "read"), dialect=dialect),
        opens=dialect.row if dialect.block else "",
    )


def _bytes(texts: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(text.encode() for text in texts)


IN_BYTES = ("needles", "starts", "settings", "ends")
FORMATS: tuple[Format, ...] = tuple(
    format
    for name, table in data_files.read_data("formats").items()
    for format in (map(_of_dialect, DIALECTS) if name == "dialects" else (_format(name, table),))
)
