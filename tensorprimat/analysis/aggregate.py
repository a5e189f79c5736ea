"""Tables of a folder of cells: filters, computed columns, groups, pivots, and fits of a power law."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from tensorprimat.analysis.expressions import Expression
from tensorprimat.core.cell_rows import MicroRow, is_figure
from tensorprimat.core.errors import UsageError

_NAME = re.compile(r"[A-Za-z_]\w*")
_EQUAL = re.compile(r"([A-Za-z_]\w*)\s*(?:=\s*(?P<text>[^=<>!]+)|==\s*(?P<word>[A-Za-z][\w.-]*))")
"""A condition as users type it, without quotes: model_size=2.7B, or model_size==small."""

_CONFIGURATION = (
    "model_size", "d_model", "d_ff", "num_layers", "num_heads", "vocab", "context_length", "batch_size", "precision",
    "autocast", "compile", "attention", "data", "device", "device_name",
)  # fmt: skip
"""Columns that two measurements must share if they differ in the pass only."""
SHAPE = ("d_model", "num_layers", "num_heads")
_WIDTHS = (*SHAPE, "d_ff")
LEAST_POINTS = 3  # of a fitted exponent: two points lie on a line whatever the law is


def columns_of(rows: Sequence[MicroRow]) -> list[str]:
    """Return every key of any row whose values are not lists, in the order of their first appearance."""
    scalars = (key for row in rows for key, value in row.items() if not isinstance(value, list | dict))
    return list(dict.fromkeys(scalars))


def with_columns(rows: Sequence[MicroRow], added: Sequence[str]) -> list[MicroRow]:
    """Return the rows with further columns, each "name=expression"; a later one may use an earlier one.

    Raises UsageError for a bad expression, a column that no row has, or a name that a column has already.
    """
    result = list(rows)
    for text in added:
        name, equals, formula = text.partition("=")
        if not equals or not _NAME.fullmatch(name.strip()):
            raise UsageError(f"--add {text!r}: write it as name=expression, such as throughput=1000/mean_time_ms")
        if name.strip() in columns_of(result):
            raise UsageError(f"--add {text!r}: cells have a column {name.strip()} already; give it another name")
        expression = Expression(formula, flag="--add")
        _refuse_unknown(expression.names, result, "--add")
        result = [{**row, name.strip(): expression.value(row)} for row in result]
    return result


def filtered(rows: Sequence[MicroRow], conditions: Sequence[str]) -> list[MicroRow]:
    """Return the rows for which every condition holds: "model_size=small", "context_length >= 256 and batch_size == 4".

    Raises UsageError for a bad condition, or where none is left.
    """
    result = list(rows)
    for text in conditions:
        equal = _EQUAL.fullmatch(text.strip())
        if equal and equal["word"] not in columns_of(result):
            name, operand = equal[1], equal["text"] or equal["word"]
            _refuse_unknown([name], result, "--filter")
            kept = [row for row in result if _is(row.get(name), operand.strip())]
        else:
            condition = Expression(text, flag="--filter")
            _refuse_unknown(condition.names, result, "--filter")
            kept = [row for row in result if condition.value(row)]
        if not kept:
            raise UsageError(f"--filter {text!r}: none of {len(result)} cells is left")
        result = kept
    return result


def _is(value: Any, text: str) -> bool:
    """Return True if a value equals the text that a user typed: 128, small, true."""
    bare = text.strip("'\"")
    if is_figure(value):
        try:
            return bool(value == float(bare))
        except ValueError:
            return False
    return str(value).lower() == bare.lower()


def _refuse_unknown(names: Iterable[str], rows: Sequence[MicroRow], flag: str) -> None:
    """Raise UsageError naming the flag for a column that no row has."""
    known = columns_of(rows)
    for name in sorted(names):
        if name not in known:
            raise UsageError(f"{flag} {name}: no cell has such a column; columns: {', '.join(known)}")


def order(rows: Sequence[MicroRow], key: str) -> Callable[[Any], Any]:
    """Return the sort key for values of a column: numbers by value, model sizes by parameters, words alphabetically."""
    sized = rows if key == "model_size" else ()
    sizes = {row.get(key): row.get("num_parameters") or row.get("d_model") or 0 for row in sized}

    def place(value: Any) -> Any:
        if value in sizes:
            return (0, sizes[value], str(value))
        return (0, value, "") if is_figure(value) else (1, 0, str(value))

    return place


def values_of(rows: Sequence[MicroRow], key: str) -> list[Any]:
    """Return the distinct values of a column, in order."""
    return sorted({row.get(key) for row in rows}, key=order(rows, key))


def sort(rows: Sequence[MicroRow]) -> list[MicroRow]:
    """Sort rows by size, context, batch, precision and pass."""
    keys = ("model_size", "context_length", "batch_size", "precision", "pass", "forward_only")
    places = {key: order(rows, key) for key in keys}
    return sorted(rows, key=lambda row: tuple(places[key](row.get(key)) for key in keys))


def grouped(rows: Sequence[MicroRow], key: Callable[[MicroRow], Any]) -> dict[Any, list[MicroRow]]:
    """Return the rows by their key, in the order of its first appearance."""
    groups: dict[Any, list[MicroRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def with_distinct_labels(rows: Sequence[MicroRow]) -> list[MicroRow]:
    """Return the rows with their dimensions in `model_size` where several shapes have one label.

    "small" of widths 768 and 256 becomes "small 768x12x12" and "small 256x4x4": width, layers and heads.
    """
    shapes = {tuple(row.get(key) for key in ("model_size", *SHAPE)) for row in rows}
    several = {label for label, number in Counter(label for label, *_ in shapes).items() if number > 1}
    return [
        {**row, "model_size": f"{row.get('model_size')} {'x'.join(str(row.get(key)) for key in SHAPE)}"}
        if row.get("model_size") in several
        else row
        for row in rows
    ]


@dataclass(frozen=True, kw_only=True)
class Pivot:
    """Means of one column by two others."""

    rows: str
    columns: str
    values: str
    row_values: tuple[Any, ...]
    column_values: tuple[Any, ...]
    means: tuple[tuple[float | str | None, ...], ...]
    """A mean of the cells with a figure. Without any: "OOM" if one of the cells ran out of memory, else None."""
    most_cells: int
    """Largest number of cells in one mean."""
    pass_name: str | None = None
    """Pass of every cell in the table; None if only one pass exists, or if passes are rows or columns."""


DEFAULT_PIVOT = {"rows": "context_length", "columns": "model_size", "values": "mean_time_ms"}


def chosen_pivots(cells: Sequence[MicroRow], **chosen: str | None) -> list[Pivot]:
    """Return the pivot tables of the chosen rows, columns and values, each None for its default.

    Without any choice there is a table only if the cells have several values of the default rows. Raises the errors of
    `pivot`.
    """
    if not any(chosen.values()) and len({cell.get(DEFAULT_PIVOT["rows"]) for cell in cells}) < 2:
        return []
    axes = {name: chosen.get(name) or column for name, column in DEFAULT_PIVOT.items()}
    return pivots(with_distinct_labels(cells), **axes)


def pivots(all_rows: Sequence[MicroRow], *, rows: str, columns: str, values: str) -> list[Pivot]:
    """Return a table per pass; a mean over several passes has no meaning. Raises the errors of `pivot`."""
    of_pass = grouped(all_rows, _pass_of)
    if len(of_pass) < 2 or {"pass", "forward_only"} & {rows, columns}:
        return [pivot(all_rows, rows=rows, columns=columns, values=values)]
    return [
        replace(pivot(of_one, rows=rows, columns=columns, values=values), pass_name=name)
        for name, of_one in of_pass.items()
    ]


def _pass_of(row: MicroRow) -> str:
    """Return the pass of a cell; other tools say only whether it was forward alone."""
    return str(row.get("pass") or ("forward" if row.get("forward_only") else "forward-backward"))


def pivot(all_rows: Sequence[MicroRow], *, rows: str, columns: str, values: str) -> Pivot:
    """Return the means of one column by two others.

    Raises UsageError naming the flag for a column that no cell has, or values that are not numbers.
    """
    for flag, name in (("--rows", rows), ("--columns", columns), ("--values", values)):
        _refuse_unknown([name], all_rows, flag)
    if not any(is_figure(row.get(values)) for row in all_rows):
        raise UsageError(f"--values {values}: no cell has a number there")
    row_values, column_values = values_of(all_rows, rows), values_of(all_rows, columns)
    groups = grouped(all_rows, lambda row: (row.get(rows), row.get(columns)))
    return Pivot(
        rows=rows,
        columns=columns,
        values=values,
        row_values=tuple(row_values),
        column_values=tuple(column_values),
        means=tuple(
            tuple(_mean(groups.get((row_value, column_value), []), values) for column_value in column_values)
            for row_value in row_values
        ),
        most_cells=max(len(group) for group in groups.values()),
    )


def _mean(group: Sequence[MicroRow], values: str) -> float | str | None:
    found = [row[values] for row in group if is_figure(row.get(values))]
    if found:
        return statistics.fmean(found)
    return "OOM" if any(row.get("status") == "oom" for row in group) else None


@dataclass(frozen=True, kw_only=True)
class PassPair:
    """One configuration, timed forward alone and forward with backward."""

    row: MicroRow
    forward_ms: float
    forward_backward_ms: float
    backward_ms: float
    backward_std_ms: float | None
    """Sample standard deviation over the trials. None if the backward time was measured and the cell states none, or if
    it is a difference of cells whose trials cannot be paired."""
    method: str
    """Method by which the backward time and its deviation were found."""

    @property
    def backward_cv_percent(self) -> float | None:
        """Return the standard deviation of the backward time in percent of its mean."""
        if self.backward_std_ms is None or self.backward_ms <= 0:
            return None
        return 100 * self.backward_std_ms / self.backward_ms

    @property
    def ratio(self) -> float:
        """Return the time of forward and backward divided by that of forward alone."""
        return self.forward_backward_ms / self.forward_ms


def pass_pairs(rows: Sequence[MicroRow]) -> list[PassPair]:
    """Return the configurations timed both ways. Cells that include the optimizer step are in no pair."""
    timed = grouped([row for row in rows if _positive(row.get("mean_time_ms"))], _pass_of)
    alone, both = (
        {tuple(row.get(key) for key in _CONFIGURATION): row for row in timed.get(name, ())}
        for name in ("forward", "forward-backward")
    )
    return [_pair(row, both[key]) for key, row in alone.items() if key in both]


def _positive(value: Any) -> TypeGuard[float]:
    return is_figure(value) and value > 0


def _pair(alone: MicroRow, both: MicroRow) -> PassPair:
    """Return the times of forward and of forward with backward, as one configuration.

    The backward time is the measured one if the trials timed it, else the difference of the two: trial by trial if both
    cells have equally many trials, else of their means.
    """
    forward, together = alone["mean_time_ms"], both["mean_time_ms"]
    timed, deviation = both.get("backward_time_ms"), both.get("backward_std_ms")
    if _positive(timed):
        backward, method = float(timed), "Backward is timed directly, inside the forward-backward trials"
    else:
        backward, deviation = together - forward, None
        of_each = [row.get("trial_times_ms") for row in (alone, both)]
        if _pairable(of_each):
            differences = [second - first for first, second in zip(*of_each, strict=True)]
            backward, deviation = statistics.fmean(differences), statistics.stdev(differences)
            method = "Backward is forward-backward minus forward of the same trial"
        else:
            method = "Backward is the difference of two means, without a deviation because the trials are not paired"
    return PassPair(
        row=alone, forward_ms=forward, forward_backward_ms=together, backward_ms=backward,
        backward_std_ms=deviation if is_figure(deviation) else None, method=method,
    )  # fmt: skip


def _pairable(trials: Sequence[Any]) -> TypeGuard[list[list[float]]]:
    """Return True if both rows have the same number of trials, two or more, each a number."""
    return (
        all(isinstance(times, list) and all(map(is_figure, times)) for times in trials)
        and len(trials[0]) == len(trials[1]) >= 2
    )


@dataclass(frozen=True, kw_only=True)
class SizeScaling:
    """The growth of time along one axis, all else fixed: time ∝ axis ** exponent, by least squares of logarithms."""

    axis: str
    label: str
    points: tuple[tuple[float, float], ...]
    """(axis, milliseconds)."""
    exponent: float | None
    """None for fewer than LEAST_POINTS different values."""
    factor: float | None


def size_scalings(rows: Sequence[MicroRow], axis: str) -> list[SizeScaling]:
    """Return the growth in each group of cells that differ in one axis. axis: num_parameters or context_length."""
    varied = ("model_size", *_WIDTHS) if axis == "num_parameters" else ()
    fixed = [key for key in (*_CONFIGURATION, "pass", "forward_only") if key != axis and key not in varied]
    timed = [row for row in rows if _positive(row.get(axis)) and _positive(row.get("mean_time_ms"))]
    groups = grouped(timed, lambda row: tuple(row.get(key) for key in fixed))
    fitted = {kind: group for kind, group in groups.items() if len({row[axis] for row in group}) > 1}
    named = [key for place, key in enumerate(fixed) if len({kind[place] for kind in fitted}) > 1]
    return [_scaling(axis, group, named) for group in fitted.values()]


_UNITS = {"context_length": "context {}", "batch_size": "batch {}", "vocab": "vocabulary {}"}
_WORDS: dict[tuple[str, object], str] = {
    ("autocast", True): "autocast",
    ("autocast", False): "no autocast",
    ("compile", True): "compiled",
    ("compile", False): "not compiled",
    ("forward_only", True): "forward",
    ("forward_only", False): "forward-backward",
}


def _scaling(axis: str, group: Sequence[MicroRow], named: Sequence[str]) -> SizeScaling:
    points = tuple(sorted((float(row[axis]), float(row["mean_time_ms"])) for row in group))
    silent = (*_WIDTHS, *(("forward_only",) if group[0].get("pass") else ()))
    values = [(key, group[0].get(key)) for key in named if key not in silent and group[0].get(key) is not None]
    label = ", ".join(_WORDS.get((key, value)) or _UNITS.get(key, "{}").format(value) for key, value in values)
    exponent, factor = power_law(points)
    return SizeScaling(axis=axis, label=label or "all cells", points=points, exponent=exponent, factor=factor)


def power_law(points: Sequence[tuple[float, float]]) -> tuple[float, float] | tuple[None, None]:
    """Return exponent and factor of y = factor · x ** exponent through points with positive x and y.

    Two points give none: a line goes through them whatever the law is.

    >>> [round(number, 6) for number in power_law([(1, 3), (10, 300), (100, 30000)])]
    [2.0, 3.0]
    """
    xs, ys = ([math.log(value) for value in axis] for axis in zip(*points, strict=True))
    if len(set(xs)) < LEAST_POINTS:
        return None, None
    slope, intercept = statistics.linear_regression(xs, ys)
    return slope, math.exp(intercept)
