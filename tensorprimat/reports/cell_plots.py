"""What the pictures of cells show: scaling of time, the warm-up study, the roofline. `plots.picture` makes the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorprimat.analysis.aggregate import Scaling
from tensorprimat.core.cells import Cell
from tensorprimat.reports.bars import COLOURS

MARKERS = "osD^vP*X"
MOST_CURVES = 12  # more cannot be told apart; the table has them all
AXES = {"num_parameters": "parameters", "context_length": "context length, tokens"}

Draw = Callable[[Any], None]
"""Fills a matplotlib Figure."""


def scaling(found: Sequence[Scaling]) -> Draw:
    """Time against parameters and against context, both logarithmic, with the fitted power law of each curve."""

    def draw(figure: Any) -> None:
        present = [axis for axis in AXES if any(one.axis == axis for one in found)]
        for axes, axis in zip(figure.subplots(1, len(present), squeeze=False)[0], present, strict=True):
            curves = [one for one in found if one.axis == axis][:MOST_CURVES]
            for number, one in enumerate(curves):
                _curve(axes, one, number)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xticks(sorted({x for one in curves for x, _ in one.points}), minor=False)
            axes.set_xticks([], minor=True)
            axes.margins(0.08, 0.2)
            for axis_of in (axes.xaxis, axes.yaxis):
                axis_of.set_major_formatter(_short)
                axis_of.set_minor_formatter(_short)
            axes.set_xlabel(AXES[axis])
            axes.set_ylabel("milliseconds per step")
            axes.set_title(f"Time against {AXES[axis].partition(',')[0]}")
            axes.grid(which="major", color="#dddddd", linewidth=0.7)
            axes.legend(fontsize=8, frameon=False)

    return draw


def _short(value: float, _position: int | None = None) -> str:
    """A tick: 128.6 M, 512, 0.3."""
    for size, letter in ((1e9, " B"), (1e6, " M")):
        if value >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _curve(axes: Any, one: Scaling, number: int) -> None:
    colour = COLOURS[number % len(COLOURS)]
    xs, ys = zip(*one.points, strict=True)
    label = one.label if one.exponent is None else f"{one.label}: exponent {one.exponent:.2f}"
    axes.plot(xs, ys, color=colour, marker=MARKERS[number % len(MARKERS)], linestyle="none", ms=5, label=label)
    if one.exponent is not None and one.factor is not None:
        ends = (min(xs), max(xs))
        axes.plot(ends, [one.factor * end**one.exponent for end in ends], color=colour, linewidth=1.0, alpha=0.7)


def warmup(cells: Sequence[Cell], *, stable: int | None) -> Draw:
    """Mean with deviation, and CV, against the number of warm-up steps. stable: from which count on nothing changes."""

    def draw(figure: Any) -> None:
        mean, scatter = figure.subplots(1, 2)
        measured = [cell for cell in cells if cell.mean_time_ms is not None]
        places = range(len(measured))
        counts = [str(cell.num_warmups) for cell in measured]
        mean.errorbar(
            places,
            [cell.mean_time_ms for cell in measured],
            yerr=[cell.std_time_ms or 0.0 for cell in measured],
            color=COLOURS[0],
            marker="o",
            linestyle="none",
            capsize=3,
            label="mean ± standard deviation",
        )
        mean.plot(
            places, [cell.median_time_ms for cell in measured], color=COLOURS[1], marker="_", ms=14, linestyle="none",
            label="median",
        )  # fmt: skip
        mean.set_ylabel("milliseconds per step")
        mean.set_title("Step time after warm-up")
        mean.set_ylim(bottom=0)
        mean.legend(fontsize=8, frameon=False)
        scatter.bar(places, [cell.cv_percent or 0.0 for cell in measured], color=COLOURS[0], width=0.6)
        scatter.set_ylabel("CV, %")
        scatter.set_title("Scatter of the trials")
        for axes in (mean, scatter):
            axes.set_xticks(list(places), counts)
            axes.set_xlabel("warm-up steps")
            axes.grid(axis="y", color="#dddddd", linewidth=0.7)
            if stable is not None:
                where = [cell.num_warmups for cell in measured].index(stable)
                axes.axvspan(where - 0.5, len(measured) - 0.5, color="#009E73", alpha=0.08)

    return draw
