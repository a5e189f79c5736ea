"""The panels of the plots of results: bars, a scale of ratios, step time over steps, losses, a history.

Each is one function that draws data on matplotlib Axes.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorprimat.analysis.history import Series
from tensorprimat.analysis.records import Pair, Side
from tensorprimat.core import quantities
from tensorprimat.core.quantities import change, confidence_level, listed, spelled_metric
from tensorprimat.core.steps import FloatArray
from tensorprimat.reports import forest, formatting
from tensorprimat.reports.bars import Bar, BarStyle, Panel
from tensorprimat.reports.plots import canvas
from tensorprimat.reports.plots.canvas import COLOURS, FAINT, INK, LINE_STYLES
from tensorprimat.reports.series import StepCurve, curves, thinned

BAR_INCHES = 0.30  # height of one bar with its share of the gap: room for a value in 8-point type
GROUP_GAP = 0.7  # between groups of bars, in bars
LEAST_BARS = 4.5  # a panel of fewer bars keeps room around them
TEXT_SHARE = 0.018  # width of one character of a value, as a share of the panel's width
LABEL = (22, 3)  # characters of a line and lines of a label of a bar
FURTHEST = 1.8  # times the longest bar; longer intervals are cut and end in an arrow, so that bars stay readable
DRAWABLE = 1e15  # longer bars than this are nonsense, and break the axes


def height_of_bars(bars: Sequence[Bar]) -> float:
    """Return the height in inches that these bars need."""
    groups = len({bar.group for bar in bars})
    return max(canvas.LEAST_PANEL_INCHES, BAR_INCHES * (len(bars) + GROUP_GAP * groups) + 0.9)


def bar_panel(axes: Any, panel: Panel) -> None:
    """Draw horizontal bars with the names to their left, where long names fit, and the values at their ends."""
    bars = panel.bars
    axes.set_title(panel.title)
    axes.set_xlabel(panel.unit)
    if all(bar.value is None for bar in bars):
        canvas.write_sentence(axes, "No side has this value")
        return
    groups = list(dict.fromkeys(bar.group for bar in bars))
    ordered = sorted(bars, key=lambda bar: groups.index(bar.group))
    places, place = [], 0.0
    for before, bar in zip([ordered[0], *ordered], ordered, strict=False):
        place += 1.0 + (GROUP_GAP if bar.group != before.group else 0.0)
        places.append(place)
    drawn = [bar.value if bar.value is not None and bar.value < DRAWABLE else 0.0 for bar in ordered]
    axes.barh(
        places, drawn, height=0.78, color=[bar.look.colour for bar in ordered],
        hatch=[bar.look.hatch for bar in ordered], edgecolor="white", linewidth=0.0,
    )  # fmt: skip
    furthest = FURTHEST * max(drawn)
    ends = []
    for where, value, bar in zip(places, drawn, ordered, strict=True):
        end = value
        if bar.low is not None and bar.high is not None and bar.high >= value:
            end = max(value, min(bar.high, furthest))
            axes.errorbar(
                value, where, xerr=[[max(0.0, value - bar.low)], [end - value]], color=INK, linewidth=1.2,
                capsize=0 if bar.within_run else 3.5, linestyle="none", elinewidth=1.2,
            )[2][0].set_linestyle(":" if bar.within_run else "-")  # fmt: skip
            if bar.high > furthest:
                axes.plot([end], [where], color=INK, marker=">", ms=7)
        ends.append(end)
    reach = max(ends) or 1.0
    marked = [(place, bar.mark) for place, bar in zip(places, ordered, strict=True) if bar.mark is not None]
    for place, mark in marked:
        axes.plot([mark, mark], [place - 0.39, place + 0.39], color="white", linewidth=2.6, solid_capstyle="butt")
        axes.plot([mark, mark], [place - 0.39, place + 0.39], color=INK, linewidth=1.0, solid_capstyle="butt")
    for where, end, bar in zip(places, ends, ordered, strict=True):
        axes.text(end + 0.02 * reach, where, bar.text, va="center", fontsize=8.5)
    longest = max(len(bar.text) for bar in ordered)
    axes.set_xlim(0, reach / (1 - min(0.6, max(0.23, TEXT_SHARE * longest))))  # room for the values
    slack = max(0.0, (LEAST_BARS - places[-1]) / 2)  # so that two bars do not fill a panel
    axes.set_ylim(places[-1] + 0.6 + slack, places[0] - 0.6 - slack)
    if len(groups) == 1:
        axes.set_yticks(places, [canvas.folded(bar.look.label, *LABEL) for bar in ordered])
    else:
        middles = [
            sum(members := [p for p, bar in zip(places, ordered, strict=True) if bar.group == group]) / len(members)
            for group in groups
        ]
        axes.set_yticks(middles, [canvas.folded(group, *LABEL) for group in groups])
    axes.tick_params(axis="y", length=0)
    canvas.few_ticks(axes.xaxis)
    axes.grid(axis="x")


ROW_INCHES = 0.3  # of one ratio on a scale
SCALE_LABEL = (26, 2)  # characters of a line and lines of a label


def height_of_scale(scale: forest.Forest) -> float:
    """Return the inches that a scale needs."""
    return ROW_INCHES * (len(scale.marks) + 1) + 0.75


def forest_panel(axes: Any, scale: forest.Forest) -> None:
    """Draw a scale; ratios and intervals in words are at its right."""
    axes.set_title(canvas.drawable(scale.title))
    axes.set_xlim(scale.start, scale.end)
    axes.set_ylim(len(scale.marks) - 0.3, -0.7)
    axes.axvline(1.0, color=FAINT, linestyle="--", linewidth=1.2)
    for row, mark in enumerate(scale.marks):
        colour = mark.level.colour if mark.level is not None else INK
        if mark.low is not None and mark.high is not None:
            _interval(axes, scale, mark, row, colour)
        axes.plot(
            [mark.value], [row], color=colour, marker="D" if mark.is_mean else "o", ms=7, linestyle="none",
            markerfacecolor="white" if mark.verdict == "baseline" else colour,
        )  # fmt: skip
        axes.text(
            1.01, row, canvas.drawable(f"{mark.text} ({mark.ends})"), transform=axes.get_yaxis_transform(),
            va="center", fontsize=9, fontweight="bold" if mark.is_mean else "normal",
        )  # fmt: skip
    axes.set_yticks(range(len(scale.marks)), [canvas.folded(mark.label, *SCALE_LABEL) for mark in scale.marks])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")


def _interval(axes: Any, scale: forest.Forest, mark: forest.ForestMark, row: int, colour: str) -> None:
    """Draw an interval as far as the scale reaches, with an arrow where it goes on."""
    low, high = max(mark.low or 0.0, scale.start), min(mark.high or 0.0, scale.end)
    axes.plot([low, high], [row, row], color=colour, linewidth=3.5, alpha=0.55, solid_capstyle="butt")
    for end, beyond, marker in ((low, mark.low != low, "<"), (high, mark.high != high, ">")):
        axes.plot([end], [row], color=colour, marker=marker if beyond else "|", ms=7, linestyle="none")


LOG_SCALE_FROM = 8.0  # ratio of typical step times above which a linear axis hides one
LOG_HEADROOM = 0.18  # of a logarithmic axis above the curves, for the note on step times off the scale
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
    shown = thinned(curve.seconds, canvas.MOST_POINTS)
    finite = np.isfinite(curve.seconds)
    measured = curve.measured & finite
    is_measured = bool(measured.any())
    scaled = curve.seconds[measured if is_measured else finite]  # the step times that the scale must contain
    return CourseCurve(
        step=curve.step[shown],
        seconds=curve.seconds[shown],
        measured=curve.measured[shown],
        first_step=int(curve.step[0]),
        warmup_steps=curve.warmup_steps,
        typical=float(np.nanmedian(curve.seconds[curve.measured] if curve.measured.any() else curve.seconds)),
        least=float(scaled.min()),
        greatest=float(scaled.max()),
        is_measured=is_measured,
    )


def step_panel(axes: Any, spread: Any, courses: Sequence[Course]) -> None:
    """Draw step time over the steps of every run, warm-up shaded, and the spread of the measured steps at the right."""
    axes.set_title("Step time over steps")
    spread.set_axis_off()
    drawn = [course for course in courses if course.curves]
    several = len({course.title for course in courses}) > 1
    without = [course.look.label + (f" ({course.title})" if several else "") for course in courses if not course.curves]
    if not drawn:
        canvas.write_sentence(axes, "No distribution: the results hold no step times, only means or rates")
        return
    titles = list(dict.fromkeys(course.title for course in courses))
    low, high, logarithmic = _limits([curve for course in drawn for curve in course.curves])
    off_scale: list[float] = []
    for number, course in enumerate(drawn):
        style = titles.index(course.title) if len(titles) > 1 else number
        for curve in course.curves:
            off_scale += _steps(axes, curve, course.look.colour, LINE_STYLES[style % len(LINE_STYLES)], high)
    shaded = _warmup(axes, drawn)
    axes.set_ylim(low, high)
    if logarithmic:
        axes.set_yscale("log")
        canvas.plain_log_ticks(axes.yaxis)
    axes.set_xlabel("optimizer step of the run" + (" (shaded: warm-up, not measured)" if shaded else ""))
    axes.set_ylabel("seconds" + (" (logarithmic)" if logarithmic else ""))
    axes.margins(x=0.01)
    axes.grid(axis="y")
    notes = [f"▲ {len(off_scale)} off the scale, up to {quantities.seconds(max(off_scale))}"] if off_scale else []
    notes += [f"no step times: {', '.join(without)}"] if without else []
    if notes:
        axes.text(
            0.99, 0.985, "\n".join(canvas.shortened(note, 60) for note in notes), transform=axes.transAxes,
            ha="right", va="top", fontsize=8, color=INK,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
        )  # fmt: skip
    _spread(spread, drawn)


def _steps(axes: Any, curve: CourseCurve, colour: str, style: str, high: float) -> list[float]:
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
        return low / 1.3, high * max(1.6, (high / low) ** LOG_HEADROOM), True
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


MOST_SENTENCES = 3  # below the title of a panel of losses; the report has them all


def logged(side: Side) -> bool:
    return bool(np.isfinite(side.result.steps.column("loss")).any())


def loss_panel(axes: Any, sides: Sequence[Side], pairs: Sequence[Pair], looks: dict[str, BarStyle]) -> None:
    """Draw the losses of every run over the framework's step numbers."""
    for number, side in enumerate(sides):
        look, style = looks[side.label], LINE_STYLES[number % len(LINE_STYLES)]
        for curve in curves(side):
            shown = thinned(curve.loss, canvas.MOST_POINTS)
            shown = shown[np.isfinite(curve.loss[shown])]
            axes.plot(
                curve.index[shown], curve.loss[shown], color=look.colour, linestyle=style, linewidth=1.2, alpha=0.8,
                marker="o" if len(shown) < 2 else None, ms=4,
            )  # fmt: skip
    losses = [pair.losses for pair in pairs if pair.losses is not None]
    diverged = [one.first_divergence_step for one in losses if one.first_divergence_step is not None]
    for step in diverged:
        axes.axvline(step, color=INK, linestyle=":", linewidth=1.2)
    title = formatting.model_title(sides[0].result.model)
    axes.set_title("\n".join([canvas.drawable(title), *_parity(sides, pairs)]), fontsize=9.5, fontweight="normal")
    axes.set_xlabel("optimizer step" + (" (dotted line: the losses differ from here)" if diverged else ""))
    axes.set_ylabel("loss")
    axes.margins(x=0.01)
    axes.grid(axis="y")


