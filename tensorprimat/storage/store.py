"""Result files on disk: read any version, write atomically, keep everything that was ever measured.

`output/benchmark_{cuda|rocm|cpu|unknown}_{model}.json` is the latest complete result; every invocation's result is also
kept in output/history/ under its own stamp, incomplete ones only there. A file that someone put in the place of the
latest by hand is copied to history before it is replaced.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from tensorprimat.core import step_columns
from tensorprimat.core.errors import InputError, ReportError, RunError, of_file_system
from tensorprimat.core.identity import continues, differing_fields, short_hash
from tensorprimat.core.quantities import as_stated, count, stated_seconds
from tensorprimat.core.records import Record, first_fault
from tensorprimat.core.result import SCHEMA_VERSION, Result
from tensorprimat.core.steps import FLOAT_COLUMNS, LONGEST_STEP_SECONDS, FloatArray, Steps
from tensorprimat.core.summary import summarise
from tensorprimat.core.user_facts import with_rates
from tensorprimat.storage import legacy, result_names, series
from tensorprimat.system import atomic, regular

HISTORY = "history"  # subfolder of earlier results in a folder of results
READ_A_LOG = "for a training log use extract_primus_metrics.py"
INLINE_STEPS = 50_000  # longer series go to a sidecar file, so that the JSON stays something a person can open
MOST_STEPS_OF_ROW = 10**9  # that one logged row may cover
USUAL_RESULT_BYTES = 2**18  # size of the first read: reading for the largest file costs time for a small one
LARGEST_RESULT_BYTES = 2**25  # 50,000 rows of thirty columns make 20 MB
MOST_BRACKETS = 10**6  # lists and objects of a result: a run or a source has one, a series has one
LARGEST_FIGURE = 1e30  # no measurement is larger, and sums and squares of larger numbers overflow
LEAST_FIGURE = 1e-30  # above 0; no measurement is smaller, and inverses and their squares overflow
OF_ANY_SIZE = frozenset(
    ("loss", "final_loss", "learning_rate", "gradient_norm", "temperature_celsius", "avg_temperature_celsius",
     "max_temperature_celsius", "quality_target", "unexplained_seconds")
)  # fmt: skip
"""Columns and figures that may be negative, or as near to 0 as a float can be."""
MOST_LOOKED_AT = 50  # results of one name that are searched for the log that is saved again
_SERIES_FILE = re.compile(rb'"series_file": ?"([^"/\\]{1,255})"')


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A result and the file it came from."""

    path: Path
    result: Result
    side: str | None = None
    """Side of a comparison that the user put it on."""


def new_stamp() -> str:
    """Return the name of one invocation in history: local time to the microsecond."""
    return datetime.now().strftime("%Y%m%d_%H%M%S_%f")


def save(
    result: Result,
    folder: Path,
    *,
    stamp: str,
    default_engine: str | None = None,
    written: Collection[Path] | None = None,
) -> Path:
    """Write a result as the latest of its benchmark and into history; an incomplete one into history alone.

    stamp: `new_stamp()` of this invocation; saving again under the same stamp replaces this invocation's own files.
    written: for a command that reads logs, the files that it has written so far. Then a file is replaced only if it is
    the result of the same log and not in `written`.
    Returns the file that now contains the result. Raises OSError where the folder cannot be written.
    """
    latest = _place(result, folder, default_engine, written)
    kept = folder / HISTORY / f"{latest.stem}_{stamp}.json"
    kept.parent.mkdir(parents=True, exist_ok=True)
    content = _content_of(result)  # made once for history and for the latest
    if not result.is_usable:
        return _write(content, kept)
    _keep_foreign(latest, kept.parent, stamp)
    _write(content, kept)
    return _write(content, latest)


@contextlib.contextmanager
def rescuing(result: Result, stamp: str) -> Iterator[None]:
    """Save a new measurement in the system's temporary folder where its own folder cannot be written any more.

    Raises RunError that names both, or the OSError if the temporary folder cannot be written either.
    """
    try:
        yield
    except OSError as error:
        kept = Path(tempfile.gettempdir()) / f"{result_names.file_stem(result)}_{stamp}.json"
        try:
            write(result, kept)
        except OSError:
            raise error from None
        raise RunError(f"{of_file_system(error)}; the result is in {kept}") from error


