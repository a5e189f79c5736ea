"""Ledgers of traces and their difference: tables, the sentence, and JSON."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from tensorprimat.core import quantities
from tensorprimat.core.quantities import UNMEASURED, percent, rounded, with_prefix
from tensorprimat.reports import harmless
from tensorprimat.reports.console import fitting, paragraph
from tensorprimat.reports.tables import Table, TableCell, figure_cell, headed, text_cell
from tensorprimat.system.safe_text import middle_cut
from tensorprimat.traces.classes import class_title, place_of
from tensorprimat.traces.difference import CLOCK, STEP_CONFIDENCE, LedgerChange, LedgerDifference, by_group
from tensorprimat.traces.ledger import Ledger
from tensorprimat.traces.patterns import patterns_of
from tensorprimat.traces.work import Rate

_SIDE_NAMES = "AB"
_STEPS_BY = {
    "marks": "by the profiler's marks",
    "optimizer": "by the optimizer's kernels",
    "repetition": "by repetition",
    "whole": "as the whole trace",
}
_PROFILED = (
    "A profiler slows a training down: these times explain a speed, and are none. Compare speeds of runs without it."
)
_LEAST_SHARE = 0.0005  # of a step or of a difference, of a class that is shown
_LEAST_RATED = 0.02  # of a step, of a class whose missing rate is worth a sentence
_RATED = ("products", "recomputed_products", "attention_forward", "attention_backward", "recomputed_attention")
_MOST_KERNELS = 2  # shown below a class of the difference
_LEAST_EXPLAINED = 0.05  # of the difference of the steps, of a class with its kernels
_LEAST_KERNEL = 0.1  # of the difference of a class, of a kernel that is shown below it
_KERNEL_CHARACTERS = 34  # of a kernel's name, so that the table fits into 80 columns


def milliseconds_text(step: float, *, signed: bool = False) -> Callable[[float | None], str]:
    """Return a function that writes seconds as milliseconds, with the decimals that a step of this length needs.

    >>> milliseconds_text(0.97)(0.0465), milliseconds_text(0.004)(0.00017)
    ('46.5', '0.170')
    >>> milliseconds_text(0.97, signed=True)(0.0646), milliseconds_text(0.97, signed=True)(-0.00001)
    ('+64.6', '0.0')
    """
    decimals = min(max(3 - math.floor(math.log10(1000 * step)), 1), 4) if step > 0 else 1

    def text(value: float | None) -> str:
        if value is None:
            return UNMEASURED
        shown = quantities.fixed(abs(1000 * value) if signed else 1000 * value, decimals)
        return (("-" if value < 0 else "+") if signed and float(shown.replace(",", "")) else "") + shown

    return text


def heading(ledger: Ledger) -> str:
    """Return what a ledger is of."""
    trace = ledger.trace
    steps = quantities.counted(len(ledger.by_step), "step")
    rank = "" if trace.rank is None else f", rank {trace.rank}"
    parts = (
        trace.device or "unknown device",
        f"{os.path.basename(trace.path)}{rank}",
        f"{steps} {_STEPS_BY[ledger.steps.by]}",
    )
    return " · ".join(parts)


def rate_text(rate: Rate | None) -> str:
    """Return a rate with the work of a step and the peak of the device.

    >>> rate_text(Rate(amount=112e9, per_second=2.4e12, peak=4.8e12, unit="B"))
    '112 GB, 2.4 of 4.8 TB/s'
    """
    if rate is None:
        return ""
    with_unit = with_prefix(rate.unit)
    work = f"{with_unit(quantities.to_digits(rate.amount, 3))}, "
    shown = f"{with_unit(quantities.to_digits(rate.per_second, 3))}/s"
    if rate.peak is None:
        return work + shown
    peak = f"{with_unit(quantities.to_digits(rate.peak, 4))}/s"
    value, _, unit = shown.partition(" ")
    return f"{work}{value if peak.endswith(unit) else shown} of {peak}{_of_other_bounds(rate)}"


def _of_other_bounds(rate: Rate) -> str:
    """Return the shares of the peak at the clock of the run and of the preflight's rate, in brackets, or ""."""
    bounds = {"at its clock": rate.peak_at_clock, "of its preflight": rate.best}
    shares = [f"{percent(rate.per_second / bound, 0)} {name}" for name, bound in bounds.items() if bound]
    return f" ({', '.join(shares)})" if shares else ""


