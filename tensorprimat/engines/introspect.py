"""Readers of a Lightning or NeMo training's configuration, batch and model. Unknown facts are left out.

They read attributes of the live objects and import nothing of Lightning, NeMo or transformers, so that an object
without an attribute only yields fewer facts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from tensorprimat.core.errors import UsageError
from tensorprimat.core.notices import Notice
from tensorprimat.core.result import Model, ModelShape, TrainingConfig
from tensorprimat.core.settings import (
    LIGHTNING_PRECISIONS,
    MODEL_PARALLEL,
    PARALLEL_SIZES,
    PRECISION_OF_DTYPE,
)
from tensorprimat.core.spec import MODELS
from tensorprimat.core.vocabulary import fp8_recipe
from tensorprimat.machine import environment
from tensorprimat.models import decoders, huggingface, presets
from tensorprimat.models.families import FAMILIES

DTYPE_NAMES = {precision: dtype for dtype, precision in PRECISION_OF_DTYPE.items()} | {
    "tf32": "tfloat32",
    "fp8": "float8",
}
"""Precision → type in which the matrix products are computed, as results name it."""

SHAPE_SPELLINGS: Mapping[str, tuple[str, ...]] = {  # transformers, then Megatron and NeMo
    "num_layers": ("num_hidden_layers", "num_layers"),
    "hidden_size": ("hidden_size",),
    "ffn_hidden_size": ("intermediate_size", "ffn_hidden_size"),
    "num_attention_heads": ("num_attention_heads",),
    "num_key_value_heads": ("num_key_value_heads", "num_query_groups", "num_attention_heads"),
    "head_dim": ("head_dim", "kv_channels"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
}

MIXED = ("num_local_experts", "num_experts", "n_routed_experts", "num_moe_experts", "kv_lora_rank")
"""Attributes of a model with experts or latent attention, whose FLOPs depend on more than a dense model's sizes."""

DIFFERING = ("multi_latent_attention", "layer_types", "window_attn_skip_freq")
"""Attributes that only a model with latent attention, or with windows in some of its layers, sets."""

COMPILATIONS = ("_compile.compile_inner", "_compile.<locals>.compile_inner", "backward._backward_impl")
"""torch's names of its timers around a compilation: of a function, by newer and older versions, and of a late backward
pass."""

_TOKENS = ("input_ids", "tokens", "text")
"""Keys of the token ids in a batch that is a dictionary, of transformers, Megatron and older Megatron."""


def is_nemo(trainer: Any) -> bool:
    """Return True if NeMo's Megatron strategy runs this training."""
    return type(trainer.strategy).__module__.startswith("nemo.")


def framework(trainer: Any) -> dict[str, str]:
    """Return framework and framework_version as fields of TrainingConfig."""
    name, package = ("NeMo", "nemo_toolkit") if is_nemo(trainer) else ("Lightning", "lightning")
    versions = environment.versions((package,))
    return {"framework": name, **({"framework_version": versions[package]} if package in versions else {})}


def is_model_sharded(trainer: Any) -> bool:
    """Return True if one rank holds only parts of the parameters and cannot count all (with DTensors it can)."""
    strategy = trainer.strategy
    if type(strategy).__name__ in ("FSDPStrategy", "DeepSpeedStrategy"):
        return True
    return any((_whole(strategy, name) or 1) > 1 for name in PARALLEL_SIZES)


