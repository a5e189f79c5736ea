"""Facts that the user states by flag, and their priority over those of a log or a result file.

The same rule holds everywhere: a stated fact fills what the log or result lacks. Where the log or result states another
value, the stated fact is used if it is stated for that one alone, and left out if it is stated for all of several; a
warning names both values. Every such fact is recorded in `provenance.assumed` with the flag, and warnings that a stated
fact answers are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from tensorprimat.core import settings
from tensorprimat.core.errors import UsageError
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import count, of_data_sheet, size
from tensorprimat.core.records import Record
from tensorprimat.core.result import STACK_OF_PLATFORM, GpuInfo, Model, PerformanceMetrics, Result, TrainingConfig
from tensorprimat.core.settings import FACT_FLAGS
from tensorprimat.core.spec import StatedSettings
from tensorprimat.core.steps import Steps, finite
from tensorprimat.core.summary import recorded_notices, summarise
from tensorprimat.core.units import GB
from tensorprimat.facts import catalogue
from tensorprimat.facts.devices import platform_of
from tensorprimat.models import names, presets, shapes
from tensorprimat.models.shapes import NamedShape

_Record = TypeVar("_Record", bound=Record)

SAMPLES, SAMPLES_PER_GPU = "reported_samples_per_second", "reported_samples_per_second_per_gpu"
SAME_SIZE = 0.02  # a count of parameters in words ("8.03 B") against the count that follows from a shape

ALL_FLAGS = {**FACT_FLAGS, "gpu": "--gpu", "model_name": "--model-name", "preset": "--preset", "shape": "--shape"}
ANSWERS = {"preset": ("--preset", "--shape"), "shape": ("--preset", "--shape")}
"""Fields of UserFacts → the flags whose advice a stated field answers; for other fields, its own flag."""


@dataclass(frozen=True, kw_only=True)
class UserFacts(StatedSettings):  # type: ignore[misc]  # the base is frozen where it runs
    """Facts that the user states; None means not stated."""

    model_name: str | None = None
    gpu: str | None = None
    """Device name, as the hardware catalogue or a driver spells it."""
    preset: str | None = None
    """Preset of the model that the log or result names."""
    shape: NamedShape | None = None
    overrides: bool = True
    """True replaces facts of the log or result; False only fills in missing ones."""

    def stated(self) -> dict[str, Any]:
        """Return the stated facts by field name."""
        return {name: value for name, value in vars(self).items() if name != "overrides" and value is not None}


@dataclass(kw_only=True)
class _Notes:
    """Assumptions and notices that follow from stated facts."""

    overrides: bool
    assumed: dict[str, str]
    found: list[Notice]

    def settle(self, what: str, known: object, stated: object, flag: str, *, key: str, same: bool) -> bool:
        """Return True if the stated value is used; a conflict becomes a notice. known: the log's or result's value."""
        if known is not None and not same:
            code = "fact_overridden" if self.overrides else "fact_not_used"
            self.found.append(Notice(code, what, known=known, flag=flag, stated=stated))
            if not self.overrides:
                return False
        if known is None or not same or key in self.assumed:
            self.assumed[key] = flag
        return True


def amended(result: Result, facts: UserFacts) -> Result:
    """Return the result with the stated facts laid over it and every figure computed anew."""
    return summarise(with_facts(result, facts)) if facts.stated() else result


def with_facts(result: Result, facts: UserFacts) -> Result:
    """Return the result with the stated facts laid over it, its figures yet to be computed."""
    if not facts.stated():
        return result
    answered = {flag for field in facts.stated() for flag in ANSWERS.get(field, (ALL_FLAGS[field],))}
    others = [notice for notice in recorded_notices(result) if answered.isdisjoint(notice.remedies)]
    notes = _Notes(overrides=facts.overrides, assumed=dict(result.provenance.assumed), found=others)
    before = result.training_config
    config = _configuration(before, facts, notes)
    platform, gpu_info = _device(result, config, facts, notes)
    model = _model(result.model, facts, notes)
    steps = _with_work(result.steps, before, config, facts, notes)
    figures = result.performance_metrics
    if figures.basis == "reported_means":
        figures = with_rates(figures, config, before=before)
    return result.changed(
        training_config=config,
        gpu_info=gpu_info,
        platform=platform,
        model=model,
        provenance=result.provenance.changed(assumed=notes.assumed),
        steps=steps,
        audit=result.audit if facts.warmup_steps is None else None,
        performance_metrics=figures,
        warnings=tuple(dict.fromkeys(notes.found)),
    )


def _configuration(before: TrainingConfig, facts: UserFacts, notes: _Notes) -> TrainingConfig:
    values = before.model_dump()
    for name, value in facts.stated().items():
        if name not in FACT_FLAGS:
            continue
        known = values.get(name)
        if not notes.settle(name, known, value, FACT_FLAGS[name], key=name, same=known == value):
            continue
        values[name] = value
        if known != value and name == "num_gpus":
            values["data_parallel_size"] = None
        if known != value and name in ("num_gpus", "global_batch_size", "micro_batch_size"):
            values["gradient_accumulation_steps"] = None
    return with_parallelism(believed(TrainingConfig, values, notes.found))


def believed(record: type[_Record], values: dict[str, Any], told: list[Any]) -> _Record:
    """Return the record without values that no run can have, such as a batch of 10**100 from a damaged line."""
    try:
        return record(**values)
    except ValidationError as error:
        absurd = {str(found["loc"][0]) for found in error.errors()}
        told += [Notice("fact_impossible", name, value=str(values[name])[:40]) for name in sorted(absurd)]
        return record(**{name: value for name, value in values.items() if name not in absurd})


def with_parallelism(config: TrainingConfig) -> TrainingConfig:
    """Fill data parallel size and gradient accumulation where the other sizes determine them.

    A batch is replicas times accumulated micro-batches; of a batch, each follows from the other, unless the number of
    GPUs contradicts it. Replicas also follow from the GPUs, where tensor and pipeline parallel sizes are known or
    there is one GPU.
    """
    micro, batch, gpus = config.micro_batch_size, config.global_batch_size, config.num_gpus
    replicas, accumulation = config.data_parallel_size, config.gradient_accumulation_steps
    tensor, pipeline = config.tensor_model_parallel_size, config.pipeline_model_parallel_size
    of_batch = batch // micro if batch and micro and batch % micro == 0 else None
    if not replicas and gpus and (gpus == 1 or (tensor and pipeline)):
        replicas = _quotient(gpus, settings.replica_devices(config))
    if not replicas and (by_batch := _quotient(of_batch, accumulation)) and (gpus is None or gpus % by_batch == 0):
        replicas = by_batch
    return config.changed(
        data_parallel_size=replicas, gradient_accumulation_steps=accumulation or _quotient(of_batch, replicas)
    )


def _quotient(whole: int | None, part: int | None) -> int | None:
    """Return how many times a part is in the whole; None if that is no whole number or one of both is unknown."""
    return whole // part if whole and part and whole % part == 0 else None


def _device(result: Result, config: TrainingConfig, facts: UserFacts, notes: _Notes) -> tuple[Any, GpuInfo]:
    """Return platform and device. A stated device sets the platform if the log has none or names another device."""
    platform, device = result.platform, result.gpu_info
    if facts.gpu:
        if not catalogue.variants(facts.gpu):
            near = catalogue.nearest_gpu(facts.gpu)
            guess = f"; did you mean {near}?" if near else ""
            notes.found.append(Notice("gpu_unknown", "gpu_info", gpu=facts.gpu, guess=guess))
        known, vendor = device.device_name, platform_of(facts.gpu)
        if known is None and vendor and platform not in (None, vendor):
            known = f"a device of platform {platform}"
        if notes.settle("gpu_info", known, facts.gpu, "--gpu", key="device_name", same=_same_device(known, facts.gpu)):
            if known is not None and not _same_device(known, facts.gpu):
                device = GpuInfo(device_name=facts.gpu)  # the log's other facts belong to another device
                platform = vendor
            elif device.device_name is None:
                device = device.changed(device_name=facts.gpu)
                notes.found += _memory_conflict(device)
            platform = platform or vendor
    if device.device_count in (None, result.training_config.num_gpus):
        device = device.changed(device_count=config.num_gpus)
    if platform and device.software_stack in (None, "unknown"):
        device = device.changed(software_stack=STACK_OF_PLATFORM[platform])
    return platform, catalogue.with_cores(device)


def _same_device(known: str | None, stated: str) -> bool:
    if known is None or catalogue.plain_name(known) == catalogue.plain_name(stated):
        return known is not None
    return len(entries := catalogue.variants(known)) == 1 and entries == catalogue.variants(stated)


def _memory_conflict(device: GpuInfo) -> list[Notice]:
    """Return a notice where the log's device memory is not that of the stated device."""
    variants, memory = catalogue.variants(device.device_name), device.total_memory_gb
    if not variants or memory is None or any(catalogue.memory_fits(gpu, memory) for gpu in variants):
        return []
    nameplate = " or ".join(
        of_data_sheet(gpu.memory_gb.value) for gpu in variants if gpu.memory_gb and gpu.memory_gb.value
    )
    gpu, of_log = device.device_name, size(GB * memory)
    return [Notice("memory_of_other_gpu", "gpu_info", gpu=gpu, nameplate=nameplate, memory=of_log)]


