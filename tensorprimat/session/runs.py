"""The runs of one benchmark: fit the jobs to the budget, then train each model or read its log.

Every run has its own process and is saved as it ends. An observer receives the progress.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from tensorprimat.core.errors import InputError, OutOfMemoryError, RunError, TensorPrimatError, UsageError
from tensorprimat.core.quantities import listed
from tensorprimat.core.result import Result
from tensorprimat.core.settings import OF_A_LOG
from tensorprimat.core.spec import RunSpec
from tensorprimat.core.summary import pool
from tensorprimat.engines import launch, methodology, profiling
from tensorprimat.engines.cluster import executors, submission
from tensorprimat.engines.registry import ENGINES
from tensorprimat.machine import noise
from tensorprimat.machine.platform import Machine
from tensorprimat.models import training_memory
from tensorprimat.models.custom import model_of
from tensorprimat.session import append, run_summary, run_time
from tensorprimat.session.budget import Decision, decide_runs
from tensorprimat.session.extract import read_found_log
from tensorprimat.session.plan import Job, Request
from tensorprimat.storage import result_names, store
from tensorprimat.storage.store import Loaded
from tensorprimat.system import atomic, processes, regular

GPU_COOLDOWN_SECONDS = 30.0
IMPORTS_SECONDS = 10.0  # a shorter pause may end before the imports, which the look at the machine would then see


@dataclass(frozen=True, kw_only=True)
class ModelOutcome:
    """The outcome of one model: a result, an error, or both if a later run failed."""

    model: str
    result: Result | None = None
    path: Path | None = None
    error: TensorPrimatError | None = None
    interrupted: bool = False


@dataclass(kw_only=True)
class BenchmarkSide:
    """One configuration of one model, with its measurements so far."""

    job: Job
    spec: RunSpec
    request: Request
    place: Place
    planned: Result
    name: str = ""
    """Letter of a configuration of --ab; empty without --ab."""
    because: str = ""
    """Sentence on the chosen engine and the reason, with --ab."""
    parts: list[Result] = field(default_factory=list)
    saved: Loaded | None = None

    def show(self, machine: Machine, observer: Observer) -> None:
        """Show the block before the runs."""
        start = f"CONFIGURATION {self.name.upper()}" if self.name else "BENCHMARK START"
        rows = rows_at_start(self.spec, self.request, machine)
        observer.block(f"{start} - {title_of_run(self.spec)} on {machine.label}", rows)

    def save(self, measured: Result, decision: Decision | None = None) -> None:
        """Save the pooled runs, with the checks of the interval and a limit that ended the runs."""
        result = with_notes(with_command(measured), self.spec)
        if decision is not None:
            result = decision.noted(with_provenance(result, looks=decision.looks))
        self.saved = Loaded(path=self.place.save(result), result=result)

    def outcome(self, error: TensorPrimatError | None = None, *, interrupted: bool = False) -> ModelOutcome:
        """Return what is saved, and the error that ended the runs."""
        result, path = (self.saved.result, self.saved.path) if self.saved is not None else (None, None)
        return ModelOutcome(model=self.job.model, result=result, path=path, error=error, interrupted=interrupted)


def train_in_turn(sides: Sequence[BenchmarkSide], machine: Machine, observer: Observer) -> ModelOutcome:
    """Run a, b, b, a, a, b …, or a single side, until the budget ends it; save each run as it ends.

    Returns the outcome of the first side; each side contains its own result. Raises RunError where a result cannot be
    saved. Every second pair has the reverse order, so that a steady drift of the machine cancels over two pairs.
    """
    first, began = sides[0], time.monotonic()
    budget, earlier = first.request.budget, first.job.earlier
    for side in sides:
        side.parts, side.saved = [] if earlier is None else [earlier], None
    for number in range(1, budget.most + 1):
        order = sides if number % 2 else tuple(reversed(sides))
        for side in order:
            ending = _train_once(side, number, machine, observer, first=number == 1 and side is first)
            if earlier is None and (smaller := spec_with_less_memory(side.spec, ending, observer)):
                side.spec = smaller
                side.show(machine, observer)
                return train_in_turn(sides, machine, observer)
            if ending.error is not None or ending.result is None:
                which = f"run {number} of {budget.most}" if budget.most > 1 else None
                error = explained_error(
                    ending.error,
                    f"run {number}{side.name}" if side.name else which,
                    kept=[one.saved.path for one in sides if one.saved is not None],
                    partial=save_partial(ending.result, side.place, number),
                )
                return first.outcome(error, interrupted=ending.interrupted)
            if earlier is not None:
                side.place.check_append(earlier, ending.result)
            observer.say(run_summary.run_line(ending.result, number))
            pair = f"{side.place.stamp}/{number}" if side.name else None
            side.parts.append(ending.result.changed(runs=tuple(run.changed(pair=pair) for run in ending.result.runs)))
            if side is not order[-1]:  # the last one is saved with the decision
                side.save(pool(side.parts))
        results = [pool(side.parts) for side in sides]
        decision = decide_runs(budget, results, runs=number, began=began, earlier=earlier)
        for side, result in zip(sides, results, strict=True):
            side.save(result, decision)  # if runs follow, too: they may fail, and this look still counts
        if decision.sentence:
            observer.say(decision.sentence)
        if decision.done:
            break
    return first.outcome()


def _train_once(
    side: BenchmarkSide, number: int, machine: Machine, observer: Observer, *, first: bool
) -> launch.Ending:
    """Run a side once after the pause, and return the outcome with warnings about other work on the machine."""
    job, spec, request, most = side.job, side.spec, side.request, side.request.budget.most
    gpus, name = machine.gpus_of(spec), f"run {number}{side.name}"
    title = f"{job.model} {number}{side.name}" if side.name else f"{job.model} run {number}/{most}"
    try:
        with process_after_pause(job, spec, request, machine, observer, first=first) as process:
            if side.name or most > 1:
                is_open = side.name or request.budget.target is not None
                observer.say(name.capitalize() if is_open else f"Run {number} of {most}")
            before = look_before_run(request, gpus, observer, name)
            with observer.training(title, spec.max_steps) as show:
                ending = launch.run_in_process(
                    spec, module=job.module, log=side.place.kept(side.planned, f"run{number}.txt"), on_line=show,
                    wrapping=submission.submit_command(request.cluster, side.place.elsewhere(side.planned, number)),
                    process=process,
                )  # fmt: skip
    except KeyboardInterrupt:  # outside of `launch.run_in_process`, such as while cooling down
        return launch.Ending(result=None, error=RunError("interrupted"), interrupted=True)
    if ending.error is not None or ending.result is None:
        return ending
    return replace(ending, result=with_noise(ending.result, before, gpus, name))


def spec_with_less_memory(spec: RunSpec, ending: launch.Ending, observer: Observer) -> RunSpec | None:
    """Return the spec with which all runs start again after a run that was out of memory, or None.

    Only where the engine chose what to keep, no step was measured, and a smaller plan exists.
    """
    measured = ending.result is not None and ending.result.performance_metrics.measured_steps
    if not (spec.falls_back and isinstance(ending.error, OutOfMemoryError)) or measured or ending.interrupted:
        return None
    smaller = training_memory.next_smaller(spec)
    if smaller is None:
        return None
    observer.warn(smaller.notes[-1])
    return smaller


def look_before_run(request: Request, gpus: Sequence[str], observer: Observer, run: str) -> noise.NoiseReading | None:
    """Return a reading of the machine and the run's GPUs, after warnings about other work; None with an executor.

    gpus: identities of the GPUs that take part.
    """
    if request.cluster.executor:
        return None
    before = noise.observe_machine(gpus)
    for warning in noise.about(before, f"before {run}"):
        observer.warn(warning)
    return before


def with_noise(result: Result, before: noise.NoiseReading | None, gpus: Sequence[str], run: str) -> Result:
    """Return the result with warnings about other work before or after the run, and about limits that changed."""
    if before is None:
        return result
    after = noise.observe_machine(gpus)
    warnings = [*noise.about(before, f"before {run}"), *noise.about(after, f"after {run}")]
    warnings += noise.moved(before, after, f"during {run}")
    return result.changed(warnings=(*result.warnings, *warnings)) if warnings else result


def with_notes(result: Result, spec: RunSpec) -> Result:
    """Return the result with the spec's notes on its configuration as warnings, each once."""
    return result.changed(warnings=tuple(dict.fromkeys((*result.warnings, *spec.notes))))


