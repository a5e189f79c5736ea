"""Search for the commit that made a program slower, by pairs of runs of which each is uncertain.

The posterior over all commits says where the change may be. Each pair measures the commit that halves it, in turn with
the good end; no decision is final, so one unlucky run does not lead the search astray. The likelihood is Student's t
with 3 degrees of freedom, by which runs far from both levels have no weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tensorprimat.analysis.pairs import PairedChange
from tensorprimat.core.steady import NORMAL_MAD

SURE = 0.95
"""Posterior probability at which the search ends; simulated, 98 % of changes of 5 % are found (perf/bisect_runs.py)."""
MOST_SEARCH_PAIRS = 100
_DEGREES = 3.0
_LEAST_DEVIATION = 1e-4  # of a run, relative: equal times by chance are no proof of a machine without noise


@dataclass(frozen=True, kw_only=True)
class Located:
    """Place of a change among some states of a program."""

    places: tuple[int, ...]
    """Numbers of the states of which one is the first slow one, from 0; several if those between were not measured."""
    probability: float
    pairs: int

    @property
    def is_sure(self) -> bool:
        """Return True if the search came to its end."""
        return self.probability >= SURE


@dataclass(frozen=True, kw_only=True)
class State:
    """One commit or version."""

    name: str
    """Hash of a commit, or a version."""
    title: str
    """Subject of a commit, or package and version."""


@dataclass(frozen=True, kw_only=True)
class Bisected:
    """Outcome of a search."""

    good: State
    bad: State
    ends: PairedChange
    """Comparison of the two ends."""
    found: tuple[State, ...]
    """First slow state, or several if those between could not be measured; empty if the ends do not differ enough."""
    located: Located | None
    runs: int


def run_deviation(*speeds: Sequence[float]) -> float:
    """Return the robust relative standard deviation of single runs. speeds: of each program's runs."""
    logs = [np.log(np.asarray(runs)) for runs in speeds]
    away = np.concatenate([np.abs(runs - np.median(runs)) for runs in logs])
    degrees = len(away) / max(1, len(away) - len(logs))
    return max(NORMAL_MAD * float(np.median(away)) * math.sqrt(degrees), _LEAST_DEVIATION)


def find_change(
    count: int,
    pair: Callable[[int], float | None],
    *,
    change: float,
    deviation: float,
    most: int = MOST_SEARCH_PAIRS,
) -> Located:
    """Return the first slow one of several states after the good one; the last of them is known to be slow.

    count: number of these states. pair: measures a state and the good one once and returns the logarithm of its speed
    over that of the good one; None for a state that cannot be measured. change: that logarithm of the last state.
    deviation: that of single runs. most: number of pairs after which the search ends.
    """
    posterior, testable, pairs = np.full(count, -math.log(count)), np.ones(count, bool), 0
    while True:
        shares = np.exp(posterior - np.logaddexp.reduce(posterior))
        groups = np.cumsum(np.r_[False, testable[:-1]])  # states that only untestable ones separate are one group
        of_group = np.bincount(groups, shares)
        best = int(of_group.argmax())
        places = tuple(int(place) for place in np.flatnonzero(groups == best))
        candidates = np.flatnonzero(testable[:-1])
        if of_group[best] >= SURE or pairs >= most or not len(candidates):
            return Located(places=places, probability=float(of_group[best]), pairs=pairs)
        below = np.cumsum(shares)[candidates]  # probability that a candidate is slow
        place = int(candidates[np.abs(below - 0.5).argmin()])
        move = pair(place)
        if move is None:
            testable[place] = False
            continue
        pairs += 1
        away = (move - np.array([change, 0.0])) / deviation
        slow, level = -(_DEGREES + 1) / 2 * np.log1p(away**2 / 2 / _DEGREES)  # log likelihoods without their constant
        posterior = posterior + np.where(np.arange(count) <= place, slow, level)
