"""Steps of a trace: by the profiler's marks, else by the optimizer's kernels, else by repetition."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tensorprimat.core import quantities
from tensorprimat.core.errors import InputError
from tensorprimat.traces.classes import CLIPPING, COMMUNICATION, COPIES, OPTIMIZER
from tensorprimat.traces.record import Kernel, Trace

_BETWEEN = 0.01  # of a trace's other kernels: as many between two of the optimizer separate two steps
_WHOLE = 0.02  # by which the kernels of a whole step may differ from the median of the steps
_MOST_LOST = 0.01  # of launches without a kernel


@dataclass(frozen=True, kw_only=True)
class StepWindows:
    """Windows of time, one for each whole step, and how they were found."""

    windows: tuple[tuple[float, float], ...]
    by: str
    """marks, optimizer, repetition or whole."""
    marks: tuple[str, ...] = ()
    """Mark of each window; empty where marks did not find them."""
    left_out: int = 0
    """Partial steps at the ends."""
    clock_seconds: float | None = None
    """Time of these steps by the host's marks, from the first kernel on; None without marks, or where the host did
    not wait for the device."""

    def only(self, marked: Collection[str]) -> StepWindows:
        """Return the windows with these marks, without a clock."""
        kept = [place for place, mark in enumerate(self.marks) if mark in marked]
        windows, marks = tuple(self.windows[one] for one in kept), tuple(self.marks[one] for one in kept)
        return replace(self, windows=windows, marks=marks, clock_seconds=None)


def find_steps(trace: Trace, classes: Sequence[str], *, whole: bool = False) -> StepWindows:
    """Return the whole steps of a trace. Raises InputError if it has none, or has lost too many kernels.

    whole: all of the trace is one step, whatever it contains.
    """
    work = [place for place, name in enumerate(classes) if name != COPIES and not name.startswith(COMMUNICATION)]
    if not work:
        raise InputError("no work of a GPU is in the trace; profile with GPU activities", path=trace.path)
    if whole:
        end = max(kernel.end for kernel in trace.kernels)
        return _whole(trace, StepWindows(windows=((trace.kernels[0].start, end),), by="whole"), work)
    found = _by_marks(trace, work) or _by_optimizer(trace, classes, work) or _by_repetition(trace, work)
    if found is None or not found.windows:
        if trace.is_cut:
            raise InputError("the file ends in the middle, before the end of a step; profile fewer", path=trace.path)
        raise InputError(
            "no steps: neither marks of the profiler nor an optimizer nor repetition; profile several steps with "
            "profiler.step(), or give --whole if the trace is one step",
            path=trace.path,
        )
    return _whole(trace, found, work)


def _whole(trace: Trace, found: StepWindows, work: Sequence[int]) -> StepWindows:
    """Return the steps without partial ones, and without those of a cut trace that lack kernels."""
    starts = [trace.kernels[place].start for place in work]
    counts = [bisect_left(starts, end) - bisect_left(starts, start) for start, end in found.windows]
    kept = _of_cut(trace, found.windows, counts, starts) if trace.is_cut else _of_like_work(found.windows, counts)
    share = len(trace.lost) / trace.launches if trace.launches else 0.0
    if share > _MOST_LOST:
        complete = [window for window in kept if window[1] < trace.lost[0]]
        if not trace.is_cut or not complete:
            raise InputError(
                f"{len(trace.lost)} of {quantities.count(trace.launches)} launches have no kernel in the trace "
                f"({quantities.percent(share)}), so its times are not whole; profile fewer steps",
                path=trace.path,
            )
        kept = complete
    left_out = found.left_out + len(found.windows) - len(kept)
    clock = found.clock_seconds if len(kept) == len(found.windows) else None
    mark_of = {end: mark for (_, end), mark in zip(found.windows, found.marks, strict=False)}
    marks = tuple(mark_of[end] for _, end in kept) if mark_of else ()
    return StepWindows(windows=tuple(kept), by=found.by, marks=marks, left_out=left_out, clock_seconds=clock)


def _of_like_work(windows: Sequence[tuple[float, float]], counts: Sequence[int]) -> list[tuple[float, float]]:
    """Return the windows with as many kernels as most; all of them if their work is unlike, as of dynamic shapes."""
    usual = statistics.median(counts)
    kept = [window for window, count in zip(windows, counts, strict=True) if abs(count - usual) <= _WHOLE * usual]
    return kept if len(kept) > 1 else list(windows)


def _of_cut(
    trace: Trace, windows: Sequence[tuple[float, float]], counts: Sequence[int], starts: Sequence[float]
) -> list[tuple[float, float]]:
    """Return the windows of a cut trace with as many kernels as the fullest. Raises InputError if no two are alike.

    The end of a partial step is unknown, so that a step after one begins with its own first kernel.
    """
    full = [count >= (1 - _WHOLE) * max(counts) for count in counts]
    if sum(full) < 2:
        message = "the file ends in the middle, and no two of its steps are alike, so none is surely whole"
        raise InputError(message, path=trace.path)
    return [
        (start if not place or full[place - 1] else starts[bisect_left(starts, start)], end)
        for place, (start, end) in enumerate(windows)
        if full[place]
    ]


def _windows(groups: Sequence[Sequence[Kernel]], first: float) -> list[tuple[float, float]]:
    """Return a window for each group with kernels, from the end of the one before, if that has any, to its own end."""
    found: list[tuple[float, float]] = []
    began: float | None = first
    for group in groups:
        if not group:
            began = None  # a step without its kernels: the next one begins with its own
            continue
        start, end = min(kernel.start for kernel in group) if began is None else began, max(one.end for one in group)
        if end > start:
            found.append((start, end))
        began = max(start, end)
    return found


def _by_marks(trace: Trace, work: Sequence[int]) -> StepWindows | None:
    marks = trace.marks
    if not marks:
        return None
    first = next((order for order, place in enumerate(work) if trace.kernels[place].launched is not None), 0)
    if 2 * first < len(work):  # the launches of those before precede the trace, and those of most others are in it
        work = work[first:]
    starts = [mark.start for mark in marks]
    groups: list[list[Kernel]] = [[] for _ in marks]
    for place in work:
        kernel = trace.kernels[place]
        step = bisect_right(starts, kernel.start if kernel.launched is None else kernel.launched) - 1
        if step >= 0 and (step + 1 < len(marks) or kernel.launched is None or kernel.launched <= marks[-1].end):
            groups[step].append(kernel)
    filled = [(mark, group) for mark, group in zip(marks, groups, strict=True) if group]
    if not filled:
        return None
    left_out = len(marks) - len(filled)
    until = {mark: following.start for mark, following in pairwise(marks)}  # a step includes what follows its mark
    spans = tuple((mark.start, until.get(mark, mark.end)) for mark, _ in filled)
    clock = sum(end - start for start, end in spans)
    names = tuple(mark.name for mark, _ in filled)
    if trace.on_cpu or all(max(kernel.end for kernel in group) <= mark.end for mark, group in filled):
        return StepWindows(windows=spans, by="marks", marks=names, clock_seconds=clock, left_out=left_out)
    begin = min(kernel.start for kernel in filled[0][1])  # the host runs ahead: the device's own ends are the steps
    found = tuple(_windows(groups, begin))
    waited = found[-1][1] <= filled[-1][0].end and len(found) == len(filled)
    clock_seconds = clock - max(0.0, begin - spans[0][0]) if waited else None
    names = names if len(found) == len(filled) else ()
    return StepWindows(windows=found, by="marks", marks=names, clock_seconds=clock_seconds, left_out=left_out)


def _by_optimizer(trace: Trace, classes: Sequence[str], work: Sequence[int]) -> StepWindows | None:
    if not any(name == OPTIMIZER for name in classes):
        return None
    places = [order for order, place in enumerate(work) if classes[place] in (OPTIMIZER, CLIPPING)]
    between = max(1.0, _BETWEEN * (len(work) - len(places)))
    last = [one for one, following in pairwise(places) if following - one > between] + places[-1:]
    kernels = [trace.kernels[place] for place in work]
    windows = _windows([[kernels[order]] for order in last], kernels[0].start)
    tail = len(kernels) - 1 - last[-1]
    return StepWindows(windows=tuple(windows), by="optimizer", left_out=int(tail > between))


def _by_repetition(trace: Trace, work: Sequence[int]) -> StepWindows | None:
    """Return steps that begin with a kernel whose occurrences divide the trace into parts of like kernels."""
    names = [trace.kernels[place].name for place in work]
    for name, count in sorted(Counter(names).items(), key=lambda item: item[1]):
        if count < 3:
            continue
        places = [order for order, one in enumerate(names) if one == name]
        parts = [Counter(names[one:other]) for one, other in pairwise(places)]
        ends = set(names[: places[0]]) | set(names[places[-1] :])
        if all(part == parts[0] for part in parts) and ends <= parts[0].keys():  # else these are the layers of one step
            starts = [trace.kernels[work[order]].start for order in places]
            return StepWindows(windows=tuple(pairwise(starts)), by="repetition", left_out=2)
    return None
