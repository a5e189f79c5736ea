"""Tokens and sequences of every optimizer step, counted from the shapes of a training's batches.

The batches of a training can differ from its settings (global batch × sequence length): the user or a data module may
state wrong sizes, lengths may vary, and an epoch may end within an accumulation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tensorprimat.core.notices import Notice
from tensorprimat.core.result import Result, TrainingConfig
from tensorprimat.core.settings import MODEL_PARALLEL
from tensorprimat.core.steps import Steps
from tensorprimat.engines.introspect import batch_shape


@dataclass(frozen=True, slots=True)
class CountedBatches:
    """The batches of one optimizer step on one rank."""

    batches: int
    sequences: int
    lengths: tuple[int, int]
    """Shortest and longest, in tokens."""
    tokens: int


class BatchCounter:
    """A counter of one rank's batches per step, from their shapes alone."""

    def __init__(self) -> None:
        self.steps: list[CountedBatches | None] = []
        """One entry for each recorded step; None where a batch is no two-dimensional tensor of token ids, or where
        several optimizer steps share the recorded step."""
        self._shapes: list[tuple[int, int] | None] = []

    def add(self, batch: Any) -> None:
        """Count a batch of the current step."""
        self._shapes.append(batch_shape(batch))

    def end_step(self, optimizer_steps: int = 1) -> None:
        """Record the batches since the last call as one entry; None if it covers several optimizer steps."""
        shapes = [shape for shape in self._shapes if shape is not None]
        whole = optimizer_steps == 1 and len(shapes) == len(self._shapes) > 0
        lengths = [length for _, length in shapes]
        self.steps.append(
            CountedBatches(
                batches=len(shapes),
                sequences=sum(sequences for sequences, _ in shapes),
                lengths=(min(lengths), max(lengths)),
                tokens=sum(sequences * length for sequences, length in shapes),
            )
            if whole
            else None
        )
        self._shapes.clear()


def tokens_of_step(config: TrainingConfig, counted: CountedBatches | None) -> int | None:
    """Return the tokens of one optimizer step over all ranks, by its batches if they can be used, else by the settings.

    counted: the step's batches on one rank, or None. None if neither is known.
    """
    batch, length, replicas = config.global_batch_size, config.sequence_length, config.data_parallel_size
    if counted is None or not replicas or _is_split(config):
        return batch * length if batch and length else None
    if length and counted.lengths in ((length,) * 2, (length + 1,) * 2):  # with one token more as label of the last
        return counted.sequences * length * replicas
    return counted.tokens * replicas


def _is_split(config: TrainingConfig) -> bool:
    """Return True if ranks share a model (tensor, pipeline, context parallel), so that a rank's batch may be a part."""
    return any((getattr(config, name) or 1) > 1 for name in MODEL_PARALLEL)


def with_counted_work(
    result: Result, steps: Steps, seen: Sequence[CountedBatches | None], *, automatic: bool
) -> tuple[Result, Steps, list[Notice]]:
    """Return result and steps with the batch sizes, sequence length and tokens of the batches, and notices.

    seen: the batches of each row of steps on one rank; the other ranks are assumed to train on as much. Nothing changes
    where a row has no counted batches, or for a model that is split among ranks (tensor, pipeline, context parallel),
    whose batches may be parts. automatic: Lightning runs the optimizer, so that a batch is a micro-batch. With manual
    optimization it counts as one only if no micro-batch size is stated. A notice names each setting that differs.
    """
    config = result.training_config
    whole = [step for step in seen[: len(steps)] if step is not None]
    replicas = config.data_parallel_size
    if not whole or len(whole) != len(steps) or not replicas or _is_split(config):
        return result, steps, []
    lengths = (min(step.lengths[0] for step in whole), max(step.lengths[1] for step in whole))
    with_label = config.sequence_length == lengths[0] - 1  # a batch may have one token more, as label of the last one
    length = lengths[0] - with_label if lengths[0] == lengths[1] else None
    (usual, _), *_ = Counter(replace(step, lengths=(0, 0), tokens=0) for step in whole).most_common(1)
    ran: dict[str, int | None] = {"sequence_length": length}
    ran["global_batch_size"] = usual.sequences * replicas
    if (automatic or config.micro_batch_size is None) and usual.sequences % usual.batches == 0:
        ran["micro_batch_size"] = usual.sequences // usual.batches
        ran["gradient_accumulation_steps"] = usual.batches
    notices = _contradictions(config, ran, lengths)
    result = result.changed(training_config=config.changed(**ran))
    if length is None or any(step.sequences != usual.sequences for step in whole):
        sequences = np.array([step.sequences * replicas for step in whole], np.float64)
        tokens = np.array([step.tokens * replicas for step in whole], np.float64)
        steps = steps.replace(samples=sequences, tokens=tokens if length is None else sequences * length)
        if replicas > 1:
            notices.append(Notice("tokens_of_one_rank", "tokens_per_step", ranks=replicas))
    return result, steps, notices


def _contradictions(config: TrainingConfig, ran: dict[str, int | None], lengths: tuple[int, int]) -> list[Notice]:
    """Return a notice for each setting that the batches contradict."""
    notices = [
        Notice("setting_of_batches", "training_config", name=name, stated=stated, seen=seen)
        for name, seen in ran.items()
        if seen is not None and (stated := getattr(config, name)) is not None and stated != seen
    ]
    if ran["sequence_length"] is None:
        notices.append(Notice("lengths_vary", "sequence_length", shortest=lengths[0], longest=lengths[1]))
    return notices
