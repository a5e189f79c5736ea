"""Tables of a folder of cells: filters, computed columns, groups, pivots, and fits of a power law."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tensorprimat.analysis.expressions import column_named, evaluate, truth
from tensorprimat.core.errors import UsageError
from tensorprimat.storage.cell_rows import column_of, columns_of, is_figure, plain

if TYPE_CHECKING:
    import pandas as pd

_NAME = re.compile(r"[A-Za-z_]\w*")
_EQUAL = re.compile(r"([A-Za-z_]\w*)\s*(?:=\s*(?P<text>[^=<>!]+)|==\s*(?P<word>[A-Za-z][\w.-]*))")
"""A condition as users type it, without quotes: model_size=2.7B, or model_size==small."""

_CONFIGURATION = (
    "model_size", "d_model", "d_ff", "num_layers", "num_heads", "vocab", "context_length", "batch_size", "precision",
    "autocast", "compile", "attention", "data", "device", "device_name",
)  # fmt: skip
"""Columns that two measurements must share if they differ in the pass only."""
_TIMES = ("mean_time_ms", "trial_times_ms", "backward_time_ms", "backward_std_ms")
SHAPE = ("d_model", "num_layers", "num_heads")
_WIDTHS = (*SHAPE, "d_ff")
LEAST_POINTS = 3  # of a fitted exponent: two points lie on a line whatever the law is


def with_columns(cells: pd.DataFrame, added: Sequence[str]) -> pd.DataFrame:
    """Return the cells with further columns, each "name=expression"; a later one may use an earlier one.

    Raises UsageError for a bad expression, a column that no cell has, or a name that a column has already.
    """
    for text in added:
        name, equals, formula = text.partition("=")
        if not equals or not _NAME.fullmatch(name.strip()):
            raise UsageError(f"--add {text!r}: write it as name=expression, such as throughput=1000/mean_time_ms")
        if name.strip() in cells:
            raise UsageError(f"--add {text!r}: cells have a column {name.strip()} already; give it another name")
        cells = cells.assign(**{name.strip(): evaluate(formula, cells, flag="--add")})
    return cells


def is_said(value: Any, typed: str) -> bool:
    """Return True if a value is the one that a user typed: a number by its value, other values in any case.

    >>> is_said(8, "8.0"), is_said("BF16", "bf16"), is_said(None, "none"), is_said(True, "true"), is_said("80", "8")
    (True, True, True, True, False)
    """
    if str(value).lower() == typed.lower():
        return True
    try:
        return isinstance(value, int | float) and value == float(typed)
    except ValueError:
        return False


def filtered(
    cells: pd.DataFrame,
    conditions: Sequence[str],
    *,
    says: Callable[[str, Any, str], bool] = lambda _, value, typed: is_said(value, typed),
) -> pd.DataFrame:
    """Return the rows for which every condition holds: "model_size=small", "batch_size >= 4 and context_length < 256".

    says: returns True if a column's value is the typed one. Raises UsageError for a bad condition, or where no row is
    left.
    """
    for text in conditions:
        equal = _EQUAL.fullmatch(text.strip())
        if equal and equal["word"] not in columns_of(cells):
            operand = (equal["text"] or equal["word"]).strip().strip("'\"")
            values = plain(column_named(equal[1], cells, flag="--filter"))
            is_kept = {value: says(equal[1], value, operand) for value in dict.fromkeys(values)}
            kept = cells[[is_kept[value] for value in values]]
        else:
            kept = cells[truth(evaluate(text, cells, flag="--filter"))]
        if kept.empty:
            raise UsageError(f"--filter {text!r}: none of {len(cells)} rows is left")
        cells = kept
    return cells


def by_value(cells: pd.DataFrame, key: str) -> tuple[pd.Index, pd.Series]:
    """Return the distinct values of a column in order, None for unmeasured, and for each cell the place of its value.

    Numbers are ordered by value, model sizes by parameters, words alphabetically.
    """
    import pandas as pd

    values = plain(cells[key])
    sizes = {}
    if key == "model_size":
        rows = plain(cells.reindex(columns=[key, "num_parameters", "d_model"]))
        sizes = {size: parameters or width or 0 for size, parameters, width in rows}

    def place(value: Any) -> Any:
        if value in sizes:
            return (0, sizes[value], str(value))
        return (0, value, "") if is_figure(value) else (1, 0, str(value))

    distinct = sorted(set(values), key=place)
    places = {value: number for number, value in enumerate(distinct)}
    return pd.Index(distinct, dtype=object, name=key), pd.Series(map(places.get, values), index=cells.index)


def sort(cells: pd.DataFrame) -> pd.DataFrame:
    """Sort cells by size, context, batch, precision and pass."""
    keys = ("model_size", "context_length", "batch_size", "precision", "pass", "forward_only")
    places = cells.assign(**{key: by_value(cells, key)[1] for key in keys if key in cells})
    return cells.loc[places.sort_values([key for key in keys if key in cells], kind="stable").index]


def with_distinct_labels(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells with their dimensions in `model_size` where several shapes have one label.

    "small" of widths 768 and 256 becomes "small 768x12x12" and "small 256x4x4": width, layers and heads.
    """
    shapes = cells.reindex(columns=["model_size", *SHAPE])
    labels = shapes.drop_duplicates()["model_size"]
    several = shapes["model_size"].isin(labels[labels.duplicated()])
    told = [
        f"{label} {'x'.join(map(str, shape))}" if of_several else label
        for of_several, (label, *shape) in zip(several, plain(shapes), strict=True)
    ]
    return cells.assign(model_size=column_of(told, index=cells.index))


