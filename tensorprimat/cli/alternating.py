"""`benchmark.py --ab FLAGS --ab FLAGS`: runs of two configurations in turn, so that a drift of the machine cancels."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tensorprimat.analysis.compare import compare
from tensorprimat.analysis.ratios import StatedScatter, meet, ratios
from tensorprimat.analysis.sides import alone
from tensorprimat.cli import training
from tensorprimat.cli.live import Screen
from tensorprimat.core import store
from tensorprimat.core.errors import RunError, TensorPrimatError, UsageError
from tensorprimat.core.result import Result
from tensorprimat.core.spec import MODELS, RunSpec
from tensorprimat.core.store import Loaded
from tensorprimat.core.summary import pool
from tensorprimat.engines import default_engine, launch
from tensorprimat.machine.platform import Machine, detect
from tensorprimat.reports import formatting
from tensorprimat.reports.console import print_summary
from tensorprimat.session import append, run_summary
from tensorprimat.session.budget import CONFIDENCE, decide
from tensorprimat.session.plan import Job, Request, check, job_of, plan_here

NAMES = ("a", "b")


@dataclass
class _Side:
    """One configuration of one model, as far as it was measured."""

    name: str
    job: Job
    spec: RunSpec
    request: Request
    place: training.Place
    planned: Result
    parts: list[Result] = field(default_factory=list)
    loaded: Loaded | None = None


def alternate(requests: Sequence[Request]) -> int:
    """Run two configurations in turn, model by model, and compare each pair. Returns the exit code.

    Raises TensorPrimatError for what stops it altogether.
    """
    if len(requests) != 2:
        raise UsageError(f"--ab is given {len(requests)} times; give it twice, once for each configuration")
    first = requests[0]
    for request in requests:
        check(request)
        if request.append or request.profile or request.cluster.executor:
            raise UsageError("--ab: not with --append, --profile or --executor")
        if request.file is not None:
            raise UsageError(f"--output {request.file}: --ab writes two results; name a folder")
    screen = Screen(stderr=first.json)
    machine = detect()
    stamp = store.new_stamp()
    worst, results = 0, []
    for model in MODELS if first.model == "all" else (first.model,):
        sides = [_side(name, model, request, machine, stamp) for name, request in zip(NAMES, requests, strict=True)]
        for side in sides:
            title = f"CONFIGURATION {side.name.upper()} - {training.title_of(side.spec)} on {machine.label}"
            screen.block(title, training.start_rows(side.spec, side.request, machine))
        if first.dry_run:
            continue
        error = _run_in_turn(sides, machine, screen, stamp)
        if error is not None:
            screen.complain(f"{model}: {error}")
            worst = max(worst, 1)
        _show(sides, screen)
        results += [side.loaded.result for side in sides if side.loaded is not None]
    if first.dry_run:
        screen.say("Dry run: nothing was trained or written; every check passed")
    if first.json and results:
        print("[" + ",".join(f"\n{store.to_json(result).rstrip()}" for result in results) + "\n]")
    return worst


def _side(name: str, model: str, request: Request, machine: Machine, stamp: str) -> _Side:
    seen, searches, plan = plan_here(request, (model,), machine)
    job = job_of(model, plan.engines[model], searches.get(model), request, seen)
    if job.spec is None:
        raise UsageError("--ab trains both configurations here; give --engine torch, or another that trains")
    folder = request.output / name
    return _Side(
        name=name,
        job=job,
        spec=job.spec.model_copy(update={"output_dir": str(folder)}),
        request=request,
        place=training.Place(folder=folder, stamp=stamp, default_engine=default_engine(machine.platform)),
        planned=append.planned_result(job.spec, machine),
    )


def _run_in_turn(sides: Sequence[_Side], machine: Machine, screen: Screen, stamp: str) -> TensorPrimatError | None:
    """Run a, b, b, a, a, b … until the budget says stop; what a run measured is saved as it ends.

    Alternating which one is first cancels a steady drift of the machine within the pairs too.
    """
    began, budget = time.monotonic(), sides[0].request.budget
    for number in range(1, budget.most + 1):
        for place, side in enumerate(sides if number % 2 else tuple(reversed(sides))):
            try:
                if number > 1 or place:
                    training.cool_down_after_run(side.request, machine, screen)
                screen.say(f"Run {number}{side.name}")
                before = training.look_before_run(side.request, machine, screen, f"run {number}{side.name}")
                with screen.training(f"{side.job.model} {number}{side.name}", side.spec.max_steps) as show:
                    ending = launch.run(
                        side.spec,
                        module=side.job.module,
                        log=side.place.kept(side.planned, f"run{number}.txt"),
                        on_line=show,
                    )
            except KeyboardInterrupt:
                return RunError("interrupted; the runs before it are kept")
            if ending.error is not None or ending.result is None:
                return ending.error or RunError(f"run {number}{side.name} ended without a result")
            screen.say(run_summary.run_line(ending.result, number))
            measured = training.with_noise(ending.result, before, machine, f"run {number}{side.name}")
            _keep(side, measured, f"{stamp}/{number}")
        results = [side.loaded.result for side in sides if side.loaded is not None]
        decision = decide(budget, results, runs=number, began=began)
        if decision.sentence:
            screen.say(decision.sentence)
        if decision.done:
            for side in sides:
                _save(side, looks=decision.looks)
            return None
    return None


def _keep(side: _Side, result: Result, pair: str) -> None:
    runs = tuple(run.model_copy(update={"pair": pair}) for run in result.runs)
    side.parts.append(result.model_copy(update={"runs": runs}))
    _save(side)


def _save(side: _Side, looks: int = 1) -> None:
    result = training.with_looks(training.with_command(pool(side.parts)), looks)
    side.loaded = Loaded(path=side.place.save(result), result=result)


def _show(sides: Sequence[_Side], screen: Screen) -> None:
    """Print the comparison, also where both configurations are one benchmark."""
    loaded = [side.loaded for side in sides if side.loaded is not None]
    if len(loaded) < 2:
        return
    comparison = compare(loaded)
    if comparison.pairs:
        if not sides[0].request.json:
            print_summary(comparison)
    else:
        assumed = StatedScatter(run_cv=None, confidence=CONFIDENCE)
        base, candidate = (alone(item.result) for item in loaded)
        (ratio,), _ = ratios([meet(base, candidate, assumed)], assumed)
        if ratio is not None:
            screen.say(f"a and b are the same benchmark; b measured {formatting.ratio_in_words(ratio)}", style="bold")
    screen.say("Files: " + ", ".join(str(item.path) for item in loaded))
