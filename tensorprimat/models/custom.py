"""Models that the user gives as a Hugging Face configuration, and the model of a spec, whichever way it is given.

A configured model has two presets as the built-in ones do: `full` is the file's model, `tiny` keeps every feature of
the architecture (grouped queries, experts, windows, latent attention, kinds of layers) in sizes that a CPU trains in
seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import ModelShape
from tensorprimat.core.spec import RunSpec
from tensorprimat.models import decoders, huggingface, presets
from tensorprimat.models.decoders import Decoder
from tensorprimat.models.families import FAMILIES, Config
from tensorprimat.models.presets import ALIASES, FULL_BATCH, TINY_BATCH, Preset

_PRESETS = ("full", "tiny")
TINY_LENGTH = 2048


@dataclass(frozen=True, kw_only=True)
class ConfiguredModel:
    """A model by its configuration, with the facts that a run needs; the counterpart of a `Preset`."""

    model: str
    name: str
    """full or tiny."""
    title: str
    config: Config
    decoder: Decoder
    micro_batch_size: int
    global_batch_size: int
    sequence_length: int

    @property
    def parameters(self) -> int:
        """Return the number of trainable parameters."""
        return self.decoder.parameters

    @property
    def max_position_embeddings(self) -> int:
        """Return the longest sequence in tokens."""
        return int(self.config.get("max_position_embeddings") or TINY_LENGTH)

    @property
    def shape(self) -> ModelShape | None:
        """Return the model as a `ModelShape`; None where it has a feature that no `ModelShape` expresses."""
        try:
            return huggingface.of_decoder(self.decoder, self.config)
        except UsageError:
            return None

    @property
    def memory_shape(self) -> ModelShape:
        """Return a shape whose activations take as much memory: MLPs as wide as the experts that one token uses."""
        layers, config, family = self.decoder.layers, self.config, FAMILIES[self.decoder.kind]
        widest = max(layers, key=lambda layer: layer.query_width)
        heads = int(config["num_attention_heads"])
        pairs = max(1, round(max(layer.pair_width for layer in layers) / 2 / (widest.query_width // heads)))
        return ModelShape(
            num_layers=len(layers),
            hidden_size=self.decoder.hidden_size,
            ffn_hidden_size=max(1, round(sum(layer.mlp_width for layer in layers) / len(layers))),
            num_attention_heads=heads,
            num_key_value_heads=pairs,
            head_dim=widest.query_width // heads,
            vocab_size=self.decoder.vocab_size,
            gated_mlp=family.gated,
            summed_products=family.summed_products,
        )


TrainedModel = Preset | ConfiguredModel


def model_of(spec: RunSpec) -> TrainedModel:
    """Return the model that a spec trains: a built-in preset, or that of its configuration. Raises UsageError."""
    if spec.config is None:
        return presets.find_preset(spec.model, spec.preset)
    return configured(spec.model, spec.config, spec.preset)


def configured(name: str, config: Config, preset: str) -> ConfiguredModel:
    """Return a model by its complete configuration. Raises UsageError for another preset or an impossible number."""
    size = ALIASES.get(preset.lower(), preset.lower())
    if size not in _PRESETS:
        raise UsageError(f"no preset {preset!r} of {name}; presets: {', '.join(_PRESETS)}")
    decoder = decoders.decoder_of(config)
    batch = FULL_BATCH if size == "full" else TINY_BATCH
    longest = int(config.get("max_position_embeddings") or TINY_LENGTH)
    return ConfiguredModel(
        model=name,
        name=size,
        title=name,
        config=config,
        decoder=decoder,
        **{**batch, "sequence_length": min(batch["sequence_length"], longest)},
    )


# The tiny shape.

_TINY: Mapping[str, int] = {
    "hidden_size": 128,
    "vocab_size": 1024,
    "max_position_embeddings": TINY_LENGTH,
    "sliding_window": 64,  # below its sequence length, so that the window hides something
    "attention_chunk_size": 64,
    "moe_intermediate_size": 64,
    "n_routed_experts": 8,
    "num_local_experts": 8,
    "num_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
"""Entries that are numbers → value in a tiny model where its configuration has a larger one."""
_TINY_HEADS, _TINY_HEAD_SIZE = 8, 16
_LEAST_LAYERS = 4
_UNUSED = ("rope_scaling", "qk_head_dim")
"""Entries that a tiny model leaves out: the scaling of RoPE to long contexts, and a sum of other sizes."""


def tiny(config: Config) -> dict[str, Any]:
    """Return the entries of a small model with the same features: fewer and narrower layers, fewer experts.

    config: entries as the file has them, defaults filled in.
    """
    small = {name: value for name, value in config.items() if name not in _UNUSED}
    heads = int(config["num_attention_heads"])
    for name, most in _TINY.items():
        if isinstance(value := config.get(name), int) and not isinstance(value, bool):
            small[name] = min(value, most)
    grouped = heads // int(config.get("num_key_value_heads") or heads)
    small["num_attention_heads"] = min(heads, _TINY_HEADS)
    small["num_key_value_heads"] = max(1, small["num_attention_heads"] // max(1, grouped))
    if "kv_lora_rank" in config:
        small.pop("head_dim", None)  # a sum of other sizes
    elif config.get("head_dim"):
        size = int(config["head_dim"])
        wider = size * heads / int(config["hidden_size"])  # some have queries wider or narrower than the hidden states
        small["head_dim"] = 2 * _TINY_HEAD_SIZE if wider > 1 else _TINY_HEAD_SIZE
        if small["num_attention_heads"] < _TINY_HEADS:  # few heads stay few: Gemma 3 1B has four
            small["head_dim"] = 2 * _TINY_HEAD_SIZE
    for name in ("intermediate_size", "intermediate_size_mlp", "shared_expert_intermediate_size"):
        if isinstance(value := config.get(name), int):
            ratio = min(8.0, value / int(config["hidden_size"]))
            small[name] = max(64, 16 * round(ratio * small["hidden_size"] / 16))
    if isinstance(active := config.get("num_experts_per_tok"), int):
        small["num_experts_per_tok"] = min(active, 2)
    shorten(small, config)
    _plain_rope(small)
    return small


def shorten(small: dict[str, Any], config: Config) -> None:
    """Keep the fewest layers that show each kind of layer, at least four unless the model has fewer."""
    count = int(config["num_hidden_layers"])
    needed = _LEAST_LAYERS
    if types := config.get("layer_types"):
        needed = max(needed, 1 + max(types.index(kind) for kind in set(types)))
    needed = max(needed, int(config.get("interleave_moe_layer_step") or config.get("decoder_sparse_step") or 0))
    small["num_hidden_layers"] = layers = min(count, needed)
    if config.get("first_k_dense_replace"):
        small["first_k_dense_replace"] = 1
    for name in ("layer_types", "no_rope_layers", "mlp_layer_types"):
        if isinstance(value := config.get(name), (list, tuple)):
            small[name] = list(value[:layers])
    for name in ("moe_layers", "mlp_only_layers"):
        if isinstance(value := config.get(name), (list, tuple)):
            small[name] = [layer for layer in value if layer < layers]


def _plain_rope(small: dict[str, Any]) -> None:
    """Remove the RoPE scaling for long contexts: its factors belong to the real head size."""
    rope = small.get("rope_parameters")
    if not isinstance(rope, Mapping):
        return
    kept = ("rope_theta", "partial_rotary_factor")

    def plain(entries: Mapping[str, Any]) -> dict[str, Any]:
        return {"rope_type": "default", **{name: entries[name] for name in kept if name in entries}}

    per_kind = all(isinstance(value, Mapping) for value in rope.values())
    small["rope_parameters"] = {kind: plain(one) for kind, one in rope.items()} if per_kind else plain(rope)
