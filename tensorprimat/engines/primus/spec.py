"""Conversion of flags and a Primus configuration to a RunSpec, and of the RunSpec to changes of the configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import GpuInfo, ModelShape
from tensorprimat.core.settings import MODEL_PARALLEL
from tensorprimat.core.spec import RunSettings, RunSpec
from tensorprimat.engines import methodology
from tensorprimat.engines.primus import checkout as primus_checkout
from tensorprimat.engines.primus.config import Effective, effective
from tensorprimat.engines.registry import Engine
from tensorprimat.facts import catalogue
from tensorprimat.machine.platform import Machine
from tensorprimat.models import presets

ROOT_OPTION, CONFIG_OPTION, GPU_OPTION, GPU_SOURCE_OPTION = "primus", "config", "gpu", "gpu_source"
"""Options of a RunSpec that only this engine understands."""
SHORT_RUN = 25
"""Iterations below which the confidence interval is wide, because few steps are left after the warm-up."""

MEGATRON_NAMES = {
    "micro_batch_size": "micro_batch_size",
    "global_batch_size": "global_batch_size",
    "sequence_length": "seq_length",
    **{name: name for name in MODEL_PARALLEL},
}
"""Fields of a RunSpec, and their names in Megatron."""
WORK = ("micro_batch_size", "global_batch_size", "sequence_length")
SEED = "seed"
MEGATRON_DEFAULTS = {SEED: 1234} | {MEGATRON_NAMES[field]: 1 for field in MODEL_PARALLEL}
PRECISION_SETTINGS: dict[str, dict[str, Any]] = {
    "fp8": {"fp8": "hybrid", "bf16": True, "fp16": False},
    "bf16": {"fp8": None, "bf16": True, "fp16": False},
    "fp16": {"fp8": None, "bf16": False, "fp16": True},
    "fp32": {"fp8": None, "bf16": False, "fp16": False},
}


def spec_of(model: str, settings: RunSettings, *, engine: Engine, machine: Machine) -> RunSpec:
    """Return the spec of one run by Primus: flags, else the methodology's values, else those of the configuration.

    Raises UsageError where there is no checkout, GPU or configuration, or a value cannot work; InputError for a
    configuration that cannot be read.
    """
    root = primus_checkout.find_checkout()
    if root is None:
        raise UsageError(f"--engine {engine.name}: no Primus checkout; set PRIMUS_PATH to it")
    if settings.preset not in (None, "full"):
        raise UsageError(f"--preset {settings.preset}: Primus trains the full models; --engine torch has it")
    gpu, gpu_source = primus_checkout.gpu_model()
    chosen = methodology.methodology_values(
        settings, model=model, preset="full", engine=engine, platform="amd", gpu=GpuInfo(device_name=gpu)
    )
    configured = dict(chosen.values)
    precision = configured.pop("precision", None)
    config = primus_checkout.find_config(root, model, gpu=gpu, precision=precision)
    sets = effective(config, root=root)
    values: dict[str, Any] = {field: sets.whole(name) for field, name in MEGATRON_NAMES.items()}
    values |= {"recompute": settings.recompute or "none", **configured}
    values |= {field: MEGATRON_DEFAULTS[MEGATRON_NAMES[field]] for field in MODEL_PARALLEL if values[field] is None}
    if unknown := [MEGATRON_NAMES[field] for field in WORK if values[field] is None]:
        raise UsageError(f"{config}: sets no {', '.join(unknown)}; give it by flag (--micro-batch-size …)")
    return RunSpec(
        model=model,
        preset="full",
        engine=engine.name,
        precision=_precision(precision or sets.precision, config),
        num_gpus=settings.num_gpus or machine.gpu_info.device_count or primus_checkout.GPUS_PER_NODE,
        **{name: getattr(settings, name) for name in ("steps", "warmup_steps", "seed")},
        platform="amd",
        notes=() if chosen.note is None else (chosen.note,),
        options={ROOT_OPTION: str(root), CONFIG_OPTION: str(config), GPU_OPTION: gpu, GPU_SOURCE_OPTION: gpu_source},
        **values,
    ).check()


def _precision(name: str | None, config: Path) -> Any:
    if name not in PRECISION_SETTINGS:
        raise UsageError(
            f"{config}: {f'trains in {name}' if name else 'does not state its precision'}; give --precision bf16 or fp8"
        )
    return name


def changed_settings(spec: RunSpec) -> dict[str, Any]:
    """Return the settings of the configuration that this run changes, by Megatron's names."""
    root, config = Path(spec.options[ROOT_OPTION]), Path(spec.options[CONFIG_OPTION])
    sets = effective(config, root=root)
    settings = {"train_iters": spec.max_steps, "seed": spec.seed} | {
        name: getattr(spec, field) for field, name in MEGATRON_NAMES.items()
    }
    changed = {name: value for name, value in settings.items() if not _already(sets, name, value)}
    positions = sets.whole("max_position_embeddings")
    if positions is not None and positions < spec.sequence_length:
        changed["max_position_embeddings"] = spec.sequence_length
    if sets.precision != spec.precision:
        changed |= PRECISION_SETTINGS[spec.precision]
    return changed | spec.recompute.megatron


