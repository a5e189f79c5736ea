"""The work of `list`, `export` and `history`: find the results below folders, and read them into rows of tables."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorprimat.analysis import collection
from tensorprimat.analysis.sides import paired_model
from tensorprimat.core.errors import InputError, UsageError, of_file_system
from tensorprimat.core.quantities import counted
from tensorprimat.core.result import Result
from tensorprimat.models import names
from tensorprimat.session.second_process import in_processes
from tensorprimat.storage import cell_rows, store
from tensorprimat.system import regular

if TYPE_CHECKING:
    import pandas as pd

NOT_ENTERED = ("node_modules", "__pycache__")
"""Folders that are not searched for results; nor are hidden ones."""
_WORTH_A_PROCESS = 400  # files: a process takes half a second to start, a result two milliseconds
_FILES_AT_ONCE = 16


@dataclass(frozen=True, kw_only=True)
class ReadResult:
    """The content of one file; neither a result nor a problem if it is JSON of another kind."""

    row: dict[str, Any] | None = None
    """A row of `collection.RESULT_COLUMNS`."""
    result: Result | None = None
    """The result itself, if runs and steps are needed too."""
    problem: str | None = None


def result_files(places: Sequence[Path], left_out: list[str]) -> Iterator[Path]:
    """Yield every JSON file at and below the places, by name, those of a folder before those of its subfolders.

    left_out: gets a sentence for each folder that cannot be read. Raises InputError for a place that does not exist.
    """

    def refused(error: OSError) -> None:
        left_out.append(f"left out: {of_file_system(error)}")

    entered = set[tuple[int, int]]()
    for place in places:
        if os.path.isfile(place):
            yield place
            continue
        if why := regular.refused_listing(place):
            raise InputError(why, path=place)
        for here, folders, inside in os.walk(place, onerror=refused, followlinks=True):
            status = os.stat(here)
            if (status.st_dev, status.st_ino) in entered:  # a link to a folder that is searched anyway
                folders.clear()
                continue
            entered.add((status.st_dev, status.st_ino))
            folders[:] = sorted(name for name in folders if name not in NOT_ENTERED and not name.startswith("."))
            yield from (Path(here, name) for name in sorted(inside) if name.endswith(".json") and name[0] != ".")


def read_results(places: Sequence[Path], left_out: list[str], *, whole: bool = False) -> Iterator[ReadResult]:
    """Yield every result below the places once, as soon as it is read; several processes read many files.

    A file whose bytes equal those of an earlier one (the copy of the latest result in history/) is a copy. whole: give
    the results as well as their rows. left_out: gets a sentence for each broken file, and one about copies. Raises
    InputError where no result is found.
    """
    files, seen, copies = list(result_files(places, left_out)), set[str](), 0
    for read in in_processes(partial(_read, whole=whole), files, worth=_WORTH_A_PROCESS, at_once=_FILES_AT_ONCE):
        if read.problem is not None:
            left_out.append(f"left out: {read.problem}")
        if read.row is None:
            continue
        if read.row["sha256"] in seen:
            copies += 1
            continue
        seen.add(read.row["sha256"])
        yield read
    if copies:
        left_out.append(f"left out: {counted(copies, 'file')} with the same content as another")
    if not seen:
        where = ", ".join(map(str, places))
        why = f"{left_out[0].removeprefix('left out: ')}; " if len(left_out) == 1 else ""
        broken = f" ({len(left_out)} broken files)" if len(left_out) > 1 else ""
        raise InputError(
            f"{why}no benchmark results in or below {where}{broken}", remedy="run ./benchmark.py or tprimat extract"
        )


def _read(file: Path, *, whole: bool) -> ReadResult:
    try:
        (outcome,) = store.load_each([file])
        if not isinstance(outcome, Result):
            return ReadResult(problem=None if outcome is None else str(outcome))
        digest = hashlib.sha256(regular.content(file, most_bytes=store.LARGEST_RESULT_BYTES)).hexdigest()
    except InputError as error:
        return ReadResult(problem=str(error))
    return ReadResult(row=collection.result_row(outcome, str(file), digest), result=outcome if whole else None)


def table_of_results(places: Sequence[Path]) -> tuple[pd.DataFrame, list[str]]:
    """Return a row for every result below the places, and a sentence for each file left out.

    Raises the errors of `read_results`.
    """
    left_out: list[str] = []
    rows = cell_rows.frame_of([read.row for read in read_results(places, left_out) if read.row])
    kinds = {name: cell_rows.COLUMN_DTYPES[kind] for name, kind in collection.RESULT_COLUMNS.items()}
    return rows.astype(kinds), left_out  # also where all of a column are NA


def results_of(paths: Sequence[Path], *, model: str | None) -> tuple[list[store.Loaded], list[str]]:
    """Return the results of paths and of the history below each folder, and a sentence for each file left out.

    model: returns only results of this model. A folder needs no result of its own if its history contains some. Raises
    InputError where no path contains a result, UsageError where none is of the model.
    """
    found: list[store.Loaded] = []
    left_out: list[str] = []
    refusals: list[InputError] = []
    histories = [path / store.HISTORY for path in paths if os.path.isdir(path / store.HISTORY)]
    for path in (*paths, *histories):
        try:
            loaded, problems = store.load_all([path])
        except InputError as error:
            refusals.append(error)
            if path / store.HISTORY not in histories:
                left_out.append(f"left out: {error}")
            continue
        found += loaded
        left_out += problems
    if refusals and not found:
        raise refusals[0]
    if model is not None:
        found = [one for one in found if paired_model(one.result) == names.key(model)]
        if not found:
            raise UsageError(f"--model {model}: no result of that model here")
    return found, left_out
