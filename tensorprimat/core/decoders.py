"""Decoder-only models of any architecture, layer by layer, from their Hugging Face configuration.

`ModelShape` holds the numbers of models whose layers are all alike. A `Decoder` also has mixtures of experts, latent
attention (MLA) and layers with windows or chunks. It gives exact parameter counts, the weights that one token
multiplies, and the training FLOPs of one token. tests/test_decoders.py compares the counts with transformers' own
classes, and the FLOPs against torch's counter and a count of the pairs of a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorprimat.core.errors import UsageError

Config = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One decoder layer in numbers."""

    attention_weights: int
    """Of its projections; every token multiplies all of them."""
    query_width: int
    """Heads × head size of queries and keys: FLOPs of a score."""
    value_width: int
    """Heads × head size of values: FLOPs of a weighted sum."""
    pair_width: int
    """Numbers of keys and values that are kept for one token."""
    mlp_weights: int
    """Of MLP, shared experts and router; every token multiplies all of them."""
    mlp_width: int
    """Inner width that one token uses, active and shared experts together."""
    vectors: int
    """Parameters of norms, biases and attention sinks, which take no part in matrix products."""
    expert_weights: int = 0
    """Of one routed expert."""
    experts: int = 0
    active_experts: int = 0
    expert_vectors: int = 0
    """Biases of one routed expert."""
    window: int | None = None
    """Tokens that a query sees, itself included; None: all before it."""
    chunk: int | None = None
    """Length of the chunks that attention never leaves; None: no chunks."""

    @property
    def active_weights(self) -> int:
        """Return the weights that one token multiplies."""
        return self.attention_weights + self.mlp_weights + self.active_experts * self.expert_weights

    @property
    def parameters(self) -> int:
        """Return parameters of the layer, all experts included."""
        routed = self.experts * (self.expert_weights + self.expert_vectors)
        return self.attention_weights + self.mlp_weights + self.vectors + routed


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A whole model in numbers."""

    kind: str
    """`model_type` of its configuration."""
    hidden_size: int
    vocab_size: int
    tied_embeddings: bool
    layers: tuple[Layer, ...]
    vectors: int
    """Parameters of the last norm, and of the head's bias."""

    @property
    def embedding_weights(self) -> int:
        """Return the weights of the input embedding, and of the output head where it is not tied."""
        return self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        """Return parameters of the model; tied embeddings count once."""
        heads = (1 if self.tied_embeddings else 2) * self.embedding_weights
        return heads + self.vectors + sum(layer.parameters for layer in self.layers)

    @property
    def active_weights(self) -> int:
        """Return the weights that one token multiplies, the output head included even where it is tied."""
        return self.embedding_weights + sum(layer.active_weights for layer in self.layers)

    def attention_flops(self, lengths: Sequence[int]) -> float:
        """Return the training FLOPs of attention over documents of these lengths, by the convention megatron.

        A query at the diagonal counts half, so that a causal square of T tokens has T²/2 pairs.
        """
        total = 0.0
        for layer in self.layers:
            visited = sum(pairs(length, window=layer.window, chunk=layer.chunk) for length in lengths)
            total += 6 * (layer.query_width + layer.value_width) * visited
        return total

    def flops_per_token(self, lengths: Sequence[int]) -> float:
        """Return the training FLOPs (forward and backward) of one token of documents packed into one sequence.

        lengths: tokens of each document; one number for a sequence that is not packed.
        """
        tokens = sum(lengths)
        if tokens < 1 or min(lengths) < 1:
            raise ValueError(f"a document needs at least one token: {list(lengths)}")
        return 6 * self.active_weights + self.attention_flops(lengths) / tokens


def pairs(length: int, *, window: int | None = None, chunk: int | None = None) -> float:
    """Return the pairs of query and key of causal attention over one document, a pair at the diagonal as half.

    T²/2 of T tokens, T·W − W²/2 within a window, and those of every chunk.

    >>> pairs(4), pairs(4, window=2), pairs(4, chunk=2)
    (8.0, 6.0, 4.0)
    """
    if chunk is not None and chunk < length:
        whole, rest = divmod(length, chunk)
        return whole * chunk**2 / 2 + rest**2 / 2
    reach = min(length, window or length)
    return length * reach - reach**2 / 2


# Reading a configuration. Names and defaults are those of transformers' configuration classes.


@dataclass(frozen=True, kw_only=True)
class _Family:
    """The properties of an architecture that its configuration does not state."""

    gated: bool = True
    norms: int = 2
    """Norm vectors of a layer, in hidden sizes."""
    last_norm: int = 1
    qkv_bias: bool | None = None
    """None: the same as attention_bias."""
    output_bias: bool = True
    """attention_bias holds for the output projection, too."""
    query_norms: str = ""
    """"head": one vector for the heads of queries and one for those of keys; "all": over all heads at once.

    use_qk_norm, where a configuration has it, can turn them off.
    """
    sinks: bool = False
    biased: bool = False
    """Biases in every linear layer and in the head (Phi); use_bias sets all but the head."""
    tied: bool = False
    experts: Callable[[Config, int], bool] = lambda _config, _layer: False
    window: Callable[[Config, int], int | None] = lambda _config, _layer: None
    chunked: bool = False


