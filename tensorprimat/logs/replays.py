"""Stretches of a log that repeat an earlier stretch word for word: `cat a.log b.log a.log`, or a launcher that prints
the log so far once more.

Such a stretch adds nothing, and its rows would count twice. `segments` leaves it out, and refuses a log with rows after
it that may be of the training that was repeated or of the one before the stretch.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tensorprimat.core.notices import Notice
from tensorprimat.core.steps import Steps
from tensorprimat.core.terms import RATES
from tensorprimat.logs import files, prefixes
from tensorprimat.logs.text import Log, Part

_LEAST_ROWS = 3  # different rows: fewer may agree by chance, and ranks print each row several times
MOST_LINES = 5_000_000  # of a log whose lines are compared; a hash of each is kept


class RepeatedText(NamedTuple):
    """Lines that repeat earlier ones."""

    first_line: int
    last_line: int
    original: int
    """The first of the lines that are repeated."""


def find_replays(log: Log, steps: Steps, with_prefixes: bool, opens: str) -> list[RepeatedText]:
    """Return the stretches of whole lines that repeat an earlier stretch with rows, in the order of the log.

    The prefixes of launchers and collectors may differ, unless they count (with_prefixes): they time the rows, or name
    the ranks that printed them. steps: the rows that a reader found. Only rows that state a time or a rate count:
    another training with the same seed prints the same losses, but never the same times. opens: expression of the first
    line of a row of several; its last line may be that of many rows.
    """
    lines_of_rows = steps.column("line")
    stated = [np.isfinite(steps.column(name)) for name in ("seconds", *RATES) if steps.has(name)]
    timed = np.logical_or.reduce(stated) if stated else np.zeros(len(steps), np.bool_)
    rows = np.unique(lines_of_rows[timed & (lines_of_rows > 0)])
    if len(rows) < _LEAST_ROWS:
        return []
    lines, opened, opening = array("q"), array("q"), re.compile(opens.encode())
    row = next((text for line, text in log.bare_lines() if line == rows[0]), "")
    is_prefixed = not with_prefixes and prefixes.strip(row) != row  # by a launcher or collector
    text_of = _bare if is_prefixed else bytes
    for _, block in log.numbered_blocks():
        of_block = block.removesuffix(b"\n").split(b"\n")
        opened.extend(number for number, line in enumerate(of_block, len(lines) + 1) if opens and opening.search(line))
        lines.extend(hash(text_of(line).rstrip()) for line in of_block)
        if len(lines) > MOST_LINES:
            return []
    if opened:
        rows = np.unique(np.array(opened)[np.searchsorted(opened, rows, "right") - 1])
    originals = {lines[row - 1]: row - 1 for row in reversed(rows.tolist())}
    found: list[RepeatedText] = []
    end = looked_at = 0
    for place, line in enumerate(lines):
        original = originals.get(line, place)
        if place < looked_at or original >= place:
            continue
        back = place - original
        start = stop = place
        while stop < len(lines) and stop - back < place and lines[stop] == lines[stop - back]:
            stop += 1
        while start > max(end, back) and lines[start - 1] == lines[start - 1 - back]:
            start -= 1
        looked_at = stop
        inside = rows[np.searchsorted(rows, start - back + 1) : np.searchsorted(rows, stop - back + 1)]
        if len({lines[row - 1] for row in inside.tolist()}) >= _LEAST_ROWS:
            found.append(RepeatedText(start + 1, stop, start - back + 1))
            end = stop
    return found


def _bare(line: bytes) -> bytes:
    return prefixes.strip(line.decode("utf-8", "replace")).encode()


def parts_without_replays(log: Log, found: Sequence[RepeatedText]) -> tuple[Part, ...]:
    """Return the parts of a log between replays."""
    firsts = sorted({1, *(line for replay in found for line in (replay.first_line, replay.last_line + 1))})
    *starts, end = files.offsets_of_lines(log.path, firsts)
    left_out = {replay.first_line for replay in found}
    spans = zip(firsts, starts, [*starts[1:], end], strict=True)
    return tuple(Part(first, start, stop) for first, start, stop in spans if first not in left_out and stop > start)


def within(parts: Sequence[Part], own: Part) -> tuple[Part, ...]:
    """Return the parts of a stretch of lines that are to be read. parts: those of the log to read; () for all."""
    if not parts:
        return (own,)
    kept = [part for part in parts if part.stop > own.start and part.start < own.stop]
    return tuple(
        Part(max(part.first_line, own.first_line), max(part.start, own.start), min(part.stop, own.stop))
        for part in kept
    )


def replay_note(found: Sequence[RepeatedText]) -> Notice:
    """Return a note that names the first of the stretches."""
    first, more = found[0], len(found) - 1
    return Notice(
        "text_repeated",
        "segments",
        first=first.first_line,
        last=first.last_line,
        original=first.original,
        end=first.original + first.last_line - first.first_line,
        more=f", and {more} more {'stretches do' if more > 1 else 'stretch does'} so" if more else "",
    )
