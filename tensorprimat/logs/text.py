"""Text of logs as readers want it: numbered lines without colours, prefixes and carriage returns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HEAD_BYTES = 4 * 2**20  # detection looks at this much of a file first

_ANSI = re.compile(r"(?:\x1b|(?<=\d))?\[[0-9;]*m|\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Log:
    """One text file. `lines()` can be called again and again; nothing is kept in memory."""

    path: Path

    @property
    def name(self) -> str:
        """What messages call it."""
        return str(self.path)

    def lines(self) -> Iterator[tuple[int, str]]:
        """(1-based line number, text without colours and line end); a line redrawn with \\r counts once per drawing."""
        with self.path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                for part in line.rstrip("\r\n").split("\r"):
                    yield number, _ANSI.sub("", part)

    def head(self) -> Iterator[tuple[int, str]]:
        """The lines of the first HEAD_BYTES, for detection."""
        size = 0
        for number, line in self.lines():
            size += len(line) + 1
            if size > HEAD_BYTES:
                return
            yield number, line
