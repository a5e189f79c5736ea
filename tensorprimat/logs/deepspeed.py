"""DeepSpeed: the lines about speed of the engine, the pipeline engine and DeepSpeed-Chat.

- The throughput timer (`ThroughputTimer.stop`): `CurrSamplesPerSec` is the global batch over the time of the one step
  that the row names; `RunningAvgSamplesPerSec` is a mean since the start and is never averaged again. Memory "GB" are
  GiB of the allocator.
- The pipeline engine: `steps: N loss: … iter time (s): …` averages the steps since its last line.
- DeepSpeed-Chat's reinforcement learning: `E2E latency`, an iteration with its generation.
- Wall clock breakdowns (`time (ms) | fwd: …`) are parts of a step without data wait and gaps: no step time.

Several of these in one log measure the same run: iterations with generation are preferred to training alone, and times
to rates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from tensorprimat.audit.evidence import Evidence, LogClock
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import counted, percent
from tensorprimat.core.steps import Step, Steps
from tensorprimat.core.units import GIB
from tensorprimat.logs import fields
from tensorprimat.logs.clocks import date_in
from tensorprimat.logs.fields import NUMBER, SETTING, WHOLE
from tensorprimat.logs.format import Reading
from tensorprimat.logs.huggingface.content import DEEPSPEED_LINE, DEEPSPEED_SETTINGS, TRAINER, keep_setting
from tensorprimat.logs.model_names import model_name
from tensorprimat.logs.text import Log

_TIMER = re.compile(
    r"(?:global_step=|\d/)(?P<step>\d{1,15}), "
    rf"(?:RunningAvgSamplesPerSec=(?P<running>{NUMBER}), CurrSamplesPerSec=(?P<rate>{NUMBER})"
    rf"|SamplesPerSec=(?P<only_running>{NUMBER}))"
    rf"(?:, MemAllocated=(?P<allocated>{NUMBER})GB, MaxMemAllocated=(?P<peak>{NUMBER})GB)?"
)
_PIPELINE = re.compile(
    rf"steps?:\s{{0,20}}(?P<step>\d{{1,15}})\s.{{0,200}}?loss: (?P<loss>{NUMBER}|nan|inf)\s.{{0,200}}?"
    rf"iter time \(s\): (?P<seconds>{NUMBER})\s+samples/sec: (?P<rate>\d{{1,15}}\.\d{{3}}|nan|inf)(?!\d)"
)
_CHAT = re.compile(
    rf"\|E2E latency=(?P<seconds>{NUMBER})s.*?(?:\|CurSamplesPerSec=(?P<rate>{NUMBER}) \|Avg.*)?$"
    rf"|End-to-End => Latency:\s*(?P<seconds2>{NUMBER})s, TFLOPs:\s*{NUMBER}, Samples/sec: (?P<rate2>{NUMBER})"
)
_ROWS = (
    ("chat", "E2E latency=", _CHAT),
    ("chat", "End-to-End => Latency", _CHAT),
    ("pipeline", "iter time (s):", _PIPELINE),
    ("timer", "SamplesPerSec=", _TIMER),
)
"""Kind of row, text that every such row contains, expression."""
UNTIMED_STEPS = 2  # at the start, which DeepSpeed's timer leaves out of its means
FEWEST_MEANS = 3
_LONGEST_ROW = 2**12  # characters; rows have a few hundred, and a progress bar may precede them
_SCHEDULE = re.compile(rf"\bstep=(?P<step>\d{{1,15}}), skipped=(?P<skipped>\d{{1,15}}), lr=\[(?P<rate>{NUMBER})")
_WORLD = re.compile(rf"\bdist_world_size={WHOLE}")
_COMMAND = re.compile(r"\bcmd = (.{1,400}?--.*)")
_LENGTH = re.compile(
    r"(?:^|[\s(,'\"])(?:seq_length|max_seq_len(?:gth)?|sequence_length|model_max_length)['\"]?(?:=| ?\.{2,} ?|: ?)"
    rf"{SETTING}"
)
_PAIRS = re.compile(r"chosen(?:_last_scores\b|: )")  # DeepSpeed-Chat's evaluation of a reward model, and of DPO
LONGEST_COMMAND = 2**16  # characters; a launcher's command line has a few thousand

_ARGUMENTS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "--per_device_train_batch_size": ("micro_batch_size", int),
    "--gradient_accumulation_steps": ("gradient_accumulation_steps", int),
    "--max_seq_len": ("sequence_length", int),
    "--zero_stage": ("strategy", lambda stage: f"zero-{int(stage)}"),
    "--seed": ("seed", int),
    "--num_gpus": ("num_gpus", int),
}
"""Arguments of the command line that the launcher prints, as DeepSpeed's own examples spell them."""