def _whole(config: Config, *names: str, default: int | None = None) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        if value is not None:
            raise UsageError(f"{name}: must be a whole number above 0, not {value!r}")
    if default is None:
        raise UsageError(f"{names[0]}: is missing")
    return default


def _every(_config: Config, _layer: int) -> bool:
    return True


def _sparse_qwen(config: Config, layer: int) -> bool:
    return (
        layer not in (config.get("mlp_only_layers") or ())
        and (layer + 1) % (config.get("decoder_sparse_step") or 1) == 0
    )


def _sparse_deepseek(config: Config, layer: int) -> bool:
    return layer >= int(config.get("first_k_dense_replace", 3))


def _sparse_llama4(config: Config, layer: int) -> bool:
    named = config.get("moe_layers")
    step = _whole(config, "interleave_moe_layer_step", default=1)
    return layer in named if named is not None else (layer + 1) % step == 0


def _always(config: Config, _layer: int) -> int | None:
    window = config.get("sliding_window")
    return int(window) if window else None


def _of_type(word: str, width: str) -> Callable[[Config, int], int | None]:
    """Return a rule: layers whose `layer_types` entry is this word have a window of this entry's width."""

    def rule(config: Config, layer: int) -> int | None:
        types = config.get("layer_types")
        return int(config[width]) if types and types[layer] == word and config.get(width) else None

    return rule


_SLIDING = _of_type("sliding_attention", "sliding_window")

FAMILIES: Mapping[str, _Family] = {
    "llama": _Family(),
    "mistral": _Family(qkv_bias=False, window=_always),
    "qwen2": _Family(qkv_bias=True, window=_SLIDING),
    "qwen3": _Family(query_norms="head", window=_SLIDING),
    "gemma": _Family(tied=True),
    "gemma2": _Family(norms=4, tied=True, window=_SLIDING),
    "gemma3_text": _Family(norms=4, tied=True, query_norms="head", window=_SLIDING),
    "phi": _Family(gated=False, norms=2, last_norm=2, biased=True),  # one norm with weight and bias
    "phi3": _Family(qkv_bias=False, window=_always),
    "olmo": _Family(norms=0, last_norm=0),
    "olmo2": _Family(query_norms="all"),
    "olmo3": _Family(query_norms="all", window=_SLIDING),
    "mixtral": _Family(qkv_bias=False, experts=_every, window=_always),
    "olmoe": _Family(query_norms="all", experts=_every),
    "qwen2_moe": _Family(experts=_sparse_qwen, window=_SLIDING),
    "qwen3_moe": _Family(query_norms="head", experts=_sparse_qwen, window=_SLIDING),
    "gpt_oss": _Family(sinks=True, experts=_every, window=_SLIDING),
    "deepseek_v2": _Family(experts=_sparse_deepseek),
    "deepseek_v3": _Family(experts=_sparse_deepseek),
    "llama4_text": _Family(experts=_sparse_llama4, window=_of_type("chunked_attention", "attention_chunk_size"),
                           chunked=True),
    "glm4": _Family(norms=4, output_bias=False),
    "glm4_moe": _Family(query_norms="head", output_bias=False, experts=_sparse_deepseek),
    "minimax_m2": _Family(query_norms="all", experts=_every),
    "seed_oss": _Family(),
    "ernie4_5": _Family(tied=True),
    "exaone4": _Family(query_norms="head", window=_SLIDING),
    "smollm3": _Family(tied=True, window=_SLIDING),
    "granite": _Family(),
    "granitemoe": _Family(experts=_every),
    "cohere": _Family(norms=1, query_norms="all", tied=True),
    "cohere2": _Family(norms=1, tied=True, window=_SLIDING),
    "phimoe": _Family(norms=4, last_norm=2, experts=_every, window=_always),  # norms with weight and bias
    "arcee": _Family(gated=False),
    "starcoder2": _Family(gated=False, norms=4, last_norm=2, tied=True, window=_always),
}  # fmt: skip
"""`model_type` → the features of its layers. A test compares each with transformers' class."""


def decoder_of(config: Config) -> Decoder | None:
    """Return the numbers of a model whose configuration is complete; None for an architecture not in FAMILIES.

    config: entries of transformers' configuration object, defaults filled in. Raises UsageError naming an entry that
    cannot be.
    """
    kind = str(config.get("model_type"))
    family = FAMILIES.get(kind)
    if family is None:
        return None
    hidden, vocabulary = _whole(config, "hidden_size"), _whole(config, "vocab_size")
    layers = tuple(_layer(config, family, number) for number in range(_whole(config, "num_hidden_layers")))
    tied = config.get("tie_word_embeddings")
    return Decoder(
        kind=kind,
        hidden_size=hidden,
        vocab_size=vocabulary,
        tied_embeddings=family.tied if tied is None else bool(tied),
        layers=layers,
        vectors=family.last_norm * hidden + (vocabulary if family.biased or config.get("lm_head_bias") else 0),
    )


