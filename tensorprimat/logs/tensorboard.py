"""TensorBoard event files, and folders of them, by the tags that frameworks give their scalars.

Their scalars are a table of metrics by name (`metrics`), one row for each. Where a framework logs neither the time of a
step nor a rate (the Hugging Face Trainer, plain SummaryWriter code), the writer's own clock times the steps.

Records are parsed by tensorboard's own messages. Its readers are not used: they compute checksums byte by byte, drop
records that a restart repeats, and recognise files by their names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tensorprimat.core import regular
from tensorprimat.core.errors import InputError, MissingPackageError
from tensorprimat.logs import arguments, event_records, files, maxtext, metric_columns, metrics, torchtitan
from tensorprimat.logs.fields import iso, with_intervals
from tensorprimat.logs.format import Reading
from tensorprimat.logs.metric_columns import Scalars
from tensorprimat.logs.text import Log

_LARGEST_STEP = 10**15
LATEST_TIME = 32503680000  # seconds since the epoch: the year 3000
_LONGEST_TEXT = 2**20  # bytes; arguments are written one by one
_MOST_ENTRIES = 20_000  # of a folder, while looking for event files


FRAMEWORKS = {
    "iteration-time": "Megatron-LM",
    "train_step_timing in s": "NeMo",
    torchtitan.TORCHTITAN_STEP_TIME: "torchtitan",
    maxtext.MAXTEXT_STEP_TIME: "MaxText",
}
"""Tag of the step time → the framework that writes it."""
AVERAGED = ("Megatron-LM",)
"""Frameworks whose step time is the mean since the row before."""
HPARAMS_FILE = "hparams.yaml"  # written by Lightning next to its events
LARGEST_HPARAMS = 2**20  # bytes


def detect(log: Log) -> int:
    if log.is_folder:
        return 1 if next(_event_files(log.path), None) else 0
    return 1 if is_event_file(log.path) else 0


def is_event_file(path: Path) -> bool:
    """Return True if the first record of a file is TensorBoard's: its length, and the version inside."""
    try:
        return files.EVENTS_OPENING.match(files.first_bytes(path)) is not None
    except InputError:
        return False


def read(log: Log) -> Reading:
    scalars, texts = Scalars(), dict[str, str]()
    paths = _files_of_one_run(log)
    for path in paths:
        _collect(path, scalars, texts)
    if len(paths) > 1:
        scalars.sort()
    framework = next((name for tag, name in FRAMEWORKS.items() if tag in scalars.tags), None)
    reading = Reading(source=f"{framework} TensorBoard events" if framework else "TensorBoard events")
    reading.timestamp = iso(scalars.times[0]) if scalars.times else None
    columns = metric_columns.of_scalars(scalars, is_dated=True)
    reading = metrics.read_columns(log, columns, reading, clock="the clock of the event writer")
    if framework in AVERAGED:
        reading.steps = with_intervals(reading.steps)
    _collect_hparams(log, texts)
    metrics.configure(reading, columns, texts, of="the event files")
    return reading


def _event_files(folder: Path) -> Iterator[Path]:
    """Return the event files in a folder and below it, folder by folder."""
    return filter(is_event_file, islice(files.files_below(folder), _MOST_ENTRIES))


def _files_of_one_run(log: Log) -> list[Path]:
    if not log.is_folder:
        return [log.path]
    found = [path for path in log.path.iterdir() if os.path.isfile(path) and is_event_file(path)]
    found = sorted(found, key=lambda path: files.with_numbers(path.name)) or list(_event_files(log.path))
    folders = list(dict.fromkeys(path.parent for path in found))
    if len(folders) > 1:
        some = ", ".join(str(folder.relative_to(log.path)) for folder in folders[:5])
        raise InputError(f"holds event files of {len(folders)} runs", path=log.name, remedy=f"name one of {some} …")
    return found


def _collect(path: Path, scalars: Scalars, texts: dict[str, str]) -> None:
    """Add the scalars and texts of one file; text after a truncated record is left out, as by TensorBoard."""
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
                        texts.setdefault(name, hparams)
                    continue
                elif value.HasField("tensor") and value.tensor.string_val:
                    text = value.tensor.string_val[0][:_LONGEST_TEXT].decode("utf-8", "replace")
                    texts.setdefault(value.tag.removesuffix("/text_summary"), text)
                    continue
                elif value.HasField("tensor") and len(value.tensor.float_val) == 1:
                    number = value.tensor.float_val[0]
                else:
                    continue
                if 0 <= event.step < _LARGEST_STEP and 0 < event.wall_time < LATEST_TIME:
                    scalars.add(event.step, event.wall_time, value.tag, number)
    except (DecodeError, ValueError) as error:
        raise InputError("is damaged: a record is not a TensorBoard event", path=path) from error


def _hparams(message: bytes) -> Iterator[tuple[str, str]]:
    """Yield the hyperparameters that a session started with, names without the path of their section."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    for name, value in HParamsPluginData.FromString(message).session_start_info.hparams.items():
        kind = value.WhichOneof("kind")
        if kind in ("string_value", "number_value"):
            yield re.split(r"[./]", name)[-1], str(getattr(value, kind))[:_LONGEST_TEXT].removesuffix(".0")


def _collect_hparams(log: Log, texts: dict[str, str]) -> None:
    """Add the scalars of the hparams.yaml in the folder of Lightning's events; a broken one says nothing."""
    import yaml

    path = (log.path if log.is_folder else log.path.parent) / HPARAMS_FILE
    try:
        document = regular.yaml_in(regular.content(path, most_bytes=LARGEST_HPARAMS).decode(errors="replace"))
    except (InputError, ValueError, yaml.YAMLError, RecursionError):
        return
    if isinstance(document, dict):
        arguments.add_texts(document.items(), texts)
