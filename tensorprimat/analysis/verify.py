"""Verification of a folder of results: hashes of logs and series, and every figure computed again from its steps.

A finding names the file, its state and the reason. States that count as wrong: `differs` (the content is not the one
that was written), `missing` (a file that a result needs is gone) and `foreign` (the file belongs to no result).
`unchecked` marks a file that could not be verified, such as a log that is not on this machine.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tensorprimat.core.errors import InputError, MissingFileError
from tensorprimat.core.provenance import Source
from tensorprimat.core.quantities import as_stated, counted
from tensorprimat.core.result import SCHEMA_VERSION, Result
from tensorprimat.core.summary import summarise
from tensorprimat.storage import micro_result, preflight, series, store
from tensorprimat.system import digest, processes, regular

VerifyState = Literal["ok", "differs", "missing", "foreign", "unchecked"]
WRONG: tuple[VerifyState, ...] = ("differs", "missing", "foreign")
_ROUNDING = 1e-4  # relative: figures have 4 significant digits, and those of a series 6
SPREAD = 5e-5  # of the mean: error of a standard deviation that is computed from rows with 6 digits
_LARGEST = 1e300  # figure that can be compared; a whole number in a JSON file may be too large for a float
MOST_FIGURES = 5  # named in one sentence


@dataclass(frozen=True, kw_only=True)
class LogPlaces:
    """Files among which the logs of results are searched: by name, and by size for logs that were renamed."""

    by_name: Mapping[str, Sequence[Path]]
    by_size: Mapping[int, Sequence[Path]]
    has_folders: bool
    """True if the user named the folders with --logs."""
    originals: Mapping[str, str]
    """Of a bundle: hash of each redacted file → that of the file before."""
    digest: Callable[[Path], str | None]
    """Returns the hash of a file, computed once for all results that name it; None for a file that cannot be read."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One statement about one file."""

    path: Path
    state: VerifyState
    says: str


def verify(folder: Path, *, logs: Sequence[Path] = (), originals: Mapping[str, str] | None = None) -> list[Finding]:
    """Verify every result, cell and series file of a folder and the folders in it.

    logs: further folders for logs of the results, found by name or hash. originals: of a bundle, the hash of each
    redacted file → that of the file before; a log that is not in it is not missing. Raises InputError for one that is
    no folder.
    """
    for one in (folder, *logs):
        if why := regular.refused_listing(one):
            raise InputError(why, path=one)
    unread: list[OSError] = []
    files = _files(folder, unread.append)
    findings = [
        Finding(path=Path(error.filename), state="differs", says=f"cannot be read: {error.strerror or error}")
        for error in unread
    ]
    places, named = log_places(folder, logs, originals), set[Path]()
    for path in files:
        findings += _document_or_error(path, places, named) if path.suffix == ".json" else ()
    for path in files:
        findings += _auxiliary_file(path, named)
    return [*findings, *_latest(folder, files)]


def _files(folder: Path, unread: Callable[[OSError], None] | None = None) -> list[Path]:
    """Return all files below a folder in the order of their names; links to folders are not followed.

    unread: called with the error of a folder that cannot be read.
    """
    return sorted(Path(root, name) for root, _, names in os.walk(folder, onerror=unread) for name in names)


def _flat(folder: Path) -> list[Path]:
    try:
        return [path for name in os.listdir(folder) if os.path.isfile(path := folder / name)]
    except OSError:
        return []


def log_places(folder: Path, logs: Sequence[Path] = (), originals: Mapping[str, str] | None = None) -> LogPlaces:
    """Return the files among which the logs of a folder's results are searched; parameters as `verify`."""
    further = (file for log in logs for file in _files(log))
    paths = [*_files(folder), *_flat(folder.parent), *_flat(Path()), *further]
    names: dict[str, list[Path]] = {}
    sizes: dict[int, list[Path]] = {}
    for path in dict.fromkeys(paths):
        if path.suffix != ".json" and (size := _size(path)) is not None:
            names.setdefault(path.name, []).append(path)
            sizes.setdefault(size, []).append(path)
    return LogPlaces(
        by_name=names,
        by_size=sizes,
        has_folders=bool(logs) and originals is None,
        originals=originals or {},
        digest=cache(lambda file: (originals or {}).get(own := _digest(file) or "", own) or None),
    )


def found_log(source: Source, places: LogPlaces) -> tuple[Path | None, list[Path]]:
    """Return the log with the hash of a source, None if there is none, and the files with its name."""
    files = [Path(source.file)] if Path(source.file).is_absolute() else []
    files = [file for file in [*files, *places.by_name.get(Path(source.file).name, ())] if os.path.isfile(file)]
    others = () if source.size_bytes is None else places.by_size.get(source.size_bytes, ())
    return next((file for file in [*files, *others] if places.digest(file) == source.sha256), None), files


