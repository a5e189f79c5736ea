"""Clocks for step ends: device events that are read later, or the host's clock.

A clock marks moments and measures the seconds between two marks. `EventClock` puts marks into the device's queue and
never waits for them; a mark may be read only after the device has passed it (`reached`).
"""

from __future__ import annotations

import time
from typing import Any

StepMark = Any
"""A moment, as its clock stores it."""


class Clock:
    """The host's monotonic clock: exact on a CPU, where the work is done when the call returns."""

    name = "wall clock"
    """Value of provenance.timer."""
    is_queued = False
    """True if the device reaches a mark after the host has made it, so that the device may wait for the host."""

    def mark(self) -> StepMark:
        """Return the moment at which the device finishes the work queued so far (or now, on a host clock)."""
        return time.perf_counter()

    def reached(self, mark: StepMark) -> bool:  # noqa: ARG002  a host clock's marks are always past
        """Return True if a mark can be read without waiting."""
        return True

    def seconds(self, start: StepMark, end: StepMark) -> float:
        """Return the seconds from one reached mark to another."""
        return float(end - start)

    def release(self, mark: StepMark) -> None:
        """Take back a mark that nothing will read again, for a later moment."""

    def synchronise(self) -> None:
        """Wait until the device has finished everything queued."""


class SynchronisedClock(Clock):
    """The host's clock after waiting for the device: exact, but the device idles at every mark."""

    name = "synchronised wall clock"

    def mark(self) -> StepMark:
        self.synchronise()
        return super().mark()

    def synchronise(self) -> None:
        import torch

        torch.cuda.synchronize()


class EventClock(SynchronisedClock):
    """CUDA or HIP events on the current stream, exact to about 0.5 µs; the host never waits for the device."""

    name = "device events"
    is_queued = True

    def __init__(self) -> None:
        self._free: list[StepMark] = []  # to create and to destroy an event are calls of the driver, as its use

    def mark(self) -> StepMark:
        import torch

        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def release(self, mark: StepMark) -> None:
        self._free.append(mark)

    def reached(self, mark: StepMark) -> bool:
        return bool(mark.query())

    def seconds(self, start: StepMark, end: StepMark) -> float:
        return float(start.elapsed_time(end)) / 1e3  # torch gives milliseconds


def choose_clock(device_type: str, *, sync: bool) -> Clock:
    """Return the clock for a device ("cuda" also names ROCm). sync: wait for the device at every step."""
    if device_type != "cuda":
        return Clock()
    return SynchronisedClock() if sync else EventClock()
