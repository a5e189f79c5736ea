"""Power, energy and clocks of a live training: choice of the GPUs, and the figures and warnings of the result."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import celsius, fixed, stated_seconds
from tensorprimat.core.result import Result
from tensorprimat.core.steps import Steps
from tensorprimat.machine import telemetry
from tensorprimat.machine.device import Device


def with_own_gpus(result: Result, trainer: Any) -> Result:
    """Return the result with the identities of only those visible GPUs of this node that the training uses.

    trainer.device_ids: their indices among the visible GPUs.
    """
    visible, numbers = result.provenance.gpu_ids, getattr(trainer, "device_ids", None)
    if not isinstance(numbers, (list, tuple)) or not all(isinstance(one, int) for one in numbers):
        return result
    own = tuple(visible[number] for number in numbers if number < len(visible))
    return result.changed(provenance=result.provenance.changed(gpu_ids=own))


def devices_of(result: Result) -> list[Device]:
    """Return the telemetry devices of the result's GPUs; an empty list if torch does not identify the GPUs.

    Empty also for a MIG instance, because some versions of torch report the identity of the whole GPU for it.
    """
    if not result.provenance.gpu_ids or _is_instance(result):
        return []
    return telemetry.open_devices(result.provenance.gpu_ids)


def _is_instance(result: Result) -> bool:
    """Return True if the job runs on a MIG instance, a part of an NVIDIA GPU, by the device name that torch reports."""
    return " MIG " in (result.gpu_info.device_name or "")


_PACKAGES = {"nvd": "nvidia-ml-py (pip install nvidia-ml-py)", "amd": "amdsmi (it comes with ROCm)"}
"""Platform → the Python package that reads its power, and how to install it."""


def unmeasured(result: Result, sampler: telemetry.Sampler) -> list[Notice]:
    """Return a notice that the power of the result's GPUs, or of some of them, is unknown; empty if it was sampled."""
    if any(reading.power_watts is not None for reading in sampler.first):
        read, gpus = len(sampler.first), len(set(result.provenance.gpu_ids))
        return [Notice("power_of_some_gpus", "power_metrics", read=read, gpus=gpus)] if read < gpus else []
    package = _PACKAGES.get(result.platform or "", "the driver's package")
    if sampler.first:
        why = "the driver reports none for this GPU"
    elif not result.provenance.gpu_ids:
        why = "this version of torch does not report which GPUs take part; install a newer torch"
    elif _is_instance(result):
        why = "a MIG instance has no power meter of its own"
    elif not telemetry.open_devices(()):
        why = f"{package} is not installed, or finds no GPU"
    else:
        why = f"{package.partition(' (')[0]} lists other GPUs than those that take part"
    return [Notice("power_unmeasured", "power_metrics", why=why)]


def with_telemetry(result: Result, steps: Steps, sampler: telemetry.Sampler) -> tuple[Result, Steps]:
    """Return the result with its limits and reasons for a reduced clock, and the steps with the sampler's columns.

    A limit is the lowest of the GPUs. The columns are power, energy, clock, temperature and throttled time per step.
    """
    gpu: dict[str, Any] = {"power_boundary": sampler.boundary} if sampler.boundary else {}
    for limit in ("power_limit_watts", "default_power_limit_watts", "max_clock_hertz"):
        if stated := [value for one in sampler.first if (value := getattr(one, limit)) is not None]:
            gpu[limit] = min(stated)
    runs = tuple(run.changed(throttled_by=sampler.throttled_by) for run in result.runs)
    result = result.changed(gpu_info=result.gpu_info.changed(**gpu), runs=runs)
    if not len(steps):
        return result, steps
    covers = np.maximum(steps.column("covers"), 1)
    found = sampler.columns(steps.column("ended_at"), steps.column("seconds") * covers)
    levels = ("power_watts_per_gpu", "clock_hertz", "temperature_celsius")  # means; a row's steps share other columns
    per_step = {name: column if name in levels else column / covers for name, column in found.items()}
    seen = {name: column for name, column in per_step.items() if np.isfinite(column).any()}
    return result, steps.replace(**seen) if seen else steps


def line(sampler: telemetry.Sampler) -> str | None:
    """Return one line with the time per sample and the temperatures before and after; None if nothing was sampled."""
    cost = sampler.seconds_per_sample
    if cost is None:
        return None
    gpus = f"{len(sampler.first)} GPU{'s' * (len(sampler.first) != 1)}"
    sentence = (
        f"Telemetry: {gpus}, every {stated_seconds(telemetry.SAMPLE_SECONDS)}, {fixed(1e3 * cost, 2)} ms per sample"
    )
    hot = [
        max((one.temperature_celsius for one in part if one.temperature_celsius is not None), default=None)
        for part in (sampler.first, sampler.last)
    ]
    if None in hot:
        return sentence
    return f"{sentence}; {celsius(hot[0])} at the start, {celsius(hot[1])} at the end"
