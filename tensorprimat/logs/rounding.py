"""Resolution of the times and rates that a log prints, for all formats at one place.

The unit of a column follows from its values. Zeros at the end are lost there, so where the unit matters, the numbers
are looked up in the lines of the log: `0.900` is known to a thousandth, `0.9` to a tenth, `12` in every row to a unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from tensorprimat.audit.rounding import error_of_mean, printed_unit, unit_of_values
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import as_stated, gigabytes, short_seconds
from tensorprimat.core.result import Result
from tensorprimat.core.steady import median
from tensorprimat.core.steps import FLOAT_COLUMNS, FloatArray, Steps, finite
from tensorprimat.core.terms import WORK_OF_RATES, usable_rate
from tensorprimat.core.units import GB, GIB, MIB
from tensorprimat.logs import fields
from tensorprimat.logs.text import Log

_MOST = 0.10  # a printed rate that may be further off is left out if there is another measure
_COARSER = 4.0  # times the error of a rate: the rate is the measurement then
_MATTERS = 0.0005  # of the mean; the text of the log is read for coarser units only
_ROWS = 200  # that are looked up
_LINES_AROUND = 20  # of a row, up to its neighbours, which may hold its numbers
_LONGEST_LINE = 20_000  # a whole document in one line has no rows to look up
_LEVELS = {
    **{name: (GIB, MIB, GB, 1e6) for name in FLOAT_COLUMNS if name.startswith("memory_")},
    "reported_mfu": (0.01, 1.0),
    "reported_tflops_per_gpu": (1.0,),
}
"""Columns that no mean of time rests on → units in which they are printed."""
_COARSE_LEVEL = 0.01  # relative error of a memory or an MFU that is worth a notice
_LONGEST_UNIT = 12  # characters
_SCALES = (1.0, 1e-3, 1e3, 1e6, 1e-6, 60.0)  # printed number → column: ms, thousands, millions, µs, minutes
_UNITS = {
    1.0: re.compile(r" ?(?:s(?:ecs?|econds?)?(?![a-z])|[a-z]{2,8}/s|[gm]i?b\b|%)", re.IGNORECASE),
    1e-3: re.compile(r" ?m(?:illi)?s", re.IGNORECASE),
    1e3: re.compile(r"k(?![a-z])", re.IGNORECASE),
    1e6: re.compile(r"M(?![A-Za-z])"),
}
"""Scale → the unit or suffix behind a number of that scale."""
_SPELLINGS = (
    re.compile(r"(?<![\d.:])(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d{1,2})?(?![\d:])"),
    re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?:\.\d+)?"),
)


def with_error(log: Log, result: Result) -> Result:
    """Return the result of a log with the error that rounding leaves in its mean step time, or rate without times.

    A column that is too coarse is left out. Step times that are coarser than a rate are replaced by it.
    """
    if result.provenance.timing == "timestamps":  # their resolution is checked where they are read
        return result
    steps = result.steps
    timer: str | None = None
    warnings = _coarse_levels(log, steps)
    rates: dict[str, float | None] = {}
    for name in filter(steps.has, WORK_OF_RATES):
        error, unit = _of_column(log, steps, name, result.evidence.factors)
        is_left_out = error is not None and error > _MOST and sum(map(steps.has, fields.MEASURES)) > 1
        warnings += _warnings(name, error, unit, "; it is left out" if is_left_out else "")
        if is_left_out:
            steps = steps.without(name)
        else:
            rates[name] = error
    if not steps.has("seconds"):
        return _changed(result, steps, next(iter(rates.values()), None), timer, warnings)
    error, unit = _of_column(log, steps, "seconds", result.evidence.factors)
    if error is None:
        error = next((rates[name] for name in rates if _is_source(steps, name)), None)
    warning = _warnings("seconds", error, unit)
    known = {name: of_rate for name, of_rate in rates.items() if of_rate is not None}
    finest = min(known, key=lambda name: known[name], default=None)
    if warning and error and finest and error > _COARSER * known[finest]:
        made = _seconds_of(steps, finest, result.training_config.num_gpus)
        if made is not None and _apart(steps.column("seconds"), made) <= 2 * error:
            warning = _warnings("seconds", error, unit, f"; {_figure(finest)} is the measurement")
            steps, timer, error = steps.replace(seconds=made), finest, known[finest]
    return _changed(result, steps, error, timer, warnings + warning)


def _changed(result: Result, steps: Steps, error: float | None, timer: str | None, warnings: list[Notice]) -> Result:
    origin = result.provenance.changed(rounding=error, timer=timer or result.provenance.timer)
    return result.changed(steps=steps, provenance=origin, warnings=(*result.warnings, *warnings))


def _warnings(name: str, error: float | None, unit: str, ends: str = "") -> list[Notice]:
    """Return a notice about a column that is printed coarsely. ends: what follows from it."""
    if error is None or error <= fields.CLOCK_RESOLUTION:
        return []
    return [Notice("printed_coarsely", _figure(name), unit=unit, error=error, ends=ends)]


def _coarse_levels(log: Log, steps: Steps) -> list[Notice]:
    """Return a notice about each memory, MFU and TFLOP/s whose last digit leaves it unknown by a percent or more."""
    found = []
    for name in filter(steps.has, _LEVELS):
        known = steps.column(name)
        rows = np.flatnonzero(np.isfinite(known) & (known > 0))
        for scale in _LEVELS[name] if len(rows) else ():
            values = known[rows] / scale
            least = _COARSE_LEVEL * 2 * values.max()
            if (printed_unit(values) or 0.0) < least:
                continue
            unit = _unit_in_text(log, steps, rows[:_ROWS], values[:_ROWS], is_printed=False)
            if unit is not None and unit >= least:
                figure = name.removeprefix("reported_").removesuffix("_bytes")
                shown = gigabytes(unit * scale / GB) if name.startswith("memory_") else as_stated(unit * scale)
                error = unit / 2 / values.max()
                found.append(Notice("printed_coarsely", figure, unit=f"to the nearest {shown}", error=error, ends=""))
                break
    return found


def _apart(one: FloatArray, other: FloatArray) -> float:
    """Return the relative difference of two columns; 0 if no row has both."""
    ratios = finite(one / other)
    return abs(median(ratios) - 1) if len(ratios) else 0.0


def _seconds_of(steps: Steps, rate: str, gpus: int | None) -> FloatArray | None:
    """Return the step times that follow from a rate, shape (rows,); None where the work of a step is unknown."""
    work, per_gpu = WORK_OF_RATES[rate]
    if not steps.has(work) or (per_gpu and not gpus):
        return None
    return np.asarray(steps.column(work) / usable_rate(steps, rate) / (gpus or 1 if per_gpu else 1))


def _is_source(steps: Steps, rate: str) -> bool:
    """Return True for a rate from which the step times were computed."""
    work = finite(steps.column("seconds") * steps.column(rate)) if rate != "seconds" else ()
    return len(work) > 0 and bool(np.ptp(work) <= 1e-9 * np.max(work))


def _of_column(log: Log, steps: Steps, name: str, factors: Mapping[str, float] | None) -> tuple[float | None, str]:
    """Return the largest relative error of the mean of a column and a phrase on its unit; None where it is unknown.

    factors: see Evidence.
    """
    factor = (factors or {}).get(name, 1.0)
    is_stated = factors is None or name in factors
    known, found = steps.column(name) / factor, []
    rows = np.flatnonzero(np.isfinite(known) & (known > 0))
    for is_inverse in (False, True) if name == "seconds" and factor == 1 else (False,):
        values = 1 / known[rows] if is_inverse else known[rows]
        unit = printed_unit(values)
        if unit is not None and error_of_mean(values, unit) > _MATTERS:
            looked_at = rows[:_ROWS], values[:_ROWS]
            shown = _unit_in_text(log, steps, *looked_at, is_printed=True) if is_stated else None
            unit = None if shown is None else min(unit, shown)
        if unit is not None:
            amount = f"{as_stated(unit)} steps/s" if is_inverse else short_seconds(unit * factor)
            shown_as = f"to the nearest {amount if name == 'seconds' else as_stated(unit * factor)}"
            found.append((error_of_mean(values, unit), shown_as))
    return min(found, default=(None, ""))


def _unit_in_text(log: Log, steps: Steps, rows: np.ndarray, values: FloatArray, *, is_printed: bool) -> float | None:
    """Return the unit in which the log prints a column. None if its lines do not show its values.

    rows: positions of some rows, shape (rows,); values: of the column or its inverse in them. is_printed: a whole
    number that all rows repeat is the column's; otherwise it may be any other number of the row.
    """
    lines, covers = steps.column("line"), steps.column("covers")
    of_values = unit_of_values(values) or None  # all that a container keeps
    if log.is_folder or log.is_binary or (lines[rows] < 0).any():
        return of_values
    texts = _texts(log, lines[rows])
    if texts is None:
        return of_values
    halves: dict[tuple[float, bool], list[tuple[float, float, bool]]] = {}
    for text, value, steps_of_row in zip(texts, values, covers[rows], strict=True):
        printed = [
            (found[0].replace(",", ""), text[found.end() : found.end() + _LONGEST_UNIT])
            for spelled in _SPELLINGS
            for found in spelled.finditer(text)
        ]
        for scale in _SCALES:
            for is_sum in (False, True) if steps_of_row > 1 else (False,):
                factor = scale / steps_of_row if is_sum else scale
                same = [
                    (fields.half_digit(number) * factor, value, not number.isdigit() or _has_unit(behind, scale))
                    for number, behind in printed
                    if math.isclose(float(number) * factor, value, rel_tol=1e-9)
                ]
                if same:
                    halves.setdefault((scale, is_sum), []).append(min(same, key=lambda one: (one[0], not one[2])))
    units = []
    for found in halves.values():
        unit = 2 * median(np.array([half for half, *_ in found]))
        varies = len({value for _, value, _ in found}) > 1
        if 2 * len(found) >= len(values) and (varies or is_printed or all(is_certain for *_, is_certain in found)):
            units.append(unit)
    return min(units, default=None)


def _has_unit(behind: str, scale: float) -> bool:
    return scale in _UNITS and _UNITS[scale].match(behind) is not None


def _texts(log: Log, lines: np.ndarray) -> list[str] | None:
    """Return the text of each row: its line, and those between it and its neighbours. None for lines without end."""
    first, last = int(lines[0]) - _LINES_AROUND, int(lines[-1]) + _LINES_AROUND
    by_line: dict[int, str] = {}
    for number, text in log.lines():
        if number > last:
            break
        if number >= first:
            if len(text) > _LONGEST_LINE:
                return None
            by_line[number] = f"{by_line.get(number, '')} {text}"
    places = lines.tolist()
    starts = [max(before + 1, line - _LINES_AROUND) for before, line in pairwise([first, *places])]
    ends = [min(after, line + _LINES_AROUND) for line, after in pairwise([*places, last])]
    return [
        " ".join(by_line.get(number, "") for number in {*range(start, max(end, line + 1)), line})
        for start, line, end in zip(starts, places, ends, strict=True)
    ]


def _figure(name: str) -> str:
    return "step_time" if name == "seconds" else name.removeprefix("reported_")
