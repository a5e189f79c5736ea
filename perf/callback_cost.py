#!/usr/bin/env python3
"""What BenchmarkCallback costs per optimizer step: the same Trainer with it and without it, taking turns.

    python perf/callback_cost.py
    python perf/callback_cost.py --steps 5000 --rounds 20

The model is one small matrix, so that what remains of a step is Lightning's own loop. Two figures per round: wall time and
CPU time of the process (the latter does not see other programs). The goal is 50 µs; exit code 1 where the median CPU time is
above it.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from benchmark_utils import BenchmarkCallback

GOAL_MICROSECONDS = 50.0


class Small(LightningModule):
    """As little work per step as Lightning allows."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = torch.nn.Linear(8, 8)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:  # noqa: ARG002
        return self.matrix(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def train(steps: int, callbacks: list[BenchmarkCallback]) -> tuple[float, float]:
    """Wall and CPU seconds of one step, set-up left out: both clocks are read in the loop's own first and last step."""
    module, data = Small(), DataLoader(torch.randn(steps, 8), batch_size=None)
    clock: list[tuple[float, float]] = []

    def read() -> None:
        clock.append((time.perf_counter(), time.process_time()))

    module.on_train_epoch_start = read
    module.on_train_epoch_end = read
    Trainer(
        accelerator="cpu", max_steps=steps, callbacks=callbacks, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    ).fit(module, data)  # fmt: skip
    (wall_start, cpu_start), (wall_end, cpu_end) = clock
    return (wall_end - wall_start) / steps, (cpu_end - cpu_start) / steps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    train(200, [])
    rows = []
    print(
        f"{'round':>5}{'without: wall':>16}{'CPU':>8}{'with: wall':>14}{'CPU':>8}{'cost: wall':>14}{'CPU':>8}   µs per step"
    )
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(given.rounds):
            without = train(given.steps, [])
            measured = train(given.steps, [BenchmarkCallback(output_dir=folder, model_name="small", print_every=0)])
            cost = [(b - a) * 1e6 for a, b in zip(without, measured, strict=True)]
            rows.append(cost)
            figures = [*(value * 1e6 for value in (*without, *measured)), *cost]
            print(
                "".join(f"{figure:>{width}.1f}" for figure, width in zip(figures, (21, 8, 14, 8, 14, 8), strict=True))
            )
    wall, cpu = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"median cost per step: {wall:.1f} µs wall, {cpu:.1f} µs CPU (goal: under {GOAL_MICROSECONDS:.0f} µs)")
    return 1 if cpu > GOAL_MICROSECONDS else 0


if __name__ == "__main__":
    sys.exit(main())
