"""Signs of rows that were joined inside a number, and of lines that were all cut or folded at one column.

A number that lost digits can look complete to its reader, because a delimiter follows. The other rows show it: a
framework prints a metric with the same number of decimals on every row, and once per row. Metrics that may take several
forms are not checked: `repr` drops a zero at the end, and a small learning rate gets an exponent.
Lines that were all cut or folded share a width.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from tensorprimat.core.errors import InputError
from tensorprimat.core.notices import Notice
from tensorprimat.core.steps import Steps
from tensorprimat.logs import headers
from tensorprimat.logs.text import Log

_MOST_BYTES = 8 * 2**20  # of a log: in a larger one a single row does not move a mean by much
_LONGEST_ROW = 2**14
ODD_SHARE = 0.02  # share of rows that may be damaged; above it the framework prints them that way
_LABEL_CHARACTERS = 32
UNIT_CHARACTERS = 8
LEAST_REST = 6
LOOKED_AT_ROWS = 50  # for decimal commas

_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?P<whole>\d{1,20}(?:,\d{3})*)(?P<point>\.(?P<decimals>\d{0,20}))?(?:[eE](?P<exponent>[-+]?\d{1,3}))?"
)
_CLOCK = re.compile(r"\d\d?:\d\d:\d\d[.,]\d+|\d{4}-\d\d-\d\d")
_COMMA = re.compile(
    r"(?<![\w.,])[-+]?(?:0,\d{1,20}|\d{1,20},(?!\d{3}(?!\d))\d{1,20})(?:[eE][-+]?\d{1,3})?(?![\w.,]*\d)"
)
"""A number whose comma is not a separator of thousands."""
_POINT = re.compile(r"\d\.\d")
_ANY_DIGIT = str.maketrans("012345678", "9" * 9)
_UNEVEN = re.compile(r"lr\b|lr[ (:_]|learning|norm|scale|epoch|eta\b|version", re.IGNORECASE)
"""Metrics that frameworks print with %g or that change their size by much."""
_WRITTEN = r"(?P<value>\d{1,3}(?:[ '\u00a0\u2009\u202f\u2019]\d{3})+(?:\.\d{1,20})?|\d{1,9}(?: ?\*{1,2} ?\d{1,9})+)"
_MAY_BE_WRITTEN = re.compile(r"\d(?:[ '\u00a0\u2009\u202f\u2019]\d{3}| ?\*)")  # most lines contain none: saves time
_RATE = r"(?P<name>(?:tok(?:en)?s?|samples?)/s(?:ec|econd)?(?:/gpu)?)"
_NO_NUMBERS = (
    re.compile(
        r"(?P<name>[a-z_]{0,40}(?:batch|seq|length|tok|step|iter|gpu|devices|world|time)[a-z_]{0,40})['\"]?"
        rf"(?:=|: ?)['\"]?{_WRITTEN}(?=[\s,)}}\]'\"]|$)"
    ),
    re.compile(rf"{_RATE}[:=]? {{0,4}}{_WRITTEN}(?=[\s,;|)]|$)"),
    re.compile(rf"(?:^|[|,;(:=]) ?{_WRITTEN} ?{_RATE}(?=[\s,;|)]|$)"),
)
"""Settings and rates whose value readers do not take for one number."""
LAST_CHARACTERS = 128  # contain the last number of a line and its label
LEAST_ROWS = 6
LEAST_SHARE = 0.8  # least share of the rows that must show a sign
LEAST_WIDTH = 20
KIND_CHARACTERS = 16
LEAST_DECIMALS = 2  # of numbers that lack no digit that matters

_LAST_LABEL = re.compile(r"[A-Za-z][^\d]{0,40}[\d.,eE+-]*$")
_LAST_NUMBER = re.compile(r"[A-Za-z][^\d]{0,40}?(?P<number>[-+]?\d[\d.,eE+-]*)$")
_OF_NUMBERS = "0123456789.,eE+-"
_CODE_PLACE = re.compile(r"\.(?:py|cc|cpp|c|h|cu):\d+$")
"""A place in the source code at the end of a padded line, as loggers print it: trainer.py:99."""
MOST_KINDS_AT_ONE_WIDTH = 3  # rows and, by chance, one or two other kinds of line
LEAST_FOLDED = 3  # lines broken in a number at one width: fewer may be chance
FOLDED_SHARE = 0.5  # of the longest lines that end in a number
_NUMBER_ENDS = re.compile(r"\d[.,]?$")
_STAMP = (  # date, time of day, Unix time
    r"\d{4}-\d\d-\d\d|\d\d?[.]\d\d?[.]20\d\d\b|20\d{6}(?!\d)"
    r"|\d\d?[:/]\d\d|\d\d[ /-][A-Z][a-z]{2}\b|1\d{9}(?:\d{3}){0,3}(?!\d)"
)
_PREFIX = r"\d{1,5}: |\d{1,3}(?:\.\d{1,3}){3}(?!\d)"  # rank of srun --label, address of pdsh
_NUMBER_GOES_ON = re.compile(rf"[.,]?(?!{_STAMP}|{_PREFIX})\d")
_ROW_OF_TABLE = re.compile(r"[\d\s.,;+\-eE:/TZ]*$")  # numbers and dates alone: rows of a CSV are often equally long


class _Printed(NamedTuple):
    line: int
    label: str
    decimals: int
    text: str


def unread_numbers(log: Log) -> list[Notice]:
    """Return a warning about the first value in the head of a log that is not wholly a number."""
    head = list(log.head())
    if any(headers.LINE_OF_A_PROGRAM.match(text) for _, text in head):
        return []
    may_be = ((line, text[:_LONGEST_ROW]) for line, text in head if _MAY_BE_WRITTEN.search(text))
    found = ((line, form.search(text)) for line, text in may_be for form in _NO_NUMBERS)
    return [
        Notice("number_unread", "numbers", line=line, name=match["name"], value=repr(match["value"]))
        for line, match in islice(((line, match) for line, match in found if match), 1)
    ]


def problems(log: Log, steps: Steps) -> list[str]:
    """Return a warning for each sign that rows were joined or cut inside a number.

    Raises InputError for rows with decimal commas, because 1,250 s would be read as 1250 s.
    """
    if log.is_folder or log.is_binary or len(steps) < LEAST_ROWS:
        return []
    if number := decimal_comma(_first_rows(log, steps)):
        raise InputError(
            f"the rows write decimal commas ({number}), which cannot be told from separators of thousands",
            path=log.name,
            remedy="write the log with decimal points (LC_NUMERIC=C), or replace the commas in a copy",
        )
    return [*_whole_losses(steps), *_of_lines(log, steps)]


def _of_lines(log: Log, steps: Steps) -> Iterator[str]:
    if log.size_bytes > _MOST_BYTES:
        return
    cited = _cited(steps)
    if len(cited) < LEAST_ROWS:
        return
    rows = set(cited.tolist())
    lines = [(line, text) for line, text in log.lines() if len(text) <= _LONGEST_ROW]
    if odd := odd_number([(line, text) for line, text in lines if line in rows], len(rows)):
        yield Notice("number_spelled_oddly", "steps", text=repr(odd.text), line=odd.line)
    if width := cut_width(lines, rows):
        yield Notice("lines_cut", "steps", width=width)


def _cited(steps: Steps) -> np.ndarray:
    """Return the lines of the rows, ascending, each once."""
    lines = steps.column("line")
    if (np.diff(lines) < 0).any():
        lines = np.sort(lines)
    return lines[(lines > 0) & (np.diff(lines, prepend=0) > 0)]


def _first_rows(log: Log, steps: Steps) -> list[str]:
    """Return the lines of the first rows."""
    cited = set(_cited(steps)[:LOOKED_AT_ROWS].tolist())
    found, size = [], 0
    for line, text in log.lines() if cited else ():
        size += len(text)
        if line in cited and len(text) <= _LONGEST_ROW:
            found.append(text)
        if line >= max(cited) or size > _MOST_BYTES:
            break
    return found


def decimal_comma(rows: Sequence[str]) -> str | None:
    """Return a number with a decimal comma if nearly all rows have one and none has a decimal point.

    >>> decimal_comma([f"step {n} loss 2,5 time 1,{n}50" for n in range(8)])
    '2,5'
    >>> decimal_comma([f"10:00:0{n},250 step {n} loss 2.5 tps 1,{n}50 gpus 0,1" for n in range(8)]) is None
    True
    """
    found = []
    for row in rows:
        plain = _CLOCK.sub(" ", row)
        if _POINT.search(plain):
            return None
        if match := _COMMA.search(plain):
            found.append(match[0])
    return found[0] if len(found) >= max(LEAST_ROWS, LEAST_SHARE * len(rows)) else None


def odd_number(lines: Sequence[tuple[int, str]], rows: int) -> _Printed | None:
    """Return the first number that lacks decimals which the same number has on the other rows, or that is there twice.

    Only a number of fixed decimals is judged: some of its values end in a zero, which repr and %g drop.

    >>> rows = [(n, f"step {n}: time 1.{n}50 s") for n in range(9)]
    >>> odd_number([*rows, (9, "step 9: time 1. s")], 10).text
    ': time 1.'
    >>> odd_number(rows, 9) is None
    True
    """
    alike: dict[str, list[int]] = {}  # of lines that differ in digits alone one is examined
    for place, (_, text) in enumerate(lines):
        alike.setdefault(text.translate(_ANY_DIGIT), []).append(place)
    found: defaultdict[str, list[tuple[int, list[int]]]] = defaultdict(list)
    for text, places in alike.items():
        for printed in _numbers(0, text):
            found[printed.label].append((printed.decimals, places))
    for label, listed in found.items():
        counts: Counter[int] = Counter()
        for decimals, places in listed:
            counts[decimals] += len(places)
        if counts.total() < max(LEAST_ROWS, LEAST_SHARE * rows) or _UNEVEN.search(label):
            continue
        most, usual = max(1, int(ODD_SHARE * counts.total())), counts.most_common(1)[0][0]
        odd = [(decimals, places[0]) for decimals, places in listed if decimals != usual]
        if usual > 1 and 0 < counts.total() - counts[usual] <= most and _is_fixed(lines, label, usual, listed):
            return next(one for one in _numbers(*lines[odd[0][1]]) if (one.label, one.decimals) == (label, odd[0][0]))
        of_line = Counter(place for _, places in listed for place in places)
        twice = [place for place, times in of_line.items() if times > 1]
        if 0 < len(twice) <= most:
            return next(one for one in _numbers(*lines[twice[0]]) if one.label == label)
    return None


def _is_fixed(
    lines: Sequence[tuple[int, str]], label: str, usual: int, listed: Sequence[tuple[int, list[int]]]
) -> bool:
    """Return True if a value with the usual decimals ends in a zero."""
    printed = (one for decimals, places in listed if decimals == usual for at in places for one in _numbers(*lines[at]))
    return any(one.label == label and one.text.endswith("0") for one in printed)


def _numbers(line: int, text: str) -> Iterator[_Printed]:
    """Yield the numbers of a line that has labels; in a line of numbers alone the place is the label."""
    end, place, labels = 0, 0, set[str]()
    bare = not any(character.isalpha() for character in text)
    if bare and " " not in text:
        text = text.replace(",", " ")  # cells of a CSV
    for match in _NUMBER.finditer(text):
        before = text[max(end, match.start() - _LABEL_CHARACTERS) : match.start()]
        end, place = match.end(), place + 1
        label = f"column {place}" if bare else _label(before, text[end : end + UNIT_CHARACTERS])
        if label is None:
            continue
        if len(label) >= LEAST_REST:  # the copy of a row often begins inside a word
            label = next((known for known in labels if label != known and known.endswith(label)), label)
        labels.add(label)
        if match["exponent"] is None:  # else a small or large value
            shown = (before.strip()[-_LABEL_CHARACTERS:] + " " + match[0]).strip()
            yield _Printed(line, label, len(match["decimals"] or ""), shown)


def _label(before: str, behind: str) -> str | None:
    """Return the text that names a number: the text before it, or else the unit after it; None for neither."""
    if any(character.isalpha() for character in before):
        return re.sub(r"\d", "9", before).strip()
    unit = re.match(r"\s?[A-Za-z/%]+", behind)
    return before.strip() + unit[0] if unit else None


def _whole_losses(steps: Steps) -> Iterator[str]:
    """Yield a warning if no loss has a decimal."""
    losses = steps.column("loss")
    known = losses[np.isfinite(losses)]
    if len(known) >= LEAST_ROWS and known.any() and (known == np.floor(known)).all():
        yield Notice("losses_cut", "steps", rows=len(known))


def cut_width(lines: Sequence[tuple[int, str]], cited: set[int]) -> int | None:
    """Return the width at which all longer lines were cut, or None.

    Most rows have that width. They are cut if their last number begins at different columns: no framework pads rows so.
    But they are not if all last numbers have equally many decimals: a rate with one digit less makes up for a time
    with one more. If the last number begins at one column, they are cut if several other kinds of lines have the same
    width. They are also cut if the last numbers have more decimals where they have fewer digits before the point, and
    one ends in a zero: a framework that prints numbers this way drops zeros at the end.

    >>> rows = [(n, f"step {n} | loss {1 / n:.9f} | time {n}.123456"[:30]) for n in range(7, 13)]
    >>> cut_width(rows, set(range(7, 13)))
    30
    >>> cut_width([(n, f"step {n:3} | loss {1 / n:.9f} | time 1.123456") for n in range(7, 13)], set(range(7, 13)))
    >>> cut_width([(n, f"step {n:3} | loss {13.7 - n / 2:.4f}"[:21]) for n in range(1, 13)], set(range(1, 13)))
    21
    >>> cut_width([(n, f"step {n:3} | ms: {500.5 * n:.2f} | tok/s: {2e6 / n:.2f}") for n in (1, 3) * 9], {1, 3})
    """
    width = max((len(text) for _, text in lines), default=0)
    if width < LEAST_WIDTH:
        return None
    rows = sum(line in cited for line, _ in lines)
    longest = [(line, text) for line, text in lines if len(text) == width]
    starts = {match.start() for line, text in longest if line in cited and (match := _at_end(_LAST_LABEL, text))}
    at_width = sum(line in cited for line, _ in longest)
    are_whole = _has_equal_decimals(longest, cited)
    if at_width >= max(LEAST_ROWS, LEAST_SHARE * rows) and len(starts) > 1 and not are_whole:
        return width
    of_rows = [match for _, text in longest if not _CODE_PLACE.search(text) and (match := _at_end(_LAST_NUMBER, text))]
    if len(of_rows) < max(LEAST_ROWS, LEAST_SHARE * rows):
        return None
    ended = [text for _, text in longest if text[-1:].isalnum() or text[-1:] in ".,_"]
    kinds = {re.sub(r"[\d.,]+", "9", text)[:KIND_CHARACTERS] for text in ended}  # beginnings of lines of one kind
    if len(kinds) > MOST_KINDS_AT_ONE_WIDTH:
        return width
    if are_whole:
        return None
    numbers = [match["number"] for match in of_rows]
    whole = {number.partition(".")[0] for number in numbers}
    decimal = all(number.strip("-+").replace(".", "").isdigit() and "." in number for number in numbers)
    if decimal and len({len(digits) for digits in whole}) > 1 and any(number.endswith("0") for number in numbers):
        return width
    return None


def _has_equal_decimals(longest: Sequence[tuple[int, str]], cited: set[int]) -> bool:
    """Return True if every row ends in a number, and all have as many decimals, at least LEAST_DECIMALS."""
    numbers = [_at_end(_LAST_NUMBER, text) for line, text in longest if line in cited]
    decimals = {len(match["number"].partition(".")[2]) if match else 0 for match in numbers}
    return len(decimals) == 1 and min(decimals) >= LEAST_DECIMALS


def _at_end(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Search the end of a text for a label and the number after it, from the last digit before that number.

    A label contains no digit, so a match begins after that digit. An attempt at every letter would take ten times as
    long.

    >>> _at_end(_LAST_LABEL, "step 7 | loss 2.5e-01").start(), _at_end(_LAST_NUMBER, "step 7 | loss 2.5e-01")["number"]
    (9, '2.5e-01')
    """
    before = text.rstrip(_OF_NUMBERS)
    last_digit = max(before.rfind(digit, -LAST_CHARACTERS) for digit in "0123456789")
    return pattern.search(text, max(0, len(text) - LAST_CHARACTERS, last_digit))


