"""Decoder-only models of any architecture, layer by layer, from their Hugging Face configuration.

`ModelShape` holds the numbers of models whose layers are all alike. A `Decoder` also has mixtures of experts, latent
attention (MLA) and layers with windows or chunks. It gives exact parameter counts, the weights that one token
multiplies, and the training FLOPs of one token. tests/test_decoders.py compares the counts with transformers' own
classes, and the FLOPs against torch's counter and a count of the pairs of a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorprimat.core.errors import UsageError
from tensorprimat.core.quantities import count
from tensorprimat.models.families import FAMILIES, Config, Family, complete_config, entry_from_zero, positive_entry


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One decoder layer in numbers."""

    attention_weights: int
    """Weights of the attention projections; every token multiplies all of them."""
    query_width: int
    """Heads × head size of queries and keys; the FLOPs of attention scores are proportional to it."""
    value_width: int
    """Heads × head size of values; the FLOPs of the weighted sums are proportional to it."""
    pair_width: int
    """Numbers of keys and values that are kept for one token."""
    mlp_weights: int
    """Weights of MLP, shared experts and router; every token multiplies all of them."""
    mlp_width: int
    """Inner width that one token uses, active and shared experts together."""
    vectors: int
    """Parameters of norms, biases and attention sinks, which take no part in matrix products."""
    expert_weights: int = 0
    """Weights of one routed expert."""
    experts: int = 0
    active_experts: int = 0
    expert_vectors: int = 0
    """Biases of one routed expert."""
    window: int | None = None
    """Tokens that a query sees, itself included; None: all before it."""
    chunk: int | None = None
    """Length of the chunks that attention never leaves; None: no chunks."""
    has_biased_queries: bool = False
    """True if queries, keys and values have biases."""

    @property
    def active_weights(self) -> int:
        """Return the weights that one token multiplies."""
        return self.attention_weights + self.mlp_weights + self.active_experts * self.expert_weights

    @property
    def parameters(self) -> int:
        """Return the parameters of the layer, all experts included."""
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
        """Return the weights of the input embedding; an output head that is not tied has as many."""
        return self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        """Return the parameters of the model; tied embeddings count once."""
        heads = (1 if self.tied_embeddings else 2) * self.embedding_weights
        return heads + self.vectors + sum(layer.parameters for layer in self.layers)

    @property
    def layer_weights(self) -> int:
        """Return the weights of every matrix of the layers, all experts included."""
        return sum(one.attention_weights + one.mlp_weights + one.experts * one.expert_weights for one in self.layers)

    @property
    def weights(self) -> int:
        """Return the weights of every matrix, without norms, biases and attention sinks."""
        return self.layer_weights + (1 if self.tied_embeddings else 2) * self.embedding_weights

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


MOST_LAYERS = 10_000
LEAST_VOCABULARY = 2  # with one token there is nothing to predict


def decoder_of(config: Config) -> Decoder:
    """Return the numbers of a model by its configuration.

    config: entries of a config.json, or of transformers' configuration object. Raises UsageError for an architecture
    not in FAMILIES, and naming an entry that is missing or impossible.
    """
    kind = str(config.get("model_type"))
    family = FAMILIES.get(kind)
    if family is None:
        raise UsageError(f"model_type {kind!r} is unknown")
    config = complete_config(config)
    hidden, vocabulary = positive_entry(config, "hidden_size"), positive_entry(config, "vocab_size")
    layers = positive_entry(config, "num_hidden_layers")
    if layers > MOST_LAYERS:
        raise UsageError(f"num_hidden_layers: {count(layers)} is more than {count(MOST_LAYERS)}")
    if vocabulary < LEAST_VOCABULARY:
        raise UsageError(f"vocab_size: must be at least {LEAST_VOCABULARY}")
    tied = config.get("tie_word_embeddings")
    return Decoder(
        kind=kind,
        hidden_size=hidden,
        vocab_size=vocabulary,
        tied_embeddings=family.tied if tied is None else bool(tied),
        layers=tuple(_layer(config, family, position) for position in range(layers)),
        vectors=family.last_norm * hidden + (vocabulary if family.biased or config.get("lm_head_bias") else 0),
    )