def latest_of(planned: Result, folder: Path, *, default_engine: str | None = None) -> Path:
    """Return the file of the latest result of a planned benchmark, or the plain name where there is none."""
    for path in _candidates(planned, folder, default_engine=default_engine):
        held = result_in(path)
        if held is not None and not differing_fields(held, planned, unknown_equal=True, context=False):
            return path
    return folder / f"{result_names.file_stem(planned, default_engine=default_engine)}.json"


def _place(result: Result, folder: Path, default_engine: str | None, written: Collection[Path] | None) -> Path:
    """Return the first name for a result that is free or contains a result that this one supersedes.

    The plain name stays with the benchmark that has it. Another benchmark says in its name what differs, or carries a
    hash of its identity where that name is taken too.
    """
    if written is not None:
        known = _candidates(result, folder, default_engine=default_engine)
        for path in known[:MOST_LOOKED_AT]:  # the same log again, perhaps under other flags
            if path not in written and (held := result_in(path)) is not None and continues(result, held):
                return path

    def is_free(path: Path) -> bool:
        """Return True where nothing is, the same benchmark, or the same log."""
        if (held := result_in(path)) is None:
            return True
        if written is None:
            return not differing_fields(result, held, unknown_equal=True, context=False)
        return path not in written and continues(result, held)

    return next(filter(is_free, _names(result, folder, result_names.file_stem(result, default_engine=default_engine))))


def _names(result: Result, folder: Path, stem: str) -> Iterator[Path]:
    """Yield the names that a result may have, the plain one first, without end."""
    yield (plain := folder / f"{stem}.json")
    if (held := result_in(plain)) is not None and (distinct := result_names.distinguishing_facts(result, held, stem)):
        yield folder / f"{stem}_{distinct}.json"
    hashed = f"{stem}_{short_hash(result)}"
    yield folder / f"{hashed}.json"
    yield from (folder / f"{hashed}-{number}.json" for number in itertools.count(2))


def _candidates(planned: Result, folder: Path, *, default_engine: str | None) -> list[Path]:
    stem = result_names.file_stem(planned, default_engine=default_engine)
    return [folder / f"{stem}.json", *sorted(folder.glob(f"{glob.escape(stem)}_*.json"))]


def result_in(path: Path) -> Result | None:
    """Return the result that a file contains, or None where there is none or nothing that can be read."""
    with contextlib.suppress(InputError):
        return load(path) if os.path.isfile(path) else None
    return None


def _keep_foreign(latest: Path, history: Path, stamp: str) -> None:
    """Copy a latest file that history does not contain (put there by hand, or by an older version) into history."""
    if not os.path.isfile(latest):
        return
    content = latest.read_bytes()
    for known in history.glob(f"{latest.stem}_*.json"):
        if known.stat().st_size == len(content) and known.read_bytes() == content:
            return
    name = _series_named(latest)
    if name is not None and os.path.isfile(latest.parent / name) and not os.path.exists(history / name):
        steps = regular.content(latest.parent / name, most_bytes=series.LARGEST_SERIES_BYTES)
        atomic.write_atomically(history / name, steps)
    atomic.write_atomically(history / f"{latest.stem}_before_{stamp}.json", content)


def _series_named(path: Path) -> str | None:
    """Return the name of the series file that a result names, without reading all of it."""
    with contextlib.suppress(InputError, OSError), regular.open_regular(path) as file:
        if match := _SERIES_FILE.search(file.read(USUAL_RESULT_BYTES)):
            return match[1].decode(errors="replace")
    return None


def write(result: Result, path: Path) -> Path:
    """Write a result to a file; the series of a very long one goes to a second file next to it. Raises OSError."""
    return _write(_content_of(result), path)


def _content_of(result: Result) -> tuple[str, str, bytes]:
    """Return the document of a result, and the hash and bytes of its series file; both empty unless it is very long."""
    if len(result.steps) <= INLINE_STEPS:
        return to_json(result), "", b""
    steps = series.to_bytes(result.steps)
    sha256 = series.sha256_of(steps)
    named = result.changed(series_file=series.series_file_name(sha256), series_sha256=sha256)
    return to_json(named), sha256, steps


