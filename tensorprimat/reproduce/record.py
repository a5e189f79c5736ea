"""Records of a reproduction: one published result beside the user's, setting by setting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tensorprimat.facts.catalogue import Published
from tensorprimat.reproduce.published import Baseline

SettingState = Literal["different", "not stated by you", "not stated by the source", "equal"]
STATES: tuple[SettingState, ...] = ("different", "not stated by you", "not stated by the source", "equal")


@dataclass(frozen=True, kw_only=True)
class KnownCost:
    """The speed with the user's value over that with the published one, in published pairs that differ in it alone."""

    low: float
    high: float
    pairs: int
    sources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SettingLine:
    """One setting of both sides, as a person reads it; None where a side does not state it."""

    key: str
    label: str
    published: str | None
    yours: str | None
    cost: KnownCost | None = None

    @property
    def state(self) -> SettingState:
        """Return how the two values relate."""
        if self.yours is None:
            return "not stated by you"
        if self.published is None:
            return "not stated by the source"
        return "equal" if self.published == self.yours else "different"


@dataclass(frozen=True, kw_only=True)
class SpeedGap:
    """The measured and the published figure of one kind; more is faster, also for minutes in `ratio`."""

    figure: str
    measured: float
    published: float
    ratio: float
    """Measured speed over published speed."""
    explained: tuple[float, float] | None = None
    """Lowest and highest product of the known costs; None without a known one."""

    @property
    def rest(self) -> tuple[float, float] | None:
        """Return the ratio that is left after the known costs, lowest and highest."""
        return None if self.explained is None else (self.ratio / self.explained[1], self.ratio / self.explained[0])


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """One comparison with a published result."""

    baseline: Baseline
    row: Published
    """Statements of the source, also where the baseline has no rate."""
    result: str
    """The user's result, by its file."""
    lines: tuple[SettingLine, ...]
    """Differences first, those with the largest known cost before others."""
    gap: SpeedGap | None
    because: str | None = None
    """Reason why there is no gap."""

    def of_state(self, state: SettingState) -> tuple[SettingLine, ...]:
        return tuple(line for line in self.lines if line.state == state)
