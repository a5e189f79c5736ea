"""Cells as tables: the rows of `tprimat passes`, `warmup` and `sweep`, for terminal, Markdown and CSV."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorprimat.core import quantities
from tensorprimat.core.quantities import rough_time
from tensorprimat.core.units import TERA
from tensorprimat.reports.tables import Table, TableCell, csv_of, figure_cell, table_of
from tensorprimat.storage.cell_rows import columns_of, plain
from tensorprimat.storage.micro_result import CellSpec, MicroEstimate, MicroResult

if TYPE_CHECKING:
    import pandas as pd


class MicroColumn(NamedTuple):
    """One column of the table of cells."""

    title: str
    read: Callable[[MicroResult], Any]
    form: Callable[[Any], str] = str


def one_decimal(value: float | None) -> str:
    return quantities.fixed(value, 1)


def two_decimals(value: float | None) -> str:
    return quantities.fixed(value, 2)


def milliseconds(value: float | None) -> str:
    """Return a time, to about four digits.

    >>> milliseconds(12.3456), milliseconds(0.01234), milliseconds(12345.6)
    ('12.35', '0.01234', '12,346')
    """
    return quantities.count(value) if value is not None and value >= 1000 else quantities.significant(value)


def _spread(cell: MicroResult) -> str | None:
    """Return mean and deviation, such as "12.3 ± 0.4", or "OOM" or "failed"; None for an unmeasured cell."""
    if cell.status != "ok":
        return "OOM" if cell.status == "oom" else "failed"
    if cell.mean_time_ms is None:
        return None
    return with_spread(cell.mean_time_ms, cell.std_time_ms)


def _part(name: str) -> Callable[[MicroResult], str | None]:
    """Return a reader of one part of a step: its mean with the deviation over the trials."""

    def read(cell: MicroResult) -> str | None:
        mean = getattr(cell, f"{name}_time_ms")
        return None if mean is None else with_spread(mean, getattr(cell, f"{name}_std_ms"))

    return read


def with_spread(mean: float, deviation: float | None) -> str:
    """Return a time with two digits of its deviation, and no digit that this makes meaningless.

    >>> with_spread(31.0, 3.774), with_spread(12.34567, 0.01234), with_spread(12345.6, 150.0), with_spread(12.3, None)
    ('31.0 ± 3.8', '12.346 ± 0.012', '12,346 ± 150', '12.3')
    """
    if not deviation or not math.isfinite(deviation):
        return milliseconds(mean)
    decimals = max(0, 1 - math.floor(math.log10(deviation)))
    return f"{quantities.fixed(mean, decimals)} ± {quantities.fixed(deviation, decimals)}"


def largest_that_fits(cell: MicroResult) -> str | None:
    """Return the batch or context that fits if the cell does not; "nothing" if none does, None if not searched."""
    if cell.fit_batch_size:
        return f"batch {cell.fit_batch_size}"
    if cell.fit_context_length:
        return f"context {cell.fit_context_length} at batch 1"
    return None if cell.fit_batch_size is None else "nothing"


def _precision(cell: MicroResult) -> str:
    return cell.precision + (" autocast" if cell.autocast else "") + (" compiled" if cell.compile else "")


_FIELDS = (
    MicroColumn("Model", lambda cell: cell.model_size),
    MicroColumn("Parameters", lambda cell: cell.num_parameters, quantities.count),
    MicroColumn("Context", lambda cell: cell.context_length, quantities.count),
    MicroColumn("Batch", lambda cell: cell.batch_size, quantities.count),
    MicroColumn("Precision", _precision),
    MicroColumn("Attention", lambda cell: cell.attention),
    MicroColumn("Pass", lambda cell: cell.pass_name),
    MicroColumn("Warm-up", lambda cell: cell.num_warmups, quantities.count),
    MicroColumn("Step, ms", _spread),
    MicroColumn("CV, %", lambda cell: cell.cv_percent, one_decimal),
    MicroColumn("Median, ms", lambda cell: cell.median_time_ms, milliseconds),
    MicroColumn("Forward, ms", _part("forward")),
    MicroColumn("Backward, ms", _part("backward")),
    MicroColumn("Backward CV, %", lambda cell: cell.backward_cv_percent, one_decimal),
    MicroColumn("Optimizer, ms", _part("optimizer")),
    MicroColumn("Launch, ms", lambda cell: cell.launch_time_ms, milliseconds),
    MicroColumn("Backward / forward", lambda cell: cell.backward_forward_ratio, two_decimals),
    MicroColumn("Tokens/s", lambda cell: cell.tokens_per_second, quantities.rate),
    MicroColumn("Model TFLOP/s", lambda cell: cell.flops_per_second, lambda value: quantities.rate(value / TERA)),
    MicroColumn("MFU", lambda cell: cell.mfu, quantities.percent),
    MicroColumn("Peak memory", lambda cell: cell.peak_memory_gb, quantities.gigabytes),
    MicroColumn("Fits", largest_that_fits),
)
_ALWAYS = {"Model", "Context", "Batch", "Pass", "Step, ms"}
LEFT_OUT_IF_EQUAL = {"Precision", "Attention", "Warm-up"}
"""Columns that are left out where all cells have one value."""
_WORDS = {"Model", "Precision", "Attention", "Pass", "Fits"}


def cells_table(cells: Sequence[MicroResult], *, title: str = "Passes") -> Table:
    """Return one row per cell, without columns that no cell fills or that are the same in every row."""
    shown = [field for field in _FIELDS if _says(field, cells)]
    rows = [{field.title: _place(field, cell) for field in shown} for cell in cells]
    return table_of("cells", title, rows, words=_WORDS, note=_note(cells))


def _says(field: MicroColumn, cells: Sequence[MicroResult]) -> bool:
    values = [field.read(cell) for cell in cells]
    if field.title in _ALWAYS:
        return True
    if field.title in LEFT_OUT_IF_EQUAL:
        return len(set(values)) > 1
    return any(value is not None for value in values)


def _place(field: MicroColumn, cell: MicroResult) -> TableCell:
    value = field.read(cell)
    return TableCell(text=quantities.UNMEASURED if value is None else field.form(value), value=value)


def _note(cells: Sequence[MicroResult]) -> str:
    """Return the note under a table: device, precision, trials, and the meaning of the figures."""
    first = cells[0]

    def common(read: Callable[[MicroResult], Any], form: str) -> str | None:
        values = {read(cell) for cell in cells} - {None}
        return form.format(values.pop()) if len(values) == 1 else None

    parts = [
        common(lambda cell: cell.device_name, "{}"),
        common(lambda cell: cell.torch_version, "torch {}"),
        common(_precision, "{}"),
        common(lambda cell: cell.attention, "{} attention"),
        common(lambda cell: cell.vocab and quantities.count(cell.vocab), "vocabulary {}"),
        common(lambda cell: quantities.counted(cell.num_warmups, "warm-up step"), "{}"),
        common(lambda cell: quantities.counted(cell.num_trials, "trial"), "{}"),
        common(lambda cell: cell.num_steps if cell.num_steps > 1 else None, "{} steps each"),
        common(lambda cell: cell.memory_kind, "{} memory"),
    ]
    described = ", ".join(part for part in parts if part)
    return f"{described}. Mean ± sample standard deviation; FLOPs by the {first.flops_convention} convention."


def cell_warnings(cells: Sequence[MicroResult]) -> list[str]:
    """Return each warning once, with the cells that it is about; of those that differ in numbers alone, the worst."""
    by_kind: dict[str, dict[str, list[MicroResult]]] = {}
    for cell in cells:
        for sentence in (*cell.warnings, *([cell.reason] if cell.reason is not None else [])):
            kind = _NUMBER.sub("#", sentence) if sentence in cell.warnings else sentence
            by_kind.setdefault(kind, {}).setdefault(sentence, []).append(cell)
    return [_worst(alike, len(cells)) for alike in by_kind.values()]


_NUMBER = re.compile(r"\d[\d.]*")


def _worst(alike: Mapping[str, Sequence[MicroResult]], cells: int) -> str:
    """Return the sentence with the greatest first number. alike: cells by sentence."""
    sentence = max(alike, key=lambda sentence: float((_NUMBER.findall(sentence) or ["0"])[0].rstrip(".")))
    of = alike[sentence]
    if cells == 1 or (len(alike) == len(of) == 1 and of[0].title in sentence):
        return sentence
    if len(alike) > 1:
        return f"{sentence} [{sum(map(len, alike.values()))} of {cells} cells; the worst: {of[0].title}]"
    which = "every cell" if len(of) == cells else f"{len(of)} cells" if len(of) > 2 else "; ".join(c.title for c in of)
    return f"{sentence} [{which}]"


def rows_csv(cells: pd.DataFrame) -> str:
    """Return a file for spreadsheets: numbers unrounded, unmeasured ones empty, lists left to the JSON."""
    columns = columns_of(cells)
    return csv_of(columns, plain(cells[columns]))


def rows_json(cells: pd.DataFrame) -> str:
    """Return every column of every cell, lists too."""
    return json.dumps([dict(zip(cells, row, strict=True)) for row in plain(cells)], indent=2) + "\n"


def render_csv(cells: Sequence[MicroResult]) -> str:
    """Return every field of every cell but the series."""
    rows = [cell.model_dump(mode="json", by_alias=True) for cell in cells]
    columns = [key for key, value in rows[0].items() if not isinstance(value, list)]
    return csv_of(columns, ([row[column] for column in columns] for row in rows))


def basis_of_estimates(precision: str, flops_per_second: float | None, origin: str) -> str:
    """Return the sentence on the matrix rate that the time estimates of a precision assume."""
    if not flops_per_second:
        return f"no estimates of {precision} ({origin})"
    rate = quantities.significant(flops_per_second / TERA, 3)
    return f"time estimates of {precision} assume {rate} TFLOP/s ({origin})"


def estimates_table(
    specs: Sequence[CellSpec], estimates: Sequence[MicroEstimate], device_memory_gb: float | None
) -> Table:
    """Return the estimated memory and time of each cell before it runs."""
    rows = [
        {
            "Model": spec.model_size,
            "Parameters": figure_cell(spec.num_parameters, quantities.count),
            "Context": figure_cell(spec.context_length, quantities.count),
            "Batch": figure_cell(spec.batch_size, quantities.count),
            "Pass": spec.pass_name,
            "Precision": spec.precision,
            "Memory": figure_cell(estimated.memory_gb, quantities.gigabytes),
            "Fits": None if device_memory_gb is None else "yes" if estimated.fits(device_memory_gb) else "no",
            "Time": None
            if estimated.seconds is None
            else TableCell(text=rough_time(estimated.seconds), value=estimated.seconds),
        }
        for spec, estimated in zip(specs, estimates, strict=True)
    ]
    known = [estimated.seconds for estimated in estimates if estimated.seconds is not None]
    time = f"about {rough_time(sum(known))} " if known else "time not known"
    of = "" if not known else "in all" if len(known) == len(specs) else f"for {len(known)} of them"
    note = f"Estimates; nothing was run. {quantities.counted(len(specs), 'cell')}, {time}{of}."
    return table_of("estimates", "Estimates", rows, words=("Model", "Pass", "Precision", "Fits"), note=note)