def fold_width(lines: Sequence[str]) -> int | None:
    """Return the width at which lines were broken inside numbers, or None.

    >>> fold_width(["loss: 1.5 | step time 20", "01.5 ms"] * 3)
    24
    >>> fold_width(["loss: 1.5 | step time 20", "2026-01-05 10:00:00 next"] * 3) is None
    True
    >>> fold_width(["loss: 1.5 | memory: 1277", "85762816 | batch: 4"] * 3)
    24
    >>> fold_width(["01/05/2026 10:00:00 iteration 5 loss: 1.5"] * 9) is None
    True
    >>> fold_width(["25 Nov 2026 10:00:00 iteration 5 loss: 1.5"] * 9) is None
    True
    >>> fold_width(["1750000002000 50.5 1"] * 9) is None
    True
    >>> fold_width(["101,2026-11-25 10:00:00,8.25,101"] * 9) is None
    True
    >>> fold_width(["0: step 101 | loss 2.5 | time 1.25"] * 9) is None
    True
    >>> fold_width(["cmd = pdsh run.py --seed 1234", "192.168.205.5: started"] * 9) is None
    True
    """
    width = max(map(len, lines), default=0)
    if width < LEAST_WIDTH:
        return None
    longest = [place for place, line in enumerate(lines[:-1]) if len(line) == width and not _ROW_OF_TABLE.match(line)]
    in_number = [place for place in longest if _NUMBER_ENDS.search(lines[place][-2:])]
    broken = [place for place in in_number if _NUMBER_GOES_ON.match(lines[place + 1])]
    return width if len(broken) >= max(LEAST_FOLDED, FOLDED_SHARE * len(in_number)) else None
