"""Figures and verdicts in words; `core/quantities` gives a number its digits and its unit.

None is "–": unmeasured. Everything here formats figures of analysis; nothing is computed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tensorprimat.analysis.rates import TIME_TO_TRAIN
from tensorprimat.analysis.records import Comparison, Estimate, Pair, Ratio, Side, must_match
from tensorprimat.audit.verdict import gap_reason
from tensorprimat.core import figures
from tensorprimat.core.errors import UsageError
from tensorprimat.core.quantities import (
    Form,
    change,
    confidence_level,
    counted,
    decimals_of_ratio,
    fixed,
    percent,
    significant,
    times,
)
from tensorprimat.core.result import Model
from tensorprimat.facts.devices import short_device
from tensorprimat.models import presets

METRIC_TITLES = {
    **{name: figure.title for name, figure in figures.STEP_FIGURES["performance_metrics"].items() if "_per_" in name},
    "samples_per_second_per_gpu": "samples/s/GPU",
    "time_to_train": "speed to the quality target",
}
UNSETTLED_BY = {"drift": "step time keeps drifting", "phases": "they were measured in different phases"}
VERDICT_TITLES = {
    "faster": "faster",
    "slower": "slower",
    "no_difference_shown": "~ no difference detected",
    "too_few_runs": "too few runs for a verdict",
    "unsettled": "no verdict: step time drifts",
    "not_comparable": "not comparable",
}
WEIGHT_TITLES = {"work": "the work", "configuration": "the configuration", "context": "the context"}
MOST_DECIMALS = 4  # of a ratio whose interval nearly touches 1


def interval(estimate: Estimate, form: Form) -> str | None:
    """Return both ends of the interval in the same form, or None where there is none."""
    if estimate.low is None or estimate.high is None:
        return None
    return f"{form(estimate.low)} to {form(estimate.high)}"


def plus_minus(estimate: Estimate) -> str | None:
    """Return half the width of the interval relative to the value (the wider half), or None.

    >>> plus_minus(Estimate(value=100.0, low=99.0, high=101.5, rests_on=""))
    '±1.5 %'
    >>> plus_minus(Estimate(value=100.0, low=1.0, high=9000.0, rests_on=""))
    '±100 % or more'
    """
    if not estimate.value or estimate.low is None or estimate.high is None:
        return None
    half = max(estimate.high - estimate.value, estimate.value - estimate.low) / abs(estimate.value)
    if half > 1:
        return "±100 % or more"
    return f"±{percent(half, 1)}" if math.isfinite(half) and half >= 0.001 else f"±{significant(100 * half, 1)} %"


def with_interval(estimate: Estimate, form: Form) -> str:
    """Return the value, and ± in percent where there is an interval; that of one run says so.

    >>> with_interval(Estimate(value=9.0, low=8.9, high=9.1, rests_on="", within_run=True), "{:g}".format)
    '9 ±1.1 % within run'
    """
    width = plus_minus(estimate)
    within = " within run" if estimate.within_run else ""
    return f"{form(estimate.value)} {width}{within}" if width else form(estimate.value)


def confidence(estimate: Estimate) -> str:
    """Return the name of an interval. A corrected interval is named after the joint confidence of the report.

    >>> confidence(Estimate(value=1.0, rests_on="")), confidence(Estimate(value=1.0, rests_on="", within_run=True))
    ('95 % interval', '95 % interval within the run')
    >>> confidence(Estimate(value=1.0, rests_on="", confidence=0.9833, joint=0.95))
    '95 % interval'
    """
    within = " within the run" if estimate.within_run else ""
    return f"{confidence_level(estimate.joint or estimate.confidence)} interval{within}"


def model_title(model: Model) -> str:
    """Return the model's title: from its shape if known, else from its preset; the title of a tiny model says tiny.

    >>> model_title(Model(name="llama", preset="tiny")), model_title(Model(name="llama"))
    ('Llama-3.1 tiny', 'llama')
    """
    known = presets.identify(model.shape) if model.shape is not None else None
    if known is None and model.shape is None and model.name and model.preset:
        try:
            known = presets.find_preset(model.name, model.preset)
        except UsageError:  # a name of the log's own
            known = None
    if known is not None:
        return known.title
    return " ".join(filter(None, (model.name or "unnamed model", model.preset)))


def device_title(side: Side, *, short: bool = False) -> str:
    """Return the number and name of the devices, as the driver or the log names them. short: without vendor, memory."""
    gpu, gpus = side.result.gpu_info, side.result.training_config.num_gpus
    name = gpu.device_name or "unknown device"
    name = short_device(name) if short else name
    if side.result.platform == "cpu":
        return name
    return f"{gpus} × {name}" if gpus else name


def precision(side: Side) -> str:
    """Return the precision that ran, as people write it."""
    stated = side.result.training_config.precision
    return stated.upper() if stated else "precision not stated"


def verdict_text(pair: Pair) -> str:
    """Return the verdict of a pair in a few words."""
    if pair.fairness.verdict == "not_comparable":
        return VERDICT_TITLES["not_comparable"]
    return VERDICT_TITLES[pair.ratio.verdict] if pair.ratio is not None else "no rate to compare"


@dataclass(frozen=True, kw_only=True)
class Headline:
    """A finding with its interval in one sentence, and its limits, which reports write below it."""

    finding: str
    limits: tuple[str, ...] = ()
    """Clauses: assumptions, scope, doubts about a rate."""
    pairs: tuple[Pair, ...] = ()
    """Pairs that the finding is about: one, or those of a mean."""
    model: str = ""
    """Title of the model, where a report has a headline for each of several."""

    @property
    def sentence(self) -> str:
        """Return the finding as a sentence without its full stop."""
        return f"{self.model}: {self.finding}" if self.model else self.finding

    def __str__(self) -> str:
        return self.sentence + in_brackets(*self.limits)


def limits_of(headlines: Sequence[Headline], said: Collection[str] = ()) -> str:
    """Return the limits of headlines in sentences, each once; one that not all of them have names its model.

    said: limits that the page already states; they are not repeated.
    """
    named = [
        limit if all(limit in other.limits for other in headlines) else f"{one.model}: {limit}"
        for one in headlines
        for limit in one.limits
        if limit not in said
    ]
    return " ".join(f"{limit[:1].upper()}{limit[1:]}." for limit in dict.fromkeys(named))


def headline(pair: Pair) -> Headline:
    """Return the finding of a pair with its limits, among them a doubt about each rate that the log's clock denies."""
    finding, limits = _finding(pair)
    off = [
        f"the rate of {side.label} is {why}"
        for side in (pair.candidate, pair.baseline)
        if (pair.ratio is None or pair.ratio.metric != TIME_TO_TRAIN)  # a time to train is the clock's own
        and (why := gap_reason(side.result.audit))
    ]
    return Headline(finding=finding, limits=(*filter(None, limits), *off), pairs=(pair,))