def training_config(trainer: Any, module: Any) -> dict[str, Any]:
    """Return the fields of TrainingConfig that trainer, strategy, data module and module state."""
    strategy, data = trainer.strategy, getattr(trainer, "datamodule", None)
    parallel = {name: size for name in PARALLEL_SIZES if isinstance(size := getattr(strategy, name, None), int)}
    world = trainer.world_size
    facts: dict[str, Any] = {
        "max_steps": trainer.max_steps if trainer.max_steps and trainer.max_steps > 0 else None,
        "num_gpus": world,
        "num_nodes": trainer.num_nodes,
        "strategy": _strategy_name(strategy, world),
        **parallel,
        **_precision(trainer),
        "micro_batch_size": _batch_size(strategy, data, "micro_batch_size"),
        "global_batch_size": _batch_size(strategy, data, "global_batch_size"),
        "sequence_length": _whole(data, "seq_length", "sequence_length"),
    }
    for config in _configs(module):
        if hasattr(config, "recompute_granularity"):  # Megatron's
            facts["recompute"] = config.recompute_granularity or "none"
    parameter = next(iter(module.parameters()), None)
    if parameter is not None:
        facts["parameter_dtype"] = dtype_name(parameter.dtype)
        facts["peft"] = peft(module)
    if optimizers := getattr(trainer, "optimizers", None):
        facts["optimizer"] = type(optimizers[0]).__name__
        rate = optimizers[0].param_groups[0]["lr"]
        facts["learning_rate"] = rate if isinstance(rate, int | float) else None
    facts["data_parallel_size"] = _data_parallel_size(strategy, world, parallel)
    return {name: value for name, value in facts.items() if value is not None}


def stated_by(module: Any) -> dict[str, Any]:
    """Return the fields of TrainingConfig from the module's method `benchmark_config`, if it has one."""
    state = getattr(module, "benchmark_config", None)
    return {name: value for name, value in state().items() if value is not None} if callable(state) else {}


def observed_by(module: Any, config: TrainingConfig) -> tuple[dict[str, Any], list[Notice]]:
    """Return the fields of TrainingConfig that ran differently from the plan, and notices about them.

    They come from the module's method `benchmark_observed`, if it has one. config: the plan.
    """
    state = getattr(module, "benchmark_observed", None)
    return state(config) if callable(state) else ({}, [])


def model_stated_by(module: Any) -> tuple[Model, list[Notice]] | None:
    """Return the model from the module's method `benchmark_model`, and a notice if its parameter count is wrong.

    None if the module has no such method or the method returns None. A DTensor counts as the whole tensor.
    """
    state = getattr(module, "benchmark_model", None)
    stated = state() if callable(state) else None
    if not isinstance(stated, Model):
        return None
    counted = sum(parameter.numel() for parameter in module.parameters())
    if counted == stated.parameters:
        return stated, []
    notice = Notice("parameters_contradicted", "model", counted=counted, expected=stated.parameters)
    return Model(parameters=counted), [notice]


def _batch_size(strategy: Any, data: Any, name: str) -> int | None:
    """Return a batch size from the data module, its data sampler or that of NeMo's strategy; None if none has it."""
    owners = (data, getattr(data, "data_sampler", None), getattr(strategy, "data_sampler", None))
    return next((size for owner in owners if (size := _whole(owner, name)) is not None), None)


def accumulation(trainer: Any, config: TrainingConfig) -> int | None:
    """Return the micro-batches of one optimizer step under Megatron: global batch / (micro batch × replicas).

    Batch hooks do not show it, because NeMo calls them once per global step. None where a size is unknown, does not
    divide, or grows during the training.
    """
    sampler = getattr(trainer.strategy, "data_sampler", None) or getattr(
        getattr(trainer, "datamodule", None), "data_sampler", None
    )
    sizes = (config.global_batch_size, config.micro_batch_size, config.data_parallel_size)
    if None in sizes or getattr(sampler, "rampup_batch_size", None):
        return None
    whole, micro, replicas = (size or 1 for size in sizes)
    return None if whole % (micro * replicas) else whole // (micro * replicas)


def peft(module: Any) -> str:
    """Return "none" if all parameters are trained, "lora" if some have "lora" in their name, else "frozen"."""
    if all(parameter.requires_grad for parameter in module.parameters()):
        return "none"
    adapters = (name for name, parameter in module.named_parameters() if parameter.requires_grad)
    return "lora" if any("lora" in name.lower() for name in adapters) else "frozen"


