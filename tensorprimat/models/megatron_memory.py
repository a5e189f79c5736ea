"""Device memory that training by Megatron Core needs (NeMo, Megatron-Bridge, Primus), estimated before anything runs.

Weights and optimizer state follow Megatron's distributed optimizer (Megatron-LM, docs/source/api-guide/
dist_optimizer.md, and training/theoretical_memory_usage.py at 00caa53): it splits the state over data and context
parallel ranks. Activations are those that one layer of Megatron Core 0.15 hands to backward with Transformer Engine's
norms and a flash kernel, counted in tests/nemo_env/test_megatron_memory.py. Without gate, grouped queries and dropout
they are the 32 bytes per token and hidden unit of Korthikanti et al., Reducing Activation Recomputation in Large
Transformer Models (arXiv:2205.05198, 2022), section 4.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tensorprimat.core import settings
from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import ModelShape
from tensorprimat.core.spec import RunSpec
from tensorprimat.models import presets
from tensorprimat.models.memory_estimate import CONTEXT_BYTES, MemoryEstimate, smaller_micro_batches

Estimator = Callable[[RunSpec], MemoryEstimate | None]
"""Function that returns the memory of one device for a spec; None where that is not modelled."""
WEIGHT_BYTES = 2  # BF16; in FP8 a copy by rows and one by columns, of one byte each
GRADIENT_BYTES = 2  # reduced in BF16, as NVIDIA's performance settings have it; 4 where they are reduced in float32
STATE_BYTES = 12  # float32 weights and both moments of Adam, split over the ranks
COPIED_GRADIENT_BYTES = 4  # float32 gradients that the optimizer steps with, split over the ranks
BF16_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class RankLayout:
    """Ranks that share one model, and how."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    data: int = 1
    virtual_pipeline: int = 1
    """Parts of the layers that one pipeline stage holds (interleaved schedule)."""

    def in_flight(self, micro_batches: int, *, stage: int = 0) -> float:
        """Return the micro-batches whose activations a pipeline stage (0 is the first) holds at most.

        Of p stages, stage s runs p − s − 1 forward passes before it alternates with backward. With v virtual stages it
        runs 2(p − s − 1) + (v − 1)p passes of a v-th of its layers (Megatron Core, pipeline_parallel/schedules.py). One
        more is in flight, and never more than all of a step. On the first stage, the interleaved schedule holds
        1 + (p − 1)/(p·v) times as much (Korthikanti et al., section 4.2.3).
        """
        parts, later = self.virtual_pipeline, self.pipeline - stage - 1
        ahead = 2 * later + (parts - 1) * self.pipeline if parts > 1 else later
        return min(ahead + 1, micro_batches * parts) / parts


def megatron_kept_bytes_per_token(shape: ModelShape, *, fp8: bool) -> float:
    """Return the bytes that one layer keeps of one token for backward.

    Both norms and each linear layer keep their input. Fused attention keeps the rotated queries and keys, the
    projection of which the values are a view, and its output. The activation keeps the MLP's first product. In FP8 a
    linear layer keeps its input in one byte per number, in addition to what other operations keep of it.
    """
    hidden, feed_forward = shape.hidden_size, shape.ffn_hidden_size
    queries = shape.num_attention_heads * shape.head_dim
    pair = shape.num_key_value_heads * shape.head_dim
    rotated_and_projected = (queries + pair) + (queries + 2 * pair)
    first = (2 if shape.gated_mlp else 1) * feed_forward  # the MLP's first product, of which the activation is computed
    others = 2 * hidden + rotated_and_projected + queries + first
    linear_inputs = 2 * hidden + feed_forward  # attention already keeps its output, the fourth
    return float(BF16_BYTES * others + (linear_inputs + queries if fp8 else BF16_BYTES * linear_inputs))


