"""Readers of trace files, recognised by their content, and of folders of them.

PyTorch's profiler has a module of its own (kineto); those of the vendors, Nsight Systems and rocprofv3, are here.
"""

from __future__ import annotations

import csv
import os
import re
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from tensorprimat.core.errors import InputError, MissingFileError
from tensorprimat.system.processes import run_guarded
from tensorprimat.traces.record import HostCall, Kernel, Operator, Recording, Trace

MOST_BYTES = 2 * 10**9  # of a trace, unpacked: a training's profile of three steps has 10 to 500 MB
_SQLITE = b"SQLite format 3\0"
_PACKED = b"\x1f\x8b"
_HEAD_BYTES = 1000  # in which a document of rocprofv3 names its program
_CSV_ENDING = "_kernel_trace.csv"
_REPORT = ".nsys-rep"
ENDINGS = (".json", ".json.gz", ".sqlite", _REPORT, ".db", _CSV_ENDING)
"""Endings of the traces in a folder."""
_OF_OPERATOR = re.compile(r",? (seq|op_id) = \d+.*$")
"""End of a range of torch.autograd.profiler.emit_nvtx: "aten::mm, seq = 12, op_id = 345"."""
_RANGE_TYPES = (59, 60)  # NvtxPushPopRange and NvtxStartEndRange (ENUM_NSYS_EVENT_TYPE)
_NAMES = {"GRAPH_TRACE": "CUDA graph", "MEMCPY": "Memcpy", "MEMSET": "Memset"}
"""Tables of work without names; of a graph as a whole unless nsys records its nodes (--cuda-graph-trace=node)."""
_OF_PROCESS = ~0xFFFFFF  # bits of a global thread id that name the process
_APIS = ("hip_api", "hip_runtime_api", "hsa_api")
_COPIES = ("__amd_rocclr_copyBuffer", "__amd_rocclr_fillBuffer")
"""Kernels with which ROCm's runtime copies and fills memory."""


def read_traces(path: Path) -> list[Trace]:
    """Return the trace of each device of a file, or of each rank of a folder. Raises InputError."""
    if os.path.isdir(path):
        files = sorted(one for one in path.iterdir() if one.name.endswith(ENDINGS) and _export_of(one) is None)
        if not files:
            raise InputError(f"no trace in this folder ({', '.join(ENDINGS)})", path=path)
        return [trace for one in files for trace in _of_file(one)]
    if not os.path.exists(path):
        raise MissingFileError("no such file; name a trace of a profiler", path=path)
    return _of_file(path)


def _of_file(path: Path) -> list[Trace]:
    with path.open("rb") as file:
        head = file.read(16)
    if head.startswith(_SQLITE):
        return _read_database(path)
    if path.name.endswith(_CSV_ENDING):
        return _read_rocprof_csv(path)
    if path.name.endswith(_REPORT):
        return _exported(path)
    if path.name.endswith(".pftrace"):
        remedy = "record with rocprofv3 --output-format json or csv"
        raise InputError("cannot be read as it is", path=path, remedy=remedy)
    data = _content(path, packed=head.startswith(_PACKED))
    if data[:100].lstrip()[:1] not in (b"{", b"["):
        raise InputError(
            "no trace that is known; give the .json or .json.gz of PyTorch's profiler, the .sqlite of nsys export, or "
            "the .json, .csv or .db of rocprofv3",
            path=path,
        )
    if b'"rocprofiler-sdk-tool"' in data[:_HEAD_BYTES]:
        return _read_rocprof_json(data, path)
    from tensorprimat.traces import kineto

    return kineto.read_kineto(data, path)


def _export_of(path: Path) -> Path | None:
    """Return the database beside a report of Nsight Systems that nsys export has made of it, or None."""
    made = path.with_suffix(".sqlite")
    is_newer = path.name.endswith(_REPORT) and os.path.isfile(made) and made.stat().st_mtime >= path.stat().st_mtime
    return made if is_newer else None


def _exported(path: Path) -> list[Trace]:
    """Return the traces of a report of Nsight Systems, converted by its own program unless it has been."""
    if (made := _export_of(path)) is not None:
        return _read_database(made)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "exported.sqlite"
        try:
            run_guarded(["nsys", "export", "-t", "sqlite", "-o", str(target), str(path)], capture_output=True)
        except OSError as error:
            remedy = "convert it with nsys export --type sqlite where nsys is installed"
            raise InputError("cannot be read as it is", path=path, remedy=remedy) from error
        if not os.path.isfile(target):
            raise InputError("nsys export made nothing of it", path=path)
        traces = _read_database(target)
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


