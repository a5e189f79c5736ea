"""Comparison of two GPU profiles: the parts of the wall time and the kernels, with their ratios."""

from __future__ import annotations

from dataclasses import dataclass

from tensorprimat.core.profile import Profile, ratio


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


def compare_profiles(one: Profile, other: Profile) -> list[Contrast]:
    """Return two profiles side by side: the parts of the wall time, then every category of kernels that either has."""
    ours, others, unknown = one.parts(), other.parts(), (None, None)
    pairs = ((name, *ours.get(name, unknown), *others.get(name, unknown)) for name in ours | others)
    return [
        Contrast(
            name=name,
            one_seconds=mine,
            one_share=my_share,
            other_seconds=theirs,
            other_share=their_share,
            ratio=ratio(theirs, mine),
        )
        for name, mine, my_share, theirs, their_share in pairs
        if mine is not None or theirs is not None
    ]