def ledger_table(ledger: Ledger, rates: Mapping[str, Rate]) -> Table:
    """Return the classes of a step with their time, share, launches and rate."""
    shown = {name: time for name, time in ledger.classes.items() if time >= _LEAST_SHARE * ledger.step_seconds}
    in_milliseconds = milliseconds_text(ledger.step_seconds)
    rows: list[tuple[TableCell, ...]] = [
        (
            text_cell(class_title(name)), figure_cell(time, in_milliseconds),
            figure_cell(time / ledger.step_seconds, lambda share: percent(share, 1)),
            TableCell(text=quantities.count(ledger.launches(name)) if name in ledger.items else ""),
            text_cell(rate_text(rates.get(name))),
        )
        for name, time in shown.items()
    ]  # fmt: skip
    rest = ledger.step_seconds - sum(shown.values())
    if len(shown) < len(ledger.classes):
        rows.append((text_cell("all others"), figure_cell(rest, in_milliseconds), *[text_cell("")] * 3))
    rows.append((text_cell("step"), figure_cell(ledger.step_seconds, in_milliseconds), *[text_cell("")] * 3))
    columns = headed(("class", "ms a step", "share", "launches", "work and rate"), words=("class", "work and rate"))
    if not shown.keys() & rates.keys():
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Table(key="ledger", title="Ledger of a step", columns=columns, rows=tuple(rows), sortable=False)


def difference_table(difference: LedgerDifference) -> Table:
    """Return what each class contributes to the difference, with the kernels that matter below it."""
    step = difference.total.baseline or 0.0
    rows: list[tuple[TableCell, ...]] = [_row("step of A", difference.total, step, only=0)]
    hidden = 0.0
    for row in difference.rows:
        if max(row.baseline or 0.0, row.candidate or 0.0, abs(row.difference)) < _LEAST_SHARE * step:
            hidden += row.difference
            continue
        rows.append(_row(_row_title(row), row, step))
        if row.is_shown and abs(row.difference) >= _LEAST_EXPLAINED * abs(difference.total.difference):
            rows += _kernels(difference, row)
    if hidden:
        others = figure_cell(hidden, milliseconds_text(step, signed=True))
        rows.append((text_cell("all others"), *[text_cell("")] * 2, others, text_cell("")))
    rows.append(_row("step of B", difference.total, step, only=1))
    level = f"{quantities.confidence_level(STEP_CONFIDENCE)} interval"
    columns = headed(("class", "A, ms", "B, ms", "B − A, ms", level), words=("class", level))
    return Table(key="difference", title="Difference of a step", columns=columns, rows=tuple(rows), sortable=False)


def rates_table(rates: Sequence[Mapping[str, Rate]]) -> Table | None:
    """Return the work of classes and the rate of each side; None without any rate."""
    rows = []
    for name in sorted({**rates[0], **rates[1]}, key=lambda name: (place_of(name), name)):
        both = [side.get(name) for side in rates]
        amounts = [with_prefix(rate.unit)(quantities.to_digits(rate.amount, 3)) for rate in both if rate]
        texts = [
            ""
            if rate is None
            else f"{with_prefix(rate.unit)(quantities.to_digits(rate.per_second, 3))}/s"
            + ("" if rate.peak is None else f", {percent(rate.per_second / rate.peak, 0)}{_of_other_bounds(rate)}")
            for rate in both
        ]
        work = quantities.listed(dict.fromkeys(amounts))
        rows.append((text_cell(class_title(name)), text_cell(work), *map(text_cell, texts)))
    headings = ("class", "work of a step", "A, of its peak", "B")
    columns = headed(headings, words=headings)
    return Table(key="rates", title="Rates", columns=columns, rows=tuple(rows), sortable=False) if rows else None


def _row(title: str, row: LedgerChange, step: float, only: int | None = None) -> tuple[TableCell, ...]:
    """Return the cells of a row. step: seconds of a step of A; only: the side of a row at an end of the table."""
    sides = [row.baseline, row.candidate]
    text = milliseconds_text(step)
    shown = [figure_cell(value, text) if only in (None, place) and value is not None else text_cell("")
             for place, value in enumerate(sides)]  # fmt: skip
    if only == 0:
        return (text_cell(title), *shown, text_cell(""), text_cell(""))
    interval = text_cell("")
    if row.low is not None and row.high is not None:
        interval = TableCell(text=_interval(row, step) if row.is_shown else "~")
    return (text_cell(title), *shown, figure_cell(row.difference, milliseconds_text(step, signed=True)), interval)


