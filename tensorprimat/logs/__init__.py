"""Logs of training, of every framework, as the result record: `read(path)` detects the format, reads, and joins.

`FORMATS` is the table; a new format is one module with a `FORMAT` and one row here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tensorprimat.core import regular, stated
from tensorprimat.core.errors import InputError, NoFormatError, NotALogError, UsageError
from tensorprimat.core.records import Result
from tensorprimat.core.stated import FLAGS
from tensorprimat.logs import (
    auditing,
    deepspeed,
    endings,
    excel,
    files,
    folded,
    huggingface,
    joining,
    keyvalue,
    lightning,
    litgpt,
    madengine,
    maxtext,
    megatron,
    metrics,
    mlflow,
    mlperf,
    nanogpt,
    nemo,
    olmo,
    result,
    tensorboard,
    timestamps,
    torchtitan,
)
from tensorprimat.logs.format import Format, Given
from tensorprimat.logs.text import HEAD_BYTES, Log, window_of

FORMATS: tuple[Format, ...] = (
    megatron.FORMAT,
    nemo.FORMAT,
    torchtitan.FORMAT,
    maxtext.FORMAT,
    huggingface.FORMAT,
    nanogpt.FORMAT,
    olmo.FORMAT,
    deepspeed.FORMAT,
    litgpt.FORMAT,
    lightning.FORMAT,
    mlperf.FORMAT,
    *keyvalue.FORMATS,
    metrics.FORMAT,
    mlflow.FORMAT,
    madengine.FORMAT,
    tensorboard.FORMAT,
    excel.FORMAT,
    result.FORMAT,
    timestamps.FORMAT,
)

STDIN = "-"

__all__ = ["FLAGS", "FORMATS", "STDIN", "Detection", "Format", "Given", "Log", "detect", "named", "read", "read_each"]


@dataclass(frozen=True, kw_only=True)
class Detection:
    """Which format a log has, and what else it might have been."""

    format: Format
    rows: int
    """Rows found in the part of the log that was looked at."""
    others: tuple[tuple[Format, int], ...] = ()
    """Formats that found rows too, but fewer."""


def detect(log: Log) -> Detection | None:
    """The format with most rows of its own in the first stretch of the log where any format finds one.

    None where no format recognises anything in the whole file. Raises InputError for what cannot be read.
    """
    if log.is_folder or log.is_binary:
        return _best(log, [format for format in FORMATS if not format.last_resort])
    number = 1
    for block in files.blocks(log.path, HEAD_BYTES):
        likely = [format for format in FORMATS if any(needle in block for needle in format.needles)]
        if likely and (found := _best(Log(log.path, log.called, window_of(number, block)), likely)):
            return found
        number += files.count_line_ends(block)
    return _best(log, [format for format in FORMATS if format.last_resort])


def _best(log: Log, formats: Sequence[Format]) -> Detection | None:
    counts = [(format, rows) for format in formats if (rows := format.detect(log))]
    if not counts:
        return None
    counts.sort(key=lambda pair: -pair[1])
    return Detection(format=counts[0][0], rows=counts[0][1], others=tuple(counts[1:]))


def named(name: str) -> Format:
    """A format by its name. Raises UsageError for a name that is not in the table."""
    for format in FORMATS:
        if format.name == name:
            return format
    raise UsageError(f"--format {name}: no such format; known: {', '.join(format.name for format in FORMATS)}")


def read(
    path: str | Path, *, given: Given | None = None, format: str | None = None, segment: int | None = None
) -> Result:
    """One log (or standard input, `-`) as a Result with every figure computed.

    given: what the user said by flag, overrides the log; format: name of a format, where detection is not wanted;
    segment: number of the one training to read, of a log that holds several.
    Raises NotALogError where the file holds neither a measured step nor a rate that the framework reported,
    ContradictionError where its own clock contradicts them, InputError for what cannot be read at all, UsageError for
    an unknown format.
    """
    with _log(path) as log:
        chosen, warnings = _chosen(log, format)
        warnings += _folds(log)
        result = stated.amended(joining.join(log, chosen, warnings, segment), given or Given())
        return _with_something(log, chosen, [result])[0]


def read_each(path: str | Path, *, given: Given | None = None, format: str | None = None) -> list[Result]:
    """As `read`, one Result for every training in the log that can be measured."""
    with _log(path) as log:
        chosen, warnings = _chosen(log, format)
        warnings += _folds(log)
        results = joining.join_each(log, chosen, warnings)
        return _with_something(log, chosen, [stated.amended(result, given or Given()) for result in results])


@contextmanager
def _log(path: str | Path) -> Iterator[Log]:
    if str(path) == STDIN:
        with files.spooled_stdin() as spool, regular.usable("standard input"):
            yield Log(spool, called="standard input")
    else:
        with regular.usable(Path(path)):
            yield Log(Path(path))


def _with_something(log: Log, format: Format, results: list[Result]) -> list[Result]:
    """Return the results that hold a figure. Raises the refusal of the log where none does."""
    telling = [result for result in results if joining.says_anything(result)]
    if not telling:
        raise _refusal(log, (format,), results[0])
    return [auditing.audited(result, log.name) for result in telling]


def _chosen(log: Log, name: str | None) -> tuple[Format, list[str]]:
    """The format to read a log with, and warnings about that choice."""
    warnings: list[str] = []
    if name is not None:
        format = named(name)
    else:
        detection = detect(log)
        if detection is None:
            raise _refusal(log, FORMATS)
        format = detection.format
        if detection.others:
            rivals = ", ".join(f"{other.name} ({rows})" for other, rows in detection.others)
            warnings.append(
                f"format: read as {format.name} ({detection.rows} rows in the part looked at); rows also fit {rivals}; "
                "tprimat extract --format overrides"
            )
    return format, warnings


def _folds(log: Log) -> list[str]:
    """Return a warning about a log whose lines were broken at a width."""
    first = [] if log.is_folder or log.is_binary else [text for _, text in next(log.windows(), [])]
    width = folded.fold_width(first)
    if width is None:
        return []
    return [
        f"steps: lines are folded at {width} characters, in the middle of numbers; a figure may be off by powers of "
        "ten; read the log as it was written"
    ]


def _refusal(log: Log, formats: Sequence[Format], read: Result | None = None) -> InputError:
    """Why nothing came out, in one line."""
    if log.is_folder:
        return InputError("is a folder, not a log", path=log.name, remedy="name a file in it")
    if log.size_bytes == 0:
        return InputError("is empty", path=log.name)
    if log.is_binary:
        return InputError(
            "is a binary file without usable step timing", path=log.name, remedy="see tprimat extract --formats"
        )
    if read is not None and len(read.steps):
        return NotALogError(
            f"read as {formats[0].name}: {len(read.steps)} row{'s' * (len(read.steps) > 1)} but none to measure "
            "(the first never counts, and a row needs a time or a rate)",
            path=log.name,
            remedy="train for more steps",
        )
    cause = endings.cause_of(log)
    ended = f" (its end: {cause})" if cause else ""
    if len(formats) == 1:
        reason = next((warning for warning in read.warnings if warning.startswith("steps: ")), None) if read else None
        if reason is not None:
            said = reason.removeprefix("steps: ")
            return NotALogError(f"no usable step timing found{ended}, read as {formats[0].name}: {said}", path=log.name)
        looked_for = f"{formats[0].name}: {formats[0].looks_for}"
        return NotALogError(f"no usable step timing found{ended}; looked for {looked_for}", path=log.name)
    remedy = (
        f"looked for rows of {', '.join(format.name for format in formats)}; `tprimat extract --formats` shows them"
    )
    kind = NotALogError if cause else NoFormatError  # what crashed before its first step was training all the same
    return kind(f"no usable step timing found{ended}", path=log.name, remedy=remedy)
