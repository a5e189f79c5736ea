"""The sections that every report shows, as tables and sentences: results, verdicts, fairness, runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from tensorprimat.analysis.economics import unlike_prices
from tensorprimat.analysis.rates import TIME_TO_TRAIN
from tensorprimat.analysis.records import Comparison, Estimate, Pair, Ratio, Side
from tensorprimat.analysis.stats import MOST_PLANNED_RUNS
from tensorprimat.core import quantities
from tensorprimat.core.result import MEMORY_KINDS, POWER_CAP, Run
from tensorprimat.core.summary import terms_of_runs
from tensorprimat.reports import efficiency, facts, formatting
from tensorprimat.reports.facts import basis_of, formula_lines, peak_memory, source_of, source_of_figure
from tensorprimat.reports.published import published
from tensorprimat.reports.tables import Table, TableCell, figure_cell, headed, table_of, text_cell

SideColumns = dict[str, Callable[[Side], TableCell]]
Section = Callable[[Comparison], Table]
"""Function that returns a table from the comparison of one model; a section without rows is left out."""

MOST_RUNS = 200  # rows of the table of runs: a document is for reading
ALL_THE_TIME = 0.95  # of the measured time: a limit for as long is called one without its share


def model_heading(sides: Sequence[Side]) -> str:
    """Return the heading with every model title among the sides, so that a tiny model never hides behind a full one."""
    return quantities.listed(dict.fromkeys(formatting.model_title(side.result.model) for side in sides))


def _peak_memory_cell(side: Side, sides: Sequence[Side]) -> TableCell:
    """Return the peak of the first kind that all sides with device memory have."""
    for kind, title in _memory_in_common(sides):
        peak = peak_memory(side, kind)
        if peak is not None:
            field = f"peak_{kind}_gb"
            of = f"highest {title} memory of any logged step, maximum over ranks"
            source = source_of_figure(side, "memory_metrics", field, of)
            terms = formula_lines(side, "memory_metrics", field)
            return TableCell(text=f"{quantities.gigabytes(peak)} {title}", value=peak, source=source, terms=terms)
    host = side.result.host_memory_peak_gb
    if host is not None:
        source = f"highest resident memory of a training process; {source_of(side)}"
        return TableCell(text=f"{quantities.gigabytes(host)} host", value=host, source=source)
    return text_cell(None)


def _memory_in_common(sides: Sequence[Side]) -> list[tuple[str, str]]:
    known = [side for side in sides if side.result.memory_metrics is not None]
    in_all = (kind for kind in MEMORY_KINDS if known and all(peak_memory(one, kind) is not None for one in known))
    return [(kind, MEMORY_KINDS[kind]) for kind in in_all]


def _unlike_memory(sides: Sequence[Side]) -> str | None:
    """Return the peaks of sides that have no kind of memory in common, as a sentence below the table."""
    if _memory_in_common(sides):
        return None
    sides_of: dict[str, list[str]] = {}
    for side in sides:
        peaks = [
            f"{quantities.gigabytes(peak)} {title}"
            for kind, title in MEMORY_KINDS.items()
            if (peak := peak_memory(side, kind)) is not None
        ]
        if peaks:
            sides_of.setdefault(quantities.listed(peaks), []).append(side.label)
    each = "; ".join(f"{quantities.listed(labels)}: {peaks}" for peaks, labels in sides_of.items())
    return f"Peak memory of different kinds cannot be compared. {each}." if each else None


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


def _estimate(estimate: Estimate, form: quantities.Form, side: Side, field: str) -> TableCell:
    ends = formatting.interval(estimate, form)
    spread = (
        f"{formatting.confidence(estimate)} {ends}"
        if ends
        else f"no interval: {estimate.no_interval_because or 'unknown'}"
    )
    return TableCell(
        text=formatting.with_interval(estimate, form),
        value=estimate.value,
        source=None if estimate.value is None else f"{basis_of(side)}. From {estimate.rests_on}; {spread}",
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
    titles = {formatting.model_title(side.result.model) for side in sides}
    named = all((side.result.gpu_info.device_name or "") in side.label for side in sides)

    def device(side: Side) -> str:
        if named:
            return quantities.count(side.result.training_config.num_gpus)
        return formatting.device_title(side, short=short)

    known = any(side.tokens_per_second_per_gpu.value or side.tokens_per_second.value for side in sides)
    rates = _TOKENS
    if not known and any(side.result.performance_metrics.samples_per_second for side in sides):
        rates = _SAMPLES
    step_time = quantities.seconds_together(side.step_time_seconds.value for side in sides)

    def peak(side: Side) -> TableCell:
        return _peak_memory_cell(side, sides)

    columns: SideColumns = {"Side": lambda side: text_cell(side.label)}
    if len(titles) > 1:
        columns["Model"] = lambda side: text_cell(formatting.model_title(side.result.model))
    columns |= rates
    columns["Step time"] = lambda side: _estimate(side.step_time_seconds, step_time, side, "avg_step_time_seconds")
    if any(peak(side).value for side in sides):
        columns["Peak memory"] = peak
    if any(side.metrics["mfu"].value is not None for side in sides):
        columns["MFU"] = lambda side: efficiency.explained_cell(side.metrics["mfu"])
    if any(map(_power_and_clock, sides)):
        columns["Power; clock"] = lambda side: text_cell(_power_and_clock(side))
    has_costs = _have_costs(sides)
    if has_costs:
        columns[COST_TITLE] = _cost
    columns["GPUs" if named else "Device"] = lambda side: text_cell(device(side))
    columns["Runs × steps"] = lambda side: TableCell(
        text=_runs(side), value=side.result.performance_metrics.measured_steps
    )
    words = ("Side", "Model", "Device", "Power; clock")
    notes = (_unlike_memory(sides), _listed_price(sides) if has_costs else None)
    return table_of("results", "Results", sides, columns, words=words, note=" ".join(filter(None, notes)) or None)


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


_TOKENS: SideColumns = {
    "tokens/s/GPU": lambda side: _estimate(
        side.tokens_per_second_per_gpu, quantities.rate, side, "tokens_per_second_per_gpu"
    ),
    "tokens/s": lambda side: figure_cell(
        side.tokens_per_second.value,
        quantities.rate,
        basis_of(side),
        formula_lines(side, "performance_metrics", "tokens_per_second"),
    ),
}
_SAMPLES: SideColumns = {
    title: lambda side, name=name: figure_cell(  # type: ignore[misc]
        getattr(side.result.performance_metrics, name),
        quantities.rate,
        basis_of(side),
        formula_lines(side, "performance_metrics", name),
    )
    for title, name in (("samples/s/GPU", "samples_per_second_per_gpu"), ("samples/s", "samples_per_second"))
}


def verdicts(pairs: Sequence[Pair]) -> Table:
    """Return one row per pair, best first within a model: the ratio to its baseline and its verdict."""
    columns: dict[str, Callable[[Pair], TableCell]] = {
        "Model": lambda pair: text_cell(formatting.model_title(pair.candidate.result.model)),
        "Candidate": lambda pair: text_cell(pair.candidate.label),
        "Baseline": lambda pair: text_cell(pair.baseline.label),
        "Ratio": _ratio,
        "Interval": _interval,
        "Verdict": lambda pair: text_cell(formatting.verdict_text(pair)),
        "Level": lambda pair: text_cell(pair.fairness.title),
    }
    words = ("Model", "Candidate", "Baseline", "Verdict", "Level")
    note = " ".join(filter(None, (_ratio_note(pairs), family_note(pairs))))
    return table_of("verdicts", "Verdicts", ranked(pairs), columns, words=words, note=note)


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


def no_pair_sentence(sides: Sequence[Side]) -> str:
    """Return the sentence for models of which no two sides are compared."""
    if len({side.model for side in sides}) == len(sides):
        only = "One side only" if len(sides) == 1 else "One side of each model"
        return f"{only}: nothing to compare it with yet."
    return "None of these sides is compared: the baseline that was named is none of them, or all of them."


def own_device_sentence(pair: Pair) -> str | None:
    """Return a sentence on how well each side used its own device, for sides that did other work; None if unknown.

    None also if the sides can be compared, or if a figure is impossible.
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


