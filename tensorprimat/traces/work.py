"""Work of a step in FLOPs and bytes, from the shapes of the trace or from the model that ran, and its rates."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tensorprimat.core.result import ModelShape
from tensorprimat.core.vocabulary import Recompute
from tensorprimat.facts import catalogue
from tensorprimat.models import flops, presets, recompute
from tensorprimat.storage.preflight import Preflight
from tensorprimat.traces.classes import MATRIX_PRODUCTS
from tensorprimat.traces.ledger import Ledger
from tensorprimat.traces.record import SDPA, Kernel, Operator, recorded_list

_BACKWARD_ATTENTION = 2.5  # products of FlashAttention's backward kernel to those of forward: five to two
_ADAM_PASSES = 7  # over the parameters: reads of weight, gradient and two moments, writes of weight and moments
_CLIP_PASSES = 3  # a read for the norm, a read and a write for the scaling
_OFF = 0.1  # products of a layer, by which a count may miss a plan's
_MOST_RATE = 1.05  # of a peak: a rate above shows that the work is not that of the model
_BYTES = {"c10::BFloat16": 2, "c10::Half": 2, "float": 4, "double": 8, "long int": 8, "int": 4, "bool": 1,
          "unsigned char": 1, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "c10::Float8_e4m3fnuz": 1}  # fmt: skip
_OF_MEMORY = ("normalisation", "activation", "quantisation", "elementwise")
_FIRST = {"aten::mm": 0, "aten::bmm": 0, "aten::_scaled_mm": 0, "aten::addmm": 1, "aten::addmm_": 1, "aten::baddbmm": 1}
"""Product → place of its first matrix among its inputs."""
_IS_CAUSAL = {"flash_attention": 4, "flash_attention_for_cpu": 4, "efficient_attention": 6, "cudnn_attention": 6,
              "fused_attention_overrideable": 5, "flash_attention_backward": 11, "flash_attention_for_cpu_backward": 7,
              "efficient_attention_backward": 11, "cudnn_attention_backward": 14}  # fmt: skip
"""Operator of an attention → place of is_causal among its inputs (native_functions.yaml of PyTorch 2.13)."""

OF_BATCHES = ("aten::bmm", "aten::baddbmm")
"""Products of an attention that runs as products; the weights have none of them."""


@dataclass(frozen=True, kw_only=True)
class TraceFacts:
    """Facts about a side that a trace does not hold."""

    shape: ModelShape | None = None
    sequence_length: int | None = None
    sequences: int = 1
    """Sequences of a step on one GPU."""
    recompute: str = ""
    """Plan of recomputation, in the words of the result."""
    clock_hz: float | None = None
    """Mean clock of the GPU."""
    preflight: Preflight | None = None
    """Best rates that its machine reached."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The work of a class in a step, and the rate at which it ran."""

    amount: float
    """FLOPs or bytes of a step."""
    per_second: float
    peak: float | None
    """Peak of the device in the same unit, or None where the catalogue has none."""
    unit: str
    """FLOP or B."""
    peak_at_clock: float | None = None
    """Peak of the matrix units at the mean clock of the run, or None where one of both clocks is unknown."""
    best: float | None = None
    """Rate that the preflight of its machine reached, or None without one."""


@cache
def inputs_of(shapes: bytes, types: bytes) -> tuple[tuple[Any, Any], ...]:
    """Return shape and type of each input of an operator, as the trace has them."""
    found = zip(recorded_list(shapes), recorded_list(types), strict=False)
    return tuple(
        (shape if isinstance(shape, list) and all(isinstance(size, int | list) for size in shape) else [], str(kind))
        for shape, kind in found
    )


def product_flops(operator: Operator | None) -> float | None:
    """Return the FLOPs of a product from its shapes; None where the trace has none."""
    if operator is None or operator.name not in _FIRST:
        return None
    place = _FIRST[operator.name]
    pair = [shape for shape, _ in inputs_of(operator.shapes, operator.types)[place : place + 2]]
    if len(pair) < 2 or min(map(len, pair)) < 2 or pair[0][-1] != pair[1][-2]:
        return None
    return float(2 * math.prod(pair[0]) * pair[1][-1])


def least_bytes(operator: Operator | None) -> float | None:
    """Return the least bytes that an elementwise operator moves: its inputs once, and an output like the largest.

    A kernel of Triton has its outputs among its inputs.
    """
    inputs = inputs_of(operator.shapes, operator.types) if operator else ()
    if operator is None or any(shape and isinstance(shape[0], list) for shape, _ in inputs):
        return None
    sizes = [math.prod(shape) * _BYTES[kind] for shape, kind in inputs if shape and kind in _BYTES]
    if not sizes:
        return None
    return float(sum(sizes) + (0 if operator.name.startswith("triton_") else max(sizes)))


