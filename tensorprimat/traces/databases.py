"""Traces in SQLite: of Nsight Systems (nsys export --type sqlite) and of rocprofv3 (rocpd)."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from tensorprimat.core.errors import InputError
from tensorprimat.traces.record import Kernel, Operator, Trace
from tensorprimat.traces.recording import HostCall, Recording

_OF_OPERATOR = re.compile(r",? (seq|op_id) = \d+.*$")
"""End of a range of torch.autograd.profiler.emit_nvtx: "aten::mm, seq = 12, op_id = 345"."""
_RANGE_TYPES = (59, 60)  # NvtxPushPopRange and NvtxStartEndRange (ENUM_NSYS_EVENT_TYPE)
_NAMES = {"GRAPH_TRACE": "CUDA graph", "MEMCPY": "Memcpy", "MEMSET": "Memset"}
"""Tables of work without names; of a graph as a whole unless nsys records its nodes (--cuda-graph-trace=node)."""
_OF_PROCESS = ~0xFFFFFF  # bits of a global thread id that name the process


def read_database(path: Path) -> list[Trace]:
    """Return the trace of each device of a database. Raises InputError for one of another program."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            if "CUPTI_ACTIVITY_KIND_KERNEL" in tables:
                return _of_nsys(database, tables, path).traces()
            if "kernels" in tables:
                return _of_rocpd(database, tables, path).traces()
    except sqlite3.Error as error:
        raise InputError(f"no trace that can be read: {error}", path=path) from error
    raise InputError("no trace of Nsight Systems or rocprofv3 in this database", path=path)


def _rows(database: sqlite3.Connection, tables: set[str], table: str, columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table or view; none where the database has none of this name. A missing column is NULL."""
    if table in tables:
        known = {*_columns(database, table), "start", "end"}
        wanted = re.sub(r"[A-Za-z]\w*", lambda name: name[0] if name[0] in known else "NULL", columns)
        yield from database.execute(f"SELECT {wanted} FROM {table}")  # names of this module


def _columns(database: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in database.execute(f"PRAGMA table_info({table})")]


def _of_nsys(database: sqlite3.Connection, tables: set[str], path: Path) -> Recording:
    made = Recording(path=str(path), profiler="Nsight Systems")
    made.devices = dict(_rows(database, tables, "TARGET_INFO_GPU", "id, name"))
    text = dict(_rows(database, tables, "StringIds", "id, value"))
    one_process = "globalPid" not in _columns(database, "CUPTI_ACTIVITY_KIND_KERNEL")

    def launch(process: int, number: int) -> tuple[int, int]:
        return 0 if one_process else process & _OF_PROCESS, number

    call = "start, end, globalTid, correlationId, nameId"
    for start, end, thread, key, name in _rows(database, tables, "CUPTI_ACTIVITY_KIND_RUNTIME", call):
        made.calls.append(HostCall(text[name], start / 1e9, end / 1e9, thread, launch(thread, key)))
    columns = "start, end, deviceId, streamId, globalPid, correlationId"
    kinds = {"KERNEL": ("kernel", f"{columns}, demangledName, gridX || ',' || gridY || ',' || gridZ"),
             "GRAPH_TRACE": ("kernel", f"{columns}, 0, ''"),
             "MEMCPY": ("copy", f"{columns}, copyKind, ''"), "MEMSET": ("memset", f"{columns}, 0, ''")}  # fmt: skip
    for table, (kind, wanted) in kinds.items():
        rows = _rows(database, tables, f"CUPTI_ACTIVITY_KIND_{table}", wanted)
        for start, end, device, stream, process, key, name, grid in rows:
            shown = text[name] if table == "KERNEL" else _NAMES[table]
            kernel = Kernel(shown, start / 1e9, end / 1e9, str(stream), kind, grid=grid or "")
            made.work.append((device, launch(process, key), kernel))
    ranges = "start, end, globalTid, text, textId, eventType"
    for start, end, thread, own, named, kind in _rows(database, tables, "NVTX_EVENTS", ranges):
        shown = own or text.get(named)
        if kind in _RANGE_TYPES and end is not None and shown:
            made.ranges[thread].append(_operator(shown, start / 1e9, end / 1e9))
    return made


def _operator(text: str, start: float, end: float) -> Operator:
    name = _OF_OPERATOR.sub("", text)
    return Operator(name, start, end, is_range=name == text, is_forward=" seq = " in text)


def _of_rocpd(database: sqlite3.Connection, tables: set[str], path: Path) -> Recording:
    made = Recording(path=str(path), profiler="rocprofv3")
    made.devices = dict(_rows(database, tables, "rocpd_info_agent", "absolute_index, product_name"))
    for category, name, thread, start, end, key in _rows(
        database, tables, "regions", "category, name, tid, start, end, stack_id"
    ):
        if "MARKER" in (category or ""):
            made.ranges[thread].append(_operator(name, start / 1e9, end / 1e9))
        else:
            made.calls.append(HostCall(name, start / 1e9, end / 1e9, thread, key))
    columns = "start, end, {device}, stream_id, stack_id, name"
    kinds = (("kernels", "kernel", "agent_abs_index"), ("memory_copies", "copy", "dst_agent_abs_index"))
    for table, kind, device in kinds:
        for start, end, agent, stream, key, name in _rows(database, tables, table, columns.format(device=device)):
            made.work.append((agent, key, Kernel(name, start / 1e9, end / 1e9, str(stream), kind)))
    return made
