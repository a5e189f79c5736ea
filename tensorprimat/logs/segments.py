"""Segments of a log: each training that began, restarted or resumed in it, with the settings that its own lines state.

A file often contains more than one training: `tee -a`, a job that was requeued, an elastic restart, a resume. Every
segment is read by the same reader from its own lines alone, so that no reader can mix their settings. A segment that
does not state all settings of the previous one (its iterations just go on, or go back) is read together with the lines
before the rows of that one, unless its own statements or its speed contradict them. `starts` finds the segments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from tensorprimat.core.errors import InputError
from tensorprimat.core.quantities import count
from tensorprimat.core.result import Result
from tensorprimat.core.steps import Steps
from tensorprimat.core.summary import SAME_LEVEL, pace_of
from tensorprimat.logs import changes, damage, failures, fields, files, headers, repeats, replays, starts
from tensorprimat.logs.format import Format, Reading
from tensorprimat.logs.replays import RepeatedText
from tensorprimat.logs.starts import Cut
from tensorprimat.logs.text import Log, Part

MOST_SEGMENTS = 5_000  # each is read separately; no job restarts so often
FEWEST_MIXED = 50  # beginnings of trainings, of which none has more than MOST_MIXED_ROWS rows
MOST_MIXED_ROWS = 3
_MIXED = "rows of several jobs or ranks may be mixed in it; give a file with the lines of one of them"
FEWEST_TURNS = 4  # stretches of rows that continue earlier ones
MOST_LOST = 2  # rows between a stretch and the one that continues it
_MOST_BYTES = 8 * 2**20  # between rows; a longer text states settings once, if at all
MOST_STRETCHES = 100  # that are read one by one if together they state other settings
ROWS_READ = 5  # enough for a reader to recognise its format, in addition to lines without rows
NOT_COMPARED = frozenset(("max_steps", "seed", "learning_rate", "warmup_steps", "window"))
"""Settings that may differ between segments of one benchmark."""
HEADER_BYTES = 64 * 2**20  # settings precede the first row, within this much text if at all


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One training in a log, by its own lines."""

    number: int
    """Number of the training, as --segment takes it: 1 is the first."""
    first_line: int
    last_line: int
    began_by: str
    inherits: bool
    """True if settings that the segment does not state are those of the segment before it."""
    alone: bool = False
    """True if the segment lacks some settings, and its speed shows that they are not those of the segment before it."""
    reading: Reading
    parts: tuple[Part, ...] = ()
    """Parts that were read; () for the whole log."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Arguments that the framework printed before the first row, as headers.printed returns them."""

    @property
    def steps(self) -> int:
        """Return the number of optimizer steps of its rows."""
        return int(self.reading.steps.column("covers").sum())

    @property
    def is_timed(self) -> bool:
        """Return True if a row states a time or a rate."""
        return any(map(self.reading.steps.has, fields.MEASURES))

    @property
    def facts(self) -> dict[str, Any]:
        """Return the stated facts that must agree among segments of one benchmark."""
        return _facts_of(self.reading)


def _facts_of(reading: Reading) -> dict[str, Any]:
    """Return the stated facts that must agree among segments of one benchmark."""
    settings = {name: value for name, value in reading.training_config.items() if name not in NOT_COMPARED}
    settings |= {f"model.{name}": value for name, value in reading.model.items()} | reading.facts
    settings |= {name: reading.gpu_info.get(name) for name in ("device_name", "pytorch_version", "software_version")}
    return {name: value for name, value in settings.items() if value is not None and value != {}}


