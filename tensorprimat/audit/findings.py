"""The closing audit of a log: the measured pace of its rows, compared with the clocks that the log itself holds.

A headline says how long a step takes. A log also says how long many steps took together: by the timestamps of its rows,
by run_start and run_stop, by train_runtime. `findings` multiplies the measured pace by the steps between two readings
of such a clock, and names the other work that the clock includes: start-up, evaluation, checkpoints, pauses between
rows. The rest is a contradiction; audit/verdict decides what it means for the figures.

Two limits of dates: many rows with the same date were written by a buffer or copied, so their dates say nothing about
single rows. A program that copied the lines may have dated them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from tensorprimat.audit.evidence import DATES, LogClock
from tensorprimat.audit.rows import NAMES, START_UP, AuditRows, Reason, own_seconds, rows_of
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import short_seconds
from tensorprimat.core.result import Result
from tensorprimat.core.settings import flag
from tensorprimat.core.steady import Selection, median
from tensorprimat.core.steps import FloatArray
from tensorprimat.core.terms import WORK_OF_RATES

NAMED_SHARE = 0.002  # of the clock; a reason for less is not named
FEWEST_DATED_ROWS = 8  # with dates; with fewer, one slow print or pause may decide, and they refuse nothing
FEWEST_DATED = 4  # rows with dates: the median of three gaps is not the longest
FEWEST_STEADY = 3  # rows with dates at a steady pace: two equal gaps are no pause
MOST_BACK = 0.02  # of the gaps between rows: if more are negative, the cause is not a clock that was set back
_LEAST_SECONDS = 1.0  # time between two readings that printing and stopping may take
LEAST_OF_STEADY = 0.1  # the same in addition to rounding, for dates of rows that were written at a steady pace
IN_LUMPS = 0.4  # of the expected time: if short gaps add up to less, rows were written in batches that share a date
_STEADY = 0.2  # of the median gap: the middle half of all gaps lies within it
UNTIMED_SHARE = 0.20  # of the steps: at most so many may precede the first row with a time
AFTER_LAST_ROW = "after the last row"


@dataclass(frozen=True, kw_only=True)
class AuditFinding:
    """The comparison of one clock of a run with the measured pace."""

    clock: str
    """Name of the clock, for a sentence."""
    steps: float
    """Steps between the two readings of the clock."""
    rows_steps: float
    """Steps that the rows add up to; differs from `steps` only where the log counts steps itself."""
    seconds: float
    """Time of the clock, without the evaluation and checkpoints that the log states."""
    expected: float
    """Seconds of the same steps at the measured pace."""
    explained: tuple[Reason, ...]
    """Time that the clock holds in addition to `expected`."""
    taken_out: tuple[Reason, ...]
    """Time that the log states and that `seconds` leaves out."""
    slack: float
    """Seconds that rounding of the clock can hide."""
    least: float | None = None
    """Seconds that rounding and printing can hide where less is known to be enough for a warning, else None."""
    rounded: float = 0.0
    """Seconds of the measured pace that rounding of the printed step times can hide."""
    is_certain: bool = True
    """False for a clock that may run longer than the training or lag, such as a logger's: it only warns."""
    is_copied: bool = False
    """True if a program dated the lines when it copied them, so that the dates do not time the training."""

    @property
    def ratio(self) -> float:
        """Return the rate of the headline over the rate by the clock."""
        return self.seconds / self.expected

    @property
    def unexplained(self) -> float:
        """Return the unexplained seconds beyond rounding; negative where the clock counts less than the rows."""
        left = self.seconds - self.expected - sum(seconds for _, seconds in self.explained)
        hidden = max(self.slack, _LEAST_SECONDS) if self.least is None else self.least
        return float(np.sign(left)) * max(0.0, abs(left) - hidden - self.rounded)

    @property
    def contradiction(self) -> float:
        """Return the unexplained share of the clock or of the expected time, whichever is longer.

        The clock counts without its explained part: a night between two trainings must not hide a contradiction.
        Where the rows cover more steps than the log counts, at least the share of the steps in excess.
        """
        known = sum(seconds for _, seconds in self.explained if seconds > 0)
        return max(abs(self.unexplained) / max(self.seconds - known, self.expected), 1 - self.steps / self.rows_steps)

    @property
    def refusable(self) -> float:
        """Return the contradiction beyond the time that printing and stopping may take in any log."""
        return replace(self, least=None).contradiction


