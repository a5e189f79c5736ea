"""One side against another: the ratio, its interval, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensorprimat.analysis import stats
from tensorprimat.analysis.estimates import (
    ONE_PERCENT,
    Phase,
    common_steps,
    counted_runs,
    log_estimate,
    other_phase,
    positive_figure,
    rounding,
    run_figures,
    scatter,
    settled,
    without_common_steps,
    without_figure,
)
from tensorprimat.analysis.fairness import judge
from tensorprimat.analysis.rates import TIME_TO_TRAIN
from tensorprimat.analysis.records import Estimate, Fairness, Ratio, TaskFactors, Verdict
from tensorprimat.analysis.sides import Group
from tensorprimat.analysis.stats import LogEstimate
from tensorprimat.core import identity
from tensorprimat.core.errors import UsageError
from tensorprimat.core.moments import seconds_since_1970
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import as_stated, counted, decimals_of_ratio, listed, significant, stated_share, times

PRIMARY = "tokens_per_second_per_gpu"

DRIFTS_ON = 3.0  # times the observed drift; an exponential that fell by 1 − 1/e still has 0.6 times that fall ahead
PHASES_APART = 1.5  # times the difference seen: the level of a few dozen steps differs from run to run, too
LARGEST_RATIO = 1e6  # of two machines; more is a unit that was read wrongly
LEAST_DRIFT = 0.01  # relative; of a side that jumps between levels without a decay that could be fitted


def checked_confidence(confidence: float) -> float:
    """Return the confidence of an interval, 0.5 to 1. Raises UsageError that names the flag."""
    if not 0.5 <= confidence < 1:
        raise UsageError(f"--confidence {as_stated(confidence)}: must be at least 50 % and below 100 %, such as 95%")
    return confidence


@dataclass(frozen=True, kw_only=True)
class StatedScatter:
    """The assumptions that the user states before looking at the result."""

    run_cv: float | None
    """Scatter of single runs, as a fraction."""
    confidence: float
    strict: bool = False
    """Compare only the same work step by step."""
    host_cv: float | None = None
    """Scatter of machines, as a fraction, for sides that were measured on one machine."""

    def checked(self) -> StatedScatter:
        """Return self. Raises UsageError that names the flag of a value out of range."""
        checked_confidence(self.confidence)
        for flag, cv, usual in (("--assume-run-cv", self.run_cv, "2%"), ("--assume-host-cv", self.host_cv, "1%")):
            if cv is not None and not 0 < cv < 1:
                raise UsageError(f"{flag} {as_stated(cv)}: must be between 0 and 100 %, such as {usual}")
        return self


@dataclass(frozen=True, kw_only=True)
class GroupPair:
    """Two groups that are compared: candidate and baseline, their fairness, and the logarithm of their ratio."""

    baseline: Group
    candidate: Group
    fairness: Fairness
    metric: str | None
    """None where they have no rate in common."""
    log: LogEstimate | None
    """Logarithm of the ratio; None if its scatter is unknown, or if no ratio may be shown."""
    phases: tuple[Phase, ...] = ()
    """Sides that run at another speed in the steps that the other one measured."""
    common: tuple[Group, Group, tuple[int, int]] | None = None
    """Both with only the steps that both have, and the first and last of them, where the ratio is of these."""

    @property
    def groups(self) -> tuple[Group, Group]:
        """Return baseline and candidate with the steps that are compared."""
        return self.common[:2] if self.common else (self.baseline, self.candidate)

    @property
    def comparable(self) -> bool:
        """Return True if a ratio of the two sides has a meaning."""
        return self.fairness.level.comparable and self.metric is not None


def compare_groups(baseline: Group, candidate: Group, assumed: StatedScatter) -> GroupPair:
    """Judge two sides and estimate the ratio of their rates."""
    fairness = judge(baseline.result, candidate.result, strict=assumed.strict)
    metric = fairness.metric
    pair = GroupPair(baseline=baseline, candidate=candidate, fairness=fairness, metric=metric, log=None)
    if metric is None or not pair.comparable:
        return pair
    factor = math.exp(stats.bounded(abs(_plain_log(pair))))
    if factor > LARGEST_RATIO:
        remedy = "Comparable once the step times of both sides are in seconds."
        sentence = (
            f"Not comparable: the rates differ by a factor of {significant(factor, 1)}, more than any two machines do. "
            f"{remedy}"
        )
        odd = replace(fairness, verdict="not_comparable", metric=None, sentence=sentence, remedy=remedy)
        return replace(pair, fairness=odd, metric=None)
    pair = replace(pair, log=log_ratio(baseline, candidate, metric, assumed), phases=_phases(pair))
    common = common_steps(baseline, candidate) if pair.phases else None
    if common is None:
        return pair
    of_common = replace(pair, log=log_ratio(*common[:2], metric, assumed), common=common)
    return pair if _phases(of_common) else of_common


def _phases(pair: GroupPair) -> tuple[Phase, ...]:
    if pair.metric == TIME_TO_TRAIN:
        return ()
    one, other = pair.groups
    if apart := without_common_steps(one, other):
        return (apart,)
    return tuple(filter(None, (other_phase(one, other), other_phase(other, one))))


def same_run_warning(pair: GroupPair) -> str | None:
    """Return a warning if both sides contain the same run."""
    results = [group.result for group in pair.groups]
    if not identity.share_a_log(*results) and not identity.same_run(*results):
        return None
    return (
        f"{pair.candidate.label} and {pair.baseline.label}: the same run is on both sides, so the ratio shows no "
        "difference of machines or settings; name different runs"
    )


def log_ratio(baseline: Group, candidate: Group, metric: str, assumed: StatedScatter) -> LogEstimate | None:
    """Return the logarithm of candidate / baseline; from paired differences where all runs were measured in pairs."""
    above, below = (
        log_estimate(group, metric, assume_run_cv=assumed.run_cv, assume_host_cv=assumed.host_cv)
        for group in (candidate, baseline)
    )
    if above is None or below is None:
        return None
    pairs = in_pairs(baseline, candidate, metric)
    if pairs is None:
        return stats.welch_log_ratio(above, below)
    known_above, known_below = (run_figures(group, metric) or [] for group in (candidate, baseline))
    log = stats.of_pairs(
        [known_above[place] for _, place in pairs],
        [known_below[place] for place, _ in pairs],
        rounding=sum(rounding(group, metric) for group in (candidate, baseline)),
    )
    return replace(log, drift=math.hypot(above.drift, below.drift))


def in_pairs(baseline: Group, candidate: Group, metric: str | None) -> list[tuple[int, int]] | None:
    """Return the places of the runs of each pair (benchmark.py --ab).

    None unless every run is one of a pair and counts for the metric; a run that missed the quality target does not.
    """
    groups = (baseline, candidate)
    below, above = ([run.pair for run in group.result.runs] for group in groups)
    if len(below) < 2 or None in below or len(set(below)) < len(below) or set(below) != set(above):
        return None
    if len(above) != len(below) or any(len(counted_runs(group, metric or PRIMARY)) != len(below) for group in groups):
        return None
    return [(place, above.index(pair)) for place, pair in enumerate(below)]


def look_of(pair: GroupPair) -> int:
    """Return the number of looks at this comparison: one after each addition of runs, the present one included."""
    looks = [group.result.provenance.looks for group in pair.groups]
    paired = in_pairs(*pair.groups, pair.metric) is not None
    return max(looks) if paired else sum(looks) - 1  # pairs grow on both sides at once


def runs_to_show(pair: GroupPair, half_width: float, assumed: StatedScatter) -> int | None:
    """Return the runs per side that would narrow the ratio's interval to ± half_width (of its logarithm), or None."""
    if pair.metric is None:
        return None
    scatters = [scatter(group, pair.metric, assumed.run_cv) for group in pair.groups]
    return stats.runs_needed(scatters, half_width, assumed.confidence)


