"""Figures of a Trainer's whole run: its summary, and the clock that the audit compares with the rows.

`train_runtime` is the time since this process began to train. The rates of the summary count all steps of the schedule
(transformers/trainer.py before 5.19, speed_metrics), also those before a resume and those after an early stop; 5.19 and
later count only those of this process. Rate × runtime shows which. Checked on trainings with 4.46.3 and 5.23.0 that
were resumed and stopped early (2026-11-23).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tensorprimat.audit.evidence import Evidence, LogClock
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import count
from tensorprimat.core.steps import Steps
from tensorprimat.logs import fields
from tensorprimat.logs.clocks import Moment
from tensorprimat.logs.fields import CLOCK_RESOLUTION
from tensorprimat.logs.format import Reading
from tensorprimat.logs.huggingface.content import Content
from tensorprimat.logs.huggingface.rows import (
    RUNTIME,
    SAMPLES_RATE,
    TOKENS_SEEN,
    Row,
    first_of,
    half_digit_of_trainer,
    moment_of_row,
    position_of,
)
from tensorprimat.logs.huggingface.steps import numbers_of_rows
from tensorprimat.logs.metric_columns import MetricColumns
from tensorprimat.logs.metric_names import TOTALS
from tensorprimat.logs.metric_steps import EPOCH, TOTAL_TOKENS, Merged
from tensorprimat.logs.progress import ClockReading, resumed_before

COUNT_RESOLUTION = 0.01  # relative rounding of train_steps_per_second; with a coarser one, steps cannot be counted
_ROUNDED_SAMPLES = 0.01  # most relative rounding of the samples of a step
_ROUNDED_RATE = 0.001  # transformers rounds train_steps_per_second to it, however many digits it prints
SMALLEST_MEAN = 0.85  # of the smallest loss of a row: a mean of all steps is no smaller
_COVERED = 0.9  # of the epochs must lie before the last row
NEAR = 0.1  # share of the steps since a resume: mean loss and bar agree if they show it at most so far apart
MOST_RESUMES = 0.1  # of the rows; more rows that repeat a number are those of several ranks
_UNTIMED = 0.5  # share of the time of the missing steps; if less is left after the last reading, none of them ran
SAME_RUNTIME = 1.2  # times the shortest of the ranks
FEWEST_CLOCKED = 3  # rows with a clock; with fewer nothing was measured
_UNCERTAIN = ("the mean loss", "a repeated step")
"""Signs of a resume that do not show its step exactly."""


def of_table(columns: MetricColumns, found: Merged, reading: Reading) -> Content | None:
    """Return the rows and the summary of a Trainer in a table of metrics; None for a table without its runtime."""
    if RUNTIME not in columns.summary:
        return None
    epochs, losses, tokens = (
        [value if value == value else None for value in found.column_of(name).tolist()]
        for name in (EPOCH, "loss", TOTAL_TOKENS[0])
    )
    dated = zip(*(column.tolist() for column in found.clock), strict=True)
    moments = [Moment(*moment) if moment[0] == moment[0] else None for moment in dated]
    rows = [
        Row(line=None, step=step, moment=moment, loss=loss, epoch=epoch, tokens=seen)
        for step, moment, loss, epoch, seen in zip(found.steps.tolist(), moments, losses, epochs, tokens, strict=True)
        if loss is not None
    ]
    end = {"epoch": str(max(known))} if (known := [row.epoch for row in rows if row.epoch]) else {}
    return Content(rows=rows, summaries=[{**columns.summary, **end, **columns.end_of_summary()}], reading=reading)


def add_summary(content: Content, reading: Reading) -> None:
    """Add the Trainer's summary to a table that has steps of its own: rates, the audit's clock and warnings."""
    count_from_start(content)
    span = span_of(content)
    timed = reading.steps.has("seconds")
    reading.reported |= reported_by(content, span)
    reading.steps = with_samples(content, reading)
    clocks = trainer_evidence(content, span, trained_steps(content, span)).clocks
    reading.evidence = replace(reading.evidence, clocks=(*reading.evidence.clocks, *clocks))
    if counts_others := warning_of(content, span, timed=timed):
        reading.warnings.append(counts_others)


def count_from_start(content: Content) -> bool:
    """Give the rows that state moments the clock of the process that wrote the summary: its runtime ends with it.

    Rows of earlier processes have none. Return False unless moments are the only clock of the rows.
    """
    summary, rows = _summary(content), content.rows
    if len(rows) < 2 or any(row.clock or row.moment is None or row.step is None for row in rows):
        return False
    end, runtime = moment_of_row(summary), fields.positive(summary.get(RUNTIME))
    for row in rows:
        if row.moment is not None and end is not None and runtime is not None:
            since = row.moment.seconds - end.seconds + runtime
            row.clock = (since, row.moment.resolution + end.resolution) if since > 0 else None
    return True


def with_samples(content: Content, reading: Reading) -> Steps:
    """Return the steps of a reading with the samples of one, as the two rates of the summary give them.

    Both rates count the same steps in the same time, so their ratio holds for a resumed training, too.
    """
    summary, steps = _summary(content), reading.steps
    samples, pace = (fields.positive(summary.get(name)) for name in (SAMPLES_RATE, "train_steps_per_second"))
    is_known = steps.has("samples") or "global_batch_size" in reading.training_config
    if not samples or not pace or not steps.has("seconds") or is_known:
        return steps
    mean = samples / pace
    off = max(half_digit_of_trainer(summary["train_steps_per_second"]), _ROUNDED_RATE / 2) / pace
    off += max(half_digit_of_trainer(summary[SAMPLES_RATE]), _ROUNDED_RATE / 2) / samples
    whole = round(mean)
    if off > _ROUNDED_SAMPLES:
        return steps
    return steps.replace(samples=float(whole if abs(mean - whole) <= off * mean else mean))


def _summary(content: Content) -> Mapping[str, str]:
    """Return the summary of the middle rank, by its runtime; empty without any."""
    by_runtime = sorted(content.summaries, key=lambda summary: fields.positive(summary.get(RUNTIME)) or 0.0)
    return by_runtime[(len(by_runtime) - 1) // 2] if by_runtime else {}


@dataclass(frozen=True, kw_only=True)
class Span:
    """The steps that the clock of the last training timed: a resumed one numbers its steps on from the checkpoint's."""

    start: int = 0
    """Number of the step before the first one."""
    seconds: float = 0.0
    """Reading of the clock there."""
    end: int | None = None
    """Number of the last step; None where no line shows it."""
    shown_by: str = "a line"
    """The sign of a resume: a line, the bar, the count of steps, the clock, or one of _UNCERTAIN."""

    @property
    def steps(self) -> int | None:
        """Return the number of steps."""
        return None if self.end is None else self.end - self.start


