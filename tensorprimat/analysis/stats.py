"""Confidence intervals that have their stated coverage: of a figure, a ratio, many ratios, and a mean of ratios.

All computation is on logarithms, because step times and rates are positive and are compared by ratio.

Several runs: the runs are the sample, whatever number of steps each has, and the interval is Student's t on the
logarithms of the run means. If several hosts took part, the means of the hosts are the sample. Two sides are compared
with Welch's t (Welch 1938); if their numbers of runs differ, with a test between Welch's and that of Behrens and
Fisher. Welch's estimate of the degrees of freedom is too low where both sides vary equally, so it is raised
(`_degrees_of_difference`). Percentile bootstraps are not used: over five runs they cover too little.

One run: consecutive steps are correlated, so n steps count as fewer independent ones. `of_one_run` averages the rows
into batches (for n rows about 2√n, but 22 to 400), because fast noise hides slow wander in single rows but not in
batches. It models the batches as an AR(1) process and averages the t interval of the mean over every autocorrelation
that the rows allow (the marginal posterior of the mean under a flat prior on φ and Jeffreys' prior on level and scale;
Zellner 1971, chapter 4). With a single estimate of φ, or with ten batches that are taken as independent, intervals of
short and correlated series cover too little: see docs/project/calibration.md, which perf/calibration.py writes. The
interval covers step noise only; another run may differ by more.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit  # scipy.stats would cost a second of import time

from tensorprimat.core.steps import FloatArray

FEWEST_ROWS_FOR_INTERVAL = 3  # fewer leave no residual for a mean, a scale and an autocorrelation
MOST_PLANNED_RUNS = 1000  # nobody does more runs of one configuration
FEWEST_SHOWN = 80  # rows of one run whose interval is shown; slow wander and changes of clock hide in fewer
_PHI = np.linspace(-0.5, 0.98, 75)  # steps alternate little and remember much; 0.98 is a memory of 50 steps
EXTRA_OF_FEW = {2: 1.0, 3: 0.25, 4: 1.2}  # where the formula for more runs gives false alarms above 6 %
_LOG_RATIOS = np.linspace(-9.0, 9.0, 73)  # ratios of two variances up to 8,000
_FEWEST_BATCHES, _MOST_BATCHES = 22, 400  # beyond 400 the posterior of φ falls between grid points
_HIGHEST = math.nextafter(1.0, 0.0)  # confidence; the quantile at 1 is infinite
MOST_EXPONENT = 600.0  # of the end of an interval: a float holds it, and its product with any rate


@dataclass(frozen=True, kw_only=True)
class LogEstimate:
    """Estimate of a logarithm: normal with an estimated variance of `degrees` degrees of freedom."""

    log: float
    variance: float
    """Of the estimate, not of the sample."""
    degrees: float
    """Infinite where the variance is assumed rather than estimated."""
    drift: float = 0.0
    """Relative error of the estimate from causes other than scatter, such as drift; it adds to the variance."""
    rounding: float = 0.0
    """Largest relative error that the last printed digit leaves; it adds to the interval on both sides, because it is
    the same in all rows and its sign is unknown."""
    sides: tuple[tuple[float, float], ...] = ()
    """Of a difference of two sides that have unequal degrees of freedom: variance and degrees of each."""

    def half_width(self, confidence: float) -> float:
        """Return half of the two-sided interval, on the logarithm."""
        width = student(confidence, self._degrees) * math.sqrt(self._total)
        if not self.sides or width == 0:
            return width + self.rounding
        low, high = width, width
        while self._p_value(high) > 1 - confidence:
            low, high = high, 2 * high
        for _ in range(40):  # 2⁻⁴⁰ of the first bracket
            middle = (low + high) / 2
            low, high = (middle, high) if self._p_value(middle) > 1 - confidence else (low, middle)
        return high + self.rounding

    def interval(self, confidence: float) -> tuple[float, float]:
        """Return the lower and upper end of the interval of the figure itself, not of its logarithm."""
        half = self.half_width(confidence)
        return math.exp(bounded(self.log - half)), math.exp(bounded(self.log + half))

    def p_value(self) -> float:
        """Return the two-sided probability of an estimate at least this far from a ratio of 1 if the ratio is 1."""
        return self._p_value(max(0.0, abs(self.log) - self.rounding))

    @property
    def _total(self) -> float:
        return self.variance + self.drift**2

    @property
    def _degrees(self) -> float:
        """Return Satterthwaite's degrees of freedom; the drift adds variance, but is not estimated from a sample."""
        return self.degrees * (self._total / self.variance) ** 2 if self.drift and self.variance else self.degrees

    def _p_value(self, distance: float) -> float:
        if self._total == 0:
            return 1.0 if distance == 0 else 0.0
        score = -distance / math.sqrt(self._total)
        welch = float(2 * (ndtr(score) if math.isinf(self._degrees) else stdtr(self._degrees, score)))
        if not self.sides or welch == 0:
            return welch
        weight = _weight_of_behrens_fisher(self.sides)
        exact = _behrens_fisher(self.sides, distance, self.drift**2)
        mixed = math.exp((1 - weight) * math.log(welch) + weight * math.log(max(exact, 1e-300)))
        return max(welch, mixed)  # no interval is narrower than Welch's


