"""The outcome of a gate as Markdown for a pull-request comment, as JSON and JUnit XML, and that of a bisection."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from tensorprimat.analysis.gate import Check, GateReport
from tensorprimat.analysis.search import Bisected
from tensorprimat.core.quantities import UNMEASURED, Form, change, confidence_level, counted, gigabytes, percent, rate
from tensorprimat.reports.markdown import bullets, table
from tensorprimat.reports.tables import TableCell, TableRow, figure_cell, table_of
from tensorprimat.system.safe_text import one_line

HEADLINES = {"pass": "Benchmark gate passed", "fail": "Benchmark gate failed", "undecided": "Benchmark gate undecided"}
_FORMS: dict[str, Form] = {"throughput": rate, "memory": gigabytes, "loss": rate}


def render_gate(report: GateReport, *, confidence: float) -> str:
    """Return the comment: headline, one row per check, notes."""
    rows: list[TableRow] = [
        {
            "model": check.model,
            "check": check.what,
            "outcome": check.status,
            "baseline": figure_cell(check.baseline, _FORMS[check.kind]),
            "candidate": figure_cell(check.candidate, _FORMS[check.kind]),
            "change": TableCell(text=change(check.change, 2), value=check.change),
            "interval": _interval(check),
            "limit": TableCell(text=change(check.limit, 2), value=check.limit),
            "why": check.sentence,
        }
        for check in report.checks
    ]
    content = table_of("gate", "Gate", rows, words=("model", "check", "outcome", "why"))
    closing = (
        f"Intervals at {confidence_level(confidence)} confidence; a check fails only if its whole interval is beyond "
        "the limit and passes only if it is within the limit."
    )
    parts = [f"### {HEADLINES[report.status]}", table(content), bullets([*report.notes, closing])]
    return "\n\n".join(parts) + "\n"


def gate_as_json(report: GateReport, *, confidence: float) -> str:
    """Return the outcome for programs; a bound that is not finite is null."""
    checks = [
        {
            name: value if not isinstance(value, float) or math.isfinite(value) else None
            for name, value in asdict(check).items()
        }
        for check in report.checks
    ]
    document = {"kind": "gate", "status": report.status, "confidence": confidence, "checks": checks}
    return json.dumps({**document, "notes": list(map(one_line, report.notes))}, indent=2) + "\n"


def gate_as_junit(report: GateReport) -> str:
    """Return the outcome as JUnit's XML, with both figures: a failed check is a failure, an undecided one skipped."""
    counts = Counter(check.status for check in report.checks)
    suite = ElementTree.Element(
        "testsuite", name="tprimat gate", tests=str(len(report.checks)), failures=str(counts["fail"]),
        errors="0", skipped=str(counts["undecided"]),
    )  # fmt: skip
    for check in report.checks:
        case = ElementTree.SubElement(suite, "testcase", classname=one_line(check.model), name=one_line(check.what))
        sides = [figure_cell(value, _FORMS[check.kind]).text for value in (check.baseline, check.candidate)]
        says = one_line(f"{' → '.join(sides)}, {change(check.change, 2)}: {check.sentence}")
        if check.status == "pass":
            ElementTree.SubElement(case, "system-out").text = says
        else:
            ElementTree.SubElement(case, "failure" if check.status == "fail" else "skipped", message=says)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _interval(check: Check) -> str:
    known = check.low is not None and check.high is not None and check.low != check.high
    return f"{change(check.low, 2)} to {change(check.high, 2)}" if known else UNMEASURED


def bisected_lines(found: Bisected) -> list[str]:
    """Return the outcome of a bisection as lines for a terminal."""
    ends = found.ends
    span = f"{change(ends.change)} ({change(ends.low)} to {change(ends.high)})"
    first = f"{found.good.title} → {found.bad.title}: {span} in {counted(ends.pairs, 'pair')} of runs"
    if found.located is None:
        return [one_line(first), "no slowdown is shown between the ends, so there is nothing to find"]
    sure = f"probability {percent(found.located.probability, 0)}, {counted(found.runs, 'run')} in all"
    several = "one of these is the first slow one; those before it could not be measured"
    head = several if len(found.found) > 1 else "first slow one"
    if not found.located.is_sure:
        head = "not sure yet, more pairs are needed (--max-pairs); the likeliest"
    states = [f"  {one_line(f'{state.name} {state.title}')}" for state in found.found]
    return [one_line(first), f"{head} ({sure}):", *states]


def bisected_as_json(found: Bisected) -> dict[str, Any]:
    """Return the outcome of a bisection for programs."""
    located = found.located
    return {
        "kind": "bisection",
        "found": located is not None and located.is_sure,
        "first_slow": [asdict(state) for state in found.found],
        "probability": located and located.probability,
        "ends": asdict(found.ends),
        "good": asdict(found.good),
        "bad": asdict(found.bad),
        "runs": found.runs,
    }
