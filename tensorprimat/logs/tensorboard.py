"""TensorBoard event files, and folders of them, by the tags that frameworks give their scalars.

Their scalars are a table of metrics by name (`metrics`), one row for each. Where a framework logs neither the time of a
step nor a rate (the Hugging Face Trainer, plain SummaryWriter code), the writer's own clock times the steps.

Records are parsed by tensorboard's own messages. Its readers are not used: they compute checksums byte by byte, drop
records that a restart repeats, and recognise files by their names.

Records of TensorBoard event files with their checksums verified, many records at a time.

A record is its length (8 bytes), the checksum of the length (4), the content, and the checksum of the content (4). The
checksum is CRC-32C, rotated and shifted (TensorFlow, tensorflow/core/lib/io/record_writer.h and lib/hash/crc32c.h).
Contents of (nearly) equal length are checked together, in columns of bytes; a long content is cut into lanes, whose
checksums are joined.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tensorprimat.core.errors import InputError, MissingPackageError
from tensorprimat.logs import files, headers, maxtext, metric_columns, metrics, torchtitan
from tensorprimat.logs.fields import iso
from tensorprimat.logs.format import Reading
from tensorprimat.logs.metric_columns import Scalars
from tensorprimat.logs.text import Log

CHUNK_BYTES = 2**22
LARGEST_RECORD_BYTES = 2**26  # a larger one is skipped: it is a graph or a picture, never a scalar
LANE_BYTES = 2048  # of a long content
MOST_LENGTHS = 32  # in a chunk; contents with more lengths are padded to a few widths; scalars have a few lengths
SHORTEST_PADDED = 16
_FRAME_BYTES = 16
_POLYNOMIAL = 0x82F63B78
Bytes = NDArray[np.uint8]
Checksums = NDArray[np.uint32]

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
    metrics.configure(reading, columns, headers.texts_beside(log) | texts, of="the event files")
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
        for record in records(path):
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


def records(path: Path) -> Iterator[bytes]:
    """Yield the content of each record, up to the first that is truncated or damaged, as TensorBoard does.

    Raises InputError for a file that cannot be read.
    """
    with files.open_log(path) as file:
        size, at = os.fstat(file.fileno()).st_size, 0
        while at < size:
            file.seek(at)
            chunk = file.read(CHUNK_BYTES)
            places, used, frames = _frames(chunk, size - at)
            if not places and frames > len(chunk):
                if frames > LARGEST_RECORD_BYTES:
                    at += frames
                    continue
                file.seek(at)
                chunk = file.read(frames)
                places, used, _ = _frames(chunk, size - at)
            whole = _whole(chunk, places)
            yield from (chunk[start:stop] for start, stop in places[:whole])
            if whole < len(places) or not places:
                return
            at += used


def _frames(chunk: bytes, rest: int) -> tuple[list[tuple[int, int]], int, int]:
    """Return (start, stop) of the contents in a chunk, the bytes that they take, and the bytes of the next record.

    rest: bytes of the file from the beginning of the chunk; the next record has 0 bytes where it is damaged or cut.
    """
    places: list[tuple[int, int]] = []
    at, length, known = 0, len(chunk), _checksum_of_length
    while at + _FRAME_BYTES <= length:
        head = chunk[at : at + 8]
        if chunk[at + 8 : at + 12] != known(head):
            return places, at, 0
        stop = at + 12 + int.from_bytes(head, "little")
        if stop + 4 > length:
            return places, at, stop + 4 - at if stop + 4 <= rest else 0
        places.append((at + 12, stop))
        at = stop + 4
    return places, at, _FRAME_BYTES if at + _FRAME_BYTES <= rest else 0


@cache
def _checksum_of_length(head: bytes) -> bytes:
    return bytes(checksums(np.frombuffer(head, np.uint8)[None]).tobytes())


def _whole(chunk: bytes, places: list[tuple[int, int]]) -> int:
    """Return how many of the first contents agree with their checksums."""
    if not places:
        return 0
    content = np.frombuffer(chunk, np.uint8)
    starts, stops = np.array(places, np.int64).T
    computed = np.empty(len(places), np.uint32)
    for width, alike in _groups(stops - starts):
        first, last = starts[alike], stops[alike]
        if (last - first == width).all() and width <= 2 * LANE_BYTES:
            computed[alike] = checksums(content[first[:, None] + np.arange(width)])
        else:
            computed[alike] = _of_padded(content, first, last, width)
    differs = computed != content[stops[:, None] + np.arange(4)].view("<u4")[:, 0]
    return int(differs.argmax()) if differs.any() else len(places)


def _groups(lengths: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield (width, positions) of contents that are checked together: of one length, or padded to one width.

    Texts and histograms have thousands of lengths, which would take a pass each. Long ones are all cut into lanes.
    """
    widths = lengths.copy()
    if len(np.unique(lengths)) > MOST_LENGTHS:
        padded = lengths >= SHORTEST_PADDED
        step = 2 ** (np.log2(lengths[padded]).astype(np.int64) - 3)  # an eighth of the bytes at most are padding
        widths[padded] = -(-lengths[padded] // step) * step
    widths[widths > 2 * LANE_BYTES] = LANE_BYTES * (2 + widths.max(initial=0) // LANE_BYTES)
    for width in np.unique(widths).tolist():
        yield width, np.flatnonzero(widths == width)


def _of_padded(content: Bytes, starts: NDArray[np.int64], stops: NDArray[np.int64], width: int) -> Checksums:
    """Return the masked CRC-32C of contents of four bytes or more, after leading zeros.

    Zeros leave a state of zero as it is; the inverted first four bytes take the place of the initial state.
    """
    lane = LANE_BYTES if width > 2 * LANE_BYTES else width
    lanes = -(-(stops - starts) // lane)
    ends = lane * np.cumsum(lanes)
    rows = np.zeros(ends[-1], np.uint8)
    for start, stop, end in zip(starts.tolist(), stops.tolist(), ends.tolist(), strict=True):
        begin = end - (stop - start)
        rows[begin:end] = content[start:stop]
        rows[begin : begin + 4] ^= 0xFF
    states = _after(np.zeros(len(rows) // lane, np.uint32), rows.reshape(-1, lane))
    parts = np.zeros((len(lanes), lanes.max()), np.uint32)
    parts[np.arange(parts.shape[1]) >= (parts.shape[1] - lanes)[:, None]] = states
    return _masked(_joined(parts))


def checksums(rows: Bytes) -> Checksums:
    """Return the masked CRC-32C of each row of bytes.

    >>> f"{checksums(np.frombuffer(b'123456789', np.uint8)[None])[0]:08x}"
    'c78ab0e5'
    """
    return _masked(_after(np.full(len(rows), 0xFFFFFFFF, np.uint32), rows))


def _masked(crc: Checksums) -> Checksums:
    crc = ~crc
    masked: Checksums = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)
    return masked


def _after(crc: Checksums, rows: Bytes) -> Checksums:
    """Return the states of the checksum after the bytes of each row."""
    odd = rows.shape[1] % 2
    if odd:
        crc = _table(1)[(crc ^ rows[:, 0]) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    pairs = np.ascontiguousarray(rows[:, odd:]).view("<u2")
    table = _table(2)
    for column in np.ascontiguousarray(pairs.T):
        crc = table.take((crc ^ column) & np.uint32(0xFFFF)) ^ (crc >> np.uint32(16))
    return crc


def _joined(parts: Checksums) -> Checksums:
    """Return the state after lanes of LANE_BYTES: that before a lane, moved on by as many zeros, and the lane's own."""
    moved = _moved()
    crc = parts[:, 0]
    for part in parts.T[1:]:
        of_bytes = [moved[byte][crc >> np.uint32(8 * byte) & np.uint32(0xFF)] for byte in range(4)]
        crc = np.bitwise_xor.reduce([part, *of_bytes])
    return crc


@cache
def _table(count: int) -> Checksums:
    """Return the state after each byte, or after each two bytes."""
    table = np.arange(256**count, dtype=np.uint32)
    for _ in range(8 * count):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), table >> np.uint32(1))
    return table


@cache
def _moved() -> list[Checksums]:
    """Return the states after LANE_BYTES zeros, of each value of each of the four bytes of a state."""
    zeros = np.zeros((256, LANE_BYTES), np.uint8)
    return [_after(np.arange(256, dtype=np.uint32) << np.uint32(8 * byte), zeros) for byte in range(4)]
