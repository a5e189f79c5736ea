"""The interface through which a benchmark reports its progress; the command prints it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol


class Observer(Protocol):
    """The receiver of a benchmark's progress; `cli/live.Screen` shows it."""

    def say(self, text: str = "", *, style: str | None = None) -> None:
        """Show one line."""

    def warn(self, text: str) -> None:
        """Show a warning about a figure."""

    def complain(self, text: str) -> None:
        """Show the error of one model."""

    def block(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Show a block of names and values under a title."""

    def training(self, title: str, steps: int) -> AbstractContextManager[Callable[[str], None]]:
        """Return a context for one run of that many steps; it yields a function for each line of the engine."""

    def cooling(self, seconds: float) -> AbstractContextManager[Callable[[float], None]]:
        """Return a context for a pause; it yields a function to call with the seconds that are left."""
