"""Output streams that remove control characters, so that text from files and logs cannot control the terminal.

`harmless_output` puts them in the place of stdout and stderr for one command: control characters and direction
overrides become U+FFFD, and characters that the stream cannot encode become "?". A rich console draws with control
sequences of its own, so `console` makes one that writes past the stream and cleans the text of what it draws.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from tensorprimat.core.safe_text import REPLACEMENT

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
    """A text stream that cleans what is written to it; everything else is the stream below's own."""

    def __init__(self, below: TextIO) -> None:
        self.below = below

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)

    def write(self, text: str) -> int:
        """Write text; returns its length, as streams do."""
        self.below.write(_encodable(clean(text), self.below))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)


def _encodable(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None)
    if not encoding or text.isascii():
        return text
    try:
        return text.encode(encoding, "replace").decode(encoding)
    except LookupError:  # an encoding that only the system knows
        return text.encode("ascii", "replace").decode()


@contextlib.contextmanager
def harmless_output() -> Iterator[None]:
    """Clean everything that is written to stdout and stderr in this context."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_wrapped(stream) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _wrapped(stream: Any) -> Any:
    return stream if stream is None or isinstance(stream, HarmlessStream) else HarmlessStream(stream)


class _PastTheStream:
    """The stream that a console draws on: stdout or stderr of the moment, without the cleaning of control sequences."""

    def __init__(self, *, stderr: bool) -> None:
        self._name = "stderr" if stderr else "stdout"

    @property
    def _below(self) -> Any:
        stream = getattr(sys, self._name)
        stream = getattr(stream, "rich_proxied_file", stream)  # while a progress bar is drawn
        return stream.below if isinstance(stream, HarmlessStream) else stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)

    def write(self, text: str) -> int:
        """Write what a console has drawn, of which the text is clean already."""
        return int(self._below.write(_encodable(text, self._below)) or 0)


def console(*, stderr: bool = False, **settings: Any) -> Console:
    """Return a rich console that draws on stdout or stderr and cleans the text of everything that it draws."""
    from rich.console import Console, ConsoleOptions, RenderableType, RenderHook, RenderResult
    from rich.segment import Segment

    class Clean:
        """A renderable with clean text."""

        def __init__(self, drawn: RenderableType) -> None:
            self._drawn = drawn

        def __rich_console__(self, screen: Console, options: ConsoleOptions) -> RenderResult:
            for segment in screen.render(self._drawn, options):
                yield segment if segment.control else Segment(clean(segment.text), segment.style)

    class Cleaning(RenderHook):
        """Cleans what is printed."""

        def process_renderables(self, renderables: list[Any]) -> list[Any]:
            return [one if type(one).__name__ in ("Control", "Clean") else Clean(one) for one in renderables]

    screen = Console(file=_PastTheStream(stderr=stderr), **settings)  # type: ignore[arg-type]  # all that it needs
    screen.push_render_hook(Cleaning())
    return screen
