"""TensorPrimat: how fast, how efficiently and at what cost an accelerator trains a language model, with evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from os import PathLike

__version__ = "0.1.0"


def load_cells(folder: str | PathLike[str]) -> Any:
    """Every cell of a folder that `tprimat passes` or `sweep` wrote, as a pandas DataFrame: one row each, JSON's keys.

    Raises tensorprimat.core.errors.InputError where there is none, MissingPackageError without pandas.
    """
    from pathlib import Path

    from tensorprimat.core.cells import load_rows
    from tensorprimat.core.errors import MissingPackageError

    try:
        import pandas as pd
    except ImportError as error:
        raise MissingPackageError("pandas", needed_for="data frames") from error
    rows, _ = load_rows(Path(folder))
    return pd.DataFrame(rows)
