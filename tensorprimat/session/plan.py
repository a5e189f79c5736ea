"""Checks of a benchmark's options, and the job for each model: an engine with a spec to train or a log to read.

Under torchrun or srun, which have started the ranks, this process trains as one of them (`spec_of_rank`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tensorprimat.core import fact_values, user_facts
from tensorprimat.core.errors import UsageError
from tensorprimat.core.folders import DEFAULT_FOLDER
from tensorprimat.core.quantities import alternatives, as_stated
from tensorprimat.core.result import GpuInfo, Result
from tensorprimat.core.spec import MODELS, RunSettings, RunSpec
from tensorprimat.core.user_facts import UserFacts
from tensorprimat.engines import launchers, prepare, profiling
from tensorprimat.engines.choice import Obstacle, Plan, choose_engines, in_order, looks_for_logs
from tensorprimat.engines.cluster import executors
from tensorprimat.engines.cluster.executors import Cluster
from tensorprimat.engines.modules import modules_of
from tensorprimat.engines.registry import ENGINES, NVIDIA_ORDER, OWN, Engine
from tensorprimat.logs import discover
from tensorprimat.machine.platform import Machine
from tensorprimat.session import append as appending
from tensorprimat.session.budget import Budget

_TAKEN = ("runs", "append", "typed", "words", "dry_run", "json", "profile", "reproduce")
"""Options that are copied into a request unchanged."""
_OF_OUR_PROCESSES = ("cooldown", "target_ci", "max_runs", "budget_minutes", "profile")
"""Options of `run` that act between its runs, or on the processes that it starts; a rank has neither."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The command line of one benchmark."""

    model: str
    runs: int
    engine: str
    output: Path
    cooldown_seconds: float | None
    append: bool
    dry_run: bool
    json: bool
    settings: RunSettings
    profile: str | None = None
    cluster: Cluster = field(default_factory=Cluster)
    file: Path | None = None
    """Additional file for the results; the suffix selects its format."""
    budget: Budget = field(default_factory=lambda: Budget(runs=1))
    typed: frozenset[str] = frozenset()
    """Parameters that the user set on the command line; --budget-minutes may change the others."""
    words: tuple[str, ...] = ()
    """Arguments with which the ranks of a launcher train the same."""
    reproduce: str | None = None
    """Name of the published result whose settings are trained."""
    facts: UserFacts = field(default_factory=UserFacts)
    """Facts that the user states about a log; they do not apply to training."""

    @property
    def is_for_another_machine(self) -> bool:
        """Return True if a dry run plans for the GPU of --gpu instead of this machine's (see `plan_of`)."""
        return self.cluster.gpu is not None and not self.cluster.executor

    @property
    def models(self) -> Sequence[str]:
        """Return the models that are trained or whose logs are read."""
        return MODELS if self.model == "all" else (self.model,)


@dataclass(frozen=True, kw_only=True)
class Job:
    """The work for one model."""

    model: str
    engine: Engine | None
    """None if the model has no log and is not trained here."""
    spec: RunSpec | None = None
    """Training to run; None if a log is read."""
    search: discover.Search | None = None
    """Search for the model's log; None if no log was searched for."""
    earlier: Result | None = None
    """Result to which --append adds the runs; None without --append."""

    @property
    def reads_log(self) -> bool:
        """Return True if the model's log was found and is read."""
        return self.engine is not None and self.spec is None

    @property
    def module(self) -> str:
        """Return the module that a fresh process runs. Raises UsageError for an engine that does not train."""
        program = None if self.engine is None else modules_of(self.engine).program
        if program is None:
            raise UsageError(f"--engine {self.engine.name if self.engine else 'none'}: it does not train")
        return program

    def advice(self) -> list[str]:
        """Return the engine's warnings about a training that can work."""
        configuration = None if self.engine is None else modules_of(self.engine).load("configuration")
        return [] if configuration is None or self.spec is None else list(configuration.spec_advice(self.spec))

    def show_command(self, say: Callable[[str], None]) -> None:
        """Show the command that the training would start in its framework, if any. Raises RunError if that fails."""
        command = None if self.engine is None else modules_of(self.engine).load("command")
        if command is not None and self.spec is not None:
            command.show_command(self.spec, say)


