"""Hook of mkdocs: no word of a table is broken at its end of line, not even at a hyphen.

A browser breaks `--rdzv-backend` after any hyphen, and CSS can only forbid it for text that an element encloses.
"""

import re

LONGEST = 48  # characters; a longer word may break
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_TEXT = re.compile(r"(?<=>)[^<]+")
_WORD = re.compile(rf"(?<!\S)(?=\S*[-/])\S{{2,{LONGEST}}}(?!\S)")


def on_page_content(html: str, **_: object) -> str:
    """Return a page in which every word with a hyphen or a slash, in a table, is an element of class `whole`."""
    return _TABLE.sub(lambda table: _TEXT.sub(lambda text: _WORD.sub(_enclosed, text[0]), table[0]), html)


def _enclosed(word: re.Match[str]) -> str:
    return f'<span class="whole">{word[0]}</span>'