def _finding(pair: Pair) -> tuple[str, tuple[str | None, ...]]:
    """Return the finding, which names the precisions if they differ, and what limits it."""
    candidate, baseline, ratio = pair.candidate.label, pair.baseline.label, pair.ratio
    if pair.fairness.errors:
        return f"No ratio of {candidate} to {baseline}: a figure is physically impossible", ()
    if pair.fairness.verdict == "not_comparable":
        return f"No ratio of {candidate} to {baseline}: not comparable", ()
    if ratio is None or ratio.estimate.value is None:
        return f"No ratio of {candidate} to {baseline}: at least one side has no rate", ()
    if ratio.metric == TIME_TO_TRAIN:
        return _time_to_train(pair, ratio)
    precisions = tuple(map(precision, (pair.candidate, pair.baseline)))
    if precisions[0] != precisions[1]:
        candidate, baseline = (
            name if how in name else f"{name} · {how}"
            for name, how in zip((candidate, baseline), precisions, strict=True)
        )
    limits = (condition_of(pair), *limits_of_ratio(ratio))
    if ratio.verdict == "too_few_runs":
        metric = METRIC_TITLES.get(ratio.metric, ratio.metric)
        finding = f"{candidate} measured {ratio_form(ratio)(ratio.estimate.value)} the {metric} of {baseline}"
        return finding, (_few_runs(pair), *limits)
    amount = ratio_in_words(ratio)
    if ratio.verdict in ("faster", "slower"):
        return f"{candidate} is {ratio.verdict} than {baseline}: {amount}", limits
    if ratio.verdict == "unsettled":
        return f"No verdict on {candidate} and {baseline}: {amount}", (UNSETTLED_BY[ratio.unsettled_by], *limits)
    return f"~ No difference detected between {candidate} and {baseline}: {amount}", limits