def _strategy_name(strategy: Any, world: int) -> str | None:
    if world == 1:
        return None
    names = [kind.__name__ for kind in type(strategy).__mro__]
    named = next((name for name in names if name.endswith("Strategy")), names[0])  # a subclass may have any name
    name = named.removesuffix("Strategy").lower()
    return {"modelparallel": "fsdp"}.get(name, name)


def _data_parallel_size(strategy: Any, world: int, parallel: Mapping[str, int]) -> int | None:
    """Return the number of model replicas, from Megatron's parallel sizes or Lightning's distributed sampler."""
    if parallel:
        return world // math.prod(parallel.get(name, 1) for name in MODEL_PARALLEL)  # experts are inside it
    if world == 1:
        return 1
    sampler = getattr(strategy, "distributed_sampler_kwargs", None) or {}
    return sampler.get("num_replicas")


def _precision(trainer: Any) -> dict[str, Any]:
    megatron = getattr(trainer.precision_plugin, "dtype_config", None)
    if megatron is not None:  # nemo.lightning.MegatronMixedPrecision
        recipe = getattr(megatron, "fp8", None)
        wide = "bf16" if getattr(megatron, "bf16", False) else "fp16" if getattr(megatron, "fp16", False) else "fp32"
        return {
            "precision": "fp8" if recipe else wide,
            "compute_dtype": DTYPE_NAMES["fp8" if recipe else wide],
            "fp8_recipe": fp8_recipe(getattr(megatron, "fp8_recipe", None) or "delayed") if recipe else None,
        }
    word = str(trainer.precision)
    precision = LIGHTNING_PRECISIONS.get(word.split("-")[0])
    if precision == "fp32" and trainer.strategy.root_device.type == "cuda":
        import torch

        if torch.get_float32_matmul_precision() != "highest":
            precision = "tf32"
    return {"precision": precision, "compute_dtype": DTYPE_NAMES.get(precision or "")}


def dtype_name(dtype: Any) -> str:
    """Return the name of a torch dtype without its prefix: bfloat16, not torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def compile_seconds() -> float | None:
    """Return the seconds that torch.compile has taken in this process, forward and backward; None if it did not run."""
    times = getattr(sys.modules.get("torch._dynamo.utils"), "compilation_time_metrics", {})
    return sum(sum(times.get(key, ())) for key in COMPILATIONS) or None


def optimizer_dtype(trainer: Any) -> str | None:
    """Return the dtype of Adam's first moment; None before the first step or with another optimizer."""
    for optimizer in getattr(trainer, "optimizers", None) or ():
        for _, state in getattr(optimizer, "state", {}).items():  # Megatron's stand-in for a dict has no values()
            moment = state.get("exp_avg") if isinstance(state, Mapping) else None
            if moment is not None:
                return dtype_name(moment.dtype)
    return None


def batch_shape(batch: Any) -> tuple[int, int] | None:
    """Return (sequences, tokens per sequence) of one batch of token ids; None where the batch is something else.

    It is the shape of the token ids in a dictionary, or of the first two-dimensional integer tensor in a tuple or list;
    an array of NumPy counts as a tensor. A nested tensor, whose sequences differ in length, has no such shape.
    """
    if isinstance(batch, Mapping):
        return next((batch_shape(batch[name]) for name in _TOKENS if name in batch), None)
    if isinstance(batch, (tuple, list)):
        return next((shape for part in batch if (shape := batch_shape(part))), None)
    if getattr(batch, "ndim", None) != 2 or getattr(batch, "is_nested", False) or not _holds_integers(batch):
        return None
    return int(batch.shape[0]), int(batch.shape[1])


def _holds_integers(batch: Any) -> bool:
    if hasattr(batch, "is_floating_point"):
        return not batch.is_floating_point()
    return getattr(getattr(batch, "dtype", None), "kind", None) in ("i", "u")  # NumPy's


