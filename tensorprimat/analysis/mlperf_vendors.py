"""Rounds of MLPerf Training over time, by vendor: the fastest entry of each vendor's GPUs in every round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorprimat.analysis.mlperf_compare import version
from tensorprimat.analysis.mlperf_score import Scored
from tensorprimat.core.devices import platform_of
from tensorprimat.core.mlperf_library import Entry

VENDORS = {"AMD": "amd", "NVIDIA": "nvd"}
"""Name on the command line → platform of its GPUs."""


@dataclass(frozen=True, kw_only=True)
class VendorRound:
    """The fastest entry of a vendor in one round, on one benchmark and number of GPUs."""

    vendor: str
    scored: Scored
    minutes: float
    over_before: float | None
    """Its time over that of the round before in which the vendor has an entry; None in the first."""


def vendor_named(name: str) -> str | None:
    """Return the vendor that a name means, None for another name.

    >>> vendor_named("amd"), vendor_named("B200")
    ('AMD', None)
    """
    return next((vendor for vendor in VENDORS if vendor.casefold() == name.strip().casefold()), None)


def fastest_by_round(entries: Sequence[Entry], vendors: Sequence[str]) -> tuple[VendorRound, ...]:
    """Return the fastest entry of each vendor in each round, by benchmark, number of GPUs, vendor and round.

    Entries without a score and those outside the closed division are left out.
    """
    groups: dict[tuple[str, int, str], dict[str, Scored]] = {}
    for entry in entries:
        scored = Scored(entry)
        if scored.minutes is None or not entry.num_gpus or not entry.is_closed:
            continue
        platform = platform_of(entry.device_name or entry.gpu)
        for vendor in (name for name in vendors if VENDORS[name] == platform):
            rounds = groups.setdefault((entry.benchmark, entry.num_gpus, vendor), {})
            best = rounds.get(entry.round)
            if best is None or best.minutes is None or scored.minutes < best.minutes:
                rounds[entry.round] = scored
    found = []
    for (_, _, vendor), rounds in sorted(groups.items()):
        before: float | None = None
        for name in sorted(rounds, key=version):
            minutes = rounds[name].minutes or 0.0
            over = None if before is None else minutes / before
            found.append(VendorRound(vendor=vendor, scored=rounds[name], minutes=minutes, over_before=over))
            before = minutes
    return tuple(found)
