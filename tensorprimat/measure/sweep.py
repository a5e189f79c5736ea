"""Measurement of a grid of cells. Each has its own JSON file, so that a killed sweep can be continued.

Estimates for a cell before it runs: memory from the shape, time from FLOPs and a rate.

They are labelled as estimates; they only show if a cell fits, and if it takes minutes or hours.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorprimat.core.errors import InputError, RunError
from tensorprimat.core.folders import DEFAULT_FOLDER
from tensorprimat.core.units import GB, TERA
from tensorprimat.engines import failures
from tensorprimat.facts import catalogue
from tensorprimat.machine.environment import has_fused_norm
from tensorprimat.machine.platform import Machine, detect_platform
from tensorprimat.models.footprint import activation_bytes, of_cell, state_bytes
from tensorprimat.storage import micro_result, preflight
from tensorprimat.storage.micro_result import CellSpec, MicroEstimate, MicroResult
from tensorprimat.storage.preflight import Preflight
from tensorprimat.storage.store import new_stamp

PROCESS_BYTES = 0.4e9  # resident memory of a process with torch and transformers; a GPU's allocator does not count it
_UTILISATION = 0.4  # share of the best matrix rate that training usually reaches
QUICK_SIZE = {"cpu": 1024, "cuda": 8192}  # side of the product that is timed (tenths of a second) if no rate is known
_START_SECONDS = 8.0  # start of a fresh process: importing torch and transformers, building the model

CONTEXT_PARTS = 64  # the search for the largest context has steps of 1/64 of the cell's context

Measure = Callable[[CellSpec], MicroResult]


@dataclass(frozen=True, kw_only=True)
class SweepOutcome:
    """One cell of the sweep and its file."""

    cell: MicroResult
    path: Path
    resumed: bool
    """True if an earlier call measured the cell."""


def finished(spec: CellSpec, folder: Path, *, device_name: str | None, fit: bool = False) -> MicroResult | None:
    """Return the cell if an earlier call measured it on this device, else None; a failed cell does not count.

    fit: a cell that ran out of memory counts only if it states the largest size that fits.
    """
    try:
        cell = micro_result.load(folder / spec.file_name)
    except InputError:  # missing or damaged: measure again
        return None
    if cell.spec != spec or cell.status == "failed" or cell.device_name not in (None, device_name):
        return None
    searched = cell.fit_batch_size is not None or cell.fit_context_length is not None
    return None if fit and cell.status == "oom" and not searched else cell


def run_sweep(
    specs: Sequence[CellSpec], folder: Path, *, measure: Measure, device_name: str | None, fit: bool = False
) -> Iterator[SweepOutcome]:
    """Measure every cell in turn, and yield each after saving it.

    If the cell's path contains another measurement, that file moves to history/. Raises RunError where a cell cannot be
    saved; the saved cells remain, and repeating the call continues after them.
    """
    for spec in specs:
        path = folder / spec.file_name
        known = finished(spec, folder, device_name=device_name, fit=fit)
        if known is not None:
            yield SweepOutcome(cell=known, path=path, resumed=True)
            continue
        cell = measure(spec)
        if fit and cell.status == "oom":
            cell = with_fit(cell, measure)
        try:
            _keep_other(path, spec, device_name)
            micro_result.save(cell, path)
        except OSError as error:
            raise RunError(
                f"{path}: {error.strerror or error}; cells before it are kept; repeat the command to continue"
            ) from error
        yield SweepOutcome(cell=cell, path=path, resumed=False)


def _keep_other(path: Path, spec: CellSpec, device_name: str | None) -> None:
    """Move a file of another cell or device to history/; an earlier attempt at this cell stays and is overwritten."""
    if not os.path.exists(path):
        return
    try:
        cell = micro_result.load(path)
        if cell.spec == spec and (cell.status == "failed" or cell.device_name in (None, device_name)):
            return
    except InputError:  # no cell, or damaged: keep it in history
        pass
    to_history(path)


def to_history(path: Path) -> None:
    """Move a file of an earlier call into history/ in the same folder."""
    history = path.parent / "history"
    history.mkdir(exist_ok=True)
    path.replace(history / f"{path.stem}_{new_stamp()}{path.suffix}")


def with_fit(cell: MicroResult, measure: Measure) -> MicroResult:
    """Return a cell that ran out of memory, with the largest batch that fits, else the largest context at batch 1."""
    probe = cell.spec.changed(num_warmups=1, num_trials=1, num_steps=1)

    def fits(**changed: int) -> bool:
        return measure(probe.changed(**changed)).status == "ok"

    batch = _largest(cell.batch_size - 1, lambda size: fits(batch_size=size))
    if batch:
        return cell.changed(fit_batch_size=batch)
    part = max(1, cell.context_length // CONTEXT_PARTS)
    parts = _largest((cell.context_length - 1) // part, lambda count: fits(batch_size=1, context_length=count * part))
    if parts:
        return cell.changed(fit_context_length=parts * part)
    warning = "memory: not even one sequence of the shortest context fits; use a smaller --model-size"
    return cell.changed(fit_batch_size=0, fit_context_length=0, warnings=(*cell.warnings, warning))


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from 1 to most that fits, 0 if none does; assumes that all smaller ones fit too.

    >>> _largest(100, lambda number: number <= 37)
    37
    """
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def estimate_cell(spec: CellSpec, *, flops_per_second: float | None) -> MicroEstimate:
    """Return the estimated memory and time of a cell.

    flops_per_second: the best matrix rate of the device at this precision, measured or from the catalogue; if it is
    None, so is the time.
    """
    step = of_cell(spec, fused_norm=has_fused_norm(spec.device.partition(":")[0]))
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

    from tensorprimat.measure import matmul

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
