"""A report as data: what its documents and the terminal show of a comparison, computed once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from tensorprimat.analysis.economics import break_even, unlike_prices
from tensorprimat.analysis.records import Comparison, Pair, Side
from tensorprimat.core import quantities
from tensorprimat.reports import efficiency, facts, forest, formatting, notices, sections
from tensorprimat.reports.formatting import Headline
from tensorprimat.reports.sections import Report
from tensorprimat.reports.tables import Table

SEVERAL_TIMES = 3.0  # a ratio of costs from which percent are harder to read than the ratio
CLOSE = 0.005  # relative; a smaller difference of costs does not show in the printed digits


@dataclass(frozen=True, kw_only=True)
class PairPart:
    """One pair: its sentences and the table of what differs."""

    pair: Pair
    headline: Headline
    limits: str
    """Limits of the headline that the answers do not state already."""
    own_devices: str | None
    """Clause on the use that each side makes of its own device, for sides that did other work."""
    money: tuple[str, ...]
    advice: str | None
    fairness: Table


@dataclass(frozen=True, kw_only=True)
class ModelPart:
    """One model: its pairs, and its tables, each computed when the first document asks for it."""

    part: Comparison
    report: Report
    heading: str
    pairs: tuple[PairPart, ...]

    @cached_property
    def results(self) -> Table:
        """Return the most important figures of each side."""
        return sections.results(self.part.sides)

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """Return the tables of the report's sections; one without rows is left out of every document."""
        return tuple(section(self.part) for section in self.report.sections)

    @cached_property
    def explanations(self) -> tuple[tuple[Side, tuple[Table, Table]], ...]:
        """Return the formula and the inputs of every metric of each side, for a report of metrics."""
        return tuple((side, efficiency.explanation(side)) for side in self.part.sides if self.report.of_metrics)

    @cached_property
    def provenance(self) -> Table:
        """Return the origin of the figures."""
        return facts.provenance(self.part)


@dataclass(frozen=True, kw_only=True)
class Page:
    """The content of a report on a comparison."""

    comparison: Comparison
    report: Report
    above: tuple[str, ...]
    """Notices above all figures."""
    answers: tuple[Headline, ...]
    limits: str
    """Limits of the answers."""
    scales: tuple[forest.Forest, ...]
    models: tuple[ModelPart, ...]
    notices: tuple[notices.NoticeLine, ...]

    @cached_property
    def verdicts(self) -> Table:
        """Return one row per pair."""
        return sections.verdicts(self.comparison.pairs)

    @cached_property
    def convention(self) -> str:
        """Return the sentence that names the FLOPs convention."""
        return efficiency.convention_sentence(self.comparison)


@lru_cache(maxsize=1)
def page_of(comparison: Comparison, report: Report) -> Page:
    """Return the content of a report, the same object for each of its documents."""
    answers = tuple(forest.answers(comparison))
    stated = {limit for one in answers for limit in one.limits}
    return Page(
        comparison=comparison,
        report=report,
        above=notices.before_headline(comparison),
        answers=answers,
        limits=formatting.limits_of(answers),
        scales=forest.forests(comparison),
        models=tuple(
            ModelPart(
                part=part,
                report=report,
                heading=model_heading(part.sides),
                pairs=tuple(_pair(pair, stated) for pair in part.pairs),
            )
            for part in comparison.by_model
        ),
        notices=notices.grouped_notices(comparison),
    )


def _pair(pair: Pair, stated: set[str]) -> PairPart:
    headline = formatting.headline(pair)
    return PairPart(
        pair=pair,
        headline=headline,
        limits=formatting.limits_of([headline], stated),
        own_devices=_own_devices(pair),
        money=tuple(money_sentences(pair)),
        advice=formatting.advice(pair),
        fairness=sections.fairness(pair),
    )


def model_heading(sides: Sequence[Side]) -> str:
    """Return the heading with every model title among the sides, so that a tiny model never hides behind a full one."""
    return quantities.listed(dict.fromkeys(formatting.model_title(side.result.model) for side in sides))


def no_pair_sentence(sides: Sequence[Side]) -> str:
    """Return the sentence for models of which no two sides are compared."""
    if len({side.model for side in sides}) == len(sides):
        only = "One side only" if len(sides) == 1 else "One side of each model"
        return f"{only}: nothing to compare it with yet."
    return "None of these sides is compared: the baseline that was named is none of them, or all of them."


def _own_devices(pair: Pair) -> str | None:
    """Return a clause on the use that each side makes of its own device.

    None if it is unknown, if the sides can be compared, or if a figure is impossible.
    """
    if pair.fairness.level.comparable or pair.fairness.errors:
        return None
    clauses = []
    for side in (pair.baseline, pair.candidate):
        rate, mfu = side.metrics["model_tflops_per_gpu"], side.metrics["mfu"]
        if rate.value is not None:
            share = f", {quantities.percent(mfu.value)} of its own peak ({mfu.remark})" if mfu.value is not None else ""
            clauses.append(f"{side.label} {quantities.rate(rate.value)} model TFLOP/s per GPU{share}")
    return f"Each side on its own device: {'; '.join(clauses)}" if clauses else None


def money_sentences(pair: Pair) -> list[str]:
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
    return f"{quantities.money(price.value)}/h ({side.label}: {price.remark})"
