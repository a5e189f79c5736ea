"""comparison_plot.png and .svg: step time, throughput with error bars, memory by kind, step time over steps."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from tensorprimat.analysis.records import Comparison
from tensorprimat.reports import words
from tensorprimat.reports.bar_panel import bar_panel, height_of
from tensorprimat.reports.bars import looks_of, panels, titles_of
from tensorprimat.reports.canvas import LEAST_PANEL_INCHES, drawable, drawn, framed, keys_of, laid_out
from tensorprimat.reports.step_panel import step_panel

MOST_HEADINGS = 6


def render(comparison: Comparison, formats: Sequence[str] = ("png", "svg")) -> dict[str, bytes]:
    """The plot in each format. Raises MissingPackageError where matplotlib is not installed."""
    return drawn(lambda figure: _fill(figure, comparison), formats)


def draw(comparison: Comparison) -> Any:
    """The plot as a matplotlib Figure, to be saved under STYLE."""
    return laid_out(lambda figure: _fill(figure, comparison))


def _fill(figure: Any, comparison: Comparison) -> None:
    looks, titles = looks_of(comparison.sides), titles_of(comparison.sides)
    comparable = any(pair.fairness.verdict != "not_comparable" for pair in comparison.pairs)
    same_work = all(pair.fairness.level.same_work for pair in comparison.pairs)
    step_time, throughput, memory = panels(comparison.sides, looks, comparable=comparable, same_work=same_work)
    upper, lower = height_of(step_time.bars), max(height_of(memory.bars), LEAST_PANEL_INCHES + 0.6)
    headings = _headings(comparison)
    body = framed(figure, headings, keys_of(looks, titles), upper + lower)
    grid = body.add_gridspec(2, 2, height_ratios=(upper, lower))
    for place, panel in (((0, 0), step_time), ((0, 1), throughput), ((1, 0), memory)):
        bar_panel(body.add_subplot(grid[place]), panel)
    steps, spread = grid[1, 1].subgridspec(1, 2, width_ratios=(5, 1), wspace=0.02).subplots(sharey=True)
    step_panel(steps, spread, comparison.sides, looks)


def _headings(comparison: Comparison) -> list[str]:
    """The title, then what it shows and how fair it is, in lines that fit the width."""
    said = []
    for pair in comparison.pairs:
        where = f"{words.model_title(pair.candidate.result.model)}: " if len(comparison.models) > 1 else ""
        if len(comparison.pairs) == 1:
            said.append(pair.fairness.sentence)
        if len(comparison.pairs) > 1 or pair.fairness.verdict != "not_comparable":
            level = f" [{words.fairness_title(pair)}]" if len(comparison.pairs) > 1 else ""
            said.append(f"{where}{words.headline(pair)}.{level}")
    if len(said) > MOST_HEADINGS:
        said[MOST_HEADINGS - 1 :] = [f"… and {len(said) - MOST_HEADINGS + 1} more in the report"]
    lines = [wrapped for line in said for wrapped in textwrap.wrap(drawable(line), 150)]
    return [drawable(f"Training {' · '.join(titles_of(comparison.sides))}"), *lines]
