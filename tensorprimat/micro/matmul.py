"""Rates of matrix products on one device: random data (zeros draw less power and clock higher), synchronised."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from tensorprimat.machine.platform import multiply_float32_in

LEAST_SECONDS = 0.05  # of one timed interval: far above any clock's resolution and a kernel's launch
REPEATS = 5
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def synchronise(device: torch.device) -> None:
    """Wait until the device has done everything queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def intervals(work: Callable[[], object], device: torch.device, *, repeats: int = REPEATS) -> list[float]:
    """Seconds of one call, over intervals of at least LEAST_SECONDS each, after a warm-up."""

    def timed(calls: int) -> float:
        synchronise(device)
        start = time.perf_counter()
        for _ in range(calls):
            work()
        synchronise(device)
        return (time.perf_counter() - start) / calls

    work()
    once = timed(1)
    calls = max(1, round(LEAST_SECONDS / max(once, 1e-9)))
    return [timed(calls) for _ in range(repeats)]


def rate(size: int, precision: str, device: torch.device, *, repeats: int = REPEATS) -> tuple[float, float]:
    """Best and median FLOP/s of a product of two square matrices."""
    before = torch.get_float32_matmul_precision()
    multiply_float32_in(precision)
    try:
        left, right = (torch.randn(size, size, device=device, dtype=DTYPES[precision]) for _ in range(2))
        product = torch.empty_like(left)
        seconds = intervals(lambda: torch.mm(left, right, out=product), device, repeats=repeats)
    finally:
        torch.set_float32_matmul_precision(before)
    work = 2 * size**3
    return work / min(seconds), work / statistics.median(seconds)
