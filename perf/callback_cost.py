#!/usr/bin/env python3
"""Cost of BenchmarkCallback per optimizer step: one Trainer with and without it, alternating every few steps.

    python perf/callback_cost.py
    python perf/callback_cost.py --steps 100000
    python perf/callback_cost.py --device cpu    # on a machine with a GPU: without its events and memory figures

The model is one small matrix, so that what remains of a step is Lightning's own loop. The callback is taken out of the
trainer and put back every few steps; the cost is the median difference between neighbouring turns, so that whatever
else the machine does falls on both. The goal is 50 µs per step; exit code 1 where the cost is above it. The rows before
the last one show, from a second training, the mean time that the parts of the callback take in each step.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from benchmark_utils import BenchmarkCallback
from tensorprimat.engines import callback as callbacks
from tensorprimat.engines.batches import BatchCounter
from tensorprimat.engines.clock import Clock, EventClock
from tensorprimat.engines.memory import DeviceMemory
from tensorprimat.engines.recorder import Recorder

GOAL_MICROSECONDS = 50.0
TURN = 20  # steps with the callback, then as many without
PARTS = (
    ("look for a waiting device", Recorder, "step_starts"),
    ("batch: count", BatchCounter, "add"),
    ("batch: sum of the step", BatchCounter, "end_step"),
    ("loss: mean", callbacks, "mean_loss"),
    ("loss: copy to the host", Recorder, "_on_host"),
    ("memory, once a second", DeviceMemory, "read_sometimes"),
    ("marks", None, "mark"),
    ("reading of the steps", Recorder, "drain"),
)
"""Part of the callback → the function that does it; None for the clock of the device."""


class Small(LightningModule):
    """A module with hardly any work per step. It removes and restores the callback in turns, and notes when."""

    def __init__(self, callback: BenchmarkCallback) -> None:
        super().__init__()
        self.matrix = torch.nn.Linear(8, 8)
        self.ended = [time.perf_counter()]
        self._callback = callback

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:  # noqa: ARG002
        return self.matrix(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def on_train_batch_end(self, outputs: object, batch: torch.Tensor, batch_idx: int) -> None:  # noqa: ARG002
        if (batch_idx + 1) % TURN:
            return
        present = self.trainer.callbacks
        if self._callback in present:
            present.remove(self._callback)
        else:
            present.append(self._callback)
        self.ended.append(time.perf_counter())

    def on_train_end(self) -> None:
        if self._callback not in self.trainer.callbacks:
            self.trainer.callbacks.append(self._callback)


def train(device: str, steps: int) -> Small:
    """Train for some steps and return the module with its times."""
    with tempfile.TemporaryDirectory() as folder:
        callback = BenchmarkCallback(output_dir=folder, model_name="small", print_every=0)
        module = Small(callback)
        Trainer(
            accelerator="gpu" if device == "cuda" else "cpu", devices=1, max_steps=steps, callbacks=[callback],
            logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        ).fit(module, DataLoader(torch.randn(steps, 8), batch_size=None))  # fmt: skip
    return module


def seconds_of_parts(device: str, steps: int) -> dict[str, float]:
    """Return the seconds that each of PARTS takes in a training. The callback is present in half of the steps."""
    spent: dict[str, float] = {}

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **more)
            finally:
                spent[part] = spent.get(part, 0.0) + time.perf_counter() - began

        return call

    with contextlib.ExitStack() as patches:
        for part, owner, name in PARTS:
            place = owner or (EventClock if device == "cuda" else Clock)
            patches.enter_context(mock.patch.object(place, name, timed(part, getattr(place, name))))
        train(device, steps)
    return spent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if on_gpu else "cpu", help="%(default)s")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    module = train(arguments.device, arguments.steps)
    parts = seconds_of_parts(arguments.device, arguments.steps)
    turns = np.diff(module.ended)[2:] / TURN * 1e6  # µs per step; the first pair warms up
    pairs = turns[: len(turns) // 2 * 2].reshape(-1, 2)  # with, without
    cost = np.median(pairs[:, 0] - pairs[:, 1])
    low, high = np.percentile(pairs[:, 0] - pairs[:, 1], (25, 75))
    print(f"{'µs per step':<24}{'median':>10}{'quartiles':>22}")
    for name, values in (("with the callback", pairs[:, 0]), ("without it", pairs[:, 1])):
        quartiles = "{:.1f} to {:.1f}".format(*np.percentile(values, (25, 75)))
        print(f"{name:<24}{np.median(values):>10.1f}{quartiles:>22}")
    for name, _, _ in PARTS:
        if name in parts:
            print(f"  {name:<28}{parts[name] / (arguments.steps / 2) * 1e6:>4.1f}")
    print(f"{'cost':<24}{cost:>10.1f}{f'{low:.1f} to {high:.1f}':>22}   goal: under {GOAL_MICROSECONDS:.0f}")
    return 1 if cost > GOAL_MICROSECONDS else 0


if __name__ == "__main__":
    sys.exit(main())
