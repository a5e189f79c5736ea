"""Speed of a command in several states of its program: commits in worktrees of their own, or other environments.

The user's checkout is never changed: each commit is checked out in a temporary folder, which is removed also after
Ctrl-C. A measurement is one run of the command; its speed comes from the result or log that it writes, or from its
time.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tensorprimat.analysis.gate import Check, GateReport, Limits, check_of_pairs, gate
from tensorprimat.analysis.levels import LevelName
from tensorprimat.analysis.pairs import PairedChange, look_at, looks_until
from tensorprimat.analysis.rates import NORMALISED_BY, rate_of
from tensorprimat.analysis.ratios import StatedScatter
from tensorprimat.analysis.sides import paired_model
from tensorprimat.core import quantities
from tensorprimat.core.errors import InputError, RunError, UsageError
from tensorprimat.core.fact_values import Statement
from tensorprimat.core.identity import BY_KEY, differing_fields
from tensorprimat.core.quantities import counted
from tensorprimat.core.result import Result
from tensorprimat.core.summary import pool
from tensorprimat.session.sides import laid_over, load_any
from tensorprimat.storage.store import Loaded
from tensorprimat.system import guard, processes

PRINTED_LOG = "-"
"""Name of the log that a command prints."""
_LAST_CHARACTERS = 300  # of a failed command's output in an error
WALL_TIME = "runs_per_second"
"""Metric of commands that write no result: the inverse of their time."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One run of the command."""

    wall_seconds: float
    result: Result | None
    """Figures of the run; None if its own time is the measurement."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A state of the program: a folder in which the command runs, and the measurements so far."""

    name: str
    folder: Path
    side: str | None = None
    """Side of the gate, for facts that are stated for one side."""
    environment: Mapping[str, str] = field(default_factory=dict)
    runs: list[Measured] = field(default_factory=list)


def call_git(folder: Path, *words: str) -> str:
    """Return what git prints. Raises UsageError where git or the repository is missing, or git refuses."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UsageError(f"git cannot be started: {error.strerror}; install git") from error
    if done.returncode:
        raise UsageError(f"git {words[0]}: {' '.join(done.stderr.split()) or 'failed'}")
    return done.stdout.strip()


def commit_of(repository: Path, reference: str) -> str:
    """Return the whole hash of a commit. Raises UsageError where there is none of this name."""
    call_git(repository, "rev-parse", "--git-dir")
    try:
        return call_git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{reference}^{{commit}}")
    except UsageError:
        raise UsageError(f"{reference}: no such commit in this repository; fetch it, or name another") from None


@contextlib.contextmanager
def checkout(repository: Path, commit: str) -> Iterator[Path]:
    """Provide a commit in a temporary worktree, at the place in it that corresponds to the folder `repository`."""
    inside = call_git(repository, "rev-parse", "--show-prefix")
    with tempfile.TemporaryDirectory(prefix="tprimat-") as temporary:
        place = Path(temporary, "tree")
        try:
            call_git(repository, "worktree", "add", "--quiet", "--detach", str(place), commit)
            yield place / inside
        finally:
            shutil.rmtree(place, ignore_errors=True)
            with contextlib.suppress(UsageError):
                call_git(repository, "worktree", "prune")


def run_in(program: Program, command: Sequence[str]) -> tuple[float, str]:
    """Run a command in the folder of a program; return its seconds and its output. Raises RunError if it fails."""
    with tempfile.TemporaryFile() as output, tempfile.NamedTemporaryFile("r") as own_time:
        environment = {**os.environ, **program.environment, guard.SECONDS: own_time.name}
        try:
            code = processes.run_guarded(
                command, cwd=program.folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT,
            ).returncode  # fmt: skip
        except OSError as error:
            raise UsageError(f"{command[0]}: {error.strerror or error}; name a command that can be started") from error
        output.seek(0)
        text, seconds = output.read().decode(errors="replace"), float(own_time.read() or math.nan)
    if code:
        end = " ".join(text[-_LAST_CHARACTERS:].split())
        raise RunError(f"{program.name}: {command[0]} ended with exit code {code}" + (f": … {end}" if end else ""))
    return seconds, text


def measure(
    program: Program, command: Sequence[str], written: str | None, stated: Sequence[Statement] = ()
) -> Measured:
    """Run a command once, add the measurement to its program, and return it.

    written: result, log, or folder of one that the command writes, relative to its folder; PRINTED_LOG: the log that it
    prints; None: its own time is the measurement. stated: facts that a log lacks. Raises RunError if the command fails
    or does not write it.
    """
    began = time.time()
    seconds, output = run_in(program, command)
    result = None
    if written is not None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "output.log") if written == PRINTED_LOG else program.folder / written
            if written == PRINTED_LOG:
                path.write_text(output)
            elif not os.path.exists(path):
                raise RunError(f"{program.name}: the command wrote no {written}")
            elif not os.path.isdir(path) and path.stat().st_mtime < began - 1:  # seconds: file systems round them
                raise RunError(f"{program.name}: the command did not write {written} anew")
            loaded, _ = load_any([path])
        if len(loaded) != 1:
            raise InputError(f"{len(loaded)} results, not one of one model", path=path)
        (result,) = (one.result for one in laid_over([replace(loaded[0], side=program.side)], stated))
    program.runs.append(measured := Measured(wall_seconds=seconds, result=result))
    return measured


def speeds_of(*programs: Program) -> tuple[str, list[list[float]]]:
    """Return the metric in which all runs can be compared, and the speeds of each program's runs in it.

    Raises InputError where they have no rate in common.
    """
    results = [run.result for program in programs for run in program.runs]
    known = [result for result in results if result is not None]
    if not known:
        return WALL_TIME, [[1 / run.wall_seconds for run in program.runs] for program in programs]
    metric = next((name for name, fields in NORMALISED_BY.items() if _is_common(known, name, fields)), None)
    if metric is None or len(known) < len(results):
        names = quantities.listed(program.name for program in programs)
        raise InputError(f"{names}: their results have no rate in common, so their speeds cannot be compared")
    rates = [[rate_of(run.result, metric) or math.nan for run in one.runs if run.result] for one in programs]
    return metric, rates


def _is_common(results: Sequence[Result], metric: str, fields: Sequence[str]) -> bool:
    """Return True if all results have a rate and none contradicts another in what normalises it.

    All are of one command, so settings that they do not state are equal.
    """
    stated = ({BY_KEY[key].read(result) for result in results} - {None} for key in fields)
    return all(rate_of(result, metric) for result in results) and all(len(values) < 2 for values in stated)


def compare_in_turn(
    baseline: Program, candidate: Program, run: Callable[[Program], object], *, limit: float, most: int
) -> PairedChange:
    """Run both programs in turn until the decision is made; return it. run: measures a program once.

    Every second pair has the reverse order, so that a steady drift of the machine cancels.
    """
    looks = looks_until(most)
    while True:
        number = min(len(baseline.runs), len(candidate.runs))
        if number in looks:
            found = look_at(*speeds_of(baseline, candidate)[1], limit=limit, most=most)
            if found.decision != "undecided" or number == most:
                return found
        for program in (baseline, candidate) if number % 2 else (candidate, baseline):
            run(program)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A command and the way to measure it."""

    command: Sequence[str]
    written: str | None
    """As `measure` takes it."""
    prepare: Sequence[str] = ()
    """Command that is run once in each program before the first measurement; empty for none."""
    stated: Sequence[Statement] = ()
    say: Callable[[str], None]
    """Called with a line for each run."""

    def ready(self, program: Program) -> Program:
        """Return a program after its preparation."""
        if self.prepare:
            run_in(program, self.prepare)
        return program

    def run(self, program: Program) -> None:
        """Measure a program once and report the run."""
        measured = measure(program, self.command, self.written, self.stated)
        figures = measured.result and measured.result.performance_metrics
        rate = figures and figures.tokens_per_second_per_gpu
        seconds = (figures and figures.avg_step_time_seconds) or measured.wall_seconds
        shown = f"{quantities.rate(rate)} tokens/s/GPU" if rate else quantities.seconds(seconds)
        self.say(f"run {len(program.runs)} of {program.name}: {shown}")


