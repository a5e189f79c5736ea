"""AdamW that clips the gradients while it updates the weights.

Clipping in passes of its own reads the gradients and writes them again. Here the norm is one pass, and the update
multiplies each gradient by the clip factor as it reads it. torch's fused kernel (its argument `grad_scale`) writes the
scaled gradients back; a compiled update does not. Bytes of a step with N parameters of 16 bits: 18 N in three passes
(norm, scaling, update), 18 N with the fused kernel, 16 N compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn

BETAS = (0.9, 0.95)  # Llama 2 (arXiv:2307.09288), section 2.2, as the weight decay
WEIGHT_DECAY = 0.1
KERNEL_ROW = 1024
LEARNING_RATE = 3e-5
"""A tenth of the rate that Llama 2 7B reaches after 2,000 steps (arXiv:2307.09288, table 1). With all of it from the
first step on, the loss of Llama 3.1 8B rose from 12.6 to 20 in five steps on an H200; runs of one seed differed."""


class AdamW(torch.optim.AdamW):  # type: ignore[misc]
    """AdamW with `clip`, which limits the norm of the gradients of the next step without a pass of its own."""

    def __init__(self, groups: Any, *, learning_rate: float, fused: bool, compiled: bool = False) -> None:
        """Prepare the update. compiled: by compiled kernels, one for each tensor; they need gradients on one device."""
        super().__init__(groups, lr=learning_rate, betas=BETAS, fused=fused)
        self._compiled = compiled
        self._steps = 0
        self.grad_scale: torch.Tensor | None = None  # torch's name: the fused kernel divides the gradients by it

    def clip(self, limit: float) -> torch.Tensor | None:
        """Scale the gradients of the next step so that their norm is at most `limit`; return the norm before."""
        gradients = [one.grad for group in self.param_groups for one in group["params"] if one.grad is not None]
        if not gradients:
            return None
        total_norm = getattr(nn.utils, "get_total_norm", None)
        if total_norm is None or not self.defaults["fused"]:  # torch before 2.6, or a kernel without grad_scale
            parameters = [one for group in self.param_groups for one in group["params"]]
            return nn.utils.clip_grad_norm_(parameters, limit)
        norm = total_norm(gradients)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of sharded gradients (FSDP)
        self.grad_scale = ((norm.float() + 1e-6) / limit).clamp(min=1.0)  # as clip_grad_norm_ does
        return norm

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the weights with the gradients that `clip` limits; return what the closure returns."""
        if not self._compiled:
            result = super().step(closure)
        else:
            result = None if closure is None else closure()  # Lightning's only calls its hooks
            self._steps += 1
            with torch.no_grad():
                for group in self.param_groups:
                    self._update(group)
        self.grad_scale = None
        return result

    def _update(self, group: dict[str, Any]) -> None:
        """Update the weights of a group by compiled kernels."""
        (beta, other), rate = group["betas"], group["lr"]
        kept = 1 - rate * group["weight_decay"]
        of_step = (rate / (1 - beta**self._steps), (1 - other**self._steps) ** 0.5, kept)
        factors: list[torch.Tensor] = []
        for weight in group["params"]:
            if weight.grad is None:
                continue
            state = self.state[weight]
            if not state:
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
            if not factors:  # made on the device, because a copy from the host would wait for it
                device = _local(weight).device
                scale = torch.ones((), device=device) if self.grad_scale is None else self.grad_scale
                factors = [*(torch.full((), one, dtype=torch.float32, device=device) for one in of_step), scale]
            tensors = (weight, weight.grad, state["exp_avg"], state["exp_avg_sq"])
            _compiled_update()(
                *(_in_rows(_local(one.detach())) for one in tensors), *factors,
                beta=beta, other=other, epsilon=group["eps"],
            )  # fmt: skip


@cache
def _compiled_update() -> Any:
    return torch.compile(_update_weight, dynamic=True)


def _update_weight(
    weight: torch.Tensor,
    gradient: torch.Tensor,
    mean: torch.Tensor,
    square: torch.Tensor,
    rate: torch.Tensor,
    correction: torch.Tensor,
    kept: torch.Tensor,
    scale: torch.Tensor,
    *,
    beta: float,
    other: float,
    epsilon: float,
) -> None:
    """Update one weight and its moments in place, in float32 (Loshchilov and Hutter, arXiv:1711.05101, algorithm 2).

    rate: learning rate over the first moment's bias correction. correction: root of the second moment's. kept: share
    of the weight that decay leaves. scale: divisor of the gradient.
    """
    clipped = gradient.float() / scale
    first = beta * mean.float() + (1 - beta) * clipped
    second = other * square.float() + (1 - other) * clipped * clipped
    weight.copy_(kept * weight.float() - rate * first / (second.sqrt() / correction + epsilon))
    mean.copy_(first)
    square.copy_(second)


def adamw(model: nn.Module, *, fused: bool, learning_rate: float = LEARNING_RATE, compiled: bool = False) -> AdamW:
    """Return AdamW without decay of vectors (norms, biases)."""
    decayed = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return AdamW(groups, learning_rate=learning_rate, fused=fused, compiled=compiled)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a sharded tensor, or the tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _in_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as rows of KERNEL_ROW numbers, so that one kernel serves weights of all sizes."""
    if not tensor.is_contiguous() or tensor.numel() % KERNEL_ROW or tensor.numel() == KERNEL_ROW:
        return tensor
    return tensor.view(-1, KERNEL_ROW)
