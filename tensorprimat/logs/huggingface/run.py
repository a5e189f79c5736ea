"""Figures of a Trainer's whole run: its summary, and the clock that the audit compares with the rows."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from tensorprimat.core.clocks import Evidence, LogClock
from tensorprimat.logs import fields
from tensorprimat.logs.fields import CLOCK_RESOLUTION
from tensorprimat.logs.huggingface.content import Content
from tensorprimat.logs.huggingface.rows import RUNTIME, SAMPLES_RATE, half_digit, position_of
from tensorprimat.logs.huggingface.steps import steps_of_a_row

COUNT_RESOLUTION = 0.01  # of train_steps_per_second; a coarser rate counts no steps
ROUNDED_RATE = 0.001  # transformers rounds train_steps_per_second to it, however many digits it prints
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
    before = max(0.0, timed[-1] - total) if timed[0] > total / 2 else 0.0  # a resume: its clock began after them
    timed_rows = [place for place, row in enumerate(content.rows) if row.clock is not None]
    inside = content.rows[timed_rows[0] + 1 : timed_rows[-1] + 1]  # others are start-up, or after the last row
    evaluations = sum(row.evaluation_seconds for row in inside)
    return Evidence(
        clocks=(
            LogClock(
                name=RUNTIME,
                seconds=runtime,
                steps=total,
                first=(timed[0] - before, first[0]),
                last=(timed[-1] - before, last[0]),
                spent=(("evaluation", evaluations),) if evaluations else (),
                in_rows=True,
                has_every_pause=True,
                resolution=half_digit(summary[RUNTIME]) + first[1] + last[1],
            ),
        )
    )


def reported_by(content: Content) -> dict[str, Any]:
    """Return means over the run: those of the middle rank's summary, or the time by the last row or bar."""
    reported: dict[str, Any] = {}
    if (summary := _summary(content)) is not None:
        for name, target in REPORTED.items():
            if value := fields.positive(summary.get(name)):
                reported[target] = value
        if (steps := position_of(summary)) and (runtime := reported.get("runtime_seconds")):
            reported["step_time_seconds"] = runtime / steps
        return reported
    clocks = [row.clock[0] for row in content.rows if row.clock]
    resumed = any(after < before for before, after in pairwise(clocks))  # the clock began after its first steps
    last = next((row for row in reversed(content.rows) if row.step and row.clock), None)
    if resumed:
        return reported
    if last is not None and last.step and last.clock and last.clock[1] <= CLOCK_RESOLUTION * last.clock[0]:
        reported["step_time_seconds"] = last.clock[0] / last.step
    elif content.rows and content.bar and content.bar[0] and CLOCK_RESOLUTION * content.bar[1] >= 0.5:
        reported["step_time_seconds"] = content.bar[1] / content.bar[0]
    return reported
