"""Verdict levels: degrees of comparability of two sides, best first, each with its sentence and its colour.

Console, Markdown, HTML, plot, JSON, CSV and the gate read this table; none of them decides on its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LevelName = Literal["identical", "same_work", "same_work_per_token", "same_task", "not_comparable"]


@dataclass(frozen=True, kw_only=True)
class Level:
    """One row of the table."""

    name: LevelName
    title: str
    """A few words for a badge or a table cell."""
    sentence: str
    """Beginning of the sentence that states the level; the differences follow it."""
    colour: str
    """Colour of the badge on white; never the green and red of faster and slower."""
    style: str
    """The same for a terminal, in the words of rich."""
    same_work: bool
    """True if every step of both sides does the same work, so that a gate may pass."""

    @property
    def comparable(self) -> bool:
        """Return True if a ratio means anything at this level."""
        return self.name != "not_comparable"


_TABLE: tuple[tuple[LevelName, str, str, str, bool, str], ...] = (
    ("identical", "identical work and configuration", "#0b5cad", "blue", True,
     "Same work, same configuration: both sides state every setting, and all are equal"),
    ("same_work", "same work", "#1b7a86", "cyan", True,
     "Same work: model shape, trainable parameters, sequence length and global batch are equal"),
    ("same_work_per_token", "same work per token", "#8a5a00", "yellow", False,
     "Same work per token, so only throughput is compared"),
    ("same_task", "same task", "#6b4ba1", "magenta", False, "Same task, each side with its own settings"),
    ("not_comparable", "not comparable", "#6a6f76", "bold yellow", False, "Not comparable"),
)  # fmt: skip
LEVELS: dict[LevelName, Level] = {
    name: Level(name=name, title=title, colour=colour, style=style, same_work=same_work, sentence=sentence)
    for name, title, colour, style, same_work, sentence in _TABLE
}
"""By name, best first."""
