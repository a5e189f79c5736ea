"""comparison_plot.png and .svg: step time, throughput with error bars, memory by kind, step time over steps.

Drawn on matplotlib's Figure without pyplot, so nothing needs a display and importing stays cheap. Colours are Okabe and
Ito's (distinct to every colour vision); hatches and line styles say the same again in print without colour.
"""

from __future__ import annotations

import io
import math
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from tensorprimat.analysis.history import Series
from tensorprimat.analysis.records import Comparison, Side
from tensorprimat.core.errors import MissingPackageError
from tensorprimat.reports import words
from tensorprimat.reports.bars import COLOURS, Bar, Look, Panel, looks_of, panels, titles_of
from tensorprimat.reports.safe_text import one_line
from tensorprimat.reports.series import Curve, curves, pace_range, thinned

LINE_STYLES = ("-", "--", ":", "-.")
INK, FAINT = "#222222", "#8a8a8a"

DPI = 150
WIDTH_INCHES = 13.0
BAR_INCHES = 0.30  # height of one bar with its share of the gap: room for a value in 8-point type
LEAST_PANEL_INCHES = 3.1
GROUP_GAP = 0.7  # between groups of bars, in bars
LEAST_BARS = 4.5  # a panel of fewer bars keeps room around them
TEXT_SHARE = 0.018  # of a panel's width, which one character of a value takes
LABEL_WIDTH = 22  # characters of a label on one line
LEGEND_COLUMNS = 3
MOST_HEADINGS = 6
MOST_POINTS = 3000  # per curve: more than the panel has pixels
LOG_SCALE_FROM = 8.0  # typical step times further apart than this cannot share a linear axis
OUTLIER = 4.0  # times the typical step: what lies above is marked at the edge instead of flattening the rest
MOST_HISTORIES = 12  # panels of one picture; the table has them all
MOST_DATES = 12
DRAWABLE = 1e15  # longer bars than this are nonsense, and break the axes

STYLE = {
    "font.size": 9.0,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.parse_math": False,  # a "$" in a device name is a dollar
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "tensorprimat",  # the same comparison gives the same file
}


Fill = Callable[[Any], None]
"""Puts something on an empty matplotlib Figure, and sets its size."""


def render(comparison: Comparison, formats: Sequence[str] = ("png", "svg")) -> dict[str, bytes]:
    """The plot in each format. Raises MissingPackageError where matplotlib is not installed."""
    return drawn(lambda figure: _fill(figure, comparison), formats)


def drawn(fill: Fill, formats: Sequence[str] = ("png", "svg")) -> dict[str, bytes]:
    """Files of a figure in the style of all plots. Raises MissingPackageError where matplotlib is not installed."""
    matplotlib = load()
    pictures = {}
    with matplotlib.rc_context(STYLE):
        figure = laid_out(fill)
        for form in formats:
            pictures[form] = _saved(figure, form)
    return pictures


def can_draw() -> bool:
    """Whether matplotlib is installed; does not load it, which takes a while."""
    return bool(sys.modules.get("matplotlib", True)) and find_spec("matplotlib") is not None


def load() -> Any:
    """matplotlib, with what drawing needs of it. Raises MissingPackageError where it is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingPackageError("matplotlib", needed_for="plots") from error
    import matplotlib.backends.backend_agg
    import matplotlib.backends.backend_svg
    import matplotlib.figure

    return matplotlib


def laid_out(fill: Fill) -> Any:
    """A filled matplotlib Figure, to be saved under STYLE."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.transforms import Bbox

    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08)
    figure = Figure(layout=layout, dpi=DPI)
    fill(figure)
    layout.execute(figure)
    figure.set_layout_engine("none")  # once is enough for every format
    for axes in figure.get_axes():  # the solver's last digits are not the same each time
        axes.set_position(Bbox(axes.get_position(original=True).get_points().round(6)))
    return figure