def bounded(log: float) -> float:
    """Return the logarithm of an end of an interval, within ± MOST_EXPONENT."""
    return min(max(log, -MOST_EXPONENT), MOST_EXPONENT)


def _weight_of_behrens_fisher(sides: tuple[tuple[float, float], ...]) -> float:
    """Return the weight of the Behrens–Fisher p value against Welch's, 0 for equal counts and near 1 for 2 against
    many.

    Welch's t gives too many false alarms where the smaller side has 2 or 3 values, Behrens–Fisher too few; the exponent
    is fitted to simulations of 2 to 5 against up to 30 (perf/calibration.py has the rows).
    """
    counts = sorted(degrees + 1 for _, degrees in sides)
    return float(1 - (counts[1] / counts[0]) ** (-1.4 / (counts[0] - 1)))


def _behrens_fisher(sides: tuple[tuple[float, float], ...], distance: float, extra: float) -> float:
    """Return the two-sided p value of a difference of two means, averaged over every ratio of the two variances.

    For a known ratio the difference is Student-t with both sides' degrees of freedom; the likelihood of the ratio
    weighs them, under a flat prior on its logarithm (Behrens 1929, Fisher 1935). extra: known variance on top.
    """
    (first, first_degrees), (second, second_degrees) = sides
    counts = first_degrees + 1, second_degrees + 1
    degrees = first_degrees + second_degrees
    ratio = np.exp(_LOG_RATIOS)  # variance of one value of the second side over that of the first
    squares = first_degrees * counts[0] * first + second_degrees * counts[1] * second / ratio
    log_weight = -second_degrees / 2 * _LOG_RATIOS - degrees / 2 * np.log(squares)
    weight = np.exp(log_weight - log_weight.max())
    scale = np.sqrt(squares / degrees * (1 / counts[0] + ratio / counts[1]) + extra)
    return float((weight * 2 * stdtr(degrees, -distance / scale)).sum() / weight.sum())


@dataclass(frozen=True, kw_only=True)
class OneRun:
    """The uncertainty of one run's mean, from its own rows."""

    half_width: float
    """Relative half-width of the interval of the mean."""
    effective: float
    """Effective sample size: number of independent rows that would give the same interval."""


def student(confidence: float, degrees: float) -> float:
    """Return the two-sided quantile of Student's t, of the normal distribution for infinite degrees of freedom."""
    tail = min((1 + confidence) / 2, _HIGHEST)
    return float(ndtri(tail) if math.isinf(degrees) else stdtrit(degrees, tail))


