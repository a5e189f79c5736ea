"""The closing audit of one log: its record and warnings, or a refusal."""

from __future__ import annotations

from tensorprimat.core import audit, audit_verdict
from tensorprimat.core.errors import ContradictionError
from tensorprimat.core.result import Result
from tensorprimat.core.summary import select_measured

REMEDY = (
    "no figure of this log can be trusted; choose another format (tprimat extract --format), or report the log's first "
    "rows"
)


def audited(result: Result, name: str) -> Result:
    """Return the result with its audit; an unexplained contradiction is its first warning.

    name: of the log, for a refusal. Raises ContradictionError where more than a fifth of the headline is unexplained.
    """
    selections = select_measured(result.steps, warmup_steps=result.training_config.warmup_steps)
    found = audit.findings(result, selections)
    if refused := audit_verdict.refusals(found):
        raise ContradictionError(refused[0], path=name, remedy=REMEDY)
    warnings = tuple(f"audit: {sentence}" for sentence in audit_verdict.contradictions(found))
    return result.model_copy(
        update={
            "audit": audit_verdict.record(found, result),
            "warnings": tuple(dict.fromkeys((*warnings, *result.warnings))),
        }
    )
