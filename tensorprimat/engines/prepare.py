"""Preparation of a run: a RunSpec with every value explicit, and all checks that need no training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorprimat.core import settings as settings_of_runs
from tensorprimat.core.errors import DoesNotFitError, UsageError
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import alternatives, counted, size
from tensorprimat.core.result import Platform
from tensorprimat.core.spec import MODELS, RunSettings, RunSpec
from tensorprimat.core.units import GB
from tensorprimat.engines import methodology
from tensorprimat.engines.modules import memory_estimate, memory_model, modules_of
from tensorprimat.engines.registry import (
    ENGINES,
    OWN,
    VENDOR_ENGINES,
    Engine,
    check_model_parallel,
    importable,
)
from tensorprimat.facts import catalogue
from tensorprimat.machine import environment
from tensorprimat.machine.platform import Machine
from tensorprimat.models import presets, training_memory
from tensorprimat.models.custom import TrainedModel, model_of
from tensorprimat.storage.result_names import DEFAULT_PRESET
from tensorprimat.system import atomic
from tensorprimat.system.safe_text import is_utf8

GPUS_OF_A_NODE = 8  # the presets' global batch is that of the methodologies, which are for eight GPUs
RESOLVED = ("preset", "methodology", *settings_of_runs.OF_A_METHODOLOGY, "num_gpus", "compile")
"""Settings whose value also depends on the methodology, the preset, the engine or the machine."""
AS_CHOSEN = tuple(setting.name for setting in settings_of_runs.WITH_OPTION if setting.name not in RESOLVED)
"""All other settings with an option: the value in a RunSpec is that of the flag, or the flag's default."""
OF_EVERY_ENGINE = ("steps", "warmup_steps", "seed", "num_gpus", "num_nodes")
"""Settings that hold for any engine that is tried instead of the requested one."""
LEAST_BYTES_PER_PARAMETER = 8  # weights, gradients and both moments of AdamW, in 16 bits each: no engine needs less


def spec_of(model: str, settings: RunSettings, *, engine: Engine, machine: Machine) -> RunSpec:
    """Return the checked spec of one run of a model on this machine. Raises UsageError naming the flag.

    A value that no flag sets comes from the methodology, else from the preset: the full model in bf16 or fp16 on all
    GPUs, or the tiny model in fp32 in one process on a CPU.
    """
    settings.check()
    _check_torch_flags(settings, engine)
    if (configuration := modules_of(engine).load("configuration")) is not None:
        spec: RunSpec = configuration.spec_of(model, settings, engine=engine, machine=machine)
        return spec
    platform = machine.platform
    preset = _preset(model, settings, engine, settings.preset or DEFAULT_PRESET.get(platform, "full"))
    devices = machine.gpu_info.device_count or 1
    num_gpus = settings.num_gpus or (1 if platform == "cpu" else devices)
    all_gpus = num_gpus * (settings.num_nodes or 1)
    if platform != "cpu" and num_gpus > devices:
        raise UsageError(f"--num-gpus {num_gpus}: this machine has {devices}")
    compiles = engine.own_training and platform != "cpu"
    uncompiled = environment.compiling_disabled() if compiles and settings.compile is None else None
    fields = {
        "micro_batch_size": preset.micro_batch_size,
        "global_batch_size": _default_batch(preset, engine, all_gpus, settings.micro_batch_size),
        "sequence_length": preset.sequence_length,
        "precision": _default_precision(engine, machine),
        "model": model,
        "preset": preset.name,
        "config": None if settings.config is None else preset.config,
        "engine": engine.name,
        "num_gpus": num_gpus,
        "compile": (compiles and not uncompiled) if settings.compile is None else settings.compile,
        "platform": platform,
        **{name: value for name in AS_CHOSEN if (value := getattr(settings, name)) is not None},
    }
    configured = methodology.methodology_values(
        settings,
        model=model,
        preset=preset.name,
        engine=engine,
        platform=platform,
        gpu=machine.gpu_info,
        obstacle=lambda row: _obstacle({**fields, **row, "origins": dict.fromkeys(row, "")}, engine, machine),
    )
    unset = [name for name in ("methodology", *settings_of_runs.OF_A_METHODOLOGY) if getattr(settings, name) is None]
    origins = dict.fromkeys(unset, configured.origin)
    notes = configured.notices(engine, platform, all_gpus)
    if uncompiled:
        notes = (*notes, Notice("compiling_disabled", "compile", variable=uncompiled))
    spec = RunSpec.model_validate({**fields, **configured.values, "notes": notes, "origins": origins})
    if spec.sequence_length > preset.max_position_embeddings:
        raise UsageError(
            f"--sequence-length {spec.sequence_length}: {preset.title} supports {preset.max_position_embeddings} tokens"
        )
    check_model_parallel(engine, spec)
    spec = _divided(spec, machine)
    if not engine.own_training:
        return spec
    share = None if settings.recompute is None else settings.recompute.kept_share
    memory = None if platform == "cpu" else machine.gpu_info.total_memory_gb
    if memory is not None or (share is not None and training_memory.can_plan(spec)):
        spec = _with_counted_activations(spec, preset)
    if share is not None:
        spec = training_memory.with_share(spec, share)
    if memory is None:
        return spec
    if settings.recompute is None:
        spec = (training_memory.smallest_that_fits(spec, memory * GB) or spec).changed(falls_back=True)
    return training_memory.with_kept_fp8(training_memory.with_resharding(spec, memory * GB), memory * GB)