def limits_of_ratio(ratio: Ratio) -> tuple[str | None, ...]:
    """Return the clauses on which steps a ratio is of, what it assumes and where it holds."""
    return ratio.steps, ratio.assumption, ratio.sensitivity, ratio.scope


def _time_to_train(pair: Pair, ratio: Ratio) -> tuple[str, tuple[str | None, ...]]:
    """Return the ratio of the times to one quality target, and the ratios of rate and samples that it consists of."""
    estimate, task = ratio.estimate, ratio.task
    candidate, baseline = _with_size(pair.candidate, pair.baseline), _with_size(pair.baseline, pair.candidate)
    if estimate.value is None:
        return f"No ratio of {candidate} to {baseline}: at least one side has no time to train", ()
    finding = f"{candidate} takes {times(1 / estimate.value, 3)} the time of {baseline} to the quality target"
    made_of = (
        None
        if task is None
        else f"it runs at {times(task.rate, 3)} the rate and needs {times(task.samples, 3)} the samples"
    )
    if not (estimate.low and estimate.high):
        return finding, (made_of, _few_runs(pair), ratio.scope)
    ends = f"{confidence(estimate)} of the time {times(1 / estimate.high, 3)} to {times(1 / estimate.low, 3)}"
    opening = "~ No difference detected: " if ratio.verdict == "no_difference_shown" else ""
    return f"{opening}{finding}{in_brackets(ends)}", (made_of, *limits_of_ratio(ratio))


def _with_size(side: Side, other: Side) -> str:
    """Return the label of a side, with its GPUs or nodes where the other side has another number of them."""
    for field, noun in (("num_gpus", "GPU"), ("num_nodes", "node")):
        ours, theirs = (getattr(one.result.training_config, field) for one in (side, other))
        if ours and theirs:
            return side.label if ours == theirs else f"{side.label} ({counted(ours, noun)})"
    return side.label


def in_brackets(*limits: str | None) -> str:
    """Return the limits of a claim in brackets, as the end of its sentence.

    >>> in_brackets("95 % interval 1.1x to 1.2x", None, "one machine each"), in_brackets(None)
    (' (95 % interval 1.1x to 1.2x; one machine each)', '')
    """
    known = "; ".join(filter(None, limits))
    return f" ({known})" if known else ""


def _few_runs(pair: Pair) -> str | None:
    """Return the reason why single runs confirm nothing, or None where both sides have several."""
    single = [side for side in (pair.baseline, pair.candidate) if len(side.result.runs) < 2]
    if not single:
        return None
    return "one run each cannot confirm it" if len(single) > 1 else f"one run of {single[0].label} cannot confirm it"


def sides_by(comparison: Comparison) -> str:
    """Return the criterion that separates the sides, for a heading."""
    return "sides as named in the command" if comparison.by == "argument" else f"sides by {comparison.by}"


def condition_of(pair: Pair) -> str | None:
    """Return a clause on the settings that must match although one side does not state them; None if there are none."""
    conditions = pair.fairness.conditions
    return f"holds only if {must_match(conditions)}" if conditions else None


