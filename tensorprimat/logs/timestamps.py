"""Logs of any training loop that prints the number of the step, the loss and the time of day, and no step time.

The last format tried: only where no other format finds a row. Times come from the stamps of the lines, so they include
all work between two rows; rows between which a validation or a checkpoint was announced are marked, never measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from tensorprimat.audit.evidence import resolution_of
from tensorprimat.core.notices import Notice
from tensorprimat.core.steady import median
from tensorprimat.core.steps import Step
from tensorprimat.logs import clocks, fields, prefixes
from tensorprimat.logs.format import Reading
from tensorprimat.logs.repeats import Repeats
from tensorprimat.logs.text import Log

_LONGEST_ROW = 2**12
_LEAST_ROWS = 3

# A letter behind a whole number is a unit: `optimizer step 12ms`.
_WHOLE = rf"(?:\d{{1,3}}(?:,\d{{3}})+|{fields.UNGROUPED})(?![\w.%]|[,:'*]\d)"
_STEP = re.compile(
    r"(?:(?<![\w/])|(?<=\btrain/))(?P<kind>(?:global|train(?:ing)?|opt(?:imizer)?|micro)[_ -]?)?"
    r"(?P<unit>step|iter(?:ation)?|update)s?"
    rf"['\"]?\]?\s?[:=#\[(]?\s{{0,8}}(?P<step>{_WHOLE})(?:\s?(?:/|of)\s?(?P<last>{_WHOLE}))?"
)  # all patterns are for lines in small letters: four times as fast as a search that ignores case
_COUNTER = re.compile(
    r"^(?:[^a-z]|(?<=\d)[tz](?![a-z])|\b(?:info|rank|train(?:ing|er)?)\b)*?(?<![\w/.,:%-])(?P<bracket>[\[(]\s{0,8})?"
    rf"(?P<step>{_WHOLE})\s?/\s?(?P<last>{_WHOLE})"
    r"(?(bracket)\s?[\])](?!\s{0,3}[\[(]\d)|(?:\s{0,3}[:|,;]|\s{1,3}(?=\w{0,20}loss\b)))"
)  # [5/100] or 5/100: at the beginning of a row, behind the prefix of a logger
_LOSS = re.compile(
    rf"\b(?:(?:train(?:ing)?|ce|lm|total|avg|mean)[_-])?loss['\"]?\s?[:=(]?\s{{0,8}}(?P<loss>{fields.NUMBER})(?![\w.])"
)
_RATE = re.compile(rf"\b(?:lr|learning[_ ]rate)['\"]?\s?[:=(]?\s{{0,8}}(?P<rate>{fields.NUMBER})(?![\w.])")
_OTHER = re.compile(
    r"\b(?!\w{1,60}:\d{1,6}:\w{1,60}\])"  # a logger's place in the code, [ezpz/test_dist:170:__main__]
    r"(?:(?P<validation>val(?:id(?:ation)?)?|eval(?:uat\w+)?|test)(?:_|\b)|(?:sav\w+|checkpoint\w*)\b)"
)


_DIGITS = str.maketrans("123456789", "0" * 9)
_NO_THOUSANDS = re.compile(r"\b0(?=,\d)")  # a zero before a comma: 0,512 is no number, 1,512 is one
MOST_SHAPES = 1000  # lines that differ in more than digits; a log has a few, as its numbers grow


class StepPlaces(NamedTuple):
    """Places of what a row states of its step, whatever else it prints."""

    step: slice
    last: slice | None
    """Of the number of all steps."""
    loss: slice | None
    learning_rate: slice | None


class _Places(NamedTuple):
    """Places of a row's parts in a line, and in every line that differs from it in digits alone."""

    of_step: StepPlaces
    stamp: clocks.StampPlaces
    rank: slice | None


Parts = TypeVar("Parts")


class SameShapes(Generic[Parts]):
    """Places of the parts of rows by the line with every digit as 0.

    Rows are alike, and a search in each of them takes three times as long.
    """

    def __init__(self, find: Callable[[str], Parts | None]) -> None:
        """Start without rows. find: returns the places of the parts of one line, None if it is not a row."""
        self._find = find
        self._known: dict[str, Parts] = {}

    def places(self, text: str) -> Parts | None:
        """Return the places of the parts of a line; None if it is not a row."""
        text = text[:_LONGEST_ROW]
        shape = (_NO_THOUSANDS.sub("-", text) if "0," in text else text).translate(_DIGITS)
        if (found := self._known.get(shape)) is None and (found := self._find(text)) is not None:
            if len(self._known) == MOST_SHAPES:
                self._known.clear()
            self._known[shape] = found
        return found


class _Row(NamedTuple):
    step: str
    last: str | None
    loss: str
    rate: str | None
    moment: clocks.Moment
    rank: int | None


def detect(log: Log) -> int:
    known = SameShapes(_places)
    return enough_rows(_row(text, known) for _, text in log.bare_lines())


def enough_rows(found: Iterable[object | None]) -> int:
    """Return the number of rows by which a last resort recognises a log; 0 if it has fewer.

    found: what is read from each line, None where it is not a row.
    """
    rows = sum(1 for _ in islice((row for row in found if row is not None), _LEAST_ROWS))
    return rows if rows == _LEAST_ROWS else 0


