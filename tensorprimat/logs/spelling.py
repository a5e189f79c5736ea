"""Signs of rows that were joined inside a number, and of lines that were all cut or folded at one column.

A number that lost digits can look complete to its reader, because a delimiter follows. The other rows show it: a
framework prints a metric with the same number of decimals on every row, and once per row. Metrics that may take several
forms are not checked: `repr` drops a zero at the end, and a small learning rate gets an exponent.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from tensorprimat.core.errors import InputError
from tensorprimat.core.notices import Notice
from tensorprimat.core.steady import median
from tensorprimat.core.steps import Steps
from tensorprimat.logs.line_widths import LEAST_ROWS, LEAST_SHARE, cut_width
from tensorprimat.logs.text import Log

_MOST_BYTES = 8 * 2**20  # of a log: in a larger one a single row does not move a mean by much
_LONGEST_ROW = 2**14
MOST_SHARE = 1.3  # numbers of a metric per row; if there are more, some are on lines of another kind
ODD_SHARE = 0.02  # share of rows that may be damaged; above it the framework prints them that way
ZERO_LAST = 0.1  # share of numbers whose last decimal is a zero, which repr and %g drop
LEAST_CHANCE = 0.01  # that a program that drops zeros shortens so few numbers; below it, a short number is damaged
_WHOLE = (" 0.0", " 1.0")  # a share that is 0 or 1, as repr prints it
_LABEL_CHARACTERS = 32
_MOST_DECIMALS = 8  # digits; a number with more is complete
UNIT_CHARACTERS = 8
LEAST_REST = 6
MOST_LINES_OF_A_ROW = 60
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
_SCIENTIFIC = re.compile(r"(?<![\d.])\d(?:\.\d*)?[eE][-+]?\d+$")
_ALL_DIGITS = re.compile(r"\d\.\d{12}")
"""A number with all digits of a double, as repr prints it, of which json and dict make use too."""
_ANY_DIGIT = str.maketrans("012345678", "9" * 9)
_EVALUATION = re.compile(r"\b(?:validat|evaluat|eval\b)", re.IGNORECASE)
"""A line of an evaluation, whose numbers are often printed with other decimals than those of the rows."""
_UNEVEN = re.compile(r"lr\b|lr[ (:_]|learning|norm|scale|epoch|eta\b|version", re.IGNORECASE)
"""Metrics that frameworks print with %g or that change their size by much."""
_WRITTEN = r"(?P<value>\d{1,3}(?:[ '\u00a0\u2009\u202f\u2019]\d{3})+(?:\.\d{1,20})?|\d{1,9}(?: ?\*{1,2} ?\d{1,9})+)"
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
_PROGRAM = re.compile(r"(?:import|from) [\w.]{1,40}(?: import .{1,200}| as \w{1,20})?$")
"""A line of a program: modded-nanogpt logs its own, in which batch_size=8 * 2048 * 8 is no setting."""


class _Shape(NamedTuple):
    decimals: int | None
    """Digits after the decimal point; None without one."""
    exponent: int
    """Characters of the exponent."""


class _Printed(NamedTuple):
    line: int
    label: str
    shape: _Shape
    text: str


def unread_numbers(log: Log) -> list[Notice]:
    """Return a warning about the first value in the head of a log that is not wholly a number."""
    head = list(log.head())
    if any(_PROGRAM.match(text) for _, text in head):
        return []
    found = ((line, form.search(text[:_LONGEST_ROW])) for line, text in head for form in _NO_NUMBERS)
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
    return [*_odd_tokens(steps), *_whole_losses(steps), *_of_lines(log, steps)]


def _of_lines(log: Log, steps: Steps) -> Iterator[str]:
    if log.size_bytes > _MOST_BYTES:
        return
    cited = _cited(steps)
    if len(cited) < LEAST_ROWS:
        return
    lines_of_a_row = min(int(np.median(np.diff(cited))), MOST_LINES_OF_A_ROW)
    first, last = int(cited[0]) - lines_of_a_row + 1, int(cited[-1])
    lines = [(line, text) for line, text in log.lines() if len(text) <= _LONGEST_ROW]
    near = [(line, text) for line, text in lines if first <= line <= last]
    if odd := odd_number(near, len(cited), cited):
        yield Notice("number_spelled_oddly", "steps", text=repr(odd.text), line=odd.line)
    if width := cut_width(lines, set(cited.tolist())):
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


def odd_number(lines: Sequence[tuple[int, str]], rows: int, cited: np.ndarray | None = None) -> _Printed | None:
    """Return the first number that is printed unlike the same number of the other rows, or None.

    cited: Lines of the rows, ascending; numbers that are not near most of them belong to no row.

    >>> rows = [(n, f"step {n}: time 1.{n}50 s") for n in range(9)]
    >>> odd_number([*rows, (9, "step 9: time 1. s")], 10).text
    ': time 1.'
    >>> odd_number(rows, 9) is None
    True
    """
    alike: dict[str, list[int]] = {}  # of lines that differ in digits alone one is examined
    for place, (_, text) in enumerate(lines):
        alike.setdefault(text.translate(_ANY_DIGIT), []).append(place)
    evaluations = [text for text in alike if _EVALUATION.search(text)]
    if len(evaluations) < len(alike) / 2:  # else every line has the word, as a name of the job
        for text in evaluations:
            del alike[text]
    found: defaultdict[str, list[tuple[_Shape, list[int]]]] = defaultdict(list)
    for text, places in alike.items():
        for printed in _numbers(0, text):
            found[printed.label].append((printed.shape, places))
    for label, listed in found.items():
        count = sum(len(places) for _, places in listed)
        if count < max(LEAST_ROWS, LEAST_SHARE * rows) or _UNEVEN.search(label):
            continue
        most = max(1, int(ODD_SHARE * count))
        odd = _of_odd_shape(lines, label, listed, most)
        if odd is None and count <= MOST_SHARE * rows:
            of_line = Counter(place for _, places in listed for place in places)
            twice = [place for place, times in of_line.items() if times > 1]
            odd = _labelled(lines[twice[0]], label) if 0 < len(twice) <= most else None
        if odd and (cited is None or _near_rows(lines, listed, cited) >= LEAST_SHARE * rows):
            return odd
    return None


def _near_rows(lines: Sequence[tuple[int, str]], listed: Sequence[tuple[_Shape, list[int]]], cited: np.ndarray) -> int:
    """Return how many rows have one of these numbers on their line, or between the row before and them."""
    found = [lines[place][0] for _, places in listed for place in places]
    return len(np.unique(np.searchsorted(cited, found)))


def _of_odd_shape(
    lines: Sequence[tuple[int, str]], label: str, listed: Sequence[tuple[_Shape, list[int]]], most: int
) -> _Printed | None:
    shapes: Counter[_Shape] = Counter()
    for shape, places in listed:
        shapes[shape] += len(places)
    (usual, count), *_ = shapes.most_common(1)
    others = shapes.total() - count
    if usual.decimals is None or not 0 < others <= most:
        return None
    odd, where = next((shape, places[0]) for shape, places in listed if shape != usual)
    printed = _labelled(lines[where], label, odd)
    if odd.exponent and not usual.exponent:  # a small value, unless no program writes it so
        return printed if printed and not _SCIENTIFIC.search(printed.text) else None
    if max(odd.decimals or 0, usual.decimals) > _MOST_DECIMALS:
        return None
    same = [_labelled(lines[place], label) for shape, places in listed if shape == usual for place in places]
    texts = {printed.text for printed in same if printed}
    if odd.decimals is None and all(text.endswith(".0") for text in texts):
        return None  # a whole number that the program prints as an integer on some lines and as a float on others
    if odd.decimals and odd.decimals <= usual.decimals and odd.exponent == usual.exponent:
        is_fixed = usual.decimals > 1 and any(text.endswith("0") for text in texts)
        by_repr = lines[where][1].rstrip().endswith("}") or _ALL_DIGITS.search(lines[where][1])
        likely = 2 if by_repr else 1  # zeros that are dropped
        first = min(place for _, places in listed for place in places)  # memory may grow after it
        is_cut = len(texts) == 1 and where != first and printed is not None and printed.text in next(iter(texts))
        fewer = odd.decimals < usual.decimals - likely
        if printed is not None and not is_fixed and printed.text.endswith(_WHOLE):
            return None
        if not (is_fixed or _chance_of_dropped_zeros(len(texts) + others, others) < LEAST_CHANCE or is_cut or fewer):
            return None
    return None if printed and _has_as_many_digits(printed.text, texts) else printed


def _chance_of_dropped_zeros(numbers: int, shortened: int) -> float:
    """Return the chance that at most `shortened` of so many numbers end in a zero, which the program drops.

    >>> round(_chance_of_dropped_zeros(44, 0), 3), round(_chance_of_dropped_zeros(46, 1), 3)
    (0.01, 0.048)
    """
    return sum(
        math.exp(
            math.lgamma(numbers + 1)
            - math.lgamma(zeros + 1)
            - math.lgamma(numbers - zeros + 1)
            + zeros * math.log(ZERO_LAST)
            + (numbers - zeros) * math.log(1 - ZERO_LAST)
        )
        for zeros in range(shortened + 1)
    )


def _has_as_many_digits(number: str, others: Collection[str]) -> bool:
    """Return True if a number has as many significant digits as each of the others, and more or fewer before the point.

    >>> _has_as_many_digits("loss= 11.33", {"loss= 3.674", "loss= 4.100"}), _has_as_many_digits("s 0.7139", {"s 1.351"})
    (True, True)
    >>> _has_as_many_digits("time 1.", {"time 1.250"})
    False
    """
    parts = (re.sub(r"[^\d.]", "", text.split()[-1]).lstrip("0").partition(".") for text in (number, *others))
    (whole, digits), *rest = ((len(before), len((before + behind).lstrip("0"))) for before, _, behind in parts)
    return all(before != whole and same == digits for before, same in rest)


def _labelled(line: tuple[int, str], label: str, shape: _Shape | None = None) -> _Printed | None:
    found = _numbers(*line)
    return next((each for each in found if each.label == label and shape in (None, each.shape)), None)


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
        decimals = None if match["point"] is None else len(match["decimals"])
        shape = _Shape(decimals, len(match["exponent"] or ""))
        yield _Printed(line, label, shape, (before.strip()[-_LABEL_CHARACTERS:] + " " + match[0]).strip())


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


def _odd_tokens(steps: Steps) -> Iterator[str]:
    """Yield a warning if one row counts more tokens than all others, which count the same."""
    tokens, line = steps.column("tokens"), steps.column("line")
    known = np.flatnonzero(np.isfinite(tokens))
    if len(known) < LEAST_ROWS:
        return
    usual = median(tokens[known])
    odd = known[tokens[known] != usual]
    if len(odd) == 1 and tokens[odd[0]] > usual:
        yield Notice("tokens_odd", "steps", line=int(line[odd[0]]), tokens=tokens[odd[0]], usual=usual)
