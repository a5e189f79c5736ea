"""Telemetry of a working GPU: power, clocks, utilisation, temperature, and other processes on it.

One interface for every vendor (`Device`), with machine/nvidia.py and machine/amd.py beside it and `Replay` for tests
and for recordings. `Sampler` reads devices in the background. A figure that a device does not give is None.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

SAMPLE_SECONDS = 0.2  # drivers refresh their power figure about ten times a second; twice per refresh says no more
NEAREST_SAMPLE_SECONDS = 1.0  # a step shorter than the sampling takes the sample nearest to it, if that is near


@dataclass(frozen=True, kw_only=True)
class Process:
    """Someone on the device."""

    pid: int
    memory_bytes: float | None = None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One look at one device."""

    power_watts: float | None = None
    energy_joules: float | None = None
    """Since the driver was loaded."""
    power_limit_watts: float | None = None
    clock_hertz: float | None = None
    """Of the compute units."""
    max_clock_hertz: float | None = None
    memory_clock_hertz: float | None = None
    utilisation: float | None = None
    """Fraction of the last sampling period in which any kernel ran."""
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    temperature_celsius: float | None = None
    throttled_by: tuple[str, ...] = ()
    """Why the clock is held down, in words; empty where it is not, or where the device does not say."""
    processes: tuple[Process, ...] = ()


class Device(Protocol):
    """One GPU that can be asked."""

    id: str
    """Its identity, as the driver spells it."""
    name: str

    def read(self) -> Reading:
        """All figures, now."""


class Replay:
    """A device that gives recorded readings in their order, then the last one for ever."""

    def __init__(self, readings: Sequence[Reading], *, id: str = "replay", name: str = "replayed device") -> None:
        if not readings:
            raise ValueError("nothing to replay")
        self.id, self.name = id, name
        self._readings, self._next = tuple(readings), 0

    def read(self) -> Reading:
        reading = self._readings[min(self._next, len(self._readings) - 1)]
        self._next += 1
        return reading


def open_devices(ids: Iterable[str]) -> list[Device]:
    """The devices with these identities (empty: every device), of whichever vendor's package is installed.

    An empty list where no package or no device is there: telemetry is never needed.
    """
    from tensorprimat.machine import amd, nvidia

    wanted = {_bare(identity) for identity in ids}
    devices: list[Device] = [*nvidia.devices(), *amd.devices()]
    return [device for device in devices if not wanted or _bare(device.id) in wanted]


def _bare(identity: str) -> str:
    """An identity without prefix, dashes and case: "GPU-5a…" of NVML is "5a…" of torch."""
    return identity.lower().removeprefix("gpu-").replace("-", "")


def strangers(reading: Reading, *, ours: Iterable[int]) -> tuple[Process, ...]:
    """Processes on the device that are not ours, which are on it. Within a container some drivers number processes as
    the host does: where none of the numbers is ours, as many as we are do not count."""
    own = set(ours)
    others = tuple(process for process in reading.processes if process.pid not in own)
    return others[len(own) :] if len(others) == len(reading.processes) else others


def numbered_as_here(reading: Reading, own: int) -> bool:
    """Return True if the device lists our process under the process id that it has here (False in some containers)."""
    return any(process.pid == own for process in reading.processes)


class Sampler:
    """Reads devices every SAMPLE_SECONDS in a thread of its own, from `start` to `stop`."""

    def __init__(self, devices: Sequence[Device], *, period: float = SAMPLE_SECONDS) -> None:
        self._devices, self._period = tuple(devices), period
        self._times: list[float] = []
        self._watts: list[float] = []
        self._throttled: dict[str, int] = {}
        self._samples = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; without devices there is nothing to do."""
        if self._devices:
            self._thread = threading.Thread(target=self._run, daemon=True, name="telemetry")
            self._thread.start()

    def stop(self) -> None:
        """End; what was sampled stays."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.sample()
            self._stop.wait(self._period)

    def sample(self) -> None:
        """Read every device once."""
        readings = [device.read() for device in self._devices]
        watts = [reading.power_watts for reading in readings if reading.power_watts is not None]
        self._samples += 1
        for why in {why for reading in readings for why in reading.throttled_by}:
            self._throttled[why] = self._throttled.get(why, 0) + 1
        if watts:
            self._watts.append(sum(watts) / len(watts))
            self._times.append(time.time())  # last, so that a reader never finds a time without its value

    def mean_watts(self, start: float, end: float) -> float | None:
        """Mean power per device between two moments in seconds since the epoch; the nearest sample if none fell in."""
        times = self._times[:]
        first, last = bisect_left(times, start), bisect_left(times, end)
        if last > first:
            return sum(self._watts[first:last]) / (last - first)
        near = [index for index in (first - 1, first) if 0 <= index < len(times)]
        if not near:
            return None
        middle = (start + end) / 2
        nearest = min(near, key=lambda index: abs(times[index] - middle))
        return self._watts[nearest] if abs(times[nearest] - middle) <= NEAREST_SAMPLE_SECONDS else None

    @property
    def throttled_by(self) -> tuple[str, ...]:
        """Return the reasons for a reduced clock in any sample."""
        return tuple(sorted(self._throttled))

    def warnings(self) -> list[str]:
        """Return the warnings about the sampled devices."""
        return [
            f"clock: held down by {why} in {count} of {self._samples} samples"
            for why, count in sorted(self._throttled.items())
        ]