def span_of(content: Content) -> Span:
    """Return the steps that the last training's clock timed.

    Where no line states a resume, it shows in the summary, which counts fewer steps than the last one's number; or in
    the clock: its first steps are too many for the time they took; or in train_loss, for which transformers before 5.19
    divides the losses since the resume by all steps.
    """
    if not _is_one_training(content):
        return Span()
    first, last = _first_and_last_reading(content)
    end = _end(content, first, last)
    if content.resumed_at is not None:
        return Span(start=content.resumed_at, end=end)
    low, high = _counted(content)
    if end is not None and 0 < high < end:
        return Span(start=end - round((low + high) / 2), end=end, shown_by="the count of steps")
    is_early = resumed_before(first, last)
    share = _share_of_losses(content)
    end = end or (_precise_count(content) if share else None)
    before = round(end * (1 - share)) if end is not None and share else None
    near = before is not None and abs(first.steps - 1 - before) <= NEAR * (last.steps - before) + 1
    if content.first_bar and (is_early or (near and first.steps < last.steps)):
        return Span(start=first.steps - 1, end=end, shown_by="the bar")  # it is drawn after the first step
    if is_early:
        return Span(start=first.steps, seconds=first.seconds, end=end, shown_by="the clock")
    if before is not None:
        return Span(start=before, end=end, shown_by="the mean loss")
    if repeated := _start_by_numbers(content):
        return Span(start=repeated, end=end, shown_by="a repeated step")
    return Span(end=end)


def _start_by_numbers(content: Content) -> int | None:
    """Return about the step before the rows of the last process, whose first one goes back or repeats a number."""
    steps = [row.step for row in content.rows if row.step is not None]
    grown = [after - before for before, after in pairwise(steps)]
    back = [place for place, growth in enumerate(grown, start=1) if growth <= 0]
    if not back or len(steps) < len(content.rows) or len(back) > MOST_RESUMES * len(steps):
        return None
    return max(0, steps[back[-1]] - min(growth for growth in grown if growth > 0)) or None


def _first_and_last_reading(content: Content) -> tuple[ClockReading, ClockReading]:
    """Return the first and the last reading of the clock: of the bar, or of the rows."""
    if content.first_bar and content.bar:
        return ClockReading(*content.first_bar), ClockReading(*content.bar)
    readings = [ClockReading(row.step, row.clock[0]) for row in content.rows if row.step is not None and row.clock]
    grown = ((after.steps - before.steps, after.seconds - before.seconds) for before, after in pairwise(readings))
    back = [place for place, growth in enumerate(grown, start=1) if min(growth) < 0]
    readings = readings[back[-1] :] if back else readings
    return (readings[0], readings[-1]) if readings else (ClockReading(0, 0.0), ClockReading(0, 0.0))


