"""The Lightning module of the torch engine: one batch is one optimizer step's work on this rank.

Optimization is manual, so that Lightning's loop runs once per optimizer step. Otherwise gradient accumulation would
multiply Lightning's work per batch and, on several ranks, the flag that it exchanges before every batch, which waits
for the device.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.strategies.strategy import Strategy
from lightning.pytorch.utilities.types import OptimizerLRScheduler

from tensorprimat.core.notices import Notice
from tensorprimat.core.result import Model, TrainingConfig
from tensorprimat.core.spec import RunSpec
from tensorprimat.engines import introspect, profiling
from tensorprimat.engines.torch import attention as torch_attention
from tensorprimat.engines.torch import data as torch_data
from tensorprimat.engines.torch import fp8, linear, observations
from tensorprimat.engines.torch.model import LanguageModel
from tensorprimat.engines.torch.optimizer import LEARNING_RATE, adamw
from tensorprimat.machine.environment import has_fused_norm
from tensorprimat.models.custom import model_of
from tensorprimat.models.training_memory import KEPT_FP8

LEARNING_RATES = {"tiny": 3e-3}
"""Preset → learning rate, where that of a 7B model would not reduce the loss visibly in a few dozen steps."""
GRADIENT_CLIP = 1.0
OTHER_KERNELS = {torch_attention.EAGER: "math", torch_attention.FLEX_ATTENTION: torch_attention.FLEX}
"""transformers' name of an attention that is not SDPA → its kernel in a result."""
COMPUTE_DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
                  "fp8": torch.bfloat16}  # fmt: skip