def _model(model: Model, facts: UserFacts, notes: _Notes) -> Model:
    if (name := facts.model_name) is not None:
        same = model.name is not None and names.key(model.name) == names.key(name)
        if notes.settle("model", model.name, name, "--model-name", key="model.name", same=same):
            model = model.changed(name=names.resolve(name))
    named, flag = _stated_shape(model, facts, notes)
    if named is None:
        return model
    typed = named.text if facts.shape is not None else facts.preset
    known = None
    if (own := model.shape) is not None:
        known = shapes.title_of(own) or f"{own.num_layers} layers × {own.hidden_size}"
    if not notes.settle("model shape", known, typed, flag, key="model.shape", same=model.shape == named.shape):
        return model
    counted = presets.parameters(named.shape)
    if model.shape == named.shape:
        return model
    if model.parameters and known is None and abs(counted / model.parameters - 1) > SAME_SIZE:
        say = partial(Notice, "parameters_of_other_shape", "model shape", flag=flag, stated=typed)
        notes.found.append(say(stated_parameters=counted, parameters=model.parameters))
    notes.assumed["model.shape"] = f"{flag} {typed}" + (f" ({named.assumption})" if named.assumption else "")
    if known is not None and counted != model.parameters:
        notes.assumed["model.parameters"] = notes.assumed["model.shape"]
    preset = named.preset
    return model.changed(
        name=model.name or (preset.model if preset else named.name),
        preset=preset.name if preset else None,
        shape=named.shape,
        parameters=counted if known is not None else model.parameters or counted,
    )


