"""The rate in which two results can be compared, and the remedy where there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tensorprimat.core import settings
from tensorprimat.core.identity import BY_KEY
from tensorprimat.core.result import Result, Run

NORMALISED_BY: dict[str, tuple[str, ...]] = {
    "tokens_per_second_per_gpu": (),
    "tokens_per_second": ("num_gpus",),
    "samples_per_second_per_gpu": ("sequence_length",),
    "samples_per_second": ("sequence_length", "num_gpus"),
    "steps_per_second": ("sequence_length", "num_gpus", "global_batch_size"),
}
"""Rates by which sides can be compared, best first → the fields that both sides must state, with equal values."""
STEP_TIMES = "steps_per_second"
TIME_TO_TRAIN = "time_to_train"


def common_metric(results: Sequence[Result]) -> str | None:
    """Return the best rate that all results have and that is normalised by equal, stated settings; None without one.

    Files of earlier toolkits are compared by their step times even without these settings (see `unstated_by_all`).
    """
    for name, fields in NORMALISED_BY.items():
        unstated = unstated_by_all(results) if name == STEP_TIMES else ()
        equal = all(key in unstated or _stated_equal(results, key) for key in fields)
        if equal and all(rate_of(result, name) for result in results):
            return name
    return None


def unstated_by_all(results: Sequence[Result]) -> tuple[str, ...]:
    """Return the settings of a step's work that files of earlier toolkits all leave open; () for other results.

    These files have no place for some settings: their step times are compared under the condition that the settings
    match. In place of the number of GPUs they state that of the machine, which must be equal.
    """
    if not of_earlier_toolkits(results):
        return ()
    open_ = [key for key in NORMALISED_BY[STEP_TIMES] if all(BY_KEY[key].read(result) is None for result in results)]
    one_count = len({result.gpu_info.device_count for result in results}) == 1
    return tuple(key for key in open_ if key != "num_gpus" or one_count)


def of_earlier_toolkits(results: Sequence[Result]) -> bool:
    """Return True if all are files with step times that no version of this tool wrote."""
    return all(
        result.provenance.tool_version is None and result.performance_metrics.basis == "step_times"
        for result in results
    )


def metric_for(pair: Sequence[Result]) -> tuple[str | None, str | None]:
    """Return the rate by which two results can be compared, and None; else None, and the remedy if both have a rate."""
    if (metric := common_metric(pair)) is not None:
        return metric, None
    if not all(any(rate_of(result, name) for name in NORMALISED_BY) for result in pair):
        return None, None
    missing = next((key for key in WORK_OF_STEP if not _stated_by_all(pair, key)), None)
    if missing is None and _stated_equal(pair, "num_gpus"):
        return None, "Comparable with the same global batch on both sides, or with tokens/s/GPU of both."
    if missing is None:
        return None, "Comparable on the same number of GPUs, or with tokens/s/GPU of both."
    return None, f"Comparable once both state the {WORK_OF_STEP[missing]}: {settings.flag(missing)}."


WORK_OF_STEP = {
    "num_gpus": "number of GPUs", "sequence_length": "sequence length", "global_batch_size": "global batch",
}  # fmt: skip
"""Settings that the step time depends on, by name."""


def rate_of(of: Result | Run, metric: str) -> float | None:
    """Return a positive figure of a result or a run, or None; steps/s also from the mean step time."""
    figures = of if isinstance(of, Run) else of.performance_metrics
    value: float | None = getattr(figures, metric, None)
    if value is None and metric == "steps_per_second" and figures.avg_step_time_seconds:
        value = 1 / figures.avg_step_time_seconds
    return value if value and 0 < value < math.inf else None


def _stated_by_all(pair: Sequence[Result], key: str) -> bool:
    return all(BY_KEY[key].read(result) is not None for result in pair)


def _stated_equal(pair: Sequence[Result], key: str) -> bool:
    return _stated_by_all(pair, key) and len({BY_KEY[key].read(result) for result in pair}) == 1
