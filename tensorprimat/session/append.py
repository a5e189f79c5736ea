"""`--append`: add new runs to the latest result, or refuse and name the field that differs."""

from __future__ import annotations

from pathlib import Path

from tensorprimat.core import identity
from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.core.provenance import Provenance
from tensorprimat.core.result import Model, PerformanceMetrics, Result, TrainingConfig
from tensorprimat.core.spec import RunSpec
from tensorprimat.machine.platform import Machine
from tensorprimat.models.custom import model_of
from tensorprimat.storage import store

_NOT_PLANNED = ("gradient_accumulation_steps", "data_parallel_size", "compile")
"""Settings that a plan leaves open: two follow from others, and the compiler can fall back."""


def latest(planned: Result, folder: Path, *, default_engine: str | None) -> Result:
    """Return the latest result, to which the planned runs would be added.

    Raises UsageError if there is none, or if it is of another benchmark.
    """
    path = store.latest_of(planned, folder, default_engine=default_engine)
    try:
        earlier = store.load(path)
    except InputError as error:
        raise UsageError(f"--append: {error}; run without --append first") from error
    refuse_unlike(earlier, planned, known_only=True)
    return earlier


def refuse_unlike(earlier: Result, later: Result, *, known_only: bool = False) -> None:
    """Raise UsageError if two results are not of one benchmark; it names every field that differs.

    known_only: skip the fields that one of the two does not state (the later one is a plan).
    """
    differences = [
        f"{field.label} ({field.read(earlier)} there, {field.read(later)} here)"
        for field in identity.differing_fields(earlier, later, unknown_equal=known_only)
    ]
    planned = earlier.training_config.max_steps, later.training_config.max_steps
    if planned[0] != planned[1] and not (known_only and None in planned):
        differences.append(f"planned steps ({planned[0]} there, {planned[1]} here)")
    if differences:
        raise UsageError(
            f"--append: the latest result is another benchmark: {', '.join(differences)}; run without --append"
        )


def planned_result(spec: RunSpec, machine: Machine) -> Result:
    """Return a result with the facts that are known before the measurement."""
    return Result(
        platform=machine.platform,
        methodology=spec.methodology,
        gpu_info=machine.gpu_info,
        model=Model(name=spec.model, preset=spec.preset, shape=model_of(spec).shape),
        training_config=TrainingConfig(**{**spec.configuration, **dict.fromkeys(_NOT_PLANNED)}),
        performance_metrics=PerformanceMetrics(),
        provenance=Provenance(engine=spec.engine),
    )
