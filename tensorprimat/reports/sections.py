"""The sections that every report shows, as tables and sentences: results, verdicts, fairness, runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from tensorprimat.analysis.economics import unlike_prices
from tensorprimat.analysis.rates import TIME_TO_TRAIN
from tensorprimat.analysis.records import Comparison, Estimate, Pair, Ratio, Side
from tensorprimat.analysis.stats import MOST_PLANNED_RUNS
from tensorprimat.core import quantities
from tensorprimat.core.result import POWER_CAP
from tensorprimat.core.summary import terms_of_runs
from tensorprimat.reports import efficiency, facts, formatting
from tensorprimat.reports.facts import basis_of, formula_lines, memory_in_common, peak_memory_cell, unlike_memory
from tensorprimat.reports.published import published
from tensorprimat.reports.tables import Table, TableCell, TableRow, figure_cell, headed, table_of, text_cell

Section = Callable[[Comparison], Table]
"""Function that returns a table from the comparison of one model; a section without rows is left out."""

MOST_RUNS = 200  # rows of the table of runs: a document is for reading
ALL_THE_TIME = 0.95  # of the measured time: a limit for as long is called one without its share


def _power_and_clock(side: Side) -> str | None:
    """Return what the GPU did, such as "692 of 700 W; 1.46 of 1.98 GHz, power-limited"; None if nothing measured it."""
    power, info = side.result.power_metrics, side.result.gpu_info
    if power is None:
        return None
    figures = [
        f"{form(value).rpartition(' ')[0]} of {form(most)}" if most else form(value)
        for value, most, form in (
            (power.avg_power_watts_per_gpu, info.power_limit_watts, quantities.watts),
            (power.avg_clock_hertz, info.max_clock_hertz, quantities.gigahertz),
        )
        if value is not None
    ]
    reasons = {why for run in side.result.runs for why in run.throttled_by}
    slowed = 0.0 if reasons == {POWER_CAP} else power.slowdown_seconds  # None in a file from before 2026-11-27
    seconds, held = side.result.performance_metrics.measured_time_seconds, power.throttled_seconds
    if POWER_CAP in reasons and seconds and held and slowed is not None:
        share = (held - slowed) / seconds
        of_time = "" if share > ALL_THE_TIME else f" {quantities.percent(share, 0)} of the time"
        figures.append(", ".join([*figures[-1:], f"power-limited{of_time}"]))
        del figures[-2:-1]
    return "; ".join(figures) or None


def _estimate(estimate: Estimate, form: quantities.Form, side: Side, field: str, basis: str) -> TableCell:
    ends = formatting.interval(estimate, form)
    spread = (
        f"{formatting.confidence(estimate)} {ends}"
        if ends
        else f"no interval: {estimate.no_interval_because or 'unknown'}"
    )
    return TableCell(
        text=formatting.with_interval(estimate, form),
        value=estimate.value,
        source=None if estimate.value is None else f"{basis}. From {estimate.rests_on}; {spread}",
        terms=formula_lines(side, "performance_metrics", field),
    )


def _runs(side: Side) -> str:
    """Return the number of runs and of measured steps per run: a range if the runs measured different numbers."""
    measured = side.result.performance_metrics.measured_steps
    if not measured:
        return "means only"
    steps = [run.measured_steps or 0 for run in side.result.runs] or [measured]
    ends = dict.fromkeys((min(steps), max(steps)))
    return f"{len(steps)} × {' to '.join(map(quantities.count, ends))}"


COST_TITLE = "Cost of 1 T tokens"


def results(sides: Sequence[Side], *, short: bool = False) -> Table:
    """Return one row per side with the most important figures. short: without vendor and memory in a device's name.

    The model has a column only if sides differ in it, the device's name only if the label does not contain it;
    samples/s replace tokens/s if no side knows its tokens.
    """
    titles = [formatting.model_title(side.result.model) for side in sides]
    named = all((side.result.gpu_info.device_name or "") in side.label for side in sides)
    known = any(side.tokens_per_second_per_gpu.value or side.tokens_per_second.value for side in sides)
    by_samples = not known and any(side.result.performance_metrics.samples_per_second for side in sides)
    step_time = quantities.seconds_together(side.step_time_seconds.value for side in sides)
    kinds = memory_in_common(sides)
    peaks = [peak_memory_cell(side, kinds) for side in sides]
    states = list(map(_power_and_clock, sides))
    has_peaks, has_costs = any(peak.value for peak in peaks), _have_costs(sides)
    has_mfu = any(side.metrics["mfu"].value is not None for side in sides)
    rows: list[TableRow] = []
    for side, title, peak, state in zip(sides, titles, peaks, states, strict=True):
        basis = basis_of(side)
        row: dict[str, TableCell | str | None] = {"Side": side.label}
        if len(set(titles)) > 1:
            row["Model"] = title
        row |= (_samples if by_samples else _tokens)(side, basis)
        row["Step time"] = _estimate(side.step_time_seconds, step_time, side, "avg_step_time_seconds", basis)
        if has_peaks:
            row["Peak memory"] = peak
        if has_mfu:
            row["MFU"] = efficiency.explained_cell(side.metrics["mfu"])
        if any(states):
            row["Power; clock"] = state
        if has_costs:
            row[COST_TITLE] = _cost(side)
        if named:
            row["GPUs"] = quantities.count(side.result.training_config.num_gpus)
        else:
            row["Device"] = formatting.device_title(side, short=short)
        measured = side.result.performance_metrics.measured_steps
        rows.append({**row, "Runs × steps": TableCell(text=_runs(side), value=measured)})
    words = ("Side", "Model", "Device", "Power; clock")
    notes = (None if kinds else unlike_memory(sides), _listed_price(sides) if has_costs else None)
    return table_of("results", "Results", rows, words=words, note=" ".join(filter(None, notes)) or None)


def _have_costs(sides: Sequence[Side]) -> bool:
    """Return True if costs can be shown side by side; where only some sides have one, it is at the user's price."""
    costs = [side.metrics["cost_usd_per_trillion_tokens"].value for side in sides]
    stated = any(side.metrics["price_usd_per_gpu_hour"].inputs[0].stated_for is not None for side in sides)
    return not unlike_prices(side.metrics for side in sides) and (all(costs) or (stated and any(costs)))


