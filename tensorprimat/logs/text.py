"""Text of logs for readers: numbered lines without colours, prefixes and carriage returns."""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tensorprimat.core.errors import InputError
from tensorprimat.core.notices import Notice
from tensorprimat.logs import files, prefixes
from tensorprimat.logs.prefixes import Origin
from tensorprimat.system.safe_text import one_line

HEAD_BYTES = 2**20  # detection looks at this much of a file at a time
HEAD_LINE_CHARACTERS = 2**16  # and of a line only so much: its beginning shows the format
_SHOWN_CHARACTERS = 40  # of text that was not read
WHOLE_FILE_BYTES = 256 * 2**20  # a document that must be read as one piece (JSON) is refused beyond

_COLOUR = re.compile(
    r"[\x1b\ufffd␛^\\\[\0](?:"  # a set of first characters, because the search for one of them is many times faster
    r"(?:(?<=[\x1b\ufffd␛])|(?<=\^)\[|(?<=\\)(?:x1b|033|e))\[[0-9;]{0,20}m"  # ESC may be spelled out
    r"|(?<=\[)\d[0-9;]{0,20}m(?!(?:s|ins?)[\s\]),])|(?<=\[)m(?![\w\]/])"  # or lost: `[main]`, `[5ms]`, `[m]` are words
    r"|(?<=\x1b)(?:\[[0-9;?]{0,50}[A-Za-z]|\][^\x07\x1b]{0,500}(?:\x07|\x1b\\)|[()][A-Z0-9])|(?<=\0))"
)


_COLOUR_WITHOUT_ESCAPE = re.compile(r"\[[0-9;]{0,20}m")


def without_colours(text: str) -> str:
    """Return the text without terminal control sequences.

    >>> without_colours("0[[32m20251202 06:26:45[0m] loss")
    '0[20251202 06:26:45] loss'
    """
    return _COLOUR.sub("", text) if _may_be_coloured(text) else text


def without_controls(block: bytes) -> bytes:
    """Return a block of a log without terminal control sequences, which may interrupt a text that is searched."""
    if b"[" not in block:
        return block
    text = block.decode("utf-8", "replace")
    return without_colours(text).encode() if _may_be_coloured(text) else block


def _may_be_coloured(text: str) -> bool:
    return "\x1b" in text or "\0" in text or ("[" in text and _COLOUR_WITHOUT_ESCAPE.search(text) is not None)


class Part(NamedTuple):
    """Some lines of a log: the number of the first, and the bytes of the unpacked text from `start` to `stop`."""

    first_line: int
    start: int
    stop: int


