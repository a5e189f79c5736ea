"""A gate for continuous integration: checks of a candidate's speed, memory and loss against limits.

Every check has one of three outcomes. It fails only if the whole interval lies beyond the limit, and passes only if the
whole interval lies within it; otherwise it is undecided. An undecided throughput check states how many runs would
decide. Memory peaks of single runs are compared without an interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from tensorprimat.analysis import losses, stats
from tensorprimat.analysis.estimates import without_figure
from tensorprimat.analysis.fairness import missed_target
from tensorprimat.analysis.levels import LEVELS, LevelName
from tensorprimat.analysis.pairs import TOLERATED, PairDecision, PairedChange
from tensorprimat.analysis.rates import TIME_TO_TRAIN, rate_of
from tensorprimat.analysis.ratios import (
    GroupPair,
    StatedScatter,
    compare_groups,
    look_of,
    phase_notice,
    remaining_drift,
    runs_to_show,
    same_run_warning,
    scope,
)
from tensorprimat.analysis.records import Fairness, LossVerdict
from tensorprimat.analysis.sides import Group, gather, paired_model, usable_results
from tensorprimat.analysis.stats import LogEstimate
from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.core.quantities import count, counted, listed, spelled_metric, stated_share
from tensorprimat.core.result import MEMORY_KINDS, Result
from tensorprimat.storage.store import Loaded

Status = Literal["pass", "fail", "undecided"]
PUBLISHED = "published"  # engine of a row of a published table (reproduce/published)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Largest changes for the worse that a gate tolerates, as fractions; None leaves a check out."""

    slowdown: float
    """Of the rate: at 0.03 the candidate may lose 3 % of the baseline's tokens/s/GPU."""
    memory_increase: float | None = None
    loss_gap: float | None = None


@dataclass(frozen=True, kw_only=True)
class Check:
    """The check of one limit for one model, with its outcome."""

    model: str
    kind: Literal["throughput", "memory", "loss"]
    what: str
    """Subject of the check: "throughput (tokens/s/GPU)", "peak memory allocated", "loss" …"""
    status: Status
    baseline: float | None = None
    """Figure of the baseline, in the unit of `what`; memory in GB."""
    candidate: float | None = None
    change: float | None = None
    """Relative change from baseline to candidate; None where there is no such number."""
    low: float | None = None
    high: float | None = None
    limit: float
    sentence: str
    """Reason for the decision, or what would decide it."""


@dataclass(frozen=True, kw_only=True)
class GateReport:
    """All checks, and the remarks that apply to them."""

    checks: tuple[Check, ...]
    notes: tuple[str, ...]
    """Fairness of every model, assumptions, and results that were left out."""

    @property
    def status(self) -> Status:
        """Return the worst of the checks: one failure fails, otherwise one undecided leaves it undecided."""
        found = {check.status for check in self.checks}
        return "fail" if "fail" in found else "undecided" if "undecided" in found else "pass"


def gate(
    baseline: Sequence[Loaded],
    candidate: Sequence[Loaded],
    limits: Limits,
    assumed: StatedScatter,
    *,
    lowest: LevelName | None = None,
) -> GateReport:
    """Check every model that the baseline has.

    lowest: the lowest level of `analysis.levels` on which a check may pass, even if a side does not state a setting
    that must match; None: the same work, stated by both sides.

    Raises InputError if a side has no usable result, or if the candidate lacks a model or did other work. Raises
    UsageError if a side has several configurations of one model, or if an assumption is out of range.
    """
    assumed.checked()
    notes: list[str] = []
    bases = _by_model(baseline, "baseline", notes)
    candidates = _by_model(candidate, "candidate", notes)
    missing = [model for model in bases if model not in candidates]
    if missing:
        raise InputError(
            f"the candidate has no complete result of {', '.join(missing)}, which the baseline has",
            remedy="add one, or leave the model out of the baseline",
        )
    checks: list[Check] = []
    pairs = {model: compare_groups(base, candidates[model], assumed) for model, base in bases.items()}
    levels = _levels_of_failure(list(pairs.values()), limits.slowdown, assumed)
    for to_fail, (model, pair) in zip(levels, pairs.items(), strict=True):
        level, order = pair.fairness.level, list(LEVELS)
        if not level.comparable or order.index(level.name) > order.index(lowest or "same_work"):
            remedy = f"; --accept {pair.fairness.verdict} judges it anyway" if pair.comparable else ""
            grounds = " ".join((*pair.fairness.errors, pair.fairness.sentence))
            raise InputError(f"{model}: {grounds} A gate needs the same work on both sides{remedy}")
        notes += filter(None, (f"{model}: {pair.fairness.sentence}", same_run_warning(pair), phase_notice(pair)))
        first = len(checks)
        if assumed.run_cv and min(len(group.runs) for group in pair.groups) == 1:
            notes.append(f"{model}: assumed: single runs vary by {stated_share(assumed.run_cv)}.")
        checks.append(_throughput(model, pair, limits.slowdown, assumed, to_fail))
        if limits.memory_increase is not None:
            checks.append(_memory(model, pair, limits.memory_increase, assumed))
        if limits.loss_gap is not None:
            checks.append(_losses(model, pair, limits.loss_gap, assumed))
        if lowest is None and pair.fairness.conditions:
            checks[first:] = [_on_condition(check, pair.fairness) for check in checks[first:]]
        checks[first:] = [_unless_missed(check, pair) for check in checks[first:]]
    return GateReport(checks=tuple(checks), notes=tuple(notes))


