"""Public imports for training scripts.

    from benchmark_utils import BenchmarkCallback, detect_platform, load_results

`BenchmarkCallback` times any Lightning or NeMo training and writes output/benchmark_{cuda,rocm,cpu}_{model}.json;
`detect_platform()` names the platform of this machine; `load_results([path, …])` reads result files of any version
from files and folders. Each is imported when it is first used, so that reading results needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import PathLike

    from tensorprimat.core.result import Result
    from tensorprimat.engines.callback import BenchmarkCallback
    from tensorprimat.machine.platform import detect_platform as detect_platform

__all__ = ["BenchmarkCallback", "detect_platform", "load_results"]

_HOMES = {
    "BenchmarkCallback": ("tensorprimat.engines.callback", "BenchmarkCallback"),
    "detect_platform": ("tensorprimat.machine.platform", "detect_platform"),
}


def load_results(paths: Iterable[str | PathLike[str]]) -> list[Result]:
    """Return the results in files and folders; a file may have any version of the result format.

    Raises tensorprimat.core.errors.InputError for a named file that is no result, or a folder that holds none. An
    unreadable file in a folder is left out with a Python warning.
    """
    import warnings
    from pathlib import Path

    from tensorprimat.storage.store import load_all

    loaded, problems = load_all((Path(path) for path in paths), strict=True)
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    return [one.result for one in loaded]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)
