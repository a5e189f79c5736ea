"""The work of `benchmark.py --ab`: alternating runs of two configurations, so that a drift of the machine cancels."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tensorprimat.analysis.ratios import StatedScatter, compare_groups, ratios
from tensorprimat.analysis.records import Ratio
from tensorprimat.analysis.sides import single_side
from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import Result
from tensorprimat.core.spec import RunSpec
from tensorprimat.core.summary import pool
from tensorprimat.engines import profiling
from tensorprimat.engines.cluster import executors
from tensorprimat.machine.platform import Machine
from tensorprimat.session import append, run_summary
from tensorprimat.session.budget import BUDGET_CONFIDENCE, Decision, decide_runs
from tensorprimat.session.plan import Job, Request, check_facts, check_request, job_of, plan_here
from tensorprimat.session.runs import (
    ModelOutcome,
    Observer,
    Place,
    explained_error,
    save_partial,
    spec_with_less_memory,
    train_once,
    train_profiled,
    with_command,
    with_notes,
    with_provenance,
)
from tensorprimat.storage.store import Loaded

_NAMES = ("a", "b")


@dataclass
class AbSide:
    """One configuration of one model, with its measurements so far."""

    name: str
    because: str
    """Sentence on the chosen engine and the reason."""
    job: Job
    spec: RunSpec
    request: Request
    place: Place
    planned: Result
    parts: list[Result] = field(default_factory=list)
    loaded: Loaded | None = None


def check_pair(requests: Sequence[Request]) -> None:
    """Raise UsageError unless these are two requests whose runs can alternate."""
    if len(requests) != 2:
        raise UsageError("--ab: give it twice, once for each configuration")
    for request in requests:
        check_request(request)
        if request.append or request.cluster.executor or request.facts.gpu:
            raise UsageError("--ab: not with --append, --executor or --gpu")
        if request.file is not None:
            raise UsageError(f"--output {request.file}: --ab writes two results; name a folder")


def sides_of(model: str, requests: Sequence[Request], machine: Machine, stamp: str) -> list[AbSide]:
    """Return the two configurations of a model as sides. Raises UsageError where one of them does not train here."""
    return [_side_of(name, model, request, machine, stamp) for name, request in zip(_NAMES, requests, strict=True)]


def _side_of(name: str, model: str, request: Request, machine: Machine, stamp: str) -> AbSide:
    seen, searches, plan = plan_here(request, (model,), machine)
    engine = plan.engines[model]
    job = job_of(model, engine, searches.get(model), replace(request, profile=None), seen)
    if job.spec is None or engine is None:
        raise UsageError("--ab trains both configurations here; give --engine torch, or another that trains")
    if request.profile is not None:
        profiling.check_profiler(request.profile, engine)
    check_facts(request, [job])
    folder = request.output / name
    return AbSide(
        name=name,
        because=plan.because,
        job=job,
        spec=job.spec.changed(output_dir=str(folder)),
        request=request,
        place=Place(
            folder=folder,
            stamp=stamp,
            default_engine=executors.cluster_default_engine(request.cluster, machine.platform),
        ),
        planned=append.planned_result(job.spec, machine),
    )


def run_in_turn(sides: Sequence[AbSide], machine: Machine, observer: Observer, stamp: str) -> ModelOutcome:
    """Run a, b, b, a, a, b … until the budget ends it, and save each run as it ends.

    The outcome contains no result; each side contains its own. Raises RunError where a result cannot be saved.
    Every second pair has the reverse order, so that a steady drift of the machine cancels over two pairs.
    """
    began, budget, outcome = time.monotonic(), sides[0].request.budget, ModelOutcome(model=sides[0].job.model)
    for number in range(1, budget.most + 1):
        for place, side in enumerate(sides if number % 2 else tuple(reversed(sides))):
            run = f"run {number}{side.name}"
            ending = train_once(
                side.job, side.spec, side.request, machine, observer, first=number == 1 and not place, name=run,
                heading=run.capitalize(), title=f"{side.job.model} {number}{side.name}",
                log=side.place.kept(side.planned, f"run{number}.txt"),
            )  # fmt: skip
            if smaller := spec_with_less_memory(side.spec, ending, observer):
                side.spec = smaller
                for one in sides:
                    one.parts, one.loaded = [], None
                return run_in_turn(sides, machine, observer, stamp)
            if ending.error is not None or ending.result is None:
                kept = [side.loaded.path for side in sides if side.loaded is not None]
                partial = save_partial(ending.result, side.place, number)
                error = explained_error(ending.error, run, kept=kept, partial=partial)
                return replace(outcome, error=error, interrupted=ending.interrupted)
            observer.say(run_summary.run_line(ending.result, number))
            _keep(side, ending.result, f"{stamp}/{number}")
        results = [side.loaded.result for side in sides if side.loaded is not None]
        decision = decide_runs(budget, results, runs=number, began=began)
        if decision.sentence:
            observer.say(decision.sentence)
        for side in sides:
            _save(side, decision)  # also if runs follow: they may fail, and this look at the interval still counts
        if decision.done:
            break
    return outcome


def _keep(side: AbSide, result: Result, pair: str) -> None:
    runs = tuple(run.changed(pair=pair) for run in result.runs)
    side.parts.append(result.changed(runs=runs))
    _save(side)


def _save(side: AbSide, decision: Decision | None = None) -> None:
    result = with_notes(with_command(pool(side.parts)), side.spec)
    if decision is not None:
        result = decision.noted(with_provenance(result, looks=decision.looks))
    side.loaded = Loaded(path=side.place.save(result), result=result)


def profile_each(sides: Sequence[AbSide], observer: Observer) -> list[Path]:
    """Profile a run of each side for which --profile is given; return the results that have a trace."""
    found = []
    for side in sides:
        if side.request.profile is None:
            continue
        outcome = train_profiled(side.job, side.spec, side.request.profile, side.place, side.planned, observer)
        if outcome.path is None:
            observer.say(f"{side.name} was not profiled: {outcome.error}")
        else:
            found.append(outcome.path)
    return found


def ratio_of(loaded: Sequence[Loaded]) -> Ratio | None:
    """Return the ratio of b to a, also where both have equal settings, so that a comparison would pool them."""
    assumed = StatedScatter(run_cv=None, confidence=BUDGET_CONFIDENCE)
    base, candidate = (single_side(item.result) for item in loaded)
    (ratio,), _ = ratios([compare_groups(base, candidate, assumed)], assumed)
    return ratio
