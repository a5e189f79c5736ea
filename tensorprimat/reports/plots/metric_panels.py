"""Efficiency, energy, cost and time as bars: the same panels in enhanced_plot.png and in the HTML report."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorprimat.analysis.economics import unlike_prices
from tensorprimat.analysis.metric import Metric
from tensorprimat.analysis.metrics import STATED
from tensorprimat.analysis.records import Comparison, Side
from tensorprimat.core.units import SECONDS_PER_HOUR
from tensorprimat.reports import formatting
from tensorprimat.reports.bars import Bar, BarStyle, Panel, looks_of, titles_of, worth_drawing
from tensorprimat.reports.efficiency import convention_sentence, of_unlike_kinds
from tensorprimat.reports.metric_forms import FORMS
from tensorprimat.reports.plots import canvas
from tensorprimat.reports.plots.bar_panel import bar_panel, height_of

Metrics = Mapping[str, Metric]
COLUMNS = 2  # of panels in a row
LINE_CHARACTERS = 150
SECONDS_PER_DAY = 24 * SECONDS_PER_HOUR


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The way in which one metric becomes a panel."""

    name: str
    """In analysis.metric.DEFINITIONS."""
    title: str
    unit: str
    per_unit: float = 1.0
    """Amount of the metric's own unit in one unit of the axis."""
    better: str | None = None
    """Better direction, "higher" or "lower"; None if neither is better in general."""
    companion: str | None = None
    """Metric whose value is written next to each bar."""


EFFICIENCY = (
    Drawn(name="mfu", title="MFU", unit="% of the dense peak", per_unit=0.01, better="higher"),
    Drawn(name="model_tflops_per_gpu", title="Model FLOP/s per GPU", unit="TFLOP/s", better="higher"),
)
"""Panels whose figures need no comparable work on the other sides."""
COST = (
    Drawn(
        name="tokens_per_watt_hour", title="Energy", unit="tokens per watt-hour", better="higher",
        companion="power_watts_per_gpu",
    ),
    Drawn(name="memory_utilization", title="Memory utilisation", unit="% of the device's memory", per_unit=0.01),
    Drawn(
        name="cost_usd_per_trillion_tokens", title="Cost of 1 T tokens", unit="thousand USD", per_unit=1e3,
        better="lower", companion="price_usd_per_gpu_hour",
    ),
    Drawn(
        name="time_to_1t_tokens_seconds", title="Time to 1 T tokens", unit="days on all GPUs of a side",
        per_unit=SECONDS_PER_DAY, better="lower",
    ),
)  # fmt: skip


def panels(sides: Sequence[Side], looks: Mapping[str, BarStyle], *, comparable: bool) -> tuple[Panel, ...]:
    """Return a panel for every metric that two sides have, or the only side.

    comparable: the sides can be compared; otherwise only the panels of EFFICIENCY are
    drawn, without "higher is better".
    """
    metrics = [side.metrics for side in sides]
    every = (
        Panel(
            title=drawn.title + (f" ({drawn.better} is better)" if comparable and _may_win(drawn, metrics) else ""),
            unit=drawn.unit,
            bars=tuple(_bar(drawn, side, looks) for side in sides),
        )
        for drawn in (*EFFICIENCY, *(COST if comparable or len(sides) == 1 else ()))
        if not (drawn.name == "memory_utilization" and of_unlike_kinds(metrics))
    )
    return tuple(panel for panel in every if worth_drawing(panel, sides))


def _may_win(drawn: Drawn, metrics: Sequence[Metrics]) -> bool:
    """Return True if a panel may state which direction is better: not for costs at prices of different sources."""
    if drawn.better is None:
        return False
    return drawn.companion != "price_usd_per_gpu_hour" or not any(unlike_prices(metrics[0], one) for one in metrics[1:])


def _bar(drawn: Drawn, side: Side, looks: Mapping[str, BarStyle]) -> Bar:
    value = side.metrics[drawn.name].value
    return Bar(
        look=looks[side.label],
        group=formatting.model_title(side.result.model),
        value=None if value is None else value / drawn.per_unit,
        text="not known" if value is None else _described(drawn, side.metrics),
    )


def _described(drawn: Drawn, metrics: Metrics) -> str:
    """Return the figure, with the price or the power (measured or nameplate) that it is based on."""
    figure = FORMS[drawn.name](metrics[drawn.name].value)
    if drawn.name == "mfu" and STATED in (metrics["mfu"].remark or ""):
        return f"{figure} (from user-stated facts)"
    if drawn.companion is None:
        return figure
    other = metrics[drawn.companion]
    kind = f" ({other.remark})" if other.remark and drawn.companion == "power_watts_per_gpu" else ""
    return f"{figure} at {FORMS[drawn.companion](other.value)}{kind}"


def render(comparison: Comparison, formats: Sequence[str] = ("png", "svg")) -> dict[str, bytes]:
    """Return enhanced_plot in each format; empty if no metric is known.

    Raises MissingPackageError if matplotlib is not installed.
    """
    sides = comparison.sides
    looks = looks_of(sides)
    comparable = all(pair.fairness.verdict != "not_comparable" for pair in comparison.pairs)
    shown = panels(sides, looks, comparable=comparable)
    if not shown:
        return {}
    rows = [shown[start : start + COLUMNS] for start in range(0, len(shown), COLUMNS)]
    heights = [max(height_of(panel.bars) for panel in row) for row in rows]
    headings = [
        canvas.drawable(f"Efficiency and cost of training {' · '.join(titles_of(sides))}"),
        *textwrap.wrap(canvas.drawable(convention_sentence(comparison)), LINE_CHARACTERS),
        *([] if comparable else ["The sides did different work: only figures of each side alone are drawn."]),
    ]

    def fill(figure: Any) -> None:
        body = canvas.framed(figure, headings, canvas.keys_of(looks, ()), sum(heights))
        grid = body.add_gridspec(len(rows), COLUMNS, height_ratios=heights)
        for number, panel in enumerate(shown):
            bar_panel(body.add_subplot(grid[number // COLUMNS, number % COLUMNS]), panel)

    return canvas.drawn(fill, formats)
