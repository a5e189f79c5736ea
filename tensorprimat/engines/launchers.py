"""Detection of torchrun or srun as the launcher that started this process as one rank of several."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tensorprimat.core.errors import UsageError
from tensorprimat.core.quantities import counted
from tensorprimat.core.spec import RunSettings

INTERACTIVE = ("bash", "interactive")  # job names under which Lightning ignores that srun started several ranks


@dataclass(frozen=True, kw_only=True)
class Rank:
    """The position of this process among the ranks that torchrun or srun started."""

    launcher: str
    rank: int
    world_size: int
    nodes: int

    @property
    def per_node(self) -> int:
        """Return the processes of each node. Raises UsageError if the nodes have different numbers of them."""
        per_node, rest = divmod(self.world_size, self.nodes)
        if rest:
            raise UsageError(
                f"{self.launcher}: {self.world_size} processes on {self.nodes} nodes; start the same number on each"
            )
        return per_node


def rank_of(environment: Mapping[str, str]) -> Rank | None:
    """Return the rank of a process by its environment variables; None if it was started alone."""
    if "TORCHELASTIC_RUN_ID" in environment:
        nodes = int(environment.get("GROUP_WORLD_SIZE", "1"))
        return Rank(
            launcher="torchrun", rank=int(environment["RANK"]), world_size=int(environment["WORLD_SIZE"]), nodes=nodes
        )
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS", "1"))
    if tasks == 1 or not environment.get("SLURM_STEP_ID", "").isdecimal():  # in a batch script itself, before any srun
        return None
    return Rank(
        launcher="srun",
        rank=int(environment["SLURM_PROCID"]),
        world_size=tasks,
        nodes=int(environment.get("SLURM_STEP_NUM_NODES", "1")),
    )


def training_rank(environment: Mapping[str, str]) -> Rank | None:
    """Return the rank as which Lightning trains in this process; None if it was started alone.

    Raises UsageError for a Slurm job name with which Lightning would train in each task alone.
    """
    rank = rank_of(environment)
    name = environment.get("SLURM_JOB_NAME")
    if rank is not None and rank.launcher == "srun" and name in INTERACTIVE:
        raise UsageError(
            f"srun: Lightning treats a job named {name} as interactive, so each task would train alone; give srun "
            "--job-name=benchmark, or use torchrun"
        )
    return rank


def settings_of_ranks(settings: RunSettings, place: Rank, *, nodes_flag: str) -> RunSettings:
    """Return the settings with the GPUs and nodes for which the launcher has started processes.

    nodes_flag: the command's flag for the nodes. Raises UsageError if the settings state other numbers.
    """
    if settings.num_gpus not in (None, place.per_node):
        raise UsageError(
            f"--num-gpus {settings.num_gpus}: {place.launcher} has started {place.per_node} processes per node"
        )
    if settings.num_nodes not in (1, place.nodes):
        raise UsageError(
            f"{nodes_flag} {settings.num_nodes}: {place.launcher} has started processes on "
            f"{counted(place.nodes, 'node')}"
        )
    return replace(settings, num_gpus=place.per_node, num_nodes=place.nodes)


def refuse_ranks(work: str) -> None:
    """Raise UsageError, naming a flag or the work, in a process that torchrun or srun has started as a rank."""
    if place := rank_of(os.environ):
        raise rank_refusal(work, place)


def rank_refusal(work: str, place: Rank, because: str = "which starts one training") -> UsageError:
    """Return the error of a flag or of work that one of several ranks cannot do."""
    return UsageError(f"{work}: not under {place.launcher}, {because}; run without {place.launcher}")


def set_lightning_tasks(place: Rank) -> None:
    """Set SLURM_NTASKS_PER_NODE, which `srun -n` leaves unset and without which Lightning refuses to start."""
    if place.launcher == "srun":
        os.environ.setdefault("SLURM_NTASKS_PER_NODE", str(place.world_size // place.nodes))
