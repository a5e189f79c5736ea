"""Step times from the moments at which rows were written, for logs that have no other clock.

The time between two rows is known to the resolution of their stamps. Rows are merged until they span at least a hundred
times that; rows that together span less have no step time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import pairwise
from math import inf, nan
from typing import NamedTuple

import numpy as np

from tensorprimat.audit.evidence import DATES, Elapsed
from tensorprimat.audit.findings import FEWEST_STEADY
from tensorprimat.core.notices import Notice
from tensorprimat.core.steady import median
from tensorprimat.core.steps import INTERRUPTIONS, LONGEST_STEP_SECONDS, Steps
from tensorprimat.logs import prefixes
from tensorprimat.logs.fields import first_interval
from tensorprimat.logs.format import Reading
from tensorprimat.logs.text import Log

LONG_PAUSE, LEAST_PAUSE = 20.0, 60.0  # times the median gap, and seconds: longer than any regular work of a loop
CLOCK_SHARE = 0.01  # a stamp's resolution over the time that a row spans, at most
_LOOKED_AT = 3  # rows; if none of them has a stamp, the others are not looked for
STAMP_CHARACTERS = 100  # of a line that may contain its time stamp
OWN_STAMP_CHARACTERS = 48  # of a line after the prefixes of launchers
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_NAMED_MONTH = rf"(?P<month>{'|'.join(MONTHS)})"
_TIME = r"(?P<time>\d\d:\d\d:\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
_DAY_AND_TIME = rf"{_NAMED_MONTH} (?P<day>[ \d]\d) (?P<time>\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d{{1,9}}))?"
_STAMPS = (
    re.compile(rf"(?P<year>\d{{4}})[-/]?(?P<month>\d\d)[-/]?(?P<day>\d\d)[ T]{_TIME}(?P<zone>[+-]\d\d:?\d\d(?!\d))?"),
    re.compile(rf"(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>\d{{4}})[ T]{_TIME}(?![.,\d]* ?[AaPp][Mm]\b)"),
    # 25 Nov 2026 12:00:07, and that of web servers: 25/Nov/2026:12:00:07
    re.compile(rf"(?<!\d)(?P<day>\d\d)[ /-]{_NAMED_MONTH}[ /-](?P<year>\d{{4}})[ :T]{_TIME}"),
    re.compile(rf"{_DAY_AND_TIME} (?P<year>[12]\d{{3}})(?!\d)"),  # ctime: Wed Nov 25 12:00:07 2026
    re.compile(  # Meta Lingua: 26-01-05 08:00:00.509680 - 0:00:20 - step: 1
        r"(?<![\d-])(?P<year>\d\d)-(?P<month>\d\d)-(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d)\.(?P<fraction>\d{6}) - "
    ),
    re.compile(r"^[IWE](?P<month>\d\d)(?P<day>\d\d) (?P<time>\d\d:\d\d:\d\d)\.(?P<fraction>\d{1,9})"),  # glog, absl
    re.compile(rf"^{_DAY_AND_TIME}"),  # syslog, journald
)
_YEAR_LAST = re.compile(
    r"(?<![\d./-])(?P<date>(?P<month>\d\d?)(?P<mark>[/.-])(?P<day>\d\d?)(?P=mark)[12]\d{3})(?:, ?|[ T]{1,2})"
    r"(?P<hour>\d\d?):\d\d:\d\d(?:[.,]\d{1,9})?(?P<half> ?[AaPp][Mm]\b)?(?![\d:])"
)
_UNKNOWN_YEAR = "1972"  # a leap year: every day of a stamp without a year exists


class Moment(NamedTuple):
    """The time at which a row was written."""

    seconds: float
    """Since 1970; a stamp without a time zone is read as UTC."""
    resolution: float
    """The last digit of the stamp, in seconds."""
    has_year: bool = True


class TimeMark(NamedTuple):
    """One logged row: the number of its step and when it was written."""

    line: int | None
    step: int
    moment: Moment
    loss: float | None = None
    learning_rate: float | None = None
    interrupted_by: str = ""
    """Validation or checkpoint announced since the previous row; empty for none."""


LEAST_STAMPS = 3


def doubtful_dates(text: str, *, of_any_program: bool) -> Notice | None:
    """Return a note on dates of numbers with the year last, unless all are read: 11/25/2026 12:00:07, month first.

    Fewer than LEAST_STAMPS are no dates of rows: a model's answer may contain one. of_any_program: no framework is
    known to print them with the month first.

    >>> doubtful_dates("25/11/2026 12:00:07\\n" * 3, of_any_program=False).code
    'dates_unread'
    >>> doubtful_dates("11/25/2026 12:00:07\\n" * 3, of_any_program=True) is None
    True
    """
    stamps = list(_YEAR_LAST.finditer(text))
    if len(stamps) < LEAST_STAMPS:
        return None
    for stamp in stamps:
        is_padded = len(stamp["month"]) == len(stamp["day"]) == len(stamp["hour"]) == 2
        if stamp["mark"] != "/" or stamp["half"] or not is_padded or int(stamp["month"]) > 12:
            return Notice("dates_unread", "dates", example=stamp["date"])
    if stamps and of_any_program and all(int(stamp["day"]) <= 12 for stamp in stamps):
        return Notice("dates_assumed", "dates", example=stamps[0]["date"])
    return None


StampPlaces = dict[str, slice]
"""Places of a stamp's parts in a line, and in every line that differs from it in digits alone, by name."""


