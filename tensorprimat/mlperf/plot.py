"""Plots of MLPerf Training: two GPUs on one task, and one GPU's strong scaling over the number of GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorprimat.analysis.stats import student
from tensorprimat.core.quantities import confidence_level, count, percent, times
from tensorprimat.mlperf.compare import OVERALL_RATE, TaskComparison
from tensorprimat.mlperf.comparison_report import law_text, verdict_sentence
from tensorprimat.mlperf.library import derived_from
from tensorprimat.mlperf.scaling import Scaling
from tensorprimat.reports.plots import canvas
from tensorprimat.reports.plots.canvas import COLOURS, FAINT, INK, MARKERS

LINE_INCHES = 0.235  # of one entry
_PARTS = {
    "rate": "time per token\n(1 / rate)",
    OVERALL_RATE: "time per token,\nevaluation and\nset-up included",
    "samples": "samples\nto the target",
    "evaluation_and_set_up": "evaluation\nand set-up",
    "scaling": "scaling factor\nof the rules",
}


def task(comparison: TaskComparison, confidence: float, formats: Sequence[str] = ("png",)) -> dict[str, bytes]:
    """Return files of the plot of two GPUs on one task: every entry, the means, and the parts of the ratio.

    Raises MissingPackageError where matplotlib is not installed.
    """
    rows = sum(len(side.scored) for side in comparison.sides)
    body = max(2.6, LINE_INCHES * (rows + 3))
    sentences = [
        verdict_sentence(comparison, confidence),
        *(f"Warning: {warning.text}." for warning in comparison.warnings),
        f"Rates and samples: {derived_from(side.round for side in comparison.sides)}.",
    ]

    def fill(figure: Any) -> None:
        goal = f"{comparison.task.benchmark} on {comparison.task.num_gpus} GPUs"
        below = canvas.framed(figure, f"MLPerf Training, {goal}: time to one quality target", sentences, body)
        entries, parts = below.subplots(1, 2, width_ratios=(1.9, 1))
        _entries(entries, comparison, confidence)
        _parts(parts, comparison)

    return canvas.drawn(fill, formats)


def strong_scaling_plot(
    found: Sequence[Scaling], confidence: float, formats: Sequence[str] = ("png",)
) -> dict[str, bytes]:
    """Return files of the plot of one benchmark's strong scaling: rates with their law, and efficiency with batches.

    found: scalings of one benchmark, of one or several GPUs and rounds. Raises MissingPackageError where matplotlib is
    not installed.
    """
    gpus = ", ".join(dict.fromkeys(one.gpu for one in found))
    sentences = [*map(_law, found), f"Rates: {derived_from(one.round for one in found)}."]

    def fill(figure: Any) -> None:
        below = canvas.framed(figure, f"Strong scaling of {gpus} on {found[0].benchmark}", sentences, 4.6)
        rates, efficiency = below.subplots(1, 2)
        for number, one in enumerate(found):
            _rates(rates, one, number, confidence)
            _efficiency(efficiency, one, number)
        for axes in (rates, efficiency):
            axes.set_xscale("log", base=2)
            counts = sorted({point.scored.entry.num_gpus or 0 for one in found for point in one.points})
            axes.set_xticks(counts, list(map(count, counts)), rotation=45 if len(counts) > 8 else 0)
            axes.minorticks_off()
            axes.set_xlabel("GPUs")
            axes.grid()
        rates.legend(loc="upper left")
        rates.set_yscale("log")
        canvas.plain_log_ticks(rates.yaxis)
        rates.set_title(f"Samples/s, fitted law and {confidence_level(confidence)} prediction band; dotted: linear")
        efficiency.set_title("Efficiency per GPU; global batch at the bottom")
        efficiency.yaxis.set_major_formatter(lambda value, _: percent(value, 0))
        efficiency.set_ylim(0, 1.05 * efficiency.dataLim.y1)  # whole markers

    return canvas.drawn(fill, formats)


def _entries(axes: Any, comparison: TaskComparison, confidence: float) -> None:
    """Draw the minutes of every entry, grouped by side, with each side's mean and interval as a band."""
    place, places, names = 0.0, [], []
    one_gpu = len({side.gpu for side in comparison.sides}) == 1
    for number, side in enumerate(comparison.sides):
        colour, start = COLOURS[number], place
        for one in side.scored:
            estimate = one.estimate
            minutes = one.minutes or math.nan
            if estimate is not None:
                low, high = estimate.interval(confidence)
                axes.plot((low, high), (place, place), color=colour, linewidth=1.4, alpha=0.7)
            axes.plot(minutes, place, marker=MARKERS[number % len(MARKERS)], color=colour, ms=6)
            batch = one.entry.global_batch_size
            stated = [f"batch {batch}" if batch else None, one.precision.upper() if one.precision else None]
            whose = f"{side.gpu}{f' {side.round}' if one_gpu else ''}, {one.entry.submitter}"
            known = ", ".join(filter(None, stated)) or "batch unknown"
            names.append(f"{canvas.shortened(whose, 34)} ({known})")
            places.append(place)
            place += 1
        axes.plot((side.minutes,) * 2, (start - 0.45, place - 0.55), color=colour, linewidth=1.6)
        if math.isfinite(side.estimate.variance):
            low, high = side.estimate.interval(confidence)
            axes.fill_betweenx((start - 0.45, place - 0.55), low, high, color=colour, alpha=0.15, linewidth=0)
        place += 0.6
    axes.set_yticks(places, names, fontsize=8.5)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.margins(x=0.06)
    axes.set_xlabel("minutes (lower is better)")
    axes.set_title(f"Every entry; line and band: mean over submitters, {confidence_level(confidence)} interval")
    axes.grid(axis="x")