_TRAINER = re.compile(rf"(?P<name>{'|'.join(map(re.escape, TRAINER))}) = {WHOLE}")


@dataclass(kw_only=True)
class _Content:
    timer: list[Step] = field(default_factory=list)
    pipeline: list[Step] = field(default_factory=list)
    chat: list[Step] = field(default_factory=list)
    untimed: list[Step] = field(default_factory=list)
    """Rows of an older DeepSpeed, which state memory, and as a rate only the mean since the start."""
    cut: int = 0
    """Rows of the timer without their end."""
    running_mean: float | None = None
    running: dict[int, float] = field(default_factory=dict)
    """Step → mean samples/s since the start."""
    skipped: int = 0
    interval: int | None = None
    """steps_per_print."""
    settings: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    from_command: bool = False
    """The sequence length is an argument of the launcher's command."""
    of_pairs: bool = False
    """A sample is a chosen and a rejected sequence."""
    reading: Reading = field(default_factory=lambda: Reading(source="DeepSpeed log"))


def detect(log: Log) -> int:
    return sum(1 for _, text in log.head() if _row(text))


def _row(text: str) -> tuple[str, re.Match[str]] | None:
    """Return kind and content of a line about speed."""
    for kind, mark, pattern in _ROWS:
        if mark in text and (match := pattern.search(text[-_LONGEST_ROW:])):
            return kind, match
    return None


def read(log: Log) -> Reading:
    content = _content(log)
    reading = content.reading
    reading.training_config = config = {**content.arguments, **content.settings}
    if content.of_pairs and config.pop("sequence_length", None):
        reading.warnings.append(Notice("samples_of_pairs", "sequence_length"))
    parts = [config.get(name) for name in ("micro_batch_size", "gradient_accumulation_steps", "num_gpus")]
    if "global_batch_size" not in config and all(parts):
        config["global_batch_size"] = parts[0] * parts[1] * parts[2]  # type: ignore[operator]  # DeepSpeed's definition
    found = ((None, step) for step in _steps(content, config.get("global_batch_size")))
    reading.steps = fields.merged(found, reading.warnings)
    if content.timer and not content.chat and not content.pipeline and config.get("global_batch_size"):
        reading.timer = "reported_samples_per_second"
    if (batch := config.get("global_batch_size")) and (clock := _clock(content, batch)):
        reading.evidence = Evidence(clocks=(clock,))
        reading.warnings += _others_than_timed(reading.steps, clock)
    if not (content.chat or content.pipeline or content.timer) and content.running_mean:
        reading.reported["samples_per_second"] = content.running_mean
    if content.skipped:
        skipped = counted(content.skipped, "step")
        reading.warnings.append(Notice("updates_overflowed", "steps", skipped=skipped))
    if content.from_command and config.get("sequence_length") == content.arguments.get("sequence_length"):
        reading.warnings.append(Notice("length_of_command", "sequence_length"))
    if content.cut:
        reading.warnings.append(Notice("rows_truncated", "steps", rows=content.cut))
    if content.chat:
        reading.warnings.append(Notice("steps_of_rl", "steps"))
    return reading


def _clock(content: _Content, batch: int) -> LogClock | None:
    """Return the time between the first and the last row by the mean rate since the start.

    deepspeed/utils/timer.py: `avg_samples_per_sec` divides all steps after UNTIMED_STEPS by their time. None where
    the numbers of steps go back, and where pipeline or chat rows are measured instead.
    """
    numbers = [step.index for step in content.timer]
    known = {number: mean for number, mean in content.running.items() if number > UNTIMED_STEPS}
    if content.chat or content.pipeline or len(known) < FEWEST_MEANS or numbers != sorted(set(numbers)):
        return None
    (first, first_mean), (last, last_mean) = min(known.items()), max(known.items())
    seconds = batch * ((last - UNTIMED_STEPS) / last_mean - (first - UNTIMED_STEPS) / first_mean)
    return LogClock(
        name="RunningAvgSamplesPerSec",
        seconds=seconds,
        steps=float(last - first),
        after_step=first,
        has_every_pause=True,
        is_certain=False,
    )


