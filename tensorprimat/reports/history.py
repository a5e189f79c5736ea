"""A history as tables for the terminal, as CSV and JSON lines, and as a page of those lines."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tensorprimat.analysis.history import HistoryEntry, Series
from tensorprimat.core import quantities
from tensorprimat.core.errors import InputError
from tensorprimat.core.quantities import UNMEASURED
from tensorprimat.reports import formatting
from tensorprimat.reports.tables import Table, csv_of, figure_cell, table_of

_COMMIT = re.compile(r"\(git ([0-9a-f]{7,40})\)")
LARGEST_LINES_BYTES = 2**26
CSV_COLUMNS = (
    "series", "model", "metric", "timestamp", "value", "low", "high", "runs", "change", "platform", "device_name",
    "software_version", "pytorch_version", "framework_version", "file",
)  # fmt: skip


def series_table(series: Series) -> Table:
    """Return one series, oldest first."""
    shown = form(series.metric)
    rows = [
        {
            "when": quantities.moment(entry.at),
            "figure": figure_cell(entry.figure.value, shown),
            "interval": formatting.interval(entry.figure, shown),
            "runs": figure_cell(max(1, len(entry.result.runs)), quantities.shown_value),
            "change": None if entry.change is None else quantities.change(entry.change),
            "software": _software(entry),
        }
        for entry in series.entries
    ]
    title = f"{series.label} · {quantities.spelled_metric(series.metric)}"
    return table_of("history", title, rows, words=("when", "change", "software"))


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


def history_rows(all_series: Sequence[Series]) -> list[dict[str, Any]]:
    """Return a row for every benchmark of every series, with the content of a line of history.jsonl."""
    return [
        {
            "machine": f"{entry.result.provenance.host or 'unknown host'} · "
            f"{entry.result.gpu_info.device_name or 'unknown device'}",
            "series": series.label,
            "metric": series.metric,
            "at": entry.at,
            "value": entry.figure.value,
            "low": entry.figure.low,
            "high": entry.figure.high,
            "runs": max(1, len(entry.result.runs)),
            "change": entry.change,
            "software": _software(entry),
            "commit": _commit(entry),
            "file": entry.file,
        }
        for series in all_series
        for entry in series.entries
    ]


def _commit(entry: HistoryEntry) -> str | None:
    """Return the commit of the repository that was measured, or of the first package installed from one."""
    if entry.result.provenance.commit:
        return entry.result.provenance.commit
    found = (_COMMIT.search(version) for version in entry.result.training_config.versions.values())
    return next((match[1] for match in found if match), None)


def lines_of_history(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as JSON lines."""
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)


def rows_of_lines(text: str, path: Path) -> list[dict[str, Any]]:
    """Return the rows of a history.jsonl. Raises InputError for a line that is none."""
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            row = json.loads(line)
            known: dict[str, Any] = {"machine": str, "series": str, "metric": str, "value": (int, float)}
            if not all(isinstance(row.get(name), kind) for name, kind in known.items()):
                raise ValueError
            for name in ("value", "low", "high", "change"):
                row[name] = None if row.get(name) is None else float(row[name])
        except (ValueError, AttributeError, TypeError):
            raise InputError("not a line of a history", path=path, line=number, remedy="name a history.jsonl") from None
        rows.append(row)
    return rows


def render_history_page(rows: Sequence[Mapping[str, Any]], *, commit_url: str | None = None) -> str:
    """Return a page that any web host can serve: a chart and a table for each series, by machine.

    commit_url: address of a commit, with {} for its hash.
    """
    from tensorprimat.reports.html import history_page  # here: the other forms need no jinja2

    machines: dict[str, dict[tuple[str, str], list[Mapping[str, Any]]]] = {}
    for row in rows:
        machines.setdefault(row["machine"], {}).setdefault((row["series"], row["metric"]), []).append(row)
    listed = [
        (machine, [_chart(f"{label} · {quantities.spelled_metric(metric)}", metric, of_series, commit_url)
                   for (label, metric), of_series in all_series.items()])
        for machine, all_series in machines.items()
    ]  # fmt: skip
    metrics = quantities.listed(dict.fromkeys(quantities.spelled_metric(row["metric"]) for row in rows))
    return history_page(listed, metrics)


def _chart(title: str, metric: str, rows: Sequence[Mapping[str, Any]], commit_url: str | None) -> dict[str, Any]:
    """Return what the page shows of one series, oldest benchmark first."""
    shown = form(metric)
    ends = [value for row in rows for value in (row["value"], row.get("low"), row.get("high")) if value is not None]
    least, most = min(ends), max(ends)
    margin = (most - least) * 0.06 or abs(most) * 0.05 or 1.0
    bottom, top = least - margin, most + margin

    def height(value: float | None, other: float) -> float:
        return quantities.to_digits(100 * (top - (other if value is None else value)) / (top - bottom), 5)

    marks, cells = [], []
    for number, row in enumerate(rows):
        value, moved = row["value"], row.get("change")
        slower = moved is not None and (moved < 0) != metric.endswith("seconds")
        kind = "" if moved is None else "slower" if slower else "faster"
        place = 50.0 if len(rows) == 1 else 2 + 96 * number / (len(rows) - 1)
        marks.append({"kind": kind, "x": quantities.to_digits(place, 5), "y": height(value, value),
                      "low": height(row.get("low"), value), "high": height(row.get("high"), value)})  # fmt: skip
        commit = row.get("commit")
        link = commit_url.replace("{}", quote(commit)) if commit_url and commit else None
        interval = UNMEASURED
        if row.get("low") is not None and row.get("high") is not None:
            interval = f"{shown(row['low'])} to {shown(row['high'])}"
        cells.append({"when": quantities.moment(row.get("at")) or UNMEASURED, "figure": shown(value), "kind": kind,
                      "interval": interval, "runs": row.get("runs") or 1, "software": row.get("software") or "",
                      "change": "" if moved is None else quantities.change(moved), "commit": (commit or "")[:12],
                      "link": link})  # fmt: skip
    changes = sum(1 for mark in marks if mark["kind"])
    return {
        "title": title,
        "rows": cells,
        "marks": marks,
        "changes": changes,
        "top": shown(top),
        "bottom": shown(bottom),
    }