def moment_in(text: str) -> Moment | None:
    """Return a date and time in a text: the first that begins with the year, or else the first in another spelling.

    >>> moment_in("2026-01-05 08:00:00,250 INFO"), moment_in("no date")
    (Moment(seconds=1767600000.25, resolution=0.001, has_year=True), None)
    >>> moment_in("2026-01-05T09:30:00.250+01:30 step 1").seconds
    1767600000.25
    """
    return next(filter(None, (_moment(match.groupdict()) for match in _stamps_in(text))), None)


def date_in(text: str) -> float | None:
    """Return the first date and time in a text, as seconds since the epoch; None without one that names its year.

    >>> date_in("[titan] 1970-01-02 00:00:01,500 - root"), date_in("19700102 00:00:01"), date_in("Jan  2 00:00:01")
    (86401.5, 86401.0, None)
    """
    found = moment_in(text)
    return found.seconds if found is not None and found.has_year else None


def stamp_places(text: str, own: int) -> StampPlaces | None:
    """Return the places of the stamp that `written_at` tries first. own: where the prefixes of the line end."""
    for start, end in ((own, own + OWN_STAMP_CHARACTERS), (0, STAMP_CHARACTERS)):
        if match := next(_stamps_in(text[start:end]), None):
            parts = (name for name, part in match.groupdict().items() if part is not None)
            return {name: slice(start + match.start(name), start + match.end(name)) for name in parts}
    return None


def _stamps_in(text: str) -> Iterator[re.Match[str]]:
    return (match for pattern in _STAMPS if (match := pattern.search(text)))


def moment_at(text: str, places: StampPlaces) -> Moment | None:
    """Return the moment of a stamp; None for a date that does not exist."""
    return _moment({name: text[place] for name, place in places.items()})


def _moment(parts: Mapping[str, str | None]) -> Moment | None:
    year, month, day = parts.get("year"), parts["month"] or "", parts["day"] or ""
    if year and len(year) == 2:
        year = f"20{year}"
    if month.isalpha():
        month, day = f"{MONTHS.index(month) + 1:02}", day.replace(" ", "0")
    try:
        hour, minute, second = map(int, (parts["time"] or "").split(":"))
        date = datetime(int(year or _UNKNOWN_YEAR), int(month), int(day), hour, minute, second, tzinfo=timezone.utc)
    except ValueError:  # no calendar has it
        return None
    seconds = date.timestamp()
    if zone := parts.get("zone"):
        ahead = 3600 * int(zone[1:3]) + 60 * int(zone[-2:])
        seconds -= ahead if zone[0] == "+" else -ahead
    fraction = parts.get("fraction") or ""
    return Moment(seconds + float(f"0.{fraction}0"), 10.0 ** -len(fraction), year is not None)


def written_at(text: str) -> Moment | None:
    """Return when a line was written: by its own stamp, or else by one that a launcher or collector put before it."""
    own = prefixes.strip(text[: 2 * STAMP_CHARACTERS])
    return moment_in(own[:OWN_STAMP_CHARACTERS]) or moment_in(text[:STAMP_CHARACTERS])


def timed_steps(marks: Sequence[TimeMark]) -> Steps:
    """Return rows timed by the clock between marks; the first of a stretch has no time, and too short rows are merged.

    The first row of a log of every so many steps covers as many as the second, without a time.

    A row that repeats the number before it is another rank's, and is left out, unless half the usual time between rows
    has passed; then, and where the number goes back, the training restarted. A clock that is set back, as at the end of
    summer time, begins another stretch: no time spans that moment. Another segment begins after a pause
    (`longest_gap`).
    """
    if not len(marks):
        return Steps({})
    names = ("seconds", "resolution", "has_year")
    seconds, resolution, has_year = (np.array([getattr(mark.moment, name) for mark in marks]) for name in names)
    index = np.array([mark.step for mark in marks])
    grown, distance = np.diff(seconds), np.diff(index)
    late = median(grown[grown > 0]) / 2 if (grown > 0).any() else inf
    pace = np.where(distance > 0, grown / np.maximum(distance, 1), 0.0)
    other_work = np.array([INTERRUPTIONS.index(mark.interrupted_by) for mark in marks], np.int8)
    begins = np.flatnonzero((pace > longest_gap(pace)) & (other_work[1:] == 0)) + 1
    clock = _Clock(index.tolist(), seconds.tolist(), resolution.tolist(), other_work.tolist(), float(late))
    rows = [row for ends in pairwise([0, *begins.tolist(), len(marks)]) for row in clock.rows_between(*ends)]
    if len(marks) > 1:
        rows[0] = (0, nan, first_interval(*index[:2].tolist()), True)
    place, time, covers, is_dated = (np.array(column) for column in zip(*rows, strict=True))
    kept = [marks[at] for at in place.tolist()]
    losses, rates = (
        np.array([getattr(mark, name) for mark in kept], np.float64)  # None becomes NaN
        for name in ("loss", "learning_rate")
    )
    optional = {
        "ended_at": np.where(is_dated & has_year[place], seconds[place], np.nan),
        "learning_rate": rates,
        "seconds": time,
    }
    columns = {
        "index": index[place],
        "covers": covers,
        "interrupted_by": other_work[place],
        "segment": np.searchsorted(begins, place, side="right"),
        "line": np.array([-1 if mark.line is None else mark.line for mark in kept]),
        "loss": losses,
        **{name: column for name, column in optional.items() if not np.isnan(column).all()},
    }
    return Steps(columns, logged_nan={"loss": np.isnan(losses) & [mark.loss is not None for mark in kept]})


