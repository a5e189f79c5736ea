"""Configurations of the methodologies (data/methodologies.toml), and results that agree with one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Literal

from pydantic import Field

from tensorprimat.core import settings
from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import Result, TrainingConfig
from tensorprimat.core.settings import OF_A_METHODOLOGY
from tensorprimat.core.spec import MethodologySettings
from tensorprimat.facts import catalogue, data_rows
from tensorprimat.facts.data_rows import checked_rows

_Size = Annotated[int, Field(gt=0)]
METHODOLOGY_GPUS = 8  # every configuration of data/methodologies.toml is for one node of 8 GPUs


@dataclass(frozen=True, kw_only=True)
class Configuration(MethodologySettings):  # type: ignore[misc]  # the base is frozen where it runs
    """One row of a methodology: every value explicit."""

    methodology: str
    model: str
    platform: Literal["nvd", "amd", "cpu"]
    gpus: tuple[str, ...]
    """Catalogue names that the row is for; empty for every GPU of the platform."""
    source: str
    note: str | None = None
    """Remark for every result of the row, for example that no vendor publishes its values."""
    engine: str | None = None
    """The only engine that the row is for; None for every engine."""


@cache
def methodologies() -> tuple[Configuration, ...]:
    """Return every configuration of every methodology, the default first: the first that fits is the headline."""
    rows = checked_rows("methodologies", "configuration", Configuration)
    agreed = [data_rows.read_data("methodologies").get("agreed", {})]
    (rule,) = checked_rows("methodologies", "agreed", AgreedRule, rows=agreed)
    return (*_agreed(rows, rule), *rows)


@dataclass(frozen=True, kw_only=True)
class AgreedRule:
    """The methodology whose rows `agreed` takes over, and the work that all of them get."""

    tuning_of: str
    global_batch_size: _Size
    sequence_length: _Size


def _agreed(rows: tuple[Configuration, ...], rule: AgreedRule) -> Iterator[Configuration]:
    """Yield the rows of a methodology with one batch and one sequence length on every platform.

    FP8 is the headline where every platform has a source for it, else BF16, so that the precisions agree too.
    """
    tuned = [row for row in rows if row.methodology == rule.tuning_of]
    for model in dict.fromkeys(row.model for row in tuned):
        of_model = [row for row in tuned if row.model == model]
        with_fp8 = {row.platform for row in of_model if row.precision == "fp8"}
        headline = "fp8" if with_fp8 == {row.platform for row in of_model} else "bf16"
        for row in sorted(of_model, key=lambda row: row.precision != headline):
            yield _with_work(row, rule.global_batch_size, rule.sequence_length)


def _with_work(row: Configuration, batch: int, length: int) -> Configuration:
    """Return a row with another batch and sequence length.

    The micro batch becomes the largest that divides the batch of a replica and holds no more tokens than the vendor's.
    """
    replicas = METHODOLOGY_GPUS // settings.replica_devices(row)
    most = max(1, row.micro_batch_size * row.sequence_length // length)
    micro = max(size for size in range(1, most + 1) if batch % (size * replicas) == 0)
    source = f"{row.source}; batch {batch} x {length} on both platforms"
    if micro != row.micro_batch_size:
        theirs = f"{row.micro_batch_size} x {row.sequence_length}"
        source += f", micro batch {micro} x {length} instead of {theirs} to divide it"
    return replace(
        row, methodology="agreed", micro_batch_size=micro, global_batch_size=batch, sequence_length=length,
        source=source,
    )  # fmt: skip


def find_configurations(
    methodology: str,
    *,
    model: str | None,
    platform: str | None,
    gpu: str | None,
    precision: str | None = None,
    engine: str | None = None,
) -> list[Configuration]:
    """Return the rows of a methodology for a model on a GPU (a catalogue name), the headline first.

    precision: the one that the user chose; None leaves it to the headline. engine: leaves out rows of other engines;
    None keeps those of every engine. Raises UsageError for a methodology that does not exist.
    """
    names = dict.fromkeys(row.methodology for row in methodologies())
    if methodology not in names:
        raise UsageError(f"--methodology {methodology}: no such methodology; choose {', '.join(names)}")
    return [
        row
        for row in methodologies()
        if (row.methodology, row.model, row.platform) == (methodology, model, platform)
        and (not row.gpus or gpu in row.gpus)
        and precision in (None, row.precision)
        and (engine is None or row.engine in (None, engine))
    ]


def contradicted_values(config: TrainingConfig, row: Configuration) -> list[str]:
    """Return a phrase for each value of a training's configuration that differs from a row of a methodology."""
    return [
        f"{key} {stated} instead of {getattr(row, key)}"
        for key in OF_A_METHODOLOGY
        if (stated := getattr(config, key)) is not None and stated != getattr(row, key)
    ]


def held(result: Result) -> frozenset[str]:
    """Return the methodologies with a row for a result's model and GPU whose every value the result states."""
    config = result.training_config
    gpu = catalogue.find_gpu_of(result.gpu_info)
    return frozenset(
        row.methodology
        for row in methodologies()
        if (row.model, row.platform) == (result.model.name, result.platform)
        and (not row.gpus or (gpu is not None and gpu.name in row.gpus))
        and all(getattr(config, key) == getattr(row, key) for key in OF_A_METHODOLOGY)
    )


def reconciled(pair: Sequence[Result]) -> str | None:
    """Return why results of differently named methodologies may be compared, as a sentence; None where they may not.

    They may be compared where both state every value that a methodology sets and all are equal, or where one
    methodology has exactly the values of both, each on its own GPU.
    """
    one, other = pair
    if None in (one.methodology, other.methodology) or one.methodology == other.methodology:
        return None
    named = f"The methodology names differ ({one.methodology} against {other.methodology})"
    values = [[getattr(result.training_config, key) for key in OF_A_METHODOLOGY] for result in pair]
    if None not in values[0] and values[0] == values[1]:
        return f"{named}, but every value that they set is equal"
    common = held(one) & held(other)
    return f"{named}, but both sides use every value of {sorted(common)[0]}" if common else None
