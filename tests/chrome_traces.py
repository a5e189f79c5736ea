"""Traces in the format of PyTorch's profiler, made of known work, for tests of the ledger."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

HOST, FORWARD, BACKWARD = 100, 1, 2


class ChromeTrace:
    """A trace whose events are added one by one. Times are in microseconds."""

    def __init__(self, device: str = "NVIDIA H100 80GB HBM3", **facts: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.document = {"deviceProperties": [{"id": 0, "name": device}], "traceEvents": self.events, **facts}
        self.correlation = 0

    def host(self, name: str, start: float, end: float, *, category: str = "cpu_op", thread: int = FORWARD,
             **args: Any) -> None:  # fmt: skip
        """Add an operator, a call or a range of the host."""
        self.events.append({"ph": "X", "cat": category, "name": name, "pid": HOST, "tid": thread, "ts": start,
                            "dur": end - start, "args": args})  # fmt: skip

    def mark(self, number: int, start: float, end: float) -> None:
        """Add the mark of a step."""
        self.host(f"ProfilerStep#{number}", start, end, category="user_annotation")

    def kernel(self, name: str, start: float, end: float, *, launch: float | None = None, stream: int = 7,
               category: str = "kernel", thread: int = FORWARD, lost: bool = False, grid: int = 1,
               call: str = "cudaLaunchKernel") -> None:  # fmt: skip
        """Add a kernel and the call that launched it, by default right before it."""
        self.correlation += 1
        at = start - 5 if launch is None else launch
        self.host(call, at, at + 1, category="cuda_runtime", thread=thread, correlation=self.correlation)
        if not lost:
            args = {"device": 0, "stream": stream, "correlation": self.correlation, "grid": [grid, 1, 1]}
            self.events.append({"ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": start,
                                "dur": end - start, "args": args})  # fmt: skip

    def under(self, operator: str, name: str, start: float, end: float, **more: Any) -> None:
        """Add an operator that launches one kernel. more: arguments of the operator, by the names of the format."""
        thread = more.pop("thread", FORWARD)
        self.host(operator, start - 6, start - 1, thread=thread, **more)
        self.kernel(name, start, end, thread=thread)

    def write(self, path: Path, *, cut: int | None = None) -> Path:
        """Write the trace and return its path. cut: bytes of JSON that are written."""
        text = json.dumps(self.document).encode()[:cut]
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        return path


GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
ADAM = "void multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<c10::BFloat16, 4>>()"


def training(steps: int = 3, *, product: float = 500, extra: dict[str, float] | None = None, marked: bool = True,
             batches: int = 1, layers: int = 4) -> ChromeTrace:  # fmt: skip
    """Return steps of a training: layers of product and attention, forward and backward, and an optimizer.

    product: microseconds of each; extra: kernels of other names, with their microseconds, once a step before the
    optimizer; batches: micro-batches of a step. Each kernel follows 2 µs after the last one.
    """
    made = ChromeTrace()
    now = 100.0
    for number in range(steps):
        now += 20
        began = now - 15

        def run(operator: str, name: str, duration: float, longer: int = number) -> None:
            nonlocal now
            now += 2
            made.under(operator, name, now, now + duration + longer)
            now += duration + longer

        for _ in range(batches):
            for _ in range(layers):
                run("aten::mm", GEMM, product)
                run("aten::_scaled_dot_product_flash_attention", "flash_fwd_kernel", 100)
            for _ in range(layers):
                run("aten::_scaled_dot_product_flash_attention_backward", "flash_bwd_dq_dk_dv_kernel", 250)
                run("MmBackward0", GEMM.replace("TNT", "NNT"), product)
                run("MmBackward0", GEMM.replace("TNT", "NTT"), product)
        for name, duration in (extra or {}).items():
            run("aten::other", name, duration)
        run("aten::_fused_adamw_", ADAM, 200)
        if marked:
            made.mark(number, began, now + 1)
    return made
