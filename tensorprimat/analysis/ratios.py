"""One side against another: the ratio, its interval, and what may be said about it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tensorprimat.analysis import stats
from tensorprimat.analysis.estimates import ONE_PERCENT, figure, log_estimate, scatter
from tensorprimat.analysis.fairness import TIME_TO_TRAIN, judge
from tensorprimat.analysis.records import Estimate, Fairness, Ratio, TaskFactors, Verdict
from tensorprimat.analysis.sides import Group
from tensorprimat.analysis.stats import LogEstimate
from tensorprimat.core.errors import UsageError

PRIMARY = "tokens_per_second_per_gpu"


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What the user lays down before looking."""

    run_cv: float | None
    """Scatter of single runs, as a fraction."""
    confidence: float
    strict: bool = False
    """Compare only the same work step by step."""

    def checked(self) -> Assumptions:
        """Itself, if it can be; raises UsageError naming the flag."""
        if not 0.5 <= self.confidence < 1:
            raise UsageError(f"--confidence {self.confidence:g}: must be at least 50% and below 100%, such as 95%")
        if self.run_cv is not None and not 0 < self.run_cv < 1:
            raise UsageError(f"--assume-run-cv {self.run_cv:g}: must lie between 0 and 100 %, such as 2%")
        return self


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """One candidate and the side it is measured against."""

    baseline: Group
    candidate: Group
    fairness: Fairness
    metric: str | None
    """None where they have no rate in common."""
    log: LogEstimate | None
    """Logarithm of the ratio; None where nothing can be said about its scatter, or it must not be drawn."""

    @property
    def groups(self) -> tuple[Group, Group]:
        """Baseline and candidate."""
        return self.baseline, self.candidate

    @property
    def comparable(self) -> bool:
        """Whether a ratio may be drawn at all."""
        return self.fairness.level.comparable and self.metric is not None


def meet(baseline: Group, candidate: Group, assumed: Assumptions) -> Meeting:
    """Judge two sides and estimate the ratio of what both measured."""
    fairness = judge(baseline.result, candidate.result, strict=assumed.strict)
    metric = fairness.metric
    meeting = Meeting(baseline=baseline, candidate=candidate, fairness=fairness, metric=metric, log=None)
    if metric is None or not meeting.comparable:
        return meeting
    above = log_estimate(candidate, metric, assume_run_cv=assumed.run_cv)
    below = log_estimate(baseline, metric, assume_run_cv=assumed.run_cv)
    log = None if above is None or below is None else stats.difference(above, below)
    return Meeting(baseline=baseline, candidate=candidate, fairness=fairness, metric=metric, log=log)


def runs_to_show(meeting: Meeting, half_width: float, assumed: Assumptions) -> int | None:
    """How many runs on each side would narrow the ratio's interval to ± half_width (of its logarithm)."""
    if meeting.metric is None:
        return None
    scatters = [scatter(group, meeting.metric, assumed.run_cv) for group in meeting.groups]
    return stats.runs_needed(scatters, half_width, assumed.confidence)


def ratios(meetings: Sequence[Meeting], assumed: Assumptions) -> list[Ratio | None]:
    """Ratios of one family, each read at the confidence at which all of them hold together (Holm)."""
    tested = [meeting for meeting in meetings if meeting.log is not None]
    levels = stats.holm([meeting.log.p_value() for meeting in tested if meeting.log], assumed.confidence)
    level_of = {id(meeting): level for meeting, level in zip(tested, levels, strict=True)}
    return [
        _ratio(meeting, assumed, level_of.get(id(meeting), assumed.confidence), family=len(tested))
        for meeting in meetings
    ]


