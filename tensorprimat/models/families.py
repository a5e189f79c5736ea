"""Architectures that the `model_type` of a config.json names: the features of their layers that the file leaves open.

Names and defaults are those of transformers' configuration classes. A publisher's file may lack entries. They
get the default of the class, as transformers gives them when it builds the model from the file; a missing main size
(width, layers, heads, vocabulary, number of experts) is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorprimat.core.errors import UsageError
from tensorprimat.core.quantities import alternatives

Config = Mapping[str, Any]
Rule = Callable[[Config, int], bool]
"""Function of a configuration and the position of a layer."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """The properties of an architecture that its configuration does not state."""

    gated: bool = True
    norms: int = 2
    """Norm vectors of a layer, each as long as the hidden size."""
    summed_products: tuple[str, ...] | None = None
    """As of a ModelShape."""
    last_norm: int = 1
    qkv_bias: bool | None = None
    """True if queries, keys and values have biases; None: as the entry attention_bias says."""
    output_bias: bool = True
    """True if attention_bias also applies to the output projection."""
    query_norms: str = ""
    """"head": one vector for the heads of queries and one for those of keys; "all": over all heads at once.

    use_qk_norm, where a configuration has it, can turn them off.
    """
    sinks: bool = False
    biased: bool = False
    """Biases in every linear layer and in the head (Phi); use_bias sets all but the head."""
    tied: bool = False
    latent: bool = False
    """True for multi-head latent attention (MLA)."""
    experts: Rule | None = None
    """Layers with experts; None: an architecture without any."""
    limited: Rule | None = None
    """Layers whose queries do not see all tokens before them, where the file has no layer_types; None: no such layers.

    Where the file has layer_types, the layers that it does not call full_attention count, unless the rule is `every`.
    """
    chunked: bool = False
    """Limited layers attend within chunks of attention_chunk_size instead of a window of sliding_window."""
    defaults: Config = field(default_factory=dict)
    """Entries of transformers' class that differ from what an absent entry would mean here."""

    def reach(self, config: Config, layer: int) -> int | None:
        """Return the size of a layer's window or chunks; None where its queries see all tokens before them."""
        size = "attention_chunk_size" if self.chunked else "sliding_window"
        if self.limited is None or not config.get(size) or config.get("use_sliding_window") is False:
            return None
        types = config.get("layer_types") if self.limited is not every else None  # one mask for all layers
        is_limited = item(config, "layer_types", layer) != "full_attention" if types else self.limited(config, layer)
        return positive_entry(config, size) if is_limited else None


def positive_entry(config: Config, *names: str, default: int | None = None) -> int:
    """Return the first entry that is present, else the default.

    Raises UsageError if it is not a positive whole number, or if it is absent and has no default.
    """
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        if value is not None:
            raise UsageError(f"{name}: must be a whole number above 0, not {value!r}")
    if default is None:
        raise UsageError(f"{alternatives(names)}: is missing")
    return default


def entry_from_zero(config: Config, name: str) -> int:
    """Return an entry that may be 0, or 0 if it is absent. Raises UsageError if it is not a whole number from 0."""
    return positive_entry(config, name) if config.get(name) else 0


def item(config: Config, name: str, layer: int) -> Any:
    """Return a layer's item of an entry that lists all layers. Raises UsageError where it has none."""
    values = config[name]
    if not isinstance(values, list | tuple) or len(values) <= layer:
        raise UsageError(f"{name}: must be a list with an item for every layer")
    return values[layer]


def _listed(config: Config, name: str) -> Sequence[Any]:
    """Return an entry that lists some layers, empty where it is absent. Raises UsageError where it is no list."""
    values = config.get(name)
    if values is not None and not isinstance(values, list | tuple):
        raise UsageError(f"{name}: must be a list of layers")
    return values or ()


def every(_config: Config, _layer: int) -> bool:
    return True


def _but_every(period: int, entry: str = "") -> Rule:
    """Return the rule for all layers but the last of each period. entry: key of a configuration's own period."""
    return lambda config, layer: (layer + 1) % positive_entry(config, entry, default=period) != 0


def _upper(config: Config, layer: int) -> bool:
    return layer >= positive_entry(config, "max_window_layers", default=28)


def _rotated(config: Config, layer: int) -> bool:
    """Return True for a layer with rotary embedding, for which no_rope_layers has a 1."""
    if config.get("no_rope_layers"):
        return bool(item(config, "no_rope_layers", layer))
    return (layer + 1) % positive_entry(config, "no_rope_layer_interval", default=4) != 0


def _sparse_qwen(config: Config, layer: int) -> bool:
    step = positive_entry(config, "decoder_sparse_step", default=1)
    return layer not in _listed(config, "mlp_only_layers") and (layer + 1) % step == 0


def _sparse_deepseek(config: Config, layer: int) -> bool:
    return layer >= entry_from_zero(config, "first_k_dense_replace")


def _sparse_llama4(config: Config, layer: int) -> bool:
    step = positive_entry(config, "interleave_moe_layer_step", default=1)
    return layer in _listed(config, "moe_layers") if config.get("moe_layers") else (layer + 1) % step == 0


