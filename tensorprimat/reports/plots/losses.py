"""The plot comparison_loss.png and .svg: the losses of every run, one panel per model, with the parity verdict."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorprimat.analysis.records import Comparison, Pair, Side
from tensorprimat.reports import formatting
from tensorprimat.reports.bars import BarStyle, looks_of
from tensorprimat.reports.plots import canvas
from tensorprimat.reports.series import curves, thinned

PANEL_INCHES = 3.6
MOST_SENTENCES = 3  # below a panel's title; the report has them all
LINE_CHARACTERS = 150


def render(comparison: Comparison, formats: Sequence[str] = ("png", "svg")) -> dict[str, bytes]:
    """Return the picture in each format; none where no side logged a loss.

    Raises MissingPackageError where matplotlib is not installed.
    """
    parts = [part for part in comparison.by_model() if any(map(_logged, part.sides))]
    if not parts:
        return {}

    def fill(figure: Any) -> None:
        looks = looks_of([side for part in parts for side in part.sides])
        body = canvas.framed(figure, ["Training loss"], canvas.keys_of(looks, ()), PANEL_INCHES * len(parts))
        for axes, part in zip(body.subplots(len(parts), squeeze=False)[:, 0], parts, strict=True):
            _panel(axes, part.sides, part.pairs, looks)

    return canvas.drawn(fill, formats)


def _logged(side: Side) -> bool:
    return bool(np.isfinite(side.result.steps.column("loss")).any())


def _panel(axes: Any, sides: Sequence[Side], pairs: Sequence[Pair], looks: dict[str, BarStyle]) -> None:
    """Draw the losses of every run over the framework's step numbers."""
    for number, side in enumerate(sides):
        look, style = looks[side.label], canvas.LINE_STYLES[number % len(canvas.LINE_STYLES)]
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
        axes.axvline(step, color=canvas.INK, linestyle=":", linewidth=1.2)
    title = formatting.model_title(sides[0].result.model)
    axes.set_title("\n".join([canvas.drawable(title), *_sentences(sides, pairs)]), fontsize=9.5, fontweight="normal")
    axes.set_xlabel("optimizer step" + (" (dotted line: the losses differ from here)" if diverged else ""))
    axes.set_ylabel("loss")
    axes.margins(x=0.01)
    axes.grid(axis="y", color=canvas.GRID, linewidth=0.7)


def _sentences(sides: Sequence[Side], pairs: Sequence[Pair]) -> list[str]:
    """Return the parity sentences, and the sides that logged no loss, in lines that fit."""
    sentences = list(dict.fromkeys(pair.losses.sentence for pair in pairs if pair.losses is not None))[:MOST_SENTENCES]
    without = [side.label for side in sides if not _logged(side)]
    sentences += [f"No loss was logged: {', '.join(without)}"] if without else []
    return [line for sentence in sentences for line in textwrap.wrap(canvas.drawable(sentence), LINE_CHARACTERS)]
