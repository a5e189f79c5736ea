"""Marks of an MLPerf result file: time to train, training and evaluation time, and samples, without the step rows.

Whole rounds are read this way, because only lines whose key is one of KEYS are parsed; `logs/mlperf/reader.py` reads
all of one file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tensorprimat.core import regular
from tensorprimat.core.mlperf_library import LibraryRun
from tensorprimat.logs.fields import number_in
from tensorprimat.logs.mlperf.reader import CONFIGURATION, LINEAR_PRECISION, LONGEST_EVENT, Event, event_of

MARKS = ("run_start", "run_stop", "block_start", "block_stop", "eval_start", "eval_stop", "eval_accuracy")
SETTINGS = (*CONFIGURATION, *LINEAR_PRECISION, "submission_benchmark", "submission_division")
KEYS = (*MARKS, *SETTINGS)
COUNTING = ("run_stop", "eval_start", "eval_stop", "eval_accuracy", "block_stop")
"""Marks whose count is how far training is, the surest first."""
SHORTEST_IN_BLOCKS = 0.5  # of the time outside evaluation; less means that marks of blocks are missing

_MARK = b":::MLLOG"
_EVENT = re.compile(rb'"key"\s*:\s*"(?:' + "|".join(KEYS).encode() + rb')"')
_DECODER = json.JSONDecoder()


@dataclass(kw_only=True)
class Marks:
    """The events of one file's marks; times in seconds since the epoch."""

    settings: dict[str, Any] = field(default_factory=dict)
    started: float | None = None
    stopped: float | None = None
    status: str | None = None
    blocks: list[list[float | None]] = field(default_factory=list)
    """[start, stop] of each."""
    evaluations: list[list[float | None]] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)
    """Samples by the last mark of each kind that counts them."""
    torn: int = 0
    """Lines with a mark that are no JSON."""
    more_runs: bool = False
    """Another run starts after the first one stopped."""


def read(path: Path, name: str) -> tuple[LibraryRun, Marks]:
    """Return the run of one result file under the name given, with its marks. Raises InputError."""
    hashed = hashlib.sha256()
    marks = Marks()
    with regular.opened(path) as file:
        for event in _events(file, hashed, marks):
            _take(marks, event)
    return _run(marks, name, hashed.hexdigest()), marks


def _events(file: IO[bytes], hashed: Any, marks: Marks) -> Iterator[Event]:
    while line := file.readline(LONGEST_EVENT):
        hashed.update(line)
        at = line.find(_MARK)
        if at < 0 or not _EVENT.search(line, at):
            continue
        text = line[at + len(_MARK) :].decode("utf-8", "replace").lstrip()
        try:
            document, _ = _DECODER.raw_decode(text)
        except (ValueError, RecursionError):
            marks.torn += 1
            continue
        if isinstance(document, dict) and (event := event_of(document, 0)):
            yield event


def _take(marks: Marks, event: Event) -> None:
    key, time, facts = event.key, event.time, event.metadata
    if key in SETTINGS:
        marks.settings.setdefault(key, event.value)
        return
    if key == "run_start":
        marks.more_runs |= marks.stopped is not None
        marks.started = time if marks.started is None else marks.started
    if marks.started is None or marks.stopped is not None:
        return  # the first run only
    if (count := _samples(marks, facts)) is not None and key in COUNTING:
        marks.counts[key] = count
    if key == "run_stop":
        status = facts.get("status")
        marks.stopped, marks.status = time, status if isinstance(status, str) else None
    elif key in ("block_start", "eval_start"):
        _pairs(marks, key).append([time, None])
    elif key in ("block_stop", "eval_stop") and (pairs := _pairs(marks, key)) and pairs[-1][1] is None:
        pairs[-1][1] = time


def _pairs(marks: Marks, key: str) -> list[list[float | None]]:
    return marks.blocks if key.startswith("block") else marks.evaluations


def _samples(marks: Marks, facts: dict[str, Any]) -> float | None:
    """Return the samples that a mark counts; gpt3 counts tokens under the name of epochs."""
    count, tokens = number_in(facts.get("samples_count")), number_in(facts.get("epoch_num"))
    length = number_in(marks.settings.get("max_sequence_length"))
    if count is None and tokens and length and marks.settings.get("submission_benchmark") == "gpt3":
        count = tokens / length
    return count if count and count > 0 else None


def _run(marks: Marks, name: str, sha256: str) -> LibraryRun:
    status, seconds = _status(marks)
    if seconds is None:
        return LibraryRun(file=name, sha256=sha256, status=status)
    evaluated = _closed(marks.evaluations, marks.started, marks.stopped)
    counts = marks.counts
    samples = next((counts[key] for key in COUNTING if key in counts), None)
    return LibraryRun(
        file=name,
        sha256=sha256,
        status=status,
        seconds=round(seconds, 3),
        training_seconds=_training(marks, seconds, evaluated),
        evaluation_seconds=None if evaluated is None else round(evaluated, 3),
        samples=samples,
    )


def _status(marks: Marks) -> tuple[str, float | None]:
    """Return the status and the time to train, which only a run with both marks in order has."""
    if marks.started is None:
        return "no run_start", None
    if marks.stopped is None:
        return "no run_stop", None
    if marks.stopped <= marks.started:
        return "run_stop is not after run_start", None
    return marks.status or "run_stop without a status", marks.stopped - marks.started


def _closed(pairs: list[list[float | None]], started: float | None, stopped: float | None) -> float | None:
    """Return the seconds inside the pairs, or None without pairs, or where one is open or out of order."""
    total = 0.0
    for begin, end in pairs:
        if begin is None or end is None or started is None or stopped is None or not started <= begin <= end <= stopped:
            return None
        total += end - begin
    return total if pairs else None


def _training(marks: Marks, seconds: float, evaluated: float | None) -> float | None:
    """Return the seconds of training: inside blocks where all are closed, else all but evaluation.

    None where neither is known: evaluation would count as training.
    """
    outside = None if evaluated is None else seconds - evaluated
    in_blocks = _closed(marks.blocks, marks.started, marks.stopped)
    if in_blocks is not None:
        in_blocks -= sum(
            max(0.0, min(stop, ended) - max(start, began))
            for start, stop in marks.blocks
            for began, ended in marks.evaluations
            if start is not None and stop is not None and began is not None and ended is not None
        )
        if in_blocks > SHORTEST_IN_BLOCKS * (seconds if outside is None else outside):
            return round(in_blocks, 3)
    return None if outside is None or outside <= 0 else round(outside, 3)