@contextmanager
def process_after_pause(
    job: Job, spec: RunSpec, request: Request, machine: Machine, observer: Observer, *, first: bool
) -> Iterator[launch.EngineProcess | None]:
    """Wait for `cooldown_of` seconds before a run that is not the first; yield its process if it imports meanwhile."""
    if first:
        yield None
        return
    seconds = cooldown_of(request, machine)
    imports = seconds >= IMPORTS_SECONDS and ENGINES[spec.engine].own_training and not request.cluster.executor
    with launch.engine_process(spec, module=job.module, waits=True) if imports else nullcontext() as process:
        with observer.cooling(seconds) as tick:
            launch.cool_down(seconds, tick)
        yield process


def save_partial(result: Result | None, place: Place, run: int) -> str | None:
    """Save the steps of a failed run; return a phrase on the file, or on why they could not be saved.

    result: those steps; None if there are none, for which the phrase is None.
    """
    if result is None:
        return None
    try:
        return f"is in {place.save(result, run=run)}"
    except OSError as error:
        return f"could not be kept in {error.filename}: {error.strerror}"
    except RunError as error:
        return f"could not be kept in its folder: {error}"


def train_profiled(side: BenchmarkSide, profiler: str, observer: Observer) -> ModelOutcome:
    """Train one run under a profiler; its result is marked as profiled and written to history only."""
    job, place = side.job, side.place
    stem = regular.resolved(place.kept(side.planned, profiler))
    stem.parent.mkdir(parents=True, exist_ok=True)
    spec = side.spec.changed(options={**side.spec.options, **profiling.options(profiler, stem)})
    with observer.training(f"{job.model} profiled", spec.max_steps) as show:
        log, around = place.kept(side.planned, "run1.txt"), profiling.profiler_command(profiler, stem)
        ending = launch.run_in_process(spec, module=job.module, log=log, on_line=show, wrapping=around)
    if smaller := spec_with_less_memory(side.spec, ending, observer):
        return train_profiled(replace(side, spec=smaller), profiler, observer)
    measured = None if ending.result is None else with_provenance(ending.result, profiled=True)
    if measured is None or ending.error is not None:
        error = explained_error(ending.error, partial=save_partial(measured, place, 1))
        return ModelOutcome(model=job.model, error=error, interrupted=ending.interrupted)
    result = with_notes(with_command(pool([measured])), spec)
    path = store.write(result, place.kept(result, "profiled.json"))
    for written in sorted(stem.parent.glob(f"{stem.name}*")):
        observer.say(f"Profile: {written}")
    return ModelOutcome(model=job.model, result=result, path=path)


