"""The plot comparison_plot.png and .svg: step time, throughput with intervals, memory by kind, time over steps."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorprimat.analysis.records import Comparison
from tensorprimat.reports import forest
from tensorprimat.reports.bars import BarStyle, Panel, looks_of, panels, titles_of
from tensorprimat.reports.plots.bar_panel import bar_panel
from tensorprimat.reports.plots.bar_panel import height_of as height_of_bars
from tensorprimat.reports.plots.canvas import (
    FAINT,
    GRID,
    INK,
    LEAST_PANEL_INCHES,
    drawable,
    drawn,
    folded,
    framed,
    keys_of,
    laid_out,
)
from tensorprimat.reports.plots.step_panel import Course, course_of, step_panel
from tensorprimat.reports.series import curves, has_course

MOST_HEADINGS = 6
COLUMNS = 2  # of panels in a row
ROW_INCHES = 0.3
LABEL_WIDTH = 26  # characters of a label on one line
LABEL_LINES = 2
STEPS = "steps"
"""Marks the place of the panel of step time over steps."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The content of the plot: what one process computes and another draws, without the rows of the results."""

    titles: tuple[str, ...]
    """Names of the models."""
    sentences: tuple[str, ...]
    """Sentences below the plot's title."""
    looks: dict[str, BarStyle]
    scales: tuple[forest.Forest, ...]
    panels: tuple[Panel, ...]
    courses: tuple[Course, ...] | None
    """Step times of every side; None for no panel of them."""


def render(comparison: Comparison, formats: Sequence[str] = ("png", "svg")) -> dict[str, bytes]:
    """Return the plot in each format. Raises MissingPackageError where matplotlib is not installed."""
    return drawn_as(drawing_of(comparison), formats)


def drawn_as(drawing: Drawing, formats: Sequence[str] = ("png", "svg")) -> dict[str, bytes]:
    """Return a drawing in each format. Raises MissingPackageError where matplotlib is not installed."""
    return drawn(lambda figure: _fill(figure, drawing), formats)


def draw(comparison: Comparison) -> Any:
    """Return the plot as a matplotlib Figure, to be saved under STYLE."""
    return laid_out(lambda figure: _fill(figure, drawing_of(comparison)))


def drawing_of(comparison: Comparison) -> Drawing:
    """Return the content of a comparison's plot."""
    sides = comparison.sides
    looks = looks_of(sides)
    comparable = any(pair.fairness.verdict != "not_comparable" for pair in comparison.pairs)
    same_work = all(pair.fairness.level.same_work for pair in comparison.pairs)
    scales = tuple(forest.forests(comparison))
    bars = panels(sides, looks, comparable=comparable, same_work=same_work)
    courses, any_course = [], False
    for side in sides:  # one after the other: the curves of a long run are as large as the run
        of_side = curves(side)
        any_course = any_course or has_course(of_side)
        courses.append(course_of(side, looks[side.label], of_side))
    return Drawing(
        titles=tuple(titles_of(sides)),
        sentences=tuple(_sentences(comparison)),
        looks=looks,
        scales=scales,
        panels=bars,
        courses=tuple(courses) if any_course or not (bars or scales) else None,
    )


def _fill(figure: Any, drawing: Drawing) -> None:
    shown: list[Panel | str] = [*drawing.panels, *([STEPS] if drawing.courses is not None else [])]
    rows = [shown[start : start + COLUMNS] for start in range(0, len(shown), COLUMNS)]
    heights = [*map(height_of_scale, drawing.scales), *(max(map(_height, row)) for row in rows)]
    body = framed(figure, _headings(drawing), keys_of(drawing.looks, drawing.titles), sum(heights))
    grid = body.add_gridspec(len(heights), COLUMNS, height_ratios=heights)
    for number, scale in enumerate(drawing.scales):
        forest_panel(body.add_subplot(grid[number, :]), scale)
    for number, row in enumerate(rows, start=len(drawing.scales)):
        for column, panel in enumerate(row):
            place = grid[number, :] if len(row) == 1 else grid[number, column]
            if isinstance(panel, Panel):
                bar_panel(body.add_subplot(place), panel)
            else:
                steps, spread = place.subgridspec(1, 2, width_ratios=(5, 1), wspace=0.02).subplots(sharey=True)
                step_panel(steps, spread, drawing.courses or ())


def _height(panel: Panel | str) -> float:
    return height_of_bars(panel.bars) if isinstance(panel, Panel) else LEAST_PANEL_INCHES + 0.6


def _sentences(comparison: Comparison) -> list[str]:
    """Return the answer and its basis."""
    sentences = [f"{sentence}." for sentence in forest.answers(comparison)]
    sentences += dict.fromkeys(pair.fairness.sentence for pair in comparison.pairs if len(comparison.pairs) == 1)
    if len(comparison.pairs) > 1:
        titles = dict.fromkeys(pair.fairness.title for pair in comparison.pairs)
        sentences.append(f"Level: {'; '.join(titles)}.")
    if len(sentences) > MOST_HEADINGS:
        sentences[MOST_HEADINGS - 1 :] = [f"… and {len(sentences) - MOST_HEADINGS + 1} more in the report"]
    return sentences


def _headings(drawing: Drawing) -> list[str]:
    """Return the title and the sentences in lines that fit the width."""
    lines = [wrapped for line in drawing.sentences for wrapped in textwrap.wrap(drawable(line), 150)]
    return [drawable(f"Training {' · '.join(drawing.titles)}"), *lines]


def height_of_scale(scale: forest.Forest) -> float:
    """Return the inches that a scale needs."""
    return ROW_INCHES * (len(scale.marks) + 1) + 0.75


def forest_panel(axes: Any, scale: forest.Forest) -> None:
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


def _interval(axes: Any, scale: forest.Forest, mark: forest.ForestMark, row: int, colour: str) -> None:
    """Draw an interval as far as the scale reaches, with an arrow where it goes on."""
    low, high = max(mark.low or 0.0, scale.start), min(mark.high or 0.0, scale.end)
    axes.plot([low, high], [row, row], color=colour, linewidth=3.5, alpha=0.55, solid_capstyle="butt")
    for end, beyond, marker in ((low, mark.low != low, "<"), (high, mark.high != high, ">")):
        axes.plot([end], [row], color=colour, marker=marker if beyond else "|", ms=7, linestyle="none")
