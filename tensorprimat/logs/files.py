"""Bytes of a log in any packing (plain, compressed, notebook, UTF-16, stdin), in bounded memory and time.

Readers never open files themselves: `blocks` hands out whole lines in UTF-8, and everything that cannot be read as text
(missing, folder, pipe, device, loop of links, more than compressed logs ever expand to) becomes one InputError.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from tensorprimat.core.errors import InputError
from tensorprimat.logs import packing
from tensorprimat.system import regular

BLOCK_BYTES = 2**20  # small enough to stay in a core's cache while it is searched more than once
LOOK_BYTES = 2**12  # most lines are shorter
MAX_LINE_BYTES = 16 * 2**20  # real logs hold lines of 10 MB (source code, configuration); the rest is dropped
SNIFF_BYTES = 64 * 2**10
KEPT_BYTES = 2**25 - 2**16  # a little less than glibc's limit

_TEXT_CONTROLS = bytes((*b"\t\n\r\x1b\b\f\a",))  # control characters that terminals leave in logs
_CONTROLS = bytes(code for code in range(32) if code not in _TEXT_CONTROLS)
_UTF16_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


def keep_freed_memory() -> None:
    """Let the allocator keep the memory of a block for the next block, instead of returning it to the system.

    glibc keeps chunks up to the size of the largest that was ever freed, at most KEPT_BYTES. Without that, the system
    clears the same pages again for every block, which takes a tenth of the time to read a log.
    """
    np.empty(KEPT_BYTES, np.uint8)  # freed at once, and never touched


def status(path: Path) -> os.stat_result:
    """Return the file system's record of a regular file or folder.

    Raises InputError if the path is missing, unreachable, a loop of links, a pipe or a device.
    """
    try:
        known = path.stat()
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot be read: {reason}", path=path) from error
    if not (stat.S_ISREG(known.st_mode) or stat.S_ISDIR(known.st_mode)):
        raise InputError("is a pipe or a device, not a file", path=path, remedy=f"pipe it in: cat {path} | … -")
    if stat.S_ISDIR(known.st_mode) and (why := regular.refused_listing(path)):
        raise InputError(why, path=path)
    return known


@contextmanager
def spooled_stdin() -> Iterator[Path]:
    """Provide standard input as a temporary file, so that it can be read more than once.

    On Linux the file has no name in any folder, so that nothing is left of it even after kill -9.
    """
    nameless = sys.platform == "linux" and os.path.isdir("/proc/self/fd")
    with tempfile.TemporaryFile() if nameless else tempfile.NamedTemporaryFile(prefix="tprimat_stdin_") as spool:
        while chunk := sys.stdin.buffer.read(BLOCK_BYTES):
            spool.write(chunk)
        spool.flush()
        yield Path(f"/proc/{os.getpid()}/fd/{spool.fileno()}") if nameless else Path(str(spool.name))


def first_bytes(path: Path, size: int = SNIFF_BYTES) -> bytes:
    """Return the first bytes as they are on disk; empty for a folder."""
    if stat.S_ISDIR(status(path).st_mode):
        return b""
    with open_log(path) as file:
        return file.read(size)


def with_numbers(name: str) -> tuple[list[str | int], str]:
    """Return a key that sorts numbers in a file's name as numbers; of equal ones, 09 comes before 9.

    >>> sorted(["run_10", "run_9", "run_09"], key=with_numbers)
    ['run_09', 'run_9', 'run_10']
    """
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)], name


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and below it, in the same order everywhere; links to folders are not followed."""
    for parent, folders, names in os.walk(folder):
        folders.sort()
        yield from (Path(parent, name) for name in sorted(names, key=with_numbers))


MOST_ZEROS = 2**32  # bytes before the text of a log that was cut while its writer went on at the old position
WANDB_OPENING = b":W&B\xe1\xbe\0"
"""The first bytes of a run file of Weights & Biases; much of the rest is text."""
EVENTS_OPENING = re.compile(rb"[\s\S]{2}\0{6}[\s\S]{4,64}?brain\.Event:")
"""The first record of TensorBoard's event files; the records after it may be mostly text."""


def is_binary(path: Path) -> bool:
    """Return True for an event file, a run file of W&B, and a file with more control characters than a log has."""
    return _is_binary(path, regular.file_state(path))


@lru_cache(16)  # a log of thousands of parts is judged once
def _is_binary(path: Path, _state: tuple[int, ...]) -> bool:
    zeros = 0
    for chunk in _text_chunks(path, SNIFF_BYTES):
        if not zeros and (EVENTS_OPENING.match(chunk) or chunk.startswith(WANDB_OPENING)):
            return True
        # a file system that crashed leaves stretches of zeros in a text, and so does a log that was cut while written
        head = re.sub(rb"\0{16,}", b"", chunk)
        if head:
            return len(head) - len(head.translate(None, _CONTROLS)) > 0.05 * len(head)
        zeros += len(chunk)
        if zeros > MOST_ZEROS:
            break
    return zeros > 0


