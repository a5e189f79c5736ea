"""Training FLOPs per token by the conventions that the field uses: an MFU without its convention has no meaning.

L layers, H heads × Q head size, T sequence length, N parameters, P_mm weights of every matrix product (see
`presets.matrix_parameters`); of a mixture of experts, N and P_mm count those that one token uses. A multiply-add is two
FLOPs; backward costs twice forward, hence 6 per weight and token. Recomputation is not counted: these are the FLOPs of
the model, not those that the hardware executes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import ModelShape, Result
from tensorprimat.core.vocabulary import Recompute
from tensorprimat.models import presets


@dataclass(frozen=True, kw_only=True)
class Convention:
    """One way to count, by the name under which results state it."""

    name: str
    formula: str
    symbols: tuple[str, ...]
    """Symbols of the formula, apart from those that it explains itself."""
    used_by: str
    weights: Callable[[ModelShape], int]
    """Weights that cost 6 FLOPs per token."""
    attention: Callable[[ModelShape, int], int]
    """FLOPs per token of scores and weighted sums, at a sequence length."""


def _every_pair(shape: ModelShape, sequence_length: int) -> int:
    """Return 12·L·H·Q·T: all T² pairs of query and key, masked or not (so a sliding window changes nothing)."""
    layers = shape.num_layers + (shape.multi_token_layers or 0)
    return 6 * sum(presets.attention_widths(shape)) * layers * sequence_length


def _attended_pairs(shape: ModelShape, sequence_length: int) -> int:
    """Return 6·L·H·Q·T: the T²/2 pairs below the diagonal; within a window W < T there are T·W − W²/2 of them."""
    window = min(shape.sliding_window or sequence_length, sequence_length)
    layers = shape.num_layers + (shape.multi_token_layers or 0)
    windowed = layers if shape.windowed_layers is None else shape.windowed_layers
    twice_the_pairs = windowed * (2 * sequence_length * window - window**2) + (layers - windowed) * sequence_length**2
    return 6 * sum(presets.attention_widths(shape)) * twice_the_pairs // (2 * sequence_length)


_OF_ATTENTION = ("L", "H", "Q", "T")
CONVENTIONS: dict[str, Convention] = {
    name: Convention(
        name=name, formula=formula, symbols=symbols, used_by=used_by, weights=weights, attention=attention
    )
    for name, weights, attention, formula, symbols, used_by in (
        ("megatron", presets.matrix_parameters, _attended_pairs,
         "6·P_mm + 6·L·H·Q·T (causal; pairs T·W − W²/2 within a sliding window W < T)", ("P_mm", *_OF_ATTENTION),
         "Megatron-LM, Megatron-Bridge, NeMo's llama3 formula, NVIDIA's tables since 25.09"),
        ("palm", presets.active_parameters, _every_pair,
         "6·N + 12·L·H·Q·T", ("N", *_OF_ATTENTION), "the PaLM paper (appendix B), nanoGPT"),
        ("6n", presets.active_parameters, lambda _shape, _sequence_length: 0,
         "6·N", ("N",), "scaling-law papers, quick estimates"),
        ("torchtitan", lambda one: presets.active_parameters(one) - presets.embedding_parameters(one), _every_pair,
         "6·(N − embedding) + 12·L·H·Q·T", ("N", *_OF_ATTENTION), "torchtitan"),
        ("full_attention", presets.matrix_parameters, _every_pair,
         "6·P_mm + 12·L·H·Q·T", ("P_mm", *_OF_ATTENTION), "NVIDIA's NeMo tables up to 25.07"),
        ("nemo_transformer",
         lambda one: presets.matrix_parameters(one) - one.gated_mlp * presets.mlp_matrix_parameters(one), _every_pair,
         "6·(P_mm − gate matrices) + 12·L·H·Q·T", ("P_mm", *_OF_ATTENTION),
         "NeMo's transformer() formula by default, which counts an MLP of two matrices"),
    )
}  # fmt: skip
DEFAULT_CONVENTION = "megatron"
MOST_OF_A_MODEL = 0.5  # of its parameters; an embedding or a head that is counted separately is less than the rest


def convention_named(name: str) -> Convention:
    """Return the convention of this name; raises UsageError that lists all names."""
    try:
        return CONVENTIONS[name.lower()]
    except KeyError:
        raise UsageError(f"no FLOPs convention {name!r}; conventions: {', '.join(CONVENTIONS)}") from None


def per_token(shape: ModelShape, sequence_length: int, convention: str = DEFAULT_CONVENTION) -> int:
    """Return the training FLOPs (forward and backward) of one token in a sequence of this length.

    Only `megatron` counts the pairs that attention really visits, so only it honours a sliding window. By definition
    `6n` charges no pair, and the others every pair. Raises UsageError for an unknown convention.

    >>> from tensorprimat.models.presets import find_preset
    >>> per_token(find_preset("llama").shape, 8192)
    51470401536
    """
    counting = convention_named(convention)
    return 6 * counting.weights(shape) + counting.attention(shape, sequence_length)


def peak_of_parts(
    shape: ModelShape, sequence_length: int, *, layers: float, others: float, convention: str = DEFAULT_CONVENTION
) -> float:
    """Return the peak of work whose parts run in two precisions: all FLOPs over the least time of the parts.

    layers: peak at the precision of the layers' matrices. others: peak of output head and attention, which FP8 and FP4
    training leaves in BF16.
    """
    counting = convention_named(convention)
    head = 6 * presets.embedding_parameters(shape) * (1 + (shape.multi_token_layers or 0))
    body = 6 * counting.weights(shape) - head
    rest = head + counting.attention(shape, sequence_length)
    return (body + rest) / (body / layers + rest / others)


def charged_per_token(result: Result, convention: str = DEFAULT_CONVENTION) -> int | None:
    """Return the training FLOPs of one token of a result; None if shape, length or cost of frozen layers is unknown.

    A frozen matrix has no weight gradient: with LoRA adapters in every layer it costs 4 FLOPs per weight instead of 6.
    The cost with other frozen layers depends on which ones are frozen, so it is None.
    """
    shape, length = result.model.shape, result.training_config.sequence_length
    if shape is None or not length:
        is_default = convention_named(convention).name == DEFAULT_CONVENTION
        return (result.model.training_flops_per_token or None) if length and is_default else None
    frozen, every = frozen_parameters(result), per_token(shape, length, convention)
    if not frozen:
        return every if frozen is False else None
    with_adapters = "lora" in (result.training_config.peft or "").lower()
    return every - 2 * convention_named(convention).weights(shape) if with_adapters else None


def countings(result: Result) -> dict[str, int]:
    """Return the FLOPs of one token that a framework may have counted; empty where shape or length is unknown.

    They are those of each convention, of a training with adapters also with frozen weights at 4 FLOPs, and of one that
    recomputes all layers also with a second forward, as in Megatron-DeepSpeed's throughput_calculator
    (deepspeedai/Megatron-DeepSpeed, megatron/utils.py).
    """
    shape, length = result.model.shape, result.training_config.sequence_length
    if shape is None or not length:
        return {}
    counted = {name: per_token(shape, length, name) for name in CONVENTIONS}
    if frozen_parameters(result):
        charged = {f"{name}, frozen weights at 4 FLOPs": charged_per_token(result, name) for name in CONVENTIONS}
        counted |= {name: count for name, count in charged.items() if count}
    if result.training_config.recompute == Recompute.ALL_LAYERS:
        counted |= {f"{name}, recomputation included": count * 4 // 3 for name, count in counted.items()}
    return counted


def frozen_parameters(result: Result) -> bool | None:
    """Return True if some parameters do not train, False if all do or nothing says otherwise, None if it is unclear."""
    trainable, peft = result.model.trainable_parameters, (result.training_config.peft or "").lower()
    every = result.model.parameters
    if trainable is not None and every:
        return trainable < every
    if trains_few(result, result.model.shape):
        return None
    if peft:
        return peft != "none"
    names = " ".join(filter(None, (result.model.name, result.model.preset))).lower()
    return None if any(word in names for word in ("lora", "peft", "adapter", "frozen")) else False


def trains_few(result: Result, shape: ModelShape | None) -> bool:
    """Return True if one process's trainable parameters, times all processes, are far fewer than the model's.

    shape: of the model, stated or assumed; None where neither is known.
    """
    counted, processes = result.model.trainable_parameters_per_process, result.training_config.num_gpus
    every = result.model.parameters or (presets.parameters(shape) if shape is not None else None)
    return bool(counted and processes and every and counted * processes < MOST_OF_A_MODEL * every)
