"""Recomputation of activations by the torch engine: which results of a decoder layer are kept for backward.

A plan keeps the layer's input and the results of some operations. Everything else runs again in backward, but not the
last product, whose result no gradient needs unless a norm follows it. A dense layer has seven matrix products, six
without a gate, and one attention; what lies between them is cheap to compute and never kept by a plan.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import combinations

from tensorprimat.core.result import ModelShape
from tensorprimat.core.vocabulary import Recompute
from tensorprimat.models import flops

ATTENTION_COST = 4 / 3
"""Time of an attention's FLOP, in that of a product's FLOP: cuDNN's forward pass on an H200, 8,192 tokens, 522 TFLOP/s
against 695 of the gate's product (docs/project/measurements.md)."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation of a layer: the bytes of its result and the FLOPs of its forward pass, for one token."""

    bytes_per_token: float
    flops_per_token: float


def is_plannable(shape: ModelShape) -> bool:
    """Return True if the layers of a model have the operations of a plan: dense, with a gated MLP."""
    return shape.gated_mlp and has_dense_layers(shape)


def has_dense_layers(shape: ModelShape) -> bool:
    """Return True if the layers of a model have Recompute.PRODUCTS and one attention, with or without a gate."""
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
    found[Recompute.ATTENTION] = Operation(
        bytes_per_token=queries * width + 4 * shape.num_attention_heads,  # its output, and a log-sum for each head
        flops_per_token=counting.attention(shape, sequence_length) / (3 * shape.num_layers),
    )
    return {name: found[name] for name in Recompute.OPERATIONS if name in found}


def cheapest_first(operations: dict[str, Operation]) -> list[tuple[str, ...]]:
    """Return the operations that each plan recomputes, from the cheapest plan to the smallest.

    Only plans are listed that keep less than every cheaper one.
    """

    def cost(names: Collection[str]) -> float:
        attention = Recompute.ATTENTION
        return sum(operations[one].flops_per_token * (ATTENTION_COST if one == attention else 1) for one in names)

    names = Recompute.OPERATIONS
    every = [chosen for size in range(len(names) + 1) for chosen in combinations(names, size)]
    found: list[tuple[str, ...]] = []
    least = float("inf")
    for chosen in sorted(every, key=lambda names: (cost(names), kept_bytes(operations, names))):
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
    last = Recompute.PRODUCTS[-1]  # no plan keeps it
    operations[last] = operations["up"]  # as large
    again = {*recomputed, last}.difference((last,) if shape.summed_products is None else shape.summed_products)
    return sum(operations[name].flops_per_token for name in again if name in operations)
