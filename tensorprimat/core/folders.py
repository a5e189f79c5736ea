"""The folder in which commands write and look for results unless a flag names another, and the one that files share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

DEFAULT_FOLDER = Path("output")


def common_folder(paths: Iterable[Path]) -> Path:
    """Return the deepest folder that holds all paths, or the empty path where they share none.

    >>> str(common_folder([Path("logs/a/1.log"), Path("logs/b/1.log")])), common_folder([Path("/a/b"), Path("c/d")])
    ('logs', PosixPath('.'))
    """
    shared = [set(path.parents) for path in paths]
    return max(set.intersection(*shared), key=lambda folder: len(folder.parts), default=Path()) if shared else Path()
