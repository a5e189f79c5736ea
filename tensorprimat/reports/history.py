"""A history as tables for the terminal and as CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorprimat.analysis.history import HistoryEntry, Series
from tensorprimat.core import quantities
from tensorprimat.reports import formatting
from tensorprimat.reports.tables import Table, TableCell, csv_of, figure_cell, table_of, text_cell

CSV_COLUMNS = (
    "series", "model", "metric", "timestamp", "value", "low", "high", "runs", "change", "platform", "device_name",
    "software_version", "pytorch_version", "framework_version", "file",
)  # fmt: skip


def series_table(series: Series) -> Table:
    """Return one series, oldest first."""
    shown = form(series.metric)
    columns: dict[str, Callable[[HistoryEntry], TableCell]] = {
        "when": lambda entry: text_cell(quantities.moment(entry.at)),
        "figure": lambda entry: figure_cell(entry.figure.value, shown),
        "interval": lambda entry: text_cell(formatting.interval(entry.figure, shown)),
        "runs": lambda entry: figure_cell(max(1, len(entry.result.runs)), quantities.shown_value),
        "change": lambda entry: text_cell(None if entry.change is None else quantities.change(entry.change)),
        "software": lambda entry: text_cell(_software(entry)),
    }
    title = f"{series.label} · {quantities.spelled_metric(series.metric)}"
    return table_of("history", title, series.entries, columns, words=("when", "change", "software"))


def form(metric: str) -> quantities.Form:
    """Return the function that formats a metric's figures."""
    return quantities.seconds if metric.endswith("seconds") else quantities.rate


def _software(entry: HistoryEntry) -> str | None:
    gpu, config = entry.result.gpu_info, entry.result.training_config
    library, on, runtime = (config.framework or "").partition(" on ")  # the version is that of the library
    framework = " ".join(part for part in (library, config.framework_version) if part) + on + runtime
    stack = " ".join(part for part in (gpu.software_stack, gpu.software_version) if part)
    return ", ".join(part for part in (stack, framework) if part) or None


def render_csv(all_series: Sequence[Series]) -> str:
    """Return every benchmark of every series; numbers unrounded, unmeasured ones empty, text safe for a spreadsheet."""
    rows = [
        (
            series.label, entry.result.model.name, series.metric, entry.at,
            entry.figure.value, entry.figure.low, entry.figure.high, max(1, len(entry.result.runs)), entry.change,
            entry.result.platform, entry.result.gpu_info.device_name, entry.result.gpu_info.software_version,
            entry.result.gpu_info.pytorch_version, entry.result.training_config.framework_version, entry.file,
        )
        for series in all_series
        for entry in series.entries
    ]  # fmt: skip
    return csv_of(CSV_COLUMNS, rows)