def _on_condition(check: Check, fairness: Fairness) -> Check:
    """Change a passed check to undecided, because a side does not state a setting that must match."""
    if check.status != "pass":
        return check
    settings = listed(fairness.conditions)
    shape = "give --shape, or " if fairness.conditions == ("model shape",) else ""
    remedy = f"{shape}use --accept {fairness.verdict} to assume that both sides are equal"
    return replace(check, status="undecided", sentence=f"{check.sentence}, but the {settings} may differ; {remedy}")


def _unless_missed(check: Check, pair: GroupPair) -> Check:
    """Change a passed check to undecided if a larger share of the candidate's runs missed the quality target."""
    target = pair.candidate.result.performance_metrics.reported.quality_target
    before, after = (missed_target(group.result) / max(1, len(group.result.runs)) for group in pair.groups)
    if check.status != "pass" or target is None or after <= before:
        return check
    result = pair.candidate.result
    missed = f"{missed_target(result)} of {len(result.runs)} runs of the candidate did not reach the quality target"
    return replace(check, status="undecided", sentence=f"{check.sentence}, but {missed}")


def _by_model(loaded: Sequence[Loaded], side: str, notes: list[str]) -> dict[str, Group]:
    items, warnings = usable_results(loaded)
    notes += [f"{side}: {warning}" for warning in warnings]
    if not items:
        raise InputError(f"no {side} to gate with: {'; '.join(warnings) or 'no results'}")
    groups = {}
    items = [replace(item, side=side) for item in items]
    for model in dict.fromkeys(paired_model(item.result) for item in items):
        found = gather([item for item in items if paired_model(item.result) == model], "platform")
        if len(found) > 1:
            labels = ", ".join(group.label for group in found)
            raise UsageError(f"--{side}: {len(found)} configurations of {model} ({labels}); name the files of one")
        groups[model] = found[0]
    return groups


def _levels_of_failure(pairs: Sequence[GroupPair], limit: float, assumed: StatedScatter) -> list[float]:
    """Return the confidence at which each model may fail, so that all failures hold together (Holm).

    A pass needs no correction, because every model has to be within the limit.
    """
    tested = [pair.log for pair in pairs if pair.log is not None]
    least = math.log1p(-limit)
    places = iter(stats.holm([replace(log, log=log.log - least).p_value() for log in tested], assumed.confidence))
    return [assumed.confidence if pair.log is None else next(places) for pair in pairs]


def _throughput(model: str, pair: GroupPair, limit: float, assumed: StatedScatter, to_fail: float) -> Check:
    least = math.log1p(-limit)
    log = pair.log
    metric = None if pair.metric == TIME_TO_TRAIN else pair.metric
    rates = [(metric and rate_of(group.result, metric)) or None for group in (pair.baseline, pair.candidate)]
    what = f"throughput ({spelled_metric(pair.metric)})" if pair.metric else "throughput"
    check = partial(
        Check, model=model, kind="throughput", what=what, baseline=rates[0], candidate=rates[1], limit=-limit
    )
    if log is None:
        sentence, further = "each side needs at least 2 runs", _more_runs(pair, abs(least), assumed)
        if pair.metric is None:
            sentence = "no rate in common"
        elif without := without_figure(pair.groups, pair.metric):
            sentence, further = without, "leave such runs out"
        elif any(group.result.provenance.engine == PUBLISHED for group in pair.groups):
            sentence, further = "a published figure has no runs", "state their variation with --assume-run-cv PERCENT"
        return check(status="undecided", sentence="; ".join(filter(None, (sentence, further, scope(pair, assumed)))))
    look = look_of(pair)
    level = stats.level_of_look(assumed.confidence, look)
    half = log.half_width(level)
    decision = decide_ratio(
        log, limit, level=level, to_fail=stats.level_of_look(to_fail, look), further=remaining_drift(pair)
    )
    sentence = {
        "unsettled": "the sides were measured in different phases; the same steps of both would decide"
        if pair.phases and not pair.common
        else "step time keeps drifting; longer runs (benchmark.py --steps N) would decide",
        "fail": f"a slowdown of more than {stated_share(limit)} is shown",
        "pass": "the whole interval is within the limit",
    }.get(decision) or f"the interval contains the limit; {_more_runs(pair, abs(log.log - least), assumed)}"
    low, high = (math.expm1(stats.bounded(end)) for end in (log.log - half, log.log + half))
    return check(
        status="undecided" if decision == "unsettled" else decision,
        change=math.expm1(log.log),
        low=low,
        high=high,
        sentence="; ".join(filter(None, (sentence, scope(pair, assumed)))),
    )