def findings(result: Result, selections: Sequence[Selection]) -> list[AuditFinding]:
    """Compare every clock of every run with the measured pace. Empty for a log without a clock or a measured row."""
    steps, config = result.steps, result.training_config
    batch, length = config.global_batch_size, config.sequence_length
    if batch and not steps.has("samples"):
        steps = steps.replace(samples=float(batch))
    if batch and length and not steps.has("tokens"):
        steps = steps.replace(tokens=steps.column("samples") * length)
    own, rounded = own_seconds(steps, config.num_gpus), result.provenance.rounding or 0.0
    stated, columns, found = result.evidence.elapsed, result.evidence.factors, []
    by_rates = not steps.has("seconds") or (columns is not None and "seconds" not in columns)
    known = [*([stated] if stated else []), result.evidence.dates]
    for selection in selections:
        for segment, elapsed in product(selection.measured_segments, known):
            rows = rows_of(steps, selection, own, result.evidence, segment=segment, elapsed=elapsed)
            if rows is None:
                continue
            if segment == selection.segment and elapsed is known[0]:
                of_run = [clock for clock in result.evidence.clocks if clock.run == selection.run]
                found += [finding for clock in of_run if (finding := _against_clock(rows, clock))]
            if dated := _against_dates(rows, by_rates=by_rates):
                found.append(dated)
    found = [replace(finding, rounded=rounded * finding.expected) for finding in found]
    return sorted(found, key=lambda finding: not finding.is_certain)


def unchecked(result: Result) -> Notice | None:
    """Return a notice on dated rows whose rate gives no time, because a setting is unknown."""
    steps, config = result.steps, result.training_config
    rate = next(filter(steps.has, WORK_OF_RATES), "")
    work, per_gpu = WORK_OF_RATES.get(rate, ("", False))
    dated = np.isfinite(steps.column("ended_at"))
    if not rate or np.isfinite(steps.column("seconds")).any() or dated.sum() < FEWEST_DATED_ROWS:
        return None
    needed = [] if steps.has(work) else ["global_batch_size", *(["sequence_length"] if work == "tokens" else [])]
    needed += ["num_gpus"] if per_gpu else []
    unknown = [flag(name) for name in needed if not getattr(config, name)]
    return Notice("rates_unchecked", "steps", flags=unknown, remedies=unknown) if unknown else None


def _against_clock(rows: AuditRows, clock: LogClock) -> AuditFinding | None:
    """Compare rows with a time that the log states for the whole run; None where either is zero."""
    start = 0 if clock.after_step is None else int(np.searchsorted(rows.index, clock.after_step, side="right"))
    of_rows = float(rows.steps[start:].sum())
    if not of_rows:
        return None
    steps = clock.steps or of_rows
    expected = rows.pace * float(rows.work[start:].sum()) * steps / of_rows
    taken_out = tuple((what, spent) for what, spent in clock.spent if what in NAMES.values())
    seconds = clock.seconds - sum(spent for _, spent in taken_out)
    if expected <= 0 or seconds <= 0:
        return None
    explained = [(what, spent) for what, spent in clock.spent if what not in NAMES.values()]
    unusual = rows.unusual(start)
    explained += _beyond(taken_out, unusual) if clock.in_rows else unusual
    explained += [] if clock.has_every_pause else rows.pauses()
    if clock.first is not None:
        explained.append((START_UP, clock.first[1] - rows.pace_of_steps * clock.first[0]))
    if clock.last is not None:
        after = clock.seconds - clock.last[1] - rows.pace_of_steps * max(0.0, steps - clock.last[0])
        explained.append((AFTER_LAST_ROW, after))
    else:
        untimed = steps - float(rows.steps[start:][np.isfinite(rows.own[start:])].sum())
        left = seconds - expected - sum(spent for _, spent in explained)
        if 0 < untimed <= UNTIMED_SHARE * steps and left > 0:
            explained.append((START_UP, left))
    return AuditFinding(
        clock=clock.name,
        steps=steps,
        rows_steps=of_rows,
        seconds=seconds,
        expected=expected,
        explained=_summed(explained, seconds),
        taken_out=taken_out,
        slack=clock.resolution,
        is_certain=clock.is_certain,
    )


