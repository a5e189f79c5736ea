"""A panel of horizontal bars with their intervals and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorprimat.reports.bars import Bar, Panel
from tensorprimat.reports.plots.canvas import GRID, INK, LEAST_PANEL_INCHES, few_ticks, folded, say

BAR_INCHES = 0.30  # height of one bar with its share of the gap: room for a value in 8-point type
GROUP_GAP = 0.7  # between groups of bars, in bars
LEAST_BARS = 4.5  # a panel of fewer bars keeps room around them
TEXT_SHARE = 0.018  # width of one character of a value, as a share of the panel's width
LABEL_WIDTH = 22  # characters of a label on one line
LABEL_LINES = 3
FURTHEST = 1.8  # times the longest bar; longer intervals are cut and end in an arrow, so that bars stay readable
DRAWABLE = 1e15  # longer bars than this are nonsense, and break the axes


def height_of(bars: Sequence[Bar]) -> float:
    """Return the height in inches that these bars need."""
    groups = len({bar.group for bar in bars})
    return max(LEAST_PANEL_INCHES, BAR_INCHES * (len(bars) + GROUP_GAP * groups) + 0.9)


def bar_panel(axes: Any, panel: Panel) -> None:
    """Draw horizontal bars with the names to their left, where long names fit, and the values at their ends."""
    bars = panel.bars
    axes.set_title(panel.title)
    axes.set_xlabel(panel.unit)
    if all(bar.value is None for bar in bars):
        say(axes, "No side has this value")
        return
    groups = list(dict.fromkeys(bar.group for bar in bars))
    ordered = sorted(bars, key=lambda bar: groups.index(bar.group))
    places, place = [], 0.0
    for before, bar in zip([ordered[0], *ordered], ordered, strict=False):
        place += 1.0 + (GROUP_GAP if bar.group != before.group else 0.0)
        places.append(place)
    drawn = [bar.value if bar.value is not None and bar.value < DRAWABLE else 0.0 for bar in ordered]
    axes.barh(
        places,
        drawn,
        height=0.78,
        color=[bar.look.colour for bar in ordered],
        hatch=[bar.look.hatch for bar in ordered],
        edgecolor="white",
        linewidth=0.0,
    )
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
        axes.set_yticks(places, [folded(bar.look.label, LABEL_WIDTH, LABEL_LINES) for bar in ordered])
    else:
        middles = [
            sum(members := [p for p, bar in zip(places, ordered, strict=True) if bar.group == group]) / len(members)
            for group in groups
        ]
        axes.set_yticks(middles, [folded(group, LABEL_WIDTH, LABEL_LINES) for group in groups])
    axes.tick_params(axis="y", length=0)
    few_ticks(axes.xaxis)
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