def _row(text: str, known: SameShapes[_Places]) -> _Row | None:
    """Return the facts that a row states of its step, and the time at which it was written."""
    if "loss" not in text and "Loss" not in text:
        return None
    text = text[:_LONGEST_ROW]
    if (places := known.places(text)) is None:
        return None
    (step, last, loss, rate), stamp, rank = places
    assert loss is not None  # `step_and_loss` was asked for one
    moment = clocks.moment_at(text, stamp) or clocks.written_at(text)  # a real date may follow an impossible one
    if moment is None:
        return None
    return _Row(
        text[step],
        text[last] if last else None,
        text[loss],
        text[rate] if rate else None,
        moment,
        int(text[rank]) if rank else None,
    )


def _places(text: str) -> _Places | None:
    if (parts := step_and_loss(in_small_letters(text))) is None:
        return None
    rank, own = prefixes.rank_places(text)
    stamp = clocks.stamp_places(text, own)
    if stamp is None:
        return None
    return _Places(of_step=parts, stamp=stamp, rank=rank)


def in_small_letters(text: str) -> str:
    """Return a text of the same length in small letters."""
    return text.replace("\u0130", "i").lower()  # the only letter that becomes two


def step_and_loss(lowered: str, *, is_timed: bool = False) -> StepPlaces | None:
    """Return the places of a row's step and loss in a line in small letters; None if it is not a row of training.

    is_timed: the caller needs a time or a rate of the row, so it may have no loss, or a step that is only a counter.
    """
    step, loss = max(_STEP.finditer(lowered), key=_certainty_of_step, default=None), _LOSS.search(lowered)
    if step is None and is_timed and loss and "%|" not in lowered:  # bars count anything
        step = _COUNTER.match(lowered)
    if step is None or (loss is None and not is_timed):
        return None
    if (other := _other_work(lowered)) and other["validation"]:
        return None
    rate = _RATE.search(lowered)
    return StepPlaces(
        step=slice(*step.span("step")),
        last=slice(*step.span("last")) if step["last"] else None,
        loss=slice(*loss.span("loss")) if loss else None,
        learning_rate=slice(*rate.span("rate")) if rate else None,
    )


def _certainty_of_step(step: re.Match[str]) -> int:
    """Return a number that is higher for a likelier count of optimizer steps; frameworks also count micro-batches."""
    if step["kind"]:
        return -1 if step["kind"].startswith("micro") else 2
    return {"update": 2, "step": 1}.get(step["unit"], 0)


def interruption(text: str, before: str) -> str:
    """Return "validation" or "checkpoint" if a line announces one, else what an earlier line announced (`before`)."""
    if other := _other_work(text[:_LONGEST_ROW].lower()):
        return "validation" if other["validation"] else before or "checkpoint"
    return before


def _other_work(lowered: str) -> re.Match[str] | None:
    """Return the words that announce a validation or a checkpoint, in a line in small letters."""
    # Every match contains one of these words: most rows contain none, which is seen ten times as fast.
    if "val" in lowered or "test" in lowered or "sav" in lowered or "checkpoint" in lowered:
        return _OTHER.search(lowered)
    return None


def read(log: Log) -> Reading:
    reading = Reading(timing="timestamps", source="Training log without step times")
    marks = _with_true_resolution(list(_marks(log, reading)))
    steps = clocks.timed_steps(marks)
    resolution = max((mark.moment.resolution for mark in marks), default=0.0)
    if not np.isfinite(steps.column("seconds")).any():
        reading.warnings.append(
            Notice("stamps_too_coarse", "steps", rows=len(marks), resolution=resolution, share=1 / clocks.CLOCK_SHARE)
        )
        return reading
    reading.steps = fields.merged_columns(steps)
    reading.begins = clocks.pauses(reading.steps)
    reading.warnings += _repeats(marks)
    reading.timestamp = fields.iso(marks[0].moment.seconds) if marks[0].moment.has_year else None
    reading.warnings.append(
        Notice("timed_by_timestamps", "steps", resolution=resolution, rows=len(marks), merged=len(steps))
    )
    return reading


def _repeats(marks: Sequence[clocks.TimeMark]) -> Iterator[str]:
    """Yield a warning if rows that repeat the number of a step contradict each other; two jobs drift apart."""
    pairs = [pair for pair in pairwise(marks) if pair[0].step == pair[1].step]
    found = Repeats()
    for pair in pairs:
        since = (one.moment.seconds - begin.moment.seconds for one, begin in zip(pair, pairs[0], strict=True))
        rows = (
            Step(index=one.step, seconds=seconds, loss=one.loss, line=one.line)
            for one, seconds in zip(pair, since, strict=True)
        )
        found.add(*rows)
    return found.warnings()


def _marks(log: Log, reading: Reading) -> Iterator[clocks.TimeMark]:
    speaker: int | None = None
    interrupted_by, last = "", ""
    known = SameShapes(_places)
    for line, text in log.bare_lines():
        row = _row(text, known)
        if row is None:
            interrupted_by = interruption(text, interrupted_by)
            continue
        speaker = row.rank if speaker is None else speaker
        if row.rank != speaker:
            continue
        if row.last and row.last != last and (planned := fields.whole(row.last)):
            last = row.last
            reading.training_config["max_steps"] = planned
        yield clocks.TimeMark(
            line=line,
            step=int(row.step.replace(",", "")),
            moment=row.moment,
            loss=fields.number(row.loss),
            learning_rate=fields.positive(row.rate),
            interrupted_by=interrupted_by,
        )
        interrupted_by = ""


def _with_true_resolution(marks: list[clocks.TimeMark]) -> list[clocks.TimeMark]:
    """Return the marks with one resolution: the printed one of most rows, as some writers drop zeros at the end.

    If rows share a stamp, it is the resolution of the differences between stamps: such a logger cuts the clock to whole
    seconds, and prints the same fraction on every line.
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
