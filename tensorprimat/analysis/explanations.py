"""Figures of a result with formula, inputs and origin, the same for `--explain`, JSON and HTML."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tensorprimat.core import quantities, terms
from tensorprimat.core.figures import Figure
from tensorprimat.core.provenance import FROM_PATH
from tensorprimat.core.result import MemoryMetrics, PerformanceMetrics, PowerMetrics, Reported, Result
from tensorprimat.core.summary import measured_of, terms_of
from tensorprimat.core.terms import Term
from tensorprimat.system.safe_text import one_line

REPORTED = "reported"
SECTIONS: dict[str, type[PerformanceMetrics] | type[MemoryMetrics] | type[PowerMetrics] | type[Reported]] = {
    "performance_metrics": PerformanceMetrics,
    "memory_metrics": MemoryMetrics,
    "power_metrics": PowerMetrics,
    REPORTED: Reported,
}
"""Sections of a result that hold figures, by their names; `reported` is a part of performance_metrics."""
FROM_STEPS = "computed from the steps"
FROM_RUNS = "computed from the figures of the runs"
FROM_PRINTED = "printed by the framework for each row, combined over the rows"
_ROUNDED = 1e-3  # relative; a file holds at least 4 digits of a figure
FROM_FILE = "taken from the file, which states it for the whole run; no steps support it"


def explained(result: Result) -> dict[str, dict[str, Figure]]:
    """Return every known figure with its terms: section of the result → field. The loss is in the section "runs"."""
    known = terms_of(result)
    found = {
        section: {
            field: _explained(result, field, value, known.get(section, {}).get(field))
            for field, value in figures_of(result, section)
        }
        for section in SECTIONS
    }
    if (loss := known.get("runs", {}).get("final_loss")) is not None:
        found["runs"] = {"final_loss": _explained(result, "final_loss", loss.value, loss)}
    return {section: of_section for section, of_section in found.items() if of_section}


def figures_of(result: Result, section: str) -> Iterator[tuple[str, float]]:
    """Yield the name and the value of every known figure of a section."""
    record = result.performance_metrics.reported if section == REPORTED else getattr(result, section)
    for field, value in record or ():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield field, value


def _explained(result: Result, field: str, value: float, term: Term | None) -> Figure:
    if term is not None and not math.isclose(term.value, value, rel_tol=_ROUNDED):
        term = None  # the steps give another value, so they do not support this one
    if term is None:
        return Figure(name=field, value=value, origin=FROM_FILE)
    timer = result.provenance.timer
    from_rate = timer in terms.RATES and result.steps.has(str(timer)) and term.sums_seconds
    return replace(
        term,
        name=field,
        value=value,
        origin=FROM_STEPS if term.printed is None else FROM_PRINTED,
        made=f"seconds of a row: its work / {timer}; no line prints an exact time" if from_rate else None,
    )


def origins(result: Result) -> list[str]:
    """Return the log lines of the measured rows by file, the number of steps left out, and the assumed facts."""
    performance, lines = result.performance_metrics, []
    measured = measured_lines(result)
    for position, source in enumerate(result.provenance.sources):
        lines += [f"measured: {measured[position]}"] if measured else []
        if source.sha256:
            size = "" if source.size_bytes is None else f", {source.size_bytes} bytes"
            lines.append(f"file: {one_line(source.file)}{size}, SHA-256 {source.sha256}")
    if len(result.steps):
        warm_up = quantities.counted(performance.warmup_steps_dropped or 0, "warm-up step")
        interrupted = quantities.counted(performance.excluded_steps or 0, "interrupted step")
        lines.append(f"left out: {warm_up}, {interrupted}")
    for name, origin in result.provenance.assumed.items():
        value = getattr(result.training_config, name, None)
        lines.append(f"{name}{'' if value is None else f' {value}'}: {phrase(origin)}")
    return lines


def measured_lines(result: Result) -> list[str]:
    """Return the lines of the measured rows of each source; nothing for a result without steps."""
    if not len(result.steps):
        return []
    lines, of_source = (measured_of(result)[2].column(name) for name in ("line", "source"))
    return [
        f"{one_line(source.file)}: {terms.describe_lines(lines[of_source == position])}"
        for position, source in enumerate(result.provenance.sources)
    ]


def phrase(origin: str) -> str:
    """Return the origin of an assumed fact as a phrase; some of them are lines of the log itself."""
    return f"from {origin}, not from the log" if origin.startswith(("--", FROM_PATH)) else f"from {origin}"
