"""The record of a GPU profile.

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
    """All communication, including the part that computation hides."""


_PARTS = tuple(field.name for field in fields(Timeline) if field.name != "rank")


@dataclass(frozen=True, kw_only=True)
class KernelCategory:
    """Kernels of one kind (GEMM, attention, elementwise …), per rank."""

    name: str
    seconds: float
    count: float | None
    share: float | None
    """Share of the time of all kernels of the table."""


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

    def parts(self) -> dict[str, tuple[float | None, float | None]]:
        """Return name → (seconds, share) of the parts of the wall time, then of every category of kernels."""
        total, times = self.seconds("total_seconds"), {name: self.seconds(name) for name in _PARTS}
        wall = {
            name.removesuffix("_seconds").replace("_", " "): (time, ratio(time, total)) for name, time in times.items()
        }
        return {**wall, **{f"{kernel.name} kernels": (kernel.seconds, kernel.share) for kernel in self.kernels}}


def ratio(one: float | None, other: float | None) -> float | None:
    """Return one / other, or None where one of them is unknown or the other is 0."""
    return one / other if one is not None and other else None
