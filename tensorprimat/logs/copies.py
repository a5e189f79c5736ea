"""Marks that a text gains when it is copied: quotes, indentation, line numbers, hard spaces, `^M`.

Readers find most rows anywhere in a line, but some lines (settings, evaluations, progress bars) only at its beginning.
A log from a mail, a web page, an issue or the output of `cat -n` and `grep -n` is therefore read without these marks.
A line stays one line, so that line numbers are those of the file.

- `> ` before lines, as mails and Markdown quote
- at least two columns of indentation before every line, as in a Markdown code block
- `   12<tab>` (cat -n, nl), `12 | ` (bat), `12:` or `train.log:12:` (grep -n), `train.log:` (grep -H) before every line
- U+00A0 in the place of spaces, as browsers copy them
- `^M` in the place of the carriage returns of a progress bar, as `cat -v` and editors show them
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

_LOOKED_AT_LINES = 400
_FEWEST_LINES = 3  # that bear a mark; fewer do so by chance
_FEWEST_NUMBERS = 5  # three ranks, each of which printed one line, look like line numbers
_MOST_LAYERS = 3  # a quoted, indented output of grep -n
_FILE = rb"[\w./+@-]{1,200}\.(?:log|txt|out|err|md|jsonl?)"
_NUMBERS: tuple[tuple[bytes, Callable[[int, int], bool]], ...] = (
    (rb"[ ]{0,8}(?P<number>\d{1,9})\t", lambda one, following: following == one + 1),
    (rb"[ ]{0,8}(?P<number>\d{1,9}) (?:\||\xe2\x94\x82)(?: |$)", lambda one, following: following == one + 1),
    (rb"(?P<number>\d{1,9}):", lambda one, following: following > one),
    (rb"(?P<file>" + _FILE + rb"):(?P<number>\d{1,9}):", lambda one, following: following > one),
)
"""Expression, and whether a number may follow another one."""
_NAMED = rb"(?P<file>" + _FILE + rb"):"
_HARD_SPACE = "\u00a0".encode()
_SHOWN_RETURN = b"^M"


@dataclass(frozen=True)
class Copying:
    """The marks of a copied text."""

    layers: tuple[re.Pattern[bytes], ...]
    """Beginnings of lines to remove, the outermost first."""
    hard_spaces: bool
    shown_returns: bool


def copying_in(head: bytes) -> Copying | None:
    """Return the marks of the text that begins with these bytes, or None if it has none."""
    has_spaces = _HARD_SPACE in head
    has_returns = _SHOWN_RETURN in head and b"%|" in head and b"\r" not in head
    lines = [line for line in head.split(b"\n", _LOOKED_AT_LINES)[:_LOOKED_AT_LINES] if line.strip()]
    layers: list[re.Pattern[bytes]] = []
    while len(layers) < _MOST_LAYERS and (layer := _layer(lines)):
        layers.append(layer)
        lines = [rest for line in lines if (rest := layer.sub(b"", line)).strip()]
    return Copying(tuple(layers), has_spaces, has_returns) if layers or has_spaces or has_returns else None


def _layer(lines: list[bytes]) -> re.Pattern[bytes] | None:
    """Return the outermost mark of lines that are not blank."""
    if len(lines) < _FEWEST_LINES:
        return None
    quoted = [line for line in lines if line.startswith(b">") and not line.startswith(b">>>")]
    if len(quoted) >= _FEWEST_LINES and 2 * len(quoted) >= len(lines):
        spaced = all(line[1:2] in (b"", b" ") for line in quoted)
        return re.compile(b"^> ?" if spaced else b"^>", re.MULTILINE)
    for expression, follows in _NUMBERS if len(lines) >= _FEWEST_NUMBERS else ():
        found = _all_match(expression, lines)
        if not all(follows(one, following) for one, following in pairwise(int(match["number"]) for match in found)):
            continue
        if any(line[match.end() :][:1] not in (b"", b" ") for line, match in zip(lines, found, strict=False)):
            return re.compile(b"^" + expression, re.MULTILINE)  # a blank follows every rank of `srun --label`
    if _all_match(_NAMED, lines):
        return re.compile(b"^" + _NAMED, re.MULTILINE)
    indents = [line[: len(line) - len(line.lstrip(b" \t"))] for line in lines]
    least, most = min(indents), max(indents)  # what these have in common at their beginning, all have
    indent = least[: next((place for place, one in enumerate(least) if most[place] != one), len(least))]
    if all(line.lstrip()[:1].isdigit() for line in lines):  # columns of numbers, aligned to the right
        return None
    if len(indent.expandtabs()) >= 2:  # Megatron's rows begin with one space
        return re.compile(b"^" + indent, re.MULTILINE)
    return None


def _all_match(expression: bytes, lines: list[bytes]) -> list[re.Match[bytes]]:
    """Return the matches of all lines, or none if a line has no match or names another file."""
    pattern = re.compile(expression)
    found: list[re.Match[bytes]] = []
    for line in lines:
        match = pattern.match(line)
        if match is None or (found and match.groupdict().get("file") != found[0].groupdict().get("file")):
            return []
        found.append(match)
    return found


def unwrapped(blocks: Iterable[bytes], marks: Copying) -> Iterator[bytes]:
    """Yield blocks of whole lines without the marks."""
    for block in blocks:
        if marks.hard_spaces:
            block = block.replace(_HARD_SPACE, b" ")
        if marks.shown_returns:
            block = block.replace(_SHOWN_RETURN, b"\r")
        for layer in marks.layers:
            block = layer.sub(b"", block)
        yield block
