"""Steps of a Trainer's rows: the growth of the clock between rows, over the steps between them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tensorprimat.core.steps import Step, Steps
from tensorprimat.logs import fields
from tensorprimat.logs.clocks import longest_gap
from tensorprimat.logs.huggingface.rows import Row

_FEWEST_ROWS = 3  # that show the distance between rows after the first
_FIRST_OF_TWO = 0.75  # between 1, a first row as far from the start as others from each other, and 1/2: step 1 of 2


@dataclass(kw_only=True, slots=True)
class _Interval:
    """The time and tokens between a row and the row from which its time is counted."""

    seconds: float | None = None
    """Seconds of one step."""
    tokens: float | None = None
    trained_tokens: float | None = None
    rate: float | None = None
    """Rate over all rows in between: the sum of the rate × time of each, divided by their total time."""
    steps: int = 1
    interrupted_by: str = ""


def steps_of_rows(
    found: list[Row],
    total: float | None,
    final_epoch: float | None,
    logging_steps: int | None = None,
    warnings: list[str] | None = None,
    *,
    dated: bool = False,
) -> Steps:
    """Return the rows as steps. Rows without numbers share the steps of the run equally; where a number goes back, the
    training restarted.

    total: optimizer steps of the whole run, final_epoch: its epochs, where the log states them; logging_steps: steps of
    each row without a number, if known: then nothing is divided; warnings: see `fields.merged`; dated: the clock of the
    rows runs on between processes.
    """
    if not found:
        return Steps({})
    numbered = all(row.step is not None for row in found)
    counted = numbers_of_rows(found, total, final_epoch, logging_steps)
    index = [row.step if numbered and row.step is not None else n for n, row in zip(counted, found, strict=True)]
    processes = _processes(found, index, dated=dated)
    intervals = _intervals(found, index, processes)
    if not numbered or index[0] == fields.usual_distance(np.diff(index)):  # as far from the start as from the next
        intervals[0].steps = index[0]
    steps = map(step_of, found, index, intervals, processes)
    return fields.merged(((None, step) for step in steps), warnings)


def _processes(found: list[Row], index: list[int], *, dated: bool) -> list[int]:
    """Return the number of resumes before each row that its clock alone shows.

    A clock that goes back while the number of the step grows is that of another process: trainer_state.json keeps the
    rows of all processes of a training, and train_runtime begins anew in each. A clock that runs on shows a pause.
    """
    processes, resumes, longest = [], 0, math.inf
    if dated:
        pairs = pairwise(zip(index, (row.clock[0] if row.clock else 0.0 for row in found), strict=True))
        paces = [(after - before) / (to - start) for (start, before), (to, after) in pairs if to > start]
        longest = longest_gap(np.array(paces))
    last: tuple[float, float] | None = None
    for place, row in enumerate(found):
        if place and index[place] <= index[place - 1]:
            last = None  # `fields.merged` sees this restart by the number
        if row.clock is not None:
            grown = row.clock[0] - last[0] if last is not None else 0.0
            if last is not None and (
                grown < -(row.clock[1] + last[1]) or grown > longest * (index[place] - index[place - 1])
            ):
                resumes += 1
            last = row.clock
        processes.append(resumes)
    return processes


def numbers_of_rows(
    found: list[Row], total: float | None, final: float | None, logging_steps: int | None = None
) -> list[int]:
    """Return the steps of rows without numbers, which are equally far apart; with logging_first_step the first is 1.

    total: steps of the run, and final: its epochs, of which the last row shows the share that the rows cover.
    """
    rows = len(found)
    last = found[-1].epoch
    share = last / final if last and final and last <= final else 1.0

    def interval(count: int) -> int:
        if logging_steps or not total or not count:
            return logging_steps or 1
        return max(1, min(round(total * share / count), int(total / count)))

    if _is_first_step_logged(found, total if share == 1 else None, interval):
        return [1, *(n * interval(rows - 1) for n in range(1, rows))]
    return [n * interval(rows) for n in range(1, rows + 1)]


def _is_first_step_logged(found: list[Row], total: float | None, interval: Callable[[int], int]) -> bool:
    """Return True if the first row is that of step 1, and each other one that of several steps.

    Its epoch shows it: a share of the epochs between two rows. Where epochs are printed too coarsely, the number of the
    rows shows it, if no equal distance between them fits the steps of the run. total: None if unknown.
    """
    rows, epochs = len(found), [row.epoch or 0.0 for row in found]  # 0.0 is kept as None
    if rows < _FEWEST_ROWS or interval(rows - 1) == 1:
        return False
    if all(epochs[1:]):
        gap = (epochs[-1] - epochs[1]) / (rows - 2)
        rounding = 0.5 * 10.0 ** -max(len(repr(epoch).partition(".")[2]) for epoch in epochs)
        if gap > 0 and abs(epochs[0] / gap - _FIRST_OF_TWO) > rounding / gap:
            return epochs[0] / gap < _FIRST_OF_TWO
    if not total:
        return False
    every = interval(rows)
    if every * rows <= total < every * (rows + 1):
        return False
    every = interval(rows - 1)
    return every * (rows - 1) <= total < every * rows


def _intervals(found: list[Row], index: list[int], processes: list[int]) -> list[_Interval]:
    """Return the time and work of each row; rows are merged until the clock is fine enough for the time between them.

    A row inside such a stretch covers no step: the row at its end measures all of its steps.
    """
    intervals = [_Interval() for _ in found]
    for place in range(1, len(found)):
        between, row, last = intervals[place], found[place], found[place - 1]
        between.interrupted_by = row.interrupted_by
        if index[place] > index[place - 1] and processes[place] == processes[place - 1]:
            between.steps = index[place] - index[place - 1]
            between.tokens = _growth(last.tokens, row.tokens, between.steps)
            between.trained_tokens = _growth(last.trained_tokens, row.trained_tokens, between.steps)
    for start, end in _timed_stretches(found, index, processes):
        between, before, row = intervals[end], found[start], found[end]
        between.steps = steps = index[end] - index[start]
        between.tokens = _growth(before.tokens, row.tokens, steps)
        between.trained_tokens = _growth(before.trained_tokens, row.trained_tokens, steps)
        between.seconds = (row.clock[0] - before.clock[0]) / steps if row.clock and before.clock else None
        inside = found[start + 1 : end + 1]
        between.interrupted_by = next((one.interrupted_by for one in inside if one.interrupted_by), "")
        for merged in intervals[start + 1 : end]:
            merged.steps = 0
        between.rate = _rate(before, inside)
    return intervals


def _rate(before: Row, rows: list[Row]) -> float | None:
    """Return the tokens of all rows over their time, from the rates of the rows; None where one has no rate or clock.

    before: the row that ends where the first one begins.
    """
    tokens, elapsed = 0.0, 0.0
    for earlier, row in pairwise([before, *rows]):
        if row.rate is None or row.clock is None or earlier.clock is None:
            return None
        seconds = row.clock[0] - earlier.clock[0]
        tokens, elapsed = tokens + row.rate * seconds, elapsed + seconds
    return tokens / elapsed if elapsed > 0 else None


def _timed_stretches(found: list[Row], index: list[int], processes: list[int]) -> list[tuple[int, int]]:
    """Return (place of the row before, place of the last row) of each stretch that the clock times.

    Rows at the end of a training that are too few for a stretch of their own belong to the last one.
    """

    def continues(place: int) -> bool:
        return index[place] > index[place - 1] and processes[place] == processes[place - 1]

    stretches: list[tuple[int, int]] = []
    start = 0
    for place, row in enumerate(found):
        clock, before = row.clock, found[start].clock
        if not place or not continues(place) or clock is None or before is None:
            start = place
            continue
        grown, resolution = clock[0] - before[0], clock[1] + before[1]
        if grown > 0 and resolution <= fields.CLOCK_RESOLUTION * grown:
            stretches.append((start, place))
            start = place
            continue
        ends = place + 1 == len(found) or not continues(place + 1)
        if ends and stretches and stretches[-1][1] == start and grown >= 0:
            if not any(one.interrupted_by for one in found[start + 1 : place + 1]):
                stretches[-1] = (stretches[-1][0], place)
            start = place
    return stretches


def _growth(before: float | None, after: float | None, steps: int) -> float | None:
    """Return the tokens of one step between two rows that count all tokens so far."""
    tokens = (after - before) / steps if before is not None and after is not None else None
    return tokens if tokens is not None and 0 < tokens < math.inf else None


def step_of(row: Row, index: int, between: _Interval, segment: int = 0) -> Step:
    return Step(
        index=index,
        segment=segment,
        seconds=between.seconds,
        covers=between.steps,
        tokens=between.trained_tokens if row.rate is not None and between.seconds is not None else between.tokens,
        relative_work=None if row.rate is None else between.trained_tokens,
        loss=row.loss,
        learning_rate=row.learning_rate,
        gradient_norm=row.gradient_norm,
        memory_allocated_peak_bytes=row.allocated_peak,
        memory_reserved_peak_bytes=row.reserved_peak,
        reported_tokens_per_second_per_gpu=between.rate or row.rate,
        interrupted_by=between.interrupted_by or row.interrupted_by,
        line=row.line,
    )
