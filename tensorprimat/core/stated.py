"""Facts that the user states by flag, laid over what a log or a result file says; every conflict is a warning."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from tensorprimat.core import models
from tensorprimat.core.devices import platform_of
from tensorprimat.core.records import GpuInfo, Model, Record, Result, TrainingConfig
from tensorprimat.core.steps import Steps
from tensorprimat.core.summary import summarise

_Record = TypeVar("_Record", bound=Record)

SAMPLES, SAMPLES_PER_GPU = "reported_samples_per_second", "reported_samples_per_second_per_gpu"

FLAGS = {
    "num_gpus": "--num-gpus",
    "global_batch_size": "--global-batch-size",
    "micro_batch_size": "--micro-batch-size",
    "sequence_length": "--sequence-length",
    "precision": "--precision",
    "warmup_steps": "--warmup",
}
"""Fields of Given that are fields of TrainingConfig, with the flag that says them."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the user said by flag; None means not said. It overrides the log, and a conflict is a warning."""

    model_name: str | None = None
    num_gpus: int | None = None
    global_batch_size: int | None = None
    micro_batch_size: int | None = None
    sequence_length: int | None = None
    precision: str | None = None
    gpu: str | None = None
    """Device name, as the hardware catalogue or a driver spells it."""
    warmup_steps: int | None = None

    def said(self) -> dict[str, Any]:
        """Only what was said, by field name."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}


def configuration_of(
    from_log: dict[str, Any], given: Given, warnings: list[str], assumed: dict[str, str]
) -> TrainingConfig:
    values = dict(from_log)
    for name, value in given.said().items():
        if name not in FLAGS:
            continue
        _override(values, name, value, FLAGS[name], warnings)
        assumed[name] = FLAGS[name]
    return _with_derived(believed(TrainingConfig, values, warnings))


def believed(record: type[_Record], said: dict[str, Any], warnings: list[str]) -> _Record:
    """The record of what a log says, without what no run can be: a batch of 10**100, from a line that was damaged."""
    try:
        return record(**said)
    except ValidationError as error:
        absurd = {str(found["loc"][0]) for found in error.errors()}
        warnings += [
            f"{name}: the log says {str(said[name])[:40]}, which cannot be; left out" for name in sorted(absurd)
        ]
        return record(**{name: value for name, value in said.items() if name not in absurd})


def _override(values: dict[str, Any], name: str, value: object, flag: str, warnings: list[str]) -> None:
    known = values.get(name)
    if known is not None and known != value:
        warnings.append(f"{name}: {flag} {value} is used, though the log says {known}")
    values[name] = value


def _with_derived(config: TrainingConfig) -> TrainingConfig:
    """What follows from the parallel sizes, where all of them are known."""
    tensor, pipeline = config.tensor_model_parallel_size, config.pipeline_model_parallel_size
    if not (config.num_gpus and tensor and pipeline):
        return config
    replica = tensor * pipeline * (config.context_parallel_size or 1)
    replicas = config.data_parallel_size or (config.num_gpus // replica if config.num_gpus % replica == 0 else None)
    micro, batch, accumulation = config.micro_batch_size, config.global_batch_size, config.gradient_accumulation_steps
    if accumulation is None and replicas and micro and batch and batch % (micro * replicas) == 0:
        accumulation = batch // (micro * replicas)
    return config.model_copy(
        update={"data_parallel_size": replicas, "gradient_accumulation_steps": accumulation},
    )


def device_of(
    from_log: dict[str, Any], config: TrainingConfig, given: Given, warnings: list[str], assumed: dict[str, str]
) -> GpuInfo:
    values = dict(from_log)
    if given.gpu:
        known = values.get("device_name")
        if known and known.casefold() != given.gpu.casefold():
            warnings.append(f"gpu_info: --gpu {given.gpu} is used, though the log says {known}")
        if known is None or known.casefold() != given.gpu.casefold():
            values = {"device_name": given.gpu}  # nothing else that the log says belongs to this device
        assumed["device_name"] = "--gpu"
    values.setdefault("device_count", config.num_gpus)
    return believed(GpuInfo, values, warnings)


def model_of(model: Model, given: Given, warnings: list[str], assumed: dict[str, str]) -> Model:
    preset = models.identify(model.shape) if model.shape else None
    known = model.name or (preset.model if preset else None)
    if given.model_name is not None:
        if known and not _same_name(known, given.model_name):
            warnings.append(f"model: --model-name {given.model_name} is used, though the log says {known}")
        assumed["model.name"] = "--model-name"
    return model.model_copy(
        update={
            "name": given.model_name or known,
            "preset": model.preset or (preset.name if preset else None),
            "parameters": model.parameters or (models.parameters(model.shape) if model.shape else None),
        }
    )


def _same_name(one: str, other: str) -> bool:
    """Whether one name is a longer spelling of the other: llama, llama3.1_8B-BF16-pretrain."""
    one, other = one.casefold(), other.casefold()
    return one in other or other in one


def with_work(steps: Steps, config: TrainingConfig, given: Given) -> Steps:
    """Samples and tokens of a step where rows carry the one and the sequence length gives the other; rates over all."""
    if not len(steps):
        return steps
    if config.num_gpus and steps.has(SAMPLES_PER_GPU) and (given.num_gpus or not steps.has(SAMPLES)):
        steps = steps.replace(**{SAMPLES: steps.column(SAMPLES_PER_GPU) * config.num_gpus})
    if given.global_batch_size and "samples" in steps.seen:
        steps = steps.replace(samples=float(given.global_batch_size))
    if "samples" in steps.seen and config.sequence_length and ("tokens" not in steps.seen or given.sequence_length):
        samples = steps.column("samples")
        steps = steps.replace(tokens=np.asarray(samples * config.sequence_length, np.float64))
    return steps


def conflicts_of_work(steps: Steps, config: TrainingConfig, given: Given) -> list[str]:
    """A log that counts the tokens of a step itself is believed; flags that make others of it are said."""
    if not (given.global_batch_size or given.sequence_length) or "tokens" not in steps.seen:
        return []
    counted = np.unique(steps.column("tokens")[np.isfinite(steps.column("tokens"))])
    product = (config.global_batch_size or 0) * (config.sequence_length or 0)
    if len(counted) != 1 or not product or counted[0] == product:
        return []
    return [
        f"tokens_per_step: the log counts {counted[0]:,.0f}, which is used, though --global-batch-size × "
        f"--sequence-length is {product:,}"
    ]


def amended(result: Result, given: Given, warnings: list[str]) -> Result:
    """A result record read again, with what the user said laid over it."""
    notes = [*result.warnings, *warnings]
    assumed = dict(result.provenance.assumed)
    config = configuration_of(result.training_config.model_dump(), given, notes, assumed)
    gpu_info = device_of(result.gpu_info.model_dump(), config, given, notes, assumed)
    return summarise(
        result.model_copy(
            update={
                "training_config": config,
                "gpu_info": gpu_info,
                "platform": platform_of(given.gpu) or result.platform,
                "model": model_of(result.model, given, notes, assumed),
                "provenance": result.provenance.model_copy(update={"assumed": assumed}),
                "steps": with_work(result.steps, config, given),
                "warnings": tuple(dict.fromkeys(notes)),
            }
        )
    )
