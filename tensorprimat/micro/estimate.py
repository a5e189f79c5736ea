"""Estimates for a cell before it runs: memory from the shape, time from FLOPs and a rate.

They are labelled as estimates; they only show if a cell fits, and if it takes minutes or hours.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from tensorprimat.core import catalogue, preflight
from tensorprimat.core.folders import DEFAULT_FOLDER
from tensorprimat.core.footprint import activation_bytes, of_cell, state_bytes
from tensorprimat.core.micro_result import CellSpec, MicroEstimate
from tensorprimat.core.preflight import Preflight
from tensorprimat.core.units import GB, TERA
from tensorprimat.engines import failures
from tensorprimat.engines.torch.fused_norm import fuses_norm
from tensorprimat.machine.platform import Machine, detect_platform

PROCESS_BYTES = 0.4e9  # resident memory of a process with torch and transformers; a GPU's allocator does not count it

_UTILISATION = 0.4  # share of the best matrix rate that training usually reaches
QUICK_SIZE = {"cpu": 1024, "cuda": 8192}  # side of the product that is timed (tenths of a second) if no rate is known
_START_SECONDS = 8.0  # start of a fresh process: importing torch and transformers, building the model


def estimate_cell(spec: CellSpec, *, flops_per_second: float | None) -> MicroEstimate:
    """Return the estimated memory and time of a cell.

    flops_per_second: the best matrix rate of the device at this precision, measured or from the catalogue; if it is
    None, so is the time.
    """
    step = of_cell(spec, fused_norm=fuses_norm(spec.device.partition(":")[0]))
    held = state_bytes(step) + activation_bytes(step) + (PROCESS_BYTES if spec.device == "cpu" else 0)
    steps = spec.num_warmups + spec.num_trials * spec.num_steps
    work = steps * spec.step_flops / (flops_per_second * _UTILISATION) if flops_per_second else None
    return MicroEstimate(memory_gb=held / GB, seconds=None if work is None else _START_SECONDS + work)


def best_rate(
    machine: Machine, device: str, precision: str, *, kept: Preflight | None = None, may_run: bool = True
) -> tuple[float | None, str]:
    """Return the FLOP/s of matrix products on the device at this precision (or None), and the source of the figure.

    kept: a preflight of this machine. may_run: time one product now if neither the preflight nor the catalogue has a
    rate. A process that has used a GPU keeps some GPU memory until it ends, so cells in other processes have less.
    """
    if kept is not None and (measured := kept.matmul_flops_per_second(precision)):
        return measured, f"preflight of {kept.timestamp}"
    gpu = None if device == "cpu" else catalogue.find_gpu_of(machine.gpu_info)
    fact = (gpu.achievable_tflops.get(precision) or gpu.peak(precision)) if gpu else None
    if fact is not None and fact.value:
        return fact.value * TERA, fact.origin
    if not may_run:
        return None, "the catalogue does not have this device; tprimat preflight measures it"
    if importlib.util.find_spec("torch") is None:
        return None, "torch is not installed, so no product can be timed; pip install torch"
    import torch

    from tensorprimat.micro import matmul

    size = QUICK_SIZE["cpu" if device == "cpu" else "cuda"]
    try:
        rate, _ = matmul.matmul_rate(size, precision, torch.device(device), repeats=2)
    except (RuntimeError, MemoryError) as error:  # a GPU without free memory, for example
        return None, f"no product could be timed: {failures.end_reason(error)}"
    return rate, f"one product of {size} × {size}, measured now"


def estimate_all(
    specs: Sequence[CellSpec], output: Path, *, may_run: bool
) -> tuple[list[MicroEstimate], dict[str, tuple[float | None, str]]]:
    """Return the estimate of each cell, and by precision the rate that it assumes (FLOP/s) with its source.

    output: the folder in which a preflight of this machine may be kept. may_run: as in `best_rate`.
    """
    machine = detect_platform(cpu=specs[0].device == "cpu")
    here = (machine.platform, machine.gpu_info.device_name, machine.host)
    kept = next((one for one in preflight.kept([output, output.parent, DEFAULT_FOLDER]) if one.machine == here), None)
    rates = {
        precision: best_rate(machine, specs[0].device, precision, kept=kept, may_run=may_run)
        for precision in dict.fromkeys(spec.precision for spec in specs)
    }
    return [estimate_cell(spec, flops_per_second=rates[spec.precision][0]) for spec in specs], rates
