"""The share of device memory in use, and an estimate of the batch that would still fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tensorprimat.analysis import formulas, inputs
from tensorprimat.core import settings
from tensorprimat.core.figures import Figure, Input, derive, missing, unknown
from tensorprimat.core.quantities import counted, gigabytes
from tensorprimat.core.result import Result, TrainingConfig
from tensorprimat.core.units import GB, NUMBER_BYTES
from tensorprimat.facts.catalogue import Gpu
from tensorprimat.models import presets

ROOMY, TIGHT = 0.50, 0.95  # below: memory is unused; above: fragmentation or a longer sequence may exhaust it
MIXED_PRECISION_ADAM_BYTES = 16  # of one parameter: Rajbhandari et al., ZeRO, 2020, section 3.1
DTYPE_BYTES = {
    name: NUMBER_BYTES[precision]
    for dtype, precision in settings.PRECISION_OF_DTYPE.items()
    for name in (dtype, precision)
}
SHARDED_BY_REPLICAS = {
    **dict.fromkeys(("ddp", "single"), "nothing"),
    **dict.fromkeys(("zero-1", "zero1", "distributed optimizer"), "optimizer"),
    **dict.fromkeys(("zero-2", "zero2"), "optimizer and gradients"),
    **dict.fromkeys(("fsdp", "fsdp2", "zero-3", "zero3"), "everything"),
    "fsdp, weights kept after forward": "everything",  # the kept copies are not part of the state
}
"""Strategy → which part of the state the data-parallel replicas share out among them."""


def utilization(result: Result, gpu: Gpu | None) -> Figure:
    """Return the peak memory over device memory, with advice where it is nearly empty or nearly full."""
    metric, advice = _of_memory("memory_utilization", result, gpu, formulas.calculate_memory_utilization), None
    if metric.value is not None and metric.value < ROOMY:
        advice = "more than half is unused; training with a larger micro batch may be faster"
    elif metric.value is not None and metric.value > TIGHT:
        advice = "nearly full; fragmentation or a longer sequence may exhaust it"
    return replace(metric, remark="; ".join(filter(None, (metric.remark, advice)))) if advice else metric


def headroom(result: Result, gpu: Gpu | None) -> Figure:
    """Return the device memory that the peak left free."""
    return _of_memory("memory_headroom_gb", result, gpu, lambda used, total: total - used)


def _of_memory(name: str, result: Result, gpu: Gpu | None, compute: Callable[[float, float], float]) -> Figure:
    """Return a metric of the peak memory and the device memory."""
    used, total = inputs.memory_used(result), inputs.memory_total(result, gpu)
    if because := _more_than_there_is(used, total):
        return unknown(name, because, (used, total))
    return derive(name, (used, total), compute, remark=used.source)


def _more_than_there_is(used: Input, total: Input) -> str | None:
    """Return the reason why a peak and the device's memory contradict each other; None if they do not."""
    if not (isinstance(used.value, int | float) and isinstance(total.value, int | float)) or used.value <= total.value:
        return None
    return (
        f"the peak of {gigabytes(used.value)} is above the device's {gigabytes(total.value)} ({total.source}); check "
        "--gpu, and the unit of the log's memory"
    )


def largest_micro_batch(result: Result, gpu: Gpu | None) -> Figure:
    """Return the largest micro batch that fits into TIGHT of the memory, and at least the one that ran, if weights,
    gradients and optimizer state stay constant and the rest of the peak grows in proportion to the micro batch."""
    name = "largest_micro_batch_size"
    used, total, state = inputs.memory_used(result), inputs.memory_total(result, gpu), fixed_state(result)
    micro_batch = Input(
        name="micro batch size",
        value=result.training_config.micro_batch_size,
        unit="sequences",
        source="the run's configuration",
        because="the micro batch size is not stated",
    )
    rests_on = (used, total, state, micro_batch)
    if because := _more_than_there_is(used, total):
        return unknown(name, because, rests_on)
    peak, fixed = used.value, state.value
    if isinstance(peak, int | float) and isinstance(fixed, int | float) and peak <= fixed:
        because = f"the peak of {gigabytes(peak)} is below the estimated fixed state of {gigabytes(fixed)}"
        return unknown(name, because, rests_on)
    return derive(
        name,
        rests_on,
        lambda used, total, state, size: max(size, math.floor((TIGHT * total - state) / ((used - state) / size))),
        remark="estimate; " + str(state.source),
    )


