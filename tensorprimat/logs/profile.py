"""The record of a GPU profile, and the comparison of two profiles.

A profiler slows training down, so a `Profile` is never a benchmark's Result and enters no comparison of runs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The wall time of one rank, by activity; None for a part that the report does not state."""

    rank: str
    """File and process of the profile."""
    total_seconds: float | None = None
    busy_seconds: float | None = None
    """Time in which computation, communication or a copy was at work."""
    computation_seconds: float | None = None
    exposed_communication_seconds: float | None = None
    """Communication while nothing is computed."""
    exposed_copy_seconds: float | None = None
    idle_seconds: float | None = None
    communication_seconds: float | None = None
    """All communication, what computation hides included."""


PARTS = tuple(field.name for field in fields(Timeline) if field.name != "rank")


@dataclass(frozen=True, kw_only=True)
class KernelCategory:
    """Kernels of one kind (GEMM, attention, elementwise …), per rank."""

    name: str
    seconds: float
    count: float | None
    share: float | None
    """Of the time of all kernels of the table."""


@dataclass(frozen=True, kw_only=True)
class ProfiledCollective:
    """One kind of collective over all ranks."""

    name: str
    dtype: str
    group_size: int | None
    message_bytes: float | None
    count: int | None
    total_seconds: float | None
    mean_seconds: float | None
    bus_bytes_per_second: float | None


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The profile of one or several ranks of one run. It is not a Result and enters no comparison of runs."""

    files: tuple[str, ...]
    timelines: tuple[Timeline, ...]
    kernels: tuple[KernelCategory, ...]
    collectives: tuple[ProfiledCollective, ...]
    warnings: tuple[str, ...] = ()

    def seconds(self, name: str) -> float | None:
        """Return the mean over ranks of a field of Timeline; None where no rank knows it."""
        known = [value for timeline in self.timelines if (value := getattr(timeline, name)) is not None]
        return sum(known) / len(known) if known else None


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """One line of two profiles side by side; times in seconds, shares of the total time or of all kernels."""

    name: str
    one_seconds: float | None
    one_share: float | None
    other_seconds: float | None
    other_share: float | None
    ratio: float | None
    """other / one: below 1 the other spends less time."""


def compare(one: Profile, other: Profile) -> list[Contrast]:
    """Return two profiles side by side: the parts of the wall time, then every category of kernels that either has."""
    rows = []
    for name in PARTS:
        mine, theirs = one.seconds(name), other.seconds(name)
        if mine is not None or theirs is not None:
            shares = _ratio(mine, one.seconds("total_seconds")), _ratio(theirs, other.seconds("total_seconds"))
            rows.append(_contrast(name.removesuffix("_seconds").replace("_", " "), mine, shares[0], theirs, shares[1]))
    kernels = [{kernel.name: kernel for kernel in profile.kernels} for profile in (one, other)]
    for name in dict.fromkeys((*kernels[0], *kernels[1])):
        sides = [known.get(name) for known in kernels]
        seconds = [side.seconds if side else None for side in sides]
        shares = tuple(side.share if side else None for side in sides)  # type: ignore[assignment]
        rows.append(_contrast(f"{name} kernels", seconds[0], shares[0], seconds[1], shares[1]))
    return rows


def _contrast(
    name: str, one: float | None, one_share: float | None, other: float | None, other_share: float | None
) -> Contrast:
    return Contrast(
        name=name,
        one_seconds=one,
        one_share=one_share,
        other_seconds=other,
        other_share=other_share,
        ratio=_ratio(other, one),
    )


def _ratio(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None
