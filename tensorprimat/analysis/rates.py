"""The rate in which two results can be compared, and the remedy where there is none."""

from __future__ import annotations

from collections.abc import Sequence

from tensorprimat.core import settings
from tensorprimat.core.identity import BY_KEY
from tensorprimat.core.result import Result

NORMALISED_BY: dict[str, tuple[str, ...]] = {
    "tokens_per_second_per_gpu": (),
    "tokens_per_second": ("num_gpus",),
    "samples_per_second_per_gpu": ("sequence_length",),
    "samples_per_second": ("sequence_length", "num_gpus"),
    "steps_per_second": ("sequence_length", "num_gpus", "global_batch_size"),
}
"""Rates by which sides can be compared, best first → the fields that both sides must state, with equal values."""
TIME_TO_TRAIN = "time_to_train"
RATE_FLAGS = {"shape": "--shape"} | {
    name: settings.flag(name) for name in ("sequence_length", "num_gpus", "global_batch_size")
}


def common_metric(results: Sequence[Result]) -> str | None:
    """Return the best rate that all results have and that is normalised by equal, stated settings; None without one."""
    for name, fields in NORMALISED_BY.items():
        if all(rate_of(result, name) for result in results) and all(_stated_equal(results, key) for key in fields):
            return name
    return None


def metric_for(pair: Sequence[Result]) -> tuple[str | None, str | None]:
    """Return the rate by which two results can be compared, and None; else None, and the remedy if both have a rate."""
    if (metric := common_metric(pair)) is not None:
        return metric, None
    if not all(any(rate_of(result, name) for name in NORMALISED_BY) for result in pair):
        return None, None
    missing = next(
        (key for key in ("num_gpus", "sequence_length", "global_batch_size") if not _stated_by_all(pair, key)), None
    )
    if missing is None and _stated_equal(pair, "num_gpus"):
        return None, "Comparable with the same global batch on both sides, or with tokens/s/GPU of both."
    if missing is None:
        return None, "Comparable on the same number of GPUs, or with tokens/s/GPU of both."
    return None, f"Comparable once both state {_FACTS[missing]}: {RATE_FLAGS[missing]}."


_FACTS = {
    "num_gpus": "the number of GPUs", "sequence_length": "the sequence length", "global_batch_size": "the global batch",
}  # fmt: skip


def rate_of(result: Result, metric: str) -> float | None:
    """Return a positive rate of a result, or None; steps/s also from the mean step time of an old file."""
    metrics = result.performance_metrics
    value = getattr(metrics, metric)
    if value is None and metric == "steps_per_second" and metrics.avg_step_time_seconds:
        value = 1 / metrics.avg_step_time_seconds
    return value if value and value > 0 else None


def _stated_by_all(pair: Sequence[Result], key: str) -> bool:
    return all(BY_KEY[key].read(result) is not None for result in pair)


def _stated_equal(pair: Sequence[Result], key: str) -> bool:
    return _stated_by_all(pair, key) and len({BY_KEY[key].read(result) for result in pair}) == 1
