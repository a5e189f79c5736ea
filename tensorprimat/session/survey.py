"""The work of `analyze`: survey folders of old training data, here or in parts, and save their logs as results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tensorprimat.core import identity
from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.core.fact_values import Statement, check_sides, words_of, words_of_file
from tensorprimat.core.moments import seconds_since_1970
from tensorprimat.core.quantities import counted, listed
from tensorprimat.core.survey import Item, Survey, SurveyedFile
from tensorprimat.logs import survey
from tensorprimat.session import shards
from tensorprimat.session.extract import Extracted, joined_logs
from tensorprimat.session.second_process import in_processes
from tensorprimat.storage import store
from tensorprimat.system import regular

_WORTH_A_PROCESS = 200  # files: a process takes half a second to start, a small log three milliseconds
ITEMS_AT_ONCE = 16

Surveyed = TypeVar("Surveyed")


ShowProgress = Callable[[Iterable[Any], int], Iterable[Any]]
"""Function that shows a progress bar and yields findings as they are read; arguments: findings and their number."""


def survey_folders(
    folders: Sequence[Path], stated: Sequence[Statement], *, save_to: Path | None, watch: ShowProgress
) -> Survey:
    """Read all files in the folders, add the facts that the user states, and save results if `save_to` names a folder.

    Raises UsageError and InputError for wrong arguments; the finding of a file that cannot be read states the problem.
    """
    places, items, look = _inputs(folders, stated)
    every = watch(_in_processes(partial(_slim, look=look), items), len(items))
    return _survey(places, list(every), stated, save_to, look)


def survey_part(
    folders: Sequence[Path],
    stated: Sequence[Statement],
    *,
    shard: tuple[int, int],
    save: bool,
    folder: Path,
    watch: ShowProgress,
) -> Path:
    """Read one of N equal parts of the files, and write its findings to a file in `folder`; return its path.

    shard: number of the part, and N. save: keep the steps, for `merged_survey` to save. Raises as `survey_folders`.
    """
    places, items, look = _inputs(folders, stated)
    header = shards.part_header(shard, places, items, stated, save=save)
    own = items[shard[0] - 1 :: shard[1]]
    lines = watch(_in_processes(partial(shards.line_of, look=look, save=save), own), len(own))
    return shards.write_part(header, lines, folder)


def merged_survey(parts: Sequence[Path], *, save_to: Path | None) -> Survey:
    """Return the survey whose parts, and folders of parts, are named, as one machine would have made it.

    Raises UsageError and InputError for parts that are not exactly those of one survey.
    """
    header, every, look = shards.read_parts(parts)
    if save_to is not None and not header.save:
        raise UsageError("--save: the parts contain no steps; write them with --shard I/N --save")
    stated = [Statement(field=field, value=None, side=side, typed=typed) for field, side, typed in header.stated]
    return _survey([Path(place) for place in header.places], every, stated, save_to, look)


def _inputs(folders: Sequence[Path], stated: Sequence[Statement]) -> tuple[list[Path], list[Item], shards.Look]:
    """Return the folders, all items in them, and the function that reads one."""
    places = _places(folders)
    items = list(survey.items(places))
    return places, items, partial(survey.survey_item, stated=stated, alone=len(items) == 1)


def _in_processes(read: Callable[[Item], Surveyed], items: Sequence[Item]) -> Iterator[Surveyed]:
    return in_processes(read, items, worth=_WORTH_A_PROCESS, at_once=ITEMS_AT_ONCE)


def _survey(
    places: Sequence[Path],
    every: Sequence[SurveyedFile],
    stated: Sequence[Statement],
    save_to: Path | None,
    look: shards.Look,
) -> Survey:
    """Return the survey of all findings, and save results."""
    found = [finding for finding in every if not finding.is_foreign]
    if stated and found:
        check_sides(stated, [_words(finding) for finding in found])
    saved, notes = _save(found, save_to, look) if save_to is not None else ([], [])
    listed_logs = {digest for one in found if one.format != "result" for digest in _sources(one)}
    once = [one for one in found if one.format != "result" or not _sources(one) or _sources(one) - listed_logs]
    if repeats := len(found) - len(once):
        notes.append(f"left out: {counted(repeats, 'result')} of logs that are listed")
    return Survey(
        places=tuple(places),
        found=tuple(once),
        foreign=len(every) - len(found),
        saved=tuple(saved),
        notes=tuple(notes),
    )


def _sources(finding: SurveyedFile) -> set[str]:
    """Return the SHA-256 of each log that a finding is from; empty if one is unknown."""
    known = [source.sha256 for source in finding.result.provenance.sources] if finding.result else []
    return {digest for digest in known if digest} if all(known) else set()


def _places(folders: Sequence[Path]) -> list[Path]:
    for folder in folders:
        if not os.path.exists(folder):
            raise InputError(regular.refused_listing(folder) or "no such folder", path=folder)
    if folders:
        return list(folders)
    known = [Path(name) for name in survey.DEFAULT_FOLDERS if os.path.isdir(name)]
    if not known:
        raise UsageError(f"none of {', '.join(survey.DEFAULT_FOLDERS)} is here; name the folders to search")
    return known


def _words(finding: SurveyedFile) -> set[str]:
    """Return the words with which --gpu SIDE=… can name this file as SIDE."""
    return words_of_file(finding.path) | (words_of(finding.result) if finding.result else set())


def _slim(item: Item, *, look: shards.Look) -> SurveyedFile:
    return look(item).without_steps()


def _started(finding: SurveyedFile) -> float:
    """Return the moment of a result in seconds since 1970; 0 for a file without one."""
    return seconds_since_1970(finding.result.timestamp if finding.result else None) or 0.0


def _save(found: Sequence[SurveyedFile], folder: Path, look: shards.Look) -> tuple[list[Path], list[str]]:
    """Save the results of logs and event files; return the files, and notes. Logs of one benchmark become its runs.

    Each log is read again, one benchmark after the other, because the steps of thousands of logs do not fit in memory.
    """
    benchmarks: dict[object, list[SurveyedFile]] = {}
    for finding in found:
        if finding.result and finding.format != "result":
            benchmarks.setdefault(identity.signature(finding.result), []).append(finding)
    saved: set[Path] = set()
    notes: list[str] = []
    for findings in benchmarks.values():
        ordered = sorted(findings, key=_started)
        read = [
            Extracted(logs=(str(finding.path),), result=result)
            for finding in ordered
            if (result := look(finding.item).result) is not None
        ]
        whole, remarks = joined_logs([one for one in read if one.result.is_usable])
        notes += remarks
        notes += [
            f"{listed(one.logs)}: equal settings and similar speed; saved as {len(one.logs)} runs of one result"
            for one in whole
            if len(one.logs) > 1
        ]
        for extracted in [*whole, *(one for one in read if not one.result.is_usable)]:
            saved.add(store.save(extracted.result, folder, stamp=store.new_stamp(), written=saved))
    return sorted(saved), notes