def ratios(
    pairs: Sequence[GroupPair], assumed: StatedScatter, *, mean: LogEstimate | None = None
) -> tuple[list[Ratio | None], float]:
    """Return the ratios of one report, with intervals at the confidence at which all verdicts hold together (Holm).

    mean: logarithm of the mean ratio over models, one more verdict of the report. Returns the ratios, and the
    confidence for the interval of the mean.
    """
    tested = [(pair.log, look_of(pair)) for pair in pairs if pair.log is not None]
    if mean is not None:
        tested.append((mean, max(look for _, look in tested)))
    levels = stats.holm([min(1.0, log.p_value() * (2 * look - 1)) for log, look in tested], assumed.confidence)
    read_at = [stats.level_of_look(level, look) for level, (_, look) in zip(levels, tested, strict=True)]
    places = iter(read_at)
    found = [
        _ratio(pair, assumed, assumed.confidence if pair.log is None else next(places), family=len(tested))
        for pair in pairs
    ]
    return found, read_at[-1] if mean is not None else assumed.confidence


def _ratio(pair: GroupPair, assumed: StatedScatter, level: float, *, family: int) -> Ratio | None:
    if pair.fairness.verdict == "not_comparable":
        nothing = Estimate(value=None, rests_on="nothing", no_interval_because=pair.fairness.sentence)
        return Ratio(metric=pair.metric or PRIMARY, estimate=nothing, verdict="not_comparable")
    if pair.metric is None:
        return None
    paired = in_pairs(*pair.groups, pair.metric) is not None
    baseline, candidate = (counted(len(counted_runs(group, pair.metric)), "run") for group in pair.groups)
    rests_on = f"{candidate} against {baseline}" + (", in pairs" if paired else "")
    few = "each side needs at least 2 runs, or an assumed variation (--assume-run-cv)"
    found = Ratio(
        metric=pair.metric,
        estimate=Estimate(
            value=math.exp(_plain_log(pair)),
            confidence=assumed.confidence,
            rests_on=rests_on,
            no_interval_because=without_figure(pair.groups, pair.metric) or few,
            runs_for_one_percent=runs_to_show(pair, ONE_PERCENT, assumed),
        ),
        verdict="too_few_runs",
        task=_factors(pair),
        scope=scope(pair, assumed),
        steps=f"steps {pair.common[2][0]} to {pair.common[2][1]} of both sides" if pair.common else None,
        unsettled_by="phases" if pair.phases and not pair.common else "drift",
    )
    if pair.log is None:
        return found
    low, high = pair.log.interval(level)
    corrected = [f"as one of {family} comparisons (Holm)"] if family > 1 else []
    corrected += [f"because runs were added and this is look {look_of(pair)} at them"] if look_of(pair) > 1 else []
    if corrected:
        rests_on += f", widened {listed(corrected)}"
    estimate = replace(
        found.estimate,
        value=math.exp(pair.log.log),
        low=low,
        high=high,
        confidence=level,
        joint=assumed.confidence if corrected else None,
        family=family,
        rests_on=rests_on,
        no_interval_because=None,
    )
    return replace(
        found,
        estimate=estimate,
        verdict=_verdict(pair, level),
        assumption=_assumption([pair], assumed),
        sensitivity=_sensitivity(pair, assumed, level),
    )


