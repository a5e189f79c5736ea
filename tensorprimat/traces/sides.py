"""One side of an explanation: the ledger of a file, or of the median rank of a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.core.notices import Notice
from tensorprimat.models.shapes import parse_shape
from tensorprimat.traces.ledger import Ledger, ledger_of
from tensorprimat.traces.reading import read_traces
from tensorprimat.traces.work import TraceFacts


def ledger_at(path: Path, rank: int | None = None, *, whole: bool = False) -> Ledger:
    """Return the ledger of a trace. Of several ranks or devices, the one chosen, or the median by time of a step.

    whole: a trace is one step.
    Raises InputError for a path without a usable trace, UsageError for a rank that is not there.
    """
    traces = read_traces(path)
    for number, trace in enumerate(traces):
        trace.rank = number if trace.rank is None and len(traces) > 1 else trace.rank
    if rank is not None:
        traces = [trace for trace in traces if trace.rank == rank]
        if not traces:
            raise UsageError(f"--rank {rank}: {path} has no trace of that rank")
    ledgers = sorted((ledger_of(trace, whole=whole) for trace in traces), key=lambda ledger: ledger.step_seconds)
    if not ledgers:
        raise InputError("no work of a GPU is in the trace; profile with GPU activities", path=path)
    median, slowest = ledgers[(len(ledgers) - 1) // 2], ledgers[-1]
    if len(ledgers) == 1:
        return median
    ranks = Notice(
        "trace_ranks", "ranks", ranks=len(ledgers), rank=median.trace.rank, slowest=slowest.trace.rank,
        off=slowest.step_seconds / median.step_seconds - 1,
    )  # fmt: skip
    return replace(median, notices=(ranks, *median.notices))


def trace_facts(
    sides: int, *, model: str | None, sequence_length: int | None, sequences: int, clocks: Sequence[float]
) -> list[TraceFacts]:
    """Return the facts that flags state, for each side. clocks: in MHz. Raises UsageError that names the flag."""
    if (model is None) != (sequence_length is None):
        raise UsageError("--model and --sequence-length go together: the work of a step follows from both")
    if clocks and len(clocks) != sides:
        raise UsageError(f"--clock: state it once for each side, {sides} times, not {len(clocks)}")
    if min((sequence_length or 1, sequences, *clocks)) <= 0:
        raise UsageError("--sequence-length, --sequences and --clock must be more than 0")
    shape = parse_shape(model).shape if model is not None else None
    return [
        TraceFacts(
            shape=shape, sequence_length=sequence_length, sequences=sequences,
            clock_hz=clocks[side] * 1e6 if clocks else None,
        )
        for side in range(sides)
    ]  # fmt: skip
