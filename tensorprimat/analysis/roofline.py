"""Arithmetic intensity and rate of passes and training against what the machine can do at best.

After Williams, Waterman and Patterson, Roofline, 2009: no work of intensity I (FLOP per byte moved) runs faster than
min(matrix rate, I × memory bandwidth). Rates are measured; intensity rests on an estimate of the least traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorprimat.core import models
from tensorprimat.core.footprint import BYTES, moved_bytes
from tensorprimat.core.micro_result import CellSpec, MicroResult
from tensorprimat.core.preflight import Preflight
from tensorprimat.core.result import Result


@dataclass(frozen=True, kw_only=True)
class RooflinePoint:
    """One cell or one training."""

    model: str
    work: str
    """A pass, or training."""
    size: str
    """Tokens of a sequence × sequences."""
    intensity: float
    """FLOP per byte."""
    flops_per_second: float
    """On one device."""
    precision: str


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """The roof of one precision."""

    precision: str
    flops_per_second: float
    bytes_per_second: float

    @property
    def ridge(self) -> float:
        """Intensity from which on the matrix rate limits."""
        return self.flops_per_second / self.bytes_per_second

    def at(self, intensity: float) -> float:
        """FLOP/s that work of an intensity can reach."""
        return min(self.flops_per_second, intensity * self.bytes_per_second)


def ceilings(found: Preflight) -> list[Ceiling]:
    """Return one per precision that was measured."""
    bandwidth = found.memory_bytes_per_second()
    if bandwidth is None:
        return []
    rates = {row.precision: found.matmul_flops_per_second(row.precision) for row in found.matmul}
    return [
        Ceiling(precision=precision, flops_per_second=rate, bytes_per_second=bandwidth)
        for precision, rate in rates.items()
        if rate
    ]


def of_cells(cells: Sequence[MicroResult]) -> list[RooflinePoint]:
    """Cells that were measured."""
    return [
        RooflinePoint(
            model=cell.model_size,
            work=cell.pass_name,
            size=f"{cell.context_length}×{cell.batch_size}",
            intensity=cell.step_flops / moved_bytes(cell),
            flops_per_second=cell.flops_per_second,
            precision=cell.precision,
        )
        for cell in cells
        if cell.flops_per_second
    ]


def of_result(result: Result) -> RooflinePoint | None:
    """Return a training result; None where shape, sequence length, micro batch, precision or rate is not known.

    Gradient accumulation repeats the micro-batch's work and runs the optimizer once: its traffic is shared.
    """
    config, shape = result.training_config, result.model.shape
    rate = result.performance_metrics.tokens_per_second_per_gpu
    length, batch, precision = config.sequence_length, config.micro_batch_size, config.precision
    if not (shape and rate and length and batch and precision in BYTES):
        return None
    named = models.identify(shape)  # numbers alone do not say grouped queries and windows
    step = CellSpec(
        model_size=result.model.name or "model",
        d_model=shape.hidden_size,
        d_ff=shape.ffn_hidden_size,
        num_layers=shape.num_layers,
        num_heads=shape.num_attention_heads,
        vocab=shape.vocab_size,
        context_length=length,
        batch_size=batch,
        pass_name="train",
        precision=precision,
        num_warmups=0,
        num_trials=1,
        architecture=named.model if named else models.COURSE,
        preset=named.name if named and named.model != models.COURSE else None,
    )
    accumulated = config.gradient_accumulation_steps or 1
    optimizer = moved_bytes(step) - moved_bytes(step.model_copy(update={"pass_name": "forward-backward"}))
    moved = moved_bytes(step) - optimizer + optimizer / accumulated
    return RooflinePoint(
        model=result.model.name or "model",
        work="training",
        size=f"{length}×{batch}",
        intensity=step.step_flops / moved,
        flops_per_second=rate / step.tokens * step.step_flops,
        precision=precision,
    )
