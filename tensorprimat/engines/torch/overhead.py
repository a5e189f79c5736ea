"""One training in which BenchmarkCallback and the sampler of power are present in every second turn of steps."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback

from tensorprimat.core.spec import RunSpec
from tensorprimat.engines.torch.engine import callback_of, trainer_of
from tensorprimat.machine.platform import multiply_float32_in

TURN_STEPS = 10
WARMUP_TURNS = 2
"""Pairs of turns that do not count; the first one compiles and fills caches."""


class Turns(Callback):  # type: ignore[misc]  # Lightning is not there for the type checker
    """A Lightning callback that removes another one and puts it back, in turn, and measures the turns."""

    def __init__(self, measured: Any, enough: Callable[[list[float], list[float]], bool]) -> None:
        self._measured, self._enough = measured, enough
        self.seconds: tuple[list[float], list[float]] = ([], [])
        """Seconds of a step, mean of a turn: without and with the callback."""
        self._present = True
        self._began: float | None = None
        self._step = 0

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step < self._step + TURN_STEPS:
            return
        self._wait_for_device(trainer)
        now = time.perf_counter()
        if self._began is not None:
            self.seconds[self._present].append((now - self._began) / (trainer.global_step - self._step))
        without, present = (turns[WARMUP_TURNS:] for turns in self.seconds)
        if len(without) == len(present) > 0 and self._enough(without, present):
            trainer.should_stop = True
        # The order of a pair changes from pair to pair, so that a steady drift of the machine cancels.
        self._turn(trainer, present=sum(map(len, self.seconds)) % 4 in (1, 2))
        self._step, self._began = trainer.global_step, time.perf_counter()

    def _turn(self, trainer: Any, *, present: bool) -> None:
        if present == self._present:
            return
        others = [one for one in trainer.callbacks if one is not self._measured]
        trainer.callbacks = [self._measured, *others] if present else others  # Lightning still goes through the old one
        if (sampler := self._measured.sampler) is not None:
            sampler.start() if present else sampler.stop()
        self._present = present

    @staticmethod
    def _wait_for_device(trainer: Any) -> None:
        device = trainer.strategy.root_device
        if device.type == "cuda":
            import torch

            torch.cuda.synchronize(device)

    def on_train_end(self, trainer: Any, _module: Any) -> None:
        self._turn(trainer, present=True)


def time_turns(spec: RunSpec, enough: Callable[[list[float], list[float]], bool]) -> tuple[list[float], list[float]]:
    """Train until `enough` says so, or for all steps of the spec; return seconds of a step without and with callback.

    enough: called with the turns of both kinds after each pair.
    """
    from tensorprimat.engines.torch.module import TrainingModule

    multiply_float32_in(spec.precision)
    module = TrainingModule(spec)
    with tempfile.TemporaryDirectory() as folder:
        callback = callback_of(spec, module, Path(folder, "result.json"))
        callback.print_every = 0
        turns = Turns(callback, enough)
        trainer_of(spec, [callback, turns]).fit(module)
    without, present = (of_kind[WARMUP_TURNS:] for of_kind in turns.seconds)
    pairs = min(len(without), len(present))
    return without[:pairs], present[:pairs]
