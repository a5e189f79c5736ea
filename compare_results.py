#!/usr/bin/env python3
"""Command line of `tprimat compare` (--help is the manual), and its functions for scripts that import this file.

from compare_results import create_comparison_plot, generate_comparison_report, load_benchmark_results

results = load_benchmark_results("output")
create_comparison_plot(results, "comparison_plot.png")
generate_comparison_report(results, "comparison_report.md")
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tensorprimat.cli import main

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike
    from pathlib import Path

    from tensorprimat.storage.store import Loaded

__all__ = ["create_comparison_plot", "generate_comparison_report", "load_benchmark_results"]


def load_benchmark_results(*paths: str | PathLike[str]) -> list[Loaded]:
    """Return the results in files and folders (default: output/); a file may have any version of the result format.

    Each has `.path` and `.result`. Raises tensorprimat.core.errors.InputError for a named file that is no result, or a
    folder that holds none. An unreadable file in a folder is left out with a Python warning.
    """
    import warnings
    from pathlib import Path

    from tensorprimat.storage.store import load_all

    loaded, problems = load_all([Path(path) for path in paths or ("output",)], strict=True)
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    return loaded


def create_comparison_plot(
    results: Sequence[Loaded], output_file: str | PathLike[str] = "comparison_plot.png", *, by: str = "platform"
) -> Path:
    """Write the plot of a comparison and return its file; the ending (.png, .svg, .pdf) chooses the format.

    Raises MissingPackageError without matplotlib, UsageError for another ending and for a `by` that does not exist.
    """
    from pathlib import Path

    from tensorprimat.analysis.compare import compare
    from tensorprimat.core.errors import UsageError
    from tensorprimat.reports.plots import comparison as comparison_plot
    from tensorprimat.system.atomic import write_atomically

    path = Path(output_file)
    form = path.suffix.lstrip(".").lower() or "png"
    if form not in ("png", "svg", "pdf"):
        raise UsageError(f"{path}: must end in .png, .svg or .pdf")
    write_atomically(path, comparison_plot.comparison_plot(compare(results, by=by), (form,))[form])
    return path


def generate_comparison_report(
    results: Sequence[Loaded], output_file: str | PathLike[str] = "comparison_report.md", *, by: str = "platform"
) -> Path:
    """Write the Markdown report of a comparison and return its file. Raises UsageError for an unknown `by`."""
    from pathlib import Path

    from tensorprimat.analysis.compare import compare
    from tensorprimat.reports import markdown
    from tensorprimat.system.atomic import write_atomically

    path = Path(output_file)
    write_atomically(path, markdown.render(compare(results, by=by)))
    return path


if __name__ == "__main__":
    sys.exit(main(["compare", *sys.argv[1:]], program="compare_results.py"))
