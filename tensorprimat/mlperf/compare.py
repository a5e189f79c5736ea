"""Comparison of two GPUs by MLPerf Training: time to one quality target, with intervals, split into its factors.

Several submitters of one GPU are a random effect: the mean of their logarithms with a variance between submitters
(Paule and Mandel 1982) in addition to the variance over runs, which is pooled over entries, and the interval of Hartung
and Knapp (2001), because one entry does not represent all systems with a GPU. Entries of one submitter are averaged
first, and entries that repeat the runs of another one count once.

minutes = samples × 1/rate × (time to train / training time) × scaling factor, of the runs that the score averages; each
factor is averaged over submitters with the weights of the minutes, so that the ratios multiply to the ratio of minutes.
Where an entry's training time is unknown, the rate is that of the whole time to train, evaluation and set-up included.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal, NamedTuple

import numpy as np

from tensorprimat.analysis.levels import LEVELS, Level
from tensorprimat.analysis.stats import LogEstimate, welch_log_ratio
from tensorprimat.core.errors import UsageError
from tensorprimat.core.quantities import shortened_list
from tensorprimat.mlperf.library import Entry, of_gpu
from tensorprimat.mlperf.score import Repeat, Scored, distinct_entries, identity_of_runs

FACTORS = ("rate", "samples", "evaluation_and_set_up", "scaling")
OVERALL_RATE = "rate_with_evaluation"
COARSE_FACTORS = (OVERALL_RATE, "samples", "scaling")
"""Factors of entries whose training time is unknown."""
_EQUAL = 1e-12  # relative deviation of equal times, from rounding of their logarithms


@dataclass(frozen=True, kw_only=True, order=True)
class Task:
    """The benchmark that both sides train to the same target, on the same number of GPUs."""

    benchmark: str
    num_gpus: int


@dataclass(frozen=True, kw_only=True)
class TaskSide:
    """One GPU on one task in one round: the entries of every submitter and their mean."""

    gpu: str
    round: str
    scored: tuple[Scored, ...]
    """Entries with a score, fastest first."""
    estimate: LogEstimate
    """Logarithm of the minutes, averaged over submitters."""
    weights: Mapping[str, float]
    """Of each submitter; they add up to 1."""
    over_submitters: float | None
    """Relative standard deviation between submitters beyond that of their runs; None for one submitter."""
    over_runs: float | None
    """Relative standard deviation of the successful runs of one entry, pooled over entries."""
    factors: Mapping[str, float]
    """Logarithms of FACTORS and COARSE_FACTORS, without those that an entry's logs do not state."""
    repeats: tuple[Repeat, ...] = ()
    """Entries that are left out because another one has their runs."""

    @property
    def minutes(self) -> float:
        """Return the minutes to train, as the geometric mean over submitters."""
        return math.exp(self.estimate.log)

    @property
    def no_scatter(self) -> str:
        """Return the reason why the runs show no scatter."""
        if all(len(one.succeeded) == 1 for one in self.scored):
            return "no entry has two successful runs, so their scatter is unknown"
        return "the runs of each entry have equal times, so their scatter is unknown"

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(sorted({one.entry.global_batch_size for one in self.scored if one.entry.global_batch_size}))


WarningKind = Literal["one submitter", "no interval", "other round", "shared runs", "same runs", "precision"]


class TaskWarning(NamedTuple):
    """A sentence that limits what a comparison shows, with its kind, for callers that show some kinds only."""

    kind: WarningKind
    text: str


@dataclass(frozen=True, kw_only=True)
class TaskComparison:
    """First side over second side."""

    task: Task
    sides: tuple[TaskSide, TaskSide]
    ratio: LogEstimate
    parts: Mapping[str, float]
    """Ratios of FACTORS, or of COARSE_FACTORS where a side has no others; empty where it has none.

    Their product, the rate inverted, is the ratio of minutes.
    """
    warnings: tuple[TaskWarning, ...] = ()
    level: Level = field(default_factory=lambda: LEVELS["same_task"])


def side(entries: Sequence[Entry], gpu: str, round: str) -> TaskSide | None:
    """Return the entries of one GPU on one task as a side, or None where none has a score."""
    once, repeats = distinct_entries(entries)
    scored = sorted((one for one in map(Scored, once) if one.minutes), key=lambda one: one.minutes or math.inf)
    groups: dict[str, list[Scored]] = {}
    for one in scored:
        groups.setdefault(one.entry.submitter, []).append(one)
    runs = _over_runs(scored)
    if not groups:
        return None
    means = [_of_submitter(group, runs) for group in groups.values()]
    estimate, weights, between = _over_submitters(means)
    shares = dict(zip(groups, weights, strict=True))
    return TaskSide(
        gpu=gpu,
        round=round,
        scored=tuple(scored),
        estimate=estimate,
        weights=shares,
        over_submitters=between,
        over_runs=runs[0] if runs else None,
        factors=_factors(groups, shares),
        repeats=repeats,
    )


