"""Sequential comparison of two programs by pairs of runs: one run of each, in turn, on one machine.

A factor of the machine cancels in the ratio of a pair. Runs far from the others (another job on the machine) lose their
weight by Tukey's biweight. Under the hypothesis that both are alike, the two runs of a pair could be exchanged, so the
p-value is the exact share of all exchanges that give as large a sum. Pairs are added until a slowdown is shown, or one
of the limit's size is ruled out; the error of each decision is divided among the looks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tensorprimat.core.steady import NORMAL_MAD
from tensorprimat.core.steps import FloatArray

FALSE_ALARMS = 0.01
"""Largest probability, over all looks, that a candidate of equal speed is called slower."""
MISSES = 0.05
"""Largest probability, over all looks, that a slowdown of the limit's size is ruled out."""
TOLERATED = 1 / 6  # of the limit: a smaller slowdown is no alarm, however surely it is shown
FIRST_LOOK, NEXT_LOOK = 5, 3  # pairs before the first decision, and between two
MOST_PAIRS = 20
INTERVAL = 0.95
_WITHOUT_WEIGHT = 4.0  # standard deviations; 3 to 5 find a slowdown of 3 % about equally often (perf/gate_pairs.py)
_GRID = 1000  # steps of a pair's weight in the exact distribution
_HALVINGS = 30

PairDecision = Literal["slower", "within", "undecided"]


@dataclass(frozen=True, kw_only=True)
class PairedChange:
    """Decision and estimate after some pairs."""

    decision: PairDecision
    pairs: int
    change: float
    """Relative change of the speed from baseline to candidate; negative is slower."""
    low: float
    high: float
    """Ends of the interval at the confidence INTERVAL for this number of pairs."""


def look_at(
    baseline: Sequence[float], candidate: Sequence[float], *, limit: float, most: int = MOST_PAIRS
) -> PairedChange:
    """Return the decision by all pairs so far, and the estimate.

    baseline, candidate: speeds in the order of the runs. limit: slowdown that has to be found, as a fraction. most:
    number of pairs after which no look follows.
    """
    logs = np.log(np.array([baseline, candidate], np.float64))
    decision, _ = decide_pairs(logs, limit=limit, most=most)
    change, low, high = (math.expm1(end) for end in interval_of_pairs(logs))
    return PairedChange(decision=decision, pairs=logs.shape[1], change=change, low=low, high=high)


def decide_pairs(logs: FloatArray, *, limit: float, most: int) -> tuple[PairDecision, int]:
    """Return the decision, and the number of pairs that it took. logs: baseline and candidate, a pair each."""
    looks = looks_until(most)
    for below, pairs in zip((0, *looks), looks, strict=False):
        if pairs > logs.shape[1]:
            break
        seen = logs[:, :pairs]
        share = (pairs / most) ** 2 - (below / most) ** 2  # of an error that this look may spend; late looks see most
        if p_value(seen, math.log1p(-TOLERATED * limit), slower=True) <= FALSE_ALARMS * share:
            return "slower", pairs
        if p_value(seen, math.log1p(-limit), slower=False) <= MISSES * share:
            return "within", pairs
    return "undecided", logs.shape[1]


def looks_until(most: int) -> list[int]:
    """Return the numbers of pairs at which a decision is made."""
    return [*range(FIRST_LOOK, most, NEXT_LOOK), most]


def interval_of_pairs(logs: FloatArray, confidence: float = INTERVAL) -> tuple[float, float, float]:
    """Return estimate and ends of the interval of the logarithmic change. logs: baseline and candidate, a pair each.

    An end is the change that the test refuses just so; too few pairs to refuse any give infinite ends.
    """
    error = (1 - confidence) / 2
    return (
        _root(lambda shift: float(_exchanged(logs, shift).sum()) >= 0, logs),
        _root(lambda shift: p_value(logs, shift, slower=False) <= error, logs),
        _root(lambda shift: p_value(logs, shift, slower=True) > error, logs),
    )


def _root(is_below: Callable[[float], bool], logs: FloatArray) -> float:
    """Return the shift at which `is_below` turns False; infinite where it never does."""
    moves = logs[1] - logs[0]
    spread = float(np.ptp(moves)) + 1e-9
    low, high = float(moves.min()) - spread, float(moves.max()) + spread
    if not is_below(low):
        return -math.inf
    if is_below(high):
        return math.inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return (low + high) / 2


def p_value(logs: FloatArray, shift: float, *, slower: bool) -> float:
    """Return the exact one-sided p-value of the hypothesis that the candidate differs by `shift` from the baseline.

    slower: a small value shows that it is slower than that; otherwise that it is faster.
    """
    moves = _exchanged(logs, shift) * (-1 if slower else 1)
    largest = float(np.abs(moves).max())
    if not largest:
        return 1.0
    weights = np.rint(np.abs(moves) / largest * _GRID).astype(int)
    ways = np.ones(1)
    for weight in weights:  # the sum with each pair as it is, and exchanged
        ways = np.r_[ways, np.zeros(weight)] + np.r_[np.zeros(weight), ways]
        ways /= 2
    return float(ways[int(weights[moves > 0].sum()) :].sum())


def _exchanged(logs: FloatArray, shift: float) -> FloatArray:
    """Return what each pair adds to the sum: candidate minus baseline, each weighted by its distance from the rest."""
    alike = np.stack([logs[0], logs[1] - shift])
    away = alike - np.median(alike)
    scale = _WITHOUT_WEIGHT * max(NORMAL_MAD * float(np.median(np.abs(away))), 1e-9)
    weighted = away * np.clip(1 - (away / scale) ** 2, 0, None) ** 2
    found: FloatArray = weighted[1] - weighted[0]
    return found
