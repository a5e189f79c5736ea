"""The outcome of the closing audit: its record in the result, warnings, refusals, and sentences.

A contradiction of more than WARNED is a warning; of more than REFUSED, no figure of the log can be trusted. Dates that
leave the rows too little time never refuse a log, because a program that copied the lines may have dated them. A
logger's clock refuses only rates that nothing but it can check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from tensorprimat.audit.evidence import DATES
from tensorprimat.audit.findings import AFTER_LAST_ROW, AuditFinding, summed_up
from tensorprimat.audit.rows import CHECKPOINT, EVALUATION, PROFILING, START_UP, WARNED
from tensorprimat.core.provenance import Audit
from tensorprimat.core.quantities import count, fixed, listed, percent, short_seconds
from tensorprimat.core.result import Result

REFUSED = 0.20
SUBTRACTED = "subtracted from the clock"
"""End of an explanation whose seconds the clock leaves out."""
_FASTER: Mapping[str, str] = {
    START_UP: "first rows",
    EVALUATION: "rows with an evaluation",
    CHECKPOINT: "rows with a checkpoint",
    PROFILING: "rows with a profile",
    AFTER_LAST_ROW: "steps after the last row",
}
"""Reason → name of its rows, for the case that they took less time than at the measured pace."""


def record(found: Sequence[AuditFinding], result: Result) -> Audit | None:
    """Return the record for the result file, by the clock that the log states if there is one, else by dates."""
    found = [finding for finding in found if not finding.is_copied]
    if not found:
        return None
    name = found[0].clock
    runs = [finding for finding in found if finding.clock == name]
    steps, seconds = sum(run.steps for run in runs), sum(run.seconds for run in runs)
    amount, unit = _work_of_a_step(result)
    subtracted = summed_up(reason for run in runs for reason in run.taken_out)
    included = summed_up(reason for run in runs for reason in run.explained)
    return Audit(
        clock=name,
        work=steps * amount,
        work_unit=unit,
        clock_seconds=seconds,
        ratio=seconds / sum(run.expected for run in runs),
        explained_by=(
            *(f"{_explanation(what, spent)}, {SUBTRACTED}" for what, spent in subtracted),
            *(_explanation(what, spent) for what, spent in included),
        ),
        unexplained_seconds=sum(run.unexplained for run in runs),
    )


def _work_of_a_step(result: Result) -> tuple[float, Literal["tokens", "samples", "steps"]]:
    """Return the work of one step and its unit: tokens where they are known, else samples, else the step itself."""
    tokens, batch = result.performance_metrics.tokens_per_step, result.training_config.global_batch_size
    return (tokens, "tokens") if tokens else (batch, "samples") if batch else (1.0, "steps")


def _explanation(what: str, seconds: float) -> str:
    """Return a reason with its seconds as a phrase.

    >>> _explanation("start-up", 212.3), _explanation("start-up", -7.34)
    ('start-up 212 s', 'first rows 7.3 s faster than the measured pace')
    """
    if seconds < 0:
        return f"{_FASTER.get(what, what)} {short_seconds(-seconds)} faster than the measured pace"
    return f"{what} {short_seconds(seconds)}"


def different_seconds(one: float, other: float) -> tuple[str, str]:
    """Return two numbers of seconds as text, with as many digits as show their difference.

    >>> different_seconds(110.2, 110.4), different_seconds(100, 110)
    (('110.2 s', '110.4 s'), ('100 s', '110 s'))
    """
    for decimals in range(4):
        texts = (f"{fixed(one, decimals)} s", f"{fixed(other, decimals)} s")
        if texts[0] != texts[1] and (decimals or min(abs(one), abs(other)) >= 10):
            return texts
    return short_seconds(one), short_seconds(other)


def contradictions(found: Sequence[AuditFinding]) -> list[str]:
    """Return a sentence for every clock whose contradiction exceeds WARNED."""
    return [_contradiction(finding) for finding in found if finding.contradiction > WARNED]


def refusals(found: Sequence[AuditFinding]) -> list[str]:
    """Return a sentence for every clock that contradicts the headline so much that no figure can be trusted."""
    return [
        _contradiction(finding)
        for finding in found
        if finding.refusable > REFUSED and finding.is_certain and not finding.is_copied
        if not (finding.clock == DATES and finding.unexplained < 0)
    ]


def _contradiction(finding: AuditFinding) -> str:
    if finding.is_copied:
        return (
            f"the steps took {short_seconds(finding.expected)}, but the timestamps of their lines span only "
            f"{short_seconds(finding.seconds)}: a program that copied the log probably added these, so the figures are "
            "not checked against them"
        )
    if finding.rows_steps > finding.steps * (1 + WARNED):
        return f"the rows add up to {count(finding.rows_steps)} steps, but the log itself counts {count(finding.steps)}"
    known = listed(_explanation(*share) for share in (*finding.taken_out, *finding.explained))
    left = finding.seconds - sum(seconds for _, seconds in finding.explained)
    taken, left_over = different_seconds(finding.expected, left)
    unexplained = f"{short_seconds(abs(finding.unexplained))} ({percent(finding.contradiction, 0)}) are unexplained"
    steps = f"{count(finding.steps)} steps take {taken} at the measured pace"
    if left < 0:  # not even the parts named fit into the clock
        return f"{steps}, plus {known}, but {short_seconds(finding.seconds)} in all by {finding.clock}: {unexplained}"
    return f"{steps}, but {left_over} by {finding.clock}{f', not counting {known}' if known else ''}: {unexplained}"


def pooled(audits: Sequence[Audit | None]) -> Audit | None:
    """Return the audit of pooled repetitions, with sums of work and clock.

    None where one repetition has no audit, or one by another clock.
    """
    known = [audit for audit in audits if audit is not None]
    if len(known) < len(audits) or len({(audit.clock, audit.work_unit) for audit in known}) != 1:
        return None
    clock = sum(audit.clock_seconds or 0.0 for audit in known)
    expected = sum((audit.clock_seconds or 0.0) / (audit.ratio or 1.0) for audit in known)
    return known[0].changed(
        work=sum(audit.work or 0.0 for audit in known),
        clock_seconds=clock,
        ratio=clock / expected if expected else None,
        explained_by=tuple(
            f"run {number}: {sentence}" for number, audit in enumerate(known, 1) for sentence in audit.explained_by
        ),
        unexplained_seconds=sum(audit.unexplained_seconds or 0.0 for audit in known),
    )


def gap_reason(audit: Audit | None) -> str | None:
    """Return a phrase that explains a gap of more than WARNED between headline and the log's own clock, else None."""
    if audit is None or audit.ratio is None or abs(audit.ratio - 1) <= WARNED:
        return None
    side = "above" if audit.ratio > 1 else "below"
    counted = [sentence for sentence in audit.explained_by if not sentence.endswith(SUBTRACTED)]
    if not counted and not audit.unexplained_seconds:
        return None  # the clock is not read finely enough to see a difference
    why = ", ".join(counted) or "cause unknown"
    clock = audit.clock or "the log's own clock"
    named = clock if clock.startswith("the ") else f"the log's clock '{clock}'"
    return f"{percent(abs(audit.ratio - 1), 1)} {side} the rate by {named}: {why}"