def compare_gpus(entries: Sequence[Entry], first: str, second: str) -> tuple[TaskComparison, ...]:
    """Return the comparison of two GPUs on every task that both have, in the newest round that holds both.

    first and second: names of GPUs, with @ROUND where a round is meant. Raises UsageError where they share no task.
    """
    sides = [_entries_of(entries, name) for name in (first, second)]
    tasks = [{Task(benchmark=one.benchmark, num_gpus=one.num_gpus) for one in some if one.num_gpus} for some in sides]
    rounds_named = any("@" in name for name in (first, second))
    if {one.name for one in sides[0]} == {one.name for one in sides[1]}:
        raise UsageError(
            f"{first} and {second} are the same entries; choose a round with GPU@ROUND, or name one GPU for its scaling"
        )
    found = [
        one
        for task in sorted(tasks[0] & tasks[1])
        if (one := _compare(sides, task, same_round=not rounds_named)) is not None
    ]
    if not found:
        places = "; ".join(f"{name}: {_where(some)}" for name, some in zip((first, second), sides, strict=True))
        in_one, remedy = ("", "") if rounds_named else (" in one round", "; choose rounds with GPU@ROUND")
        task = f"the same benchmark and number of GPUs{in_one}"
        raise UsageError(f"{first} and {second} have no scores on {task} ({places}){remedy}")
    return tuple(found)


def _entries_of(entries: Sequence[Entry], name: str) -> tuple[Entry, ...]:
    gpu, _, round = name.partition("@")
    chosen = tuple(
        one for one in entries if one.is_closed and (not round or one.round == f"v{round.removeprefix('v')}")
    )
    found = of_gpu(chosen, gpu)
    if not found:
        there = sorted({one.gpu for one in chosen if one.gpu})
        raise UsageError(f"{name}: no closed entry of this GPU; there are {', '.join(there) or 'none'}")
    return found


def _compare(sides: Sequence[Sequence[Entry]], task: Task, *, same_round: bool) -> TaskComparison | None:
    ours = [[one for one in some if (one.benchmark, one.num_gpus) == (task.benchmark, task.num_gpus)] for some in sides]
    rounds = [{one.round for one in some} for some in ours]
    if same_round:
        rounds = [rounds[0] & rounds[1]] * 2
    if not all(rounds):
        return None
    newest = [max(some, key=version) for some in rounds]
    first, second = (
        side([one for one in some if one.round == round], str(some[0].gpu), round)
        for some, round in zip(ours, newest, strict=True)
    )
    return None if first is None or second is None else of_sides(task, first, second)


def of_sides(task: Task, first: TaskSide, second: TaskSide) -> TaskComparison:
    shared = first.factors.keys() & second.factors.keys()
    names = next((some for some in (FACTORS, COARSE_FACTORS) if shared.issuperset(some)), ())
    return TaskComparison(
        task=task,
        sides=(first, second),
        ratio=welch_log_ratio(first.estimate, second.estimate),
        parts={name: math.exp(first.factors[name] - second.factors[name]) for name in names},
        warnings=tuple(TaskWarning(*one) for one in _warnings(first, second)),
    )


def _warnings(first: TaskSide, second: TaskSide) -> Iterator[tuple[WarningKind, str]]:
    for one in (first, second):
        if one.over_submitters is None:
            alone = f"one submitter, {one.scored[0].entry.submitter}; the interval covers only its runs"
            yield "one submitter", f"{one.gpu} {one.round}: {alone}, and other machines may differ"
        if not math.isfinite(one.estimate.variance):
            yield "no interval", f"{one.gpu} {one.round}: no interval, because {one.no_scatter}"
    if first.round != second.round:
        apart = f"{first.gpu} is from {first.round} and {second.gpu} from {second.round}"
        yield "other round", f"{apart}, so the software differs too"
    ours, theirs = (_hashes(one) for one in (first, second))
    for name in sorted({ours[run] for run in ours.keys() & theirs.keys()}):
        why = "their difference comes from scoring, not from speed"
        yield "shared runs", f"{name} shares runs with the other side: {why}"
    for repeat in (*first.repeats, *second.repeats):
        yield "same runs", repeat.sentence
    if precision := _precisions(first, second):
        yield "precision", precision


def _precisions(first: TaskSide, second: TaskSide) -> str | None:
    """Return a note on the sides' precision, or None where all entries state the same one."""
    precisions = [{one.precision for one in each.scored} for each in (first, second)]
    if precisions[0] == precisions[1] and len(precisions[0]) == 1 and None not in precisions[0]:
        return None
    if precisions == [{None}, {None}]:
        return "the submissions do not state their precision; sides may differ in it"
    parts = []
    for each in (first, second):
        counts = Counter((one.precision, one.configured is not None) for one in each.scored if one.precision)
        stated = [
            f"{name.upper()} in {number} of {len(each.scored)} entries{' (configuration files)' if configured else ''}"
            for (name, configured), number in counts.items()
        ]
        silent = [] if counts.total() == len(each.scored) else ["unknown in the others" if stated else "unknown"]
        name = f"{each.gpu} {each.round}" if first.gpu == second.gpu else each.gpu
        parts.append(f"{name}: {', '.join([*stated, *silent])}")
    return f"precision: {'; '.join(parts)}; the ratio includes any difference of precision"


