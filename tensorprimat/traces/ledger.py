"""The ledger of a step: the seconds of each class of work, which sum to the time of the step.

Each moment belongs to one class. Where several kernels run at once, computation comes before communication and
communication before copies, and of two of a kind the one that began first; where none runs, the moment is a gap.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tensorprimat.core.notices import Notice
from tensorprimat.core.result import Result
from tensorprimat.traces.classes import COMMUNICATION, COPIES, UNKNOWN, classify, place_of
from tensorprimat.traces.record import Kernel, Trace
from tensorprimat.traces.steps import StepWindows, find_steps

CLOSURE = 0.005  # by which the sum may differ from an independent clock
UNEXPLAINED = 0.02  # of a step that unknown kernels and unexplained gaps may take
QUEUE_SECONDS = 10e-6  # between two queued kernels: the device's own time; traces of H100 and H200 show 1 to 3 µs
LAUNCH_SECONDS = 20e-6  # from the host's call to the start on an idle GPU: 5 µs in traces of H100, 17 µs of MI300X
_AFTER_WAIT = 20e-6  # from the end of the device's work to the end of the host's call that waits for it

_Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class KernelTotal:
    """The kernels of one name in one class."""

    name: str
    seconds: float
    """Exclusive seconds of a step."""
    launches: float
    """Launches of a step."""


@dataclass(frozen=True, kw_only=True)
class DeviceSpan:
    """The time from the first to the last kernel, wherever steps begin: what HolisticTraceAnalysis divides."""

    seconds: float
    idle_share: float
    """Share of it in which nothing ran."""
    overlap_share: float | None
    """Share of the communication that ran while something was computed; None without communication."""


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The account of a trace's steps."""

    trace: Trace
    steps: StepWindows
    by_step: tuple[Mapping[str, float], ...]
    """Seconds of each class in each step."""
    items: Mapping[str, tuple[KernelTotal, ...]]
    """Kernels of each class, the longest first."""
    hidden_communication: float
    """Seconds of a step in which communication ran while something was computed."""
    span: DeviceSpan | None = None
    """None on a CPU."""
    members: Mapping[str, tuple[Kernel, ...]] = field(default_factory=dict)
    """Kernels of each class that start within the steps."""
    notices: tuple[Notice, ...] = ()

    @property
    def classes(self) -> dict[str, float]:
        """Mean seconds of each class, in the order of the ledger."""
        names = sorted({name for step in self.by_step for name in step}, key=lambda name: (place_of(name), name))
        return {name: float(np.mean([step.get(name, 0.0) for step in self.by_step])) for name in names}

    @property
    def step_seconds(self) -> float:
        """Mean time of a step."""
        return float(np.mean([end - start for start, end in self.steps.windows]))

    @property
    def closure(self) -> float | None:
        """Difference of the ledger's sum from the host's clock, as a share of it; None without such a clock."""
        clock = self.steps.clock_seconds
        return None if clock is None else sum(sum(step.values()) for step in self.by_step) / clock - 1

    @property
    def unknown_share(self) -> float:
        """Share of the step in unknown kernels."""
        return self.classes.get(UNKNOWN, 0.0) / self.step_seconds

    def launches(self, prefix: str) -> float:
        """Return the launches of a step in all classes whose name begins so."""
        return sum(item.launches for name, items in self.items.items() if name.startswith(prefix) for item in items)

    def kernels(self, *prefixes: str) -> list[Kernel]:
        """Return the kernels of the steps in all classes whose name begins with one of these."""
        return [kernel for name, found in self.members.items() if name.startswith(prefixes) for kernel in found]

    def seconds(self, *prefixes: str) -> float:
        """Return the seconds of a step in all classes whose name begins with one of these."""
        return sum(time for name, time in self.classes.items() if name.startswith(prefixes))


