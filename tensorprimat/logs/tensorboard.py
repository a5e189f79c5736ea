"""TensorBoard event files, and folders of them, by the tags that frameworks give their scalars.

Where a framework logs the time of a step, that is the step's time. Where none does (the Hugging Face Trainer, plain
SummaryWriter code), the writer's own clock is all there is: the time between two losses over the steps between them.
Validation and checkpoints lie inside; rows in which an evaluation was logged are marked.

Files are read by tensorboard's own record loader. Its EventAccumulator is not used: it drops what a restart repeats
and recognises files by their names.
"""

from __future__ import annotations

import math
import os
import re
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tensorprimat.core import regular
from tensorprimat.core.errors import InputError, MissingPackageError
from tensorprimat.core.names import known
from tensorprimat.core.settings import MODEL_PARALLEL
from tensorprimat.core.steps import Step
from tensorprimat.core.units import GIB
from tensorprimat.logs import devices as vendors
from tensorprimat.logs import files
from tensorprimat.logs.fields import LONGEST_STEP_SECONDS, iso, merged, whole, with_intervals
from tensorprimat.logs.format import Reading
from tensorprimat.logs.lightning import TIME_SO_FAR
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
EVALUATION = ("eval/", "val/", "validation", "val_loss")
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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scalar:
    step: int
    time: float
    tag: str
    value: float


@dataclass(kw_only=True)
class _Content:
    scalars: list[_Scalar] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    tags: set[str] = field(default_factory=set)


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
    reading.timestamp = iso(content.scalars[0].time) if content.scalars else None
    _collect_hparams(log, content)
    _configure(reading, content)
    if dialect is None and len(steps) and not content.tags.intersection(TIME_SO_FAR):
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
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    except ImportError as error:
        raise MissingPackageError("tensorboard", needed_for="TensorBoard event files") from error
    try:
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "hparams":
                    for name, said in _hparams(value.metadata.plugin_data.content):
                        content.texts.setdefault(name, said)
                    continue
                if value.HasField("simple_value"):
                    number = float(value.simple_value)
                elif value.HasField("tensor") and value.tensor.string_val:
                    text = value.tensor.string_val[0][:LONGEST_TEXT].decode("utf-8", "replace")
                    content.texts.setdefault(value.tag.removesuffix("/text_summary"), text)
                    continue
                elif value.HasField("tensor") and len(value.tensor.float_val) == 1:
                    number = float(value.tensor.float_val[0])
                else:
                    continue
                if 0 <= event.step < LARGEST_STEP and 0 < event.wall_time < LATEST_TIME:
                    content.tags.add(value.tag)
                    content.scalars.append(_Scalar(step=event.step, time=event.wall_time, tag=value.tag, value=number))
    except (DecodeError, ValueError, MemoryError, OverflowError) as error:  # the last two: a forged length
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
    others = _by_step(content.scalars, dialect.fields)
    for scalar in content.scalars:
        if scalar.tag == dialect.seconds and 0 < scalar.value < LONGEST_STEP_SECONDS:
            beside = others.get(scalar.step, {})
            yield Step(index=scalar.step, seconds=scalar.value, ended_at=scalar.time, **beside)  # type: ignore[arg-type]


def _untimed(content: _Content) -> Iterator[Step]:
    """Yield one row per logged loss, timed by the writer's clock, or by Lightning's own where ThroughputMonitor logged
    it.
    """
    own_clock = next((tag for tag in TIME_SO_FAR if tag in content.tags), None)
    tag = own_clock or next((tag for tag in UNTIMED_LOSSES if tag in content.tags), None)
    fields = {loss: ("loss", 1.0) for loss in UNTIMED_LOSSES if loss in content.tags} | dict(UNTIMED_FIELDS)
    others = _by_step(content.scalars, fields)
    evaluated = sorted(scalar.time for scalar in content.scalars if scalar.tag.startswith(EVALUATION))
    before: _Scalar | None = None
    for scalar in content.scalars:
        if scalar.tag != tag:
            continue
        seconds, interrupted = None, ""
        if before is not None and scalar.step > before.step:
            spent = scalar.value - before.value if own_clock else scalar.time - before.time
            seconds = spent / (scalar.step - before.step)
            if not own_clock and bisect_left(evaluated, before.time) < bisect_right(evaluated, scalar.time):
                interrupted = "validation"
        if seconds is None or 0 < seconds < LONGEST_STEP_SECONDS:
            yield Step(
                index=scalar.step,
                seconds=seconds,
                ended_at=scalar.time,
                interrupted_by=interrupted,
                **others.get(scalar.step, {}),  # type: ignore[arg-type]
            )
        before = scalar


def _by_step(scalars: Iterable[_Scalar], fields: Mapping[str, tuple[str, float]]) -> dict[int, dict[str, float]]:
    """Return the values of a table's tags by step; of a step that was trained twice, the last value."""
    known: dict[int, dict[str, float]] = {}
    for scalar in scalars:
        if scalar.tag in fields and (math.isfinite(scalar.value) or fields[scalar.tag][0] == "loss"):
            name, factor = fields[scalar.tag]
            known.setdefault(scalar.step, {})[name] = scalar.value * factor
    return known


def _configure(reading: Reading, content: _Content) -> None:
    config = reading.training_config
    for name, field_name in ARGUMENTS.items():
        if value := whole(content.texts.get(name)):
            config[field_name] = value
    for name in MODEL_ARGUMENTS:
        if (spelled := content.texts.get(name)) and len(spelled) < 200 and (model := known(spelled)):
            reading.model["name"] = model
            break
    for name, said in content.texts.items():
        device = vendors.find_name(said)
        platform = vendors.platform_of(device) or (platform_of((said,)) if name in DEVICE_ARGUMENTS else None)
        if platform is not None:
            reading.platform = platform
            reading.assumed["platform"] = f"argument {name} of the event files"
            if device is not None:
                reading.gpu_info["device_name"] = device
            break
    totals = {scalar.tag: scalar.value for scalar in content.scalars if scalar.tag in RUN_TOTALS}
    reading.reported.update({RUN_TOTALS[tag]: value for tag, value in totals.items() if 0 < value < math.inf})
