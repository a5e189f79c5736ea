"""Traces of PyTorch's profiler (Kineto's Chrome JSON) from CUDA, ROCm, XPU and CPU."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec

from tensorprimat.core.errors import InputError
from tensorprimat.core.notices import Notice
from tensorprimat.traces.record import HostSpan, Kernel, Operator, Trace, innermost, nested, own_time

_KINDS = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "memset"}
_HOST_CALLS = {"cuda_runtime", "cuda_driver", "xpu_runtime", "runtime"}
_LAUNCH = re.compile(r"Launch(Cooperative)?Kernel|ModuleLaunch|GraphLaunch|urEnqueueKernelLaunch", re.IGNORECASE)
_WAIT = re.compile(r"(Stream|Device|Event)Synchronize|urQueueFinish|urEventWait")
_MARK = re.compile(r"ProfilerStep#?\d+")
_DATA = re.compile(r"DataLoader.*__next__")
_TRIES = 50  # places at which a cut file may end: an event has few closing brackets inside it


class _Args(msgspec.Struct, gc=False):
    external: Any = msgspec.field(name="External id", default=None)
    correlation: Any = None
    device: Any = None
    stream: Any = None
    bytes: Any = None
    sequence: Any = msgspec.field(name="Sequence number", default=None)
    forward_thread: Any = msgspec.field(name="Fwd thread id", default=None)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())
    grid: msgspec.Raw = msgspec.Raw()


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Any = None
    tid: Any = None
    ts: float = 0.0
    dur: float = 0.0
    args: _Args | None = None


class _Document(msgspec.Struct, gc=False):
    events: list[_Event] = msgspec.field(name="traceEvents")
    devices: list[dict[str, Any]] = msgspec.field(name="deviceProperties", default_factory=list)
    distributed: dict[str, Any] | None = msgspec.field(name="distributedInfo", default=None)


def read_kineto(data: bytes, path: Path) -> list[Trace]:
    """Return the trace of each device. data: the JSON document. Raises InputError for one that is no trace."""
    document, is_cut = _decoded(data, path)
    events = [one for one in document.events if one.ph == "X" and one.cat != "python_function"]
    origin = min((one.ts for one in events), default=0.0)
    threads = _operators(events, origin)
    starts = {thread: [one.start for one in operators] for thread, operators in threads.items()}
    launches = {
        one.args.correlation: one
        for one in events
        if one.cat in _HOST_CALLS and one.args is not None and one.args.correlation
    }
    devices: dict[Any, list[Kernel]] = defaultdict(list)
    seen: set[Any] = set()
    names: dict[str, str] = {}
    for one in events:
        if one.cat not in _KINDS or one.args is None:
            continue
        call = launches.get(one.args.correlation)
        start = (one.ts - origin) / 1e6
        kernel = Kernel(
            names.setdefault(one.name, one.name), start, start + one.dur / 1e6, str(one.args.stream), _KINDS[one.cat],
            bytes=one.args.bytes, grid=bytes(one.args.grid).decode(),
        )  # fmt: skip
        if call is not None:
            seen.add(one.args.correlation)
            kernel.launched = (call.ts - origin) / 1e6
            key = (call.pid, call.tid)
            kernel.operator = innermost(threads.get(key, []), starts.get(key, []), kernel.launched)
        devices[one.args.device].append(kernel)
    lost = [one for key, one in launches.items() if key not in seen and _LAUNCH.search(one.name)]
    host = {
        "marks": _spans(events, origin, _MARK, {"user_annotation", "cpu_op"}),
        "waits": _spans(events, origin, _WAIT, _HOST_CALLS),
        "data_waits": _spans(events, origin, _DATA, {"user_annotation", "cpu_op"}),
    }
    if not devices and threads and not launches:
        devices["cpu"] = [piece for key, found in threads.items() for piece in own_time(found, str(key))]
    facts = document.distributed or {}
    return [
        Trace(
            path=str(path), profiler="PyTorch profiler", device=_device_name(document.devices, device),
            rank=facts.get("rank"), world_size=facts.get("world_size"),
            kernels=sorted(kernels, key=lambda kernel: kernel.start), **host,
            launches=sum(1 for one in launches.values() if _LAUNCH.search(one.name)),
            lost=sorted((one.ts - origin) / 1e6 for one in lost), is_cut=is_cut, has_operators=bool(threads),
            has_shapes=any(one.shapes for found in threads.values() for one in found),
            notices=(Notice("trace_cut", "trace"),) if is_cut else (),
        )
        for device, kernels in devices.items()
    ]  # fmt: skip


def _decoded(data: bytes, path: Path) -> tuple[_Document, bool]:
    """Return the document, and True if its end is missing."""
    listed = data.lstrip()[:1] == b"["
    decoder: Any = msgspec.json.Decoder(list[_Event] if listed else _Document, strict=False)

    def document(text: bytes | memoryview) -> _Document:
        found = decoder.decode(text)
        return _Document(events=found) if listed else found

    try:
        return document(data), False
    except msgspec.ValidationError as error:
        raise InputError(f"no trace of PyTorch's profiler: {error}", path=path) from error
    except msgspec.DecodeError as error:
        problem = error
    end = len(data)
    for _ in range(_TRIES):
        end = data.rfind(b"}", 0, end)
        if end < 0:
            break
        try:
            return document(data[: end + 1] + (b"]" if listed else b"]}")), True
        except msgspec.DecodeError:
            continue
    raise InputError(f"no trace of PyTorch's profiler: {problem}", path=path)


def _operators(events: list[_Event], origin: float) -> dict[Any, list[Operator]]:
    """Return the operators and annotations of each thread of the host, without the marks of steps."""
    threads: dict[Any, list[Operator]] = defaultdict(list)
    names: dict[str, str] = {}
    kept: dict[bytes, bytes] = {}
    for one in events:
        if one.cat not in ("cpu_op", "user_annotation") or _MARK.match(one.name) or _DATA.search(one.name):
            continue
        start = (one.ts - origin) / 1e6
        operator = Operator(names.setdefault(one.name, one.name), start, start + one.dur / 1e6)
        operator.is_range = one.cat == "user_annotation"
        if one.args is not None:
            operator.is_forward = one.args.sequence is not None and not one.args.forward_thread
            operator.shapes = kept.setdefault(bytes(one.args.dims), bytes(one.args.dims))
            operator.types = kept.setdefault(bytes(one.args.types), bytes(one.args.types))
        threads[one.pid, one.tid].append(operator)
    return {thread: nested(operators) for thread, operators in threads.items()}


def _spans(events: list[_Event], origin: float, name: re.Pattern[str], categories: set[str]) -> list[HostSpan]:
    """Return the ranges of the host whose name matches, in the order of their start."""
    found = (one for one in events if one.cat in categories and name.search(one.name))
    spans = (HostSpan((one.ts - origin) / 1e6, (one.ts + one.dur - origin) / 1e6, one.name) for one in found)
    return sorted(spans, key=lambda span: span.start)


def _device_name(devices: list[dict[str, Any]], device: Any) -> str | None:
    """Return the name of a device; cpu where no GPU has worked."""
    if device == "cpu":
        return "cpu"
    by_id = {one.get("id"): one.get("name") for one in devices}
    names = set(by_id.values())
    return by_id.get(device, names.pop() if len(names) == 1 else None)
