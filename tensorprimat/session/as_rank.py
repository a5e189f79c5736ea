"""`torchrun … -m tensorprimat run` and `srun python3 -m tensorprimat run`: this process is one rank of several.

Another launcher has started the ranks, so the training runs in this process as its rank, and only rank 0 prints and
writes the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorprimat.core import user_facts
from tensorprimat.core.errors import InputError, TensorPrimatError
from tensorprimat.core.spec import RunSpec
from tensorprimat.core.summary import pool
from tensorprimat.engines import launchers, prepare
from tensorprimat.engines.registry import ENGINES, OWN
from tensorprimat.engines.torch import engine as torch_engine
from tensorprimat.storage import store
from tensorprimat.system import processes

if TYPE_CHECKING:
    from tensorprimat.core.result import Result
    from tensorprimat.engines.launchers import Rank
    from tensorprimat.machine.platform import Machine
    from tensorprimat.session.plan import Request

_OF_OUR_PROCESSES = ("cooldown", "target_ci", "max_runs", "budget_minutes", "profile")
"""Options of `run` that act between its runs, or on the processes that it starts; a rank has neither."""


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
        *((user_facts.ALL_FLAGS[fact], True) for fact in request.facts.stated()),
    ):
        if wrong:
            raise launchers.rank_refusal(flag, place)
    settings = launchers.settings_of_ranks(request.settings, place, nodes_flag="--nodes")
    engine = ENGINES[OWN]
    prepare.check_engine(engine, machine.platform)
    spec = prepare.spec_of(request.model, settings, engine=engine, machine=machine)
    spec = spec.changed(output_dir=str(request.output)).check()
    prepare.check_spec(engine, spec, machine)
    return spec


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
