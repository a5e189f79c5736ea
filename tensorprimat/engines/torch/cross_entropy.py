"""Cross-entropy of a language model, from hidden states without ever holding all logits, or from existing logits.

With 128,256 tokens in the vocabulary the logits of one sequence of 8,192 take 4.2 GB in float32, and autograd would
keep them and their gradient. In `linear_cross_entropy` head and loss are computed for some rows at a time, and their
gradients in the same pass, so that only the gradients of the hidden states and of the head's weight stay. The
arithmetic is that of `cross_entropy(linear(hidden, weight).float(), targets)`; torch 2.12 and newer have a
linear_cross_entropy of their own. `cross_entropy` computes the gradients in backward, so that forward and backward can
be timed separately.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

LOGITS_PER_CHUNK = {"cuda": 2**28, "cpu": 2**21}
"""Device type → logits per chunk: 1 GB of float32 keeps a GPU's product at full speed; 8 MB fit a CPU's cache."""


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    targets: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    soft_cap: float | None = None,
    compiled: bool = False,
) -> torch.Tensor:
    """Return the mean negative log-likelihood of targets, a float32 scalar.

    compiled: compile what lies between the products, so that no float32 tensor of the logits' size is made.
    hidden: (rows, width); weight: (vocabulary, width); targets: (rows,), integers below the vocabulary's size; bias:
    (vocabulary,); soft_cap: c in c·tanh(logits / c), which bounds the logits of Gemma 2 (arXiv:2408.00118, section 2).
    """
    budget = LOGITS_PER_CHUNK.get(hidden.device.type, LOGITS_PER_CHUNK["cpu"])
    chunks = max(1, -(-hidden.shape[0] * weight.shape[0] // budget))
    rows = -(-hidden.shape[0] // chunks)
    loss: torch.Tensor = _LinearCrossEntropy.apply(hidden, weight, targets, rows, bias, soft_cap, compiled)
    return loss


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean negative log-likelihood of targets, a float32 scalar.

    It writes a tensor as large as the logits once, where torch's own function writes three. logits: (rows, vocabulary),
    any floating dtype; targets: (rows,), integers below the vocabulary's size.
    """
    loss: torch.Tensor = _CrossEntropy.apply(logits, targets)
    return loss


class _CrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    """A loss that keeps the log-likelihoods in forward and turns them into the gradient in place in backward."""

    @staticmethod
    def forward(context: Any, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        likelihood = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
        target = targets[:, None]
        context.save_for_backward(likelihood, target)
        context.dtype = logits.dtype
        return -likelihood.gather(1, target).mean()

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        likelihood, target = context.saved_tensors
        return _gradient(likelihood, target).mul_(gradient / len(target)).to(context.dtype), None


class _LinearCrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    """A loss that computes its gradients in forward; backward scales them in place."""

    @staticmethod
    def forward(
        context: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        rows: int,
        bias: torch.Tensor | None,
        soft_cap: float | None,
        compiled: bool,
    ) -> torch.Tensor:
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        states, head = hidden.to(dtype), weight.to(dtype)
        offset = None if bias is None else bias.to(dtype)
        hidden_gradient = torch.empty_like(states)
        weight_gradient = torch.empty_like(head)
        bias_gradient = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        with torch.autocast(device, enabled=False):
            for start in range(0, states.shape[0], rows):
                part, target = states[start : start + rows], targets[start : start + rows, None]
                logits = functional.linear(part, head, offset)
                of_chunk, gradient = (_compiled_loss() if compiled else _loss_of_logits)(logits, target, soft_cap)
                del logits  # else it stays in memory during the products
                loss += of_chunk
                if bias_gradient is not None:
                    bias_gradient += gradient.sum(0, dtype=torch.float32)
                torch.mm(gradient, head, out=hidden_gradient[start : start + rows])
                if start == 0:
                    torch.mm(gradient.T, part, out=weight_gradient)
                else:
                    weight_gradient.addmm_(gradient.T, part)
                del gradient  # else it stays in memory during the next chunk
        context.save_for_backward(hidden_gradient, weight_gradient, bias_gradient)
        context.dtypes = hidden.dtype, weight.dtype, None if bias is None else bias.dtype
        return loss / states.shape[0]

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        scale = gradient / context.saved_tensors[0].shape[0]
        of_hidden, of_weight, of_bias = (
            None if one is None else one.mul_(scale).to(dtype)
            for one, dtype in zip(context.saved_tensors, context.dtypes, strict=True)
        )
        return of_hidden, of_weight, None, None, of_bias, None, None


def _loss_of_logits(
    logits: torch.Tensor, target: torch.Tensor, soft_cap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the summed loss of rows of logits, and its gradient, in the logits' type. target: (rows, 1)."""
    bounded = torch.tanh(logits / soft_cap) if soft_cap else None
    capped = logits if bounded is None else soft_cap * bounded
    likelihood = torch.log_softmax(capped, dim=-1, dtype=torch.float32)  # a GPU's kernel widens as it reads
    loss = -likelihood.gather(1, target).sum()
    gradient = _gradient(likelihood, target)
    if bounded is not None:
        gradient = gradient * (1 - bounded.square())  # the derivative of the cap
    return loss, gradient.to(logits.dtype)


def _loss_to_compile(
    logits: torch.Tensor, target: torch.Tensor, soft_cap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `_loss_of_logits` returns, without a scattered write, for which the compiler would fill a tensor."""
    bounded = torch.tanh(logits.float() / soft_cap) if soft_cap else None
    capped = logits.float() if bounded is None else soft_cap * bounded
    total = torch.logsumexp(capped, dim=-1, keepdim=True)
    loss = (total - capped.gather(1, target)).sum()
    is_target = torch.arange(logits.shape[1], device=logits.device) == target
    gradient = torch.exp(capped - total) - is_target.float()
    if bounded is not None:
        gradient = gradient * (1 - bounded.square())
    return loss, gradient.to(logits.dtype)


@cache
def _compiled_loss() -> Any:
    """Return the compiled loss of a chunk: one kernel reads the logits for their sum, another writes the gradient."""
    return torch.compile(_loss_to_compile, dynamic=False)


def _gradient(likelihood: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the summed loss with respect to the logits, in the memory of `likelihood`.

    It is the softmax, minus one at the target.
    """
    return likelihood.exp_().scatter_add_(1, target, likelihood.new_full((1, 1), -1.0).expand_as(target))
