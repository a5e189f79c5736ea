"""Rate of a training at another number of GPUs, from how rates of MLPerf Training changed with the number of GPUs.

One submitter's entries of one GPU, benchmark and round are a group, which gives one exponent b of samples/s ∝ GPUs^b.
The exponents of all groups of a benchmark are a sample; a new training's exponent is expected within their spread
(Student's t for one further value). No property of a machine enters: the spread of exponents includes the effect of
network and parallelism. `validate` predicts the pairs of points of each GPU from the groups of the same benchmark on
other GPUs, and counts the intervals that contain the measured value. Runs that several entries repeat count once, and
so does a pair of points that a later round repeats. Two entries that state different precisions make no pair.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorprimat.analysis.stats import student
from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.core.quantities import (
    as_stated,
    confidence_level,
    count,
    counted,
    fixed,
    percent,
    rate,
    rounded,
    rounded_interval,
)
from tensorprimat.core.result import Result
from tensorprimat.facts import catalogue
from tensorprimat.mlperf.library import Entry, derived_from
from tensorprimat.mlperf.report import text_table
from tensorprimat.mlperf.score import Repeat, Scored, distinct_entries, identity_of_runs, timed
from tensorprimat.models import names
from tensorprimat.system.safe_text import one_line

PROJECTION_CONFIDENCE = 0.90
COVERAGE = (0.85, 0.95)
"""Share of left-out points within the 90 % interval for which the projection counts as reliable."""
FEWEST_GROUPS = 4
FEWEST_POINTS = 20  # with fewer points the coverage is uncertain by more than 15 percentage points


@dataclass(frozen=True, kw_only=True)
class ScalingGroup:
    """One submitter's entries of one GPU, benchmark and round over several numbers of GPUs."""

    gpu: str
    benchmark: str
    round: str
    pairs: tuple[tuple[Scored, Scored], ...]
    """Fewer and more GPUs."""

    @property
    def exponent(self) -> float:
        """Return the exponent that fits the pairs best (least squares through the origin)."""
        moves = [_move(pair) for pair in self.pairs]
        return math.fsum(d * r for d, r in moves) / math.fsum(d * d for d, _ in moves)


@dataclass(frozen=True, kw_only=True)
class Exponent:
    """Mean exponent of several groups, with the interval in which one further exponent is expected."""

    mean: float
    half_width: float
    """Of the 90 % interval for the exponent of one further training."""
    groups: int

    def factor(self, ratio: float) -> tuple[float, float, float]:
        """Return the factor by which the total rate changes with `ratio` times the GPUs: expected, low, high."""
        distance, half = math.log(ratio), abs(math.log(ratio)) * self.half_width
        middle = self.mean * distance
        return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """One pair of points, predicted without any group of its GPU and benchmark."""

    fewer: Scored
    more: Scored
    predicted: float
    """Samples/s at the larger number of GPUs."""
    low: float
    high: float

    @property
    def error(self) -> float:
        return self.predicted / (self.more.samples_per_second or math.nan) - 1

    @property
    def covered(self) -> bool:
        """Return True if the measured rate lies in the interval."""
        return self.low <= (self.more.samples_per_second or math.nan) <= self.high


@dataclass(frozen=True, kw_only=True)
class Validation:
    """All left-out points of a benchmark, or of all."""

    points: tuple[LeftOut, ...]

    @property
    def coverage(self) -> float:
        """Return the share of points within their interval."""
        return sum(point.covered for point in self.points) / len(self.points) if self.points else math.nan

    @property
    def median_error(self) -> float:
        """Return the median absolute relative error; of an even number of points, the larger one in the middle."""
        return statistics.median_high(abs(point.error) for point in self.points) if self.points else math.nan

    @property
    def widest(self) -> float:
        """Return the largest ratio of numbers of GPUs among the points."""
        return max((point.more.num_gpus / point.fewer.num_gpus for point in self.points), default=1.0)

    @property
    def works(self) -> bool:
        """Return True if enough points show the coverage that the interval promises."""
        return len(self.points) >= FEWEST_POINTS and COVERAGE[0] <= self.coverage <= COVERAGE[1]


@dataclass(frozen=True, kw_only=True)
class Projection:
    """Rate of a result at another number of GPUs."""

    benchmark: str
    gpu: str
    measured_gpus: int
    gpus: int
    measured: float
    """Tokens per second and GPU on `measured_gpus`."""
    tokens_per_second_per_gpu: float
    """On `gpus`; `low` and `high` are the ends of its interval at PROJECTION_CONFIDENCE."""
    low: float
    high: float
    exponent: Exponent
    validation: Validation
    other_task: str | None
    """Model of the result if it is not the benchmark's; None if it is."""


