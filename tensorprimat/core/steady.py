"""Detection of the end of warm-up and of outliers, from the step times alone.

At least the first row is warm-up, unless it covers so many steps that dropping it would cost too much (`warm_up_rows`).

There are two questions, each with its own method.

Ramp: do the first rows differ from the level at which the rest settles? Every row has a robust score z (distance from
the median of the later half in units of its MAD). Dropping the first d rows pays if they are off by more than chance: d
maximises the sum of z² − 2.5² over the dropped rows, a one-sided CUSUM (Page 1954, Biometrika 41:100) run from the
front. z² is capped at 20, so that one late outlier cannot outweigh the good rows before it.

Shift: is there one level before some row and another after it? Pettitt's rank test (Pettitt 1979, Applied Statistics
28:126), deflated by the autocorrelation of the ranks as Hamed and Rao 1998 do for trends. A shift in the first half is
a slow warm-up and is dropped; if a shift remains after every cut, the series never settles.

Like every truncation rule (MSER: White 1997, Simulation 69:323), the search stops at half of the rows: a series that
settles later counts as not settled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensorprimat.core.steps import finite

CHANCE = 6.25  # z² beyond which a row pays for being dropped: 2.5 standard deviations
_MOST = 20.0  # of z²: one row cannot outweigh more than two good ones
_FEWEST = 6  # below, nothing but the first row is dropped: a median of two or three rows is not a level
FEWEST_FOR_QUARTER = 4 * _FEWEST
FEWEST_FOR_SHIFT = 12  # Pettitt's approximation, with a deflation that has to be estimated too
SIGNIFICANCE = 0.01  # of a change: one false one in a hundred
RESOLUTION = 1e-3  # relative difference up to which rows count as equal, whatever their MAD (printed digits, clock)
MATERIAL = 5e-3  # relative shift of a level below which no conclusion changes
TICKING_SHARE = 0.15  # share of rows off the level above which the clock ticks coarsely; fewer are single odd rows
TRIMMED_SHARE = 0.1  # share of the sorted rows that is left out at either end before levels are compared
LONGEST_SERIES = 2**17  # rows looked at one by one: ranks of ten million take seconds and half a gigabyte
SORTED_WHOLE = 1000  # rows up to which sorting all is faster than finding the middle
SPARED_SHARE = 0.1  # share of the work: a first row that contains more is a warm-up only if it is slower than all
NORMAL_MAD = 1.4826  # standard deviation of a normal distribution over its median absolute deviation
OUTLIER_SCORE = 5.0  # Iglewicz and Hoaglin 1993 say 3.5, which normal noise reaches every 2,000 rows
OUTLIER_SHARE = 0.05  # and large enough to matter: 5 % off the median

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Steady:
    """The end of warm-up in one run.

    start: the first measured row. settled: True if the step time reached a stable level.
    """

    start: int
    settled: bool


def find_steady(seconds: np.ndarray) -> Steady:
    """Return the row at which the step times of one run become steady.

    seconds: shape (rows,), in the order of time; NaN rows (interrupted, unknown) are skipped. Row 0 never counts. A
    series that does not settle keeps the rows after its ramp, at least half of all rows, and has settled=False. A
    series of more than LONGEST_SERIES rows is examined in means of neighbouring rows, and row by row only at its
    beginning.
    """
    if len(seconds) > LONGEST_SERIES:
        size = -(-len(seconds) // LONGEST_SERIES)
        whole = find_steady(_means(seconds, size))
        start = find_steady(seconds[:LONGEST_SERIES]).start if whole.start <= 1 else whole.start * size
        return Steady(start=start, settled=whole.settled)
    positions = np.flatnonzero(np.isfinite(seconds))
    known = np.asarray(seconds, np.float64)[positions]
    if len(known) < _FEWEST:
        return Steady(start=min(1, len(seconds)), settled=True)
    half = len(known) // 2
    ramp = _ramp(known, reference=half)
    start, settled = min(ramp, half), ramp <= half
    if settled and len(known) >= FEWEST_FOR_QUARTER:  # a ramp beyond the middle hides in the later half's own scatter
        settled = _ramp(known, reference=3 * len(known) // 4) <= half
    if settled:
        shifted = _after_shifts(known, start)
        start, settled = (start, False) if shifted is None else (shifted, True)
    return Steady(start=max(1, int(positions[start])), settled=settled)


def warm_up_rows(steady: Steady, seconds: np.ndarray, covers: np.ndarray) -> int:
    """Return how many rows to drop as warm-up: those that were detected, and in general at least the first row.

    A first row of several steps with more than SPARED_SHARE of the work stays, unless it is slower than every other
    row: otherwise the start-up of one step could cost half of the run. covers: optimizer steps of each row.
    """
    start = max(1, steady.start)
    if start > 1 or len(seconds) < 2 or covers[0] <= max(1.0, SPARED_SHARE * float(covers.sum())):
        return start
    others = finite(seconds[1:])
    if not len(others) or not np.isfinite(seconds[0]):
        return start
    return start if seconds[0] > float(others.max()) * (1 + MATERIAL) else 0


def within_half(steady: Steady, covers: np.ndarray) -> Steady:
    """Return the end of warm-up, at most half of the steps: half of the rows may be nearly all of them.

    covers: optimizer steps of each row. Where the rows settle later, the run counts as not settled.
    """
    if not len(covers) or (covers == covers[0]).all():
        return steady
    done = np.cumsum(covers)
    latest = max(1, int(np.searchsorted(done, done[-1] / 2, side="right")))
    return steady if steady.start <= latest else Steady(start=latest, settled=False)


def _means(rows: np.ndarray, size: int) -> Floats:
    """Return means of every `size` neighbouring rows, of those that are known; NaN where none is."""
    known = np.isfinite(rows)
    starts = np.arange(0, len(rows), size)
    with np.errstate(invalid="ignore"):
        return np.asarray(
            np.add.reduceat(np.where(known, rows, 0.0), starts) / np.add.reduceat(known, starts, dtype=int)
        )


def find_outliers(seconds: np.ndarray) -> NDArray[np.int64]:
    """Return positions of rows far from the median of all, by their modified z-score; NaN rows never.
    shape (outliers,)
    """
    known = np.isfinite(seconds)
    rows = seconds[known]
    if len(rows) < _FEWEST or np.ptp(rows) <= OUTLIER_SHARE * rows.min():  # the second is quick, and true of most runs
        return np.empty(0, np.int64)
    level, scale = _level(rows)
    with np.errstate(invalid="ignore"):
        distance = np.abs(seconds - level)
        return np.flatnonzero(known & (distance > OUTLIER_SCORE * scale) & (distance > OUTLIER_SHARE * level))


def _level(rows: Floats) -> tuple[float, float]:
    """Return the median, and a robust standard deviation: never below the resolution, larger where few rows make it
    uncertain.

    On a coarse clock (ticks of 1 ms, steps of 97 and 98 ms) most rows can show the same tick, so the deviation is 0. If
    more than TICKING_SHARE of the rows show another tick, their median distance replaces the deviation.
    """
    level = median(rows)
    distance = np.abs(rows - level)
    resolution = max(RESOLUTION * abs(level), np.finfo(np.float64).tiny)
    deviation = NORMAL_MAD * median(distance) * (1 + 3 / len(rows))
    if deviation < resolution:
        off = distance[distance > resolution]
        deviation = median(off) if len(off) > TICKING_SHARE * len(rows) else resolution
    return level, max(deviation, resolution)


def median(rows: Floats) -> float:
    """Return the median without the overhead of np.median, which costs ten times as much as sorting fifty rows."""
    middle = len(rows) // 2
    ordered = np.sort(rows) if len(rows) <= SORTED_WHOLE else np.partition(rows, (middle - 1, middle))
    return float(ordered[(len(rows) - 1) // 2] + ordered[len(rows) // 2]) / 2


def _trimmed_mean(rows: Floats) -> float:
    """Return the mean of the rows without the TRIMMED_SHARE at either end."""
    left_out = int(TRIMMED_SHARE * len(rows))
    kept = slice(left_out, len(rows) - left_out)
    return float(np.partition(rows, (kept.start, kept.stop - 1))[kept].mean())


def _ramp(rows: Floats, *, reference: int) -> int:
    """Return the number of rows at the front that differ from the level of the others, at least 1.

    The level is first that of the rows from `reference` on, then that of all rows after the ramp, until the ramp's end
    no longer moves.
    """
    start = 1
    for _ in range(10):
        level, scale = _level(rows[reference:])
        payment = np.cumsum(np.minimum(((rows - level) / scale) ** 2, _MOST) - CHANCE)
        found = max(1, int(np.argmax(payment)) + 1) if payment.max() > 0 else 1
        if found == start or len(rows) - found < _FEWEST // 2:
            return found
        start = reference = found
    return start


def _after_shifts(rows: Floats, start: int) -> int | None:
    """Return the first row after slow warm-ups from `start` on; None if the series stays unsettled after cuts."""
    for _ in range(3):
        shift = _shift(rows[start:])
        if shift is None:
            return start
        change, is_gradual = shift
        if is_gradual or start + change > len(rows) // 2:
            return None
        start += change
    return None


def _shift(rows: Floats) -> tuple[int, bool] | None:
    """Return the first row of a new level, and True if a straight line fits better than two levels: a drift, which no
    cut ends. None unless a change is both significant and large enough to matter.
    """
    count = len(rows)
    if count < FEWEST_FOR_SHIFT:
        return None
    centred = _ranks(rows) - (count + 1) / 2
    if not centred.any():
        return None
    excess = np.cumsum(centred)[:-1]
    change = int(np.argmax(np.abs(excess))) + 1
    before, after = _trimmed_mean(rows[:change]), _trimmed_mean(rows[change:])  # medians would jump by a clock's tick
    if abs(before - after) < MATERIAL * abs(after):
        return None
    around_levels = centred - np.where(np.arange(count) < change, centred[:change].mean(), centred[change:].mean())
    place = np.arange(count) - (count - 1) / 2
    around_line = centred - place * (place @ centred) / (place @ place)
    # A shift or trend must not be mistaken for autocorrelation, so φ is taken around the fit that leaves less of it.
    phi = max(0.0, min(_lag_one(around_levels), _lag_one(around_line), 0.95))
    statistic = 2 * abs(float(excess[change - 1]))
    deflated = statistic**2 * (1 - phi) / (1 + phi)
    if 2 * np.exp(-6 * deflated / (count**3 + count**2)) >= SIGNIFICANCE:
        return None
    return change, bool(around_line @ around_line < around_levels @ around_levels)


def _ranks(rows: Floats) -> Floats:
    """Return the ranks 1 … n, ties sharing their mean."""
    _, place, counts = np.unique(rows, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place])


def _lag_one(residual: Floats) -> float:
    """Return the lag-one autocorrelation, freed of its bias in short series (Marriott and Pope 1954)."""
    total = float(residual @ residual)
    phi = float(residual[1:] @ residual[:-1]) / total if total else 0.0
    return phi + (1 + 4 * phi) / len(residual)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The measured rows of one run."""

    run: int
    of_run: np.ndarray
    """Positions of all rows of the run."""
    of_training: np.ndarray
    """Positions of all rows of the measured segments."""
    rows: np.ndarray
    """Positions of the measured rows, in their order."""
    segment: int
    """Number of the longest measured segment (stretch between restarts)."""
    segments: int
    measured_segments: tuple[int, ...]
    """Segments whose rows are measured: the longest, and those that it continues or that continue it."""
    off_level: tuple[int, ...]
    """Segments left out only because their step time differs from that of the longest."""
    dropped_steps: int
    """Optimizer steps of the segment left out as warm-up."""
    excluded_steps: int
    """Optimizer steps after warm-up left out because they contain other work."""
    settled: bool
    """True if the step times of this run reached a stable level."""
    side_settled: bool = True
    """True if the step times of all runs together reached a stable level."""
    drift: float = 0.0
    """Relative amount by which the mean may deviate from the level that follows warm-up, of all runs together."""
    declared_steps: int | None = None
    """Optimizer steps that were declared as warm-up, where more were dropped."""