def obstacle(model: str, settings: RunSettings, *, engine: Engine, machine: Machine) -> str | None:
    """Return why an engine cannot train a model on this machine's GPUs, as a phrase after the model's name, or None.

    Also None if the engine could train without the user's flags: it is used, and its error names the flag to change.
    Also None with --methodology or a flag for a parallel size, because another engine would not run the vendor's
    configuration.
    """
    if settings.methodology or any((getattr(settings, name) or 1) > 1 for name in settings_of_runs.MODEL_PARALLEL):
        return None
    kept = {name: getattr(settings, name) for name in OF_EVERY_ENGINE}
    reasons: list[str | None] = []
    for tried in (settings, RunSettings(**kept)):
        try:
            check_memory(spec_of(model, tried, engine=engine, machine=machine), machine)
        except DoesNotFitError as error:
            reasons.append(error.because)
        except UsageError:
            reasons.append(None)
        else:
            return None
    requested, without_flags = reasons
    return without_flags and (requested or without_flags)


def _divided(spec: RunSpec, machine: Machine) -> RunSpec:
    """Return the checked spec. If only the published parallel sizes make it impossible, the error names a remedy."""
    try:
        return spec.check()
    except DoesNotFitError as error:
        devices = spec.num_gpus * spec.num_nodes
        theirs = [name for name in spec.split_by if name in spec.origins]
        alone = spec.changed(**dict.fromkeys(theirs, 1))
        obstructs = devices % spec.model_parallel_size > 0 == devices % alone.model_parallel_size
        if spec.with_methodology_flag or not obstructs:
            raise
        try:
            check_memory(alone, machine)
            remedy = "use " + " ".join(f"{settings_of_runs.flag(name)} 1" for name in theirs)
        except DoesNotFitError:
            remedy = _otherwise(alone, machine)
        raise DoesNotFitError(error.problem, remedy=remedy, because=error.because) from None


def _obstacle(fields: Mapping[str, Any], engine: Engine, machine: Machine) -> str | None:
    """Return why the engine cannot run a methodology's configuration on this machine, or None."""
    spec = RunSpec.model_validate(fields)
    if not engine.tensor_parallel and spec.split_by:
        return f"has {spec.named(*spec.split_by)}, which the {engine.name} engine lacks"
    try:
        spec.check()
        if not engine.own_training:  # the torch engine recomputes activations until they fit
            check_memory(spec, machine)
    except DoesNotFitError as error:
        return error.because
    return None


