"""`tprimat gate`: fail a build if a slowdown is detected."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tensorprimat.cli import shared_options
from tensorprimat.cli.options import ended_like_ctrl_c, fraction, refuse_unwritable, say_each
from tensorprimat.cli.shared_options import argument, switch, takes
from tensorprimat.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorprimat.analysis.levels import LevelName
    from tensorprimat.storage.store import Loaded

EXIT_CODES = {"pass": 0, "fail": 1, "undecided": 3}


@shared_options.with_fact_options(after="confidence")
def command(
    results: Annotated[
        list[Path] | None, argument("BASELINE CANDIDATE", "Result, log, or folder of each side, instead of the flags.")
    ] = None,
    candidate: Annotated[
        list[Path] | None, takes("RESULT", "Result, log, or folder of them, to judge; may be repeated.")
    ] = None,
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
    run: Annotated[
        str | None,
        takes("COMMAND", "If the files do not pass, or there are none: run this shell command here and at --base-ref."),
    ] = None,
    base_ref: Annotated[str | None, takes("COMMIT", "Commit of the baseline for --run, such as origin/main.")] = None,
    writes: Annotated[
        str | None,
        takes(
            "PATH",
            "Result or log that the command of --run writes, or - for the log that it prints. Without: its time.",
        ),
    ] = None,
    prepare: Annotated[str | None, takes("COMMAND", "Run this in both once, before the runs, such as a build.")] = None,
    max_pairs: Annotated[int, takes("N", "Largest number of pairs of runs.")] = 20,
    json: Annotated[bool, switch("--json", "Print JSON.")] = False,
    comment: Annotated[Path | None, takes("FILE", "Also write the Markdown to this file.")] = None,
    junit: Annotated[Path | None, takes("FILE", "Also write the checks as JUnit XML.")] = None,
    **typed_facts: Any,
) -> int:
    """Judge a candidate against a baseline, model by model, and print Markdown for a pull-request comment.

    A check fails only if the whole confidence interval is beyond the limit, and passes only if the whole interval is
    within it; otherwise it is undecided. For an undecided slowdown, the output states how many runs would decide. Each
    side needs at least two runs; single runs need --assume-run-cv, but their peak memory is compared without an
    interval. A candidate can pass only if both sides state that they did the same work; --accept accepts less.
    Flags state facts that a file lacks, for one side as baseline=VALUE or candidate=VALUE; the output lists them.

    With --run, files that do not pass are no alarm yet: the command runs in turn at --base-ref (in a temporary
    worktree) and in this checkout, until a slowdown is shown, one of --max-slowdown is ruled out, or --max-pairs is
    reached. A speed of the machine cancels, and single slow runs have no weight. A check fails if more than a sixth of
    --max-slowdown is shown and --max-slowdown is not ruled out: 1 % of false alarms, 5 % of missed slowdowns.

    \b
    Examples:
      tprimat gate base new --max-slowdown 3%
      tprimat gate --baseline base.json --candidate new.json --json --junit gate.xml
      tprimat gate --run "python train.py" --writes train.log --base-ref origin/main
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
    from tensorprimat.analysis.pairs import FIRST_LOOK
    from tensorprimat.analysis.ratios import StatedScatter
    from tensorprimat.reports.gate import gate_as_json, gate_as_junit, render_gate
    from tensorprimat.session.sides import laid_over, load_any
    from tensorprimat.system.atomic import write_atomically

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
    refuse_unwritable(comment=comment, junit=junit)
    lowest = _level(accept) if accept else None
    if results:
        if len(results) != 2 or candidate or baseline or against:
            raise UsageError("name two results, the baseline first, or use --baseline and --candidate")
        baseline, candidate = results[:1], results[1:]
    if (run is None) != (base_ref is None):
        raise UsageError("--run and --base-ref need each other")
    if max_pairs < FIRST_LOOK:
        raise UsageError(f"--max-pairs {max_pairs}: must be {FIRST_LOOK} or more")
    report = None
    if candidate or baseline or against or run is None:
        if not candidate:
            raise UsageError("name a candidate with --candidate, or two results")
        bases, problems = _bases(baseline or [], against)
        candidates, more_problems = load_any(candidate)
        say_each((*problems, *more_problems))
        named = [replace(item, side="baseline") for item in bases] + [
            replace(item, side="candidate") for item in candidates
        ]
        loaded = laid_over(named, stated)
        report = gate(loaded[: len(bases)], loaded[len(bases) :], limits, assumed, lowest=lowest)
    if run is not None and base_ref is not None and (report is None or report.status != "pass"):
        from tensorprimat.session.commits import Trial, gate_in_turn

        trial = Trial(
            command=("bash", "-c", run), written=writes, prepare=("bash", "-c", prepare) if prepare else (),
            stated=stated, say=lambda line: say_each([line]),
        )  # fmt: skip
        with ended_like_ctrl_c(signal.SIGTERM):
            report = gate_in_turn(trial, base_ref, limits, assumed, lowest=lowest, most=max_pairs)
    if report is None:
        raise UsageError("nothing to judge")
    if stated:
        note = f"set by flag, not read from a file: {', '.join(one.flag for one in stated)}."
        report = replace(report, notes=(*report.notes, note))
    markdown = render_gate(report, confidence=assumed.confidence)
    if comment is not None:
        write_atomically(comment, markdown)
    if junit is not None:
        write_atomically(junit, gate_as_junit(report))
    print(gate_as_json(report, confidence=assumed.confidence) if json else markdown, end="")
    return EXIT_CODES[report.status]


def _bases(baseline: list[Path], against: str | None) -> tuple[Sequence[Loaded], Sequence[str]]:
    from tensorprimat.session.sides import load_any
    from tensorprimat.storage.store import Loaded

    if bool(baseline) == bool(against):
        raise UsageError("name a baseline with either --baseline or --against")
    if against is None:
        return load_any(baseline)
    from tensorprimat.reproduce import published

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