def _others_than_timed(steps: Steps, clock: LogClock) -> list[str]:
    """Return a warning if the steps between the rows took another time than those that the rows time."""
    seconds = steps.column("seconds")[steps.column("index") > (clock.after_step or 0)]
    interval = (clock.steps or 0.0) / len(seconds) if len(seconds) else 0.0
    if interval <= 1 or not np.isfinite(seconds).all():
        return []
    off = clock.seconds / (clock.steps or 1.0) / float(seconds.mean()) - 1
    if abs(off) <= fields.CLOCK_RESOLUTION:
        return []
    return [
        Notice(
            "rows_unlike_mean",
            "step_time",
            step=round(interval),
            off=percent(abs(off), 1),
            direction="longer" if off > 0 else "less",
        )
    ]


def _content(log: Log) -> _Content:
    content = _Content()
    learning_rate: dict[int, float] = {}
    for line, text in log.lines():
        time = date_in(text[:100])
        content.reading.timestamp = content.reading.timestamp or fields.iso(time)
        if row := _row(text):
            kind, match = row
            if kind == "timer":
                content.running_mean = fields.positive(match["running"] or match["only_running"])
                if content.running_mean and match["rate"]:
                    content.running[int(match["step"])] = content.running_mean
                step = _row_step(kind, match, line, time, 0)
                if match["rate"]:
                    content.timer.append(step.changed(learning_rate=learning_rate.get(step.index)))
                elif match["peak"]:
                    content.untimed.append(step)
            else:
                rows = content.pipeline if kind == "pipeline" else content.chat
                rows.append(_row_step(kind, match, line, time, len(rows) + 1))
        elif schedule := _SCHEDULE.search(text[:_LONGEST_ROW]):
            learning_rate = {int(schedule["step"]): float(schedule["rate"])}
            content.skipped = int(schedule["skipped"])
        else:
            _configure(content, text[:LONGEST_COMMAND])
    if any(step.memory_allocated_bytes for step in content.timer):  # then every whole row states the memory at its end
        whole = [step for step in content.timer if step.memory_allocated_bytes]
        content.cut, content.timer = len(content.timer) - len(whole), whole
    return content


def _row_step(kind: str, match: re.Match[str], line: int, time: float | None, index: int) -> Step:
    """Return the step of a row. index: of chat rows, which do not name it."""
    groups = match.groupdict()
    return Step(
        index=index if kind == "chat" else int(groups["step"]),
        seconds=fields.printed_seconds(groups.get("seconds") or groups.get("seconds2")),
        ended_at=None if kind == "chat" else time,
        loss=float(groups["loss"]) if kind == "pipeline" else None,
        reported_samples_per_second=fields.positive(groups.get("rate") or groups.get("rate2")),
        memory_allocated_bytes=fields.positive(groups.get("allocated"), GIB),
        memory_allocated_peak_bytes=fields.positive(groups.get("peak"), GIB),
        line=line,
    )


def _steps(content: _Content, batch: int | None) -> Iterator[Step]:
    """Yield the rows of one measurement, timed where the time follows exactly."""
    if content.chat:
        yield from content.chat
    elif content.pipeline:
        indices = [step.index for step in content.pipeline]
        interval = content.interval or min((b - a for a, b in pairwise(indices) if b > a), default=1)
        for step in content.pipeline:
            yield step.changed(covers=interval, samples=batch)
    elif not content.timer:
        yield from content.untimed
    else:
        for step in content.timer:
            rate = step.reported_samples_per_second
            yield step.changed(seconds=batch / rate if batch and rate else None, samples=batch)


def _configure(content: _Content, text: str) -> None:
    """Take the settings that a line states; of several ranks the first statement counts."""
    if match := DEEPSPEED_LINE.search(text):
        if match["name"] == "steps_per_print" and match["value"].isdecimal():
            content.interval = int(match["value"][:9])
        elif match["name"] in DEEPSPEED_SETTINGS:
            keep_setting(content.settings, DEEPSPEED_SETTINGS[match["name"]], match["value"])
    elif match := _TRAINER.search(text):
        keep_setting(content.arguments, (TRAINER[match["name"]], fields.whole), match[2])
    elif match := _WORLD.search(text):
        keep_setting(content.settings, ("num_gpus", fields.whole), match[1])
    elif match := _COMMAND.search(text):
        words = match[1].replace("=", " ").split()
        for word, value in pairwise(words):
            if word in _ARGUMENTS:
                keep_setting(content.arguments, _ARGUMENTS[word], value)
                content.from_command = content.from_command or _ARGUMENTS[word][0] == "sequence_length"
            elif word == "--model_name_or_path" and (name := model_name(value)):
                content.reading.model.setdefault("name", name)
    elif _PAIRS.match(text):
        content.of_pairs = True
    elif match := _LENGTH.search(text):  # dumps of arguments: Megatron-DeepSpeed's dots, argparse's Namespace
        content.settings.setdefault("sequence_length", int(match[1]))