def _against_dates(rows: AuditRows, *, by_rates: bool) -> AuditFinding | None:
    """Compare rows with their dates, from the first dated row to the last, without the few gaps at which a clock was
    set back.

    by_rates: no row states a time, so that only rates and this clock say how long a step takes.
    None for too few rows, and for dates that go back more often. One date that goes back among few leaves the others
    uncertain.
    """
    dated = np.flatnonzero(np.isfinite(rows.ended_at))
    gaps, resolution = np.diff(rows.ended_at[dated]), rows.resolution
    forward = gaps >= 0
    back, usual = int((~forward).sum()), MOST_BACK * len(gaps)
    is_steady = bool(forward.all()) and _is_steady(gaps, resolution) if len(dated) >= FEWEST_STEADY else False
    if len(dated) < (FEWEST_STEADY if is_steady else FEWEST_DATED) or back > max(1.0, usual):
        return None
    distances = np.diff(np.cumsum(rows.distance)[dated])
    first, last = int(dated[0]), int(dated[-1])
    after = slice(first + 1, last + 1)
    seconds = float(gaps[forward].sum())
    expected = rows.pace * float(distances[forward].sum())
    if seconds <= 0 or expected <= 0:
        return None
    steps = float(np.diff(np.cumsum(rows.steps)[dated])[forward].sum())
    own, gaps = rows.pace * median(rows.work[after]), gaps[forward]
    decides = by_rates and is_steady and seconds > expected  # a logger that lags is no steady clock
    close = gaps[gaps <= 2 * max(own, resolution)]
    in_lumps = not _is_steady(gaps, resolution) and close.sum() < IN_LUMPS * expected
    return AuditFinding(
        clock=rows.dates,
        steps=steps,
        rows_steps=steps,
        seconds=seconds,
        expected=expected,
        explained=_summed([*rows.unusual(start=first + 1), *([] if in_lumps else rows.pauses())], seconds),
        taken_out=(),
        slack=max(float(gaps.max()) if in_lumps else 0.0, 2 * resolution),
        least=resolution + LEAST_OF_STEADY if is_steady else None,
        is_certain=(rows.dates == DATES or decides) and len(dated) >= FEWEST_DATED_ROWS and back <= usual,
        is_copied=bool(in_lumps and seconds < expected / 2),
    )


def _beyond(stated: Sequence[Reason], of_rows: Sequence[Reason]) -> list[Reason]:
    """Return the time of unusual rows above the measured pace, less the part of it that the log itself states."""
    known = dict(stated)
    return [
        (f"rows with {what}, beyond the {short_seconds(known[what])} that the log states for it", seconds - known[what])
        if what in known
        else (what, seconds)
        for what, seconds in of_rows
    ]


def _is_steady(gaps: FloatArray, resolution: float) -> bool:
    """Return True if rows were written at a steady pace, as a training writes them and a copy hardly does."""
    ordered = np.sort(gaps)
    low, middle, high = (ordered[len(ordered) * quarter // 4] for quarter in (1, 2, 3))
    return bool(middle >= resolution and high - low <= max(_STEADY * middle, resolution))


def _summed(explained: Sequence[Reason], clock: float) -> tuple[Reason, ...]:
    """Return each reason once, with the sum of its seconds, if it explains more than NAMED_SHARE of the clock."""
    return tuple((what, seconds) for what, seconds in summed_up(explained) if abs(seconds) > NAMED_SHARE * clock)


def summed_up(reasons: Iterable[Reason]) -> list[Reason]:
    """Return each reason once, with the sum of its seconds."""
    sums: dict[str, float] = defaultdict(float)
    for what, seconds in reasons:
        sums[what] += seconds
    return list(sums.items())
