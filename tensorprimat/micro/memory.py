"""Memory of a process that times one cell: its peak, the free memory, and a limit on its use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tensorprimat.core.errors import UsageError
from tensorprimat.core.quantities import as_stated, size
from tensorprimat.core.units import GB
from tensorprimat.engines.memory import host_peak_bytes, status_bytes
from tensorprimat.machine.host_memory import available_bytes

_CLEAR_PEAK = Path("/proc/self/clear_refs")  # proc(5): writing 5 sets the peak of resident memory to its present value
HEADROOM = 0.95  # share of the free memory on a CPU: the allocator must fail before the system swaps or kills


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
