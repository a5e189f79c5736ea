"""Logs of any training loop that prints the number of the step, the loss and the time of day, and no step time.

The last resort: only where no other format finds a row. Times come from the stamps of the lines, so they include all
work between two rows; rows between which a validation or a checkpoint was announced are marked, never measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tensorprimat.core.clocks import resolution_of
from tensorprimat.core.quantities import count
from tensorprimat.core.steady import median
from tensorprimat.core.steps import Steps
from tensorprimat.logs import fields, prefixes
from tensorprimat.logs.clocks import CLOCK_SHARE, Moment, TimeMark, pauses, timed_steps, written_at
from tensorprimat.logs.format import Reading
from tensorprimat.logs.text import Log

LONGEST_ROW = 2**12
LEAST_ROWS = 3

_STEP = re.compile(
    r"(?<![\w/])(?:global[_ ]?|train(?:ing)?[_ ]?|opt(?:imizer)?[_ ]?)?(?:step|iter(?:ation)?|update)s?"
    r"['\"]?\]?\s?[:=#\[(]?\s{0,8}(?P<step>\d{1,12})(?![\d.:%])(?:\s?(?:/|of)\s?(?P<last>\d{1,12})(?![\d.:%]))?"
)  # all patterns are for lines in small letters: four times as fast as a search that ignores case
_LOSS = re.compile(rf"\bloss['\"]?\s?[:=(]?\s{{0,8}}(?P<loss>{fields.NUMBER})(?![\w.])")
_RATE = re.compile(rf"\b(?:lr|learning[_ ]rate)['\"]?\s?[:=(]?\s{{0,8}}(?P<rate>{fields.NUMBER})(?![\w.])")
_OTHER = re.compile(r"\b(?P<validation>val(?:id(?:ation)?)?|eval(?:uat\w+)?|test)(?:_|\b)|\b(?:sav\w+|checkpoint\w*)\b")


def detect(log: Log) -> int:
    if log.is_folder or log.is_binary:
        return 0
    found = 0
    for _, text in log.bare_lines():
        found += _row(text) is not None
        if found == LEAST_ROWS:
            return found
    return 0


class _Row(NamedTuple):
    step: re.Match[str]
    loss: re.Match[str]
    rate: re.Match[str] | None
    moment: Moment
    rank: int | None


def _row(text: str) -> _Row | None:
    """Return what a row of a training tells of its step, and when it was written."""
    if "loss" not in text and "Loss" not in text:
        return None
    text = text[:LONGEST_ROW]
    lowered = text.lower()
    step = _STEP.search(lowered)
    if step is None or (loss := _LOSS.search(lowered)) is None or _validation_in(lowered):
        return None
    origin, own = prefixes.split(text)
    moment = written_at(text, own)
    return _Row(step, loss, _RATE.search(lowered), moment, origin.rank) if moment else None


def _other_work(lowered: str) -> re.Match[str] | None:
    """Return the words that announce a validation or a checkpoint, in a line in small letters."""
    # Every match holds one of these words: most rows hold none, which is seen ten times as fast.
    if "val" in lowered or "test" in lowered or "sav" in lowered or "checkpoint" in lowered:
        return _OTHER.search(lowered)
    return None


def _validation_in(lowered: str) -> bool:
    other = _other_work(lowered)
    return other is not None and other["validation"] is not None


def read(log: Log) -> Reading:
    reading = Reading(steps=Steps({}), timing="timestamps", source="Training log without step times")
    marks = _with_true_resolution(list(_marks(log, reading)))
    steps = timed_steps(marks)
    resolution = max((mark.moment.resolution for mark in marks), default=0.0)
    if not np.isfinite(steps.column("seconds")).any():
        reading.warnings.append(
            f"steps: {len(marks)} rows have nothing but timestamps, known to {resolution:g} s, and no stretch of them "
            f"spans {count(1 / CLOCK_SHARE)} times that without an interruption; no step time follows"
        )
        return reading
    reading.steps = fields.merged_columns(steps)
    reading.begins = pauses(reading.steps)
    reading.timestamp = fields.iso(marks[0].moment.seconds) if marks[0].moment.has_year else None
    reading.warnings.append(
        f"steps: timed from timestamps (known to {resolution:g} s): {len(marks)} rows are merged into {len(steps)}; "
        "each time includes everything the loop did between rows"
    )
    return reading


def _marks(log: Log, reading: Reading) -> Iterator[TimeMark]:
    speaker: int | None = None
    interrupted_by, last = "", ""
    for line, text in _lines(log):
        row = _row(text)
        if row is None:
            if other := _other_work(text[:LONGEST_ROW].lower()):
                interrupted_by = "validation" if other["validation"] else interrupted_by or "checkpoint"
            continue
        speaker = row.rank if speaker is None else speaker
        if row.rank != speaker:
            continue
        if row.step["last"] != last and (planned := fields.whole(row.step["last"])):
            last = row.step["last"]
            reading.training_config["max_steps"] = planned
        yield TimeMark(
            line=line,
            step=int(row.step["step"]),
            moment=row.moment,
            loss=fields.number(row.loss["loss"]),
            learning_rate=fields.positive(row.rate["rate"]) if row.rate else None,
            interrupted_by=interrupted_by,
        )
        interrupted_by = ""


def _with_true_resolution(marks: list[TimeMark]) -> list[TimeMark]:
    """Return the marks with one resolution: the printed one of most rows, as some writers drop zeros at the end.

    Where rows share a stamp it is that of the differences: such a logger cuts the clock to whole seconds and prints a
    constant behind it.
    """
    if not marks:
        return marks
    moments = np.array([mark.moment.seconds for mark in marks])
    resolution = median(np.array([mark.moment.resolution for mark in marks]))
    if (np.diff(moments) == 0).any():
        resolution = max(resolution, resolution_of(moments))
    return [
        mark
        if mark.moment.resolution == resolution
        else mark._replace(moment=mark.moment._replace(resolution=resolution))
        for mark in marks
    ]


def _lines(log: Log) -> Iterator[tuple[int, str]]:
    """Yield the lines but for a last one without its end, whose number may lack digits."""
    is_cut = bool(log.tail(1)[-1])
    before: tuple[int, str] | None = None
    for line in log.bare_lines():
        if before is not None:
            yield before
        before = line
    if before is not None and not is_cut:
        yield before
