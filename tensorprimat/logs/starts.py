"""Detection of where trainings begin in a log: by lines of frameworks and launchers, and by the rows themselves.

A training begins if there are rows before and after, and between them one of these: a line that frameworks and
launchers write when training starts (`Format.starts`, _LAUNCHERS), ends (`Format.ends`) or dies (DEATHS). It also
begins if the number of the step goes back, if the work of a step changes, or if the reader reports it
(`Reading.begins`: another world size in the rows).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tensorprimat.core.steady import median
from tensorprimat.facts import data_rows
from tensorprimat.logs import changes, files, prefixes
from tensorprimat.logs.format import Format, Reading
from tensorprimat.logs.formats import FORMATS
from tensorprimat.logs.text import HEAD_BYTES, Log, lines_of, window_of
from tensorprimat.system.failures import DEATHS, TRACEBACK

_TEXTS = {
    name: tuple(text.encode() for text in texts) for name, texts in data_rows.read_data("training_starts").items()
}
"""Lists of data/training_starts.toml, which describes each of them."""
PRELUDE, _LAUNCHERS = _TEXTS["prelude"], _TEXTS["launchers"]
SAYS_SIZE, ONE_OF_MANY = _TEXTS["says_size"], _TEXTS["one_of_many"]
VAST = ("megatron",)
"""Formats whose readers pass over most of the text: to search all of it for marks would take longer than to read it."""
SHORT_BYTES = 2**21

MOST_STARTS = 8  # a line in more gaps between rows than this, and than EVERY_ROWS of all, starts no training
EVERY_ROWS = 0.3
TAKEN_AS_ROWS = 5  # hits of a format's needle that are rows: all further hits count as rows, too
GIVEN_UP = 50  # hits that are not rows: the needle is not searched any further
INSIDE = 2**31  # line number at which no reader expects the beginning of a document
ROW_BYTES = 1000  # around a needle, in which a row, or a block of lines, of another format is looked for
MANY_ROWS = 20_000  # of several lines each: only unusually long gaps are searched, and a sample of all
SAMPLED_GAPS = 1000
UNUSUAL_LINES = 20  # beyond twice the median distance of rows: dumps of arguments have hundreds of lines
_SEARCHED_BYTES = 64 * 2**20  # of a log whose rows are means, where no row has a line


class StartMark(NamedTuple):
    """A line which states that training starts or has ended."""

    line: int
    text: bytes
    kind: str
    """As `_literals` names it; "row" for a row of another format, "own" for one of this format that was not read."""
    rest: bytes = b""
    """Rest of the line after the text."""
    rank: int | None = None
    """Rank that wrote the line, where its prefix says so; of kinds that each rank prints."""


class Cut(NamedTuple):
    """The first line of a segment, and why it begins there."""

    line: int
    reason: str


class Landmarks(NamedTuple):
    """The rows of a log, and the lines between them that may start or end a training."""

    rows: np.ndarray
    """Lines of the rows, ascending."""
    going_back: list[int]
    """Positions among the rows at which the reader found that the numbers of steps go back."""
    marks: list[StartMark]
    unread: bool
    """Rows of this format follow the last one that was read: those of another rank, or the same ones again."""


def find_landmarks(log: Log, format: Format, whole: Reading) -> Landmarks:
    """Return what `segment_cuts` and `doubtful` look at."""
    rows, going_back = _rows_of(log, format, whole)
    marks = list(_marks(log, format, rows, whole)) if len(rows) else []
    unread = any(mark.kind == "own" and mark.line > rows[-1] for mark in marks)
    return Landmarks(rows, going_back, [mark for mark in marks if mark.kind != "own"], unread)


def segment_cuts(log: Log, format: Format, whole: Reading, landmarks: Landmarks) -> list[Cut]:
    """Return the lines at which segments begin, in ascending order, without the first segment."""
    rows, going_back, every_mark, _ = landmarks
    if not len(rows):
        return []
    certain = {place: Cut(int(rows[place]), reason) for place, reason in changes.of_work(whole.steps)}
    certain |= {place: Cut(int(rows[place]), "the number of the step goes back") for place in going_back}
    certain |= {int(np.searchsorted(rows, line)): Cut(line, reason) for line, reason in reversed(whole.begins)}
    if format.opens:
        for place in [place for place in certain if place < len(rows)]:
            begin = row_opening(log, format, int(rows[place - 1]) if place else 0, int(rows[place]))
            certain[place] = certain[place]._replace(line=begin)
    marks = list(_without_late_ranks(every_mark))
    by_gap: dict[int, list[StartMark]] = {}
    for place, mark in zip(np.searchsorted(rows, [mark.line for mark in marks]).tolist(), marks, strict=True):
        if place == len(rows) or rows[place] != mark.line:  # a row itself is none
            by_gap.setdefault(place, []).append(mark)
    searched = len(_searched(rows, whole, every_gap=True)) if _is_sampled(np.diff(rows)) else len(rows)
    by_gap = _believable(by_gap, (len(rows), searched), {0, len(rows), *certain})
    found: list[Cut] = []
    for gap in sorted({*by_gap, *certain}):
        if gap == 0 and gap not in by_gap:
            continue
        before, next_row = int(rows[gap - 1]) if gap else None, int(rows[gap]) if gap < len(rows) else None
        found += _cuts_in(by_gap.get(gap, []), certain.get(gap), before, next_row)
    return found


def doubtful(
    format: Format, whole: Reading, landmarks: Landmarks, known: Sequence[Cut]
) -> tuple[int, list[tuple[int, int]]]:
    """Return the line of the first row, and first and last line of each stretch that may state other settings.

    These are the gaps between rows in which no known cut lies, and the attempts to start before the first row.
    """
    rows = landmarks.rows
    if not len(rows):
        return 0, []
    cut_at = np.array([cut.line for cut in known], np.int64)
    head: list[tuple[int, int]] = []
    gaps: list[tuple[int, int]] = []
    for first, last in _searched(rows, whole, every_gap=format.name not in VAST)[:-1]:
        if not ((cut_at >= first) & (cut_at <= last + 1)).any():
            (head if last < rows[0] else gaps).append((first, last))
    if head:
        marks = [mark for mark in landmarks.marks if mark.line < rows[0] and mark.kind == "start"]
        begins, seen = [1], set[bytes]()
        for mark in marks:
            statement = mark.text + re.split(rb"[:=]", mark.rest)[0] if mark.text in ONE_OF_MANY else mark.text
            if statement in seen:
                begins, seen = [*begins, mark.line], set()
            seen.add(statement)
        head = [(begin, end - 1) for begin, end in zip(begins, [*begins[1:], int(rows[0])], strict=True)]
    return int(rows[0]), [*(head if len(head) > 1 else []), *gaps]


def _cuts_in(
    marks: Sequence[StartMark], certain: Cut | None, before: int | None, next_row: int | None
) -> Iterator[Cut]:
    """Yield the places between two rows at which segments begin.

    before, next_row: lines of the two rows. certain: the latest place at which a segment begins, if that is known
    beforehand. The first settings of another format may precede its first mark, so its training begins right after the
    row before, or after the text that ends that row's training.
    """
    ends = [mark for mark in marks if mark.kind == "end"]
    ends = ends if next_row else ends[:1]  # later ones may be of a rank whose rows are not read
    after = [mark for mark in marks if not ends or mark.line > ends[-1].line]
    starts = [mark for mark in after if mark.kind in ("start", "foreign", "row")]
    deaths = [mark for mark in marks if mark.kind == "death"]
    at: int | None = None
    if before is not None and (certain or starts or ((ends or deaths) and next_row)):
        reason = certain.reason if certain else _reason(starts or ends or deaths)
        opening = [mark.line for mark in after if mark.kind in ("start", "foreign", "row", "prelude")]
        if certain:
            opening.append(certain.line)
        at = min(opening) if opening else ends[-1].line + 1 if ends else next_row
        if any(mark.kind in ("row", "foreign") and mark.line == at for mark in after):
            at = max([before, *(mark.line for mark in ends)]) + 1
        if at is not None:
            yield Cut(at, reason)
    yield from _attempts([mark for mark in marks if at is None or mark.line >= at], next_row)


def row_opening(log: Log, format: Format, before: int, line: int) -> int:
    """Return the first line of the row that ends in `line`. before: the line of the row before it."""
    if not format.opens:
        return line
    begin, end, _ = files.offsets_of_lines(log.path, [before + 1, line + 1])
    block = b"".join(files.blocks_between(log.path, begin, end))
    opens = [number for number, text in lines_of(before + 1, block) if re.search(format.opens, text)]
    return opens[-1] if opens else line


def _attempts(marks: Sequence[StartMark], next_row: int | None) -> Iterator[Cut]:
    """Yield the places at which a training starts while the one before has no row yet, and so died."""
    seen: dict[bytes, bytes] = {}
    begin: StartMark | None = None
    foreign: StartMark | None = None
    died = False
    for mark in marks:
        if mark.kind in ("death", "crash"):
            died, begin = True, None
        elif mark.kind == "prelude" or mark.text in _LAUNCHERS:
            begin = begin or mark
        elif mark.kind in ("foreign", "row"):
            foreign, begin = mark, None
        elif mark.kind == "start":
            again = mark.text in seen
            other_words = again and mark.text in SAYS_SIZE and mark.rest != seen[mark.text]
            if (foreign and (again or not seen)) or (again and died) or other_words:
                yield Cut((begin or mark).line, _reason([mark]))
                seen, died, foreign = {}, False, None
            begin = (begin or mark) if again else None
            seen[mark.text] = mark.rest
    if foreign and foreign.kind == "row" and next_row:
        yield Cut(begin.line if begin else foreign.line + 1, "rows of another format end")


def _reason(marks: Sequence[StartMark]) -> str:
    return f"'{marks[0].text.decode().strip()}' in line {marks[0].line}"


def _rows_of(log: Log, format: Format, whole: Reading) -> tuple[np.ndarray, list[int]]:
    """Return lines of rows, ascending, and the positions among them at which a reader found that numbers go back."""
    lines, segment = whole.steps.column("line"), whole.steps.column("segment")
    known = lines > 0
    if not known.any():
        return np.array(list(_lines_of_rows(log, format)), np.int64), []
    lines, segment = lines[known], segment[known]
    if (np.diff(lines) > 0).all() and not segment.any():
        return lines, []
    order = np.argsort(lines, kind="stable")
    lines, segment = lines[order], np.maximum.accumulate(segment[order])
    return lines, (np.flatnonzero(np.diff(segment) > 0) + 1).tolist()


def _lines_of_rows(log: Log, format: Format) -> Iterator[int]:
    """Yield the lines of rows of a log from which the reader takes no rows, only means."""
    if log.size_bytes > _SEARCHED_BYTES:
        return
    for number, block in log.numbered_blocks(HEAD_BYTES):
        if any(needle in block for needle in format.needles):
            for line, text in lines_of(number, block):
                if any(needle in text.encode() for needle in format.needles) and format.detect(
                    Log(log.path, window=[(line, text)])
                ):
                    yield line


def _believable(
    by_gap: Mapping[int, list[StartMark]], counts: tuple[int, int], certain: Collection[int]
) -> dict[int, list[StartMark]]:
    """Leave out marks that occur between so many rows that they cannot start or end a training.

    Rows of another format belong to another training only if far more of them follow one another than usual between two
    rows of this format. counts: numbers of rows and of searched gaps; certain: gaps in which a training begins anyway.
    """
    rows, searched = counts
    counted = Counter(text for gap, marks in by_gap.items() if gap not in certain for text in {m.text for m in marks})
    common = {text for text, gaps in counted.items() if gaps > max(MOST_STARTS, EVERY_ROWS * searched)}
    foreign = {gap: sum(mark.kind == "row" for mark in marks) for gap, marks in by_gap.items()}
    inside = sorted(count for gap, count in foreign.items() if 0 < gap < rows)
    usual = inside[len(inside) // 2] if 2 * len(inside) > searched else 0
    believed = {}
    for gap, marks in by_gap.items():
        alien = foreign[gap] > 3 * usual + 2
        kept = [mark for mark in marks if (alien if mark.kind == "row" else gap in certain or mark.text not in common)]
        if kept:
            believed[gap] = kept
    return believed


def _marks(log: Log, format: Format, rows: np.ndarray, whole: Reading) -> Iterator[StartMark]:
    """Yield every mark between rows, before the first or after the last, in the order of lines."""
    searched = _searched(rows, whole, every_gap=format.name not in VAST)
    if format.name in VAST and log.size_bytes > SHORT_BYTES:
        searched.pop()  # the lines after the last row are not searched for facts
    kinds = _literals(format)
    others = _OtherRows(log, format)
    firsts, lasts = np.array(searched, np.int64).reshape(-1, 2).T
    for number, block in log.numbered_blocks():
        if not len(lasts) or number > lasts[-1]:
            return
        begin = int(np.searchsorted(lasts, number))
        ends = np.flatnonzero(files.line_ends(block))
        end = int(np.searchsorted(firsts, number + len(ends), side="right"))
        if begin < end:  # from the first needed line in this block to the last
            skipped = max(0, int(firsts[begin]) - number)
            taken = min(len(ends), int(lasts[end - 1]) - number + 1)
            start = int(ends[skipped - 1]) + 1 if skipped else 0
            stop = int(ends[taken - 1]) + 1 if taken < len(ends) else len(block)
            yield from _marks_in(number + skipped, block[start:stop], kinds, others, format.needles)


def _without_late_ranks(marks: Iterable[StartMark]) -> Iterator[StartMark]:
    """Leave out lines about a start that another rank has already printed as often in the same words: the output of a
    rank may come late, even after the first rows.
    """
    counts: dict[tuple[bytes, bytes], Counter[int]] = {}
    for mark in marks:
        if mark.rank is not None:
            times = counts.setdefault((mark.text, mark.rest), Counter())
            most = max(times.values(), default=0)
            times[mark.rank] += 1
            if times[mark.rank] <= most:
                continue
        yield mark


class _OtherRows:
    """Search for rows of other formats, and of this one between those that were read, in blocks of a log."""

    def __init__(self, log: Log, format: Format) -> None:
        self._log = log
        self._needles = {needle: other for other in FORMATS for needle in other.needles if other.name != format.name}
        self._needles |= dict.fromkeys(format.needles, format)
        self._hits: Counter[bytes] = Counter()
        self._misses: Counter[bytes] = Counter()
        self._window: tuple[bytes, Log] = b"", log
        """The stretch of text that was examined last: needles of one row share it."""

    def within(self, block: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield (place, needle) of each row in a block."""
        for needle, other in self._needles.items():
            at = block.find(needle)
            while at >= 0 and self._misses[needle] < GIVEN_UP:
                if self._hits[needle] >= TAKEN_AS_ROWS or self._is_row(block, at, other):
                    self._hits[needle] += 1
                    yield at, needle
                else:
                    self._misses[needle] += 1
                at = block.find(needle, at + len(needle))

    def _is_row(self, block: bytes, at: int, other: Format) -> bool:
        start = block.rfind(b"\n", 0, max(0, at - ROW_BYTES)) + 1
        end = block.find(b"\n", at + ROW_BYTES)
        stretch = block[start : end if end >= 0 else None]
        if stretch != self._window[0]:
            self._window = stretch, Log(self._log.path, window=window_of(INSIDE, stretch))
        return other.detect(self._window[1]) > 0


