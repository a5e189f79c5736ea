"""A recording: what every reader hands over, in the order of its file, and how it becomes the trace of each device."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorprimat.core.notices import Notice
from tensorprimat.traces.record import HostSpan, Kernel, Operator, Trace, innermost, nested, own_time

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
            thread: nested(one for one in found if not (mark.search(one.name) or _DATA.search(one.name)))
            for thread, found in self.ranges.items()
        }
        starts = {thread: [one.start for one in found] for thread, found in threads.items()}
        by_key = {call.key: call for call in self.calls if call.key}
        devices: dict[Any, list[Kernel]] = defaultdict(list)
        launching: dict[Any, set[Hashable]] = defaultdict(set)
        seen: set[Hashable] = set()
        for device, key, kernel in self.work:
            call = by_key.get(key)
            if call is not None:
                seen.add(key)
                launching[device].add(call.thread)
                kernel.launched, kernel.queued, kernel.in_graph = call.start, call.end, _GRAPH in call.name
                kernel.operator = innermost(threads.get(call.thread, []), starts.get(call.thread, []), call.start)
            devices[device].append(kernel)
        launches = [call for call in by_key.values() if _LAUNCH.search(call.name)]
        gpu_is_missing = self.is_cut and self.devices  # the file ends before the work of its GPU
        if not devices and any(threads.values()) and not self.calls and not gpu_is_missing:
            devices["cpu"] = [piece for thread, found in threads.items() for piece in own_time(found, str(thread))]
        waits = [HostSpan(call.start, call.end) for call in self.calls if _WAIT.search(call.name)]
        return [
            Trace(
                path=self.path, profiler=self.profiler, device="cpu" if device == "cpu" else self._name(device),
                rank=self.rank, world_size=self.world_size, kernels=sorted(kernels, key=lambda kernel: kernel.start),
                marks=self._spans(mark, launching[device]), waits=sorted(waits, key=lambda span: span.start),
                data_waits=self._spans(_DATA, launching[device]),
                launches=len(launches), lost=sorted(call.start for call in launches if call.key not in seen),
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
