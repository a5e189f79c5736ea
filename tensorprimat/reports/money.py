"""The money section of a comparison: first the break-even price, then costs at known prices."""

from __future__ import annotations

from tensorprimat.analysis.economics import break_even, unlike_prices
from tensorprimat.analysis.records import Pair, Side
from tensorprimat.core import quantities
from tensorprimat.core.quantities import money
from tensorprimat.reports import formatting

SEVERAL_TIMES = 3.0  # a ratio of costs from which percent are harder to read than the ratio
CLOSE = 0.005  # relative; a smaller difference of costs does not show in the printed digits


def sentences(pair: Pair) -> list[str]:
    """Return the break-even price of a pair as a ratio, then its costs if the prices of both sides are known.

    The list is empty for two sides on one device at one price: costs only repeat the ratio of speeds. What the ratio
    rests on is in the headline.
    """
    sides = (pair.baseline, pair.candidate)
    devices = {side.result.gpu_info.device_name for side in sides}
    prices = {side.metrics["price_usd_per_gpu_hour"].value for side in sides}
    if None not in devices and len(devices) == len(prices) == 1:
        return []
    even = break_even(pair)
    if even is None or even.value is None or "cpu" in (pair.baseline.result.platform, pair.candidate.result.platform):
        return []
    candidate, baseline = pair.candidate.label, pair.baseline.label
    form = formatting.ratio_form(pair.ratio) if pair.ratio is not None else quantities.times
    ends = formatting.interval(even, form)
    sure = f"{formatting.confidence(even)} {ends}" if ends else "as measured"
    sentence = f"{candidate} is cheaper as long as its GPU-hour costs less than {form(even.value)} that of {baseline}"
    return [f"{sentence} ({sure}).", *_at_prices(pair, even.value, even.low, even.high)]


def _at_prices(pair: Pair, value: float, low: float | None, high: float | None) -> list[str]:
    """Return the costs at known prices; a winner is named only if prices are alike and the interval allows it."""
    candidate, baseline = pair.candidate, pair.baseline
    prices = [side.metrics["price_usd_per_gpu_hour"] for side in (candidate, baseline)]
    above, below = (price.value for price in prices)
    if above is None or below is None or unlike_prices([baseline.metrics, candidate.metrics]):
        return []
    stated = f"{_price(candidate)} and {_price(baseline)}"
    cost = above / below / value
    settled = pair.ratio is not None and pair.ratio.verdict not in ("unsettled", "too_few_runs")
    undecided = low is None or high is None or above / below / low > 1 > above / below / high
    if undecided or not settled or abs(cost - 1) < CLOSE:
        share = quantities.times(cost)
        return [f"At {stated} the work costs {share} as much on {candidate.label}, not confirmed."]
    if cost >= SEVERAL_TIMES:
        return [f"At {stated} the same work costs {quantities.times(cost)} as much on {candidate.label}."]
    cheaper, part = ("cheaper", 1 - cost) if cost < 1 else ("more expensive", cost - 1)
    return [f"At {stated} the same work is {quantities.percent(part)} {cheaper} on {candidate.label}."]


def _price(side: Side) -> str:
    price = side.metrics["price_usd_per_gpu_hour"]
    return f"{money(price.value)}/h ({side.label}: {price.remark})"
