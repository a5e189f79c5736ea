"""A history as tables for the terminal and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from tensorprimat.analysis.history import HistoryEntry, Series
from tensorprimat.core import quantities
from tensorprimat.core.safe_text import csv_cell
from tensorprimat.reports import formatting
from tensorprimat.reports.tables import Cell, Column, Table, figure, text

COLUMNS = ("when", "figure", "interval", "runs", "change", "software")
CSV_COLUMNS = (
    "series", "model", "metric", "timestamp", "value", "low", "high", "runs", "change", "platform", "device_name",
    "software_version", "pytorch_version", "framework_version", "file",
)  # fmt: skip


def table(series: Series) -> Table:
    """Return one series, oldest first."""
    return Table(
        key="history",
        title=f"{series.label} · {quantities.spelled_metric(series.metric)}",
        columns=tuple(Column(title=title, numeric=title in ("figure", "interval", "runs")) for title in COLUMNS),
        rows=tuple(_row(entry, series.metric) for entry in series.entries),
    )


def form(metric: str) -> quantities.Form:
    """Return the function that formats a metric's figures."""
    return quantities.seconds if metric.endswith("seconds") else quantities.rate


def _row(entry: HistoryEntry, metric: str) -> tuple[Cell, ...]:
    return (
        text(quantities.moment(entry.at)),
        figure(entry.figure.value, form(metric)),
        text(formatting.interval(entry.figure, form(metric))),
        Cell(text=str(max(1, len(entry.result.runs))), value=max(1, len(entry.result.runs))),
        text(None if entry.change is None else quantities.change(entry.change)),
        text(_software(entry)),
    )


def _software(entry: HistoryEntry) -> str | None:
    gpu, config = entry.result.gpu_info, entry.result.training_config
    framework = " ".join(part for part in (config.framework, config.framework_version) if part)
    stack = " ".join(part for part in (gpu.software_stack, gpu.software_version) if part)
    return ", ".join(part for part in (stack, framework) if part) or None


def render_csv(all_series: Sequence[Series]) -> str:
    """Return every benchmark of every series; numbers unrounded, unmeasured ones empty, text safe for a spreadsheet."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for series in all_series:
        for entry in series.entries:
            gpu, estimate = entry.result.gpu_info, entry.figure
            row = (
                series.label, entry.result.model.name, series.metric, entry.at,
                estimate.value, estimate.low, estimate.high,
                max(1, len(entry.result.runs)), entry.change, entry.result.platform, gpu.device_name,
                gpu.software_version, gpu.pytorch_version, entry.result.training_config.framework_version, entry.file,
            )  # fmt: skip
            writer.writerow(["" if v is None else csv_cell(v) if isinstance(v, str) else repr(v) for v in row])
    return buffer.getvalue()
