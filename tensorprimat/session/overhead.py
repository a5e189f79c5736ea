"""The work of `overhead`: what BenchmarkCallback and the sampler of power add to a step."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import numpy as np

from tensorprimat.analysis.pairs import interval_of_pairs
from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import Result
from tensorprimat.core.spec import MODELS, RunSettings
from tensorprimat.engines import prepare
from tensorprimat.engines.registry import ENGINES, OWN
from tensorprimat.machine.platform import detect_platform

_LOOKS = (10, 20, 40, 80, 160)
"""Pairs of turns after which the interval is computed."""
_CONFIDENCE = 1 - 0.05 / len(_LOOKS)  # of each look, so that the interval at the last one holds with 95 %


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """Share by which callback and sampler make a step longer, with its interval of 95 %, corrected for the looks."""

    share: float
    low: float
    high: float
    step_seconds: float
    """Step time without them, median of the turns."""
    pairs: int
    device_name: str | None
    model: str
    preset: str

    @property
    def half_width(self) -> float:
        """Return half the width of the interval."""
        return (self.high - self.low) / 2


def measure_overhead(model: str, settings: RunSettings, *, half_width: float) -> Overhead:
    """Train with and without the callback in turn until the interval is as narrow as `half_width`, or steps run out.

    Raises UsageError where the torch engine cannot train the model here, or for too few steps.
    """
    if model not in MODELS:
        raise UsageError(f"--model {model}: no such model; models: {', '.join(MODELS)}")
    machine, engine = detect_platform(), ENGINES[OWN]
    prepare.check_engine(engine, machine.platform)
    spec = prepare.spec_of(model, settings, engine=engine, machine=machine)
    prepare.check_spec(engine, spec, machine)
    turns = importlib.import_module("tensorprimat.engines.torch.overhead")
    needed = 2 * turns.TURN_STEPS * (turns.WARMUP_TURNS + _LOOKS[0] + 1)
    if settings.steps < needed:
        raise UsageError(f"--steps {settings.steps}: must be {needed} or more for an interval")

    def enough(without: list[float], present: list[float]) -> bool:
        if len(without) not in _LOOKS:
            return False
        _, low, high = _interval(without, present)
        return high - low <= 2 * half_width or len(without) == _LOOKS[-1]

    without, present = turns.time_turns(spec, enough)
    share, low, high = _interval(without, present)
    return Overhead(
        share=share, low=low, high=high, step_seconds=float(np.median(without)), pairs=len(without),
        device_name=machine.gpu_info.device_name, model=model, preset=spec.preset,
    )  # fmt: skip


def _interval(without: list[float], present: list[float]) -> tuple[float, float, float]:
    share, low, high = (
        float(np.expm1(end)) for end in interval_of_pairs(np.log(np.array([without, present])), _CONFIDENCE)
    )
    return share, low, high


def with_overhead(result: Result, measured: Overhead) -> Result:
    """Return a result that states the overhead. Raises UsageError for a result of another model or device."""
    for what, stated, here in (
        ("device", result.gpu_info.device_name, measured.device_name),
        ("model", result.model.name, measured.model),
        ("preset", result.model.preset, measured.preset),
    ):
        if stated != here:
            raise UsageError(f"the result is of {what} {stated}, the overhead of {here}; measure it with the same")
    facts = {"overhead": measured.share, "overhead_half_width": measured.half_width}
    return result.changed(provenance=result.provenance.changed(**facts))
