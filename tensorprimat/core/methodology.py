"""Values of a methodology, and results that hold them under another methodology's name."""

from __future__ import annotations

from collections.abc import Sequence

from tensorprimat.core import catalogue
from tensorprimat.core.configurations import Configuration, methodologies
from tensorprimat.core.result import Result, TrainingConfig
from tensorprimat.core.settings import OF_A_METHODOLOGY


def differing(config: TrainingConfig, row: Configuration) -> list[str]:
    """Return the values that a configuration states and a row of a methodology contradicts, one phrase for each."""
    return [
        f"{key} {stated} instead of {getattr(row, key)}"
        for key in OF_A_METHODOLOGY
        if (stated := getattr(config, key)) is not None and stated != getattr(row, key)
    ]


def held(result: Result) -> frozenset[str]:
    """Return the methodologies whose every value a result states: its own, and those with equal rows for its GPU."""
    config = result.training_config
    gpu = catalogue.find_gpu(result.gpu_info.device_name, result.gpu_info.total_memory_gb)
    return frozenset(
        row.methodology
        for row in methodologies()
        if (row.model, row.platform) == (result.model.name, result.platform)
        and (not row.gpus or (gpu is not None and gpu.name in row.gpus))
        and all(getattr(config, key) == getattr(row, key) for key in OF_A_METHODOLOGY)
    )


def reconciled(pair: Sequence[Result]) -> str | None:
    """Return why two results of differently named methodologies may meet, as a sentence; None where they may not.

    They may where both state every value that a methodology sets and all are equal, or where one methodology has
    exactly the values of both, each on its own GPU.
    """
    one, other = pair
    if None in (one.methodology, other.methodology) or one.methodology == other.methodology:
        return None
    named = f"The methodology names differ ({one.methodology} against {other.methodology})"
    values = [[getattr(result.training_config, key) for key in OF_A_METHODOLOGY] for result in pair]
    if None not in values[0] and values[0] == values[1]:
        return f"{named}, and every value that they set is equal"
    common = held(one) & held(other)
    return f"{named}, and both sides hold every value of {sorted(common)[0]}" if common else None