@dataclass(frozen=True)
class Log:
    """One log. `lines()` can be called again and again; nothing of the text is kept in memory.

    Raises InputError, from every method that reads, where the file is not readable.
    """

    path: Path
    """The file (or, for formats of folders, the folder)."""
    called: str | None = None
    """Name in messages if it is not the path: standard input."""
    window: Sequence[tuple[int, str]] | None = field(default=None, repr=False)
    """The stretch of lines that detection looks at; None reads the beginning of the file."""
    parts: tuple[Part, ...] = ()
    """The parts of the text that are read, in their order; () reads all of it."""
    run: str | None = None
    """Identifier of the run to read, in a file that holds several."""

    @property
    def name(self) -> str:
        """Return the name to use in messages."""
        return self.called or str(self.path)

    @property
    def is_folder(self) -> bool:
        """Return True for a folder, which some formats are (TensorBoard)."""
        return stat.S_ISDIR(files.status(self.path).st_mode)

    @cached_property
    def is_binary(self) -> bool:
        """Return True if the file is not text; `lines` would refuse it."""
        return not self.is_folder and files.is_binary(self.path)

    @property
    def size_bytes(self) -> int:
        """Return the size on disk in bytes; for parts of a log, their unpacked size."""
        if self.parts:
            return sum(part.stop - part.start for part in self.parts)
        return files.status(self.path).st_size

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yield (1-based line number, text without line end, colours and launcher prefixes).

        A line that was redrawn with carriage returns counts once per drawing, under one number.
        """
        for number, block in self.numbered_blocks():
            yield from prefixes.strip_all(lines_of(number, block))

    def lines_by_rank(self) -> Iterator[tuple[int, Origin, str]]:
        """Yield as `lines` does, with the process that wrote the line, as its prefix names it."""
        for number, text in self.bare_lines():
            origin, text = prefixes.split(text)
            yield number, origin, text

    def lines_of_one_rank(self, is_row: Callable[[str], object]) -> Iterator[tuple[int, str]]:
        """Yield as `lines` does, without the lines of other ranks once a rank has printed a row: they repeat its rows.

        is_row: returns something true for a line that is, or begins, a row.
        """
        speaker: int | None = None
        for number, text in self.bare_lines():
            origin, text = prefixes.split(text)
            if origin.rank is not None and origin.rank != speaker:
                if speaker is not None:
                    continue
                if is_row(text):
                    speaker = origin.rank
            yield number, text

    def bare_lines(self) -> Iterator[tuple[int, str]]:
        """Yield lines as `lines` does, with their prefixes."""
        for number, block in self.numbered_blocks():
            yield from lines_of(number, block)

    def _refuse_others(self) -> None:
        """Raise InputError for a folder and for a file that is not text."""
        if self.is_folder:
            raise InputError("is a folder, not a log", path=self.name, remedy="name a file in it")
        if self.is_binary:
            raise InputError("is a binary file, not a log", path=self.name)

    def numbered_blocks(self, size: int = files.BLOCK_BYTES) -> Iterator[tuple[int, bytes]]:
        """Yield stretches of whole lines in UTF-8 with colours and prefixes, each with the number of its first line.

        size: of a block, about.
        """
        if self.parts:
            placed = files.blocks_of_spans(self.path, [(part.start, part.stop) for part in self.parts], size)
        else:
            self._refuse_others()
            placed = ((-1, block) for block in files.blocks(self.path, size))
        number, before = 1, -1
        for place, block in placed:
            number, before = (number if place == before else self.parts[place].first_line), place
            yield number, block
            number += files.count_line_ends(block)

    def head(self) -> Iterator[tuple[int, str]]:
        """Return the lines for detection, as from `lines`, the longest cut; none for a folder or a binary file."""
        if self.window is not None:
            return iter(self.window)
        blocks = iter(()) if self.is_folder or self.is_binary else self.numbered_blocks(HEAD_BYTES)
        return (line for number, block in islice(blocks, 1) for line in window_of(number, block))

    def text(self) -> str:
        """Return the whole text, for documents such as JSON. Raises InputError where it is too large to be one."""
        size, parts = 0, []
        for _, block in self.numbered_blocks():
            size += len(block)
            if size > WHOLE_FILE_BYTES:
                raise InputError(f"more than {WHOLE_FILE_BYTES // 2**20} MiB of JSON", path=self.name)
            parts.append(block)
        return b"".join(parts).decode("utf-8", "replace")

    def tail(self, size: int) -> list[str]:
        """Return the lines of about the last `size` bytes, without colours; the first may be incomplete.

        The last is the empty string if the log ends with a line end.
        """
        if self.parts:
            last = self.parts[-1]
            end = b"".join(files.blocks_between(self.path, max(last.start, last.stop - size), last.stop))
        else:
            end = files.tail(self.path, size)
        return without_colours(end.decode("utf-8", "replace")).split("\n")

    def count_lines(self) -> int:
        """Return the number of line ends up to the end of the log, or of its last part."""
        if not self.parts:
            return sum(map(files.count_line_ends, files.blocks(self.path)))
        last = self.parts[-1]
        within = files.blocks_between(self.path, last.start, last.stop)
        return last.first_line - 1 + sum(map(files.count_line_ends, within))


def window_of(number: int, block: bytes) -> list[tuple[int, str]]:
    """Return the lines of a block, whose first is `number`, for detection: no colours or prefixes, long ones cut."""
    return prefixes.strip_all(lines_of(number, block), HEAD_LINE_CHARACTERS)


def lines_of(number: int, block: bytes) -> Iterable[tuple[int, str]]:
    """Return (line number, text without line end and colours) of a block of whole lines whose first is `number`."""
    text = block.decode("utf-8", "replace")
    lines = text.removesuffix("\n").split("\n")
    if "\r" not in text and not _may_be_coloured(text):  # of most logs every block
        return enumerate(lines, number)
    return [
        (line, without_colours(drawing))
        for line, redrawn in enumerate(lines, number)
        for drawing in (redrawn.split("\r") if "\r" in redrawn else (redrawn,))
        if drawing or "\r" not in redrawn
    ]


class UnreadText:
    """Lines or cells of a table that cannot be read, counted."""

    def __init__(self) -> None:
        """Start without any."""
        self.count, self.first, self.last, self.shown = 0, 0, 0, ""

    def add(self, line: int | None, text: str) -> None:
        """Count one. text: shown if it is the first."""
        if not self.count:
            self.first, self.shown = line or 0, one_line(text[:_SHOWN_CHARACTERS])
        self.last = line or 0
        self.count += 1

    def spare(self, line: int, log: Log) -> None:
        """Leave the last line of the log out of the count if it has no line end: its writer may not be done with it."""
        if self.count and self.last == line and log.tail(1)[-1]:
            self.count -= 1

    def warnings(self) -> list[str]:
        """Return a warning about lines, if there are any."""
        if not self.count:
            return []
        are, they_do = ("are", "they do") if self.count > 1 else ("is", "it does")
        return [Notice("lines_torn", "steps", lines=self.count, are=are, they_do=they_do, place=self.place)]

    @property
    def place(self) -> str:
        """Return where the first is, with its text."""
        return f"the first is {self.shown!r}" + (f" in line {self.first}" if self.first else "")
