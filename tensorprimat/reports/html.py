"""The pages comparison_report.html and enhanced_report.html: one offline file each, for screen and screen reader.

Structure is in report.html (jinja2, autoescape), look in report.css, behaviour in report*.js; all are
embedded. A content security policy allows this very script and nothing else, so text from a log can never become code.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from tensorprimat.analysis.levels import LEVELS
from tensorprimat.analysis.records import Comparison, Pair, Side
from tensorprimat.core import quantities
from tensorprimat.core.quantities import PLOT_DIGITS, PLOT_UNITS, to_digits
from tensorprimat.core.version import __version__
from tensorprimat.reports import formatting
from tensorprimat.reports.bars import Bar, BarStyle, Panel, all_comparable, looks_of, metric_panels, panels
from tensorprimat.reports.page import Page, no_pair_sentence, page_of
from tensorprimat.reports.sections import COMPARISON, Report
from tensorprimat.reports.series import StepCurve, curves, has_course, thinned
from tensorprimat.reports.tables import Table
from tensorprimat.system.safe_text import one_line, page_note, page_text

_HERE = Path(__file__).parent
SCRIPTS = ("report_plot.js", "report_sort.js", "report.js")
_MOST_POINTS = 100_000  # of all curves together: about 3 MB of the file
_LEAST_POINTS, MOST_OF_ONE = 400, 20_000  # of one curve: no screen is wider
_KINDS = {"faster": "up", "slower": "down", "too_few_runs": "unsure", "unsettled": "unsure", "not_comparable": "unsure"}
"""Verdict → class in report.css. Every page contains all classes, so no class name may state a winner."""


def render(comparison: Comparison, report: Report = COMPARISON) -> str:
    looks = looks_of(comparison.sides)
    page = page_of(comparison, report)
    script, script_hash = embedded_script(*SCRIPTS)
    return _environment().get_template("report.html").render(
        page=page,
        comparison=comparison,
        report=report,
        why=Markup(comparison.why) if comparison.why else None,  # drawn by matplotlib, which escapes texts
        panels=[_panels(model.part, looks) for model in page.models],
        curves=htmlsafe_json_dumps(_all_curves(comparison, looks), separators=(",", ":"), allow_nan=False),
        most_warnings=_MOST_WARNINGS,
        no_pair=no_pair_sentence,
        answers=page.answers or [formatting.Headline(finding=no_pair_sentence(comparison.sides).removesuffix("."))],
        kind=_kind(page),
        kind_of=_kind_of,
        levels=LEVELS,
        looks=looks,
        sources={},  # terms and source of a figure → their number on the page; figures that share both share a number
        version=__version__,
        formatting=formatting,
        quantities=quantities,
        style=embedded_style() + Markup(_level_colours()),
        script=script,
        script_hash=script_hash,
    )  # fmt: skip


CURVES_BELOW = ("loss", "power", "clock", "temperature")
"""Curves below the step time, each drawn where a run has the values."""
_MOST_WARNINGS = 5  # shown at once; the others are folded


def _kind(page: Page) -> str:
    """Return the class for the verdict of the mean over models, else of the only headline; "" for several."""
    if page.comparison.mean_ratio is not None:
        return _KINDS.get(page.comparison.mean_ratio.verdict, "")
    return _kind_of(page.answers[0].pairs[0]) if len(page.answers) == 1 else ""


def _kind_of(pair: Pair) -> str:
    return _KINDS.get(pair.ratio.verdict if pair.ratio is not None else "not_comparable", "")


def _level_colours() -> str:
    """Return one rule per verdict level: its colour, mixed towards the ink of a dark page so that it stays readable."""
    return "".join(
        f".level-{level.name} {{ color: {level.colour}; "
        f"color: light-dark({level.colour}, color-mix(in srgb, {level.colour} 55%, white)); }}\n"
        for level in LEVELS.values()
    )


def embedded_script(*names: str) -> tuple[Markup, str]:
    """Return scripts as one, and the hash that a content security policy allows."""
    script = "".join((_HERE / name).read_text(encoding="utf-8") for name in names)
    return Markup(script), base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def embedded_style() -> Markup:
    """Return the look that every page has."""
    return Markup((_HERE / "report.css").read_text(encoding="utf-8"))


def history_page(machines: Sequence[Any], metrics: str) -> str:
    """Return the page of a history (reports/history), whose charts need no script."""
    template = _environment().get_template("history.html")
    return template.render(machines=machines, metrics=metrics, style=embedded_style(), version=__version__)


def tables_page(tables: Sequence[Table], *, heading: str) -> str:
    """Return tables as one page without external files; they can be sorted."""
    script, script_hash = embedded_script("report_sort.js")
    template = _environment().get_template("tables.html")
    return template.render(
        heading=heading, tables=tables, style=embedded_style(), script=script, script_hash=script_hash
    )


@cache  # with its compiled templates
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=page_text,
    )
    environment.filters["note"] = page_note
    return environment


def _panels(of_model: Comparison, looks: dict[str, BarStyle]) -> list[dict[str, Any]]:
    """Return the bars of one model; a panel of several groups fills a row of its own, so it comes last."""
    sides, pairs = of_model.sides, of_model.pairs
    comparable, same_work = all_comparable(pairs), all(pair.fairness.level.same_work for pair in pairs)
    every = (
        *panels(sides, looks, comparable=comparable, same_work=same_work),
        *metric_panels(sides, looks, comparable=comparable),
    )
    return sorted(map(_scaled, every), key=lambda panel: len(panel["groups"]) > 1)


def _scaled(panel: Panel) -> dict[str, Any]:
    """Return a panel with the lengths of its bars in percent of the longest."""
    ends = [end for bar in panel.bars for end in (bar.value, bar.high) if end is not None and math.isfinite(end)]
    longest = max(ends, default=0.0)

    def share(value: float | None) -> float:
        return round(100 * value / longest, 2) if value is not None and longest > 0 else 0.0

    def scaled(bar: Bar) -> dict[str, Any]:
        whisker = None if bar.low is None or bar.high is None else (share(bar.low), share(bar.high - bar.low))
        mark = None if bar.mark is None else share(bar.mark)
        return {"bar": bar, "length": share(bar.value), "whisker": whisker, "mark": mark}

    groups = list(dict.fromkeys(bar.group for bar in panel.bars))
    return {
        "title": panel.title,
        "unit": panel.unit,
        "groups": [
            {"name": group, "bars": [scaled(bar) for bar in panel.bars if bar.group == group]} for group in groups
        ],
    }


def _all_curves(comparison: Comparison, looks: dict[str, BarStyle]) -> dict[str, Any]:
    """Return the data of the interactive plots: every run of every side of every model, thinned to fit the file."""
    every = ([(side, curves(side)) for side in part.sides] for part in comparison.by_model)
    drawn = [
        of_model if has_course(curve for _, of_side in of_model for curve in of_side) else [] for of_model in every
    ]
    number = sum(len(side_curves) for of_model in drawn for _, side_curves in of_model)
    limit = min(MOST_OF_ONE, max(_LEAST_POINTS, _MOST_POINTS // max(1, number)))
    return {
        "digits": PLOT_DIGITS,
        "units": PLOT_UNITS,
        "sides": [look.label for look in looks.values()],
        "models": [
            [
                _curve(looks[side.label].number, curve, limit, several=len(side_curves) > 1, source=_log_of(side))
                for side, side_curves in of_model
                for curve in side_curves
            ]
            for of_model in drawn
        ],
    }


def _log_of(side: Side) -> str | None:
    sources = side.result.provenance.sources
    return sources[0].file if len(sources) == 1 else None


def _curve(side: int, curve: StepCurve, limit: int, *, several: bool, source: str | None) -> dict[str, Any]:
    """Return one run as JSON; an array that has no values, or that the page can derive from another, is null."""
    shown = np.union1d(thinned(curve.seconds, limit // 2), thinned(curve.loss, limit // 2))
    step, index, line = curve.step[shown], curve.index[shown], curve.line[shown]
    return {
        "side": side,
        "run": curve.run + 1 if several else None,
        "step": None if np.array_equal(step, np.arange(1, len(step) + 1)) else step.tolist(),
        "index": None if np.array_equal(index, step) else index.tolist(),
        "line": line.tolist() if (line >= 0).any() else None,
        "file": one_line(source) if source else None,
        "seconds": _numbers(curve.seconds[shown]),
        **{
            name: _numbers(values[shown]) if np.isfinite(values).any() else None
            for name in CURVES_BELOW
            for values in (getattr(curve, name),)
        },
        "unmeasured": np.flatnonzero(~curve.measured[shown]).tolist(),
        "warmup": curve.warmup_steps,
        "rows": len(curve.step),
        "shown": len(shown),
    }


def _numbers(values: np.ndarray) -> list[float | None]:
    return [to_digits(value, PLOT_DIGITS["point"]) if math.isfinite(value) else None for value in values.tolist()]
