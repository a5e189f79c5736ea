"""Rules of MLPerf Training from data/mlperf.toml: benchmarks with their quality targets, rounds, and precisions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from functools import cache

from tensorprimat.facts.data_rows import checked_rows


@dataclass(frozen=True, kw_only=True)
class MlperfBenchmark:
    """One task of MLPerf Training: its quality target, and which parameters train."""

    name: str
    runs: int
    """Number of runs that a submission needs."""
    target: float
    of: str
    """Quantity of the target: log perplexity, evaluation loss."""
    peft: str
    source: str
    date: date
    sequence_length: int | None = None
    """Sequence length, if the task fixes it and logs do not state it."""
    lengths_differ: bool = False
    """True if samples are shorter than the sequence length that logs state, so that it counts no tokens."""
    shape: str | None = None
    """Shape of the model, as --shape takes it; None if it trains only in part or on packed sequences."""
    shape_source: str | None = None


@cache
def benchmarks() -> tuple[MlperfBenchmark, ...]:
    """Return the rules of every language-model benchmark of MLPerf Training."""
    return checked_rows("mlperf", "benchmark", MlperfBenchmark)


def benchmark_rules(name: str) -> MlperfBenchmark | None:
    """Return the rules of a benchmark by its name in submissions, or None for one that is not in the table."""
    return next((row for row in benchmarks() if row.name == name), None)


def is_of_another_task(name: str) -> bool:
    """Return True for a benchmark that does not train a language model, such as flux1; False for an unknown name."""
    return any(name in row.names for row in checked_rows("mlperf", "other", _OtherBenchmarks))


def states_length(name: str | None) -> bool:
    """Return True if the sequence length that a log of this benchmark states is that of every sample."""
    rules = benchmark_rules(name) if name else None
    return name is None or (rules is not None and not rules.lengths_differ)


@dataclass(frozen=True, kw_only=True)
class _OtherBenchmarks:
    names: tuple[str, ...]
    source: str
    date: date


def published_on(round: str) -> date | None:
    """Return the day on which the results of a round such as v5.1 were published, or None for one not in the table."""
    return next((row.published for row in mlperf_rounds() if row.name == round), None)


@dataclass(frozen=True, kw_only=True)
class MlperfRound:
    """A round of MLPerf Training and the day on which its results were published."""

    name: str
    published: date


@cache
def mlperf_rounds() -> tuple[MlperfRound, ...]:
    """Return every round in the table."""
    return checked_rows("mlperf", "round", MlperfRound, extra=True)


@dataclass(frozen=True, kw_only=True)
class MlperfPrecision:
    """Precision of the matrix products of some submissions, as the configuration that their README names sets it."""

    round: str
    submitter: str
    benchmark: str
    systems: tuple[str, ...]
    precision: str
    recipe: str | None = None
    source: str
    date: date


def submission_precision(round: str, submitter: str, system: str, benchmark: str) -> MlperfPrecision | None:
    """Return the precision of a submission by its own configuration, or None if it has not been looked up."""
    return _precisions().get((round, submitter, system, benchmark))


@cache
def _precisions() -> dict[tuple[str, str, str, str], MlperfPrecision]:
    rows = checked_rows("mlperf", "precision", MlperfPrecision)
    return {(row.round, row.submitter, system, row.benchmark): row for row in rows for system in row.systems}