def _end(content: Content, first: ClockReading, last: ClockReading) -> int | None:
    """Return the number of the last step: the summary's, or that of the last reading of the clock.

    The last reading is not that of the last step if the runtime leaves time for the other steps of the schedule.
    """
    summary = _summary(content)
    if step := position_of(summary):
        return step
    planned, runtime = _planned(content), fields.positive(summary.get(RUNTIME))
    if not last.steps or not planned or runtime is None or planned <= last.steps:
        return last.steps or None
    steps, seconds = last.steps - first.steps, last.seconds - first.seconds
    if not steps:  # terminals that keep the last drawing alone
        steps, seconds = last
    missing = (planned - last.steps) * seconds / steps
    return last.steps if runtime - last.seconds < _UNTIMED * missing else None


def _planned(content: Content) -> int | None:
    planned = content.reading.training_config.get("max_steps")
    return planned if isinstance(planned, int) else None


def _counted(content: Content) -> tuple[float, float]:
    """Return the fewest and the most steps that the summary's rate can count in its runtime; zeros if it has none."""
    summary = _summary(content)
    rate, runtime = fields.positive(summary.get("train_steps_per_second")), fields.positive(summary.get(RUNTIME))
    if not rate or not runtime:
        return 0.0, 0.0
    half = max(half_digit_of_trainer(summary["train_steps_per_second"]), _ROUNDED_RATE / 2)
    return (rate - half) * runtime - 0.5, (rate + half) * runtime + 0.5


def _precise_count(content: Content) -> int | None:
    """Return the steps that the summary's rate counts, if its rounding leaves little doubt."""
    low, high = _counted(content)
    counted = (low + high) / 2
    is_precise = counted > 0 and _ROUNDED_RATE / 2 + (high - low - 1) / 2 <= COUNT_RESOLUTION * counted + _ROUNDED_RATE
    return round(counted) if is_precise else None


def _share_of_losses(content: Content) -> float | None:
    """Return the summary's mean loss over the last row's loss if it is too small for a mean of all steps, else None.

    Rows that end long before the training leave its later, smaller losses unknown.
    """
    losses = [row.loss for row in content.rows if row.loss and row.loss > 0]
    mean = fields.positive(_summary(content).get("train_loss"))
    end, last = final_epoch(content), content.rows[-1].epoch if content.rows else None
    if not (mean and end and last) or len(losses) < FEWEST_CLOCKED or last < _COVERED * end:
        return None
    return mean / losses[-1] if mean < SMALLEST_MEAN * min(losses) else None


def _is_one_training(content: Content) -> bool:
    """Return True if the summaries are those of the ranks of one training, by their runtimes."""
    runtimes = [fields.positive(summary.get(RUNTIME)) or 0.0 for summary in content.summaries]
    return not runtimes or max(runtimes) <= SAME_RUNTIME * min(runtimes)


def _timed_share(content: Content, span: Span) -> float:
    """Return the share of the summary's steps that its runtime contains; 0 where that is unknown."""
    low, high = _counted(content)
    whole = _planned(content) or round((low + high) / 2)
    counts_whole = low <= whole <= high
    if span.shown_by == "the count of steps" or (not span.start and span.steps is None):
        return 1.0
    if span.shown_by in ("the clock", *_UNCERTAIN):
        return 0.0 if counts_whole or span.shown_by in _UNCERTAIN else 1.0
    if span.steps is not None and low <= span.steps <= high:
        return 1.0
    if span.steps is not None and span.steps < whole and counts_whole:
        return span.steps / whole
    return 0.0 if span.start else 1.0


def trained_steps(content: Content, span: Span) -> float | None:
    """Return the optimizer steps in the runtime: those that the summary counts or the span holds, or those planned."""
    low, high = _counted(content)
    if span.steps is not None and (span.start or not low <= span.steps <= high):
        return float(span.steps)
    if (counted := _precise_count(content)) and _timed_share(content, span) == 1.0:
        return float(counted)
    return float(span.steps or _planned(content) or 0) or None


def final_epoch(content: Content) -> float | None:
    return fields.positive(_summary(content).get("epoch"))


