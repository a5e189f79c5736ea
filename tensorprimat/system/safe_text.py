"""Text from logs and result files made harmless, for each place where a person reads it.

Device names, models, paths and warnings come from files that anyone may have written. `one_line` is the base: one line
of visible characters. The others add the escaping of their medium. HTML escaping is jinja2's (autoescape), after
`one_line`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

LONGEST_TEXT = 500  # characters; nothing that names a device, a model or a file needs more
LONGEST_NOTE = 8_000  # characters of a note of this program, which contains names and remarks of every side
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_HARMLESS = re.compile(r"[ -~]*")
_MARKDOWN_MARKS = re.compile(r"([\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_]))")  # an underscore inside a word marks nothing
_MARKDOWN_BLOCK = re.compile(r"^(\d*)([.)](?=\s|$)|(?<!\d)(?:[#=]|\+(?=\s|$)|-(?=[-\s]|$)))")
"""The beginning of a heading, list or rule where the text opens a line; +2 % and -2 % are none."""
_MARKDOWN_REFERENCE = re.compile(r"(@|(?<!&)#)(?=\w)")  # GitHub links @names and #numbers
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "|", "%")  # a cell that a spreadsheet takes for a formula or a command


def one_line(text: object, *, longest: int = LONGEST_TEXT) -> str:
    """Return a text's visible characters on one line.

    Control codes, escape sequences, direction overrides and lone surrogates are gone.

    White space of any kind becomes one space, every other invisible character becomes U+FFFD, and a text longer than
    `longest` ends in "…".

    >>> one_line("H100\\x1b[2J\\nrm -rf")
    'H100�[2J rm -rf'
    """
    line = str(text)
    if not _HARMLESS.fullmatch(line):
        line = "".join(map(_visible, line[: 4 * longest]))
    line = " ".join(line.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def is_utf8(name: object) -> bool:
    """Return True if the name of a file can be written to JSON: a name may be any bytes, JSON is UTF-8.

    >>> is_utf8("größe"), is_utf8(b"a\\xff".decode(errors="surrogateescape"))
    (True, False)
    """
    try:
        str(name).encode()
    except UnicodeEncodeError:
        return False
    return True


def middle_cut(text: str, longest: int) -> str:
    """Return a text of at most so many characters: names that differ at one end still differ.

    >>> middle_cut("experiment-2026-11-22-llama-run-one", 21), middle_cut("short", 21)
    ('experiment…ma-run-one', 'short')
    """
    if len(text) <= longest:
        return text
    tail = longest // 2
    return f"{text[: longest - 1 - tail]}…{text[len(text) - tail :]}"


def _visible(character: str) -> str:
    if character.isspace():
        return " "
    category = unicodedata.category(character)
    return REPLACEMENT if category[0] == "C" else character  # control, format (bidi, zero width), surrogate, private


def markdown(text: object, *, longest: int = LONGEST_TEXT) -> str:
    """Escape a text for running text and table cells of Markdown (CommonMark and GitHub's dialect), never inside code.

    >>> markdown("<b>|x|</b> *y* [a](b)")
    '&lt;b&gt;\\\\|x\\\\|&lt;/b&gt; \\\\*y\\\\* \\\\[a\\\\](b)'
    >>> markdown("+2.0 %"), markdown("- item"), markdown("---")
    ('+2.0 %', '\\\\- item', '\\\\---')
    """
    line = one_line(text, longest=longest)
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("$", "&#36;")
    line = _MARKDOWN_MARKS.sub(r"\\\1", line)
    line = _MARKDOWN_BLOCK.sub(r"\1\\\2", line)
    line = line.replace("://", r"\://").replace("www.", r"www\.")
    return _MARKDOWN_REFERENCE.sub("\\1&#8203;", line)


def markdown_cells(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    """Return the texts of a table's rows, each as `markdown` escapes it."""
    return [[markdown(text) for text in row] for row in rows]


@lru_cache(maxsize=2**12, typed=True)  # a page repeats its labels, headings and dashes
def page_text(value: Any, longest: int = LONGEST_TEXT) -> Any:
    """Return a text for jinja2 to escape, with a number and its % kept together; markup and other values as they are.

    >>> page_text("2 %\\n"), page_text(2)
    ('2\xa0%', 2)
    """
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return one_line(value, longest=longest).replace(" %", "\N{NO-BREAK SPACE}%")


def page_note(value: str) -> Any:
    """Return the note of a table for jinja2, harmless and escaped; it may be longer than other texts."""
    from markupsafe import escape

    return escape(page_text(value, LONGEST_NOTE))


def csv_cell(text: object) -> str:
    """Escape a text for a CSV field that a spreadsheet will open; numbers go in as numbers, not through here.

    >>> csv_cell("=HYPERLINK(1)"), csv_cell("H100")
    ("'=HYPERLINK(1)", 'H100')
    """
    line = one_line(text)
    return f"'{line}" if line.startswith(_FORMULA) else line
