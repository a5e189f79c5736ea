"""Detection of folded lines: a terminal, `fold` or a mail program broke them at a width, in the middle of numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence

LEAST_LINES = 3  # broken in a number at one width: fewer may be chance
LEAST_WIDTH = 20
_NUMBER_ENDS = re.compile(r"\d[.,]?$")
_STAMP = r"\d{4}-\d\d-\d\d|20\d{6}(?!\d)|\d\d?[:/]\d\d|1\d{9}(?:\d{3}){0,3}(?!\d)"  # date, time of day, Unix time
_NUMBER_GOES_ON = re.compile(rf"[.,]?(?!{_STAMP})\d")
_ROW_OF_TABLE = re.compile(r"[\d\s.,;+\-eE]*$")  # numbers alone: rows of a CSV are often equally long
SHARE = 0.5  # of the longest lines that end in a number


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
    >>> fold_width(["1750000002000 50.5 1"] * 9) is None
    True
    """
    width = max(map(len, lines), default=0)
    if width < LEAST_WIDTH:
        return None
    longest = [place for place, line in enumerate(lines[:-1]) if len(line) == width and not _ROW_OF_TABLE.match(line)]
    in_number = [place for place in longest if _NUMBER_ENDS.search(lines[place][-2:])]
    broken = [place for place in in_number if _NUMBER_GOES_ON.match(lines[place + 1])]
    return width if len(broken) >= max(LEAST_LINES, SHARE * len(in_number)) else None
