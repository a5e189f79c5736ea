"""Run files of Weights & Biases, `run-ID.wandb`: what its client writes on a node, with or without a network.

The file is a log of records in blocks of 32 KiB, as LevelDB keeps it (a header of checksum, length and kind; long
records in fragments), after seven bytes of its own. A record is a message of Protocol Buffers (wandb/proto/
wandb_internal.proto); those with a call of `wandb.log` are the rows of a table of metrics (`metrics`), those with the
configuration and the environment state settings and the device. The package wandb itself is not needed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from tensorprimat.core.errors import InputError
from tensorprimat.core.notices import Notice
from tensorprimat.logs import fields, files, headers, levanter, metric_columns, metrics
from tensorprimat.logs.format import Reading
from tensorprimat.logs.text import Log

WANDB_HEADER_BYTES = 7  # of the file, and of each fragment
WANDB_BLOCK_BYTES = 2**15
WHOLE_FRAGMENT, FIRST_FRAGMENT, MIDDLE_FRAGMENT, LAST_FRAGMENT = 1, 2, 3, 4  # kinds of fragments
_LARGEST_RECORD_BYTES = 2**26
HISTORY_FIELD, SUMMARY_FIELD, CONFIG_FIELD, RUN_FIELD, ENVIRONMENT_FIELD = 2, 3, 5, 17, 26  # fields of a record
CONFIG_FIELD_OF_RUN = 4  # field of a run
ITEMS, KEY, NESTED_KEY, VALUE = 1, 1, 2, 16  # fields of a history or configuration, and of its items


def detect(log: Log) -> int:
    return int(not log.is_folder and files.first_bytes(log.path, len(files.WANDB_OPENING)) == files.WANDB_OPENING)


def read(log: Log) -> Reading:
    reading = Reading(source="Weights & Biases")
    texts: dict[str, str] = {}
    rows = _rows(log.path, texts)
    first = next(rows, None)
    if first is None:
        reading.warnings.append(Notice("no_call_logged", "steps"))
        return reading
    moment = first.get("_timestamp")
    reading.timestamp = fields.iso(moment) if isinstance(moment, float) else None
    columns = metric_columns.of_rows((None, row) for row in chain([first], rows))
    reading = metrics.read_columns(log, columns, reading)
    metrics.configure(reading, columns, texts, of="the run file's configuration")
    return reading


def _rows(path: Path, texts: dict[str, str]) -> Iterator[dict[str, float]]:
    """Yield the numbers of each call of wandb.log, and add the settings to texts. Raises InputError if damaged."""
    try:
        for record in _records(path):
            for field, message in _fields(record):
                if field == HISTORY_FIELD:
                    yield {name: float(value) for name, value in _items(message) if isinstance(value, int | float)}
                elif field == CONFIG_FIELD:
                    headers.add_texts(_items(message), texts)
                elif field == SUMMARY_FIELD:
                    headers.add_texts((item for item in _items(message) if item[0] in levanter.FACTS), texts)
                elif field == RUN_FIELD:
                    for inner, config in _fields(message):
                        headers.add_texts(_items(config) if inner == CONFIG_FIELD_OF_RUN else (), texts)
                elif field == ENVIRONMENT_FIELD:
                    texts["environment"] = texts.get("environment", "") + message.decode("utf-8", "replace")
    except (IndexError, ValueError, OverflowError) as error:
        raise InputError("is damaged: a record is not one of Weights & Biases", path=path) from error


def _records(path: Path) -> Iterator[bytes]:
    """Yield the content of each record, up to the first that is truncated or damaged: a killed run leaves one.

    Raises InputError for a file that cannot be read.
    """
    with files.open_log(path) as file:
        block, at, record = file.read(WANDB_BLOCK_BYTES), WANDB_HEADER_BYTES, bytearray()
        while True:
            if len(block) - at < WANDB_HEADER_BYTES:  # the rest of a block is filled with zeros
                block, at = file.read(WANDB_BLOCK_BYTES), 0
                if not block:
                    return
                continue
            checksum, kind = int.from_bytes(block[at : at + 4], "little"), block[at + 6]
            start = at + WANDB_HEADER_BYTES
            at = start + int.from_bytes(block[at + 4 : at + 6], "little")
            if kind not in (WHOLE_FRAGMENT, FIRST_FRAGMENT, MIDDLE_FRAGMENT, LAST_FRAGMENT) or at > len(block):
                return
            if zlib.crc32(block[start:at], zlib.crc32(bytes([kind]))) != checksum:
                return
            if kind in (WHOLE_FRAGMENT, FIRST_FRAGMENT):
                record.clear()
            record += block[start:at]
            if len(record) > _LARGEST_RECORD_BYTES:
                return
            if kind in (WHOLE_FRAGMENT, LAST_FRAGMENT):
                yield bytes(record)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and content of each field with a length: texts and messages; numbers are passed over."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == 2:
            length, at = _varint(message, at)
            if at + length > len(message):
                raise ValueError("a field is longer than its message")
            yield tag >> 3, message[at : at + length]
            at += length
        elif kind == 0:
            _, at = _varint(message, at)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError("a field of no known kind")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a number of seven bits per byte, and the place after it."""
    value = shift = 0
    while True:
        byte = message[at]
        at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return value, at


def _items(message: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each item of a history or a configuration."""
    for field, item in _fields(message):
        if field != ITEMS:
            continue
        keys: list[str] = []
        value = b""
        for inner, content in _fields(item):
            if inner in (KEY, NESTED_KEY):
                keys.append(content.decode("utf-8", "replace"))
            elif inner == VALUE:
                value = content
        yield ".".join(keys), fields.json_in(value)