def ledger_of(trace: Trace, *, whole: bool = False, marked: Collection[str] = ()) -> Ledger:
    """Return the ledger of a trace. whole: the trace is one step; marked: of the steps with these marks only.

    Raises InputError for a trace without whole steps.
    """
    classes = classify(trace)
    steps = find_steps(trace, classes, whole=whole)
    if marked:
        steps = steps.only(marked)
    starts = np.array([kernel.start for kernel in trace.kernels])
    ends = np.array([kernel.end for kernel in trace.kernels])
    rank = np.array([2 if name == COPIES else int(name.startswith(COMMUNICATION)) for name in classes])
    by_step, hidden = [], 0.0
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    launches: Counter[tuple[str, str]] = Counter()
    members: dict[str, list[Kernel]] = defaultdict(list)
    for start, end in steps.windows:
        within = np.flatnonzero((ends > start) & (starts < end))
        begun, done = np.clip(starts[within], start, end), np.clip(ends[within], start, end)
        own, covered = _exclusive(begun, done, rank[within])
        hidden += covered
        step: dict[str, float] = defaultdict(float)
        for place, time in zip(within, own, strict=True):
            kernel, name = trace.kernels[place], classes[place]
            step[name] += float(time)
            key = (name, short_name(kernel.name))
            seconds[key] += float(time)
            if start <= kernel.start < end and (kernel.kind == "kernel" or name == COPIES):
                launches[key] += 1
                members[name].append(kernel)
        for name, time in _gaps(trace, begun, done, start, end):
            step[name] += time
        by_step.append(dict(step))
    count = len(steps.windows)
    items: dict[str, list[KernelTotal]] = defaultdict(list)
    for (name, kernel_name), time in sorted(seconds.items(), key=lambda item: -item[1]):
        total = launches[name, kernel_name]
        items[name].append(KernelTotal(name=kernel_name, seconds=time / count, launches=total / count))
    made = Ledger(
        trace=trace, steps=steps, by_step=tuple(by_step), items={name: tuple(found) for name, found in items.items()},
        hidden_communication=hidden / count, span=_span(trace, starts, ends, rank),
        members={name: tuple(found) for name, found in members.items()},
    )  # fmt: skip
    return replace(made, notices=(*trace.notices, *_notices(made)))


def _span(trace: Trace, starts: _Floats, ends: _Floats, rank: NDArray[np.int64]) -> DeviceSpan | None:
    """Return the span of a trace's kernels; of several marked steps, of those that are surely complete.

    The kernels of the last mark may be missing, and those launched before the trace are only partly in it.
    """
    if len(trace.marks) > 1:
        last = trace.marks[-1].start
        chosen = [one.launched is not None and one.launched < last for one in trace.kernels]
        starts, ends, rank = starts[chosen], ends[chosen], rank[chosen]
    if trace.on_cpu or not len(starts):
        return None
    own, hidden = _exclusive(starts, ends, rank)
    seconds, shown = float(ends.max() - starts.min()), float(own[rank == 1].sum())
    return DeviceSpan(
        seconds=seconds, idle_share=1 - float(own.sum()) / seconds,
        overlap_share=hidden / (hidden + shown) if hidden + shown else None,
    )  # fmt: skip


def with_clock_of(ledger: Ledger, result: Result | None) -> Ledger:
    """Return a ledger without marks of the host with the result's own times of as many last steps as its clock.

    As it is where one of these steps includes other work, such as the writing of the profile.
    """
    if result is None or ledger.steps.clock_seconds is not None or len(result.steps) < len(ledger.by_step):
        return ledger
    last = result.steps.take(slice(-len(ledger.by_step), None))
    times = last.column("seconds")
    if last.column("interrupted_by").any() or not np.isfinite(times).all():
        return ledger
    timed = replace(ledger, steps=replace(ledger.steps, clock_seconds=float(times.sum())))
    off = [one for one in _notices(timed) if one.code == "trace_not_closed"]
    return replace(timed, notices=(*timed.notices, *off))


def _notices(ledger: Ledger) -> list[Notice]:
    """Return what limits a ledger."""
    found = []
    open_share = ledger.unknown_share + ledger.classes.get("gap_unexplained", 0.0) / ledger.step_seconds
    if open_share > UNEXPLAINED:
        has_calls = any(one.launched is not None for one in ledger.trace.kernels)
        found.append(Notice("trace_unexplained" if has_calls else "trace_without_calls", "ledger", share=open_share))
    if (of_graphs := ledger.classes.get("gap_graph", 0.0) / ledger.step_seconds) > UNEXPLAINED:
        found.append(Notice("trace_graphs", "ledger", share=of_graphs))
    if ledger.closure is not None and abs(ledger.closure) > CLOSURE:
        found.append(Notice("trace_not_closed", "ledger", off=abs(ledger.closure)))
    if lost := sum(start < ledger.steps.windows[-1][1] for start in ledger.trace.lost):
        found.append(Notice("trace_launches_lost", "ledger", lost=lost, launches=ledger.trace.launches))
    if ledger.steps.by == "repetition":
        found.append(Notice("trace_repetition", "steps"))
    elif ledger.steps.left_out:
        found.append(Notice("trace_steps_left_out", "steps", steps=ledger.steps.left_out))
    return found


