"""Figures and verdicts in words; `core/quantities` gives a number its digits and its unit.

None is "–": unmeasured. Everything here formats figures of analysis; nothing is computed.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from tensorprimat.analysis.rates import TIME_TO_TRAIN
from tensorprimat.analysis.records import Comparison, Estimate, Pair, Ratio, Side, must_match
from tensorprimat.core import quantities
from tensorprimat.core.audit_verdict import gap_reason
from tensorprimat.core.devices import short_device
from tensorprimat.core.errors import UsageError
from tensorprimat.core.quantities import (
    Form,
    change,
    confidence_level,
    counted,
    decimals_of_ratio,
    fixed,
    long_time,
    money,
    percent,
    significant,
    times,
    with_prefix,
)
from tensorprimat.core.result import Model
from tensorprimat.models import presets

METRIC_TITLES = {
    "tokens_per_second_per_gpu": "tokens/s/GPU",
    "tokens_per_second": "tokens/s",
    "samples_per_second_per_gpu": "samples/s/GPU",
    "samples_per_second": "samples/s",
    "steps_per_second": "steps/s",
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


def limits_of(pair: Pair) -> set[str]:
    """Return the phrases by which a headline limits its claim: condition, assumption and scope."""
    of_ratio = (pair.ratio.assumption, pair.ratio.scope) if pair.ratio is not None else ()
    return set(filter(None, (condition_of(pair), *of_ratio)))


def _without(pair: Pair, said: Collection[str]) -> Pair:
    """Return a pair without the limits that a page already states."""
    if said and pair.ratio is not None:
        assumption, scope = (None if limit in said else limit for limit in (pair.ratio.assumption, pair.ratio.scope))
        pair = replace(pair, ratio=replace(pair.ratio, assumption=assumption, scope=scope))
    return replace(pair, fairness=replace(pair.fairness, conditions=())) if condition_of(pair) in said else pair


def headline(pair: Pair, said: Collection[str] = ()) -> str:
    """Return the finding of a pair, and a reason for each side whose rate differs from the clock of its log.

    said: limits that the page already states; they are not repeated.
    """
    pair = _without(pair, said)
    if pair.ratio is not None and pair.ratio.metric == TIME_TO_TRAIN:  # the time is read from the log's own clock
        return _headline(pair)
    off = [
        f"the rate of {side.label} is {why}"
        for side in (pair.candidate, pair.baseline)
        if (why := gap_reason(side.result.audit))
    ]
    return "; ".join([_headline(pair), *off])


def _headline(pair: Pair) -> str:
    """Return the headline without the reasons; it names the precisions if they differ."""
    candidate, baseline = pair.candidate.label, pair.baseline.label
    if pair.fairness.errors:
        return f"No ratio of {candidate} to {baseline}: a figure is physically impossible"
    if pair.fairness.verdict == "not_comparable":
        return f"No ratio of {candidate} to {baseline}: not comparable"
    if pair.ratio is None or pair.ratio.estimate.value is None:
        return f"No ratio of {candidate} to {baseline}: at least one side has no rate"
    precisions = tuple(map(precision, (pair.candidate, pair.baseline)))
    if precisions[0] != precisions[1]:
        candidate, baseline = (
            name if how in name else f"{name} · {how}"
            for name, how in zip((candidate, baseline), precisions, strict=True)
        )
    if pair.ratio.metric == TIME_TO_TRAIN:
        return _time_to_train(pair, pair.ratio)
    condition = f", {condition_of(pair)}" if pair.fairness.conditions else ""
    if pair.ratio.verdict == "too_few_runs":
        form = ratio_form(pair.ratio)
        metric = METRIC_TITLES.get(pair.ratio.metric, pair.ratio.metric)
        sentence = f"{candidate} measured {form(pair.ratio.estimate.value)} the {metric} of {baseline}{condition}"
        return (f"{sentence}, but {few}" if (few := _few_runs(pair)) else sentence) + in_brackets(
            pair.ratio.steps, pair.ratio.scope
        )
    amount = ratio_in_words(pair.ratio)
    if pair.ratio.verdict in ("faster", "slower"):
        return f"{candidate} is {pair.ratio.verdict} than {baseline}{condition}: {amount}"
    if pair.ratio.verdict == "unsettled":
        why = UNSETTLED_BY[pair.ratio.unsettled_by]
        return f"No verdict on {candidate} and {baseline}: {why}; ratio{condition}: {amount}"
    return f"~ No difference detected between {candidate} and {baseline}{condition}: {amount}"


def _time_to_train(pair: Pair, ratio: Ratio) -> str:
    """Return the ratio of the times to one quality target, then the ratios of rate and samples that it consists of."""
    estimate, task = ratio.estimate, ratio.task
    candidate, baseline = _with_size(pair.candidate, pair.baseline), _with_size(pair.baseline, pair.candidate)
    if estimate.value is None:
        return f"No ratio of {candidate} to {baseline}: at least one side has no time to train"
    sentence = f"{candidate} takes {times(1 / estimate.value, 3)} the time of {baseline} to the quality target"
    if task is not None:
        sentence += f": it runs at {times(task.rate, 3)} the rate and needs {times(task.samples, 3)} the samples"
    if estimate.low and estimate.high:
        ends = f"{confidence(estimate)} of the time {times(1 / estimate.high, 3)} to {times(1 / estimate.low, 3)}"
        sentence += in_brackets(ends, ratio.assumption, ratio.sensitivity, ratio.scope)
        return f"~ No difference detected: {sentence}" if ratio.verdict == "no_difference_shown" else sentence
    few = _few_runs(pair)
    return (f"{sentence}, but {few}" if few else sentence) + in_brackets(ratio.scope)


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


def condition_of(pair: Pair) -> str:
    """Return the settings that must match although one side does not state them, as the end of a claim; "" for none."""
    conditions = pair.fairness.conditions
    return f"if {must_match(conditions)}" if conditions else ""


def mean_sentence(comparison: Comparison) -> str | None:
    """Return one sentence that says which side is faster on average over several models; None if no mean exists."""
    mean = comparison.mean_ratio
    pairs = [pair for pair in comparison.pairs if pair.fairness.level.comparable and pair.ratio is not None]
    if mean is None or mean.estimate.value is None or not pairs:
        return None
    candidate, baseline, value = pairs[0].candidate.label, pairs[0].baseline.label, mean.estimate.value
    over = f"on average over {len(pairs)} models"
    condition = next((f", {condition_of(pair)}" for pair in pairs if pair.fairness.conditions), "")
    low, high = mean.estimate.low, mean.estimate.high
    level = confidence(mean.estimate)
    if low is None or high is None:
        sentence = (
            f"{candidate} measured {times(value)} the {METRIC_TITLES[mean.metric]} of {baseline} {over}{condition}"
        )
        return sentence + in_brackets(mean.estimate.no_interval_because or "no interval", mean.scope)
    ends = f"{level} {change(low - 1, unit='')} to {change(high - 1)}"
    if mean.verdict == "unsettled":
        sentence = f"No verdict on {candidate} and {baseline} {over}: step time keeps drifting{condition}"
    elif mean.verdict in ("faster", "slower"):
        least, most = sorted((abs(low - 1), abs(high - 1)))
        ends = f"{level} {fixed(100 * least, 1)} to {percent(most, 1)}"
        sentence = f"{candidate} is {percent(abs(value - 1), 1)} {mean.verdict} than {baseline} {over}{condition}"
    else:
        sentence = f"~ No difference detected between {candidate} and {baseline} {over}{condition}"
    return sentence + in_brackets(ends, mean.assumption, mean.scope)


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
    """Return the ratio with metric, interval and assumption.

    >>> ratio_in_words(Ratio(metric="tokens_per_second", estimate=Estimate(value=1.2, low=1.1, high=1.3, rests_on=""),
    ...                      verdict="faster"))
    '1.20x the tokens/s (95 % interval 1.10x to 1.30x)'
    """
    form = ratio_form(ratio)
    clause = f"{form(ratio.estimate.value)} the {METRIC_TITLES.get(ratio.metric, ratio.metric)}"
    ends = interval(ratio.estimate, form)
    details = [f"{confidence(ratio.estimate)} {ends}" if ends else ratio.estimate.no_interval_because or "no interval"]
    return clause + in_brackets(*details, ratio.steps, ratio.assumption, ratio.sensitivity, ratio.scope)


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


def _with(unit: str, form: quantities.Form = quantities.rate) -> quantities.Form:
    return lambda value: quantities.UNMEASURED if value is None else f"{form(value)}{unit}"


FORMS: dict[str, quantities.Form] = {
    "tokens_per_second_per_gpu": quantities.rate,
    "flops_per_token": with_prefix("FLOP"),
    "model_tflops_per_gpu": quantities.rate,
    "mfu": quantities.percent,
    "mfu_at_clock": quantities.percent,
    "hfu": quantities.percent,
    "achievable_fraction": quantities.percent,
    "reported_tflops_per_gpu_restated": quantities.rate,
    "memory_utilization": quantities.percent,
    "memory_headroom_gb": quantities.gigabytes,
    "largest_micro_batch_size": quantities.count,
    "power_watts_per_gpu": _with(" W"),
    "joules_per_token": with_prefix("J"),
    "joules_per_step": with_prefix("J"),
    "tokens_per_watt_hour": quantities.rate,
    "sampled_joules_per_token": with_prefix("J"),
    "sampled_joules_per_step": with_prefix("J"),
    "sampled_tokens_per_watt_hour": quantities.rate,
    "model_tflops_per_watt": quantities.rate,
    "price_usd_per_gpu_hour": _with("/h", money),
    "cost_usd_per_trillion_tokens": money,
    "tokens_per_dollar": with_prefix("tokens"),
    "time_to_1t_tokens_seconds": long_time,
    "time_to_15t_tokens_seconds": long_time,
    "budget_gpu_hours": quantities.rate,
    "budget_seconds": long_time,
    "budget_energy_kwh": _with(" kWh"),
    "budget_cost_usd": money,
    "budget_saving_usd": money,
    "break_even_price_usd_per_gpu_hour": _with("/h", money),
}
