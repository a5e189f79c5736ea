"""The interval of one run's mean, compared with other ways to estimate it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import stdtrit

from perf.calibration_counts import FEWEST_SPOKEN, OneRunCount
from perf.calibration_worlds import Floats, Process
from tensorprimat.analysis import stats
from tensorprimat.analysis.estimates import changed_level
from tensorprimat.core.warmup import find_warmup


def _independent(series: Floats) -> Floats:
    return np.asarray(stdtrit(series.shape[1] - 1, 0.975) * series.std(axis=1, ddof=1) / math.sqrt(series.shape[1]))


def _batch_means(series: Floats, batches: int = 10) -> Floats:
    whole = series.shape[1] // batches * batches
    return _independent(series[:, :whole].reshape(len(series), batches, -1).mean(axis=2))


def _plugged_in(series: Floats) -> Floats:
    """Return half the interval of an AR(1) series: φ corrected for bias, degrees of freedom by effective rows."""
    rows = series.shape[1]
    x = series - series.mean(axis=1, keepdims=True)
    phi = (x[:, 1:] * x[:, :-1]).sum(axis=1) / (x * x).sum(axis=1)
    phi = np.clip(phi + (1 + 4 * phi) / rows, 0, 0.95)
    inflation = (1 + phi) / (1 - phi)
    degrees = np.maximum(rows / inflation - 1, 1)
    return np.asarray(stdtrit(degrees, 0.975) * series.std(axis=1, ddof=1) * np.sqrt(inflation / rows))


ALTERNATIVES: dict[str, Callable[[Floats], Floats]] = {
    "independent steps": _independent,
    "10 batch means": _batch_means,
    "AR(1), one φ": _plugged_in,
}


def one_run(process: Process, rows: int, random: np.random.Generator, count: int) -> OneRunCount:
    """Return how often the interval of single runs contains their true mean, computed as for a real run."""
    of_length: dict[int, list[Floats]] = {}
    carried: dict[int, list[float]] = {}
    for run in process.draw(random, (count, rows)):
        warmup = find_warmup([run])
        start = warmup.runs[0].start
        if rows - start >= stats.FEWEST_SHOWN and warmup.settled and not changed_level(run, start):
            of_length.setdefault(rows - start, []).append(run[start:])
            carried.setdefault(rows - start, []).append(warmup.drift)
    held: list[Floats] = []
    for length, runs in of_length.items():
        series = np.array(runs)
        means = series.mean(axis=1)
        relative = series / means[:, None] - 1
        drift = stats.student(0.95, math.inf) * np.array(carried[length])
        half_widths = np.hypot(stats.half_widths_of_series(relative)[0], drift)
        tried = (half_width(relative) for half_width in ALTERNATIVES.values())
        held.append(np.array([np.abs(np.log(means)) < half for half in (half_widths, *tried)], np.float64))
    every = np.concatenate(held, axis=1) if held else np.empty((1 + len(ALTERNATIVES), 0))
    shown = every.shape[1] / count
    known = every.mean(axis=1) if shown >= FEWEST_SPOKEN else np.full(1 + len(ALTERNATIVES), np.nan)
    return OneRunCount(
        name=process.name, rows=rows, shown=shown, coverage=float(known[0]), others=tuple(map(float, known[1:]))
    )