def _cost(side: Side) -> TableCell:
    """Return the cost of a trillion tokens with the price of a GPU-hour that it rests on."""
    cost, price = (side.metrics[name] for name in ("cost_usd_per_trillion_tokens", "price_usd_per_gpu_hour"))
    cell = efficiency.explained_cell(cost)
    return cell if cost.value is None else replace(cell, text=f"{cell.text} at {quantities.money(price.value)}/h")


def _listed_price(sides: Sequence[Side]) -> str | None:
    """Return the prices with their source where they are the catalogue's, as a sentence below the table."""
    prices = [side.metrics["price_usd_per_gpu_hour"] for side in sides]
    known = [price for price in prices if price.value is not None and price.inputs[0].stated_for is None]
    if not known:
        return None
    amounts = quantities.listed(dict.fromkeys(quantities.money(price.value) for price in known))
    return f"A GPU-hour costs {amounts} ({known[0].remark}); --price states another."


def _tokens(side: Side, basis: str) -> dict[str, TableCell]:
    main, of_all = side.tokens_per_second_per_gpu, side.tokens_per_second.value
    terms = formula_lines(side, "performance_metrics", "tokens_per_second")
    return {
        "tokens/s/GPU": _estimate(main, quantities.rate, side, "tokens_per_second_per_gpu", basis),
        "tokens/s": figure_cell(of_all, quantities.rate, basis, terms),
    }


def _samples(side: Side, basis: str) -> dict[str, TableCell]:
    names = {"samples/s/GPU": "samples_per_second_per_gpu", "samples/s": "samples_per_second"}
    return {title: _performance(side, name, quantities.rate, basis) for title, name in names.items()}


def _performance(side: Side, field: str, form: quantities.Form, basis: str) -> TableCell:
    terms = formula_lines(side, "performance_metrics", field)
    return figure_cell(getattr(side.result.performance_metrics, field), form, basis, terms)