def draw(comparison: Comparison) -> Any:
    """The plot as a matplotlib Figure, to be saved under STYLE."""
    return laid_out(lambda figure: _fill(figure, comparison))


def _saved(figure: Any, form: str) -> bytes:
    """The file's bytes, drawn by a canvas itself: savefig would draw everything twice."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.BytesIO()
    if form == "png":
        FigureCanvasAgg(figure).print_png(buffer, pil_kwargs={"compress_level": 4})
    elif form == "svg":
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    else:
        figure.savefig(buffer, format=form)
    return buffer.getvalue()


def _fill(figure: Any, comparison: Comparison) -> None:
    looks, titles = looks_of(comparison.sides), titles_of(comparison.sides)
    comparable = any(pair.fairness.verdict != "not_comparable" for pair in comparison.pairs)
    step_time, throughput, memory = panels(comparison.sides, looks, comparable=comparable)
    upper, lower = height_of(step_time.bars), max(height_of(memory.bars), LEAST_PANEL_INCHES + 0.6)
    headings = _headings(comparison)
    body = framed(figure, headings, keys_of(looks, titles), upper + lower)
    grid = body.add_gridspec(2, 2, height_ratios=(upper, lower))
    for place, panel in (((0, 0), step_time), ((0, 1), throughput), ((1, 0), memory)):
        bar_panel(body.add_subplot(grid[place]), panel)
    steps, spread = grid[1, 1].subgridspec(1, 2, width_ratios=(5, 1), wspace=0.02).subplots(sharey=True)
    _steps(steps, spread, comparison.sides, looks)


def _headings(comparison: Comparison) -> list[str]:
    """The title, then what it shows and how fair it is, in lines that fit the width."""
    said = []
    for pair in comparison.pairs:
        where = f"{words.model_title(pair.candidate.result.model)}: " if len(comparison.models) > 1 else ""
        if len(comparison.pairs) == 1:
            said.append(pair.fairness.sentence)
        if len(comparison.pairs) > 1 or pair.fairness.verdict != "not_comparable":
            said.append(f"{where}{words.headline(pair)}.")
    if len(said) > MOST_HEADINGS:
        said[MOST_HEADINGS - 1 :] = [f"… and {len(said) - MOST_HEADINGS + 1} more in the report"]
    lines = [wrapped for line in said for wrapped in textwrap.wrap(drawable(line), 150)]
    return [drawable(f"Training {' · '.join(titles_of(comparison.sides))}"), *lines]


def keys_of(looks: Mapping[str, Look], titles: Sequence[str]) -> list[Any]:
    """What the legend explains: a colour and hatch per side and, where there are several, a line style per model."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    sides = [
        Patch(facecolor=look.colour, hatch=look.hatch, edgecolor="white", label=_shortened(look.label, 48))
        for look in looks.values()
    ]
    lines = [
        Line2D([], [], color=INK, linestyle=LINE_STYLES[number % len(LINE_STYLES)], label=_shortened(title, 48))
        for number, title in enumerate(titles)
    ]
    return [*sides, *(lines if len(lines) > 1 else [])]


def framed(figure: Any, headings: Sequence[str], keys: list[Any], height: float) -> Any:
    """Set a figure's size, write headings and legend on top, and return what is left: `height` inches to draw in."""
    header = 0.5 + 0.2 * (len(headings) - 1) + 0.24 * math.ceil(len(keys) / LEGEND_COLUMNS)
    figure.set_size_inches(WIDTH_INCHES, header + height)
    top, body = figure.subfigures(2, 1, height_ratios=(header, height))
    _header(top, headings, keys, header)
    return body


def _header(strip: Any, headings: Sequence[str], keys: list[Any], height: float) -> None:
    y = 1 - 0.28 / height
    strip.text(0.012, y, headings[0], fontsize=13.5, fontweight="bold", va="center")
    for number, line in enumerate(headings[1:]):
        strip.text(0.012, y - (0.28 + 0.2 * number) / height, line, fontsize=9.5, va="center")
    strip.legend(
        handles=keys,
        loc="lower left",
        bbox_to_anchor=(0.005, 0.0),
        ncols=min(LEGEND_COLUMNS, len(keys)),
        frameon=False,
        handlelength=2.6,
        handleheight=1.1,
        borderaxespad=0.2,
        fontsize=9.5,
    )


