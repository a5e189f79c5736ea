"""Output streams that remove control characters, so that text from files and logs cannot control the terminal.

`harmless_output` puts them in the place of stdout and stderr for one command: control characters and direction
overrides become U+FFFD, and characters that the stream cannot encode become "?". A rich console draws with control
sequences of its own, so `console` makes one that writes past the stream and cleans the text of what it draws.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from tensorprimat.system.safe_text import REPLACEMENT

if TYPE_CHECKING:
    from rich.console import Console

_STEERING = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]|\r(?!\n)"
)


def clean(text: str) -> str:
    """Return text of any number of lines without characters that steer a terminal.

    >>> clean("a\\x1b[2Jb\\n\\tc")
    'a�[2Jb\\n\\tc'
    """
    return _STEERING.sub(REPLACEMENT, text)


class HarmlessStream:
    """A text stream that cleans all text written to it and delegates everything else to the stream below.

    is_talk: the stream is stderr. If it cannot be written, the command continues and later messages are lost.
    cleans: False for the drawings of a console, whose text is clean and whose control sequences are our own.
    """

    def __init__(self, below: TextIO, *, is_talk: bool = False, cleans: bool = True) -> None:
        self.below, self.is_talk, self.cleans = below, is_talk, cleans

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)

    def write(self, text: str) -> int:
        """Write text and return its length, as streams do."""
        try:
            self.below.write(_encodable(clean(text) if self.cleans else text, self.below))
        except OSError:
            if not self.is_talk:
                raise
            abandon(self.below)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)


def _encodable(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None)
    if not encoding or text.isascii():
        return text
    try:
        return text.encode(encoding, "replace").decode(encoding)
    except LookupError:  # an encoding that Python does not know
        return text.encode("ascii", "replace").decode()


def abandon(stream: Any) -> None:
    """Discard all text that a broken stream contains or receives; otherwise Python would report it at exit.

    A stream without a file descriptor, as in tests, stays unchanged.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def harmless_output() -> Iterator[None]:
    """Clean everything that is written to stdout and stderr in this context; /dev/null replaces a closed stream."""
    before = sys.stdin, sys.stdout, sys.stderr
    _occupy_closed()
    with open(os.devnull) as nothing, open(os.devnull, "w") as nowhere:
        sys.stdin = before[0] or nothing
        sys.stdout = _wrapped(before[1] or nowhere)
        sys.stderr = _wrapped(before[2] or nowhere, is_talk=True)
        try:
            yield
        finally:
            sys.stdin, sys.stdout, sys.stderr = before


def _occupy_closed() -> None:
    """Open descriptors 0 to 2 where they are closed (`>&-`): a file with such a number would receive printed text."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number


def _wrapped(stream: Any, *, is_talk: bool = False) -> Any:
    return stream if isinstance(stream, HarmlessStream) else HarmlessStream(stream, is_talk=is_talk)


def console(*, stderr: bool = False, **settings: Any) -> Console:
    """Return a rich console that draws on stdout or stderr and cleans the text of everything that it draws."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class CleanConsole(Console):
        """A console whose drawings have clean text and pass the cleaning of the stream."""

        @property  # type: ignore[misc]  # rich can set it, nothing here does
        def file(self) -> Any:
            below: Any = super().file
            is_talk = False
            if isinstance(below, HarmlessStream):
                below, is_talk = below.below, below.is_talk
            return HarmlessStream(below, is_talk=is_talk, cleans=False)

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                is_clean = segment.control or not _STEERING.search(segment.text)
                yield segment if is_clean else Segment(clean(segment.text), segment.style)

    return CleanConsole(stderr=stderr, **settings)
