"""The style of every plot: colours, sizes and settings of matplotlib, headings and legend, texts that fit, files.

The colours are those of Okabe and Ito, distinct for every kind of colour vision; hatches, markers and line styles
repeat the distinction for print without colour. Plots use matplotlib's Figure without pyplot, so nothing needs a
display and importing stays cheap.
"""

from __future__ import annotations

import io
import math
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from tensorprimat.core.errors import MissingPackageError
from tensorprimat.core.quantities import in_plot
from tensorprimat.system.safe_text import middle_cut, one_line

# Okabe & Ito, "Color Universal Design" (2008), without yellow, which is too light on white paper
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "ooo", "++")
LINE_STYLES = ("-", "--", ":", "-.")
MARKERS = "osD^vP*X"
INK, FAINT = "#222222", "#8a8a8a"

DPI = 150
WIDTH_INCHES = 13.0
LEAST_PANEL_INCHES = 3.1
LEGEND_COLUMNS = 3
LINE_CHARACTERS = 165  # of a line below the title
LONG_TICKS = 1e7  # numbers from which six ticks touch one another
MOST_POINTS = 3000  # per curve: more than a panel has pixels

STYLE = {
    "font.size": 9.0,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,  # "1.00004" on an axis, not "0.00004" and "+1" below it
    "grid.color": "#dddddd",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "text.color": INK,
    "text.parse_math": False,  # a "$" in a device name is a dollar
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "tensorprimat",  # the same comparison gives the same file
}

Fill = Callable[[Any], None]
"""Function that draws on an empty matplotlib Figure and sets its size."""


def drawn(fill: Fill, formats: Sequence[str] = ("png", "svg")) -> dict[str, bytes]:
    """Return the files of a figure by format, in the style of all plots.

    Raises MissingPackageError where matplotlib is not installed.
    """
    matplotlib = load_matplotlib()
    with matplotlib.rc_context(STYLE):
        figure = laid_out(fill)
        return {form: _saved(figure, form) for form in formats}


def picture(draw: Fill, form: str = "png", *, height: float = 5.0) -> bytes:
    """Return a picture of whatever `draw` puts on a matplotlib Figure, in the style of all plots. form: png or svg.

    Raises MissingPackageError where matplotlib is not installed.
    """

    def fill(figure: Any) -> None:
        figure.set_size_inches(WIDTH_INCHES, height)
        draw(figure)

    return drawn(fill, (form,))[form]


def can_draw() -> bool:
    """Return True if matplotlib is installed, without importing it, which takes a while."""
    return bool(sys.modules.get("matplotlib", True)) and find_spec("matplotlib") is not None


def load_matplotlib() -> Any:
    """Import matplotlib with the modules that drawing needs. Raises MissingPackageError if it is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingPackageError("matplotlib", needed_for="plots") from error
    import matplotlib.backends.backend_agg
    import matplotlib.backends.backend_svg
    import matplotlib.figure

    return matplotlib


def laid_out(fill: Fill) -> Any:
    """Return a filled matplotlib Figure, to be saved under STYLE."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.transforms import Bbox

    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08)
    figure = Figure(layout=layout, dpi=DPI)
    fill(figure)
    layout.execute(figure)
    figure.set_layout_engine("none")  # once is enough for every format
    for axes in figure.get_axes():  # rounds positions, whose last digits vary from call to call
        axes.set_position(Bbox(axes.get_position(original=True).get_points().round(6)))
    return figure


def _saved(figure: Any, form: str) -> bytes:
    """Return the file's bytes, drawn by a canvas itself: savefig would draw everything twice."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.BytesIO()
    if form == "png":
        FigureCanvasAgg(figure).print_png(buffer, pil_kwargs={"compress_level": 4})
    elif form == "svg":
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    else:  # a Python program may draw a PDF
        figure.savefig(buffer, format=form)
    return buffer.getvalue()


def keys_of(sides: Sequence[tuple[str, str, str]], titles: Sequence[str]) -> list[Any]:
    """Return the keys of a legend: one per side and, for several titles of models, one line per title.

    sides: label, colour and hatch of each.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    patches = [
        Patch(facecolor=colour, hatch=hatch, edgecolor="white", label=shortened(label, 48))
        for label, colour, hatch in sides
    ]
    lines = [
        Line2D([], [], color=INK, linestyle=LINE_STYLES[number % len(LINE_STYLES)], label=shortened(title, 48))
        for number, title in enumerate(titles)
    ]
    return [*patches, *(lines if len(lines) > 1 else [])]


def framed(figure: Any, title: str, sentences: Sequence[str], height: float, *, keys: Sequence[Any] = ()) -> Any:
    """Set a figure's size, write title, sentences and legend on top, and return the rest, `height` inches high."""
    lines = [line for sentence in sentences for line in textwrap.wrap(drawable(sentence), LINE_CHARACTERS)]
    header = 0.5 + 0.2 * len(lines) + 0.24 * math.ceil(len(keys) / LEGEND_COLUMNS)
    figure.set_size_inches(WIDTH_INCHES, header + height)
    top, body = figure.subfigures(2, 1, height_ratios=(header, height))
    y = 1 - 0.28 / header
    top.text(0.012, y, drawable(title), fontsize=13.5, fontweight="bold", va="center")
    for number, line in enumerate(lines):
        top.text(0.012, y - (0.28 + 0.2 * number) / header, line, fontsize=9.5, va="center")
    if keys:
        top.legend(
            handles=keys,
            loc="lower left",
            bbox_to_anchor=(0.005, 0.0),
            ncols=min(LEGEND_COLUMNS, len(keys)),
            handlelength=2.6,
            handleheight=1.1,
            borderaxespad=0.2,
            fontsize=9.5,
        )
    return body


@lru_cache(maxsize=1)
def _font() -> Any:
    from matplotlib.font_manager import findfont, get_font

    return get_font(findfont("DejaVu Sans"))


def drawable(text: str) -> str:
    """Return harmless text in characters that matplotlib's own font has; others become "?"."""
    return "".join(c if _font().get_char_index(ord(c)) else "?" for c in one_line(text))


def shortened(text: str, longest: int) -> str:
    """Return the text, drawable, cut in its middle to so many characters."""
    return middle_cut(drawable(text), longest)


def folded(text: str, width: int, lines: int) -> str:
    """Return a label in at most so many lines of a width, cut in its middle where it is longer."""
    line = drawable(text)
    for longest in range(max(len(line), width), width - 1, -1):
        wrapped = textwrap.wrap(middle_cut(line, longest), width, break_long_words=True)
        if len(wrapped) <= lines:
            return "\n".join(wrapped)
    return middle_cut(line, width)


def write_sentence(axes: Any, sentence: str) -> None:
    """Write a sentence in place of a panel."""
    axes.text(
        0.5, 0.5, "\n".join(textwrap.wrap(drawable(sentence), 48)), transform=axes.transAxes,
        ha="center", va="center", color=FAINT, fontsize=10,
    )  # fmt: skip
    axes.set_xticks([])
    axes.set_yticks([])


def few_ticks(axis: Any) -> None:
    """Set at most six ticks, fewer where their numbers are long, with thousands separators."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=5 if max(map(abs, axis.get_view_interval())) < LONG_TICKS else 3))
    axis.set_major_formatter(_tick)


def plain_log_ticks(axis: Any) -> None:
    """Set the ticks of a logarithmic axis to plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(_tick)
    axis.set_minor_formatter(NullFormatter())


def _tick(value: float, _position: int | None = None) -> str:
    return in_plot(value, "tick").replace("-", "\N{MINUS SIGN}")