def fixed_state(result: Result) -> Input:
    """Return the estimated weights, gradients and optimizer state on one GPU in 10**9 bytes, at any batch size."""
    name, config = "fixed state", result.training_config
    parameters = presets.parameters(result.model.shape) if result.model.shape else result.model.parameters
    if not parameters:
        return missing(name, "the number of parameters is not known", unit="GB")
    has_experts = result.model.shape is not None and result.model.shape.experts is not None
    unstated = 2 if has_experts and config.num_gpus != 1 else 1  # nothing says that GPUs hold the same experts
    if (config.expert_model_parallel_size or unstated) > 1:
        return missing(name, "the share of the experts that one GPU holds is not known", unit="GB")
    sharing = _sharing(config)
    if isinstance(sharing, str):
        return missing(name, sharing, unit="GB")
    model_parallel, weight_shards, gradient_shards, optimizer_shards = sharing
    weights, gradients, optimizer, rule = _bytes_per_parameter(config)
    per_parameter = weights / weight_shards + gradients / gradient_shards + optimizer / optimizer_shards
    return Input(
        name=name,
        value=parameters / model_parallel * per_parameter / GB,
        unit="GB",
        source=f"weights, gradients and optimizer state: {rule} before they are divided among GPUs",
    )


def _bytes_per_parameter(config: TrainingConfig) -> tuple[float, float, float, str]:
    """Return the bytes per parameter of weights, gradients and optimizer state, and the rule that they follow.

    Optimizer state is two moments, and master weights if the moments have a wider type than the weights.
    """
    weight = DTYPE_BYTES.get((config.parameter_dtype or "").lower())
    moment = DTYPE_BYTES.get((config.optimizer_dtype or "").lower())
    if weight is None or moment is None:
        return 2, 2, 12, f"{MIXED_PRECISION_ADAM_BYTES} bytes per parameter assumed (mixed-precision Adam)"
    optimizer = 2 * moment + (moment if moment > weight else 0)
    return weight, weight, optimizer, f"{2 * weight + optimizer} bytes per parameter by the dtypes"


def _sharing(config: TrainingConfig) -> tuple[int, int, int, int] | str:
    """Return TP × PP, which divides the parameters, and by how much weights, gradients and optimizer state are divided
    further among the replicas; or the reason why these are unknown.
    """
    of_replica = settings.replica_devices(config)
    if config.num_gpus == of_replica == 1:
        return 1, 1, 1, 1
    tensor, pipeline = config.tensor_model_parallel_size, config.pipeline_model_parallel_size
    if not (config.num_gpus and tensor and pipeline):
        return "the number of GPUs and the parallel sizes are not all stated"
    replicas, rest = divmod(config.num_gpus, of_replica)
    if rest:
        return f"{counted(config.num_gpus, 'GPU')} cannot be divided into replicas of {of_replica} GPUs (TP × PP × CP)"
    if replicas == 1:
        return tensor * pipeline, 1, 1, 1
    shared = SHARDED_BY_REPLICAS.get((config.strategy or "").lower())
    if shared is None:
        return "the sharding of the data-parallel replicas is not stated (strategy)"
    return (
        tensor * pipeline,
        replicas if shared == "everything" else 1,
        replicas if shared in ("everything", "optimizer and gradients") else 1,
        replicas if shared != "nothing" else 1,
    )
