"""The true times and losses of a run that `tools/write_framework_logs.py` made, compared with those of its log."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STEPS, INTERVAL = 40, 5
APART = 0.15  # a framework's clock stops before hooks, which a busy machine stretches; a wrong unit is a factor
TRUTH, LOG = "truth.json", "framework.log"


@dataclass(kw_only=True)
class Truth:
    """The true step times and losses of a framework's run, by the clock of this script."""

    framework: str
    version: str
    log: str = LOG
    ends: list[float] = field(default_factory=list)
    """End time of each step; the first entry is the start of the first step."""
    losses: list[float] = field(default_factory=list)
    tokens_per_step: int | None = None
    gpus: int | None = None
    first_index: int = 1
    """Number that the framework gives to the first step."""


def differences(truth: Truth, path: Path) -> list[str]:
    """Return the differences between the reader's values and the true ones; none where all agree."""
    sys.path.insert(0, str(ROOT))
    from tensorprimat import logs
    from tensorprimat.core.errors import TensorPrimatError

    try:
        result = logs.read(path)
    except TensorPrimatError as error:
        return [str(error)]
    timed = [(step, seconds) for step in result.steps if (seconds := _seconds(step, truth))]
    timed = [(step, seconds) for step, seconds in timed if step.index > truth.first_index]
    if not timed:
        return ["no step has a time"]
    spent = sum(seconds * step.covers for step, seconds in timed)
    real = 0.0
    for step, _ in timed:
        last = step.index - truth.first_index + 1
        real += truth.ends[last] - truth.ends[max(last - step.covers, 0)]
    found = []
    if abs(spent / real - 1) > APART:
        found.append(f"{spent:.4f} s in {len(timed)} rows, {real:.4f} s by our clock")
    covered = sum(step.covers for step, _ in timed)
    if covered < STEPS // 2:
        found.append(f"{covered} of {STEPS} steps have a time")
    losses = {step.index: step.loss for step in result.steps if step.loss is not None}
    last = max(losses, default=None)
    if truth.losses and (last is None or abs(losses[last] - truth.losses[last - truth.first_index]) > INTERVAL / 100):
        found.append("the last loss differs")
    has_rates = not result.steps.has("seconds")  # a log of rates alone states neither tokens nor GPUs
    tokens = result.performance_metrics.tokens_per_step
    if truth.tokens_per_step and not has_rates and tokens != truth.tokens_per_step:
        found.append(f"{tokens} tokens a step, not {truth.tokens_per_step}")
    if truth.gpus and not has_rates and result.training_config.num_gpus != truth.gpus:
        found.append(f"{result.training_config.num_gpus} GPUs, not {truth.gpus}")
    return found


def _seconds(step: Any, truth: Truth) -> float | None:
    """Return the time of a step; by its rate where the log has rates alone."""
    rate = step.reported_tokens_per_second_per_gpu
    if step.seconds is None and rate and truth.tokens_per_step and truth.gpus:
        return truth.tokens_per_step / truth.gpus / float(rate)
    return float(step.seconds) if step.seconds else None
