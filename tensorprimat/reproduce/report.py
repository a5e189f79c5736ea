"""Text and JSON of published results and of a reproduction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.console import Console

from tensorprimat.core.quantities import count, counted, fixed, rounded, times
from tensorprimat.mlperf.report import as_document, configured_note, derived_note, precision_cell, text_table
from tensorprimat.mlperf.report import row as entry_row
from tensorprimat.mlperf.score import Scored
from tensorprimat.reports.console import paragraph, safe, table
from tensorprimat.reports.tables import table_of
from tensorprimat.reproduce.published import Baseline
from tensorprimat.reproduce.reproduction import STATES, KnownCost, Reproduction, SettingLine
from tensorprimat.system.safe_text import one_line

_SUMMED_UP = {
    "equal": "Equal",
    "not stated by you": "Your result does not state",
    "not stated by the source": "Not in the source",
}
"""States whose settings are listed in one sentence → its beginning."""


def show(found: Reproduction, console: Console) -> None:
    """Print the gap, the table of differences, and the settings that are equal or that one side does not state."""
    row = found.row
    console.print(safe(found.baseline.name, "bold"))
    say(f"Source: {', '.join(filter(None, (row.source, row.date, row.url)))}", console)
    if row.recipe:
        say(f"Recipe: {row.recipe}", console)
    if row.note:
        say(f"Note: {row.note}", console)
    say(gap_sentence(found), console)
    different = found.of_state("different")
    rows = [
        {
            "setting": line.label,
            "published": line.published,
            "yours": line.yours,
            "speed, yours / published": cost_text(line.cost),
        }
        for line in different
    ]
    if different:
        content = table_of("differences", "Differences", rows, words=tuple(rows[0]))
        console.print("", table(content), "", sep="\n")
        if sources := list(dict.fromkeys(name for line in different if line.cost for name in line.cost.sources)):
            say(f"Speeds from published pairs that differ in this setting alone: {'; '.join(sources)}", console)
    for state in STATES:
        if state in _SUMMED_UP and (lines := found.of_state(state)):
            say(f"{_SUMMED_UP[state]}: {'; '.join(map(_stated, lines))}", console)


def say(sentence: str, console: Console) -> None:
    console.print(paragraph(sentence, width=console.width))


def gap_sentence(found: Reproduction) -> str:
    """Return the gap in one sentence, with the part of it that the known costs explain."""
    gap = found.gap
    if gap is None:
        return found.because or ""
    form = partial(fixed, decimals=1) if gap.figure.startswith("minutes") else count
    sentence = (
        f"Yours {form(gap.measured)}, published {form(gap.published)} {gap.figure}: {times(gap.ratio, 2)} the speed"
    )
    if not found.of_state("different"):
        return f"{sentence}; no setting that both state differs."
    if gap.explained is None or gap.rest is None:
        return f"{sentence}; the cost of no difference is known, so nothing of it is explained."
    return f"{sentence}; the known costs explain {_span(gap.explained)}, and {_span(gap.rest)} is left unexplained."


def cost_text(cost: KnownCost | None) -> str:
    """Return a known cost as a range of ratios with the number of pairs, or "unknown"."""
    return "unknown" if cost is None else f"{_span((cost.low, cost.high))} ({counted(cost.pairs, 'pair')})"


def reproduction_json(found: Reproduction) -> str:
    """Return the reproduction as JSON."""
    gap, row = found.gap, found.row
    return as_document(
        {
            "published": found.baseline.name,
            "result": found.result,
            "source": {"title": row.source, "date": row.date, "url": row.url},
            "recipe": row.recipe,
            "note": row.note,
            "gap": gap and {**asdict(gap), "ratio": rounded(gap.ratio), "rest": gap.rest},
            "because": found.because,
            "settings": [_line(line) for line in found.lines],
        }
    )


def _line(line: SettingLine) -> dict[str, Any]:
    return {
        "key": line.key, "label": line.label, "state": line.state, "published": line.published, "yours": line.yours,
        "known_cost": line.cost and asdict(line.cost),
    }  # fmt: skip


def _stated(line: SettingLine) -> str:
    return line.label if (value := line.yours or line.published) is None else f"{line.label} {value}"


def _span(ends: Sequence[float]) -> str:
    low, high = (times(end, 2) for end in ends)
    return low if low == high else f"{low} to {high}"


def baselines_json(found: Sequence[Baseline]) -> str:
    """Return the rows of `list --published --json`: MLPerf entries and published rows with the same keys."""
    return as_document([_baseline_row(one) for one in found])


def baselines_table(found: Sequence[Baseline]) -> str:
    """Return a table of baselines, fastest first within a model and number of GPUs."""
    rates = [(one, one.row) for one in found if one.row is not None and one.row.tokens_per_second_per_gpu]
    rates.sort(key=lambda rate: (rate[1].model, rate[1].num_gpus, -(rate[1].tokens_per_second_per_gpu or 0.0)))
    lines = [
        (
            count(row.tokens_per_second_per_gpu), str(row.num_gpus), row.gpu or "unknown", row.model,
            precision_cell(Scored(one.entry)) if one.entry else (row.precision or "–").upper(),
            count(row.global_batch_size), row.date or "–", one_line(one.name),
        )
        for one, row in rates
    ]  # fmt: skip
    titles = ("tokens/s/GPU", "GPUs", "GPU", "model", "precision", "batch", "date", "name")
    entries = [one.entry for one in found if one.entry is not None]
    star = configured_note(Scored(entry) for entry in entries)
    return text_table(titles, lines) + star + (f"{derived_note(entries)}\n" if entries else "")


_OF_STATED = (
    "gpu", "num_gpus", "tokens_per_second_per_gpu", "samples_per_second", "global_batch_size", "sequence_length",
    "precision",
)  # fmt: skip


def _baseline_row(one: Baseline) -> dict[str, Any]:
    if one.entry is not None:
        return {**entry_row(one.entry), "name": one.name, "kind": "mlperf", "framework": one.entry.framework,
                "date": one.row.date if one.row else None}  # fmt: skip
    stated = one.row
    if stated is None:
        return {"name": one.name}
    absent = dict.fromkeys(("round", "submitter", "system", "runs", "successes", "minutes"))
    return {
        "name": one.name,
        "kind": "published",
        **absent,
        "benchmark": stated.model,
        **{key: getattr(stated, key) for key in _OF_STATED},
        "precision_source": stated.source if stated.precision else None,
        "mfu": rounded(one.mfu.value),
        "no_mfu_because": one.mfu.because,
        "mfu_computed_as": one.mfu.terms,
        **{key: getattr(stated, key) for key in ("framework", "date", "source", "url", "note")},
    }