def _stated_shape(model: Model, facts: UserFacts, notes: _Notes) -> tuple[NamedShape | None, str]:
    """Return the stated shape with its flag.

    A preset that the model does not have raises UsageError, or is a warning where it is stated for several models.
    """
    if facts.shape is not None:
        return facts.shape, "--shape"
    if facts.preset is None:
        return None, "--preset"
    named = shapes.of_preset(facts.preset, model.name)
    if named is None and model.shape is None:
        called = f"the model {model.name!r}" if model.name else "a model without a name (--model-name)"
        refusal = f"no preset of {called} is known; state its dimensions with --shape"
        if facts.overrides:
            raise UsageError(f"--preset {facts.preset}: {refusal}")
        notes.found.append(Notice("preset_left_out", "model shape", preset=facts.preset, refusal=refusal))
    return named, "--preset"


def identified(model: Model) -> Model:
    """Return the model with the project's name of it, and with preset and parameters where the shape gives them."""
    if model.name is not None:
        model = model.changed(name=names.resolve(model.name))
    if model.shape is None:
        return model
    preset = presets.identify(model.shape)
    return model.changed(
        name=model.name or (preset.model if preset else None),
        preset=model.preset or (preset.name if preset else None),
        parameters=model.parameters or presets.parameters(model.shape),
    )


def with_work(steps: Steps, config: TrainingConfig) -> Steps:
    """Fill the tokens of a step where rows state samples only and the sequence length is known.

    Samples/s per GPU become samples/s over all GPUs where their number is known.
    """
    if not len(steps):
        return steps
    if config.num_gpus and steps.has(SAMPLES_PER_GPU) and not steps.has(SAMPLES):
        steps = steps.replace(**{SAMPLES: steps.column(SAMPLES_PER_GPU) * config.num_gpus})
    if steps.has("samples") and config.sequence_length and not steps.has("tokens"):
        steps = steps.replace(tokens=np.asarray(steps.column("samples") * config.sequence_length, np.float64))
    return steps


