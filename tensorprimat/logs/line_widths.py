"""Detection of the width at which the lines of a log were cut or folded."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
    r"\d{4}-\d\d-\d\d|20\d{6}(?!\d)|\d\d?[:/]\d\d|\d\d[ /-][A-Z][a-z]{2}\b|1\d{9}(?:\d{3}){0,3}(?!\d)"
)
_PREFIX = r"\d{1,5}: |\d{1,3}(?:\.\d{1,3}){3}(?!\d)"  # rank of srun --label, address of pdsh
_NUMBER_GOES_ON = re.compile(rf"[.,]?(?!{_STAMP}|{_PREFIX})\d")
_ROW_OF_TABLE = re.compile(r"[\d\s.,;+\-eE:/TZ]*$")  # numbers and dates alone: rows of a CSV are often equally long


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
