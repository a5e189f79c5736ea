"""TensorBoard event files, and folders of them, by the tags that frameworks give their scalars.

Where a framework logs the time of a step, that is the step's time. Where none does (the Hugging Face Trainer, plain
SummaryWriter code), the writer's own clock is all there is: the time between two losses over the steps between them.
Validation and checkpoints lie inside; rows in which an evaluation was logged are marked.

Records are parsed by tensorboard's own messages. Its readers are not used: they compute checksums byte by byte, drop
what a restart repeats, and recognise files by their names.
"""

from __future__ import annotations

import math
import os
import re
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tensorprimat.core import regular
from tensorprimat.core.errors import InputError, MissingPackageError
from tensorprimat.core.names import known
from tensorprimat.core.settings import MODEL_PARALLEL
from tensorprimat.core.steps import Step
from tensorprimat.core.units import GIB
from tensorprimat.logs import devices as vendors
from tensorprimat.logs import event_records, files
from tensorprimat.logs.fields import LONGEST_STEP_SECONDS, iso, last_of_steps, merged, whole, with_intervals
from tensorprimat.logs.format import Reading
from tensorprimat.logs.paths import platform_of
from tensorprimat.logs.text import Log

MAGIC = b"brain.Event:"  # the version that opens every event file, inside its first record
FIRST_RECORD_BYTES = 1024  # it has 24 to 80: time, version, name of the writer
LARGEST_STEP = 10**15
LATEST_TIME = 32503680000  # seconds since the epoch: the year 3000
LONGEST_TEXT = 2**20  # bytes; arguments are written one by one
MOST_ENTRIES = 20_000  # of a folder, while looking for event files


@dataclass(frozen=True, kw_only=True)
class TagDialect:
    """The tags of one framework."""

    name: str
    seconds: str
    """Tag of the step time in seconds."""
    averaged: bool
    """True for the mean since the previous row, False for the time of the one step."""
    fields: Mapping[str, tuple[str, float]]
    """Tag → field of Step and the factor to its unit."""


DIALECTS = (
    TagDialect(
        name="Megatron-LM",
        seconds="iteration-time",
        averaged=True,
        fields={
            "lm loss": ("loss", 1),
            "learning-rate": ("learning_rate", 1),
            "grad-norm": ("gradient_norm", 1),
            "batch-size": ("samples", 1),
            "throughput": ("reported_tflops_per_gpu", 1),
            "mem-allocated-bytes": ("memory_allocated_bytes", 1),
            "mem-reserved-bytes": ("memory_reserved_bytes", 1),
            "mem-max-allocated-bytes": ("memory_allocated_peak_bytes", 1),
        },
    ),
    TagDialect(
        name="NeMo",
        seconds="train_step_timing in s",
        averaged=False,
        fields={
            "reduced_train_loss": ("loss", 1),
            "lr": ("learning_rate", 1),
            "grad_norm": ("gradient_norm", 1),
            "global_batch_size": ("samples", 1),
            "TFLOPS_per_GPU": ("reported_tflops_per_gpu", 1),
            "tokens_per_sec_per_gpu": ("reported_tokens_per_second_per_gpu", 1),
            "memory_allocated": ("memory_allocated_bytes", 1),
            "max_memory_allocated": ("memory_allocated_peak_bytes", 1),
            "max_memory_reserved": ("memory_reserved_peak_bytes", 1),
            "peak_memory_usage": ("memory_allocated_peak_bytes", 1),
        },
    ),
    TagDialect(
        name="torchtitan",
        seconds="time_metrics/end_to_end(s)",
        averaged=True,
        fields={
            "loss_metrics/global_avg_loss": ("loss", 1),
            "grad_norm": ("gradient_norm", 1),
            "lr": ("learning_rate", 1),
            "time_metrics/data_loading(s)": ("data_wait_seconds", 1),
            "throughput(tps)": ("reported_tokens_per_second_per_gpu", 1),
            "wps": ("reported_tokens_per_second_per_gpu", 1),
            "tflops": ("reported_tflops_per_gpu", 1),
            "mfu(%)": ("reported_mfu", 0.01),
            "memory/max_reserved(GiB)": ("memory_reserved_peak_bytes", GIB),
        },
    ),
    TagDialect(
        name="MaxText",
        seconds="perf/step_time_seconds",
        averaged=False,
        fields={
            "learning/loss": ("loss", 1),
            "learning/current_learning_rate": ("learning_rate", 1),
            "learning/grad_norm": ("gradient_norm", 1),
            "perf/per_device_tflops_per_sec": ("reported_tflops_per_gpu", 1),
            "perf/per_device_tokens_per_sec": ("reported_tokens_per_second_per_gpu", 1),
        },
    ),
)

