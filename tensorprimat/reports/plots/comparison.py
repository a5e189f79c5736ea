"""The plots of results: comparison_plot, comparison_loss, enhanced_plot and history, each as PNG and SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tensorprimat.analysis.history import Series
from tensorprimat.analysis.records import Comparison
from tensorprimat.reports import bars, forest, formatting
from tensorprimat.reports.efficiency import convention_sentence
from tensorprimat.reports.plots import canvas, panels
from tensorprimat.reports.plots.panels import Course
from tensorprimat.reports.series import curves, has_course

MOST_HEADINGS = 6
MOST_HISTORIES = 12  # panels of one picture; the table has them all
LOSS_INCHES = 3.6  # height of one panel of losses
_COLUMNS = 2  # of panels in a row
_STEPS = "steps"
"""Placeholder of the panel of step time over steps."""


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The content of a plot: one process computes it and another draws it, without the rows of the results."""

    title: str
    sentences: tuple[str, ...]
    """Sentences below the title."""
    looks: dict[str, bars.BarStyle]
    models: tuple[str, ...] = ()
    """Names of the models, if each has a line style."""
    scales: tuple[forest.Forest, ...] = ()
    panels: tuple[bars.Panel, ...]
    courses: tuple[Course, ...] | None = None
    """Step times of every side; None for no panel of them."""


def comparison_plot(comparison: Comparison, formats: Sequence[str] = ("png", "svg")) -> dict[str, bytes]:
    """Return the plot in each format. Raises MissingPackageError where matplotlib is not installed."""
    return drawn_as(drawing_of(comparison), formats)


def drawn_as(drawing: Drawing, formats: Sequence[str] = ("png", "svg")) -> dict[str, bytes]:
    """Return a drawing in each format. Raises MissingPackageError where matplotlib is not installed."""
    return canvas.drawn(partial(fill_figure, drawing=drawing), formats)


def drawing_of(comparison: Comparison) -> Drawing:
    """Return the content of a comparison's plot."""
    sides = comparison.sides
    looks = bars.looks_of(sides)
    comparable = bars.all_comparable(comparison.pairs)
    same_work = all(pair.fairness.level.same_work for pair in comparison.pairs)
    scales = tuple(forest.forests(comparison))
    of_bars = bars.panels(sides, looks, comparable=comparable, same_work=same_work)
    courses, any_course = [], False
    for side in sides:  # one after the other: the curves of a long run are as large as the run
        of_side = curves(side)
        any_course = any_course or has_course(of_side)
        courses.append(panels.course_of(side, looks[side.label], of_side))
    return Drawing(
        title=f"Training {' · '.join(bars.titles_of(sides))}",
        sentences=tuple(_sentences(comparison)),
        looks=looks,
        models=tuple(bars.titles_of(sides)),
        scales=scales,
        panels=of_bars,
        courses=tuple(courses) if any_course or not (of_bars or scales) else None,
    )


def fill_figure(figure: Any, drawing: Drawing) -> None:
    """Draw the scales and panels of a drawing on an empty matplotlib Figure, and set its size."""
    shown: list[bars.Panel | str] = [*drawing.panels, *([_STEPS] if drawing.courses is not None else [])]
    rows = [shown[start : start + _COLUMNS] for start in range(0, len(shown), _COLUMNS)]
    heights = [*map(panels.height_of_scale, drawing.scales), *(max(map(_height, row)) for row in rows)]
    keys = _keys(drawing.looks, drawing.models)
    body = canvas.framed(figure, drawing.title, drawing.sentences, sum(heights), keys=keys)
    grid = body.add_gridspec(len(heights), _COLUMNS, height_ratios=heights)
    for number, scale in enumerate(drawing.scales):
        panels.forest_panel(body.add_subplot(grid[number, :]), scale)
    for number, row in enumerate(rows, start=len(drawing.scales)):
        for column, panel in enumerate(row):
            place = grid[number, :] if len(row) == 1 else grid[number, column]
            if isinstance(panel, bars.Panel):
                panels.bar_panel(body.add_subplot(place), panel)
            else:
                steps, spread = place.subgridspec(1, 2, width_ratios=(5, 1), wspace=0.02).subplots(sharey=True)
                panels.step_panel(steps, spread, drawing.courses or ())