def attention_flops(operator: Operator | None) -> float | None:
    """Return the FLOPs of an attention from its shapes and its mask; None where the trace has none.

    A mask that is a matrix saves no work.
    """
    name = operator.name.removeprefix(SDPA) if operator else ""
    if operator is None or name not in _IS_CAUSAL or not operator.values:
        return None
    of_backward = name.endswith("_backward")  # its first input is the gradient of the output
    shapes = [shape for shape, _ in inputs_of(operator.shapes, operator.types)[of_backward:][:3]]
    causal = recorded_list(operator.values)[_IS_CAUSAL[name] :][:1]
    sizes = [size for shape in shapes for size in shape]
    if [*map(len, shapes)] != [4, 4, 4] or list in map(type, sizes) or causal not in (["True"], ["False"]):
        return None
    query, key, value = shapes
    total: float = 2.0 * math.prod(query[:3]) * key[2] * (query[3] + value[3])  # batch, heads, tokens, width of a head
    return total * (0.5 if causal == ["True"] else 1.0) * (_BACKWARD_ATTENTION if of_backward else 1.0)


def _attention_of(kernel: Kernel) -> Operator | None:
    """Return PyTorch's operator of an attention around the launch of a kernel."""
    operator = kernel.operator
    while operator is not None and not operator.name.startswith(SDPA):
        operator = operator.parent
    return operator


def _product_of(kernel: Kernel) -> Operator | None:
    """Return the operator of a product around the launch of a kernel, or the innermost one where there is none."""
    operator = kernel.operator
    while operator is not None and operator.name not in _FIRST:
        operator = operator.parent
    return operator or kernel.operator


def _total(operators: Iterable[Operator | None], amount: Callable[[Operator | None], float | None]) -> float | None:
    """Return the work of operators that launched kernels; None where that of one is unknown."""
    counted = [amount(one) for one in {id(one): one for one in operators}.values()]
    known = [one for one in counted if one is not None]
    return sum(known) if known and len(known) == len(counted) else None


def first_flops(ledger: Ledger) -> float | None:
    """Return the FLOPs of the products of a step with the weights, without repeated ones; None without shapes."""
    kernels = (one for one in ledger.kernels(MATRIX_PRODUCTS) if not (one.operator and one.operator.name in OF_BATCHES))
    total = _total(map(_product_of, kernels), product_flops) if ledger.trace.has_shapes else None
    return None if total is None else total / len(ledger.by_step)


def attended_tokens(ledger: Ledger) -> int | None:
    """Return the tokens of a sequence from the query of the first attention; None where the trace has no shapes."""
    for kernel in ledger.members.get("attention_forward", ()):
        operator = _attention_of(kernel)
        for shape, _ in inputs_of(operator.shapes, operator.types)[:1] if operator else ():
            if len(shape) == 4:  # batch, heads, tokens, width of a head
                return int(shape[2])
    return None


def rates_of(ledger: Ledger, facts: TraceFacts) -> Mapping[str, Rate]:
    """Return the rate of each class whose work is known, by the name of the class.

    A rate above the peak is left out: then the work of the step is not that of the model.
    """
    amounts = _of_model(ledger, facts) | _of_shapes(ledger)
    gpu = catalogue.find_gpu(ledger.trace.device) if ledger.trace.device else None
    bandwidth = gpu.memory_tb_per_second.value if gpu and gpu.memory_tb_per_second else None
    defined = gpu.matrix_clock_mhz.value if gpu and gpu.matrix_clock_mhz else None
    slower = facts.clock_hz / (defined * 1e6) if facts.clock_hz and defined else None
    found = {}
    for name, (amount, unit) in amounts.items():
        seconds = ledger.classes.get(name, 0.0)
        if not seconds:
            continue
        precision = _precision_of(name, ledger)
        peak = bandwidth if unit == "B" else catalogue.dense_peak(gpu, precision)
        at_clock = peak * 1e12 * slower if peak and slower and unit == "FLOP" else None
        peak = peak * 1e12 if peak else None
        best = None
        if (own := facts.preflight) is not None:
            best = own.memory_bytes_per_second() if unit == "B" else own.matmul_flops_per_second(precision or "")
        rate = Rate(amount=amount, per_second=amount / seconds, peak=peak, unit=unit, peak_at_clock=at_clock, best=best)
        if rate.peak is None or rate.per_second <= _MOST_RATE * rate.peak:
            found[name] = rate
    return found


def _precision_of(name: str, ledger: Ledger) -> str | None:
    """Return the precision in which a class computes; of all but products it is that of most products, FP8's is BF16.

    None where no product states it.
    """
    of_products = {one: time for one, time in ledger.classes.items() if one.startswith(f"{MATRIX_PRODUCTS}_")}
    main = name if name in of_products else max(of_products, key=of_products.__getitem__, default="")
    precision = main.partition("_")[2] or None
    return "bf16" if precision in ("fp8", "fp4") and "attention" in name else precision


