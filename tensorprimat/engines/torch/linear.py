"""Linear layers that multiply in FP8 with one dynamic scale per tensor, the recipe that torchao calls "tensorwise".

Forward is in E4M3, backward has the gradients in E5M2. A Hopper multiplies FP8 only with both operands contiguous along
the summed axis, so that backward needs every operand transposed. A kernel of this package (transpose.py) does that;
torch.compile would fuse it with the kernels that compute the operands, which then write single bytes. The weights are
quantised once for all micro-batches of a step (`keep_quantised`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.autograd.function import once_differentiable

LEAST_MAXIMUM = 1e-12  # of a tensor of zeros
Types: TypeAlias = "tuple[torch.dtype, torch.dtype]"


# The schema is written out, because torch 2.4 infers none from annotations that are evaluated later.
@torch.library.custom_op(  # type: ignore[untyped-decorator]
    "tensorprimat::transposed", mutates_args=(), schema="(Tensor narrow) -> Tensor"
)
def _transposed(narrow: torch.Tensor) -> torch.Tensor:
    """Return the contiguous transpose of a contiguous matrix in FP8."""
    if narrow.device.type == "cpu":
        return narrow.t().contiguous()
    from tensorprimat.engines.torch.transpose import transpose

    return transpose(narrow)


@_transposed.register_fake  # type: ignore[untyped-decorator]
def _(narrow: torch.Tensor) -> torch.Tensor:
    return narrow.new_empty(narrow.shape[::-1])


def quantised(tensor: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a tensor in an FP8 type, and the float32 scalar by which its values are multiplied to restore them."""
    limit = torch.finfo(dtype).max
    scale = limit / tensor.abs().amax().float().clamp(min=LEAST_MAXIMUM)
    return (tensor.float() * scale).clamp(-limit, limit).to(dtype), scale.reciprocal()


class _Fp8Product(torch.autograd.Function):  # type: ignore[misc]
    """A product in FP8.

    weight: of which `kept` holds values in FP8, their transpose and their factor. types: of values and of gradients.
    """

    @staticmethod
    def forward(context: Any, inputs: torch.Tensor, weight: torch.Tensor, types: Types, *kept: torch.Tensor) -> Any:
        context.save_for_backward(inputs, *kept[1:])
        context.types = types
        rows, factor = quantised(inputs.flatten(0, -2), types[0])
        product = _multiply(rows, kept[0], factor, kept[2], dtype=weight.dtype, fast=True)
        return product.view(*inputs.shape[:-1], -1)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs, turned, of_matrix = context.saved_tensors
        turn = torch.ops.tensorprimat.transposed
        rows, factor = quantised(inputs.flatten(0, -2), context.types[0])
        errors, of_errors = quantised(gradient.flatten(0, -2), context.types[1])
        of_inputs = _multiply(errors, turned, of_errors, of_matrix, dtype=inputs.dtype, fast=False)
        of_weight = _multiply(turn(errors), turn(rows), of_errors, factor, dtype=inputs.dtype, fast=False)
        return of_inputs.view(inputs.shape), of_weight, None, None, None, None


def _multiply(
    left: torch.Tensor,
    right: torch.Tensor,
    of_left: torch.Tensor,
    of_right: torch.Tensor,
    *,
    dtype: torch.dtype,
    fast: bool,
) -> torch.Tensor:
    """Return left · rightᵀ of matrices in FP8, contiguous along the summed axis, with the factors that restore them.

    fast: sums of less precision, which serve for forward.
    """
    product: torch.Tensor = torch._scaled_mm(
        left, right.t(), scale_a=of_left, scale_b=of_right, out_dtype=dtype, use_fast_accum=fast
    )
    return product


class Fp8Linear(nn.Linear):  # type: ignore[misc]
    """A linear layer whose three products run in FP8."""

    types: Types
    kept: tuple[torch.Tensor, torch.Tensor, torch.Tensor]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = _Fp8Product.apply(input, self.weight, self.types, *self.kept)
        return product if self.bias is None else product + self.bias


def to_fp8(layers: Iterable[nn.Module]) -> list[Fp8Linear]:
    """Make the products of all linear layers run in FP8, after `keep_quantised`; return those layers."""
    parts = linear_layers(layers)
    for part in parts:
        part.__class__ = Fp8Linear
        part.types = fp8_types()
    return parts


def keep_quantised(parts: Iterable[Fp8Linear], *, compiled: bool) -> None:
    """Write the weights in FP8, for the micro-batches of a step; they take two bytes a number until the next call."""
    with torch.no_grad():
        for part in parts:
            numbers = part.weight.detach().flatten()  # one kernel for weights of all shapes
            narrow, factor = (_compiled_quantisation() if compiled else quantised)(numbers, part.types[0])
            matrix = narrow.view(part.weight.shape)
            part.kept = matrix, torch.ops.tensorprimat.transposed(matrix), factor


@cache
def _compiled_quantisation() -> Any:
    return torch.compile(quantised, dynamic=True)


def fp8_types() -> Types:
    """Return the FP8 types of values and of gradients; those of an MI300 have no infinities and no negative zero."""
    on_amd = torch.version.hip and torch.cuda.is_available()
    if on_amd and torch.cuda.get_device_properties(0).gcnArchName.startswith("gfx94"):
        return torch.float8_e4m3fnuz, torch.float8_e5m2fnuz
    return torch.float8_e4m3fn, torch.float8_e5m2


def linear_layers(layers: Iterable[nn.Module]) -> list[Any]:
    """Return all linear layers inside of decoder layers."""
    return [part for layer in layers for part in layer.modules() if isinstance(part, nn.Linear)]