@dataclass(frozen=True, kw_only=True)
class Place:
    """The output folder of one model's files, and the parts of their names."""

    folder: Path
    stamp: str
    default_engine: str | None

    def save(self, result: Result, *, run: int | None = None) -> Path:
        """Write a result and return its path. Raises RunError if it had to write into another folder.

        run: number of an incomplete result's run, which makes the names of history files distinct.
        """
        stamp = self.stamp if run is None else f"{self.stamp}_run{run}"
        with store.rescuing(result, stamp):
            return store.save(result, self.folder, stamp=stamp, default_engine=self.default_engine)

    def kept(self, result: Result, ending: str) -> Path:
        """Return the path of a file of this invocation in history."""
        stem = result_names.file_stem(result, default_engine=self.default_engine)
        return self.folder / store.HISTORY / f"{stem}_{self.stamp}_{ending}"

    def elsewhere(self, result: Result, run: int) -> Path:
        """Return the folder for the files of a run that an executor starts."""
        return self.folder / "cluster" / self.kept(result, f"run{run}").name

    def check_append(self, earlier: Result, later: Result) -> None:
        """Raise UsageError if a run turned out to be of another benchmark, after writing it to history."""
        try:
            append.refuse_unlike(earlier, later)
        except UsageError as error:
            kept = self.kept(later, "not_appended.json")
            atomic.write_atomically(kept, store.to_json(later))
            raise UsageError(f"{error} (this run is in {kept})") from error


def rows_at_start(spec: RunSpec, request: Request, machine: Machine) -> list[tuple[str, str]]:
    rows = run_summary.start_rows(spec, machine, runs=request.runs, cooldown_seconds=cooldown_of(request, machine))
    if request.cluster.executor:
        rows.append(("Nodes", executors.describe_cluster(request.cluster, spec.num_nodes)))
    return rows


def cooldown_of(request: Request, machine: Machine) -> float:
    """Return the seconds between two runs: --cooldown, else the platform's default."""
    default = 0.0 if machine.platform == "cpu" else GPU_COOLDOWN_SECONDS
    return default if request.cooldown_seconds is None else request.cooldown_seconds


def explained_error(
    error: TensorPrimatError | None, run: str | None = None, *, kept: Sequence[Path] = (), partial: str | None
) -> TensorPrimatError:
    """Return the error of a run with the run's name and the files that contain the measurements.

    run: name of the run, such as "run 2 of 3"; None for the only one. kept: files of the runs before it. partial:
    phrase on the file of the failed run's own steps.
    """
    cause = error or RunError("the run ended without a result")
    which = f"{run}: " if run else ""
    finished = f"; the runs before it are in {listed(map(str, kept))}" if kept else ""
    begun = f"; its partial result {partial}" if partial else ""
    return type(cause)(f"{which}{cause}{finished}{begun}")


