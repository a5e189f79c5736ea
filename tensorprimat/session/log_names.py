"""Expansion of the arguments of `extract` (files, patterns, folders) to log files."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from tensorprimat import logs
from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.logs.text import Log
from tensorprimat.storage import store
from tensorprimat.system import regular


def expand(named: Sequence[str]) -> list[str]:
    """Return the files of names, patterns and folders. Raises UsageError without names, InputError without files."""
    if not named:
        raise UsageError("no log named; give --log-file LOG (or - for standard input)")
    paths: list[str] = []
    for name in named:
        path = Path(name)
        if regular.refused_listing(path) is None:
            found = _below(path, _LEVELS)
        elif any(sign in name for sign in "*?[") and not os.path.exists(name):
            found = sorted(glob.glob(name, recursive=True))
        else:
            found = [name]
        if not found:
            raise _empty_folder(path) if os.path.isdir(name) else InputError("no file fits this pattern", path=name)
        paths += found
    return list(dict.fromkeys(paths))


_MLFLOW_FACTS = "meta.yaml"
"""File of an experiment or a run of MLflow, which holds no step."""
_LEVELS = 2  # of folders in a named one: mlruns/EXPERIMENT/RUN


def _below(folder: Path, levels: int) -> list[str]:
    """Return the paths to read in a folder; if it holds none, those of the folders in it."""
    found = log_files_of(folder)
    return found or [file for inside in subfolders(folder) if levels for file in _below(inside, levels - 1)]


def _empty_folder(folder: Path) -> InputError:
    inside = [one.name for one in subfolders(folder)]
    if not inside:
        return InputError("holds no file", path=folder)
    named = ", ".join(inside[:3]) + (" …" if len(inside) > 3 else "")
    return InputError(
        f"neither it nor its folders ({named}) hold a file", path=folder, remedy="search it with tprimat analyze"
    )


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder whose files may be runs; hidden ones and earlier results are left out."""
    return [
        path
        for path in sorted(folder.iterdir())
        if os.path.isdir(path) and not path.name.startswith(".") and path.name != store.HISTORY
    ]


def log_files_of(folder: Path) -> list[str]:
    """Return the paths to read in a folder: the folder itself if it is one log (TensorBoard), else its files."""
    if logs.detect_format(Log(folder)) is not None:
        return [str(folder)]
    files = (inside for inside in folder.iterdir() if os.path.isfile(inside) and inside.name != _MLFLOW_FACTS)
    return sorted(map(str, files))