def _with_counted_activations(spec: RunSpec, preset: TrainedModel) -> RunSpec:
    """Return the spec with an input of the memory estimate that only torch knows; unchanged if torch cannot tell.

    For a configured model it is the number of bytes per token that a layer keeps for backward; for a built-in model
    without torch.compile, the option UNFUSED_NORM if torch has no single kernel for RMS norm.
    """
    if (spec.compile and spec.config is None) or not importable("torch"):
        return spec
    if spec.config is not None:
        from tensorprimat.engines.torch import memory

        return spec.changed(options={**spec.options, **memory.counted_options(spec, preset)})
    unfused = {} if environment.has_fused_norm("cuda") else {training_memory.UNFUSED_NORM: "yes"}
    return spec.changed(options={**spec.options, **unfused})


def _preset(model: str, settings: RunSettings, engine: Engine, name: str) -> TrainedModel:
    """Return the model to train. Raises UsageError for an unknown preset or a model that the engine cannot train."""
    if settings.config is None:
        try:
            found = presets.find_preset(model, name)
        except UsageError as error:
            raise UsageError(f"--preset {name}: {error}") from error
        if settings.preset is not None and found.name != "full" and not engine.own_training:
            raise UsageError(
                f"--preset {name}: {engine.title} trains full models only; add --engine torch, or leave it out"
            )
        return found
    if not engine.own_training:
        raise UsageError(f"--engine {engine.name}: trains {', '.join(MODELS)}; use --engine torch for a config.json")
    from tensorprimat.engines.torch import config as torch_config

    return torch_config.model_of_config(model, dict(settings.config), name)


