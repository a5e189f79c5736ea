"""Rows of one run for the closing audit: their own times, dates, and seconds that exceed the measured pace.

Two kinds of excess are distinguished. A row that is not measured (warm-up, evaluation, checkpoint) can take longer than
the measured pace. Between the dates of two rows more time can pass than the later row counts for its steps: a pause.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tensorprimat.audit.evidence import DATES, Elapsed, Evidence, resolution_of
from tensorprimat.core.steady import LONGEST_SERIES, Selection, median
from tensorprimat.core.steps import INTERRUPTIONS, FloatArray, Steps, repeated
from tensorprimat.core.terms import WORK_OF_RATES

WARNED = 0.03  # of the headline: a larger contradiction is a warning
PAUSE_SHARE = 0.05  # of a row's own time: a smaller excess is noise of printing
START_UP, EVALUATION, CHECKPOINT, PROFILING = "start-up", "evaluation", "checkpoint", "profile"
NAMES = {"validation": EVALUATION, "checkpoint": CHECKPOINT, "profile": PROFILING}
"""Interruption of a row → its name in a sentence."""
Reason = tuple[str, float]
"""(name, seconds): time that a clock holds in addition to the measured pace; negative where it holds less."""


@dataclass(frozen=True, kw_only=True)
class AuditRows:
    """Rows of the measured segment of one run."""

    index: NDArray[np.int64]
    """Numbers of the steps, (rows,)."""
    work: FloatArray
    """Steps of each row, weighted by their tokens or samples where the batch grows; (rows,)."""
    steps: FloatArray
    """Steps of each row, unweighted."""
    own: FloatArray
    """Seconds that each row states for its steps; NaN where it states none."""
    distance: FloatArray
    """Weighted steps from the previous row to this one, missing rows included."""
    ended_at: FloatArray
    """Clock of each row: its date, or the elapsed time that it states; NaN where it has neither."""
    dates: str
    """Name of that clock."""
    resolution: float
    """Seconds to which it is printed."""
    interrupted: np.ndarray
    """Interruption inside each row, as positions in INTERRUPTIONS."""
    announced: NDArray[np.int8]
    """Interruption that a line before each row announces, as positions in INTERRUPTIONS."""
    measured_from: int
    """Position of the first measured row."""
    pace: float
    """Measured seconds of one weighted step."""

    @property
    def pace_of_steps(self) -> float:
        """Return the measured seconds of a step, averaged over the work of all rows."""
        return self.pace * float(self.work.sum()) / float(self.steps.sum())

    def grouped(self, size: int) -> AuditRows:
        """Return the sums of every `size` neighbouring rows, so that millions of rows are audited as 100,000."""
        starts = np.arange(0, len(self.own), size)
        ends = np.append(starts[1:], len(self.own)) - 1
        return replace(
            self,
            index=self.index[ends],
            work=np.add.reduceat(self.work, starts),
            steps=np.add.reduceat(self.steps, starts),
            own=np.add.reduceat(self.own, starts),
            distance=np.add.reduceat(self.distance, starts),
            ended_at=self.ended_at[ends],
            interrupted=np.maximum.reduceat(self.interrupted, starts),
            announced=np.maximum.reduceat(self.announced, starts),
            measured_from=self.measured_from // size,
        )

    def unusual(self, start: int = 0) -> list[Reason]:
        """Return the seconds above the measured pace in rows that are not measured: warm-up and interrupted rows.

        start: position of the first row that counts.
        """
        excess = np.nan_to_num(self.own - self.pace * self.work)
        position = np.arange(len(excess))
        warm_up = (position >= start) & (position < self.measured_from)
        found = [(START_UP, float(excess[warm_up].sum()))]
        for code, name in enumerate(INTERRUPTIONS):
            rows = (self.interrupted == code) & (position >= max(start, self.measured_from))
            if name and rows.any():
                found.append((NAMES[name], float(excess[rows].sum())))
        return [(name, seconds) for name, seconds in found if seconds]

    def pauses(self) -> list[Reason]:
        """Return the time between the dates of neighbouring rows that the later row does not count.

        An excess that most rows share is not a pause: it shows that the time of a row is not the time of its steps. If
        the row before an interrupted one was written late, the gap of the interruption precedes that row; it is moved
        to the row that counts it.
        """
        if not np.isfinite(self.ended_at).any():
            return []
        gap = np.diff(self.ended_at, prepend=np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            own = self.own * self.distance / self.work
            excess = gap - own
            late = np.flatnonzero((self.interrupted != 0) & (excess < 0) & (np.append(0.0, excess[:-1]) > 0))
            moved = np.minimum(-excess[late], excess[late - 1])
            excess[late] += moved
            excess[late - 1] -= moved
            known = np.isfinite(excess)
            if not known.any():
                return []
            usual = max(0.0, median((excess / own)[known]))
            usual = usual if usual > WARNED else 0.0
            single = known & (excess > np.maximum(2 * self.resolution, PAUSE_SHARE * own) + usual * own)
        found = [("pauses between rows", float((excess - usual * own)[single & (self.announced == 0)].sum()))]
        for code, kind in enumerate(INTERRUPTIONS):
            if kind:
                found.append((NAMES[kind], float(excess[known & (self.announced == code) & (excess > 0)].sum())))
        return [(name, seconds) for name, seconds in found if seconds]


def rows_of(
    steps: Steps, selection: Selection, own: FloatArray, evidence: Evidence, *, segment: int, elapsed: Elapsed | None
) -> AuditRows | None:
    """Return the rows of a measured segment, or None where no measured row has a time.

    own: see own_seconds; segment: its number; elapsed: the clock that times the rows, None for their dates.
    """
    covers, of_run, of_selection = steps.column("covers"), _stretch(selection.of_run), _stretch(selection.rows)
    selected = (steps.column("segment")[of_run] == segment) & (covers[of_run] > 0)
    inside = selection.of_run if selected.all() else selection.of_run[selected]
    picked = _stretch(inside)
    weight = _weights(steps)
    measured = own[of_selection]
    timed = np.isfinite(measured)
    amount = float((covers[of_selection] * weight[of_selection])[timed].sum())
    if not amount or not len(inside):
        return None
    index, counted = steps.column("index")[picked], covers[picked].astype(np.float64)
    ended_at = (elapsed.of(steps) if elapsed else steps.column("ended_at"))[picked]
    distance = np.maximum(np.diff(index, prepend=index[0] - counted[0]), counted)
    rows = AuditRows(
        index=index,
        work=counted * weight[picked],
        steps=counted,
        own=own[picked],
        distance=distance * weight[picked],
        ended_at=ended_at,
        dates=elapsed.name if elapsed else DATES,
        resolution=elapsed.resolution if elapsed else resolution_of(ended_at[np.isfinite(ended_at)]),
        interrupted=steps.column("interrupted_by")[picked],
        announced=announced_before(steps.column("line")[picked], index, evidence),
        measured_from=int(np.isin(inside, selection.rows).argmax()),  # 0 where none is measured
        pace=float(measured[timed].sum()) / amount,
    )
    return rows.grouped(-(-len(inside) // LONGEST_SERIES)) if len(inside) > LONGEST_SERIES else rows


def own_seconds(steps: Steps, gpus: int | None) -> FloatArray:
    """Return the seconds that each row states for its steps, by a time or by a rate; NaN where it states neither.
    (rows,)
    """
    covers = steps.column("covers").astype(np.float64)
    seconds: FloatArray = steps.column("seconds") * covers
    for rate, (work, per_gpu) in WORK_OF_RATES.items():
        factor = gpus if per_gpu else 1
        if factor and steps.has(rate) and steps.has(work) and not np.isfinite(seconds).all():
            with np.errstate(divide="ignore", invalid="ignore"):
                derived = covers * steps.column(work) / (steps.column(rate) * factor)
            seconds = np.where(np.isfinite(seconds), seconds, derived)
    return np.where(np.isfinite(seconds) & (seconds > 0), seconds, np.nan)


def _stretch(rows: np.ndarray) -> slice | np.ndarray:
    """Return ascending positions as a slice where no position is left out: columns then need no copy."""
    if not len(rows) or int(rows[-1]) - int(rows[0]) + 1 != len(rows):
        return rows
    return slice(int(rows[0]), int(rows[-1]) + 1)


def _weights(steps: Steps) -> FloatArray:
    """Return the work of a step relative to the last one, by tokens or samples where every row has them; (rows,)."""
    for name in ("tokens", "samples"):
        if steps.has(name):
            amount = steps.column(name)
            if amount.strides == (0,):  # one value for all
                break
            if np.isfinite(amount).all() and (amount > 0).all():
                return np.asarray(amount / amount[-1])
    return repeated(1.0, len(steps), np.float64)


def announced_before(lines: np.ndarray, index: np.ndarray, evidence: Evidence) -> NDArray[np.int8]:
    """Return the interruption announced before each row, as positions in INTERRUPTIONS; (rows,)."""
    kinds = np.zeros(len(lines), np.int8)
    _mark(kinds, np.searchsorted(lines, list(evidence.announced)), list(evidence.announced.values()))
    if evidence.evaluated_after and (np.diff(index) > 0).all():
        after = np.searchsorted(index, sorted(evidence.evaluated_after), side="right")
        _mark(kinds, after, ["validation"] * len(after))
    return kinds


def _mark(kinds: NDArray[np.int8], places: np.ndarray, names: list[str]) -> None:
    """Write the positions in INTERRUPTIONS of named interruptions at the places that are inside the rows."""
    codes = np.array([INTERRUPTIONS.index(name) for name in names], np.int8)
    inside = places < len(kinds)
    kinds[places[inside]] = codes[inside]
