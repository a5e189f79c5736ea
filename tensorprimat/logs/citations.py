"""For each setting, the first line of a log that states its value, found with the reader.

Nothing is searched for by name. The reader is run on fewer and fewer lines; the line without which the value disappears
states the fact. So this works for every format, and never cites a line that only looks like a statement. A value that
follows from two lines (nodes × devices) has two citations. `of_settings` looks for all settings at once and gives up
early: it is for every log that is read, `stating` for one setting that `--explain` names.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from tensorprimat.core.result import Result
from tensorprimat.logs import files, headers, segments
from tensorprimat.logs.format import Format, Reading
from tensorprimat.logs.text import Log, Part, lines_of

ROWS_KEPT = 200  # lines from the first row on: enough for a reader to find its format and work
LINES_AFTER = 20_000  # searched after the first row, where the lines before it do not state the fact
FORMAT_ROWS = 5  # rows that show a reader its format, in addition to the few lines that `of_settings` reads at a time
CHUNK_LINES = 64
READ_ALONE = 4  # lines that are read one by one: in halves they take as many readings or more
END_OF_TEXT = 2**62
MOST_HEADER_BYTES = 2**20  # before the first row; beyond, settings are looked for only on demand
RECORDS = ("training_config", "gpu_info", "model")
SHOWN_CHARACTERS = 100  # of a line, from a little before the value on


def stating(log: Log, format: Format, segment: int | None, record: str, field: str) -> list[tuple[int, str]]:
    """Return (line, excerpt) of the lines that state a field; none where it follows from something else.

    segment: number of the training that the result is of, None for the one that is measured; record: the dictionary of
    Reading that contains the field.
    """
    if log.is_folder or log.is_binary:
        return []
    found = segments.read_segments(log, format)
    if isinstance(found, Result) or not (chosen := segments.benchmark_of(found, segment)):
        return []
    value = getattr(chosen[0].reading, record).get(field)
    if value is None:
        return []
    lines = _Lines.of(log, chosen[0])

    def says(parts: Sequence[Part]) -> bool:
        if not parts:
            return False
        reading = _read(log, format, parts)
        return reading is not None and getattr(reading, record).get(field) == value

    return [(line, _excerpt(text, value)) for line, text in map(lines.text_of, _needed(lines, says))]


def _read(log: Log, format: Format, parts: Sequence[Part]) -> Reading | None:
    """Return what some lines of a log state, or None for a result record."""
    part = replace(log, parts=tuple(parts))
    reading = format.read(part)
    if not isinstance(reading, Reading):
        return None
    return headers.with_header(part, reading, whole_sequences=format.last_resort, in_lines=True)


def of_settings(log: Log, format: Format, segment: segments.Segment) -> dict[str, int]:
    """Return setting of one training → the first line that states it by itself; model.NAME for a setting of the model.

    Leaves out settings that follow from several lines, and all settings of a log whose header is long or lies far
    inside a packed file.
    """
    if log.is_folder or log.is_binary:
        return {}
    stated = ((record, fact) for record in RECORDS for fact in getattr(segment.reading, record).items())
    facts = {(record, field): value for record, (field, value) in stated if value is not None and value != {}}
    rows = segment.reading.steps.column("line")
    first_row = int(rows[rows > 0].min(initial=2**62))
    start = segment.parts[0].start if segment.parts else 0
    if first_row == 2**62 or not facts or (start and not files.is_plain(log.path)):
        return {}
    after = FORMAT_ROWS + (int(rows[1] - rows[0]) if format.opens and len(rows) > 1 else 0)  # a row of several lines
    lines = _Lines.of(log, segment, after=after, most_bytes=MOST_HEADER_BYTES)
    if lines.first_row == len(lines):
        return {}
    kept = lines.between(lines.first_row, min(len(lines), lines.first_row + after))

    def known(begin: int, end: int) -> set[tuple[str, str]]:
        if (reading := _read(log, format, (*lines.between(begin, end), *kept))) is None:
            return set()
        return {key for key, value in facts.items() if getattr(reading, key[0]).get(key[1]) == value}

    from_rows = known(0, 0)
    found = dict.fromkeys(from_rows, lines.first_row)
    for begin in range(0, lines.first_row, CHUNK_LINES):
        end = min(begin + CHUNK_LINES, lines.first_row)
        cited = known(begin, end) if end - begin > READ_ALONE else facts.keys()
        if cited := cited - found.keys():
            _place(cited, begin, end, known, found)
        if len(found) == len(facts):
            break
    at_line = sorted((at, record, field) for (record, field), at in found.items())
    return {f"model.{field}" if record == "model" else field: int(lines.number[at]) for at, record, field in at_line}


def _place(
    cited: set[tuple[str, str]],
    begin: int,
    end: int,
    known: Callable[[int, int], set[tuple[str, str]]],
    found: dict[tuple[str, str], int],
) -> None:
    """Find the line of each setting that one of the lines from `begin` to before `end` states."""
    if end - begin <= READ_ALONE:
        for line in range(begin, end):
            found.update(dict.fromkeys((cited & known(line, line + 1)) - found.keys(), line))
        return
    middle = (begin + end) // 2
    first = cited & known(begin, middle)
    if first:
        _place(first, begin, middle, known, found)
    if (rest := cited - first) and (second := rest & known(middle, end)):
        _place(second, middle, end, known, found)


@dataclass(frozen=True, kw_only=True)
class _Lines:
    """The lines of one training in which settings are searched: number and place of each; columns of shape (lines,)."""

    log: Log
    number: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    first_row: int
    """Position of the first row."""

    @classmethod
    def of(
        cls, log: Log, segment: segments.Segment, *, after: int = LINES_AFTER, most_bytes: int = END_OF_TEXT
    ) -> _Lines:
        """Return the lines of a training up to `after` lines after the first row, no more than about `most_bytes`."""
        rows = segment.reading.steps.column("line")
        first_row = int(rows.min()) if len(rows) else -1
        numbers: list[np.ndarray] = []
        starts: list[np.ndarray] = []
        stops: list[np.ndarray] = []
        size = min(most_bytes // 4, files.BLOCK_BYTES)
        for part in segment.parts or (Part(1, 0, END_OF_TEXT),):
            at, number = part.start, part.first_line
            for block in files.blocks_between(log.path, part.start, part.stop, size):
                ends = np.flatnonzero(files.line_ends(block)) + 1
                ends = ends if len(ends) and ends[-1] == len(block) else np.append(ends, len(block))
                numbers.append(number + np.arange(len(ends)))
                starts.append(at + np.concatenate([[0], ends[:-1]]))
                stops.append(at + ends)
                at, number = at + len(block), number + files.count_line_ends(block)
                if 0 <= first_row < number - after or at - part.start > most_bytes:
                    break
        all_numbers = np.concatenate(numbers)
        is_first = np.flatnonzero(all_numbers == first_row)
        return cls(
            log=log,
            number=all_numbers,
            start=np.concatenate(starts),
            stop=np.concatenate(stops),
            first_row=int(is_first[0]) if len(is_first) else len(all_numbers),
        )

    def __len__(self) -> int:
        return len(self.number)

    def between(self, begin: int, end: int) -> list[Part]:
        """Return the parts that contain the lines at positions from `begin` to before `end`."""
        if begin >= end:
            return []
        breaks = np.flatnonzero(self.start[begin + 1 : end] != self.stop[begin : end - 1]) + begin + 1
        edges = [begin, *breaks.tolist(), end]
        return [Part(int(self.number[a]), int(self.start[a]), int(self.stop[b - 1])) for a, b in pairwise(edges)]

    def text_of(self, position: int) -> tuple[int, str]:
        """Return the number and text of a line."""
        (part,) = self.between(position, position + 1)
        block = b"".join(files.blocks_between(self.log.path, part.start, part.stop))
        return next(iter(lines_of(part.first_line, block)), (part.first_line, ""))


def _needed(lines: _Lines, says: Callable[[Sequence[Part]], bool]) -> list[int]:
    """Return the positions of the first and the last line that the value needs: one if it needs a single line."""
    kept = (lines.first_row, min(len(lines), lines.first_row + ROWS_KEPT))

    def with_rows(begin: int, end: int) -> list[Part]:
        return [
            *lines.between(begin, min(end, kept[0])),
            *lines.between(kept[0], max(end, kept[1]) if end else kept[1]),
        ]

    from_rows = says(lines.between(*kept))
    if from_rows:  # the rows themselves state it
        end = _first(kept[0], len(lines), lambda end: says(lines.between(kept[0], end + 1)))
        return [] if end is None else [end]
    last = _first(0, len(lines), lambda end: says(with_rows(0, end + 1)))
    if last is None:
        return []
    begin = _first(0, last, lambda left_out: not says(with_rows(left_out + 1, last + 1)))
    return [last] if begin is None else [begin, last]


def _first(begin: int, end: int, holds: Callable[[int], bool]) -> int | None:
    """Return the first number from `begin` to before `end` from which on a condition holds, or None."""
    if begin >= end or not holds(end - 1):
        return None
    return begin + bisect_left(range(begin, end - 1), True, key=holds)


def _excerpt(text: str, value: object) -> str:
    """Return the line, or the part of a long line around the value, with … where it is cut."""
    spelled = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    match = re.search(rf"(?<![\w.])(?:{re.escape(spelled)}|{re.escape(str(value))})(?![.,]?\d)", text)
    start = max(0, match.end() - SHOWN_CHARACTERS * 4 // 5) if match and len(text) > SHOWN_CHARACTERS else 0
    shown = text[start : start + SHOWN_CHARACTERS].strip()
    return f"{'…' * (start > 0)}{shown}{'…' * (start + SHOWN_CHARACTERS < len(text.rstrip()))}"
