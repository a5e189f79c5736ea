"""The history of one machine and model: a figure from one benchmark to the next, with changes detected.

A series is every benchmark of one host and device with one model and configuration. Versions of drivers and frameworks
may differ, because their effect is the reason for reading a history. A benchmark is a change if it differs from the
stretch of equal benchmarks before it by more than two kinds of variation allow (99 %): that of the runs within a
benchmark, and that between benchmarks, which days and reboots increase. The latter is the median moving range
(Shewhart's chart of individuals), which a few changes do not inflate. A change begins a new stretch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensorprimat.analysis import stats
from tensorprimat.analysis.estimates import estimate_figure, positive_figure
from tensorprimat.analysis.records import Estimate
from tensorprimat.analysis.sides import device_label, distinct_labels, paired_model, single_side, usable_results
from tensorprimat.core import identity
from tensorprimat.core.errors import InputError
from tensorprimat.core.moments import seconds_since_1970
from tensorprimat.core.result import Result
from tensorprimat.core.steady import NORMAL_MAD, RESOLUTION, SIGNIFICANCE
from tensorprimat.storage.store import Loaded

METRICS = ("tokens_per_second_per_gpu", "tokens_per_second", "samples_per_second", "avg_step_time_seconds")
CONFIDENCE = 0.95  # of the interval of an entry
FEWEST_MOVES = 4  # from benchmark to benchmark, before their median means anything


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """One benchmark of a series."""

    at: str | None
    file: str
    result: Result
    figure: Estimate
    change: float | None
    """Relative change from the stretch before; None if none is shown."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One machine, model and configuration over time."""

    label: str
    """Device, model, and further properties that distinguish it."""
    metric: str
    entries: tuple[HistoryEntry, ...]


def metric_history(loaded: Sequence[Loaded], *, metric: str = METRICS[0]) -> tuple[list[Series], list[str]]:
    """Return series of a metric, oldest benchmark first, and a sentence for every result left out.

    Raises InputError where no result has the metric.
    """
    items, warnings = usable_results(_oldest_first(loaded))
    items = _oldest_first(items)  # a result without its copies of earlier runs begins with a later one
    unmeasured = [item for item in items if positive_figure(item.result, metric) is None]
    warnings += [f"{item.path.name}: left out because it has no {metric}" for item in unmeasured]
    members: dict[tuple[object, ...], list[Loaded]] = {}
    for item in items:
        if item not in unmeasured:
            machine_and_work = (item.result.provenance.host, *identity.signature(item.result, context=False))
            members.setdefault(machine_and_work, []).append(item)
    if not members:
        raise InputError(f"no complete result has {metric}; choose another --metric, or run ./benchmark.py first")
    firsts = [series[0].result for series in members.values()]
    names = [f"{device_label(first)} · {paired_model(first)}" for first in firsts]
    labels = distinct_labels(names, firsts, [series[0].path for series in members.values()])
    return [
        Series(label=label, metric=metric, entries=_entries(series, metric))
        for label, series in zip(labels, members.values(), strict=True)
    ], warnings


def number_left_out(loaded: Sequence[Loaded], all_series: Sequence[Series]) -> int:
    """Return how many results are in no series of `metric_history`."""
    return len(loaded) - sum(len(series.entries) for series in all_series)


def _oldest_first(loaded: Sequence[Loaded]) -> list[Loaded]:
    moments = {id(item): seconds_since_1970(_moment(item.result)) for item in loaded}
    return sorted(loaded, key=lambda item: (moments[id(item)] is None, moments[id(item)] or 0.0, item.path))


def _moment(result: Result) -> str | None:
    """Return the start time of a result's first remaining run, else the time of the result."""
    return next((run.started_at for run in result.runs if run.started_at), result.timestamp)


def _entries(series: Sequence[Loaded], metric: str) -> tuple[HistoryEntry, ...]:
    groups = [single_side(item.result) for item in series]
    logs = [[math.log(one) for run in group.runs if (one := positive_figure(run, metric))] for group in groups]
    return tuple(
        HistoryEntry(
            at=_moment(item.result),
            file=str(item.path),
            result=item.result,
            figure=estimate_figure(group, metric, assume_run_cv=None, confidence=CONFIDENCE),
            change=change,
        )
        for item, group, change in zip(series, groups, _changes(logs), strict=True)
    )


def _changes(logs: Sequence[Sequence[float]]) -> list[float | None]:
    """Return the relative change of each benchmark from the stretch before it; None if none is shown.

    logs: logarithms of the run figures of every benchmark, in the order of time, at least one each.
    """
    means = np.array([float(np.mean(runs)) for runs in logs])
    between, between_degrees = _between(means)
    within, within_degrees = _within(logs)
    found: list[float | None] = []
    start = 0
    for place, runs in enumerate(logs):
        stretch = means[start:place]
        change = None
        if len(stretch):
            runs_before = sum(len(earlier) for earlier in logs[start:place])
            allowed = max(
                _allowed(between, between_degrees) * math.sqrt(1 + 1 / len(stretch)),
                _allowed(within, within_degrees) * math.sqrt(1 / len(runs) + 1 / runs_before),
            )
            moved = float(means[place] - stretch.mean())
            if allowed and abs(moved) > allowed:
                change, start = math.expm1(moved), place
        found.append(change)
    return found


def _between(means: np.ndarray) -> tuple[float, int]:
    """Return the standard deviation between benchmarks and its degrees of freedom; (0, 0) for too few benchmarks."""
    moves = np.abs(np.diff(means))
    if len(moves) < FEWEST_MOVES:
        return 0.0, 0
    deviation = max(NORMAL_MAD * float(np.median(moves)) / math.sqrt(2), RESOLUTION)
    return deviation, len(moves) // 2  # a median is about as certain as a mean of half the values


def _within(logs: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the standard deviation of runs within benchmarks, taken together; (0, 0) where no benchmark has two."""
    degrees = sum(len(runs) - 1 for runs in logs)
    if not degrees:
        return 0.0, 0
    squares = sum(float(((np.array(runs) - np.mean(runs)) ** 2).sum()) for runs in logs)
    return max(math.sqrt(squares / degrees), RESOLUTION), degrees


def _allowed(scatter: float, degrees: int) -> float:
    return stats.student(1 - SIGNIFICANCE, degrees) * scatter if degrees else 0.0