def _hashes(one: TaskSide) -> dict[object, str]:
    """Return the name of the entry with each run, by the SHA-256 of its file and by the times of all its runs."""
    entries = [scored.entry for scored in one.scored]
    by_file: dict[object, str] = {run.sha256: entry.name for entry in entries for run in entry.runs if run.sha256}
    return by_file | {runs: entry.name for entry in entries if (runs := identity_of_runs(entry)) is not None}


def _of_submitter(group: Sequence[Scored], runs: tuple[float, int] | None) -> LogEstimate:
    """Return the mean of a submitter's entries, with the scatter of runs pooled over all entries of the side.

    runs: relative standard deviation of a run and its degrees of freedom; without it the variance is infinite.
    """
    log = math.fsum(math.log(one.minutes or math.nan) for one in group) / len(group)
    if runs is None:
        return LogEstimate(log=log, variance=math.inf, degrees=1)
    error = math.fsum((runs[0] * one.error_of_spread) ** 2 for one in group) / len(group) ** 2
    return LogEstimate(log=log, variance=error, degrees=runs[1])


def _over_submitters(means: Sequence[LogEstimate]) -> tuple[LogEstimate, list[float], float | None]:
    """Return the mean over submitters, the weight of each, and the standard deviation between them (Paule–Mandel)."""
    if len(means) == 1:
        return means[0], [1.0], None
    degrees = len(means) - 1
    logs, variances = (np.array(list(map(attrgetter(name), means))) for name in ("log", "variance"))
    if np.isinf(variances).any():  # the runs have no known scatter, so submitters count alike
        variances[:] = 0.0
    variances = np.maximum(variances, _EQUAL**2)

    def excess(between: float) -> float:
        """Return by how much the weighted scatter exceeds that of chance."""
        mean = np.average(logs, weights=1 / (variances + between))
        return float(np.sum((logs - mean) ** 2 / (variances + between))) - degrees

    between = 0.0
    if excess(0.0) > 0:
        from scipy.optimize import brentq

        between = float(brentq(excess, 0.0, 2 * np.var(logs, ddof=1), xtol=_EQUAL**2, rtol=1e-15))
    precisions = 1 / (variances + between)
    variance = max(1.0, excess(between) / degrees + 1) / float(precisions.sum())
    if variance < _EQUAL**2:  # submitters with equal times and runs without a known scatter show no scatter at all
        variance = math.inf
    weights = precisions / precisions.sum()
    estimate = LogEstimate(log=float(weights @ logs), variance=variance, degrees=degrees)
    return estimate, weights.tolist(), math.sqrt(between)


def _over_runs(scored: Sequence[Scored]) -> tuple[float, int] | None:
    """Return the relative standard deviation of a run, pooled over entries, and its degrees of freedom.

    None where the runs of every entry are one or have equal times, which tell nothing about another run.
    """
    squares, degrees = 0.0, 0
    for one in scored:
        logs = [math.log(run.seconds) for run in one.succeeded if run.seconds]
        mean = math.fsum(logs) / len(logs)
        squares += math.fsum((log - mean) ** 2 for log in logs)
        degrees += len(logs) - 1
    return (math.sqrt(squares / degrees), degrees) if squares > _EQUAL**2 * degrees else None


def _factors(groups: Mapping[str, Sequence[Scored]], weights: Mapping[str, float]) -> dict[str, float]:
    """Return the weighted mean of each factor's logarithm, without those that one entry's logs do not state."""
    total = dict.fromkeys((*FACTORS, OVERALL_RATE), 0.0)
    for submitter, group in groups.items():
        for one in group:
            seconds, samples, rate, scaling = one.seconds, one.samples, one.samples_per_second, one.entry.scaling_factor
            if not (seconds and samples and scaling):
                return {}
            values = {"samples": samples, "scaling": scaling, OVERALL_RATE: samples / seconds}
            if rate:
                values |= {"rate": rate, "evaluation_and_set_up": seconds * rate / samples}
            total = {
                name: total[name] + weights[submitter] * math.log(values[name]) / len(group)
                for name in total
                if name in values
            }
    return total


def _where(entries: Sequence[Entry]) -> str:
    found = sorted({(one.round, one.benchmark, one.num_gpus or 0) for one in entries})
    return shortened_list([f"{round} {benchmark} × {count}" for round, benchmark, count in found], 6)


def version(round: str) -> tuple[int, ...]:
    """Return a round's name as numbers, by which rounds are ordered."""
    return tuple(int(part) if part.isdecimal() else 0 for part in round.removeprefix("v").split("."))