class _SideRun(NamedTuple):
    side: Side
    run: Run


def runs_table(comparison: Comparison) -> Table:
    """Return one row per run of every side."""
    every = [_SideRun(side, run) for side in comparison.sides for run in side.result.runs]
    of_runs = {id(side): _terms_of_runs(side) for side in comparison.sides}

    def figure(row: _SideRun, field: str, form: quantities.Form) -> TableCell:
        terms = of_runs[id(row.side)].get((row.run.index, field), ())
        return figure_cell(getattr(row.run, field), form, basis_of(row.side), terms)

    step_time = quantities.seconds_together(run.avg_step_time_seconds for _, run in every)
    columns: dict[str, Callable[[_SideRun], TableCell]] = {
        "Side": lambda row: text_cell(row.side.label),
        "Run": lambda row: TableCell(text=str(row.run.index + 1), value=row.run.index + 1),
        "Started": lambda row: text_cell(quantities.moment(row.run.started_at)),
        "Host": lambda row: text_cell(row.run.host),
        "Steps": lambda row: figure_cell(row.run.measured_steps, quantities.count),
        "Warm-up": lambda row: figure_cell(row.run.warmup_steps_dropped, quantities.count),
        "Step time": lambda row: figure(row, "avg_step_time_seconds", step_time),
        "tokens/s/GPU": lambda row: figure(row, "tokens_per_second_per_gpu", quantities.rate),
        "Final loss": lambda row: figure_cell(row.run.final_loss, quantities.loss),
        "Ended": lambda row: text_cell("complete" if row.run.complete else row.run.ended_by or "incomplete"),
    }
    words = ("Side", "Started", "Host", "Ended")
    more = f"The first {MOST_RUNS} of {len(every)} runs; the files of the sides contain all."
    note = more if len(every) > MOST_RUNS else None
    return table_of("runs", "Runs", every[:MOST_RUNS], columns, words=words, note=note)


