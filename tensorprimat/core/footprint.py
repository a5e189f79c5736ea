"""Bytes that one step of a cell needs and moves, from its shape: labelled as estimates."""

from __future__ import annotations

from tensorprimat.core import models
from tensorprimat.core.micro_result import CellSpec

LARGEST_LOGITS = 2**28
"""Logits up to which head and loss are left to autograd: 1 GB in float32. Larger ones are never held whole (the 128k
vocabulary at 8,192 tokens): then head and loss are computed piece by piece, their gradients within the forward pass."""

BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}

# What autograd keeps of one token in one layer of transformers' Llama, in numbers: counted with saved_tensors_hooks on
# CPU, fp32, SDPA (tests/test_sweep.py counts again). The two norms keep four widths in float32 whatever the precision.
WIDTHS_SAVED, WIDTHS_IN_FP32, FFN_WIDTHS_SAVED = 6, 4, 4

OPTIMIZER_TRAFFIC = 7  # AdamW reads weight, gradient and two moments, and writes weight and two moments


def state_bytes(spec: CellSpec) -> float:
    """Return the weights, gradients and AdamW's two moments, as far as the pass needs them."""
    weight = 4 if spec.autocast else BYTES[spec.precision]
    copies = {"forward": 1, "forward-backward": 2, "train": 4}[spec.pass_name]
    cast = BYTES[spec.precision] if spec.autocast else 0  # autocast keeps its copies of the weights for backward
    return float(models.parameters(spec.shape) * (weight * copies + cast))


def activation_bytes(spec: CellSpec) -> float:
    """Return the bytes that autograd keeps for one batch, including the logits and their gradient."""
    width = BYTES[spec.precision]
    shape = spec.shape
    per_layer = (
        WIDTHS_SAVED * shape.hidden_size * width
        + WIDTHS_IN_FP32 * shape.hidden_size * 4
        + FFN_WIDTHS_SAVED * shape.ffn_hidden_size * width
    )
    if spec.attention == "eager":
        per_layer += shape.num_attention_heads * spec.context_length * width
    logits = min(spec.tokens * shape.vocab_size, LARGEST_LOGITS) * 4 * 2
    return float(spec.tokens * shape.num_layers * per_layer + logits)


def moved_bytes(spec: CellSpec) -> float:
    """Least traffic between device memory and chip in one step: every operand once, whatever caches could save more.

    Weights are read in forward, and twice in backward (for the gradients of inputs and of weights), gradients written
    once; what autograd keeps is written once and read once; the optimizer touches its state once.
    """
    width = BYTES[spec.precision]
    weights = models.parameters(spec.shape) * width
    if spec.forward_only:
        return weights + activation_bytes(spec)
    moved = 3 * weights + weights + 2 * activation_bytes(spec)
    if spec.pass_name == "train":
        moved += OPTIMIZER_TRAFFIC * models.parameters(spec.shape) * (4 if spec.autocast else width)
    return moved
