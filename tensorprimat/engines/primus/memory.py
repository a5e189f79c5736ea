"""Estimate of the device memory that Megatron Core needs for a Primus configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorprimat.core.result import ModelShape
from tensorprimat.core.spec import RunSpec
from tensorprimat.core.units import NUMBER_BYTES
from tensorprimat.engines.primus.config import effective
from tensorprimat.engines.primus.spec import CONFIG_OPTION, ROOT_OPTION, changed_settings, confirmed_shape
from tensorprimat.models import megatron_memory
from tensorprimat.models.memory_estimate import MemoryEstimate

UNMODELLED = (
    "use_torch_fsdp2",
    "use_megatron_fsdp",
    "use_custom_fsdp",
    "optimizer_cpu_offload",
    "cpu_offloading",
    "patch_zero_bubble",
    "num_experts",
    "multi_latent_attention",
)
"""Settings of Megatron and Primus whose effect on memory is not modelled."""
LOSS_WITHOUT_FUSION = 2 + 4
"""Bytes per logit without fused cross-entropy: the logit in BF16, and its softmax in float32 for backward."""


def estimate(spec: RunSpec, _device_name: str | None = None) -> MemoryEstimate | None:
    """Return the estimated memory of one GPU with the configuration that will run.

    None where a file that the configuration builds on is missing, where its shape is not the model's, or where it sets
    something that is not modelled: UNMODELLED, recomputation of parts of layers, tensor without sequence parallelism.
    """
    configured = effective(Path(spec.options[CONFIG_OPTION]), root=Path(spec.options[ROOT_OPTION]))
    sets = {**configured.settings, **changed_settings(spec)}
    shape = confirmed_shape(spec)
    recomputed = None if shape is None else _recomputed_layers(sets, _virtual_stages(sets, shape, spec))
    if configured.missing_presets or shape is None or recomputed is None or any(map(sets.get, UNMODELLED)):
        return None
    if spec.tensor_model_parallel_size > 1 and not sets.get("sequence_parallel"):
        return None
    layout = megatron_memory.RankLayout(
        tensor=spec.tensor_model_parallel_size,
        pipeline=spec.pipeline_model_parallel_size,
        context=spec.context_parallel_size,
        data=spec.data_parallel_size,
        virtual_pipeline=_virtual_stages(sets, shape, spec),
    )
    gradient_bytes, state_bytes = _bytes_per_parameter(sets)
    return megatron_memory.of_layout(
        shape,
        layout,
        micro_batch_size=spec.micro_batch_size,
        sequence_length=spec.sequence_length,
        micro_batches=spec.gradient_accumulation_steps,
        fp8=spec.precision == "fp8",
        recomputed_layers=recomputed,
        gradient_bytes=gradient_bytes,
        state_bytes=state_bytes * (1 if sets.get("use_distributed_optimizer") else layout.data * layout.context),
        logit_bytes=megatron_memory.BF16_BYTES if sets.get("cross_entropy_loss_fusion") else LOSS_WITHOUT_FUSION,
    )


def recomputed_share(spec: RunSpec, _device_name: str | None = None) -> float | None:
    """Return the share of the layers (0 to 1) whose forward pass runs again in backward, by the configuration.

    None where it is not known: parts of layers are recomputed, the shape is not the model's, or a file is missing.
    """
    configured = effective(Path(spec.options[CONFIG_OPTION]), root=Path(spec.options[ROOT_OPTION]))
    sets, shape = {**configured.settings, **changed_settings(spec)}, confirmed_shape(spec)
    again = None if shape is None else _recomputed_layers(sets, _virtual_stages(sets, shape, spec))
    if configured.missing_presets or again is None or shape is None:
        return None
    return min(1.0, again * spec.pipeline_model_parallel_size / shape.num_layers)


def _recomputed_layers(sets: Mapping[str, Any], virtual_stages: int) -> int | None:
    """Return the number of layers of a stage that keep only their input; None where parts of layers are recomputed.

    If all layers are recomputed, the number is larger than any model's. With recompute_method "block", Megatron
    recomputes recompute_num_layers layers of each virtual stage (megatron/core/transformer/transformer_block.py).
    """
    granularity = sets.get("recompute_granularity")
    if sets.get("recompute_activations") or granularity == "selective":
        modules = sets.get("recompute_modules") or ["core_attn"]
        return 0 if modules == ["core_attn"] else None  # a flash kernel never keeps scores
    if granularity != "full":
        return 0
    whole = 10**6  # more layers than any model has
    in_a_part = sets.get("recompute_num_layers") if sets.get("recompute_method") == "block" else None
    return int(in_a_part) * virtual_stages if in_a_part else whole


def _virtual_stages(sets: Mapping[str, Any], shape: ModelShape, spec: RunSpec) -> int:
    """Return the number of virtual stages that one pipeline stage holds, from the setting that states it; default 1."""
    stages = sets.get("num_virtual_stages_per_pipeline_rank") or sets.get("virtual_pipeline_model_parallel_size")
    in_a_part = sets.get("num_layers_per_virtual_pipeline_stage")
    layers = shape.num_layers // spec.pipeline_model_parallel_size
    return int(stages or (layers // int(in_a_part) if in_a_part else 1))


def _bytes_per_parameter(sets: Mapping[str, Any]) -> tuple[int, int]:
    """Return the bytes of one parameter's gradient, and of its optimizer state.

    Megatron reduces gradients in float32 unless grad_reduce_in_bf16 is set (megatron/training/arguments.py). The
    optimizer uses that buffer, or a float32 copy of its own share if gradients are in BF16.
    """
    if sets.get("use_precision_aware_optimizer"):
        names = ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
        state = sum(NUMBER_BYTES.get(str(sets.get(name)), NUMBER_BYTES["fp32"]) for name in names)
        return NUMBER_BYTES.get(str(sets.get("main_grads_dtype")), NUMBER_BYTES["fp32"]), state
    if sets.get("grad_reduce_in_bf16"):
        return NUMBER_BYTES["bf16"], megatron_memory.STATE_BYTES + megatron_memory.COPIED_GRADIENT_BYTES
    return NUMBER_BYTES["fp32"], megatron_memory.STATE_BYTES
