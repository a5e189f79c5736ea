"""Bytes that one step of a model needs and moves, from its shape: labelled as estimates."""

from __future__ import annotations

from dataclasses import dataclass

from tensorprimat.core.result import ModelShape
from tensorprimat.core.units import NUMBER_BYTES
from tensorprimat.models import presets, training_memory
from tensorprimat.storage.micro_result import CellSpec, Pass

LARGEST_LOGITS = 2**28
"""Logits up to which head and loss are left to autograd: 1 GB in float32. Larger ones are never held whole (the 128k
vocabulary at 8,192 tokens): then head and loss are computed piece by piece, their gradients within the forward pass."""

OPTIMIZER_TRAFFIC = 7  # AdamW reads weight, gradient and two moments, and writes weight and two moments


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """One step of a cell or of a training on one device."""

    shape: ModelShape
    tokens: int
    sequence_length: int
    pass_name: Pass
    precision: str
    autocast: bool = False
    compiled: bool = False
    fused_norm: bool
    """True if RMS norm runs as one kernel."""
    whole_scores: bool = False
    """True if attention keeps the scores of all pairs for backward (eager attention)."""
    optimizer_steps: float = 1.0
    """Optimizer steps per `StepWork`: below 1 with gradient accumulation."""

    @property
    def width(self) -> int:
        """Return the bytes of a number in the compute type."""
        return NUMBER_BYTES[self.precision]

    @property
    def weights(self) -> int:
        return presets.parameters(self.shape)


def of_cell(spec: CellSpec, *, fused_norm: bool) -> StepWork:
    """Return the step that a cell times. fused_norm: torch has one kernel for RMS norm on the cell's device."""
    return StepWork(
        shape=spec.shape,
        tokens=spec.tokens,
        sequence_length=spec.context_length,
        pass_name=spec.pass_name,
        precision=spec.precision,
        autocast=spec.autocast,
        compiled=spec.compile,
        fused_norm=fused_norm,
        whole_scores=spec.attention == "eager",
    )


def state_bytes(step: StepWork) -> float:
    """Return the bytes of weights, gradients and AdamW's two moments, as far as the pass needs them."""
    weight = 4 if step.autocast else step.width
    copies = {"forward": 1, "forward-backward": 2, "train": 4}[step.pass_name]
    cast = step.width if step.autocast else 0  # autocast keeps its copies of the weights for backward
    return float(step.weights * (weight * copies + cast))


def activation_bytes(step: StepWork) -> float:
    """Return the bytes that autograd keeps for one batch, including the logits and their gradient."""
    of_token = training_memory.kept_bytes_per_token(
        step.shape,
        width=step.width,
        compiled=step.compiled,
        fused_norm=step.fused_norm,
        whole_scores=step.sequence_length if step.whole_scores else 0,
        autocast=step.autocast,
    )
    logits = min(step.tokens * step.shape.vocab_size, LARGEST_LOGITS) * 4 * 2
    return step.tokens * step.shape.num_layers * of_token + logits


def moved_bytes(step: StepWork) -> float:
    """Return the least traffic between device memory and chip in one step: every operand once; caches could save more.

    Weights are read in forward, and twice in backward (for the gradients of inputs and of weights), gradients written
    once; the tensors that autograd keeps are written once and read once; the optimizer touches its state once.
    """
    weights = step.weights * step.width
    if step.pass_name == "forward":
        return weights + activation_bytes(step)
    moved = 3 * weights + weights + 2 * activation_bytes(step)
    if step.pass_name == "train":
        moved += step.optimizer_steps * OPTIMIZER_TRAFFIC * step.weights * (4 if step.autocast else step.width)
    return moved
