"""Known patterns of lost time in a ledger, each said in a sentence with its remedy (data/notices.toml)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorprimat.core.notices import Notice
from tensorprimat.traces.classes import COMMUNICATION, MATRIX_PRODUCTS, class_title
from tensorprimat.traces.ledger import KernelTotal, Ledger
from tensorprimat.traces.record import Kernel
from tensorprimat.traces.work import inputs_of

_NOTABLE = 0.02  # of a step: less is not worth a sentence
_LARGE = 0.05  # of a step, for work that every training has some of
_SMALL_PRODUCT = 30e-6  # seconds: a launch costs 5 to 10 µs, so products as short as this leave no room to run ahead
_MANY = 50  # launches of a step, from which a mean says something
_UNFUSED = 0.25  # of a step in elementwise kernels; compiled trainings of H100 and H200 show 4 to 10 %
_ALIGNED = 8  # elements of 16 bits: 16 bytes, which the matrix units load at once
_FUSED_OPTIMIZER = re.compile(r"[Ff]used|triton|multi_tensor_adam|Adam\w*Functor")
_SOFTMAX = re.compile(r"(?i)softmax")

_Values = Mapping[str, Any]


def patterns_of(ledger: Ledger) -> tuple[Notice, ...]:
    """Return a notice for each known pattern that a ledger shows."""
    patterns = {code: pattern for code, pattern in _PATTERNS.items() if not (ledger.trace.on_cpu and code in _OF_GPU)}
    found = ((code, pattern(ledger)) for code, pattern in patterns.items())
    return tuple(Notice(code, "", **values) for code, values in found if values is not None)


def _share(ledger: Ledger, seconds: float, least: float = _NOTABLE) -> _Values | None:
    """Return time and share of a step, or None if it is less than the least share."""
    share = seconds / ledger.step_seconds
    return {"time": seconds, "share": share} if share >= least else None


def _first_products(ledger: Ledger) -> list[Kernel]:
    """Return the products of the forward passes of all steps, without those of a fused loss."""
    forward = [one for one in ledger.kernels(MATRIX_PRODUCTS) if not (one.operator and one.operator.is_backward)]
    return [one for one in forward if not any("CrossEntropy" in name for name in one.chain)]


def _last_product(ledger: Ledger) -> _Values | None:
    layers, again = ledger.launches("attention_forward"), ledger.launches("recomputed_attention")
    if not layers or not again:
        return None
    of_layer = round(len(_first_products(ledger)) / len(ledger.by_step) / layers)
    repeated = ledger.launches("recomputed_products")
    if of_layer < 2 or round(repeated / again) < of_layer:
        return None
    products = ledger.launches(MATRIX_PRODUCTS) + repeated
    return {"of_layer": of_layer, "products": products, "needed": products - again}


def _dense_attention(ledger: Ledger) -> _Values | None:
    softmax = [item.seconds for item in ledger.items.get("attention_helpers", ()) if _SOFTMAX.search(item.name)]
    return _share(ledger, sum(softmax)) if not ledger.launches("attention_forward") else None


def _of_items(ledger: Ledger, items: Sequence[KernelTotal], least: float) -> _Values | None:
    """Return time, share and launches of kernels, or None if they take less than the least share of a step."""
    found = _share(ledger, sum(item.seconds for item in items), least)
    return found and {**found, "launches": sum(item.launches for item in items)}


def _unfused_optimizer(ledger: Ledger) -> _Values | None:
    items = ledger.items.get("optimizer", ())
    return _of_items(ledger, [item for item in items if not _FUSED_OPTIMIZER.search(item.name)], _NOTABLE)


def _full_precision(ledger: Ledger) -> _Values | None:
    low = ledger.seconds(*(f"{MATRIX_PRODUCTS}_{name}" for name in ("bf16", "fp16", "fp8", "fp4")))
    return _share(ledger, ledger.classes.get(f"{MATRIX_PRODUCTS}_fp32", 0.0)) if low else None


def _misaligned(ledger: Ledger) -> _Values | None:
    products: list[tuple[Kernel, list[Any]]] = []
    for name, kernels in ledger.members.items():
        for kernel in kernels if name.startswith(MATRIX_PRODUCTS) and name != f"{MATRIX_PRODUCTS}_fp32" else ():
            inputs = inputs_of(kernel.operator.shapes, kernel.operator.types) if kernel.operator else ()
            products.append((kernel, [shape for shape, _ in inputs if len(shape) == 2]))
    # A row of an output is contiguous, so its length counts; the number of rows, such as that of tokens, does not.
    lengths = {shapes[-1][1] for _, shapes in products if shapes and shapes[-1][1] % _ALIGNED and shapes[-1][1] > 1}
    odd: dict[int, float] = {}
    for kernel, shapes in products:
        if found := lengths.intersection(size for shape in shapes for size in shape):
            odd[max(found)] = odd.get(max(found), 0.0) + kernel.end - kernel.start
    if not odd:
        return None
    share = _share(ledger, sum(odd.values()) / len(ledger.by_step))
    return share and {**share, "size": max(odd, key=lambda size: odd[size])}


def _exposed(ledger: Ledger) -> _Values | None:
    times = {name: time for name, time in ledger.classes.items() if name.startswith(COMMUNICATION)}
    if not times:
        return None
    found = _share(ledger, sum(times.values()), _LARGE)
    return found and {**found, "kind": class_title(max(times, key=lambda name: times[name])).partition(" ")[2]}


def _small_products(ledger: Ledger) -> _Values | None:
    launches, seconds = ledger.launches(MATRIX_PRODUCTS), ledger.seconds(MATRIX_PRODUCTS)
    if launches < _MANY or seconds / launches > _SMALL_PRODUCT:
        return None
    return {"mean": seconds / launches * 1e6, "launches": launches}


def _unfused_elementwise(ledger: Ledger) -> _Values | None:
    names = ("normalisation", "activation", "elementwise")
    items = [item for name in names for item in ledger.items.get(name, ()) if not item.name.startswith("triton_")]
    return _of_items(ledger, items, _UNFUSED)


def _of_class(name: str, least: float = _NOTABLE) -> Callable[[Ledger], _Values | None]:
    return lambda ledger: _share(ledger, ledger.classes.get(name, 0.0), least)


_PATTERNS: Mapping[str, Callable[[Ledger], _Values | None]] = {
    "pattern_last_product": _last_product,
    "pattern_dense_attention": _dense_attention,
    "pattern_unfused_optimizer": _unfused_optimizer,
    "pattern_full_precision": _full_precision,
    "pattern_misaligned": _misaligned,
    "pattern_exposed": _exposed,
    "pattern_late_host": _of_class("gap_launch", _LARGE),
    "pattern_small_products": _small_products,
    "pattern_data": _of_class("data_wait"),
    "pattern_synchronisation": _of_class("gap_synchronisation"),
    "pattern_copies": _of_class("copies", _LARGE),
    "pattern_unfused_elementwise": _unfused_elementwise,
    "pattern_scaling": _of_class("quantisation", _LARGE),
}
"""Code of a notice → function that returns its values, or None where a ledger does not show the pattern."""
_OF_GPU = ("pattern_late_host", "pattern_small_products", "pattern_unfused_elementwise", "pattern_synchronisation")
"""Patterns that a CPU does not have."""