def _of_shapes(ledger: Ledger) -> dict[str, tuple[float, str]]:
    """Return the work of classes from the shapes of the trace."""
    found = {}
    for name, kernels in ledger.members.items() if ledger.trace.has_shapes else ():
        total, unit = None, "FLOP"
        if name.startswith((MATRIX_PRODUCTS, "recomputed_products")):
            total = _total(map(_product_of, kernels), product_flops)
        elif name in ("attention_forward", "attention_backward", "recomputed_attention"):
            around = [one for one in map(_attention_of, kernels) if one or not ledger.trace.on_cpu]
            total = _total(around, attention_flops)
        elif name in _OF_MEMORY and not ledger.trace.on_cpu:  # there operators contain one another
            total, unit = _total((one.operator for one in kernels), least_bytes), "B"
        if total is not None:
            found[name] = (total / len(ledger.by_step), unit)
    return found


def _of_model(ledger: Ledger, facts: TraceFacts) -> dict[str, tuple[float, str]]:
    """Return the work of classes from the model: products, attention, and the optimizer of one GPU."""
    if facts.shape is None or facts.sequence_length is None:
        return {}
    tokens = facts.sequence_length * facts.sequences
    weights = presets.matrix_parameters(facts.shape)
    trains = bool(ledger.seconds("attention_backward", "optimizer"))
    attention = tokens * (flops.per_token(facts.shape, facts.sequence_length) - 6 * weights) / 3
    found = {
        "attention_forward": (attention, "FLOP"), "attention_backward": (_BACKWARD_ATTENTION * attention, "FLOP"),
    }  # fmt: skip
    layers, again = ledger.launches("attention_forward"), ledger.launches("recomputed_attention")
    if layers and again:
        found["recomputed_attention"] = (attention * again / layers, "FLOP")
    if (repeated := _repeated_weights(ledger, facts.shape, facts.recompute)) is not None:
        found["recomputed_products"] = (2 * repeated * tokens, "FLOP")
    products = {name: time for name, time in ledger.classes.items() if name.startswith(MATRIX_PRODUCTS)}
    least = 0.01 * sum(products.values())  # less are others, such as of the angles of rotary embeddings in fp32
    main = sorted((name for name, time in products.items() if time > least), key=lambda name: -products[name])
    per_weight = (6 if trains else 2) * tokens
    if len(main) == 1:
        found[main[0]] = (per_weight * weights, "FLOP")
    elif len(main) == 2 and layers and ledger.launches(main[0]) % (3 * layers) == 0:  # equally many in each layer:
        head = facts.shape.hidden_size * facts.shape.vocab_size  # the other precision is that of the head
        found |= {main[0]: (per_weight * (weights - head), "FLOP"), main[1]: (per_weight * head, "FLOP")}
    if ledger.trace.world_size in (None, 1):
        parameters = presets.parameters(facts.shape)
        for name, passes in (("optimizer", _ADAM_PASSES), ("clipping", _CLIP_PASSES)):
            if size := _state_bytes(ledger, name):
                found[name] = (passes * parameters * size, "B")
    return found


def _repeated_weights(ledger: Ledger, shape: ModelShape, plan: str) -> float | None:
    """Return the weights whose products the backward pass repeats; None where their number fits no plan.

    By the operations of the plan, or where it is unknown or of whole layers: all products of the layers whose attention
    is repeated, or all but the last.
    """
    layers, products = ledger.launches("attention_forward"), ledger.launches("recomputed_products")
    if not layers or not products or not recompute.is_plannable(shape):
        return None
    operations = recompute.operations_of(shape, sequence_length=1, width=1)
    weights = {name: operations[name].flops_per_token / 2 for name in Recompute.PRODUCTS[:-1]}
    chosen = [one for one in Recompute(plan).operations or () if one in weights]
    if chosen and plan != Recompute.ALL_LAYERS:
        fits = abs(products / layers - len(chosen)) < _OFF
        return sum(weights[name] for name in chosen) * shape.num_layers if fits else None
    again = ledger.launches("recomputed_attention")
    of_layer = ledger.launches(MATRIX_PRODUCTS) // (3 * layers)  # forward, and two in backward; the head has fewer
    left_out = of_layer - products / again if again else math.inf
    if min(abs(left_out), abs(left_out - 1)) > _OFF:
        return None
    last = weights["up"] if left_out < _OFF else 0.0  # the last product is as large
    return (sum(weights.values()) + last) * shape.num_layers * again / layers


def _state_bytes(ledger: Ledger, name: str) -> int | None:
    """Return the bytes of a value that the fused optimizer or the norm reads, from the kernels' template."""
    text = " ".join(item.name for item in ledger.items.get(name, ())[:2])
    match = re.search(r"(?:FusedAdamMathFunctor|LpNormFunctor)<(c10::BFloat16|float)", text)
    return _BYTES[match[1]] if match else None
