"""Device memory during training, read at most once a second, the process's own peak, and the largest of all ranks."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tensorprimat.core.notices import Notice

if TYPE_CHECKING:
    import torch

SECONDS_BETWEEN_READINGS = 1.0  # one reading builds a dictionary of some hundred numbers: negligible once a second

MemoryReading = dict[str, float]
"""Bytes by the column of `Step` that contains them, or by HOST_PEAK."""

_PATIENCE_SECONDS = 30.0  # a rank that finished its last step answers in a fraction of this; a dead one never does
HOST_PEAK = "host_peak_bytes"
_STATUS = Path("/proc/self/status")

_ALLOCATOR = {
    "memory_allocated_bytes": ("allocated_bytes", "current"),
    "memory_allocated_peak_bytes": ("allocated_bytes", "peak"),
    "memory_reserved_bytes": ("reserved_bytes", "current"),
    "memory_reserved_peak_bytes": ("reserved_bytes", "peak"),
}


class DeviceMemory:
    """The reader of one GPU's allocator and driver figures; on a CPU it reads none."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_gpu = device.type == "cuda"
        self._next_reading = 0.0

    def restart_peaks(self) -> None:
        """Reset the allocator's peaks, so that building the model does not count as training."""
        if self._on_gpu:
            import torch

            torch.cuda.reset_peak_memory_stats(self._device)

    def read(self) -> MemoryReading:
        """Return the allocator's current bytes, its peaks since `restart_peaks`, and the device's use; {} on a CPU."""
        if not self._on_gpu:
            return {}
        import torch

        # One nested dictionary for all four: torch.cuda.memory_allocated() would flatten and sort it each time.
        stats = torch.cuda.memory.memory_stats_as_nested_dict(self._device)
        reading = {column: float(stats[kind]["all"][which]) for column, (kind, which) in _ALLOCATOR.items()}
        free, total = torch.cuda.mem_get_info(self._device)
        return {**reading, "memory_device_used_bytes": float(total - free)}

    def read_last(self) -> MemoryReading:
        """Return all figures and the process's own peak; after a device error only the process's peak."""
        host = host_peak_bytes()
        reading = {} if host is None else {HOST_PEAK: host}
        try:
            return {**reading, **self.read()}
        except RuntimeError:  # after an illegal access or a lost device every call to the driver fails
            return reading

    def read_sometimes(self) -> MemoryReading:
        """Return all figures if the last reading is SECONDS_BETWEEN_READINGS old, else {}."""
        if not self._on_gpu:
            return {}
        now = time.perf_counter()
        if now < self._next_reading:
            return {}
        self._next_reading = now + SECONDS_BETWEEN_READINGS
        return self.read()


def status_bytes(name: str) -> float | None:
    """Return a size of this process from /proc/self/status, in bytes; None where the kernel does not state it."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:  # not Linux
        return None
    return next((float(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


def host_peak_bytes() -> float | None:
    """Return the peak resident memory of this process in bytes; None where the system does not record it.

    On Linux getrusage is read only where /proc states no peak: its number is at least the memory of the process that
    started this one, such as a notebook.
    """
    if peak := status_bytes("VmHWM"):
        return peak
    try:
        import resource
    except ImportError:  # Windows
        return None
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(largest) * (1 if sys.platform == "darwin" else 1024)  # kilobytes on Linux, bytes on macOS


def largest_of_ranks(
    own: dict[str, float], *, patience_seconds: float = _PATIENCE_SECONDS
) -> tuple[dict[str, float], Notice | None]:
    """Return the maximum of each figure over all ranks; if a rank did not answer, this rank's figures and a notice.

    Every rank calls it with the same keys. The exchange has a group of its own, on the CPU: ranks may use the default
    group in a different order (NeMo 2.7's ProgressPrinter gathers its timers on rank 0 alone), and an NCCL collective
    that times out ends its process.
    """
    import torch
    import torch.distributed as distributed

    if not own or not distributed.is_available() or not distributed.is_initialized():
        return own, None
    figures = torch.tensor(list(own.values()), dtype=torch.float64, device="cpu")
    try:
        group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=patience_seconds))
        distributed.all_reduce(figures, op=distributed.ReduceOp.MAX, group=group)
        distributed.destroy_process_group(group)
    except RuntimeError as error:  # torch.distributed's errors derive from it: a time-out, a peer that is gone, no gloo
        lines = str(error).splitlines() or [type(error).__name__]
        return own, Notice("memory_of_one_rank", "memory", why=lines[0])
    return dict(zip(own, figures.tolist(), strict=True)), None