TIME_SO_FAR = ("train/time", "train|time")
"""Tags of the seconds of training since its start, by Lightning's ThroughputMonitor."""
UNTIMED_LOSSES = ("train/loss", "train_loss", "train_loss_step", "loss", "Loss/train", "lm loss", "reduced_train_loss")
"""Tags that a training loop writes once per logged step, in the order in which they are believed."""
UNTIMED_FIELDS: Mapping[str, tuple[str, float]] = {
    "train/learning_rate": ("learning_rate", 1),
    "train/grad_norm": ("gradient_norm", 1),
}
RUN_TOTALS = {
    "train/train_runtime": "runtime_seconds",
    "train/train_samples_per_second": "samples_per_second",
}
"""Tag that the Hugging Face Trainer logs once at the end → field of Reported."""
EVALUATION = ("eval/", "eval_", "val/", "validation", "val_loss", "valid/", "valid_loss", "test/", "test_loss")
"""Prefixes of tags of an evaluation."""
ARGUMENTS = {
    "seq_length": "sequence_length",
    "global_batch_size": "global_batch_size",
    "micro_batch_size": "micro_batch_size",
    "world_size": "num_gpus",
    **{name: name for name in MODEL_PARALLEL},
    "train_iters": "max_steps",
    "max_steps": "max_steps",
    "num_nodes": "num_nodes",
    "seed": "seed",
}
"""Arguments that Megatron-LM writes as texts, and Lightning and the Trainer as hparams → field of TrainingConfig."""
MODEL_ARGUMENTS = (
    "model_name", "model_name_or_path", "pretrained_model_name_or_path", "model", "exp_name", "experiment_name",
    "tokenizer_model", "tokenizer_name_or_path", "_name_or_path",
)  # fmt: skip
"""Arguments that may name the model, in the order in which they are believed; only a known model's name counts."""
DEVICE_ARGUMENTS = ("gpu", "gpu_type", "gpu_name", "gpu_model", "device_name", "platform", "hardware", "vendor")
"""Arguments that may name the vendor in one word; `device: cuda` does not, it is PyTorch's word on ROCm too."""
HPARAMS_FILE = "hparams.yaml"  # what Lightning writes beside its events
LARGEST_HPARAMS = 2**20  # bytes


@dataclass(kw_only=True)
class _Content:
    """Scalars in columns, in the order of the files, and texts by name."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))
    tag_numbers: array[int] = field(default_factory=lambda: array("i"))
    tags: dict[str, int] = field(default_factory=dict)
    """Number of each tag that a scalar has."""
    texts: dict[str, str] = field(default_factory=dict)

    def add(self, step: int, time: float, tag: str, value: float) -> None:
        """Add a scalar."""
        self.steps.append(step)
        self.times.append(time)
        self.values.append(value)
        self.tag_numbers.append(self.tags.setdefault(tag, len(self.tags)))

    def of(self, tags: Iterable[str]) -> _Scalars:
        """Return the scalars of some tags."""
        numbers = [self.tags[tag] for tag in tags if tag in self.tags]
        rows = np.flatnonzero(np.isin(np.array(self.tag_numbers), numbers))
        return _Scalars(np.array(self.steps)[rows], np.array(self.times)[rows], np.array(self.values)[rows])


class _Scalars(NamedTuple):
    steps: np.ndarray
    times: np.ndarray
    values: np.ndarray

    def rows(self) -> Iterator[tuple[int, float, float]]:
        """Yield (step, time, value) of each scalar."""
        return zip(self.steps.tolist(), self.times.tolist(), self.values.tolist(), strict=True)


def detect(log: Log) -> int:
    if log.is_folder:
        return 1 if next(_event_files(log.path), None) else 0
    return 1 if is_event_file(log.path) else 0


def is_event_file(path: Path) -> bool:
    """Return True if the first record of a file is TensorBoard's: its length, and the version inside."""
    try:
        opening = files.opening(path, FIRST_RECORD_BYTES)
    except InputError:
        return False
    return len(opening) > 12 and struct.unpack_from("<Q", opening)[0] < FIRST_RECORD_BYTES and MAGIC in opening


