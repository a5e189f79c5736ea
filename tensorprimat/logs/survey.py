"""Survey of folders of old data: the content of every file; files that cannot be read are listed with the reason.

Event files of one folder are one run, workbooks whose names differ in the rank are one profile, every other file is
treated alone. Model, precision and platform that a file does not state are taken from its path, and marked so.
"""

from __future__ import annotations

import hashlib
import os
import stat
import zipfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from tensorprimat import logs
from tensorprimat.core.errors import InputError, MissingPackageError, NoFormatError, ReportError, TensorPrimatError
from tensorprimat.core.fact_values import Statement, with_statements, words_of, words_of_file
from tensorprimat.core.folders import DEFAULT_FOLDER
from tensorprimat.core.survey import Item, SurveyedFile
from tensorprimat.logs import excel, files, paths, tensorboard
from tensorprimat.logs.text import Log

DEFAULT_FOLDERS = ("amd-logs", "nvi-logs", "benchmark_results", str(DEFAULT_FOLDER))
PASSED_OVER = ("history", "node_modules", "__pycache__")
"""Folders that are not entered: every result's earlier states, other people's code. Nor are hidden ones."""
PART_NAME = "part-{}-of-{}.jsonl"  # of a file of `analyze --shard`, which is no item of a survey
_PART_OPENING = b'{"tensorprimat_part":'


def items(paths: Sequence[Path]) -> Iterator[Item]:
    """Yield all candidates in the files and folders, folder by folder, by name; each once, however it is linked."""
    entered: set[tuple[int, int]] = set()
    for path in paths:
        if os.path.isdir(path):
            yield from _of_folder(path, path, entered)
        else:
            yield from _of_files([path], path.parent)


def listing_sha256(items: Sequence[Item]) -> str:
    """Return the SHA-256 of the items in their order, with the sizes of their files.

    Raises OSError for a file that is gone.
    """
    digest = hashlib.sha256()
    for item in items:
        members = item.ranks or (item.path,)
        if item.problem is None and os.path.isdir(item.path):
            members = tuple(sorted(filter(tensorboard.is_event_file, item.path.iterdir())))
        sizes = [] if item.problem else [(str(member), member.stat().st_size) for member in members]
        digest.update(repr((str(item.path), item.root.absolute().name, sizes, item.problem)).encode())
    return digest.hexdigest()


def survey_item(item: Item, stated: Sequence[Statement] = (), *, alone: bool = False) -> SurveyedFile:
    """Return the content of one item, or the reason why it cannot be read.

    stated: facts that the user states; alone: the item is all there is. Raises UsageError for a preset that the model
    does not have.
    """
    if item.problem is not None:
        return SurveyedFile(item=item, problem=item.problem)
    try:
        if item.ranks:
            return SurveyedFile(item=item, profile=excel.read_profile(item.ranks))
        result = logs.read(item.path)
        if stated:
            result = with_statements(result, stated, words_of_file(item.path) | words_of(result), alone=alone)
        parts = (item.root.absolute().name, *item.path.relative_to(item.root).parts)  # from the folder that was named
        return SurveyedFile(item=item, result=paths.with_path_facts(result, parts))
    except (NoFormatError, ReportError):
        return SurveyedFile(item=item)
    except InputError as error:
        return SurveyedFile(item=item, problem=None if _is_other_data(item.path) else error.what)
    except MissingPackageError as error:
        return SurveyedFile(item=item, problem=str(error))
    except OSError as error:
        return SurveyedFile(item=item, problem=error.strerror or str(error))


def _of_folder(folder: Path, root: Path, entered: set[tuple[int, int]]) -> Iterator[Item]:
    try:
        status = folder.stat()
        names_inside = sorted(os.listdir(folder))
    except OSError as error:
        yield Item(path=folder, root=root, problem=error.strerror or str(error))
        return
    if (status.st_dev, status.st_ino) in entered:
        return
    entered.add((status.st_dev, status.st_ino))
    inside = [folder / name for name in names_inside if not name.startswith(".")]
    folders = [path for path in inside if os.path.isdir(path)]
    yield from _of_files([path for path in inside if path not in set(folders)], root)
    for path in folders:
        if path.name not in PASSED_OVER:
            yield from _of_folder(path, root, entered)


def _of_files(paths: list[Path], root: Path) -> Iterator[Item]:
    """Yield the items of files in one folder."""
    workbooks, events = [], []
    for path in paths:
        problem = _unreadable(path)
        if problem is not None:
            yield Item(path=path, root=root, problem=problem)
        elif fnmatch(path.name, PART_NAME.format("*", "*")) and files.first_bytes(path).startswith(_PART_OPENING):
            continue
        elif tensorboard.is_event_file(path):
            events.append(path)
        elif excel.is_workbook(path):
            workbooks.append(path)
        else:
            yield Item(path=path, root=root)
    if events:
        yield Item(path=events[0] if len(events) == 1 else events[0].parent, root=root)
    for ranks in excel.ranks_of_one_run(workbooks):
        yield Item(path=ranks[0], root=root, ranks=ranks)


def _unreadable(path: Path) -> str | None:
    """Return the reason why a file cannot even be opened, or None."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            return "a pipe or a device, not a file"
        with path.open("rb") as file:
            torn = file.read(len(excel.ZIP_MAGIC)) == excel.ZIP_MAGIC and not zipfile.is_zipfile(file)
        return "a damaged workbook or zip archive" if torn else None
    except OSError as error:
        return "a broken link" if os.path.islink(path) else error.strerror or str(error)


def _is_other_data(path: Path) -> bool:
    """Return True if a file that no reader accepts is simply other data: empty or binary."""
    try:
        log = Log(path)
        return log.size_bytes == 0 or (log.is_binary and logs.detect_format(log) is None)
    except TensorPrimatError:
        return False
