"""`--output NAME.json`, `.csv` or `.md`: results written to the file that the user names instead of a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import Result
from tensorprimat.storage import store
from tensorprimat.storage.store import Loaded
from tensorprimat.system import atomic


def refuse_several(path: Path, results: int) -> None:
    """Raise UsageError where one JSON file would have to contain several results."""
    if path.suffix.lower() == ".json" and results > 1:
        raise UsageError(f"--output {path}: one file for {results} results; name a folder")


def write_results(results: Sequence[Result], path: Path) -> Path:
    """Write results in the format of the file's ending: the result, or a table or report of all. Returns the file."""
    refuse_several(path, len(results))
    if path.suffix.lower() == ".json":
        return store.write(results[0], path)
    from tensorprimat.analysis.compare import compare
    from tensorprimat.reports import csv, markdown

    comparison = compare([Loaded(path=path, result=result) for result in results])
    atomic.write_atomically(
        path, csv.render(comparison) if path.suffix.lower() == ".csv" else markdown.render(comparison)
    )
    return path