def of_layout(
    shape: ModelShape,
    layout: RankLayout,
    *,
    micro_batch_size: int,
    sequence_length: int,
    micro_batches: int = 1,
    fp8: bool = False,
    recomputed_layers: int = 0,
    gradient_bytes: int = GRADIENT_BYTES,
    state_bytes: int = STATE_BYTES + COPIED_GRADIENT_BYTES,
    logit_bytes: int = BF16_BYTES,
) -> MemoryEstimate:
    """Return the memory of the fullest rank when backward of its first micro-batch begins.

    recomputed_layers: of each stage, those of which only the input is kept. state_bytes: optimizer state of one
    parameter over all ranks that share it. logit_bytes: of one logit; the fused loss overwrites the BF16 logits.
    """
    tokens = micro_batch_size * sequence_length / layout.context
    embedding = presets.embedding_parameters(shape)
    ends = 1 if shape.tied_embeddings or layout.pipeline > 1 else 2  # embedding and head; one if tied or split
    layers = presets.parameters(shape) - embedding * (1 if shape.tied_embeddings else 2)
    parameters = (layers / layout.pipeline + ends * embedding) / layout.tensor
    # With sequence parallelism, norms are split over the tensor-parallel ranks too.
    token_bytes = megatron_kept_bytes_per_token(shape, fp8=fp8) / layout.tensor
    input_bytes = BF16_BYTES * shape.hidden_size / layout.tensor
    here = shape.num_layers / layout.pipeline
    again = min(float(recomputed_layers), here)
    gate_and_up = (2 if shape.gated_mlp else 1) * shape.ffn_hidden_size
    largest_gradient = BF16_BYTES * gate_and_up / layout.tensor
    one_layer = tokens * (largest_gradient + (token_bytes if again else 0.0))

    def stage(*, held: float, is_last: bool) -> MemoryEstimate:
        """Return the memory of a rank of one pipeline stage. held: micro-batches in flight."""
        logits = logit_bytes * tokens * shape.vocab_size / layout.tensor if is_last else 0.0
        return MemoryEstimate(
            weights=WEIGHT_BYTES * parameters,
            gradients=gradient_bytes * parameters,
            optimizer=state_bytes * parameters / (layout.data * layout.context),
            activations=held * tokens * ((here - again) * token_bytes + again * input_bytes),
            workspace=max(logits, one_layer) + CONTEXT_BYTES,
        )

    first = stage(held=layout.in_flight(micro_batches), is_last=layout.pipeline == 1)
    held_last = layout.in_flight(micro_batches, stage=layout.pipeline - 1)
    last = stage(held=held_last, is_last=True) if layout.pipeline > 1 else first
    return max(first, last, key=lambda one: one.total)


@dataclass(frozen=True, kw_only=True)
class RecipeRecomputation:
    """Recomputation that a recipe of a vendor sets, where the spec requests none."""

    model: str
    precision: str
    num_gpus: int
    gpus: tuple[str, ...]
    """The recipe applies to a GPU whose name contains one of these texts."""
    layers: int
    """Number of layers whose activations are recomputed."""