def verdicts(pairs: Sequence[Pair]) -> Table:
    """Return one row per pair, best first within a model: the ratio to its baseline and its verdict."""
    rows: list[TableRow] = [
        {
            "Model": formatting.model_title(pair.candidate.result.model),
            "Candidate": pair.candidate.label,
            "Baseline": pair.baseline.label,
            "Ratio": _ratio(pair),
            "Interval": _interval(pair),
            "Verdict": formatting.verdict_text(pair),
            "Level": pair.fairness.title,
        }
        for pair in ranked(pairs)
    ]
    words = ("Model", "Candidate", "Baseline", "Verdict", "Level")
    note = " ".join(filter(None, (_ratio_note(pairs), family_note(pairs))))
    return table_of("verdicts", "Verdicts", rows, words=words, note=note)


def _ratio(pair: Pair) -> TableCell:
    if (ratio := _shown(pair)) is None:
        return text_cell(None)
    source = "; ".join(filter(None, (formatting.ratio_in_words(ratio), *formatting.limits_of_ratio(ratio))))
    return figure_cell(ratio.estimate.value, formatting.ratio_form(ratio), source)


def _interval(pair: Pair) -> TableCell:
    ratio = _shown(pair)
    return text_cell(None if ratio is None else formatting.interval(ratio.estimate, formatting.ratio_form(ratio)))


def _shown(pair: Pair) -> Ratio | None:
    return None if pair.fairness.verdict == "not_comparable" else pair.ratio


def ranked(pairs: Sequence[Pair]) -> list[Pair]:
    """Return pairs model by model, within a model by their ratio from the highest; those without one come last."""
    models = list(dict.fromkeys(pair.model for pair in pairs))

    def ratio(pair: Pair) -> float:
        value = pair.ratio.estimate.value if pair.ratio is not None else None
        return -math.inf if value is None else value

    return sorted(pairs, key=lambda pair: (models.index(pair.model), -ratio(pair)))


TOGETHER = "Intervals of several comparisons are widened so that all verdicts of this report hold together (Holm 1979)."


def family_note(pairs: Sequence[Pair]) -> str | None:
    """Return a sentence where intervals are those of several comparisons together."""
    together = any(pair.ratio is not None and pair.ratio.estimate.family > 1 for pair in pairs)
    return TOGETHER if together else None


def _ratio_note(pairs: Sequence[Pair]) -> str:
    """Return the meaning of the ratios; that of a time to train is the inverse of the headline's."""
    if any(pair.ratio is not None and pair.ratio.metric == TIME_TO_TRAIN for pair in pairs):
        return (
            "Ratio: candidate over baseline; above 1 the candidate is faster. For times to train, it is the inverse of "
            "the ratio of times."
        )
    return "Ratio: candidate over baseline; above 1 the candidate does more work per second."


def fairness(pair: Pair) -> Table:
    """Return the table of differences between the two sides of a pair, the most important first."""
    order = tuple(formatting.WEIGHT_TITLES)
    differences = sorted(pair.fairness.differences, key=lambda difference: order.index(difference.weight))
    titles = ("Setting", pair.baseline.label, pair.candidate.label, "Part of")
    return Table(
        key="fairness",
        title=f"What differs: {pair.baseline.label} and {pair.candidate.label}",
        columns=headed(titles, words=titles),
        rows=tuple(
            (
                text_cell(difference.label),
                *(text_cell(value if value is not None else "not stated") for value in difference.values),
                text_cell(formatting.WEIGHT_TITLES[difference.weight]),
            )
            for difference in differences
        ),
    )


