"""Refusal of logs that are written from the newest line to the oldest, as log services list their entries by default.

Each row of such a log would be a restart. A row of MLPerf would even be timed by the marks of another block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorprimat.core.errors import InputError
from tensorprimat.core.steps import Steps
from tensorprimat.logs.text import Log

_LEAST_ROWS = 3  # whose order says something
MOSTLY = 0.8  # of the lines go back; those of several ranks or restarts do so far less often


def goes_back(values: Sequence[float] | np.ndarray) -> bool:
    """Return True if numbers or times, in the order of their lines, fall at nearly every change. NaN is left out."""
    known = np.asarray(values, np.float64)
    growth = np.diff(known[np.isfinite(known)])
    growth = growth[growth != 0]  # ranks, and marks of one moment, repeat a value
    return len(growth) >= _LEAST_ROWS - 1 and bool(np.mean(growth < 0) >= MOSTLY)


def refuse_steps(log: Log, steps: Steps) -> None:
    """Raise InputError if the numbers of the rows go back. Dates are not compared: they may be of several logs."""
    lines = steps.column("line")
    order = np.argsort(lines[lines > 0], kind="stable")
    if goes_back(steps.column("index")[lines > 0][order]):
        raise refusal(log)


def refusal(log: Log) -> InputError:
    """Return the error for a log whose lines go from the newest to the oldest."""
    remedy = "put the oldest first: tac LOG, or gcloud logging read --order=asc"
    return InputError("its rows go from the newest to the oldest", path=log.name, remedy=remedy)