_PRINTED_BY_EACH_RANK = ("start", "prelude", "foreign")
MARK_BYTES = 300  # of a line, from the place at which a mark begins


def _marks_in(
    number: int, block: bytes, kinds: Mapping[bytes, str], others: _OtherRows, own: Collection[bytes]
) -> Iterator[StartMark]:
    found = list(others.within(block))
    for text in kinds:
        at = block.find(text)
        while at >= 0:
            found.append((at, text))
            at = block.find(text, at + len(text))
    counted = 0
    for at, text in sorted(found):
        number += block.count(b"\n", counted, at)
        counted = at
        before = block[max(0, at - MARK_BYTES) : at]
        _, begins, prefix = before.rpartition(b"\n")
        end = block.find(b"\n", at, at + MARK_BYTES)  # a line of 16 MB may contain a hundred thousand marks
        rest = block[at + len(text) : end if end >= 0 else at + MARK_BYTES].strip()
        kind = kinds.get(text, "own" if text in own else "row")
        is_whole = prefix and (begins or at < MARK_BYTES)
        is_ranked = is_whole and kind in _PRINTED_BY_EACH_RANK
        rank = prefixes.split(prefix.decode("utf-8", "replace"))[0].rank if is_ranked else None
        yield StartMark(number, text, kind, rest, rank)


