"""TensorPrimat: how fast, how efficiently and at what cost an accelerator trains a language model, with evidence.

    from tensorprimat import BenchmarkCallback, compare, read

`BenchmarkCallback` measures any Lightning or NeMo training, `read` turns a training log or a result file into a
`Result`, `compare` compares results with statistics, `load_cells` gives the measurements of `tprimat passes` and
`sweep` as a data frame, and `detect_platform` names the platform of this machine. Each is imported when it is first
used, so that reading needs no torch.
"""

from __future__ import annotations

from importlib import import_module

from tensorprimat.core.version import __version__

TYPE_CHECKING = False  # typing takes longer to import than all else here, and Ctrl-C meanwhile prints a traceback
if TYPE_CHECKING:
    from os import PathLike
    from typing import Any

    from tensorprimat.core.result import Result
    from tensorprimat.engines.callback import BenchmarkCallback
    from tensorprimat.logs import read
    from tensorprimat.machine.platform import detect_platform as detect_platform
    from tensorprimat.session.compare import compare_sides as compare

__all__ = ["BenchmarkCallback", "Result", "__version__", "compare", "detect_platform", "load_cells", "read"]

_HOMES = {
    "BenchmarkCallback": ("tensorprimat.engines.callback", "BenchmarkCallback"),
    "Result": ("tensorprimat.core.result", "Result"),
    "compare": ("tensorprimat.session.compare", "compare_sides"),
    "detect_platform": ("tensorprimat.machine.platform", "detect_platform"),
    "read": ("tensorprimat.logs", "read"),
}
"""Public name → the module that contains it, and its name there."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)


def load_cells(folder: str | PathLike[str]) -> Any:
    """Return the measurements of a folder that `tprimat passes` or `tprimat sweep` wrote, as a pandas DataFrame.

    Each row is a cell: the measurement of one configuration. Columns are the keys of the files, of type Int64, Float64,
    boolean or string with NA for unmeasured, or object for lists and for values of several kinds. A file that cannot be
    read is left out with a Python warning.

    Raises tensorprimat.core.errors.InputError for a folder without cells.
    """
    import warnings
    from pathlib import Path

    from tensorprimat.storage.cell_rows import load_rows

    cells, problems = load_rows(Path(folder))
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    return cells
