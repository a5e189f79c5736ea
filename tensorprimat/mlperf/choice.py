"""Choice of library entries by round, benchmark, GPU, count and submitter, or by a part of their names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tensorprimat.core.errors import UsageError
from tensorprimat.facts import catalogue
from tensorprimat.mlperf.library import Entry, Library


@dataclass(frozen=True, kw_only=True)
class EntryChoice:
    """Conditions on entries; None for no condition."""

    round: str | None = None
    benchmark: str | None = None
    gpu: str | None = None
    num_gpus: int | None = None
    submitter: str | None = None


def choose_entries(library: Library, choice: EntryChoice) -> tuple[Entry, ...]:
    """Return the entries that meet every condition. Raises UsageError naming a flag without a match."""
    left = library.entries
    conditions: tuple[tuple[str, str, object], ...] = (
        ("--round", "round", choice.round and f"v{choice.round.removeprefix('v')}"),
        ("--benchmark", "benchmark", choice.benchmark),
        ("--gpu", "gpu", choice.gpu),
        ("--submitter", "submitter", choice.submitter),
        ("--gpus", "num_gpus", choice.num_gpus),
    )
    for flag, name, value in conditions:
        if value is None:
            continue
        if name == "gpu":
            kept = of_gpu(left, str(value))
        else:
            kept = tuple(entry for entry in left if _same(getattr(entry, name), value))
        if not kept:
            there = sorted({getattr(entry, name) for entry in left} - {None})
            raise UsageError(f"{flag} {value}: no entry matches; entries have {', '.join(map(str, there)) or 'none'}")
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
    for name in names:
        if not any(name.casefold() in entry.name.casefold() for entry in entries):
            raise UsageError(f"{name}: no entry has this in its name; `tprimat mlperf list` prints all names")
    parts = [name.casefold() for name in names]
    return tuple(entry for entry in entries if any(name in entry.name.casefold() for name in parts))


def _same(stated: object, chosen: object) -> bool:
    return str(stated).casefold() == str(chosen).casefold()
