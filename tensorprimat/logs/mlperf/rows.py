"""Rows of an MLPerf run as optimizer steps: what each row covers, what it restates, and blocks that are rows.

- NVIDIA's rows state their progress as `step` or `samples_count` up to v5.1, and as `samples_count` alone in v6.0. If
  rows are counted from the start of each block, the first row of a block times a part of an interval (0.0185 s where a
  step takes 0.34 s) and is left out. The row with the block's mean then measures the steps that no other row covers.
- AMD's Primus writes no rows at all: the time between block_start and block_stop is a row of `samples_count` samples.
- gpt3 of 2024 counts tokens under the name of epochs (`epoch_count`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from tensorprimat.core.clocks import Evidence, LogClock
from tensorprimat.core.steps import Step

COUNTING = ("run_stop", "eval_start", "eval_stop", "eval_accuracy", "block_stop")
"""Marks whose count may be how far training is, the surest first; those of blocks may be the size of a block."""
MOST_UNCOUNTED = 0.2  # of the time of all blocks
SAME_STEP = 0.5  # relative; the time that a block's mean leaves for steps without a row must be that of a step


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MlperfRow:
    """One tracked_stats row about training, or a block that has none."""

    line: int
    time: float
    position: float | None
    """Progress in whatever the submitter counts."""
    of_block: bool
    """It covers the whole block between two evaluations."""
    step_seconds: float | None
    rate: float | None
    loss: float | None
    counts_samples_only: bool = False
    """Its progress is samples_count alone, so it may be the partial first row of a block."""
    learning_rate: float | None = None
    peak_memory_bytes: float | None = None


@dataclass(kw_only=True)
class Block:
    """The events between block_start and block_stop; counts are those that the marks state."""

    started: float
    first: dict[str, float]
    """Numbers that block_start carries: samples_count, step, first_epoch_num, epoch_count."""
    stopped: float | None = None
    last: dict[str, float] = field(default_factory=dict)
    line: int = 0
    """Line of block_stop."""


@dataclass(kw_only=True)
class MlperfEvents:
    """The events between run_start and run_stop; times in seconds since the epoch."""

    batch: int | None = None
    """Samples of an optimizer step, as the log sets it."""
    length: int | None = None
    """Tokens of a sequence."""
    started: float | None = None
    stopped: float | None = None
    status: str | None = None
    counts: dict[str, dict[str, float]] = field(default_factory=dict)
    """Mark of COUNTING → the last numbers that such a mark carries."""
    """Sequences trained on by the last event that counts them."""
    rows: list[MlperfRow] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    evaluations: list[tuple[float, float | None]] = field(default_factory=list)
    """(start, stop) of each, None for a stop that the log does not mark."""
    evaluation_lines: list[int] = field(default_factory=list)

    @property
    def samples(self) -> float | None:
        """Return the samples that were trained, by the last mark that counts all of them so far."""
        counted = (self.counts.get(key, {}).get("samples_count") for key in COUNTING[:2])
        return next((count for count in counted if count), None)

    def beginning_of(self, row: MlperfRow, before: MlperfRow | None) -> float | None:
        """Return the time at which the steps of a row began: the start of its block, or the time of the row before."""
        if before is not None and not row.of_block:
            return before.time
        earlier = [block.started for block in self.blocks if block.started < row.time]
        return earlier[-1] if earlier else before.time if before else self.started

    def samples_in(self, block: Block) -> float | None:
        """Return the samples trained in a block, or None if the marks do not tell.

        Steps tell it best. samples_count is a progress in some logs, and in others the size of the block at both marks.
        """
        first, last = block.first, block.last
        if "step" in first and "step" in last and self.batch:
            return _positive((last["step"] - first["step"]) * self.batch)
        if "samples_count" in last:
            return _positive(last["samples_count"] - first.get("samples_count", 0.0))
        tokens = first.get("epoch_count")
        return _positive(tokens / self.length) if tokens and self.length else None

    def pace(self, row: MlperfRow) -> float | None:
        """Return the seconds of a step, as logged or as the rate has it."""
        return row.step_seconds or (self.batch / row.rate if self.batch and row.rate else None)

    def evaluated_seconds(self, start: float, stop: float) -> float:
        """Return the seconds of evaluation between two moments."""
        closed = ((began, ended) for began, ended in self.evaluations if ended is not None)
        return sum(max(0.0, min(stop, ended) - max(start, began)) for began, ended in closed)


@dataclass(kw_only=True)
class _Share:
    """The steps and the time that one row adds to its run."""

    covers: int
    seconds: float | None


def steps_of(run: MlperfEvents, number: int) -> Iterator[Step]:
    """Yield the rows of one run: rows of steps if it logged any, else rows of blocks.

    A row that states other rows' steps once more covers no step.
    """
    shown = run.rows or list(_block_rows(run))
    rows = _measured_rows(shown)
    partial = _partial_rows(run)
    covers, index = _covers(run, rows, partial)
    shares = {
        row.line: _Share(covers=covered, seconds=row.step_seconds) for row, covered in zip(rows, covers, strict=True)
    }
    if partial:
        _share_the_rest(run, partial, shares)
    before: MlperfRow | None = None
    for row in shown:
        if row.line in partial:
            continue
        share = shares.get(row.line) or _Share(covers=0, seconds=row.step_seconds)
        if not share.covers and row.step_seconds is None:
            continue  # a rate beside step times is a second measurement of the same steps
        index += share.covers
        yield Step(
            index=index,
            seconds=share.seconds,
            covers=share.covers,
            ended_at=row.time,
            samples=run.batch,
            loss=row.loss,
            learning_rate=row.learning_rate,
            memory_allocated_peak_bytes=row.peak_memory_bytes,
            reported_samples_per_second=row.rate,
            interrupted_by="validation" if _holds_evaluation(run, row, before, share.covers) else "",
            run=number,
            line=row.line,
        )
        before = row if share.covers else before


def _measured_rows(shown: Sequence[MlperfRow]) -> Sequence[MlperfRow]:
    """Return the rows that measure, no two of which cover the same steps."""
    step_by_step = [row for row in shown if not row.of_block]
    return step_by_step or [row for row in shown if row.step_seconds is not None] or shown


def _block_rows(run: MlperfEvents) -> Iterator[MlperfRow]:
    """Yield the blocks as rows, for a run that logged nothing else about training."""
    for block in run.blocks:
        samples = run.samples_in(block)
        if block.stopped is None or block.stopped <= block.started or not samples or not run.batch:
            continue
        steps = max(1, round(samples / run.batch))
        yield MlperfRow(
            line=block.line,
            time=block.stopped,
            position=None,
            of_block=True,
            step_seconds=(block.stopped - block.started) / steps,
            rate=None,
            loss=None,
        )


def _partial_rows(run: MlperfEvents) -> set[int]:
    """Return the lines of rows that end where their block began: such a row times an unknown part of an interval."""
    partial: set[int] = set()
    starts = _samples_before(run)
    last = 0.0
    for row in run.rows:
        if row.of_block or not row.counts_samples_only or row.position is None:
            continue
        earlier = [samples for started, samples in starts if started <= row.time]
        if row.position <= max(last, earlier[-1] if earlier else 0.0):
            partial.add(row.line)
        last = row.position
    return partial


def _samples_before(run: MlperfEvents) -> list[tuple[float, float]]:
    """Return (start, samples trained before it) of each block, by its step or by the blocks before it."""
    starts, done = [], 0.0
    for block in run.blocks:
        if "step" in block.first and run.batch:
            done = block.first["step"] * run.batch
        starts.append((block.started, done))
        done += run.samples_in(block) or 0.0
    return starts


def _share_the_rest(run: MlperfEvents, partial: set[int], shares: dict[int, _Share]) -> None:
    """Let the row with the mean of a block cover those of its steps that no other row covers."""
    for block in run.blocks:
        inside = [row for row in run.rows if block.started <= row.time <= (block.stopped or -math.inf)]
        means = [row for row in inside if row.of_block and row.step_seconds]
        samples = run.samples_in(block)
        if not (means and samples and run.batch) or not any(row.line in partial for row in inside):
            continue
        mean, steps = means[-1], round(samples / run.batch)
        counted = [shares[row.line] for row in inside if row.line in shares]
        rest = steps - sum(share.covers for share in counted)
        spent = (mean.step_seconds or 0.0) * steps - sum(share.covers * (share.seconds or 0.0) for share in counted)
        if rest > 0 and mean.step_seconds and abs(spent / rest / mean.step_seconds - 1) < SAME_STEP:
            shares[mean.line] = _Share(covers=rest, seconds=spent / rest)


def _holds_evaluation(run: MlperfEvents, row: MlperfRow, before: MlperfRow | None, covered: int) -> bool:
    """Return True if the time of a row is longer than the training between two rows: it contains an evaluation."""
    start, pace = run.beginning_of(row, before), run.pace(row)
    if start is None or pace is None:
        return False
    evaluated = run.evaluated_seconds(start, row.time)
    return evaluated > 0 and pace * covered > row.time - start - evaluated / 2


def _covers(run: MlperfEvents, rows: Sequence[MlperfRow], partial: set[int]) -> tuple[list[int], int]:
    """Return the optimizer steps of each row, and the number of steps before the first row.

    A partial row covers none.
    """
    batch, by_clock = run.batch, list[float]()
    for row, before in zip(rows, (None, *rows), strict=False):
        start, pace = run.beginning_of(row, before), run.pace(row)
        spent = row.time - start - run.evaluated_seconds(start, row.time) if start is not None else 0.0
        by_clock.append(max(1.0, spent / pace) if pace else 1.0)
    positions = [row.position for row in rows]
    known = [(a, b, row.line not in partial) for (a, b), row in zip(pairwise(positions), rows[1:], strict=True)]
    advances = [b - a for a, b, whole in known if a is not None and b is not None and whole]
    typical = median(advances) if advances else 0.0
    if typical <= 0 or not batch:
        return [0 if row.line in partial else round(n) for row, n in zip(rows, by_clock, strict=True)], 0
    steps = median(by_clock[1:])
    unit = min((1, batch, batch * (run.length or 1)), key=lambda unit: abs(math.log(typical / unit / steps)))
    usual = max(1, round(typical / unit))
    covers = [max(1, round((b - a) / unit)) if whole else 0 for a, b, whole in known if a is not None and b is not None]
    if rows[0].line in partial:
        return [0, *covers], 0
    if rows[0].of_block and positions[0] == 0 and len(covers) == len(rows) - 1:  # rows tell where their block began
        left = (run.samples or 0.0) / batch - (positions[-1] or 0.0) / unit
        return [*covers, round(left) if left >= 1 else round(by_clock[-1])], 0
    first = max(0, round((positions[0] or 0) / unit))
    from_the_start = 0 < first <= 1 + 1.5 * by_clock[0]  # else training was resumed: the time before was another run's
    covers.insert(0, first if from_the_start else usual)
    if len(covers) != len(rows):  # some rows do not say how far they are
        return [round(steps) for steps in by_clock], 0
    return covers, max(0, first - covers[0])


def evidence_of(runs: Sequence[MlperfEvents], steps: Sequence[Step]) -> Evidence:
    """Return the time and work of each run by its marks, for the audit.

    steps: the steps of all runs, as read.
    """
    clocks = []
    for number, run in enumerate(runs):
        if run.started is None or run.stopped is None or run.stopped <= run.started:
            continue
        counted = [step for step in steps if step.run == number and step.covers]
        own = sum(step.covers * (_own_seconds(step) or math.nan) for step in counted)
        stops = [block.stopped for block in run.blocks if block.stopped is not None]
        closed = bool(stops) and len(stops) == len(run.blocks)
        spent = [("evaluation", run.evaluated_seconds(run.started, run.stopped))]
        if closed and own < math.inf:
            inside = sum((block.stopped or 0.0) - block.started for block in run.blocks)
            spent.append(("start-up", run.blocks[0].started - run.started))
            spent.append(("inside blocks but in no row", _plausible(inside - own, inside)))
            outside = run.stopped - run.blocks[0].started - inside - spent[0][1]
            spent.append(("between and after blocks", outside))
        clocks.append(
            LogClock(
                name="run_start to run_stop",
                seconds=run.stopped - run.started,
                steps=run.samples / run.batch if run.samples and run.batch else None,
                spent=tuple((what, seconds) for what, seconds in spent if seconds > 0),
                tells_all=closed or any(ended is not None for _, ended in run.evaluations),
                run=number,
            )
        )
    announced = {line: "validation" for run in runs for line in run.evaluation_lines}
    return Evidence(clocks=tuple(clocks), announced=announced)


def _own_seconds(step: Step) -> float | None:
    rate = step.reported_samples_per_second
    return step.seconds or (step.samples / rate if step.samples and rate else None)


def _plausible(uncounted: float, inside: float) -> float:
    """Return the seconds of blocks that no row counts (synchronisation, a checkpoint).

    0 where they are so many that the rows' step times cannot be right.
    """
    return uncounted if uncounted <= MOST_UNCOUNTED * inside else 0.0


def _positive(value: float | None) -> float | None:
    return value if value is not None and 0 < value < math.inf else None
