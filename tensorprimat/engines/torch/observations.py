"""Operations that ran in one training step, by the names of torch's profiler, and the settings that they prove.

The plan of a run (torch.compile, the attention kernel, recomputation, fused operations) can differ from the run:
torch.compile falls back to eager code where a compiler error is suppressed or its limit of recompilations is reached, a
compiled graph keeps the attention kernel that was chosen when it was traced, and a library's option can switch a kernel
off. The names of the operations of one warm-up step show what ran, on every device and with compiled code too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from tensorprimat.core.notices import Notice
from tensorprimat.core.result import TrainingConfig
from tensorprimat.core.vocabulary import Recompute

STEP = 1
"""Index of the warm-up step whose operations are recorded: the second, because the first one compiles."""

_FUSED_ATTENTION = {
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
    "flash_attn::_flash_attn_forward": "flash",  # the package flash-attn
    "flash_attn_3::fwd": "flash 3",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
}
_PLAIN_ATTENTION = "aten::_scaled_dot_product_attention_math"
_BATCHED_PRODUCT = "aten::bmm"
_BACKWARD = {f"{name}_backward" for name in _FUSED_ATTENTION} | {
    "flash_attn::_flash_attn_backward",
    "flash_attn_3::bwd",
}
_COMPILED_GRAPH = "CompiledFunction"
"""A compiled graph with a backward pass: those of the layers, but not of the loss and the optimizer."""
_FP8_PRODUCTS = ("scaled_mm", "mx_mm")
"""Parts of the names of matrix products in FP8: torch's own, and torchao's in MXFP8."""
_PLAIN_PRODUCT = "aten::mm"
_FUSED_KERNELS = {"RMS norm": "aten::_fused_rms_norm", "AdamW": "aten::_fused_adamw_"}
"""Name in fused_kernels of a result → the operation that runs for it outside compiled graphs."""
_BY_COMPILING = ("RoPE", "SwiGLU", "GeGLU")


@contextmanager
def recording(operations: Counter[str]) -> Iterator[None]:
    """Count the operations of this process by name, forward and backward; without torch's profiler count none.

    torch.autograd's profiler prints nothing and does not wait for the device; torch.profiler prints two lines each
    time. The raw records are read, because torch's own reader fails on a thread whose records begin in an operation.
    """
    try:
        from torch.autograd import ProfilerConfig, ProfilerState, _disable_profiler_legacy, _enable_profiler_legacy

        switches = [False] * 5  # shapes, memory, stacks, FLOPs, modules
        _enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, *switches, torch._C._profiler._ExperimentalConfig()))
    except (ImportError, AttributeError, TypeError, RuntimeError):  # a private API, or another profiler already runs
        yield
        return
    try:
        yield
    finally:
        operations.update(name for thread in _disable_profiler_legacy() for name in _begun(thread))


def _begun(records: Iterable[Any]) -> Iterator[str]:
    """Yield the name of each operation that a thread began, once where a wrapper calls another of the same name."""
    before = None
    for record in records:
        named = (record.kind(), record.name())
        if named[0] == "push" and named != before:
            yield named[1]
        before = named


def observed_settings(
    operations: Mapping[str, int], planned: TrainingConfig, *, layers: int
) -> tuple[dict[str, Any], list[Notice]]:
    """Return the fields of TrainingConfig that ran differently from the plan, with the values that ran, and notices.

    operations: number of calls of each operation, by name, in the forward and backward pass of one micro-batch and in
    the optimizer step; empty if none were recorded. layers: number of decoder layers.
    """
    if not operations:
        return {}, []
    ran: dict[str, Any] = {}
    notices = []
    graphs = operations.get(_COMPILED_GRAPH, 0)
    compiled = bool(planned.compile) and graphs >= layers
    if planned.compile and graphs < layers:
        ran["compile"] = False
        notices.append(Notice("layers_uncompiled", "compile", uncompiled=layers - graphs, layers=layers))
    elif compiled and graphs > layers:
        notices.append(Notice("graphs_broken", "compile", layers=layers, graphs=graphs))
    kernel = _kernel(operations, planned.attention_kernel, layers=layers)
    if kernel != planned.attention_kernel:
        ran["attention_kernel"] = kernel
        notices.append(Notice("other_kernel", "attention_kernel", planned=planned.attention_kernel, ran=kernel))
    if planned.precision == "fp8" and not _multiplies_in_fp8(operations, layers):
        ran |= {"precision": "bf16", "compute_dtype": "bfloat16", "fp8_recipe": None}
        notices.append(Notice("fp8_unused", "precision"))
    recompute = _recompute(operations, planned.recompute)
    if recompute is not None and recompute != planned.recompute:
        ran["recompute"] = recompute
        notices.append(Notice("other_recompute", "recompute", planned=planned.recompute, ran=recompute))
    lost = _lost(operations, planned.fused_kernels or "", compiled=compiled)
    if lost:
        kept = [name for name in (planned.fused_kernels or "").split(", ") if name not in lost]
        ran["fused_kernels"] = ", ".join(kept)
        if not ("compile" in ran and set(lost) <= set(_BY_COMPILING)):  # the notice about compile covers these
            notices.append(Notice("kernels_unfused", "fused_kernels", kernels=", ".join(lost)))
    return ran, notices


def _kernel(operations: Mapping[str, int], planned: str | None, *, layers: int) -> str | None:
    """Return the attention kernels that ran; the planned one if no operation shows another.

    A kernel of FlexAttention is generated and has no operation's name. SDPA's math kernel is one operation in eager
    code, and batched matrix products in a compiled graph.
    """
    if planned is None or "flex" in planned:
        return planned
    ran = dict.fromkeys(kernel for name, kernel in _FUSED_ATTENTION.items() if operations.get(name))
    if operations.get(_PLAIN_ATTENTION) or (not ran and operations.get(_BATCHED_PRODUCT, 0) >= 2 * layers):
        ran["math"] = None
    return planned if not ran or set(ran) == set(planned.split(" and ")) else " and ".join(ran)


def _multiplies_in_fp8(operations: Mapping[str, int], layers: int) -> bool:
    """Return False if the layers ran matrix products, but none in FP8; a layer has at least four matrices."""
    in_fp8 = any(part in name for name in operations for part in _FP8_PRODUCTS)
    return in_fp8 or operations.get(_PLAIN_PRODUCT, 0) < 4 * layers


def _recompute(operations: Mapping[str, int], planned: Recompute | None) -> Recompute | None:
    """Return the recomputation that attention's calls in forward and backward show; the planned one if they agree.

    None where backward has no operation of its own (math kernel, FlexAttention), or where it was not recorded.
    """
    forward = sum(operations.get(name, 0) for name in _FUSED_ATTENTION)
    backward = sum(operations.get(name, 0) for name in _BACKWARD)
    if not backward or not backward <= forward <= 2 * backward:
        return None
    again = planned and planned.operations
    if again is not None and forward == backward * (2 if Recompute.ATTENTION in again else 1):
        return planned
    if forward == backward:
        return Recompute.NONE
    return Recompute.ALL_LAYERS if forward == 2 * backward else Recompute.SECOND_LAYERS


def _lost(operations: Mapping[str, int], planned: str, *, compiled: bool) -> list[str]:
    """Return the planned fused kernels that ran as several kernels."""
    names = planned.split(", ")
    separate = [name for name, operation in _FUSED_KERNELS.items() if name in names and not operations.get(operation)]
    if compiled:
        return [name for name in separate if name == "AdamW"]  # a compiled graph fuses its norms itself
    return [*separate, *(name for name in _BY_COMPILING if name in names)]
