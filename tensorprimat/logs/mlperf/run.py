"""Content of one MLPerf run: its rows, blocks and evaluations, as the events state them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

COUNTING = ("run_stop", "eval_start", "eval_stop", "eval_accuracy", "block_stop")
"""Marks that may count the samples trained so far, the most reliable first; a block's count may be its size."""

SHORTEST_STEP_SECONDS = 1e-6  # a kernel alone takes longer


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MlperfRow:
    """One tracked_stats row about training, or a block that has none."""

    line: int
    time: float
    position: float | None
    """Progress in the submitter's own unit."""
    of_block: bool
    """True if the row covers the whole block between two evaluations."""
    step_seconds: float | None
    rate: float | None
    loss: float | None
    counts_samples_only: bool = False
    """True if samples_count is its only progress, so it may be the partial first row of a block."""
    covers: int | None = None
    """Optimizer steps of the row, if marks state them."""
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
    before: float | None = None
    """Samples that the previous block_stop counts."""


@dataclass(kw_only=True)
class MlperfEvents:
    """The events between run_start and run_stop; times in seconds since the epoch."""

    batch: int | None = None
    """Samples of an optimizer step, as the log sets it."""
    length: int | None = None
    """Tokens of a sequence."""
    started: float | None = None
    stopped: float | None = None
    stop_line: int = 0
    """Line of run_stop."""
    status: str | None = None
    counts: dict[str, dict[str, float]] = field(default_factory=dict)
    """Mark of COUNTING → the last numbers that such a mark carries."""
    rows: list[MlperfRow] = field(default_factory=list)
    tokens: dict[float | None, float] = field(default_factory=dict)
    """Position of a row → tokens of its step, where the log counts them (reinforcement learning)."""
    blocks: list[Block] = field(default_factory=list)
    evaluations: list[tuple[float, float | None]] = field(default_factory=list)
    """(start, stop) of each evaluation; stop is None if the log does not mark it."""
    evaluation_lines: list[int] = field(default_factory=list)
    evaluation_counts: list[dict[str, float]] = field(default_factory=list)
    """Numbers that each eval_start carries."""

    @property
    def samples(self) -> float | None:
        """Return the samples that were trained, by the last mark that counts all of them so far."""
        counted = (self.counts.get(key, {}).get("samples_count") for key in COUNTING[:2])
        return next((count for count in counted if count), None)

    def beginning_of(self, row: MlperfRow, before: MlperfRow | None) -> float | None:
        """Return the time at which the steps of a row began.

        That is the time of the row before. For a first row, and for a row of a block, it is the start of the block,
        unless another row of a block was written in it before.
        """
        if before is not None and not row.of_block:
            return before.time
        earlier = [block.started for block in self.blocks if block.started < row.time]
        if before is not None and before.of_block and earlier:
            return max(before.time, earlier[-1])
        return earlier[-1] if earlier else before.time if before else self.started

    def samples_in(self, block: Block) -> float | None:
        """Return the samples trained in a block, or None if the marks do not state them.

        Steps are the surest. samples_count is a progress in some logs, and in others the size of the block at both
        marks; block_start may count steps where block_stop counts samples.
        """
        first, last = block.first, block.last
        if "step" in first and "step" in last and self.batch:
            return _positive((last["step"] - first["step"]) * self.batch)
        if "samples_count" in last:
            start, before = first.get("samples_count", 0.0), block.before
            if before is not None and 0 < start < before < last["samples_count"]:
                start = before
            return _positive(last["samples_count"] - start)
        counted = first.get("epoch_count")
        if counted and self.batch and self.length and counted < self.batch * self.length:  # no token count of a step
            return self.batch * counted if self._counts_steps_as_epochs() else None
        return _positive(counted / self.length) if counted and self.length else None

    def _counts_steps_as_epochs(self) -> bool:
        """Return True if the blocks count steps as `epoch_count`: the last mark counts the samples of that many."""
        if self.stopped is None or not self.batch:
            return False
        done = [block for block in self.blocks if block.stopped is not None and block.stopped <= self.stopped]
        steps = sum(block.first.get("epoch_count", 0.0) for block in done)
        return any(steps and self.counts.get(key, {}).get("epoch_num") == steps * self.batch for key in COUNTING)

    def trained_at(self, counts: dict[str, float]) -> float | None:
        """Return the samples trained so far by the numbers of a mark; gpt3 counts tokens under the name of epochs."""
        if "samples_count" in counts:
            return counts["samples_count"]
        tokens = counts.get("epoch_num", counts.get("first_epoch_num"))
        return None if tokens is None or not self.length else tokens / self.length

    def pace(self, row: MlperfRow) -> float | None:
        """Return the seconds of a step, as logged or as batch / throughput; None without both, and for less than any
        step takes: the steps of a row would be more than a column holds.
        """
        seconds = row.step_seconds or (self.batch / row.rate if self.batch and row.rate else 0.0)
        return seconds if seconds > SHORTEST_STEP_SECONDS else None

    def evaluated_seconds(self, start: float, stop: float) -> float:
        """Return the seconds of evaluation between two moments."""
        closed = ((began, ended) for began, ended in self.evaluations if ended is not None)
        return sum(max(0.0, min(stop, ended) - max(start, began)) for began, ended in closed)


def _positive(value: float | None) -> float | None:
    return value if value is not None and 0 < value < math.inf else None