@lru_cache(maxsize=1)
def _font() -> Any:
    from matplotlib.font_manager import findfont, get_font

    return get_font(findfont("DejaVu Sans"))


def drawable(text: str) -> str:
    """Harmless text in characters that matplotlib's own font has."""
    return "".join(c if _font().get_char_index(ord(c)) else "?" for c in one_line(text))


def _shortened(text: str, longest: int) -> str:
    line = drawable(text)
    return line if len(line) <= longest else line[: longest - 1] + "…"


def _folded(text: str) -> str:
    """A label in at most three short lines."""
    lines = textwrap.wrap(drawable(text), LABEL_WIDTH, break_long_words=True)
    return "\n".join(lines if len(lines) <= 3 else [*lines[:2], lines[2][: LABEL_WIDTH - 1] + "…"])


def height_of(bars: Sequence[Bar]) -> float:
    groups = len({bar.group for bar in bars})
    return max(LEAST_PANEL_INCHES, BAR_INCHES * (len(bars) + GROUP_GAP * groups) + 0.9)


def bar_panel(axes: Any, panel: Panel) -> None:
    """Horizontal bars, so that names of any length stand beside them; values are written at their ends."""
    bars = panel.bars
    axes.set_title(panel.title)
    axes.set_xlabel(panel.unit)
    if all(bar.value is None for bar in bars):
        say(axes, "No side has this figure")
        return
    groups = list(dict.fromkeys(bar.group for bar in bars))
    ordered = sorted(bars, key=lambda bar: groups.index(bar.group))
    places, place = [], 0.0
    for before, bar in zip([ordered[0], *ordered], ordered, strict=False):
        place += 1.0 + (GROUP_GAP if bar.group != before.group else 0.0)
        places.append(place)
    drawn = [bar.value if bar.value is not None and bar.value < DRAWABLE else 0.0 for bar in ordered]
    axes.barh(
        places,
        drawn,
        height=0.78,
        color=[bar.look.colour for bar in ordered],
        hatch=[bar.look.hatch for bar in ordered],
        edgecolor="white",
        linewidth=0.0,
    )
    ends = []
    for where, value, bar in zip(places, drawn, ordered, strict=True):
        end = value
        if bar.low is not None and bar.high is not None and bar.high < DRAWABLE:
            axes.errorbar(
                value, where, xerr=[[max(0.0, value - bar.low)], [max(0.0, bar.high - value)]],
                color=INK, capsize=3.5, linewidth=1.2,
            )  # fmt: skip
            end = max(value, bar.high)
        ends.append(end)
    reach = max(ends) or 1.0
    for where, end, bar in zip(places, ends, ordered, strict=True):
        axes.text(end + 0.012 * reach, where, bar.text, va="center", fontsize=8.5)
    longest = max(len(bar.text) for bar in ordered)
    axes.set_xlim(0, reach / (1 - min(0.6, max(0.23, TEXT_SHARE * longest))))  # room for the values
    slack = max(0.0, (LEAST_BARS - places[-1]) / 2)  # two bars do not fill a panel like walls
    axes.set_ylim(places[-1] + 0.6 + slack, places[0] - 0.6 - slack)
    if len(groups) == 1:
        axes.set_yticks(places, [_folded(bar.look.label) for bar in ordered])
    else:
        middles = [
            sum(members := [p for p, bar in zip(places, ordered, strict=True) if bar.group == group]) / len(members)
            for group in groups
        ]
        axes.set_yticks(middles, [_folded(group) for group in groups])
    axes.tick_params(axis="y", length=0)
    _ticks(axes.xaxis)
    axes.grid(axis="x", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)


