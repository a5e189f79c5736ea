"""Where a block of text says "iteration", found at the speed of memory: most of a log of Megatron says other things."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorprimat.logs.megatron_layout import NEEDLE

EVENT = b" at iteration "
"""What lines of validations and checkpoints hold."""

_WORD = b"iteration"
_BEFORE_ROW, _BEFORE_EVENT = NEEDLE.index(_WORD), EVENT.index(_WORD)
_BYTES = 4  # of a machine word: small enough that one of them lies inside _WORD wherever that begins
_WORDS = np.array([int.from_bytes(_WORD[first : first + _BYTES], "little") for first in range(_BYTES)], np.uint32)


@dataclass(frozen=True, slots=True)
class Mentions:
    """Positions in a block, in their order."""

    rows: NDArray[np.int64]
    """Of NEEDLE."""
    events: list[int]
    """Of EVENT."""


def mentions(block: bytes) -> Mentions:
    """Every NEEDLE and every EVENT of a block, three times as fast as by `bytes.find`.

    The block is compared as machine words, four bytes each: "iteration" holds one of "iter", "tera", "erat", "rati" as
    a whole word, whatever its place. What that finds is little, and looked at closely.
    """
    signs = np.frombuffer(block, np.uint8)
    words = signs[: len(signs) // _BYTES * _BYTES].view("<u4")
    is_part = words == _WORDS[0]
    for part in _WORDS[1:]:
        is_part |= words == part
    found = np.flatnonzero(is_part)
    begin = found * _BYTES - np.argmax(words[found] == _WORDS[:, None], axis=0)
    begin = begin[begin >= _BEFORE_EVENT]
    before = signs[begin - 2]  # "per iteration" or "at iteration"
    rows = begin[(before == ord("r")) & (begin >= _BEFORE_ROW)] - _BEFORE_ROW
    events = begin[before == ord("t")] - _BEFORE_EVENT
    return Mentions(
        rows=np.array([at for at in rows.tolist() if block.startswith(NEEDLE, at)], np.int64),
        events=[at for at in events.tolist() if block.startswith(EVENT, at)],
    )