def _kernels(difference: LedgerDifference, row: LedgerChange) -> list[tuple[TableCell, ...]]:
    """Return the kernels that contribute most to the difference of a class."""
    times = [
        {item.name: item.seconds * factor for item in side.items.get(row.name, ())}
        for side, factor in ((difference.baseline, 1.0), (difference.candidate, difference.scale))
    ]
    changes = {name: times[1].get(name, 0.0) - times[0].get(name, 0.0) for name in {**times[0], **times[1]}}
    step = difference.total.baseline or 0.0
    text = milliseconds_text(step)
    largest = sorted(changes, key=lambda name: -abs(changes[name]))[:_MOST_KERNELS]
    return [
        (
            text_cell(f"· {middle_cut(name, _KERNEL_CHARACTERS)}"),
            *(figure_cell(side.get(name), text) if name in side else text_cell("") for side in times),
            figure_cell(changes[name], milliseconds_text(step, signed=True)), text_cell(""),
        )
        for name in largest
        if abs(changes[name]) >= _LEAST_KERNEL * abs(row.difference) and len(changes) > 1
    ]  # fmt: skip


def sentence(difference: LedgerDifference) -> str:
    """Return which side is faster, by how much, and what the difference consists of.

    Contributions that the steps do not show are part of the rest.
    """
    total = difference.total
    if not total.is_shown:
        return f"The steps of A and B show no difference: {_interval(total, total.baseline or 0.0)} ms a step"
    sign = -1 if total.difference < 0 else 1
    word, other = ("faster", "slower") if sign < 0 else ("slower", "faster")
    shown = by_group({row.name: row.difference for row in difference.rows if row.is_shown})
    named = {name: value for name, value in list(shown.items())[:4] if abs(value) >= 0.05 * abs(total.difference)}
    parts = [
        f"{_GROUP_TITLES.get(name) or class_title(name)} {_absolute(value)}{'' if value * sign > 0 else f' {other}'}"
        for name, value in named.items()
    ]
    rest = total.difference - sum(named.values())
    if abs(rest) >= _LEAST_SHARE * abs(total.difference):
        parts.append(f"rest {_absolute(rest)}{'' if rest * sign >= 0 else f' {other}'}")
    return f"B is {_absolute(total.difference)} {word} a step: {', '.join(parts)}"


_GROUP_TITLES = {"products": "products", "attention": "attention", "recomputed work": "recomputed work",
                 "gaps": "gaps", "clock": "clock of the GPU"}  # fmt: skip


def _interval(row: LedgerChange, step: float) -> str:
    text = milliseconds_text(step, signed=True)
    return f"{text(row.low)} to {text(row.high)}"


def contributions(difference: LedgerDifference, most: int) -> list[tuple[str, float]]:
    """Return title and seconds of the classes that contribute most, in the order of the ledger, and of all others."""
    text = milliseconds_text(difference.total.baseline or 0.0)
    zero = text(0.0)
    rows = [row for row in difference.rows if text(abs(row.difference)) != zero]
    largest = sorted(rows, key=lambda row: -abs(row.difference))[:most]
    shown = [row for row in rows if row in largest]
    parts = [(_row_title(row), row.difference) for row in shown]
    rest = difference.total.difference - sum(row.difference for row in shown)
    return parts if text(abs(rest)) == zero else [*parts, ("all others", rest)]


def _row_title(row: LedgerChange) -> str:
    return "clock of the GPU" if row.name == CLOCK else class_title(row.name)


def _absolute(value: float) -> str:
    return f"{quantities.significant(1000 * abs(value), 3)} ms"


def document(
    ledgers: Sequence[Ledger], rates: Sequence[Mapping[str, Rate]], found: LedgerDifference | None
) -> dict[str, Any]:
    """Return the JSON object of one or two sides and their difference."""
    return {
        "sides": [_side(ledger, of_side) for ledger, of_side in zip(ledgers, rates, strict=True)],
        "difference": {row.name: rounded(row.difference) for row in found.rows} if found else None,
        **({"sentence": sentence(found), "intervals": {
            row.name: [rounded(row.low), rounded(row.high)] for row in (*found.rows, found.total)
        }, "scale": rounded(found.scale), "notices": list(map(str, found.notices))} if found else {}),
    }  # fmt: skip