def _parity(sides: Sequence[Side], pairs: Sequence[Pair]) -> list[str]:
    """Return the sentences on parity and the sides without a loss, in lines that fit; several pairs are named."""
    labels_of: dict[str, list[str]] = {}
    for pair in pairs:
        if pair.losses is not None:
            labels_of.setdefault(pair.losses.sentence, []).append(pair.candidate.label)
    sentences = [
        f"{listed(labels)}: {sentence}" if len(pairs) > 1 else sentence
        for sentence, labels in islice(labels_of.items(), MOST_SENTENCES)
    ]
    more = len(labels_of) - len(sentences)
    sentences += [f"… and {more} more in the report"] if more else []
    without = [side.label for side in sides if not logged(side)]
    sentences += [f"No loss was logged: {', '.join(without)}"] if without else []
    return [line for sentence in sentences for line in textwrap.wrap(canvas.drawable(sentence), canvas.LINE_CHARACTERS)]


MOST_DATES = 12


def history_panel(axes: Any, series: Series) -> None:
    """Draw the figure of each benchmark with its interval, and a mark where a change is shown."""
    places = np.arange(len(series.entries))
    values = np.array([entry.figure.value or math.nan for entry in series.entries])
    ends = np.array([(entry.figure.low, entry.figure.high) for entry in series.entries], np.float64)
    reach = np.nan_to_num(np.abs(ends - values[:, None]).T)
    axes.errorbar(places, values, yerr=reach, color=COLOURS[0], marker="o", ms=4, linewidth=1.0, capsize=2.5)
    for place, entry in zip(places, series.entries, strict=True):
        if entry.change is not None:
            axes.axvline(place - 0.5, color=COLOURS[1], linestyle="--", linewidth=1.0)
            axes.annotate(
                change(entry.change), (place - 0.5, 0.97), xycoords=axes.get_xaxis_transform(), xytext=(4, 0),
                textcoords="offset points", color=COLOURS[1], fontsize=8, va="top",
            )  # fmt: skip
    every = max(1, len(places) // MOST_DATES)
    axes.set_xticks(places[::every], [(entry.at or "?")[:10] for entry in series.entries][::every])
    axes.set_title(canvas.shortened(series.label, 110))
    level = next((confidence_level(one.figure.confidence) for one in series.entries if one.figure.low is not None), "")
    axes.set_ylabel(canvas.drawable(spelled_metric(series.metric)) + (f"\nwith {level} intervals" if level else ""))
    canvas.few_ticks(axes.yaxis)
    axes.margins(y=0.25)
    axes.set_ylim(bottom=max(0.0, axes.get_ylim()[0]))  # no rate and no time is negative
    axes.grid(axis="y")
