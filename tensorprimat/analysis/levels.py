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
    """Two or three words for a badge or a table cell."""
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


LEVELS: dict[LevelName, Level] = {
    level.name: level
    for level in (
        Level(
            name="identical",
            title="identical work and configuration",
            sentence="Same work, same configuration: both sides state every setting, and all are equal",
            colour="#0b5cad",
            style="blue",
            same_work=True,
        ),
        Level(
            name="same_work",
            title="same work",
            sentence="Same work: model shape, trainable parameters, sequence length and global batch are equal",
            colour="#1b7a86",
            style="cyan",
            same_work=True,
        ),
        Level(
            name="same_work_per_token",
            title="same work per token",
            sentence="Same work per token, throughput only",
            colour="#8a5a00",
            style="yellow",
            same_work=False,
        ),
        Level(
            name="same_task",
            title="same task",
            sentence="Same task, each side with its own settings",
            colour="#6b4ba1",
            style="magenta",
            same_work=False,
        ),
        Level(
            name="not_comparable",
            title="not comparable",
            sentence="Not comparable",
            colour="#6a6f76",
            style="bold yellow",
            same_work=False,
        ),
    )
}
"""By name, best first."""
