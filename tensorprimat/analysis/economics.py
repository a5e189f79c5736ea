"""Derived figures of many results side by side: costs, savings, and the break-even price of each pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from tensorprimat.analysis import formulas, inputs
from tensorprimat.analysis.fairness import judge
from tensorprimat.analysis.impossible import impossible_of_sides
from tensorprimat.analysis.levels import LevelName
from tensorprimat.analysis.metric import Input, Metric, derive, unknown
from tensorprimat.analysis.metrics import MetricChoices, measure
from tensorprimat.analysis.records import Estimate, Pair
from tensorprimat.analysis.sides import Group, gather, model_of, usable
from tensorprimat.core.errors import InputError
from tensorprimat.core.store import Loaded


@dataclass(frozen=True, kw_only=True)
class Enhanced:
    """One side of one model with its derived figures."""

    side: Group
    metrics: dict[str, Metric]


@dataclass(frozen=True, kw_only=True)
class Return:
    """The gain of a candidate against the baseline, for the same work."""

    baseline: str
    candidate: str
    fairness: LevelName
    grounds: str
    """Sentence of the verdict level."""
    break_even_price: Metric
    """Price of the candidate at which its tokens cost as much as the baseline's."""
    saving: Metric
    """Money that the candidate saves on the user's token budget; negative if it costs more."""


@dataclass(frozen=True, kw_only=True)
class Economics:
    """Everything that the report on efficiency and cost shows."""

    assumptions: MetricChoices
    models: dict[str, tuple[Enhanced, ...]]
    """Sides of each model, in reading order."""
    returns: dict[str, tuple[Return, ...]]
    """Of every side of a model against its first one."""
    warnings: tuple[str, ...]
    errors: tuple[str, ...]
    """Impossible figures; no other figure is reliable until their settings are corrected."""
    generated_at: str


def economics(loaded: Sequence[Loaded], assumptions: MetricChoices) -> Economics:
    """Return derived figures of every result, model by model.

    Raises UsageError for an unknown FLOPs convention, InputError where no result can be used.
    """
    items, warnings = usable(loaded)
    if not items:
        raise InputError("no result can be used" + (f" ({'; '.join(warnings)})" if warnings else ""))
    by_model: dict[str, list[Loaded]] = {}
    for item in items:
        by_model.setdefault(model_of(item.result), []).append(item)
    models = {
        model: tuple(
            Enhanced(side=side, metrics=measure(side.result, assumptions)) for side in gather(of_model, "platform")
        )
        for model, of_model in by_model.items()
    }
    return Economics(
        assumptions=assumptions,
        models=models,
        returns={
            model: tuple(weigh(sides[0], candidate) for candidate in sides[1:]) for model, sides in models.items()
        },
        errors=impossible_of_sides([(one.side.label, one.side.result) for sides in models.values() for one in sides]),
        warnings=(
            *warnings,
            *unused_prices([side.metrics for sides in models.values() for side in sides], assumptions.prices),
        ),
        generated_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def weigh(baseline: Enhanced, candidate: Enhanced) -> Return:
    """Return break-even price and saving; both unknown, with the reason, if the sides' rates are not compared."""
    even, saving = "break_even_price_usd_per_gpu_hour", "budget_saving_usd"
    fairness = judge(baseline.side.result, candidate.side.result)
    grounds = fairness.sentence.rstrip(".")
    if fairness.verdict in ("not_comparable", "same_task"):
        prices = unknown(even, grounds), unknown(saving, grounds)
    else:
        rates = [_of(side, inputs.rate_per_gpu(side.side.result)) for side in (baseline, candidate)]
        price = _of(baseline, baseline.metrics["price_usd_per_gpu_hour"].as_input())
        costs = [_of(side, side.metrics["budget_cost_usd"].as_input()) for side in (baseline, candidate)]
        unlike = unlike_prices(baseline.metrics, candidate.metrics)
        prices = (
            derive(even, (price, *rates), formulas.calculate_break_even_price),
            unknown(saving, unlike, tuple(costs))
            if unlike
            else derive(saving, tuple(costs), lambda baseline, candidate: baseline - candidate),
        )
    return Return(
        baseline=baseline.side.label,
        candidate=candidate.side.label,
        fairness=fairness.verdict,
        grounds=grounds,
        break_even_price=prices[0],
        saving=prices[1],
    )


def unlike_prices(baseline: Mapping[str, Metric], candidate: Mapping[str, Metric]) -> str | None:
    """Return the reason why two prices are not compared: one is the user's, or they are from different sources.

    None if they are compared, or if one is unknown."""
    sources = [metrics["price_usd_per_gpu_hour"].remark for metrics in (baseline, candidate)]
    kinds = {"--price" if (source or "").startswith("--price ") else source for source in sources}
    if None in kinds or len(kinds) == 1:
        return None
    return f"the prices come from different sources ({'; '.join(map(str, sources))}); give --price for both"


def break_even(pair: Pair) -> Estimate | None:
    """Return the candidate's price of a GPU-hour, divided by the baseline's, at which the work costs the same.

    A ratio of rates per GPU is this factor itself; a ratio of totals or of times to a target is scaled by the numbers
    of GPUs. None where a number is missing or nothing may be compared.
    """
    ratio = pair.ratio
    if ratio is None or not pair.fairness.level.comparable or pair.fairness.errors or ratio.estimate.value is None:
        return None
    if ratio.metric.endswith("_per_gpu"):
        return ratio.estimate
    ours, theirs = (side.result.training_config.num_gpus for side in (pair.candidate, pair.baseline))
    if not ours or not theirs:
        return None
    low, high, fewer = ratio.estimate.low, ratio.estimate.high, theirs / ours
    return replace(
        ratio.estimate,
        value=ratio.estimate.value * fewer,
        low=None if low is None else low * fewer,
        high=None if high is None else high * fewer,
    )


def _of(side: Enhanced, rests_on: Input) -> Input:
    label = side.side.label
    reasons = tuple(f"{label}: {reason}" for reason in rests_on.reasons)
    return replace(rests_on, name=f"{rests_on.name} of {label}", because=None, root_reasons=reasons)


def unused_prices(sides: Sequence[Mapping[str, Metric]], prices: Mapping[str, float]) -> list[str]:
    """Return a warning for each --price that names no side's device."""
    used = {metrics["price_usd_per_gpu_hour"].remark or "" for metrics in sides}
    return [
        f"--price {name}={usd:g}: no result is from this device"
        for name, usd in prices.items()
        if name and not any(remark.startswith(f"--price {name}=") for remark in used)
    ]