def _terms_of_runs(side: Side) -> dict[tuple[int, str], tuple[str, ...]]:
    """Return the lines on the figures of each run that is shown, by its index and the field."""
    if not len(side.result.steps):
        return {}
    return {
        (index, field): (f"= {term.formula}", f"= {term.put_in}")
        for index, of_run in islice(terms_of_runs(side.result), MOST_RUNS)
        for field, term in of_run.items()
    }


def analysis(comparison: Comparison) -> Table:
    """Return the table of the data of the estimates, and of the runs that would make them precise."""
    level = next((quantities.confidence_level(_main_estimate(side).confidence) for side in comparison.sides), "")
    columns: SideColumns = {
        "Side": lambda side: text_cell(side.label),
        "Interval from": lambda side: text_cell(_main_estimate(side).rests_on),
        f"{level} interval": lambda side: text_cell(_plus_minus(_main_estimate(side))),
        "Runs for ±1 %": lambda side: _runs_needed(_main_estimate(side)),
        "CV of step time": lambda side: figure_cell(
            side.result.performance_metrics.cv_step_time,
            quantities.percent,
            basis_of(side),
            formula_lines(side, "performance_metrics", "cv_step_time"),
        ),
        "Rates from": lambda side: text_cell(_BASES.get(side.result.performance_metrics.basis or "")),
    }
    words = ("Side", "Interval from", "Rates from")
    return table_of("analysis", "Detailed analysis", comparison.sides, columns, words=words)


def _main_estimate(side: Side) -> Estimate:
    rates = (side.tokens_per_second_per_gpu, side.tokens_per_second)
    known = (*rates, side.step_time_seconds, side.samples_per_second)
    return next((one for one in known if one.value is not None), side.step_time_seconds)


def _runs_needed(estimate: Estimate) -> TableCell:
    if estimate.low is not None and estimate.runs_for_one_percent is None:
        return TableCell(text=f"over {quantities.count(MOST_PLANNED_RUNS)}", value=None)
    return figure_cell(estimate.runs_for_one_percent, quantities.count)


def _plus_minus(estimate: Estimate) -> str:
    return formatting.plus_minus(estimate) or f"none: {estimate.no_interval_because or 'nothing measured'}"


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
        efficiency.efficiency,
        efficiency.memory_use,
        efficiency.cost,
        efficiency.budget,
        efficiency.economics,
    ),
    of_metrics=True,
)
