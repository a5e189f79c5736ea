"""The table of log formats, from data/formats.toml.

The reader of a format is imported when the first log of that format is met.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any

from tensorprimat.core.errors import UsageError
from tensorprimat.core.quantities import alternatives
from tensorprimat.facts import data_rows
from tensorprimat.logs import files
from tensorprimat.logs.dialects import DIALECTS, Dialect
from tensorprimat.logs.format import Format, Sample
from tensorprimat.logs.text import HEAD_BYTES, Log, window_of, without_controls
from tensorprimat.system.line_kinds import kinds_of, occurs_in


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
    stated["samples"] = tuple(Sample(**one) for one in table.get("samples", ()))
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
        samples=dialect.samples,
    )


def _bytes(texts: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(text.encode() for text in texts)


IN_BYTES = ("needles", "starts", "settings", "ends")
FORMATS: tuple[Format, ...] = tuple(
    format
    for name, table in data_rows.read_data("formats").items()
    for format in (map(_of_dialect, DIALECTS) if name == "dialects" else (_format(name, table),))
)


TABLE_BYTES = 2**14  # of the beginning of a table of numbers


FEWEST_ROWS = 3  # that a format needs for others to yield to it, because its first row never counts


_NEEDLES = dict.fromkeys(needle for format in FORMATS for needle in format.needles)
"""The needles of all formats, each once: formats share some."""


@dataclass(frozen=True, kw_only=True)
class Detection:
    """The format of a log, and the others that it might have."""

    format: Format
    rows: int
    """Rows found in the part of the log that was examined."""
    others: tuple[tuple[Format, int], ...] = ()
    """Formats that found rows, too: as many at most, or more if they yield to this one."""


def detect_format(log: Log) -> Detection | None:
    """Return the format that finds most rows in the first block of the log in which any format finds one.

    A format that yields to another one ranks last, unless the other finds fewer than FEWEST_ROWS. None where no format
    recognises anything in the whole file. Raises InputError for a file that cannot be read.
    """
    if log.is_folder or log.is_binary:
        return _best(log, [format for format in FORMATS if not format.last_resort])
    number = 1
    for block in files.blocks(log.path, HEAD_BYTES):
        present = _present(without_controls(block))
        likely = [format for format in FORMATS if not present.isdisjoint(format.needles)]
        if likely and (found := _best(Log(log.path, log.called, window_of(number, block)), likely)):
            return found
        number += files.count_line_ends(block)
    return _best(log, [format for format in FORMATS if format.last_resort])


def _present(block: bytes) -> set[bytes]:
    """Return the needles (`Format.needles`) that a block contains.

    Of lines that differ in digits alone only one is searched: a search for all needles in a whole block takes longer
    than reading it. A needle with a line break is searched only at the top of the file: tables of numbers begin there.
    """
    kinds, top = kinds_of(block), block[:TABLE_BYTES]
    return {needle for needle in _NEEDLES if (needle in top if b"\n" in needle else occurs_in(needle, kinds))}


def _best(log: Log, formats: Sequence[Format]) -> Detection | None:
    counts = [(format, rows) for format in formats if (rows := format.detect(log))]
    if not counts:
        return None
    enough = {format.name for format, rows in counts if rows >= FEWEST_ROWS}
    counts.sort(key=lambda pair: (not enough.isdisjoint(pair[0].yields_to), -pair[1]))
    return Detection(format=counts[0][0], rows=counts[0][1], others=tuple(counts[1:]))


def format_named(name: str) -> Format:
    """Return a format by its name. Raises UsageError for a name that is not in the table."""
    by_name = {format.name: format for format in FORMATS}
    if name in by_name:
        return by_name[name]
    near = get_close_matches(name.casefold(), by_name, n=3, cutoff=0.7)
    nearest = f"; did you mean {alternatives(near)}?" if near else ";"
    raise UsageError(
        f"--format {name}: no such format{nearest} tprimat extract --formats lists all {len(by_name)} with their rows"
    )
