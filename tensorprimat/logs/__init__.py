"""Training logs of every framework as result records: `read(path)` detects the format and reads the log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from tensorprimat.core.errors import ContradictionError, InputError, InternalError, NoFormatError, NotALogError
from tensorprimat.core.notices import Notice
from tensorprimat.core.provenance import LOGS
from tensorprimat.core.quantities import listed, shortened_list
from tensorprimat.core.result import Result
from tensorprimat.logs import assemble, clocks, failures, fields, files, metric_names, metrics, spelling
from tensorprimat.logs.format import Format, UserFacts
from tensorprimat.logs.formats import FORMATS, detect_format, format_named
from tensorprimat.logs.text import HEAD_BYTES, Log, lines_of
from tensorprimat.system import digest, regular

STDIN = "-"

__all__ = ["FORMATS", "STDIN", "Log", "UserFacts", "detect_format", "format_named", "read", "read_each"]


def read(
    path: str | Path,
    *,
    facts: UserFacts | None = None,
    format: str | None = None,
    segment: int | None = None,
    cited: bool = False,
) -> Result:
    """Return one log or result file as a Result with every figure computed.

    Args:
        path: Log or result file; `-` is standard input.
        facts: Values that replace those of the log (`tensorprimat.core.user_facts.UserFacts`).
        format: Name of a log format, instead of detection.
        segment: Number of the training to read, in a log with several.
        cited: Put the lines that state settings into provenance.citations.

    Returns:
        Figures in SI units; None where the log measured nothing, with a reason.

    Raises:
        NotALogError: The file has neither a measured step nor a reported rate.
        ContradictionError: The log's own clock contradicts its rows.
        InputError: The file cannot be read, changed while it was read, or has no training with this number.
        UsageError: No format has this name.

    """
    return _read(path, facts, format, segment=segment, cited=cited)[0]


def read_each(
    path: str | Path, *, facts: UserFacts | None = None, format: str | None = None, cited: bool = False
) -> list[Result]:
    """Read a log as `read` does, with one Result for every training in it that can be measured."""
    return _read(path, facts, format, each=True, cited=cited)


def _read(path: str | Path, facts: UserFacts | None, format: str | None, **choice: Any) -> list[Result]:
    """Read a log with the first possible format that finds a time or a rate. choice: see assemble.join."""
    with _log(path) as log:
        hashing, folds = None if log.is_folder else digest.Digest(log.path), _folds(log)

        def read(chosen: Format, warnings: list[str]) -> list[Result]:
            results = _read_as(log, chosen, [*warnings, *folds], facts or UserFacts(), choice)
            return [assemble.with_digest(result, chosen, hashing) for result in results]

        refusal: InputError | None = None
        for chosen, warnings in _chosen(log, format):
            try:
                return read(chosen, warnings)
            except NotALogError as error:
                refusal = refusal or error
            except ContradictionError:
                for name in () if format else chosen.falls_back_to:
                    warning = Notice("other_format", "format", name=name, other=chosen.name)
                    with suppress(NotALogError, ContradictionError):
                        return read(format_named(name), [warning])
                raise
        raise refusal or _refusal(log, FORMATS)


def _read_as(
    log: Log, format: Format, warnings: list[str], facts: UserFacts, choice: Mapping[str, Any]
) -> list[Result]:
    """Read a log with one format. Raises NotALogError if it finds no time or rate, and ContradictionError."""
    with regular.reading(log.name, f"the reader of {format.name}"):
        dates = _doubtful_dates(log, of_any_program=format.last_resort or format.name == "metrics")
        results = assemble.join(log, format, [*warnings, *dates], facts, **choice)
    informative = [result for result in results if assemble.has_content(result)]
    if not informative:
        raise _refusal(log, (format,), results[0])
    left_out = [str(result.provenance.segment) for result in results if not assemble.has_content(result)]
    told = (Notice("trainings_without_rows", "segments", numbers=", ".join(left_out)),) if left_out else ()
    audited = []
    for result in map(_without_overridden, informative):
        is_log = result.provenance.engine == LOGS
        odd_rows = [*spelling.problems(log, result.steps), *spelling.unread_numbers(log)] if is_log else []
        result = result.changed(warnings=(*told, *result.warnings, *odd_rows))
        audited.append(assemble.audited(result, log.name))
    return audited


@contextmanager
def _log(path: str | Path) -> Iterator[Log]:
    files.keep_freed_memory()
    if str(path) == STDIN:
        with files.spooled_stdin() as spool:
            yield Log(spool, called="standard input")
    else:
        with _unchanged(Log(Path(path))) as log:
            yield log


@contextmanager
def _unchanged(log: Log) -> Iterator[Log]:
    """Raise InputError if a file is replaced or cut while it is read, or if it grows and its reader fails.

    A log is read several times; a training that appends to it in between does no harm.
    """
    before = regular.file_state(log.path)
    error = None
    try:
        yield log
    except InputError as failure:
        error = failure
    now = regular.file_state(log.path)
    is_other = bool(before) and (now[:1] != before[:1] or now[1] < before[1])
    if is_other or (isinstance(error, InternalError) and now != before):
        raise InputError("changed while it was read", path=log.name, remedy="read it again, or a copy") from error
    if error is not None:
        raise error


def _without_overridden(result: Result) -> Result:
    """Return the result without citations of settings that a flag has replaced."""
    citations, assumed = result.provenance.citations, result.provenance.assumed
    left = {
        field: line for field, line in citations.items() if {field, field.removeprefix("model.")}.isdisjoint(assumed)
    }
    return result.changed(provenance=result.provenance.changed(citations=left))


def _chosen(log: Log, name: str | None) -> Iterator[tuple[Format, list[str]]]:
    """Yield the formats to read a log with, each with warnings about that choice: the detected one, then others that
    find as many rows.
    """
    if name is not None:
        yield format_named(name), []
        return
    with regular.reading(log.name, "the detection of its format"):
        detection = detect_format(log)
    found = [(detection.format, detection.rows), *detection.others] if detection else []
    for format, rows in found:
        if rows == found[0][1]:
            doubted = [
                other
                for other in found
                if other[0] is not format and not other[0].last_resort and format.name not in other[0].yields_to
            ]
            rivals = ", ".join(f"{other.name} ({count})" for other, count in doubted)
            warning = Notice("formats_doubted", "format", name=format.name, rows=rows, rivals=rivals)
            yield format, [warning] if rivals else []


def _head(log: Log) -> list[str]:
    """Return the first lines of a text as they are in the file; none for a folder and a binary file."""
    if log.is_folder or log.is_binary:
        return []
    number, block = next(log.numbered_blocks(HEAD_BYTES), (1, b""))
    return [text for _, text in lines_of(number, block)]


def _folds(log: Log) -> list[str]:
    """Return a warning about a log whose lines were broken at a width."""
    width = spelling.fold_width(_head(log))
    return [] if width is None else [Notice("lines_folded", "steps", width=width)]


def _doubtful_dates(log: Log, *, of_any_program: bool) -> list[Notice]:
    """Return a note on dates that are not read, or with an assumption. of_any_program: see clocks.doubtful_dates."""
    note = clocks.doubtful_dates("\n".join(_head(log)), of_any_program=of_any_program)
    return [note] if note else []


_BAR = re.compile(r"\d{1,3}%\|[^|\n]{0,400}\| {0,8}[\d.]{1,12}[kMG]?/[\d.]{1,12}[kMG]? \[\d|\bProgress on:\S")  # tqdm's
_BREAKDOWN = re.compile(r"\btime \(ms\) \| (?:fwd|bwd|step|optimizer_)\w*: ")  # DeepSpeed's wall_clock_breakdown
_RL_OF_TORCHTITAN = re.compile(r"\bTrain \| Step: {1,4}\d{1,9}  .{0,400}(?:\b(?:loss|rollout_reward|timing)/)")
BAR_BYTES = 2**14  # of the end of a log, which contain a bar's last drawing
FEWEST_TIMED = 3  # rows; with fewer, the reason may be that the first row never counts
_CSV_COLUMNS = ("step", "step_time_s")
_ANY_ROW = "step 20 | loss 7.8 | 512 ms/step"
"""Columns and a row that are read although no framework prints them."""
_UNTIMED = {
    "batches_accumulated", "interval_unknown", "rate_contradicted", "resume_hides_times", "rows_undecided",
    "stamps_too_coarse", "steps_never_alone", "time_of_what", "time_without_optimizer",
}  # fmt: skip
"""Notices that say why the rows have no times."""
_LEFT_OUT = ("cells_left_out", "lines_torn")
"""Notices that say why a table has no rows: decimal commas, for example."""


_MOST_SEEN = 12  # names of a table in a message
_MAP = "state which one is a time or a rate: tprimat extract --map step_time=NAME:ms"
_NAME_THE_STEP = "name the column with the number of the step 'step', or add one"


def _names_of_table(log: Log) -> list[str]:
    """Return the names of a table's numbers; none for another text."""
    if log.is_folder or log.is_binary:
        return []
    texts = [text for _, text in islice(log.head(), 20) if text.strip()]
    are_objects = sum(text.lstrip().startswith("{") for text in texts) > 1
    are_cells = len(texts) > 2 and all(text.count(",") == texts[0].count(",") > 0 for text in texts)
    are_alike = len({re.sub(r"[\d.\s]+", " ", text) for text in texts[:2]}) == 1  # a header differs from the rows
    return metrics.names_in(log) if are_objects or (are_cells and not are_alike) else []