def _ticks(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axis.set_major_locator(MaxNLocator(nbins=5))
    axis.set_major_formatter(StrMethodFormatter("{x:,.12g}"))


def _plain_ticks(axis: Any) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:,.12g}"))
    axis.set_minor_formatter(NullFormatter())


def say(axes: Any, sentence: str) -> None:
    axes.text(
        0.5, 0.5, "\n".join(textwrap.wrap(drawable(sentence), 48)), transform=axes.transAxes,
        ha="center", va="center", color=FAINT, fontsize=10,
    )  # fmt: skip
    axes.set_xticks([])
    axes.set_yticks([])


def _steps(axes: Any, spread: Any, sides: Sequence[Side], looks: dict[str, Look]) -> None:
    """Step time over the steps of every run, warm-up shaded, and the spread of the measured steps at the margin."""
    axes.set_title("Step time over steps")
    spread.set_axis_off()
    drawn = [(side, side_curves) for side in sides if (side_curves := _timed(side))]
    without = [side.label for side in sides if not _timed(side)]
    limits = _limits([curve for _, side_curves in drawn for curve in side_curves])
    if limits is None:
        say(axes, "No distribution: the results hold no step times, only means or rates")
        return
    titles = titles_of(sides)
    low, high, logarithmic = limits
    off_scale: list[float] = []
    for number, (side, side_curves) in enumerate(drawn):
        style = titles.index(words.model_title(side.result.model)) if len(titles) > 1 else number
        for curve in side_curves:
            off_scale += _curve(axes, curve, looks[side.label].colour, LINE_STYLES[style % len(LINE_STYLES)], high)
    _warmup(axes, drawn, looks)
    axes.set_ylim(low, high)
    if logarithmic:
        axes.set_yscale("log")
        _plain_ticks(axes.yaxis)
    axes.set_xlabel("optimizer step of the run (shaded: warm-up, not measured)")
    axes.set_ylabel("seconds" + (" (logarithmic)" if logarithmic else ""))
    axes.margins(x=0.01)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    notes = [f"▲ {len(off_scale)} off the scale, up to {words.seconds(max(off_scale))}"] if off_scale else []
    notes += [f"no step times: {', '.join(without)}"] if without else []
    if notes:
        axes.text(
            0.99, 0.985, "\n".join(_shortened(note, 60) for note in notes), transform=axes.transAxes,
            ha="right", va="top", fontsize=8, color=INK,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
        )  # fmt: skip
    _spread(spread, drawn, looks)


def _timed(side: Side) -> list[Curve]:
    return [curve for curve in curves(side) if np.isfinite(curve.seconds).any()]


def _curve(axes: Any, curve: Curve, colour: str, style: str, high: float) -> list[float]:
    """Draw one run, its unmeasured rows faint; the step times above the scale are marked and returned."""
    shown = thinned(curve.seconds, MOST_POINTS)
    step, seconds, measured = curve.step[shown], curve.seconds[shown], curve.measured[shown]
    marker = "o" if len(shown) < 2 else None
    axes.plot(step, np.where(measured, np.nan, seconds), color=colour, linewidth=1.0, alpha=0.35, marker="o", ms=2)
    axes.plot(
        step, np.where(measured, seconds, np.nan), color=colour, linestyle=style, linewidth=1.1, alpha=0.8,
        marker=marker, ms=4,
    )  # fmt: skip
    above = seconds > high
    axes.plot(
        step[above], np.full(above.sum(), 0.985), color=colour, marker="^", ms=5, linestyle="none",
        transform=axes.get_xaxis_transform(),
    )  # fmt: skip
    return [float(value) for value in seconds[above]]


