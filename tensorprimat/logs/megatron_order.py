"""Iteration lines in the order of a log as optimizer steps: duplicates, restarts, log intervals, interruptions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensorprimat.core.steps import INTERRUPTIONS, FloatArray

SAME_CLOCK = 0.01  # two ranks time one iteration to within a per cent; a restarted iteration is slower by far
TIMER_STOOD = 1.5  # seconds beyond what dates rounded to a second can hide

Mask = NDArray[np.bool_]


def segments_of(
    index: FloatArray, content: list[FloatArray], rank: FloatArray | None, seconds: FloatArray
) -> tuple[Mask, NDArray[np.int64]]:
    """Which lines are steps of their own, and the stretch between restarts that each belongs to; both (lines,).

    A line that repeats an earlier one of its stretch to the last digit (Ray, tee, Primus' console), or tells the
    iteration just told by another rank's clock, is no step. Any other iteration number that does not grow is a restart.
    """
    kept, segment = np.ones(len(index), np.bool_), np.zeros(len(index), np.int64)
    if len(index) < 2 or (np.diff(index) > 0).all():
        return kept, segment
    now, last = 0, 0
    seen: dict[float, set[tuple[float, ...]]] = {}
    rows = np.column_stack([np.nan_to_num(column, nan=-1.0) for column in content]).tolist()
    for position, (number, row) in enumerate(zip(index.tolist(), rows, strict=True)):
        content_of_row = tuple(row)
        repeated = content_of_row in seen.get(number, ())
        if position and not repeated and number <= index[last]:
            repeated = number == index[last] and _is_same_moment(position, last, rank, seconds)
            if not repeated:
                now += 1
                seen.clear()
        seen.setdefault(number, set()).add(content_of_row)
        kept[position], segment[position] = not repeated, now
        if not repeated:
            last = position
    return kept, segment


def _is_same_moment(one: int, other: int, rank: FloatArray | None, seconds: FloatArray) -> bool:
    if rank is not None and np.isfinite(rank[[one, other]]).all() and rank[one] != rank[other]:
        return True
    return bool(abs(seconds[one] - seconds[other]) <= SAME_CLOCK * seconds[other])


def covers_of(index: FloatArray, segment: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many optimizer steps each line averages: the log interval, as the distances of iterations tell it.

    A greater distance means that lines were lost, not that a line averages more. The first line of a stretch averages
    what lies before it, up to the interval.
    """
    if not len(index):
        return np.ones(0, np.int64)
    distance = np.diff(index, prepend=0.0)
    first = np.diff(segment, prepend=-1) != 0
    inside = distance[~first]
    if not len(inside):
        interval = 1.0
    elif (inside == inside[0]).all():
        interval = float(inside[0])
    else:
        values, counts = np.unique(inside, return_counts=True)
        interval = float(values[np.argmax(counts)])
    distance[first] = index[first]
    return np.maximum(np.minimum(distance, interval), 1).astype(np.int64)


def interrupted_rows(
    events: list[tuple[int, str]],
    *,
    line: FloatArray,
    segment: NDArray[np.int64],
    span: FloatArray,
    ended_at: FloatArray | None,
) -> NDArray[np.int8]:
    """What else lies inside the time of each line, as positions in INTERRUPTIONS; (lines,).

    events: (line number, "validation" or "checkpoint"); each falls into the interval of the next iteration line.
    span: seconds of the whole interval as the framework timed it. Megatron-LM stopped its interval timer for neither
    until 2023, for validation from 2024 on, for checkpoints from 2025 on; which of them wrote a log shows in the dates:
    where the dates are further apart than the timed interval, the timer stood still and the line is a clean one.
    """
    interrupted = np.zeros(len(line), np.int8)
    if not events or not len(line):
        return interrupted
    following = np.searchsorted(line, [number for number, _ in events])
    for position, (_, kind) in zip(following.tolist(), events, strict=True):
        if position < len(line):
            interrupted[position] = INTERRUPTIONS.index(kind)
    if ended_at is not None:
        apart = np.diff(ended_at, prepend=np.nan)
        apart[np.diff(segment, prepend=-1) != 0] = np.nan
        interrupted[apart - span > TIMER_STOOD] = 0
    return interrupted
