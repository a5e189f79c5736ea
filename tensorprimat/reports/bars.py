"""The bars of a comparison as data, so that the PNG and the HTML report draw the same bars.

`panels` are those of time, throughput and memory; `metric_panels` are those of efficiency, energy, cost and time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tensorprimat.analysis.economics import unlike_prices
from tensorprimat.analysis.metrics import STATED
from tensorprimat.analysis.rates import NORMALISED_BY, common_metric
from tensorprimat.analysis.records import Estimate, Pair, Side
from tensorprimat.core import quantities
from tensorprimat.core.figures import DERIVED_FIGURES, Figure
from tensorprimat.core.result import MEMORY_KINDS
from tensorprimat.reports import facts, formatting
from tensorprimat.reports.efficiency import of_unlike_kinds
from tensorprimat.reports.plots.canvas import COLOURS, HATCHES

Metrics = Mapping[str, Figure]


@dataclass(frozen=True, kw_only=True)
class BarStyle:
    """The appearance of one label in every panel: colour and hatch."""

    number: int
    """Place among the labels, from 0."""
    label: str
    colour: str
    hatch: str


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar: its side, group, length and interval."""

    look: BarStyle
    group: str
    value: float | None
    low: float | None = None
    high: float | None = None
    mark: float | None = None
    """A second figure on the same bar, such as the average of a peak."""
    text: str
    within_run: bool = False
    """The interval is of one run's steps."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One group of bars on a common axis."""

    title: str
    unit: str
    bars: tuple[Bar, ...]


