"""Reader of the sides of a comparison: result files, folders or logs, each with or without a name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from tensorprimat import logs
from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.core.fact_values import Statement, check_sides, is_of_side, with_statements, words_of, words_of_file
from tensorprimat.core.result import Result
from tensorprimat.core.summary import summarise
from tensorprimat.facts.devices import short_device
from tensorprimat.logs.text import Log
from tensorprimat.session.extract import Extracted, extract_each, joined_logs, log_files_of, subfolders
from tensorprimat.session.second_process import StartCall, uncollected
from tensorprimat.storage import store
from tensorprimat.storage.store import Loaded, Read, ReadOutcome
from tensorprimat.system import regular

SCALING = "scaling.json"  # file next to the logs of an MLPerf submission
_SUFFIXES = (
    *(".json", ".jsonl", ".csv", ".log", ".txt", ".out", ".err", ".wandb"),
    *(".gz", ".xz", ".bz2", ".zst", ".zip"),
)
"""Endings of files that are left out of a side's name."""
EVENTS = "events.out.tfevents."  # prefix of TensorBoard's file names; a time, a host and numbers follow
MANY_FILES = 200  # from this number on, two processes are faster than one
LEAST_SIDES = 2  # with fewer readable sides there is nothing to compare


@dataclass(frozen=True, kw_only=True)
class Argument:
    """One argument of the command line: a path, and the name of its side if it has one."""

    path: Path
    name: str | None = None
    result: Result | None = field(default=None, repr=False)
    """Result that a Python program passes; the path is then only its label."""


def parse_argument(words: Sequence[str]) -> list[Argument]:
    """Split NAME=PATH, unless the whole names a file or NAME has a slash. Raises UsageError for an empty part.

    >>> parse_argument(["base=old/", "new.json"])
    [Argument(path=PosixPath('old'), name='base'), Argument(path=PosixPath('new.json'), name=None)]
    """
    arguments = []
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or "/" in name or "\\" in name or os.path.exists(word):
            arguments.append(Argument(path=Path(word)))
        elif name.strip() and path:
            arguments.append(Argument(path=Path(path), name=name.strip()))
        else:
            raise UsageError(f"{word}: write a side as NAME=PATH, such as base=old/")
    return arguments


def load_sides(
    arguments: Sequence[Argument], *, by_argument: bool, read: Read = store.load_each
) -> tuple[list[Loaded], list[str]]:
    """Read every argument; logs are read as `tprimat extract` reads them. Returns results, and notes for the user.

    by_argument: every argument is a side, and arguments of one name are one side; a side without a name is named after
    its device if that is unique, else after its path. read: reads the result files of a folder. A path without a result
    or a training log is left out with a note. Raises InputError for it if the path does not exist, or if fewer than
    LEAST_SIDES arguments would be left.
    """
    loaded: list[Loaded] = []
    sides = _provisional(arguments) if by_argument else [None] * len(arguments)
    unnamed_paths = [argument.path for argument in arguments if by_argument and argument.name is None]
    notes = [
        f"{path}: named {unnamed_paths.count(path)} times, so it is one side; a={path} b={path} compares it with itself"
        for path in dict.fromkeys(unnamed_paths)
        if unnamed_paths.count(path) > 1
    ]
    readable = len(arguments)
    for argument, side in zip(arguments, sides, strict=True):
        try:
            found, odd = _read(argument, one_side=side is not None, read=read)
        except InputError as error:
            readable -= 1
            if readable < LEAST_SIDES or not (os.path.exists(argument.path) or str(argument.path) == logs.STDIN):
                raise
            notes.append(f"left out: {error}")
            continue
        loaded += [replace(item, side=side) for item in found]
        notes += odd
    if by_argument:
        unnamed = {side for argument, side in zip(arguments, sides, strict=True) if argument.name is None}
        loaded = _named(loaded, unnamed)
    return loaded, notes


