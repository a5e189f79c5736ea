"""PyTorch's profiler over a few steps of a training: a Chrome trace, and a table of what took the time.

`TorchProfile` is a callback, for trainings whose batch hooks fire per micro-batch (the torch engine). `StepProfiler` is
a Lightning profiler, for NeMo's `recipe.trainer.profiler`: there one training batch is one optimizer step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from lightning.pytorch.profilers import Profiler
from torch.profiler import ProfilerActivity, profile

STEPS = 3  # a trace of more is too large for the viewers, and steps are alike
TOP_ROWS = 25
STEP_ACTION = "run_training_batch"  # what Lightning's training loop calls one turn


class _Recording:
    """The profile of some steps, written once as soon as they are over."""

    def __init__(self, stem: Path, first_step: int) -> None:
        self._stem, self._first = stem, first_step
        self._running: profile | None = None
        self._done = False

    def before(self, steps_done: int) -> None:
        """Start at the first step that is to be profiled."""
        if self._done or self._running or steps_done < self._first:
            return
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        self._running = profile(activities=activities)
        self._running.start()

    def after(self, steps_done: int) -> None:
        """Write after the last step that is to be profiled."""
        if steps_done >= self._first + STEPS:
            self.write()

    def write(self) -> None:
        """Stop and write trace and table, if a profile is running."""
        if self._running is None:
            return
        running, self._running, self._done = self._running, None, True
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        running.stop()
        self._stem.parent.mkdir(parents=True, exist_ok=True)
        running.export_chrome_trace(f"{self._stem}.trace.json.gz")
        order = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        table = running.key_averages().table(sort_by=order, row_limit=TOP_ROWS)
        self._stem.with_name(f"{self._stem.name}.txt").write_text(table, encoding="utf-8")


class TorchProfile(Callback):
    """Profiles STEPS optimizer steps from first_step on, on rank 0, and writes them as soon as they are over."""

    def __init__(self, stem: Path, *, first_step: int) -> None:
        """Prepare a profile.

        stem: output path without suffix. first_step: optimizer steps before the profiled ones.
        """
        self._recording = _Recording(stem, first_step)

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.is_global_zero:
            self._recording.before(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        self._recording.after(trainer.global_step)

    def on_train_end(self, *_: Any) -> None:
        self._recording.write()


class StepProfiler(Profiler):
    """The same as a Lightning profiler; plain arguments, so that a NeMo recipe that holds it can be serialised."""

    def __init__(self, stem: str, first_step: int) -> None:
        """Prepare a profile of training batches.

        stem: output path without suffix. first_step: training batches before the profiled ones.
        """
        super().__init__()
        self._recording = _Recording(Path(stem), first_step)
        self._batches = 0

    def start(self, action_name: str) -> None:
        if action_name == STEP_ACTION and _is_first_rank():
            self._recording.before(self._batches)

    def stop(self, action_name: str) -> None:
        if action_name == STEP_ACTION:
            self._batches += 1
            self._recording.after(self._batches)

    def teardown(self, stage: str | None) -> None:
        self._recording.write()
        super().teardown(stage)


def _is_first_rank() -> bool:
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