def _read_database(path: Path) -> list[Trace]:
    """Return the trace of each device of a database. Raises InputError for one of another program."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
                return _of_nsys(database, tables, path).traces()
            if "kernels" in tables:
                return _of_rocpd(database, tables, path).traces()
    except (sqlite3.Error, KeyError, TypeError) as error:  # a value of another kind than its column has
        raise InputError(f"no trace that can be read: {error}", path=path) from error
    raise InputError("no trace of Nsight Systems or rocprofv3 in this database", path=path)


def _table_rows(database: sqlite3.Connection, tables: set[str], table: str, columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table or view; none where the database has none of this name. A missing column is NULL."""
    if table in tables:
        known = {*_columns(database, table), "start", "end"}
        wanted = re.sub(r"[A-Za-z]\w*", lambda name: name[0] if name[0] in known else "NULL", columns)
        for row in database.execute(f"SELECT {wanted} FROM {table}"):  # noqa: UP028  # yield from closes the cursor
            yield row  # later, perhaps after the database; the names are those of this module


def _columns(database: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in database.execute(f"PRAGMA table_info({table})")]


def _of_nsys(database: sqlite3.Connection, tables: set[str], path: Path) -> Recording:
    made = Recording(path=str(path), profiler="Nsight Systems")
    made.devices = dict(_table_rows(database, tables, "TARGET_INFO_GPU", "id, name"))
    text = {key: str(value) for key, value in _table_rows(database, tables, "StringIds", "id, value")}
    one_process = "globalPid" not in _columns(database, "CUPTI_ACTIVITY_KIND_KERNEL")

    def launch(process: int, number: int) -> tuple[int, int]:
        return 0 if one_process else process & _OF_PROCESS, number

    call = "start, end, globalTid, correlationId, nameId"
    for start, end, thread, key, name in _table_rows(database, tables, "CUPTI_ACTIVITY_KIND_RUNTIME", call):
        made.calls.append(HostCall(text[name], start / 1e9, end / 1e9, thread, launch(thread, key)))
    columns = "start, end, deviceId, streamId, globalPid, correlationId"
    kinds = {"KERNEL": ("kernel", f"{columns}, demangledName, gridX || ',' || gridY || ',' || gridZ"),
             "GRAPH_TRACE": ("kernel", f"{columns}, 0, ''"),
             "MEMCPY": ("copy", f"{columns}, copyKind, ''"), "MEMSET": ("memset", f"{columns}, 0, ''")}  # fmt: skip
    for table, (kind, wanted) in kinds.items():
        rows = _table_rows(database, tables, f"CUPTI_ACTIVITY_KIND_{table}", wanted)
        for start, end, device, stream, process, key, name, grid in rows:
            shown = text[name] if table == "KERNEL" else _NAMES[table]
            kernel = Kernel(shown, start / 1e9, end / 1e9, str(stream), kind, grid=grid or "")
            made.work.append((device, launch(process, key), kernel))
    ranges = "start, end, globalTid, text, textId, eventType"
    for start, end, thread, own, named, kind in _table_rows(database, tables, "NVTX_EVENTS", ranges):
        shown = str(own or text.get(named, ""))
        if kind in _RANGE_TYPES and end is not None and shown:
            made.ranges[thread].append(_operator(shown, start / 1e9, end / 1e9))
    return made


def _operator(text: str, start: float, end: float) -> Operator:
    name = _OF_OPERATOR.sub("", text)
    return Operator(name, start, end, is_range=name == text, is_forward=" seq = " in text)