def mean_headline(comparison: Comparison) -> Headline | None:
    """Return the headline that says which side is faster on average over several models; None if no mean exists."""
    mean = comparison.mean_ratio
    pairs = [pair for pair in comparison.pairs if pair.fairness.level.comparable and pair.ratio is not None]
    if mean is None or mean.estimate.value is None or not pairs:
        return None
    candidate, baseline, value = pairs[0].candidate.label, pairs[0].baseline.label, mean.estimate.value
    over = f"on average over {len(pairs)} models"
    low, high = mean.estimate.low, mean.estimate.high
    limits = [*dict.fromkeys(map(condition_of, pairs)), mean.assumption, mean.scope]
    if low is None or high is None:
        finding = f"{candidate} measured {times(value)} the {METRIC_TITLES[mean.metric]} of {baseline} {over}"
        ends = mean.estimate.no_interval_because or "no interval"
    else:
        ends = f"{confidence(mean.estimate)} {change(low - 1, unit='')} to {change(high - 1)}"
        finding = f"~ No difference detected between {candidate} and {baseline} {over}"
    if mean.verdict == "unsettled":
        finding = f"No verdict on {candidate} and {baseline} {over}"
        limits.insert(0, "step time keeps drifting")
    elif low is not None and high is not None and mean.verdict in ("faster", "slower"):
        least, most = sorted((abs(low - 1), abs(high - 1)))
        ends = f"{confidence(mean.estimate)} {fixed(100 * least, 1)} to {percent(most, 1)}"
        finding = f"{candidate} is {percent(abs(value - 1), 1)} {mean.verdict} than {baseline} {over}"
    return Headline(finding=finding + in_brackets(ends), limits=tuple(filter(None, limits)), pairs=tuple(pairs))


def ratio_form(ratio: Ratio) -> Form:
    """Return the function that formats a ratio and its interval with decimals that distinguish the ends."""
    value, low, high = ratio.estimate.value, ratio.estimate.low, ratio.estimate.high
    if value is None or value >= 10 or low is None or high is None or not 0 < high - low < math.inf:
        return times
    decimals = decimals_of_ratio(low, high)
    nearest = low if ratio.verdict == "faster" else high if ratio.verdict == "slower" else 0.0
    while round(nearest, decimals) == 1 and decimals < MOST_DECIMALS:
        decimals += 1  # "1.01x (1.00x to 1.03x)" would not show the difference that the verdict states
    return lambda number: times(number, decimals)


def ratio_in_words(ratio: Ratio) -> str:
    """Return the ratio with its metric and its interval.

    >>> ratio_in_words(Ratio(metric="tokens_per_second", estimate=Estimate(value=1.2, low=1.1, high=1.3, rests_on=""),
    ...                      verdict="faster"))
    '1.20x the tokens/s (95 % interval 1.10x to 1.30x)'
    """
    form = ratio_form(ratio)
    clause = f"{form(ratio.estimate.value)} the {METRIC_TITLES.get(ratio.metric, ratio.metric)}"
    ends = interval(ratio.estimate, form)
    why_none = ratio.estimate.no_interval_because or "no interval"
    return clause + in_brackets(f"{confidence(ratio.estimate)} {ends}" if ends else why_none)


def advice(pair: Pair) -> str | None:
    """Return the advice for a pair without a verdict; None if no advice applies."""
    if pair.ratio is not None and pair.ratio.verdict == "unsettled":
        if pair.ratio.unsettled_by == "phases":  # a warning advises
            return None
        return (
            "To decide, measure longer runs (benchmark.py --steps N --warmup-steps N), until step time stops drifting"
        )
    if pair.ratio is None or pair.ratio.verdict != "too_few_runs":
        return None
    needed = pair.ratio.estimate.runs_for_one_percent
    amount = f"about {needed} runs of each side (for ±1 %)" if needed else "several runs of each side"
    return (
        f"To decide, measure {amount} with benchmark.py --runs N, or assume a run-to-run variation, such as "
        "--assume-run-cv 2%"
    )
