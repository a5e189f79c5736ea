"""Rates of matrix products on one device, from random data: zeros would draw less power and raise the clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from tensorprimat.machine.platform import multiply_float32_in

LEAST_SECONDS = 0.05  # target for one timed interval: far above any clock's resolution and a kernel's launch
MATMUL_REPEATS = 5
FP8_SCALE = 1.0  # the operands are standard normal values, which fit into E4M3 (largest value 240 or 448) unscaled
TORCH_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished everything queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def intervals(work: Callable[[], object], device: torch.device, *, repeats: int = MATMUL_REPEATS) -> list[float]:
    """Return the mean seconds of one call in each of `repeats` intervals, after a warm-up.

    An interval has as many calls as fit into about LEAST_SECONDS, at least one.
    """

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


def matmul_rate(
    size: int, precision: str, device: torch.device, *, repeats: int = MATMUL_REPEATS
) -> tuple[float, float]:
    """Return the best and median FLOP/s of a product of two square matrices.

    fp8: E4M3 operands with one scale each and a BF16 result, as in the backward pass of FP8 training with tensorwise
    scales. The forward pass of such training uses `use_fast_accum` (torchao) and can be faster than this product.
    """
    before = torch.get_float32_matmul_precision()
    multiply_float32_in(precision)
    try:
        work_once = _fp8_product(size, device) if precision == "fp8" else _product(size, precision, device)
        seconds = intervals(work_once, device, repeats=repeats)
    finally:
        torch.set_float32_matmul_precision(before)
    work = 2 * size**3
    return work / min(seconds), work / statistics.median(seconds)


def _product(size: int, precision: str, device: torch.device) -> Callable[[], object]:
    left, right = (torch.randn(size, size, device=device, dtype=TORCH_DTYPES[precision]) for _ in range(2))
    product = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=product)


def _fp8_product(size: int, device: torch.device) -> Callable[[], object]:
    kind = fp8_type(device)
    left, right = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
    scale = torch.full((), FP8_SCALE, device=device)
    return lambda: torch._scaled_mm(left, right.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)


def fp8_type(device: torch.device) -> torch.dtype:
    """Return the E4M3 type of the device's matrix units; that of the MI300 series has no negative zero."""
    name = "" if device.type == "cpu" else str(getattr(torch.cuda.get_device_properties(device), "gcnArchName", ""))
    return torch.float8_e4m3fnuz if name.startswith("gfx94") else torch.float8_e4m3fn