def _factors(pair: GroupPair) -> TaskFactors | None:
    """Return time to train as samples over rate, candidate over baseline; None where a side counts no samples."""
    if pair.metric != TIME_TO_TRAIN:
        return None
    means = []  # geometric ones over the runs, as the ratio has them
    for group in pair.groups:
        known = [(run.time_to_train_seconds, run.samples_to_train) for run in group.result.runs]
        logs = [(math.log(time), math.log(samples)) for time, samples in known if time and samples]
        if not logs or len(logs) < sum(bool(time) for time, _ in known):
            return None
        means.append([math.exp(sum(column) / len(logs)) for column in zip(*logs, strict=True)])
    (base_time, base_samples), (time, samples) = means
    return TaskFactors(
        time=time / base_time, samples=samples / base_samples, rate=(samples / time) / (base_samples / base_time)
    )


def scope(pair: GroupPair, assumed: StatedScatter) -> str | None:
    """Return the limit of the verdict to the measured machines; None if several were measured on each side."""
    single = [group for group in pair.groups if not stats.counts_hosts(group.hosts)]
    if not single:
        return None
    if assumed.host_cv:
        return f"assumed: machines vary by {stated_share(assumed.host_cv)}"
    nodes = {group.result.training_config.num_nodes or 1 for group in single}
    machine = "machine" if nodes == {1} else f"set of {min(nodes)} nodes" if len(nodes) == 1 else "machine or node set"
    whose = " per side" if len(single) > 1 else f" of {single[0].label}"
    if in_pairs(*pair.groups, pair.metric) is not None:
        whose = ""
    elif one_after_the_other(pair):
        hosts = {host for group in pair.groups for host in group.hosts}
        if len(hosts) == 1 and None not in hosts:
            return (
                f"one {machine}, one side after the other, so a drift over that time counts as a difference of the "
                "sides (benchmark.py --ab measures in turns); other machines may differ"
            )
        return f"one {machine}{whose}, one side after the other; other machines may differ"
    return f"one {machine}{whose}; other machines may differ"


