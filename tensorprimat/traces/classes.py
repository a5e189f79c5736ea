"""Classes of work: each kernel belongs to one, by rules that are data (data/kernels.toml)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tensorprimat.facts import data_rows
from tensorprimat.traces.record import Kernel, Trace, recorded_list

MATRIX_PRODUCTS, CONVOLUTION, FORWARD_ATTENTION, UNKNOWN = "products", "convolution", "attention_forward", "unknown"
COMMUNICATION, COPIES, OPTIMIZER, CLIPPING = "communication", "copies", "optimizer", "clipping"
RECOMPUTED_CLASSES = {MATRIX_PRODUCTS: "recomputed_products", FORWARD_ATTENTION: "recomputed_attention"}
_DTYPES = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32", "double": "fp64"}
_DTYPES |= dict.fromkeys(("c10::Float8_e4m3fn", "c10::Float8_e5m2", "c10::Float8_e4m3fnuz"), "fp8")
_OFF = 0.1  # of the first products: how far the count of recomputed ones may be from what forward and backward leave
_COLLECTIVES = {
    "all_reduce": r"all_?reduce", "all_gather": r"all_?gather", "reduce_scatter": r"reduce_?scatter",
    "all_to_all": r"all_?to_?all", "broadcast": r"broadcast", "send_receive": r"send_?recv|::send|::recv",
    "reduce": r"::reduce_|_reduce",
}  # fmt: skip


@dataclass(frozen=True)
class KernelRule:
    """A row of the table: patterns and what a kernel is if they fit."""

    gives: str
    kernel: re.Pattern[str] | None
    operator: re.Pattern[str] | None
    not_operator: re.Pattern[str] | None = None

    def fits(self, name: str, chain: Sequence[str]) -> bool:
        """Return True if the rule is for a kernel that these operators launched."""
        if self.kernel is not None and not self.kernel.search(name):
            return False
        if self.not_operator is not None and any(map(self.not_operator.search, chain)):
            return False
        return self.operator is None or any(map(self.operator.search, chain))


def titles() -> dict[str, str]:
    """Return the title of every class, in the order of the ledger."""
    found: dict[str, str] = data_rows.read_data("kernels")["classes"]
    return found


@cache
def rules(table: str = "rules", gives: str = "class") -> tuple[KernelRule, ...]:
    """Return the rules of a table of data/kernels.toml, which decide in this order."""

    def pattern(row: dict[str, Any], name: str) -> re.Pattern[str] | None:
        return re.compile(row[name]) if name in row else None

    rows = data_rows.read_data("kernels")[table]
    return tuple(
        KernelRule(row[gives], *(pattern(row, name) for name in ("kernel", "operator", "not_operator"))) for row in rows
    )


def class_title(name: str) -> str:
    """Return the title of a class of a ledger.

    >>> class_title("products_bf16"), class_title("communication_all_gather"), class_title("copies")
    ('matrix products, bf16', 'exposed all-gather', 'copies and memsets')
    """
    if name in titles():
        return titles()[name]
    kind, _, detail = name.partition("_")
    if kind == COMMUNICATION:
        return f"exposed {detail.replace('_', '-')}"
    return f"{titles()[kind]}, {detail}"


def place_of(name: str) -> int:
    """Return the place of a class in the order of the ledger."""
    order = list(titles())
    return order.index(name if name in order else name.partition("_")[0])


@cache
def _class_of(kind: str, name: str, chain: tuple[str, ...]) -> str:
    """Return the class of a kernel without regard to recomputation."""
    table, other = {"kernel": (rules(), UNKNOWN), "memset": (rules("memsets"), COPIES)}.get(kind, ((), COPIES))
    found = next((rule.gives for rule in table if rule.fits(name, chain)), other)
    return f"{found}_{_collective(name, chain)}" if found == COMMUNICATION else found


def _collective(name: str, chain: Sequence[str]) -> str:
    """Return the kind of a collective, from its kernel's name or the operators around it."""
    kinds = [
        kind
        for text in (name, *reversed(chain))
        for kind, pattern in _COLLECTIVES.items()
        if re.search(pattern, text, re.IGNORECASE)
    ]
    if kinds[:1] == ["send_receive"] and "all_to_all" in kinds:
        return "all_to_all"  # NCCL's kernel for it is that of send and receive
    return kinds[0] if kinds else "collective"


