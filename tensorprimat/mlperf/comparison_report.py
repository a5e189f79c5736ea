"""Text and JSON of comparisons by MLPerf Training: two GPUs on one task, scaling of one GPU, and rounds over time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorprimat.analysis.economics import cost_of_training, cost_ratio, price_of_gpu
from tensorprimat.analysis.scaling_laws import FEWEST_COUNTS, Law
from tensorprimat.analysis.stats import LogEstimate
from tensorprimat.core.quantities import (
    confidence_level,
    count,
    counted,
    fixed,
    listed,
    money,
    percent,
    rate,
    rounded,
    rounded_interval,
    significant,
    times,
)
from tensorprimat.mlperf.compare import OVERALL_RATE, TaskComparison, TaskSide
from tensorprimat.mlperf.library import derived_from
from tensorprimat.mlperf.report import as_document, configured_note, precision_cell, table_of_text
from tensorprimat.mlperf.scaling import Scaling, ScalingPoint, VendorRound
from tensorprimat.mlperf.score import Scored
from tensorprimat.system.safe_text import one_line

GpuPrices = Mapping[str, float]
"""USD of a GPU-hour by the name of a GPU, as the user states them; "" for every other GPU."""


def comparison_text(found: Sequence[TaskComparison], confidence: float, prices: GpuPrices) -> str:
    """Return every comparison: verdict level, sentence, costs, both sides, warnings."""
    blocks = [_block(comparison, confidence, prices) for comparison in found]
    derived = derived_from(side.round for comparison in found for side in comparison.sides)
    return "\n".join(blocks) + f"Rates, samples and their times: {derived}.\n"


def verdict_sentence(comparison: TaskComparison, confidence: float) -> str:
    """Return the verdict in one line, with the factors of the ratio."""
    first, second = comparison.sides
    names = first.gpu, second.gpu
    if first.gpu == second.gpu:
        names = f"{first.gpu} in {first.round}", f"in {second.round}"
    low_high = _interval(comparison.ratio, confidence, lead=f"{confidence_level(confidence)} interval ")
    opening = (
        f"{names[0]} needs {_minutes(first.minutes)} min, {names[1]} {_minutes(second.minutes)} min: "
        f"{times(math.exp(comparison.ratio.log), 2)} the time{low_high}"
    )
    if not comparison.parts:
        return f"{opening}; the logs of one side do not mark samples, so it is not split into factors."
    parts = comparison.parts
    batches = " against ".join("/".join(map(str, side.batches)) or "?" for side in (first, second))
    is_coarse = OVERALL_RATE in parts
    speed = f"{times(parts[OVERALL_RATE if is_coarse else 'rate'], 2)} the samples/s"
    speed += ", evaluation and set-up included," if is_coarse else ""
    multiplied = []
    if not is_coarse:
        by = fixed(parts["evaluation_and_set_up"], 3)
        multiplied.append(f"Evaluation and set-up multiply the ratio of times by {by}")
    if abs(parts["scaling"] - 1) >= 0.0005:
        scaling = "scaling factors of MLPerf's rules"
        scaling = f"The {scaling} multiply it" if is_coarse else f"the {scaling}"
        multiplied.append(f"{scaling} by {fixed(parts['scaling'], 3)}")
    rest = f" {', '.join(multiplied)}." if multiplied else ""
    return (
        f"{opening}. {names[0]} has {speed} and needs {times(parts['samples'], 2)} the samples (batch {batches}).{rest}"
    )


def _costs(comparison: TaskComparison, confidence: float, prices: GpuPrices) -> list[str]:
    """Return a sentence on the cost of a training on each side, and their ratio where both are priced."""
    of_one_gpu = len({side.gpu for side in comparison.sides}) == 1
    priced = [
        f"{money(cost)} on {side.gpu}{f' in {side.round}' if of_one_gpu else ''} "
        f"({money(price_of_gpu(side.gpu, prices))} per GPU-hour)"
        for side in comparison.sides
        if (cost := cost_of_training(side.minutes, comparison.task.num_gpus, side.gpu, prices)) is not None
    ]
    sentence = f"A training costs {listed(priced)}"
    if (ratio := _cost_ratio(comparison, prices)) is not None:
        ends = _interval(ratio, confidence, lead=f"{confidence_level(confidence)} interval ")
        sentence += f": {times(math.exp(ratio.log), 2)} the cost{ends}"
    return [f"{sentence}."] if priced else []


def _cost_ratio(comparison: TaskComparison, prices: GpuPrices) -> LogEstimate | None:
    return cost_ratio(comparison.ratio, [side.gpu for side in comparison.sides], prices)


def as_json(found: Sequence[TaskComparison], confidence: float, prices: GpuPrices) -> str:
    return as_document([_document(comparison, confidence, prices) for comparison in found])


def gpu_text(
    scalings: Sequence[Scaling], rounds: Sequence[TaskComparison], confidence: float, prices: GpuPrices
) -> str:
    """Return scaling tables with their law, then the rounds over time."""
    parts = [_scaling(one, prices) for one in scalings]
    if rounds:
        columns: dict[str, Callable[[TaskComparison], str]] = {
            "GPU": lambda one: one.sides[0].gpu,
            "benchmark": lambda one: one.task.benchmark,
            "GPUs": lambda one: str(one.task.num_gpus),
            "before, min": lambda one: f"{one.sides[1].round} {_minutes(one.sides[1].minutes)}",
            "after, min": lambda one: f"{one.sides[0].round} {_minutes(one.sides[0].minutes)}",
            "time after / before": lambda one: times(math.exp(one.ratio.log), 3) + _interval(one.ratio, confidence, 3),
            "submitters": lambda one: one_line(
                " → ".join(", ".join(sorted(side.weights)) for side in reversed(one.sides)), longest=100
            ),
        }
        repeated = dict.fromkeys(
            warning.text for one in rounds for warning in one.warnings if warning.kind in ("shared runs", "same runs")
        )
        warned = "".join(f"warning: {one_line(warning)}\n" for warning in repeated)
        parts.append("Rounds over time, the same GPU on the same task\n" + table_of_text(columns, rounds) + warned)
    if not parts:
        return "One number of GPUs and one round: nothing to compare.\n"
    shown = [one.round for one in scalings] + [side.round for one in rounds for side in one.sides]
    return "\n".join(parts) + f"\nRates: {derived_from(shown)}.\n"


def vendor_text(rounds: Sequence[VendorRound], prices: GpuPrices) -> str:
    """Return the fastest entry of each vendor in each round as a table."""
    if not rounds:
        return "No scored entry of these vendors in this selection.\n"
    columns: dict[str, Callable[[VendorRound], str]] = {
        "benchmark": lambda one: one.scored.entry.benchmark,
        "GPUs": lambda one: str(one.scored.entry.num_gpus),
        "vendor": lambda one: one.vendor,
        "round": lambda one: one.scored.entry.round,
        "minutes": lambda one: _minutes(one.minutes),
        "time / previous": lambda one: "" if one.over_before is None else times(one.over_before, 3),
        **({"cost": lambda one: money(_cost_of_entry(one.scored, prices))} if prices else {}),
        "GPU": lambda one: one.scored.entry.gpu or "unknown",
        "batch": lambda one: _batch(one.scored),
        "fastest entry": lambda one: f"{one.scored.entry.submitter}/{one.scored.entry.system}",
    }
    shown = ", ".join(sorted({one.scored.entry.round for one in rounds}))
    same = "".join(f"note: {one_line(repeat.sentence)}\n" for one in rounds for repeat in one.repeats)
    return (
        "Rounds over time, the fastest entry of each vendor: one entry each, so no interval; the GPU can change from "
        f"round to round\n{table_of_text(columns, rounds)}{same}\nTimes: scored by the rules of MLPerf from the logs "
        f"of MLPerf Training {shown}.\n"
    )


def _cost_of_entry(scored: Scored, prices: GpuPrices) -> float | None:
    return cost_of_training(scored.minutes, scored.entry.num_gpus, scored.entry.gpu, prices)


def vendor_json(rounds: Sequence[VendorRound], prices: GpuPrices) -> str:
    document = [
        {
            "benchmark": one.scored.entry.benchmark,
            "num_gpus": one.scored.entry.num_gpus,
            "vendor": one.vendor,
            "round": one.scored.entry.round,
            "minutes": rounded(one.minutes),
            "over_before": rounded(one.over_before),
            "cost_usd": rounded(_cost_of_entry(one.scored, prices)),
            "gpu": one.scored.entry.gpu,
            "name": one.scored.entry.name,
            "same_runs": [repeat.entry.name for repeat in one.repeats],
        }
        for one in rounds
    ]
    return as_document(document)


def gpu_json(
    scalings: Sequence[Scaling], rounds: Sequence[TaskComparison], confidence: float, prices: GpuPrices
) -> str:
    document = {
        "scaling": [
            {
                "gpu": one.gpu,
                "benchmark": one.benchmark,
                "round": one.round,
                "rate_law": _law(one.rate),
                "minutes_law": _law(one.minutes),
                "law_stops_at": one.stops_at,
                "left_out": [repeat.sentence for repeat in one.repeats],
                "points": [
                    {
                        "name": point.scored.entry.name,
                        "num_gpus": point.scored.entry.num_gpus,
                        "global_batch_size": point.scored.entry.global_batch_size,
                        "minutes": rounded(point.scored.minutes),
                        "cost_usd": rounded(_cost_of_entry(point.scored, prices)),
                        "samples_per_second": rounded(point.scored.samples_per_second),
                        "efficiency": rounded(point.efficiency),
                    }
                    for point in one.points
                ],
            }
            for one in scalings
        ],
        "rounds": [_document(one, confidence, prices) for one in rounds],
    }
    return as_document(document)


def _block(comparison: TaskComparison, confidence: float, prices: GpuPrices) -> str:
    task, level = comparison.task, comparison.level
    rows = [(side.gpu, one) for side in comparison.sides for one in side.scored]
    lines = [f"{task.benchmark} on {task.num_gpus} GPUs. {level.sentence}: time to train to one quality target"]
    lines += [verdict_sentence(comparison, confidence), *_costs(comparison, confidence, prices)]
    lines += [_spread(side, confidence) for side in comparison.sides]
    lines.append(_best(comparison))
    lines += [f"warning: {one_line(warning.text)}" for warning in comparison.warnings]
    star = configured_note(one for side in comparison.sides for one in side.scored)
    return "\n".join(lines) + "\n" + table_of_text(_ENTRY_COLUMNS, rows) + star


_ENTRY_COLUMNS: dict[str, Callable[[tuple[str, Scored]], str]] = {
    "minutes": lambda row: _minutes(row[1].minutes or math.nan),
    "GPU": lambda row: row[0],
    "batch": lambda row: _batch(row[1]),
    "precision": lambda row: precision_cell(row[1]),
    "tokens/s/GPU": lambda row: count(row[1].tokens_per_second_per_gpu),
    "samples": lambda row: count(row[1].samples),
    "entry": lambda row: one_line(f"{row[1].entry.round}/{row[1].entry.submitter}/{row[1].entry.system}"),
}


def _batch(scored: Scored) -> str:
    return str(scored.entry.global_batch_size or "–")


def _spread(side: TaskSide, confidence: float) -> str:
    entries = "1 entry" if len(side.scored) == 1 else f"{len(side.scored)} entries"
    runs = "" if side.over_runs is None else f"; runs of one entry scatter by {percent(side.over_runs, 1)}"
    between = "" if side.over_submitters is None else f", submitters by a further {percent(side.over_submitters, 1)}"
    return (
        f"{side.gpu}, {side.round}: {entries} of {counted(len(side.weights), 'submitter')}, mean "
        f"{_minutes(side.minutes)} min{_interval(side.estimate, confidence, unit=' min')}{runs}{between}"
    )


def _best(comparison: TaskComparison) -> str:
    first, second = (side.scored[0] for side in comparison.sides)
    ratio = (first.minutes or math.nan) / (second.minutes or math.nan)
    fastest = [
        f"{_minutes(one.minutes or math.nan)} ({one_line(one.entry.submitter)}/{one_line(one.entry.system)})"
        for one in (first, second)
    ]
    return f"Fastest entry of each: {fastest[0]} against {fastest[1]}, {times(ratio, 2)}"


def _scaling(one: Scaling, prices: GpuPrices) -> str:
    columns: dict[str, Callable[[ScalingPoint], str]] = {
        "GPUs": lambda point: str(point.scored.entry.num_gpus),
        "minutes": lambda point: _minutes(point.scored.minutes or math.nan),
        **({"cost": lambda point: money(_cost_of_entry(point.scored, prices))} if prices else {}),
        "batch": lambda point: _batch(point.scored),
        "samples/s": lambda point: rate(point.scored.samples_per_second),
        "efficiency": lambda point: percent(point.efficiency, 1),
        "entry": lambda point: one_line(f"{point.scored.entry.submitter}/{point.scored.entry.system}"),
    }
    measure = "efficiency: samples/s per GPU, relative to their mean at the fewest GPUs"
    heading = f"{one.gpu}, {one.benchmark}, {one.round}: strong scaling ({measure})\n"
    same = "".join(f"note: {one_line(repeat.sentence)}\n" for repeat in one.repeats)
    return heading + table_of_text(columns, one.points) + same + _law_sentence(one)


def _law_sentence(one: Scaling) -> str:
    if one.rate is None or one.minutes is None:
        return "No law is fitted to fewer than three numbers of GPUs.\n"
    counts = {point.scored.num_gpus for point in one.points}
    if one.stops_at:
        at = f"Scaling stops at {count(one.stops_at)} GPUs"
        end = f"{at}: all rates there are below the interval predicted from fewer GPUs"
    elif len(counts) <= FEWEST_COUNTS:
        end = "Three numbers of GPUs are too few to tell whether scaling stops"
    else:
        end = f"No sign that scaling stops up to {count(max(counts))} GPUs"
    return (
        f"{law_text(one.rate)}; points scatter by {percent(one.rate.scatter, 1)} around it. Minutes are proportional "
        f"to GPUs^{fixed(one.minutes.exponent, 3)} (±{fixed(one.minutes.half_width, 3)}). {end}.\n"
    )


def law_text(law: Law) -> str:
    """Return a law of samples/s as a formula, with the interval of its parameter."""
    if law.kind == "power":
        return f"samples/s = {significant(law.scale, 3)} × GPUs^{fixed(law.exponent, 3)} (±{fixed(law.half_width, 3)})"
    return (
        f"samples/s = {significant(law.scale, 3)} × GPUs / (1 + {significant(law.parameter, 3)} × (GPUs − 1)), "
        f"Amdahl's law (serial share {significant(law.low, 3)} to {significant(law.high, 3)})"
    )


def _document(comparison: TaskComparison, confidence: float, prices: GpuPrices) -> dict[str, Any]:
    ratio, low, high = _with_bounds(math.exp(comparison.ratio.log), comparison.ratio, confidence)
    of_costs = _cost_ratio(comparison, prices)
    costs = _with_bounds(math.exp(of_costs.log), of_costs, confidence) if of_costs else (None, None, None)
    return {
        "benchmark": comparison.task.benchmark,
        "num_gpus": comparison.task.num_gpus,
        "level": comparison.level.name,
        "sentence": verdict_sentence(comparison, confidence),
        "ratio": ratio,
        "low": low,
        "high": high,
        "confidence": confidence,
        "parts": {name: rounded(value) for name, value in comparison.parts.items()},
        **dict(zip(("cost_ratio", "cost_low", "cost_high"), costs, strict=True)),
        "sides": [
            {
                **_side(side, confidence),
                "cost_usd": rounded(cost_of_training(side.minutes, comparison.task.num_gpus, side.gpu, prices)),
            }
            for side in comparison.sides
        ],
        "warnings": [warning.text for warning in comparison.warnings],
        "derived": derived_from(side.round for side in comparison.sides),
    }


def _side(side: TaskSide, confidence: float) -> dict[str, Any]:
    minutes, low, high = _with_bounds(side.minutes, side.estimate, confidence)
    return {
        "gpu": side.gpu,
        "round": side.round,
        "minutes": minutes,
        "low": low,
        "high": high,
        "submitters": {name: rounded(weight) for name, weight in side.weights.items()},
        "spread_over_runs": rounded(side.over_runs),
        "spread_over_submitters": rounded(side.over_submitters),
        "global_batch_sizes": list(side.batches),
        "entries": {one.entry.name: rounded(one.minutes) for one in side.scored},
        "precisions": {
            one.entry.name: {"precision": one.precision, "source": one.precision_source} for one in side.scored
        },
    }


def _with_bounds(
    middle: float | None, estimate: LogEstimate, confidence: float
) -> tuple[float | None, float | None, float | None]:
    """Return a figure and the ends of its interval; without ends if its variance is unknown."""
    known = math.isfinite(estimate.variance)
    return rounded_interval(middle, *(estimate.interval(confidence) if known else (None, None)))


def _interval(estimate: LogEstimate, confidence: float, digits: int = 2, *, unit: str = "", lead: str = "") -> str:
    _, low, high = _with_bounds(None, estimate, confidence)
    if low is None or high is None:
        return " (no interval)"
    if unit:
        return f" ({_minutes(low)} to {_minutes(high)})"
    return f" ({lead}{fixed(low, digits)} to {fixed(high, digits)})"


def _law(law: Law | None) -> dict[str, float | int | str | None] | None:
    if law is None:
        return None
    value, low, high = rounded_interval(law.parameter, law.low, law.high)
    parameter = {"exponent": value, "half_width": rounded(law.half_width)}
    if law.kind == "amdahl":
        parameter = {"serial_share": value}
    return {"kind": law.kind, "scale": rounded(law.scale), **parameter, "low": low, "high": high,
            "scatter": rounded(law.scatter), "points": law.points}  # fmt: skip


def _minutes(value: float) -> str:
    return fixed(value, 1 if value >= 9.995 else 2 if value >= 0.9995 else 3)  # three digits, also zeros at the end
