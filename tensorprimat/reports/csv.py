"""The tables comparison.csv and enhanced_metrics.csv: one row per side, one column per figure, for data frames.

Numbers are unrounded and unmeasured ones are empty; text that a spreadsheet would run as a formula is quoted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import attrgetter

from tensorprimat.analysis.records import Comparison, Pair, Side
from tensorprimat.core.result import MEMORY_KINDS
from tensorprimat.reports import formatting
from tensorprimat.reports.json import metrics_document
from tensorprimat.reports.sections import COMPARISON, Report
from tensorprimat.reports.tables import csv_of

CsvValue = float | int | str | bool | None


def _estimate(name: str) -> dict[str, Callable[[Side], CsvValue]]:
    ends = {"": "value", "_low": "low", "_high": "high"}
    return {f"{name}{suffix}": attrgetter(f"{name}.{end}") for suffix, end in ends.items()}


_COLUMNS: Mapping[str, Callable[[Side], CsvValue]] = {
    "side": lambda side: side.label,
    "model": lambda side: side.result.model.name,
    "preset": lambda side: side.result.model.preset,
    "model_title": lambda side: formatting.model_title(side.result.model),
    "platform": lambda side: side.result.platform,
    "device_name": lambda side: side.result.gpu_info.device_name,
    "num_gpus": lambda side: side.result.training_config.num_gpus,
    "precision": lambda side: side.result.training_config.precision,
    "sequence_length": lambda side: side.result.training_config.sequence_length,
    "global_batch_size": lambda side: side.result.training_config.global_batch_size,
    "micro_batch_size": lambda side: side.result.training_config.micro_batch_size,
    "runs": lambda side: len(side.result.runs),
    "measured_steps": lambda side: side.result.performance_metrics.measured_steps,
    **_estimate("step_time_seconds"),
    **_estimate("tokens_per_second"),
    **_estimate("tokens_per_second_per_gpu"),
    "basis": lambda side: side.result.performance_metrics.basis,
    **{
        key: lambda side, key=key: getattr(side.result.memory_metrics, key, None)  # type: ignore[misc]
        for key in (f"peak_{kind}_gb" for kind in MEMORY_KINDS)
    },
    "host_memory_peak_gb": lambda side: side.result.host_memory_peak_gb,
    "timestamp": lambda side: side.result.timestamp,
    "files": lambda side: "; ".join(side.files),
}
PAIR_COLUMNS = ("baseline", "fairness", "metric", "ratio", "ratio_low", "ratio_high", "verdict", "conditions")
"""Columns of the comparison with the baseline; only the rows of candidates have values in them."""


def _metrics(comparison: Comparison) -> str:
    """Return the flat values of enhanced_metrics.json."""
    rows = [{**row, "files": "; ".join(row["files"])} for row in metrics_document(comparison)["results"]]
    columns = [key for key in rows[0] if key not in ("metrics", "figures", "origins")]
    return csv_of(columns, ([row[key] for key in columns] for row in rows))


def render(comparison: Comparison, report: Report = COMPARISON) -> str:
    if report.of_metrics:
        return _metrics(comparison)
    rows = []
    for side in comparison.sides:
        pair = next((pair for pair in comparison.pairs if pair.candidate is side), None)
        row = (*(read(side) for read in _COLUMNS.values()), *_against_baseline(pair))
        rows.append([None if isinstance(value, float) and not math.isfinite(value) else value for value in row])
    return csv_of((*_COLUMNS, *PAIR_COLUMNS), rows)


def _against_baseline(pair: Pair | None) -> tuple[CsvValue, ...]:
    if pair is None:
        return (None,) * len(PAIR_COLUMNS)
    shown = pair.ratio if pair.fairness.verdict != "not_comparable" else None
    if shown is None:
        verdict = "not_comparable" if pair.fairness.verdict == "not_comparable" else None
        return (pair.baseline.label, pair.fairness.verdict, None, None, None, None, verdict, None)
    estimate = shown.estimate
    return (
        pair.baseline.label, pair.fairness.verdict, shown.metric, estimate.value, estimate.low, estimate.high,
        shown.verdict, ", ".join(pair.fairness.conditions) or None,
    )  # fmt: skip