def _with_work(steps: Steps, before: TrainingConfig, config: TrainingConfig, facts: UserFacts, notes: _Notes) -> Steps:
    """Return the steps with the samples and tokens that follow from the stated facts; the log's own counts stay."""
    if not len(steps):
        return steps
    if config.num_gpus and config.num_gpus != before.num_gpus and steps.has(SAMPLES_PER_GPU):
        steps = steps.without(SAMPLES)  # `with_work` fills it again, and the tokens that are samples × length
    derived = steps.has("tokens") and steps.has("samples") and bool(before.sequence_length)
    if derived:
        product = steps.column("samples") * before.sequence_length
        derived = bool(np.array_equal(steps.column("tokens"), product, equal_nan=True))
    batch = config.global_batch_size
    if batch and batch == facts.global_batch_size and steps.has("samples"):
        logged = np.unique(finite(steps.column("samples")))
        if len(logged) != 1 or logged[0] != batch:
            shown = count(logged[0]) if len(logged) == 1 else f"{count(logged[0])} to {count(logged[-1])}"
            what = f"--global-batch-size {count(batch)}" if notes.overrides else "the log's own count"
            notes.found.append(Notice("batch_of_rows", "global_batch_size", batch=batch, rows=shown, what=what))
            if notes.overrides:
                steps = steps.replace(samples=float(batch))
    if derived:
        steps = steps.without("tokens")
    else:
        notes.found += _conflicts_of_work(steps, config, facts)
    return with_work(steps, config)


def _conflicts_of_work(steps: Steps, config: TrainingConfig, facts: UserFacts) -> list[Notice]:
    """Return a notice where flags contradict the tokens of a step that the log counts itself, which are used."""
    if not (facts.global_batch_size or facts.sequence_length) or "tokens" not in steps.seen:
        return []
    counted = np.unique(finite(steps.column("tokens")))
    product = (config.global_batch_size or 0) * (config.sequence_length or 0)
    if len(counted) != 1 or not product or counted[0] == product:
        return []
    return [Notice("tokens_of_rows", "tokens_per_step", counted=float(counted[0]), product=product)]


def with_rates(
    means: PerformanceMetrics, config: TrainingConfig, *, before: TrainingConfig | None = None
) -> PerformanceMetrics:
    """Fill the rates that follow from a file's or log's means and the configuration.

    before: the configuration that the present rates follow from. A rate is computed anew if one of its settings has
    changed.
    """
    changed = {
        name
        for name in ("num_gpus", "global_batch_size", "sequence_length")
        if before is not None and getattr(before, name) not in (None, getattr(config, name))
    }
    gpus, length, batch = config.num_gpus, config.sequence_length, config.global_batch_size
    mean, samples = means.avg_step_time_seconds, means.samples_per_second
    if mean is None and means.steps_per_second:
        mean = 1 / means.steps_per_second
    if samples is None and means.samples_per_second_per_gpu and gpus:
        samples = means.samples_per_second_per_gpu * gpus
    if (samples is None or "global_batch_size" in changed) and mean and batch:
        samples = batch / mean
    tokens, per_gpu = means.tokens_per_second, means.tokens_per_second_per_gpu
    if changed & {"global_batch_size", "sequence_length"} and samples is not None and length:
        tokens = per_gpu = None
    elif "num_gpus" in changed and tokens is not None:
        per_gpu = None
    if tokens is None and samples is not None and length:
        tokens = samples * length
    if tokens is None and per_gpu is not None and gpus:
        tokens = per_gpu * gpus
    if per_gpu is None and tokens is not None and gpus:
        per_gpu = tokens / gpus
    known = any(value is not None for value in (samples, tokens, per_gpu, mean))
    return means.changed(
        avg_step_time_seconds=mean,
        steps_per_second=means.steps_per_second or (1 / mean if mean else None),
        tokens_per_second=tokens,
        tokens_per_second_per_gpu=per_gpu,
        samples_per_second=samples,
        samples_per_second_per_gpu=samples / gpus if samples and gpus else means.samples_per_second_per_gpu,
        basis="reported_means" if known else None,
    )