def one_after_the_other(pair: GroupPair) -> bool:
    """Return True if all runs of one side are known to have started before those of the other, of two or more each."""
    starts = [[seconds_since_1970(run.started_at) for run in group.result.runs] for group in pair.groups]
    first, second = ([one for one in times if one is not None] for times in starts)
    if min(len(first), len(second)) < 2 or len(first) + len(second) < sum(map(len, starts)):
        return False
    return max(first) < min(second) or max(second) < min(first)


def _sensitivity(pair: GroupPair, assumed: StatedScatter, level: float) -> str | None:
    """Return a phrase on the verdict if runs vary twice as much as assumed (half as much if no difference is shown)."""
    if _assumption([pair], assumed) is None or assumed.run_cv is None or pair.metric is None:
        return None
    verdict = _verdict(pair, level)
    factor = 0.5 if verdict == "no_difference_shown" else 2.0
    other = replace(assumed, run_cv=factor * assumed.run_cv)
    log = log_ratio(*pair.groups, pair.metric, other)
    if log is None:
        return None
    changed = _verdict(replace(pair, log=log), level)
    low, high = log.interval(level)
    of_what = ""
    if pair.metric == TIME_TO_TRAIN:  # its headline states the ratio of the times
        low, high, of_what = 1 / high, 1 / low, "times "
    decimals = decimals_of_ratio(low, high)
    ends = f"{of_what}{times(low, decimals)} to {times(high, decimals)}"
    same = "the verdict stays the same" if changed == verdict else VERDICTS_IF[changed]
    return f"if they vary by {stated_share(factor * assumed.run_cv)} instead, {same} ({ends})"


VERDICTS_IF = {
    "faster": "it is faster",
    "slower": "it is slower",
    "no_difference_shown": "no difference detected",
    "unsettled": "no verdict while step time drifts",
}


def mean_log(pairs: Sequence[Sequence[GroupPair]]) -> LogEstimate | None:
    """Return the logarithm of the geometric mean of the ratios over models, where all of them have an interval."""
    comparable = _of_one_pairing(pairs)
    logs = [pair.log for pair in comparable if pair.log is not None]
    return stats.geometric_mean(logs) if logs and len(logs) == len(comparable) else None


