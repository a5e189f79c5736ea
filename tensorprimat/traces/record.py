"""The record of a profiler's trace: what one GPU (or one CPU process) did, and what launched it.

A reader hands over a Recording, in the order of its file, which becomes the Trace of each device. Times are in seconds
from the start of the trace. A trace is a profile and never a benchmark's result.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorprimat.core.notices import Notice

BACKWARD = re.compile(r"Backward\d*$|^autograd::engine::evaluate_function")
"""Operators of autograd's backward pass."""
SDPA = "aten::_scaled_dot_product_"
"""Begin of the names of PyTorch's operators of an attention."""
_MARKS = (
    re.compile(r"^ProfilerStep#?\d+"),
    re.compile(r"(?i)^(train(ing)?[ _])?(step|iter(ation)?)[ _#:]*\d+$"),
    re.compile(r"^execute_(\w+_)?context_\d+"),
)
"""Ranges that mark a step: of PyTorch's profiler, of a program's own, of an inference server; the first that occur."""
_LAUNCH = re.compile(r"Launch(Cooperative)?Kernel|ModuleLaunch|GraphLaunch|urEnqueueKernelLaunch", re.IGNORECASE)
_GRAPH = "GraphLaunch"
_WAIT = re.compile(r"(Stream|Device|Event)Synchronize|urQueueFinish|urEventWait")
_DATA = re.compile(r"DataLoader.*__next__")


def recorded_list(text: bytes) -> list[Any]:
    """Return a list that a profiler recorded as JSON; an empty one where it recorded something else."""
    found = json.loads(text) if text else []
    return found if isinstance(found, list) else []


@dataclass(eq=False, slots=True)
class Operator:
    """An operator or an annotated range of the host, inside of the one that called it."""

    name: str
    start: float
    end: float
    parent: Operator | None = None
    is_forward: bool = False
    """True if autograd recorded it as a part of a forward pass (it has a sequence number)."""
    is_range: bool = False
    """True for a range that the program annotated; it is no work."""
    shapes: bytes = b""
    """Shapes of its inputs as JSON, as the profiler recorded them; empty where it did not."""
    types: bytes = b""
    """Types of its inputs likewise."""
    values: bytes = b""
    """Values of its scalar inputs likewise, of an attention only."""
    _chain: tuple[str, ...] | None = None
    _is_backward: bool | None = None

    @property
    def chain(self) -> tuple[str, ...]:
        """Names from the outermost range to this one."""
        if self._chain is None:  # functools.cached_property takes a lock for each, and needs a dict
            self._chain = (*(self.parent.chain if self.parent else ()), self.name)
        return self._chain

    @property
    def is_backward(self) -> bool:
        """True inside of the backward pass."""
        if self._is_backward is None:
            self._is_backward = bool(BACKWARD.search(self.name)) or bool(self.parent and self.parent.is_backward)
        return self._is_backward

    @property
    def is_recomputed(self) -> bool:
        """True if the operator repeats a part of the forward pass inside of the backward pass."""
        if BACKWARD.search(self.name):
            return False
        inside = self.parent is not None and self.parent.is_backward
        own = self.is_forward and inside and not self.name.startswith("torch::autograd::")
        return own or bool(self.parent and self.parent.is_recomputed)


@dataclass(eq=False, slots=True)
class Kernel:
    """Work of the device: a kernel, a copy or a memset; on a CPU, the time of an operator without those inside it."""

    name: str
    start: float
    end: float
    stream: str
    kind: str = "kernel"
    """kernel, copy or memset."""
    launched: float | None = None
    """Start of the host's call that launched it; None where the trace has none."""
    queued: float | None = None
    """End of that call."""
    in_graph: bool = False
    """True if that call launched a CUDA graph."""
    operator: Operator | None = None
    grid: str = ""
    bytes: float | None = None

    @property
    def chain(self) -> tuple[str, ...]:
        """Names of the operators that launched it, the outermost first."""
        return self.operator.chain if self.operator else ()


@dataclass(frozen=True)
class HostSpan:
    """A range of time."""

    start: float
    end: float
    name: str = ""


@dataclass(kw_only=True)
class Trace:
    """The record of one device by a profiler. Kernels are in the order of their start."""

    path: str
    profiler: str
    device: str | None = None
    """Name of the device; cpu for a trace without a GPU."""
    rank: int | None = None
    world_size: int | None = None
    kernels: list[Kernel] = field(default_factory=list)
    marks: list[HostSpan] = field(default_factory=list)
    """Steps as the host ran them (ProfilerStep)."""
    waits: list[HostSpan] = field(default_factory=list)
    """Calls in which the host waited for the device."""
    data_waits: list[HostSpan] = field(default_factory=list)
    """Time in which the host waited for the next batch."""
    launches: int = 0
    lost: list[float] = field(default_factory=list)
    """Times of launches whose kernels the trace does not have."""
    graphs: list[float] = field(default_factory=list)
    """Times of launches of CUDA graphs of which the trace has no kernel."""
    is_cut: bool = False
    has_operators: bool = False
    has_shapes: bool = False
    notices: tuple[Notice, ...] = ()

    @property
    def on_cpu(self) -> bool:
        """True for a trace without a GPU."""
        return self.device == "cpu"


@dataclass(eq=False, slots=True)
class HostCall:
    """A call of the runtime. key: the number by which a kernel names the call that launched it."""

    name: str
    start: float
    end: float
    thread: Hashable
    key: Hashable = None