def read_segments(log: Log, format: Format) -> Result | list[Segment]:
    """Read every segment of a log with its own facts; of a result file, return its Result.

    A log that contains one training, or none, has one segment.
    """
    whole = format.read(log)
    if isinstance(whole, Result):
        return whole
    repeats.refuse_newest_first(whole.steps, log.name)
    cuts, unread = ([], False) if log.is_folder or log.is_binary else _cuts(log, format, whole)
    with_prefixes = whole.timing == "timestamps" or not cuts
    again = replays.find_replays(log, whole.steps, with_prefixes, format.opens) if cuts or unread else []
    if again:
        log = replace(log, parts=replays.parts_without_replays(log, again))
        whole = format.read(log)
        if isinstance(whole, Result):
            return whole
        whole.warnings.append(replays.replay_note(again))
        cuts, _ = _cuts(log, format, whole)
        _refuse_rows_after_replays(log, format, again, cuts, whole)
    _refuse_mixed(log, cuts, whole.steps)
    _refuse_alternating(log, whole.steps)
    found = list(_read_each(log, format, cuts)) if cuts else []
    one_benchmark = all(not differences(found[0], other) for other in found[1:])
    for segment in found:
        segment.reading.warnings += [*whole.unread, *([replays.replay_note(again)] if again else [])]
    if not found or (one_benchmark and len(np.unique(whole.steps.column("run"))) > 1):  # the reader separates runs
        whole = _completed(log, whole, format)
        whole.warnings += whole.unread
        last = int(whole.steps.column("line").max(initial=1))
        arguments = headers.printed(headers.lines_before_rows(log, whole.steps))
        one = Segment(
            number=1, first_line=1, last_line=last, began_by="", inherits=False, reading=whole, arguments=arguments
        )
        return [one]
    return found


def _cuts(log: Log, format: Format, whole: Reading) -> tuple[list[Cut], bool]:
    """Return where segments begin, and True if rows follow that were not read.

    They begin at lines that say so, and where settings are stated again with other values.
    """
    landmarks = starts.find_landmarks(log, format, whole)
    cuts = starts.segment_cuts(log, format, whole, landmarks)
    _refuse_many(log, len(cuts))
    first_row, stretches = starts.doubtful(format, whole, landmarks, cuts)
    found = sorted([*cuts, *_restated_cuts(log, format, stretches, first_row)])
    _refuse_many(log, len(found))
    return found, landmarks.unread


def _restated_cuts(log: Log, format: Format, stretches: Sequence[tuple[int, int]], first_row: int) -> Iterator[Cut]:
    """Yield the first line of each stretch that states another value of a setting than was stated before.

    Of logs that were joined at an arbitrary line, the known lines of a start can be missing: only part of a banner is
    left, or a dump of arguments without its first line.

    stretches: first and last line of each, ascending; those before the first row each contain a whole attempt to start.
    """
    if not stretches:
        return
    ends = sorted(
        {line for first, last in stretches for line in (first, last + 1)} | {1, first_row, first_row + ROWS_READ}
    )
    offsets = dict(zip(ends, files.offsets_of_lines(log.path, ends), strict=False))

    def part(first: int, last: int) -> Part:
        return Part(first, offsets[first], offsets[last + 1])

    parts = [part(*stretch) for stretch in stretches]
    if sum(one.stop - one.start for one in parts) > _MOST_BYTES:
        return
    rows = part(first_row, first_row + ROWS_READ - 1)

    def stated(parts: Sequence[Part], left_out: Collection[str]) -> dict[str, Any]:
        reading = format.read(replace(log, parts=(*parts, rows)))
        if not isinstance(reading, Reading):
            return {}
        return {name: fact for name, fact in _facts_of(reading).items() if name not in (*reading.by_rows, *left_out)}

    by_rows = stated([], ()).keys()  # facts that the rows alone give
    known = stated([part(1, min(stretches[0][0], first_row) - 1)] if stretches[0][0] > 1 else [], by_rows)
    several = any(second[0] < first_row for _, second in pairwise(stretches))  # reading them together keeps one value
    if not _changed(known, stated(parts, by_rows)) and not several:
        return
    for one in parts[:MOST_STRETCHES]:
        settings = stated([one], by_rows)
        if changed := _changed(known, settings):
            name, (before, after) = next(iter(changed.items()))
            yield Cut(one.first_line, f"{name} is stated again, as {after} instead of {before}")
        known = {**known, **settings}


def _changed(known: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (known[name], settings[name]) for name in settings if name in known and known[name] != settings[name]}