@dataclass(frozen=True, kw_only=True)
class Pivot:
    """Means of one column by two others."""

    values: str
    means: pd.DataFrame
    """A mean of the cells with a figure. Without any: "OOM" if one of the cells ran out of memory, else None. The index
    and the columns have the values of the two others, and their names."""
    most_cells: int
    """Largest number of cells in one mean."""
    pass_name: str | None = None
    """Pass of every cell in the table; None if only one pass exists, or if passes are rows or columns."""


def pivots(cells: pd.DataFrame, *, rows: str | None, columns: str | None, values: str | None) -> list[Pivot]:
    """Return a table per pass, by default of the mean time by context and model; a mean over passes has no meaning.

    Without any choice there is a table only if the cells have several contexts. Raises the errors of `pivot`.
    """
    if not (rows or columns or values) and len(cells.reindex(columns=["context_length"]).drop_duplicates()) < 2:
        return []
    cells, of_pass = with_distinct_labels(cells), _passes(cells)
    chosen = {"rows": rows or "context_length", "columns": columns or "model_size", "values": values or "mean_time_ms"}
    if len(set(of_pass)) < 2 or {"pass", "forward_only"} & {rows, columns}:
        return [pivot(cells, **chosen)]
    return [replace(pivot(group, **chosen), pass_name=name) for name, group in cells.groupby(of_pass, sort=False)]


def _passes(cells: pd.DataFrame) -> list[str]:
    """Return the pass of each cell; other tools say only whether it was forward alone."""
    return [
        str(name or ("forward" if forward_only else "forward-backward"))
        for name, forward_only in plain(cells.reindex(columns=["pass", "forward_only"]))
    ]


def pivot(cells: pd.DataFrame, *, rows: str, columns: str, values: str) -> Pivot:
    """Return the means of one column by two others.

    Raises UsageError naming the flag for a column that no cell has, or values that are not numbers.
    """
    for flag, name in (("--rows", rows), ("--columns", columns), ("--values", values)):
        column_named(name, cells, flag=flag)
    figures = column_of([float(v) if is_figure(v) else None for v in plain(cells[values])], index=cells.index)
    if figures.isna().all():
        raise UsageError(f"--values {values}: no cell has a number there")
    (row_values, row_places), (column_values, column_places) = by_value(cells, rows), by_value(cells, columns)
    groups = cells.reindex(columns=["status"]).assign(mean=figures).groupby([row_places, column_places])
    means = groups["mean"].mean().astype(object)
    ran_out = groups["status"].agg(lambda status: "OOM" if (status == "oom").any() else None)
    table = means.where(means.notna(), ran_out).unstack().set_axis(row_values).set_axis(column_values, axis=1)
    return Pivot(values=values, means=table, most_cells=int(groups.size().max()))


