"""Synthetic tokens that can be learned: a seeded Markov stream whose tokens have Zipf frequencies.

With uniform random tokens the loss would stay at ln V (V: size of the vocabulary), so that a check of the loss would
prove nothing. Here the frequency of token k is about proportional to 1 / (k + 1), like that of words, and with
probability FOLLOWS the next token is the successor of the last one: a model learns frequencies first, successors later.

Sequence number i of a seed is the same on every platform and for every number of ranks: it is made from a
counter-based generator with integer arithmetic alone. Rank r of R takes every R-th micro-batch of the global batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset

FOLLOWS = 0.75
"""Probability that a token is the successor of the one before it."""
CIRCLE = 8
"""Number of tokens in a cycle of successors. Tokens of one cycle are about equally frequent, which keeps Zipf's law."""


class TokenStream:
    """A stream of token sequences, each computed from its number alone."""

    def __init__(self, *, vocabulary_size: int, seed: int) -> None:
        """Create the stream.

        vocabulary_size: at least 2. Raises ValueError otherwise.
        """
        if vocabulary_size < 2:
            raise ValueError(f"a vocabulary of {vocabulary_size} tokens leaves nothing to predict")
        self.vocabulary_size, self._seed = vocabulary_size, seed
        weights = 1.0 / np.arange(1, vocabulary_size + 1)
        cumulative = np.cumsum(weights) / weights.sum()
        # Thresholds as whole numbers: rounding of floats must not change which token a draw becomes.
        self._thresholds = np.minimum(np.round(cumulative * 2**32), 2**32 - 1).astype(np.uint32)

    def sequence(self, number: int, length: int) -> NDArray[np.int64]:
        """Return sequence `number` of the stream, shape (length,)."""
        bits = np.random.Philox(key=self._seed, counter=[0, 0, 0, number]).random_raw(length)
        draws = (bits >> np.uint64(32)).astype(np.uint32)
        fresh = (bits & np.uint64(0xFFFFFFFF)) >= np.uint64(round(FOLLOWS * 2**32))
        fresh[0] = True
        # Position of the last fresh token at or before each position; the tokens after it are its successors in order.
        positions = np.arange(length)
        began = np.maximum.accumulate(np.where(fresh, positions, 0))
        starts = np.searchsorted(self._thresholds[:-1], draws[fresh], side="right")
        token = np.zeros(length, np.int64)
        token[fresh] = starts
        token = token[began]
        base = token - token % CIRCLE
        width = np.minimum(CIRCLE, self.vocabulary_size - base)  # the last cycle may be smaller
        result: NDArray[np.int64] = base + (token - base + positions - began) % width
        return result


class StepBatches(IterableDataset[torch.Tensor]):
    """One rank's part of each optimizer step's batch: tokens of shape (micro-batches, micro batch size, length + 1).

    A sequence has one token more than the training's sequence length, because the last token is only a target.
    """

    def __init__(
        self,
        stream: TokenStream,
        *,
        micro_batch_size: int,
        accumulation: int,
        sequence_length: int,
        rank: int,
        replicas: int,
    ) -> None:
        self._stream, self._length = stream, sequence_length + 1
        self._micro, self._accumulation = micro_batch_size, accumulation
        self._rank, self._replicas = rank, replicas

    def numbers(self, step: int) -> NDArray[np.int64]:
        """Return the indices of this rank's sequences in a step, shape (micro-batches, micro batch size)."""
        of_step = np.arange(self._accumulation * self._replicas * self._micro) + step * (
            self._accumulation * self._replicas * self._micro
        )
        return of_step.reshape(self._accumulation, self._replicas, self._micro)[:, self._rank]

    def __iter__(self) -> Iterator[torch.Tensor]:
        step = 0
        while True:
            numbers = self.numbers(step)
            tokens = np.stack([self._stream.sequence(int(number), self._length) for number in numbers.ravel()])
            yield torch.from_numpy(tokens).view(*numbers.shape, self._length)
            step += 1


def loader(batches: StepBatches, *, pinned: bool) -> DataLoader[torch.Tensor]:
    """Return a loader that runs in the training process, because making a step's tokens takes little time.

    pinned: use page-locked host memory, so that the copy to the GPU is asynchronous.
    """
    return DataLoader(batches, batch_size=None, num_workers=0, pin_memory=pinned)