def stated_facts(*, gpu: str | None, shape: str | None, model_name: str | None, model: str) -> UserFacts:
    """Return the facts about a log that flags state. Raises UsageError for a wrong value; the error names the flag."""
    if model == "all":
        for flag, value in (("--shape", shape), ("--model-name", model_name)):
            if value is not None:
                raise UsageError(f"{flag} {value}: applies to one model; give --model too")
    typed = {"gpu": gpu, "shape": shape, "model_name": model_name}
    return UserFacts(**{one.field: one.value for one in fact_values.read_statements(typed, sides=False)})


def check_facts(request: Request, jobs: Sequence[Job]) -> None:
    """Raise UsageError for a fact about logs where models are trained and no log is read."""
    trained = any(job.spec is not None for job in jobs)
    if not trained or any(job.reads_log for job in jobs):
        return
    for field_name in request.facts.stated():
        flag = user_facts.ALL_FLAGS[field_name]
        instead = {
            "gpu": "; with --executor it names the GPU of each node, with --dry-run the GPU to plan for",
            "shape": "; training takes --preset",
        }
        raise UsageError(f"{flag}: states a fact about a log, and no log is read here{instead.get(field_name, '')}")


def check_request(request: Request) -> None:
    """Raise UsageError for flags with which neither training nor reading a log could work."""
    if request.settings.config is None and request.model not in (*MODELS, "all"):
        raise UsageError(f"--model {request.model}: no such model; models: {', '.join(MODELS)}, all")
    if request.runs < 1:
        raise UsageError(f"--runs {request.runs}: must be at least 1")
    request.budget.checked()
    pause = request.cooldown_seconds
    if pause is not None and not (math.isfinite(pause) and pause >= 0):
        raise UsageError(f"--cooldown {as_stated(pause)}: must be a finite number of seconds, 0 or more")
    settings = request.settings
    settings.check()
    prepare.check_folder(request.output)
    executors.check_cluster(
        request.cluster, nodes=settings.num_nodes or 1, folder=request.output, dry_run=request.dry_run
    )


def plan_of(request: Request, machine: Machine) -> tuple[Request, Machine, Mapping[str, discover.Search], Plan]:
    """Return the request, the machine that trains, the searches for logs by model, and the plan.

    Without --executor, --gpu is a fact about a log. In a dry run it is the GPU to plan for, unless an engine that reads
    logs was requested and finds one; the returned request states it as such. Raises UsageError where no engine can
    train there.
    """
    if not request.cluster.executor:
        seen, searches, plan = plan_here(request, request.models, machine)
        reads = request.engine != "auto" and any(search.path for search in searches.values())
        if not request.dry_run or request.facts.gpu is None or reads:
            return request, seen, searches, plan
        return _plan_for(request.facts.gpu, request, machine)
    node = executors.node_machine(request.cluster, request.settings.num_gpus, machine)
    plan = executors.plan_engines(
        request.engine,
        request.cluster,
        platform=node.platform,
        models=request.models,
        obstacle=obstacle_of(request.settings, node),
    )
    return request, node, {}, plan


def _plan_for(
    gpu: str, request: Request, machine: Machine
) -> tuple[Request, Machine, Mapping[str, discover.Search], Plan]:
    """Return the request with the GPU to plan for, a machine with that GPU, no searches, and the plan for it."""
    asked = replace(request, cluster=request.cluster.changed(gpu=gpu), facts=replace(request.facts, gpu=None))
    node = executors.node_machine(asked.cluster, request.settings.num_gpus, machine)
    order: Sequence[str] = (request.engine,)
    if request.engine == "auto":
        order = NVIDIA_ORDER if node.platform == "nvd" else (OWN,)
    elif not ENGINES[request.engine].trains or ENGINES[request.engine].own_configuration:
        able = [name for name, engine in ENGINES.items() if engine.trains and not engine.own_configuration]
        raise UsageError(f"--engine {request.engine}: --dry-run with --gpu plans for {alternatives(able)} only")
    plan = in_order(request.models, obstacle_of(request.settings, node), order=order, where=f" on {gpu}")
    return asked, node, {}, plan


