"""The language models of the torch engine: transformers' own classes with random weights; nothing is downloaded."""

from __future__ import annotations

import importlib
import logging
import os
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from tensorprimat.core.configured import ConfiguredModel
from tensorprimat.core.models import Preset
from tensorprimat.engines.torch import attention as torch_attention
from tensorprimat.engines.torch.cross_entropy import linear_cross_entropy

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_HOMES = {
    "llama": ("llama", "Llama"),
    "course": ("llama", "Llama"),
    "qwen": ("qwen2", "Qwen2"),
    "mistral": ("mistral", "Mistral"),
}
"""Family → package and class prefix in transformers. The ladder of sizes has Llama's architecture."""

ATTENTION = {"sdpa": "sdpa", "eager": "eager", "flash": "flash_attention_2"}
"""--attention → its name in transformers."""
OWN_MASKS = {"gemma2": "attention scores have a soft cap", "gpt_oss": "attention has sinks", "llama4_text": "chunks"}
"""Architectures whose attention `torch_attention.causal_attention` does not compute, with
the feature that prevents it: transformers' own attention runs, with its masks."""
_LOUD_AT_IMPORT = ("torchao", "torch.utils._pytree")
"""Loggers that warn of kernels for other GPUs and of torchao's older calls when transformers imports torchao."""
_WITHOUT_SDPA = ("gemma2", "gpt_oss")
LEARNING_RATE = 3e-4  # Llama 2 7B, table 1 of arXiv:2307.09288
_BETAS = (0.9, 0.95)  # as there
_WEIGHT_DECAY = 0.1


def configuration(preset: Preset, *, attention: str = "sdpa", sequence_length: int | None = None) -> Any:
    """Return the transformers configuration of a preset.

    attention: sdpa, eager or flash.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # random weights: no reason ever to call out
    package, prefix = _HOMES[preset.model]
    module = importlib.import_module(f"transformers.models.{package}.configuration_{package}")
    shape = preset.shape
    particular: dict[str, Any] = {"head_dim": shape.head_dim}
    if preset.model == "qwen":
        particular = {"use_sliding_window": False}
    elif preset.model == "mistral":
        particular["sliding_window"] = shape.sliding_window
    else:
        particular["attention_bias"] = shape.attention_bias
    return getattr(module, f"{prefix}Config")(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.ffn_hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        max_position_embeddings=max(preset.max_position_embeddings, sequence_length or 0),
        rms_norm_eps=preset.rms_norm_eps,
        rope_theta=preset.rope_theta,
        tie_word_embeddings=shape.tied_embeddings,
        use_cache=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation=(torch_attention.register() if attention == "sdpa" else None) or ATTENTION[attention],
        **particular,
    )


def attention_of(kind: str, attention: str, device_type: str) -> str:
    """Return transformers' name of the attention that a configured model runs with.

    Soft caps and sinks are in no SDPA kernel: FlexAttention computes them on a GPU, plain products on a CPU.
    """
    if attention == "sdpa" and kind in _WITHOUT_SDPA:
        return "flex_attention" if device_type == "cuda" else "eager"
    own = torch_attention.register() if attention == "sdpa" and kind not in OWN_MASKS else None
    return own or ATTENTION[attention]


def _configured_model(model: ConfiguredModel, attention: str, sequence_length: int | None) -> Any:
    """Return transformers' causal language model of a configuration, with random weights."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    config = AutoConfig.for_model(**model.config)
    config.max_position_embeddings = max(model.max_position_embeddings, sequence_length or 0)
    config._attn_implementation = attention_of(model.decoder.kind, attention, torch.get_default_device().type)
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config)


def causal_model(
    preset: Preset | ConfiguredModel, *, attention: str = "sdpa", sequence_length: int | None = None
) -> Any:
    """Return the transformers causal language model of a preset, with random weights."""
    for name in _LOUD_AT_IMPORT:
        logging.getLogger(name).setLevel(logging.ERROR)
    if isinstance(preset, ConfiguredModel):
        return _configured_model(preset, attention, sequence_length)
    config = configuration(preset, attention=attention, sequence_length=sequence_length)
    package, prefix = _HOMES[preset.model]
    module = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
    return getattr(module, f"{prefix}ForCausalLM")(config)


