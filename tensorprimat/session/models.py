"""Every model of one benchmark: its trainings fitted to the budget, then each trained, or its log read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tensorprimat.core import store
from tensorprimat.core.errors import RunError, TensorPrimatError
from tensorprimat.core.result import Result
from tensorprimat.core.settings import OF_A_LOG
from tensorprimat.engines import methodology
from tensorprimat.machine.platform import Machine
from tensorprimat.session import found_log, run_time
from tensorprimat.session.observer import Observer
from tensorprimat.session.plan import Job, Request
from tensorprimat.session.runs import ModelOutcome, cooldown_of, train, with_command


def within_budget(request: Request, jobs: list[Job], machine: Machine, observer: Observer) -> tuple[Request, list[Job]]:
    """Print the estimated time of the trainings, fitted to --budget-minutes, and return what then runs."""
    specs = {job.model: job.spec for job in jobs if job.spec is not None}
    budget, pause = request.budget, cooldown_of(request, machine)
    if not specs or budget.target is not None:
        return request, jobs
    if budget.minutes is not None:
        typed = {*request.typed, *(("steps", "global_batch_size") if request.append else ())}
        free = frozenset({"global_batch_size", "steps"} - typed)
        fitted = run_time.fitted(specs, machine, runs=request.runs, pause=pause, minutes=budget.minutes, free=free)
        for model, spec in fitted.items():
            if spec != (was := specs[model]):
                observer.say(
                    f"{model}: batch {spec.global_batch_size} (default {was.global_batch_size}), {spec.steps} measured "
                    f"steps (default {was.steps}) by --budget-minutes {budget.minutes:g}; compare only "
                    "results of one batch size, or set it with --global-batch-size"
                )
        specs = fitted
        jobs = [replace(job, spec=specs[job.model]) if job.spec is not None else job for job in jobs]
        request = replace(request, budget=replace(budget, minutes=budget.minutes / len(specs)))
    if machine.platform != "cpu":
        observer.say(run_time.sentence(list(specs.values()), machine, runs=request.runs, pause=pause))
    return request, jobs


def outcomes_of(
    jobs: Sequence[Job],
    request: Request,
    machine: Machine,
    observer: Observer,
    show_end: Callable[[Result, Path], None],
) -> Iterator[ModelOutcome]:
    """Yield one model after the other; one that fails does not keep the next from running, Ctrl-C does.

    show_end: is given each result and its file.
    """
    stamp = store.new_stamp()
    for job in jobs:
        if job.engine is None:
            continue
        try:
            if job.spec is not None:
                outcome = train(job, job.spec, request, machine, observer, stamp)
            else:
                outcome = _read(job, request, machine, stamp)
        except TensorPrimatError as error:
            outcome = ModelOutcome(model=job.model, error=error)
        if outcome.result is not None and outcome.path is not None:
            show_end(outcome.result, outcome.path)
        if outcome.error is not None:
            observer.complain(f"{job.model}: {outcome.error}")
        yield outcome
        if outcome.interrupted:
            return


def _read(job: Job, request: Request, machine: Machine, stamp: str) -> ModelOutcome:
    """Return the log of one model as its result."""
    if job.search is None or job.search.path is None:
        raise RunError("no log to read")
    settings = request.settings
    facts = replace(
        request.facts,
        preset=settings.preset,
        **{name: getattr(settings, name) for name in OF_A_LOG},
    )
    result = found_log.read(job.search.path, job.model, facts, machine)
    result = methodology.label(with_command(result), settings.methodology)
    return ModelOutcome(model=job.model, result=result, path=store.save(result, request.output, stamp=stamp))
