"""`torchrun … -m tensorprimat run` and `srun python3 -m tensorprimat run`: this process is one rank of several.

Another launcher has started the ranks, so the training runs in this process as its rank, and only rank 0 prints and
writes the result.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tensorprimat.core import processes, stated, store
from tensorprimat.core.errors import InputError, TensorPrimatError, UsageError
from tensorprimat.core.spec import RunSpec
from tensorprimat.core.summary import pool
from tensorprimat.engines import prepare
from tensorprimat.engines.registry import ENGINES, OWN
from tensorprimat.engines.torch import engine as torch_engine

if TYPE_CHECKING:
    from tensorprimat.core.result import Result
    from tensorprimat.machine.platform import Machine
    from tensorprimat.session.plan import Request

INTERACTIVE = ("bash", "interactive")  # job names under which Lightning ignores that srun started several ranks


@dataclass(frozen=True, kw_only=True)
class Rank:
    """The position of this process among the ranks that torchrun or srun started."""

    launcher: str
    rank: int
    world_size: int
    nodes: int


def rank_of(environment: Mapping[str, str]) -> Rank | None:
    """Return the rank of a process by its environment variables; None if it was started alone.

    Raises UsageError for a Slurm job name with which Lightning would train in each task alone.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        nodes = int(environment.get("GROUP_WORLD_SIZE", "1"))
        return Rank(
            launcher="torchrun", rank=int(environment["RANK"]), world_size=int(environment["WORLD_SIZE"]), nodes=nodes
        )
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS", "1"))
    if tasks == 1 or not environment.get("SLURM_STEP_ID", "").isdigit():  # in a batch script itself, before any srun
        return None
    if environment.get("SLURM_JOB_NAME") in INTERACTIVE:
        raise UsageError(
            f"srun: Lightning treats a job named {environment['SLURM_JOB_NAME']} as interactive, so each task would "
            "train alone; give srun --job-name=benchmark, or use torchrun"
        )
    return Rank(
        launcher="srun",
        rank=int(environment["SLURM_PROCID"]),
        world_size=tasks,
        nodes=int(environment.get("SLURM_STEP_NUM_NODES", "1")),
    )


_OF_OUR_PROCESSES = ("cooldown", "target_ci", "max_runs", "budget_minutes", "profile")
"""Options of `run` that act between its runs, or on the processes that it starts; a rank has neither."""


def refuse_ranks(flag: str) -> None:
    """Raise UsageError, naming a flag, in a process that torchrun or srun has started as a rank."""
    if place := rank_of(os.environ):
        raise _refusal(flag, place)


def _refusal(flag: str, place: Rank) -> UsageError:
    return UsageError(f"{flag}: not under {place.launcher}, which starts one training; run without {place.launcher}")


def spec_of_rank(request: Request, place: Rank, machine: Machine) -> RunSpec:
    """Return the spec that all ranks train. Raises UsageError for options that one training cannot have."""
    for flag, wrong in (
        (f"--model {request.model}", request.model == "all"),
        (f"--runs {request.runs}", request.runs > 1),
        (f"--engine {request.engine}", request.engine not in ("auto", OWN)),
        ("--append", request.append),
        ("--dry-run", request.dry_run),
        (f"--executor {request.cluster.executor}", request.cluster.executor != ""),
        *((f"--{option.replace('_', '-')}", True) for option in _OF_OUR_PROCESSES if option in request.typed),
        *((stated.ALL_FLAGS[fact], True) for fact in request.facts.stated()),
    ):
        if wrong:
            raise _refusal(flag, place)
    per_node, rest = divmod(place.world_size, place.nodes)
    if rest:
        raise UsageError(
            f"{place.launcher}: {place.world_size} processes on {place.nodes} nodes; start the same number on each"
        )
    if request.settings.num_gpus not in (None, per_node):
        raise UsageError(
            f"--num-gpus {request.settings.num_gpus}: {place.launcher} has started {per_node} processes per node"
        )
    engine = ENGINES[OWN]
    prepare.check_engine(engine)
    settings = replace(request.settings, num_gpus=per_node, num_nodes=place.nodes)
    spec = prepare.spec_of(request.model, settings, engine=engine, machine=machine)
    spec = spec.changed(output_dir=str(request.output)).check()
    prepare.check_spec(engine, spec, machine)
    return spec


def set_lightning_tasks(place: Rank) -> None:
    """Set SLURM_NTASKS_PER_NODE, which `srun -n` leaves unset and without which Lightning refuses to start."""
    if place.launcher == "srun":
        os.environ.setdefault("SLURM_NTASKS_PER_NODE", str(place.world_size // place.nodes))


def train_as_rank(spec: RunSpec) -> tuple[Result | None, TensorPrimatError | None]:
    """Train in this process. Return the result (None except on rank 0; incomplete after an error) and the error."""
    error = None
    with processes.scratch_folder() as scratch:
        file = scratch / "result.json"
        try:
            torch_engine.train(spec, file)
        except TensorPrimatError as caught:
            error = caught
        try:
            result = store.load(file)
        except InputError:  # another rank has the result, or nothing was measured
            return None, error
    return pool([result if error is None else result.changed(complete=False)]), error
