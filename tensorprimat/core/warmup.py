"""The end of warm-up of several runs at once, and how far the mean may still deviate from the level that follows.

Runs of one benchmark warm up alike, so their mean curve shows a ramp with 1/√n of the noise of one run. Three steps:

1. Each run alone: `find_steady`.
2. The mean curve of the runs (logarithms, each run relative to its own level): `find_steady` again. A run starts at
   the later of both.
3. An exponential decay is fitted to the rest of the mean curve. Where it is significant, after allowing for the
   autocorrelation of the rows, the warm-up of several runs is cut further, up to half of the rows. What
   the cut leaves of the decay is the drift, which analysis adds to the interval. Of all decay times that fit about as
   well as the best, the one that leaves most is used. Where the whole curve shows a decay and more than a quarter of
   the rows are cut, it counts even if it is not significant: too few rows are left to show it.

A side is unsettled where the mean curve has a shift or a decay of more than MATERIAL that no cut removes and that
the runs show one by one (Student's t over the runs): slow noise of single runs is not a drift of all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensorprimat.core.steady import FEWEST_FOR_QUARTER, MATERIAL, Floats, Steady, find_steady, median
from tensorprimat.core.steps import finite

FEWEST_FOR_DECAY = 8  # a level, an amplitude, a decay time and some residual
_TIMES = np.geomspace(1 / 16, 2.0, 11)  # decay times that are tried, as shares of the rows
EVIDENT = 0.03  # p below which a decay counts; about 5 % of level series show one, as several decay times are tried
HINTED = 0.2  # p of the t test over runs, for a decay that the mean curve shows
AS_LIKELY = 2.7  # χ² of one parameter at 90 %: decay times whose fit is worse by less may be the true one
ABRUPT = 2  # rows; a warm-up of no more has no shape that could be fitted
CERTAIN = 0.01  # p below which a material decay that no cut removes makes a side unsettled
LONG = 0.25  # share of the rows; the rest of a longer decay counts even if too few rows are left to show it
TOLERABLE = 1e-3  # relative size of a remaining decay that needs no further cut
LONGEST_CURVE = 2000  # rows; a longer curve is averaged to at most this many
MOST_OF_FEW = 0.4  # share of a short run; after a longer warm-up too few rows are left to show that it is over
AS_NOISE = 1.5  # standard errors; in most level runs, two means differ by less
REPLICATED = 0.02  # p of the t test over runs


@dataclass(frozen=True, kw_only=True)
class Warmup:
    """End of warm-up of the runs of one side."""

    runs: tuple[Steady, ...]
    """One per run; `settled` is of that run alone."""
    settled: bool
    """True if the step times of all runs together reached a stable level."""
    drift: float
    """Relative amount by which the mean of the measured rows may deviate from the later level; 0 where none shows."""


def find_warmup(runs: Sequence[np.ndarray], declared: Sequence[int] | None = None) -> Warmup:
    """Return where each run becomes steady.

    runs: seconds of the rows of each run, in the order of time; NaN rows are skipped. declared: rows that each run
    calls warm-up; never fewer are dropped, and more where the rows say so, but none where 0 are declared (a log that
    begins after warm-up).
    """
    least = [1] * len(runs) if declared is None else list(declared)
    declared_steps = [None] * len(runs) if declared is None else least
    own = [_alone(run, rows) for run, rows in zip(runs, declared_steps, strict=True)]
    starts = [min(max(one.start, first), len(run)) for one, first, run in zip(own, least, runs, strict=True)]
    if len(runs) == 1 and own[0].settled and _plainly_level(runs[0][starts[0] :]):
        return Warmup(runs=_steadies(starts, own), settled=True, drift=0.0)
    members = _alike(runs)
    curves = _relative([runs[member] for member in members])
    if curves is None or not np.isfinite(curves).any(axis=1).all():
        return Warmup(runs=_steadies(starts, own), settled=all(one.settled for one in own), drift=0.0)
    mean = _mean(curves)
    level = np.exp(mean)
    together = own[members[0]] if len(members) == 1 else find_steady(level)
    if declared is not None:
        together = _beyond(level, max(least[member] for member in members), together)
    first = max(together.start, max(least[member] for member in members))
    size = -(-len(mean) // LONGEST_CURVE)
    alone = len(curves) == 1 or not first  # one run shows a decay too uncertainly to drop rows: it becomes drift
    longer = together.start > max(least)
    cut, drift, settled = _decay(
        _batched(curves, size),
        start=-(-first // size),
        half=0 if alone else len(mean) // 2 // size,
        is_long=longer and together.start > LONG * len(mean),
    )
    first += cut * size
    short = longer and len(mean) < FEWEST_FOR_QUARTER and together.start > MOST_OF_FEW * len(mean)
    settled = settled and not short and (together.settled or not _replicated(curves, together.start))
    starts = [max(start, min(first, len(run) // 2)) for start, run in zip(starts, runs, strict=True)]
    return Warmup(runs=_steadies(starts, own), settled=settled, drift=drift)


def _alone(run: np.ndarray, declared: int | None) -> Steady:
    """Find where one run becomes steady by itself."""
    if declared is None:
        return find_steady(run)
    if _plainly_level(run[declared:]):
        return Steady(start=declared, settled=True)
    return _beyond(run, declared, find_steady(run))


def _plainly_level(rows: np.ndarray) -> bool:
    """Return True if the first rows and the first third lie as near to the last third as noise does.

    Most level runs pass, in a tenth of the time of a closer look: thousands of files are read for one comparison.
    """
    third = len(rows) // 3
    if third < FEWEST_FOR_DECAY // 2:
        return False
    late, deviation = float(rows[-third:].mean()), float(rows.std())
    early, first = float(rows[:third].mean()), float(rows[:3].mean())
    near = abs(early - late) <= AS_NOISE * deviation * math.sqrt(2 / third)
    return near and abs(first - late) <= AS_NOISE * deviation * math.sqrt(1 / 3 + 1 / third)


def _beyond(run: np.ndarray, declared: int, found: Steady) -> Steady:
    """Return the end of warm-up that was found, or the declared one where the rows between do not move the mean."""
    if found.start <= declared or not declared:
        return Steady(start=declared, settled=found.settled)
    with_them, without = finite(run[declared:]), finite(run[found.start :])
    matters = len(without) and abs(with_them.mean() / without.mean() - 1) > TOLERABLE
    return found if matters else Steady(start=declared, settled=found.settled)


def _steadies(starts: Sequence[int], own: Sequence[Steady]) -> tuple[Steady, ...]:
    return tuple(Steady(start=start, settled=one.settled) for start, one in zip(starts, own, strict=True))


def _alike(runs: Sequence[np.ndarray]) -> list[int]:
    """Return the runs that are at least half as long as the longest: a short one says little about a long warm-up."""
    longest = max(map(len, runs), default=0)
    return [number for number, run in enumerate(runs) if 2 * len(run) >= longest]


def _relative(runs: Sequence[np.ndarray]) -> Floats | None:
    """Return logarithms relative to the level of each run's later half, cut to one length; None for too few rows."""
    length = min(map(len, runs), default=0)
    if length < FEWEST_FOR_DECAY:
        return None
    rows = np.array([run[:length] for run in runs], np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(np.where(rows > 0, rows, np.nan))
    levels = []
    for run in logs:
        known = finite(run[length // 2 :])
        if not len(known):
            return None
        levels.append(median(known))
    return np.asarray(logs - np.array(levels)[:, None])


def _mean(curves: Floats, axis: int = 0) -> Floats:
    """Return the mean of the known values over runs (or another axis); NaN where none is known."""
    known = np.isfinite(curves)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(known, curves, 0.0).sum(axis) / known.sum(axis))


def _batched(curves: Floats, size: int) -> Floats:
    """Return means of `size` neighbouring rows, whole batches only."""
    if size == 1:
        return curves
    whole = curves.shape[1] // size * size
    return _mean(curves[:, :whole].reshape(len(curves), -1, size), axis=2)


_NO_DECAY = (0, 0.0, True)


def _decay(curves: Floats, *, start: int, half: int, is_long: bool) -> tuple[int, float, bool]:
    """Fit level + amplitude · exp(−row/τ) to the mean of the curves.

    Returns the rows of the curve to drop, the drift that is left, and True if the curve settles.
    start: row at which find_steady ends warm-up; half: the last one at which it may end. The rows of the end of that
    warm-up are part of the fit, unless a straight ramp or a step describes them clearly better. is_long: the rows
    themselves show a warm-up of more than LONG.
    """
    mean = _mean(curves)
    if len(mean) - start < FEWEST_FOR_DECAY // 2 or not np.isfinite(mean[1:]).all():
        return _NO_DECAY
    first = start // 2 if start > ABRUPT and _gradual(mean[start // 2 :], start - start // 2) else start
    found = _fitted(curves, first)
    if found is None:
        return _NO_DECAY
    is_shown = found.is_shown(EVIDENT, HINTED)
    if not is_shown:
        whole = _fitted(curves, 1) if is_long and _gradual(mean[1:], start - 1) else None
        if whole is None or not whole.is_shown(CERTAIN, REPLICATED):
            return _NO_DECAY
    shapes, score, phi, squares = found.shapes, found.score, found.phi, found.squares
    worse = AS_LIKELY / (found.freedom * (1 - phi) / (1 + phi))
    decays = np.abs(found.amplitudes[:, None]) * shapes
    decays = decays[squares <= squares.min() * (1 + worse)]  # few rows leave the decay time uncertain
    remaining = np.cumsum(decays[:, ::-1], axis=1)[:, ::-1] / np.arange(shapes.shape[1], 0, -1)  # mean from each row on
    if is_shown:  # the fitted rows show only how far the decay falls up to the last row
        remaining = np.minimum(remaining, decays - decays[:, -1:])
    remaining = remaining.max(axis=0)[start - first :]
    last = max(0, min(half, len(mean) - FEWEST_FOR_DECAY // 2) - start)
    tolerable = np.flatnonzero(remaining[: last + 1] <= TOLERABLE)
    cut = int(tolerable[0]) if len(tolerable) else last
    drift = float(remaining[cut]) * (1 + 1 / max(1.0, score**0.5))  # with its standard error
    return cut, drift, drift <= MATERIAL or not found.is_shown(CERTAIN, REPLICATED)


@dataclass(frozen=True, kw_only=True)
class _Fitted:
    """An exponential decay that was fitted to the mean of several curves, with its significance."""

    shapes: Floats
    amplitudes: Floats
    """Amplitude of the fit, by shape."""
    squares: Floats
    """Sum of squares around the fit, by shape."""
    phi: float
    freedom: int
    score: float
    p_value: float
    changes: Floats
    """Of each curve: its product with the shape of the decay, which is larger the more it decays."""

    def is_shown(self, level: float, level_of_runs: float) -> bool:
        """Return True if the decay is significant in the mean curve, and in the runs where there are three or more."""
        return self.p_value <= level and _agree(self.changes, level_of_runs)


def _fitted(curves: Floats, first: int) -> _Fitted | None:
    """Fit a decay to the rows from `first` on; None for too few rows, or rows without noise."""
    rows = _mean(curves)[first:]
    if len(rows) < FEWEST_FOR_DECAY:
        return None
    shapes = _shapes(len(rows))
    amplitudes, squares = _fit(rows, shapes)
    best = int(np.argmin(squares))
    amplitude, left = float(amplitudes[best]), float(squares[best])
    if not left > 0:
        return None
    shape = shapes[best] - shapes[best].mean()
    phi = _memory(curves[:, first:], amplitude * shape)
    freedom = len(rows) - 3
    score = amplitude**2 * float(shape @ shape) / (left / freedom) * (1 - phi) / (1 + phi)
    return _Fitted(
        shapes=shapes, amplitudes=amplitudes, squares=squares, phi=phi, freedom=freedom, score=score,
        p_value=p_of_t(score**0.5, freedom), changes=np.nan_to_num(curves[:, first:]) @ shape,
    )  # fmt: skip


def _shapes(rows: int) -> Floats:
    """Return an exponential decay for every one of _TIMES. shape (times, rows)"""
    return np.asarray(np.exp(-np.arange(rows) / (_TIMES[:, None] * rows)))


def _fit(rows: Floats, shapes: Floats) -> tuple[Floats, Floats]:
    """Fit a level and each of the shapes by least squares; return their amplitudes and the sums of squares left."""
    centred = shapes - shapes.mean(axis=1, keepdims=True)
    off = rows - rows.mean()
    squares = (centred**2).sum(axis=1)
    amplitudes = centred @ off / squares
    return amplitudes, off @ off - amplitudes**2 * squares


def _gradual(rows: Floats, ramp: int) -> bool:
    """Return True unless a ramp or a step that ends at row `ramp` fits clearly better than an exponential."""
    place = np.arange(len(rows))
    abrupt = np.array([np.clip(1 - place / ramp, 0, None), place < ramp], np.float64)
    (_, smooth), (_, broken) = _fit(rows, _shapes(len(rows))), _fit(rows, abrupt)
    return bool(smooth.min() < broken.min() * (1 + AS_LIKELY / len(rows)))


def _memory(curves: Floats, fitted: Floats) -> float:
    """Return the lag-one autocorrelation of the rows around the fit, of all runs together, freed of its bias."""
    around = curves - fitted
    around = np.where(np.isfinite(around), around - _batched(around, around.shape[1]), 0.0)
    total = float((around * around).sum())
    phi = float((around[:, 1:] * around[:, :-1]).sum()) / total if total else 0.0
    return float(np.clip(phi + (1 + 4 * phi) / around.shape[1], 0.0, 0.95))


def _replicated(curves: Floats, start: int) -> bool:
    """Return True unless three or more runs disagree about a change from the first to the last third after warm-up."""
    rows = curves[:, start:]
    if len(rows) < 3 or rows.shape[1] < 4:
        return True
    third = max(1, rows.shape[1] // 3)
    early, late = (_batched(part, third)[:, 0] for part in (rows[:, :third], rows[:, -third:]))
    return _agree(finite(early - late))


def _agree(changes: Floats, level: float = REPLICATED) -> bool:
    """Return True if Student's t over the runs finds a mean other than 0, or cannot be computed (fewer than 3 runs)."""
    count = len(changes)
    if count < 3:
        return True
    error = float(changes.std(ddof=1)) / count**0.5
    if not np.isfinite(error) or error == 0:
        return True
    return p_of_t(abs(float(changes.mean())) / error, count - 1) < level


def p_of_t(score: float, freedom: int) -> float:
    """Return the two-sided p of Student's t, to within 1e-12 (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4).

    scipy.special.stdtr returns the same, but to import it takes as long as to read 100,000 rows of a log.
    """
    angle = math.atan2(score, math.sqrt(freedom))
    odd, cosine = freedom % 2, math.cos(angle)
    ratios = np.arange(1 + odd, freedom - 1, 2, dtype=np.float64)
    ratios *= cosine**2 / (ratios + 1)
    series = math.sin(angle) * (cosine if odd else 1.0) * (1 + float(np.cumprod(ratios).sum()))
    if freedom == 1:
        return 1 - 2 / math.pi * angle
    return 1 - (2 / math.pi * (angle + series) if odd else series)
