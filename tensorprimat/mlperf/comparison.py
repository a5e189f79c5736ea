"""The work of `mlperf compare`: two GPUs on common tasks, one GPU over system sizes, or vendors over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorprimat.core.errors import UsageError
from tensorprimat.mlperf import choice as mlperf_choice
from tensorprimat.mlperf import compare as mlperf_compare
from tensorprimat.mlperf import scaling as mlperf_scaling
from tensorprimat.mlperf.library import Entry


@dataclass(frozen=True, kw_only=True)
class OfVendors:
    """The fastest entry of each vendor in each round."""

    rounds: Sequence[mlperf_scaling.VendorRound]

    @property
    def gpus(self) -> set[str | None]:
        return {one.scored.entry.gpu for one in self.rounds}


@dataclass(frozen=True, kw_only=True)
class OfTwoGpus:
    """The comparison of two GPUs on every task with entries of both."""

    tasks: Sequence[mlperf_compare.TaskComparison]

    @property
    def gpus(self) -> set[str]:
        return {side.gpu for one in self.tasks for side in one.sides}


@dataclass(frozen=True, kw_only=True)
class OfOneGpu:
    """The scaling of one GPU type over the number of GPUs, and its results over the rounds."""

    scalings: Sequence[mlperf_scaling.Scaling]
    rounds: Sequence[mlperf_compare.TaskComparison]

    @property
    def gpus(self) -> set[str]:
        return {one.gpu for one in self.scalings} | {side.gpu for one in self.rounds for side in one.sides}


def comparison_of(
    names: Sequence[str], entries: Sequence[Entry], confidence: float, *, for_plot: bool
) -> OfVendors | OfTwoGpus | OfOneGpu:
    """Return the comparison of the named vendors, the two named GPUs, or the one named GPU.

    for_plot: accept only a comparison that a plot can show. Raises UsageError for a GPU without entries, for no name or
    more than two (unless all are vendors), and, with for_plot, for a comparison that no plot shows.
    """
    if names and all(vendors := [mlperf_scaling.vendor_named(name) for name in names]):
        if for_plot:
            raise UsageError("--plot draws one task, or one GPU's scaling; name GPUs instead of vendors")
        return OfVendors(rounds=mlperf_scaling.fastest_by_round(entries, [vendor for vendor in vendors if vendor]))
    if len(names) == 2:
        tasks = mlperf_compare.compare_gpus(entries, *names)
        if for_plot and len(tasks) > 1:
            raise UsageError(
                f"--plot draws one task, and {len(tasks)} are shared; select one with --benchmark and --gpus"
            )
        return OfTwoGpus(tasks=tasks)
    if len(names) != 1:
        raise UsageError(f"compare: name one GPU or two, not {len(names)}")
    ours = mlperf_choice.of_gpu(entries, names[0])
    if not ours:
        there = sorted({entry.gpu for entry in entries if entry.gpu})
        raise UsageError(f"{names[0]}: no entry of this GPU; there are {', '.join(there)}")
    found = OfOneGpu(scalings=mlperf_scaling.strong_scalings(ours, confidence), rounds=mlperf_scaling.over_rounds(ours))
    if for_plot and len({one.benchmark for one in found.scalings}) != 1:
        scaled = dict.fromkeys(one.benchmark for one in found.scalings) or ["none with several numbers of GPUs"]
        raise UsageError(f"--plot draws the scaling of one benchmark; name it by --benchmark ({', '.join(scaled)})")
    return found
