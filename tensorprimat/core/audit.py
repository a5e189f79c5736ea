"""The closing audit of a log: the work that was read, held against the log's own clock.

A headline says how long a step takes. A log says more than once how long it all took: dates of rows, run_start and
run_stop, train_runtime. `audit` multiplies the headline by the steps between two readings of such a clock and names
what else the clock includes: start-up, evaluation, checkpoints, pauses between rows. What is left is a contradiction:
of more than WARNED it is a warning, of more than REFUSED no figure of this log can be trusted.

Where time passes unevenly between rows the excess of single rows is a pause. An excess that most rows share is none: it
says that a row's time is not the time of its steps. Dates that leave rows too little time never refuse a log: a
collector may have dated the lines when it copied them. Many rows of one moment are known to be written by a buffer, or
copied: then dates tell nothing of single rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tensorprimat.core import clocks
from tensorprimat.core.clocks import Evidence, LogClock
from tensorprimat.core.quantities import count, percent, significant
from tensorprimat.core.result import Audit, Result
from tensorprimat.core.steady import LONGEST, median
from tensorprimat.core.steps import INTERRUPTIONS, FloatArray, Steps, repeated

TOLD = 0.01  # a headline nearer to the clock needs no explanation
WARNED = 0.03
REFUSED = 0.20
FEWEST_ROWS = 8  # with dates; of fewer, one slow print or pause decides
PAUSE_SHARE = 0.05  # of a row's own time: a smaller excess is noise of printing
LEAST_SECONDS = 1.0  # between two marks a log spends so much on printing and stopping
IN_LUMPS = 0.4  # of the steps' time: if less lies between rows that follow one another closely, most have one date
STEADY = 0.2  # of the median gap: the middle half of all gaps lies within
UNTIMED_SHARE = 0.20  # of the steps: so many may stand before the first row with a time
DATES = "the dates of the rows"
SUBTRACTED = "subtracted from the clock"  # behind the name of a reason that is not in the clock's seconds
NAMES = {"validation": "evaluation", "checkpoint": "checkpoint"}
FASTER = {
    "start-up": "first rows",
    "evaluation": "rows with an evaluation",
    "checkpoint": "rows with a checkpoint",
    "after the last row": "steps after the last row",
}
"""Reason → name of the rows where they took less time than at the measured pace."""


class Selected(Protocol):
    """The part of core.summary.Selection that the audit uses."""

    @property
    def run(self) -> int: ...
    @property
    def of_run(self) -> np.ndarray: ...
    @property
    def rows(self) -> np.ndarray: ...
    @property
    def segment(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class AuditFinding:
    """One clock against the headline."""

    clock: str
    steps: float
    rows_steps: float
    """Steps that the rows add up to, where the log counts them too."""
    seconds: float
    """Of the clock, evaluation and checkpoints that the log tells taken out."""
    expected: float
    """Seconds of the same steps at the measured pace."""
    explained: tuple[tuple[str, float], ...]
    """(what, seconds) that the clock holds above what is expected."""
    taken_out: tuple[tuple[str, float], ...]
    slack: float
    is_certain: bool = True
    """The clock is the training's; one of a logger's calls, which may hold more or lag behind, refuses nothing."""
    is_copied: bool = False
    """Dates: the lines were dated when they were copied, so that they tell nothing of the training."""

    @property
    def ratio(self) -> float:
        """Return the headline's rate over the clock's."""
        return self.seconds / self.expected

    @property
    def unexplained(self) -> float:
        """Return the seconds without an explanation, apart from rounding; negative where the clock counts less than the
        rows.
        """
        left = self.seconds - self.expected - sum(seconds for _, seconds in self.explained)
        return float(np.sign(left)) * max(0.0, abs(left) - max(self.slack, LEAST_SECONDS))

    @property
    def contradiction(self) -> float:
        """Return the unexplained share of the larger of the two, of a clock without what explains it: a night between
        two trainings hides nothing. Of steps, where the rows hold more than the log counts.
        """
        known = sum(seconds for _, seconds in self.explained if seconds > 0)
        return max(abs(self.unexplained) / max(self.seconds - known, self.expected), 1 - self.steps / self.rows_steps)


def findings(result: Result, selections: Sequence[Selected]) -> list[AuditFinding]:
    """Hold every clock of every run against the headline; empty where a log has no clock, or no measured row."""
    steps, config = result.steps, result.training_config
    batch, length = config.global_batch_size, config.sequence_length
    if batch and not steps.has("samples"):
        steps = steps.replace(samples=float(batch))
    if batch and length and not steps.has("tokens"):
        steps = steps.replace(tokens=steps.column("samples") * length)
    own = own_seconds(steps, config.num_gpus)
    found = []
    for selection in selections:
        rows = _Rows.of(steps, selection, own, result.evidence)
        if rows is None:
            continue
        found += [
            finding
            for clock in result.evidence.clocks
            if clock.run == selection.run
            if (finding := rows.against(clock))
        ]
        if dated := rows.against_dates():
            found.append(dated)
    return sorted(found, key=lambda finding: not finding.is_certain)


def own_seconds(steps: Steps, gpus: int | None) -> FloatArray:
    """Return the seconds that each row says its steps took, from its time or from its rate; NaN where neither tells.
    (rows,)
    """
    covers = steps.column("covers").astype(np.float64)
    seconds: FloatArray = steps.column("seconds") * covers
    for rate, work, factor in (
        ("reported_samples_per_second", "samples", 1),
        ("reported_tokens_per_second", "tokens", 1),
        ("reported_tokens_per_second_per_gpu", "tokens", gpus),
        ("reported_samples_per_second_per_gpu", "samples", gpus),
    ):
        if factor and steps.has(rate) and steps.has(work) and not np.isfinite(seconds).all():
            with np.errstate(divide="ignore", invalid="ignore"):
                derived = covers * steps.column(work) / (steps.column(rate) * factor)
            seconds = np.where(np.isfinite(seconds), seconds, derived)
    return np.where(np.isfinite(seconds) & (seconds > 0), seconds, np.nan)


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Rows of the measured segment of one run."""

    index: NDArray[np.int64]
    """Numbers of the steps, (rows,)."""
    work: FloatArray
    """Steps of each row, weighted where the batch grows; (rows,)."""
    steps: FloatArray
    own: FloatArray
    distance: FloatArray
    """Weighted steps from the row before to this one, rows that are missing included."""
    ended_at: FloatArray
    """By the clock that the rows tell; NaN where they tell none."""
    dates: str
    """Name of that clock."""
    resolution: float
    """Seconds to which it is printed."""
    interrupted: np.ndarray
    announced: NDArray[np.int8]
    measured_from: int
    pace: float
    """Measured seconds of one weighted step."""

    @classmethod
    def of(cls, steps: Steps, selection: Selected, own: FloatArray, evidence: Evidence) -> _Rows | None:
        covers, of_run, of_selection = steps.column("covers"), _stretch(selection.of_run), _stretch(selection.rows)
        selected = (steps.column("segment")[of_run] == selection.segment) & (covers[of_run] > 0)
        inside = selection.of_run if selected.all() else selection.of_run[selected]
        picked = _stretch(inside)
        weight = _weights(steps)
        measured = own[of_selection]
        timed = np.isfinite(measured)
        amount = float((covers[of_selection] * weight[of_selection])[timed].sum())
        if not amount or not len(inside):
            return None
        index, counted = steps.column("index")[picked], covers[picked].astype(np.float64)
        ended_at = steps.column("ended_at")[picked]
        if elapsed := evidence.elapsed:
            ended_at = clocks.at(elapsed.seconds, index)
        distance = np.maximum(np.diff(index, prepend=index[0] - counted[0]), counted)
        rows = cls(
            index=index,
            work=counted * weight[picked],
            steps=counted,
            own=own[picked],
            distance=distance * weight[picked],
            ended_at=ended_at,
            dates=elapsed.name if elapsed else DATES,
            resolution=elapsed.resolution if elapsed else clocks.resolution_of(ended_at[np.isfinite(ended_at)]),
            interrupted=steps.column("interrupted_by")[picked],
            announced=_announced(steps.column("line")[picked], evidence.announced),
            measured_from=int(np.searchsorted(inside, selection.rows[0])) if len(selection.rows) else 0,
            pace=float(measured[timed].sum()) / amount,
        )
        return rows._grouped(-(-len(inside) // LONGEST)) if len(inside) > LONGEST else rows

    def _grouped(self, size: int) -> _Rows:
        """Sums of every `size` neighbouring rows: of millions, the audit looks at a hundred thousand."""
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

    def against(self, clock: LogClock) -> AuditFinding | None:
        """Return one clock that the log states for the whole run."""
        start = 0 if clock.after_step is None else int(np.searchsorted(self.index, clock.after_step, side="right"))
        of_rows = float(self.steps[start:].sum())
        if not of_rows:
            return None
        steps = clock.steps or of_rows
        expected = self.pace * float(self.work[start:].sum()) * steps / of_rows
        seconds = clock.seconds - sum(spent for what, spent in clock.spent if what in NAMES.values())
        if expected <= 0 or seconds <= 0:
            return None
        taken_out = tuple((what, spent) for what, spent in clock.spent if what in NAMES.values())
        explained = [(what, spent) for what, spent in clock.spent if what not in NAMES.values()]
        unusual = self._unusual_rows(start)
        explained += _beyond(taken_out, unusual) if clock.in_rows else unusual
        explained += [] if clock.tells_all else self._pauses()
        if clock.first is not None:
            explained.append(("start-up", clock.first[1] - self._pace_of_steps() * clock.first[0]))
        if clock.last is not None:
            after = clock.seconds - clock.last[1] - self._pace_of_steps() * max(0.0, steps - clock.last[0])
            explained.append(("after the last row", after))
            return self._finding(clock, (steps, of_rows), seconds, expected, explained, taken_out)
        untimed = steps - float(self.steps[start:][np.isfinite(self.own[start:])].sum())
        if 0 < untimed <= UNTIMED_SHARE * steps:
            left = seconds - expected - sum(spent for _, spent in explained)
            explained += [("start-up", left)] if left > 0 else []
        return self._finding(clock, (steps, of_rows), seconds, expected, explained, taken_out)

    def _pace_of_steps(self) -> float:
        """Measured seconds of a step, averaged over the work of all rows."""
        return self.pace * float(self.work.sum()) / float(self.steps.sum())

    def _finding(
        self,
        clock: LogClock,
        steps: tuple[float, float],
        seconds: float,
        expected: float,
        explained: Sequence[tuple[str, float]],
        taken_out: tuple[tuple[str, float], ...],
    ) -> AuditFinding:
        return AuditFinding(
            clock=clock.name,
            steps=steps[0],
            rows_steps=steps[1],
            seconds=seconds,
            expected=expected,
            explained=_summed(explained, seconds),
            taken_out=taken_out,
            slack=clock.resolution,
            is_certain=clock.is_certain,
        )

    def against_dates(self) -> AuditFinding | None:
        """Return the dates of the rows, from the first to the last that has one."""
        dated = np.flatnonzero(np.isfinite(self.ended_at))
        if len(dated) < FEWEST_ROWS or (np.diff(self.ended_at[dated]) < 0).any():
            return None
        first, last = int(dated[0]), int(dated[-1])
        after = slice(first + 1, last + 1)
        seconds = float(self.ended_at[last] - self.ended_at[first])
        expected = self.pace * float(self.distance[after].sum())
        if seconds <= 0:
            return None
        gaps, resolution = np.diff(self.ended_at[dated]), self.resolution
        steady = _is_steady(gaps, resolution)
        own = self.pace * median(self.work[after])
        in_lumps = not steady and gaps[gaps <= 2 * max(own, resolution)].sum() < IN_LUMPS * expected
        return AuditFinding(
            clock=self.dates,
            steps=float(self.steps[after].sum()),
            rows_steps=float(self.steps[after].sum()),
            seconds=seconds,
            expected=expected,
            explained=_summed([*self._unusual_rows(start=first + 1), *([] if in_lumps else self._pauses())], seconds),
            taken_out=(),
            slack=max(float(gaps.max()) if in_lumps else 0.0, 2 * resolution),
            is_certain=self.dates == DATES,
            is_copied=bool(in_lumps and seconds < expected / 2),
        )

    def _unusual_rows(self, start: int = 0) -> list[tuple[str, float]]:
        """Return the seconds above the measured pace in rows that are not measured: warm-up, and what holds an
        interruption.
        """
        excess = np.nan_to_num(self.own - self.pace * self.work)
        position = np.arange(len(excess))
        warm_up = (position >= start) & (position < self.measured_from)
        found = [("start-up", float(excess[warm_up].sum()))]
        for code, name in enumerate(INTERRUPTIONS):
            rows = (self.interrupted == code) & (position >= max(start, self.measured_from))
            if name and rows.any():
                found.append((NAMES[name], float(excess[rows].sum())))
        return [(what, seconds) for what, seconds in found if seconds]

    def _pauses(self) -> list[tuple[str, float]]:
        """Time between the dates of two rows that the later row does not count."""
        if not np.isfinite(self.ended_at).any():
            return []
        gap = np.diff(self.ended_at, prepend=np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            own = self.own * self.distance / self.work
            excess = gap - own
            known = np.isfinite(excess)
            if not known.any():
                return []
            usual = max(0.0, median((excess / own)[known]))
            usual = usual if usual > WARNED else 0.0
            single = known & (excess > np.maximum(2 * self.resolution, PAUSE_SHARE * own) + usual * own)
        pauses = [("pauses between rows", float((excess - usual * own)[single & (self.announced == 0)].sum()))]
        for code, kind in enumerate(INTERRUPTIONS):
            if kind:
                pauses.append((NAMES[kind], float(excess[known & (self.announced == code) & (excess > 0)].sum())))
        return [(what, seconds) for what, seconds in pauses if seconds]


def _beyond(stated: Sequence[tuple[str, float]], of_rows: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return what rows took above the measured pace, less the seconds of it that the log itself states."""
    known = dict(stated)
    return [
        (f"rows with {what}, beyond the {_seconds(known[what])} that the log states for it", seconds - known[what])
        if what in known
        else (what, seconds)
        for what, seconds in of_rows
    ]


def _stretch(rows: np.ndarray) -> slice | np.ndarray:
    """Return ascending positions as a slice where none is left out: columns then need no copy."""
    if not len(rows) or int(rows[-1]) - int(rows[0]) + 1 != len(rows):
        return rows
    return slice(int(rows[0]), int(rows[-1]) + 1)


def _weights(steps: Steps) -> FloatArray:
    """Work of a step, relative: tokens or samples where they are known of every row; (rows,)."""
    for name in ("tokens", "samples"):
        if steps.has(name):
            amount = steps.column(name)
            if amount.strides == (0,):  # one value for all
                break
            if np.isfinite(amount).all() and (amount > 0).all():
                return np.asarray(amount / amount[-1])
    return repeated(1.0, len(steps), np.float64)


def _announced(lines: np.ndarray, announced: Mapping[int, str]) -> NDArray[np.int8]:
    """Return the interruption announced before each row, as positions in INTERRUPTIONS, shape (rows,)."""
    kinds = np.zeros(len(lines), np.int8)
    if announced:
        places = np.searchsorted(lines, list(announced))
        inside = places < len(lines)
        codes = np.array([INTERRUPTIONS.index(kind) for kind in announced.values()], np.int8)
        kinds[places[inside]] = codes[inside]
    return kinds


def _is_steady(gaps: FloatArray, resolution: float) -> bool:
    """Return True if rows were written at a steady pace, as a training does and a copy hardly."""
    ordered = np.sort(gaps)
    low, middle, high = (ordered[len(ordered) * quarter // 4] for quarter in (1, 2, 3))
    return bool(middle >= resolution and high - low <= max(STEADY * middle, resolution))


def _summed(explained: Sequence[tuple[str, float]], clock: float) -> tuple[tuple[str, float], ...]:
    """Return each reason once, without those too small to matter compared with the clock."""
    sums: dict[str, float] = defaultdict(float)
    for what, seconds in explained:
        sums[what] += seconds
    return tuple((what, seconds) for what, seconds in sums.items() if abs(seconds) > TOLD / 5 * clock)


def record(found: Sequence[AuditFinding], result: Result) -> Audit | None:
    """Return the outcome for the result: the clock that the log states if it states one, else the dates of the rows."""
    found = [finding for finding in found if not finding.is_copied]
    if not found:
        return None
    name = found[0].clock
    runs = [finding for finding in found if finding.clock == name]
    steps, seconds = sum(run.steps for run in runs), sum(run.seconds for run in runs)
    amount, unit = _amount(result)
    reasons: dict[str, float] = defaultdict(float)
    for run in runs:
        for what, spent in run.taken_out:
            reasons[f"{what}, {SUBTRACTED}"] += spent
        for what, spent in run.explained:
            reasons[what] += spent
    return Audit(
        clock=name,
        work=steps * amount,
        work_unit=unit,
        clock_seconds=seconds,
        ratio=seconds / sum(run.expected for run in runs),
        explained_by=tuple(_said(what, spent) for what, spent in reasons.items()),
        unexplained_seconds=sum(run.unexplained for run in runs),
    )


def _amount(result: Result) -> tuple[float, Literal["tokens", "samples", "steps"]]:
    config = result.training_config
    if result.performance_metrics.tokens_per_step:
        return result.performance_metrics.tokens_per_step, "tokens"
    return (config.global_batch_size, "samples") if config.global_batch_size else (1.0, "steps")


def _said(what: str, seconds: float) -> str:
    """`start-up 212 s`; the reason of what was taken out follows the seconds.

    >>> _said("start-up", 212.3), _said("evaluation, subtracted from the clock", 31.0), _said("start-up", -7.34)
    ('start-up 212 s', 'evaluation 31 s, subtracted from the clock', 'first rows 7.3 s faster than the measured pace')
    """
    if seconds < 0:
        return f"{FASTER.get(what, what)} {_seconds(-seconds)} faster than the measured pace"
    if what.endswith(f", {SUBTRACTED}"):
        return f"{what.removesuffix(f', {SUBTRACTED}')} {_seconds(seconds)}, {SUBTRACTED}"
    return f"{what} {_seconds(seconds)}"


def _seconds(seconds: float) -> str:
    return f"{count(seconds) if abs(seconds) >= 10 else significant(seconds, 2)} s"


def _unlike(one: float, other: float) -> tuple[str, str]:
    """Return two numbers of seconds that differ, with as many digits as show it.

    >>> _unlike(110.2, 110.4), _unlike(100, 110)
    (('110.2 s', '110.4 s'), ('100 s', '110 s'))
    """
    for decimals in range(4):
        texts = (f"{one:,.{decimals}f} s", f"{other:,.{decimals}f} s")
        if texts[0] != texts[1] and (decimals or min(abs(one), abs(other)) >= 10):
            return texts
    return _seconds(one), _seconds(other)


def contradictions(found: Sequence[AuditFinding]) -> list[str]:
    """Return a sentence for every clock that leaves too much of the headline unexplained to be silent about."""
    return [_contradiction(finding) for finding in found if finding.contradiction > WARNED]


def refusals(found: Sequence[AuditFinding]) -> list[str]:
    """Return a sentence for every clock that contradicts the headline so much that no figure can be trusted."""
    return [
        _contradiction(finding)
        for finding in found
        if finding.contradiction > REFUSED and finding.is_certain and not finding.is_copied
        if not (finding.clock == DATES and finding.unexplained < 0)
    ]


def _contradiction(finding: AuditFinding) -> str:
    if finding.is_copied:
        return (
            f"the lines of steps that took {_seconds(finding.expected)} are dated within {_seconds(finding.seconds)}: "
            "the dates are those of copying the log, so the figures are not checked against them"
        )
    if finding.rows_steps > finding.steps * (1 + WARNED):
        return f"the rows add up to {count(finding.rows_steps)} steps, but the log itself counts {count(finding.steps)}"
    known = " and ".join(_said(what, seconds) for what, seconds in (*finding.taken_out, *finding.explained))
    left = finding.seconds - sum(seconds for _, seconds in finding.explained)
    taken, left_over = _unlike(finding.expected, left)
    return (
        f"{count(finding.steps)} steps take {taken} at the measured pace, but {left_over} by {finding.clock}"
        + (f", which holds {known} as well" if known else "")
        + f": {_seconds(abs(finding.unexplained))} ({percent(finding.contradiction, 0)}) are unexplained"
    )


def pooled(audits: Sequence[Audit | None]) -> Audit | None:
    """Return the audit of pooled repetitions: sums of work and clock. None where one of them has none, or of another
    clock.
    """
    known = [audit for audit in audits if audit is not None]
    if len(known) < len(audits) or len({(audit.clock, audit.work_unit) for audit in known}) != 1:
        return None
    clock = sum(audit.clock_seconds or 0.0 for audit in known)
    expected = sum((audit.clock_seconds or 0.0) / (audit.ratio or 1.0) for audit in known)
    return known[0].model_copy(
        update={
            "work": sum(audit.work or 0.0 for audit in known),
            "clock_seconds": clock,
            "ratio": clock / expected if expected else None,
            "explained_by": tuple(
                f"run {number}: {sentence}" for number, audit in enumerate(known, 1) for sentence in audit.explained_by
            ),
            "unexplained_seconds": sum(audit.unexplained_seconds or 0.0 for audit in known),
        }
    )


def reason(audit: Audit | None) -> str | None:
    """Return a phrase that explains a gap of more than WARNED between headline and the log's own clock, else None."""
    if audit is None or audit.ratio is None or abs(audit.ratio - 1) <= WARNED:
        return None
    side = "above" if audit.ratio > 1 else "below"
    why = ", ".join(audit.explained_by) or "unexplained"
    return f"{percent(abs(audit.ratio - 1), 1)} {side} the log's own clock: {why}"
