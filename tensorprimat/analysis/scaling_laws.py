"""Laws of strong scaling, fitted to rates on several numbers of GPUs: a power of the number, and Amdahl's law.

Both have two parameters and are fitted to the logarithms by least squares, so that the one with the smaller scatter is
the one that fits better. The interval of a parameter holds the values whose fit is not worse at the confidence level
(for the power law Student's t, for Amdahl's share the F test of the sums of squares).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tensorprimat.analysis.stats import student

FEWEST_COUNTS = 3  # a line through two counts has no interval
_NO_SERIAL_PART = 1e-9  # of the work: below it the law is linear scaling


@dataclass(frozen=True, kw_only=True)
class Law:
    """A value as a function of the number of GPUs."""

    kind: Literal["power", "amdahl"]
    scale: float
    """Factor of the power law, or value on one GPU by Amdahl's law."""
    parameter: float
    """Exponent of the power law, or serial share of the work by Amdahl's law."""
    low: float
    high: float
    scatter: float
    """Relative standard deviation of the points around the law."""
    points: int

    @property
    def exponent(self) -> float:
        """Return the exponent of a power law."""
        return self.parameter

    @property
    def half_width(self) -> float:
        """Return half the width of the parameter's interval."""
        return (self.high - self.low) / 2

    def at(self, gpus: float) -> float:
        if self.kind == "power":
            return float(self.scale * gpus**self.parameter)
        return float(self.scale * gpus / (1 + self.parameter * (gpus - 1)))


Points = Sequence[tuple[float, float]]
"""Numbers of GPUs with their values."""


def gpu_power_law(points: Points, confidence: float) -> Law | None:
    """Return the power law through the points, or None for fewer than three numbers of GPUs."""
    if len({count for count, _ in points}) < FEWEST_COUNTS:
        return None
    line = Line(points)
    half = student(confidence, len(points) - 2) * line.error / math.sqrt(line.spread)
    scale, low, high = math.exp(line.level - line.slope * line.centre), line.slope - half, line.slope + half
    return Law(
        kind="power", scale=scale, parameter=line.slope, low=low, high=high, scatter=line.error, points=len(points)
    )


def amdahl(points: Points, confidence: float) -> Law:
    """Return Amdahl's law through the points, three numbers of GPUs at least."""
    from scipy.optimize import minimize_scalar  # takes a tenth of a second to import

    most, degrees = math.log(1.0), len(points) - 2
    fit = minimize_scalar(
        lambda log: _squares(points, math.exp(log)), bounds=(math.log(_NO_SERIAL_PART), most), method="bounded",
        options={"xatol": 1e-9},
    )  # fmt: skip
    best = float(fit.x)
    least = _squares(points, math.exp(best))
    worst = least * (1 + student(confidence, degrees) ** 2 / degrees)
    low, high = (_crossing(points, worst, best, end) for end in (math.log(_NO_SERIAL_PART), most))
    share, scatter = math.exp(best), math.sqrt(least / degrees)
    scale = math.exp(math.fsum(_residuals(points, share)) / len(points))
    return Law(kind="amdahl", scale=scale, parameter=share, low=low, high=high, scatter=scatter, points=len(points))


def best(points: Points, confidence: float) -> Law | None:
    """Return the law with the smaller scatter, or None for fewer than three numbers of GPUs."""
    power = gpu_power_law(points, confidence)
    return None if power is None else min(power, amdahl(points, confidence), key=lambda law: law.scatter)


class Line:
    """A straight line through the logarithms of points, by least squares."""

    def __init__(self, points: Points) -> None:
        """Fit the line to two or more different numbers of GPUs."""
        logs = [(math.log(count), math.log(value)) for count, value in points]
        self.points = len(logs)
        self.centre = math.fsum(x for x, _ in logs) / len(logs)
        self.level = math.fsum(y for _, y in logs) / len(logs)
        self.spread = math.fsum((x - self.centre) ** 2 for x, _ in logs)
        """Sum of squares of the abscissa."""
        self.slope = math.fsum((x - self.centre) * (y - self.level) for x, y in logs) / self.spread
        squares = math.fsum((y - self.level - self.slope * (x - self.centre)) ** 2 for x, y in logs)
        self.error = math.sqrt(squares / (len(logs) - 2)) if len(logs) > 2 else math.inf
        """Standard deviation of a point around the line."""

    def low(self, count: float, confidence: float) -> float:
        """Return the low end of the interval in which the next point is expected, as a logarithm."""
        distance = math.log(count) - self.centre
        wide = self.error * math.sqrt(1 + 1 / self.points + distance**2 / self.spread)
        return self.level + self.slope * distance - student(confidence, self.points - 2) * wide


def _residuals(points: Points, share: float) -> list[float]:
    """Return the logarithm of the value on one GPU that each point implies."""
    return [math.log(value) - math.log(count) + math.log1p(share * (count - 1)) for count, value in points]


def _squares(points: Points, share: float) -> float:
    logs = _residuals(points, share)
    mean = math.fsum(logs) / len(logs)
    return math.fsum((log - mean) ** 2 for log in logs)


def _crossing(points: Points, worst: float, best: float, end: float) -> float:
    """Return the end of the interval of the serial share: where the sum of squares reaches `worst`.

    best, end: logarithms of shares, the best one and the last one to try. If the sum stays below `worst`, the result is
    0 at the low end and the last share at the high end.
    """
    from scipy.optimize import brentq

    if _squares(points, math.exp(end)) <= worst:
        return 0.0 if end < best else math.exp(end)
    return math.exp(brentq(lambda log: _squares(points, math.exp(log)) - worst, best, end))
