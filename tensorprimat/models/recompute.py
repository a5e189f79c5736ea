"""Recomputation of activations by the torch engine: which results of a decoder layer are kept for backward.

A plan keeps the layer's input and the results of some operations. Everything else runs again in backward, but not the
last product, whose result no gradient needs unless a norm follows it. A dense layer has seven matrix products, six
without a gate, and one attention; what lies between them is cheap to compute and never kept by a plan.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from itertools import combinations

from tensorprimat.core.result import ModelShape
from tensorprimat.models import flops

NONE, SECOND_LAYERS, ALL_LAYERS = "none", "every second layer", "full"
PRODUCTS = ("queries", "keys", "values", "output", "gate", "up", "down")
"""Matrix products of a dense layer, in the order in which they run."""
ATTENTION = "attention"
OPERATIONS = (*PRODUCTS[:3], ATTENTION, *PRODUCTS[3:6])
"""Operations of a layer whose results a plan keeps or recomputes, in the order in which they run."""
ATTENTION_COST = 4 / 3
"""Time of an attention's FLOP, in that of a product's FLOP: cuDNN's forward pass on an H200, 8,192 tokens, 522 TFLOP/s
against 695 of the gate's product (docs/project/measurements.md)."""
_PLAN = re.compile(r"(\d+) % of activations kept: (.+) recomputed")
_NO_PRODUCT = "no product"


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation of a layer: the bytes of its result and the FLOPs of its forward pass, for one token."""

    bytes_per_token: float
    flops_per_token: float


def is_plannable(shape: ModelShape) -> bool:
    """Return True if the layers of a model have the operations of a plan: dense, with a gated MLP."""
    return shape.gated_mlp and has_dense_layers(shape)


def has_dense_layers(shape: ModelShape) -> bool:
    """Return True if the layers of a model have PRODUCTS and one attention, with or without a gate."""
    return not (shape.experts or shape.latent_attention)


def operations_of(shape: ModelShape, *, sequence_length: int, width: int) -> dict[str, Operation]:
    """Return the operations of one layer by name, as the mean of all layers. width: bytes of a number."""
    hidden = shape.hidden_size
    queries, pairs = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
    widths = {"queries": (hidden, queries), "keys": (hidden, pairs), "values": (hidden, pairs),
              "output": (queries, hidden), "gate": (hidden, shape.ffn_hidden_size),
              "up": (hidden, shape.ffn_hidden_size)}  # fmt: skip
    if not shape.gated_mlp:
        del widths["gate"]
    found = {
        name: Operation(bytes_per_token=into * width, flops_per_token=2 * of * into)
        for name, (of, into) in widths.items()
    }
    counting = flops.convention_named(flops.DEFAULT_CONVENTION)
    found[ATTENTION] = Operation(
        bytes_per_token=queries * width + 4 * shape.num_attention_heads,  # its output, and a log-sum for each head
        flops_per_token=counting.attention(shape, sequence_length) / (3 * shape.num_layers),
    )
    return {name: found[name] for name in OPERATIONS if name in found}


def cheapest_first(operations: dict[str, Operation]) -> list[tuple[str, ...]]:
    """Return the operations that each plan recomputes, from the cheapest plan to the smallest.

    Only plans are listed that keep less than every cheaper one.
    """
    every = [chosen for size in range(len(OPERATIONS) + 1) for chosen in combinations(OPERATIONS, size)]
    found: list[tuple[str, ...]] = []
    least = float("inf")
    for chosen in sorted(every, key=lambda names: (_cost(operations, names), kept_bytes(operations, names))):
        if (kept := kept_bytes(operations, chosen)) < least:
            found.append(chosen)
            least = kept
    return found


def kept_bytes(operations: dict[str, Operation], recomputed: Collection[str]) -> float:
    """Return the bytes that a plan keeps of one token in one layer, without the layer's input."""
    return sum(one.bytes_per_token for name, one in operations.items() if name not in recomputed)


def recomputed_flops(shape: ModelShape, recomputed: Collection[str], sequence_length: int) -> float:
    """Return the FLOPs that a plan adds to backward, for one token in one layer; a layer without a gate has none."""
    operations = operations_of(shape, sequence_length=sequence_length, width=1)
    last = PRODUCTS[-1]  # no plan keeps it
    operations[last] = operations["up"]  # as large
    again = {*recomputed, last}.difference((last,) if shape.summed_products is None else shape.summed_products)
    return sum(operations[name].flops_per_token for name in again if name in operations)


def _cost(operations: dict[str, Operation], recomputed: Collection[str]) -> float:
    return sum(operations[name].flops_per_token * (ATTENTION_COST if name == ATTENTION else 1) for name in recomputed)


def describe(recomputed: Collection[str], share: float) -> str:
    """Return a plan in words, as results state it. share: of the activations without recomputation, 0 to 1.

    >>> describe(("queries", "up"), 0.354)
    '35 % of activations kept: queries, up recomputed'
    """
    return f"{round(100 * share)} % of activations kept: {', '.join(recomputed) or _NO_PRODUCT} recomputed"


def recomputed_operations(recompute: str) -> tuple[str, ...] | None:
    """Return the operations of a layer that run again in backward; None for text that is neither a plan nor "full".

    >>> recomputed_operations("35 % of activations kept: queries, up recomputed")
    ('queries', 'up')
    """
    if recompute == ALL_LAYERS:
        return OPERATIONS
    found = _PLAN.fullmatch(recompute)
    if found is None:
        return None
    names = () if found[2] == _NO_PRODUCT else tuple(found[2].split(", "))
    return names if set(names) <= set(OPERATIONS) else None
