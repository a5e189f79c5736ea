"""The flow of one benchmark: what to do with each model, do it, keep every run as it ends, show the totals."""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from tensorprimat.cli import appending, blocks, launched
from tensorprimat.cli.live import Screen
from tensorprimat.core import models, store
from tensorprimat.core.errors import RunError, TensorPrimatError, UsageError
from tensorprimat.core.records import GpuInfo, Result
from tensorprimat.core.spec import MODELS, RunSpec
from tensorprimat.core.summary import pool
from tensorprimat.engines import (
    PRIMUS_TRAINING,
    Engine,
    Plan,
    choose,
    cluster,
    default_engine,
    launch,
    looks_for_logs,
    methodology,
    prepare,
    primus,
    primus_checkout,
    primus_spec,
    profiling,
)
from tensorprimat.engines.cluster import Cluster
from tensorprimat.engines.prepare import Wanted
from tensorprimat.logs import discover
from tensorprimat.logs import read as read_log
from tensorprimat.logs.format import Given
from tensorprimat.machine.platform import Machine, detect

GPU_COOLDOWN_SECONDS = 30.0
COMPARE_COMMANDS = {"tprimat": ["tprimat", "compare"], "__main__.py": ["python3", "-m", "tensorprimat", "compare"]}
"""The next command, by how this one was called; else the script beside benchmark.py."""
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8")


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
    wanted: Wanted
    profile: str | None = None
    cluster: Cluster = field(default_factory=Cluster)


