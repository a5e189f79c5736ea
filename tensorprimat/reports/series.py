"""Step times and losses as curves, thinned for the plots and the interactive report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorprimat.analysis.records import Side
from tensorprimat.core.steps import FloatArray, Steps, distinct
from tensorprimat.core.summary import select_measured
from tensorprimat.core.units import GIGA

_MOST_CURVES = 40  # of a side: more lines on top of each other show nothing more


@dataclass(frozen=True, kw_only=True)
class StepCurve:
    """The rows of one run, in their order. All arrays have shape (rows,)."""

    run: int
    """Index of the repetition, from 0."""
    step: NDArray[np.int64]
    """Optimizer steps since the start of the run, this row included: the horizontal axis of every plot."""
    seconds: FloatArray
    """Step time; NaN where the row has none."""
    loss: FloatArray
    measured: NDArray[np.bool_]
    """True if the row counts: not warm-up, not interrupted, not in another segment."""
    warmup_steps: int
    """Last step of the warm-up."""
    index: NDArray[np.int64]
    """The step's number as the framework counts."""
    line: NDArray[np.int64]
    """Line of the log, -1 where unknown."""
    power: FloatArray
    """W per GPU."""
    clock: FloatArray
    """GHz of the compute units."""
    temperature: FloatArray
    """°C of the hottest GPU."""


def curves(side: Side) -> tuple[StepCurve, ...]:
    """Return one curve per run of a side, of the first _MOST_CURVES runs; none where its result contains no steps."""
    steps = side.result.steps
    every_run = steps.column("run")
    if len(numbers := distinct(every_run)) > _MOST_CURVES:
        steps = steps.take(np.isin(every_run, numbers[:_MOST_CURVES]))
    selections = select_measured(steps, warmup_steps=side.result.training_config.warmup_steps)
    return tuple(_curve(steps, selection.run, selection.rows) for selection in selections)


def has_course(drawn: Iterable[StepCurve]) -> bool:
    """Return True if there are step times to draw over the steps; one row for a whole run has no course."""
    return any(int(np.isfinite(curve.seconds).sum()) > 1 for curve in drawn)


def _curve(steps: Steps, run: int, measured_rows: np.ndarray) -> StepCurve:
    rows = np.flatnonzero(steps.column("run") == run)
    measured = np.isin(rows, measured_rows)
    step = np.cumsum(steps.column("covers")[rows])
    first = int(np.argmax(measured)) if measured.any() else len(rows)
    return StepCurve(
        run=run,
        step=step,
        seconds=steps.column("seconds")[rows],
        loss=steps.column("loss")[rows],
        measured=measured,
        warmup_steps=int(step[first - 1]) if first else 0,
        index=steps.column("index")[rows],
        line=steps.column("line")[rows],
        power=steps.column("power_watts_per_gpu")[rows],
        clock=steps.column("clock_hertz")[rows] / GIGA,
        temperature=steps.column("temperature_celsius")[rows],
    )


def thinned(values: FloatArray, limit: int) -> NDArray[np.int64]:
    """Return positions of about `limit` rows that draw the same curve: the lowest and the highest of each interval.

    An outlier is an extreme of its interval, so none is lost; the first and the last row stay too.
    """
    if len(values) <= limit:
        return np.arange(len(values))
    stretches = np.array_split(np.arange(len(values)), max(1, limit // 2))
    keep = {0, len(values) - 1}
    for stretch in stretches:
        seen = stretch[np.isfinite(values[stretch])]
        if len(seen):
            keep.add(int(seen[np.argmin(values[seen])]))
            keep.add(int(seen[np.argmax(values[seen])]))
    return np.array(sorted(keep))
