"""The flow of one benchmark (plan each model, train it or read its log, save every run, print the totals), and of two
configurations whose runs alternate (--ab), so that a drift of the machine cancels.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tensorprimat.analysis.compare import compare
from tensorprimat.cli.live import Screen
from tensorprimat.cli.options import ended_like_ctrl_c, write_results
from tensorprimat.core.errors import RunError, TensorPrimatError, UsageError
from tensorprimat.core.folders import DEFAULT_FOLDER
from tensorprimat.core.quantities import alternatives, listed
from tensorprimat.core.result import Result
from tensorprimat.core.spec import RunSpec
from tensorprimat.engines import launchers
from tensorprimat.engines.cluster import executors, scripts, submission
from tensorprimat.engines.registry import ENGINES, OWN, default_engine, log_scripts
from tensorprimat.logs import discover
from tensorprimat.machine.platform import Machine, detect_platform
from tensorprimat.reports import formatting, notices
from tensorprimat.reports.console import print_summary
from tensorprimat.session import run_summary, runs
from tensorprimat.session.alternate import check_pair, profile_each, ratio_of, sides_of
from tensorprimat.session.plan import Job, Request, check_facts, check_request, job_of, plan_of, spec_of_rank
from tensorprimat.session.runs import BenchmarkSide, ModelOutcome, outcomes_of, train_in_turn, within_budget
from tensorprimat.storage import store

COMPARE_COMMANDS = {"tprimat": ["tprimat", "compare"], "__main__.py": ["python3", "-m", "tensorprimat", "compare"]}
"""Name that this program was called by → the command to suggest next; scripts suggest compare_results.py."""


def run_benchmark(request: Request) -> int:
    """Run a benchmark and return the exit code. Raises TensorPrimatError for an error that affects all models."""
    check_request(request)
    if place := launchers.training_rank(os.environ):
        return _as_rank(place, request)
    screen = Screen(stderr=request.json)
    machine = detect_platform()
    for warning in machine.warnings:
        screen.warn(warning)
    request, machine, searches, plan = plan_of(request, machine)
    screen.say(f"Engine: {plan.because}")
    jobs = [job_of(model, engine, searches.get(model), request, machine) for model, engine in plan.engines.items()]
    for job in jobs:
        if job.search is not None:
            _say_log(job.model, job.search, screen)
        elif job.engine is None:
            screen.say(f"{job.model}: {plan.untrained}", style="bold yellow")
        for advice in job.advice():
            screen.warn(advice)
    check_facts(request, jobs)
    request, jobs = within_budget(request, jobs, machine, screen)
    if request.runs > 1 and any(job.reads_log for job in jobs):
        screen.warn(f"--runs {request.runs}: a log is read once; its runs are those that it holds")
    if request.dry_run:
        return _dry_run(jobs, request, machine, screen)
    outcomes = []
    with ended_like_ctrl_c(signal.SIGTERM, signal.SIGHUP):
        for outcome in outcomes_of(jobs, request, machine, screen):
            _show_end(screen, outcome)
            outcomes.append(outcome)
    return _finish(outcomes, request, screen)


def _as_rank(place: launchers.Rank, request: Request) -> int:
    """Train in this process as one rank of torchrun or srun; rank 0 prints and writes. Returns the exit code."""
    machine = detect_platform()
    spec = spec_of_rank(request, place, machine)
    launchers.set_lightning_tasks(place)
    screen = Screen(stderr=request.json, silent=place.rank > 0)
    screen.block(
        f"BENCHMARK START - {runs.title_of_run(spec)} on {machine.label}", runs.rows_at_start(spec, request, machine)
    )
    result, error = runs.train_as_rank(spec)
    if place.rank > 0:
        if error is not None:
            raise type(error)(f"rank {place.rank}: {error}")
        return 0
    path = None
    if result is not None:
        result = runs.with_notes(runs.with_command(result), spec)
        path = store.save(
            result, request.output, stamp=store.new_stamp(), default_engine=default_engine(machine.platform)
        )
    outcome = ModelOutcome(model=spec.model, result=result, path=path, error=error)
    _show_end(screen, outcome)
    if error is not None:
        begun = f"is in {path}" if path else None
        screen.complain(f"{spec.model}: {runs.explained_error(error, partial=begun)}")
        outcome = replace(outcome, result=None)
    return _finish([outcome], request, screen)


def _say_log(model: str, search: discover.Search, screen: Screen) -> None:
    """Print which log was chosen and why; if none was found, print the places that were searched and the remedies."""
    if search.path is not None:
        screen.say(f"Log of {model}: {search.path} ({search.because})")
        for other in search.others:
            screen.say(f"  not used: {other}")
        return
    screen.say(f"No log file found for {model}", style="bold yellow")
    variable, *folders = search.searched
    names = f"training_{model}.log, primus_training_{model}*.log, *{model}*.log, *{model}*.out, content of other logs"
    screen.say(f"  searched: ${variable}; {names}; in {', '.join(folders) or 'no folder'}")
    for other in search.others:
        screen.say(f"  not used: {other}")
    scripts = log_scripts(model)
    make = f"make one with {alternatives(scripts)}, " if scripts else ""
    screen.say(
        f"  remedies: set {model.upper()}_LOG=/path/to/its.log, copy the log here as training_{model}.log, "
        f"{make}or train here with --engine torch"
    )


def _dry_run(jobs: Sequence[Job], request: Request, machine: Machine, screen: Screen) -> int:
    """Print what would happen; all checks but those of a log's content were made before. Returns the exit code."""
    worst = 0
    for job in jobs:
        if job.spec is not None:
            rows = runs.rows_at_start(job.spec, request, machine)
            screen.block(f"WOULD TRAIN - {job.model} on {machine.label}", [*rows, ("Results", f"{request.output}/")])
            try:
                job.show_command(screen.say)
            except RunError as error:  # the next model is shown anyway
                screen.complain(f"{job.model}: {error}")
                worst = error.exit_code
            if request.cluster.executor:
                screen.say(_script(job, job.spec, request))
    if request.json:
        print(json.dumps([job.spec.model_dump(mode="json") for job in jobs if job.spec], indent=2))
    if not any(job.engine for job in jobs):
        screen.say("Dry run: there is nothing to run or read")
        return 2
    without = [job.model for job in jobs if not job.engine]
    passed = "every check but those of packages passed" if request.is_for_another_machine else "every check passed"
    checked = f"no log for {listed(without)}" if without else passed
    screen.say(f"Dry run: nothing was trained, read or written{'' if worst else f'; {checked}'}")
    return worst


