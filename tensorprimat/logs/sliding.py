"""Rates that are means over a sliding window of steps, as Composer prints them: rows whose windows do not overlap.

The windows of consecutive rows share all steps but one, so their spread is far below that of single steps. One row per
window counts every step once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tensorprimat.core.notices import Notice
from tensorprimat.core.steps import FloatArray, Steps
from tensorprimat.logs import fields


class Window(NamedTuple):
    """Bounds of the number of steps in a window; equal where the log shows it exactly."""

    least: int
    most: int


def without_overlap(steps: Steps, *, late: bool = False) -> tuple[Steps, list[str]]:
    """Return the rows with times and rates only where windows do not overlap, and a warning that says so.

    Each of these rows covers its window. The others keep their loss and memory; those inside a window cover no step.
    late: see `_window_of`.
    """
    timed = _timed(steps)
    if not timed.any():
        return steps, []
    window = _window_of(steps, late=late)
    if window is None:
        return steps, [Notice("windows_unknown", "steps")]
    index, segment = steps.column("index"), steps.column("segment")
    kept = np.zeros(len(steps), bool)
    last = last_segment = -1
    for row in np.flatnonzero(timed).tolist():
        if segment[row] != last_segment or index[row] - last >= window.most:
            kept[row], last, last_segment = True, int(index[row]), int(segment[row])
    measures = {name: np.where(kept, steps.column(name), np.nan) for name in fields.MEASURES if steps.has(name)}
    rate = steps.column("reported_tokens_per_second")
    tokens = np.where(kept, _means(steps, window.least), steps.column("tokens"))
    if steps.has("tokens"):
        measures |= {"tokens": tokens, "seconds": np.where(kept, tokens / rate, np.nan)}
    size = str(window.most) if window.least == window.most else f"{window.least} to {window.most}"
    unused = int(timed.sum() - kept.sum())
    left_out = f"; {unused} of {int(timed.sum())} rows are left out, whose windows overlap others" if unused else ""
    covers = np.where(kept, window.least, ~_inside(steps, kept, window.least))
    return steps.replace(covers=covers, **measures), [Notice("windows", "steps", size=size, left_out=left_out)]


def _window_of(steps: Steps, *, late: bool = False) -> Window | None:
    """Return the bounds of the window, from the rows without a rate at the beginning of a process, or None.

    A rate is printed once the window is full, and the first step of a process only starts its clock. Of several
    processes the widest bounds count. late: a table may contain a rate under the number of the step after its window.

    >>> from tensorprimat.core.steps import Step
    >>> row = lambda index, rate=None: Step(index=index, seconds=None, reported_tokens_per_second=rate)
    >>> _window_of(Steps.of([row(21), row(22), row(23), row(24, 9.0), row(25, 9.0)]))
    Window(least=3, most=3)
    >>> _window_of(Steps.of([row(1), row(10), row(20, 9.0), row(30, 9.0)]))  # every tenth step is printed
    Window(least=10, most=19)
    """
    index, segment, timed = steps.column("index"), steps.column("segment"), _timed(steps)
    found = []
    for number in np.unique(segment).tolist():
        rows = np.flatnonzero(segment == number)
        first = int(np.argmax(timed[rows]))
        if first > 0 and timed[rows[first]]:
            found.append(_bounds(index[rows[: first + 1]].tolist()))
    if not found:
        return None
    least = max(one.least for one in found) - late
    return Window(max(least, 1), max(one.most for one in found))


def _bounds(numbers: list[int]) -> Window:
    """Return the bounds of a window that is full at the last of these steps and was not full at those before."""
    first, last, rated = numbers[0], numbers[-2], numbers[-1]
    distance = rated - last
    begins = first if distance == 1 or first == 1 else first - distance + 1  # the process may begin before its rows
    return Window(last - first + 1, rated - begins)


def _timed(steps: Steps) -> np.ndarray:
    """Return True for each row with a time or a rate; shape (rows,)."""
    return np.asarray(np.any([np.isfinite(steps.column(name)) for name in fields.MEASURES], axis=0))


def _inside(steps: Steps, kept: np.ndarray, window: int) -> np.ndarray:
    """Return True for each row whose step is in the window of a kept row at or behind it; shape (rows,)."""
    index, segment = steps.column("index"), steps.column("segment")
    following = np.append(np.flatnonzero(kept), len(index))
    ends = following[np.searchsorted(following, np.arange(len(index)))]  # the position of the kept row
    known = np.minimum(ends, len(index) - 1)
    return np.asarray((ends < len(index)) & (segment[known] == segment) & (index > index[known] - window))


def _means(steps: Steps, window: int) -> FloatArray:
    """Return the mean tokens of the steps in the window of each row, of those that are known; shape (rows,)."""
    index, segment, tokens = steps.column("index"), steps.column("segment"), steps.column("tokens")
    known = np.isfinite(tokens)
    sums, counts = np.append(0.0, np.cumsum(np.where(known, tokens, 0.0))), np.append(0, np.cumsum(known))
    numbers = index + segment * (int(index.max(initial=0)) + 1)  # ascending over the stretches
    begins = np.maximum(np.searchsorted(numbers, numbers - window, side="right"), np.searchsorted(segment, segment))
    ends = np.arange(1, len(index) + 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((sums[ends] - sums[begins]) / (counts[ends] - counts[begins]))
