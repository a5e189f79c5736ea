"""The gate's outcome as Markdown for a pull-request comment."""

from __future__ import annotations

from collections.abc import Callable

from tensorprimat.analysis.gate import Check, GateReport
from tensorprimat.core.quantities import UNMEASURED, change, confidence_level
from tensorprimat.reports.markdown import bullets, table
from tensorprimat.reports.tables import TableCell, table_of, text_cell

HEADLINES = {"pass": "Benchmark gate passed", "fail": "Benchmark gate failed", "undecided": "Benchmark gate undecided"}


def render_gate(report: GateReport, *, confidence: float) -> str:
    """Return the comment: headline, one row per check, notes."""
    columns: dict[str, Callable[[Check], TableCell]] = {
        "model": lambda check: text_cell(check.model),
        "check": lambda check: text_cell(check.what),
        "outcome": lambda check: text_cell(check.status),
        "change": lambda check: TableCell(text=change(check.change, 2), value=check.change),
        "interval": lambda check: TableCell(text=_interval(check)),
        "limit": lambda check: TableCell(text=change(check.limit, 2), value=check.limit),
        "why": lambda check: text_cell(check.sentence),
    }
    content = table_of("gate", "Gate", report.checks, columns, words=("model", "check", "outcome", "why"))
    closing = (
        f"Intervals at {confidence_level(confidence)} confidence; a check fails only if its whole interval is beyond "
        "the limit and passes only if it is within the limit."
    )
    parts = [f"### {HEADLINES[report.status]}", table(content), bullets([*report.notes, closing])]
    return "\n\n".join(parts) + "\n"


def _interval(check: Check) -> str:
    known = check.low is not None and check.high is not None and check.low != check.high
    return f"{change(check.low, 2)} to {change(check.high, 2)}" if known else UNMEASURED