def _document_or_error(path: Path, places: LogPlaces, named: set[Path]) -> list[Finding]:
    """Return the findings about one JSON file; an error of its reader is a finding, too."""
    try:
        with regular.naming_file(path):
            return list(_document(path, places, named))
    except InputError as error:
        state: VerifyState = "missing" if isinstance(error, MissingFileError) else "differs"
        return [Finding(path=path, state=state, says=error.what)]


def _document(path: Path, places: LogPlaces, named: set[Path]) -> Iterator[Finding]:
    """Verify one JSON file, and add the series file that it names to `named`."""
    try:
        document = store.read_json(path)
    except InputError as error:
        yield Finding(path=path, state="differs", says=f"cannot be read: {error.what}")
        return
    if store.is_result(document):
        name = document.get("series_file")
        if isinstance(name, str):
            named.add(path.parent / name)
        yield from _result(path, document, places)
    elif isinstance(document, dict) and document.get("kind") == "cell":
        yield _cell(path, document)
    elif isinstance(document, dict) and document.get("kind") == "preflight":
        preflight.load(path)
        no_times = "a preflight stores no single times, so it cannot be checked"
        yield Finding(path=path, state="unchecked", says=no_times)
    elif not store.is_report(document):
        yield Finding(path=path, state="foreign", says="JSON that is not a result, cell, preflight or report")


def _result(path: Path, document: dict[str, Any], places: LogPlaces) -> Iterator[Finding]:
    result = store.load(path)
    if document.get("schema_version") != SCHEMA_VERSION:
        yield Finding(path=path, state="unchecked", says="written by an older version; its figures are not comparable")
    elif not len(result.steps):
        yield Finding(path=path, state="unchecked", says="holds no steps; its figures are unverified")
    else:
        yield _figures(path, document, result)
    yield from _sources(path, result, places)


_ALSO_STATED = ("memory_metrics", "power_metrics")
"""Sections of which a file may state figures that its steps do not contain."""


def _figures(path: Path, document: Mapping[str, Any], result: Result) -> Finding:
    """Compare every stated figure with the one that the steps give."""
    rowless = result.steps.take(slice(0))
    computed = json.loads(store.to_json(result.changed(steps=rowless)))
    of_steps = summarise(result.changed(**dict.fromkeys(_ALSO_STATED)))
    mean = result.performance_metrics.avg_step_time_seconds or 0.0
    wrong = []
    count = stated_only = 0
    for section in ("performance_metrics", "memory_metrics", "power_metrics", "runs"):
        for name, stated, found in _pairs(section, document.get(section), computed.get(section)):
            if section in _ALSO_STATED and found is not None and not _from_steps(of_steps, name):
                stated_only += 1
                continue
            count += 1
            if not _same(name, stated, found, mean):
                wrong.append(f"{name} is {_shown(stated)}, the steps give {_shown(found)}")
    if wrong:
        more = f" … and {len(wrong) - MOST_FIGURES} more" if len(wrong) > MOST_FIGURES else ""
        return Finding(path=path, state="differs", says="; ".join(wrong[:MOST_FIGURES]) + more)
    rows = counted(len(result.steps), "row")
    unverified = f"; {counted(stated_only, 'figure')} of memory or power not in the steps" if stated_only else ""
    return Finding(path=path, state="ok", says=f"{count} figures agree with {rows} of steps{unverified}")


def _from_steps(result: Result, name: str) -> bool:
    """Return True if a figure, such as "power_metrics.avg_clock_hertz", is one of the result's steps."""
    section, _, field = name.partition(".")
    record = getattr(result, section)
    return (getattr(record, field, None) if field else record) is not None