@dataclass(frozen=True, kw_only=True)
class MegatronCore:
    """Megatron Core as an engine configures it: how it splits a model, and the memory of one device."""

    exchanges_heads: bool = False
    """True if context-parallel ranks exchange attention heads in models with a window (cp_comm_type "a2a")."""
    steps_with_bf16_gradients: bool = False
    """True if, in BF16, the optimizer uses the BF16 gradients, without a float32 copy of them."""
    recomputes: tuple[RecipeRecomputation, ...] = ()

    def recomputed_by_recipe(self, spec: RunSpec, device_name: str | None) -> int:
        """Return the layers that the vendor's recipe recomputes where the spec requests no recomputation."""
        for one in self.recomputes if spec.recompute == "none" else ():
            same = (one.model, one.precision, one.num_gpus) == (spec.model, spec.precision, spec.num_gpus)
            if same and any(gpu in (device_name or "") for gpu in one.gpus):
                return one.layers
        return 0

    def recomputed_share(self, spec: RunSpec, device_name: str | None = None) -> float:
        """Return the share of the layers whose forward pass runs again in backward, by flag or by NVIDIA's recipe."""
        if spec.recompute == "full":
            return 1.0
        layers = presets.find_preset(spec.model, spec.preset).shape.num_layers
        return self.recomputed_by_recipe(spec, device_name) / layers

    def forbids_context_parallel(self, spec: RunSpec) -> bool:
        """Return True if the model's attention window is shorter than the sequence, and the engine cannot split it.

        Megatron Core splits no such sequence over context-parallel ranks by default: Transformer Engine then exchanges
        keys and values point to point, and allows no window (Megatron-LM, pull requests 1160, 2024-09, and 5597,
        2026-07). NeMo's Mistral exchanges attention heads instead, which allows one (cp_comm_type "a2a" of
        MistralConfig7B, 2.7.3).
        """
        if self.exchanges_heads:
            return False
        window = presets.find_preset(spec.model, spec.preset).shape.sliding_window
        return window is not None and window < spec.sequence_length

    def uneven_split(self, spec: RunSpec) -> tuple[tuple[str, ...], str, int] | None:
        """Return the parallel sizes by which Megatron Core cannot divide the model, the parts that they divide
        ("layers"), and the number of these parts; None if every size divides the model.

        Megatron Core 0.15 divides key-value heads by the tensor parallel size and layers by the pipeline's. Transformer
        Engine divides the heads by the context parallel size, too, where ranks exchange heads (see
        `forbids_context_parallel`).
        """
        shape = presets.find_preset(spec.model, spec.preset).shape
        by_context = self.exchanges_heads and shape.sliding_window is not None and spec.context_parallel_size > 1
        of_heads = ["tensor_model_parallel_size", *["context_parallel_size"] * by_context]
        parts = (of_heads, "key-value heads", shape.num_key_value_heads)
        for names, what, count in (parts, (["pipeline_model_parallel_size"], "layers", shape.num_layers)):
            if count % math.prod(getattr(spec, name) for name in names):
                return tuple(name for name in names if getattr(spec, name) > 1), what, count
        return None

    def estimate(self, spec: RunSpec, device_name: str | None = None) -> MemoryEstimate:
        """Return the memory of one device for a spec with NVIDIA's performance settings."""
        shape = presets.find_preset(spec.model, spec.preset).shape
        aware = self.steps_with_bf16_gradients and spec.precision == "bf16"
        recomputed = self.recomputed_by_recipe(spec, device_name)
        return of_layout(
            shape,
            RankLayout(
                tensor=spec.tensor_model_parallel_size,
                pipeline=spec.pipeline_model_parallel_size,
                context=spec.context_parallel_size,
                data=spec.data_parallel_size,
            ),
            micro_batch_size=spec.micro_batch_size,
            sequence_length=spec.sequence_length,
            micro_batches=spec.gradient_accumulation_steps,
            fp8=spec.precision == "fp8",
            recomputed_layers=shape.num_layers if spec.recompute == "full" else recomputed,
            state_bytes=STATE_BYTES + (0 if aware else COPIED_GRADIENT_BYTES),
        )

    def remedies(self, spec: RunSpec, memory_bytes: float, *, estimate: Estimator) -> list[str]:
        """Return at most two flags that make the spec fit into the device's memory, each alone, the fastest first.

        estimate: the engine's own estimate of one device's memory.
        """
        candidates: list[tuple[str, int | str]] = [
            *(("context_parallel_size", size) for size in (() if self.forbids_context_parallel(spec) else (2, 4))),
            *(("tensor_model_parallel_size", size) for size in (2, 4, 8)),
            ("recompute", "full"),
            *(("pipeline_model_parallel_size", size) for size in (2, 4, 8)),
            *(("micro_batch_size", size) for size in smaller_micro_batches(spec.micro_batch_size)),
            *(("sequence_length", spec.sequence_length // part) for part in (2, 4)),
        ]
        fitting: dict[str, str] = {}
        for name, value in candidates:
            changed = spec.changed(**{name: value})
            is_new = name not in fitting and value != getattr(spec, name)
            if is_new and self._fits(changed, memory_bytes, estimate):
                other = " (other work)" if name == "sequence_length" else ""
                fitting[name] = f"{settings.flag(name)} {value}{other}"
        return list(fitting.values())[:2]

    def _fits(self, spec: RunSpec, memory_bytes: float, estimate: Estimator) -> bool:
        try:
            spec.check()
        except UsageError:
            return False
        needed = None if self.uneven_split(spec) else estimate(spec)
        return needed is not None and needed.total <= memory_bytes