def _height(panel: bars.Panel | str) -> float:
    return panels.height_of_bars(panel.bars) if isinstance(panel, bars.Panel) else canvas.LEAST_PANEL_INCHES + 0.6


def _sentences(comparison: Comparison) -> list[str]:
    """Return the answer and its basis."""
    headlines = forest.answers(comparison)
    sentences = [f"{one.sentence}." for one in headlines]
    sentences += [limits] if (limits := formatting.limits_of(headlines)) else []
    sentences += dict.fromkeys(pair.fairness.sentence for pair in comparison.pairs if len(comparison.pairs) == 1)
    if len(comparison.pairs) > 1:
        titles = dict.fromkeys(pair.fairness.title for one in headlines for pair in one.pairs)
        sentences.append(f"Level: {'; '.join(titles)}.")
    if len(sentences) > MOST_HEADINGS:
        sentences[MOST_HEADINGS - 1 :] = [f"… and {len(sentences) - MOST_HEADINGS + 1} more in the report"]
    return sentences


_UNLIKE = "Not all sides can be compared, so only MFU and model FLOP/s are drawn."


def metrics(comparison: Comparison, formats: Sequence[str] = ("png", "svg")) -> dict[str, bytes]:
    """Return enhanced_plot in each format; empty if no metric is known.

    Raises MissingPackageError if matplotlib is not installed.
    """
    sides = comparison.sides
    looks = bars.looks_of(sides)
    comparable = bars.all_comparable(comparison.pairs)
    shown = bars.metric_panels(sides, looks, comparable=comparable)
    if not shown:
        return {}
    unlike = () if comparable or bars.alone(sides) else (_UNLIKE,)
    drawing = Drawing(
        title=f"Efficiency and cost of training {' · '.join(bars.titles_of(sides))}",
        sentences=(convention_sentence(comparison), *unlike),
        looks=looks,
        panels=shown,
    )
    return drawn_as(drawing, formats)


def losses(comparison: Comparison, formats: Sequence[str] = ("png", "svg")) -> dict[str, bytes]:
    """Return comparison_loss in each format: one panel per model; none where no side logged a loss.

    Raises MissingPackageError where matplotlib is not installed.
    """
    parts = [part for part in comparison.by_model if any(map(panels.logged, part.sides))]
    if not parts:
        return {}

    def fill(figure: Any) -> None:
        looks = bars.looks_of([side for part in parts for side in part.sides])
        body = canvas.framed(figure, "Training loss", (), LOSS_INCHES * len(parts), keys=_keys(looks, ()))
        for axes, part in zip(body.subplots(len(parts), squeeze=False)[:, 0], parts, strict=True):
            panels.loss_panel(axes, part.sides, part.pairs, looks)

    return canvas.drawn(fill, formats)


def history_plot(all_series: Sequence[Series], formats: Sequence[str] = ("png", "svg")) -> dict[str, bytes]:
    """Return one panel per series: the figure of each benchmark with its interval, and a mark where a change is shown.

    Raises MissingPackageError where matplotlib is not installed.
    """
    shown = all_series[:MOST_HISTORIES]

    def fill(figure: Any) -> None:
        figure.set_size_inches(canvas.WIDTH_INCHES, canvas.LEAST_PANEL_INCHES * len(shown))
        for axes, series in zip(figure.subplots(len(shown), squeeze=False)[:, 0], shown, strict=True):
            panels.history_panel(axes, series)

    return canvas.drawn(fill, formats)


def _keys(looks: Mapping[str, bars.BarStyle], titles: Sequence[str]) -> list[Any]:
    return canvas.keys_of([(look.label, look.colour, look.hatch) for look in looks.values()], titles)
