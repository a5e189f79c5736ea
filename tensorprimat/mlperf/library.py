"""Library of MLPerf Training results: facts of every run as the public rounds state them, one JSON line per entry.

The package holds one (data/mlperf_library.jsonl); `tprimat mlperf import` writes another from a round's folder. Rates
and scores are not stored: mlperf/score computes them from these facts. Entries are chosen by round, benchmark, GPU,
count and submitter, or by a part of their names.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, Strict, StrictStr, TypeAdapter, ValidationError, with_config

from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.core.records import LARGEST_COUNT, first_fault
from tensorprimat.facts import catalogue
from tensorprimat.system import regular

FORMAT = "tensorprimat-mlperf-library"
VERSION = 1
_LARGEST_BYTES = 2**28  # the three rounds of 2024 and 2025 take half a megabyte
SUCCESS = "success"
CLOSED = "closed"
_Count = Annotated[int, Strict(), Field(ge=0, le=LARGEST_COUNT)]
_Amount = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]


def _rows(columns: Any) -> Any:
    """Return the runs of a document, which are in columns, as one mapping each."""
    if not isinstance(columns, dict) or not all(isinstance(column, list) for column in columns.values()):
        return columns  # which pydantic refuses
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryRun:
    """One result file; None where its marks do not state the value."""

    file: StrictStr
    sha256: StrictStr
    """Empty for a file that could not be read, or was read from a copy without hashes."""
    status: StrictStr
    """`success`, another status of run_stop, or the reason why there is no time to train."""
    seconds: _Amount | None = None
    """Seconds from run_start to run_stop."""
    training_seconds: _Amount | None = None
    """Seconds between block_start and block_stop, or all seconds but evaluation if blocks are not marked."""
    evaluation_seconds: _Amount | None = None
    samples: _Amount | None = None
    """Sequences trained on until the target was reached."""

    @property
    def succeeded(self) -> bool:
        """Return True if the run reached the quality target and its marks give the time."""
        return self.status == SUCCESS and self.seconds is not None and self.seconds > 0


@with_config(ConfigDict(extra="forbid"))
@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One system on one benchmark in one round; None for a fact that neither submission nor logs state."""

    round: StrictStr
    submitter: StrictStr
    system: StrictStr
    benchmark: StrictStr
    division: StrictStr | None = None
    availability: StrictStr | None = None
    gpu: StrictStr | None = None
    """The GPU's name in the catalogue, or the submission's name for a GPU that is not in it."""
    device_name: StrictStr | None = None
    """The accelerator's name as the submission writes it."""
    num_gpus: _Count | None = None
    num_nodes: _Count | None = None
    framework: StrictStr | None = None
    software: Mapping[str, str] = field(default_factory=dict)
    global_batch_size: _Count | None = None
    sequence_length: _Count | None = None
    precision: StrictStr | None = None
    parallelism: Mapping[str, int] = field(default_factory=dict)
    scaling_factor: Annotated[_Amount, Field(gt=0, le=LARGEST_COUNT)] | None = 1.0
    """Factor in scaling.json; 1 without such a file, None if the file has no usable number."""
    runs: Annotated[tuple[LibraryRun, ...], BeforeValidator(_rows)] = ()
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


def derived_from(rounds: Iterable[str]) -> str:
    """Return the notice that MLPerf requires for figures that it does not score: rate, tokens/s/GPU, MFU."""
    return f"derived from the logs of MLPerf Training {', '.join(sorted(set(rounds)))}; not verified by MLCommons"


def dump(library: Library) -> str:
    """Return the library as text: a line about the sources, then a line per entry."""
    head = {"format": FORMAT, "version": VERSION, "sources": list(library.sources)}
    lines = (head, *map(_as_dict, library.entries))
    return "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)


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
        try:
            entries.append(_ENTRY.validate_python(_document(line, name, number)))
        except ValidationError as error:
            why = first_fault(error)
            raise InputError(f"not an entry of a library of MLPerf results ({why})", path=name, line=number) from error
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


_ENTRY = TypeAdapter(Entry)
_FIELDS = tuple(column.name for column in dataclasses.fields(Entry) if column.name != "runs")
_COLUMNS = tuple(column.name for column in dataclasses.fields(LibraryRun))


@dataclass(frozen=True, kw_only=True)
class EntryChoice:
    """Conditions on entries; None for no condition."""

    round: str | None = None
    benchmark: str | None = None
    gpu: str | None = None
    submitter: str | None = None
    num_gpus: int | None = None


def choose_entries(library: Library, choice: EntryChoice) -> tuple[Entry, ...]:
    """Return the entries that meet every condition. Raises UsageError naming a flag without a match."""
    left = library.entries
    for name, value in vars(choice).items():
        if value is None:
            continue
        wanted = f"v{value.removeprefix('v')}" if name == "round" else str(value)
        kept = tuple(one for one in left if str(getattr(one, name)).casefold() == wanted.casefold())
        if name == "gpu":
            kept = of_gpu(left, wanted)
        if not kept:
            there = ", ".join(map(str, sorted({getattr(entry, name) for entry in left} - {None}))) or "none"
            flag = "--gpus" if name == "num_gpus" else f"--{name}"
            raise UsageError(f"{flag} {wanted}: no entry matches; entries have {there}")
        left = kept
    return left


def of_gpu(entries: Sequence[Entry], name: str) -> tuple[Entry, ...]:
    """Return the entries of a GPU by its catalogue name, or by the first word of it (H100 for H100 SXM)."""
    meant = matching_gpus(name, {entry.gpu for entry in entries})
    return tuple(entry for entry in entries if entry.gpu in meant)


def matching_gpus(name: str, there: Collection[str | None]) -> set[str]:
    """Return those GPUs that a name means: the catalogue's name for it, else all that begin with it as a word.

    >>> sorted(matching_gpus("h100", {"H100 SXM", "H100 PCIe", "H200 SXM", None}))
    ['H100 PCIe', 'H100 SXM']
    """
    device = catalogue.find_gpu(name)
    exact = {name.casefold(), *([device.name.casefold()] if device else [])}
    known = {gpu for gpu in there if gpu}
    found = {gpu for gpu in known if gpu.casefold() in exact}
    return found or {gpu for gpu in known if gpu.casefold().split()[:1] == [name.casefold().strip()]}


def entries_named(entries: Sequence[Entry], names: Sequence[str]) -> tuple[Entry, ...]:
    """Return the entries whose names hold one of the given texts. Raises UsageError for a text that none holds."""
    found = {name: [one for one in entries if name.casefold() in one.name.casefold()] for name in names}
    if missing := next((name for name, held in found.items() if not held), None):
        raise UsageError(f"{missing}: no entry has this in its name; `tprimat mlperf list` prints all names")
    return tuple(one for one in entries if any(one in held for held in found.values()))