def _refuse_rows_after_replays(
    log: Log, format: Format, again: Sequence[RepeatedText], cuts: Sequence[Cut], whole: Reading
) -> None:
    """Raise InputError for rows right after repeated text that lies behind another training: they may be of either."""
    rows, begins = np.unique(whole.steps.column("line")), np.array([cut.line for cut in cuts])
    for replay in again:
        end = replay.original + replay.last_line - replay.first_line
        following, between = rows[rows > replay.last_line], np.append(rows, begins)
        has_others = ((between > end) & (between < replay.first_line)).any()
        if not has_others or not len(following):
            continue
        row = starts.row_opening(log, format, replay.last_line, int(following[0]))
        if not ((begins > replay.last_line) & (begins < row)).any():
            raise InputError(
                f"lines {replay.first_line} to {replay.last_line} repeat earlier ones, and the rows after them may "
                "belong to that training or to the one in between",
                path=log.name,
                remedy="give a file with the lines of one training",
            )


def _refuse_many(log: Log, cuts: int) -> None:
    if cuts >= MOST_SEGMENTS:
        raise InputError(
            f"begins {count(cuts + 1)} trainings, and at most {count(MOST_SEGMENTS)} of one file are read",
            path=log.name,
            remedy=_MIXED,
        )


def _refuse_mixed(log: Log, cuts: Sequence[Cut], steps: Steps) -> None:
    """Raise InputError where trainings begin every few rows, as where the rows of two jobs alternate."""
    if len(cuts) < FEWEST_MIXED:
        return
    rows = np.histogram(steps.column("line"), [0, *sorted(cut.line for cut in cuts), 2**62])[0]
    if rows.max() <= MOST_MIXED_ROWS:
        raise InputError(
            f"begins {count(len(cuts) + 1)} trainings, none of which has more than {count(rows.max())} rows, too few "
            "to measure one",
            path=log.name,
            remedy=_MIXED,
        )


def _refuse_alternating(log: Log, steps: Steps) -> None:
    """Raise InputError where several trainings continue in turn, as where two jobs write rows into one log.

    Each time the number of the step goes back, it goes on from the end of an earlier stretch of rows. Restarts do not
    look so: they repeat the steps since a checkpoint, and leave nothing to continue.
    """
    if (steps.column("run") != 0).any():
        return
    repeats_others = (steps.column("covers") == 0) & np.isfinite(steps.column("seconds"))
    line, index = (steps.column(name)[~repeats_others] for name in ("line", "index"))
    if np.count_nonzero(np.diff(index) <= 0) < FEWEST_TURNS and (np.diff(line) >= 0).all():
        return  # nearly every log; sorting the lines of millions of rows takes a while
    order = np.argsort(line, kind="stable") if (line > 0).all() else np.arange(len(line))
    line, distance = line[order], np.diff(index[order])
    if np.count_nonzero(distance <= 0) < FEWEST_TURNS:
        return
    interval = fields.usual_distance(distance[distance > 0])
    begins = np.concatenate([[0], np.flatnonzero(distance != interval) + 1])
    firsts, lasts = index[order][begins], index[order][np.append(begins[1:] - 1, len(order) - 1)]
    going_on, found, lines = Counter[int](), 0, list[int]()
    for first, last, place in zip(firsts.tolist(), lasts.tolist(), begins.tolist(), strict=True):
        ended = next(
            (end for end in range(first, first - (MOST_LOST + 1) * interval, -interval) if going_on[end]), None
        )
        if ended is not None:
            going_on[ended] -= 1
            lines.append(int(line[place]))
        else:
            found += 1
        going_on[last + interval] += 1
    if len(lines) >= FEWEST_TURNS and len(lines) >= 2 * found:
        place = f" (first in line {lines[0]})" if lines[0] > 0 else ""
        raise InputError(
            f"holds rows of {found} trainings in turn: {count(len(lines))} times the steps go on from where an earlier "
            f"stretch of rows ended{place}, as where jobs write into one log",
            path=log.name,
            remedy="give a file with the lines of one of them",
        )


def differences(one: Segment, other: Segment) -> dict[str, tuple[Any, Any]]:
    """Return the settings that both state with different values: field → (value of one, value of the other).

    The work of a step, as the rows count and print it, is compared like a setting.
    """
    mine, theirs = one.facts, other.facts
    found = {name: (mine[name], theirs[name]) for name in mine if name in theirs and mine[name] != theirs[name]}
    return {**found, **changes.other_work(one.reading.steps, other.reading.steps)}


