#!/usr/bin/env python3
"""Command line of `tprimat metrics` (every derived figure of one result), and its functions for scripts.

python3 enhanced_metrics.py output/benchmark_cuda_llama.json

from enhanced_metrics import calculate_flops_per_token, calculate_mfu

calculate_mfu(14_000, calculate_flops_per_token("llama", 8192), peak_tflops=989.4)
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tensorprimat.analysis.formulas import (
    calculate_break_even_price,
    calculate_cost,
    calculate_cost_per_trillion_tokens,
    calculate_gpu_hours,
    calculate_joules_per_token,
    calculate_memory_utilization,
    calculate_mfu,
    calculate_tflops,
    calculate_time_to_train,
    calculate_tokens_per_dollar,
    calculate_tokens_per_watt_hour,
)
from tensorprimat.cli import main

if TYPE_CHECKING:
    from os import PathLike
    from typing import Any

    from tensorprimat.core.result import Result
    from tensorprimat.facts.catalogue import Gpu

__all__ = [
    "calculate_break_even_price",
    "calculate_cost",
    "calculate_cost_per_trillion_tokens",
    "calculate_enhanced_metrics",
    "calculate_flops_per_token",
    "calculate_gpu_hours",
    "calculate_joules_per_token",
    "calculate_memory_utilization",
    "calculate_mfu",
    "calculate_tflops",
    "calculate_time_to_train",
    "calculate_tokens_per_dollar",
    "calculate_tokens_per_watt_hour",
    "get_gpu_specs",
]


def calculate_flops_per_token(
    model: str = "llama", sequence_length: int = 8192, *, preset: str = "full", convention: str = "megatron"
) -> int:
    """Return the training FLOPs of one token of a known model.

    Raises UsageError for an unknown model, preset or convention, and for a sequence length below 1.
    """
    from tensorprimat.core.errors import UsageError
    from tensorprimat.models import flops, presets

    if sequence_length < 1:
        raise UsageError(f"sequence length of {sequence_length}: must be at least 1")
    return flops.per_token(presets.find_preset(model, preset).shape, sequence_length, convention)


def get_gpu_specs(device_name: str) -> Gpu | None:
    """Return the catalogue's record of a device, by the name that the driver prints; None for an unknown one."""
    from tensorprimat.facts.catalogue import find_gpu

    return find_gpu(device_name)


def calculate_enhanced_metrics(
    result: Result | str | PathLike[str],
    *,
    convention: str = "megatron",
    usd_per_gpu_hour: float | None = None,
    budget_tokens: float = 1e12,
) -> dict[str, Any]:
    """Return every derived figure of a result or of its file, by name; None where it cannot be known.

    `tprimat metrics` and enhanced_metrics.json also give the inputs of each figure, and the reason why one is unknown.
    Raises tensorprimat.core.errors.InputError for a file that is no result, and UsageError for an unknown convention
    and a price or a budget that is not above 0.
    """
    from pathlib import Path

    from tensorprimat.analysis.metrics import MetricChoices, calculate_metrics
    from tensorprimat.core.result import Result
    from tensorprimat.storage.store import load

    known = result if isinstance(result, Result) else load(Path(result))
    prices = {}
    if usd_per_gpu_hour is not None:
        prices[(known.gpu_info.device_name if known.platform != "cpu" else "cpu") or ""] = usd_per_gpu_hour
    metrics = calculate_metrics(known, MetricChoices(convention=convention, prices=prices, budget_tokens=budget_tokens))
    return {name: metric.value for name, metric in metrics.items()}


if __name__ == "__main__":
    sys.exit(main(["metrics", *sys.argv[1:]], program="enhanced_metrics.py"))