def runs_table(comparison: Comparison) -> Table:
    """Return one row per run of every side."""
    every = [(side, run) for side in comparison.sides for run in side.result.runs]
    of_sides = {id(side): (basis_of(side), _terms_of_runs(side)) for side in comparison.sides}
    step_time = quantities.seconds_together(run.avg_step_time_seconds for _, run in every)
    rows: list[TableRow] = []
    for side, run in every[:MOST_RUNS]:
        basis, terms = of_sides[id(side)]
        of_time, of_rate = (terms.get((run.index, field), ()) for field in _OF_RUNS)
        rows.append(
            {
                "Side": side.label,
                "Run": TableCell(text=str(run.index + 1), value=run.index + 1),
                "Started": quantities.moment(run.started_at),
                "Host": run.host,
                "Steps": figure_cell(run.measured_steps, quantities.count),
                "Warm-up": figure_cell(run.warmup_steps_dropped, quantities.count),
                "Step time": figure_cell(run.avg_step_time_seconds, step_time, basis, of_time),
                "tokens/s/GPU": figure_cell(run.tokens_per_second_per_gpu, quantities.rate, basis, of_rate),
                "Final loss": figure_cell(run.final_loss, quantities.loss),
                "Ended": "complete" if run.complete else run.ended_by or "incomplete",
            }
        )
    words = ("Side", "Started", "Host", "Ended")
    more = f"The first {MOST_RUNS} of {len(every)} runs; the files of the sides contain all."
    note = more if len(every) > MOST_RUNS else None
    return table_of("runs", "Runs", rows, words=words, note=note)


_OF_RUNS = ("avg_step_time_seconds", "tokens_per_second_per_gpu")
"""Figures of a run whose terms the table of runs has."""


def _terms_of_runs(side: Side) -> dict[tuple[int, str], tuple[str, ...]]:
    """Return the lines on the figures of each run that is shown, by its index and the field."""
    if not len(side.result.steps):
        return {}
    return {
        (index, field): (f"= {term.formula}", f"= {term.put_in}")
        for index, of_run in islice(terms_of_runs(side.result), MOST_RUNS)
        for field, term in of_run.items()
        if field in _OF_RUNS
    }


def analysis(comparison: Comparison) -> Table:
    """Return the table of the data of the estimates, and of the runs that would make them precise."""
    mains = list(map(_main_estimate, comparison.sides))
    level = next((quantities.confidence_level(main.confidence) for main in mains), "")
    rows: list[TableRow] = [
        {
            "Side": side.label,
            "Interval from": main.rests_on,
            f"{level} interval": formatting.plus_minus(main)
            or f"none: {main.no_interval_because or 'nothing measured'}",
            "Runs for ±1 %": _runs_needed(main),
            "CV of step time": _performance(side, "cv_step_time", quantities.percent, basis_of(side)),
            "Rates from": _BASES.get(side.result.performance_metrics.basis or ""),
        }
        for side, main in zip(comparison.sides, mains, strict=True)
    ]
    words = ("Side", "Interval from", "Rates from")
    return table_of("analysis", "Detailed analysis", rows, words=words)


def _main_estimate(side: Side) -> Estimate:
    rates = (side.tokens_per_second_per_gpu, side.tokens_per_second)
    known = (*rates, side.step_time_seconds, side.samples_per_second)
    return next((one for one in known if one.value is not None), side.step_time_seconds)


def _runs_needed(estimate: Estimate) -> TableCell:
    if estimate.low is not None and estimate.runs_for_one_percent is None:
        return TableCell(text=f"over {quantities.count(MOST_PLANNED_RUNS)}", value=None)
    return figure_cell(estimate.runs_for_one_percent, quantities.count)


_BASES = {
    "step_times": "step times (tokens / seconds)",
    "reported_rates": "rates that the framework printed",
    "reported_means": "means of the file, without steps",
}


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report on a comparison: its title, and the sections that follow the verdicts."""

    title: str
    stem: str
    """Beginning of the names of its files."""
    data: str
    """Name of its files for scripts, without ending."""
    sections: tuple[Section, ...]
    """Tables of each model, in their order. A new section is one function and one row."""
    of_metrics: bool = False
    """Derived metrics are the subject: the terminal shows the sections too, and documents explain every metric."""


COMPARISON = Report(
    title="Training benchmark comparison",
    stem="comparison",
    data="comparison",
    sections=(
        facts.hardware,
        facts.configuration_table,
        facts.performance_table,
        efficiency.short,
        facts.memory_table,
        facts.power_table,
        analysis,
        runs_table,
        published,
    ),
)
ENHANCED = Report(
    title="Efficiency, cost and time to train",
    stem="enhanced",
    data="enhanced_metrics",
    sections=(
        *(partial(efficiency.of_section, title) for title in ("Efficiency", "Memory", "Energy, cost and time")),
        efficiency.budget,
        efficiency.economics,
    ),
    of_metrics=True,
)