def of_runs(
    figures: Sequence[float], hosts: Sequence[Hashable] | None = None, *, rounding: float = 0.0, drift: float = 0.0
) -> LogEstimate:
    """Return the mean of log run figures; with two or more hosts, of host means, since runs on one host resemble each
    other.

    figures: one per run, positive. hosts: one per run, None where unknown. rounding: largest relative error that
    rounding leaves in every figure alike. drift: relative amount by which all figures may deviate. Raises ValueError
    for fewer than two figures.
    """
    logs = np.log(np.asarray(figures, np.float64))
    if hosts is not None and counts_hosts(hosts):
        names = list(dict.fromkeys(hosts))
        logs = np.array([logs[[host == name for host in hosts]].mean() for name in names])
    return replace(_of_logs(logs), rounding=rounding, drift=drift)


def of_pairs(candidate: Sequence[float], baseline: Sequence[float], *, rounding: float = 0.0) -> LogEstimate:
    """Return the mean log ratio of runs that were measured in pairs, so that a drift that both share cancels.

    Raises ValueError for fewer than two pairs.
    """
    logs = np.log(np.asarray(candidate, np.float64)) - np.log(np.asarray(baseline, np.float64))
    return replace(_of_logs(logs), rounding=rounding)


def _of_logs(logs: FloatArray) -> LogEstimate:
    if len(logs) < 2:
        raise ValueError("an interval over runs or pairs needs at least two")
    return LogEstimate(log=float(logs.mean()), variance=float(logs.var(ddof=1)) / len(logs), degrees=len(logs) - 1)


def counts_hosts(hosts: Sequence[Hashable]) -> bool:
    """Return True if hosts are the outer level of variation: every run names one, and there are at least two."""
    return None not in hosts and len(set(hosts)) > 1


