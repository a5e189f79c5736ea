"""A panel of ratios on one scale: best first, each with its interval, in the colour of its level."""

from __future__ import annotations

from typing import Any

from tensorprimat.reports.forest import Forest, ForestMark
from tensorprimat.reports.plots.canvas import FAINT, GRID, INK, drawable, folded

ROW_INCHES = 0.3
LABEL_WIDTH = 26  # characters of a label on one line
LABEL_LINES = 2


def height_of(scale: Forest) -> float:
    """Return the inches that a scale needs."""
    return ROW_INCHES * (len(scale.marks) + 1) + 0.75


def forest_panel(axes: Any, scale: Forest) -> None:
    """Draw a scale; ratios and intervals in words are at its right."""
    axes.set_title(drawable(scale.title))
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
            1.01, row, drawable(f"{mark.text} ({mark.ends})"), transform=axes.get_yaxis_transform(),
            va="center", fontsize=9, fontweight="bold" if mark.is_mean else "normal",
        )  # fmt: skip
    axes.set_yticks(range(len(scale.marks)), [folded(mark.label, LABEL_WIDTH, LABEL_LINES) for mark in scale.marks])
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)


def _interval(axes: Any, scale: Forest, mark: ForestMark, row: int, colour: str) -> None:
    """Draw an interval as far as the scale reaches, with an arrow where it goes on."""
    low, high = max(mark.low or 0.0, scale.start), min(mark.high or 0.0, scale.end)
    axes.plot([low, high], [row, row], color=colour, linewidth=3.5, alpha=0.55, solid_capstyle="butt")
    for end, beyond, marker in ((low, mark.low != low, "<"), (high, mark.high != high, ">")):
        axes.plot([end], [row], color=colour, marker=marker if beyond else "|", ms=7, linestyle="none")
