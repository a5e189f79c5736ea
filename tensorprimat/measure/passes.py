"""Timing of the passes of one model: forward, backward and optimizer step, separately and together.

A trial measures the wall-clock time of its steps, with the device synchronised before and after and garbage collection
off, as in torch.utils.benchmark (perf/passes_agreement.py compares both). The parts of a step are timed in the same
trials, on a GPU by device events, so that nothing waits between the parts.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorprimat.core.errors import MissingPackageError, UsageError
from tensorprimat.core.quantities import as_stated, size
from tensorprimat.core.units import GB
from tensorprimat.engines import clock as clocks
from tensorprimat.engines import failures
from tensorprimat.engines.memory import host_peak_bytes, status_bytes
from tensorprimat.machine.host_memory import available_bytes
from tensorprimat.machine.platform import Machine, detect_platform, existing_device
from tensorprimat.measure import advice
from tensorprimat.storage.micro_result import CellSpec, MicroResult, with_figures
from tensorprimat.system.failures import OUT_OF_MEMORY
from tensorprimat.system.safe_text import is_utf8

if TYPE_CHECKING:
    from tensorprimat.measure.workload import Workload

_CLEAR_PEAK = Path("/proc/self/clear_refs")  # proc(5): writing 5 sets the peak of resident memory to its present value
HEADROOM = 0.95  # share of the free memory on a CPU: the allocator must fail before the system swaps or kills


_PACKAGES = ("torch", "transformers")


def check_cell_packages() -> None:
    """Raise MissingPackageError if a package is missing that every measurement of a cell needs."""
    for name in _PACKAGES:
        if importlib.util.find_spec(name) is None:
            raise MissingPackageError(name, needed_for="measurements of a model's passes")


def check_cell(spec: CellSpec, machine: Machine) -> None:
    """Raise UsageError naming the flag where the cell cannot run here."""
    spec.check()
    if not is_utf8(spec.data):
        raise UsageError(f"--data {spec.data}: the name is not UTF-8, as the files of results are; rename the file")
    on_gpu = existing_device(spec.device, machine) != "cpu"
    if not on_gpu and spec.precision in ("tf32", "fp16"):
        raise UsageError(f"--precision {spec.precision}: not on a CPU; use fp32 or bf16")
    if spec.attention == "flash":
        if not on_gpu:
            raise UsageError("--attention flash: not on a CPU; use sdpa")
        from tensorprimat.engines.torch.attention import flash_package

        if flash_package() is None:
            raise UsageError("--attention flash: the package flash-attn is not installed; use sdpa, which has its own")
        if spec.precision not in ("bf16", "fp16"):
            raise UsageError(f"--attention flash: not with --precision {spec.precision}; it needs bf16 or fp16")


def measure_cell(spec: CellSpec) -> MicroResult:
    """Time one cell in this process; return a cell also if memory runs out or a step fails.

    Raises UsageError where the cell cannot run here, InputError for its token file, KeyboardInterrupt on Ctrl-C.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    machine = detect_platform(cpu=spec.device == "cpu")
    check_cell(spec, machine)
    import torch

    kind = torch.device(spec.device).type
    if kind == "cuda":
        torch.cuda.set_device(torch.device(spec.device).index or 0)  # the function refuses a device without a number
    watch = advice.Watch(machine, spec.device)
    peak_known = restart_peak(kind)
    with limited(kind, spec.memory_limit_gb), _memory_released(kind, compiled=spec.compile):
        times = Times()
        try:
            _run(spec, times)
            cell = with_figures(_cell(spec, machine, times), times.parts)
        except (RuntimeError, MemoryError, OSError, ImportError, ValueError) as error:
            short = failures.is_out_of_memory(error)
            reason = f"{OUT_OF_MEMORY}: {spec.title}" if short else failures.end_reason(error)
            times = times if not short else Times()  # after lack of memory, the trials before it do not count
            cell = with_figures(_cell(spec, machine, times), times.parts)
            cell = cell.changed(status="oom" if short else "failed", reason=reason)
        peak = peak_gb(kind) if peak_known else None
    cell = cell.changed(
        peak_memory_gb=peak, memory_kind=None if peak is None else "allocated" if kind == "cuda" else "resident"
    )
    return cell.changed(warnings=advice.advise(cell, watch.end(), times.launches))


class Times:
    """The measured times, in milliseconds per step."""

    def __init__(self) -> None:
        self.warmups: list[float] = []
        self.trials: list[float] = []
        self.launches: list[float] = []
        self.parts: dict[str, list[float]] = {}
        self.loss: str | None = None
        self.fused_norm: bool | None = None