def _other_separator(log: Log) -> str:
    """Return the name of the separator of a table that has other marks than commas between its columns, else ""."""
    header = next((text.strip().replace('"', "") for text in _head(log) if text.strip() and "sep=" not in text), "")
    found = (
        name for mark, name in ((";", "semicolons"), ("\t", "tabs")) if metric_names.are_of_table(header.split(mark))
    )
    return next(found, "")


def _refusal(log: Log, formats: Sequence[Format], read: Result | None = None) -> InputError:
    """Return the error that explains in one line why the log gave no result."""
    if log.is_folder and read is None:
        return InputError("is a folder, not a log", path=log.name, remedy="name a file in it")
    if log.size_bytes == 0:
        return InputError("is empty", path=log.name)
    reasons = [one for one in read.remarks if one.field == "steps"] if read else []
    reason = next((one for one in reasons if one.code in _LEFT_OUT), reasons[0] if reasons else None)
    if log.is_binary and reason is None:
        return InputError("is a binary file without step times", path=log.name, remedy="see tprimat extract --formats")
    if read is not None and len(read.steps):
        rows = f"read as {formats[0].name}: {len(read.steps)} row{'s' * (len(read.steps) > 1)} but none to measure"
        untimed = next((one for one in read.remarks if one.code in _UNTIMED), None)
        if untimed is not None:
            return NotALogError(f"{rows}: {untimed.text}", path=log.name)
        if len(read.steps) >= FEWEST_TIMED and not any(map(read.steps.has, fields.MEASURES)):
            other = "read another log of this training that does, such as its console log or its final summary"
            seen = shortened_list(_names_of_table(log), _MOST_SEEN)
            has, remedy = (f"; the table has {seen}", f"{_MAP}, or {other}") if seen else ("", other)
            return NotALogError(f"{rows}: no row states a time or a rate{has}", path=log.name, remedy=remedy)
        needed = "(the first never counts, and a row needs a time or a rate)"
        alone = ", or count the only one: tprimat extract --warmup-steps 0" if len(read.steps) == 1 else ""
        remedy = f"give more rows of the log, or train for more steps{alone}"
        return NotALogError(f"{rows} {needed}", path=log.name, remedy=remedy)
    if unread := spelling.unread_numbers(log):
        return NotALogError(f"no step times found; {unread[0].text}", path=log.name)
    cause = None if log.is_folder or log.is_binary else failures.cause_of(log)
    ended = f"; the run ended early: {cause}" if cause else ""
    if len(formats) == 1:
        if reason is not None:
            return NotALogError(f"no step times found{ended}, read as {formats[0].name}: {reason.text}", path=log.name)
        looked_for = f"{formats[0].name}: {formats[0].looks_for}"
        return NotALogError(f"no step times found{ended}; looked for {looked_for}", path=log.name)
    tail = log.tail(BAR_BYTES)
    if any(map(_BREAKDOWN.search, tail)):
        return NotALogError(
            f"no step times found{ended}; DeepSpeed's wall clock breakdown holds the parts of a step without the time "
            "between them",
            path=log.name,
            remedy="set the level of the logger DeepSpeed to INFO, so that steps_per_print prints CurrSamplesPerSec",
        )
    if any(map(_RL_OF_TORCHTITAN.search, tail)):
        return NotALogError(
            f"no step times found{ended}; rows of torchtitan's reinforcement learning are not read, because the time "
            "of an iteration includes the generation of answers and the wait for them",
            path=log.name,
            remedy="measure a pre-training or fine-tuning",
        )
    if any(map(_BAR.search, tail)):
        ended = f" (a progress bar does not state whether it counts optimizer steps){ended}"
    if dates := _doubtful_dates(log, of_any_program=False):
        return NotALogError(f"no step times found{ended}; {dates[0].text}", path=log.name)
    if separator := _other_separator(log):
        return NoFormatError(
            f"no step times found{ended}; the columns of the table are separated by {separator}",
            path=log.name,
            remedy="export it with commas between cells and with decimal points",
        )
    if names := _names_of_table(log):
        seen = shortened_list(names, _MOST_SEEN)
        is_measured = any((field := metric_names.field_of(name)) and field[0] in fields.MEASURES for name in names)
        remedy = _MAP if not is_measured or any(name in metric_names.STEPS for name in names) else _NAME_THE_STEP
        return NoFormatError(f"no step times found{ended}; the table has {seen}", path=log.name, remedy=remedy)
    remedy = (
        f"`tprimat extract --formats` shows the rows of the {len(formats)} known formats; other steps are read from a "
        f"CSV with the columns {listed(_CSV_COLUMNS)}, or from rows like {_ANY_ROW!r}"
    )
    kind = NotALogError if cause else NoFormatError  # a run that crashed before its first step was a training, too
    return kind(f"no step times found{ended}", path=log.name, remedy=remedy)
