"""The interface through which a benchmark reports its progress; the command prints it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol


class Observer(Protocol):
    """Receives the progress of a benchmark; `cli/live.Screen` shows it."""

    def say(self, text: str = "", *, style: str | None = None) -> None:
        """Take one line."""

    def warn(self, text: str) -> None:
        """Take a warning about a figure."""

    def complain(self, text: str) -> None:
        """Take the error of one model."""

    def block(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """Take a titled block of names and values."""

    def training(self, title: str, steps: int) -> AbstractContextManager[Callable[[str], None]]:
        """Return the function that takes the engine's lines during one run of so many steps."""

    def cooling(self, seconds: float) -> AbstractContextManager[Callable[[float], None]]:
        """Return the function that gets the seconds left of a pause."""
