"""Scores of MLPerf Training entries by its rules, and figures that follow from the logs but are not scored.

Rules (mlcommons/training_policies, training_rules.adoc, read 2026-11-21): a benchmark needs 10 or 3 runs; the fastest
and the slowest are dropped and the rest is averaged. A run that does not converge counts as the slowest; with two or
more such runs the result is invalid. scaling.json multiplies the score. A missing run counts as a failed one.

Entries of one round that repeat the runs of another entry, so that statistics count these runs once.

A submitter may enter the same runs twice, for example with and without measured power. Their logs differ in a line or
two, so their SHA-256 differ, but every run has the same times and samples.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tensorprimat.analysis.stats import LogEstimate
from tensorprimat.core.units import TERA
from tensorprimat.facts import catalogue, mlperf_rules
from tensorprimat.mlperf.library import Entry, LibraryRun
from tensorprimat.models import flops, shapes

DROPPED = 1  # from each end
MEDIAN_OF_THREE = 0.6698  # standard deviation of the median of three normal values over that of one value
LOSS_BY_TRIMMING = 1.05  # variance of the mean of 8 of 10 normal values over that of all 10
_FEWEST_RUNS = 2  # fewer have no scatter, and may have equal times by chance; several in milliseconds do not


@dataclass(frozen=True, kw_only=True)
class ComputedMfu:
    """MFU by the default convention that TensorPrimat computed from a published rate or from logs."""

    value: float | None = None
    because: str | None = None
    """Reason for a missing value."""
    terms: str | None = None
    """The formula with its inputs, for the rate of a table."""


@dataclass(frozen=True)
class Scored:
    """One entry with the figures that follow from its runs."""

    entry: Entry

    @property
    def num_gpus(self) -> int:
        """Return the number of GPUs of the entry, 0 if it does not state one."""
        return self.entry.num_gpus or 0

    @property
    def expected(self) -> int:
        """Return the number of runs that the benchmark needs."""
        rules = mlperf_rules.benchmark_rules(self.entry.benchmark)
        return rules.runs if rules else len(self.entry.runs)

    @property
    def sequence_length(self) -> int | None:
        """Return the tokens of a sequence, as logged, or as the task fixes them."""
        rules = mlperf_rules.benchmark_rules(self.entry.benchmark)
        return self.entry.sequence_length or (rules.sequence_length if rules else None)

    @property
    def failures(self) -> int:
        """Return the number of runs that did not reach the target or are missing."""
        return len(self.entry.runs) - len(self.succeeded) + self.missing

    @property
    def missing(self) -> int:
        return max(0, self.expected - len(self.entry.runs))

    @cached_property
    def succeeded(self) -> tuple[LibraryRun, ...]:
        """Return the runs that reached the target, fastest first."""
        return tuple(sorted((run for run in self.entry.runs if run.succeeded), key=lambda run: run.seconds or 0.0))

    @cached_property
    def counted(self) -> tuple[LibraryRun, ...]:
        """Return the runs that the score averages; none where there is no score."""
        if self.failures > DROPPED:
            return ()
        return self.succeeded[DROPPED : len(self.succeeded) - (DROPPED - self.failures)]

    @property
    def reason(self) -> str | None:
        """Return why there is no score, or None."""
        if self.failures > DROPPED:
            missing = f", {self.missing} of them missing" if self.missing else ""
            runs = max(self.expected, len(self.entry.runs))
            return f"{self.failures} of {runs} runs failed{missing}; at most one may fail"
        if not self.counted:
            return "no run is left after the fastest and the slowest are dropped"
        if self.entry.scaling_factor is None:
            return "scaling.json has no usable factor"
        return None

    @property
    def minutes(self) -> float | None:
        """Return the score: minutes to train, scaled."""
        factor = self.entry.scaling_factor
        if self.reason is not None or factor is None:
            return None
        return math.fsum(run.seconds or 0.0 for run in self.counted) / len(self.counted) / 60 * factor

    @property
    def samples(self) -> float | None:
        """Return the mean number of sequences to the target over the runs of the score."""
        return _mean([run.samples for run in self.counted])

    @property
    def seconds(self) -> float | None:
        """Return the mean time to train in seconds, before scaling."""
        return _mean([run.seconds for run in self.counted])

    @property
    def samples_per_second(self) -> float | None:
        """Return the sequences per second of training, over the runs of the score whose training time is known."""
        known = [(run.samples, run.training_seconds) for run in self.counted if run.samples and run.training_seconds]
        return math.fsum(one for one, _ in known) / math.fsum(seconds for _, seconds in known) if known else None

    @property
    def tokens_per_second_per_gpu(self) -> float | None:
        """Return tokens/s of training on each GPU; None where length, count, samples or time are not known."""
        rate, length, gpus = self.samples_per_second, self.sequence_length, self.entry.num_gpus
        return rate * length / gpus if rate and length and gpus else None

    @property
    def precision(self) -> str | None:
        """Return the precision of the matrix products, as logged, or as the submission's configuration sets it."""
        configured = self.configured
        return configured.precision if configured else self.entry.precision

    @property
    def precision_source(self) -> str | None:
        """Return the place that states the precision, or None."""
        configured = self.configured
        return configured.source if configured else "the logs" if self.entry.precision else None

    @property
    def configured(self) -> mlperf_rules.MlperfPrecision | None:
        """Return what the submission's configuration files state of a precision that its logs do not state, or None."""
        entry = self.entry
        if entry.precision:
            return None
        return mlperf_rules.submission_precision(entry.round, entry.submitter, entry.system, entry.benchmark)

    @cached_property
    def mfu(self) -> ComputedMfu:
        """Return the model FLOP/s during training, divided by the GPU's dense peak at the stated precision."""
        rules, rate = mlperf_rules.benchmark_rules(self.entry.benchmark), self.tokens_per_second_per_gpu
        precision, length, gpu = self.precision, self.sequence_length, catalogue.find_gpu(self.entry.gpu)
        if rate is None or length is None:
            return ComputedMfu(because="tokens/s/GPU cannot be computed from the logs")
        if rules is None or rules.shape is None:
            return ComputedMfu(because="the FLOPs of this task's tokens are not known (adapters or packed sequences)")
        if precision is None:
            return ComputedMfu(because="the submission does not state its precision")
        peak = catalogue.dense_peak(gpu, precision)
        if not peak:
            return ComputedMfu(because=f"no dense {precision.upper()} peak is known for {self.entry.gpu or 'this GPU'}")
        work = flops.per_token(shapes.parse_shape(rules.shape).shape, length)
        return ComputedMfu(value=rate * work / (peak * TERA))

    @property
    def error_of_spread(self) -> float:
        """Return the standard error of the score, divided by the standard deviation of a run."""
        if len(self.counted) == 1:
            return MEDIAN_OF_THREE
        return math.sqrt(LOSS_BY_TRIMMING / len(self.succeeded))

    @property
    def estimate(self) -> LogEstimate | None:
        """Return the logarithm of the score in minutes with its scatter over runs; None for one run or equal times.

        The standard deviation is that of all successful runs. Runs stop only at evaluations, so the few runs in the
        score often have equal times, and their own scatter would be too small.
        """
        minutes, times = self.minutes, [run.seconds or 0.0 for run in self.succeeded]
        spread = statistics.stdev(times) / statistics.fmean(times) if len(times) >= _FEWEST_RUNS else 0.0
        if minutes is None or not spread:
            return None
        variance = (spread * self.error_of_spread) ** 2
        return LogEstimate(log=math.log(minutes), variance=variance, degrees=len(self.succeeded) - 1)