def title_of_run(spec: RunSpec) -> str:
    return model_of(spec).title


def with_provenance(result: Result, **changes: Any) -> Result:
    """Return the result with these fields of its provenance changed."""
    return result.changed(provenance=result.provenance.changed(**changes))


def with_command(result: Result) -> Result:
    """Return the result with the command line that requested it."""
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return with_provenance(result, command=command)


def within_budget(request: Request, jobs: list[Job], machine: Machine, observer: Observer) -> tuple[Request, list[Job]]:
    """Fit the trainings to --budget-minutes, tell the observer their time, and return the fitted request and jobs."""
    specs = {job.model: job.spec for job in jobs if job.spec is not None}
    budget, pause, fit = request.budget, cooldown_of(request, machine), None
    if not specs or budget.target is not None:
        return request, jobs
    if budget.minutes is not None:
        free = frozenset() if request.append else frozenset(run_time.FITTED) - request.typed
        fit = run_time.fitted(specs, machine, runs=request.runs, pause=pause, minutes=budget.minutes, free=free)
        specs = {model: run_time.with_note(specs[model], spec, budget.minutes) for model, spec in fit.specs.items()}
        jobs = [replace(job, spec=specs[job.model]) if job.spec is not None else job for job in jobs]
        request = replace(request, budget=replace(budget, minutes=budget.minutes / len(specs)))
    if machine.platform != "cpu":
        told = run_time.run_time_sentence(
            list(specs.values()), machine, runs=request.runs, pause=pause, minutes=budget.minutes, fit=fit
        )
        observer.say(told)
    return request, jobs


def outcomes_of(jobs: Sequence[Job], request: Request, machine: Machine, observer: Observer) -> Iterator[ModelOutcome]:
    """Yield the outcome of one model after the other. After a failure the next model runs; Ctrl-C ends the benchmark.

    The observer receives an error after the outcome has been yielded.
    """
    stamp = store.new_stamp()
    for job in jobs:
        if job.engine is None:
            continue
        try:
            if job.spec is not None:
                default = executors.cluster_default_engine(request.cluster, machine.platform)
                place = Place(folder=request.output, stamp=stamp, default_engine=default)
                planned = append.planned_result(job.spec, machine)
                side = BenchmarkSide(job=job, spec=job.spec, request=request, place=place, planned=planned)
                side.show(machine, observer)
                if request.profile is not None:
                    outcome = train_profiled(side, request.profile, observer)
                else:
                    outcome = train_in_turn([side], machine, observer)
            else:
                outcome = _read(job, request, machine, stamp)
        except TensorPrimatError as error:
            outcome = ModelOutcome(model=job.model, error=error)
        yield outcome
        if outcome.error is not None:
            observer.complain(f"{job.model}: {outcome.error}")
        if outcome.interrupted:
            return


def _read(job: Job, request: Request, machine: Machine, stamp: str) -> ModelOutcome:
    """Read the log of one model, save it as a result, and return the outcome."""
    if job.search is None or job.search.path is None:
        raise RunError("no log to read")
    settings = request.settings
    facts = replace(request.facts, preset=settings.preset, **{name: getattr(settings, name) for name in OF_A_LOG})
    result = read_found_log(job.search.path, job.model, facts, machine)
    result = methodology.label(with_command(result), settings.methodology)
    return ModelOutcome(model=job.model, result=result, path=store.save(result, request.output, stamp=stamp))


def train_as_rank(spec: RunSpec) -> tuple[Result | None, TensorPrimatError | None]:
    """Train in this process. Return the result (None except on rank 0; incomplete after an error) and the error."""
    from tensorprimat.engines.torch import engine as torch_engine

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


class Observer(Protocol):
    """The receiver of a benchmark's progress; `cli/live.Screen` shows it."""

    def say(self, text: str = "", *, style: str | None = None) -> None:
        """Show one line."""

    def warn(self, text: str) -> None:
        """Show a warning about a figure."""

    def complain(self, text: str) -> None:
        """Show the error of one model."""

    def block(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Show a block of names and values under a title."""

    def training(self, title: str, steps: int) -> AbstractContextManager[Callable[[str], None]]:
        """Return a context for one run of that many steps; it yields a function for each line of the engine."""

    def cooling(self, seconds: float) -> AbstractContextManager[Callable[[float], None]]:
        """Return a context for a pause; it yields a function to call with the seconds that are left."""
