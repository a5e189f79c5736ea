"""The work of `benchmark.py --ab`: alternating runs of two configurations, so that a drift of the machine cancels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tensorprimat.analysis.ratios import StatedScatter, compare_groups, ratios
from tensorprimat.analysis.records import Ratio
from tensorprimat.analysis.sides import single_side
from tensorprimat.core.errors import UsageError
from tensorprimat.engines import profiling
from tensorprimat.engines.cluster import executors
from tensorprimat.machine.platform import Machine
from tensorprimat.session import append
from tensorprimat.session.budget import BUDGET_CONFIDENCE
from tensorprimat.session.plan import Request, check_facts, check_request, job_of, plan_here
from tensorprimat.session.runs import BenchmarkSide, Observer, Place, train_profiled
from tensorprimat.storage.store import Loaded

_NAMES = ("a", "b")


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


def sides_of(model: str, requests: Sequence[Request], machine: Machine, stamp: str) -> list[BenchmarkSide]:
    """Return the two configurations of a model as sides. Raises UsageError where one of them does not train here."""
    return [_side_of(name, model, request, machine, stamp) for name, request in zip(_NAMES, requests, strict=True)]


def _side_of(name: str, model: str, request: Request, machine: Machine, stamp: str) -> BenchmarkSide:
    seen, searches, plan = plan_here(request, (model,), machine)
    engine = plan.engines[model]
    job = job_of(model, engine, searches.get(model), replace(request, profile=None), seen)
    if job.spec is None or engine is None:
        raise UsageError("--ab trains both configurations here; give --engine torch, or another that trains")
    if request.profile is not None:
        profiling.check_profiler(request.profile, engine)
    check_facts(request, [job])
    folder = request.output / name
    return BenchmarkSide(
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


def profile_each(sides: Sequence[BenchmarkSide], observer: Observer) -> list[Path]:
    """Profile a run of each side for which --profile is given; return the results that have a trace."""
    found = []
    for side in sides:
        if side.request.profile is None:
            continue
        outcome = train_profiled(side, side.request.profile, observer)
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