def blocks(path: Path, size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield whole lines in UTF-8, one block after the other.

    The very last line may lack its line end. The part of a line beyond MAX_LINE_BYTES is dropped. Of a notebook, only
    what its cells printed is kept. Raises InputError for packed data that is broken or expands without bound, and for a
    log whose lines are inside the JSON of a log service.
    """
    chunks = _text_chunks(path, size)
    first = next(chunks, b"")
    whole = _whole_lines(chain((first,), chunks))
    head = first[:SNIFF_BYTES]
    if key := packing.key_of_lines(head):
        raise InputError(
            f'the lines of the log are inside JSON, under the key "{key}"',
            path=path,
            remedy=f"take them out: jq -r '..|.{key}? // empty' LOG > train.log",
        )
    return packing.printed_lines(whole) if packing.is_notebook(head) else whole


def blocks_between(path: Path, start: int, stop: int, size: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield as `blocks` does, for the bytes from `start` to before `stop`; both begin a line or end the text."""
    for _, block in blocks_of_spans(path, [(start, stop)], size):
        yield block


def blocks_of_spans(
    path: Path, spans: Sequence[tuple[int, int]], size: int = BLOCK_BYTES
) -> Iterator[tuple[int, bytes]]:
    """Yield (position of the span, block) of each span (start, stop), as `blocks_between`; a file is opened once.

    A log whose rows take several lines may have a hundred thousand spans.
    """
    if not has_its_own_bytes(path):
        yield from _unpacked_spans(path, spans, size)
        return
    with open_log(path) as file:
        for place, (start, stop) in enumerate(spans):
            for block in _whole_lines(_chunks_between(file, start, stop, size)):
                yield place, block


def _unpacked_spans(path: Path, spans: Sequence[tuple[int, int]], size: int) -> Iterator[tuple[int, bytes]]:
    """Yield (position of the span, block), unpacking the text once for all spans that follow one another."""
    back = [place for place in range(1, len(spans)) if spans[place][0] < spans[place - 1][1]]
    for first, end in pairwise([0, *back, len(spans)]):
        at, place = 0, first
        for block in blocks(path, size):
            while place < end and spans[place][0] < at + len(block):
                start, stop = spans[place]
                if inside := block[max(0, start - at) : max(0, stop - at)]:
                    yield place, inside
                if stop > at + len(block):
                    break
                place += 1
            at += len(block)
            if place == end:
                break


def has_its_own_bytes(path: Path) -> bool:
    """Return True if byte n of the text is byte n of the file."""
    return _has_its_own_bytes(path, regular.file_state(path))


@lru_cache(16)
def _has_its_own_bytes(path: Path, state: tuple[int, ...]) -> bool:
    return _is_plain(path, state) and not first_bytes(path, len(codecs.BOM_UTF8)).startswith(codecs.BOM_UTF8)


def _chunks_between(file: IO[bytes], start: int, stop: int, size: int) -> Iterator[bytes]:
    at = file.seek(start)
    while at < stop:
        chunk = file.read(stop - at if stop - at <= size else min(_whole(file, size), stop - at))
        if not chunk:
            return
        at += len(chunk)
        yield chunk


def offsets_of_lines(path: Path, lines: Sequence[int]) -> list[int]:
    """Return where in the text each line begins, in bytes, and where the text ends. lines: 1-based numbers that grow.

    A line beyond the last begins where the text ends.
    """
    offsets: list[int] = []
    number, at = 1, 0  # of the line that the chunk begins with or inside
    with open_log(path) as file:
        own = has_its_own_bytes(path)
        chunks = iter(lambda: file.read(BLOCK_BYTES), b"") if own else blocks(path)
        for chunk in chunks:
            while len(offsets) < len(lines) and lines[len(offsets)] <= number and at == 0:
                offsets.append(0)
            count = count_line_ends(chunk)
            if len(offsets) < len(lines) and lines[len(offsets)] <= number + count:
                ends = np.flatnonzero(line_ends(chunk))
                while len(offsets) < len(lines) and lines[len(offsets)] <= number + count:
                    offsets.append(at + int(ends[lines[len(offsets)] - number - 1]) + 1)
            number += count
            at += len(chunk)
    return [*offsets, *[at] * (len(lines) + 1 - len(offsets))]


def line_starts(path: Path, places: Sequence[int]) -> list[int]:
    """Return where the first line begins at or after each byte; the end of the file if none does. places: not 0."""
    found: list[int] = []
    with open_log(path) as file:
        for place in places:
            at = file.seek(place - 1)  # a line begins at `place` itself if a line end precedes it
            while (chunk := file.read(LOOK_BYTES)) and b"\n" not in chunk:
                at += len(chunk)
            found.append(at + chunk.find(b"\n") + 1)
    return found


def is_plain(path: Path) -> bool:
    """Return True if the text is the file's bytes without any conversion."""
    return _is_plain(path, regular.file_state(path))


@lru_cache(16)
def _is_plain(path: Path, _state: tuple[int, ...]) -> bool:
    return not _is_transformed(first_bytes(path))


def _whole_lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest, skipping = b"", False
    for chunk in chunks:
        if skipping:  # inside a line that is too long: on to its end
            end = chunk.find(b"\n")
            if end < 0:
                continue
            chunk, skipping = chunk[end:], False
        if not rest and chunk.endswith(b"\n"):
            yield chunk
            continue
        cut = chunk.rfind(b"\n") + 1 or chunk.rfind(b"\r") + 1
        if cut:
            yield b"".join((rest, memoryview(chunk)[:cut]))
            rest = chunk[cut:]
            continue
        rest += chunk
        if len(rest) > MAX_LINE_BYTES:
            yield rest[:MAX_LINE_BYTES]
            rest, skipping = b"", True
    if rest:
        yield rest


def tail(path: Path, size: int) -> bytes:
    """Return about the last `size` bytes of the text, in UTF-8; of a plain file only these are read."""
    if is_plain(path):
        with open_log(path) as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read()
    kept = b""
    for chunk in blocks(path):
        kept = (kept + chunk)[-size:]
    return kept


def line_ends(block: bytes) -> NDArray[np.bool_]:
    """Return a mask of the bytes of a block that end a line, shape (bytes,)."""
    return np.asarray(np.frombuffer(block, np.uint8) == ord("\n"))


def count_line_ends(block: bytes) -> int:
    """Return the number of lines that end in a block; several times as fast as bytes.count."""
    return int(np.count_nonzero(line_ends(block)))


def _is_transformed(head: bytes) -> bool:
    """Return True if the text differs from the file's bytes: packed, in another encoding or inside JSON."""
    return (
        packing.kind_of(head) is not None
        or head[:2] in _UTF16_MARKS
        or _ends_lines_with_cr(head)
        or packing.is_notebook(head)
        or packing.key_of_lines(head) is not None
    )


@contextmanager
def open_log(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading. Raises InputError where it cannot be read, then or later."""
    try:
        with regular.open_regular(path) as file:
            yield file
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", path=path) from error


def _text_chunks(path: Path, size: int) -> Iterator[bytes]:
    """Yield the file's text as UTF-8, unpacked, in chunks of about `size` bytes."""
    chunks = _unpacked_chunks(path, size)
    first = next(chunks, b"")
    encoding = _UTF16_MARKS.get(first[:2])
    if encoding is None and _ends_lines_with_cr(first):
        yield from (chunk.replace(b"\r", b"\n") for chunk in chain((first.removeprefix(codecs.BOM_UTF8),), chunks))
        return
    if encoding is None:
        yield first.removeprefix(codecs.BOM_UTF8)
        yield from chunks
        return
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    yield from (decoder.decode(chunk).encode() for chunk in chain((first[2:],), chunks))


def _ends_lines_with_cr(head: bytes) -> bool:
    """Return True if lines end with a carriage return alone, as on old Macs and in some terminal recordings.

    In a file that also has line feeds, a carriage return means a progress bar that is redrawn on its line.
    """
    return b"\r" in head[:SNIFF_BYTES] and b"\n" not in head[:SNIFF_BYTES]


def _unpacked_chunks(path: Path, size: int) -> Iterator[bytes]:
    with open_log(path) as file:
        kind = packing.kind_of(file.read(packing.MAGIC_BYTES))
        file.seek(0)
        if kind is not None:
            yield from packing.chunks(path, file, kind, size)
            return
        while chunk := file.read(_whole(file, size)):
            yield chunk


def _whole(file: IO[bytes], size: int) -> int:
    """Return the number of bytes to read next, about `size`, so that the block ends with a line if possible.

    A block that ends in the middle of a line would have to be copied once more.
    """
    at = file.tell()
    look_at = max(at, at + size - LOOK_BYTES)
    line_end = os.pread(file.fileno(), at + size - look_at, look_at).rfind(b"\n") + 1
    return look_at - at + line_end if line_end else size
