"""The history of a figure as a plot: benchmark after benchmark, with a mark where a change is shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorprimat.analysis.history import Series
from tensorprimat.core.quantities import change
from tensorprimat.reports.bars import COLOURS
from tensorprimat.reports.plots.canvas import GRID, LEAST_PANEL_INCHES, WIDTH_INCHES, drawable, drawn, shortened

MOST_HISTORIES = 12  # panels of one picture; the table has them all
MOST_DATES = 12


def render(all_series: Sequence[Series], formats: Sequence[str] = ("png", "svg")) -> dict[str, bytes]:
    """Return one panel per series: the figure of each benchmark with its interval, and a mark where a change is shown.

    Raises MissingPackageError where matplotlib is not installed.
    """
    shown = all_series[:MOST_HISTORIES]

    def fill(figure: Any) -> None:
        figure.set_size_inches(WIDTH_INCHES, LEAST_PANEL_INCHES * len(shown))
        for panel, series in zip(figure.subplots(len(shown), squeeze=False)[:, 0], shown, strict=True):
            _history(panel, series)

    return drawn(fill, formats)


def _history(axes: Any, series: Series) -> None:
    places = np.arange(len(series.entries))
    values = np.array([entry.figure.value or math.nan for entry in series.entries])
    ends = np.array([(entry.figure.low, entry.figure.high) for entry in series.entries], np.float64)
    reach = np.nan_to_num(np.abs(ends - values[:, None]).T)
    axes.errorbar(places, values, yerr=reach, color=COLOURS[0], marker="o", ms=4, linewidth=1.0, capsize=2.5)
    for place, entry in zip(places, series.entries, strict=True):
        if entry.change is not None:
            axes.axvline(place - 0.5, color=COLOURS[1], linestyle="--", linewidth=1.0)
            axes.text(
                place - 0.45,
                0.97,
                change(entry.change),
                color=COLOURS[1],
                fontsize=8,
                va="top",
                transform=axes.get_xaxis_transform(),
            )
    every = max(1, len(places) // MOST_DATES)
    axes.set_xticks(places[::every], [(entry.at or "?")[:10] for entry in series.entries][::every])
    axes.set_title(shortened(series.label, 110))
    axes.set_ylabel(drawable(series.metric.replace("_", " ")))
    axes.margins(y=0.25)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
