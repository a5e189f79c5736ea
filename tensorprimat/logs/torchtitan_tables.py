"""Step times in torchtitan's metrics, as it hands them to TensorBoard and Weights & Biases.

`time_metrics/end_to_end(s)` is the time since the last row or validation over the log interval, but after a validation
and at the first row of a process fewer steps lie in it (torchtitan/components/metrics.py, 0.3.0). `throughput(tps)` is
a mean over the same time, so the product of both shows how many.
"""

from __future__ import annotations

import numpy as np

from tensorprimat.core.steady import median
from tensorprimat.core.steps import FloatArray, Steps
from tensorprimat.logs import fields

STEP_TIME = "time_metrics/end_to_end(s)"
LARGEST_DEVIATION = 0.05  # of a number of steps from a whole one


def with_step_times(steps: Steps, validations: np.ndarray) -> tuple[Steps, list[str]]:
    """Return the rows with the steps that each covers and the mean time of one, and a warning if that is unknown.

    validations: numbers of the steps after which a validation ran. If the rates contradict the number of steps, for
    example because the validations were not exported, the rows keep their rates alone.
    """
    interval = _interval(steps)
    if interval <= 1:
        return steps, []
    covers = fields.with_intervals(steps, extra_boundaries=validations.tolist()).column("covers")
    printed, rates = steps.column("seconds"), steps.column("reported_tokens_per_second_per_gpu")
    known = np.isfinite(printed) & np.isfinite(rates)
    if known.any():
        counted = _counted(interval * (printed * rates)[known], covers[known])
        if counted is None or counted.max() > interval:
            return steps.replace(seconds=np.full(len(steps), np.nan), covers=covers), [
                f"step_time: {STEP_TIME} divides the time between two rows by the log interval, and the rates show "
                "that a row holds another number of steps; the rates are the measurement"
            ]
        covers = covers.copy()
        covers[known] = counted
    return steps.replace(seconds=printed * interval / covers, covers=covers), []


def _interval(steps: Steps) -> int:
    """Return the log interval, the usual distance between rows; 1 if it is unknown.

    torchtitan logs the multiples of the interval, and the first step of every process.
    """
    index, segment = steps.column("index").astype(np.int64), steps.column("segment")
    later = np.flatnonzero(np.diff(segment, prepend=-1) == 0)
    distances = np.diff(index)[later[1:] - 1] if len(later) > 1 else index[later]
    distances = distances[distances > 0]
    if not len(distances):
        return 1
    known, counts = np.unique(distances, return_counts=True)
    return int(known[counts.argmax()])


def _counted(tokens: FloatArray, covers: np.ndarray) -> np.ndarray | None:
    """Return the steps of each row by its tokens, where most rows hold the steps that their numbers show; None if a
    row would hold a fraction of a step.

    >>> _counted(np.array([100.0, 500.0, 200.0, 500.0, 500.0]), np.array([1, 5, 5, 5, 5]))
    array([1, 5, 2, 5, 5])
    >>> _counted(np.array([100.0, 510.0, 770.0]), np.array([5, 5, 5]))
    """
    exact = tokens / median(tokens / covers)
    whole = np.rint(exact).astype(np.int64)
    return whole if (whole >= 1).all() and (np.abs(exact - whole) < LARGEST_DEVIATION).all() else None