def read(log: Log) -> Reading:
    content = _Content()
    for path in _files_of_one_run(log):
        _collect(path, content)
    dialect = next((dialect for dialect in DIALECTS if dialect.seconds in content.tags), None)
    rows = _timed(content, dialect) if dialect else _untimed(content)
    steps = merged((None, step) for step in rows)
    if dialect is None or dialect.averaged:
        steps = with_intervals(steps)
    reading = Reading(steps=steps, source=f"{dialect.name} TensorBoard events" if dialect else "TensorBoard events")
    reading.timestamp = iso(content.times[0]) if content.times else None
    _collect_hparams(log, content)
    _configure(reading, content)
    if dialect is None and len(steps) and not any(tag in content.tags for tag in TIME_SO_FAR):
        reading.warnings.append(
            "steps: timed by the clock of the event writer, from one logged loss to the next, with all work in between"
        )
    return reading


def _event_files(folder: Path) -> Iterator[Path]:
    """Event files in a folder and below, folder by folder; links to folders are not followed."""
    seen = 0
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names, key=_with_numbers):
            seen += 1
            if seen > MOST_ENTRIES:
                return
            if is_event_file(path := Path(parent, name)):
                yield path


def _with_numbers(name: str) -> list[str | int]:
    """Return a key that sorts numbers in a name as numbers: the tenth file of one second comes after the ninth."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _files_of_one_run(log: Log) -> list[Path]:
    if not log.is_folder:
        return [log.path]
    found = [path for path in log.path.iterdir() if path.is_file() and is_event_file(path)]
    found = sorted(found, key=lambda path: _with_numbers(path.name)) or list(_event_files(log.path))
    folders = list(dict.fromkeys(path.parent for path in found))
    if len(folders) > 1:
        some = ", ".join(str(folder.relative_to(log.path)) for folder in folders[:5])
        raise InputError(f"holds event files of {len(folders)} runs", path=log.name, remedy=f"name one of {some} …")
    return found


def _collect(path: Path, content: _Content) -> None:
    """Add the scalars and texts of one file; what follows a torn record is left out, as TensorBoard does."""
    try:
        from google.protobuf.message import DecodeError
        from tensorboard.compat.proto.event_pb2 import Event
    except ImportError as error:
        raise MissingPackageError("tensorboard", needed_for="TensorBoard event files") from error
    try:
        for record in event_records.records(path):
            event = Event.FromString(record)
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    number = value.simple_value
                elif value.metadata.plugin_data.plugin_name == "hparams":
                    for name, hparams in _hparams(value.metadata.plugin_data.content):
                        content.texts.setdefault(name, hparams)
                    continue
                elif value.HasField("tensor") and value.tensor.string_val:
                    text = value.tensor.string_val[0][:LONGEST_TEXT].decode("utf-8", "replace")
                    content.texts.setdefault(value.tag.removesuffix("/text_summary"), text)
                    continue
                elif value.HasField("tensor") and len(value.tensor.float_val) == 1:
                    number = value.tensor.float_val[0]
                else:
                    continue
                if 0 <= event.step < LARGEST_STEP and 0 < event.wall_time < LATEST_TIME:
                    content.add(event.step, event.wall_time, value.tag, number)
    except (DecodeError, ValueError) as error:
        raise InputError("is damaged: a record is not a TensorBoard event", path=path) from error


def _hparams(message: bytes) -> Iterator[tuple[str, str]]:
    """Yield the hyperparameters that a session started with, names without the path of their section."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    for name, value in HParamsPluginData.FromString(message).session_start_info.hparams.items():
        kind = value.WhichOneof("kind")
        if kind in ("string_value", "number_value"):
            yield re.split(r"[./]", name)[-1], str(getattr(value, kind))[:LONGEST_TEXT].removesuffix(".0")


