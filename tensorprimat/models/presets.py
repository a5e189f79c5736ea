"""The models that TensorPrimat trains: their shapes, and how many parameters a shape has.

A preset is a shape with a name. `full` is the published model (mistral's is v0.1; `v0.3` is another preset), `tiny` has
the same features (grouped queries, qwen's biases, mistral's sliding window) and trains on two CPU cores in seconds, and
the sizes `small` … `2.7B` of the model `course` are the ladder of `tprimat sweep`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tensorprimat.core.errors import UsageError
from tensorprimat.core.quantities import fixed
from tensorprimat.core.result import ModelShape
from tensorprimat.models import decoders
from tensorprimat.models.decoders import Decoder

COURSE = "course"
"""Model of the ladder of sizes of `tprimat sweep`."""
COURSE_VOCABULARY = 10_000
ALIASES = {"real": "full", "2_7b": "2.7b"}
"""Other words for a preset's name, in lower case."""
_ARCHITECTURES = {"llama": "llama", COURSE: "llama", "qwen": "qwen2", "mistral": "mistral"}
"""Model → its architecture in transformers. The models of the ladder have Llama's."""
_ENTRIES = {
    "vocab_size": "vocab_size", "hidden_size": "hidden_size", "intermediate_size": "ffn_hidden_size",
    "num_hidden_layers": "num_layers", "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads", "head_dim": "head_dim", "attention_bias": "attention_bias",
    "tie_word_embeddings": "tied_embeddings", "sliding_window": "sliding_window",
}  # fmt: skip
"""Entry of a config.json → field of a shape."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A shape by name, with the other numbers that a model class needs and suitable batch sizes."""

    model: str
    """llama, qwen, mistral, or course for the ladder of sizes."""
    name: str
    title: str
    """Name on screen; a tiny model never has the name of the real one."""
    shape: ModelShape
    rope_theta: float
    rms_norm_eps: float
    max_position_embeddings: int
    micro_batch_size: int
    global_batch_size: int
    sequence_length: int
    """Batch sizes and length where neither the user nor a methodology gives any."""

    @property
    def config(self) -> dict[str, Any]:
        """Return the model as the entries of a config.json."""
        return {
            "model_type": _ARCHITECTURES[self.model],
            **{entry: getattr(self.shape, field) for entry, field in _ENTRIES.items()},
            **{name: getattr(self, name) for name in ("rope_theta", "rms_norm_eps", "max_position_embeddings")},
            **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
        }

    @cached_property
    def decoder(self) -> Decoder:
        """Return the numbers of the model, layer by layer."""
        return decoders.decoder_of(self.config)

    @property
    def parameters(self) -> int:
        """Return the number of trainable parameters."""
        return parameters(self.shape)

    @property
    def memory_shape(self) -> ModelShape:
        """Return the shape that decides how much memory activations take."""
        return self.shape


def parameters(shape: ModelShape) -> int:
    """Return the trainable parameters of a decoder with RMSNorm (no bias in norms, MLP or output projection).

    All experts are included; tied embeddings count once.
    """
    later = shape.multi_token_layers or 0
    norms = (2 * shape.num_layers + 1 + 5 * later) * shape.hidden_size
    biases = (shape.num_layers + later) * _qkv_width(shape) if shape.attention_bias else 0
    embeddings = embedding_parameters(shape) * (1 if shape.tied_embeddings else 2)
    return embeddings + _layer_matrices(shape) + idle_parameters(shape) + biases + norms


def idle_parameters(shape: ModelShape) -> int:
    """Return the weights of the routed experts that one token does not use; 0 for a dense model."""
    if (experts := shape.experts) is None:
        return 0
    one = _mlp_matrices(shape) * shape.hidden_size * experts.ffn_hidden_size
    layers = experts.layers + (shape.multi_token_layers or 0)
    return layers * (experts.count - experts.active) * one


def active_parameters(shape: ModelShape) -> int:
    """Return the parameters of a model without the routed experts that one token does not use."""
    return parameters(shape) - idle_parameters(shape)


