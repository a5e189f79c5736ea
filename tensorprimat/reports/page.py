"""A report as data: what its documents and the terminal show of a comparison, computed once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from tensorprimat.analysis.records import Comparison, Pair, Side
from tensorprimat.core import quantities
from tensorprimat.reports import efficiency, facts, forest, formatting, money, notices, sections
from tensorprimat.reports.formatting import Headline
from tensorprimat.reports.sections import Report
from tensorprimat.reports.tables import Table


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
        money=tuple(money.sentences(pair)),
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
