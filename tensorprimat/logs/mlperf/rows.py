"""Rows of an MLPerf run as optimizer steps: the steps of each row, repeated rows, and blocks without rows.

- NVIDIA's rows state their progress as `step` or `samples_count`, from v6.0 on as `samples_count` alone; there
  `block_shares` divides the time of each block among its rows.
- AMD's Primus writes no rows at all: the time between block_start and block_stop is a row of `samples_count` samples.
  Some of its versions write a throughput from one block_stop to the next, evaluation included; a block's own marks
  time it then.
- gpt3 of 2024 counts tokens under the name of epochs (`epoch_count`), and bert samples (`epoch_num`). Habana's bert
  counts steps so at block_start and samples at its evaluations, which follow the last block. NVIDIA's one block
  contains a throughput for each evaluation, which counts the evaluation before it; after run_stop follows their mean.

Steps and time of each block of an MLPerf run whose rows state samples but no step, as NVIDIA's do in v6.0.

A row with the mean of a block times everything between block_start and block_stop. The other rows are averages over an
interval of steps that may cross an evaluation, begin before the block, or end before the GPU does: in one run of
llama2_70b_lora they add up to 6 % more than its blocks. So each closed block counts mean × steps, and the rows inside
only divide that time where they can.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from tensorprimat.audit.evidence import Evidence, LogClock
from tensorprimat.core.steps import Step
from tensorprimat.logs.mlperf.run import Block, MlperfEvents, MlperfRow

TIME = attrgetter("time")
SAME_STEP = 0.5  # relative difference from the mean, at most, of the time per step that a block's rows leave

_OTHER_TIME = 0.2  # relative to a row's time; a throughput that contradicts it by more counts something else
OTHER_UNIT = 10.0  # if the clock shows so many times the steps of a row's progress, the progress counts epochs
MOST_UNCOUNTED = 0.2  # of the time of all blocks


def rows_of_run(run: MlperfEvents, number: int) -> Iterator[Step]:
    """Yield the rows of one run: rows of steps if it logged any, else rows of blocks.

    A row that states other rows' steps once more covers no step.
    """
    shown = (_by_their_blocks(run) if _rates_include_evaluation(run) else run.rows) or list(_block_rows(run))
    if run.stopped is not None:  # the rest of an epoch, or a mean of all rows, may follow it
        shown = [row for row in shown if row.line < run.stop_line] or shown
        if not run.rows:  # blocks that ran on while evaluations of earlier checkpoints reached the target
            shown = [row for row in shown if row.time <= (run.stopped or math.inf)] or shown
    step_by_step = [row for row in shown if not row.of_block]  # rows that measure: no two cover the same steps
    rows = step_by_step or [row for row in shown if row.step_seconds is not None] or shown
    partial = partial_rows(run)
    covers, index = _covers(run, rows, partial)
    shares = {
        row.line: Share(covers=covered, seconds=row.step_seconds) for row, covered in zip(rows, covers, strict=True)
    }
    settled = share_blocks(run, shares)
    before: MlperfRow | None = None
    for row in shown:
        if row.line in partial:
            continue
        share = shares.get(row.line) or Share(covers=0, seconds=row.step_seconds)
        if not share.covers and row.step_seconds is None:
            continue  # a rate next to step times is a second measurement of the same steps
        index += share.covers
        evaluated = row.covers is None and row.line not in settled and _holds_evaluation(run, row, before, share.covers)
        yield Step(
            index=index,
            seconds=share.seconds,
            covers=share.covers,
            ended_at=None if row.line in settled else row.time,  # a mean and the rows that divide it end elsewhere
            samples=run.batch,
            tokens=None if row.position is None else run.tokens.get(row.position),
            loss=row.loss,
            learning_rate=row.learning_rate,
            memory_allocated_peak_bytes=row.peak_memory_bytes,
            reported_samples_per_second=row.rate,
            interrupted_by="validation" if evaluated else "",
            run=number,
            line=row.line,
        )
        before = row if share.covers else before


def _rates_include_evaluation(run: MlperfEvents) -> bool:
    """Return True if the throughput of most rows is that of the time since the row before, evaluation included."""
    if not run.batch or not all(row.rate and row.of_block and row.step_seconds is None for row in run.rows):
        return False
    votes = list[bool]()
    for (_, before), (stretch, row) in pairwise(zip(_stretches_of_rows(run), run.rows, strict=True)):
        spent, evaluated = row.time - before.time, run.evaluated_seconds(before.time, row.time)
        if stretch and row.rate and evaluated > 0:
            off = stretch.samples / row.rate - spent
            if min(abs(off), abs(off + evaluated)) < _OTHER_TIME * spent:
                votes.append(abs(off) < abs(off + evaluated))
    return sum(votes) > len(votes) / 2


def _by_their_blocks(run: MlperfEvents) -> list[MlperfRow]:
    """Return the rows with the time between the marks around their steps in place of the time by their throughput."""
    timed = []
    for stretch, row in zip(_stretches_of_rows(run), run.rows, strict=True):
        if stretch and run.batch and stretch.seconds > 0:
            steps = max(1, round(stretch.samples / run.batch))
            usual = row.rate and abs(stretch.samples / row.rate / stretch.seconds - 1) <= _OTHER_TIME
            rate = row.rate if usual else None  # a rate that includes a long first evaluation would look damaged
            timed.append(replace(row, step_seconds=stretch.seconds / steps, covers=steps, rate=rate))
    return timed


class _Stretch(NamedTuple):
    """The training that a throughput measures, by the marks around it."""

    samples: float
    seconds: float
    """Without evaluation; 0 where a mark is missing."""


def _stretches_of_rows(run: MlperfEvents) -> list[_Stretch | None]:
    """Return the training of each row: its block, or the part since the row before where a block holds several rows."""
    began_before = [bisect_left(run.blocks, row.time, key=attrgetter("started")) for row in run.rows]
    blocks = [run.blocks[number - 1] if number else None for number in began_before]
    several = {id(block) for block, following in pairwise(blocks) if block is following}
    found = list[_Stretch | None]()
    for row, before, block, previous in zip(run.rows, (None, *run.rows), blocks, (None, *blocks), strict=False):
        samples, seconds = None, 0.0
        if block is not None and id(block) in several:
            done = 0.0 if before is None or previous is not block else before.position
            samples = None if row.position is None or done is None else row.position - done
            began = run.beginning_of(row, before) or block.started
            seconds = row.time - began - run.evaluated_seconds(began, row.time)
        elif block is not None:
            samples = run.samples_in(block)
            seconds = _training_seconds(run, block) if block.stopped is not None else 0.0
        found.append(_Stretch(samples, seconds) if samples and samples > 0 else None)
    return found


def _block_rows(run: MlperfEvents) -> Iterator[MlperfRow]:
    """Yield the blocks as rows, for a run that logged nothing else about training."""
    for block in run.blocks:
        for line, start, stop, samples in _stretches(run, block):
            if stop is None or stop <= start or not samples or samples < 0 or not run.batch:
                continue
            steps = max(1, round(samples / run.batch))
            yield MlperfRow(
                line=line,
                time=stop,
                position=None,
                of_block=True,
                step_seconds=(stop - start) / steps,
                covers=steps,
                rate=None,
                loss=None,
            )


def _stretches(run: MlperfEvents, block: Block) -> Iterator[tuple[int, float, float | None, float | None]]:
    """Yield (line, start, stop, samples) of the training in a block: all of it, or the parts between the evaluations
    that it holds.
    """
    end = block.stopped or run.stopped or math.inf
    marks = zip(run.evaluations, run.evaluation_counts, run.evaluation_lines[::2], strict=False)
    inside = [mark for mark in marks if block.started < mark[0][0] < end]
    if not inside:
        yield block.line, block.started, block.stopped, run.samples_in(block)
        return
    start: float | None = block.started
    before = run.trained_at(block.first)
    for (began, ended), counts, line in inside:
        trained = run.trained_at(counts)
        if start is not None:
            yield line, start, began, None if trained is None else trained - (before or 0.0)
        start, before = ended, trained


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
    stated = [row.covers for row in rows if row.covers is not None]
    if len(stated) == len(rows):
        return stated, 0
    batch, by_clock = run.batch, list[float]()
    for row, before in zip(rows, (None, *rows), strict=False):
        start, pace = run.beginning_of(row, before), run.pace(row)
        spent = row.time - start - run.evaluated_seconds(start, row.time) if start is not None else 0.0
        by_clock.append(max(1.0, spent / pace) if pace else 1.0)
    positions = [row.position for row in rows]
    known = [(a, b, row.line not in partial) for (a, b), row in zip(pairwise(positions), rows[1:], strict=True)]
    advances = [b - a for a, b, whole in known if a is not None and b is not None and whole]
    typical = median(advances) if advances else 0.0
    timed = [0 if row.line in partial else round(n) for row, n in zip(rows, by_clock, strict=True)]
    if typical <= 0 or not batch:
        return timed, 0
    steps = median(by_clock[1:])
    unit = min((1, batch, batch * (run.length or 1)), key=lambda unit: abs(math.log(typical / unit / steps)))
    if typical / unit * OTHER_UNIT < steps:
        return timed, 0  # epochs
    usual = max(1, round(typical / unit))
    covers = [max(1, round((b - a) / unit)) if whole else 0 for a, b, whole in known if a is not None and b is not None]
    if rows[0].line in partial:
        return [0, *covers], 0
    if rows[0].of_block and positions[0] == 0 and len(covers) == len(rows) - 1:  # rows state where their block began
        left = (run.samples or 0.0) / batch - (positions[-1] or 0.0) / unit
        return [*covers, round(left) if left >= 1 else round(by_clock[-1])], 0
    first = max(0, round((positions[0] or 0) / unit))
    from_the_start = 0 < first <= 1 + 1.5 * by_clock[0]  # else training was resumed: the time before was another run's
    covers.insert(0, first if from_the_start else usual)
    if len(covers) != len(rows):  # some rows do not state their progress
        return [round(steps) for steps in by_clock], 0
    return covers, max(0, first - covers[0])


def marks_evidence(runs: Sequence[MlperfEvents], steps: Sequence[Step]) -> Evidence:
    """Return the time and work of each run by its marks, for the audit.

    steps: the steps of all runs, as read.
    """
    clocks = []
    for number, run in enumerate(runs):
        if run.started is None or run.stopped is None or run.stopped <= run.started:
            continue
        counted = [step for step in steps if step.run == number and step.covers]
        own = sum(step.covers * (_own_seconds(step) or math.nan) for step in counted)
        blocks = [block for block in run.blocks if block.started < run.stopped]
        closed = bool(blocks) and all(block.stopped is not None for block in blocks)
        spent = [("evaluation", run.evaluated_seconds(run.started, run.stopped))]
        if closed and own < math.inf:
            ended = (replace(block, stopped=min(block.stopped or math.inf, run.stopped)) for block in blocks)
            inside = sum(_training_seconds(run, block) for block in ended)
            spent.append(("start-up", blocks[0].started - run.started))
            uncounted = inside - own  # synchronisation, a checkpoint; if it is more, the rows' times cannot be right
            spent.append(("training without logged rows", uncounted if uncounted <= MOST_UNCOUNTED * inside else 0.0))
            outside = run.stopped - blocks[0].started - inside - spent[0][1]
            spent.append(("time between and after blocks", outside))
        clocks.append(
            LogClock(
                name="run_start to run_stop",
                seconds=run.stopped - run.started,
                steps=run.samples / run.batch if run.samples and run.batch else None,
                spent=tuple((what, seconds) for what, seconds in spent if seconds > 0),
                has_every_pause=closed or any(ended is not None for _, ended in run.evaluations),
                run=number,
            )
        )
    announced = {line: "validation" for run in runs for line in run.evaluation_lines}
    return Evidence(clocks=tuple(clocks), announced=announced)


def _training_seconds(run: MlperfEvents, block: Block) -> float:
    stopped = block.stopped or block.started
    return stopped - block.started - run.evaluated_seconds(block.started, stopped)


def _own_seconds(step: Step) -> float | None:
    rate = step.reported_samples_per_second
    return step.seconds or (step.samples / rate if step.samples and rate else None)


@dataclass(kw_only=True)
class Share:
    """The steps and the time that one row adds to its run."""

    covers: int
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class BlockRows:
    """A block with the rows whose last step it contains, in the order of their counts."""

    first: float
    """Samples trained before the block."""
    samples: float | None
    """Samples of the block; None if the block is not closed."""
    rows: Sequence[MlperfRow]
    mean: MlperfRow | None
    """The row that states the mean time of all steps of the block."""


def partial_rows(run: MlperfEvents) -> set[int]:
    """Return the lines of rows that count no step since the row or the start of the block before them.

    Such a row times an unknown part of an interval (0.0094 s where a step takes 0.076 s).
    """
    partial: set[int] = set()
    last = 0.0
    starts = {row.line: found.first for found in blocks_of(run) for row in found.rows}
    for row in _counting(run):
        if _position(row) <= max(last, starts.get(row.line, 0.0)):
            partial.add(row.line)
        last = _position(row)
    return partial


def share_blocks(run: MlperfEvents, shares: dict[int, Share]) -> set[int]:
    """Give each closed block the time of its mean; return the lines of the rows that now contain training alone.

    shares: by line, of every row that measures; changed in place.
    """
    if not run.batch or not _counting(run):
        return set()
    settled: set[int] = set()
    for found in blocks_of(run):
        if found.samples and found.mean and found.mean.step_seconds:
            _share(found, found.mean, round(found.samples / run.batch), shares)
            settled |= {found.mean.line, *(row.line for row in found.rows)}
        elif found.rows and (share := shares.get(found.rows[0].line)):
            began = (_position(found.rows[0]) + _counted_late(run) - found.first) / run.batch
            share.covers = min(share.covers, max(0, round(began)))  # the block before has counted the rest
    return settled


def _share(found: BlockRows, mean: MlperfRow, steps: int, shares: dict[int, Share]) -> None:
    """Let the rows after the first one cover their own steps, and the row of the mean the others.

    The row of the mean covers all steps if the times that remain for the others are implausible. The first row of a
    block began before it, or times a part of an interval.
    """
    seconds = mean.step_seconds or 0.0
    counted = [share for row in found.rows[1:] if (share := shares.get(row.line))]
    rest = steps - sum(share.covers for share in counted)
    spent = seconds * steps - sum(share.covers * (share.seconds or math.nan) for share in counted)
    if not (rest > 0 and abs(spent / rest / seconds - 1) < SAME_STEP):
        rest, spent = steps, seconds * steps
        for share in counted:
            share.covers = 0
    if found.rows and (first := shares.get(found.rows[0].line)):
        first.covers = 0
    shares[mean.line] = Share(covers=rest, seconds=spent / rest)


def blocks_of(run: MlperfEvents) -> Iterator[BlockRows]:
    """Yield each block with its rows, assigned by their counts: a row may be written after the end of its block."""
    done, late = 0.0, _counted_late(run)
    rows = sorted(_counting(run), key=_position)
    means = sorted((row for row in run.rows if row.of_block and row.step_seconds), key=TIME)
    for block in run.blocks:
        if "step" in block.first and run.batch:
            done = block.first["step"] * run.batch
        samples = run.samples_in(block) if block.stopped is not None else None
        end = math.inf if samples is None else done + samples
        stopped = -math.inf if block.stopped is None else block.stopped
        inside = means[bisect_left(means, block.started, key=TIME) : bisect_right(means, stopped, key=TIME)]
        yield BlockRows(
            first=done,
            samples=samples,
            rows=rows[bisect_right(rows, done - late, key=_position) : bisect_right(rows, end - late, key=_position)],
            mean=inside[-1] if inside else None,
        )
        done += samples or 0.0


def _position(row: MlperfRow) -> float:
    return row.position or 0.0


def _counted_late(run: MlperfEvents) -> float:
    """Return the samples that each row leaves out of its count: one batch if its last step is not counted, else 0.

    Rows leave out their last step if some row counts 0 samples: it was written at the end of the first step.
    """
    return float(run.batch or 0) if any(row.position == 0 for row in _counting(run)) else 0.0


def _counting(run: MlperfEvents) -> list[MlperfRow]:
    """Return the rows of steps whose progress is samples_count alone."""
    return [row for row in run.rows if row.counts_samples_only and not row.of_block and row.position is not None]
