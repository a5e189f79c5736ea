"""Batches of tokens for timing one step: synthetic, or windows of a memory-mapped token file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tensorprimat.core.errors import InputError
from tensorprimat.core.micro_result import CellSpec

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

DTYPES = (np.dtype(np.uint16), np.dtype(np.int32))
CHUNK = 2**24  # tokens that are checked at a time, because a file may be larger than memory
DISTINCT_BATCHES = 2  # batches that alternate, so that no step repeats the one before it


def batches(spec: CellSpec) -> list[torch.Tensor]:
    """Return DISTINCT_BATCHES batches of shape (batch size, context + 1) on the host; the last token is only a target.

    Raises InputError for a token file that cannot be used for the cell.
    """
    import torch

    size, length = spec.batch_size, spec.context_length + 1
    if spec.data is None:
        from tensorprimat.engines.torch.data import TokenStream

        stream = TokenStream(vocabulary_size=spec.vocab, seed=spec.seed)
        made = (
            np.stack([stream.sequence(batch * size + row, length) for row in range(size)])
            for batch in range(DISTINCT_BATCHES)
        )
        return [torch.from_numpy(batch) for batch in made]
    tokens = open_tokens(Path(spec.data), vocabulary_size=spec.vocab, least=length)
    random = np.random.default_rng(spec.seed)
    starts = random.integers(0, len(tokens) - length + 1, (DISTINCT_BATCHES, size))
    return [
        torch.from_numpy(np.stack([tokens[start : start + length] for start in row]).astype(np.int64)) for row in starts
    ]


def open_tokens(path: Path, *, vocabulary_size: int, least: int) -> NDArray[np.uint16] | NDArray[np.int32]:
    """Return the tokens of a file (.npy of uint16 or int32, one dimension), memory-mapped, after a check of all tokens.

    least: number of tokens that it must have. Raises InputError with the reason where the file cannot be used.
    """
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):  # a pipe would wait for a writer
        raise InputError("is a pipe or a device, not a token file", path=path, remedy="give another --data")
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError("no such token file", path=path, remedy="give another --data") from None
    except IsADirectoryError:
        raise InputError("a folder, not a token file", path=path, remedy="give another --data") from None
    except PermissionError:
        raise InputError("no permission to read it", path=path, remedy="give another --data") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path, remedy="give another --data") from error
    except (ValueError, EOFError) as error:  # numpy's message advises to trust the file and unpickle it
        remedy = "--data takes one that numpy.save wrote, of uint16 or int32 (tokens without a header: numpy.fromfile)"
        raise InputError("not a .npy file of numbers", path=path, remedy=remedy) from error
    if not isinstance(tokens, np.ndarray):
        raise InputError("an archive of arrays, not a single array", path=path, remedy="--data takes a .npy file")
    if tokens.dtype not in DTYPES:
        raise InputError(f"tokens of type {tokens.dtype}", path=path, remedy="--data takes uint16 or int32")
    if tokens.ndim != 1:
        raise InputError(f"an array of shape {tokens.shape}", path=path, remedy="--data takes one dimension of tokens")
    if len(tokens) < least:
        raise InputError(
            f"{len(tokens)} tokens, but a sequence needs {least}", path=path, remedy="lower --context-length"
        )
    for start in range(0, len(tokens), CHUNK):
        part = tokens[start : start + CHUNK]
        wrong = np.flatnonzero((part < 0) | (part >= vocabulary_size))
        if len(wrong):
            raise InputError(
                f"token {start + wrong[0]} has id {part[wrong[0]]}, and the vocabulary ends at {vocabulary_size - 1}",
                path=path,
                remedy="raise --vocab-size, or give another --data",
            )
    return tokens
