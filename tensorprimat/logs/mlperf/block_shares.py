"""Steps and time of each block of an MLPerf run whose rows state samples but no step, as NVIDIA's do in v6.0.

A row with the mean of a block times everything between block_start and block_stop. The other rows are averages over an
interval of steps that may cross an evaluation, begin before the block, or end before the GPU does: in one run of
llama2_70b_lora they add up to 6 % more than its blocks. So each closed block counts mean × steps, and the rows inside
only divide that time where they can.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from tensorprimat.logs.mlperf.run import MlperfEvents, MlperfRow

TIME = attrgetter("time")
SAME_STEP = 0.5  # relative difference from the mean, at most, of the time per step that a block's rows leave


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