def _already(sets: Effective, name: str, value: int) -> bool:
    known = sets.settings.get(name)
    return value == (MEGATRON_DEFAULTS.get(name) if known is None else known)


def confirmed_shape(spec: RunSpec) -> ModelShape | None:
    """Return the preset's shape if the configuration has the same layers, widths and number of heads, else None."""
    shape = presets.find_preset(spec.model, spec.preset).shape
    sets = effective(Path(spec.options[CONFIG_OPTION]), root=Path(spec.options[ROOT_OPTION])).settings
    names = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads")
    return shape if all(sets.get(name) == getattr(shape, name) for name in names) else None


def check(spec: RunSpec, machine: Machine) -> None:
    """Raise UsageError where this run cannot work here."""
    spec.check()
    gpu = catalogue.find_gpu(spec.options[GPU_OPTION])
    if gpu is not None and spec.precision in gpu.lacks:
        raise UsageError(f"--precision {spec.precision}: {gpu.name} does not support it; use bf16")
    presets.find_preset(spec.model, spec.preset)
    visible = machine.gpu_info.device_count or primus_checkout.GPUS_PER_NODE
    if spec.num_gpus > visible:
        raise UsageError(f"--num-gpus {spec.num_gpus}: only {visible} here; GPUS_PER_NODE states another number")
    sets = effective(Path(spec.options[CONFIG_OPTION]), root=Path(spec.options[ROOT_OPTION]))
    warm_up = sets.whole("lr_warmup_iters") or 0
    if sets.settings.get("lr_decay_iters") is None and spec.max_steps <= warm_up:
        raise UsageError(
            f"{spec.max_steps} iterations: the learning rate of the configuration warms up for {warm_up}, and "
            f"Megatron refuses a shorter training; use more (TRAIN_ITERS={warm_up + 10}, --steps {warm_up + 10})"
        )


def spec_advice(spec: RunSpec) -> list[str]:
    """Return warnings about a valid run: few iterations, a gated tokenizer without HF_TOKEN."""
    warnings = []
    if spec.max_steps < SHORT_RUN:
        warnings.append(
            f"{spec.model}: {spec.max_steps} iterations leave few to measure; raise them with TRAIN_ITERS=50 "
            "(run_primus_*.sh) or --steps 50 (benchmark.py), and add --runs 3 for an interval"
        )
    sets = effective(Path(spec.options[CONFIG_OPTION]), root=Path(spec.options[ROOT_OPTION]))
    tokenizer = str(sets.settings.get("tokenizer_model", ""))
    if tokenizer.startswith("meta-llama/") and not os.environ.get("HF_TOKEN"):
        warnings.append(f"{spec.model}: Primus fetches the tokenizer {tokenizer}, which is gated; export HF_TOKEN=…")
    return warnings
