#!/usr/bin/env python3
"""Comparison of the times of `tprimat passes` with torch.utils.benchmark on the same closure: equal within 2 % or not.

    python perf/passes_agreement.py                           (CPU, a 4-layer, 256-wide shape)
    python perf/passes_agreement.py --device cuda --d-model 2048 --num-layers 16 --context-length 2048 --precision bf16

One model is built per pass; both clocks time its `step` in turns, so that whatever else the machine does falls on both
(perf/turns.py computes the interval of their ratio).
Exit code 0 where every interval lies within 2 %, 1 where one lies beyond it, 3 where more --turns are needed to tell.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch.utils import benchmark

from perf.turns import TURNS_TOGETHER, ratio_of
from tensorprimat.engines import clock as clocks
from tensorprimat.measure import grid, passes
from tensorprimat.measure.workload import Workload
from tensorprimat.storage.micro_result import PASSES, CellSpec

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
    parser.add_argument("--turns", type=int, default=400, help=f"of each clock, at least {2 * TURNS_TOGETHER}")
    parser.add_argument(
        "--steps", type=int, default=1, help="steps of a turn, more where one takes under a millisecond"
    )
    return parser.parse_args()


def cells(arguments: argparse.Namespace) -> list[CellSpec]:
    return grid.cells(
        grid.GridOptions(
            d_model=arguments.d_model, num_layers=arguments.num_layers, num_heads=max(1, arguments.d_model // 64),
            vocab_size=arguments.vocab_size, context_length=arguments.context_length, batch_size=arguments.batch_size,
            precision=arguments.precision, device=arguments.device, warmup_steps=5, trials=arguments.turns,
            steps_per_trial=arguments.steps,
        )
    )  # fmt: skip


def compare(spec: CellSpec) -> tuple[list[float], list[float]]:
    """Return the milliseconds of one step by `passes` and by torch.utils.benchmark, turn by turn."""
    workload = Workload(spec)
    clock = clocks.choose_clock(workload.device.type, sync=False)
    timer = benchmark.Timer(stmt="step()", globals={"step": workload.step}, num_threads=torch.get_num_threads())
    ours: list[float] = []
    theirs: list[float] = []
    both = [
        lambda: ours.append(passes.trial(workload, clock, spec.num_steps).step_ms),
        lambda: theirs.append(timer.timeit(spec.num_steps).mean * 1e3),
    ]
    with passes.without_collection():
        for _ in range(spec.num_warmups):
            workload.step()
        for _ in range(spec.num_trials):
            for measure in both:
                measure()
            both.reverse()
    return ours, theirs


def main() -> int:
    arguments = options()
    within, beyond = True, False
    print(f"{'pass':<18}{'passes, ms':>12}{'torch.utils.benchmark, ms':>28}{'ratio, 95 % interval':>28}")
    for spec in sorted(cells(arguments), key=lambda one: PASSES.index(one.pass_name)):
        ours, theirs = compare(spec)
        middle, low, high = ratio_of(theirs, ours)
        line = f"{spec.pass_name:<18}{statistics.median(ours):>12.2f}{statistics.median(theirs):>28.2f}"
        print(f"{line}{f'{middle:.4f} ({low:.4f} to {high:.4f})':>28}", flush=True)
        within = within and low >= 1 - LARGEST_DISAGREEMENT and high <= 1 + LARGEST_DISAGREEMENT
        beyond = beyond or high < 1 - LARGEST_DISAGREEMENT or low > 1 + LARGEST_DISAGREEMENT
    verdict = "they disagree" if beyond else "they agree" if within else "undecided: more --turns, or a quieter machine"
    print(f"at {100 * LARGEST_DISAGREEMENT:.0f} %: {verdict}")
    return 1 if beyond else 0 if within else 3


if __name__ == "__main__":
    sys.exit(main())