def _ratio(meeting: Meeting, assumed: Assumptions, level: float, *, family: int) -> Ratio | None:
    if meeting.fairness.verdict == "not_comparable":
        nothing = Estimate(value=None, rests_on="nothing", no_interval_because=meeting.fairness.sentence)
        return Ratio(metric=meeting.metric or PRIMARY, estimate=nothing, verdict="not_comparable")
    if meeting.metric is None:
        return None
    rests_on = f"{_runs(meeting.candidate)} against {_runs(meeting.baseline)}"
    needed = runs_to_show(meeting, ONE_PERCENT, assumed)
    if meeting.log is None:
        estimate = Estimate(
            value=math.exp(_plain_log(meeting)),
            confidence=assumed.confidence,
            rests_on=rests_on,
            no_interval_because="each side needs at least 2 runs, or an assumption about their scatter",
            runs_for_one_percent=needed,
        )
        return Ratio(metric=meeting.metric, estimate=estimate, verdict="too_few_runs", task=_factors(meeting))
    low, high = meeting.log.interval(level)
    estimate = Estimate(
        value=math.exp(meeting.log.log),
        low=low,
        high=high,
        confidence=level,
        rests_on=rests_on + (f", read at {level:.1%} as one of {family} comparisons (Holm)" if family > 1 else ""),
        runs_for_one_percent=needed,
    )
    return Ratio(
        metric=meeting.metric,
        estimate=estimate,
        verdict=_verdict(low, high),
        task=_factors(meeting),
        assumption=_assumption([meeting], assumed),
    )


def _factors(meeting: Meeting) -> TaskFactors | None:
    """Return time to train as samples over rate, candidate over baseline; None where a side counts no samples."""
    if meeting.metric != TIME_TO_TRAIN:
        return None
    (base_time, base_samples), (time, samples) = map(_time_and_samples, meeting.groups)
    if not (base_time and base_samples and time and samples):
        return None
    return TaskFactors(
        time=time / base_time, samples=samples / base_samples, rate=(samples / time) / (base_samples / base_time)
    )


def _time_and_samples(group: Group) -> tuple[float | None, float | None]:
    """Return geometric means over the runs, as the ratio has them."""
    runs = [run for run in group.result.runs if run.time_to_train_seconds]
    times = [math.log(run.time_to_train_seconds) for run in runs if run.time_to_train_seconds]
    counts = [math.log(run.samples_to_train) for run in runs if run.samples_to_train]
    if not times or len(counts) < len(times):
        return None, None
    return math.exp(sum(times) / len(times)), math.exp(sum(counts) / len(counts))


def mean_ratio(meetings: Sequence[Sequence[Meeting]], assumed: Assumptions) -> Ratio | None:
    """Geometric mean over models of comparable ratios of one metric, where one pairing runs through all of them.

    meetings: those of each model. The interval is of these models, not of models that were not run.
    """
    comparable = [meeting for of_model in meetings for meeting in of_model if meeting.comparable]
    pairings = {(meeting.baseline.key, meeting.candidate.key, meeting.metric) for meeting in comparable}
    if len(comparable) < 2 or len(pairings) > 1 or any(len(of_model) > 1 for of_model in meetings):
        return None
    metric = comparable[0].metric or PRIMARY
    over = f"geometric mean over {len(comparable)} models"
    logs = [meeting.log for meeting in comparable if meeting.log is not None]
    if len(logs) < len(comparable):
        estimate = Estimate(
            value=math.exp(sum(map(_plain_log, comparable)) / len(comparable)),
            confidence=assumed.confidence,
            rests_on=over,
            no_interval_because="not every model has 2 runs on each side",
        )
        return Ratio(metric=metric, estimate=estimate, verdict="too_few_runs")
    mean = stats.geometric_mean(logs)
    low, high = mean.interval(assumed.confidence)
    return Ratio(
        metric=metric,
        estimate=Estimate(value=math.exp(mean.log), low=low, high=high, confidence=assumed.confidence, rests_on=over),
        verdict=_verdict(low, high),
        assumption=_assumption(comparable, assumed),
    )


def _plain_log(meeting: Meeting) -> float:
    """Logarithm of the ratio of what both sides show, where no interval can be given."""
    below, above = (figure(group.result, meeting.metric or PRIMARY) or math.nan for group in meeting.groups)
    return math.log(above / below)


def _verdict(low: float, high: float) -> Verdict:
    return "faster" if low > 1 else "slower" if high < 1 else "no_difference_shown"


def _runs(group: Group) -> str:
    return "1 run" if len(group.runs) == 1 else f"{len(group.runs)} runs"


def _assumption(meetings: Sequence[Meeting], assumed: Assumptions) -> str | None:
    """What a verdict rests on beside the measurements: only where a side of one run is part of it."""
    one_run = any(len(group.runs) == 1 for meeting in meetings for group in meeting.groups)
    return f"assumed: single runs scatter by {100 * assumed.run_cv:g} %" if one_run and assumed.run_cv else None
