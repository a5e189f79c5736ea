"""Shapes of models with experts, latent attention or windows, from their Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from tensorprimat.core import decoders, models
from tensorprimat.core.decoders import Decoder, Layer
from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import ModelShape
from tensorprimat.core.shape_parts import Experts, LatentAttention

ALIKE = {"kimi_k2": "deepseek_v3"}
"""`model_type` → the architecture with the same names and layers."""
SAME_COUNT = 1e-3  # biases, norms, sinks and gates of shared experts of a decoder, which no shape counts


def kinds() -> list[str]:
    """Return the architectures whose configuration is read here."""
    return [*decoders.FAMILIES, *ALIKE]


def of_config(config: Mapping[str, Any]) -> ModelShape:
    """Return the shape that a configuration states. Raises UsageError for layers of kinds that no shape expresses."""
    kind = str(config.get("model_type"))
    if "kv_lora_rank" in config and "first_k_dense_replace" not in config:
        raise UsageError("first_k_dense_replace: is missing")
    decoder = decoders.decoder_of({**config, "model_type": ALIKE.get(kind, kind)})
    if decoder is None:
        raise UsageError(f"model_type {kind!r} is unknown")
    try:
        shape = _shape(decoder, config)
    except ValidationError as error:
        raise UsageError(str(error.errors()[0]["msg"]).lower()) from error
    counts = (models.matrix_parameters(shape) / decoder.active_weights, models.parameters(shape) / decoder.parameters)
    if any(abs(ratio - 1) > SAME_COUNT for ratio in counts):
        raise UsageError(f"the layers of this {kind} differ in a way that a shape cannot express")
    return shape


def _shape(decoder: Decoder, config: Mapping[str, Any]) -> ModelShape:
    layers = decoder.layers
    mixed = [layer for layer in layers if layer.experts]
    dense = [layer for layer in layers if not layer.experts]
    heads = int(config["num_attention_heads"])
    windows = {layer.window for layer in layers} - {None}
    if len(windows) > 1 or any(layer.chunk for layer in layers):
        raise UsageError("its layers have windows of several sizes or chunks, which no shape expresses")
    windowed = sum(layer.window is not None for layer in layers)
    return ModelShape(
        num_layers=len(layers),
        hidden_size=decoder.hidden_size,
        ffn_hidden_size=_common("MLPs", [layer.mlp_width for layer in dense] or [mixed[0].mlp_width]),
        num_attention_heads=heads,
        num_key_value_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=_common("heads", [layer.query_width for layer in layers]) // heads,
        vocab_size=decoder.vocab_size,
        gated_mlp=decoders.FAMILIES[decoder.kind].gated,
        attention_bias=bool(config.get("attention_bias")),
        tied_embeddings=decoder.tied_embeddings,
        sliding_window=windows.pop() if windows else None,
        windowed_layers=windowed if 0 < windowed < len(layers) else None,
        experts=_experts(decoder, mixed) if mixed else None,
        latent_attention=_latent(config) if "kv_lora_rank" in config else None,
    )


def _experts(decoder: Decoder, mixed: Sequence[Layer]) -> Experts:
    count = _common("experts", [layer.experts for layer in mixed])
    matrices = 3 if decoders.FAMILIES[decoder.kind].gated else 2
    width = _common("experts", [layer.expert_weights for layer in mixed]) // (matrices * decoder.hidden_size)
    always = _common("shared experts", [layer.mlp_weights for layer in mixed]) - count * decoder.hidden_size
    return Experts(
        count=count,
        active=_common("experts", [layer.active_experts for layer in mixed]),
        ffn_hidden_size=width,
        shared_ffn_hidden_size=always // (matrices * decoder.hidden_size),
        layers=len(mixed),
    )


def _latent(config: Mapping[str, Any]) -> LatentAttention:
    return LatentAttention(
        query_rank=config.get("q_lora_rank"),
        key_value_rank=config["kv_lora_rank"],
        plain_head_dim=config["qk_nope_head_dim"],
        rotated_head_dim=config["qk_rope_head_dim"],
        value_head_dim=config["v_head_dim"],
    )


def _common(what: str, values: Sequence[int]) -> int:
    if len(set(values)) > 1:
        raise UsageError(f"its layers have {what} of several sizes, which no shape expresses")
    return values[0]