def timed(entries: Sequence[Entry], *fields: str) -> dict[tuple[str, ...], list[Scored]]:
    """Return the closed entries with known GPUs, time and speed, grouped by fields, in the order of their values."""
    found: dict[tuple[str, ...], list[Scored]] = {}
    for one in map(Scored, entries):
        entry = one.entry
        if entry.is_closed and entry.gpu and one.num_gpus and one.minutes and one.samples_per_second:
            found.setdefault(tuple(getattr(entry, field) for field in fields), []).append(one)
    return dict(sorted(found.items()))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """An entry that is left out of statistics, and the entry that has its runs."""

    entry: Entry
    of: Entry

    @property
    def sentence(self) -> str:
        """Return a clause that names both entries."""
        return f"{self.entry.name} has the same runs as {self.of.name} (equal times and samples), so they count once"


def identity_of_runs(entry: Entry) -> tuple[object, ...] | None:
    """Return what identifies the runs of an entry in whatever round, or None if too few of them have a time."""
    runs = sorted((run.seconds, run.samples or 0.0, run.training_seconds or 0.0) for run in entry.runs if run.seconds)
    return (entry.submitter, entry.benchmark, tuple(runs)) if len(runs) >= _FEWEST_RUNS else None


def distinct_entries(entries: Sequence[Entry]) -> tuple[tuple[Entry, ...], tuple[Repeat, ...]]:
    """Return the entries without those that repeat another of their round, and the repeats.

    The entry with the shortest name of its system is kept.
    """
    kept: dict[tuple[object, ...], Entry] = {}
    for entry in sorted(entries, key=lambda one: (len(one.system), one.name)):
        if (runs := identity_of_runs(entry)) is not None:
            kept.setdefault((entry.round, runs), entry)
    repeats = [
        Repeat(entry=entry, of=of)
        for entry in entries
        if (runs := identity_of_runs(entry)) is not None and (of := kept[entry.round, runs]) is not entry
    ]
    left_out = {id(one.entry) for one in repeats}
    return tuple(entry for entry in entries if id(entry) not in left_out), tuple(repeats)