def gate_in_turn(
    trial: Trial, reference: str, limits: Limits, assumed: StatedScatter, *, lowest: LevelName | None, most: int
) -> GateReport:
    """Judge the program in the working folder against a commit of it by runs in turn, on this machine.

    most: largest number of pairs. Raises RunError if the command fails, UsageError where there is no such commit.
    """
    commit = commit_of(Path(), reference)
    with checkout(Path(), commit) as folder:
        baseline = trial.ready(Program(name=reference, folder=folder, side="baseline"))
        candidate = trial.ready(Program(name="this checkout", folder=Path().absolute(), side="candidate"))
        found = compare_in_turn(baseline, candidate, trial.run, limit=limits.slowdown, most=most)
    metric, speeds = speeds_of(baseline, candidate)
    here = f"{counted(found.pairs, 'pair')} of runs of the command, at {reference} ({commit[:12]}) and here, in turn."
    model, notes, others = "command", [here], list[Check]()
    if all(run.result for run in (*baseline.runs, *candidate.runs)):
        base, new = (pool([run.result for run in one.runs if run.result]) for one in (baseline, candidate))
        model = paired_model(base)
        for one in differing_fields(base, new, unknown_equal=True):
            values = (quantities.shown_value(one.read(side)) for side in (base, new))
            notes.append(f"{model}: {one.label} {' against '.join(values)}")
        if limits.memory_increase is not None or limits.loss_gap is not None:
            first, second = ([Loaded(path=Path(f"runs {place}"), result=one)] for place, one in enumerate((base, new)))
            report = gate(first, second, limits, assumed, lowest=lowest)
            others += [one for one in report.checks if one.kind != "throughput"]
            notes += report.notes
    check = check_of_pairs(model, found, metric, speeds, limits.slowdown)
    return GateReport(checks=(check, *others), notes=tuple(notes))