def plan_here(
    request: Request, chosen: Sequence[str], machine: Machine
) -> tuple[Machine, Mapping[str, discover.Search], Plan]:
    """Return the machine (for Primus, the one that it trains on), the searches for logs by model, and the plan."""
    engine = ENGINES.get(request.engine)
    checkout = None if engine is None else modules_of(engine).load("checkout")
    configured = None if checkout is None else checkout.models_here(chosen)
    if checkout is not None and configured is not None:
        machine = checkout.machine_of(machine)
    from_logs = looks_for_logs(request.engine, machine.platform) and configured is None
    searches = discover.find_logs(chosen) if from_logs else {}
    plan = choose_engines(
        request.engine,
        platform=machine.platform,
        models=chosen,
        with_log=[model for model, search in searches.items() if search.path],
        with_unassigned=[model for model, search in searches.items() if search.unassigned],
        configured=configured,
        obstacle=obstacle_of(request.settings, machine),
    )
    if checkout is not None:
        plan = replace(plan, untrained=checkout.NO_CONFIG)
    return machine, searches if plan.from_logs else {}, plan


def obstacle_of(settings: RunSettings, machine: Machine) -> Obstacle:
    """Return a function of engine and model that returns why the engine cannot train it here with these flags."""
    return lambda engine, model: prepare.obstacle(model, settings, engine=engine, machine=machine)


def job_of(
    model: str, engine: Engine | None, search: discover.Search | None, request: Request, machine: Machine
) -> Job:
    """Return the work for one model. Raises TensorPrimatError where the engine could not run it here."""
    if engine is None or search is not None:
        if request.append:
            raise UsageError("--append adds runs that are trained here; add --engine torch, or leave --append out")
        return Job(model=model, engine=engine, search=search)
    elsewhere = request.cluster.executor
    packages = not (request.cluster.own_packages or request.is_for_another_machine)  # True if this Python trains
    if packages:
        prepare.check_engine(engine, None if request.cluster.gpu else machine.platform)
    spec = prepare.spec_of(model, request.settings, engine=engine, machine=machine)
    spec = spec.changed(output_dir=str(request.output))  # folder for an engine's own logs
    if elsewhere:
        spec = spec.changed(options={executors.OPTION: elsewhere})
    if request.profile is not None:
        profiling.check_profiler(request.profile, engine)
        if elsewhere:
            raise UsageError(f"--profile {request.profile}: not with --executor {elsewhere}; profile on one machine")
        if request.runs > 1 or request.append:
            raise UsageError(f"--profile {request.profile}: profiles one run; leave --runs and --append out")
    prepare.check_spec(engine, spec, machine, packages=packages)
    earlier = None
    if request.append:
        planned = appending.planned_result(spec, machine)
        if request.cluster.gpu:  # --gpu holds the catalogue's name; the results hold the driver's name
            planned = planned.changed(gpu_info=GpuInfo())
        earlier = appending.latest(
            planned, request.output, default_engine=executors.cluster_default_engine(request.cluster, machine.platform)
        )
    return Job(model=model, engine=engine, spec=spec, earlier=earlier)


def spec_of_rank(request: Request, place: launchers.Rank, machine: Machine) -> RunSpec:
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


def request_of(
    options: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    cluster: Cluster,
    budget: Budget,
    file: Path | None,
) -> Request:
    """Return the request of a command line. Raises UsageError for options that contradict each other.

    options: values by parameter of the command. settings: values by field of RunSettings. cluster: --executor and its
    flags; without an executor, --gpu is a fact about a log. file: the file that --output names; None for a folder.
    """
    model, config = _model_of(options["model"], options["engine"])
    return Request(
        **{name: options[name] for name in _TAKEN},
        model=model,
        engine=OWN if config and options["engine"] == "auto" else options["engine"],
        output=DEFAULT_FOLDER if file else options["output"],
        file=file,
        cooldown_seconds=options["cooldown"],
        cluster=cluster if cluster.executor else cluster.changed(gpu=None),
        budget=budget,
        facts=stated_facts(
            gpu=None if cluster.executor else cluster.gpu,
            shape=options["shape"],
            model_name=options["model_name"],
            model=model,
        ),
        settings=RunSettings(**settings, config=config),
    )


def _model_of(text: str, engine: str) -> tuple[str, dict[str, Any] | None]:
    """Return the model's name, and its configuration if --model is a file.

    Raises UsageError for a file with an engine that cannot train it.
    """
    if text in (*MODELS, "all"):
        return text, None
    from tensorprimat.engines.torch import config as torch_config

    if engine not in ("auto", OWN):
        raise UsageError(f"--engine {engine}: trains {', '.join(MODELS)}; for --model {text} use --engine {OWN}")
    return torch_config.read_model_config(text)