def _script(job: Job, spec: RunSpec, request: Request) -> str:
    """Return what the executor submits, or without NeMo-Run what the user can. Raises UsageError for other cases."""
    cluster = request.cluster
    if executors.writes_own_script(cluster) and job.engine is ENGINES[OWN]:
        words = (*(["--model", job.model] if request.model == "all" else []), *request.words)
        if request.file is not None and request.runs > 1:
            raise UsageError(
                f"--output {request.file}: each of {request.runs} runs writes its own result; name a folder"
            )
        return scripts.own_script(spec, cluster, words, output=request.file or request.output, runs=request.runs)
    executors.check_submitter(cluster)
    return submission.executor_script(spec, cluster, module=job.module, folder=request.output / "cluster" / "dry_run")


def _show_end(screen: Screen, outcome: ModelOutcome) -> None:
    """Print the figures of what was measured; only a benchmark whose every run ended well is called complete."""
    result = outcome.result
    if result is None:
        return
    state = "COMPLETE" if result.complete and outcome.error is None else "INCOMPLETE"
    title = f"BENCHMARK {state} - {run_summary.what_ran(result)}"
    screen.block(title, [*run_summary.end_rows(result), ("Saved", str(outcome.path))])
    for warning in notices.first_of_each_kind(result.remarks):
        screen.warn(warning)


def _finish(outcomes: Sequence[ModelOutcome], request: Request, screen: Screen) -> int:
    """Print the table over models, the JSON and the next command; return the exit code."""
    done = [outcome for outcome in outcomes if outcome.result is not None and outcome.path is not None]
    results = [outcome.result for outcome in done if outcome.result is not None]
    if len(results) > 1:
        screen.say()
        screen.table(run_summary.SUMMARY_TITLES, [run_summary.summary_row(result) for result in results])
    if request.json:
        print("[" + ",".join(f"\n{store.to_json(result).rstrip()}" for result in results) + "\n]")
    if request.reproduce is not None and not request.json:
        _show_published(request.reproduce, done)
    if results and request.file is not None:
        screen.say(f"Written: {write_results(results, request.file)}")
    if done:
        screen.say("\nFiles: " + ", ".join(str(outcome.path) for outcome in done))
        if request.profile is None:  # a profiled run is never compared
            screen.say(f"Next: {_compare_command(request.output)}", style="bold")
    failed = _exit_code([outcome.error for outcome in outcomes])
    return failed if failed or done else 2