@dataclass(frozen=True, kw_only=True)
class Job:
    """What happens with one model."""

    model: str
    engine: Engine | None
    """None: it has no log, and training was not asked for."""
    spec: RunSpec | None = None
    """Of an engine that trains."""
    search: discover.Search | None = None
    """For its log, where one was looked for."""
    earlier: Result | None = None
    """With --append: the result that the runs are added to."""

    @property
    def module(self) -> str:
        """What a fresh process runs. Raises UsageError for an engine that does not train."""
        if self.engine is None or self.engine.module is None:
            raise UsageError(f"--engine {self.engine.name if self.engine else 'none'}: it does not train")
        return self.engine.module


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one model: a result, an error, or both where a later run failed."""

    model: str
    result: Result | None = None
    path: Path | None = None
    error: TensorPrimatError | None = None
    interrupted: bool = False


def benchmark(request: Request) -> int:
    """Everything from checked flags to the exit code. Raises TensorPrimatError for what stops it altogether."""
    _check(request)
    if place := launched.rank_of():
        return _as_rank(place, request)
    screen = Screen(stderr=request.json)
    machine = detect()
    for warning in machine.warnings:
        screen.warn(warning)
    chosen = MODELS if request.model == "all" else (request.model,)
    if request.cluster.executor:
        machine = cluster.machine_of(request.cluster, request.wanted.num_gpus, machine)
        searches: Mapping[str, discover.Search] = {}
        plan = cluster.plan(request.engine, request.cluster, platform=machine.platform, models=chosen)
    else:
        machine, searches, plan = _plan_here(request, chosen, machine)
    screen.say(f"Engine: {plan.because}")
    jobs = [_job(model, engine, searches.get(model), request, machine) for model, engine in plan.engines.items()]
    for job in jobs:
        if job.search is not None:
            _say_log(job.model, job.search, screen)
        elif job.engine is None:
            screen.say(f"{job.model}: {primus_checkout.NO_CONFIG}", style="bold yellow")
        elif job.spec is not None and job.engine == PRIMUS_TRAINING:
            for advice in primus_spec.advice(job.spec):
                screen.warn(advice)
    if request.runs > 1 and any(job.engine and job.engine.reads_logs for job in jobs):
        screen.warn(f"--runs {request.runs}: a log is read once; its runs are those that it holds")
    if request.dry_run:
        return _dry_run(jobs, request, machine, screen)
    with _terminated_like_interrupted():
        outcomes = list(_outcomes(jobs, request, machine, screen))
    return _finish(outcomes, request, screen)


def _plan_here(
    request: Request, chosen: Sequence[str], machine: Machine
) -> tuple[Machine, Mapping[str, discover.Search], Plan]:
    """The machine as its engine sees it, the logs that were looked for, and what happens with each model."""
    primus_models = primus_checkout.models_here(chosen) if request.engine == "primus" else None
    if primus_models is not None:
        machine = primus_checkout.machine_of(machine)
    from_logs = looks_for_logs(request.engine, machine.platform) and primus_models is None
    searches = discover.find(chosen) if from_logs else {}
    plan = choose(
        request.engine,
        platform=machine.platform,
        models=chosen,
        with_log=[model for model, search in searches.items() if search.path],
        primus_models=primus_models,
    )
    return machine, searches, plan


def _as_rank(place: launched.Rank, request: Request) -> int:
    """One training by processes that torchrun or srun has started; rank 0 talks and writes for all."""
    machine = detect()
    spec = launched.spec_of(request, place, machine)
    launched.tell_lightning(place)
    screen = Screen(stderr=request.json, silent=place.rank > 0)
    screen.block(f"BENCHMARK START - {_title(spec)} on {machine.label}", _start_rows(spec, request, machine))
    result, error = launched.train(spec)
    if place.rank > 0:
        if error is not None:
            raise type(error)(f"rank {place.rank}: {error}")
        return 0
    path = None
    if result is not None:
        result = _with_command(pool([result]))
        path = store.save(
            result, request.output, stamp=store.new_stamp(), default_engine=default_engine(machine.platform)
        )
        _show_end(result, path, screen)
    if error is not None:
        screen.complain(f"{spec.model}: {_explained(error, 1, 1, kept=None, partial=path)}")
    outcome = Outcome(model=spec.model, result=result if error is None else None, path=path, error=error)
    return _finish([outcome], request, screen)


def _check(request: Request) -> None:
    """Flags that no engine and no reader could work with."""
    if request.model != "all" and request.model not in MODELS:
        raise UsageError(f"--model {request.model}: no such model; models: {', '.join(MODELS)}, all")
    if request.runs < 1:
        raise UsageError(f"--runs {request.runs}: must be at least 1")
    pause = request.cooldown_seconds
    if pause is not None and not (math.isfinite(pause) and pause >= 0):
        raise UsageError(f"--cooldown {pause:g}: must be 0 or more seconds")
    wanted = request.wanted
    for name in (
        *("micro_batch_size", "global_batch_size", "sequence_length", "num_gpus", "num_nodes"),
        *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    ):
        value = getattr(wanted, name)
        if value is not None and value < 1:
            flag = {"num_nodes": "nodes"}.get(name) or name.replace("_model", "").replace("_", "-")
            raise UsageError(f"--{flag} {value}: must be at least 1")
    if wanted.precision is not None and wanted.precision not in PRECISIONS:
        raise UsageError(f"--precision {wanted.precision}: no such precision; choose {', '.join(PRECISIONS)}")
    prepare.check_folder(request.output)
    cluster.check(request.cluster, nodes=wanted.num_nodes, folder=request.output, dry_run=request.dry_run)


def _job(model: str, engine: Engine | None, search: discover.Search | None, request: Request, machine: Machine) -> Job:
    """Raises TensorPrimatError where the engine could not run this model here."""
    if engine is None or engine.reads_logs:
        if request.append:
            raise UsageError("--append adds runs that are trained here; give --engine torch too, or leave it out")
        return Job(model=model, engine=engine, search=search)
    elsewhere = request.cluster.executor
    if request.cluster.container_image is None:  # an image has packages of its own
        prepare.check_engine(engine)
    spec = prepare.spec_of(model, request.wanted, engine=engine, machine=machine)
    spec = spec.model_copy(update={"output_dir": str(request.output)})  # where an engine keeps what it logs itself
    if elsewhere:
        spec = spec.model_copy(update={"options": {cluster.OPTION: elsewhere}})
    if request.profile is not None:
        profiling.check(request.profile, engine)
        if elsewhere:
            raise UsageError(f"--profile {request.profile}: not with --executor {elsewhere}; profile on one machine")
        if request.runs > 1 or request.append:
            raise UsageError(f"--profile {request.profile}: profiles one run; leave --runs and --append out")
    prepare.check_spec(engine, spec, machine)
    earlier = None
    if request.append:
        planned = appending.planned_result(spec, machine)
        if request.cluster.gpu:  # a catalogue's name for it, not yet the driver's
            planned = planned.model_copy(update={"gpu_info": GpuInfo()})
        earlier = appending.latest(planned, request.output, default_engine=default_engine(machine.platform))
    return Job(model=model, engine=engine, spec=spec, earlier=earlier)


def _say_log(model: str, search: discover.Search, screen: Screen) -> None:
    """Which log was taken and why, or where it was looked for and what helps."""
    if search.path is not None:
        screen.say(f"Log of {model}: {search.path} ({search.because})")
        for other in search.others:
            screen.say(f"  not taken: {other}")
        return
    screen.say(f"No log file found for {model}", style="bold yellow")
    variable, *folders = search.searched
    names = f"training_{model}.log, primus_training_{model}*.log, *{model}*.log, content of other .log and .txt files"
    screen.say(f"  searched: ${variable}; {names}; in {', '.join(folders) or 'no folder'}")
    for other in search.others:
        screen.say(f"  not taken: {other}")
    screen.say(
        f"  remedies: {model.upper()}_LOG=/path/to/its.log, copy it here as training_{model}.log, "
        f"run_primus_{model}.sh to make one, or --engine torch to train here"
    )


def _dry_run(jobs: Sequence[Job], request: Request, machine: Machine, screen: Screen) -> int:
    """Say what would happen. Everything but the logs' contents was checked on the way here."""
    worst = 0
    for job in jobs:
        if job.spec is not None:
            rows = _start_rows(job.spec, request, machine)
            screen.block(f"WOULD TRAIN - {job.model} on {machine.label}", [*rows, ("Results", f"{request.output}/")])
            if job.engine == PRIMUS_TRAINING:
                try:
                    primus.show_command(job.spec, screen.say)
                except RunError as error:  # the next model is shown all the same
                    screen.complain(f"{job.model}: {error}")
                    worst = error.exit_code
            if request.cluster.executor:
                folder = request.output / "cluster" / "dry_run"
                screen.say(cluster.script(job.spec, request.cluster, module=job.module, folder=folder))
    if request.json:
        print(json.dumps([job.spec.model_dump(mode="json") for job in jobs if job.spec], indent=2))
    if not any(job.engine for job in jobs):
        screen.say("Dry run: there is nothing to run or read")
        return 2
    screen.say(f"Dry run: nothing was trained, read or written{'' if worst else '; every check passed'}")
    return worst


