"""Records of TensorBoard event files with their checksums verified, many records at a time.

A record is its length (8 bytes), the checksum of the length (4), the content, and the checksum of the content (4). The
checksum is CRC-32C, rotated and shifted (TensorFlow, tensorflow/core/lib/io/record_writer.h and lib/hash/crc32c.h).
Contents of (nearly) equal length are checked together, in columns of bytes; a long content is cut into lanes, whose
checksums are joined.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tensorprimat.logs import files

CHUNK_BYTES = 2**22
LARGEST_RECORD_BYTES = 2**26  # a larger one is skipped: it is a graph or a picture, never a scalar
LANE_BYTES = 2048  # of a long content
MOST_LENGTHS = 32  # in a chunk; contents with more lengths are padded to a few widths; scalars have a few lengths
SHORTEST_PADDED = 16
_FRAME_BYTES = 16
_POLYNOMIAL = 0x82F63B78

Bytes = NDArray[np.uint8]
Checksums = NDArray[np.uint32]


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