def _layer(config: Config, family: Family, position: int) -> Layer:
    hidden = positive_entry(config, "hidden_size")
    attention = _latent(config) if family.latent else _grouped(config, family)
    reach: dict[str, Any] = {"chunk" if family.chunked else "window": family.reach(config, position)}
    is_mixed = family.experts is not None and family.experts(config, position)
    mlp = _experts(config, family) if is_mixed else _dense(config, family)
    vectors = attention.pop("vectors") + mlp.pop("vectors") + family.norms * hidden
    return Layer(**attention, **mlp, **reach, vectors=vectors)


def _grouped(config: Config, family: Family) -> dict[str, Any]:
    """Return the numbers of attention with queries in groups that share keys and values."""
    hidden, heads = positive_entry(config, "hidden_size"), positive_entry(config, "num_attention_heads")
    pairs_of_heads = positive_entry(config, "num_key_value_heads", default=heads)
    if heads % pairs_of_heads:
        raise UsageError(f"num_key_value_heads: {pairs_of_heads} does not divide {heads} attention heads")
    size = positive_entry(config, "head_dim", default=hidden // heads)
    queries, keys = heads * size, pairs_of_heads * size
    stated = config.get("qkv_bias", config.get("attention_bias")) if family.qkv_bias is None else family.qkv_bias
    everywhere = bool(family.biased or config.get("use_bias"))
    output = family.qkv_bias is None and "qkv_bias" not in config and family.output_bias and stated
    biased = bool(stated or everywhere)
    vectors = (queries + 2 * keys) * biased
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
        "has_biased_queries": biased,
    }


def _latent(config: Config) -> dict[str, Any]:
    """Return the numbers of multi-head latent attention as training computes it.

    DeepSeek V2, arXiv:2405.04434, section 2.1."""
    hidden, heads = positive_entry(config, "hidden_size"), positive_entry(config, "num_attention_heads")
    rank, rotated = positive_entry(config, "kv_lora_rank"), positive_entry(config, "qk_rope_head_dim")
    plain, values = positive_entry(config, "qk_nope_head_dim"), positive_entry(config, "v_head_dim")
    queries = heads * (plain + rotated)
    query_rank = entry_from_zero(config, "q_lora_rank")
    bias = bool(config.get("attention_bias"))
    weights = (queries + hidden) * query_rank or hidden * queries
    weights += hidden * (rank + rotated) + rank * heads * (plain + values) + heads * values * hidden
    vectors = rank + query_rank
    vectors += (rank + rotated + hidden + query_rank) if bias else 0
    return {
        "attention_weights": weights,
        "query_width": queries,
        "value_width": heads * values,
        "pair_width": queries + heads * values,
        "vectors": vectors,
    }


def _dense(config: Config, family: Family) -> dict[str, Any]:
    hidden = positive_entry(config, "hidden_size")
    inner = positive_entry(config, "intermediate_size_mlp", "intermediate_size")
    inputs = 2 if family.gated else 1
    biased = bool(family.biased or config.get("mlp_bias") or config.get("use_bias"))
    return {
        "mlp_weights": (inputs + 1) * hidden * inner,
        "mlp_width": inner,
        "vectors": (inputs * inner + hidden) * biased,
    }


def _experts(config: Config, family: Family) -> dict[str, Any]:
    hidden = positive_entry(config, "hidden_size")
    inner = positive_entry(config, "moe_intermediate_size", "intermediate_size")
    experts = positive_entry(config, "n_routed_experts", "num_local_experts", "num_experts")
    active = positive_entry(config, "num_experts_per_tok")
    if active > experts:
        raise UsageError(f"num_experts_per_tok: {active} is more than the {experts} experts")
    shared = inner * (entry_from_zero(config, "n_shared_experts") + family.chunked)  # one in Llama 4
    gate = 0
    if width := entry_from_zero(config, "shared_expert_intermediate_size"):  # weighted by a gate of one output
        shared, gate = shared + width, hidden
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