def _start_rows(spec: RunSpec, request: Request, machine: Machine) -> list[tuple[str, str]]:
    rows = blocks.start_rows(spec, machine, runs=request.runs, cooldown_seconds=_cooldown(request, machine))
    if request.cluster.executor:
        rows.append(("Nodes", cluster.describe(request.cluster, spec.num_nodes)))
    return rows


def _cooldown(request: Request, machine: Machine) -> float:
    default = 0.0 if machine.platform == "cpu" else GPU_COOLDOWN_SECONDS
    return default if request.cooldown_seconds is None else request.cooldown_seconds


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """A batch system's SIGTERM or a lost terminal ends a benchmark as Ctrl-C does: the child too, results kept."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _outcomes(jobs: Sequence[Job], request: Request, machine: Machine, screen: Screen) -> Iterator[Outcome]:
    """One model after the other; one that fails does not keep the next from running, Ctrl-C does."""
    stamp = store.new_stamp()
    for job in jobs:
        if job.engine is None:
            continue
        try:
            if job.spec is not None:
                outcome = _train(job, job.spec, request, machine, screen, stamp)
            else:
                outcome = _read(job, request, stamp)
        except TensorPrimatError as error:
            outcome = Outcome(model=job.model, error=error)
        if outcome.result is not None and outcome.path is not None:
            _show_end(outcome.result, outcome.path, screen)
        if outcome.error is not None:
            screen.complain(f"{job.model}: {outcome.error}")
        yield outcome
        if outcome.interrupted:
            return


def _read(job: Job, request: Request, stamp: str) -> Outcome:
    """The log of one model as its result."""
    if job.search is None or job.search.path is None:
        raise RunError("no log to read")
    wanted = request.wanted
    given = Given(
        model_name=job.model,
        num_gpus=wanted.num_gpus,
        global_batch_size=wanted.global_batch_size,
        micro_batch_size=wanted.micro_batch_size,
        sequence_length=wanted.sequence_length,
        precision=wanted.precision,
    )
    result = methodology.label(_with_command(read_log(job.search.path, given=given)), wanted.methodology)
    return Outcome(model=job.model, result=result, path=store.save(result, request.output, stamp=stamp))


def _train(job: Job, spec: RunSpec, request: Request, machine: Machine, screen: Screen, stamp: str) -> Outcome:
    """Every run of one model, saved as it ends."""
    planned = appending.planned_result(spec, machine)
    place = Place(folder=request.output, stamp=stamp, default_engine=default_engine(machine.platform))
    screen.block(f"BENCHMARK START - {_title(spec)} on {machine.label}", _start_rows(spec, request, machine))
    if request.profile is not None:
        return _profile(job, spec, request.profile, place, planned, screen)
    outcome = Outcome(model=job.model)
    parts = [] if job.earlier is None else [job.earlier]
    for run in range(1, request.runs + 1):
        try:
            if run > 1:
                _cool_down(_cooldown(request, machine), screen)
            if request.runs > 1:
                screen.say(f"Run {run} of {request.runs}")
            with screen.training(f"{job.model} run {run}/{request.runs}", spec.max_steps) as show:
                ending = launch.run(
                    spec,
                    module=job.module,
                    log=place.kept(planned, f"run{run}.txt"),
                    on_line=show,
                    wrapping=cluster.wrapping(request.cluster, place.elsewhere(planned, run)),
                )
        except KeyboardInterrupt:  # while cooling down
            ending = launch.Ending(result=None, error=RunError("interrupted"), interrupted=True)
        if ending.error is not None or ending.result is None:
            partial = None if ending.result is None else place.save(ending.result, run=run)
            error = _explained(ending.error, run, request.runs, kept=outcome.path, partial=partial)
            return replace(outcome, error=error, interrupted=ending.interrupted)
        if job.earlier is not None:
            place.check_append(job.earlier, ending.result)
        screen.say(blocks.run_line(ending.result, run))
        parts.append(ending.result)
        result = _with_command(pool(parts))
        outcome = replace(outcome, result=result, path=place.save(result))
    return outcome


def _profile(job: Job, spec: RunSpec, profiler: str, place: Place, planned: Result, screen: Screen) -> Outcome:
    """One run with a profiler around it; its result goes to history alone, marked."""
    stem = place.kept(planned, profiler).resolve()
    stem.parent.mkdir(parents=True, exist_ok=True)
    spec = spec.model_copy(update={"options": {**spec.options, **profiling.options(profiler, stem)}})
    with screen.training(f"{job.model} profiled", spec.max_steps) as show:
        ending = launch.run(
            spec,
            module=job.module,
            log=place.kept(planned, "run1.txt"),
            on_line=show,
            wrapping=profiling.wrapping(profiler, stem),
        )
    if ending.result is None or ending.error is not None:
        error = _explained(ending.error, 1, 1, kept=None, partial=None)
        return Outcome(model=job.model, error=error, interrupted=ending.interrupted)
    provenance = ending.result.provenance.model_copy(update={"profiled": True})
    result = _with_command(pool([ending.result.model_copy(update={"provenance": provenance})]))
    path = store.write(result, place.kept(result, "profiled.json"))
    for written in sorted(stem.parent.glob(f"{stem.name}*")):
        screen.say(f"Profile: {written}")
    return Outcome(model=job.model, result=result, path=path)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the files of one model go."""

    folder: Path
    stamp: str
    default_engine: str | None

    def save(self, result: Result, *, run: int | None = None) -> Path:
        """run: of an incomplete result, which history keeps beside the whole ones."""
        stamp = self.stamp if run is None else f"{self.stamp}_run{run}"
        return store.save(result, self.folder, stamp=stamp, default_engine=self.default_engine)

    def kept(self, result: Result, ending: str) -> Path:
        """A file of this invocation in history."""
        stem = store.file_stem(result, default_engine=self.default_engine)
        return self.folder / "history" / f"{stem}_{self.stamp}_{ending}"

    def elsewhere(self, result: Result, run: int) -> Path:
        """Where the files of a run on other machines go."""
        return self.folder / "cluster" / self.kept(result, f"run{run}").name

    def check_append(self, earlier: Result, later: Result) -> None:
        """Raise UsageError where a run turned out to be of another benchmark; the run itself is kept."""
        try:
            appending.refuse_unlike(earlier, later)
        except UsageError as error:
            kept = self.kept(later, "not_appended.json")
            store.write_atomically(kept, store.to_json(later))
            raise UsageError(f"{error} (this run is in {kept})") from error


