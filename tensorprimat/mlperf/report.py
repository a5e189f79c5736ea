"""Tables and JSON of MLPerf Training results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from tensorprimat.core.quantities import count, counted, fixed, percent, rate, rounded, significant
from tensorprimat.mlperf.library import Entry, Library, derived_from
from tensorprimat.mlperf.score import Scored
from tensorprimat.system.safe_text import one_line

TextRecord = TypeVar("TextRecord")
_CONFIGURED = "from a configuration file of the submission; its logs do not state the precision"
_RIGHT = {
    "minutes", "GPUs", "batch", "tokens/s/GPU", "runs", "seconds", "training", "evaluation", "samples", "samples/s",
    "efficiency", "measured samples/s", "predicted samples/s",
}  # fmt: skip


_OF_ENTRY = ("name", "round", "benchmark", "submitter", "system", "division", "gpu", "num_gpus", "num_nodes")


def entries_json(entries: Sequence[Entry], *, details: bool = False) -> str:
    """Return the rows of `list --json`; for `show --json` (details) with parallelism, software and every run."""
    return as_document([{**row(entry), **(_details(entry) if details else {})} for entry in entries])


def row(entry: Entry) -> dict[str, Any]:
    """Return the JSON object of one entry."""
    scored = Scored(entry)
    return {
        **{key: getattr(entry, key) for key in _OF_ENTRY},
        "runs": len(entry.runs),
        "successes": len(scored.succeeded),
        "minutes": rounded(scored.minutes),
        "no_score_because": scored.reason,
        "scaling_factor": entry.scaling_factor,
        "tokens_per_second_per_gpu": rounded(scored.tokens_per_second_per_gpu),
        "samples_per_second": rounded(scored.samples_per_second),
        "samples_to_target": rounded(scored.samples),
        "global_batch_size": entry.global_batch_size,
        "sequence_length": scored.sequence_length,
        "precision": scored.precision,
        "precision_source": scored.precision_source,
        "mfu": rounded(scored.mfu.value),
        "no_mfu_because": scored.mfu.because,
        "derived": derived_from([entry.round]),
        "notes": list(entry.notes),
    }


def listing(entries: Sequence[Entry]) -> str:
    """Return a table with a line per entry, fastest first within a benchmark and number of GPUs."""

    def place(scored: Scored) -> tuple[Any, ...]:
        entry, minutes = scored.entry, scored.minutes
        return entry.benchmark, entry.num_gpus or 0, minutes is None, minutes or 0.0, entry.name

    ordered = sorted(map(Scored, entries), key=place)
    columns: dict[str, Callable[[Scored], str]] = {
        "minutes": lambda scored: fixed(scored.minutes, 3),
        "GPUs": lambda scored: count(scored.entry.num_gpus),
        "GPU": lambda scored: scored.entry.gpu or "unknown",
        "benchmark": lambda scored: scored.entry.benchmark,
        "batch": lambda scored: count(scored.entry.global_batch_size),
        "precision": precision_cell,
        "tokens/s/GPU": lambda scored: count(scored.tokens_per_second_per_gpu),
        "runs": lambda scored: f"{len(scored.succeeded)}/{max(scored.expected, len(scored.entry.runs))}",
        "entry": lambda scored: one_line("/".join((scored.entry.round, scored.entry.submitter, scored.entry.system))),
    }
    notes = [f"{one.entry.name}: no score, {one.reason}." for one in ordered if one.reason]
    notes_below = "".join(f"{one_line(note)}\n" for note in [*notes, derived_note(entries)])
    return table_of_text(columns, ordered) + configured_note(ordered) + notes_below


def details(entries: Sequence[Entry]) -> str:
    """Return everything about entries: the system, the settings in the logs, and a table of runs."""
    return "\n".join(_detail(Scored(entry)) for entry in entries)


def text_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return plain columns; numbers are right-aligned."""
    widths = [max(len(line[at]) for line in (titles, *rows)) for at in range(len(titles))]
    lines = []
    for line in (titles, *rows):
        cells = [
            cell.rjust(width) if title in _RIGHT else cell.ljust(width)
            for cell, width, title in zip(line, widths, titles, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def table_of_text(columns: Mapping[str, Callable[[TextRecord], str]], records: Iterable[TextRecord]) -> str:
    """Return plain columns with a row for each record. columns: title → text of a record."""
    return text_table(tuple(columns), [[text(record) for text in columns.values()] for record in records])


def _detail(scored: Scored) -> str:
    entry = scored.entry
    nodes = "an unknown number of nodes" if entry.num_nodes is None else counted(entry.num_nodes, "node")
    facts = {
        "score": f"{fixed(scored.minutes, 3)} min" if scored.minutes is not None else f"none: {scored.reason}",
        "scaling factor": "unknown" if entry.scaling_factor is None else significant(entry.scaling_factor, 6),
        "GPUs": f"{count(entry.num_gpus)} × {entry.device_name or 'unknown'} on {nodes}",
        "division": ", ".join(filter(None, (entry.division, entry.availability))) or "not stated",
        "framework": entry.framework or "not stated",
        "software": ", ".join(f"{name} {value}" for name, value in entry.software.items()) or "not stated",
        "batch × sequence": f"{count(entry.global_batch_size)} × {count(scored.sequence_length)}",
        "precision": _stated_precision(scored),
        "parallelism": ", ".join(f"{name} {size}" for name, size in entry.parallelism.items()) or "not stated",
        "rate": _rate(scored),
        "MFU": f"{percent(scored.mfu.value)}, derived" if scored.mfu.value else f"none: {scored.mfu.because}",
    }
    width = max(map(len, facts))
    lines = [one_line(entry.name), *(f"  {name:<{width}}  {one_line(value)}" for name, value in facts.items())]
    lines += [f"  note: {one_line(note)}" for note in entry.notes]
    runs = [
        (
            one_line(run.file.rsplit("/", 1)[-1]),
            one_line(run.status) + ("" if run in scored.counted or not run.succeeded else ", dropped"),
            fixed(run.seconds, 1), fixed(run.training_seconds, 1), fixed(run.evaluation_seconds, 1),
            count(run.samples), run.sha256[:16],
        )
        for run in entry.runs
    ]  # fmt: skip
    titles = ("file", "status", "seconds", "training", "evaluation", "samples", "SHA-256")
    return "\n".join(lines) + "\n" + text_table(titles, runs) + f"{derived_note([entry])}\n"


def _stated_precision(scored: Scored) -> str:
    if scored.precision is None:
        return "not stated"
    if not scored.configured:
        return f"{scored.precision}, stated by {scored.precision_source}"
    return f"{scored.precision}, {_CONFIGURED}: {scored.precision_source}"


def _rate(scored: Scored) -> str:
    if scored.samples_per_second is None:
        return "unknown: the logs do not mark samples and training time"
    tokens = scored.tokens_per_second_per_gpu
    return f"{rate(scored.samples_per_second)} samples/s" + (f", {count(tokens)} tokens/s/GPU" if tokens else "")


def _details(entry: Entry) -> dict[str, Any]:
    named = ("device_name", "availability", "framework", "software", "parallelism")
    return {**{key: getattr(entry, key) for key in named}, "each_run": [asdict(run) for run in entry.runs]}


def precision_cell(scored: Scored) -> str:
    """Return the precision in capitals, with a star where the submission's configuration states it, not its logs."""
    return "–" if scored.precision is None else scored.precision.upper() + ("*" if scored.configured else "")


def configured_note(several: Iterable[Scored]) -> str:
    """Return the line that explains the star of a precision, or nothing where no entry has one."""
    return f"* {_CONFIGURED}.\n" if any(one.configured for one in several) else ""


def derived_note(entries: Sequence[Entry]) -> str:
    """Return the sentence about figures that MLPerf does not score, once for the rounds of the entries."""
    return f"Rates, samples and their times: {derived_from(entry.round for entry in entries)}."


def as_document(content: Any) -> str:
    """Return the JSON object for --json."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def of_import(library: Library) -> tuple[list[str], str]:
    """Return the notes on a library that was imported, one line each, and its summary."""
    scored = [Scored(entry) for entry in library.entries]
    notes = [
        f"{one.entry.name}: {note}"
        for one in scored
        for note in (*one.entry.notes, *((f"no score: {one.reason}",) if one.reason else ()))
    ]
    for source in library.sources:
        notes += [f"{source['round']}/{folder}: no result_*.txt" for folder in source["empty"]]
        if others := source["not_read"]:
            names = ", ".join(f"{name} ({number})" for name, number in others.items())
            notes.append(f"Other benchmarks, not read: {counted(sum(others.values()), 'file')} of {names}.")
    runs = [run for entry in library.entries for run in entry.runs]
    failed, missing = sum(not run.succeeded for run in runs), sum(one.missing for one in scored)
    without = sum(one.minutes is None for one in scored)
    systems = "1 system and benchmark" if len(scored) == 1 else f"{len(scored)} systems and benchmarks"
    summary = (
        f"{counted(len(runs), 'run')} of {systems}; {failed} failed, {missing} missing, {without} without a score."
    )
    return [one_line(note) for note in notes], summary