def _show_published(name: str, done: Sequence[ModelOutcome]) -> None:
    """Print each result beside the published one that it reproduces."""
    from tensorprimat.reports import harmless
    from tensorprimat.reproduce import report
    from tensorprimat.reproduce.published import find_baseline
    from tensorprimat.reproduce.reproduction import reproduction_of

    for outcome in done:
        if outcome.result is not None:
            found = reproduction_of(find_baseline(name), outcome.result, str(outcome.path))
            report.show(found, harmless.console(highlight=False))


def _exit_code(errors: Sequence[TensorPrimatError | None]) -> int:
    """Return 1 if a run failed, 2 if all errors are of usage, 0 without an error."""
    codes = {error.exit_code for error in errors if error is not None}
    return 1 if 1 in codes else max(codes, default=0)


def _compare_command(folder: Path) -> str:
    program = Path(sys.argv[0])
    script = program.with_name("compare_results.py")
    other = ["python3", str(script)] if os.path.isfile(script) else COMPARE_COMMANDS["__main__.py"]
    words = COMPARE_COMMANDS.get(program.name, other)
    return shlex.join([*words, *([] if folder == DEFAULT_FOLDER else [str(folder)])])


def alternate(requests: Sequence[Request]) -> int:
    """Run two configurations in turn, model by model, and compare each pair. Returns the exit code.

    Raises TensorPrimatError where no benchmark can run at all.
    """
    launchers.refuse_ranks("--ab")
    check_pair(requests)
    first = requests[0]
    screen = Screen(stderr=first.json)
    machine = detect_platform()
    for warning in machine.warnings:
        screen.warn(warning)
    stamp = store.new_stamp()
    outcomes: list[ModelOutcome] = []
    results: list[Result] = []
    with ended_like_ctrl_c(signal.SIGTERM, signal.SIGHUP):
        for model in first.models:
            sides = sides_of(model, requests, machine, stamp)
            for side in sides:
                screen.say(f"Engine of {side.name}: {side.because}")
                side.show(machine, screen)
                for advice in side.job.advice():
                    screen.warn(advice)
            if first.dry_run:
                continue
            try:
                outcomes.append(train_in_turn(sides, machine, screen))
            except TensorPrimatError as error:
                outcomes.append(ModelOutcome(model=model, error=error))
            if outcomes[-1].error is not None:
                screen.complain(f"{model}: {outcomes[-1].error}")
            _show_pair(sides, screen)
            if outcomes[-1].error is None:
                _explain_pair(profile_each(sides, screen), screen, quiet=first.json)
            results += [side.saved.result for side in sides if side.saved is not None]
            if outcomes[-1].interrupted:
                break
    if first.dry_run:
        screen.say("Dry run: nothing was trained or written; every check passed")
    if first.json and results:
        print("[" + ",".join(f"\n{store.to_json(result).rstrip()}" for result in results) + "\n]")
    return _exit_code([outcome.error for outcome in outcomes])


def _explain_pair(profiled: Sequence[Path], screen: Screen, *, quiet: bool) -> None:
    """Print why one configuration is faster, from a profile of each, which no compared figure contains."""
    from tensorprimat.cli import explain

    if len(profiled) < 2:
        return
    if not quiet:
        try:
            explain.command(profiled[0], profiled[1])
        except TensorPrimatError as error:
            screen.complain(str(error))
    screen.say(shlex.join(["tprimat", "explain", *map(str, profiled)]))


def _show_pair(sides: Sequence[BenchmarkSide], screen: Screen) -> None:
    """Print the comparison, also where both configurations are one benchmark."""
    loaded = [side.saved for side in sides if side.saved is not None]
    if len(loaded) < 2:
        return
    comparison = compare(loaded)
    if comparison.pairs:
        if not sides[0].request.json:
            print_summary(comparison)
    else:
        ratio = ratio_of(loaded)
        if ratio is not None:
            screen.say(
                f"a and b differ in no compared setting; b / a: {formatting.ratio_in_words(ratio)}", style="bold"
            )
    screen.say("Files: " + ", ".join(str(item.path) for item in loaded))
