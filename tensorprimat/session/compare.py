"""Comparison of the sides that a Python program names: results, or paths of result files, folders and logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from tensorprimat.analysis.compare import compare
from tensorprimat.analysis.metrics import MetricChoices
from tensorprimat.analysis.records import Comparison
from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import Result
from tensorprimat.session.sides import Argument, load_sides

ComparisonSource: TypeAlias = "Result | str | PathLike[str]"
NamedComparisonSources: TypeAlias = "Mapping[str, ComparisonSource | Sequence[ComparisonSource]]"


def compare_sides(
    *sides: ComparisonSource | NamedComparisonSources,
    by: str | None = None,
    baseline: str | None = None,
    assume_run_cv: float | None = None,
    assume_host_cv: float | None = None,
    confidence: float = 0.95,
    strict: bool = False,
    prices: Mapping[str, float] | None = None,
) -> Comparison:
    """Return the comparison that `tprimat compare` reports for the same inputs.

    Each argument is one side: a `Result`, or the path of a result file, of a folder or of a training log. The first is
    the baseline. A dictionary names its sides, and a list in it pools repeated runs into one side. If there is only one
    path, or if `by` is set, the results are instead divided into sides by a property (default: platform).

    Args:
        sides: Results, paths, or dictionaries of side name to one or several of them.
        by: Property that separates the sides: platform, engine, precision, preset or gpu.
        baseline: Label, or part of the label, of the side that ratios divide by.
        assume_run_cv: Run-to-run coefficient of variation to assume for a side of one run; 0.02 is 2 %.
        assume_host_cv: Machine-to-machine coefficient of variation to assume for a side of one machine.
        confidence: Confidence of intervals and verdicts, from 0.5 to below 1.
        strict: Return a ratio only where model, shape, sequence length and global batch are the same.
        prices: US dollars per GPU-hour by device name.

    Returns:
        Sides, pairs with their ratios and verdict levels, warnings and errors.

    Raises:
        UsageError: A value is out of range, no side is named, or a side is empty.
        InputError: A path contains neither a result nor a training log, or nothing is left to compare.

    """
    arguments = [argument for number, side in enumerate(sides, 1) for argument in _arguments(side, number)]
    if not arguments:
        raise UsageError("no sides: name results, or paths of results, folders or logs")
    several = len(arguments) > 1 or arguments[0].name is not None
    loaded, notes = load_sides(arguments, by_argument=by is None and several)
    found = compare(
        loaded,
        by=by or "platform",
        baseline=baseline,
        assume_run_cv=assume_run_cv,
        assume_host_cv=assume_host_cv,
        confidence=confidence,
        strict=strict,
        choices=MetricChoices(prices=prices or {}),
    )
    return replace(found, warnings=(*notes, *found.warnings))


def _arguments(side: ComparisonSource | NamedComparisonSources, number: int) -> list[Argument]:
    """Return the arguments of `sides.load_sides` for one argument of `compare_sides`. number: its position, from 1."""
    if not isinstance(side, Mapping):
        return [_argument(side, None, f"result {number}")]
    for name, sources in side.items():
        if not isinstance(sources, Result | str | PathLike) and not sources:
            raise UsageError(f"side {name}: names no result; leave it out, or name results or paths")
    return [
        _argument(source, name, f"{name} {run}")
        for name, sources in side.items()
        for run, source in enumerate([sources] if isinstance(sources, Result | str | PathLike) else sources, 1)
    ]


def _argument(source: ComparisonSource, name: str | None, label: str) -> Argument:
    """Return the argument of `sides.load_sides` for a path or a result. name: its side; label: instead of a path."""
    if isinstance(source, Result):
        return Argument(path=Path(label), name=name, result=source)
    return Argument(path=Path(source), name=name)
