"""Telemetry of a working GPU: power, clocks, temperature, and other processes on it.

`Sampler` reads devices in the background. A figure that a device does not give is None.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from tensorprimat.core.steps import FloatArray
from tensorprimat.machine import amd, nvidia
from tensorprimat.machine.device import Device, DeviceReading, Process

SAMPLE_SECONDS = 0.2  # drivers refresh their power figure about ten times a second; more samples add no information
COUNTER_PATIENCE_SECONDS = 2.0  # counters are renewed several times a second
NEAREST_SAMPLE_SECONDS = 1.0  # a step shorter than the sampling interval takes the nearest sample if it is this near


def open_devices(ids: Iterable[str]) -> list[Device]:
    """Return the devices with these identities (empty: every device), of whichever vendor's package is installed.

    An empty list where no package or no device is there: telemetry is never needed.
    """
    bare = {_bare(identity) for identity in ids}
    devices: list[Device] = [*nvidia.devices(), *amd.devices()]
    return [device for device in devices if not bare or _bare(device.id) in bare]


def _bare(identity: str) -> str:
    """Return an identity without prefix, dashes and case: "GPU-5a…" of NVML is "5a…" of torch."""
    return identity.lower().removeprefix("gpu-").replace("-", "")


def foreign_processes(reading: DeviceReading, *, ours: Iterable[int]) -> tuple[Process, ...]:
    """Return the processes on the device that do not belong to this training. Within a container some drivers number
    processes as the host does: where none of the numbers matches, as many processes as it has are left out."""
    own = set(ours)
    others = tuple(process for process in reading.processes if process.pid not in own)
    return others[len(own) :] if len(others) == len(reading.processes) else others


def numbered_as_here(reading: DeviceReading, own: int) -> bool:
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
        self._looks: list[tuple[float, tuple[DeviceReading, ...]]] = []
        self._sampling_seconds = 0.0
        self.first: tuple[DeviceReading, ...] = ()
        """Full readings at the start."""
        self.last: tuple[DeviceReading, ...] = ()
        """Full readings at the end."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin; without devices there is nothing to do."""
        if self._devices:
            self.first = tuple(device.read() for device in self._devices)
            self._thread = threading.Thread(target=self._run, daemon=True, name="telemetry")
            self._thread.start()

    def stop(self) -> None:
        """End; the samples stay."""
        if self._thread is None or self._stop.is_set():
            return
        self._stop.set()
        self._thread.join(timeout=2.0)
        self.sample()  # a counter is known up to its last reading
        self.last = tuple(device.read() for device in self._devices)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.sample()
            self._stop.wait(self._period)

    def sample(self) -> None:
        """Read every device once."""
        began = time.perf_counter()
        readings = [device.glance() for device in self._devices]
        self._sampling_seconds += time.perf_counter() - began
        self._looks.append((time.time(), tuple(readings)))
        watts = [reading.power_watts for reading in readings if reading.power_watts is not None]
        self._samples += 1
        for why in {why for reading in readings for why in reading.throttled_by}:
            self._throttled[why] = self._throttled.get(why, 0) + 1
        if watts:
            self._watts.append(sum(watts) / len(watts))
            self._times.append(time.time())  # last, so that a reader never finds a time without its value

    def mean_watts(self, start: float, end: float) -> float | None:
        """Return the mean power per device between two moments (Unix time), or the nearest sample if none fell in."""
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

    @property
    def boundary(self) -> str | None:
        """Return the hardware that the power of these devices includes, or None where no device states it."""
        return ", ".join(dict.fromkeys(device.boundary for device in self._devices if device.boundary)) or None

    @property
    def seconds_per_sample(self) -> float | None:
        """Return the mean time that one reading of all devices takes on the host."""
        return self._sampling_seconds / self._samples if self._samples else None

    def columns(self, ended_at: FloatArray, seconds: FloatArray) -> dict[str, FloatArray]:
        """Return columns of `Steps` for rows that end at these moments and last so long, mean of the devices.

        energy_joules_per_gpu from the devices' counters, clock_hertz, temperature_celsius of the hottest device, and
        throttled_seconds by the share of the readings in which the clock of a device was reduced. A column that the
        devices do not report is left out.
        """
        if len(self._looks) < 2:
            return {}
        times = np.array([moment for moment, _ in self._looks])
        known = np.isfinite(ended_at) & (ended_at - seconds >= times[0]) & (ended_at <= times[-1])

        def between(running: FloatArray) -> FloatArray:
            """Return the growth of a running sum over each row."""
            grown = np.interp(ended_at, times, running) - np.interp(ended_at - seconds, times, running)
            return np.where(known, grown, np.nan)

        found = {}
        if self.counter_refused() is None and (energy := self._looked("energy_joules", np.mean)) is not None:
            found["energy_joules_per_gpu"] = between(energy)
        if (clock := self._looked("clock_hertz", np.mean)) is not None:
            found["clock_hertz"] = between(_running_integral(times, clock)) / seconds
        if (hottest := self._looked("temperature_celsius", np.max)) is not None:
            found["temperature_celsius"] = between(_running_integral(times, hottest)) / seconds
        held = np.array([any(one.throttled_by for one in looks) for _, looks in self._looks], float)
        found["throttled_seconds"] = between(_running_integral(times, held))
        return found

    def _looked(self, figure: str, over_devices: Callable[..., FloatArray]) -> FloatArray | None:
        """Return a figure of every reading, its mean or maximum over the devices; None where a device lacks it once."""
        rows = [[getattr(one, figure) for one in looks] for _, looks in self._looks]
        if not rows or any(value is None for row in rows for value in row):
            return None
        return over_devices(np.array(rows, float), axis=1)

    def counter_refused(self) -> str | None:
        """Return the reason why the energy counters cannot be used; None where they can, or where there are none."""
        for number in range(len(self._devices)):
            looks = [(moment, one[number]) for moment, one in self._looks]
            counts = [reading.energy_joules for _, reading in looks]
            if any(count is None for count in counts) or len(counts) < 2:
                continue
            growth = np.diff(np.array(counts, float))
            if (growth < 0).any():
                return "it went backwards: it wrapped, or the driver was reset"
            busy = any((reading.power_watts or 0) > 0 for _, reading in looks)
            if busy and looks[-1][0] - looks[0][0] >= COUNTER_PATIENCE_SECONDS and not growth.any():
                return "it stood still while the device drew power"
        return None

    def warnings(self) -> list[str]:
        """Return the warnings about the sampled devices."""
        held = [
            f"clock: reduced by {why} in {count} of {self._samples} samples"
            for why, count in sorted(self._throttled.items())
        ]
        return held + self.counter_warnings()

    def counter_warnings(self) -> list[str]:
        """Return the warning about an energy counter that cannot be used, if any."""
        refused = self.counter_refused()
        if refused is None:
            return []
        return [f"power_metrics: the device's energy counter is not used ({refused}); energy is from sampled power"]


def _running_integral(times: FloatArray, values: FloatArray) -> FloatArray:
    """Return the integral of a figure from the first moment on, each value holding until the next."""
    return np.concatenate([[0.0], np.cumsum(values[:-1] * np.diff(times))])