def _literals(format: Format) -> dict[bytes, str]:
    """Return text → kind of mark, for a log of this format."""
    own = {
        *_LAUNCHERS,
        *(text for one in FORMATS if one.name in (format.name, *format.together) for text in one.starts),
    }
    return {
        **dict.fromkeys((*PRELUDE, *format.settings), "prelude"),
        TRACEBACK.encode(): "crash",
        **dict.fromkeys((text.encode() for text in DEATHS), "death"),
        **dict.fromkeys(_LAUNCHERS, "start"),
        **{text: "start" if text in own else "foreign" for one in FORMATS for text in one.starts},
        **dict.fromkeys(format.ends, "end"),
    }


def _is_sampled(distance: np.ndarray) -> bool:
    """Return True for a long log in which there are usually other lines between two rows."""
    return len(distance) > MANY_ROWS and median(distance) > 1


def _searched(rows: np.ndarray, whole: Reading, *, every_gap: bool) -> list[tuple[int, int]]:
    """Return first and last line of each gap between rows that may contain a start; of VAST formats unusual ones."""
    distance = np.diff(rows)
    if every_gap:
        inside = distance > 1
        if _is_sampled(distance):
            inside &= (distance > median(distance)) | (np.arange(len(distance)) < SAMPLED_GAPS)
    else:
        usual = median(distance) if len(distance) else 1.0
        inside = distance > 2 * usual + UNUSUAL_LINES
        segment = whole.steps.column("segment")
        if len(segment) == len(rows):
            inside |= (np.diff(segment) != 0) & (distance > 1)
    gaps = [(int(rows[n]) + 1, int(rows[n + 1]) - 1) for n in np.flatnonzero(inside).tolist()]
    head = [(1, int(rows[0]) - 1)] if rows[0] > 1 else []
    tail = [(int(rows[-1]) + 1, 2**62)]
    return [*head, *gaps, *tail]
