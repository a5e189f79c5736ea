"""The gate's outcome as Markdown for a pull-request comment."""

from __future__ import annotations

from tensorprimat.analysis.gate import Check, GateReport
from tensorprimat.core.quantities import UNMEASURED, change
from tensorprimat.reports.markdown import bullets, table
from tensorprimat.reports.tables import Cell, Column, Table, text

HEADLINES = {
    "pass": "Benchmark gate passed",
    "fail": "Benchmark gate failed",
    "undecided": "Benchmark gate undecided",
}
COLUMNS = ("model", "check", "outcome", "change", "interval", "limit", "why")


def render(report: GateReport, *, confidence: float) -> str:
    """Headline, one row per check, notes."""
    content = Table(
        key="gate",
        title="Gate",
        columns=tuple(Column(title=title, numeric=title in ("change", "interval", "limit")) for title in COLUMNS),
        rows=tuple(_row(check) for check in report.checks),
    )
    closing = (
        f"Intervals at {100 * confidence:g} % confidence; a check fails or passes only if its whole interval does."
    )
    parts = [f"### {HEADLINES[report.status]}", table(content), bullets([*report.notes, closing])]
    return "\n\n".join(parts) + "\n"


def _row(check: Check) -> tuple[Cell, ...]:
    known = check.low is not None and check.high is not None and check.low != check.high
    return (
        text(check.model),
        text(check.what),
        text(check.status),
        Cell(text=change(check.change, 2), value=check.change),
        Cell(text=f"{change(check.low, 2)} to {change(check.high, 2)}" if known else UNMEASURED),
        Cell(text=change(check.limit, 2), value=check.limit),
        text(check.sentence),
    )