def trainer_evidence(content: Content, span: Span, total: float | None) -> Evidence:
    """Return train_runtime for the audit. The time after the last row with a clock belongs to no row."""
    summary = _summary(content)
    runtime = fields.positive(summary.get(RUNTIME))
    clocked = [row for row in content.rows if row.clock is not None]
    numbered = [row.step for row in content.rows if row.step is not None]
    if not runtime or not total or len(clocked) < FEWEST_CLOCKED or len(content.summaries) > 1:
        return Evidence()  # several ranks have several clocks
    readings = [row.clock[0] for row in clocked if row.clock is not None]
    if numbered != sorted(numbered) or readings != sorted(readings):
        return Evidence()  # rows of several processes, of which the summary times the last
    first, last = clocked[0].clock or (0.0, 0.0), clocked[-1].clock or (0.0, 0.0)
    counted = numbers_of_rows(content.rows, total, final_epoch(content))
    before = span.start if numbered else 0
    places = [(row.step or number) - before for number, row in zip(counted, content.rows, strict=True)]
    timed = [place for place, row in zip(places, content.rows, strict=True) if row.clock is not None]
    timed_rows = [place for place, row in enumerate(content.rows) if row.clock is not None]
    inside = content.rows[timed_rows[0] + 1 : timed_rows[-1] + 1]  # others are start-up, or after the last row
    evaluations = sum(row.evaluation_seconds for row in inside)
    clock = LogClock(
        name=RUNTIME,
        seconds=runtime - span.seconds,
        steps=total,
        after_step=before or None,
        first=(timed[0], first[0] - span.seconds),
        last=(timed[-1], last[0] - span.seconds),
        spent=(("evaluation", evaluations),) if evaluations else (),
        in_rows=True,
        has_every_pause=True,
        resolution=half_digit_of_trainer(summary[RUNTIME]) + first[1] + last[1],
    )
    return Evidence(clocks=(clock,))


def reported_by(content: Content, span: Span) -> dict[str, Any]:
    """Return means over the run: those of the middle rank's summary, or the time by the last row or bar.

    Rates of the summary that count other steps are reduced to the share of the steps that its runtime contains.
    """
    reported: dict[str, Any] = {}
    if counted := _counted_tokens(content, span):
        reported["counted_tokens_per_second"] = counted
    if summary := _summary(content):
        share = _timed_share(content, span)
        for name, target in TOTALS.items():
            of_time = target == "runtime_seconds"
            if (value := fields.positive(summary.get(name))) and (of_time or share):
                reported[target] = value if of_time else value * share
        if span.shown_by in _UNCERTAIN:
            return reported
        steps, runtime = position_of(summary), reported.get("runtime_seconds")
        if steps is None and share == 1.0:
            steps = _precise_count(content)
        if steps and runtime and steps > span.start:
            reported["step_time_seconds"] = (runtime - span.seconds) / (steps - span.start)
        elif span.start and span.shown_by != "the count of steps" and (measured := _pace(content, span)):
            reported["step_time_seconds"] = measured
        return reported
    clocks = [row.clock[0] for row in content.rows if row.clock]
    restarted = any(after < before for before, after in pairwise(clocks))  # the clock began after its first steps
    if not restarted and (measured := _pace(content, span)):
        reported["step_time_seconds"] = measured
    return reported


def _counted_tokens(content: Content, span: Span) -> float | None:
    """Return the tokens that the training counts over its clock; None for a resumed one, which counts earlier ones."""
    if span.start or not _is_one_training(content):
        return None
    summary, last = _summary(content), content.rows[-1] if content.rows else None
    tokens, seconds = fields.positive(first_of(summary, TOKENS_SEEN)), fields.positive(summary.get(RUNTIME))
    if not tokens and last is not None:
        tokens = last.trained_tokens if last.rate and last.trained_tokens else last.tokens
        seconds = last.clock[0] if last.clock and last.clock[1] <= CLOCK_RESOLUTION * last.clock[0] else seconds
    return tokens / seconds if tokens and seconds else None


def warning_of(content: Content, span: Span, *, timed: bool) -> str | None:
    """Return a notice on a summary whose rates count steps that its runtime does not contain; None for any other log.

    timed: the rows have step times.
    """
    share = _timed_share(content, span)
    if not content.summaries or share == 1.0:
        return None
    if span.shown_by in _UNCERTAIN and not timed:
        return Notice("resume_hides_times", "steps", shown_by=span.shown_by, start=span.start)
    if not share:
        return Notice("resume_without_time", "samples_per_second", shown_by=span.shown_by, start=span.start)
    whole = count(_planned(content) or sum(_counted(content)) / 2)
    what = (
        f"resumed at {'about ' * (span.shown_by != 'a line')}step {span.start}"
        if span.start
        else f"stopped at step {span.end}"
    )
    return Notice("resume_corrected", "samples_per_second", what=what, whole=whole, steps=span.steps)


def _pace(content: Content, span: Span) -> float | None:
    """Return the mean seconds of a step since the start, by the last row with a clock or by the bar; None if coarse."""
    last = next((row for row in reversed(content.rows) if row.step and row.clock), None)
    if last is not None and last.step and last.clock and last.clock[1] <= CLOCK_RESOLUTION * last.clock[0]:
        step, seconds = last.step, last.clock[0]
    elif content.rows and content.bar and CLOCK_RESOLUTION * content.bar[1] >= 0.5:
        step, seconds = content.bar
    else:
        return None
    return (seconds - span.seconds) / (step - span.start) if step > span.start else None
