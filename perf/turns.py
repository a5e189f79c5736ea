"""Ratio of the speeds of two programs that take turns, on a machine whose speed changes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
from scipy import stats

from tensorprimat.analysis.stats import FEWEST_ROWS_FOR_INTERVAL, of_one_run, of_pairs

TURNS_TOGETHER = 10  # turns of one observation: single steps scatter too much
CONFIDENCE = 0.95


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


def ratio_of_runs(
    ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]
) -> tuple[float, float | None, float | None]:
    """Return theirs / ours in time, with its 95 % interval; its ends are None with fewer than three steps in a run.

    ours, theirs: seconds of the steps of each turn's run, with as many turns in both. The ratio is that of the median
    steps. With several turns the interval is over the turns. With one turn it is over the steps, as if both runs were
    independent, and does not include the difference from run to run.
    """
    own, other = ([statistics.median(steps) for steps in side] for side in (ours, theirs))
    if len(own) > 1:
        found = of_pairs(other, own)
        return math.exp(found.log), *found.interval(CONFIDENCE)
    value, runs = other[0] / own[0], (ours[0], theirs[0])
    if min(map(len, runs)) < FEWEST_ROWS_FOR_INTERVAL:
        return value, None, None
    half = math.hypot(*(of_one_run(np.array(run) / np.mean(run) - 1, CONFIDENCE).half_width for run in runs))
    return value, value * math.exp(-half), value * math.exp(half)