def groups(entries: Sequence[Entry]) -> tuple[ScalingGroup, ...]:
    """Return every group that has two or more numbers of GPUs."""
    made, known = [], set()
    once, _ = distinct_entries(entries)
    for (gpu, benchmark, round, _), several in timed(once, "gpu", "benchmark", "round", "submitter").items():
        pairs = []
        for fewer, more in itertools.combinations(sorted(several, key=lambda one: one.num_gpus), 2):
            runs = (identity_of_runs(fewer.entry) or fewer.entry.name, identity_of_runs(more.entry) or more.entry.name)
            alike = len({fewer.precision, more.precision} - {None}) < 2
            if more.num_gpus > fewer.num_gpus and alike and runs not in known:
                known.add(runs)
                pairs.append((fewer, more))
        if pairs:
            made.append(ScalingGroup(gpu=gpu, benchmark=benchmark, round=round, pairs=tuple(pairs)))
    return tuple(made)


def repeats(entries: Sequence[Entry], benchmark: str) -> tuple[Repeat, ...]:
    """Return the entries of a benchmark that `groups` leaves out because another one has their runs."""
    return tuple(one for one in distinct_entries(entries)[1] if one.entry.benchmark == benchmark)


def exponent_of(found: Sequence[ScalingGroup]) -> Exponent | None:
    """Return the mean exponent of groups, or None for fewer than FEWEST_GROUPS."""
    if len(found) < FEWEST_GROUPS:
        return None
    values = [group.exponent for group in found]
    half = student(PROJECTION_CONFIDENCE, len(values) - 1) * statistics.stdev(values) * math.sqrt(1 + 1 / len(values))
    return Exponent(mean=statistics.fmean(values), half_width=half, groups=len(values))


def validate(found: Sequence[ScalingGroup]) -> Validation:
    """Return the prediction of every pair from the groups of the same benchmark on other GPUs."""
    points = []
    for group in found:
        others = [one for one in found if one.benchmark == group.benchmark and one.gpu != group.gpu]
        exponent = exponent_of(others)
        if exponent is None:
            continue
        for fewer, more in group.pairs:
            base = fewer.samples_per_second or math.nan
            middle, low, high = exponent.factor(more.num_gpus / fewer.num_gpus)
            points.append(LeftOut(fewer=fewer, more=more, predicted=base * middle, low=base * low, high=base * high))
    return Validation(points=tuple(points))


def verdict(validation: Validation) -> str:
    """Return a clause that says how well the left-out points are predicted."""
    if not validation.points:
        return "no point can be predicted from other GPU models"
    few = f"; at least {FEWEST_POINTS} points are needed" if len(validation.points) < FEWEST_POINTS else ""
    return (
        f"its {confidence_level(PROJECTION_CONFIDENCE)} intervals contain {percent(validation.coverage, 0)} of "
        f"{len(validation.points)} measured points, each predicted from other GPU models; "
        f"median error {percent(validation.median_error, 1)}{few}"
    )


def project(
    found: Sequence[ScalingGroup], result: Result, *, path: Path, benchmark: str, gpus: int, gpu: str | None = None
) -> Projection:
    """Return the rate of a result on `gpus` GPUs, if it scales as the entries of a benchmark did.

    path: file of the result, for messages. gpu: name that the GPU of the result must have; None for any. Raises
    UsageError naming the flag, and InputError for a result of a CPU or one without the figures that a projection needs.
    """
    if gpus < 1:
        raise UsageError("--gpus: must be a number of GPUs to project to")
    measured, speed = result.training_config.num_gpus, result.performance_metrics.tokens_per_second_per_gpu
    if not measured or not speed:
        raise InputError("lacks the number of GPUs or tokens/s/GPU; a projection needs both", path=path)
    device = result.gpu_info.device_name or "unknown GPU"
    if result.platform == "cpu":
        raise InputError("a result of a CPU cannot be projected, because only the scaling of GPUs is known", path=path)
    same_name = catalogue.plain_name(gpu or "") == catalogue.plain_name(device)
    known = None if gpu is None else catalogue.find_gpu(gpu, result.gpu_info.total_memory_gb)
    if gpu is not None and not same_name and (known is None or known != catalogue.find_gpu_of(result.gpu_info)):
        raise UsageError(f"--gpu {gpu}: the result is of {device}; only this GPU can be projected")
    exponent, validation = exponent_for(found, benchmark, gpus / measured)
    expected, least, most = (speed * measured / gpus * factor for factor in exponent.factor(gpus / measured))
    middle, low, high = (end or math.nan for end in rounded_interval(expected, least, most))
    trained = result.model.name
    same_task = trained is not None and names.key(trained) == names.key(benchmark)
    return Projection(
        benchmark=benchmark,
        gpu=device,
        measured_gpus=measured,
        gpus=gpus,
        measured=speed,
        tokens_per_second_per_gpu=middle,
        low=low,
        high=high,
        exponent=exponent,
        validation=validation,
        other_task=None if same_task else trained or "unknown",
    )


