"""A panel of step time over the steps of every run, warm-up shaded, with the spread of the measured
steps at its right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorprimat.analysis.records import Side
from tensorprimat.core import quantities
from tensorprimat.reports import formatting
from tensorprimat.reports.bars import BarStyle, titles_of
from tensorprimat.reports.plots.canvas import (
    FAINT,
    GRID,
    INK,
    LINE_STYLES,
    MOST_POINTS,
    plain_log_ticks,
    say,
    shortened,
)
from tensorprimat.reports.series import StepCurve, curves, pace_range, thinned

LOG_SCALE_FROM = 8.0  # typical step times further apart than this cannot share a linear axis
OUTLIER = 4.0  # times the typical step: what lies above is marked at the edge instead of flattening the rest


def step_panel(axes: Any, spread: Any, sides: Sequence[Side], looks: dict[str, BarStyle]) -> None:
    """Step time over the steps of every run, warm-up shaded, and the spread of the measured steps at the margin."""
    axes.set_title("Step time over steps")
    spread.set_axis_off()
    drawn = [(side, side_curves) for side in sides if (side_curves := _timed(side))]
    without = [side.label for side in sides if not _timed(side)]
    limits = _limits([curve for _, side_curves in drawn for curve in side_curves])
    if limits is None:
        say(axes, "No distribution: the results hold no step times, only means or rates")
        return
    titles = titles_of(sides)
    low, high, logarithmic = limits
    off_scale: list[float] = []
    for number, (side, side_curves) in enumerate(drawn):
        style = titles.index(formatting.model_title(side.result.model)) if len(titles) > 1 else number
        for curve in side_curves:
            off_scale += _curve(axes, curve, looks[side.label].colour, LINE_STYLES[style % len(LINE_STYLES)], high)
    shaded = _warmup(axes, drawn, looks)
    axes.set_ylim(low, high)
    if logarithmic:
        axes.set_yscale("log")
        plain_log_ticks(axes.yaxis)
    axes.set_xlabel("optimizer step of the run" + (" (shaded: warm-up, not measured)" if shaded else ""))
    axes.set_ylabel("seconds" + (" (logarithmic)" if logarithmic else ""))
    axes.margins(x=0.01)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    notes = [f"▲ {len(off_scale)} off the scale, up to {quantities.seconds(max(off_scale))}"] if off_scale else []
    notes += [f"no step times: {', '.join(without)}"] if without else []
    if notes:
        axes.text(
            0.99, 0.985, "\n".join(shortened(note, 60) for note in notes), transform=axes.transAxes,
            ha="right", va="top", fontsize=8, color=INK,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
        )  # fmt: skip
    _spread(spread, drawn, looks)


def _timed(side: Side) -> list[StepCurve]:
    return [curve for curve in curves(side) if np.isfinite(curve.seconds).any()]


def _curve(axes: Any, curve: StepCurve, colour: str, style: str, high: float) -> list[float]:
    """Draw one run, its unmeasured rows faint; the step times above the scale are marked and returned."""
    shown = thinned(curve.seconds, MOST_POINTS)
    step, seconds, measured = curve.step[shown], curve.seconds[shown], curve.measured[shown]
    marker = "o" if len(shown) < 2 else None
    axes.plot(step, np.where(measured, np.nan, seconds), color=colour, linewidth=1.0, alpha=0.35, marker="o", ms=2)
    axes.plot(
        step, np.where(measured, seconds, np.nan), color=colour, linestyle=style, linewidth=1.1, alpha=0.8,
        marker=marker, ms=4,
    )  # fmt: skip
    above = seconds > high
    axes.plot(
        step[above], np.full(above.sum(), 0.985), color=colour, marker="^", ms=5, linestyle="none",
        transform=axes.get_xaxis_transform(),
    )  # fmt: skip
    return [float(value) for value in seconds[above]]


def _limits(all_curves: Sequence[StepCurve]) -> tuple[float, float, bool] | None:
    """Return the bottom and top of the vertical axis, and whether it is logarithmic; None where there is nothing to
    draw.

    The scale is that of the measured steps: a first step of minutes would flatten everything else.
    """
    ranges = [found for curve in all_curves if (found := pace_range([curve])) is not None]
    if not ranges:
        seen = [curve.seconds[np.isfinite(curve.seconds)] for curve in all_curves]
        if not seen:
            return None
        ranges = [(float(seconds.min()), float(seconds.max())) for seconds in seen]
    typical = [
        float(np.nanmedian(curve.seconds[curve.measured] if curve.measured.any() else curve.seconds))
        for curve in all_curves
    ]
    low = min(low for low, _ in ranges)
    high = min(max(high for _, high in ranges), OUTLIER * max(typical))
    if max(typical) > LOG_SCALE_FROM * min(typical):
        return low / 1.3, high * 1.6, True
    slack = max(0.12 * (high - low), 0.01 * high)  # at least one percent: noise must not look like a mountain range
    return max(0.0, low - slack), high + 1.6 * slack, False


def _warmup(axes: Any, drawn: Sequence[tuple[Side, list[StepCurve]]], looks: dict[str, BarStyle]) -> bool:
    """Shade what is not measured at the start, in a side's own colour where sides differ; return False for nothing."""
    ends = {looks[side.label]: max(curve.warmup_steps for curve in side_curves) for side, side_curves in drawn}
    first = min(int(curve.step[0]) for _, side_curves in drawn for curve in side_curves)
    alike = len(set(ends.values())) == 1
    for look, end in ends.items() if not alike else [(next(iter(ends)), next(iter(ends.values())))]:
        if end >= first:
            axes.axvspan(first - 0.5, end + 0.5, color=FAINT if alike else look.colour, alpha=0.13, linewidth=0)
    return max(ends.values()) >= first


def _spread(axes: Any, drawn: Sequence[tuple[Side, list[StepCurve]]], looks: dict[str, BarStyle]) -> None:
    """Draw one mark per side next to the curves: median, quartiles (thick) and 5 to 95 % (thin) of its
    measured steps.
    """
    for place, (side, side_curves) in enumerate(drawn):
        seconds = np.concatenate([curve.seconds[curve.measured & np.isfinite(curve.seconds)] for curve in side_curves])
        if not len(seconds):
            continue
        colour = looks[side.label].colour
        lowest, lower, median, upper, highest = np.percentile(seconds, (5, 25, 50, 75, 95))
        axes.plot([place, place], [lowest, highest], color=colour, linewidth=1.3)
        axes.plot([place, place], [lower, upper], color=colour, linewidth=6, solid_capstyle="butt")
        axes.plot([place], [median], color="white", marker="o", ms=4.5, markeredgecolor=colour)
    axes.set_xlim(-1, max(2, len(drawn)))
    axes.set_title("median, 25–75,\n5–95 %", fontsize=7.5, fontweight="normal", loc="center")