def _default_batch(preset: TrainedModel, engine: Engine, devices: int, micro_batch: int | None) -> int:
    """Return the global batch, in sequences, where neither flag nor methodology sets it.

    The preset's number is that of the methodologies, for eight GPUs. With the torch engine, each GPU gets an eighth of
    it for a full model; for a tiny model the number is rounded up to whole micro-batches of all processes. Any other
    engine uses the preset's number.
    """
    if not engine.own_training:
        return preset.global_batch_size
    if preset.name == "tiny":
        at_once = (micro_batch or preset.micro_batch_size) * devices
        return math.ceil(preset.global_batch_size / at_once) * at_once
    return max(1, preset.global_batch_size // GPUS_OF_A_NODE) * devices


def _default_precision(engine: Engine, machine: Machine) -> str:
    """Return the precision where neither flag nor methodology sets it.

    It is bf16; with the torch engine fp32 on a CPU, and fp16 on a GPU without matrix units for bf16.
    """
    if not engine.own_training:
        return "bf16"
    if machine.platform == "cpu":
        return "fp32"
    gpu = catalogue.find_gpu_of(machine.gpu_info)
    return "fp16" if gpu is not None and "bf16" in gpu.lacks else "bf16"


def _check_torch_flags(settings: RunSettings, engine: Engine) -> None:
    """Raise UsageError for a flag, or a value of one, that only the torch engine understands."""
    if engine.own_training:
        return
    for setting in settings_of_runs.WITH_OPTION:
        option, value = setting.option, getattr(settings, setting.name)
        if option and option.own_training and value not in (None, False, option.default):
            flag = option.flag.partition("/")[0]
            raise UsageError(f"{flag}: only the torch engine has it; add --engine torch, or leave it out")
        if option and option.of_every_engine and value not in (None, *option.of_every_engine):
            advice = f"use {option.of_every_engine[-1]} with {engine.name}"
            raise UsageError(f"{option.flag} {value}: only the torch engine has it; {advice}")


def check_engine(engine: Engine, platform: Platform | None = None) -> None:
    """Raise UsageError where the engine cannot be imported, or has a package that is too old.

    platform: platform of this machine if the training runs on it; None if it runs elsewhere.
    """
    if missing := engine.missing_packages(platform):
        install = engine.gpu_install if set(missing) & set(engine.gpu_packages) else engine.install
        raise UsageError(f"the {engine.name} engine needs {', '.join(missing)}, not installed here; {install}")
    if outdated := engine.outdated_packages():
        raise UsageError(f"the {engine.name} engine needs {', '.join(outdated)}; {engine.install}")


def check_spec(engine: Engine, spec: RunSpec, machine: Machine, *, packages: bool = True) -> None:
    """Raise UsageError where the engine, by its own checks, or the device's memory cannot run the spec.

    packages: check this Python's packages; False if the training runs in a container, where the engine checks them.
    """
    check_precision(spec, machine)  # before the engine's checks: installing a package does not add matrix units
    if (program := modules_of(engine).load("program")) is not None:
        program.check(spec, machine)
        if packages and engine.own_training:
            others = VENDOR_ENGINES[spec.platform] if spec.precision == "fp8" else ()
            able = [name for name in others if _could_train(spec, ENGINES[name], machine)]  # once installed
            program.check_packages(spec, able)
    check_window(spec, engine)
    check_split(spec, engine)
    check_memory(spec, machine)


def _could_train(spec: RunSpec, engine: Engine, machine: Machine) -> bool:
    """Return True if another engine, once installed, could train the model in the same precision on as many GPUs."""
    if spec.config is not None or spec.preset != "full":
        return False
    if (checkout := modules_of(engine).load("checkout")) is not None:
        return bool(checkout.configures(spec.model))
    kept = {name: getattr(spec, name) for name in (*OF_EVERY_ENGINE, "precision")}
    settings = RunSettings(**kept, methodology=spec.methodology if spec.with_methodology_flag else None)
    try:
        check_memory(spec_of(spec.model, settings, engine=engine, machine=machine), machine)
    except UsageError:
        return False
    return True


def check_split(spec: RunSpec, engine: Engine) -> None:
    """Raise UsageError where Megatron Core could not give every rank the same share of the model."""
    megatron = None if engine.own_configuration else engine.megatron
    if megatron is None or (uneven := megatron.uneven_split(spec)) is None:
        return
    sizes, what, count = uneven
    share = " × ".join(settings_of_runs.BY_NAME[name].label for name in sizes)
    possible = [str(size) for size in range(1, count + 1) if count % size == 0]
    raise UsageError(
        f"{spec.named(*sizes)}: Megatron Core cannot divide the {count} {what} of {model_of(spec).title} evenly; "
        f"{share} must be {alternatives(possible)}"
    )


def check_window(spec: RunSpec, engine: Engine) -> None:
    """Raise UsageError where Megatron Core would split a sequence that is longer than the attention window."""
    if spec.context_parallel_size > 1 and engine.megatron and engine.megatron.forbids_context_parallel(spec):
        window = model_of(spec).memory_shape.sliding_window
        raise UsageError(
            f"--context-parallel-size {spec.context_parallel_size}: Megatron Core cannot split sequences of "
            f"{spec.sequence_length} tokens of a model with an attention window of {window}; "
            f"use --tensor-parallel-size {spec.context_parallel_size}, or --sequence-length {window}"
        )


def check_precision(spec: RunSpec, machine: Machine) -> None:
    """Raise UsageError where the GPU is known to have no matrix units for the precision."""
    gpu = catalogue.find_gpu_of(machine.gpu_info)
    if gpu is None or spec.precision not in gpu.lacks:
        return
    instead = next(precision for precision in ("bf16", "fp16", "fp32") if precision not in gpu.lacks)
    raise UsageError(
        f"{spec.named('precision')}: {gpu.name} has no {spec.precision.upper()} matrix units; use --precision {instead}"
        + (" without --methodology" if spec.with_methodology_flag else "")
    )


def check_memory(spec: RunSpec, machine: Machine) -> None:
    """Raise DoesNotFitError where the spec needs more memory than one device has.

    It checks the engine's estimate, if there is one, and then the least size of weights, gradients and optimizer state,
    which no batch size reduces. Nothing is checked if the memory is unknown or the spec is for another platform.
    """
    memory = machine.gpu_info.total_memory_gb
    if memory is None or spec.platform != machine.platform:  # the second: a dry run for another machine
        return
    _check_estimate(spec, machine, memory * GB)
    model, devices = model_of(spec), spec.num_gpus * spec.num_nodes
    needed = model.parameters * LEAST_BYTES_PER_PARAMETER / devices  # fully sharded
    if needed > memory * GB:
        raise DoesNotFitError(
            f"{model.title} needs at least {size(needed)} on each of {counted(devices, 'device')} for weights, "
            f"gradients and optimizer, and one has {size(GB * memory)}",
            remedy=_otherwise(spec, machine),
            because=_needs(spec, needed, memory * GB),
        )


def _check_estimate(spec: RunSpec, machine: Machine, memory_bytes: float) -> None:
    """Raise DoesNotFitError, which names the flags that make the spec fit, if its estimate exceeds memory_bytes."""
    needed = memory_estimate(spec, machine.gpu_info.device_name)
    if needed is None or needed.total <= memory_bytes:
        return
    engine = ENGINES[spec.engine]
    model = memory_model(engine)
    if engine.megatron is None:
        fitting = model.remedies(spec, memory_bytes)
    else:
        fitting = engine.megatron.remedies(spec, memory_bytes, estimate=model.estimate)
    if spec.with_methodology_flag:
        set_by_it = tuple(settings_of_runs.flag(name) for name in settings_of_runs.OF_A_METHODOLOGY)
        fitting = [f"{one} without --methodology" if one.startswith(set_by_it) else one for one in fitting]
    raise DoesNotFitError(
        f"{model_of(spec).title} at {spec.named('micro_batch_size', 'sequence_length')} needs about "
        f"{size(needed.total)} on each device ({needed.described}), and one has {size(memory_bytes)}",
        remedy=f"to make it fit use {', or '.join(fitting)}" if fitting else _otherwise(spec, machine),
        because=_needs(spec, needed.total, memory_bytes),
    )


def _needs(spec: RunSpec, needed_bytes: float, memory_bytes: float) -> str:
    """Return the memory that a spec needs, as a phrase whose subject is the spec."""
    devices = spec.num_gpus * spec.num_nodes
    where = f"{'each of ' if devices > 1 else ''}{counted(devices, 'GPU')} of {size(memory_bytes)}"
    return f"at micro batch {spec.micro_batch_size} needs about {size(needed_bytes)} on {where}"


def _otherwise(spec: RunSpec, machine: Machine) -> str:
    """Return the remedy where no flag of the engine alone makes the spec fit."""
    if ENGINES[spec.engine].own_training:
        return "use --preset tiny or more --num-gpus"
    memory = machine.gpu_info.total_memory_gb
    one_each = dict.fromkeys(settings_of_runs.MODEL_PARALLEL, 1)
    here = spec.changed(engine=OWN, precision="bf16", micro_batch_size=1, origins={}, **one_each)
    fits = memory is not None and training_memory.smallest_that_fits(here, memory * GB)
    if not fits or ENGINES[spec.engine].own_configuration:
        return "use more --num-gpus"
    return "use more --num-gpus, or --engine torch" + (" without --methodology" if spec.with_methodology_flag else "")


def check_folder(folder: Path) -> None:
    """Raise UsageError where results could not be written; does not create the folder."""
    named = None if is_utf8(folder) else "the name is not UTF-8, as the files that describe a run are"
    if why := atomic.refused_folder(folder) or named:
        raise UsageError(f"--output {folder}: {why}; choose another folder")
