"""Ratio of the speeds of two programs that take turns, on a machine whose speed changes."""

from __future__ import annotations

import math
import statistics

from scipy import stats

TURNS_TOGETHER = 10  # turns of one observation: single steps scatter too much


def ratio_of(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Return theirs / ours in time, with its 95 % interval.

    ours, theirs: seconds (or ms) of each turn, of equal length. Several turns together are one observation: the ratio
    of their medians, which a stall of the machine does not move; Student's t on the logs of the observations.
    """
    starts = range(0, len(ours) - TURNS_TOGETHER + 1, TURNS_TOGETHER)
    typical = [[statistics.median(one[at : at + TURNS_TOGETHER]) for at in starts] for one in (ours, theirs)]
    logs = [math.log(their_step / our_step) for our_step, their_step in zip(*typical, strict=True)]
    middle = statistics.fmean(logs)
    half = float(stats.t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)