def _run(spec: CellSpec, times: Times) -> None:
    from tensorprimat.measure.workload import Workload

    workload = Workload(spec)
    times.loss, times.fused_norm = workload.loss, workload.fused_norm
    times.parts = {part: [] for part in workload.parts}
    clock = clocks.choose_clock(workload.device.type, sync=False)
    with without_collection():
        for _ in range(spec.num_warmups):
            times.warmups.append(trial(workload, clock, 1).step_ms)
        for _ in range(spec.num_trials):
            measured = trial(workload, clock, spec.num_steps)
            times.trials.append(measured.step_ms)
            if workload.queues_whole_steps:
                times.launches.append(measured.launch_ms)
            for part, value in measured.parts_ms.items():
                times.parts[part].append(value)


class TrialTimes(NamedTuple):
    """Milliseconds of one step of a trial, as means over its steps."""

    step_ms: float
    launch_ms: float
    """Time in which the host queued the step."""
    parts_ms: dict[str, float]


def trial(workload: Workload, clock: clocks.Clock, steps: int) -> TrialTimes:
    """Run steps and return their times."""
    marks: list[list[Any]] = []
    clock.synchronise()
    start = time.perf_counter()
    for _ in range(steps):
        of_step: list[Any] = []
        workload.step(lambda: of_step.append(clock.mark()))  # noqa: B023  called within this turn of the loop
        marks.append(of_step)
    queued = time.perf_counter() - start
    clock.synchronise()
    seconds = time.perf_counter() - start
    parts = {
        name: sum(clock.seconds(of_step[place], of_step[place + 1]) for of_step in marks) * 1e3 / steps
        for place, name in enumerate(workload.parts)
    }
    return TrialTimes(step_ms=seconds * 1e3 / steps, launch_ms=queued * 1e3 / steps, parts_ms=parts)


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Disable garbage collection, which would slow down single trials."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def _memory_released(device_type: str, *, compiled: bool) -> Iterator[None]:
    """Release unused memory and compiled code at the end, so that the next cell in this process starts like this one.

    torch keeps eight compiled versions of a function and then runs it uncompiled, without a message.
    """
    try:
        yield
    finally:
        if compiled:
            import torch

            torch.compiler.reset()
        gc.collect()
        if device_type == "cuda":
            import torch

            with contextlib.suppress(RuntimeError):  # a lost device, which the cell has already reported
                torch.cuda.empty_cache()


def _cell(spec: CellSpec, machine: Machine, times: Times) -> MicroResult:
    return MicroResult(
        **{name: getattr(spec, name) for name in CellSpec.model_fields},
        trial_times_ms=tuple(times.trials),
        warmup_times_ms=tuple(times.warmups),
        launch_time_ms=statistics.fmean(times.launches) if times.launches else None,
        **machine.facts_of_a_measurement(),
        loss=times.loss,
        fused_norm=times.fused_norm,
    )


def restart_peak(device_type: str) -> bool:
    """Reset the peak to the present use; return False where the system cannot."""
    if device_type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats()
        return True
    try:
        _CLEAR_PEAK.write_text("5")
    except OSError:  # not Linux, or a container that forbids it
        return False
    return True


def peak_gb(device_type: str) -> float | None:
    """Return the peak in GB since `restart_peak`: allocated memory on a GPU, resident memory on a CPU."""
    if device_type == "cuda":
        import torch

        return float(torch.cuda.max_memory_allocated()) / GB
    resident = host_peak_bytes()
    return None if resident is None else resident / GB


@contextlib.contextmanager
def limited(device_type: str, limit_gb: float | None) -> Iterator[None]:
    """Limit the memory of the process; on a CPU, without limit_gb, to the memory that is free.

    Without a limit the system would kill the process when memory runs out, perhaps with others, and the measurements
    would be lost. Raises UsageError on a CPU if the process already uses the limit or more, because Python would crash.
    """
    if device_type == "cuda":
        import torch

        if limit_gb is not None:
            total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit_gb * GB / total))
        try:
            yield
        finally:
            if limit_gb is not None:
                torch.cuda.set_per_process_memory_fraction(1.0)
        return
    try:
        import resource
    except ImportError:  # Windows
        yield
        return
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    in_use = used_bytes()
    if limit_gb is not None and limit_gb * GB <= in_use:
        raise UsageError(
            f"--memory-limit {as_stated(limit_gb)}: the process already uses {size(in_use)}; raise the limit"
        )
    allowed = int(available_bytes() * HEADROOM + in_use if limit_gb is None else limit_gb * GB)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed if hard < 0 else min(allowed, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))


def used_bytes() -> float:
    """Return the bytes that RLIMIT_DATA counts, which this process has reserved for data; 0 if not on Linux."""
    return status_bytes("VmData") or 0.0