def _of_rocpd(database: sqlite3.Connection, tables: set[str], path: Path) -> Recording:
    made = Recording(path=str(path), profiler="rocprofv3")
    made.devices = dict(_table_rows(database, tables, "rocpd_info_agent", "absolute_index, product_name"))
    for category, name, thread, start, end, key in _table_rows(
        database, tables, "regions", "category, name, tid, start, end, stack_id"
    ):
        if "MARKER" in str(category):
            made.ranges[thread].append(_operator(str(name), start / 1e9, end / 1e9))
        else:
            made.calls.append(HostCall(str(name), start / 1e9, end / 1e9, thread, key))
    columns = "start, end, {device}, stream_id, stack_id, name"
    kinds = (("kernels", "kernel", "agent_abs_index"), ("memory_copies", "copy", "dst_agent_abs_index"))
    for table, kind, device in kinds:
        for start, end, agent, stream, key, name in _table_rows(database, tables, table, columns.format(device=device)):
            made.work.append((agent, key, Kernel(str(name), start / 1e9, end / 1e9, str(stream), kind)))
    return made


def _read_rocprof_json(data: bytes, path: Path) -> list[Trace]:
    """Return the trace of each device. Raises InputError for a document of another program."""
    import msgspec

    try:
        document = msgspec.json.decode(data)["rocprofiler-sdk-tool"]
        return [trace for tool in document for trace in _of_tool(tool, path).traces()]
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"no trace of rocprofv3: {error}", path=path) from error


def _of_tool(tool: dict[str, Any], path: Path) -> Recording:
    agents = {one["id"]["handle"]: one.get("product_name") for one in tool["agents"]}
    made = Recording(path=str(path), profiler="rocprofv3", devices=agents)
    named = ((one["kernel_id"], one) for one in tool["kernel_symbols"])
    symbols = {key: one.get("formatted_kernel_name") or one["kernel_name"] for key, one in named}
    records = tool["buffer_records"]
    names = {(kind["kind"], number): name for kind in tool["strings"]["buffer_records"]
             for number, name in enumerate(kind.get("operations", ()))}  # fmt: skip
    for api in _APIS:
        for one in records.get(api, ()):
            name = names.get((one["kind"], one["operation"]), api)
            made.calls.append(HostCall(name, *_times(one), one["thread_id"], one["correlation_id"]["internal"]))
    for one in records["kernel_dispatch"]:
        info = one["dispatch_info"]
        stream = one.get("stream_id", info["queue_id"])["handle"]
        kernel = _kernel(symbols[info["kernel_id"]], *_times(one), str(stream))
        made.work.append((info["agent_id"]["handle"], one["correlation_id"]["internal"], kernel))
    for one in records.get("memory_copy", ()):
        kernel = Kernel("Memcpy", *_times(one), "copy", "copy")
        made.work.append((one["dst_agent_id"]["handle"], one["correlation_id"]["internal"], kernel))
    return made


def _times(record: dict[str, Any]) -> tuple[float, float]:
    return record["start_timestamp"] / 1e9, record["end_timestamp"] / 1e9


def _kernel(name: str, start: float, end: float, stream: str) -> Kernel:
    return Kernel(name, start, end, stream, "copy" if name.startswith(_COPIES) else "kernel")


def _read_rocprof_csv(path: Path) -> list[Trace]:
    """Return the trace of each device from NAME_kernel_trace.csv, with the calls and markers of the files beside it.

    Raises InputError for a table without the columns of rocprofv3.
    """
    stem = str(path)[: -len(_CSV_ENDING)]
    made = Recording(path=str(path), profiler="rocprofv3")
    try:
        for row in _csv_rows(path):
            stream = row.get("Stream_Id") or row["Queue_Id"]
            kernel = _kernel(row["Kernel_Name"], *_stamps(row), stream)
            made.work.append((row["Agent_Id"], row["Correlation_Id"], kernel))
        for row in _csv_rows(Path(f"{stem}_hip_api_trace.csv")):
            made.calls.append(HostCall(row["Function"], *_stamps(row), row["Thread_Id"], row["Correlation_Id"]))
        for row in _csv_rows(Path(f"{stem}_marker_api_trace.csv")):
            made.ranges[row["Thread_Id"]].append(Operator(row["Function"], *_stamps(row), is_range=True))
    except (KeyError, TypeError, ValueError, csv.Error) as error:  # a row that is cut has None
        raise InputError(f"no kernel trace of rocprofv3: {error}", path=path) from error
    return made.traces()


def _csv_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table; none where there is no such file."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        return []


def _stamps(row: dict[str, str]) -> tuple[float, float]:
    return int(row["Start_Timestamp"]) / 1e9, int(row["End_Timestamp"]) / 1e9