def check_of_pairs(
    model: str, found: PairedChange, metric: str, speeds: Sequence[Sequence[float]], limit: float
) -> Check:
    """Return the check of the throughput by pairs of runs. speeds: of baseline and candidate, in the metric."""
    shown = limit if found.high < -limit else TOLERATED * limit
    outcomes: dict[PairDecision, tuple[Status, str]] = {
        "slower": ("fail", f"a slowdown of more than {stated_share(shown)} is shown"),
        "within": ("pass", f"a slowdown of {stated_share(limit)} is ruled out"),
        "undecided": ("undecided", f"neither a slowdown is shown, nor one of {stated_share(limit)} ruled out"),
    }
    status, sentence = outcomes[found.decision]
    baseline, candidate = (math.exp(sum(map(math.log, side)) / len(side)) for side in speeds)
    runs = f"{counted(found.pairs, 'pair')} of runs in turn on one machine"
    return Check(
        model=model, kind="throughput", what=f"throughput ({spelled_metric(metric)})", status=status,
        baseline=baseline, candidate=candidate, change=found.change, low=found.low, high=found.high, limit=-limit,
        sentence=f"{sentence}, by {runs}",
    )  # fmt: skip


def decide_ratio(
    log: LogEstimate, limit: float, *, level: float, to_fail: float, further: float = 0.0
) -> Literal["pass", "fail", "undecided", "unsettled"]:
    """Return the decision on the ratio candidate / baseline of a rate, which may be as low as 1 − limit.

    level: confidence of a pass; to_fail: confidence of a failure. further: by how much the logarithm of the ratio may
    still move while step time drifts; the decision is "unsettled" if the interval, widened by it, contains the limit.
    """
    least, half = math.log1p(-limit), log.half_width(level)
    if further and log.log - half - further < least <= log.log + half + further:
        return "unsettled"
    if log.log + log.half_width(to_fail) < least:
        return "fail"
    return "pass" if log.log - half >= least else "undecided"


def _more_runs(pair: GroupPair, distance: float, assumed: StatedScatter) -> str:
    """Return a phrase with the number of runs that would decide, if further runs vary like those measured."""
    needed = runs_to_show(pair, distance, assumed) if distance > 0 else None
    if needed is None:
        return (
            f"it is so close to the limit that even {count(stats.MOST_PLANNED_RUNS)} runs on each side would not decide"
        )
    return f"about {needed} runs on each side would decide"


def _memory(model: str, pair: GroupPair, limit: float, assumed: StatedScatter) -> Check:
    """Check peaks of one kind. They hardly vary from run to run, so a single run decides without an interval."""
    sides = (pair.baseline, pair.candidate)  # with all their steps
    kind = next((k for k in MEMORY_KINDS if all(_peak(group.result, k) for group in sides)), None)
    if kind is None:
        sentence = "the sides have no device memory figure of the same kind"
        return Check(model=model, kind="memory", what="memory", status="undecided", limit=limit, sentence=sentence)
    what = f"peak {kind.replace('_', ' ')}"
    below, above = ([peak for run in group.runs if (peak := _peak(run, kind))] for group in sides)
    lacking = sum(len(group.runs) for group in sides) - len(below) - len(above)
    if min(len(below), len(above)) > 1:
        log = stats.welch_log_ratio(stats.of_runs(above), stats.of_runs(below))
        half = log.half_width(assumed.confidence)
        low, high = (math.expm1(stats.bounded(end)) for end in (log.log - half, log.log + half))
        change: float = math.expm1(log.log)
        passed = "the whole interval is within the limit"
    else:
        change = low = high = max(above) / max(below) - 1
        passed = "within the limit, without an interval because a side has the peak of one run only"
    status: Status = "fail" if low > limit else "pass" if high <= limit else "undecided"
    sentence = {
        "fail": "the candidate needs more than the limit allows",
        "pass": passed,
        "undecided": "the interval contains the limit",
    }[status]
    if lacking:
        sentence += f"; {counted(lacking, 'run')} without a peak left out"
    return Check(
        model=model, kind="memory", what=what, status=status, baseline=max(below), candidate=max(above), change=change,
        low=low, high=high, limit=limit, sentence=sentence,
    )  # fmt: skip


def _peak(result: Result, kind: str) -> float | None:
    return getattr(result.memory_metrics, f"peak_{kind}_gb", None)


def _losses(model: str, pair: GroupPair, limit: float, assumed: StatedScatter) -> Check:
    found = losses.parity(pair.baseline, pair.candidate, pair.fairness, tolerance=limit, confidence=assumed.confidence)
    outcomes: dict[LossVerdict, Status] = {"agree": "pass", "diverge": "fail", "failed": "fail"}
    status = outcomes.get(found.verdict, "undecided") if found else "undecided"
    sentence = found.sentence if found else "a side logged no loss"
    return Check(model=model, kind="loss", what="loss", status=status, limit=limit, sentence=sentence)
