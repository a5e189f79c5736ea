"""MLPerf Training: `:::MLLOG {json}` lines, as every submission's result files hold them.

`tracked_stats` rows carry what each submitter measured, and only their keys tell the measurements apart:

- NVIDIA logs seconds of one step: `train_step_time`, in 2024 `train_step_timing in s`; a row averages the steps since
  the row before it. Its logging callback adds a row per block between two evaluations, which states the mean of the
  same steps once more (mlperf_common/callbacks/logging.py, `_log_train_step_time`): shown, never measured.
- AMD logs `throughput` in samples/s, a row per block. NVIDIA logs it beside step times, in gpt3 of 2024 in tokens/s.
- NVIDIA's callback of 2025 adds `max_memory_usage`: PyTorch's peak of allocated memory, in GiB (at first in bytes).
- `metadata` tells the progress: `samples_count`, or a `step` that counts steps, samples or tokens; what it counts is
  found by the clock.

Rows of warm-up, initialisation and validation have keys of their own and are no steps.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import pairwise
from statistics import median
from typing import Any

from tensorprimat.core.steps import Step, Steps
from tensorprimat.core.summary import combined_rate
from tensorprimat.core.units import GIB
from tensorprimat.logs.format import Format, Reading
from tensorprimat.logs.rows import LONGEST_STEP_SECONDS
from tensorprimat.logs.text import Log

MARK = ":::MLLOG"
LONGEST_EVENT = 2**16  # characters; an event has a few hundred
LATEST_MILLISECONDS = 32503680000000  # the year 3000: what is beyond is no date
STEP_SECONDS_KEYS = ("train_step_time", "train_step_timing in s")
RATE_KEY = "throughput"
MEMORY_KEY = "max_memory_usage"
MOST_GIBIBYTES = 1e5  # no device has so much: a larger number counts bytes

CONFIGURATION = {
    "global_batch_size": "global_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "max_sequence_length": "sequence_length",
    "max_steps": "max_steps",
    "seed": "seed",
}
"""Whole numbers among the init keys → fields of TrainingConfig."""

MODELS = {"llama31_8b": "llama"}
"""Benchmarks whose model is one of ours; every other keeps its benchmark's name."""

SAME_RATE = 3.0  # two rates of one run differ by evaluation and stalls, in other units by a sequence length