def matrix_parameters(shape: ModelShape) -> int:
    """Return P_mm: the weights of every matrix product of a token, the output head included even where it is tied.

    The input embedding is a look-up and takes no part, nor do norms and biases. Of experts, the active ones count.
    """
    heads = 1 + (shape.multi_token_layers or 0)
    return _layer_matrices(shape) + heads * embedding_parameters(shape)


def embedding_parameters(shape: ModelShape) -> int:
    """Return the weights of the input embedding; an output head has as many."""
    return shape.vocab_size * shape.hidden_size


def mlp_matrix_parameters(shape: ModelShape) -> int:
    """Return the weights that one token uses of one of the MLP's matrices over all layers."""
    experts, later = shape.experts, shape.multi_token_layers or 0
    if experts is None:
        return shape.hidden_size * (shape.num_layers + later) * shape.ffn_hidden_size
    met = experts.active * experts.ffn_hidden_size + experts.shared_ffn_hidden_size
    dense = (shape.num_layers - experts.layers) * shape.ffn_hidden_size
    return shape.hidden_size * (dense + (experts.layers + later) * met)


def attention_widths(shape: ModelShape) -> tuple[int, int]:
    """Return heads × head size of queries and keys, and of values."""
    if (latent := shape.latent_attention) is None:
        return (shape.num_attention_heads * shape.head_dim,) * 2
    query = latent.plain_head_dim + latent.rotated_head_dim
    return shape.num_attention_heads * query, shape.num_attention_heads * latent.value_head_dim


def every_second_product(shape: ModelShape) -> float | None:
    """Return the share of a layer's matrix work in every second product without bias.

    K, output and up of Q, K, V, output, gate, up, down; without a gate, K, output and down. None for experts and latent
    attention, which have other products, and for an attention with biases, whose Q, K and V torch adds and multiplies
    in one operation (addmm) that torchtitan does not count.
    """
    if shape.experts or shape.latent_attention or shape.attention_bias:
        return None
    q, kv = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    widths = [q, kv, kv, q, *[shape.ffn_hidden_size] * _mlp_matrices(shape)]
    return sum(widths[1::2]) / sum(widths)


def _qkv_width(shape: ModelShape) -> int:
    return (shape.num_attention_heads + 2 * shape.num_key_value_heads) * shape.head_dim


def _mlp_matrices(shape: ModelShape) -> int:
    return 3 if shape.gated_mlp else 2


def _layer_matrices(shape: ModelShape) -> int:
    """Return the matrix weights of all layers that one token is multiplied with."""
    later, experts = shape.multi_token_layers or 0, shape.experts
    routers = (experts.layers + later) * experts.count * shape.hidden_size if experts else 0
    attention = (shape.num_layers + later) * _attention_matrices(shape)
    projections = later * 2 * shape.hidden_size**2
    return attention + _mlp_matrices(shape) * mlp_matrix_parameters(shape) + routers + projections


def _attention_matrices(shape: ModelShape) -> int:
    hidden, heads, latent = shape.hidden_size, shape.num_attention_heads, shape.latent_attention
    if latent is None:
        return hidden * (_qkv_width(shape) + heads * shape.head_dim)
    queries, values = attention_widths(shape)
    into_queries = (hidden + queries) * latent.query_rank if latent.query_rank else hidden * queries
    into_latent = hidden * (latent.key_value_rank + latent.rotated_head_dim)
    out_of_latent = latent.key_value_rank * (heads * latent.plain_head_dim + values)
    return into_queries + into_latent + out_of_latent + values * hidden


def shape_of_numbers(
    layers: int, width: int, ffn: int, heads: int, key_value_heads: int, vocabulary: int, **features: bool | int | None
) -> ModelShape:
    """Return a shape by its numbers, with heads that divide the width. features: other fields of ModelShape."""
    return ModelShape(
        num_layers=layers,
        hidden_size=width,
        ffn_hidden_size=ffn,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=width // heads,
        vocab_size=vocabulary,
        **features,  # type: ignore[arg-type]
    )


FULL_BATCH = {"micro_batch_size": 1, "global_batch_size": 128, "sequence_length": 8192}
TINY_BATCH = {"micro_batch_size": 2, "global_batch_size": 8, "sequence_length": 128}
_COURSE = {"micro_batch_size": 4, "global_batch_size": 4, "sequence_length": 256}


