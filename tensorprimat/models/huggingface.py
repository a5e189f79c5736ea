"""Model shapes from Hugging Face configurations, for every architecture that models/families knows."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from tensorprimat.core.errors import UsageError
from tensorprimat.core.records import first_fault
from tensorprimat.core.result import ModelShape
from tensorprimat.models import decoders, presets
from tensorprimat.models.decoders import Decoder, Layer
from tensorprimat.models.families import FAMILIES, Config, complete_config, positive_entry
from tensorprimat.models.shape_parts import Experts, LatentAttention

ALIKE = {"kimi_k2": "deepseek_v3", "gpt2": "phi"}
"""`model_type` → the architecture whose layers have the same matrices."""
_GPT2_NAMES = {"n_layer": "num_hidden_layers", "n_embd": "hidden_size", "n_head": "num_attention_heads",
               "n_inner": "intermediate_size"}  # fmt: skip
MIXTURE_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "num_experts_per_tok", "kv_lora_rank")
"""Entries that only models with experts or latent attention have."""
_SAME_COUNT = 1e-3  # relative; no shape counts the gates of shared experts


def kinds() -> list[str]:
    """Return the architectures whose configuration is read here."""
    return [*FAMILIES, *ALIKE]


def of_config(config: Config) -> ModelShape:
    """Return the shape that the entries of a config.json state.

    Raises UsageError for an unknown architecture, an impossible entry, and layers that no shape expresses.
    """
    kind = str(config.get("model_type"))
    if kind == "gpt2":  # without n_inner its MLP has four times the width
        renamed = {new: config[old] for old, new in _GPT2_NAMES.items() if config.get(old) is not None}
        inner = 4 * positive_entry(renamed, "hidden_size")
        config = {"tie_word_embeddings": True, "intermediate_size": inner, "vocab_size": 50_257, **config, **renamed}
    config = {**config, "model_type": ALIKE.get(kind, kind)}
    decoder = decoders.decoder_of(config)
    mixture = next((key for key in MIXTURE_KEYS if config.get(key)), None)
    if mixture and FAMILIES[decoder.kind].experts is None:
        raise UsageError(f"{mixture}: a {kind} model has no experts")
    return of_decoder(decoder, config)


def of_decoder(decoder: Decoder, config: Config) -> ModelShape:
    """Return the shape that has the same matrices and the same attention. Raises UsageError where none has.

    config: the entries that the decoder comes from.
    """
    try:
        shape = _shape(decoder, complete_config(config))
    except ValidationError as error:
        raise UsageError(first_fault(error)) from error
    untied = 0 if decoder.tied_embeddings else decoder.embedding_weights
    weights = presets.matrix_parameters(shape) + presets.idle_parameters(shape) + untied
    counts = (presets.matrix_parameters(shape) / decoder.active_weights, weights / decoder.weights)
    if any(abs(ratio - 1) > _SAME_COUNT for ratio in counts):
        raise UsageError(f"the layers of this {decoder.kind} differ in a way that a shape cannot express")
    return shape


def _shape(decoder: Decoder, config: Config) -> ModelShape:
    layers, family = decoder.layers, FAMILIES[decoder.kind]
    mixed = [layer for layer in layers if layer.experts]
    dense = [layer for layer in layers if not layer.experts]
    heads = positive_entry(config, "num_attention_heads")
    windows = {layer.window for layer in layers} - {None}
    if len(windows) > 1 or any(layer.chunk for layer in layers):
        raise UsageError("its layers have windows of several sizes or chunks, which no shape expresses")
    windowed = sum(layer.window is not None for layer in layers)
    return ModelShape(
        num_layers=len(layers),
        hidden_size=decoder.hidden_size,
        ffn_hidden_size=_common("MLPs", [layer.mlp_width for layer in dense] or [mixed[0].mlp_width]),
        num_attention_heads=heads,
        num_key_value_heads=positive_entry(config, "num_key_value_heads", default=heads),
        head_dim=_common("heads", [layer.query_width for layer in layers]) // heads,
        vocab_size=decoder.vocab_size,
        gated_mlp=family.gated,
        summed_products=family.summed_products,
        attention_bias=layers[0].has_biased_queries,
        tied_embeddings=decoder.tied_embeddings,
        sliding_window=windows.pop() if windows else None,
        windowed_layers=windowed if 0 < windowed < len(layers) else None,
        experts=_experts(decoder, mixed) if mixed else None,
        latent_attention=_latent(config) if family.latent else None,
    )


def _experts(decoder: Decoder, mixed: Sequence[Layer]) -> Experts:
    count = _common("experts", [layer.experts for layer in mixed])
    matrices = 3 if FAMILIES[decoder.kind].gated else 2
    width = _common("experts", [layer.expert_weights for layer in mixed]) // (matrices * decoder.hidden_size)
    always = _common("shared experts", [layer.mlp_weights for layer in mixed]) - count * decoder.hidden_size
    return Experts(
        count=count,
        active=_common("experts", [layer.active_experts for layer in mixed]),
        ffn_hidden_size=width,
        shared_ffn_hidden_size=always // (matrices * decoder.hidden_size),
        layers=len(mixed),
    )


def _latent(config: Config) -> LatentAttention:
    return LatentAttention(
        query_rank=config["q_lora_rank"] or None,
        key_value_rank=config["kv_lora_rank"],
        plain_head_dim=config["qk_nope_head_dim"],
        rotated_head_dim=config["qk_rope_head_dim"],
        value_head_dim=config["v_head_dim"],
    )


def _common(what: str, values: Sequence[int]) -> int:
    if len(set(values)) > 1:
        raise UsageError(f"its layers have {what} of several sizes, which no shape expresses")
    return values[0]
