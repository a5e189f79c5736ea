"""Kinds of lines: most lines of a log differ in digits alone, and one of each kind is enough to search for words."""

from __future__ import annotations

_DIGITS = b"0123456789"


def kinds_of(block: bytes) -> bytes:
    """Return the lines of a block without their digits, each once, in no order.

    >>> sorted(kinds_of(b"step 1 of 20\\nstep 2 of 20\\ndone").split(b"\\n"))
    [b'done', b'step  of ']
    """
    return b"\n".join(set(block.translate(None, _DIGITS).split(b"\n")))


def occurs_in(word: bytes, kinds: bytes) -> bool:
    """Return True if a word within one line may occur in the block of these kinds of lines; False if it cannot."""
    return word.translate(None, _DIGITS) in kinds