def _pairs(name: str, stated: Any, found: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (place, stated, found) of every value; a field that only one of the two has, as in another version, is left
    out."""
    if isinstance(found, dict) and isinstance(stated, dict):
        for key in found:
            if key in stated:
                yield from _pairs(f"{name}.{key}", stated[key], found[key])
    elif isinstance(found, list) and isinstance(stated, list) and len(found) == len(stated):
        for number, (one, other) in enumerate(zip(stated, found, strict=True)):
            yield from _pairs(f"{name}[{number}]", one, other)
    else:
        yield name, stated, found


def _same(name: str, stated: Any, found: Any, mean: float) -> bool:
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in (stated, found)):
        return bool(stated == found)
    field = name.rpartition(".")[2]
    of_differences = field == "drift" or field.startswith(("std_", "cv_"))
    spread = SPREAD * (mean if field.startswith("std_") else 1.0) if of_differences else 0.0
    return max(abs(stated), abs(found)) < _LARGEST and math.isclose(
        stated, found, rel_tol=_ROUNDING, abs_tol=max(spread, _last_digit(stated), 1e-12)
    )


def _last_digit(value: float) -> float:
    """Return the unit of a rounded figure's last digit: 3 decimals, or 4 significant digits below 1.

    >>> [f"{_last_digit(value):.2g}" for value in (12.3456, 0.0003668, 0.0)]
    ['0.001', '1e-07', '0']
    """
    if not value or not math.isfinite(value):
        return 0.0
    return min(1e-3, 1.01 * 10.0 ** (math.floor(math.log10(abs(value))) - 3))


def _shown(value: Any) -> str:
    is_number = isinstance(value, int | float) and abs(value) < _LARGEST
    text = as_stated(value) if is_number else json.dumps(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _sources(path: Path, result: Result, places: LogPlaces) -> Iterator[Finding]:
    """Find the logs that a result was read from, by name or size, and compare their hashes with the stated ones."""
    for source in result.provenance.sources:
        if source.sha256 is None:
            continue
        name = Path(source.file).name
        found, files = found_log(source, places)
        if found is not None:
            now = "" if found in files else f" (now {found})"
            by = ", by the hash before redaction" if _digest(found) in places.originals else ""
            yield Finding(path=path, state="ok", says=f"its log {name}{now} is the one that was read{by}")
        elif files:
            where = ", ".join(str(file) for file in files[:MOST_FIGURES])
            changed = f"its log changed since it was read, or is another file: {where}"
            yield Finding(path=path, state="differs", says=changed)
        elif places.has_folders:
            yield Finding(path=path, state="missing", says=f"its log {name} is in none of the folders, by name or hash")
        else:
            yield Finding(path=path, state="unchecked", says=f"its log {name} is not here")


def _cell(path: Path, document: Mapping[str, Any]) -> Finding:
    cell = micro_result.load(path)
    computed = json.loads(micro_result.to_json(micro_result.with_figures(cell)))
    names = ("mean_time_ms", "std_time_ms", "cv_percent", "median_time_ms", "min_time_ms", "max_time_ms")
    rates = ("tokens_per_second", "flops_per_second", "num_parameters")
    wrong = [
        f"{name} is {_shown(document.get(name))}, the trials give {_shown(computed.get(name))}"
        for name in (*names, *rates)
        if not _same(name, document.get(name), computed.get(name), cell.mean_time_ms or 0.0)
    ]
    if wrong:
        return Finding(path=path, state="differs", says="; ".join(wrong))
    return Finding(path=path, state="ok", says=f"its figures agree with {counted(len(cell.trial_times_ms), 'trial')}")


def _auxiliary_file(path: Path, named: set[Path]) -> Iterator[Finding]:
    """Verify a series file, and report a temporary file of an interrupted write."""
    if path.suffix == ".npz" and path not in named:
        yield Finding(path=path, state="foreign", says="a series file that no result refers to")
    elif path.suffix == ".npz" and series.is_own_name(path.name):
        if series.series_file_name(_digest(path) or "") != path.name:
            yield Finding(path=path, state="differs", says="its content does not match its name")
    elif path.suffix == ".tmp" and processes.is_abandoned(path.name):
        yield Finding(path=path, state="foreign", says="left by an interrupted write; it can be removed")


def _latest(folder: Path, files: Sequence[Path]) -> Iterator[Finding]:
    """Report the latest results of this folder that have no copy in history/."""
    history = folder / store.HISTORY
    if not os.path.isdir(history):
        return
    copies: dict[int, list[Path]] = {}
    for path in files:
        if path.parent == history and path.suffix == ".json" and (size := _size(path)) is not None:
            copies.setdefault(size, []).append(path)
    digests = cache(lambda size: {_digest(copy) for copy in copies.get(size, ())})
    for path in files:
        if path.parent != folder or not path.name.startswith("benchmark_") or path.suffix != ".json":
            continue
        size = _size(path)
        if size is not None and _digest(path) not in digests(size):
            no_copy = "history/ has no copy of it: changed, or not written by this program"
            yield Finding(path=path, state="foreign", says=no_copy)


def _size(path: Path) -> int | None:
    """Return the size of a regular file; None for anything else, and for one that has vanished."""
    with contextlib.suppress(OSError):
        known = path.stat()
        return known.st_size if stat.S_ISREG(known.st_mode) else None
    return None


def _digest(path: Path) -> str | None:
    """Return the hash of a file; None for one that cannot be read."""
    with contextlib.suppress(InputError):
        return digest.sha256(path)
    return None