@dataclass(frozen=True, kw_only=True)
class PassPair:
    """One configuration, timed forward alone and forward with backward."""

    row: Mapping[str, Any]
    """The cell of forward alone."""
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


def pass_pairs(cells: pd.DataFrame) -> list[PassPair]:
    """Return the configurations timed both ways. Cells that include the optimizer step are in no pair."""
    timed = cells.reindex(columns=[*_CONFIGURATION, *_TIMES]).assign(pass_=_passes(cells))[cells["mean_time_ms"] > 0]
    alone, both = (
        timed[timed["pass_"] == name].drop_duplicates([*_CONFIGURATION], keep="last")
        for name in ("forward", "forward-backward")
    )
    pairs = alone.merge(both, on=_CONFIGURATION, suffixes=("", "_of_both"))
    return [_pair(dict(zip(pairs, row, strict=True))) for row in plain(pairs)]


def _pair(row: Mapping[str, Any]) -> PassPair:
    """Return the times of forward and of forward with backward, as one configuration.

    The backward time is the measured one if the trials timed it, else the difference of the two: trial by trial if both
    cells have equally many trials, else of their means. row: the cell of forward alone, and the keys of the other with
    `_of_both`.
    """
    forward, together = row["mean_time_ms"], row["mean_time_ms_of_both"]
    timed, deviation = row["backward_time_ms_of_both"], row["backward_std_ms_of_both"]
    if is_figure(timed) and timed > 0:
        backward, method = float(timed), "Backward is timed directly, inside the forward-backward trials"
    else:
        backward, deviation = together - forward, None
        of_each = [row["trial_times_ms"], row["trial_times_ms_of_both"]]
        are_lists = all(isinstance(times, list) and all(map(is_figure, times)) for times in of_each)
        if are_lists and len(of_each[0]) == len(of_each[1]) >= 2:
            differences = [second - first for first, second in zip(*of_each, strict=True)]
            backward, deviation = statistics.fmean(differences), statistics.stdev(differences)
            method = "Backward is forward-backward minus forward of the same trial"
        else:
            method = "Backward is the difference of two means, without a deviation because the trials are not paired"
    return PassPair(
        row=row, forward_ms=forward, forward_backward_ms=together, backward_ms=backward,
        backward_std_ms=deviation, method=method,
    )  # fmt: skip


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


def size_scalings(cells: pd.DataFrame, axis: str) -> list[SizeScaling]:
    """Return the growth in each group of cells that differ in one axis. axis: num_parameters or context_length."""
    shape = ("model_size", *_WIDTHS)
    varied = {"num_parameters": shape, "context_length": ("context_length",)}[axis]
    fixed = [key for key in (*_CONFIGURATION, "pass", "forward_only") if key not in varied]
    cells = cells.reindex(columns=[*fixed, axis, "mean_time_ms"]).astype({axis: float, "mean_time_ms": float})
    timed = cells[(cells[axis] > 0) & (cells["mean_time_ms"] > 0)]
    fitted = timed[timed.groupby(fixed, dropna=False)[axis].transform("nunique") > 1]
    named = [key for key in fixed if fitted[key].nunique(dropna=False) > 1]
    groups = fitted.groupby(fixed, dropna=False, sort=False, as_index=False).agg(list)
    return [_scaling(axis, dict(zip(groups, group, strict=True)), named) for group in plain(groups)]


_UNITS = {"context_length": "context {}", "batch_size": "batch {}", "vocab": "vocabulary {}"}
_WORDS: dict[tuple[str, object], str] = {
    ("autocast", True): "autocast",
    ("autocast", False): "no autocast",
    ("compile", True): "compiled",
    ("compile", False): "not compiled",
    ("forward_only", True): "forward",
    ("forward_only", False): "forward-backward",
}


def _scaling(axis: str, group: Mapping[str, Any], named: Sequence[str]) -> SizeScaling:
    points = tuple(sorted(zip(group[axis], group["mean_time_ms"], strict=True)))
    silent = (*_WIDTHS, *(("forward_only",) if group["pass"] else ()))
    values = [(key, group[key]) for key in named if key not in silent and group[key] is not None]
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
