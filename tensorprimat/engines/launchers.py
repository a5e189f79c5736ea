"""Detection of the launcher that started this process as one rank of several: torchrun, srun, or another one.

The deepspeed launcher, a PyTorchJob of Kubeflow and scripts around mpirun set RANK and WORLD_SIZE as torchrun does, but
none of torchrun's own variables. Every module asks here which processes were started.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from tensorprimat.core.errors import UsageError
from tensorprimat.core.quantities import counted
from tensorprimat.core.spec import RunSettings

INTERACTIVE = ("bash", "interactive")  # job names under which Lightning ignores that srun started several ranks


@dataclass(frozen=True, kw_only=True)
class Rank:
    """The position of this process among the ranks that a launcher started."""

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
    """Return the rank of a process by its environment variables; None if it was started alone.

    Raises UsageError for a variable of a launcher that is no number.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        return Rank(
            launcher="torchrun",
            rank=_number(environment, "RANK"),
            world_size=_number(environment, "WORLD_SIZE"),
            nodes=_number(environment, "GROUP_WORLD_SIZE", 1),
        )
    task, other = _task_of_srun(environment), _rank_of_variables(environment)
    if task is None or (other is not None and other.world_size != task.world_size):  # tasks that start ranks themselves
        return other
    return task


def _task_of_srun(environment: Mapping[str, str]) -> Rank | None:
    tasks = _number(environment, "SLURM_STEP_NUM_TASKS", 1)
    if tasks == 1 or not environment.get("SLURM_STEP_ID", "").isdecimal():  # in a batch script itself, before any srun
        return None
    return Rank(
        launcher="srun",
        rank=_number(environment, "SLURM_PROCID"),
        world_size=tasks,
        nodes=_number(environment, "SLURM_STEP_NUM_NODES", 1),
    )


def _rank_of_variables(environment: Mapping[str, str]) -> Rank | None:
    """Return the rank by RANK and WORLD_SIZE alone; None unless they name several processes.

    The processes of a node are LOCAL_WORLD_SIZE or, of the deepspeed launcher, LOCAL_SIZE. Without both, and without
    LOCAL_RANK, each node (each pod of a PyTorchJob) has one process. A PyTorchJob whose pods count for several
    processes (PET_NNODES) has started none of them: torchrun does so in each pod.
    """
    if not (environment.get("RANK") and environment.get("WORLD_SIZE")):
        return None
    rank, world_size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    known = [name for name in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE") if environment.get(name)]
    has_local = bool(known) or "LOCAL_RANK" in environment
    pods = environment.get("PET_NNODES", "")
    if world_size == 1 or (pods.isdecimal() and int(pods) != world_size and not has_local):
        return None
    alone = world_size if has_local else 1  # LOCAL_RANK without the processes of a node: all are on this one
    per_node = _number(environment, known[0]) if known else alone
    nodes, rest = divmod(world_size, max(1, per_node))
    if rest or rank >= world_size:
        raise UsageError(
            f"RANK={rank}, WORLD_SIZE={world_size} and {per_node} processes per node contradict each other; start the "
            "same number of processes on each node"
        )
    return Rank(launcher="the launcher that set RANK and WORLD_SIZE", rank=rank, world_size=world_size, nodes=nodes)


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return a variable of a launcher as a number. Raises UsageError where it is none."""
    text = environment.get(name, "")
    if text.isdecimal():
        return int(text)
    if text or default is None:
        raise UsageError(f"{name}={text}: must be a number, as launchers of several processes set it")
    return default


def started_processes(environment: Mapping[str, str]) -> int:
    """Return the number of processes that a launcher started together with this one; 1 if it was started alone."""
    rank = rank_of(environment)
    return 1 if rank is None else rank.world_size


def connected_processes(environment: Mapping[str, str]) -> int:
    """Return the number of started processes that torch connects by RANK and WORLD_SIZE; 1 for those of srun alone."""
    rank = rank_of(environment)
    is_connected = rank is not None and (rank.launcher != "srun" or _rank_of_variables(environment) is not None)
    return rank.world_size if rank is not None and is_connected else 1


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
    return settings.changed(num_gpus=place.per_node, num_nodes=place.nodes)


def refuse_ranks(work: str) -> None:
    """Raise UsageError, naming a flag or the work, in a process that a launcher has started as a rank."""
    if place := rank_of(os.environ):
        raise rank_refusal(work, place)


def rank_refusal(work: str, place: Rank, because: str = "which starts one training") -> UsageError:
    """Return the error of a flag or of work that one of several ranks cannot do."""
    return UsageError(f"{work}: not under {place.launcher}, {because}; run without {place.launcher}")


def set_lightning_tasks(place: Rank) -> None:
    """Set the variables that Lightning needs and the launcher leaves unset.

    They are SLURM_NTASKS_PER_NODE, which `srun -n` does not set; for a launcher that sets RANK and WORLD_SIZE only, the
    number of the node and of the process on it, without which Lightning would start processes of its own. Raises
    UsageError where the launcher numbers its processes in another order than node by node, as Lightning does.
    """
    if place.launcher == "srun":
        os.environ.setdefault("SLURM_NTASKS_PER_NODE", str(place.world_size // place.nodes))
    elif place.launcher != "torchrun":
        node, local = divmod(place.rank, place.per_node)
        for name, number in (("NODE_RANK", node), ("LOCAL_RANK", local)):
            if os.environ.setdefault(name, str(number)) != str(number):
                raise UsageError(
                    f"{name}={os.environ[name]}: rank {place.rank} of {place.per_node} processes per node must have "
                    f"{number}; number the ranks node by node"
                )
