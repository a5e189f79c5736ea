"""MLPerf Training: `:::MLLOG {json}` lines, as every submission's result files hold them.

`tracked_stats` rows carry what each submitter measured, and only their keys distinguish the measurements:

- NVIDIA logs seconds of one step: `train_step_time`, in 2024 `train_step_timing in s`; a row averages the steps since
  the row before it. Its logging callback adds a row per block between two evaluations, which states the mean of the
  same steps once more (mlperf_common/callbacks/logging.py, `_log_train_step_time`): shown, never measured.
- AMD logs `throughput` in samples/s, a row per block. NVIDIA logs it in addition to step times, for gpt3 of 2024 in
  tokens/s.
- NVIDIA's callback of 2025 adds `max_memory_usage`: PyTorch's peak of allocated memory, in GiB (at first in bytes).
- `metadata` tells the progress: `samples_count`, or a `step` that counts steps, samples or tokens; what it counts is
  found by the clock.
- A run without any such row is read from its block_start and block_stop (AMD's Primus, Google's MaxText).

Rows of warm-up, initialisation and validation have keys of their own and are no steps. By the rules of the rounds
warm-up ends before run_start, so every row after it counts. `rows` turns rows into steps, `system` reads the system
description of the submission.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from statistics import median
from typing import Any

from tensorprimat.core import mlperf_rules, terms
from tensorprimat.core.quantities import counted, significant
from tensorprimat.core.steps import Step, Steps
from tensorprimat.core.units import GIB
from tensorprimat.logs.fields import LONGEST_STEP_SECONDS, number_in
from tensorprimat.logs.format import Reading
from tensorprimat.logs.mlperf import system as mlperf_system
from tensorprimat.logs.mlperf.rows import Block, MlperfEvents, MlperfRow, evidence_of, steps_of
from tensorprimat.logs.text import Log

MARK = ":::MLLOG"
_EVENT_BEGINS = re.compile(rf"{MARK}\s{{0,9}}{{")
_DECODER = json.JSONDecoder()
LONGEST_EVENT = 2**16  # characters; an event has a few hundred
LATEST_MILLISECONDS = 32503680000000  # the year 3000: what is beyond is no date
STEP_SECONDS_KEYS = ("train_step_time", "train_step_timing in s")
RATE_KEY = "throughput"
COUNTING = ("eval_start", "run_stop")
"""Events whose samples_count is how far training is (block_start's is the size of a block)."""
MEMORY_KEY = "max_memory_usage"
MOST_GIBIBYTES = 1e5  # no device has so much: a larger number counts bytes

CONFIGURATION = {
    "global_batch_size": "global_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "max_sequence_length": "sequence_length",
    "max_steps": "max_steps",
    "micro_batch_size": "micro_batch_size",
    "tensor_parallelism": "tensor_model_parallel_size",
    "pipeline_parallelism": "pipeline_model_parallel_size",
    "context_parallelism": "context_parallel_size",
    "expert_parallelism": "expert_model_parallel_size",
    "seed": "seed",
}
"""Whole numbers among the init keys → fields of TrainingConfig."""

SAME_RATE = 3.0  # two rates of one run differ by evaluation and stalls, in other units by a sequence length

PRECISIONS = {
    **{name: name for name in ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4")},
    "bfloat16": "bf16",
    "float16": "fp16",
    "mxfp8": "fp8",
    "nvfp4": "fp4",
    "mxfp4": "fp4",
}
"""Values of lowest_numerical_precision_* → TrainingConfig.precision."""
LINEAR_PRECISION = ("lowest_numerical_precision_linear", "lowest_numerical_precision_in_linear")
"""Linear layers hold the multiplications that a peak is about; attention and communication have keys of their own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One well-formed event of a log."""

    line: int
    time: float
    """Seconds since the epoch."""
    key: str
    value: Any
    metadata: dict[str, Any]


@dataclass(kw_only=True)
class _Content:
    """Everything of a file that matters."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Init keys; what every rank repeats counts once."""
    ranks: int = 0
    """Number of ranks that announced themselves."""
    runs: list[MlperfEvents] = field(default_factory=lambda: [MlperfEvents()])
    torn: list[int] = field(default_factory=list)
    """Lines of events that are not whole, except the last line of the log."""


def detect(log: Log) -> int:
    return sum(1 for _, text in log.head() if MARK in text)


def read(log: Log) -> Reading:
    content = _content(log)
    settings = content.settings
    config = configuration_of(settings)
    if isinstance(optimizer := settings.get("opt_name"), str):
        config["optimizer"] = optimizer
    if learning_rate := number_in(settings.get("opt_base_learning_rate")):
        config["learning_rate"] = learning_rate
    if any(run.started is not None for run in content.runs):
        config["warmup_steps"] = 0  # warm-up is over at run_start
    reading = Reading(steps=Steps({}), training_config=config, source="MLPerf training log")
    if isinstance(benchmark := settings.get("submission_benchmark"), str):
        reading.model["name"] = benchmark
    _describe_task(reading, settings)
    mlperf_system.describe(reading, settings, ranks=content.ranks, path=log.path)
    _describe_runs(reading, content.runs)
    batch, length = config.get("global_batch_size"), config.get("sequence_length")
    for run in content.runs:
        run.batch, run.length = batch, length
    steps = [step for number, run in enumerate(content.runs) for step in steps_of(run, number)]
    reading.steps = Steps.of(steps)
    reading.evidence = evidence_of(content.runs, steps)
    _report_rates(reading, content.runs, batch, length)
    if content.torn:
        reading.warnings.append(
            f"events: {counted(len(content.torn), 'event')} cut off and left out, the first on line {content.torn[0]}, "
            "so times and counts may be wrong; read the log as it was written"
        )
    return reading


def _events(log: Log, torn: list[int]) -> Iterator[Event]:
    """Yield every well-formed event; what is nested absurdly deep or of another shape is passed over.

    torn: receives the lines whose event is not whole, but for the last line of the log, where it ends.
    """
    line = 0
    for line, text in log.lines():
        for start in _marks_in(text):
            try:
                document, _ = _DECODER.raw_decode(text, start)
            except (ValueError, RecursionError):
                torn.append(line)
                continue
            if event := event_of(document, line):
                yield event
    if torn and torn[-1] == line:
        torn.pop()


def event_of(document: Mapping[str, Any], line: int) -> Event | None:
    """Return the event that a JSON object is; None for one without a key or a date."""
    milliseconds, key, facts = number_in(document.get("time_ms")), document.get("key"), document.get("metadata")
    if milliseconds is None or not 0 < milliseconds < LATEST_MILLISECONDS or not isinstance(key, str):
        return None
    return Event(
        line=line,
        time=milliseconds / 1000,
        key=key,
        value=document.get("value"),
        metadata=facts if isinstance(facts, dict) else {},
    )


def _marks_in(text: str) -> Iterator[int]:
    """Yield where the JSON of each event begins: processes that print at once may share a line."""
    if MARK in text:
        yield from (match.end() - 1 for match in _EVENT_BEGINS.finditer(text) if len(text) <= LONGEST_EVENT)


def _content(log: Log) -> _Content:
    content = _Content()
    known: set[tuple[object, ...]] = set()
    starts: Counter[tuple[object, ...]] = Counter()
    evaluation: float | None = None
    loss = learning_rate = None
    for event in _events(log, content.torn):
        run = content.runs[-1]
        if event.key in COUNTING and (count := number_in(event.metadata.get("samples_count"))):
            run.samples = count
        if event.key == "run_start":
            if run.stopped is not None:
                run = MlperfEvents()
                content.runs.append(run)
            starts[event.key, event.time, str(event.metadata)] += len(content.runs) == 1
            run.started = event.time if run.started is None else run.started
        elif event.key == "run_stop":
            run.stopped = event.time
            status = event.metadata.get("status")
            run.status = status if isinstance(status, str) else None
        elif event.key == "block_start":
            run.blocks.append(Block(started=event.time, first=_counts(event)))
        elif event.key == "block_stop" and run.blocks and run.blocks[-1].stopped is None:
            block = run.blocks[-1]
            block.stopped, block.last, block.line = event.time, _counts(event), event.line
        elif event.key == "eval_start":
            evaluation = event.time
            run.evaluation_lines.append(event.line)
        elif event.key == "eval_stop":
            run.evaluation_lines.append(event.line)
            if evaluation is not None:
                run.evaluations.append((evaluation, event.time))
            evaluation = None
        elif event.key == "init_start":
            starts[event.key, event.time, str(event.metadata)] += len(content.runs) == 1 and run.started is None
        elif event.key == "train_loss":
            loss, learning_rate = _logged(event.value), number_in(event.metadata.get("lr"))
        elif event.key == "tracked_stats":
            row = _row(event, loss, learning_rate)
            if row and (same := (row.time, row.position, row.step_seconds, row.rate)) not in known:
                known.add(same)  # a row that was printed twice is one row
                run.rows.append(row)
        else:
            content.settings.setdefault(event.key, event.value)
    content.ranks = _ranks(starts)
    return content


def _ranks(starts: Counter[tuple[object, ...]]) -> int:
    """Return the number of ranks that wrote init_start. starts: events init_start and run_start of the first run.

    Only one rank writes run_start. If every one of these lines occurs n times, the log was written n times.
    """
    seen = [count for count in starts.values() if count]
    copies = min(seen, default=1) if any(key == "run_start" for key, *_ in starts) else 1
    copies = copies if all(count % copies == 0 for count in seen) else 1
    return sum(count for (key, *_), count in starts.items() if key == "init_start") // copies


def _counts(event: Event) -> dict[str, float]:
    """Return the numbers that a mark carries, by name."""
    return {name: value for name, text in event.metadata.items() if (value := number_in(text)) is not None}


def _row(event: Event, loss: float | None, learning_rate: float | None) -> MlperfRow | None:
    """Return the row, or None if it is not about training."""
    if not isinstance(event.value, dict):
        return None
    seconds = next((number_in(event.value[key]) for key in STEP_SECONDS_KEYS if key in event.value), None)
    rate = number_in(event.value.get(RATE_KEY))
    seconds = seconds if seconds and 0 < seconds < LONGEST_STEP_SECONDS else None
    rate = rate if rate and rate > 0 else None
    if seconds is None and rate is None:
        return None
    own_loss = _logged(event.value.get("reduced_train_loss"))
    has_step = "step" in event.metadata
    of_block = rate is not None or not (has_step or "reduced_train_loss" in event.value)
    count = event.metadata.get("samples_count")
    return MlperfRow(
        line=event.line,
        time=event.time,
        position=number_in(event.metadata.get("step") if of_block or count is None else count),
        of_block=of_block,
        counts_samples_only=not has_step,
        step_seconds=seconds,
        rate=rate,
        loss=loss if own_loss is None else own_loss,
        learning_rate=learning_rate,
        peak_memory_bytes=_memory(event.value.get(MEMORY_KEY)),
    )


def _report_rates(reading: Reading, runs: Sequence[MlperfEvents], batch: int | None, length: int | None) -> None:
    """Keep a throughput that is logged in addition to step times as reported: it measures the same steps once more.

    Its unit, samples/s or tokens/s, is the one that agrees with the step times.
    """
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
            rates_only = Steps.of(Step(index=0, seconds=None, **{column: rate}) for rate in rates)  # type: ignore[arg-type]
            term = terms.combined(rates_only, column)
            reading.reported[name] = None if term is None else term.value
            break
    else:
        reading.warnings.append(
            f"throughput: {significant(median(rates))} with steps of {significant(median(times))} s is neither "
            "samples/s nor tokens/s"
        )
    if "samples_per_second" not in reading.reported and "reported_samples_per_second" in reading.steps.seen:
        reading.steps = reading.steps.replace(reported_samples_per_second=math.nan)


def configuration_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of TrainingConfig that init keys state: whole numbers, the precision of the linear layers, and
    the recipe if its name states one (mxfp4).
    """
    config: dict[str, Any] = {
        name: value for key, name in CONFIGURATION.items() if (value := _whole(settings.get(key))) is not None
    }
    precision = next((value for key in LINEAR_PRECISION if isinstance(value := settings.get(key), str) and value), "")
    if name := PRECISIONS.get(precision.casefold()):
        config |= {"precision": name, **({"fp8_recipe": precision} if precision.startswith(("mx", "nv")) else {})}
    return config


def _describe_runs(reading: Reading, runs: Sequence[MlperfEvents]) -> None:
    first, last = runs[0], runs[-1]
    if first.started is not None:
        reading.timestamp = datetime.fromtimestamp(first.started, timezone.utc).isoformat(timespec="seconds")
    reading.run_facts = [_to_target(run) for run in runs]
    if len(runs) == 1 and first.started is not None and first.stopped is not None:
        reading.reported |= {"time_to_train_seconds": first.stopped - first.started, "samples_to_train": first.samples}
    statuses = {run.status for run in runs}
    if len(statuses) == 1:
        reading.reported["status"] = statuses.pop()
    if last.started is not None and last.stopped is None:
        reading.complete, reading.ended_by = False, "the log ends before run_stop"


def _to_target(run: MlperfEvents) -> dict[str, float | None]:
    """Return the time and samples to the quality target; {} for a run that did not reach it."""
    if run.status != "success" or run.started is None or run.stopped is None:
        return {}
    return {"time_to_train_seconds": run.stopped - run.started, "samples_to_train": run.samples}


def _describe_task(reading: Reading, settings: dict[str, Any]) -> None:
    """Say which benchmark this is, its quality target, and whether all parameters train."""
    name = settings.get("submission_benchmark")
    if not isinstance(name, str):
        return
    rules = mlperf_rules.benchmark(name)
    stated = number_in(settings.get("target_accuracy"))
    target = stated if stated is not None else rules.target if rules else None
    reading.reported |= {"benchmark": name, "quality_target": target}
    if "lora_rank" in settings or "lora" in name:
        reading.training_config["peft"] = "lora"
    elif rules and rules.peft:
        reading.training_config["peft"] = rules.peft


def _memory(value: object) -> float | None:
    """Return a size of memory in bytes."""
    size = number_in(value)
    return (size if size > MOST_GIBIBYTES else size * GIB) if size and size > 0 else None


def _logged(value: object) -> float | None:
    """Return a loss: a number, or the nan that the framework printed."""
    return math.nan if isinstance(value, float) and math.isnan(value) else number_in(value)


def _whole(value: object) -> int | None:
    """Return a positive whole number (1.0 counts), or None."""
    number = number_in(value)
    return int(number) if number and number > 0 and number == int(number) else None
