"""The difference of two traces as a waterfall, and the ledger of one trace as bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorprimat.reports import ledger as report
from tensorprimat.reports.plots import canvas
from tensorprimat.reports.plots.canvas import COLOURS, FAINT, INK
from tensorprimat.traces.classes import class_title
from tensorprimat.traces.difference import LedgerDifference
from tensorprimat.traces.ledger import Ledger

_ROW_INCHES = 0.3
_MOST_BARS = 14  # of a waterfall; the rest is one bar
_LEAST_SHARE = 0.002  # of a step, of a class with a bar of its own in a ledger
_FAR = 0.5  # of the longest bar: if all ends lie above, the axis begins there and not at zero
_LABEL_GAP = 0.006  # of the axis, between a bar and its number
_SIDES, _SLOWER, _FASTER = COLOURS[0], COLOURS[1], COLOURS[2]


def waterfall(found: LedgerDifference, formats: Sequence[str] = ("png",)) -> dict[str, bytes]:
    """Return files of a difference: the step of A, what each class adds or saves, and the step of B.

    Raises MissingPackageError where matplotlib is not installed.
    """
    parts = report.contributions(found, _MOST_BARS)
    one, other = 1000 * (found.total.baseline or 0.0), 1000 * (found.total.candidate or 0.0)
    bars = [("step of A", 0.0, one, _SIDES)]
    level = one
    for title, seconds in parts:
        bars.append((title, level, level + 1000 * seconds, _SLOWER if seconds > 0 else _FASTER))
        level += 1000 * seconds
    bars.append(("step of B", 0.0, other, _SIDES))
    sides = [f"A: {report.heading(found.baseline)}.", f"B: {report.heading(found.candidate)}."]
    notices = (f"{'Note' if one.severity == 'info' else 'Warning'}: {one}." for one in found.notices)
    sentences = [f"{report.sentence(found)}.", *sides, *notices]

    def fill(figure: Any) -> None:
        axes = canvas.framed(figure, "Why is it faster?", sentences, 0.8 + _ROW_INCHES * len(bars)).subplots()
        ends = [end for _, start, end, _ in bars[1:-1] for end in (start, end)] + [one, other]
        span = max(ends) - min(ends)
        left = min(ends) - 0.25 * span if min(ends) > _FAR * max(ends) and span > _LEAST_SHARE * one else 0.0
        _draw(axes, [(title, max(start, left), end, colour) for title, start, end, colour in bars], left, max(ends))
        for place, (_, _, end, _) in enumerate(bars[:-1]):
            axes.plot((end, end), (place, place + 1), color=FAINT, linewidth=0.8)
        for place, value in ((0, one), (len(bars) - 1, other)):
            _write(axes, report.milliseconds_text(one / 1000)(value / 1000), value, place)
        for place, (_, seconds) in enumerate(parts, start=1):
            _write(axes, report.milliseconds_text(one / 1000, signed=True)(seconds), max(bars[place][1:3]), place)
        axes.set_xlabel("ms a step" + ("" if left == 0 else "; the axis does not begin at zero"))

    return canvas.drawn(fill, formats)


def ledger_bars(found: Ledger, formats: Sequence[str] = ("png",)) -> dict[str, bytes]:
    """Return files of a ledger: a bar for each class. Raises MissingPackageError where matplotlib is not installed."""
    bars = [
        (class_title(name), 0.0, 1000 * seconds, FAINT if name.startswith(("gap", "data_wait")) else _SIDES)
        for name, seconds in found.classes.items()
        if seconds >= _LEAST_SHARE * found.step_seconds
    ]

    def fill(figure: Any) -> None:
        text = report.milliseconds_text(found.step_seconds)
        sentences = [f"{report.heading(found)}: {text(found.step_seconds)} ms a step."]
        axes = canvas.framed(figure, "Ledger of a step", sentences, 0.8 + _ROW_INCHES * len(bars)).subplots()
        _draw(axes, bars, 0.0, max(end for _, _, end, _ in bars))
        for place, (_, _, end, _) in enumerate(bars):
            _write(axes, text(end / 1000), end, place)
        axes.set_xlabel("ms a step")

    return canvas.drawn(fill, formats)


def page(picture: bytes) -> str:
    """Return an HTML page that shows a picture without other files. picture: SVG."""
    drawn = picture.decode()
    head = '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Why is it faster?</title></head>'
    return f"{head}<body>{drawn[drawn.index('<svg') :]}</body></html>\n"


def _draw(axes: Any, bars: Sequence[tuple[str, float, float, str]], left: float, right: float) -> None:
    """Draw bars from the top. bars: title, ends and colour of each."""
    for place, (_, start, end, colour) in enumerate(bars):
        axes.barh(place, end - start, left=start, height=0.66, color=colour)
    axes.set_yticks(range(len(bars)), [canvas.shortened(title, 48) for title, *_ in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(left, right + 0.1 * (right - left))
    axes.grid(axis="x")
    canvas.few_ticks(axes.xaxis)


def _write(axes: Any, text: str, end: float, place: int) -> None:
    """Write a number to the right of a bar."""
    low, high = axes.get_xlim()
    shown = text.replace("-", "\N{MINUS SIGN}")
    axes.text(end + _LABEL_GAP * (high - low), place, shown, va="center", color=INK, fontsize=8.5)
