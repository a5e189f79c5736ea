"""A panel of step time over the steps of every run, warm-up shaded, with the spread of the measured
steps at its right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorprimat.analysis.records import Side
from tensorprimat.core import quantities
from tensorprimat.core.steps import FloatArray
from tensorprimat.reports import formatting
from tensorprimat.reports.bars import BarStyle
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
from tensorprimat.reports.series import StepCurve, pace_range, thinned

LOG_SCALE_FROM = 8.0  # ratio of typical step times above which a linear axis hides one
OUTLIER = 4.0  # times the typical step: slower steps are marked at the edge instead of flattening the rest


@dataclass(frozen=True, kw_only=True)
class CourseCurve:
    """One run as it is drawn: thinned, with the figures that the scale needs of all its rows."""

    step: NDArray[np.int64]
    seconds: FloatArray
    measured: NDArray[np.bool_]
    first_step: int
    warmup_steps: int
    typical: float
    """Median of the measured step times, of all if none was measured."""
    least: float
    greatest: float
    is_measured: bool
    """True if `least` and `greatest` are of measured steps; of all steps otherwise."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """One side's step times over the steps."""

    look: BarStyle
    title: str
    """Name of the model."""
    curves: tuple[CourseCurve, ...]
    """Empty for a side without step times."""
    percentiles: tuple[float, ...]
    """The 5th, 25th, 50th, 75th and 95th of its measured step times; empty if nothing was measured."""


def course_of(side: Side, look: BarStyle, all_curves: Sequence[StepCurve]) -> Course:
    """Return the curves that the panel draws for a side. all_curves: every run of the side."""
    timed = [curve for curve in all_curves if np.isfinite(curve.seconds).any()]
    measured = [curve.seconds[curve.measured & np.isfinite(curve.seconds)] for curve in timed]
    every = np.concatenate(measured) if measured else np.array([])
    return Course(
        look=look,
        title=formatting.model_title(side.result.model),
        curves=tuple(map(_course_curve, timed)),
        percentiles=tuple(np.percentile(every, (5, 25, 50, 75, 95)).tolist()) if len(every) else (),
    )


def _course_curve(curve: StepCurve) -> CourseCurve:
    shown = thinned(curve.seconds, MOST_POINTS)
    pace = pace_range([curve])
    finite = curve.seconds[np.isfinite(curve.seconds)]
    least, greatest = pace or (float(finite.min()), float(finite.max()))
    return CourseCurve(
        step=curve.step[shown],
        seconds=curve.seconds[shown],
        measured=curve.measured[shown],
        first_step=int(curve.step[0]),
        warmup_steps=curve.warmup_steps,
        typical=float(np.nanmedian(curve.seconds[curve.measured] if curve.measured.any() else curve.seconds)),
        least=least,
        greatest=greatest,
        is_measured=pace is not None,
    )


def step_panel(axes: Any, spread: Any, courses: Sequence[Course]) -> None:
    """Draw step time over the steps of every run, warm-up shaded, and the spread of the measured steps at the right."""
    axes.set_title("Step time over steps")
    spread.set_axis_off()
    drawn = [course for course in courses if course.curves]
    without = [course.look.label for course in courses if not course.curves]
    if not drawn:
        say(axes, "No distribution: the results hold no step times, only means or rates")
        return
    titles = list(dict.fromkeys(course.title for course in courses))
    low, high, logarithmic = _limits([curve for course in drawn for curve in course.curves])
    off_scale: list[float] = []
    for number, course in enumerate(drawn):
        style = titles.index(course.title) if len(titles) > 1 else number
        for curve in course.curves:
            off_scale += _curve(axes, curve, course.look.colour, LINE_STYLES[style % len(LINE_STYLES)], high)
    shaded = _warmup(axes, drawn)
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
    _spread(spread, drawn)


def _curve(axes: Any, curve: CourseCurve, colour: str, style: str, high: float) -> list[float]:
    """Draw one run, its unmeasured rows faint; the step times above the scale are marked and returned."""
    step, seconds, measured = curve.step, curve.seconds, curve.measured
    marker = "o" if len(step) < 2 else None
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


def _limits(curves: Sequence[CourseCurve]) -> tuple[float, float, bool]:
    """Return the bottom and top of the vertical axis, and whether it is logarithmic.

    The scale is that of the measured steps: a first step of minutes would flatten everything else.
    """
    scaled = [curve for curve in curves if curve.is_measured] or curves
    typical = [curve.typical for curve in curves]
    low = min(curve.least for curve in scaled)
    high = min(max(curve.greatest for curve in scaled), OUTLIER * max(typical))
    if max(typical) > LOG_SCALE_FROM * min(typical):
        return low / 1.3, high * 1.6, True
    slack = max(0.12 * (high - low), 0.01 * high)  # at least one percent: noise must not fill the panel
    return max(0.0, low - slack), high + 1.6 * slack, False


def _warmup(axes: Any, drawn: Sequence[Course]) -> bool:
    """Shade the unmeasured rows at the start, in a side's own colour where sides differ; return False if none."""
    ends = {course.look: max(curve.warmup_steps for curve in course.curves) for course in drawn}
    first = min(curve.first_step for course in drawn for curve in course.curves)
    alike = len(set(ends.values())) == 1
    for look, end in ends.items() if not alike else [(next(iter(ends)), next(iter(ends.values())))]:
        if end >= first:
            axes.axvspan(first - 0.5, end + 0.5, color=FAINT if alike else look.colour, alpha=0.13, linewidth=0)
    return max(ends.values()) >= first


def _spread(axes: Any, drawn: Sequence[Course]) -> None:
    """Draw the measured steps of each side, right of the curves: median, quartiles (thick), 5 to 95 % (thin)."""
    for place, course in enumerate(drawn):
        if not course.percentiles:
            continue
        lowest, lower, median, upper, highest = course.percentiles
        colour = course.look.colour
        axes.plot([place, place], [lowest, highest], color=colour, linewidth=1.3)
        axes.plot([place, place], [lower, upper], color=colour, linewidth=6, solid_capstyle="butt")
        axes.plot([place], [median], color="white", marker="o", ms=4.5, markeredgecolor=colour)
    axes.set_xlim(-1, max(2, len(drawn)))
    axes.set_title("median, 25–75,\n5–95 %", fontsize=7.5, fontweight="normal", loc="center")
