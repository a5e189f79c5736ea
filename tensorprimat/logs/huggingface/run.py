"""Figures of a Trainer's whole run: its summary, and the clock that the audit compares with the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from tensorprimat.core.clocks import Evidence, LogClock
from tensorprimat.core.quantities import count
from tensorprimat.logs import fields
from tensorprimat.logs.fields import CLOCK_RESOLUTION
from tensorprimat.logs.huggingface.content import Content
from tensorprimat.logs.huggingface.rows import RUNTIME, SAMPLES_RATE, half_digit, position_of
from tensorprimat.logs.huggingface.steps import steps_of_a_row
from tensorprimat.logs.progress import ClockReading, resumed_before

COUNT_RESOLUTION = 0.01  # of train_steps_per_second; a coarser rate counts no steps
ROUNDED_RATE = 0.001  # transformers rounds train_steps_per_second to it, however many digits it prints
SMALLEST_MEAN = 0.5  # of the smallest loss of a row: no mean of all steps is so much smaller
COVERED = 0.9  # of the epochs, by the rows
FEWEST_CLOCKED = 3  # rows with a clock; with fewer nothing was measured
REPORTED = {
    SAMPLES_RATE: "samples_per_second",
    "train_tokens_per_second": "tokens_per_second",
    RUNTIME: "runtime_seconds",
}
"""Key of the summary → field of Reported."""


def _summary(content: Content) -> Mapping[str, str] | None:
    """Return the summary of the middle rank, by its runtime."""
    by_runtime = sorted(content.summaries, key=lambda summary: fields.positive(summary.get(RUNTIME)) or 0.0)
    return by_runtime[(len(by_runtime) - 1) // 2] if by_runtime else None


@dataclass(frozen=True, kw_only=True)
class Start:
    """The point from which the clock of a training counts its steps."""

    step: int = 0
    """Steps done before: those of the checkpoint, or also those until the first reading of the clock."""
    seconds: float = 0.0
    """Reading of the clock there."""
    shown_by: Literal["a line", "the clock", "the mean loss"] = "a line"
    """The sign of a resume; only a line states its step."""


def start_of(content: Content) -> Start:
    """Return the start of the last training of the log: a resumed one numbers its steps on, and its clock begins anew.

    Without a line that states it, a resume shows in the clock: its first steps are too many for the time they took; or
    in the summary's train_loss, for which the losses since the resume are divided by all steps.
    """
    if content.resumed_at:
        return Start(step=content.resumed_at)
    first, last = _first_and_last_reading(content)
    if resumed_before(first, last):
        return Start(step=first.steps, seconds=first.seconds, shown_by="the clock")
    total, share = total_steps(content), _share_of_losses(content)
    return Start(step=round(total * (1 - share)), shown_by="the mean loss") if total and share else Start()


def _share_of_losses(content: Content) -> float | None:
    """Return the summary's mean loss over the rows' where it is too small for a mean of all steps; None otherwise.

    Rows that end long before the training leave its later, smaller losses unknown.
    """
    summary, losses = _summary(content), [row.loss for row in content.rows if row.loss and row.loss > 0]
    mean = fields.positive(summary.get("train_loss")) if summary is not None else None
    end, last = final_epoch(content), content.rows[-1].epoch if content.rows else None
    if not (mean and end and last) or len(losses) < FEWEST_CLOCKED or last < COVERED * end:
        return None
    return mean / losses[-1] if mean < SMALLEST_MEAN * min(losses) else None


def _first_and_last_reading(content: Content) -> tuple[ClockReading, ClockReading]:
    """Return the first and the last reading of the clock: of the bar, or of the rows."""
    if content.first_bar and content.bar:
        return ClockReading(*content.first_bar), ClockReading(*content.bar)
    readings = [ClockReading(row.step, row.clock[0]) for row in content.rows if row.step is not None and row.clock]
    for place in range(len(readings) - 1, 0, -1):
        if readings[place].steps < readings[place - 1].steps or readings[place].seconds < readings[place - 1].seconds:
            readings = readings[place:]
            break
    return (readings[0], readings[-1]) if readings else (ClockReading(0, 0.0), ClockReading(0, 0.0))


def total_steps(content: Content) -> float | None:
    """Return the optimizer steps of the whole run: as stated, or the rate of the summary times its runtime."""
    summary = _summary(content)
    if summary is not None:
        rate, runtime = fields.positive(summary.get("train_steps_per_second")), fields.positive(summary.get(RUNTIME))
        # a rate of 0.001 to three decimals is too coarse; four digits count hundreds of steps exactly
        printed = half_digit(summary["train_steps_per_second"]) if rate else 0.0
        if rate and runtime and max(printed, ROUNDED_RATE / 2) <= COUNT_RESOLUTION * rate:
            return float(round(rate * runtime))
        if steps := position_of(summary):
            return float(steps)
    planned = content.config.get("max_steps")
    return float(planned) if isinstance(planned, int) else None


def final_epoch(content: Content) -> float | None:
    summary = _summary(content)
    return fields.positive(summary.get("epoch")) if summary is not None else None


def evidence_of(content: Content, total: float | None) -> Evidence:
    """Return train_runtime for the audit. The time after the last row with a clock belongs to no row."""
    summary = _summary(content)
    runtime = fields.positive(summary.get(RUNTIME)) if summary is not None else None
    clocked = [row for row in content.rows if row.clock is not None]
    numbered = [row.step for row in content.rows if row.step is not None]
    if not runtime or not total or summary is None or len(clocked) < FEWEST_CLOCKED or len(content.summaries) > 1:
        return Evidence()  # several ranks have several clocks
    if numbered != sorted(numbered):
        return Evidence()
    first, last = clocked[0].clock or (0.0, 0.0), clocked[-1].clock or (0.0, 0.0)
    interval = steps_of_a_row(content.rows, total, final_epoch(content)) if not numbered else 0
    places = [row.step if row.step is not None else n * interval for n, row in enumerate(content.rows, start=1)]
    timed = [place for place, row in zip(places, content.rows, strict=True) if row.clock is not None]
    start = start_of(content)
    if total <= start.step or start.shown_by == "the mean loss":
        return Evidence()
    timed_rows = [place for place, row in enumerate(content.rows) if row.clock is not None]
    inside = content.rows[timed_rows[0] + 1 : timed_rows[-1] + 1]  # others are start-up, or after the last row
    evaluations = sum(row.evaluation_seconds for row in inside)
    return Evidence(
        clocks=(
            LogClock(
                name=RUNTIME,
                seconds=runtime - start.seconds,
                steps=total - start.step,
                first=(timed[0] - start.step, first[0] - start.seconds),
                last=(timed[-1] - start.step, last[0] - start.seconds),
                spent=(("evaluation", evaluations),) if evaluations else (),
                in_rows=True,
                has_every_pause=True,
                resolution=half_digit(summary[RUNTIME]) + first[1] + last[1],
            ),
        )
    )


def reported_by(content: Content) -> dict[str, Any]:
    """Return means over the run: those of the middle rank's summary, or the time by the last row or bar.

    The Trainer divides all samples and steps, those before a resume too, by the time since the resume
    (transformers/trainer.py, speed_metrics): its rates are reduced to the share of the steps that it timed.
    """
    reported: dict[str, Any] = {}
    start = start_of(content)
    if (summary := _summary(content)) is not None:
        share = _timed_share(content, start)
        for name, target in REPORTED.items():
            of_time = target == "runtime_seconds"
            if (value := fields.positive(summary.get(name))) and (of_time or share):
                reported[target] = value if of_time else value * share
        steps, runtime = position_of(summary), reported.get("runtime_seconds")
        if start.shown_by == "the mean loss":
            return reported
        if steps and runtime and steps > start.step:
            reported["step_time_seconds"] = (runtime - start.seconds) / (steps - start.step)
        elif start.step and (measured := _pace(content, start)):
            reported["step_time_seconds"] = measured
        return reported
    clocks = [row.clock[0] for row in content.rows if row.clock]
    restarted = any(after < before for before, after in pairwise(clocks))  # the clock began after its first steps
    if not restarted and (measured := _pace(content, start)):
        reported["step_time_seconds"] = measured
    return reported


def resume_warning(content: Content) -> str | None:
    """Return a sentence on a summary whose rates hold steps of an earlier training; None for any other log."""
    start, total = start_of(content), total_steps(content)
    if not (start.step and content.summaries):
        return None
    if start.shown_by == "the mean loss" and not any(row.clock for row in content.rows):
        return (
            f"steps: the mean loss shows a resume at about step {start.step}, but the summary divides the steps before "
            "by the time since as well, so step times are unknown; keep the log with its progress bar"
        )
    if total is None or not _timed_share(content, start):
        return (
            f"samples_per_second: {start.shown_by} shows a resume at about step {start.step}, but the summary counts "
            "the steps before as well; its rates are left out"
        )
    return (
        f"samples_per_second: the training resumed at step {start.step}, but the summary counts all {count(total)} "
        f"steps; its rates are reduced to the {count(total - start.step)} steps that it timed"
    )


def _timed_share(content: Content, start: Start) -> float:
    """Return the share of the summary's steps that its runtime holds; 0 where no line states the step of a resume."""
    if not start.step:
        return 1.0
    total = total_steps(content)
    return max(0.0, total - start.step) / total if start.shown_by == "a line" and total else 0.0


def _pace(content: Content, start: Start) -> float | None:
    """Return the mean seconds of a step since the start, by the last row with a clock or by the bar; None if coarse."""
    last = next((row for row in reversed(content.rows) if row.step and row.clock), None)
    if last is not None and last.step and last.clock and last.clock[1] <= CLOCK_RESOLUTION * last.clock[0]:
        step, seconds = last.step, last.clock[0]
    elif content.rows and content.bar and CLOCK_RESOLUTION * content.bar[1] >= 0.5:
        step, seconds = content.bar
    else:
        return None
    return (seconds - start.seconds) / (step - start.step) if step > start.step else None