def _side(ledger: Ledger, rates: Mapping[str, Rate]) -> dict[str, Any]:
    return {
        "file": ledger.trace.path, "device": ledger.trace.device, "rank": ledger.trace.rank,
        "steps": len(ledger.by_step), "steps_by": ledger.steps.by, "step_seconds": rounded(ledger.step_seconds, 9),
        "classes": {name: rounded(time, 9) for name, time in ledger.classes.items()},
        "launches": {name: rounded(ledger.launches(name)) for name in ledger.items},
        "rates": {name: {"amount": rounded(rate.amount), "per_second": rounded(rate.per_second),
                         "peak": rounded(rate.peak), "peak_at_clock": rounded(rate.peak_at_clock),
                         "preflight": rounded(rate.best), "unit": rate.unit}
                  for name, rate in rates.items()},
        "rates_missing_because": _without_rates(ledger, rates),
        "unknown_share": rounded(ledger.unknown_share), "closure": rounded(ledger.closure),
        "hidden_communication_seconds": rounded(ledger.hidden_communication),
        "span": ledger.span and {name: rounded(value) for name, value in vars(ledger.span).items()},
        "patterns": [notice.for_programs().model_dump(include={"code", "values"}) for notice in patterns_of(ledger)],
        "notices": list(map(str, ledger.notices)),
    }  # fmt: skip


def print_explanation(
    ledgers: Sequence[Ledger], rates: Sequence[Mapping[str, Rate]], found: LedgerDifference | None
) -> None:
    """Print the ledger of one side, or the difference of two."""
    console = harmless.console(highlight=False)
    width = console.width
    several = len(ledgers) > 1
    parts: list[RenderableType] = [
        paragraph(f"{_SIDE_NAMES[place]}: {heading(ledger)}" if several else heading(ledger), "bold", width=width)
        for place, ledger in enumerate(ledgers)
    ]
    parts.append(Text())
    if found is not None:
        parts += [paragraph(notice, "yellow", width=width, bullet="• ") for notice in found.notices]
        parts += [paragraph(f"{sentence(found)}.", "bold", width=width), Text()]
        parts.append(fitting(difference_table(found), width=width))
        if (table := rates_table(rates)) is not None:
            parts += [Text(), fitting(table, width=width)]
    else:
        parts.append(fitting(ledger_table(ledgers[0], rates[0]), width=width))
    parts.append(Text())
    for place, ledger in enumerate(ledgers):
        who = f"{_SIDE_NAMES[place]}: " if several else ""
        lines = [*_remarks(ledger), *filter(None, [_without_rates(ledger, rates[place])])]
        parts += [paragraph(f"{who}{line}", width=width, bullet="• ") for line in lines]
    parts.append(paragraph(_PROFILED, "dim", width=width))
    console.print(Group(*parts), crop=False)


def _without_rates(ledger: Ledger, rates: Mapping[str, Rate]) -> str | None:
    """Return why a ledger has no rates, or none of classes that take much of the step; None if it has them."""
    if rates:
        least = _LEAST_RATED * ledger.step_seconds
        missing = [class_title(name) for name, time in ledger.classes.items()
                   if time >= least and name not in rates and name.startswith(_RATED)]  # fmt: skip
        text = "no rate of {}: neither shapes nor the model give this work; record shapes (record_shapes=True)"
        return text.format(quantities.listed(missing)) if missing else None
    if ledger.trace.has_shapes:
        return "no rates: the shapes in the trace do not give the work of a class"
    return (
        "no rates: the trace has no shapes and no model is named whose work fits its times; record them "
        "(record_shapes=True), or give --model and --sequence-length of the training"
    )


def _remarks(ledger: Ledger) -> list[str]:
    """Return what limits or completes a ledger."""
    lines = [str(notice) for notice in (*patterns_of(ledger), *ledger.notices)]
    if ledger.closure is not None:
        lines.append(f"the classes sum to the steps by the host's clock within {percent(abs(ledger.closure), 2)}")
    if ledger.hidden_communication:
        lines.append(f"{_absolute(ledger.hidden_communication)} of communication are hidden by computation")
    return lines
