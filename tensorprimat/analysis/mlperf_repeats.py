"""Entries of one round that repeat the runs of another entry, so that statistics count these runs once.

A submitter may enter the same runs twice, for example with and without measured power. Their logs differ in a line or
two, so their SHA-256 differ, but every run has the same times and samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorprimat.core.mlperf_library import Entry

_FEWEST = 2  # timed runs; one time may be equal by chance, several in milliseconds are not


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """An entry that is left out of statistics, and the entry that has its runs."""

    entry: Entry
    of: Entry

    @property
    def sentence(self) -> str:
        """Return a clause that names both entries."""
        return f"{self.entry.name} has the same runs as {self.of.name} (equal times and samples), so they count once"


def identity_of_runs(entry: Entry) -> tuple[object, ...] | None:
    """Return what identifies the runs of an entry in whatever round, or None if too few of them have a time."""
    runs = sorted((run.seconds, run.samples or 0.0, run.training_seconds or 0.0) for run in entry.runs if run.seconds)
    return (entry.submitter, entry.benchmark, tuple(runs)) if len(runs) >= _FEWEST else None


def distinct_entries(entries: Sequence[Entry]) -> tuple[tuple[Entry, ...], tuple[Repeat, ...]]:
    """Return the entries without those that repeat another of their round, and the repeats.

    The entry with the shortest name of its system is kept.
    """
    kept: dict[tuple[object, ...], Entry] = {}
    for entry in sorted(entries, key=lambda one: (len(one.system), one.name)):
        if (runs := identity_of_runs(entry)) is not None:
            kept.setdefault((entry.round, runs), entry)
    repeats = [
        Repeat(entry=entry, of=of)
        for entry in entries
        if (runs := identity_of_runs(entry)) is not None and (of := kept[entry.round, runs]) is not entry
    ]
    left_out = {id(one.entry) for one in repeats}
    return tuple(entry for entry in entries if id(entry) not in left_out), tuple(repeats)
