"""`tprimat gate`: fail a build if a slowdown is detected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tensorprimat.cli import shared_options
from tensorprimat.cli.options import fraction, say_each
from tensorprimat.cli.shared_options import takes
from tensorprimat.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorprimat.analysis.levels import LevelName
    from tensorprimat.core.store import Loaded

EXIT_CODES = {"pass": 0, "fail": 1, "undecided": 3}


@shared_options.with_fact_options(after="confidence")
def command(
    candidate: Annotated[list[Path], takes("RESULT", "Result, log, or folder of them, to judge; may be repeated.")],
    baseline: Annotated[
        list[Path] | None, takes("RESULT", "Result, log, or folder of them, to compare with; may be repeated.")
    ] = None,
    against: Annotated[
        str | None,
        takes(
            "mlperf:ENTRY",
            "Use an entry of tprimat mlperf list as the baseline, or a row of vendors' tables (published:ROW).",
        ),
    ] = None,
    max_slowdown: Annotated[str, takes("PERCENT", "Largest tolerated slowdown against the baseline.")] = "3%",
    max_memory_increase: Annotated[
        str | None, takes("PERCENT", "Largest tolerated increase of peak device memory.")
    ] = None,
    max_loss_gap: Annotated[
        str | None, takes("PERCENT", "Largest tolerated gap between the losses of both sides.")
    ] = None,
    assume_run_cv: Annotated[str | None, takes("PERCENT", "Assume that single runs vary by this much.")] = None,
    accept: Annotated[
        str | None,
        takes(
            "LEVEL",
            "Weakest equality of the sides that can pass: same_work (also if a side does not state a setting), "
            "same_work_per_token or same_task.",
        ),
    ] = None,
    assume_host_cv: Annotated[str | None, takes("PERCENT", "Assume that machines vary by this much.")] = None,
    confidence: Annotated[str, takes("PERCENT", "Confidence of every decision.")] = "95%",
    **typed_facts: Any,
) -> int:
    """Judge a candidate against a baseline, model by model, and print Markdown for a pull-request comment.

    A check fails only if the whole confidence interval is beyond the limit, and passes only if the whole interval is
    within it; otherwise it is undecided. For an undecided slowdown, the output states how many runs would decide. Each
    side needs at least two runs; single runs need --assume-run-cv, but their peak memory is compared without an
    interval. A candidate can pass only if both sides state that they did the same work; --accept accepts less.
    Flags state facts that a file lacks, for one side as baseline=VALUE or candidate=VALUE; the output lists them.

    \b
    Examples:
      tprimat gate --baseline base.json --candidate new.json --max-slowdown 3%
      tprimat gate --against mlperf:tyche_ngpu8_ngc25.09_nemo/llama31_8b --candidate new/ --accept same_work_per_token
      tprimat gate --baseline base/ --candidate output/ --max-memory-increase 2% --max-loss-gap 0.5% > comment.md

    \b
    Exit codes:
      0  every check is shown to be within its limit
      1  a check is shown to be beyond its limit
      2  a flag is wrong, a file cannot be read, or the sides did not do the same work
      3  undecided: more runs are needed
    """
    from tensorprimat.analysis.gate import Limits, gate
    from tensorprimat.analysis.ratios import StatedScatter
    from tensorprimat.core.fact_values import laid_over
    from tensorprimat.reports.gate import render_gate
    from tensorprimat.session.sides import load_any

    limits = Limits(
        slowdown=_limit("--max-slowdown", max_slowdown),
        memory_increase=None if max_memory_increase is None else fraction("--max-memory-increase", max_memory_increase),
        loss_gap=None if max_loss_gap is None else fraction("--max-loss-gap", max_loss_gap),
    )
    assumed = StatedScatter(
        run_cv=None if assume_run_cv is None else fraction("--assume-run-cv", assume_run_cv),
        host_cv=None if assume_host_cv is None else fraction("--assume-host-cv", assume_host_cv),
        confidence=fraction("--confidence", confidence),
    ).checked()
    stated = shared_options.statements(typed_facts)
    bases, problems = _bases(baseline or [], against)
    candidates, more_problems = load_any(candidate)
    say_each((*problems, *more_problems))
    named = [replace(item, side="baseline") for item in bases] + [
        replace(item, side="candidate") for item in candidates
    ]
    loaded = laid_over(named, stated)
    report = gate(
        loaded[: len(bases)], loaded[len(bases) :], limits, assumed, lowest=_level(accept) if accept else None
    )
    if stated:
        note = f"set by flag, not read from a file: {', '.join(one.flag for one in stated)}."
        report = replace(report, notes=(*report.notes, note))
    print(render_gate(report, confidence=assumed.confidence), end="")
    return EXIT_CODES[report.status]


def _bases(baseline: list[Path], against: str | None) -> tuple[Sequence[Loaded], Sequence[str]]:
    from tensorprimat.core.store import Loaded
    from tensorprimat.session.sides import load_any

    if bool(baseline) == bool(against):
        raise UsageError("name a baseline with either --baseline or --against")
    if against is None:
        return load_any(baseline)
    from tensorprimat.analysis import published

    kind, _, name = against.partition(":")
    if kind not in (published.MLPERF, published.TABLE) or not name:
        raise UsageError(
            f"--against {against}: must be mlperf:ENTRY, such as mlperf:v5.1/AMD/MI355X_…/llama31_8b, or published:ROW"
        )
    found = published.find_baseline(against)
    return [Loaded(path=Path(found.name), result=published.result_of_baseline(found))], []


def _level(text: str) -> LevelName:
    from tensorprimat.analysis.levels import LEVELS

    known = [name for name, level in LEVELS.items() if level.comparable]
    for name in known:
        if name == text.lower().replace("-", "_"):
            return name
    raise UsageError(f"--accept {text}: must be one of {', '.join(known)}")


def _limit(flag: str, text: str) -> float:
    """Return a limit as a fraction. Raises UsageError for 100 % or more."""
    value = fraction(flag, text)
    if value >= 1:
        raise UsageError(f"{flag} {text}: must be below 100 %, such as 3%")
    return value