def influences(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Return each row's influence on the logarithm of a ratio of sums, to first order (delta method), shape (rows,)."""
    ratio = numerator.sum() / denominator.sum()
    return np.asarray((numerator - ratio * denominator) / (ratio * denominator.mean()))


def of_one_run(moves: FloatArray, confidence: float = 0.95) -> OneRun:
    """Return the uncertainty of the mean of one autocorrelated series.

    moves: deviations of the rows, relative to their mean, in the order of time, shape (rows,). Their mean is
    subtracted.
    Raises ValueError for fewer than three rows.
    """
    half_widths, effective = half_widths_of_series(moves[None, :], confidence)
    return OneRun(half_width=float(half_widths[0]), effective=float(effective[0]))


def half_widths_of_series(series: FloatArray, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """Return the half-width of the interval of each series' mean, and its effective number of rows.

    series: shape (series, rows). Returns two arrays of shape (series,). For every φ of a grid the mean of an AR(1)
    process is Student-t around its generalised least squares estimate; the posterior of φ weighs them.
    """
    if series.shape[1] < FEWEST_ROWS_FOR_INTERVAL:
        raise ValueError("an interval over rows needs at least three")
    batch = _batch(series.shape[1])
    if batch > 1:
        whole = series.shape[1] // batch * batch
        means = series[:, :whole].reshape(len(series), -1, batch).mean(axis=2)
        half, effective = _of_batches(means, confidence)
        of_rows, of_means = series.var(axis=1), means.var(axis=1)
        worth = np.divide(of_rows, of_means, out=np.full(len(series), float(batch)), where=of_means > 0)
        return half, np.minimum(effective * worth, series.shape[1])
    return _of_batches(series, confidence)


def _batch(rows: int) -> int:
    """Return how many neighbouring rows form one batch. Slow wander under fast noise is no AR(1) process, but the means
    of batches nearly are one."""
    return max(1, round(rows / min(max(_FEWEST_BATCHES, 2 * math.sqrt(rows)), _MOST_BATCHES)))


def _of_batches(series: FloatArray, confidence: float) -> tuple[FloatArray, FloatArray]:
    """Return the half-width and effective number of AR(1) series."""
    rows = series.shape[1]
    x = series - series.mean(axis=1, keepdims=True)
    constant = (x * x).sum(axis=1) <= 1e-24 * rows  # relative deviations below 1e-12: the clock's last digit
    first, last = x[:, 0], x[:, -1]
    squares = np.where(constant, 1.0, (x * x).sum(axis=1))
    inner = squares - first**2 - last**2
    lagged = (x[:, 1:] * x[:, :-1]).sum(axis=1)
    phi = _PHI[:, None]
    weight_of_mean = (1 - phi**2) + (rows - 1) * (1 - phi) ** 2  # 1' R⁻¹ 1, up to the innovation variance
    projected = phi * (1 - phi) * (first + last)  # 1' R⁻¹ x of a centred series: all but its ends cancels
    centre = projected / weight_of_mean
    residual = squares + phi**2 * inner - 2 * phi * lagged - projected * centre
    residual = np.maximum(residual, 1e-12 * squares)
    log_posterior = 0.5 * (np.log(1 - phi**2) - np.log(weight_of_mean) - (rows - 1) * np.log(residual))
    weights = np.exp(log_posterior - log_posterior.max(axis=0))
    weights /= weights.sum(axis=0)
    scale = np.sqrt(residual / (rows - 1) / weight_of_mean)
    half = _half_width_of_mixture(weights, centre, scale, rows - 1, confidence)
    # Variance of an AR(1) mean over that of independent rows, 1 + 2 Σ (1 − k/n) φᵏ in closed form.
    inflation = (1 + phi) / (1 - phi) - 2 * phi * (1 - phi**rows) / (rows * (1 - phi) ** 2)
    effective = rows / (weights * inflation).sum(axis=0)
    return np.where(constant, 0.0, half), np.where(constant, float(rows), np.minimum(effective, rows))


def _half_width_of_mixture(
    weights: FloatArray, centre: FloatArray, scale: FloatArray, degrees: int, confidence: float
) -> FloatArray:
    """Return h with P(|mean| < h) = confidence under a mixture of t distributions, by bisection; arrays (φ, series)."""
    low = np.zeros(weights.shape[1])
    high = (np.abs(centre) + scale).max(axis=0) * student(0.5 + confidence / 2, degrees)
    for _ in range(30):  # 2⁻³⁰ of the first bracket
        middle = (low + high) / 2
        inside = (
            weights * (stdtr(degrees, (middle - centre) / scale) - stdtr(degrees, (-middle - centre) / scale))
        ).sum(axis=0)
        low, high = np.where(inside < confidence, middle, low), np.where(inside < confidence, high, middle)
    return np.asarray((low + high) / 2)


def welch_log_ratio(candidate: LogEstimate, baseline: LogEstimate) -> LogEstimate:
    """Return the logarithm of candidate / baseline, by Welch's t.

    Where the sides have unequal numbers of runs, p values and intervals lie between Welch's and Behrens–Fisher's.
    """
    found = _combined(candidate.log - baseline.log, (candidate, baseline), weight=1.0)
    sides = tuple((side.variance, side.degrees) for side in (candidate, baseline))
    if not all(variance > 0 and math.isfinite(degrees) for variance, degrees in sides):
        return found
    found = replace(found, degrees=_degrees_of_difference(sides))
    return replace(found, sides=sides) if sides[0][1] != sides[1][1] else found


def _degrees_of_difference(sides: Sequence[tuple[float, float]]) -> float:
    """Return the degrees of freedom of a difference of two means. sides: variance and degrees of freedom of each.

    1 / Σ(share² / (degrees + extra)) − extra, at most the sum of both: Satterthwaite 1946 for extra = 0, Welch 1947 for
    2. Satterthwaite's estimate is biased low. With 5 runs on each side, equal spread and no true difference, it finds a
    difference in 4.4 % of comparisons instead of 5 %; Welch's finds one in 4.8 %, and in at most 6 % where one side
    varies up to four times as much as the other.
    """
    total = sum(variance for variance, _ in sides)
    runs = round(min(degrees for _, degrees in sides)) + 1
    extra = EXTRA_OF_FEW.get(runs, max(0.0, 1.5 * (runs - 3)))
    if runs == 2 and sides[0][1] != sides[1][1]:
        extra = 0.0  # Welch's t finds too many differences of 2 runs against more
    uncertain = sum((variance / total) ** 2 / (degrees + extra) for variance, degrees in sides)
    return min(1 / uncertain - extra, sum(degrees for _, degrees in sides))


def geometric_mean(ratios: Sequence[LogEstimate]) -> LogEstimate:
    """Return the mean of independent logarithms: of these ratios, not of a population of models."""
    mean = sum(ratio.log for ratio in ratios) / len(ratios)
    return _combined(mean, [_as_students_t(ratio) for ratio in ratios], weight=1.0 / len(ratios))


def _as_students_t(ratio: LogEstimate) -> LogEstimate:
    """Return an estimate by Student's t alone with the same interval; its variance is enlarged if needed."""
    if not ratio.sides:
        return ratio
    exact = replace(ratio, rounding=0.0)
    plain = replace(exact, sides=())
    wider = (exact.half_width(0.95) / plain.half_width(0.95)) ** 2
    return replace(plain, variance=ratio.variance * wider, rounding=ratio.rounding)


def _combined(log: float, parts: Sequence[LogEstimate], *, weight: float) -> LogEstimate:
    variances = [weight**2 * part.variance for part in parts]
    total = sum(variances)
    uncertain = sum(variance**2 / part.degrees for variance, part in zip(variances, parts, strict=True))
    degrees = total**2 / uncertain if uncertain > 0 else math.inf
    drift = weight * math.hypot(*(part.drift for part in parts))
    rounding = weight * sum(part.rounding for part in parts)
    return LogEstimate(log=log, variance=total, degrees=degrees, drift=drift, rounding=rounding)


def level_of_look(confidence: float, look: int) -> float:
    """Return the confidence at which one of several looks at a growing number of runs is read: α / (2k − 1) at look k.

    Looking after every added run and stopping at the first difference raises 5 % of false alarms to 16 % between 2
    and 10 runs; with these levels it stays near 5 %, and a single look costs nothing.
    """
    return 1 - (1 - confidence) / (2 * look - 1)


def holm(p_values: Sequence[float], confidence: float) -> tuple[float, ...]:
    """Return the confidence at which each of several comparisons is to be read, so that all verdicts hold together.

    Holm 1979: the smallest p is read at 1 − α/m, the next at 1 − α/(m−1) … until one fails; it and all larger ones are
    read at the level at which it failed. An interval at this confidence excludes 1 exactly where Holm's test finds a
    difference.
    """
    alpha = 1 - confidence
    levels = [confidence] * len(p_values)
    failed_at: float | None = None
    for rank, position in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        level = alpha / (len(p_values) - rank) if failed_at is None else failed_at
        if failed_at is None and p_values[position] > level:
            failed_at = level
        levels[position] = 1 - level
    return tuple(levels)


def runs_needed(scatters: Sequence[float], half_width: float, confidence: float = 0.95) -> int | None:
    """Return the number of runs per side that gives an interval of ± half_width; None beyond MOST_PLANNED_RUNS.

    scatters: standard deviation of log run figures, one per side: one for a figure, two for a ratio.
    """
    deviation = math.hypot(*scatters)
    for runs in range(2, MOST_PLANNED_RUNS + 1):
        if student(confidence, len(scatters) * (runs - 1)) * deviation / math.sqrt(runs) <= half_width:
            return runs
    return None
