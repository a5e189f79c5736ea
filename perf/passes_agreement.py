#!/usr/bin/env python3
"""Do the times of `tprimat passes` agree with torch.utils.benchmark on the same closure, within 2 %?

    python perf/passes_agreement.py                           (CPU, a 4-layer, 256-wide shape)
    python perf/passes_agreement.py --device cuda --d-model 2048 --num-layers 16 --context-length 2048 --precision bf16

One model is built per pass; both clocks time its `step` in turns, so that whatever else the machine does falls on both.
The ratio of each round is one observation; the table gives their median and its 95 % interval (order statistics).
Exit code 0 where every interval lies within 2 %, 1 where one lies beyond it, 3 where more --rounds are needed to tell.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from scipy import stats
from torch.utils import benchmark

from tensorprimat.core.cells import PASSES, CellSpec
from tensorprimat.engines import clock as clocks
from tensorprimat.micro import grid, passes
from tensorprimat.micro.workload import Workload

LARGEST_DISAGREEMENT = 0.02


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--num-layers", type=int, default=4)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--context-length", default="128")
    parser.add_argument("--batch-size", default="4")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=8, help="steps of each clock per round")
    return parser.parse_args()


def cells(given: argparse.Namespace) -> list[CellSpec]:
    return grid.cells(
        grid.Asked(
            d_model=given.d_model, num_layers=given.num_layers, num_heads=max(1, given.d_model // 64),
            vocab_size=given.vocab_size, context_length=given.context_length, batch_size=given.batch_size,
            precision=given.precision, device=given.device, warmup_steps=5, trials=given.rounds,
            steps_per_trial=given.steps,
        )
    )  # fmt: skip


def compare(spec: CellSpec) -> list[tuple[float, float]]:
    """Milliseconds of one step by `passes` and by torch.utils.benchmark, round by round."""
    workload = Workload(spec)
    clock = clocks.choose(workload.device.type, sync=False)
    timer = benchmark.Timer(stmt="step()", globals={"step": workload.step}, num_threads=torch.get_num_threads())
    with passes.without_collection():
        for _ in range(spec.num_warmups):
            workload.step()

        def ours() -> float:
            return passes.trial(workload, clock, spec.num_steps)[0]

        def theirs() -> float:
            return timer.timeit(spec.num_steps).mean * 1e3

        rounds = []
        for turn in range(spec.num_trials):
            if turn % 2:
                other = theirs()
                rounds.append((ours(), other))
            else:
                rounds.append((ours(), theirs()))
    return rounds


def median_interval(values: list[float]) -> tuple[float, float, float]:
    """Median and its 95 % interval from order statistics (binomial)."""
    ordered, count = sorted(values), len(values)
    below = int(stats.binom.ppf(0.025, count, 0.5))
    return statistics.median(ordered), ordered[max(0, below - 1)], ordered[min(count - 1, count - below)]


def main() -> int:
    given = options()
    within, beyond = True, False
    print(f"{'pass':<18}{'passes, ms':>12}{'torch.utils.benchmark, ms':>28}{'ratio, 95 % interval':>28}")
    for spec in sorted(cells(given), key=lambda one: PASSES.index(one.pass_name)):
        rounds = compare(spec)
        middle, low, high = median_interval([ours / theirs for ours, theirs in rounds])
        ours, theirs = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"{spec.pass_name:<18}{ours:>12.2f}{theirs:>28.2f}{f'{middle:.4f} ({low:.4f} to {high:.4f})':>28}")
        within = within and low >= 1 - LARGEST_DISAGREEMENT and high <= 1 + LARGEST_DISAGREEMENT
        beyond = beyond or high < 1 - LARGEST_DISAGREEMENT or low > 1 + LARGEST_DISAGREEMENT
    verdict = (
        "they disagree" if beyond else "they agree" if within else "undecided: more --rounds, or a quieter machine"
    )
    print(f"at {100 * LARGEST_DISAGREEMENT:.0f} %: {verdict}")
    return 1 if beyond else 0 if within else 3


if __name__ == "__main__":
    sys.exit(main())