def _exclusive(starts: _Floats, ends: _Floats, rank: NDArray[np.int64]) -> tuple[_Floats, float]:
    """Return the seconds that belong to each kernel alone, and those of communication under computation.

    starts and ends are in the order of the starts; rank: 0 computes, 1 communicates, 2 copies.
    """
    own = np.zeros(len(starts))
    hidden = 0.0
    above: list[tuple[_Floats, _Floats]] = []
    for level in range(3):
        chosen = np.flatnonzero(rank == level)
        if not len(chosen):
            continue
        begun, done = starts[chosen], ends[chosen]
        frontier = np.concatenate(([-np.inf], np.maximum.accumulate(done)[:-1]))
        first = np.maximum(begun, frontier)
        time = np.maximum(done - first, 0.0)
        if above:
            busy = _union(*map(np.concatenate, zip(*above, strict=True)))
            covered = np.where(time > 0, _covered(busy, np.maximum(done, first)) - _covered(busy, first), 0.0)
            time = time - covered
            hidden += float(covered.sum()) if level == 1 else 0.0
        own[chosen] = time
        above.append((begun, done))
    return own, hidden


def _union(starts: _Floats, ends: _Floats) -> tuple[_Floats, _Floats]:
    """Return disjoint ranges that cover the same time, in order."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    reach = np.maximum.accumulate(ends)
    fresh = np.concatenate(([True], starts[1:] > reach[:-1]))
    last = np.concatenate((np.flatnonzero(fresh)[1:] - 1, [len(starts) - 1]))
    return starts[fresh], reach[last]


def _covered(ranges: tuple[_Floats, _Floats], moments: _Floats) -> _Floats:
    """Return the seconds of disjoint ranges before each moment."""
    starts, ends = ranges
    before = np.concatenate(([0.0], np.cumsum(ends - starts)))
    place = np.searchsorted(starts, moments, side="right")
    inside = np.where(place > 0, np.minimum(moments, ends[place - 1]) - starts[place - 1], 0.0)
    covered: _Floats = before[np.maximum(place - 1, 0)] + inside
    return covered


def _gaps(trace: Trace, begun: _Floats, done: _Floats, start: float, end: float) -> list[tuple[str, float]]:
    """Return the time of a step in which nothing ran, with the reason."""
    if not len(begun):
        return [("gap_unexplained", end - start)]
    starts, ends = _union(begun, done)
    begins = [kernel.start for kernel in trace.kernels]
    gaps = zip((start, *ends), (*starts, end), strict=True)
    found: list[tuple[str, float]] = []
    for began, ended in gaps:
        one, other = float(began), float(ended)
        if other <= one:
            continue
        place = bisect_left(begins, other)  # of the kernel that ends the gap
        kernel = trace.kernels[place] if place < len(begins) else None
        launched = _graph_between(trace, trace.kernels[place - 1] if place else None, kernel, other)
        graph = other if launched is None else min(max(one, launched), other)
        found += _reasons(trace, one, graph, kernel) if graph > one else []
        found += [("gap_graph", other - graph)] if graph < other else []
    return found


def _graph_between(trace: Trace, before: Kernel | None, after: Kernel | None, end: float) -> float | None:
    """Return when the host launched a graph without kernels between two kernels, or None. end: of the gap."""
    since = before.launched if before is not None and before.launched is not None else -math.inf
    until = after.launched if after is not None and after.launched is not None else end
    place = bisect_right(trace.graphs, since)
    return trace.graphs[place] if place < len(trace.graphs) and trace.graphs[place] < until else None


def _reasons(trace: Trace, start: float, end: float, kernel: Kernel | None) -> list[tuple[str, float]]:
    """Return why nothing ran from start to end, by the launch of the kernel that ended the gap."""
    data = sum(max(0.0, min(wait.end, end) - max(wait.start, start)) for wait in trace.data_waits)
    parts = [("data_wait", data)] if data else []
    rest = end - start - data
    if trace.on_cpu or kernel is None:
        return [*parts, ("gap_launch", rest)]
    launched = kernel.launched
    if launched is None or launched <= start:
        late = 0.0 if kernel.queued is None else min(rest, max(0.0, kernel.queued + LAUNCH_SECONDS - start))
        if rest > QUEUE_SECONDS and late:
            parts, rest = [*parts, ("gap_launch", late)], rest - late
        unknown = "gap_graph" if kernel.in_graph else "gap_unexplained"
        return [*parts, ("gap_queue" if rest <= QUEUE_SECONDS else unknown, rest)]
    waited = any(wait.start < start <= wait.end + _AFTER_WAIT and wait.end <= end for wait in trace.waits)
    return [*parts, ("gap_synchronisation" if waited else "gap_launch", rest)]


_TEMPLATE = re.compile(r"^void |\(anonymous namespace\)::|<unnamed>::|at::native::|at::cuda::")


@cache
def short_name(name: str) -> str:
    """Return a kernel's name without its arguments and the namespaces that say nothing.

    >>> short_name("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, float)")
    'vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>'
    """
    plain = _TEMPLATE.sub("", name)
    depth = 0
    for place, letter in enumerate(plain):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth <= 0 and place:
            return plain[:place]
    return plain