class LanguageModel(nn.Module):  # type: ignore[misc]
    """A causal language model that returns its loss; the logits of the whole batch never exist."""

    def __init__(
        self, preset: Preset | ConfiguredModel, *, attention: str = "sdpa", sequence_length: int | None = None
    ) -> None:
        super().__init__()
        self.causal = causal_model(preset, attention=attention, sequence_length=sequence_length)
        own_attention = self.causal.config._attn_implementation == torch_attention.CAUSAL_SDPA
        self._windows = _windows(preset) if own_attention else None  # transformers' own attention builds its own mask
        _fuse_norms(self.causal)
        self._rotary = [
            (part, name, buffer.float())
            for part in self.causal.modules()
            for name, buffer in part.named_buffers(recurse=False)
            if name.endswith("inv_freq")  # one of each kind of layer in Gemma 3
        ]

    @property
    def decoder(self) -> Any:
        """Embedding, layers and last norm."""
        return self.causal.model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of predicting each token but the first; tokens: (sequences, length + 1)."""
        config, head = self.causal.config, self.causal.lm_head
        scale = (getattr(config, "logit_scale", None) or 1) / (getattr(config, "logits_scaling", None) or 1)
        hidden = self.hidden(tokens[:, :-1])
        return linear_cross_entropy(
            hidden if scale == 1 else hidden * scale,  # of the logits (Command R, Granite)
            head.weight,
            tokens[:, 1:].flatten(),
            bias=head.bias,
            soft_cap=getattr(config, "final_logit_softcapping", None),
        )

    def _mask(self, tokens: torch.Tensor) -> Any:
        """Return the attention mask that the model takes: one, or one of each kind of layer."""
        if not isinstance(self._windows, dict):
            return torch_attention.mask_of(self._windows, tokens.shape[1], tokens.device)
        return {
            kind: torch_attention.mask_of(window, tokens.shape[1], tokens.device)
            for kind, window in self._windows.items()
        }

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the last hidden states, (sequences × length, hidden size); tokens: (sequences, length)."""
        states: torch.Tensor = self.decoder(
            input_ids=tokens, attention_mask=self._mask(tokens), use_cache=False
        ).last_hidden_state
        return states.flatten(0, 1)

    def restore_rotary(self) -> None:
        """Rotary frequencies back in float32: bfloat16 rounds them, and distant positions become inexact."""
        for part, name, frequencies in self._rotary:
            setattr(part, name, frequencies.to(getattr(part, name).device))

    def recompute_activations(self, *, every: int = 1) -> None:
        """Keep only the input of every layer, or of every second, and compute the rest again in backward."""
        newer = getattr(self.causal, "activation_checkpointing_enable", None)  # the older name goes with transformers 6
        (newer or self.causal.gradient_checkpointing_enable)({"use_reentrant": False})
        for position, layer in enumerate(self.decoder.layers):
            layer.gradient_checkpointing = position % every == 0

    def compile_layers(self, *, cuda_graphs: bool = False) -> None:
        """Compile each decoder layer in place; the names of parameters stay.

        The layers share one compiled graph, so that compiling takes as long for 80 layers as for one, and FSDP's hooks
        between the layers stay outside of it. cuda_graphs: record the kernels of each layer; no training does that yet,
        perf/mfu_ladder.py measures the gain.
        """
        for layer in self.decoder.layers:
            layer.compile(dynamic=False, options={"triton.cudagraphs": True} if cuda_graphs else None)

    def shard(self, mesh: DeviceMesh, *, reshard: bool = True) -> None:
        """Split the parameters over the data-parallel ranks (FSDP2), layer by layer, each gathered one layer ahead.

        reshard: free a layer's gathered weights after forward; False keeps them for backward.
        """
        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError:  # torch 2.4 and 2.5 have it under its earlier name
            from torch.distributed._composable.fsdp import fully_shard

        layers = list(self.decoder.layers)
        for layer in layers:
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(self, mesh=mesh)
        for layer, following in pairwise(layers):
            if hasattr(layer, "set_modules_to_forward_prefetch"):  # from torch 2.5 on
                layer.set_modules_to_forward_prefetch([following])
                following.set_modules_to_backward_prefetch([layer])
        if mesh.device_type == "cuda":
            torch.cuda.empty_cache()  # the whole model is freed, and must not count as reserved


def _windows(preset: Preset | ConfiguredModel) -> int | dict[str, int | None] | None:
    """Return the sliding window, or one for each kind of layer where the layers of the model are of several kinds."""
    if not isinstance(preset, ConfiguredModel):
        return preset.shape.sliding_window
    kinds, layers = preset.config.get("layer_types"), preset.decoder.layers
    if not kinds:
        return layers[0].window
    return {kind: layer.window for kind, layer in zip(kinds, layers, strict=True)}


def adamw(model: nn.Module, *, fused: bool, learning_rate: float = LEARNING_RATE) -> torch.optim.AdamW:
    """Return AdamW without decay of vectors (norms, biases)."""
    decayed = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": decayed, "weight_decay": _WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=_BETAS, fused=fused)


def has_fused_norm(device_type: str) -> bool:
    """Return True if torch has one kernel for RMS norm on this kind of device (CUDA and ROCm from torch 2.9 on).

    Elsewhere torch.nn.RMSNorm is composed of several operations.
    """
    if device_type != "cuda" or not hasattr(torch.ops.aten, "_fused_rms_norm"):
        return False
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key("aten::_fused_rms_norm", "CUDA"))


def _fuse_norms(model: nn.Module) -> None:
    """Replace transformers' RMS norm, five kernels, by torch's (see `has_fused_norm`); weights keep their names."""
    for parent in list(model.modules()):
        for name, norm in parent.named_children():
            if type(norm).__name__.endswith("RMSNorm") and hasattr(norm, "variance_epsilon"):  # Gemma's adds one
                setattr(parent, name, nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon))
