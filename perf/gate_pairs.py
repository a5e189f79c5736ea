#!/usr/bin/env python3
"""Simulate `tprimat gate --run` on shared runners of a CI service, and print the table of docs/how-to/ci-gate.md.

python3 perf/gate_pairs.py [--count 1000]

A runner is slower than another by a factor from 0.97 to 1.28, a run varies by 1.5 %, and 5 % of the runs are slower by
another 5 to 30 %: the noise that users of such runners report.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tensorprimat.analysis import pairs  # found through the line above, from any folder

RUNNER, RUN, SPIKES, SPIKE = (0.97, 1.28), 0.015, 0.05, (0.05, 0.30)
CASES = (
    (0.0, 0.03, 20), (0.005, 0.03, 20), (0.015, 0.03, 20), (0.03, 0.03, 20), (0.05, 0.03, 20),
    (0.0, 0.02, 40), (0.02, 0.02, 40), (0.02, 0.02, 20),
)  # fmt: skip
"""Slowdown of the change, --max-slowdown, --max-pairs."""


def pull_request(random: np.random.Generator, slowdown: float, limit: float, most: int) -> tuple[str, int]:
    """Return the decision about one change, and the pairs of runs that it took."""
    shape = (2, most)
    spikes = 1 + random.uniform(*SPIKE, shape) * (random.random(shape) < SPIKES)
    seconds = random.uniform(*RUNNER) * spikes * np.exp(RUN * random.standard_normal(shape))
    return pairs.decide_pairs(-np.log(seconds * [[1.0], [1 / (1 - slowdown)]]), limit=limit, most=most)


def main() -> int:
    """Print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="pull requests of each case")
    count = parser.parse_args().count
    print("| slowdown | `--max-slowdown` | `--max-pairs` | alarm | passed | undecided | pairs, mean |")
    print("|---|---|---|---|---|---|---|")
    for place, (slowdown, limit, most) in enumerate(CASES):
        random = np.random.default_rng(place)
        found = [pull_request(random, slowdown, limit, most) for _ in range(count)]
        shares = Counter(decision for decision, _ in found)
        columns = [f"{shares[name] / count:.1%}" for name in ("slower", "within", "undecided")]
        mean = sum(number for _, number in found) / count
        print(f"| {slowdown:.1%} | {limit:.0%} | {most} | {' | '.join(columns)} | {mean:.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
