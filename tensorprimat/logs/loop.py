"""Logs of any training loop whose rows print the number of the step, the loss, and a step time or a rate.

The last format tried but one: only where no framework's rows are found. The numbers of a row are found by their names
and units, in any order: `step 20 | loss 7.8 | tok/s 15063`, `Step [20/500] Loss: 7.8 Time/step: 0.51s`. A number counts
only where both are certain: a time needs a unit, between `5 tok/s 7` neither number is the rate, and `optimizer step
time` and `avg tok/s` are not those of a whole step. A rate does not state if it counts all GPUs, unless its name does,
so the result says what was assumed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tensorprimat.core.notices import Notice
from tensorprimat.core.steps import Step, Steps, finite
from tensorprimat.core.terms import RATES
from tensorprimat.core.units import GB, GIB, MIB
from tensorprimat.logs import clocks, fields, timestamps, work
from tensorprimat.logs.format import Reading
from tensorprimat.logs.text import Log

_SOURCE = "Training loop of no known framework"
_RUNNING_TIME = "the time since the start that the rows print"
NO_FRAMEWORK = Notice("no_framework", "format")

_STEP = r"(?:step|iter(?:ation)?|it)"
_SCALES = {"ms": 1e-3, "msec": 1e-3, "k": 1e3, "m": 1e6}
"""Unit or suffix of a number → its factor; all others are seconds or nothing."""
_UNIT = r"(?:ms|msec|s|secs?|seconds)"
_PER = r"[ _]?(?:/|per[ _])[ _]?"
_SECOND = rf"{_PER}(?:s|sec|second)(?P<gpu>(?:{_PER}| ?\((?:per )?)(?:gpu|device)\)?)?"
_TOKENS = rf"(?:tok(?:en)?s?{_SECOND}|(?:tps|tgs)(?P<tps_gpu>{_PER}gpu)?)"
_SAMPLES = rf"(?:sample|sequence|seq|example)s?{_SECOND}"
_STEPS_RATE = rf"(?:step|iter(?:ation)?|update)s?{_PER}(?:s|sec|second)"
_VALUE = r"(?P<value>(?:\d{1,3}(?:,\d{3}){1,4}|" + fields.UNGROUPED + r")(?:\.\d{1,20})?)" + fields.ENDS + r"\s?"
# Without a colon, only a delimiter or a known number before the name makes it certain.
_LABELLED = r"(?P<closed>['\"]?[)\]]?\s?[:=])?\s{0,8}['\"]?"
_BEGINS = r"(?<![\w/.,])(?<!\d['\u2019*])(?<!\d\*\*)(?<!\d \* )(?:(?<!\d[ \u00a0\u2009\u202f])|(?!\d{3}(?!\d)))"
_ENDS = r"(?![\w/%])"
_TIMES = (
    re.compile(
        rf"{_BEGINS}(?:{_STEP}[ _/]?time|time{_PER}{_STEP}|dt|t/step)(?:[ _]?[(\[]?(?P<unit>{_UNIT})(?![a-z]))?"
        rf"{_LABELLED}{_VALUE}(?P<after>{_UNIT})?{_ENDS}"
    ),
    re.compile(rf"{_BEGINS}(?P<unit>{_UNIT}){_PER}{_STEP}{_LABELLED}{_VALUE}{_ENDS}"),
    re.compile(rf"{_BEGINS}{_STEP}_(?P<unit>{_UNIT}){_LABELLED}{_VALUE}{_ENDS}"),
    re.compile(rf"{_BEGINS}{_STEP}(?P<closed>\s?[:=])\s{{0,8}}{_VALUE}(?P<unit>{_UNIT}){_ENDS}"),
)
_TIME_BEFORE_UNIT = re.compile(rf"{_BEGINS}{_VALUE}(?P<unit>{_UNIT})/(?:step|iter(?:ation)?){_ENDS}")
_BEHIND_THE_STEP = re.compile(rf"{_BEGINS}{_STEP} \d{{1,9}}[,:]? (?P<unit>{_UNIT})[ :=]\s{{0,8}}{_VALUE}{_ENDS}")
_WITHOUT_NAME = re.compile(
    r"(?P<named>(?<![a-z/_ -])\s?(?:time|(?P<clock>(?:elapsed|total|wall)[ _]time|time[ _]elapsed|elapsed))"
    r"\s?[:=]?\s{0,8})?"
    rf"(?<![\w/.,]){_VALUE}(?P<unit>{_UNIT})(?![\w/])"
)
"""Times with a unit and without a name, or named a time and no more, or the time so far."""
CLOCK_GROWTH = 0.05  # of the first time: times that go on evenly and by more, row after row, are those of a clock
ONE_WAY = 0.75  # share of the rows; a clock may begin anew in every epoch
SINCE_THE_START = 1.25  # ratio of a clock to the time of its steps at their pace, at most; a growing step time has more
EQUAL_WORK = 0.05
"""Spread of the product of time and rate over a log's rows, at most, if a time without a name is that of a step."""


