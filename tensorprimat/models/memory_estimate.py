"""`MemoryEstimate`: bytes that a training needs on one device, by kind."""

from __future__ import annotations

from dataclasses import dataclass

from tensorprimat.core.quantities import size

CONTEXT_BYTES = 1.0e9  # CUDA context, cuBLAS and NCCL buffers: 0.5 to 1.5 GB on the cards that people report


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Bytes on one device, by their use."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    """Bytes that autograd keeps when backward begins."""
    workspace: float
    """The loss, one layer's gradients, gathered weights, and the driver's own memory."""
    in_turn: float = 0.0
    """Bytes that activations and workspace free before gradients use them; the fields above count them twice."""

    @property
    def total(self) -> float:
        """Return the bytes that are in use at once: the sum of all parts without what is used in turn."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.workspace - self.in_turn

    @property
    def described(self) -> str:
        """Return the parts in GB, as a phrase."""
        state = self.weights + self.gradients + self.optimizer
        return (
            f"weights, gradients and optimizer {size(state)}, activations {size(self.activations)}, "
            f"workspace {size(self.workspace)}"
            + (f", less {size(self.in_turn)} that activations and gradients use in turn" if self.in_turn else "")
        )


def smaller_micro_batches(batch: int) -> list[int]:
    """Return the proper divisors of a micro batch, the largest first: only they divide the global batch for certain.

    >>> smaller_micro_batches(10)
    [5, 2, 1]
    """
    return [smaller for smaller in range(batch // 2, 0, -1) if batch % smaller == 0]
