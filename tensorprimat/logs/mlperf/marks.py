"""Marks of an MLPerf result file: time to train, training and evaluation time, and samples, without the step rows.

Whole rounds are read this way, because only lines whose key is one of KEYS are parsed; `logs/mlperf/reader.py` reads
all of one file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tensorprimat.core import regular
from tensorprimat.core.mlperf_library import LibraryRun
from tensorprimat.logs.fields import number_in
from tensorprimat.logs.files import MAX_LINE_BYTES
from tensorprimat.logs.mlperf.events import CONFIGURATION_KEYS, LINEAR_PRECISION, MARK, Event, collect, events_in
from tensorprimat.logs.mlperf.run import COUNTING, MlperfEvents

_MARKS = ("run_start", "block_start", *COUNTING)
_SETTINGS = (*CONFIGURATION_KEYS, *LINEAR_PRECISION, "submission_benchmark", "submission_division")
_KEYS = (*_MARKS, *_SETTINGS)
SHORTEST_IN_BLOCKS = 0.5  # share of the time outside evaluation; with less inside blocks, marks of blocks are missing

_EVENT = re.compile(MARK.encode() + rb'.*"key"\s*:\s*"(?:' + "|".join(_KEYS).encode() + rb')"')
Pairs = Sequence[tuple[float, float | None]]
"""(start, stop) of blocks or evaluations."""


@dataclass(kw_only=True)
class Marks:
    """Facts of one result file in addition to its first run."""

    settings: dict[str, Any]
    torn: int
    """Number of truncated events."""
    more_runs: bool
    """True if another run starts after the first one stopped."""


def read_marks(path: Path, name: str) -> tuple[LibraryRun, Marks]:
    """Return the first run of a result file, called `name`, with the other facts of the file. Raises InputError."""
    hashed, torn = hashlib.sha256(), list[int]()
    with regular.open_regular(path) as file:
        content = collect(_events(file, hashed, torn))
    marks = Marks(settings=content.settings, torn=len(torn), more_runs=len(content.runs) > 1)
    return _run(content.runs[0], marks.settings, name, hashed.hexdigest()), marks


def _events(file: IO[bytes], hashed: Any, torn: list[int]) -> Iterator[Event]:
    while line := file.readline(MAX_LINE_BYTES):
        hashed.update(line)
        if _EVENT.search(line):
            yield from events_in(line.decode("utf-8", "replace"), 0, torn)


def _run(run: MlperfEvents, settings: dict[str, Any], name: str, sha256: str) -> LibraryRun:
    status, seconds = _status(run)
    if seconds is None:
        return LibraryRun(file=name, sha256=sha256, status=status)
    evaluated = _closed(_within(run, run.evaluations), run)
    return LibraryRun(
        file=name,
        sha256=sha256,
        status=status,
        seconds=round(seconds, 3),
        training_seconds=_training(run, seconds, evaluated),
        evaluation_seconds=None if evaluated is None else round(evaluated, 3),
        samples=next(filter(None, (_samples(run.counts.get(key, {}), settings) for key in COUNTING)), None),
    )


def _samples(counts: dict[str, float], settings: dict[str, Any]) -> float | None:
    """Return the samples that a mark counts; gpt3 logs tokens as epoch_num."""
    count, tokens = counts.get("samples_count"), counts.get("epoch_num")
    length = number_in(settings.get("max_sequence_length"))
    if count is None and tokens and length and settings.get("submission_benchmark") == "gpt3":
        count = tokens / length
    return count if count and count > 0 else None


def _status(run: MlperfEvents) -> tuple[str, float | None]:
    """Return the status and the time to train, which only a run with both marks in order has."""
    if run.started is None:
        return "no run_start", None
    if run.stopped is None:
        return "no run_stop", None
    if run.stopped <= run.started:
        return "run_stop is not after run_start", None
    return run.status or "run_stop without a status", run.stopped - run.started


def _within(run: MlperfEvents, pairs: Pairs) -> Pairs:
    """Return the pairs that begin between run_start and run_stop."""
    return [pair for pair in pairs if (run.started or 0.0) <= pair[0] < (run.stopped or 0.0)]


def _closed(pairs: Pairs, run: MlperfEvents) -> float | None:
    """Return the seconds inside the pairs, or None without pairs, or where one is open or out of order."""
    stopped, total = run.stopped or 0.0, 0.0
    for begin, end in pairs:
        if end is None or not begin <= end <= stopped:
            return None
        total += end - begin
    return total if pairs else None


def _training(run: MlperfEvents, seconds: float, evaluated: float | None) -> float | None:
    """Return the seconds of training: inside blocks where all are closed, else all but evaluation.

    None where neither is known: evaluation would count as training.
    """
    outside = None if evaluated is None else seconds - evaluated
    blocks = _within(run, [(block.started, block.stopped) for block in run.blocks])
    in_blocks = _closed(blocks, run)
    if in_blocks is not None:
        in_blocks -= sum(run.evaluated_seconds(start, stop) for start, stop in blocks if stop is not None)
        if in_blocks > SHORTEST_IN_BLOCKS * (seconds if outside is None else outside):
            return round(in_blocks, 3)
    return None if outside is None or outside <= 0 else round(outside, 3)
