"""Compressed logs, recognised by their first bytes: gzip, zstd, xz, bzip2, and zip archives that contain one file.

Everything unpacks chunk by chunk. A file that expands further than any log is refused, and so is an archive of
several files, because each of them would be a log of its own.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from tensorprimat.core.errors import InputError, MissingPackageError

MAGIC_BYTES = 10
MAX_EXPANSION = 300  # logs pack 5 to 60 times; gzip's limit is 1032, that of the others far beyond
EXPANSION_ALLOWED_BYTES = 256 * 2**20  # no matter the ratio
PACKED_BYTES = 2**13  # given to zstd at a time, because it unpacks all of it at once, up to 32,000 times the size
UNPACKER_BYTES = 2**27  # memory for the window of xz and zstd; their default levels need at most half of it

_MAGIC: Mapping[str, re.Pattern[bytes]] = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
    "xz": re.compile(rb"\xfd7zXZ\0"),
    "bzip2": re.compile(rb"BZh[1-9](?:1AY&SY|\x17\x72\x45\x38\x50\x90)"),
    "zip": re.compile(rb"PK\x03\x04"),
}
_BROKEN = (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError)
"""Errors of broken data: OSError is one if it has no number, as from gzip and bzip2. A name of a zip archive that is
damaged raises UnicodeDecodeError."""
OFFICE_MEMBER = "[Content_Types].xml"  # workbooks and documents are zip archives too, but not packed logs
SAVED_MEMBERS = ("/data.pkl", ".npy")  # checkpoints of PyTorch and arrays of NumPy: binary files, not archives of logs
NAMED_MEMBERS = 3  # of an archive, in an error


def kind_of(head: bytes) -> str | None:
    """Return the name of the compression that a file begins with, or None for plain content."""
    return next((kind for kind, magic in _MAGIC.items() if magic.match(head)), None)


def chunks(path: Path, file: IO[bytes], kind: str, size: int) -> Iterator[bytes]:
    """Yield the unpacked bytes of an open file, about `size` at a time; of an Office document its bytes as they are.

    Raises InputError for broken data, for several files in one archive, and for data that expands without bound.
    """
    try:
        yield from _bounded(path, _UNPACKERS[kind](path, file, size))
    except _BROKEN as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InputError(f"broken {kind} data: {error}", path=path, remedy="copy the file again") from error


def _bounded(path: Path, unpacked: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the chunks of a packed file. Raises InputError once it has expanded further than any log can."""
    packed_bytes, seen = path.stat().st_size, 0
    for chunk in unpacked:
        seen += len(chunk)
        if seen > EXPANSION_ALLOWED_BYTES and seen > MAX_EXPANSION * packed_bytes:
            raise InputError(
                f"expands to more than {MAX_EXPANSION} times its size, which no log does",
                path=path,
                remedy="unpack it first",
            )
        yield chunk


def _opened_by(module: Any, _path: Path, file: IO[bytes], size: int) -> Iterator[bytes]:
    with module.open(file) as unpacked:
        yield from iter(lambda: unpacked.read(size), b"")


def _xz(_path: Path, file: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield the streams one after the other; lzma.open has no limit on memory."""
    data = file.read(size)
    while data:
        unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=UNPACKER_BYTES)
        while not unpacker.eof:
            if unpacker.needs_input and not data and not (data := file.read(size)):
                raise EOFError("the data ends in the middle of a stream")
            chunk, data = unpacker.decompress(data, size), b""
            if chunk:
                yield chunk
        data = unpacker.unused_data.lstrip(b"\0") or file.read(size).lstrip(b"\0")


def _zstd(path: Path, file: IO[bytes], size: int) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise MissingPackageError("zstandard", needed_for="zstd logs") from error
    try:
        frames = zstandard.ZstdDecompressor(max_window_size=UNPACKER_BYTES)
        data = file.read(PACKED_BYTES)
        while data:
            unpacker = frames.decompressobj()
            while not unpacker.eof:
                if not data and not (data := file.read(PACKED_BYTES)):
                    raise EOFError("the data ends in the middle of a frame")
                chunk, data = unpacker.decompress(data), b""
                yield from (chunk[at : at + size] for at in range(0, len(chunk), size))
            data = unpacker.unused_data or file.read(PACKED_BYTES)
    except zstandard.ZstdError as error:
        raise InputError(f"broken zstd data: {error}", path=path, remedy="copy the file again") from error


def _zip(path: Path, file: IO[bytes], size: int) -> Iterator[bytes]:
    with zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if not (name.endswith("/") or name.startswith("__MACOSX/"))]
        if OFFICE_MEMBER in names or any(name.endswith(SAVED_MEMBERS) for name in names):
            file.seek(0)
            yield from iter(lambda: file.read(size), b"")
            return
        if len(names) != 1:
            named = ", ".join(sorted(names)[:NAMED_MEMBERS]) + (" …" if len(names) > NAMED_MEMBERS else "")
            raise InputError(
                f"is a zip archive of {len(names)} files ({named})", path=path, remedy="unpack it and name one of them"
            )
        try:
            with archive.open(names[0]) as unpacked:
                yield from iter(lambda: unpacked.read(size), b"")
        except (RuntimeError, NotImplementedError) as error:  # a password, or a method that Python lacks
            raise InputError(f"cannot be unpacked: {error}", path=path, remedy="unpack it first") from error


_UNPACKERS: Mapping[str, Callable[[Path, IO[bytes], int], Iterator[bytes]]] = {
    "gzip": partial(_opened_by, gzip),
    "zstd": _zstd,
    "xz": _xz,
    "bzip2": partial(_opened_by, bz2),
    "zip": _zip,
}
