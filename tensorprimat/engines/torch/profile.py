"""PyTorch's profiler for a few steps of a training: it writes a Chrome trace, and a table of the time by operation.

It is a Lightning callback for the torch engine and NeMo, in both of which one training batch is one optimizer step.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from tensorprimat.engines.callback import BenchmarkCallback
from tensorprimat.engines.failures import end_reason

_STEPS = 3  # a trace of more steps is too large for the viewers, and the steps are alike
TOP_ROWS = 25


class StepProfiler(Callback):  # type: ignore[misc]  # Lightning is not there for the type checker
    """A profiler of _STEPS training batches from first_step on, on rank 0; it writes the profile right after them.

    Collecting the events and writing them takes seconds, during which the training waits. The BenchmarkCallback marks
    the step that contains them; it has to precede this callback, so that this is the step after the profiled ones.
    The arguments are plain values, so that a NeMo recipe can be serialised with it.
    """

    def __init__(self, stem: str, first_step: int) -> None:
        """Prepare a profile.

        stem: output path without suffix. first_step: number of training batches before the profiled ones.
        """
        self._stem, self._first = Path(stem), first_step
        self._batches = 0
        self._running: profile | None = None

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._batches == self._first and trainer.is_global_zero:
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
            always = ProfilerAction.RECORD
            # A schedule makes the profiler mark the steps; shapes tell the work of each kernel.
            self._running = profile(activities=activities, schedule=lambda _: always, record_shapes=True)
            self._running.start()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._batches += 1
        if self._running is None:
            return
        if self._batches < self._first + _STEPS:
            self._running.step()  # ends the range ProfilerStep#N and begins the next
        else:
            with contextlib.ExitStack() as stack:
                for callback in trainer.callbacks:
                    if isinstance(callback, BenchmarkCallback):
                        stack.enter_context(callback.interruption("profile"))
                self._write()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._write()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write the steps so far. An error is only printed, because the user needs the training's own."""
        try:
            self._write()
        except (RuntimeError, OSError) as error:  # the device may be lost
            print(f"The profile cannot be written: {end_reason(error)}", file=sys.stderr, flush=True)

    def _write(self) -> None:
        """Stop and write trace and table, if a profile is running."""
        if self._running is None:
            return
        running, self._running = self._running, None
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        running.stop()
        self._stem.parent.mkdir(parents=True, exist_ok=True)
        running.export_chrome_trace(f"{self._stem}.trace.json.gz")
        order = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        table = running.key_averages().table(sort_by=order, row_limit=TOP_ROWS)
        self._stem.with_name(f"{self._stem.name}.txt").write_text(table, encoding="utf-8")
