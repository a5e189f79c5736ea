"""All-reduce, all-gather and reduce-scatter over message sizes: gloo on a CPU, NCCL (which is RCCL on ROCm) on GPUs.

They are measured if torchrun started several processes; every rank calls `measure_collectives` within `group`. Bus
bandwidth is the rate at which each link carries bytes, as in NVIDIA's nccl-tests (doc/PERFORMANCE.md there).
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

import torch
import torch.distributed as dist

from tensorprimat.engines.launchers import connected_processes
from tensorprimat.measure import matmul
from tensorprimat.storage.preflight import Collective

COLLECTIVE_SIZES = {"cpu": (2**16, 2**20, 2**24), "cuda": (2**10, 2**16, 2**20, 2**24, 2**26, 2**28, 2**30)}
COLLECTIVE_REPEATS = 5
SMALL_BYTES, CALLS_OF_SMALL = 2**22, 20  # calls that are timed together: a small message takes less than a launch
TYPES = {"cpu": (torch.float32, torch.bfloat16), "cuda": (torch.bfloat16, torch.float32)}
"""Types in which all-reduce is timed, because trainings reduce gradients in both; other collectives use the first."""

# torch 2.13 renamed both, and warns of the old names.
_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter"]
Value = TypeVar("Value")
Work = tuple[Callable[[], object], Callable[[], object]]
"""The call that is timed, and the call that restores its input."""


@contextlib.contextmanager
def group(device: torch.device) -> Iterator[tuple[str | None, int]]:
    """Connect the processes that torchrun started. Yield the backend (None for a single process) and their number."""
    processes = connected_processes(os.environ)
    if processes < 2:
        yield None, 1
        return
    backend = "gloo" if device.type == "cpu" else "nccl"
    dist.init_process_group(backend, device_id=None if device.type == "cpu" else device)
    try:
        yield backend, processes
    finally:
        dist.destroy_process_group()


def gathered(own: Value, processes: int) -> list[Value]:
    """Return the value of every process, by rank."""
    everyones: list[Value | None] = [None] * processes
    dist.all_gather_object(everyones, own)
    return [one for one in everyones if one is not None]


def measure_collectives(device: torch.device, processes: int) -> list[Collective]:
    """Return every collective at every size; [] for a single process."""
    if processes == 1:
        return []
    return [
        _timed(kind, dtype, size, device, processes)
        for size in COLLECTIVE_SIZES[device.type]
        for kind in _KINDS
        for dtype in TYPES[device.type][: None if kind == "all_reduce" else 1]
    ]


def _all_reduce(size: int, dtype: torch.dtype, device: torch.device, _processes: int) -> Work:
    """Return an all-reduce that sums, as in training; a maximum of float32, for example, cannot use NVLink SHARP."""
    fresh = torch.randn(size // dtype.itemsize, device=device).to(dtype)
    values = fresh.clone()
    return lambda: dist.all_reduce(values, op=dist.ReduceOp.SUM), lambda: values.copy_(fresh)


def _all_gather(size: int, dtype: torch.dtype, device: torch.device, processes: int) -> Work:
    count = size // dtype.itemsize // processes
    whole = torch.empty(count * processes, device=device, dtype=dtype)
    part = torch.randn(count, device=device).to(dtype)
    return lambda: _GATHER(whole, part), lambda: None


def _reduce_scatter(size: int, dtype: torch.dtype, device: torch.device, processes: int) -> Work:
    count = size // dtype.itemsize // processes
    whole = torch.randn(count * processes, device=device).to(dtype)
    part = torch.empty(count, device=device, dtype=dtype)
    return lambda: _SCATTER(part, whole), lambda: None


_KINDS: dict[CollectiveKind, tuple[Callable[[int, torch.dtype, torch.device, int], Work], int]] = {
    "all_reduce": (_all_reduce, 2),
    "all_gather": (_all_gather, 1),
    "reduce_scatter": (_reduce_scatter, 1),
}
"""Collective → its function, and the factor of its bus bandwidth, which is multiplied by (n−1)/n for n processes."""


def _timed(kind: CollectiveKind, dtype: torch.dtype, size: int, device: torch.device, processes: int) -> Collective:
    prepare, passes = _KINDS[kind]
    work, refill = prepare(size, dtype, device, processes)
    work()
    calls = CALLS_OF_SMALL if size < SMALL_BYTES else 1
    seconds = []
    for _ in range(COLLECTIVE_REPEATS):
        refill()  # sums grow with every call
        dist.barrier()
        matmul.synchronise(device)
        start = time.perf_counter()
        for _ in range(calls):
            work()
        matmul.synchronise(device)
        slowest = torch.tensor([(time.perf_counter() - start) / calls], dtype=torch.float64, device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        seconds.append(float(slowest))
    median = statistics.median(seconds)
    return Collective(
        kind=kind,
        dtype=str(dtype).removeprefix("torch."),
        size_bytes=size,
        seconds=median,
        bus_bytes_per_second=size / median * passes * (processes - 1) / processes,
    )