def pauses(steps: Steps) -> list[tuple[int, str]]:
    """Return (line, reason) of those rows of `timed_steps` that follow a pause."""
    segment, index, line = (steps.column(name) for name in ("segment", "index", "line"))
    behind = np.flatnonzero((np.diff(segment) > 0) & (np.diff(index) > 0)) + 1
    return [(int(line[row]), "a pause between rows that is far longer than the usual gap") for row in behind]


def longest_gap(gaps: np.ndarray) -> float:
    """Return the seconds beyond which a gap between steps is a pause."""
    known = gaps[gaps > 0]
    return max(LEAST_PAUSE, LONG_PAUSE * median(known)) if len(known) else inf


_TimedRow = tuple[int, float, int, bool]
"""Place of its mark, mean seconds of a step (NaN if unknown), steps that it covers, and True if its date counts."""


class _Clock(NamedTuple):
    """Marks in columns."""

    steps: list[int]
    seconds: list[float]
    resolutions: list[float]
    other_work: list[int]
    late: float
    """Seconds after which a row with the number before it is no other rank's."""

    def rows_between(self, begin: int, end: int) -> Iterator[_TimedRow]:
        """Yield the rows between two pauses."""
        steps, seconds = self.steps, self.seconds
        start = last = begin
        yield begin, nan, 1, True
        for place in range(begin + 1, end):
            distance, passed = steps[place] - steps[last], seconds[place] - seconds[last]
            if distance <= 0:
                if distance == 0 and passed <= self.late:
                    continue
                yield place, nan, 1, True
                start = place
            elif self.other_work[place] or passed < 0:
                if last != start:
                    yield last, self._pace(start, last), steps[last] - steps[start], True
                yield place, *((nan, 1) if passed < 0 else (self._pace(last, place), distance)), True
                start = place
            elif (pace := self._pace(start, place)) == pace:
                yield place, pace, steps[place] - steps[start], True
                start = place
            last = place
        if last != start:  # too near its predecessor for a time or a date
            yield last, nan, steps[last] - steps[start], False

    def _pace(self, before: int, after: int) -> float:
        """Return the mean time of a step between two marks, NaN where their stamps are too coarse for it."""
        grown = self.seconds[after] - self.seconds[before]
        if grown <= 0 or max(self.resolutions[before], self.resolutions[after]) > CLOCK_SHARE * grown:
            return nan
        pace = grown / (self.steps[after] - self.steps[before])
        return pace if pace < LONGEST_STEP_SECONDS else nan


def with_dates(log: Log, reading: Reading) -> Reading:
    """Return the reading with the date of each row, if the lines carry dates and the reader stored none itself.

    Stamps without a year give the rows no dates; only the audit uses them, as a clock.
    """
    steps, stated = reading.steps, reading.evidence.elapsed
    known = steps.has("ended_at") or (stated is not None and stated.of_calls) or reading.timing == "timestamps"
    if known or log.is_folder or log.is_binary:
        return reading
    lines = np.sort(steps.column("line"))
    places = lines[np.diff(lines, prepend=0) > 0]
    if len(places) < FEWEST_STEADY or lines[0] <= 0:
        return reading
    if not stamps_of(log, places[:_LOOKED_AT].tolist()):
        return reading
    found = stamps_of(log, places.tolist())
    moments = [found.get(line) for line in steps.column("line").tolist()]
    seconds = np.array([np.nan if moment is None else moment.seconds for moment in moments])
    if all(moment.has_year for moment in found.values()):
        return replace(reading, steps=steps.replace(ended_at=seconds))
    clock = Elapsed(
        name=DATES,
        seconds={line: moment.seconds for line, moment in found.items()},
        resolution=max(moment.resolution for moment in found.values()),
        by="line",
    )
    return replace(reading, evidence=replace(reading.evidence, dates=clock))


def stamps_of(log: Log, lines: list[int]) -> dict[int, Moment]:
    """Return the stamps of those of some ascending lines that have one; a redrawn line counts by its last stamp."""
    wanted, found = set(lines), dict[int, Moment]()
    for line, text in log.bare_lines() if lines else ():
        if line > lines[-1]:
            break
        if line in wanted and (stamp := written_at(text)):
            found[line] = stamp
    return found