def _preset(
    model: str, name: str, title: str, shape: ModelShape, theta: float, eps: float, longest: int, batch: dict[str, int]
) -> Preset:
    return Preset(
        model=model, name=name, title=title, shape=shape, rope_theta=theta, rms_norm_eps=eps,
        max_position_embeddings=longest, **batch,
    )  # fmt: skip


def _course(name: str, width: int, ffn: int, layers: int, heads: int) -> Preset:
    shape = shape_of_numbers(layers, width, ffn, heads, heads, COURSE_VOCABULARY)
    title = f"{name}, {fixed(parameters(shape) / 1e6, 1)} M parameters"  # users call one 2.7B: it has 3.4 billion
    return _preset(COURSE, name, title, shape, 1e4, 1e-5, 2048, _COURSE)


# Shapes and constants are those of the config.json that each vendor publishes with the weights on Hugging Face:
# meta-llama/Llama-3.1-8B, Qwen/Qwen2.5-7B, mistralai/Mistral-7B-v0.1 and -v0.3. Llama 3.1's stretching of RoPE for
# contexts beyond 8,192 tokens changes neither cost nor count and is left out. A row: model, preset, title, shape
# (layers, width, FFN, heads, key-value heads, vocabulary), RoPE theta, epsilon of the norms, longest sequence, batch.
PRESETS = (
    _preset("llama", "full", "Llama-3.1-8B", shape_of_numbers(32, 4096, 14336, 32, 8, 128_256), 5e5, 1e-5, 131_072,
            FULL_BATCH),
    _preset("llama", "tiny", "Llama-3.1 tiny", shape_of_numbers(4, 128, 448, 8, 2, 4096), 5e5, 1e-5, 2048, TINY_BATCH),
    _preset("qwen", "full", "Qwen2.5-7B", shape_of_numbers(28, 3584, 18944, 28, 4, 152_064, attention_bias=True),
            1e6, 1e-6, 131_072, FULL_BATCH),
    _preset("qwen", "tiny", "Qwen2.5 tiny", shape_of_numbers(4, 128, 672, 8, 2, 4864, attention_bias=True),
            1e6, 1e-6, 2048, TINY_BATCH),
    _preset("mistral", "full", "Mistral-7B-v0.1", shape_of_numbers(32, 4096, 14336, 32, 8, 32_000, sliding_window=4096),
            1e4, 1e-5, 32_768, FULL_BATCH),
    _preset("mistral", "v0.3", "Mistral-7B-v0.3", shape_of_numbers(32, 4096, 14336, 32, 8, 32_768),
            1e6, 1e-5, 32_768, FULL_BATCH),
    _preset("mistral", "tiny", "Mistral-v0.1 tiny", shape_of_numbers(4, 128, 448, 8, 2, 1024, sliding_window=64),
            1e4, 1e-5, 2048, TINY_BATCH),  # the window is below its sequence length
    _course("small", 768, 3072, 12, 12),
    _course("medium", 1024, 4096, 24, 16),
    _course("large", 1280, 5120, 36, 20),
    _course("xl", 1600, 6400, 48, 25),
    _course("2.7B", 2560, 10240, 32, 32),
)  # fmt: skip


def find_preset(model: str, preset: str = "full") -> Preset:
    """Return the preset of a model by name ("real" is "full", "2_7B" is "2.7B"; case does not matter).

    Raises UsageError that lists the known ones.

    >>> find_preset("qwen").title
    'Qwen2.5-7B'
    """
    of_model = {candidate.name.lower(): candidate for candidate in PRESETS if candidate.model == model.lower()}
    if not of_model:
        models = dict.fromkeys(candidate.model for candidate in PRESETS)
        raise UsageError(f"no model {model!r}; models: {', '.join(models)}")
    if found := of_model.get(ALIASES.get(preset.lower(), preset.lower())):
        return found
    raise UsageError(f"no preset {preset!r} of {model}; presets: {', '.join(p.name for p in of_model.values())}")


def identify(shape: ModelShape) -> Preset | None:
    """Return the preset that has exactly this shape, so that a log that states its shape can be given a name."""
    return next((preset for preset in PRESETS if preset.shape == shape), None)