def _rates_of(unit: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the expressions of a rate behind its name and of one before its unit."""
    scope = r"(?:(?P<scope>(?:global|total)[ _]?)|(?P<one_gpu>(?:per[ _-])?(?:gpu|device)[ _]))?"
    return (
        re.compile(rf"{_BEGINS}{scope}{unit}{_LABELLED}{_VALUE}(?P<after>[km])?{_ENDS}"),
        re.compile(rf"{_BEGINS}{_VALUE}(?P<after>[km])?\s?{unit}{_ENDS}"),
    )


_RATES = {"tokens": _rates_of(_TOKENS), "samples": _rates_of(_SAMPLES)}
_OF_STEPS = (
    re.compile(rf"{_BEGINS}{_STEPS_RATE}{_LABELLED}{_VALUE}{_ENDS}"),
    re.compile(rf"{_BEGINS}{_VALUE}{_STEPS_RATE}{_ENDS}"),
)
_BYTES = r"[kmgt]i?b"
_MEMORY = re.compile(
    r"(?<![a-z])(?P<words>(?:(?:max|peak|gpu|cuda|hip|device|alloc(?:ated)?|reserved|used|usage|vram|hbm|mem(?:ory)?)"
    rf"[ _./-]{{0,2}}){{1,5}})(?:[(\[]?(?P<unit>{_BYTES})[)\]]?)?['\"]?\s?[:=]?\s{{0,8}}{_VALUE}(?P<after>{_BYTES})?"
    r"(?![\w/%])"
)
"""The memory of a GPU with its unit, in front of the number or behind it."""
_NO_PEAK_OF_A_GPU = re.compile(
    r"(?:cpu|host|ram|rss|system|swap|disk|free|avail[a-z]*|total|min|avg|mean)[ _./-]{0,2}$"
)
_SIZES = {"kb": 1e3, "mb": 1e6, "gb": GB, "tb": 1e12, "kib": 1024.0, "mib": MIB, "gib": GIB, "tib": 1024.0 * GIB}
_OTHER_THAN_A_STEP = re.compile(
    r"(?<![a-z])(?:fwd|forward|bwd|backward|optim?|optimizer|data|(?:data)?load(?:er|ing)?|comm|sync"
    r"|eval(?:uation)?|val|valid(?:ation)?|test|prefill|decode|gen|generation|rollout|inference"
    r"|avg|average|mean|ema|running|smoothed|cumulative|peak|max|min|best|target|expected)[ _-]?$"
)
"""Words before the name of a time or a rate that make it the number of a part of a step, or of several steps."""
_LONGEST_WORD = 16
_DELIMITERS = ("", *"|,;([{)]}│┃·•")
_NUMBER_WITH_UNIT = re.compile(r"\d\s?(?:ms|msec|s|secs?|seconds|min|%|[kmgt]i?b?)$")
LEAST_DIGITS = 3  # of a number at the end of a line
_BAR = "%|"
SAME_TIME = 0.2  # relative difference between the time that a row prints and the time since the row before, at most


class _Number(NamedTuple):
    """The place of a number in a line, and its factor to the field's unit."""

    place: slice
    scale: float
    is_rate: bool = False
    """True if the number counts steps per second."""


class _Places(NamedTuple):
    """Places of a row's parts in a line, and in every line that differs from it in digits alone."""

    of_step: timestamps.StepPlaces
    seconds: _Number | None
    rates: dict[str, _Number]
    memory: dict[str, _Number]
    of_all: bool
    """False if the rate of the row may be of all GPUs or of one."""
    is_of_step: bool
    """False if the time of the row is called dt, which may be the time since the row before."""


class _Row(NamedTuple):
    step: Step
    last: str | None
    of_all: bool
    is_of_step: bool
    """False if the name of its time does not say that it is that of one step."""


def detect(log: Log) -> int:
    known = timestamps.SameShapes(_places)
    return timestamps.enough_rows(_row(line, text, known) for line, text in log.lines())


def read(log: Log) -> Reading:
    reading = Reading(source=_SOURCE, warnings=[NO_FRAMEWORK])
    rows = list(_rows(log))
    if not rows:
        return reading
    if not all(row.of_all for row in rows):
        counted = "samples" if all(row.step.reported_tokens_per_second is None for row in rows) else "tokens"
        reading.warnings.append(Notice("rate_of_all_assumed", f"{counted}_per_second", work=counted))
    steps = fields.merged(((None, row.step) for row in rows), reading.warnings)
    is_named = all(row.is_of_step for row in rows)
    if not is_named:
        steps, unlike = _of_one_step(steps)
        if unlike and (marks := _marks(rows)):
            reading.timing = "timestamps"
            steps, unlike = clocks.timed_steps(marks), [Notice("timed_by_clock", "steps", clock=_RUNNING_TIME)]
            reading.begins = clocks.pauses(steps)
            is_named = True
        reading.warnings += unlike
    reading.steps, warned = _times_of_one_step(steps, is_named=is_named)
    reading.warnings += warned
    reading.steps, uneven = work.weighted(reading.steps, None, None, None, varies=False)
    reading.warnings += uneven
    reading.timestamp = fields.iso(rows[0].step.ended_at)
    if planned := fields.whole(next((row.last for row in reversed(rows) if row.last), None)):
        reading.training_config["max_steps"] = planned
    return reading


def _rows(log: Log) -> Iterator[_Row]:
    interrupted_by = ""
    known = timestamps.SameShapes(_places)
    for line, text in log.lines_of_one_rank(lambda text: _row(0, text, known)):
        row = _row(line, text, known)
        if row is not None:
            yield row._replace(step=row.step.changed(interrupted_by=interrupted_by)) if interrupted_by else row
            interrupted_by = ""
        else:
            interrupted_by = timestamps.interruption(text, interrupted_by)


def _row(line: int, text: str, known: timestamps.SameShapes[_Places]) -> _Row | None:
    """Return the facts that a row states of its step: its number, and a time or a rate, or both if it has no loss."""
    if "loss" not in text and "Loss" not in text and "tok" not in text:
        return None
    if (places := known.places(text)) is None:
        return None
    number, last, loss, rate = places.of_step
    moment, time = clocks.written_at(text), places.seconds
    step = Step(
        index=int(text[number].replace(",", "")),
        seconds=time and _printed(text[time.place], time),
        loss=fields.number(text[loss]) if loss else None,
        learning_rate=fields.positive(text[rate]) if rate else None,
        ended_at=moment.seconds if moment is not None and moment.has_year else None,
        line=line,
    )
    rates, memory = (
        {name: fields.positive(text[one.place], one.scale) for name, one in numbers.items()}
        for numbers in (places.rates, places.memory)
    )
    if step.seconds is None and not any(rates.values()):
        return None
    planned = text[last] if last else None
    return _Row(step.changed(**rates, **memory), planned, places.of_all, places.is_of_step)


def _printed(text: str, number: _Number) -> float | None:
    """Return the time of a step."""
    if not number.is_rate:
        return fields.printed_seconds(text, number.scale)
    return 1 / rate if (rate := fields.positive(text)) else None


def _places(text: str) -> _Places | None:
    lowered = timestamps.in_small_letters(text)
    if (of_step := timestamps.step_and_loss(lowered, is_timed=True)) is None:
        return None
    taken = frozenset(place.stop for place in of_step if place is not None)
    seconds, is_of_step = _seconds(lowered, taken)
    unnamed = _without_name(lowered, taken) if seconds is None else None
    known = seconds or unnamed
    rates, of_all = _rates(lowered, taken | ({known.place.stop} if known else set()))
    if unnamed is not None and (rates or of_step.loss is not None):
        seconds, is_of_step = unnamed, False
    is_row = seconds is not None and rates if of_step.loss is None else seconds is not None or rates
    if not is_row:
        return None
    memory = _memory(lowered)
    return _Places(of_step=of_step, seconds=seconds, rates=rates, memory=memory, of_all=of_all, is_of_step=is_of_step)


def _seconds(text: str, taken: frozenset[int]) -> tuple[_Number | None, bool]:
    """Return the time that a row states with its unit, and False if its name does not say that it is of one step."""
    for pattern in (*_TIMES, _TIME_BEFORE_UNIT):
        for match in pattern.finditer(text):
            after = match.groupdict().get("after")
            if (unit := match["unit"] or after) and _is_certain(match, text, taken, has_unit=bool(after)):
                return _Number(slice(*match.span("value")), _SCALES.get(unit, 1.0)), not match[0].startswith("dt")
    for pattern in _OF_STEPS if _BAR not in text else ():  # a bar's rate is a running mean
        for match in pattern.finditer(text):
            if _is_certain(match, text, taken):
                return _Number(slice(*match.span("value")), 1.0, is_rate=True), True
    return None, True


def _memory(text: str) -> dict[str, _Number]:
    """Return the memory of a GPU that a row states, by column; without a word for its kind it is an allocated peak."""
    found: dict[str, _Number] = {}
    for match in _MEMORY.finditer(text):
        words, unit = match["words"], match["unit"] or match["after"]
        is_memory = any(word in words for word in ("mem", "vram", "hbm", "alloc", "reserved", "peak"))
        if not unit or not is_memory or _NO_PEAK_OF_A_GPU.search(text[: match.start()][-_LONGEST_WORD:]):
            continue
        is_plain = not any(word in words for word in ("alloc", "reserved", "used", "usage", "vram", "hbm"))
        kind = "allocated" if is_plain or "alloc" in words else "reserved" if "reserved" in words else "device_used"
        is_peak = kind != "device_used" and (is_plain or "max" in words or "peak" in words)
        name = f"memory_{kind}_peak_bytes" if is_peak else f"memory_{kind}_bytes"
        found.setdefault(name, _Number(slice(*match.span("value")), _SIZES[unit]))
    return found


def _without_name(text: str, taken: frozenset[int]) -> _Number | None:
    """Return the only time that has a unit and no name: between delimiters, or behind a number that is known."""
    if behind := _BEHIND_THE_STEP.search(text):
        found = [behind]
    else:
        found = [match for match in _WITHOUT_NAME.finditer(text) if match["named"] or _is_bare(match, text, taken)]
        found = [match for match in found if not match["clock"]] or found
    return _Number(slice(*found[0].span("value")), _SCALES.get(found[0]["unit"], 1.0)) if len(found) == 1 else None


def _is_bare(match: re.Match[str], text: str, taken: frozenset[int]) -> bool:
    before, after = text[: match.start()].rstrip(), text[match.end() :].lstrip()
    is_after = len(before) in taken or before[-1:] in (*_DELIMITERS[1:], "-")
    return is_after and (after[:1] in _DELIMITERS or after[0].isdigit())


def _of_one_step(steps: Steps) -> tuple[Steps, list[Notice]]:
    """Return the rows without their times, and a warning, if these may be of something else than a step: they grow or
    shrink from row to row, or imply with the rates of tokens steps of unequal work.
    """
    seconds = finite(steps.column("seconds"))
    work_of = finite(steps.column("seconds") * steps.column("reported_tokens_per_second"))
    grown = np.diff(seconds)
    low, usual, high = np.quantile(grown, (0.25, 0.5, 0.75)) if len(grown) > 1 else (0.0, 0.0, 0.0)
    is_clock = usual != 0 and high - low <= abs(usual) / 2 and float((grown * usual > 0).mean()) > ONE_WAY
    if len(work_of) and np.ptp(np.percentile(work_of, (10, 90))) > EQUAL_WORK * np.median(work_of):
        why = "times and rates of the rows imply steps with unequal numbers of tokens"
    elif is_clock and np.ptp(seconds) > CLOCK_GROWTH * seconds[0]:
        why = "the times of the rows grow or shrink from row to row"
    else:
        return steps, []
    return steps.without("seconds"), [Notice("time_of_what", "step_time", why=why)]


def _marks(rows: list[_Row]) -> list[clocks.TimeMark]:
    """Return the rows with their times as moments if these are seconds since the start of the training or of an epoch.

    At the pace of the rows, the steps since that start take about the time of a row. A step time that grows to less
    than five times its first value has more. Returns nothing for other times.
    """
    steps = [row.step for row in rows]
    seconds, index = (np.array([getattr(step, name) for step in steps], float) for name in ("seconds", "index"))
    if any(getattr(step, name) is not None for step in steps for name in RATES):
        return []
    grown, distance = np.diff(seconds), np.diff(index)
    starts = np.flatnonzero(grown < 0) + 1
    last = np.append(starts, len(rows)) - 1
    before = np.append(0.0, np.where(distance[starts - 1] > 0, index[starts - 1], 0.0))
    forward = (grown > 0) & (distance > 0)
    since_start = float((index[last] - before).sum() * grown[forward].sum() / max(1.0, distance[forward].sum()))
    if not since_start / SINCE_THE_START < seconds[last].sum() < since_start * SINCE_THE_START:
        return []
    digits = next((n for n in range(6) if np.allclose(seconds, np.round(seconds, n), rtol=0, atol=1e-7)), 6)
    return [
        clocks.TimeMark(
            line=step.line,
            step=step.index,
            moment=clocks.Moment(second, 10.0**-digits, has_year=False),
            loss=step.loss,
            learning_rate=step.learning_rate,
            interrupted_by=step.interrupted_by,
        )
        for step, second in zip(steps, seconds.tolist(), strict=True)
    ]


def _times_of_one_step(steps: Steps, *, is_named: bool) -> tuple[Steps, list[str]]:
    """Return the rows with the time of one step, and a warning if it may be that of all steps since the row before.

    The dates of the rows show which of them it is. is_named: the name of the time says that it is of one step.
    """
    index, seconds, segment = (steps.column(name) for name in ("index", "seconds", "segment"))
    distances = np.diff(index)[np.diff(segment) == 0]
    interval = int(np.median(distances)) if len(distances) else 1
    if interval <= 1 or not steps.has("seconds"):
        return steps, []
    ratios = (np.diff(steps.column("ended_at")) / seconds[1:])[(np.diff(segment) == 0) & (np.diff(index) == interval)]
    known = ratios[np.isfinite(ratios)]
    if not len(known):
        return steps, [] if is_named else [Notice("one_step_assumed", "step_time", interval=interval)]
    if abs(float(np.median(known)) - 1) > SAME_TIME:
        return steps, []
    before = np.where(np.diff(segment, prepend=-1) != 0, 0, np.roll(index, 1))
    covers = np.clip(index - before, 1, interval)
    return steps.replace(seconds=seconds / covers, covers=covers), [
        Notice("time_of_interval", "step_time", interval=interval)
    ]


def _rates(text: str, taken: frozenset[int]) -> tuple[dict[str, _Number], bool]:
    """Return the rates that a row states, by column; and False if one may be of all GPUs or of one."""
    found: dict[str, _Number] = {}
    is_named = False
    for what, patterns in _RATES.items():
        of_this: dict[str, _Number] = {}
        for pattern in patterns:
            for match in pattern.finditer(text):
                groups = match.groupdict()
                of_all = groups.get("scope")
                of_gpu = match["gpu"] or groups.get("tps_gpu") or groups.get("one_gpu") or "tgs" in match[0]
                name = f"reported_{what}_per_second" + "_per_gpu" * bool(of_gpu)
                if _is_certain(match, text, taken) and (of_all or name not in of_this):
                    of_this[name] = _Number(slice(*match.span("value")), _SCALES.get(match["after"] or "", 1.0))
                    is_named = is_named or bool(of_all or of_gpu)
            if of_this:
                break
        found |= of_this
    return found, is_named or not found


def _is_certain(match: re.Match[str], text: str, taken: frozenset[int], *, has_unit: bool = False) -> bool:
    """Return True if a number belongs to its name, and to no other: between them is a colon, or a delimiter is on the
    other side.

    Of `5 tok/s 7` neither number is certainly the rate, unless 5 is known to be another one: the loss, or a number with
    a unit of its own. A short number at the end of a line may lack digits. The word before a name may say that the
    number is not that of one whole step.

    taken: positions behind the numbers that are known. has_unit: a name is before the number and its unit behind it.
    """
    if match.end("value") in taken or _OTHER_THAN_A_STEP.search(
        text[max(0, match.start() - _LONGEST_WORD) : match.start()]
    ):
        return False
    if match.end("value") == len(text.rstrip()) and sum(map(str.isdigit, match["value"])) < LEAST_DIGITS:
        return False
    if has_unit or match.groupdict().get("closed"):
        return True
    before, after = text[: match.start()].rstrip(), text[match.end() :].lstrip()
    if "closed" not in match.groupdict():
        return after[:1] in _DELIMITERS
    is_other = len(before) in taken or _NUMBER_WITH_UNIT.search(before[-_LONGEST_WORD:]) is not None
    return is_other or before[-1:] in _DELIMITERS
