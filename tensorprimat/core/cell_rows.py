"""The cells of a folder, also those of other tools, as the rows of a table."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, TypeGuard

from tensorprimat.core import regular
from tensorprimat.core.errors import InputError
from tensorprimat.core.micro_result import LARGEST_CELL_BYTES, MicroResult, parsed
from tensorprimat.core.quantities import count

MicroRow = dict[str, Any]
"""One cell as a row of a table: the JSON's keys, and `file`."""

LARGEST_FOLDER_BYTES = 2**26  # of cells in one folder: their tables take ten seconds
MOST_ROWS = 100_000  # of the smallest cells, whose tables take as long
LARGEST_NUMBER = 10**30  # no count or measurement is larger, and some larger whole numbers have no float
_LISTS = frozenset({"trial_times_ms", "warmup_times_ms", "gpu_ids", "warnings"})
_NUMBERS = frozenset(
    {"d_model", "d_ff", "num_layers", "num_heads", "vocab", "seed", "num_warmups", "num_trials", "num_steps", "mfu",
     "num_parameters", "backward_forward_ratio", "context_length", "batch_size", "schema_version"}
) | frozenset(
    name for name in MicroResult.model_fields
    if name.endswith(("_ms", "_gb", "_percent", "_second")) and name not in _LISTS
)  # fmt: skip
"""Keys of a row that contain a number or nothing."""


def load_rows(folder: Path) -> tuple[list[MicroRow], list[str]]:
    """Return every cell of a folder (not searched deeper) or a file, by file name, and sentences about files left out.

    A JSON file counts as a cell, or several in a list, if it has `model_size` and `mean_time_ms`. Raises InputError
    where there is none, and for more than LARGEST_FOLDER_BYTES or MOST_ROWS of them.
    """
    is_file = os.path.exists(folder) and not os.path.isdir(folder)
    if not is_file and (why := regular.refused_listing(folder)):
        raise InputError(why, path=folder)
    size = 0
    rows: list[MicroRow] = []
    problems: list[str] = []
    for path in [folder] if is_file else sorted(folder.glob("*.json")):
        try:
            content = regular.content(path, most_bytes=LARGEST_CELL_BYTES)
            document = parsed(content, path)
        except InputError as error:
            problems.append(f"left out: {error}")
            continue
        found = [row for row in (document if isinstance(document, list) else [document]) if _is_row(row)]
        size += len(content) if found else 0
        if size > LARGEST_FOLDER_BYTES or len(rows) + len(found) > MOST_ROWS:
            raise InputError(
                f"more than {LARGEST_FOLDER_BYTES // 2**20} MiB or {count(MOST_ROWS)} cells, too many for one table",
                path=folder, remedy="move them into several folders, and aggregate each",
            )  # fmt: skip
        for row in found:
            if wrong := _wrong_value(row):
                problems.append(f"left out: {path}: {wrong}")
            else:
                kept = {key: value for key, value in row.items() if key in _LISTS or not isinstance(value, list | dict)}
                rows.append({**kept, "file": path.name})
    if not rows:
        why = f" ({problems[0]})" if problems else ""
        raise InputError(f"no cells in it{why}", path=folder, remedy="run tprimat sweep first")
    return rows, problems


def _wrong_value(row: MicroRow) -> str | None:
    """Return the first value of a row that a table cannot contain, or None."""
    for key, value in row.items():
        if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
            return f"{key} is a number that cannot be a measurement"
        if key in _NUMBERS and value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            return f"{key} is {type(value).__name__}, not a number"
        if key in MicroResult.model_fields and key not in _LISTS and isinstance(value, list | dict):
            return f"{key} is {type(value).__name__}, not a single value"
    return None


def _is_row(document: Any) -> bool:
    return isinstance(document, dict) and "model_size" in document and "mean_time_ms" in document


def is_figure(value: Any) -> TypeGuard[float]:
    """Return True if a value of a row is a finite number; False for booleans."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