def _collect_hparams(log: Log, content: _Content) -> None:
    """Add the scalars of the hparams.yaml in the folder of Lightning's events; a broken one says nothing."""
    import yaml

    path = (log.path if log.is_folder else log.path.parent) / HPARAMS_FILE
    try:
        document = yaml.safe_load(regular.content(path, most_bytes=LARGEST_HPARAMS).decode(errors="replace"))
    except (InputError, ValueError, yaml.YAMLError, RecursionError):
        return
    waiting, seen = [document], set()
    while waiting:
        level = waiting.pop()
        if not isinstance(level, dict) or id(level) in seen:  # aliases may repeat a section without end
            continue
        seen.add(id(level))
        for name, value in level.items():
            if isinstance(value, dict):
                waiting.append(value)
            elif isinstance(value, (str, int)) and not isinstance(value, bool):
                content.texts.setdefault(str(name), str(value))


def _timed(content: _Content, dialect: TagDialect) -> Iterator[Step]:
    """Yield one row per logged step time, with what was logged for the same step."""
    times = content.of((dialect.seconds,))
    others = _beside(content, dialect.fields, times.steps)
    for (step, ended_at, seconds), values in zip(times.rows(), others, strict=True):
        if 0 < seconds < LONGEST_STEP_SECONDS:
            yield Step(index=step, seconds=seconds, ended_at=ended_at, **values)  # type: ignore[arg-type]


def _untimed(content: _Content) -> Iterator[Step]:
    """Yield one row per logged loss, timed by the writer's clock, or by Lightning's own where ThroughputMonitor logged
    it.
    """
    own_clock = next((tag for tag in TIME_SO_FAR if tag in content.tags), None)
    tag = own_clock or next((tag for tag in UNTIMED_LOSSES if tag in content.tags), None)
    if tag is None:
        return
    fields = {loss: ("loss", 1.0) for loss in UNTIMED_LOSSES if loss in content.tags} | dict(UNTIMED_FIELDS)
    scalars = content.of((tag,))
    evaluated = sorted(content.of(tag for tag in content.tags if tag.startswith(EVALUATION)).times.tolist())
    before: tuple[int, float, float] | None = None
    for row, values in zip(scalars.rows(), _beside(content, fields, scalars.steps), strict=True):
        step, ended_at, value = row
        seconds, interrupted = None, ""
        if before is not None and step > before[0]:
            spent = value - before[2] if own_clock else ended_at - before[1]
            seconds = spent / (step - before[0])
            if not own_clock and bisect_left(evaluated, before[1]) < bisect_right(evaluated, ended_at):
                interrupted = "validation"
        if seconds is None or 0 < seconds < LONGEST_STEP_SECONDS:
            yield Step(index=step, seconds=seconds, ended_at=ended_at, interrupted_by=interrupted, **values)  # type: ignore[arg-type]
        before = row


def _beside(
    content: _Content, fields: Mapping[str, tuple[str, float]], steps: np.ndarray
) -> Iterator[dict[str, float | None]]:
    """Yield what a table's tags say about each of some steps; of a step that was trained twice, the last value."""
    columns: dict[str, list[float | None]] = {}
    for name in dict.fromkeys(name for tag, (name, _) in fields.items() if tag in content.tags):
        tags = [tag for tag, (field, _) in fields.items() if field == name and tag in content.tags]
        found = content.of(tags)
        values = found.values * fields[tags[0]][1]
        known = np.isfinite(values) | (name == "loss")
        last, has = last_of_steps(found.steps[known], values[known], steps)
        column = np.full(len(steps), None, object)
        column[has] = last[has].tolist()
        columns[name] = column.tolist()
    if not columns:
        yield from ({} for _ in steps)
    for values_of_row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values_of_row, strict=True))


def _configure(reading: Reading, content: _Content) -> None:
    config = reading.training_config
    for name, field_name in ARGUMENTS.items():
        if value := whole(content.texts.get(name)):
            config[field_name] = value
    for name in MODEL_ARGUMENTS:
        if (spelled := content.texts.get(name)) and len(spelled) < 200 and (model := known(spelled)):
            reading.model["name"] = model
            break
    for name, text in content.texts.items():
        device = vendors.find_name(text)
        platform = vendors.platform_of(device) or (platform_of((text,)) if name in DEVICE_ARGUMENTS else None)
        if platform is not None:
            reading.platform = platform
            reading.assumed["platform"] = f"argument {name} of the event files"
            if device is not None:
                reading.gpu_info["device_name"] = device
            break
    totals = {tag: float(content.of((tag,)).values[-1]) for tag in RUN_TOTALS if tag in content.tags}
    reading.reported.update({RUN_TOTALS[tag]: value for tag, value in totals.items() if 0 < value < math.inf})
