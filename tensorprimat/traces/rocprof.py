"""Traces of rocprofv3 as JSON and as CSV."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import msgspec

from tensorprimat.core.errors import InputError
from tensorprimat.traces.record import Kernel, Operator, Trace
from tensorprimat.traces.recording import HostCall, Recording

CSV_ENDING = "_kernel_trace.csv"
_APIS = ("hip_api", "hip_runtime_api", "hsa_api")
_COPIES = ("__amd_rocclr_copyBuffer", "__amd_rocclr_fillBuffer")
"""Kernels with which ROCm's runtime copies and fills memory."""


def read_rocprof_json(data: bytes, path: Path) -> list[Trace]:
    """Return the trace of each device. Raises InputError for a document of another program."""
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


def read_rocprof_csv(path: Path) -> list[Trace]:
    """Return the trace of each device from NAME_kernel_trace.csv, with the calls and markers of the files beside it.

    Raises InputError for a table without the columns of rocprofv3.
    """
    stem = str(path)[: -len(CSV_ENDING)]
    made = Recording(path=str(path), profiler="rocprofv3")
    try:
        for row in _rows(path):
            stream = row.get("Stream_Id") or row["Queue_Id"]
            kernel = _kernel(row["Kernel_Name"], *_stamps(row), stream)
            made.work.append((row["Agent_Id"], row["Correlation_Id"], kernel))
        for row in _rows(Path(f"{stem}_hip_api_trace.csv")):
            made.calls.append(HostCall(row["Function"], *_stamps(row), row["Thread_Id"], row["Correlation_Id"]))
        for row in _rows(Path(f"{stem}_marker_api_trace.csv")):
            made.ranges[row["Thread_Id"]].append(Operator(row["Function"], *_stamps(row), is_range=True))
    except (KeyError, ValueError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"no kernel trace of rocprofv3: {error}", path=path) from error
    return made.traces()


def _rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table; none where there is no such file."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        return []


def _stamps(row: dict[str, str]) -> tuple[float, float]:
    return int(row["Start_Timestamp"]) / 1e9, int(row["End_Timestamp"]) / 1e9
