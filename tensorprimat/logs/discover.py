"""Search for the log of each model on this machine: by environment variable, by name, by content. Never recursive."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tensorprimat import logs
from tensorprimat.core.errors import InputError, TensorPrimatError
from tensorprimat.core.folders import DEFAULT_FOLDER
from tensorprimat.core.quantities import listed
from tensorprimat.logs import model_names
from tensorprimat.logs.text import Log
from tensorprimat.models import names as spellings

_ENDING = re.compile(r"\.(?:log|txt|out|err|stdout|stderr)(?:\.\d+)?(?:\.(?:gz|zst|xz|bz2))?$", re.IGNORECASE)
_BARE = re.compile(r"^[^.]+$|\.[oe]?\d[\d_:T-]*$")
"""Names without an ending, and those that schedulers and rotation number: slurm-4711, job.o4711, train.2026-01-05."""
WORKSPACES = ("/workspace/Primus", "/workspace/tprimat")  # where AMD's containers keep logs

_OWN_LINE = re.compile(r"^\[(?:CUDA|ROCM|CPU)\] Step +\d+ \| Time: ")


@dataclass(frozen=True, kw_only=True)
class Search:
    """The outcome of a search for one model's log."""

    model: str
    path: Path | None
    """The log, or None where there is none."""
    because: str
    """Reason for the choice of this log."""
    others: tuple[str, ...] = ()
    """Other files that might be the log, each with the reason against it."""
    unassigned: bool = False
    """True if one of the others is a training log that may be this model's."""
    searched: tuple[str, ...] = ()
    """Variables and folders that were searched, in their order."""


def _has_standard_name(name: str, model: str) -> bool:
    is_primus = name.startswith(f"primus_training_{model}") and name.endswith(".log")
    return name == f"training_{model}.log" or (is_primus and model_names.names_model(name, model))


_RULES: tuple[tuple[str, Callable[[str, str], bool]], ...] = (
    ("named training_{model}.log", _has_standard_name),
    ("named *{model}*.log", lambda name, model: name.endswith(".log") and model_names.names_model(name, model)),
    ("named *{model}*", model_names.names_model),
)
"""Kinds of names, each with a test of (name of the file, model) in lower case; of equals the newest wins."""


def find_logs(models: Sequence[str], *, folders: Sequence[Path] | None = None) -> dict[str, Search]:
    """Return the log of each model: by {MODEL}_LOG, by name, then by content, whatever the file is called.

    folders: where to look (default: `searched_folders`). Raises InputError if a variable names no file.
    """
    folders = searched_folders() if folders is None else folders
    every = [path for folder in folders for path in _files(folder)]
    files = [path for path in every if _ENDING.search(path.name)]
    found = {}
    for model in models:
        searched = (f"{model.upper()}_LOG", *map(str, folders))
        found[model] = _by_variable(model, searched) or _by_name(model, files, searched)
    missing = [model for model in models if found[model].path is None]
    if missing:
        named = {path for search in found.values() if (path := search.path) is not None}
        _by_content(missing, [path for path in every if path not in named], found)
    return found


def searched_folders() -> list[Path]:
    """Return the folders of a search: the current one, output/, $PRIMUS_PATH and the workspaces of AMD's containers."""
    primus = os.environ.get("PRIMUS_PATH")
    named = [".", str(DEFAULT_FOLDER), *([primus] if primus else []), *WORKSPACES]
    unique: dict[str, Path] = {}
    for name in named:
        unique.setdefault(os.path.realpath(name), Path(name))
    return [path for path in unique.values() if os.path.isdir(path)]


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files whose names may be those of logs, the newest first; a folder that cannot be read has none."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    named = [folder / name for name in names if _ENDING.search(name) or _BARE.search(name)]
    dated = [(_modified(path), path.name) for path in named if os.path.isfile(path)]
    for _, name in sorted(dated, reverse=True):
        yield folder / name


def _by_variable(model: str, searched: tuple[str, ...]) -> Search | None:
    variable = f"{model.upper()}_LOG"
    value = os.environ.get(variable)
    if not value:
        return None
    path = Path(value)
    if not os.path.isfile(path):
        raise InputError(
            f"{variable} names it, but no file can be read there", path=path, remedy=f"correct or unset {variable}"
        )
    return Search(model=model, path=path, because=f"{variable} names it", searched=searched)


def _by_name(model: str, files: Sequence[Path], searched: tuple[str, ...]) -> Search:
    search = Search(model=model, path=None, because="", searched=searched)
    passed_over: dict[Path, str] = {}
    for reason, fits in _RULES:
        fitting = [path for path in files if path not in passed_over and fits(path.name.lower(), model)]
        fitting.sort(key=_modified, reverse=True)
        taken: Path | None = None
        for path in fitting:
            if taken is not None:
                passed_over[path] = f"{path} (older)"
            elif flaw := _flaw(path):
                passed_over[path] = f"{path} ({flaw})"
            else:
                taken = path
        if taken is not None:
            newest = ", the newest of them" if any(" (older)" in note for note in passed_over.values()) else ""
            search = replace(search, path=taken, because=reason.format(model=model) + newest)
            break
    return replace(search, others=tuple(passed_over.values()))


def _by_content(models: Sequence[str], files: Sequence[Path], found: dict[str, Search]) -> None:
    """Add the newest log whose content names each model to `found`, with the older and the ambiguous ones.

    A reader that knows the model decides; else the only model that the text names with version and size, or by a class
    or a path if the log states no shape: its shape would tell what it is. A text that names several models is the log
    of none of them: it may be about a teacher, a draft or a tokenizer.
    """
    for path in sorted(files, key=_modified, reverse=True):
        if _flaw(path) is not None:
            continue
        try:
            trained = logs.read(path).model
            known = spellings.known_model(trained.name or "")
            is_other = trained.name is not None and spellings.mentions(trained.name)
            named = {known: ""} if known else {} if is_other else model_names.in_text(Log(path))
        except TensorPrimatError:
            continue
        if is_other and not known and trained.name is not None:
            named = {trained.name: ""}
        is_label = not known and not any(map(spellings.mentions, named.values()))
        of_another = bool(named) and not any(one in found for one in named)
        for model in models if of_another or not named else [one for one in models if one in named]:
            before, is_unclear = found[model], len(named) != 1 and not of_another
            if of_another:
                why_not = f"its content names {listed(sorted(named))}"
            elif is_label and trained.shape is not None:
                why_not, is_unclear = "its shape is that of another model", False
            elif is_unclear:
                says = f"its content names {listed(sorted(named))}" if named else "it names no model"
                why_not = f"{says}; if it is the log of {model}, set {model.upper()}_LOG={path}"
            elif before.path is not None:
                why_not = "older"
            else:
                because = f"its content names {model}" + (f" ({named[model]})" if named[model] else "")
                found[model] = replace(before, path=path, because=because)
                continue
            others = tuple(dict.fromkeys((*before.others, f"{path} ({why_not})")))
            found[model] = replace(before, others=others, unassigned=before.unassigned or is_unclear)


def _flaw(path: Path) -> str | None:
    """Return the reason why a file cannot be the log; None if it may be."""
    log = Log(path)
    try:
        if any(_OWN_LINE.match(text) for _, text in log.head()):
            return "written by this tool"  # while training; such a run already has its result
        return None if logs.detect_format(log) else "no training steps in it"
    except TensorPrimatError as error:
        return str(error)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