def _cool_down(seconds: float, screen: Screen) -> None:
    with screen.cooling(seconds) as tick:
        launch.cool_down(seconds, tick)


def _explained(
    error: TensorPrimatError | None, run: int, runs: int, *, kept: Path | None, partial: Path | None
) -> TensorPrimatError:
    """The cause with which run it was, and where everything is that was measured."""
    cause = error or RunError("the run ended without a result")
    which = f"run {run} of {runs}: " if runs > 1 else ""
    finished = f"; the runs before it are in {kept}" if kept else ""
    begun = f"; what it measured is in {partial}" if partial else ""
    return type(cause)(f"{which}{cause}{finished}{begun}")


def _title(spec: RunSpec) -> str:
    return models.find(spec.model, spec.preset).title


def _with_command(result: Result) -> Result:
    """With the command line that asked for it."""
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return result.model_copy(update={"provenance": result.provenance.model_copy(update={"command": command})})


def _show_end(result: Result, path: Path, screen: Screen) -> None:
    title = f"BENCHMARK {'COMPLETE' if result.complete else 'INCOMPLETE'} - {blocks.what_ran(result)}"
    screen.block(title, [*blocks.end_rows(result), ("Saved", str(path))])
    for warning in result.warnings:
        screen.warn(warning)


def _finish(outcomes: Sequence[Outcome], request: Request, screen: Screen) -> int:
    """The table over models, the JSON, what to do next, and the exit code."""
    done = [outcome for outcome in outcomes if outcome.result is not None and outcome.path is not None]
    results = [outcome.result for outcome in done if outcome.result is not None]
    if len(results) > 1:
        screen.say()
        screen.table(blocks.SUMMARY_TITLES, [blocks.summary_row(result) for result in results])
    if request.json:
        print("[" + ",".join(f"\n{store.to_json(result).rstrip()}" for result in results) + "\n]")
    if done:
        screen.say("\nFiles: " + ", ".join(str(outcome.path) for outcome in done))
        screen.say(f"Next: {_compare_command(request.output)}", style="bold")
    failed = [outcome.error.exit_code for outcome in outcomes if outcome.error is not None]
    if failed:
        return 1 if 1 in failed else 2
    return 0 if done else 2


def _compare_command(folder: Path) -> str:
    words = COMPARE_COMMANDS.get(Path(sys.argv[0]).name, ["python3", "compare_results.py"])
    return shlex.join([*words, *([] if folder == Path("output") else [str(folder)])])
