"""The bars of a comparison as data, so that the PNG and the HTML report draw the same bars in the same colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorprimat.analysis.rates import NORMALISED_BY, common_metric
from tensorprimat.analysis.records import Estimate, Side
from tensorprimat.core import quantities
from tensorprimat.core.result import MEMORY_KINDS
from tensorprimat.reports import facts, formatting

# Okabe & Ito, "Color Universal Design" (2008), without yellow, which is too light on white paper
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "ooo", "++")
UNMEASURED = "not measured"


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
    """Return the bar style of every label, the same for all of its models."""
    labels = dict.fromkeys(side.label for side in sides)
    return {
        label: BarStyle(
            number=number, label=label, colour=COLOURS[number % len(COLOURS)], hatch=HATCHES[number % len(HATCHES)]
        )
        for number, label in enumerate(labels)
    }


def titles_of(sides: Sequence[Side]) -> list[str]:
    """Return the titles of the trained models, each once."""
    return list(dict.fromkeys(formatting.model_title(side.result.model) for side in sides))


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
    throughput = tuple(_bar(side, looks, _rate(side, metric), quantities.rate) for side in sides)
    memory, memory_title = _memory(sides, looks)
    kinds = dict.fromkeys(bar.group for bar in memory)
    every = (
        Panel(
            title="Average step time" + (" (lower is better)" if comparable and same_work else ""),
            unit="seconds" + _intervals_note(step_time),
            bars=step_time,
        ),
        Panel(
            title="Throughput" + (" (higher is better)" if comparable else ""),
            unit=formatting.METRIC_TITLES[metric] + _intervals_note(throughput),
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


def _intervals_note(bars: Sequence[Bar]) -> str:
    with_interval = [bar for bar in bars if bar.low is not None]
    if not with_interval:
        return ""
    within = [bar for bar in with_interval if bar.within_run]
    if len(within) == len(with_interval):
        return ", with 95 % intervals within one run"
    return ", with 95 % intervals" + (" (dotted: within one run)" if within else "")


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
        text=UNMEASURED if estimate.value is None else formatting.with_interval(estimate, form),
        within_run=estimate.within_run,
    )


def _memory(sides: Sequence[Side], looks: dict[str, BarStyle]) -> tuple[tuple[Bar, ...], str]:
    """Return bars grouped by kind, and the panel's title; the host's memory only where no side has a device's.

    A bar is as long as the peak; the average, where it is known, is marked on it.
    """
    several = len(titles_of(sides)) > 1

    def bar(side: Side, kind: str, peak: float, average: float | None = None) -> Bar:
        group = f"{formatting.model_title(side.result.model)}, {kind}" if several else kind
        text = quantities.gigabytes(peak) + ("" if average is None else f" (average {quantities.gigabytes(average)})")
        return Bar(look=looks[side.label], group=group, value=peak, mark=average, text=text)

    bars = [
        bar(side, title, peak, facts.average_memory(side, kind))
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
        bars += [Bar(look=looks[side.label], group=side.label, value=None, text=UNMEASURED) for side in without]
        marked = any(one.mark is not None for one in bars)
        return tuple(bars), f"Peak{' and average' if marked else ''} memory of one device, by kind"
    of_host = ((side, side.result.host_memory_peak_gb) for side in sides)
    return (
        tuple(bar(side, "host", peak) for side, peak in of_host if peak is not None),
        "Peak memory of the training process",
    )