@cache
def _precision_of(name: str) -> str | None:
    return next((rule.gives for rule in rules("precisions", "precision") if rule.fits(name, ())), None)


@cache
def _stated_precision(types: bytes) -> str | None:
    """Return the precision of an operator's first input. types: JSON of the types of all inputs."""
    return next((found for one in recorded_list(types) if (found := _DTYPES.get(str(one)))), None)


def precision_of(kernel: Kernel) -> str | None:
    """Return the precision of a product, or None if neither its operator nor its name states it."""
    stated = _stated_precision(kernel.operator.types) if kernel.operator else None
    named = _precision_of(kernel.name)
    if named in ("fp8", "fp4") or (stated == "fp32" and named is not None):
        return named  # tf32 has inputs of fp32, and an operator that casts by itself has higher ones
    return stated or named


def classify(trace: Trace) -> list[str]:
    """Return the class of each kernel of a trace."""
    found = [_class_of(kernel.kind, kernel.name, kernel.chain) for kernel in trace.kernels]
    repeated = _recomputed(trace, found)
    precisions = {
        id(kernel.operator): precision_of(kernel)
        for kernel, name in zip(trace.kernels, found, strict=True)
        if name == MATRIX_PRODUCTS and kernel.kind == "kernel"
    }
    for place, (kernel, name) in enumerate(zip(trace.kernels, found, strict=True)):
        if place in repeated:
            found[place] = RECOMPUTED_CLASSES.get(name, "recomputed_other")
        elif name == MATRIX_PRODUCTS:
            precision = precision_of(kernel) if kernel.kind == "kernel" else precisions.get(id(kernel.operator))
            found[place] = f"{MATRIX_PRODUCTS}_{precision}" if precision else MATRIX_PRODUCTS
    return found


def _recomputed(trace: Trace, classes: Sequence[str]) -> set[int]:
    """Return the places of kernels that repeat work of the forward pass inside of the backward pass.

    An operator that autograd recorded there shows it. In a compiled backward pass it does not: there a forward
    attention is a repeated one, and a product is if the forward pass runs the same kernel on the same grid, provided
    that the rest of the backward pass is twice the forward pass, as two products belong to each.
    """
    computes = [name not in (COPIES, UNKNOWN, OPTIMIZER) and not name.startswith(COMMUNICATION) for name in classes]
    backward = [bool(one.operator and one.operator.is_backward) for one in trace.kernels]
    recorded = [bool(one.operator and one.operator.is_recomputed) for one in trace.kernels]
    shown = {place for place, computed in enumerate(computes) if computed and recorded[place]}
    of_loss = [rule.operator.search for rule in rules() if rule.gives == "loss" and rule.operator]
    hidden = [place for place in range(len(classes)) if place not in shown]
    attention = {place for place in hidden if backward[place] and classes[place] == FORWARD_ATTENTION}
    products = [
        (place, trace.kernels[place])
        for place in hidden
        if classes[place] == MATRIX_PRODUCTS
        and trace.kernels[place].kind == "kernel"
        and not any(search(one) for search in of_loss for one in trace.kernels[place].chain)
    ]  # without those of a fused loss, which computes its gradient in the forward pass
    first = {(kernel.name, kernel.grid) for place, kernel in products if not backward[place]}
    repeated = {place for place, kernel in products if backward[place] and (kernel.name, kernel.grid) in first}
    counts = Counter(backward[place] for place, _ in products)
    expected, off = counts[True] - 2 * counts[False], _OFF * counts[False]
    is_plausible = len(repeated) >= off and abs(len(repeated) - expected) <= off
    return shown | attention | (repeated if is_plausible else set())
