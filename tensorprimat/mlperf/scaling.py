"""Scaling of one GPU model over the number of GPUs, and results of a GPU or a vendor over rounds, from MLPerf Training.

`comparison_of` does the work of `mlperf compare`, two GPUs on common tasks included.

The law of samples/s is a power of the number of GPUs or Amdahl's, whichever fits better (analysis/scaling_laws).
Submitters change the batch with the number of GPUs, so the samples to the target change too. Time to train therefore
has a separate exponent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from tensorprimat.analysis import scaling_laws
from tensorprimat.analysis.scaling_laws import Law
from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import VENDORS
from tensorprimat.facts.devices import platform_of
from tensorprimat.mlperf.compare import Task, TaskComparison, TaskSide, compare_gpus, of_sides, side, version
from tensorprimat.mlperf.library import Entry, of_gpu
from tensorprimat.mlperf.score import Repeat, Scored, distinct_entries, timed


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """One entry with its efficiency."""

    scored: Scored
    efficiency: float | None
    """Samples/s of one GPU, divided by the mean of the entries with the fewest GPUs; strong scaling."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """One GPU on one benchmark in one round over several numbers of GPUs."""

    gpu: str
    benchmark: str
    round: str
    points: tuple[ScalingPoint, ...]
    rate: Law | None
    minutes: Law | None
    stops_at: int | None
    """First number of GPUs whose rates all lie below the interval that the power law of fewer GPUs predicts."""
    repeats: tuple[Repeat, ...] = ()
    """Entries that are left out because another one has their runs."""


def strong_scalings(entries: Sequence[Entry], confidence: float) -> tuple[Scaling, ...]:
    """Return the scaling of every GPU, benchmark and round that has two or more numbers of GPUs."""
    once, repeats = distinct_entries(entries)
    found = []
    for (gpu, benchmark, round), group in timed(once, "gpu", "benchmark", "round").items():
        if len({one.num_gpus for one in group}) >= 2:
            ours = tuple(one for one in repeats if one.of in [each.entry for each in group])
            found.append(replace(_scaling(gpu, benchmark, round, group, confidence), repeats=ours))
    return tuple(found)


def over_rounds(entries: Sequence[Entry]) -> tuple[TaskComparison, ...]:
    """Return the comparison of each GPU's task with the same task in its previous round, newest last.

    The hardware is the same, so the difference is the gain of software.
    """
    sides: dict[tuple[str, Task], list[TaskSide]] = {}
    groups: dict[tuple[str, str, int, str], list[Entry]] = {}
    for entry in entries:
        if entry.gpu and entry.num_gpus and entry.is_closed:
            groups.setdefault((entry.gpu, entry.benchmark, entry.num_gpus, entry.round), []).append(entry)
    for (gpu, benchmark, count, round), group in groups.items():
        if made := side(group, gpu, round):
            sides.setdefault((gpu, Task(benchmark=benchmark, num_gpus=count)), []).append(made)
    found = []
    for gpu, task in sorted(sides):
        ordered = sorted(sides[gpu, task], key=lambda one: version(one.round))
        found += [of_sides(task, newer, older) for older, newer in pairwise(ordered)]
    return tuple(found)


def _scaling(gpu: str, benchmark: str, round: str, group: Sequence[Scored], confidence: float) -> Scaling:
    ordered = sorted(group, key=lambda one: (one.num_gpus, one.minutes or 0.0))
    least = [_per_gpu(one) for one in ordered if one.num_gpus == ordered[0].num_gpus]
    base = math.fsum(least) / len(least)
    rates = [(float(one.num_gpus), one.samples_per_second or math.nan) for one in ordered]
    return Scaling(
        gpu=gpu,
        benchmark=benchmark,
        round=round,
        points=tuple(ScalingPoint(scored=one, efficiency=_per_gpu(one) / base) for one in ordered),
        rate=scaling_laws.best(rates, confidence),
        minutes=scaling_laws.gpu_power_law(
            [(float(one.num_gpus), one.minutes or math.nan) for one in ordered], confidence
        ),
        stops_at=_stop(rates, confidence),
    )


def _stop(rates: Sequence[tuple[float, float]], confidence: float) -> int | None:
    counts = sorted({count for count, _ in rates})
    for count in counts[scaling_laws.FEWEST_COUNTS :]:
        smaller = [point for point in rates if point[0] < count]
        low = scaling_laws.Line(smaller).low(count, confidence)
        if all(math.log(rate) < low for at, rate in rates if at == count):
            return int(count)
    return None


def _per_gpu(one: Scored) -> float:
    return (one.samples_per_second or math.nan) / one.num_gpus


_PLATFORMS = {vendor: platform for platform, vendor in VENDORS.items()}
"""Name on the command line → platform of its GPUs."""


@dataclass(frozen=True, kw_only=True)
class VendorRound:
    """The fastest entry of a vendor in one round, on one benchmark and number of GPUs."""

    vendor: str
    scored: Scored
    minutes: float
    over_before: float | None
    """Its time divided by that of the vendor's entry in its previous round; None in the first."""
    repeats: tuple[Repeat, ...] = ()
    """Entries that are left out because this one has their runs."""