def load_any(paths: Sequence[Path]) -> tuple[list[Loaded], list[str]]:
    """Read results, logs and folders of either, without sides. Returns results, and notes for the user.

    Raises InputError for the only path, or where none can be read.
    """
    loaded: list[Loaded] = []
    notes: list[str] = []
    for place, path in enumerate(paths, 1):
        try:
            found, odd = _read(Argument(path=path), one_side=False, read=store.load_each)
        except InputError as error:
            if place == len(paths) and not loaded:
                raise
            notes.append(f"left out: {error}")
        else:
            loaded, notes = [*loaded, *found], [*notes, *odd]
    return loaded, notes


def read_in_two(start_call: StartCall, files: Sequence[Path]) -> list[ReadOutcome]:
    """Read result files; from MANY_FILES on, two processes share them."""
    if len(files) < MANY_FILES:
        return store.load_each(files)
    half = len(files) // 2
    with uncollected():
        second = start_call(store.load_each, files[half:])
        return [*store.load_each(files[:half]), *second()]


def _provisional(arguments: Sequence[Argument]) -> list[str | None]:
    """Return a name for every argument: its own, else the shortest unique end of its path that is no other's name."""
    taken = {argument.name for argument in arguments}
    unnamed = [argument.path for argument in arguments if argument.name is None]
    names: list[str | None] = []
    for argument in arguments:
        if argument.name is not None:
            names.append(argument.name)
            continue
        parts = _plain(argument.path).parts
        alike = [_plain(path) for path in unnamed if path != argument.path]
        ends = [
            "/".join(parts[-depth:])
            for depth in range(1, len(parts) + 1)
            if all(other.parts[-depth:] != parts[-depth:] for other in alike)
        ]
        whole = (str(argument.path), str(argument.path.absolute()))
        names.append(next((name for name in (*ends, *whole) if name not in taken), whole[-1]))
    return names


def _plain(path: Path) -> Path:
    """Return a path without suffixes such as .log.gz; for a TensorBoard file its folder, whose name is the run's."""
    path = path if path.name else path.absolute()
    if path.name.startswith(EVENTS):
        path = path.absolute().parent
    while path.suffix in _SUFFIXES:
        path = path.with_suffix("")
    return path


def _named(loaded: Sequence[Loaded], unnamed: set[str | None]) -> list[Loaded]:
    """Name a side without a name after its device, if all its results have one device that no other side has."""
    devices: dict[str | None, set[str | None]] = {}
    for item in loaded:
        devices.setdefault(item.side, set()).add(item.result.gpu_info.device_name)
    only = {side: next(iter(names)) for side, names in devices.items() if len(names) == 1}
    short = {side: short_device(name) for side, name in only.items() if name}
    taken = [*short.values(), *(set(devices) - unnamed)]
    titles = {side: name for side, name in short.items() if side in unnamed and taken.count(name) == 1}
    return [replace(item, side=titles.get(item.side, item.side)) for item in loaded]


def _read(argument: Argument, *, one_side: bool, read: Read) -> tuple[list[Loaded], list[str]]:
    path = argument.path
    if argument.result is not None:
        return [Loaded(path=path, result=argument.result)], []
    if str(path) == logs.STDIN:
        return _of_logs([logs.STDIN], one_side=one_side)
    if os.path.isdir(path):
        return _of_folder(path, one_side=one_side, read=read)
    if not os.path.exists(path) or _holds_result(path):
        return store.load_all([path])
    return _of_logs([str(path)], one_side=one_side)


def _holds_result(path: Path) -> bool:
    """Return True for a result file, and for a .json file that is neither result nor log: `store` reports its error."""
    with contextlib.suppress(InputError):
        if store.is_result(store.read_json(path)):
            return True
    return path.suffix.lower() == ".json" and logs.detect_format(Log(path)) is None


