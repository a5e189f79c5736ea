"""Costs of one side against another: break-even price, saving, and prices that no comparison can use."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tensorprimat.analysis import formulas, inputs
from tensorprimat.analysis.records import Estimate, Pair, Side
from tensorprimat.analysis.stats import LogEstimate
from tensorprimat.core.figures import Figure, Input, derive, unknown
from tensorprimat.core.quantities import as_stated, listed
from tensorprimat.facts.catalogue import find_gpu


@dataclass(frozen=True, kw_only=True)
class Return:
    """The gain of a candidate against the baseline, for the same work."""

    baseline: str
    candidate: str
    grounds: str
    """Sentence of the verdict level."""
    break_even_price: Figure
    """Price of the candidate at which its tokens cost as much as the baseline's."""
    saving: Figure
    """Money that the candidate saves on the user's token budget; negative if it costs more."""


def weigh(pair: Pair) -> Return:
    """Return break-even price and saving; both unknown, with the reason, if the sides' rates are not compared."""
    even, saving = "break_even_price_usd_per_gpu_hour", "budget_saving_usd"
    baseline, candidate = pair.baseline, pair.candidate
    grounds = pair.fairness.sentence.rstrip(".")
    if pair.fairness.verdict in ("not_comparable", "same_task"):
        prices = unknown(even, grounds), unknown(saving, grounds)
    else:
        rates = [_of(side, inputs.rate_per_gpu(side.result)) for side in (baseline, candidate)]
        price = _of(baseline, baseline.metrics["price_usd_per_gpu_hour"].as_input())
        costs = [_of(side, side.metrics["budget_cost_usd"].as_input()) for side in (baseline, candidate)]
        unlike = unlike_prices([baseline.metrics, candidate.metrics])
        prices = (
            derive(even, (price, *rates), formulas.calculate_break_even_price),
            unknown(saving, unlike, tuple(costs))
            if unlike
            else derive(saving, tuple(costs), lambda baseline, candidate: baseline - candidate),
        )
    return Return(
        baseline=baseline.label,
        candidate=candidate.label,
        grounds=grounds,
        break_even_price=prices[0],
        saving=prices[1],
    )


def unlike_prices(sides: Iterable[Mapping[str, Figure]]) -> str | None:
    """Return the reason why prices are not compared: only some are the user's, or they are from different sources.

    sides: metrics of each. None if the prices are compared, or if fewer than two are known.
    """
    prices = [metrics["price_usd_per_gpu_hour"].inputs[0] for metrics in sides]
    known = [price for price in prices if price.value is not None]
    if len({price.source if price.stated_for is None else "--price" for price in known}) < 2:
        return None
    sources = "; ".join(str(price.source) for price in known)
    return f"the prices come from different sources ({sources}); give --price for all"


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


def _of(side: Side, rests_on: Input) -> Input:
    reasons = tuple(f"{side.label}: {reason}" for reason in rests_on.reasons)
    return replace(rests_on, name=f"{rests_on.name} of {side.label}", because=None, root_reasons=reasons)


def unused_prices(sides: Sequence[Side], prices: Mapping[str, float]) -> list[str]:
    """Return a warning for each --price that counts for no side, and one where only some sides have a stated price."""
    found = []
    listed_only = [
        side.label
        for side in sides
        if (price := side.metrics["price_usd_per_gpu_hour"]).value is not None and price.inputs[0].stated_for is None
    ]
    if prices and listed_only and len(listed_only) < len(sides):
        found.append(f"--price: costs are compared only at stated prices; give it for {listed(listed_only)} too")
    for name, usd in prices.items():
        of_name = [
            side.metrics["price_usd_per_gpu_hour"]
            for side in sides
            if name == side.label or inputs.means(name, side.result)
        ]
        if not name or any(metric.value == usd for metric in of_name):
            continue
        why = "no side has this name, and no result is from such a device"
        if of_name:
            why = f"not used, because {of_name[0].remark} is more exact"
        found.append(f"--price {name}={as_stated(usd)}: {why}")
    return found


def price_of_gpu(gpu: str | None, prices: Mapping[str, float]) -> float | None:
    """Return the user's USD for an hour of a GPU by its name; None where none is stated."""
    name = inputs.stated_price(gpu, find_gpu(gpu), prices)
    return None if name is None else prices[name]


def cost_of_training(
    minutes: float | None, num_gpus: int | None, gpu: str | None, prices: Mapping[str, float]
) -> float | None:
    """Return the USD that a training costs at the user's price; None where time, GPUs or price are unknown."""
    price = price_of_gpu(gpu, prices)
    return price * num_gpus * minutes / 60 if price and minutes and num_gpus else None


def cost_ratio(of_times: LogEstimate, gpus: Sequence[str], prices: Mapping[str, float]) -> LogEstimate | None:
    """Return the logarithm of the ratio of costs, from that of times, first over second GPU; None without a price."""
    first, second = (price_of_gpu(gpu, prices) for gpu in gpus)
    return replace(of_times, log=of_times.log + math.log(first / second)) if first and second else None


def unused_prices_of_gpus(gpus: Iterable[str | None], prices: Mapping[str, float]) -> list[str]:
    """Return a warning for each --price that counts for none of the GPUs."""
    used = {inputs.stated_price(gpu, find_gpu(gpu), prices) for gpu in set(gpus)}
    return [
        f"--price {name}={as_stated(usd)}: no entry is of this GPU"
        for name, usd in prices.items()
        if name and name not in used
    ]
