"""Files for single examples of property tests, which make hundreds of them: a folder for each takes longer."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    made = tempfile.TemporaryDirectory()
    atexit.register(made.cleanup)
    return made  # kept: Python 3.13 and later clear atexit in a forked process; the last reference removes the folder


@contextmanager
def written(content: bytes | str, *, ending: str = ".log") -> Iterator[Path]:
    """Write a file for the time of the block, under a name that no other has."""
    with tempfile.NamedTemporaryFile(dir=_folder().name, suffix=ending) as file:
        path = Path(file.name)
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
        yield path
