"""Traces of PyTorch's profiler (Kineto's Chrome JSON) from CUDA, ROCm, XPU and CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tensorprimat.core.errors import InputError
from tensorprimat.traces.record import SDPA, HostCall, Kernel, Operator, Recording, Trace

_KINDS = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "memset"}
_HOST_CALLS = {"cuda_runtime", "cuda_driver", "xpu_runtime", "runtime"}
_OF_OTHERS = {"mtia_ccp_events", "hpu_op"}
"""Categories of devices whose work is not read."""
_RANGES = {"cpu_op", "user_annotation"}
_TRIES = 50  # places at which a cut file may end: an event has few closing brackets inside it


_Key = int | str | float | None
"""Number or name of a process, thread, device or launch."""


class _Args(msgspec.Struct, gc=False):
    correlation: _Key = None
    device: _Key = None
    stream: _Key = None
    bytes: float | None = None
    sequence: Any = msgspec.field(name="Sequence number", default=None)
    forward_thread: Any = msgspec.field(name="Fwd thread id", default=None)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())
    values: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=msgspec.Raw())
    grid: msgspec.Raw = msgspec.Raw()


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: _Key = None
    tid: _Key = None
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
    del data  # the document contains it as long as it needs it
    events = [one for one in document.events if one.ph == "X" and one.cat != "python_function"]
    document.events.clear()
    if others := _OF_OTHERS.intersection(one.cat for one in events):
        raise InputError(f"work of a device that is not known ({', '.join(sorted(others))})", path=path)
    origin = min((one.ts for one in events), default=0.0)
    facts = document.distributed or {}
    made = Recording(
        path=str(path), profiler="PyTorch profiler", is_cut=is_cut, rank=facts.get("rank"),
        world_size=facts.get("world_size"), devices={one.get("id"): one.get("name") for one in document.devices},
    )  # fmt: skip
    names: dict[str, str] = {}
    kept: dict[bytes, bytes] = {}
    for one in events:
        start = (one.ts - origin) / 1e6
        end, name = start + max(one.dur, 0.0) / 1e6, names.setdefault(one.name, one.name)
        args = one.args or _Args()
        if one.cat in _KINDS:
            grid = bytes(args.grid).decode()
            kernel = Kernel(name, start, end, str(args.stream), _KINDS[one.cat], grid=grid, bytes=args.bytes)
            made.work.append((args.device, args.correlation, kernel))
        elif one.cat in _HOST_CALLS:
            made.calls.append(HostCall(name, start, end, (one.pid, one.tid), args.correlation))
        elif one.cat in _RANGES:
            operator = Operator(name, start, end, is_range=one.cat == "user_annotation")
            operator.is_forward = args.sequence is not None and not args.forward_thread
            operator.shapes, operator.types = (
                kept.setdefault(text, text) for text in (bytes(args.dims), bytes(args.types))
            )
            if name.startswith(SDPA):
                operator.values = bytes(args.values)
            made.ranges[one.pid, one.tid].append(operator)
    return made.traces()


def _decoded(data: bytes, path: Path) -> tuple[_Document, bool]:
    """Return the document, and True if its end is missing."""
    listed = data[:100].lstrip()[:1] == b"["
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
