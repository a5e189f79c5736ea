"""Events of an MLPerf log, and the settings, ranks and runs that they state.

`reader` reads all events of one file, `marks` only the few that time a run, which whole rounds need.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorprimat.core.settings import PRECISION_OF_DTYPE, PRECISIONS
from tensorprimat.core.steps import LONGEST_STEP_SECONDS
from tensorprimat.core.units import GIB
from tensorprimat.logs.fields import count_in, number_in
from tensorprimat.logs.mlperf.run import COUNTING, Block, MlperfEvents, MlperfRow

MARK = ":::MLLOG"
_EVENT_BEGINS = re.compile(rf"{MARK}\s{{0,9}}{{")
_DECODER = json.JSONDecoder()
LATEST_MILLISECONDS = 32503680000000  # the year 3000: a larger number is not a date
STEP_SECONDS_KEYS = ("train_step_time", "train_step_timing in s", "train_step_timing")
RATE_KEY = "throughput"
_EPOCH = "epoch_num"
MEMORY_KEY = "max_memory_usage"
TOKENS_KEY = "global_valid_toks"
"""Key of the tokens that a step of NeMo-RL trained on; the step's time is in another row."""
MOST_GIBIBYTES = 1e5  # no device has so much: a larger number counts bytes

CONFIGURATION_KEYS = {
    **{name: name for name in ("global_batch_size", "gradient_accumulation_steps")},
    "max_sequence_length": "sequence_length",
    **{name: name for name in ("max_steps", "micro_batch_size")},
    "tensor_parallelism": "tensor_model_parallel_size",
    "pipeline_parallelism": "pipeline_model_parallel_size",
    "context_parallelism": "context_parallel_size",
    "expert_parallelism": "expert_model_parallel_size",
    "seed": "seed",
}
"""Whole numbers among the init keys → fields of TrainingConfig."""
PRECISION_NAMES = {
    **{name: name for name in PRECISIONS},
    **PRECISION_OF_DTYPE,
    "mxfp8": "fp8",
    "nvfp4": "fp4",
    "mxfp4": "fp4",
}
"""Values of lowest_numerical_precision_* → TrainingConfig.precision."""
LINEAR_PRECISION = ("lowest_numerical_precision_linear", "lowest_numerical_precision_in_linear")
"""Keys of the precision that counts: a GPU's peak FLOP/s is about matrix products, most of which are in linear layers.
Attention and communication have other keys."""


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
class MlperfContent:
    """Settings, ranks and runs that the events of a file state."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Init keys; a key that every rank repeats counts once."""
    ranks: int = 0
    """Number of ranks that announced themselves."""
    runs: list[MlperfEvents] = field(default_factory=lambda: [MlperfEvents()])


def events_in(text: str, line: int, torn: list[int]) -> Iterator[Event]:
    """Yield the events on a line: processes that print at once may share one. JSON of another shape is skipped.

    torn: receives the line number of every event that is cut off, damaged or nested too deep.
    """
    for match in _EVENT_BEGINS.finditer(text) if MARK in text else ():
        try:
            document, _ = _DECODER.raw_decode(text, match.end() - 1)
        except (ValueError, RecursionError):
            torn.append(line)
            continue
        if event := _event(document, line):
            yield event


def _event(document: Mapping[str, Any], line: int) -> Event | None:
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


def collect(events: Iterable[Event]) -> MlperfContent:
    """Return the settings, ranks and runs that events state. events: in the order of the log."""
    content = MlperfContent()
    known: set[tuple[object, ...]] = set()
    starts: Counter[tuple[object, ...]] = Counter()
    loss = learning_rate = None
    for event in events:
        run = content.runs[-1]
        if event.key in COUNTING and run.started is not None and run.stopped is None:
            run.counts.setdefault(event.key, {}).update(_counts(event))
        if event.key == "run_start":
            if run.stopped is not None:
                run = MlperfEvents()
                content.runs.append(run)
            starts[event.key, event.time, str(event.metadata)] += len(content.runs) == 1
            run.started = event.time if run.started is None else run.started
        elif event.key == "run_stop":
            run.stopped, run.stop_line = event.time, event.line
            status = event.metadata.get("status")
            run.status = status if isinstance(status, str) else None
        elif event.key == "block_start":
            before = run.blocks[-1].last.get("samples_count") if run.blocks else None
            run.blocks.append(Block(started=event.time, first=_counts(event), before=before))
        elif event.key == "block_stop":
            if not run.blocks and run.started is not None:  # some logs mark no start: it is that of the run
                run.blocks.append(Block(started=run.started, first={}))
            if run.blocks and (block := run.blocks[-1]).stopped is None:
                block.stopped, block.last, block.line = event.time, _counts(event), event.line
        elif event.key == "eval_start":
            run.evaluation_lines.append(event.line)
            run.evaluations.append((event.time, None))
            run.evaluation_counts.append(_counts(event))
        elif event.key == "eval_stop":
            run.evaluation_lines.append(event.line)
            if run.evaluations and run.evaluations[-1][1] is None:
                run.evaluations[-1] = run.evaluations[-1][0], event.time
        elif event.key == "init_start":
            starts[event.key, event.time, str(event.metadata)] += len(content.runs) == 1 and run.started is None
        elif event.key == "train_loss":
            loss, learning_rate = _logged(event.value), number_in(event.metadata.get("lr"))
        elif event.key == "tracked_stats":
            if isinstance(event.value, dict) and (tokens := number_in(event.value.get(TOKENS_KEY))) and tokens > 0:
                run.tokens[_position(event)] = tokens
            row = _row(event, loss, learning_rate)
            if row and run.stopped is not None and run.rows and isinstance(event.value, dict) and _EPOCH in event.value:
                continue  # bert's mean of all rows
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
    return {name: value for name, text in event.metadata.items() if (value := count_in(text)) is not None}


def _position(event: Event) -> float | None:
    count = event.metadata.get("samples_count")
    return count_in(event.metadata.get("step") if count is None else count)


def _position_of_block(event: Event) -> float | None:
    """Return the progress of a throughput: `step`, or for bert the samples so far, under the name of epochs."""
    if "step" in event.metadata and not isinstance(event.metadata["step"], list):
        return count_in(event.metadata["step"])
    if "samples_count" in event.metadata:
        return None
    of_row = event.value.get(_EPOCH) if isinstance(event.value, dict) else None
    return count_in(event.metadata.get(_EPOCH) if of_row is None else of_row)


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
    return MlperfRow(
        line=event.line,
        time=event.time,
        position=_position_of_block(event) if of_block else _position(event),
        of_block=of_block,
        counts_samples_only=not has_step,
        step_seconds=seconds,
        rate=rate,
        loss=loss if own_loss is None else own_loss,
        learning_rate=learning_rate,
        peak_memory_bytes=_memory(event.value.get(MEMORY_KEY)),
    )


def configuration_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of TrainingConfig that init keys state: whole numbers, the precision of the linear layers, and
    the recipe if its name states one (mxfp4).
    """
    config: dict[str, Any] = {
        name: value for key, name in CONFIGURATION_KEYS.items() if (value := _whole(settings.get(key))) is not None
    }
    precision = next((value for key in LINEAR_PRECISION if isinstance(value := settings.get(key), str) and value), "")
    if name := PRECISION_NAMES.get(precision.casefold()):
        config |= {"precision": name, **({"fp8_recipe": precision} if precision.startswith(("mx", "nv")) else {})}
    return config


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
