"""Iteration lines in the order of a log as optimizer steps: duplicates, restarts, log intervals, interruptions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tensorprimat.audit.evidence import FINEST
from tensorprimat.core.steps import INTERRUPTIONS, FloatArray
from tensorprimat.logs.fields import fits_interval, usual_distance
from tensorprimat.logs.repeats import Repeats

SAME_CLOCK = 0.01  # two ranks time one iteration to within a per cent; a restarted iteration is slower by far
TIMER_STOOD = 1.5  # seconds by which two dates must exceed the timed interval if the timer stopped; rounding gives 1
_SLOW_START = 2.0  # times the level of the later rows: without dates, a first iteration must take this long
NEAR_DATE = 0.25  # relative difference allowed between the dates of two lines and the time of the second iteration
NEAR_LEVEL = 3.0  # a second iteration takes between a third of the level of the later rows and three times it

Mask = NDArray[np.bool_]


def segments_of(
    index: FloatArray, content: list[FloatArray], rank: FloatArray | None, seconds: FloatArray
) -> tuple[Mask, NDArray[np.int64]]:
    """Return a mask of the lines that are steps, and the number of each line's segment between restarts, both (lines,).

    A line is not a step if it repeats an earlier one of its segment to the last digit (Ray, tee, Primus' console), or
    reports the same iteration by another rank's clock. Any other iteration number that does not grow is a restart.
    """
    kept, segment = np.ones(len(index), np.bool_), np.zeros(len(index), np.int64)
    breaks = [*(np.flatnonzero(np.diff(index) <= 0) + 1).tolist(), len(index)]
    event = _Told(index, content)
    position = last = 0
    while position < len(index):
        number = index[position]
        if position == 0 or number > index[last]:  # all of a stretch that grows is new
            following = breaks[bisect_right(breaks, position)]
            event.add_stretch(position, following)
            position, last = following, following - 1
            continue
        repeated = event.knows(position)
        if not repeated and number == index[last]:
            repeated = _is_same_moment(position, last, rank, seconds)
        if repeated:
            kept[position] = False
            event.add_again(position)
        else:
            segment[position:] += 1
            event = _Told(index, content)
            event.add_stretch(position, position + 1)
            last = position
        position += 1
    return kept, segment


def repeated_lines(fields: Mapping[str, FloatArray], kept: Mask) -> list[str]:
    """Return a warning if lines that are not kept contradict the line of their iteration right before them.

    fields: of all lines. Lines of two known ranks are not compared: on all but one, the loss may be that of a part.
    """
    index, rank, loss = (fields.get(name) for name in ("index", "rank", "loss"))
    if index is None or loss is None:
        return []
    first = np.maximum.accumulate(np.where(kept, np.arange(len(kept)), 0))
    others = ~kept & (index == index[first]) & (loss != loss[first])
    if rank is not None:
        others &= ~(np.isfinite(rank) & np.isfinite(rank[first]) & (rank != rank[first]))
    found = Repeats()
    for place in np.flatnonzero(others).tolist():
        before = int(first[place])
        lines = int(fields["line"][before]), int(fields["line"][place])
        found.add_losses(float(loss[before]), float(loss[place]), step=int(index[place]), lines=lines)
    return list(found.warnings())


class _Told:
    """Lines seen so far in one segment between restarts, to recognise lines that repeat them."""

    def __init__(self, index: FloatArray, content: list[FloatArray]) -> None:
        self._index, self._content = index, content
        self._first_numbers: list[float] = []
        self._stretches: list[tuple[int, int]] = []
        """(start, stop) positions of new lines, in the order of their iteration numbers."""
        self._again: dict[float, set[tuple[float, ...]]] = {}
        """Iteration number → values of further lines with that number, by another rank's clock."""

    def add_stretch(self, start: int, stop: int) -> None:
        """Add lines whose numbers grow and exceed all earlier ones."""
        self._first_numbers.append(float(self._index[start]))
        self._stretches.append((start, stop))

    def add_again(self, position: int) -> None:
        """Add a line whose number was seen before."""
        self._again.setdefault(float(self._index[position]), set()).add(self._content_of(position))

    def knows(self, position: int) -> bool:
        """Return True if an earlier line has the same number and the same values to the last digit."""
        number, content = float(self._index[position]), self._content_of(position)
        if content in self._again.get(number, ()):
            return True
        place = bisect_right(self._first_numbers, number) - 1
        if place < 0:
            return False
        start, stop = self._stretches[place]
        found = start + int(np.searchsorted(self._index[start:stop], number))
        return found < stop and self._index[found] == number and self._content_of(found) == content

    def _content_of(self, position: int) -> tuple[float, ...]:
        return tuple(-1.0 if np.isnan(column[position]) else float(column[position]) for column in self._content)


def _is_same_moment(one: int, other: int, rank: FloatArray | None, seconds: FloatArray) -> bool:
    if rank is not None and np.isfinite(rank[[one, other]]).all() and rank[one] != rank[other]:
        return True
    return bool(abs(seconds[one] - seconds[other]) <= SAME_CLOCK * seconds[other])


def covers_of(index: FloatArray, segment: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of optimizer steps that each line averages, from the distances between iteration numbers.

    A greater distance means that lines were lost, not that a line averages more. The first line of a segment averages
    the steps before it, up to the log interval. Since 0.16, Megatron-Core prints the first iteration without resetting
    its timer, so the line at the end of its interval averages that iteration once more: the first line covers none.
    """
    if not len(index):
        return np.ones(0, np.int64)
    distance = np.diff(index, prepend=0.0)
    first = np.diff(segment, prepend=-1) != 0
    distances = distance[1:] if not first[1:].any() else distance[~first]
    interval = usual_distance(distances)
    interval = interval if fits_interval(interval, index) else 1
    distance[first] = index[first]
    covers = np.clip(distance, 1, max(interval, 1), out=distance).astype(np.int64)
    for row in np.flatnonzero(first[:-1] & ~first[1:]) if interval > 1 else ():
        if (index[row] - 1) % interval == 0 and index[row + 1] - index[row] == interval - 1:
            covers[row], covers[row + 1] = 0, interval
    return covers


def with_first_iteration(
    covers: NDArray[np.int64],
    segment: NDArray[np.int64],
    *,
    index: FloatArray,
    seconds: FloatArray,
    ended_at: FloatArray | None,
) -> NDArray[np.int64]:
    """Return `covers` for logs of every iteration whose second line averages the first iteration, too.

    Since 0.16, Megatron-Core does not reset its timer after a training's first line. The second iteration then took
    twice the time of its line, less that of the first. The dates show whether it did; where no line has a date, a slow
    first iteration and the level of the later lines do.
    """
    first = np.flatnonzero(np.diff(segment, prepend=-1) != 0)
    for row, end in zip(first.tolist(), [*first[1:].tolist(), len(index)], strict=True):
        if end - row < 2 or index[row + 1] - index[row] != 1 or covers[row] != 1:
            continue
        one, both = float(seconds[row]), float(seconds[row + 1])
        alone = 2 * both - one
        if not 0 < alone < both:
            continue
        dates = (np.nan, np.nan) if ended_at is None else (float(ended_at[row]), float(ended_at[row + 1]))
        gap = dates[1] - dates[0]
        if np.isfinite(gap):
            resolution = 1.0 if all(date.is_integer() for date in dates) else FINEST
            is_near = abs(gap - alone) <= NEAR_DATE * alone + resolution  # else a buffer wrote both lines at once
            is_mean = is_near and abs(gap - alone) + resolution < abs(gap - both)
        else:
            level = float(np.median(seconds[row + 2 : end])) if end - row > 2 else np.nan
            is_mean = one > _SLOW_START * level and level / NEAR_LEVEL < alone < NEAR_LEVEL * level
        if is_mean:
            covers[row], covers[row + 1] = 0, 2
    return covers


def interrupted_rows(
    events: list[tuple[int, str]],
    *,
    line: FloatArray,
    segment: NDArray[np.int64],
    span: FloatArray,
    ended_at: FloatArray | None,
) -> NDArray[np.int8]:
    """Return the interruption inside the time of each line, as positions in INTERRUPTIONS, shape (lines,).

    events: (line number, "validation" or "checkpoint"); each falls into the interval of the next iteration line. span:
    seconds of the whole interval as the framework timed it. Megatron-LM stopped its interval timer for neither until
    2023, for validation since 2024 and for checkpoints since 2025. The dates show which version wrote a log: if the
    distance between them exceeds the timed interval, the timer was stopped and the line contains no interruption.
    """
    interrupted = np.zeros(len(line), np.int8)
    if not events or not len(line):
        return interrupted
    following = np.searchsorted(line, [number for number, _ in events])
    for position, (_, kind) in zip(following.tolist(), events, strict=True):
        if position < len(line):
            interrupted[position] = INTERRUPTIONS.index(kind)
    if ended_at is not None:
        gaps = np.diff(ended_at, prepend=np.nan)
        gaps[np.diff(segment, prepend=-1) != 0] = np.nan
        interrupted[gaps - span > TIMER_STOOD] = 0
    return interrupted