def describe_model(module: Any, *, sharded: bool) -> tuple[Model, list[Notice]]:
    """Return name, shape and parameter count of a training module, and notices about them.

    The shape comes from the module's own configuration. If this rank holds every parameter, a shape that contradicts
    their number is left out. sharded: this rank holds only a part, so that the parameters are not counted.
    """
    counted = None if sharded else sum(parameter.numel() for parameter in module.parameters()) or None
    trains = None if counted is None else sum(part.numel() for part in module.parameters() if part.requires_grad)
    config = next(_configs(module), None)
    shape, expected = (None, None) if config is None else _shape(config, getattr(module, "tokenizer", None))
    name = _name(config, module)
    if shape is None:
        return Model(name=name, parameters=counted, trainable_parameters=trains), []
    if counted is not None and counted != expected:
        notice = Notice("shape_unconfirmed", "model", counted=counted, expected=expected)
        return Model(name=name, parameters=counted, trainable_parameters=trains), [notice]
    return Model(name=name, shape=shape, parameters=expected, trainable_parameters=trains), []


def _configs(module: Any) -> Iterator[Any]:
    """Yield the configurations of the module and of its parts, outermost first."""
    for part in module.modules():
        config = getattr(part, "config", None)
        if config is not None and _whole(config, *SHAPE_SPELLINGS["num_layers"]):
            yield config


def _shape(config: Any, tokenizer: Any) -> tuple[ModelShape | None, int | None]:
    """Return the model's shape and its number of parameters; None if the configuration does not state them.

    A configuration of transformers is read by its architecture, any other (NeMo, Megatron) by its attributes.
    tokenizer: gives the vocabulary size if the configuration does not (NeMo).
    """
    entries = getattr(config, "to_dict", None)
    if getattr(config, "model_type", None) in FAMILIES and callable(entries):
        return _of_transformers(entries())
    if _whole(config, *MIXED) or any(getattr(config, name, None) for name in DIFFERING):
        return None, None
    numbers = {field: _whole(config, *spellings) for field, spellings in SHAPE_SPELLINGS.items()}
    numbers["vocab_size"] = numbers["vocab_size"] or _whole(tokenizer, "vocab_size")
    if numbers["head_dim"] is None and numbers["hidden_size"] and numbers["num_attention_heads"]:
        numbers["head_dim"] = numbers["hidden_size"] // numbers["num_attention_heads"]
    window = _whole(config, "sliding_window", "window_size") or _tokens_before(getattr(config, "window_size", None))
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    tied = getattr(config, "tie_word_embeddings", getattr(config, "share_embeddings_and_output_weights", False))
    bias = getattr(config, "attention_bias", getattr(config, "add_qkv_bias", False))
    try:
        shape = ModelShape.model_validate(
            {
                **numbers,
                "gated_mlp": bool(getattr(config, "gated_linear_unit", True)),
                "attention_bias": bool(bias),
                "tied_embeddings": bool(tied),
                "sliding_window": window,
            }
        )
    except ValidationError:  # a configuration of something else than a decoder-only transformer
        return None, None
    return shape, presets.parameters(shape)


def _of_transformers(config: Mapping[str, Any]) -> tuple[ModelShape | None, int | None]:
    """Return the shape and the number of parameters that a transformers configuration states; None for unknown ones."""
    try:
        decoder = decoders.decoder_of(config)
        return huggingface.of_decoder(decoder, config), decoder.parameters
    except UsageError:
        return None, None


def _name(config: Any, module: Any) -> str | None:
    words = (str(word).lower() for word in (getattr(config, "model_type", ""), type(module).__name__))
    return next((name for word in words for name in MODELS if name in word), None)


def _whole(owner: Any, *names: str) -> int | None:
    """Return the first of the named attributes that is a positive whole number; None if none is."""
    for name in names:
        value = getattr(owner, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _tokens_before(window: Any) -> int | None:
    """Return the first number of Megatron's window (tokens before, tokens after) if it is a limit, else None."""
    if isinstance(window, (tuple, list)) and window and isinstance(window[0], int) and window[0] > 0:
        return window[0]
    return None