@dataclass(frozen=True, kw_only=True)
class MlperfComparison:
    """Vendors over rounds, two GPUs on common tasks, or one GPU over its numbers of GPUs and its rounds."""

    kind: Literal["vendors", "two GPUs", "one GPU"]
    vendors: Sequence[VendorRound] = ()
    tasks: Sequence[TaskComparison] = ()
    """Of two GPUs, or of one GPU and its previous round."""
    scalings: Sequence[Scaling] = ()

    @property
    def gpus(self) -> set[str | None]:
        """Return the GPUs whose entries are compared."""
        sides = {side.gpu for one in self.tasks for side in one.sides}
        return sides | {one.scored.entry.gpu for one in self.vendors} | {one.gpu for one in self.scalings}


def comparison_of(
    names: Sequence[str], entries: Sequence[Entry], confidence: float, *, for_plot: bool
) -> MlperfComparison:
    """Return the comparison of the named vendors, the two named GPUs, or the one named GPU.

    for_plot: accept only a comparison that a plot can show. Raises UsageError for a GPU without entries, for no name or
    more than two (unless all are vendors), and, with for_plot, for a comparison that no plot shows.
    """
    vendors = [vendor for name in names for vendor in _PLATFORMS if vendor.casefold() == name.strip().casefold()]
    if names and len(vendors) == len(names):
        if for_plot:
            raise UsageError("--plot draws one task, or one GPU's scaling; name GPUs instead of vendors")
        return MlperfComparison(kind="vendors", vendors=fastest_by_round(entries, vendors))
    if len(names) == 2:
        tasks = compare_gpus(entries, *names)
        if for_plot and len(tasks) > 1:
            raise UsageError(
                f"--plot draws one task, and {len(tasks)} are shared; select one with --benchmark and --gpus"
            )
        return MlperfComparison(kind="two GPUs", tasks=tasks)
    if len(names) != 1:
        raise UsageError(f"compare: name one GPU or two, not {len(names)}")
    ours = of_gpu(entries, names[0])
    if not ours:
        there = sorted({entry.gpu for entry in entries if entry.gpu})
        raise UsageError(f"{names[0]}: no entry of this GPU; there are {', '.join(there)}")
    scalings = strong_scalings(ours, confidence)
    benchmarks = list(dict.fromkeys(one.benchmark for one in scalings)) or ["none with several numbers of GPUs"]
    if for_plot and (not scalings or len(benchmarks) > 1):
        raise UsageError(f"--plot draws the scaling of one benchmark; name it by --benchmark ({', '.join(benchmarks)})")
    return MlperfComparison(kind="one GPU", scalings=scalings, tasks=over_rounds(ours))


def fastest_by_round(entries: Sequence[Entry], vendors: Sequence[str]) -> tuple[VendorRound, ...]:
    """Return the fastest entry of each vendor in each round, by benchmark, number of GPUs, vendor and round.

    Entries without a score and those outside the closed division are left out.
    """
    once, repeats = distinct_entries(entries)
    groups: dict[tuple[str, int, str], dict[str, Scored]] = {}
    for entry in once:
        scored = Scored(entry)
        if scored.minutes is None or not entry.num_gpus or not entry.is_closed:
            continue
        platform = platform_of(entry.device_name or entry.gpu)
        for vendor in (name for name in vendors if _PLATFORMS[name] == platform):
            rounds = groups.setdefault((entry.benchmark, entry.num_gpus, vendor), {})
            if entry.round not in rounds or scored.minutes < (rounds[entry.round].minutes or 0.0):
                rounds[entry.round] = scored
    found = []
    for (_, _, vendor), rounds in sorted(groups.items()):
        before: float | None = None
        for name in sorted(rounds, key=version):
            minutes = rounds[name].minutes or 0.0
            over = None if before is None else minutes / before
            same = tuple(one for one in repeats if one.of is rounds[name].entry)
            found.append(
                VendorRound(vendor=vendor, scored=rounds[name], minutes=minutes, over_before=over, repeats=same)
            )
            before = minutes
    return tuple(found)
