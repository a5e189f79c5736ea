"""The plot comparison_plot.png and .svg: step time, throughput with intervals, memory by kind, time over steps."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from tensorprimat.analysis.records import Comparison
from tensorprimat.reports import forest, formatting
from tensorprimat.reports.bars import Panel, looks_of, panels, titles_of
from tensorprimat.reports.plots.bar_panel import bar_panel
from tensorprimat.reports.plots.bar_panel import height_of as height_of_bars
from tensorprimat.reports.plots.canvas import LEAST_PANEL_INCHES, drawable, drawn, framed, keys_of, laid_out
from tensorprimat.reports.plots.forest_panel import forest_panel
from tensorprimat.reports.plots.forest_panel import height_of as height_of_scale
from tensorprimat.reports.plots.step_panel import step_panel
from tensorprimat.reports.series import curves, has_course

MOST_HEADINGS = 6
COLUMNS = 2  # of panels beside each other
STEPS = "steps"
"""In the place of a bar panel: step time over steps."""


def render(comparison: Comparison, formats: Sequence[str] = ("png", "svg")) -> dict[str, bytes]:
    """Return the plot in each format. Raises MissingPackageError where matplotlib is not installed."""
    return drawn(lambda figure: _fill(figure, comparison), formats)


def draw(comparison: Comparison) -> Any:
    """Return the plot as a matplotlib Figure, to be saved under STYLE."""
    return laid_out(lambda figure: _fill(figure, comparison))


def _fill(figure: Any, comparison: Comparison) -> None:
    looks, titles = looks_of(comparison.sides), titles_of(comparison.sides)
    comparable = any(pair.fairness.verdict != "not_comparable" for pair in comparison.pairs)
    same_work = all(pair.fairness.level.same_work for pair in comparison.pairs)
    scales = forest.forests(comparison)
    shown: list[Panel | str] = [*panels(comparison.sides, looks, comparable=comparable, same_work=same_work)]
    if has_course(curve for side in comparison.sides for curve in curves(side)) or not (shown or scales):
        shown.append(STEPS)
    rows = [shown[start : start + COLUMNS] for start in range(0, len(shown), COLUMNS)]
    heights = [*map(height_of_scale, scales), *(max(map(_height, row)) for row in rows)]
    body = framed(figure, _headings(comparison), keys_of(looks, titles), sum(heights))
    grid = body.add_gridspec(len(heights), COLUMNS, height_ratios=heights)
    for number, scale in enumerate(scales):
        forest_panel(body.add_subplot(grid[number, :]), scale)
    for number, row in enumerate(rows, start=len(scales)):
        for column, panel in enumerate(row):
            place = grid[number, :] if len(row) == 1 else grid[number, column]
            if isinstance(panel, Panel):
                bar_panel(body.add_subplot(place), panel)
            else:
                steps, spread = place.subgridspec(1, 2, width_ratios=(5, 1), wspace=0.02).subplots(sharey=True)
                step_panel(steps, spread, comparison.sides, looks)


def _height(panel: Panel | str) -> float:
    return height_of_bars(panel.bars) if isinstance(panel, Panel) else LEAST_PANEL_INCHES + 0.6


def _headings(comparison: Comparison) -> list[str]:
    """Return the title, the answer and what it rests on, in lines that fit the width."""
    sentences = [f"{sentence}." for sentence in forest.answers(comparison)]
    sentences += dict.fromkeys(pair.fairness.sentence for pair in comparison.pairs if len(comparison.pairs) == 1)
    if len(comparison.pairs) > 1:
        titles = dict.fromkeys(formatting.fairness_title(pair) for pair in comparison.pairs)
        sentences.append(f"Level: {'; '.join(titles)}.")
    if len(sentences) > MOST_HEADINGS:
        sentences[MOST_HEADINGS - 1 :] = [f"… and {len(sentences) - MOST_HEADINGS + 1} more in the report"]
    lines = [wrapped for line in sentences for wrapped in textwrap.wrap(drawable(line), 150)]
    return [drawable(f"Training {' · '.join(titles_of(comparison.sides))}"), *lines]
