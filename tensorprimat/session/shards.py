"""Parts of a survey that several machines share: `analyze --shard` writes one part, `analyze --merge` reads them all.

A part is a file of JSON lines: a header, then one line for each of its items. Every machine lists all items in the same
order and takes every N-th, so that no part needs anything of another.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal

from pydantic import TypeAdapter, ValidationError

from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.core.fact_values import Statement
from tensorprimat.core.profile import Profile
from tensorprimat.core.quantities import shortened_list
from tensorprimat.core.records import Record
from tensorprimat.core.result import Result
from tensorprimat.core.survey import Item, SurveyedFile
from tensorprimat.core.version import __version__
from tensorprimat.logs import survey
from tensorprimat.storage import series
from tensorprimat.system import atomic, regular

SLURM = "slurm"  # value of --shard that takes the part from the job array of this task
MOST_DIGITS = 6  # of a number of parts
LONGEST_PART_LINE = 2 * series.LARGEST_SERIES_BYTES  # base64 makes a series a third longer
MOST_NAMED = 5  # parts that are missing
_PROFILE = TypeAdapter(Profile)

Look = Callable[[Item], SurveyedFile]
"""Function that returns the content of an item, with its steps."""


class PartHeader(Record):
    """The first line of a part."""

    tensorprimat_part: Literal[1]
    """Version of the format; logs/survey recognises a part by this key."""
    version: str
    """Version of the program that wrote the part."""
    part: int
    """Number of this part, from 1."""
    parts: int
    listing: str
    """SHA-256 over all items, with the sizes of their files."""
    save: bool
    """True if the lines contain the steps of logs, which --save needs."""
    stated: tuple[tuple[str, str | None, str], ...]
    """Field, side and text of each fact that the user stated."""
    places: tuple[str, ...]
    """Folders and files that the user named."""
    sha256: str = ""
    """SHA-256 over the whole file, with zeros in the place of this hash."""

    def line(self, sha256: str = "0" * 64) -> bytes:
        return _line({**self.model_dump(), "sha256": sha256})


_OF_ONE_SURVEY = {
    "parts": "another number of parts",
    "listing": "other files, or other sizes of files",
    "stated": "other stated facts",
    "save": "only one was written with --save",
}
"""Field of the header that all parts share → the reason for a refusal."""


def typed_shard(text: str, environment: Mapping[str, str]) -> tuple[int, int]:
    """Return part and number of parts of "I/N", or of the job array in Slurm's variables. Raises UsageError.

    >>> typed_shard("3/8", {})
    (3, 8)
    >>> array = {"SLURM_ARRAY_TASK_ID": "4", "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_STEP": "2"}
    >>> typed_shard("slurm", {**array, "SLURM_ARRAY_TASK_COUNT": "5"})
    (3, 5)
    """
    part, parts, shown = 0, 0, f"--shard {text}"
    if text == SLURM:
        names = [f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "MIN", "STEP", "COUNT")]
        typed = [environment.get(name, "") for name in names]
        if not all(map(_is_number, typed)) or typed[2] == "0":
            raise UsageError(f"{shown}: this is no task of a job array; use sbatch --array=1-N, or --shard I/N")
        task, first, step, parts = map(int, typed)
        part, rest = (task - first) // step + 1, (task - first) % step
        part, shown = (0 if rest else part), f"{shown} (task {task} of {parts})"
    elif all(map(_is_number, typed := text.split("/"))) and len(typed) == 2:
        part, parts = map(int, typed)
    if not 1 <= part <= parts:
        raise UsageError(f"{shown}: must be I/N, with I from 1 to N, such as 3/8")
    return part, parts


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS


def part_header(
    shard: tuple[int, int], places: Sequence[Path], items: Sequence[Item], stated: Sequence[Statement], *, save: bool
) -> PartHeader:
    """Return the header of a part, without the hash of the file."""
    return PartHeader(
        tensorprimat_part=1,
        version=__version__,
        part=shard[0],
        parts=shard[1],
        listing=survey.listing_sha256(items),
        save=save,
        stated=tuple((one.field, one.side, one.typed) for one in stated),
        places=tuple(map(str, places)),
    )


def write_part(header: PartHeader, lines: Iterable[bytes], folder: Path) -> Path:
    """Write a part into a folder, whole or not at all; return its path. Raises OSError."""

    def fill(file: IO[bytes]) -> None:
        digest = hashlib.sha256()
        for line in chain([header.line()], lines):
            digest.update(line)
            file.write(line)
        file.seek(0)
        file.write(header.line(digest.hexdigest()))

    path = folder / survey.PART_NAME.format(header.part, header.parts)
    atomic.write_atomically(path, fill)
    return path


def line_of(item: Item, *, look: Look, save: bool) -> bytes:
    """Return the line of an item. save: with the steps of a log."""
    finding = look(item)
    result, profile = finding.result, finding.profile
    row: dict[str, Any] = {"path": str(item.path), "problem": finding.problem, "result": None, "profile": None}
    if result is not None:
        row["result"] = {**_unrounded(result), "notices": [one.for_programs().model_dump() for one in result.remarks]}
        if save and finding.format != "result":
            row["steps"] = base64.b64encode(series.to_bytes(result.steps)).decode()
    if profile is not None:
        row["profile"] = dataclasses.asdict(profile)
    return _line(row)


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"  # ASCII: the name of a file may be any bytes


def _unrounded(value: Any) -> Any:
    """Return a record with all digits of its figures, which its serializers round."""
    if isinstance(value, Record):
        fields = type(value).model_fields.items()
        return {name: _unrounded(getattr(value, name)) for name, field in fields if not field.exclude}
    return [_unrounded(one) for one in value] if isinstance(value, tuple) else value


def read_parts(paths: Sequence[Path]) -> tuple[PartHeader, list[SurveyedFile], Look]:
    """Return the header of the parts, all findings in the order of the survey, and the function that reads steps.

    paths: parts, and folders of parts. Raises InputError for parts that are missing, doubled, altered or foreign.
    """
    headers: dict[int, tuple[PartHeader, Path]] = {}
    found: dict[int, SurveyedFile] = {}
    places: dict[Item, tuple[Path, int]] = {}
    for path in chain.from_iterable(map(_parts_in, paths)):
        with regular.open_regular(path) as file:
            header = _header(opening := file.readline(LONGEST_PART_LINE), path)
            _check_part(header, path, headers)
            headers[header.part] = header, path
            number, start, digest = header.part, len(opening), hashlib.sha256(header.line())
            while line := file.readline(LONGEST_PART_LINE):
                digest.update(line)
                found[number] = _finding(line, path)
                places[found[number].item] = path, start
                number, start = number + header.parts, start + len(line)
        if digest.hexdigest() != header.sha256:
            raise _altered(path)
    if missing := [str(part) for part in range(1, header.parts + 1) if part not in headers]:
        named = f"part {shortened_list(missing, MOST_NAMED)} of {header.parts} is missing"
        raise InputError(named, path=path.parent, remedy=f"write it with --shard {missing[0]}/{header.parts}")

    def look(item: Item) -> SurveyedFile:
        path, start = places[item]
        with regular.open_regular(path) as file:
            file.seek(start)
            return _finding(file.readline(LONGEST_PART_LINE), path, with_steps=True)

    return header, [found[number] for number in sorted(found)], look


def _parts_in(path: Path) -> list[Path]:
    if not os.path.isdir(path):
        return [path]
    parts = sorted(path.glob(survey.PART_NAME.format("*", "*")))
    if not parts:
        raise InputError("no part of a survey is here", path=path, remedy="write them with tprimat analyze --shard I/N")
    return parts


def _header(line: bytes, path: Path) -> PartHeader:
    try:
        header = PartHeader.model_validate_json(line)
    except ValidationError as error:
        raise InputError("not a part that analyze --shard of this version wrote, or cut", path=path) from error
    if header.version != __version__:
        remedy = f"merge with version {header.version}, or write all parts again"
        raise InputError(f"written by version {header.version}, and this is {__version__}", path=path, remedy=remedy)
    return header


def _check_part(header: PartHeader, path: Path, others: Mapping[int, tuple[PartHeader, Path]]) -> None:
    for other, other_path in others.values():
        for field, reason in _OF_ONE_SURVEY.items():
            if getattr(header, field) != getattr(other, field):
                raise InputError(f"not of the survey of {other_path}: {reason}", path=path, remedy="leave one out")
        if header.part == other.part:
            same = f"part {header.part} of {header.parts}, as is {other_path}"
            raise InputError(same, path=path, remedy="leave one out")


def _finding(line: bytes, path: Path, *, with_steps: bool = False) -> SurveyedFile:
    try:
        row = json.loads(line)
        result = row["result"] and Result.model_validate(row["result"])
        if with_steps and "steps" in row:
            result = result.changed(steps=series.from_bytes(base64.b64decode(row["steps"])))
        item = Item(path=Path(row["path"]), root=Path(row["path"]))
        profile = row["profile"] and _PROFILE.validate_python(row["profile"])
        return SurveyedFile(item=item, result=result, profile=profile, problem=row["problem"])
    except (*regular.FAULTS, *series.BROKEN) as error:
        raise _altered(path) from error


def _altered(path: Path) -> InputError:
    return InputError("cut or altered after it was written", path=path, remedy="copy it again, or write it again")
