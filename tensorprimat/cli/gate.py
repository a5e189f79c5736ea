"""`tprimat gate`: fail a build only when a slowdown is shown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensorprimat.cli.options import fraction
from tensorprimat.core.errors import UsageError
from tensorprimat.reports.safe_text import one_line

if TYPE_CHECKING:
    from tensorprimat.analysis.levels import LevelName

EXIT_CODES = {"pass": 0, "fail": 1, "undecided": 3}


def command(
    baseline: Annotated[
        list[Path], typer.Option(metavar="RESULT", help="Result file or folder to measure against; may be repeated.")
    ],
    candidate: Annotated[
        list[Path], typer.Option(metavar="RESULT", help="Result file or folder to judge; may be repeated.")
    ],
    max_slowdown: Annotated[
        str, typer.Option(metavar="PERCENT", help="How much of the baseline's rate the candidate may lose.")
    ] = "3%",
    max_memory_increase: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="How much more peak device memory it may need.")
    ] = None,
    max_loss_gap: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="How far its loss may lie from the baseline's.")
    ] = None,
    assume_run_cv: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="Assume that single runs scatter by this much.")
    ] = None,
    accept: Annotated[
        str,
        typer.Option(metavar="LEVEL", help="Lowest level that may pass: same_work, same_work_per_token, same_task."),
    ] = "same_work",
    assume_host_cv: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="Assume that machines scatter by this much.")
    ] = None,
    confidence: Annotated[str, typer.Option(metavar="PERCENT", help="Of every decision.")] = "95%",
    model_name: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Model of old files that do not say which.")
    ] = None,
) -> int:
    """Judge a candidate against a baseline, model by model, and print Markdown for a pull-request comment.

    A check fails only if the loss of speed is shown to be beyond the limit, and passes only if it is shown to be within
    it; otherwise it is undecided, and the output says how many runs would decide. Two runs on each side are the least;
    single runs need --assume-run-cv. Only the same work can pass, unless --accept names a lower level.

    \b
    Examples:
      tprimat gate --baseline base.json --candidate new.json --max-slowdown 3%
      tprimat gate --baseline base/ --candidate output/ --max-memory-increase 2% --max-loss-gap 0.5% > comment.md

    \b
    Exit codes:
      0  every check is shown to be within its limit
      1  a check is shown to be beyond its limit
      2  a flag is wrong, a file cannot be read, or the sides did not do the same work
      3  undecided: more runs are needed
    """
    from tensorprimat.analysis.gate import Limits, gate
    from tensorprimat.analysis.ratios import Assumptions
    from tensorprimat.core.store import load_all
    from tensorprimat.reports.gate import render

    limits = Limits(
        slowdown=_limit("--max-slowdown", max_slowdown),
        memory_increase=None if max_memory_increase is None else fraction("--max-memory-increase", max_memory_increase),
        loss_gap=None if max_loss_gap is None else fraction("--max-loss-gap", max_loss_gap),
    )
    assumed = Assumptions(
        run_cv=None if assume_run_cv is None else fraction("--assume-run-cv", assume_run_cv),
        host_cv=None if assume_host_cv is None else fraction("--assume-host-cv", assume_host_cv),
        confidence=fraction("--confidence", confidence),
    ).checked()
    bases, problems = load_all(baseline, model_name=model_name)
    candidates, more_problems = load_all(candidate, model_name=model_name)
    for problem in (*problems, *more_problems):
        print(one_line(problem), file=sys.stderr)
    report = gate(bases, candidates, limits, assumed, lowest=_level(accept))
    print(render(report, confidence=assumed.confidence), end="")
    return EXIT_CODES[report.status]


def _level(text: str) -> LevelName:
    from tensorprimat.analysis.levels import LEVELS

    known = [name for name, level in LEVELS.items() if level.comparable]
    for name in known:
        if name == text.lower().replace("-", "_"):
            return name
    raise UsageError(f"--accept {text}: must be one of {', '.join(known)}")


def _limit(flag: str, text: str) -> float:
    """A share of a rate: below all of it."""
    value = fraction(flag, text)
    if value >= 1:
        raise UsageError(f"{flag} {text}: must be below 100%, such as 3%")
    return value
