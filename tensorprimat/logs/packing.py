"""Packed logs, recognised by their first bytes: gzip, zstd, xz, bzip2, zip archives of one file, Jupyter notebooks, and
the JSON of log services.

Everything unpacks chunk by chunk. A file that expands further than any log is refused, and so is an archive of
several files, because each of them would be a log of its own. A line of a notebook stays one line, so that line numbers
are those of the file. Source code and HTML become empty lines: they mention everything that a log contains.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from tensorprimat.core.errors import InputError, MissingPackageError
from tensorprimat.logs.fields import json_in
from tensorprimat.logs.metric_names import names_a_table

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

_NOTEBOOK = re.compile(rb'\A\s*\{\s*"(?:nbformat\w*":\s?\d|(?:cells|metadata)":\s?[\[{][\s\S]*"cell_type":)')
_KEY = re.compile(r'\s{0,80}"(?P<key>[\w/.@+-]{1,80})": (?P<rest>.*)')
_STRING = re.compile(r'\s{0,80}(?P<string>"(?:[^"\\]|\\.)*"),?\s*\Z')
_PRINTED = frozenset(("text", "text/plain", "traceback"))
"""Keys of a cell's output: a list of lines, or one string."""
_LINE_KEYS = {name: name for name in ("textPayload", "log", "line", "message", "msg", "MESSAGE")} | {
    "jsonPayload": "message"
}
"""Key of an entry of docker, Kubernetes, journald or a log service → key of the line itself."""
_ENTRY_KEYS = frozenset(
    (
        *("stream", "time", "timestamp", "@timestamp", "ts", "date", "labels", "kubernetes", "container_id", "_p"),
        *("insertId", "logName", "receiveTimestamp", "resource", "ingestionTime", "eventId", "logStreamName"),
        "__REALTIME_TIMESTAMP",
    )
)
"""Keys beside it, which no row of a training has together with one of those."""
_ENTRY_LINES = 40  # an entry that is printed over several lines has some ten


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


def is_notebook(head: bytes) -> bool:
    """Return True if a text begins as a notebook, in the order of Jupyter or of Colab, whose metadata may be long."""
    return _NOTEBOOK.match(head) is not None


def printed_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the blocks of a notebook with each printed line in the place of its string, all other text left out.

    Colab saves a notebook to GitHub as one line; its lines are those in which Jupyter would save it.
    """
    is_printed = False
    for block in blocks:
        lines: list[str] = []
        whole = json_in(block) if b"\n" not in block.rstrip() else None
        text_of_lines = json.dumps(whole, indent=1) if isinstance(whole, dict) else block.decode("utf-8", "replace")
        for line in text_of_lines.split("\n"):
            text = line
            if key := _KEY.match(line):
                is_printed, text = key["key"] in _PRINTED, key["rest"]
            string = _STRING.match(text) if is_printed else None
            lines.append(_decoded(string["string"]) if string else "")
        yield "\n".join(lines).encode("utf-8", "replace")  # JSON may contain half of a surrogate pair


def _decoded(string: str) -> str:
    text = json_in(string)
    return string if text is None else text.rstrip("\n").replace("\r\n", "\r").replace("\n", "\r")


def key_of_lines(head: bytes) -> str | None:
    """Return the key of the lines of a log in a text that begins as the JSON of a log service; None for another text.

    >>> key_of_lines(b'{"log": "step 5", "stream": "stdout"}'), key_of_lines(b'{"step": 5, "time": 0.25}')
    ('log', None)
    """
    if head.lstrip()[:1] not in (b"{", b"["):
        return None
    lines = head.decode("utf-8", "replace").lstrip().split("\n")[:_ENTRY_LINES]
    entry = json_in(lines[0])
    if isinstance(entry, dict) and isinstance(entry.get("events"), list):
        entry = entry["events"]
    first = entry[0] if isinstance(entry, list) and entry else entry
    if isinstance(first, dict) and names_a_table(first):  # a row that has its message beside its numbers
        return None
    if isinstance(first, dict):
        keys = {key for key, value in first.items() if key in _ENTRY_KEYS or isinstance(value, str | list | dict)}
    else:
        keys = {match["key"] for line in lines if (match := _KEY.match(line))}
    return None if keys.isdisjoint(_ENTRY_KEYS) else next((own for key, own in _LINE_KEYS.items() if key in keys), None)