_SLIDES = {"sliding_window": 4096}
_QWEN = {"sliding_window": 4096, "use_sliding_window": False}
_GEMMA = {"head_dim": 256, "num_key_value_heads": 4, **_SLIDES}
_NORMED: tuple[str, ...] = ()  # by a norm, before the sum
_PARALLEL = ("output", "down")  # attention and MLP of one input
_DEEPSEEK = {"kv_lora_rank": 512, "q_lora_rank": 1536}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "mistral": Family(qkv_bias=False, limited=every, defaults={**_SLIDES, "num_key_value_heads": 8}),
    "qwen2": Family(qkv_bias=True, limited=_upper, defaults=_QWEN),
    "qwen3": Family(query_norms="head", limited=_upper, defaults=_QWEN),
    "gemma": Family(tied=True, defaults={"head_dim": 256}),
    "gemma2": Family(norms=4, summed_products=_NORMED, tied=True, limited=_but_every(2), defaults=_GEMMA),
    "gemma3_text": Family(norms=4, summed_products=_NORMED, tied=True, query_norms="head",
                          limited=_but_every(6, "sliding_window_pattern"), defaults=_GEMMA),
    "phi": Family(gated=False, norms=2, last_norm=2,  # one norm with weight and bias
                  summed_products=_PARALLEL, biased=True),
    "phi3": Family(qkv_bias=False, limited=every),
    "olmo": Family(norms=0, last_norm=0),
    "olmo2": Family(summed_products=_NORMED, query_norms="all"),
    "olmo3": Family(summed_products=_NORMED, query_norms="all", limited=_but_every(4), defaults=_SLIDES),
    "mixtral": Family(qkv_bias=False, experts=every, limited=every, defaults={"num_key_value_heads": 8}),
    "olmoe": Family(query_norms="all", experts=every),
    "qwen2_moe": Family(experts=_sparse_qwen, limited=lambda config, at: at % 2 == 0 and not _upper(config, at),
                        defaults={**_QWEN, "qkv_bias": True, "moe_intermediate_size": 1408,
                                  "shared_expert_intermediate_size": 5632}),
    "qwen3_moe": Family(query_norms="head", experts=_sparse_qwen, limited=every,
                        defaults={**_QWEN, "moe_intermediate_size": 768, "num_key_value_heads": 4}),
    "gpt_oss": Family(sinks=True, experts=every, limited=_but_every(2),
                      defaults={"attention_bias": True, "head_dim": 64, "num_key_value_heads": 8,
                                "sliding_window": 128}),
    "deepseek_v2": Family(latent=True, experts=_sparse_deepseek,
                          defaults={**_DEEPSEEK, "moe_intermediate_size": 1407, "n_shared_experts": 2}),
    "deepseek_v3": Family(latent=True, experts=_sparse_deepseek,
                          defaults={**_DEEPSEEK, "moe_intermediate_size": 2048, "n_shared_experts": 1,
                                    "first_k_dense_replace": 3}),
    "llama4_text": Family(experts=_sparse_llama4, limited=_rotated, chunked=True,
                          defaults={"attention_chunk_size": 8192, "num_key_value_heads": 8}),
    "glm4": Family(norms=4, summed_products=_NORMED, output_bias=False,
                   defaults={"attention_bias": True, "num_key_value_heads": 2}),
    "glm4_moe": Family(query_norms="head", output_bias=False, experts=_sparse_deepseek,
                       defaults={"first_k_dense_replace": 1, "moe_intermediate_size": 1408, "n_shared_experts": 1,
                                 "num_key_value_heads": 8, "use_qk_norm": False}),
    "minimax_m2": Family(query_norms="all", experts=every, defaults={"head_dim": 128, "num_key_value_heads": 8}),
    "seed_oss": Family(defaults={"attention_bias": True, "attention_out_bias": False, "head_dim": 128,
                                 "num_key_value_heads": 8}),
    "ernie4_5": Family(tied=True, defaults={"head_dim": 128, "num_key_value_heads": 2}),
    "exaone4": Family(summed_products=_NORMED, query_norms="head", limited=_but_every(4, "sliding_window_pattern"),
                      defaults=_SLIDES),
    "smollm3": Family(tied=True, limited=lambda config, layer: not _rotated(config, layer),
                      defaults={"use_sliding_window": False, "num_key_value_heads": 4}),
    "granite": Family(),
    "granitemoe": Family(experts=every),
    "cohere": Family(norms=1, summed_products=_PARALLEL, query_norms="all", tied=True,
                     defaults={"use_qk_norm": False}),
    "cohere2": Family(norms=1, summed_products=_PARALLEL, tied=True,
                      limited=_but_every(4, "sliding_window_pattern"), defaults=_SLIDES),
    "phimoe": Family(norms=4, last_norm=2, experts=every, limited=every,  # norms with weight and bias
                     defaults={"num_key_value_heads": 8}),
    "arcee": Family(gated=False),
    "starcoder2": Family(gated=False, norms=4, last_norm=2, tied=True, limited=every,
                         defaults={"num_key_value_heads": 2, "use_bias": True}),
}  # fmt: skip
"""`model_type` → the features of its layers. A test compares each with transformers' class."""


def complete_config(config: Config) -> Config:
    """Return the entries with the defaults of their architecture for those that are absent."""
    return {**FAMILIES[str(config.get("model_type"))].defaults, **config}
