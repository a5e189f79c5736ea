"""Scores of MLPerf Training entries by its rules, and figures that follow from the logs but that it does not score.

Rules (mlcommons/training_policies, training_rules.adoc, read 2026-11-21): a benchmark wants 10 or 3 runs; the fastest
and the slowest are dropped and the rest is averaged. One run that does not converge may be the slowest, so nothing more
is dropped; with more, the result is invalid. scaling.json multiplies the score. A missing run counts as a failed one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tensorprimat.analysis.stats import LogEstimate
from tensorprimat.core import catalogue
from tensorprimat.core.mlperf_library import Entry, Run

DROPPED = 1  # from each end
MEDIAN_OF_THREE = 0.6698  # standard deviation of the median of three normal values over that of one value
FEWEST_COUNTED = 3  # fewer leave no spread to estimate an interval from


@dataclass(frozen=True)
class Scored:
    """One entry with what follows from its runs."""

    entry: Entry

    @property
    def expected(self) -> int:
        """Return the number of runs that the benchmark wants."""
        rules = catalogue.mlperf_benchmark(self.entry.benchmark)
        return rules.runs if rules else len(self.entry.runs)

    @property
    def sequence_length(self) -> int | None:
        """Return the tokens of a sequence, as logged, or as the task fixes them."""
        rules = catalogue.mlperf_benchmark(self.entry.benchmark)
        return self.entry.sequence_length or (rules.sequence_length if rules else None)

    @property
    def failures(self) -> int:
        """Return the runs that did not reach the target or are missing."""
        return len(self.entry.runs) - len(self.succeeded) + self.missing

    @property
    def missing(self) -> int:
        """Return how many runs fewer than wanted are there."""
        return max(0, self.expected - len(self.entry.runs))

    @cached_property
    def succeeded(self) -> tuple[Run, ...]:
        """The runs that reached the target, fastest first."""
        return tuple(sorted((run for run in self.entry.runs if run.succeeded), key=lambda run: run.seconds or 0.0))

    @cached_property
    def counted(self) -> tuple[Run, ...]:
        """The runs that the score averages; none where there is no score."""
        if self.failures > DROPPED:
            return ()
        return self.succeeded[DROPPED : len(self.succeeded) - (DROPPED - self.failures)]

    @property
    def reason(self) -> str | None:
        """Return why there is no score, or None."""
        if self.failures > DROPPED:
            missing = f", {self.missing} of them missing" if self.missing else ""
            return f"{self.failures} of {max(self.expected, len(self.entry.runs))} runs failed{missing}; one may"
        if not self.counted:
            return "no run is left after the fastest and the slowest"
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
    def training_seconds(self) -> float | None:
        """Return the mean seconds of training, evaluation and set-up left out."""
        return _mean([run.training_seconds for run in self.counted])

    @property
    def samples_per_second(self) -> float | None:
        """Return sequences over training seconds of the runs of the score."""
        samples, seconds = self.samples, self.training_seconds
        return samples / seconds if samples and seconds else None

    @property
    def tokens_per_second_per_gpu(self) -> float | None:
        """Return tokens/s of training on each GPU; None where length, count, samples or time are not known."""
        rate, length, gpus = self.samples_per_second, self.sequence_length, self.entry.num_gpus
        return rate * length / gpus if rate and length and gpus else None

    @property
    def estimate(self) -> LogEstimate | None:
        """Return the logarithm of the score in minutes with its scatter over runs, or None where runs tell no scatter.

        Ten runs: Yuen's standard error of a trimmed mean, the dropped runs winsorised. Three runs: the score is their
        median, whose error under a normal distribution follows from their standard deviation.
        """
        minutes, variance = self.minutes, self._variance
        if minutes is None or variance is None:
            return None
        mean = self.seconds or math.nan
        degrees = len(self.counted) - 1 if len(self.counted) >= FEWEST_COUNTED else len(self.succeeded) - 1
        return LogEstimate(log=math.log(minutes), variance=variance / mean**2, degrees=degrees)

    @property
    def _variance(self) -> float | None:
        times = [run.seconds or 0.0 for run in self.succeeded]
        count, all_runs = len(self.counted), len(self.succeeded) + self.failures
        if count >= FEWEST_COUNTED:
            inner = [run.seconds or 0.0 for run in self.counted]
            winsorised = [inner[0]] * DROPPED + inner + [inner[-1]] * DROPPED
            return _sample_variance(winsorised) * (all_runs - 1) / (count * (count - 1))
        if count == 1 and len(times) == FEWEST_COUNTED:
            return MEDIAN_OF_THREE**2 * _sample_variance(times)
        return None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def _sample_variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