class TrainingModule(LightningModule):  # type: ignore[misc]
    """The training of a spec's model: forward, backward, gradient accumulation, clipping and AdamW."""

    def __init__(self, spec: RunSpec) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.network: LanguageModel | None = None
        self.preset = model_of(spec)
        self.learning_rate = LEARNING_RATES.get(self.preset.name, LEARNING_RATE)
        self._spec = spec
        self._operations: Counter[str] = Counter()

    def train_dataloader(self) -> Any:
        """Return a loader of this rank's part of the synthetic stream; one batch is one optimizer step."""
        spec = self._spec
        batches = torch_data.StepBatches(
            torch_data.TokenStream(vocabulary_size=self.preset.decoder.vocab_size, seed=spec.seed),
            micro_batch_size=spec.micro_batch_size,
            accumulation=spec.gradient_accumulation_steps,
            sequence_length=spec.sequence_length,
            rank=self.trainer.global_rank,
            replicas=spec.data_parallel_size,
        )
        return torch_data.loader(batches, pinned=spec.platform != "cpu")

    def configure_model(self) -> None:
        """Build the model on the device and in the precision that Lightning sets, with equal weights on every rank."""
        if self.network is not None:
            return
        spec = self._spec
        torch.manual_seed(spec.seed)
        recipe = fp8.recipe_of(spec)
        convert = partial(fp8.convert_layers, recipe=recipe, kept=KEPT_FP8 in spec.options) if recipe else None
        with self.trainer.strategy.root_device:  # not on the host, where 8 billion random numbers take a minute
            self.network = LanguageModel(
                self.preset,
                attention=spec.attention_backend or "sdpa",
                sequence_length=spec.sequence_length,
                layers_later=self.device_mesh is not None,
            )
            if self.device_mesh is not None:
                self.network.shard(
                    self.device_mesh["data_parallel"],
                    reshard=spec.reshard,
                    gathered=torch.bfloat16 if spec.master_weights else None,
                    convert=convert,
                )
            elif convert is not None:
                convert(self.network.decoder.layers)
        if spec.recompute != "none":
            self.network.recompute_activations(spec.recompute)
        if spec.compile:
            self.network.compile_layers()

    def configure_optimizers(self) -> OptimizerLRScheduler:
        return adamw(
            self, learning_rate=self.learning_rate, fused=self._has_fused_adamw, compiled=self._has_compiled_adamw
        )

    def cpu(self) -> TrainingModule:
        """Return the module as it is: Lightning would move it to the host after training, where nothing reads it."""
        return self

    def on_fit_start(self) -> None:
        assert self.network is not None
        self.network.restore_rotary()

    def benchmark_config(self) -> dict[str, str | None]:
        """Return the settings that the trainer does not know, as fields of TrainingConfig."""
        spec = self._spec
        fused = [
            *(["RMS norm"] if self._has_fused_norm else []),
            *(self._fused_by_compiling() if spec.compile else []),
            "linear cross-entropy",
            *(["FP8 weights once per step"] if KEPT_FP8 in spec.options else []),
            *(["compiled AdamW"] if self._has_compiled_adamw else ["AdamW"] if self._has_fused_adamw else []),
        ]
        return {
            "precision": spec.precision,  # Lightning states neither FP8 nor the type to which FSDP casts weights
            "compute_dtype": introspect.DTYPE_NAMES[spec.precision],
            "strategy": None if spec.reshard else "fsdp, weights kept after forward",
            "fused_kernels": ", ".join(fused),
            "attention_kernel": self._attention_kernel(spec),
        }

    def benchmark_observed(self, planned: TrainingConfig) -> tuple[dict[str, Any], list[Notice]]:
        """Return the settings that ran differently from the plan, as fields of TrainingConfig, and notices."""
        layers = 0 if self.network is None else len(self.network.decoder.layers)
        return observations.observed_settings(self._operations, planned, layers=layers)

    @property
    def _has_fused_norm(self) -> bool:
        """Return True if the model's norms are torch's, as one kernel; Gemma has norms of its own."""
        own = self.network is not None and not any(
            isinstance(part, torch.nn.RMSNorm) for part in self.network.modules()
        )
        return has_fused_norm(self.device.type) and not own

    def _fused_by_compiling(self) -> list[str]:
        """Return the operations that torch.compile fuses into one kernel each; on a CPU, RoPE remains three kernels."""
        shape = self.preset.shape
        if shape is None or not shape.gated_mlp or shape.experts or shape.latent_attention:
            return []
        config = self.preset.config
        activation = config.get("hidden_activation") or config.get("hidden_act", "silu")
        gated = "SwiGLU" if activation == "silu" else "GeGLU"  # Gemma
        return [gated] if self.device.type == "cpu" else ["RoPE", gated]

    def benchmark_model(self) -> Model:
        """Return the facts of the model."""
        preset, length = self.preset, self._spec.sequence_length
        return Model(
            shape=preset.shape,
            parameters=preset.parameters,
            trainable_parameters=preset.parameters,
            training_flops_per_token=None if preset.shape else round(preset.decoder.flops_per_token([length])),
        )

    def _attention_kernel(self, spec: RunSpec) -> str | None:
        if spec.attention_backend == "eager":
            return "math"
        if spec.attention_backend == "flash":
            return "flash 3" if torch_attention.flash_package() == torch_attention.FLASH_3 else "flash"
        if self.network is not None:
            chosen = self.network.causal.config._attn_implementation
            if chosen in OTHER_KERNELS:
                return OTHER_KERNELS[chosen]
        if self.preset.shape is None:
            return None
        return torch_attention.kernel(
            self.preset.shape,
            batch=spec.micro_batch_size,
            sequence_length=spec.sequence_length,
            dtype=COMPUTE_DTYPES[spec.precision],
            device=self.device,
        )

    @property
    def _has_fused_adamw(self) -> bool:
        return self._spec.precision != "fp16"  # fused AdamW would unscale the gradients after they are clipped

    @property
    def _has_compiled_adamw(self) -> bool:
        """Return True if compiled kernels update the weights; a CPU's fused kernel needs no compiler."""
        plain = all(type(one) is torch.nn.Parameter or hasattr(one, "to_local") for one in self.parameters())
        return self._spec.compile and self._has_fused_adamw and self.device.type == "cuda" and plain

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> dict[str, torch.Tensor]:
        """Train on tokens of shape (micro-batches, sequences, length + 1); return their mean loss over all ranks."""
        optimizer = self.optimizers()
        *others, last = batch.unbind(0)
        losses: list[torch.Tensor] = []
        if KEPT_FP8 in self._spec.options:
            assert self.network is not None
            with self._range("weights to FP8"):
                linear.keep_quantised(linear.linear_layers(self.network.decoder.layers), compiled=self._spec.compile)
        for tokens in others:
            with self._gradients_stay_local():
                losses.append(self._forward_backward(tokens, parts=len(batch)))
        with self._operations_recorded(batch_idx):
            losses.append(self._forward_backward(last, parts=len(batch)))
            with self._range("optimizer"):
                optimizer.step()
        optimizer.zero_grad()
        loss = torch.stack(losses).mean()
        if self.trainer.world_size > 1:  # not by Lightning's reduce, whose barrier makes the host wait
            torch.distributed.all_reduce(loss)
            loss /= self.trainer.world_size
        return {"loss": loss}

    def _forward_backward(self, tokens: torch.Tensor, *, parts: int) -> torch.Tensor:
        """Add the gradients of one of `parts` micro-batches, shape (sequences, length + 1); return its loss."""
        assert self.network is not None
        with self._range("micro-batch"):
            with self._range("forward"):
                loss = self.network(tokens)
            with self._range("backward"):
                self.manual_backward(loss / parts)
        detached: torch.Tensor = loss.detach()
        return detached

    def _range(self, name: str) -> Any:
        """Return a context that marks a part of the step in a profile (--profile torch); else it does nothing."""
        return torch.profiler.record_function(name) if profiling.STEM in self._spec.options else nullcontext()

    def _operations_recorded(self, step: int) -> Any:
        """Return a context that records the operations of one warm-up step on rank 0, but not in a profiled run."""
        spec = self._spec
        records = step == observations.STEP < spec.warmup_steps and profiling.STEM not in spec.options
        return observations.recording(self._operations) if records and self.global_rank == 0 else nullcontext()

    def _gradients_stay_local(self) -> Any:
        """Return a context without gradient exchange, for all micro-batches but the last (DDP).

        FSDP exchanges after every micro-batch, because a rank has memory for its own shard only.
        """
        block = getattr(self.trainer.strategy, "block_backward_sync", nullcontext)
        return block()

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.clip(GRADIENT_CLIP)


class _EndsInPlace(Strategy):
    """A strategy that leaves the optimizer state on the device when training ends.

    Lightning copies it and the weights to the host after `fit`, and also after an exception: 64 GB for Llama 3.1 8B,
    which took 30 s on an H200 and needs as much host memory. Nothing reads the copy, because the process ends.
    `TrainingModule.cpu` prevents that of the weights. Lightning's strategy for FSDP2 copies nothing.
    """

    def teardown(self) -> None:
        self.optimizers: list[torch.optim.Optimizer] = []
        super().teardown()


class OneDevice(_EndsInPlace, SingleDeviceStrategy):
    """Training on one device."""


class Replicas(_EndsInPlace, DDPStrategy):
    """Training of replicas, one per device, whose gradients are averaged (DDP)."""