def _parts(axes: Any, comparison: TaskComparison) -> None:
    """Draw by how much each part lengthens or shortens the first side's time, and their product."""
    first, second = comparison.sides
    if not comparison.parts:
        canvas.write_sentence(axes, "The logs of one side do not mark samples, so the ratio is not split into factors.")
        return
    inverted = ("rate", OVERALL_RATE)
    factors = {_PARTS[name]: 1 / value if name in inverted else value for name, value in comparison.parts.items()}
    factors["time to train"] = math.exp(comparison.ratio.log)
    places = np.arange(len(factors))
    values = np.array(list(factors.values()))
    colours = [COLOURS[0] if value > 1 else COLOURS[1] for value in values]
    colours[-1] = INK
    axes.barh(places, values - 1, left=1, color=colours, height=0.55)
    for place, value in zip(places, values, strict=True):
        beyond = value >= 1
        axes.annotate(
            times(value, 2 if abs(value - 1) >= 0.005 else 3), (value, place), (4 if beyond else -4, 0),
            textcoords="offset points", ha="left" if beyond else "right", va="center", fontsize=9,
        )  # fmt: skip
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_yticks(places, list(factors), fontsize=8.5)
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.set_title(canvas.drawable(f"Time of {first.gpu} {first.round} / {second.gpu} {second.round}"))
    axes.grid(axis="x")


def _rates(axes: Any, one: Scaling, number: int, confidence: float) -> None:
    colour, mark = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    counts = np.array([point.scored.entry.num_gpus or math.nan for point in one.points])
    rates = np.array([point.scored.samples_per_second or math.nan for point in one.points])
    axes.plot(counts, rates, mark, color=colour, ms=5, label=canvas.drawable(f"{one.gpu} {one.round}"))
    smallest = rates[counts == counts.min()].mean() / counts.min()
    ends = np.geomspace(counts.min(), counts.max(), 60)
    axes.plot(ends, smallest * ends, color=colour, linestyle=":", linewidth=1.0)
    if one.rate is not None:
        law = np.array([one.rate.at(count) for count in ends])
        reach = math.exp(student(confidence, one.rate.points - 2) * one.rate.scatter)
        axes.plot(ends, law, color=colour, linewidth=1.2)
        axes.fill_between(ends, law / reach, law * reach, color=colour, alpha=0.12, linewidth=0)
    if one.stops_at:
        axes.axvline(one.stops_at, color=colour, linestyle="--", linewidth=1.0)


def _efficiency(axes: Any, one: Scaling, number: int) -> None:
    colour, mark = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    counts = [point.scored.entry.num_gpus or 0 for point in one.points]
    shares = [point.efficiency if point.efficiency is not None else math.nan for point in one.points]
    axes.plot(counts, shares, mark, color=colour, ms=5)
    for gpus in sorted(set(counts)):
        batches = {point.scored.entry.global_batch_size for point in one.points if point.scored.entry.num_gpus == gpus}
        axes.text(
            gpus, 0.02 + 0.045 * number, "/".join(map(str, sorted(filter(None, batches)))), ha="center", fontsize=7.5,
            color=colour, transform=axes.get_xaxis_transform(),
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
        )  # fmt: skip
    if one.stops_at:
        axes.axvline(one.stops_at, color=colour, linestyle="--", linewidth=1.0)
        axes.text(one.stops_at, 0.3, "scaling stops ", color=FAINT, fontsize=8, rotation=90, ha="right",
                  transform=axes.get_xaxis_transform())  # fmt: skip


def _law(one: Scaling) -> str:
    name = f"{one.gpu} {one.round}"
    if one.rate is None:
        return f"{name}: fewer than three numbers of GPUs, so no law."
    stops = f"; scaling stops at {count(one.stops_at)} GPUs (dashed)" if one.stops_at else ""
    return f"{name}: {law_text(one.rate)}, scatter {percent(one.rate.scatter, 1)}{stops}."
