#!/usr/bin/env python3
"""Simulate `tprimat bisect` and the same search with a fixed number of runs; print the table of docs/how-to/ci-gate.md.

python3 perf/bisect_runs.py [--count 1000]

One of 64 commits is slower; a run varies by 1.5 %, and 5 % of the runs are slower by another 5 to 30 %. Fixed sampling
is a binary search that decides each of its six steps by the medians of so many runs of the commit and of the good end;
its number is the smallest one that finds at least 95 % of the changes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tensorprimat.analysis import pairs, search  # found through the line above, from any folder

COMMITS, RUN, SPIKES, SPIKE = 64, 0.015, 0.05, (0.05, 0.30)
GOAL = 0.95


def logs_of_runs(random: np.random.Generator, slowdown: float, runs: int) -> np.ndarray:
    """Return the logarithms of the speeds of so many runs."""
    spikes = 1 + random.uniform(*SPIKE, runs) * (random.random(runs) < SPIKES)
    return np.log1p(-slowdown) - RUN * random.standard_normal(runs) - np.log(spikes)


def sequential(random: np.random.Generator, slowdown: float) -> tuple[bool, int]:
    """Return whether the planted commit was found, and the number of runs, those of both ends included."""
    planted = int(random.integers(COMMITS))
    ends = np.stack([logs_of_runs(random, change, pairs.MOST_PAIRS) for change in (0.0, slowdown)])
    decision, number = pairs.decide_pairs(ends, limit=0.03, most=pairs.MOST_PAIRS)
    if decision != "slower":
        return False, 2 * number
    ends = ends[:, :number]

    def pair(place: int) -> float:
        of_place = slowdown if place >= planted else 0.0
        return float(logs_of_runs(random, of_place, 1)[0] - logs_of_runs(random, 0.0, 1)[0])

    found = search.find_change(
        COMMITS, pair, change=pairs.interval_of_pairs(ends)[0], deviation=search.run_deviation(*np.exp(ends))
    )
    return found.places == (planted,), 2 * (number + found.pairs)


def fixed(random: np.random.Generator, slowdown: float, runs: int) -> bool:
    """Return True if a binary search with so many runs of each end and of each commit finds the planted commit."""
    planted = int(random.integers(COMMITS))
    low, high = -1, COMMITS - 1
    change = np.median(logs_of_runs(random, slowdown, runs)) - np.median(logs_of_runs(random, 0.0, runs))
    while high - low > 1:
        middle = (low + high) // 2
        of_middle = np.median(logs_of_runs(random, slowdown if middle >= planted else 0.0, runs))
        is_slow = of_middle - np.median(logs_of_runs(random, 0.0, runs)) < change / 2
        low, high = (low, middle) if is_slow else (middle, high)
    return high == planted


def main() -> int:
    """Print a row for each slowdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="searches of each row")
    count = parser.parse_args().count
    print("| slowdown | found | runs, mean | fixed sampling: found | runs |")
    print("|---|---|---|---|---|")
    for place, slowdown in enumerate((0.03, 0.05, 0.10)):
        random = np.random.default_rng(place)
        found = [sequential(random, slowdown) for _ in range(count)]
        runs = next(
            number for number in range(1, 100)
            if np.mean([fixed(random, slowdown, number) for _ in range(count)]) >= GOAL
        )  # fmt: skip
        share = np.mean([fixed(random, slowdown, runs) for _ in range(count)])
        steps = 2 + 2 * int(np.log2(COMMITS))  # both ends, and commit and good end of each step
        mean = np.mean([number for _, number in found])
        print(
            f"| {slowdown:.0%} | {np.mean([one for one, _ in found]):.1%} | {mean:.0f} | {share:.1%} | {runs * steps} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