_PLATFORM = re.compile(r"(?:(?P<nodes>\d{1,5})x)?(?P<device>\S.*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Event:
    line: int
    time: float
    """Seconds since the epoch."""
    key: str
    value: Any
    metadata: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Row:
    """One tracked_stats row about training."""

    line: int
    time: float
    position: float | None
    """Progress in whatever the submitter counts."""
    of_block: bool
    """It speaks of the whole block between two evaluations."""
    step_seconds: float | None
    rate: float | None
    loss: float | None
    learning_rate: float | None = None
    peak_memory_bytes: float | None = None


@dataclass(kw_only=True)
class _Run:
    """What lies between run_start and run_stop; times in seconds since the epoch."""

    started: float | None = None
    stopped: float | None = None
    status: str | None = None
    rows: list[_Row] = field(default_factory=list)
    blocks: list[float] = field(default_factory=list)
    """When each block between evaluations began."""
    evaluations: list[tuple[float, float]] = field(default_factory=list)

    def beginning_of(self, row: _Row, before: _Row | None) -> float | None:
        """When the steps of a row began: with its block, or at the row before it."""
        if before is not None and not row.of_block:
            return before.time
        earlier = [time for time in self.blocks if time < row.time]
        return earlier[-1] if earlier else before.time if before else self.started

    def evaluated_seconds(self, start: float, stop: float) -> float:
        """Evaluation between two moments."""
        return sum(max(0.0, min(stop, ended) - max(start, began)) for began, ended in self.evaluations)


@dataclass(kw_only=True)
class _Content:
    """Everything of a file that matters."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Init keys; what every rank repeats counts once."""
    ranks: int = 0
    """How many announced themselves."""
    runs: list[_Run] = field(default_factory=lambda: [_Run()])


def _detect(log: Log) -> int:
    return sum(1 for _, text in log.head() if MARK in text)


def _read(log: Log) -> Reading:
    content = _content(log)
    settings = content.settings
    config: dict[str, Any] = {
        name: value for key, name in CONFIGURATION.items() if (value := _whole(settings.get(key))) is not None
    }
    if isinstance(optimizer := settings.get("opt_name"), str):
        config["optimizer"] = optimizer
    if learning_rate := _number(settings.get("opt_base_learning_rate")):
        config["learning_rate"] = learning_rate
    reading = Reading(steps=Steps({}), training_config=config, source="MLPerf training log")
    if isinstance(benchmark := settings.get("submission_benchmark"), str):
        reading.model["name"] = MODELS.get(benchmark, benchmark)
    _describe_system(reading, content)
    _describe_runs(reading, content.runs)
    batch, length = config.get("global_batch_size"), config.get("sequence_length")
    reading.steps = Steps.of(
        step for number, run in enumerate(content.runs) for step in _steps(run, number, batch, length)
    )
    _report_rates(reading, content.runs, batch, length)
    return reading


FORMAT = Format(
    name="mlperf",
    reads="MLPerf Training result files: AMD's samples/s, NVIDIA's step seconds",
    looks_for="':::MLLOG' lines with the key tracked_stats that hold throughput or train_step_time",
    needles=(MARK.encode(),),
    detect=_detect,
    read=_read,
)


def _events(log: Log) -> Iterator[_Event]:
    """Every well-formed event; what is torn, nested absurdly deep or of another shape is passed over."""
    for line, text in log.lines():
        start = text.find(MARK)
        if start < 0 or len(text) - start > LONGEST_EVENT:
            continue
        try:
            document = json.loads(text[start + len(MARK) :])
        except (ValueError, RecursionError):
            continue
        if not isinstance(document, dict):
            continue
        milliseconds, key = _number(document.get("time_ms")), document.get("key")
        if milliseconds is not None and 0 < milliseconds < LATEST_MILLISECONDS and isinstance(key, str):
            facts = document.get("metadata")
            yield _Event(
                line=line,
                time=milliseconds / 1000,
                key=key,
                value=document.get("value"),
                metadata=facts if isinstance(facts, dict) else {},
            )


def _content(log: Log) -> _Content:
    content = _Content()
    known: set[tuple[object, ...]] = set()
    evaluation: float | None = None
    loss = learning_rate = None
    for event in _events(log):
        run = content.runs[-1]
        if event.key == "run_start":
            if run.stopped is not None:
                run = _Run()
                content.runs.append(run)
            run.started = event.time if run.started is None else run.started
        elif event.key == "run_stop":
            run.stopped = event.time
            status = event.metadata.get("status")
            run.status = status if isinstance(status, str) else None
        elif event.key == "block_start":
            run.blocks.append(event.time)
        elif event.key == "eval_start":
            evaluation = event.time
        elif event.key == "eval_stop" and evaluation is not None:
            run.evaluations.append((evaluation, event.time))
            evaluation = None
        elif event.key == "init_start":
            content.ranks += 1
        elif event.key == "train_loss":
            loss, learning_rate = _logged(event.value), _number(event.metadata.get("lr"))
        elif event.key == "tracked_stats":
            row = _row(event, loss, learning_rate)
            if row and (same := (row.time, row.position, row.step_seconds, row.rate)) not in known:
                known.add(same)  # a row that was printed twice is one row
                run.rows.append(row)
        else:
            content.settings.setdefault(event.key, event.value)
    return content


def _row(event: _Event, loss: float | None, learning_rate: float | None) -> _Row | None:
    """The row, or None where it does not speak of training."""
    if not isinstance(event.value, dict):
        return None
    seconds = next((_number(event.value[key]) for key in STEP_SECONDS_KEYS if key in event.value), None)
    rate = _number(event.value.get(RATE_KEY))
    seconds = seconds if seconds and 0 < seconds < LONGEST_STEP_SECONDS else None
    rate = rate if rate and rate > 0 else None
    if seconds is None and rate is None:
        return None
    own_loss = _logged(event.value.get("reduced_train_loss"))
    of_block = rate is not None or "step" not in event.metadata
    count = event.metadata.get("samples_count")
    return _Row(
        line=event.line,
        time=event.time,
        position=_number(event.metadata.get("step") if of_block or count is None else count),
        of_block=of_block,
        step_seconds=seconds,
        rate=rate,
        loss=loss if own_loss is None else own_loss,
        learning_rate=learning_rate,
        peak_memory_bytes=_memory(event.value.get(MEMORY_KEY)),
    )


def _steps(run: _Run, number: int, batch: int | None, length: int | None) -> Iterator[Step]:
    """Rows of one run: step by step where it was logged so, else block by block; what restates them covers no step."""
    rows = _measured_rows(run)
    covers, index = _covers(run, rows, batch, length)
    covers_by_line = {row.line: covered for row, covered in zip(rows, covers, strict=True)}
    before: _Row | None = None
    for row in run.rows:
        covered = covers_by_line.get(row.line, 0)
        if not covered and row.step_seconds is None:
            continue  # a rate beside step times: see _report_rates
        index += covered
        yield Step(
            index=index,
            seconds=row.step_seconds,
            covers=covered,
            ended_at=row.time,
            samples=batch,
            loss=row.loss,
            learning_rate=row.learning_rate,
            memory_allocated_peak_bytes=row.peak_memory_bytes,
            reported_samples_per_second=row.rate,
            interrupted_by="validation" if _holds_evaluation(run, row, before, covered, batch) else "",
            run=number,
            line=row.line,
        )
        before = row if covered else before


def _measured_rows(run: _Run) -> list[_Row]:
    """The rows that measure, of which no two speak of the same steps."""
    step_by_step = [row for row in run.rows if not row.of_block]
    return step_by_step or [row for row in run.rows if row.step_seconds is not None] or run.rows


def _pace(row: _Row, batch: int | None) -> float | None:
    """Seconds of a step, as logged or as the rate has it."""
    return row.step_seconds or (batch / row.rate if batch and row.rate else None)


def _holds_evaluation(run: _Run, row: _Row, before: _Row | None, covered: int, batch: int | None) -> bool:
    """Whether what was timed is longer than the training between two rows, because an evaluation lies inside."""
    start, pace = run.beginning_of(row, before), _pace(row, batch)
    if start is None or pace is None:
        return False
    evaluated = run.evaluated_seconds(start, row.time)
    return evaluated > 0 and pace * covered > row.time - start - evaluated / 2


def _covers(run: _Run, rows: Sequence[_Row], batch: int | None, length: int | None) -> tuple[list[int], int]:
    """Optimizer steps of each row, and how many lie before the first."""
    paces = [_pace(row, batch) for row in rows]
    befores: list[_Row | None] = [None, *rows]
    by_clock: list[float] = []
    for row, before, pace in zip(rows, befores, paces, strict=False):
        start = run.beginning_of(row, before)
        spent = row.time - start - run.evaluated_seconds(start, row.time) if start is not None else 0.0
        by_clock.append(max(1.0, spent / pace) if pace else 1.0)
    positions = [row.position for row in rows]
    advances = [b - a for a, b in pairwise(positions) if a is not None and b is not None]
    typical = median(advances) if advances else 0.0
    if typical <= 0 or not batch:
        return [round(steps) for steps in by_clock], 0
    steps = median(by_clock[1:])
    unit = min((1, batch, batch * (length or 1)), key=lambda unit: abs(math.log(typical / unit / steps)))
    usual = max(1, round(typical / unit))
    covers = [max(1, round(advance / unit)) for advance in advances]
    first = max(0, round((positions[0] or 0) / unit))
    from_the_start = 0 < first <= 1 + 1.5 * by_clock[0]  # else training was resumed: the time before was another run's
    covers.insert(0, first if from_the_start else usual)
    if len(covers) != len(rows):  # some rows do not say how far they are
        return [round(steps) for steps in by_clock], 0
    return covers, max(0, first - covers[0])


def _report_rates(reading: Reading, runs: Sequence[_Run], batch: int | None, length: int | None) -> None:
    """Keep a throughput that stands beside step times: a second measurement of the same steps, in a unit of its own."""
    rows = [row for run in runs for row in run.rows]
    rates = [row.rate for row in rows if row.rate is not None]
    times = [row.step_seconds for row in rows if row.step_seconds is not None]
    if not rates or not times:
        return
    units = {"samples_per_second": batch, "tokens_per_second": batch * length if batch and length else None}
    steps_per_second = 1 / median(times)
    for name, amount in units.items():
        if amount and 1 / SAME_RATE < median(rates) / (amount * steps_per_second) < SAME_RATE:
            column = f"reported_{name}"
            said = Steps.of(Step(index=0, seconds=None, **{column: rate}) for rate in rates)  # type: ignore[arg-type]
            reading.reported[name] = combined_rate(said, column)
            break
    else:
        reading.warnings.append(
            f"throughput: {median(rates):,.4g} beside steps of {median(times):.4g} s is neither samples/s nor tokens/s"
        )
    if "samples_per_second" not in reading.reported and "reported_samples_per_second" in reading.steps.seen:
        reading.steps = reading.steps.replace(reported_samples_per_second=math.nan)


def _describe_system(reading: Reading, content: _Content) -> None:
    platform = content.settings.get("submission_platform")
    match = _PLATFORM.fullmatch(platform.strip()) if isinstance(platform, str) else None
    if match and "PLACEHOLDER" in match["device"]:
        reading.warnings.append(f"gpu_info: {platform} is a placeholder, so the device is unknown; give --gpu")
    elif match:
        reading.gpu_info["device_name"] = match["device"]
    if match and match["nodes"]:
        reading.training_config["num_nodes"] = int(match["nodes"])
    if content.ranks > 1:
        reading.warnings.append(
            f"num_gpus: {content.ranks} ranks wrote init_start; if each drove one GPU, say --num-gpus {content.ranks}"
        )


def _describe_runs(reading: Reading, runs: Sequence[_Run]) -> None:
    first, last = runs[0], runs[-1]
    if first.started is not None:
        reading.timestamp = datetime.fromtimestamp(first.started, timezone.utc).isoformat(timespec="seconds")
    if len(runs) == 1 and first.started is not None and first.stopped is not None:
        reading.reported["time_to_train_seconds"] = first.stopped - first.started
    statuses = {run.status for run in runs}
    if len(statuses) == 1:
        reading.reported["status"] = statuses.pop()
    if last.started is not None and last.stopped is None:
        reading.complete, reading.ended_by = False, "the log ends before run_stop"


def _number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _memory(value: object) -> float | None:
    """A size of memory in bytes."""
    size = _number(value)
    return (size if size > MOST_GIBIBYTES else size * GIB) if size and size > 0 else None


def _logged(value: object) -> float | None:
    """A loss: a number, or the nan that the framework printed."""
    return math.nan if isinstance(value, float) and math.isnan(value) else _number(value)


def _whole(value: object) -> int | None:
    """A positive whole number (1.0 counts), or None."""
    number = _number(value)
    return int(number) if number and number > 0 and number == int(number) else None