def mean_ratio(pairs: Sequence[Sequence[GroupPair]], assumed: StatedScatter, level: float) -> Ratio | None:
    """Return the geometric mean of the ratios over models, if all are of the same two sides and metric; else None.

    pairs: by model. level: confidence after correction for the other verdicts of the report. The interval is valid for
    the models that were run, not for others.
    """
    comparable = _of_one_pairing(pairs)
    if not comparable:
        return None
    metric = comparable[0].metric or PRIMARY
    scopes = next(filter(None, (scope(pair, assumed) for pair in comparable)), None)
    estimate = Estimate(
        value=math.exp(sum(map(_plain_log, comparable)) / len(comparable)),
        confidence=assumed.confidence,
        rests_on=f"geometric mean over {len(comparable)} models",
        no_interval_because="not every model has 2 runs on each side",
    )
    found = Ratio(metric=metric, estimate=estimate, verdict="too_few_runs", scope=scopes)
    if (mean := mean_log(pairs)) is None:
        return found
    low, high = mean.interval(level)
    ends = replace(estimate, value=math.exp(mean.log), low=low, high=high, confidence=level, no_interval_because=None)
    unsettled = any(_verdict(pair, level) == "unsettled" for pair in comparable)
    return replace(
        found,
        estimate=replace(ends, joint=assumed.confidence),
        verdict="unsettled" if unsettled else _direction(low, high),
        assumption=_assumption(comparable, assumed),
    )


def _of_one_pairing(pairs: Sequence[Sequence[GroupPair]]) -> list[GroupPair]:
    """Return the comparable pairs if each model has one and all compare the same two sides by one metric, else []."""
    comparable = [pair for of_model in pairs for pair in of_model if pair.comparable]
    pairings = {(pair.baseline.key, pair.candidate.key, pair.metric) for pair in comparable}
    if len(comparable) < 2 or len(pairings) > 1 or any(len(of_model) > 1 for of_model in pairs):
        return []
    return comparable


def _plain_log(pair: GroupPair) -> float:
    """Return the logarithm of the ratio of the sides' figures, without an interval."""
    below, above = (positive_figure(group.result, pair.metric or PRIMARY) or math.nan for group in pair.groups)
    return math.log(above / below)


def _verdict(pair: GroupPair, level: float) -> Verdict:
    return verdict_of(pair.log, level, remaining_drift(pair)) if pair.log else "too_few_runs"


def verdict_of(log: LogEstimate, level: float, further: float = 0.0) -> Verdict:
    """Return the verdict at a confidence; "unsettled" if the interval, widened by `further`, contains 1.

    further: by how much the logarithm may still move while step time drifts; 0 for settled sides.
    """
    low, high = log.interval(level)
    if further and low * math.exp(-further) <= 1 <= high * math.exp(further):
        return "unsettled"
    return _direction(low, high)


def remaining_drift(pair: GroupPair) -> float:
    """Return by how much (of the logarithm) the ratio may still move.

    It may where a side is unsettled, or runs at another speed in the steps that the other one measured. 0 otherwise.
    """
    if pair.log is None or pair.metric == TIME_TO_TRAIN:
        return 0.0
    drift = 0.0 if all(map(settled, pair.groups)) else further_drift(pair.log)
    return drift if pair.common else max(drift, *(PHASES_APART * phase.apart for phase in pair.phases), 0.0)


def further_drift(log: LogEstimate) -> float:
    """Return by how much the logarithm may still move where a side is unsettled: the drift seen, several times over."""
    return DRIFTS_ON * max(log.drift, LEAST_DRIFT)


def phase_notice(pair: GroupPair) -> Notice | None:
    """Return a notice if a side runs at another speed in the steps that the other side measured."""
    for phase in pair.phases:
        label, apart = phase.label, math.expm1(phase.apart)
        if pair.common:
            first, last = pair.common[2]
            return Notice("common_steps", "", label=label, apart=apart, first=first, last=last)
        (first, last), (begins, ends) = phase.own, phase.other
        if math.isinf(phase.apart):
            return Notice("no_common_steps", "", label=label, first=first, last=last, begins=begins, ends=ends)
        return Notice("other_phase", "", label=label, apart=apart, first=first, last=last, begins=begins, ends=ends)
    return None


def _direction(low: float, high: float) -> Verdict:
    return "faster" if low > 1 else "slower" if high < 1 else "no_difference_shown"


def _assumption(pairs: Sequence[GroupPair], assumed: StatedScatter) -> str | None:
    """Return the assumption that a verdict rests on, or None unless a side of one run takes part."""
    one_run = any(len(group.runs) == 1 for pair in pairs for group in pair.groups)
    return f"assumed: single runs vary by {stated_share(assumed.run_cv)}" if one_run and assumed.run_cv else None