def exponent_for(found: Sequence[ScalingGroup], benchmark: str, ratio: float) -> tuple[Exponent, Validation]:
    """Return the exponent of a benchmark and its validation. Raises UsageError where it is not reliable.

    ratio: number of GPUs to project to, over the measured number.
    """
    ours = [group for group in found if group.benchmark == benchmark]
    exponent, validation = exponent_of(ours), validate(ours)
    if exponent is None or not validation.works:
        raise UsageError(f"--benchmark {benchmark}: projection is not reliable: {verdict(validation)}")
    if ratio == 1:
        raise UsageError("--gpus: that is the measured number of GPUs, so there is nothing to project")
    widest = validation.widest
    if not 1 / widest <= ratio <= widest:
        far, reached = as_stated(ratio), as_stated(widest)
        raise UsageError(f"--gpus: {far} times the measured number; the scaling data reach only {reached} times")
    return exponent, validation


def _move(pair: tuple[Scored, Scored]) -> tuple[float, float]:
    fewer, more = pair
    rates = (more.samples_per_second or math.nan) / (fewer.samples_per_second or math.nan)
    return math.log(more.num_gpus / fewer.num_gpus), math.log(rates)


_COLUMNS = ("from", "GPUs", "measured", "predicted", "interval", "missed")
_TITLES = (
    "from", "GPUs", "measured samples/s", "predicted samples/s", f"{confidence_level(PROJECTION_CONFIDENCE)} interval",
    "missed",
)  # fmt: skip


def projection_document(found: Projection) -> dict[str, Any]:
    return {
        "benchmark": found.benchmark, "gpu": found.gpu, "measured_gpus": found.measured_gpus, "gpus": found.gpus,
        "measured": found.measured, "tokens_per_second_per_gpu": found.tokens_per_second_per_gpu, "low": found.low,
        "high": found.high, "confidence": PROJECTION_CONFIDENCE, "exponent": found.exponent.mean,
        "left_out_points": len(found.validation.points), "coverage": found.validation.coverage,
        "median_error": found.validation.median_error, "sentence": projection_sentence(found),
    }  # fmt: skip


def projection_sentence(found: Projection) -> str:
    """Return the projection with its basis."""
    expected = f"{count(found.tokens_per_second_per_gpu)} tokens/s/GPU on {counted(found.gpus, 'GPU')}"
    interval = f"{confidence_level(PROJECTION_CONFIDENCE)} interval {count(found.low)} to {count(found.high)}"
    measured = f"{count(found.measured)} on {counted(found.measured_gpus, 'GPU')}"
    task = f", although its own task is another one ({one_line(found.other_task)})," if found.other_task else ""
    exponent = found.exponent
    law = f"samples/s grow as GPUs^{fixed(exponent.mean, 3)} ± {fixed(exponent.half_width, 3)}"
    return (
        f"{one_line(found.gpu)}: {expected} ({interval}), projected from the measured {measured}. "
        f"This assumes that the result scales as {exponent.groups} submissions of {found.benchmark} did ({law}){task} "
        "and that its global batch and network are like theirs; the scatter of the result itself is not included. "
        f"Check of the projection: {verdict(found.validation)}."
    )


def derivation_notice(found: Sequence[ScalingGroup]) -> str | None:
    """Return the notice that MLPerf requires for the rates of its submissions, or None without a submission."""
    return derived_from(group.round for group in found) if found else None


def notes(repeats: Sequence[Repeat], derived: str | None) -> str:
    """Return a line for each entry that is left out because another one has its runs, and the notice of MLPerf."""
    lines = [f"note: {one_line(one.sentence)}" for one in repeats]
    lines += [f"Rates of submissions: {derived}."] if derived else []
    return "".join(f"\n{line}" for line in lines)


def validation_document(benchmark: str, found: Validation) -> dict[str, Any]:
    """Return the JSON object of the left-out points of a benchmark."""
    return {
        "benchmark": benchmark, "shown_to_work": found.works, "left_out_points": len(found.points),
        "coverage": rounded(found.coverage), "median_error": rounded(found.median_error),
        "points": [dict(zip(_COLUMNS, _row(point), strict=True)) for point in found.points],
    }  # fmt: skip


def validation_text(benchmark: str, found: Validation) -> str:
    """Return the left-out points of a benchmark as a table, and the conclusion from them."""
    rows = text_table(_TITLES, [_row(point) for point in found.points]) if found.points else ""
    shown = "reliable" if found.works else "not reliable"
    return f"{rows}{one_line(benchmark)}: projection is {shown}: {verdict(found)}."


def _row(point: LeftOut) -> tuple[str, ...]:
    return (
        point.fewer.entry.name,
        f"{point.fewer.entry.num_gpus} → {point.more.entry.num_gpus}",
        rate(point.more.samples_per_second),
        rate(point.predicted),
        f"{rate(point.low)} to {rate(point.high)}",
        "" if point.covered else "missed",
    )
