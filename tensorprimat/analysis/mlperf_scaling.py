"""Scaling of one GPU over its number, and its results over rounds, by MLPerf Training entries.

The law is samples/s = a × GPUs^b, fitted to the logarithms by least squares; b = 1 is linear scaling. Submitters choose
another batch at another count, so samples to the target change too: time to train has an exponent of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tensorprimat.analysis.mlperf_compare import CLOSED, Task, TaskComparison, TaskSide, of_sides, side, version
from tensorprimat.analysis.mlperf_score import Scored
from tensorprimat.analysis.stats import student
from tensorprimat.core.mlperf_library import Entry

FEWEST_COUNTS = 3  # a line through two counts has no interval


@dataclass(frozen=True, kw_only=True)
class Law:
    """A power of the number of GPUs."""

    scale: float
    exponent: float
    half_width: float
    """Of the exponent's interval."""
    points: int

    def at(self, gpus: float) -> float:
        """Return the law's value."""
        return float(self.scale * gpus**self.exponent)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One entry with its efficiency."""

    scored: Scored
    efficiency: float | None
    """Samples/s of a GPU over that at the smallest count, averaged there over entries; strong scaling."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """One GPU on one benchmark in one round over several numbers of GPUs."""

    gpu: str
    benchmark: str
    round: str
    points: tuple[Point, ...]
    rate: Law | None
    minutes: Law | None
    stops_at: int | None
    """The first number of GPUs whose rates all lie below what the law of the smaller numbers predicts."""


def scalings(entries: Sequence[Entry], confidence: float) -> tuple[Scaling, ...]:
    """Return the scaling of every GPU, benchmark and round that has two or more numbers of GPUs."""
    groups: dict[tuple[str, str, str], list[Scored]] = {}
    for one in map(Scored, entries):
        entry = one.entry
        usable = one.minutes and one.samples_per_second and entry.num_gpus and entry.gpu
        if usable and (entry.division or CLOSED).casefold() == CLOSED:
            groups.setdefault((str(entry.gpu), entry.benchmark, entry.round), []).append(one)
    found = []
    for (gpu, benchmark, round), group in sorted(groups.items()):
        if len({_gpus(one) for one in group}) >= 2:
            found.append(_scaling(gpu, benchmark, round, group, confidence))
    return tuple(found)


def over_rounds(entries: Sequence[Entry]) -> tuple[TaskComparison, ...]:
    """Return each GPU's task against the same task in the round before, newest last: the gain of software."""
    sides: dict[tuple[str, Task], list[TaskSide]] = {}
    groups: dict[tuple[str, str, int, str], list[Entry]] = {}
    for entry in entries:
        if entry.gpu and entry.num_gpus and (entry.division or CLOSED).casefold() == CLOSED:
            groups.setdefault((entry.gpu, entry.benchmark, entry.num_gpus, entry.round), []).append(entry)
    for (gpu, benchmark, count, round), group in groups.items():
        if made := side(group, gpu, round):
            sides.setdefault((gpu, Task(benchmark=benchmark, num_gpus=count)), []).append(made)
    found = []
    for (_, task), several in sorted(sides.items(), key=lambda item: (item[0][0], str(item[0][1]))):
        ordered = sorted(several, key=lambda one: version(one.round))
        found += [of_sides(task, newer, older) for older, newer in pairwise(ordered)]
    return tuple(found)


def fit(points: Sequence[tuple[float, float]], confidence: float) -> Law | None:
    """Return the power law through (GPUs, value), or None for fewer than three numbers of GPUs."""
    if len({count for count, _ in points}) < FEWEST_COUNTS:
        return None
    line = _line(points)
    half = student(confidence, len(points) - 2) * line.error / math.sqrt(line.spread)
    return Law(scale=math.exp(line.level - line.slope * line.centre), exponent=line.slope, half_width=half,
               points=len(points))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Line:
    """Least squares on logarithms."""

    centre: float
    level: float
    slope: float
    spread: float
    """Sum of squares of the abscissa."""
    error: float
    """Standard deviation of a point around the line."""

    def low(self, count: float, confidence: float, points: int) -> float:
        """Return the low end of the interval in which the next point is expected, as a logarithm."""
        distance = math.log(count) - self.centre
        wide = self.error * math.sqrt(1 + 1 / points + distance**2 / self.spread)
        return self.level + self.slope * distance - student(confidence, points - 2) * wide


def _line(points: Sequence[tuple[float, float]]) -> _Line:
    logs = [(math.log(count), math.log(value)) for count, value in points]
    centre = math.fsum(x for x, _ in logs) / len(logs)
    level = math.fsum(y for _, y in logs) / len(logs)
    spread = math.fsum((x - centre) ** 2 for x, _ in logs)
    slope = math.fsum((x - centre) * (y - level) for x, y in logs) / spread
    squares = math.fsum((y - level - slope * (x - centre)) ** 2 for x, y in logs)
    return _Line(centre=centre, level=level, slope=slope, spread=spread, error=math.sqrt(squares / (len(logs) - 2)))


def _scaling(gpu: str, benchmark: str, round: str, group: Sequence[Scored], confidence: float) -> Scaling:
    ordered = sorted(group, key=lambda one: (_gpus(one), one.minutes or 0.0))
    least = [_per_gpu(one) for one in ordered if _gpus(one) == _gpus(ordered[0])]
    base = math.fsum(least) / len(least)
    rates = [(float(_gpus(one)), one.samples_per_second or math.nan) for one in ordered]
    return Scaling(
        gpu=gpu,
        benchmark=benchmark,
        round=round,
        points=tuple(Point(scored=one, efficiency=_per_gpu(one) / base) for one in ordered),
        rate=fit(rates, confidence),
        minutes=fit([(float(_gpus(one)), one.minutes or math.nan) for one in ordered], confidence),
        stops_at=_stop(rates, confidence),
    )


def _stop(rates: Sequence[tuple[float, float]], confidence: float) -> int | None:
    counts = sorted({count for count, _ in rates})
    for count in counts[FEWEST_COUNTS:]:
        smaller = [point for point in rates if point[0] < count]
        low = _line(smaller).low(count, confidence, len(smaller))
        if all(math.log(rate) < low for at, rate in rates if at == count):
            return int(count)
    return None


def _gpus(one: Scored) -> int:
    return one.entry.num_gpus or 0


def _per_gpu(one: Scored) -> float:
    return (one.samples_per_second or math.nan) / _gpus(one)