def benchmark_of(found: Sequence[Segment], number: int | None) -> list[Segment]:
    """Return the segments that are measured as one benchmark; the facts are those of the first.

    number: of the only segment to return. None takes the longest timed segment (the later one of two equally long ones)
    and all segments whose facts do not differ from its own.
    """
    if number is not None:
        return [segment for segment in found if segment.number == number]
    longest = max(found, key=lambda segment: (segment.is_timed, segment.steps, segment.number))
    if longest.alone:
        return [longest]
    return [longest, *(s for s in found if s is not longest and not s.alone and not differences(longest, s))]


def _read_each(log: Log, format: Format, cuts: Sequence[Cut]) -> Iterator[Segment]:
    """Read the lines between cuts, each stretch by itself; one without rows (an early crash) is not a segment."""
    firsts = [1, *(cut.line for cut in cuts)]
    *starts, end = files.offsets_of_lines(log.path, firsts)
    spans = list(zip(firsts, starts, [*starts[1:], end], strict=True))
    headers: list[tuple[Segment, tuple[Part, ...]]] = []
    number = 0
    for (first, start, stop), cut in zip(spans, [Cut(1, ""), *cuts], strict=True):
        own = replays.within(log.parts, Part(first, start, stop))
        if not own:
            continue
        before, header = headers[-1] if headers else (None, ())
        inherited: tuple[Part, ...] = ()
        segment = _read_one(log, format, own, number + 1, cut.reason)
        if segment is None and header:  # rows that cannot be read without the lines above them: those of a CSV
            segment = _read_one(log, format, (*header, *own), number + 1, cut.reason)
            segment = segment and replace(segment, first_line=first)
            inherited = header
        if segment is None:
            continue
        if before is not None and not differences(before, segment) and set(before.facts) - set(segment.facts):
            with_header = _read_one(log, format, (*header, *own), number + 1, cut.reason)
            if with_header is None or differences(with_header, segment):
                pass
            elif _is_other_speed(before, with_header):
                segment = replace(segment, alone=True)
            else:
                segment, inherited = replace(with_header, inherits=True, first_line=first), header
        number += 1
        headers.append((segment, (*inherited, *_header(log, format, segment, own))))
        yield segment


def _is_other_speed(one: Segment, other: Segment) -> bool:
    """Return True if the speeds of two segments differ too much for trainings with the same settings."""
    paces = [pace_of(segment.reading.steps.take(slice(1, None))) for segment in (one, other)]
    mine, theirs = (pace[np.isfinite(pace)] for pace in paces)
    return bool(len(mine) and len(theirs)) and abs(np.median(mine) / np.median(theirs) - 1) > SAME_LEVEL


def _read_one(log: Log, format: Format, parts: tuple[Part, ...], number: int, reason: str) -> Segment | None:
    """Return one segment; None where its lines contain no row and no rate."""
    part = replace(log, parts=parts)
    reading = format.read(part)
    if isinstance(reading, Result) or not (len(reading.steps) or reading.reported):
        return None
    reading = _completed(part, reading, format)
    last = max(part.count_lines(), int(reading.steps.column("line").max(initial=1)))
    return Segment(
        number=number,
        first_line=parts[0].first_line,
        last_line=last,
        began_by=reason,
        inherits=False,
        reading=reading,
        parts=parts,
        arguments=headers.printed(headers.lines_before_rows(part, reading.steps)),
    )


def _completed(log: Log, reading: Reading, format: Format) -> Reading:
    """Return what was read from a training with its number of GPUs, its end, the steps of its rows, and no odd rows."""
    reading = headers.with_header(log, reading, whole_sequences=format.last_resort)
    failures.examine(log, reading)
    reading.warnings += damage.leave_out(reading)
    if (reading.steps.column("covers") == 1).all():
        reading.steps = fields.with_intervals(reading.steps)
    return reading


def _header(log: Log, format: Format, segment: Segment, own: Sequence[Part]) -> tuple[Part, ...]:
    """Return the lines of a segment before its first row, which state its settings."""
    lines, first = segment.reading.steps.column("line"), own[0].first_line
    if not len(lines) or int(lines.min()) <= first:
        return ()
    first_row = starts.row_opening(log, format, first - 1, int(lines.min()))
    if first_row <= first:
        return ()
    stop = files.offsets_of_lines(log.path, [first_row])[0]
    return replays.within(own, Part(first, own[0].start, min(stop, own[0].start + HEADER_BYTES)))
