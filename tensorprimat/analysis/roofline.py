"""Arithmetic intensity and rate of passes and training, compared with the best rates of the machine.

After Williams, Waterman and Patterson, Roofline, 2009: no work of intensity I (FLOP per byte moved) runs faster than
min(matrix rate, I × memory bandwidth). Rates are measured; intensity rests on an estimate of the least traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorprimat.core.result import Result
from tensorprimat.core.user_facts import with_parallelism
from tensorprimat.models import flops
from tensorprimat.models.footprint import StepWork, moved_bytes, of_cell
from tensorprimat.storage.micro_result import CELL_PRECISIONS, MicroResult
from tensorprimat.storage.preflight import Preflight

FUSED_NORM = "RMS norm"  # among a result's fused kernels, which only the torch engine lists


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
        """Return the intensity from which on the matrix rate is the limit."""
        return self.flops_per_second / self.bytes_per_second

    def at(self, intensity: float) -> float:
        """Return the FLOP/s that work of an intensity can reach."""
        return min(self.flops_per_second, intensity * self.bytes_per_second)


def ceilings(found: Preflight) -> list[Ceiling]:
    """Return one ceiling for each precision that was measured."""
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
    """Return the points of the cells that have a rate."""
    return [
        RooflinePoint(
            model=cell.model_size,
            work=cell.pass_name,
            size=f"{cell.context_length}×{cell.batch_size}",
            intensity=cell.step_flops / moved_bytes(of_cell(cell, fused_norm=_fused_norm(cell))),
            flops_per_second=cell.flops_per_second,
            precision=cell.precision,
        )
        for cell in cells
        if cell.flops_per_second
    ]


def _fused_norm(cell: MicroResult) -> bool:
    """Return True if the cell's RMS norm was one kernel, which moves the fewest bytes; if unknown, True for a GPU."""
    return cell.device != "cpu" if cell.fused_norm is None else cell.fused_norm


def of_result(result: Result) -> RooflinePoint | None:
    """Return a training result as a point.

    None if shape, sequence length, micro batch, gradient accumulation, precision or rate is unknown, and for FP8 and
    FP4, experts, latent attention, recomputed activations and frozen weights. With gradient accumulation, each micro
    batch has its share of the optimizer's traffic.
    """
    config, shape = result.training_config, result.model.shape
    rate = result.performance_metrics.tokens_per_second_per_gpu
    length, batch, precision = config.sequence_length, config.micro_batch_size, config.precision
    if not (shape and rate and length and batch and precision in CELL_PRECISIONS):
        return None
    recomputes = config.recompute not in (None, "none")
    if shape.experts or shape.latent_attention or recomputes:  # the bytes that they move are not modelled
        return None
    accumulated = with_parallelism(config).gradient_accumulation_steps
    if accumulated is None or flops.frozen_parameters(result) is not False:
        return None
    step = StepWork(
        shape=shape,
        tokens=length * batch,
        sequence_length=length,
        pass_name="train",
        precision=precision,
        compiled=bool(config.compile),
        fused_norm=config.fused_kernels is None or FUSED_NORM in config.fused_kernels,
        optimizer_steps=1 / accumulated,
    )
    of_token = flops.per_token(shape, length)
    return RooflinePoint(
        model=result.model.name or "model",
        work="training",
        size=f"{length}×{batch}",
        intensity=step.tokens * of_token / moved_bytes(step),
        flops_per_second=rate * of_token,
        precision=precision,
    )
