"""Trace files of any profiler, recognised by their content, and folders of them."""

from __future__ import annotations

import os
import tempfile
import zlib
from pathlib import Path

from tensorprimat.core.errors import InputError, MissingFileError
from tensorprimat.system.processes import run_guarded
from tensorprimat.traces.record import Trace

MOST_BYTES = 2 * 10**9  # of a trace, unpacked: a training's profile of three steps has 10 to 500 MB
_SQLITE = b"SQLite format 3\0"
_PACKED = b"\x1f\x8b"
_HEAD_BYTES = 1000  # in which a document of rocprofv3 names its program
_CONVERTED = {
    ".pftrace": "record with rocprofv3 --output-format json or csv",
}
"""Ending of a file → how it becomes one that can be read."""
ENDINGS = (".json", ".json.gz", ".sqlite", ".db", "_kernel_trace.csv")
"""Endings of the traces in a folder."""


def read_traces(path: Path) -> list[Trace]:
    """Return the trace of each device of a file, or of each rank of a folder. Raises InputError."""
    if os.path.isdir(path):
        files = sorted(one for one in path.iterdir() if one.name.endswith(ENDINGS))
        if not files:
            raise InputError(f"no trace in this folder ({', '.join(ENDINGS)})", path=path)
        return [trace for one in files for trace in _of_file(one)]
    if not os.path.exists(path):
        raise MissingFileError("no such file; name a trace of a profiler", path=path)
    return _of_file(path)


def _of_file(path: Path) -> list[Trace]:
    from tensorprimat.traces import databases, kineto, rocprof

    with path.open("rb") as file:
        head = file.read(16)
    if head.startswith(_SQLITE):
        return databases.read_database(path)
    if path.name.endswith(rocprof.CSV_ENDING):
        return rocprof.read_rocprof_csv(path)
    if path.name.endswith(".nsys-rep"):
        return _exported(path)
    if remedy := next((remedy for ending, remedy in _CONVERTED.items() if path.name.endswith(ending)), None):
        raise InputError("cannot be read as it is", path=path, remedy=remedy)
    data = _content(path, packed=head.startswith(_PACKED))
    if data[:100].lstrip()[:1] not in (b"{", b"["):
        raise InputError(
            "no trace that is known; give the .json or .json.gz of PyTorch's profiler, the .sqlite of nsys export, or "
            "the .json, .csv or .db of rocprofv3",
            path=path,
        )
    of_rocprof = b'"rocprofiler-sdk-tool"' in data[:_HEAD_BYTES]
    return (rocprof.read_rocprof_json if of_rocprof else kineto.read_kineto)(data, path)


def _exported(path: Path) -> list[Trace]:
    """Return the traces of a report of Nsight Systems, converted by its own program."""
    from tensorprimat.traces import databases

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "exported.sqlite"
        try:
            run_guarded(["nsys", "export", "-t", "sqlite", "-o", str(target), str(path)], capture_output=True)
        except OSError as error:
            remedy = "convert it with nsys export --type sqlite where nsys is installed"
            raise InputError("cannot be read as it is", path=path, remedy=remedy) from error
        if not os.path.isfile(target):
            raise InputError("nsys export made nothing of it", path=path)
        traces = databases.read_database(target)
    for trace in traces:
        trace.path = str(path)
    return traces


def _content(path: Path, *, packed: bool) -> bytes:
    """Return what a file contains, unpacked; of a packed file that is cut, what can be unpacked."""
    if not packed:
        if path.stat().st_size > MOST_BYTES:
            raise _too_large(path)
        return path.read_bytes()
    unpacker, parts, size = zlib.decompressobj(wbits=31), [], 0
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            try:
                parts.append(unpacker.decompress(chunk, MOST_BYTES))
            except zlib.error as error:
                raise InputError(f"cannot be unpacked: {error}", path=path) from error
            size += len(parts[-1])
            if size > MOST_BYTES:
                raise _too_large(path)
    return b"".join(parts)


def _too_large(path: Path) -> InputError:
    return InputError(f"more than {MOST_BYTES // 10**9} GB unpacked; profile fewer steps", path=path)