def _limits(all_curves: Sequence[Curve]) -> tuple[float, float, bool] | None:
    """Bottom and top of the vertical axis, and whether it is logarithmic; None where there is nothing to draw.

    The scale is that of the measured steps: a first step of minutes would flatten everything else.
    """
    ranges = [found for curve in all_curves if (found := pace_range([curve])) is not None]
    if not ranges:
        seen = [curve.seconds[np.isfinite(curve.seconds)] for curve in all_curves]
        if not seen:
            return None
        ranges = [(float(seconds.min()), float(seconds.max())) for seconds in seen]
    typical = [
        float(np.nanmedian(curve.seconds[curve.measured] if curve.measured.any() else curve.seconds))
        for curve in all_curves
    ]
    low = min(low for low, _ in ranges)
    high = min(max(high for _, high in ranges), OUTLIER * max(typical))
    if max(typical) > LOG_SCALE_FROM * min(typical):
        return low / 1.3, high * 1.6, True
    slack = max(0.12 * (high - low), 0.01 * high)  # at least one percent: noise must not look like a mountain range
    return max(0.0, low - slack), high + 1.6 * slack, False


def _warmup(axes: Any, drawn: Sequence[tuple[Side, list[Curve]]], looks: dict[str, Look]) -> None:
    """Shade what is not measured at the start; in a side's own colour where sides differ."""
    ends = {looks[side.label]: max(curve.warmup_steps for curve in side_curves) for side, side_curves in drawn}
    first = min(int(curve.step[0]) for _, side_curves in drawn for curve in side_curves)
    alike = len(set(ends.values())) == 1
    for look, end in ends.items() if not alike else [(next(iter(ends)), next(iter(ends.values())))]:
        axes.axvspan(first - 0.5, end + 0.5, color=FAINT if alike else look.colour, alpha=0.13, linewidth=0)


def _spread(axes: Any, drawn: Sequence[tuple[Side, list[Curve]]], looks: dict[str, Look]) -> None:
    """Beside the curves, one mark per side: median, quartiles (thick) and 5 to 95 % (thin) of its measured steps."""
    for place, (side, side_curves) in enumerate(drawn):
        seconds = np.concatenate([curve.seconds[curve.measured & np.isfinite(curve.seconds)] for curve in side_curves])
        if not len(seconds):
            continue
        colour = looks[side.label].colour
        lowest, lower, median, upper, highest = np.percentile(seconds, (5, 25, 50, 75, 95))
        axes.plot([place, place], [lowest, highest], color=colour, linewidth=1.3)
        axes.plot([place, place], [lower, upper], color=colour, linewidth=6, solid_capstyle="butt")
        axes.plot([place], [median], color="white", marker="o", ms=4.5, markeredgecolor=colour)
    axes.set_xlim(-1, max(2, len(drawn)))
    axes.set_title("median, 25–75,\n5–95 %", fontsize=7.5, fontweight="normal", loc="center")


def render_history(all_series: Sequence[Series], formats: Sequence[str] = ("png", "svg")) -> dict[str, bytes]:
    """One panel per series: the figure of each benchmark with its interval, and a mark where a change is shown.

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
            percent = f"{100 * entry.change:+.1f} %".replace("-", "\N{MINUS SIGN}")
            axes.text(
                place - 0.45,
                0.97,
                percent,
                color=COLOURS[1],
                fontsize=8,
                va="top",
                transform=axes.get_xaxis_transform(),
            )
    every = max(1, len(places) // MOST_DATES)
    axes.set_xticks(places[::every], [(entry.at or "?")[:10] for entry in series.entries][::every])
    axes.set_title(_shortened(series.label, 110))
    axes.set_ylabel(drawable(series.metric.replace("_", " ")))
    axes.margins(y=0.25)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)


def picture(draw: Fill, *, width: float = WIDTH_INCHES, height: float = 5.0) -> bytes:
    """A PNG of whatever `draw` puts on a matplotlib Figure, in the style of all plots.

    Raises MissingPackageError where matplotlib is not installed.
    """

    def fill(figure: Any) -> None:
        figure.set_size_inches(width, height)
        draw(figure)

    return drawn(fill, ("png",))["png"]