def _write(content: tuple[str, str, bytes], path: Path) -> Path:
    document, sha256, steps = content
    before, name = _series_named(path), series.series_file_name(sha256) if sha256 else None
    if name is not None and not series.is_whole(path.parent / name, sha256):
        atomic.write_atomically(path.parent / name, steps)
    atomic.write_atomically(path, document)
    if before not in (None, name):
        series.remove_unnamed(path.parent, before)
    return path


def to_json(result: Result) -> str:
    """Return the JSON document: indented for people, each series on one line."""
    document = result.model_dump(mode="json", exclude={"raw_step_times", "step_metrics"})
    head = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)
    inline = result.steps.seen if result.series_file is None else ()
    series_of = {name: json.dumps(step_columns.column(result.steps, name)) for name in inline}  # one list at a time
    times = series_of.pop("seconds", "[]")
    columns = ",\n".join(f"    {json.dumps(name)}: {values}" for name, values in series_of.items())
    columns = f"\n{columns}\n  " if columns else ""
    return f'{head[:-2]},\n  "raw_step_times": {times},\n  "step_metrics": {{{columns}}}\n}}\n'


def load(path: Path) -> Result:
    """Read one result of any version. Raises InputError with the reason for anything else."""
    with regular.naming_file(path):
        return _from_document(read_json(path), path)


def _from_document(document: Any, path: Path) -> Result:
    if is_report(document):
        raise ReportError(f"a report of kind {document['kind']}, not a result", path=path, remedy="name the results")
    if not is_result(document):
        raise InputError("JSON, but not a benchmark result (no performance_metrics)", path=path, remedy=READ_A_LOG)
    if document.get("schema_version") != SCHEMA_VERSION:
        document = legacy.lift(document, path)
    try:
        result = Result.model_validate(document)
    except (ValueError, TypeError, OverflowError) as error:
        why = first_fault(error) if isinstance(error, ValidationError) else f"broken series: {error}"
        raise InputError(why, path=path, remedy="repair or remove the file") from error
    if result.series_file is not None:
        steps = series.read_series(path, result.series_file, sha256=result.series_sha256)
        result = result.changed(steps=steps, series_file=None)
    if odd := next(itertools.chain(_odd_numbers(result.steps), _odd_figures(result)), None):
        raise InputError(odd, path=path, remedy="repair or remove the file")
    if len(result.steps):
        return summarise(result).changed(series_sha256=None)
    figures = result.performance_metrics
    if all(getattr(figures, name) is None for name in _MEANS):
        raise InputError("neither steps nor reported means: nothing was measured", path=path)
    if figures.basis != "reported_means":
        return result
    return result.changed(performance_metrics=with_rates(figures, result.training_config))


_MEANS = (
    "avg_step_time_seconds", "steps_per_second", "tokens_per_second", "tokens_per_second_per_gpu", "samples_per_second",
    "samples_per_second_per_gpu",
)  # fmt: skip
"""Figures, one of which a result without steps has."""


def read_json(path: Path) -> Any:
    """Return the document of a JSON file. Raises InputError for text that is not JSON or too large for a result."""
    content = regular.content(path, most_bytes=LARGEST_RESULT_BYTES)
    if not content.strip():
        raise InputError("the file is empty", path=path)
    if content.count(b"[") + content.count(b"{") > MOST_BRACKETS:
        raise InputError("more lists and objects than any result has", path=path)
    try:
        return regular.json_document(content, path, "a result")
    except InputError as error:
        if error.line is not None and content.lstrip()[:1] not in (b"{", b"["):
            raise InputError("not a result, which is a JSON file", path=path, remedy=READ_A_LOG) from None
        raise


_REPORTS = ("comparison", "enhanced_metrics", "history", "aggregate", "analysis", "gate", "list")


def is_report(document: Any) -> bool:
    """Return True for JSON that is written from results and contains no measurement of its own."""
    return isinstance(document, dict) and document.get("kind") in _REPORTS


def is_result(document: Any) -> bool:
    """Return True if a JSON document is a benchmark result of any schema version."""
    return (
        isinstance(document, dict)
        and isinstance(document.get("performance_metrics"), dict)
        and ("platform" in document or "gpu_info" in document)
    )


