"""Iteration lines of the Megatron family, many at a time, straight from bytes to columns.

Most lines of a Megatron log are no iteration lines: `find_mentions` searches fast for those that are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tensorprimat.core.steps import FloatArray
from tensorprimat.logs.files import line_ends
from tensorprimat.logs.megatron.layout import NEEDLE, Layout, LayoutRows, Template, line_layout

MAX_ROW_BYTES = 64 * 2**10  # an iteration line has some 300 to 1,500 bytes; anything longer is something else
MAX_LAYOUTS = 2_000
MAX_TEMPLATES = 8  # of one length of line
WORTH_A_TEMPLATE = 50  # lines per template, on average; with fewer, the layout is not steady
FIRST_ROWS = 10_000  # in a young log every number is still growing
PIECE_ROWS = 2048  # fits in a core's own cache while it is compared and read
SAMPLE_BYTES = 2**13
_MOST = 0.5  # a block that begins with more iterations than other lines is taken line by line without searching
BATCH_BYTES = 2**19  # enough lines for numpy, few enough for a core's cache
EVENT = b" at iteration "
"""Text in lines of validations and checkpoints."""
_WORD = b"iteration"
_BEFORE_ROW, _BEFORE_EVENT = NEEDLE.index(_WORD), EVENT.index(_WORD)
_BYTES = 4  # of a machine word: small enough that one of them lies inside _WORD wherever that begins
_WORDS = np.array([int.from_bytes(_WORD[first : first + _BYTES], "little") for first in range(_BYTES)], np.uint32)


class RowTable:
    """Iteration lines in columns, read some thousands at a time."""

    def __init__(self, *, log_bytes: int = 0) -> None:
        """Create an empty table.

        log_bytes: approximate size of the text, if known.
        """
        self._log_bytes, self._seen_bytes = log_bytes, 0
        self.primus = False
        self.next_line = 1
        """Number of the first line of the next block."""
        self.broken_lines: list[int] = []
        """Lines that began as iteration lines but have no readable time, or those of two iterations."""
        self._waiting: list[bytes] = []
        """Whole lines, each with its line end, kept until there are enough to read at once."""
        self._waiting_bytes = 0
        self._numbers: list[NDArray[np.int64]] = []
        """Line numbers of the waiting lines."""
        self._ends: list[NDArray[np.int64]] = []
        """End offset of each waiting line."""
        self._layouts: dict[bytes, Layout | None] = {}
        self._templates: dict[int, list[Template]] = {}
        """Length of line → templates, the latest used first."""
        self._made = 0
        self._columns = Columns()

    @property
    def is_empty(self) -> bool:
        """Return True if no line seen so far could be an iteration line."""
        return not len(self._columns) and not self._waiting and not self.broken_lines

    def add(self, block: bytes) -> list[int]:
        """Take in the next block of whole lines; return the offsets of " at iteration " (validation, checkpoint)."""
        self._seen_bytes += len(block)
        ended = block.endswith(b"\n")
        text = block if ended else block + b"\n"
        ends = np.flatnonzero(line_ends(text))
        first_line, self.next_line = self.next_line, self.next_line + len(ends) - (not ended)
        head = block[:SAMPLE_BYTES]
        if head.count(NEEDLE) > _MOST * head.count(b"\n"):
            self._flush()  # lines waiting from other blocks must not be counted with this block's
            self._wait(text, ends, np.arange(first_line, first_line + len(ends)))
            read = self._flush()
            return [] if read >= len(ends) else find_mentions(block)[1]  # none if every line is an iteration
        found, events = find_mentions(block)
        if len(found):
            lines = np.searchsorted(ends, found)
            lines = lines[np.diff(lines, prepend=-1) > 0]  # of two on one line the first
            stops = ends[lines] + 1
            starts = np.where(lines > 0, ends[lines - 1] + 1, 0)
            rows = b"".join(map(text.__getitem__, map(slice, starts.tolist(), stops.tolist())))
            self._wait(rows, np.cumsum(stops - starts) - 1, first_line + lines)
        if self._waiting_bytes >= BATCH_BYTES:
            self._flush()
        return events

    def _wait(self, text: bytes, ends: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        """Keep whole lines, each with its line end, until there are enough of them to be read at once."""
        self._waiting.append(text)
        self._ends.append(ends + self._waiting_bytes)
        self._numbers.append(numbers)
        self._waiting_bytes += len(text)

    def _flush(self) -> int:
        """Read the waiting lines; return the number of those that were iterations."""
        if not self._waiting:
            return 0
        text, numbers, ends = b"".join(self._waiting), np.concatenate(self._numbers), np.concatenate(self._ends)
        for kept in (self._waiting, self._numbers, self._ends):
            kept.clear()
        self._waiting_bytes = 0
        starts = np.concatenate([[0], ends[:-1] + 1])
        read, odd = self._read(text, starts, ends)
        self.broken_lines += sorted(int(numbers[position]) for position in odd)
        if not read:
            return 0
        part = _merged(numbers, read)
        self._extend(part)
        return len(part["line"])

    def _extend(self, part: dict[str, FloatArray]) -> None:
        if not len(
            self._columns
        ):  # room for all rows at once: growing leaves holes in the heap, and untouched room costs nothing
            self._columns.reserve(int(1.05 * len(part["line"]) * self._log_bytes / self._seen_bytes))
        self._columns.extend(part)

    def _read(self, text: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[list[_Read], list[int]]:
        """Return the fields of all iteration lines, and the positions of those without one time."""
        signs, lengths = np.frombuffer(text, np.uint8), ends - starts
        order = np.argsort(lengths, kind="stable")
        changes = np.flatnonzero(np.diff(lengths[order])) + 1
        read: list[_Read] = []
        odd: list[int] = []
        for alike in np.split(order, changes):
            length = int(lengths[alike[0]]) if len(alike) else 0
            if length > MAX_ROW_BYTES:
                odd += [
                    position for position in alike.tolist() if text.find(NEEDLE, starts[position], ends[position]) >= 0
                ]
            elif length > len(NEEDLE):
                windows = sliding_window_view(signs, length)
                for first in range(0, len(alike), PIECE_ROWS):
                    positions = alike[first : first + PIECE_ROWS]
                    self._read_alike(positions, windows[starts[positions]], read, odd)
        return read, odd

    def _read_alike(self, positions: NDArray[np.int64], rows: LayoutRows, read: list[_Read], odd: list[int]) -> None:
        """Read equally long lines, by the layouts of lines before them as far as these fit."""
        for template in tuple(self._templates.get(rows.shape[1], ())):
            positions, rows = self._read_fitting(template, positions, rows, read)
            if not len(positions):
                return
        self._read_new(positions, rows, read, odd)

    def _read_fitting(
        self, template: Template, positions: NDArray[np.int64], rows: LayoutRows, read: list[_Read]
    ) -> tuple[NDArray[np.int64], LayoutRows]:
        """Read those of some equally long lines that have this layout; return the rest."""
        fits = template.fits(rows)
        if not fits.any():
            return positions, rows
        templates = self._templates.setdefault(len(template.line), [])
        if template in templates:
            templates.remove(template)
        templates.insert(0, template)  # layouts change as numbers grow: the layout that fitted last is tried first
        del templates[MAX_TEMPLATES:]
        if fits.all():
            read.append((positions, template.read(rows)))
            return positions[:0], rows[:0]
        read.append((positions[fits], template.read(rows[fits])))
        return positions[~fits], rows[~fits]

    def _read_new(self, positions: NDArray[np.int64], rows: LayoutRows, read: list[_Read], odd: list[int]) -> None:
        """Read equally long lines that fit no template yet, and remember theirs."""
        while len(positions):
            line = rows[0].tobytes()
            layout = self._layout(line) if NEEDLE in line else None
            if layout is not None:
                self.primus |= layout.primus
                self._made += 1
                wasted = self._made * WORTH_A_TEMPLATE > len(self._columns) + FIRST_ROWS
                template = Template.of(line, layout, free=wasted)
                positions, rows = self._read_fitting(template, positions, rows, read)
                continue
            if NEEDLE in line:
                odd.append(int(positions[0]))
            positions, rows = positions[1:], rows[1:]

    def _layout(self, line: bytes) -> Layout | None:
        shape = line_layout(line)
        if shape not in self._layouts:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            self._layouts[shape] = Layout.of(line)
        return self._layouts[shape]

    def take(self) -> dict[str, FloatArray]:
        """Return every field that any line has, over all lines: NaN where a line lacks it."""
        self._flush()
        return self._columns.finish()

    def excerpt(self) -> Excerpt:
        """Return all that was read, for another process to append to its own."""
        self.take()
        return Excerpt(self._columns, self.broken_lines, self.next_line - 1, self._seen_bytes, self.primus)

    def append(self, later: Excerpt) -> None:
        """Add the rows of another table, read from the lines that follow."""
        self._flush()
        before, self.next_line = self.next_line - 1, self.next_line + later.lines
        self._seen_bytes += later.text_bytes
        self.primus |= later.primus
        self.broken_lines += [line + before for line in later.broken_lines]
        if len(later.columns):
            part = later.columns.finish()
            self._extend(part | {"line": part["line"] + before})


class Columns:
    """Columns that grow by parts in place, so that millions of lines are held once.

    A field that has had one value so far takes the room of one value.
    """

    def __init__(self) -> None:
        self._length = 0
        self._capacity = 0
        self._arrays: dict[str, FloatArray] = {}
        self._constants: dict[str, float] = {}

    def __len__(self) -> int:
        return self._length

    def reserve(self, lines: int) -> None:
        """Allocate the columns, before the first part is added."""
        self._capacity = lines

    def extend(self, part: dict[str, FloatArray]) -> None:
        """Add lines at the end. part: equally long columns; a field that it lacks is NaN there."""
        count = len(next(iter(part.values())))
        if self._length + count > self._capacity:
            self._capacity = max(self._capacity + self._capacity // 8, self._length + count, 2**16)
            for array in self._arrays.values():
                array.resize(self._capacity, refcheck=False)
        after = self._length + count
        for name in {*part, *self._arrays, *self._constants}:
            values = part.get(name)
            if name not in self._arrays:
                known = self._constants.get(name, np.nan)
                value = np.nan if values is None else float(values[0])
                one_value = values is None or values.strides == (0,) or bool((values == values[0]).all())
                if one_value and (self._length == 0 or value == known or (np.isnan(value) and np.isnan(known))):
                    self._constants[name] = value
                    continue
                self._arrays[name] = np.empty(self._capacity)
                self._arrays[name][: self._length] = known
                self._constants.pop(name, None)
            self._arrays[name][self._length : after] = np.nan if values is None else values
        self._length = after

    def finish(self) -> dict[str, FloatArray]:
        """Return all columns; nothing can be added any more."""
        for array in self._arrays.values():
            array.resize(self._length, refcheck=False)
        constants = {name: np.broadcast_to(np.float64(value), self._length) for name, value in self._constants.items()}
        return self._arrays | constants


class Excerpt(NamedTuple):
    """The content of one table, as another process hands it over; line numbers start at 1."""

    columns: Columns
    broken_lines: list[int]
    lines: int
    text_bytes: int
    primus: bool


_Read = tuple[NDArray[np.int64], dict[str, FloatArray]]
"""Positions of lines in their block, and their fields."""


def _merged(numbers: NDArray[np.int64], read: list[_Read]) -> dict[str, FloatArray]:
    """Return the fields of lines of several templates, in the order of the lines. numbers: line number by position."""
    positions = np.concatenate([positions for positions, _ in read])
    order = np.argsort(positions, kind="stable")
    columns = {"line": numbers[positions[order]].astype(np.float64)}
    for name in {name for _, fields in read for name in fields}:
        joined = _joined([fields[name] if name in fields else np.full(len(where), np.nan) for where, fields in read])
        columns[name] = joined if joined.strides == (0,) else joined[order]
    return columns


def _joined(parts: list[FloatArray]) -> FloatArray:
    """Return the parts one after the other; one value for all of them takes the room of one value."""
    if len(parts) == 1:
        return parts[0]
    if all(part.strides == (0,) and part[0] == parts[0][0] for part in parts):
        return np.broadcast_to(parts[0][0], sum(map(len, parts)))
    return np.concatenate(parts)


def find_mentions(block: bytes) -> tuple[NDArray[np.int64], list[int]]:
    """Return the offsets of every NEEDLE and every EVENT of a block, three times as fast as by `bytes.find`.

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
    rows = _where(signs, NEEDLE, begin[before == ord("r")] - _BEFORE_ROW)
    return rows, _where(signs, EVENT, begin[before == ord("t")] - _BEFORE_EVENT).tolist()


def _where(signs: NDArray[np.uint8], text: bytes, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions at which the text occurs, in their order. signs: shape (bytes,)."""
    places = places[(places >= 0) & (places <= len(signs) - len(text))]
    if not len(places):
        return places
    found = sliding_window_view(signs, len(text))[places] == np.frombuffer(text, np.uint8)
    return np.asarray(places[found.all(axis=1)])