def looks_of(sides: Sequence[Side]) -> dict[str, BarStyle]:
    """Return the bar style of every label, the same for all of its models; labels of one colour differ in the hatch."""
    labels = dict.fromkeys(side.label for side in sides)
    return {
        label: BarStyle(
            number=number,
            label=label,
            colour=COLOURS[number % len(COLOURS)],
            hatch=HATCHES[(number + number // len(COLOURS)) % len(HATCHES)],
        )
        for number, label in enumerate(labels)
    }


def titles_of(sides: Sequence[Side]) -> list[str]:
    """Return the titles of the trained models, each once."""
    return list(dict.fromkeys(formatting.model_title(side.result.model) for side in sides))


def all_comparable(pairs: Sequence[Pair]) -> bool:
    """Return True if every pair can be compared; False without pairs."""
    return bool(pairs) and all(pair.fairness.level.comparable for pair in pairs)


def alone(sides: Sequence[Side]) -> bool:
    """Return True if no two sides trained the same model."""
    return len({side.model for side in sides}) == len(sides)


def panels(
    sides: Sequence[Side], looks: dict[str, BarStyle], *, comparable: bool, same_work: bool = True
) -> tuple[Panel, ...]:
    """Return step time, throughput and memory, each where two sides (or the only one) have it.

    comparable: state that higher throughput is better. same_work: steps do equal work, so state that a lower step time
    is better.
    """
    metric = _common_rate(sides)
    in_one_unit = quantities.seconds_together(side.step_time_seconds.value for side in sides)
    step_time = tuple(_bar(side, looks, side.step_time_seconds, in_one_unit) for side in sides)
    rates = [_rate(side, metric) for side in sides]
    throughput = tuple(_bar(side, looks, rate, quantities.rate) for side, rate in zip(sides, rates, strict=True))
    memory, memory_title = _memory(sides, looks)
    kinds = dict.fromkeys(bar.group for bar in memory)
    every = (
        Panel(
            title="Average step time" + (" (lower is better)" if comparable and same_work else ""),
            unit="seconds" + _intervals_note([side.step_time_seconds for side in sides]),
            bars=step_time,
        ),
        Panel(
            title="Throughput" + (" (higher is better)" if comparable else ""),
            unit=formatting.METRIC_TITLES[metric] + _intervals_note(rates),
            bars=throughput,
        ),
        Panel(
            title=memory_title,
            unit="GB (10⁹ bytes)" + (f", {next(iter(kinds))}" if len(kinds) == 1 else ""),
            bars=memory,
        ),
    )
    return tuple(panel for panel in every if worth_drawing(panel, sides))


def worth_drawing(panel: Panel, sides: Sequence[Side]) -> bool:
    """Return True if a panel shows figures of two sides, or those of the only side."""
    return sum(bar.value is not None for bar in panel.bars) >= min(2, len(sides))


def _intervals_note(estimates: Sequence[Estimate]) -> str:
    with_interval = [estimate for estimate in estimates if estimate.low is not None]
    if not with_interval:
        return ""
    level = quantities.confidence_level(with_interval[0].confidence)
    within = [estimate for estimate in with_interval if estimate.within_run]
    if len(within) == len(with_interval):
        return f", with {level} intervals within one run"
    return f", with {level} intervals" + (" (dotted: within one run)" if within else "")


def _common_rate(sides: Sequence[Side]) -> str:
    """Return the rate to draw: the best one that all sides have in one unit, else tokens/s/GPU."""
    if len(sides) == 1:
        known = (name for name in NORMALISED_BY if _rate(sides[0], name).value is not None)
        return next(known, next(iter(NORMALISED_BY)))
    return common_metric([side.result for side in sides]) or next(iter(NORMALISED_BY))


def _rate(side: Side, metric: str) -> Estimate:
    if metric == "tokens_per_second_per_gpu":
        return side.tokens_per_second_per_gpu
    if metric == "tokens_per_second":
        return side.tokens_per_second
    return Estimate(value=getattr(side.result.performance_metrics, metric), rests_on="")


def _bar(side: Side, looks: dict[str, BarStyle], estimate: Estimate, form: quantities.Form) -> Bar:
    return Bar(
        look=looks[side.label],
        group=formatting.model_title(side.result.model),
        value=estimate.value,
        low=estimate.low,
        high=estimate.high,
        text=quantities.NOT_MEASURED if estimate.value is None else formatting.with_interval(estimate, form),
        within_run=estimate.within_run,
    )


def _memory(sides: Sequence[Side], looks: dict[str, BarStyle]) -> tuple[tuple[Bar, ...], str]:
    """Return bars grouped by kind, and the panel's title; the host's memory only where no side has a device's.

    A bar is as long as the peak; the average is marked on it where it is known and differs.
    """
    several = len(titles_of(sides)) > 1

    def bar(side: Side, kind: str, peak: float, average: float | None = None) -> Bar:
        group = f"{formatting.model_title(side.result.model)}, {kind}" if several else kind
        text = quantities.gigabytes(peak)
        if average is not None and (mean := quantities.gigabytes(average)) != text:
            text += f" (average {mean})"
        else:
            average = None
        return Bar(look=looks[side.label], group=group, value=peak, mark=average, text=text)

    bars = [
        bar(side, title, peak, getattr(side.result.memory_metrics, f"avg_{kind}_gb", None))
        for kind, title in MEMORY_KINDS.items()
        for side in sides
        if (peak := facts.peak_memory(side, kind)) is not None
    ]
    if bars and len(sides) > 1:  # a kind that only one side has allows no comparison
        groups = [one.group for one in bars]
        bars = [one for one in bars if groups.count(one.group) > 1]
        if not bars:
            return (), ""
    if bars:
        without = (side for side in sides if side.result.memory_metrics is None)
        bars += [
            Bar(look=looks[side.label], group=side.label, value=None, text=quantities.NOT_MEASURED) for side in without
        ]
        marked = any(one.mark is not None for one in bars)
        return tuple(bars), f"Peak{' and average' if marked else ''} memory of one device, by kind"
    of_host = ((side, side.result.host_memory_peak_gb) for side in sides)
    return (
        tuple(bar(side, "host", peak) for side, peak in of_host if peak is not None),
        "Peak memory of the training process",
    )


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """The way in which one metric becomes a panel."""

    name: str
    """In core.figures.DERIVED_FIGURES."""
    title: str
    unit: str
    per_unit: float = 1.0
    """Amount of the metric's own unit in one unit of the axis."""
    companion: str | None = None
    """Figure whose value is written next to each bar."""


_TIME = "time_to_1t_tokens_seconds"
EFFICIENCY = (
    Drawn(name="mfu", title="MFU", unit="% of the dense peak", per_unit=0.01),
    Drawn(name="model_tflops_per_gpu", title="Model FLOP/s per GPU", unit="TFLOP/s"),
)
"""Panels whose figures need no comparable work on the other sides."""
COST = (
    Drawn(
        name="tokens_per_watt_hour", title="Energy efficiency", unit="tokens per watt-hour",
        companion="power_watts_per_gpu",
    ),
    Drawn(name="memory_utilization", title="Memory utilisation", unit="% of the device's memory", per_unit=0.01),
    Drawn(
        name="cost_usd_per_trillion_tokens", title="Cost of 1 T tokens", unit="thousand USD", per_unit=1e3,
        companion="price_usd_per_gpu_hour",
    ),
    Drawn(name=_TIME, title="Time to 1 T tokens", unit="seconds"),  # see _in_its_unit
)  # fmt: skip


def metric_panels(sides: Sequence[Side], looks: Mapping[str, BarStyle], *, comparable: bool) -> tuple[Panel, ...]:
    """Return a panel for every metric that two sides have, or the only side.

    comparable: the sides can be compared; otherwise no panel says which direction is better, and several sides of one
    model have only the panels of EFFICIENCY.
    """
    metrics = [side.metrics for side in sides]
    every_drawn = (*EFFICIENCY, *(COST if comparable or alone(sides) else ()))
    every = (
        _metric_panel(drawn, sides, looks, may_win=comparable)
        for drawn in (_in_its_unit(one, metrics) for one in every_drawn)
        if not _is_unlike(drawn, metrics)
    )
    return tuple(panel for panel in every if worth_drawing(panel, sides))


FOOTNOTES = "*†‡§¶#"
"""Marks of the remarks on the figures of a panel."""


def _metric_panel(drawn: Drawn, sides: Sequence[Side], looks: Mapping[str, BarStyle], *, may_win: bool) -> Panel:
    """Return the panel of a metric; a remark on a figure is a mark at its bar, explained after the unit."""
    remarks, better = [_remark(drawn, side.metrics) for side in sides], DERIVED_FIGURES[drawn.name].better
    marks = dict(zip(dict.fromkeys(filter(None, remarks)), FOOTNOTES, strict=False))
    bars = (_metric_bar(drawn, side, looks, marks.get(of, "")) for side, of in zip(sides, remarks, strict=True))
    return Panel(
        title=drawn.title + (f" ({better} is better)" if may_win and better else ""),
        unit="; ".join((drawn.unit, *(f"{mark} {remark}" for remark, mark in marks.items()))),
        bars=tuple(bars),
    )


def _in_its_unit(drawn: Drawn, metrics: Sequence[Metrics]) -> Drawn:
    """Return the panel of a time with the unit in which the longest time is written, any other as it is."""
    if drawn.name != _TIME:
        return drawn
    unit, per_unit = quantities.unit_of_long_time(max((one[_TIME].value or 0.0 for one in metrics), default=0.0))
    return replace(drawn, unit=f"{unit} on all GPUs of a side", per_unit=per_unit)


def _is_unlike(drawn: Drawn, metrics: Sequence[Metrics]) -> bool:
    """Return True for memory of different kinds, and for costs at prices from different sources: neither is drawn."""
    if drawn.name == "memory_utilization":
        return of_unlike_kinds(metrics)
    return drawn.companion == "price_usd_per_gpu_hour" and unlike_prices(metrics) is not None


def _metric_bar(drawn: Drawn, side: Side, looks: Mapping[str, BarStyle], mark: str) -> Bar:
    value, text = side.metrics[drawn.name].value, "not known"
    if value is not None:
        text = DERIVED_FIGURES[drawn.name].form(value)
        if drawn.companion is not None:
            text += f" at {DERIVED_FIGURES[drawn.companion].form(side.metrics[drawn.companion].value)}"
    return Bar(
        look=looks[side.label],
        group=formatting.model_title(side.result.model),
        value=None if value is None else value / drawn.per_unit,
        text=text + (f"\N{NO-BREAK SPACE}{mark}" if mark else ""),
    )


def _remark(drawn: Drawn, metrics: Metrics) -> str:
    """Return the remark on a figure, "" for none: inferred inputs of an MFU, the origin of a power."""
    if metrics[drawn.name].value is None:
        return ""
    if drawn.name == "mfu" and STATED in (metrics["mfu"].remark or ""):
        return f"some inputs {STATED}"
    return (metrics["power_watts_per_gpu"].remark or "") if drawn.companion == "power_watts_per_gpu" else ""