@dataclass(kw_only=True)
class Recording:
    """The content of a file. Times are in seconds from any origin."""

    path: str
    profiler: str
    work: list[tuple[Any, Hashable, Kernel]] = field(default_factory=list)
    """Device, key of the launch, and kernel."""
    calls: list[HostCall] = field(default_factory=list)
    ranges: Mapping[Hashable, list[Operator]] = field(default_factory=lambda: defaultdict(list))
    """Operators and annotated ranges by thread; those that mark a step or wait for data become spans."""
    devices: Mapping[Any, str | None] = field(default_factory=dict)
    """Names of the devices."""
    rank: int | None = None
    world_size: int | None = None
    is_cut: bool = False

    def traces(self) -> list[Trace]:
        """Return the trace of each device; of a recording without calls to a device, that of the operators."""
        mark = next((one for one in _MARKS if self._spans(one)), _MARKS[0])
        threads = {
            thread: _nested(one for one in found if not (mark.search(one.name) or _DATA.search(one.name)))
            for thread, found in self.ranges.items()
        }
        starts = {thread: [one.start for one in found] for thread, found in threads.items()}
        by_key = {call.key: call for call in self.calls if call.key}
        devices: dict[Any, list[Kernel]] = defaultdict(list)
        launching: dict[Any, set[Hashable]] = defaultdict(set)
        seen: set[Hashable] = set()
        for device, key, kernel in self.work:
            kernel.end = max(kernel.end, kernel.start)  # a damaged file may have it before the start
            call = by_key.get(key)
            if call is not None:
                seen.add(key)
                launching[device].add(call.thread)
                kernel.launched, kernel.queued, kernel.in_graph = call.start, call.end, _GRAPH in call.name
                kernel.operator = _innermost(threads.get(call.thread, []), starts.get(call.thread, []), call.start)
            devices[device].append(kernel)
        launches = [call for call in by_key.values() if _LAUNCH.search(call.name)]
        without = sorted((call for call in launches if call.key not in seen), key=lambda call: call.start)
        gpu_is_missing = self.is_cut and self.devices  # the file ends before the work of its GPU
        if not devices and any(threads.values()) and not self.calls and not gpu_is_missing:
            devices["cpu"] = [piece for thread, found in threads.items() for piece in _own_time(found, str(thread))]
        waits = [HostSpan(call.start, call.end) for call in self.calls if _WAIT.search(call.name)]
        return [
            Trace(
                path=self.path, profiler=self.profiler, device="cpu" if device == "cpu" else self._name(device),
                rank=self.rank, world_size=self.world_size, kernels=sorted(kernels, key=lambda kernel: kernel.start),
                marks=self._spans(mark, launching[device]), waits=sorted(waits, key=lambda span: span.start),
                data_waits=self._spans(_DATA, launching[device]),
                launches=len(launches), lost=[call.start for call in without if _GRAPH not in call.name],
                graphs=[call.start for call in without if _GRAPH in call.name],
                is_cut=self.is_cut, has_operators=any(threads.values()),
                has_shapes=any(one.shapes for found in threads.values() for one in found),
                notices=(Notice("trace_cut", "trace"),) if self.is_cut else (),
            )
            for device, kernels in devices.items()
        ]  # fmt: skip

    def _spans(self, name: re.Pattern[str], threads: Collection[Hashable] = ()) -> list[HostSpan]:
        """Return the ranges of the host whose name matches, in the order of their start.

        threads: those that launch a device's work; ranges of others count only where these have none.
        """
        every = {thread: [one for one in found if name.search(one.name)] for thread, found in self.ranges.items()}
        chosen = [thread for thread in threads if every.get(thread)] or list(every)
        found = (one for thread in chosen for one in every[thread])
        return sorted((HostSpan(one.start, one.end, one.name) for one in found), key=lambda span: span.start)

    def _name(self, device: Any) -> str | None:
        names = set(self.devices.values())
        return self.devices.get(device, names.pop() if len(names) == 1 else None)


def _nested(operators: Iterable[Operator]) -> list[Operator]:
    """Return the operators of one thread in the order of their start, each with the one that contains it as parent."""
    ordered = sorted(operators, key=lambda one: (one.start, -one.end))
    open_ones: list[Operator] = []
    for one in ordered:
        while open_ones and open_ones[-1].end <= one.start:
            open_ones.pop()
        one.parent = open_ones[-1] if open_ones else None
        open_ones.append(one)
    return ordered


def _innermost(operators: list[Operator], starts: list[float], moment: float) -> Operator | None:
    """Return the innermost operator of a thread at a moment. operators: as `_nested` gives them, with their starts."""
    place = bisect_right(starts, moment) - 1
    found = operators[place] if place >= 0 else None
    while found is not None and found.end < moment:
        found = found.parent
    return found


def _own_time(operators: list[Operator], thread: str) -> list[Kernel]:
    """Return the time of each operator of a thread without the operators inside it. operators: as `_nested` gives them.

    The time of annotated ranges and of autograd itself is left out: there the host works, and no operator.
    """
    pieces: list[Kernel] = []
    open_ones: list[Operator] = []
    moment = 0.0

    def until(end: float) -> None:
        nonlocal moment
        top = open_ones[-1] if open_ones else None
        if top is not None and end > moment and not top.is_range and not BACKWARD.search(top.name):
            pieces.append(Kernel(top.name, moment, end, thread, launched=moment, operator=top))
        moment = max(moment, end)

    for one in operators:
        while open_ones and open_ones[-1].end <= one.start:
            until(open_ones[-1].end)
            open_ones.pop()
        until(one.start)
        open_ones.append(one)
    while open_ones:
        until(open_ones[-1].end)
        open_ones.pop()
    return pieces