def _odd_numbers(steps: Steps) -> Iterator[str]:
    """Yield a clause for each column that contains a number impossible in training."""
    seconds, covers = steps.column("seconds"), steps.column("covers")
    if len(wrong := np.flatnonzero((seconds <= 0) | (seconds > LONGEST_STEP_SECONDS))):
        yield f"raw_step_times[{wrong[0]}] is {stated_seconds(seconds[wrong[0]])}, which is not a step time"
    if ((covers < 0) | (covers > MOST_STEPS_OF_ROW)).any():
        yield f"step_metrics.covers holds a number outside 0 to {count(MOST_STEPS_OF_ROW)}"
    for name in filter(steps.has, FLOAT_COLUMNS):
        values = steps.column(name)
        if len(wrong := np.flatnonzero(_impossible(name, values))):
            yield f"step_metrics.{name}[{wrong[0]}] is {as_stated(values[wrong[0]])}, which cannot be a measurement"


def _odd_figures(record: Record, place: str = "") -> Iterator[str]:
    """Yield a clause for each figure of a record, and of the records in it, that nothing measures."""
    for name in type(record).model_fields:
        value = getattr(record, name)
        if isinstance(value, float) and _impossible(name, np.array(value)):
            yield f"{place}{name} is {as_stated(value)}, which cannot be a measurement"
        for number, inner in enumerate(value if isinstance(value, tuple) else (value,)):
            if isinstance(inner, Record):
                yield from _odd_figures(inner, f"{place}{name}[{number}]." if inner is not value else f"{place}{name}.")


def _impossible(name: str, values: FloatArray) -> NDArray[np.bool_]:
    """Return True for each value that is too large, too small or negative for its column or figure, in an array of the
    shape of the values."""
    too_large = np.abs(values) > LARGEST_FIGURE
    if name in OF_ANY_SIZE:
        return too_large
    return too_large | (values < 0) | ((values > 0) & (values < LEAST_FIGURE))


ReadOutcome = Result | InputError | None
"""Outcome of reading a file: its result, an error, or None for JSON of another kind."""

Read = Callable[[Sequence[Path]], Sequence[ReadOutcome]]


def load_each(files: Sequence[Path]) -> list[ReadOutcome]:
    """Return the outcome of reading each file of a folder, in order."""

    def outcome(file: Path) -> ReadOutcome:
        try:
            with regular.naming_file(file):
                document = read_json(file)
                return _from_document(document, file) if is_result(document) else None
        except InputError as error:
            return error

    return list(map(outcome, files))


def load_all(paths: Iterable[Path], *, read: Read = load_each, strict: bool = False) -> tuple[list[Loaded], list[str]]:
    """Load the results of files and folders, in this order, files of a folder by name.

    Broken files come back as sentences in the second list; in a folder (not searched deeper), other JSON files are
    skipped. Raises InputError where a folder holds no result at all, and for a broken file that was named, if `strict`
    or if fewer than two results are left. read: reads the files of a folder, for callers that use several processes.
    """
    loaded: list[Loaded] = []
    problems: list[str] = []
    broken: list[InputError] = []
    for path in paths:
        if not os.path.isdir(path):
            try:
                loaded.append(Loaded(path=path, result=load(path)))
            except InputError as error:
                broken.append(error)
                problems.append(f"left out: {error}")
            continue
        if why := regular.refused_listing(path):
            raise InputError(why, path=path)
        files = sorted(path.glob("*.json"))
        outcomes = list(zip(files, read(files), strict=True))
        found = [Loaded(path=file, result=outcome) for file, outcome in outcomes if isinstance(outcome, Result)]
        loaded += found
        problems += [f"left out: {outcome}" for _, outcome in outcomes if isinstance(outcome, InputError)]
        if not found:
            remedy = "run ./benchmark.py, or read a log with tprimat extract"
            if any((path / HISTORY).glob("*.json")):
                remedy = f"earlier ones are in {path / HISTORY}"
            why = "no benchmark results in this folder" + (f" ({problems[0]})" if problems else "")
            raise InputError(why, path=path, remedy=remedy)
    if broken and (strict or len(loaded) < 2):
        raise broken[0]
    return loaded, problems
