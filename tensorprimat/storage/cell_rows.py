"""The cells of a folder, also those of other tools, as a pandas DataFrame."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from tensorprimat.core.errors import InputError
from tensorprimat.core.quantities import count
from tensorprimat.storage.micro_result import LARGEST_CELL_BYTES, MicroResult, parsed
from tensorprimat.system import regular

if TYPE_CHECKING:
    import pandas as pd

LARGEST_FOLDER_BYTES = 2**26  # of cells in one folder: their tables take ten seconds
MOST_ROWS = 100_000  # of the smallest cells, whose tables take as long
LARGEST_NUMBER = 10**30  # no count or measurement is larger, and some larger whole numbers have no float
_LISTS = frozenset({"trial_times_ms", "warmup_times_ms", "gpu_ids", "warnings"})
_SINGLE = frozenset(MicroResult.model_fields) - _LISTS
_NUMBERS = frozenset(
    {"d_model", "d_ff", "num_layers", "num_heads", "vocab", "seed", "num_warmups", "num_trials", "num_steps", "mfu",
     "num_parameters", "backward_forward_ratio", "context_length", "batch_size", "schema_version"}
) | frozenset(
    name for name in _SINGLE if name.endswith(("_ms", "_gb", "_percent", "_second"))
)  # fmt: skip
"""Keys of a cell that contain a number or nothing."""
COLUMN_DTYPES: dict[type, str] = {bool: "boolean", int: "Int64", float: "Float64", str: "string"}


def load_rows(folder: Path) -> tuple[pd.DataFrame, list[str]]:
    """Return every cell of a folder (not searched deeper) or a file, by file name, and sentences about files left out.

    Columns are the JSON's keys, and `file`. A JSON file counts as a cell, or several in a list, if it has `model_size`
    and `mean_time_ms`. Raises InputError where there is none, and for more than LARGEST_FOLDER_BYTES or MOST_ROWS.
    """
    is_file = os.path.exists(folder) and not os.path.isdir(folder)
    if not is_file and (why := regular.refused_listing(folder)):
        raise InputError(why, path=folder)
    size = 0
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for path in [folder] if is_file else sorted(folder.glob("*.json")):
        try:
            content = regular.content(path, most_bytes=LARGEST_CELL_BYTES)
            document = parsed(content, path)
        except InputError as error:
            problems.append(f"left out: {error}")
            continue
        listed = document if isinstance(document, list) else [document]
        found = [row for row in listed if isinstance(row, dict) and {"model_size", "mean_time_ms"} <= row.keys()]
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
    return frame_of(rows), problems


def frame_of(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a table, whose columns are all keys in the order of their first appearance."""
    import pandas as pd

    keys = dict.fromkeys(key for row in rows for key in row)
    return pd.DataFrame({key: column_of([row.get(key) for row in rows]) for key in keys})


def column_of(values: Sequence[Any], *, index: Any = None) -> pd.Series:
    """Return values as a column: boolean, Int64, Float64 or string; object for lists and for values of several kinds.

    NaN and numbers larger than any float are unmeasured (NA), as None is. Whole floats among whole numbers are whole
    numbers: a batch of 4.0 in the cell of one tool is that of 4 in the cells of another.
    """
    import pandas as pd

    known = [None if isinstance(v, int | float) and not abs(v) <= sys.float_info.max else v for v in values]
    kinds = {type(value) for value in known if value is not None} or {float}
    if int in kinds and kinds <= {int, float}:
        are_whole = all(value == int(value) and abs(value) < 2**63 for value in known if value is not None)
        kinds = {int} if are_whole else {float}
    return pd.Series(known, index=index, dtype=COLUMN_DTYPES.get(kinds.pop(), object) if len(kinds) == 1 else object)


def columns_of(cells: pd.DataFrame) -> list[str]:
    """Return the names of the columns that contain no lists."""
    objects = cells.select_dtypes(object)
    return [name for name in cells if name not in objects or not objects[name].map(type).isin([list, dict]).any()]


def plain(data: pd.Series | pd.DataFrame) -> list[Any]:
    """Return a column as a list, or a table as a list of rows, of Python's own values: None for NA."""
    return list(data.to_numpy(dtype=object, na_value=None).tolist())


def _wrong_value(row: Mapping[str, Any]) -> str | None:
    """Return the first value of a cell that a table cannot contain, or None."""
    for key, value in row.items():
        if isinstance(value, int) and abs(value) > LARGEST_NUMBER:
            return f"{key} is a number that cannot be a measurement"
        if key in _NUMBERS and value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            return f"{key} is {type(value).__name__}, not a number"
        if key in _SINGLE and isinstance(value, list | dict):
            return f"{key} is {type(value).__name__}, not a single value"
    return None


def is_figure(value: Any) -> TypeGuard[float]:
    """Return True if a value is a finite number; False for booleans."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
