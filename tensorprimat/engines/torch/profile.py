"""PyTorch's profiler for a few steps of a training: it writes a Chrome trace, and a table of the time by operation.

It is a Lightning profiler for the torch engine and NeMo, in both of which one training batch is one optimizer step.
"""

from __future__ import annotations

from pathlib import Path

import torch
from lightning.pytorch.profilers import Profiler
from torch.profiler import ProfilerActivity, profile

_STEPS = 3  # a trace of more steps is too large for the viewers, and the steps are alike
TOP_ROWS = 25
STEP_ACTION = "run_training_batch"  # Lightning's name for one iteration of its training loop


class StepProfiler(Profiler):
    """A profiler of _STEPS training batches from first_step on, on rank 0; it writes the profile right after them.

    Its arguments are plain values, so that a NeMo recipe can be serialised with it.
    """

    def __init__(self, stem: str, first_step: int) -> None:
        """Prepare a profile.

        stem: output path without suffix. first_step: number of training batches before the profiled ones.
        """
        super().__init__()
        self._stem, self._first = Path(stem), first_step
        self._batches = 0
        self._running: profile | None = None

    def start(self, action_name: str) -> None:
        if action_name == STEP_ACTION and self._batches == self._first and _is_first_rank():
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
            self._running = profile(activities=activities)
            self._running.start()

    def stop(self, action_name: str) -> None:
        if action_name == STEP_ACTION:
            self._batches += 1
            if self._batches >= self._first + _STEPS:
                self._write()

    def teardown(self, stage: str | None) -> None:
        self._write()
        super().teardown(stage)

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


def _is_first_rank() -> bool:
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
