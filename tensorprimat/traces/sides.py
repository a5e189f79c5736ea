"""One side of an explanation: the trace that a path names, and the ledger of its median rank."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.core.notices import Notice
from tensorprimat.core.result import Result
from tensorprimat.models.shapes import parse_shape
from tensorprimat.storage import preflight, store
from tensorprimat.traces.ledger import Ledger, ledger_of
from tensorprimat.traces.readers import ENDINGS, read_traces
from tensorprimat.traces.work import TraceFacts

_OF_INVOCATION = re.compile(r"_\d{8}_\d{6}_\d+_")
"""Time of an invocation in the names of its files in history; the name of the benchmark precedes it."""
_PROFILED = "profiled.json"
_LARGEST_RESULT = 50 * 10**6  # bytes; a larger JSON file is a trace


@dataclass(frozen=True, kw_only=True)
class TracedSide:
    """A trace and the result of the run that it is of."""

    trace: Path
    result: Result | None = None


def find_trace(path: Path) -> TracedSide:
    """Return the trace of a path: a trace, a folder of ranks, a result file, or the output folder of benchmark.py.

    Of several profiles of a benchmark, the latest. Raises InputError where a result or an output folder has no trace.
    """
    if os.path.isdir(path):
        history = path / store.HISTORY
        if not os.path.isdir(history) and not any(path.glob(f"*_{_PROFILED}")):
            return TracedSide(trace=path)
        profiles = _profiles(path, "*")
        if len(names := sorted({_OF_INVOCATION.split(one.name)[0] for one in profiles})) > 1:
            raise InputError(f"profiles of {len(names)} benchmarks ({', '.join(names)}); name a result", path=path)
        found = _latest(profiles)
    elif _is_result(path):
        found = trace_of_result(path)
    else:
        return TracedSide(trace=path)
    if found is None:
        raise InputError("no trace belongs to it; make one with benchmark.py --profile torch", path=path)
    return found


def trace_of_result(path: Path) -> TracedSide | None:
    """Return the trace of a result file: its own if its run was profiled, else the latest of its benchmark, or None."""
    if path.name.endswith(_PROFILED):
        return _latest([path])
    name = _OF_INVOCATION.split(f"{path.stem}_")[0].rstrip("_")
    return _latest(_profiles(path.parent, f"{name}_[0-9]*"))


def _latest(profiles: Sequence[Path]) -> TracedSide | None:
    """Return the trace of the latest profiled run that has one. profiles: results."""
    for profile in sorted(profiles, key=lambda one: one.name, reverse=True):
        stem = profile.name.removesuffix(_PROFILED)
        beside = [one for one in sorted(profile.parent.glob(f"{stem}*")) if one.name.endswith(ENDINGS)]
        if traces := [one for one in beside if one != profile]:
            return TracedSide(trace=traces[0], result=store.load(profile))
    return None


def _profiles(folder: Path, name: str) -> list[Path]:
    """Return the results of profiled runs in a folder and in its history. name: pattern of the names before that."""
    return [one for place in (folder, folder / store.HISTORY) for one in place.glob(f"{name}_{_PROFILED}")]


def _is_result(path: Path) -> bool:
    if path.suffix != ".json" or not os.path.isfile(path) or os.path.getsize(path) > _LARGEST_RESULT:
        return False
    try:
        return store.is_result(store.read_json(path))
    except InputError:
        return False  # a trace that is cut


def ledger_at(path: Path, rank: int | None = None, *, whole: bool = False) -> Ledger:
    """Return the ledger of a trace. Of several ranks or devices, the one chosen, or the median by time of a step.

    Where their marks differ, the steps that all of them have count.
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
    ledgers = [ledger_of(trace, whole=whole) for trace in traces]
    common = set(ledgers[0].steps.marks).intersection(*(one.steps.marks for one in ledgers)) if ledgers else set()
    if common and any(len(one.steps.marks) > len(common) for one in ledgers):
        ledgers = [ledger_of(trace, marked=common) for trace in traces]
    ledgers.sort(key=lambda ledger: ledger.step_seconds)
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
    sides: Sequence[TracedSide],
    *,
    model: str | None = None,
    sequence_length: int | None = None,
    sequences: int = 1,
    clocks: Sequence[float] = (),
) -> list[TraceFacts]:
    """Return the facts of each side, from flags before its result. clocks: in MHz.

    Raises UsageError that names the flag.
    """
    if (model is None) != (sequence_length is None):
        raise UsageError("--model and --sequence-length go together: the work of a step follows from both")
    if clocks and len(clocks) != len(sides):
        raise UsageError(f"--clock: state it once for each side, {len(sides)} times, not {len(clocks)}")
    if min((sequence_length or 1, sequences, *clocks)) <= 0:
        raise UsageError("--sequence-length, --sequences and --clock must be more than 0")
    shape = parse_shape(model).shape if model is not None else None
    facts = []
    for place, side in enumerate(sides):
        known = replace(_facts_of(side.result), preflight=_preflight_of(side))
        if shape is not None:
            known = replace(known, shape=shape, sequence_length=sequence_length, sequences=sequences)
        facts.append(replace(known, clock_hz=clocks[place] * 1e6) if clocks else known)
    return facts


def _preflight_of(side: TracedSide) -> preflight.Preflight | None:
    """Return the newest preflight of the machine of a side, kept beside its result; None without one."""
    if side.result is None:
        return None
    machine = (side.result.platform, side.result.gpu_info.device_name, side.result.provenance.host)
    found = preflight.kept((side.trace.parent, side.trace.parent.parent))
    return next((one for one in found if one.machine == machine), None)


def _facts_of(result: Result | None) -> TraceFacts:
    """Return what a result states about the work of one GPU; where several share a sequence or a layer, nothing."""
    if result is None:
        return TraceFacts()
    config, power = result.training_config, result.power_metrics
    clock = power.avg_clock_hertz if power else None
    split = (config.tensor_model_parallel_size, config.pipeline_model_parallel_size, config.context_parallel_size)
    sequences = (config.global_batch_size or 0) / (config.num_gpus or 1)
    if any(size not in (None, 1) for size in split) or sequences < 1 or sequences != int(sequences):
        return TraceFacts(clock_hz=clock)
    return TraceFacts(
        shape=result.model.shape, sequence_length=config.sequence_length, sequences=int(sequences), clock_hz=clock,
        recompute=config.recompute or "",
    )  # fmt: skip
