"""Outputs of cells in a Jupyter notebook, taken out of its JSON: `"step 5 | loss …\\n",` becomes the line that was
printed.

A line of the file stays one line, so that line numbers are those of the file. Source code and HTML become empty lines:
they mention everything that a log contains. A notebook in one line (minified) is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tensorprimat.logs.fields import json_in

_CELLS = re.compile(rb'\A\s*\{\s*"cells": \[')
_KEY = re.compile(r'\s{0,80}"(?P<key>[\w/.+-]{1,80})": (?P<rest>.*)')
_STRING = re.compile(r'\s{0,80}(?P<string>"(?:[^"\\]|\\.)*"),?\s*\Z')
_PRINTED = frozenset(("text", "text/plain", "traceback"))
"""Keys of a cell's output: a list of lines, or one string."""


def is_notebook(head: bytes) -> bool:
    """Return True if a text begins as a notebook that is written over several lines."""
    return _CELLS.match(head) is not None and b'"cell_type"' in head and head.count(b"\n") > 2


def unwrapped(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield blocks of whole lines with each printed line in the place of its string, all other text left out."""
    is_printed = False
    for block in blocks:
        lines: list[str] = []
        for line in block.decode("utf-8", "replace").split("\n"):
            text = line
            if key := _KEY.match(line):
                is_printed, text = key["key"] in _PRINTED, key["rest"]
            string = _STRING.match(text) if is_printed else None
            lines.append(_decoded(string["string"]) if string else "")
        yield "\n".join(lines).encode("utf-8", "replace")  # JSON may contain half of a surrogate pair


def _decoded(string: str) -> str:
    text = json_in(string)
    return string if text is None else text.rstrip("\n").replace("\r\n", "\r").replace("\n", "\r")
