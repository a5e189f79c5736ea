"""Library of MLPerf Training results: facts of every run as the public rounds state them, one JSON line per entry.

The package holds one (data/mlperf_library.jsonl); `tprimat mlperf import` writes another from a round's folder. Rates
and scores are not stored: mlperf/score computes them from these facts.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from tensorprimat.core.errors import InputError
from tensorprimat.core.records import LARGEST_COUNT
from tensorprimat.system import regular

FORMAT = "tensorprimat-mlperf-library"
VERSION = 1
_LARGEST_BYTES = 2**28  # the three rounds of 2024 and 2025 take half a megabyte
DERIVED = "derived from the logs of MLPerf Training {round}; not verified by MLCommons"
"""Notice that the usage rules of MLPerf require for figures that it does not score: rate, tokens/s/GPU, MFU."""
SUCCESS = "success"
CLOSED = "closed"


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryRun:
    """One result file; None where its marks do not state the value."""

    file: str
    sha256: str
    """Empty for a file that could not be read, or was read from a copy without hashes."""
    status: str
    """`success`, another status of run_stop, or the reason why there is no time to train."""
    seconds: float | None = None
    """Seconds from run_start to run_stop."""
    training_seconds: float | None = None
    """Seconds between block_start and block_stop, or all seconds but evaluation if blocks are not marked."""
    evaluation_seconds: float | None = None
    samples: float | None = None
    """Sequences trained on until the target was reached."""

    @property
    def succeeded(self) -> bool:
        """Return True if the run reached the quality target and its marks give the time."""
        return self.status == SUCCESS and self.seconds is not None and self.seconds > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One system on one benchmark in one round; None for a fact that neither submission nor logs state."""

    round: str
    submitter: str
    system: str
    benchmark: str
    division: str | None = None
    availability: str | None = None
    gpu: str | None = None
    """The GPU's name in the catalogue, or the submission's name for a GPU that is not in it."""
    device_name: str | None = None
    """The accelerator's name as the submission writes it."""
    num_gpus: int | None = None
    num_nodes: int | None = None
    framework: str | None = None
    software: Mapping[str, str] = field(default_factory=dict)
    global_batch_size: int | None = None
    sequence_length: int | None = None
    precision: str | None = None
    parallelism: Mapping[str, int] = field(default_factory=dict)
    scaling_factor: float | None = 1.0
    """Factor in scaling.json; 1 without such a file, None if the file has no usable number."""
    runs: tuple[LibraryRun, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the entry's path: round/submitter/system/benchmark."""
        return "/".join((self.round, self.submitter, self.system, self.benchmark))

    @property
    def is_closed(self) -> bool:
        """Return True in the closed division, whose rules fix the model; entries without a division count as closed."""
        return (self.division or CLOSED).casefold() == CLOSED


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """Entries and the rounds that they come from."""

    entries: tuple[Entry, ...]
    sources: tuple[Mapping[str, Any], ...] = ()
    """One mapping for each round: round, source, licence, not_read (benchmark → number of files); where only a part of
    the round was read, `partial` says which one."""

    def incomplete(self, entries: Sequence[Entry]) -> tuple[str, ...]:
        """Return a sentence for each round of the entries of which the library contains only a part."""
        rounds = {entry.round for entry in entries}
        return tuple(
            f"{source['round']} is not complete here: {source['partial']}"
            for source in self.sources
            if source.get("partial") and source.get("round") in rounds
        )


def dump(library: Library) -> str:
    """Return the library as text: a line about the sources, then a line per entry."""
    head = {"format": FORMAT, "version": VERSION, "sources": list(library.sources)}
    return "".join(_line(line) + "\n" for line in (head, *map(_as_dict, library.entries)))


def load(path: Path | None = None) -> Library:
    """Return the library of a file, or the package's own. Raises InputError for a file that contains none."""
    if path is None:
        return bundled()
    return parse_library(regular.text_of_file(path, most_bytes=_LARGEST_BYTES), name=path)


@cache
def bundled() -> Library:
    place = files("tensorprimat") / "data" / "mlperf_library.jsonl"
    return parse_library(place.read_text("utf-8"), name="mlperf_library.jsonl")


def parse_library(text: str, *, name: Path | str) -> Library:
    """Return the library that a text contains. Raises InputError with the line that cannot be read."""
    lines = text.splitlines()
    head = _document(lines[0] if lines else "", name, 1)
    if head.get("format") != FORMAT:
        raise InputError(
            "not a library of MLPerf results", path=name, remedy="tprimat mlperf import FOLDER --output FILE writes one"
        )
    if head.get("version") != VERSION:
        raise InputError(
            f"version {head.get('version')!r} of the library, but this program reads {VERSION}",
            path=name,
            remedy="write it again with tprimat mlperf import",
        )
    sources = head.get("sources") or []
    if not (isinstance(sources, list) and all(isinstance(source, dict) for source in sources)):
        raise InputError("the sources of a library of MLPerf results are a list of objects", path=name, line=1)
    entries = []
    for number, line in enumerate(lines[1:], start=2):
        document = _document(line, name, number)
        try:
            entries.append(_entry(document))
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise InputError(
                f"not an entry of a library of MLPerf results ({type(error).__name__}: {error})", path=name, line=number
            ) from error
    return Library(entries=tuple(entries), sources=tuple(sources))


def _document(line: str, name: Path | str, number: int) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError("not JSON, so not a library of MLPerf results", path=name, line=number) from error
    if not isinstance(document, dict):
        raise InputError("not a JSON object, so not a library of MLPerf results", path=name, line=number)
    return document


def _as_dict(entry: Entry) -> dict[str, Any]:
    """Return the fields that are set; runs as columns, which are a third of the size of rows."""
    document = {name: getattr(entry, name) for name in _FIELDS if getattr(entry, name) not in (None, {}, ())}
    document["scaling_factor"] = entry.scaling_factor
    document["runs"] = {name: [getattr(run, name) for run in entry.runs] for name in _COLUMNS}
    return document


def _entry(document: dict[str, Any]) -> Entry:
    columns = document.pop("runs")
    unknown = document.keys() - set(_FIELDS)
    if unknown:
        raise ValueError(f"unknown field {min(unknown)}")
    for field_name, kinds in _KINDS.items():
        if not isinstance(document.get(field_name), (*kinds, type(None))):
            raise ValueError(f"{field_name} is {document[field_name]!r}")
    for field_name in _NUMBERS:
        number = document.get(field_name)
        in_range = number is None or number > 0 or (number == 0 and field_name != "scaling_factor")
        if isinstance(number, bool) or not in_range or (number or 0) > LARGEST_COUNT:
            raise ValueError(f"{field_name} is {number!r}")
    rows = zip(*(columns[name] for name in _COLUMNS), strict=True)
    runs = tuple(LibraryRun(**dict(zip(_COLUMNS, row, strict=True))) for row in rows)
    for run in runs:
        if not all(isinstance(text, str) for text in (run.file, run.sha256, run.status)):
            raise ValueError("file, sha256 and status of a run must be texts")
        for value in (run.seconds, run.training_seconds, run.evaluation_seconds, run.samples):
            if value is not None and not (isinstance(value, (int, float)) and 0 <= value < math.inf):
                raise ValueError(f"{value!r} is not a time or count")
    document["notes"] = tuple(document.get("notes", ()))
    return Entry(**document, runs=runs)


def _line(document: Mapping[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("round", "submitter", "system", "benchmark", "gpu", "device_name", "framework"), (str,)),
    **dict.fromkeys(("division", "availability", "precision"), (str,)),
    **dict.fromkeys(("num_gpus", "num_nodes", "global_batch_size", "sequence_length"), (int,)),
    **dict.fromkeys(("software", "parallelism"), (dict,)),
    "scaling_factor": (int, float),
    "notes": (list,),
}
_NUMBERS = ("num_gpus", "num_nodes", "global_batch_size", "sequence_length", "scaling_factor")
_FIELDS = tuple(column.name for column in dataclasses.fields(Entry) if column.name != "runs")
_COLUMNS = tuple(column.name for column in dataclasses.fields(LibraryRun))
