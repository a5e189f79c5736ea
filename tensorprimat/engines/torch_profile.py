"""PyTorch's profiler over a few steps of a training: a Chrome trace, and a table of what took the time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from torch.profiler import ProfilerActivity, profile

STEPS = 3  # a trace of more is too large for the viewers, and steps are alike
TOP_ROWS = 25


class TorchProfile(Callback):
    """Profiles STEPS optimizer steps from first_step on, on rank 0, and writes them as soon as they are over."""

    def __init__(self, stem: Path, *, first_step: int) -> None:
        """stem: path without ending; first_step: optimizer steps before the profiled ones."""
        self._stem, self._first = stem, first_step
        self._running: profile | None = None
        self._done = False

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if self._done or self._running or trainer.global_step < self._first or not trainer.is_global_zero:
            return
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        self._running = profile(activities=activities)
        self._running.start()

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step >= self._first + STEPS:
            self._write()

    def on_train_end(self, *_: Any) -> None:
        self._write()

    def _write(self) -> None:
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