def _layer(config: Config, family: _Family, number: int) -> Layer:
    hidden = _whole(config, "hidden_size")
    attention = _latent(config) if "kv_lora_rank" in config else _grouped(config, family)
    window = family.window(config, number)
    reach: dict[str, Any] = {"chunk" if family.chunked else "window": window}
    mlp = _experts(config, family) if family.experts(config, number) else _dense(config, family)
    vectors = attention.pop("vectors") + mlp.pop("vectors") + family.norms * hidden
    return Layer(**attention, **mlp, **reach, vectors=vectors)


def _grouped(config: Config, family: _Family) -> dict[str, int]:
    """Attention with queries in groups that share keys and values."""
    hidden, heads = _whole(config, "hidden_size"), _whole(config, "num_attention_heads")
    pairs_of_heads = _whole(config, "num_key_value_heads", default=heads)
    size = _whole(config, "head_dim", default=hidden // heads)
    queries, keys = heads * size, pairs_of_heads * size
    stated = config.get("qkv_bias", config.get("attention_bias")) if family.qkv_bias is None else family.qkv_bias
    everywhere = bool(family.biased or config.get("use_bias"))
    output = family.qkv_bias is None and "qkv_bias" not in config and family.output_bias and stated
    vectors = (queries + 2 * keys) * bool(stated or everywhere)
    vectors += hidden * bool(config.get("attention_out_bias", output or everywhere))
    if config.get("use_qk_norm", True):
        vectors += {"": 0, "head": 2 * size, "all": queries + keys}[family.query_norms]
    vectors += heads if family.sinks else 0
    return {
        "attention_weights": hidden * (2 * queries + 2 * keys),
        "query_width": queries,
        "value_width": queries,
        "pair_width": 2 * keys,
        "vectors": vectors,
    }


def _latent(config: Config) -> dict[str, int]:
    """Multi-head latent attention (DeepSeek V2, arXiv:2405.04434, section 2.1), as training computes it."""
    hidden, heads = _whole(config, "hidden_size"), _whole(config, "num_attention_heads")
    rank, rotated = _whole(config, "kv_lora_rank"), _whole(config, "qk_rope_head_dim")
    plain, values = _whole(config, "qk_nope_head_dim"), _whole(config, "v_head_dim")
    queries = heads * (plain + rotated)
    query_rank = config.get("q_lora_rank")
    bias = bool(config.get("attention_bias"))
    weights = queries * query_rank + hidden * query_rank if query_rank else hidden * queries
    weights += hidden * (rank + rotated) + rank * heads * (plain + values) + heads * values * hidden
    vectors = rank + (query_rank or 0)
    vectors += (rank + rotated + hidden + (query_rank or 0)) if bias else 0
    return {
        "attention_weights": weights,
        "query_width": queries,
        "value_width": heads * values,
        "pair_width": queries + heads * values,
        "vectors": vectors,
    }


def _dense(config: Config, family: _Family) -> dict[str, int]:
    hidden = _whole(config, "hidden_size")
    inner = _whole(config, "intermediate_size_mlp", "intermediate_size")
    inputs = 2 if family.gated else 1
    biased = bool(family.biased or config.get("mlp_bias") or config.get("use_bias"))
    return {
        "mlp_weights": (inputs + 1) * hidden * inner,
        "mlp_width": inner,
        "vectors": (inputs * inner + hidden) * biased,
    }


def _experts(config: Config, family: _Family) -> dict[str, int]:
    hidden = _whole(config, "hidden_size")
    inner = _whole(config, "moe_intermediate_size", "intermediate_size")
    experts = _whole(config, "n_routed_experts", "num_local_experts", "num_experts")
    active = _whole(config, "num_experts_per_tok")
    if active > experts:
        raise UsageError(f"num_experts_per_tok: {active} of {experts} experts")
    shared = inner * (int(config.get("n_shared_experts") or 0) + family.chunked)  # one in Llama 4
    gate = 0
    if width := config.get("shared_expert_intermediate_size"):  # weighted by a gate of one output
        shared, gate = shared + int(width), hidden
    biased = family.sinks  # gpt-oss has biases in router and experts
    return {
        "mlp_weights": hidden * experts + 3 * hidden * shared + gate,
        "mlp_width": inner * active + shared,
        "expert_weights": 3 * hidden * inner,
        "experts": experts,
        "active_experts": active,
        "expert_vectors": 2 * inner + hidden if biased else 0,
        "vectors": experts if biased else 0,
    }
