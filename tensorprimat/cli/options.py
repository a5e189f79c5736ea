"""Values of options that several commands read in the same way."""

from __future__ import annotations

import contextlib
import math
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tensorprimat.cli.shared_options import TypedFolder
from tensorprimat.core.errors import MissingPackageError, UsageError
from tensorprimat.core.quantities import TypedNumber, alternatives
from tensorprimat.system import atomic
from tensorprimat.system.safe_text import one_line

if TYPE_CHECKING:
    from tensorprimat.core.result import Result


def fraction(flag: str, text: str) -> TypedNumber:
    """Return a share as a person types it, "2%" or "0.02", with that text. Raises UsageError naming the flag.

    >>> fraction("--assume-run-cv", "2%"), fraction("--assume-run-cv", "0.02")
    (0.02, 0.02)
    """
    number, is_percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        value = float(number)
    except ValueError:
        raise UsageError(f"{flag} {text}: not a number; write it like 2%") from None
    if not math.isfinite(value) or value < 0:
        raise UsageError(f"{flag} {text}: must be 0 or more, such as 2%")
    if not is_percent and value > 1:
        meant = f"is that {number}%? Then write the percent sign" if value <= 100 else "write it as 2% or 0.02"
        raise UsageError(f"{flag} {text}: {meant}")
    return TypedNumber(value / 100 if is_percent else value, text.strip())


def refuse_unwritable(**files: Path | None) -> None:
    """Raise UsageError naming the flag where a file cannot be written, such as a folder. Writes nothing."""
    for flag, path in files.items():
        if path is not None and (why := atomic.refused_file(path)):
            raise UsageError(f"--{flag.replace('_', '-')} {path}: {why}; choose another name")


def writable_folder(flag: str, folder: Path) -> Path:
    """Return the folder, created if it is missing. Raises UsageError naming the flag if it is not writable."""
    if why := atomic.unwritable(folder):
        raise UsageError(f"{flag} {folder}: {why}; choose another folder")
    return folder


FILE_ENDINGS = (".json", ".csv", ".md")
"""Suffixes that make a value of --output a file; any other value is a folder."""
REPORT_ENDINGS = (*FILE_ENDINGS, ".html", ".png")
"""Suffixes that make a value of --output-dir of a comparison one file of its report."""


def _ending(path: Path) -> str:
    return "" if isinstance(path, TypedFolder) else path.suffix.lower()


def to_file(endings: Sequence[str]) -> str:
    """Return the end of the help of an option that takes a folder or a file with one of these suffixes."""
    return f"; a name that ends in {alternatives(endings)} is a file."


TO_FILE = to_file(FILE_ENDINGS)


def refuse_file(flag: str, path: Path, instead: str, endings: Sequence[str] = FILE_ENDINGS) -> None:
    """Raise UsageError if the name has the suffix of a file, but this option takes a folder. instead: advice."""
    if _ending(path) in endings:
        raise UsageError(f"{flag} {path}: this option writes no {_ending(path)} file; {instead}")


def picture_form(flag: str, path: Path) -> str:
    """Return the format of a picture by the suffix of its file. Raises UsageError naming the flag for another suffix.

    >>> picture_form("--plot", Path("scaling.SVG"))
    'svg'
    """
    form = path.suffix.lower().removeprefix(".")
    if form not in ("png", "svg"):
        raise UsageError(f"{flag} {path}: must end in .png or .svg")
    return form


def named_file(flag: str, path: Path, endings: Sequence[str] = FILE_ENDINGS) -> Path | None:
    """Return the path if its name is that of a file to write, None for a folder. Raises UsageError naming the flag.

    >>> named_file("--output", Path("results.csv")), named_file("--output", Path("results"))
    (PosixPath('results.csv'), None)
    >>> named_file("--output", TypedFolder("results.csv/"))
    """
    if _ending(path) not in endings:
        return None
    if why := atomic.refused_file(path):
        raise UsageError(f"{flag} {path}: {why}; choose another name")
    return path


def refuse_output(flag: str, path: Path, endings: Sequence[str] = FILE_ENDINGS) -> None:
    """Raise UsageError naming the flag where the file or folder cannot be written. Writes nothing, makes no folder.

    A command calls it before its work, which may take minutes.
    """
    if named_file(flag, path, endings) is None and (why := atomic.refused_folder(path)):
        raise UsageError(f"{flag} {path}: {why}; choose another folder")


def refuse_several(path: Path, results: int) -> None:
    """Raise UsageError where one JSON file would have to contain several results."""
    if path.suffix.lower() == ".json" and results > 1:
        raise UsageError(f"--output {path}: one file for {results} results; name a folder")


def write_results(results: Sequence[Result], path: Path) -> Path:
    """Write results in the format of the file's ending: the result, or a table or report of all. Returns the file."""
    from tensorprimat.storage import store

    refuse_several(path, len(results))
    if path.suffix.lower() == ".json":
        return store.write(results[0], path)
    from tensorprimat.analysis.compare import compare
    from tensorprimat.reports import csv, markdown

    comparison = compare([store.Loaded(path=path, result=result) for result in results])
    render = csv.render if path.suffix.lower() == ".csv" else markdown.render
    atomic.write_atomically(path, render(comparison))
    return path


def say_each(sentences: Iterable[str]) -> None:
    """Print each sentence to stderr on a line of its own, without control characters."""
    for sentence in sentences:
        print(one_line(sentence), file=sys.stderr)


@contextlib.contextmanager
def ended_like_ctrl_c(*signals: signal.Signals) -> Iterator[None]:
    """Handle these signals like Ctrl-C: end the child process too and keep finished work."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def drawn_if_possible(draw: Callable[[], dict[str, bytes]]) -> dict[str, bytes]:
    """Return the pictures that a function draws; none where matplotlib is missing, which is reported on stderr."""
    try:
        return draw()
    except MissingPackageError as error:
        print(error, file=sys.stderr)
        return {}


def say_files(lead: str, names: Sequence[str]) -> None:
    """Print the names of files to stderr after a lead; a terminal's lines break between names, never inside one."""
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
    lines = [f"{lead}:" if names else lead]
    for place, name in enumerate(names, start=1):
        piece = f" {name}" + ("," if place < len(names) else "")
        if width is not None and len(lines[-1]) + len(piece) > width:
            lines.append(f" {piece}")
        else:
            lines[-1] += piece
    print("\n".join(lines), file=sys.stderr)
