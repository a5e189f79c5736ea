"""The synthetic stream: the same everywhere, disjoint over ranks, frequent words frequent, and learnable."""

import math

import numpy as np
import pytest

pytest.importorskip("torch")

from each import in_each

from tensorprimat.engines.torch.data import CIRCLE, FOLLOWS, StepBatches, TokenStream, loader

PINNED = {
    0: [10, 11, 263, 256, 257, 258, 1492, 1493, 1494, 1, 2, 3],
    7: [0, 1, 2, 3, 4, 5, 2099, 2100, 2101, 2102, 2103, 1],
}


def test_a_sequence_is_the_same_on_every_platform():
    stream = TokenStream(vocabulary_size=4096, seed=1234)
    assert stream.sequence(0, 12).tolist() == PINNED[0]
    assert stream.sequence(7, 12).tolist() == PINNED[7]


def test_a_longer_sequence_begins_like_the_shorter_one():
    stream = TokenStream(vocabulary_size=512, seed=3)
    assert stream.sequence(5, 200)[:50].tolist() == stream.sequence(5, 50).tolist()


def test_seeds_and_sequences_differ():
    first, other = TokenStream(vocabulary_size=4096, seed=1), TokenStream(vocabulary_size=4096, seed=2)
    assert first.sequence(0, 100).tolist() != other.sequence(0, 100).tolist()
    assert first.sequence(0, 100).tolist() != first.sequence(1, 100).tolist()


@in_each("vocabulary_size", [2, 3, 7, 8, 9, 1000])
def test_every_token_is_one_of_the_vocabulary(vocabulary_size):
    stream = TokenStream(vocabulary_size=vocabulary_size, seed=1)
    tokens = np.concatenate([stream.sequence(number, 500) for number in range(20)])
    assert tokens.min() == 0
    assert tokens.max() < vocabulary_size
    assert vocabulary_size > 9 or tokens.max() == vocabulary_size - 1, "the last token occurs too"


def test_a_vocabulary_of_one_token_is_refused():
    with pytest.raises(ValueError, match="nothing to predict"):
        TokenStream(vocabulary_size=1, seed=1)


def test_frequencies_are_those_of_zipf():
    size = 1024
    stream = TokenStream(vocabulary_size=size, seed=1)
    counts = np.bincount(np.concatenate([stream.sequence(number, 512) for number in range(400)]), minlength=size)
    circles = counts.reshape(-1, CIRCLE).sum(axis=1) / counts.sum()
    expected = (1 / np.arange(1, size + 1)).reshape(-1, CIRCLE).sum(axis=1)
    assert np.allclose(circles[:20], (expected / expected.sum())[:20], rtol=0.1)


def test_most_tokens_are_successors_so_there_is_something_to_learn():
    stream = TokenStream(vocabulary_size=4096, seed=1)
    tokens = np.concatenate([stream.sequence(number, 512) for number in range(50)])
    base = tokens[:-1] - tokens[:-1] % CIRCLE
    follows = tokens[1:] == base + (tokens[:-1] + 1) % CIRCLE
    assert FOLLOWS < follows.mean() < FOLLOWS + 0.05
    frequencies = np.bincount(tokens, minlength=4096) / len(tokens)
    seen = frequencies[frequencies > 0]
    assert -(seen * np.log(seen)).sum() < math.log(4096) - 1.5  # what the frequencies alone are worth


def batches(rank, replicas, *, accumulation=2):
    stream = TokenStream(vocabulary_size=64, seed=1)
    return StepBatches(
        stream, micro_batch_size=3, accumulation=accumulation, sequence_length=8, rank=rank, replicas=replicas
    )


def test_a_batch_holds_the_step_of_one_rank_with_one_token_more_than_is_trained_on():
    assert next(iter(batches(0, 1))).shape == (2, 3, 9)


def test_ranks_share_out_each_step_without_overlap():
    for step in (0, 1, 5):
        parts = [batches(rank, 2).numbers(step) for rank in (0, 1)]
        assert sorted(np.concatenate(parts, axis=None)) == list(range(step * 12, step * 12 + 12))


def test_a_step_is_the_same_work_for_any_number_of_ranks():
    alone = sorted(batches(0, 1, accumulation=4).numbers(3).ravel())
    shared = sorted(np.concatenate([batches(rank, 4, accumulation=1).numbers(3) for rank in range(4)], axis=None))
    assert alone == shared


def test_the_loader_gives_step_after_step():
    stated = iter(loader(batches(1, 2), pinned=False))
    first, second = next(stated), next(stated)
    stream = TokenStream(vocabulary_size=64, seed=1)
    assert first[0, 0].tolist() == stream.sequence(3, 9).tolist()
    assert second[0, 0].tolist() == stream.sequence(15, 9).tolist()