def _of_folder(folder: Path, *, one_side: bool, read: Read) -> tuple[list[Loaded], list[str]]:
    """Return the results of a folder; without any, those of its logs, else those of its subfolders."""
    if why := regular.refused_listing(folder):
        raise InputError(why, path=folder)
    try:
        return store.load_all([folder], read=read)
    except InputError as refusal:
        files = log_files_of(folder)
        logs_of_folder = [file for file in files if Path(file).name != SCALING]
        found: list[Loaded] = []
        notes: list[str] = []
        with contextlib.suppress(InputError):
            found, notes = _of_logs(logs_of_folder, one_side=one_side)
        if found and len(logs_of_folder) < len(files):
            notes.append(
                f"{folder / SCALING}: MLPerf's scaling factor is not applied here; tprimat mlperf import applies it"
            )
        elif not found:
            found, notes = _of_subfolders(folder, one_side=one_side, read=read)
        if not found:
            raise refusal from None
        return found, notes


def _of_subfolders(folder: Path, *, one_side: bool, read: Read) -> tuple[list[Loaded], list[str]]:
    """Return the results of a folder's subfolders, else of all their logs, read together so that ranks are recognised.

    Both lists are empty where the subfolders contain neither.
    """
    inside = subfolders(folder)
    if not inside:
        return [], []
    note = f"{folder}: read from its subfolders {', '.join(path.name for path in inside)}"
    holding = [path for path in inside if any(path.glob("*.json"))]
    with contextlib.suppress(InputError):  # no results: their files may be logs
        found, notes = store.load_all(holding, read=read)
        if found:
            return found, [note, *notes]
    with contextlib.suppress(InputError):
        found, notes = _of_logs([file for path in inside for file in log_files_of(path)], one_side=one_side)
        return found, [note, *notes]
    return [], []


def _of_logs(paths: Sequence[str], *, one_side: bool) -> tuple[list[Loaded], list[str]]:
    read: list[Extracted] = []
    notes: list[str] = []
    for one in extract_each(paths, (), format=None):
        if isinstance(one, Extracted):
            read.append(one)
        else:
            notes.append(f"left out: {one}")
    extracted, odd = joined_logs(read, one_side=one_side)
    if not extracted and paths:
        raise InputError("neither a result nor a training log", path=Path(paths[0]).parent)
    return [Loaded(path=Path(one.logs[0]), result=one.result) for one in extracted], [*notes, *odd]


def with_warmup(item: Loaded, warmup_steps: int) -> Loaded:
    """Return a result with every figure recomputed without the first `warmup_steps` steps of each run."""
    config = item.result.training_config.changed(warmup_steps=warmup_steps)
    return replace(item, result=summarise(item.result.changed(training_config=config)))


Labels = Callable[[Sequence[Loaded]], Sequence[str | None]]
"""Function that returns the label of the side that each result is on; None for a result that no side shows."""


def laid_over(loaded: Sequence[Loaded], statements: Sequence[Statement], labels: Labels | None = None) -> list[Loaded]:
    """Return the results with the stated facts laid over them (see `user_facts.amended`).

    With several results, a fact without a side only fills gaps. labels: called where a side has none of the names that
    a result has by itself. Raises UsageError for a side that none of the results has.
    """
    if not statements:
        return list(loaded)
    sides = [{item.side} if item.side else set() for item in loaded]
    taken = {
        side.casefold() for side in set().union(*sides)
    }  # a side's name means it, whatever others' files are called
    words = [
        {word for word in words_of_file(item.path) | words_of(item.result) if word.casefold() not in taken} | side
        for item, side in zip(loaded, sides, strict=True)
    ]
    shown: list[Sequence[str | None]] = []
    known = [one for one in statements if one.side is None or any(is_of_side(one.side, own) for own in words)]
    if labels is not None and len(known) < len(statements):
        shown = [labels(loaded), labels(laid_over(loaded, known))]  # a stated device changes a label
        words = [own.union(filter(None, of_one)) for own, *of_one in zip(words, *shown, strict=True)]
    check_sides(statements, words, list(dict.fromkeys(filter(None, chain.from_iterable(shown)))))
    exact = {one.side for one in statements} & set().union(*words)  # folders may differ in case only
    alone = len(loaded) == 1
    return [
        replace(
            item,
            result=with_statements(
                item.result, [one for one in statements if one.side not in exact or one.side in own], own, alone=alone
            ),
        )
        for item, own in zip(loaded, words, strict=True)
    ]
