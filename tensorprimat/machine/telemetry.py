"""Telemetry of a GPU during work: power, energy, clocks, temperature, and other processes on it.

`Sampler` reads devices in the background. A figure that a device does not report is None.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from tensorprimat.core.notices import Notice
from tensorprimat.core.result import POWER_CAP
from tensorprimat.core.steps import FloatArray
from tensorprimat.machine import amd, nvidia
from tensorprimat.machine.device import Device, DeviceReading, Process

SAMPLE_SECONDS = 0.2  # drivers refresh their power figure about ten times a second; more samples add little
COUNTER_PATIENCE_SECONDS = 1.0  # drivers update their counters several times a second
DRIVER_SECONDS = 2.0  # time limit of the last reading in the background
MOST_ABOVE_POWER = 2.0  # a counter may grow by this many times sampled power × time: samples miss short peaks
MOST_MISSING = 1  # readings in a row in which a figure may be missing: drivers time out now and then
CLOCK_DRIFT = 1e-4  # relative; in an hour the clocks of device and host may differ by a third of a second
FIGURES: dict[str, tuple[str, Callable[..., FloatArray]]] = {
    "energy_joules": ("energy", np.mean),
    "clock_hertz": ("clock", np.mean),
    "temperature_celsius": ("temperature", np.max),
}
"""Figure of a reading → its name in warnings, and the function that combines the devices' values."""
NEAREST_SAMPLE_SECONDS = 1.0  # a step without a sample takes the nearest one, if it is not farther away than this


def open_devices(ids: Iterable[str]) -> list[Device]:
    """Return the devices with these identities (empty: every device), of each vendor whose package is installed.

    The list is empty without a package or a device.
    """
    bare = {_bare(identity) for identity in ids}
    devices: list[Device] = [*nvidia.devices(), *amd.devices()]
    return [device for device in devices if not bare or _bare(device.id) in bare]


def _bare(identity: str) -> str:
    """Return an identity without prefix, dashes and case: "GPU-5a…" of NVML is "5a…" of torch."""
    return identity.lower().removeprefix("gpu-").replace("-", "")


def foreign_processes(reading: DeviceReading, *, ours: Iterable[int]) -> tuple[Process, ...]:
    """Return the processes on the device that do not belong to this training.

    In a container some drivers report the host's process numbers. If no number matches one of `ours`, as many processes
    are left out as `ours` has.
    """
    own = set(ours)
    others = tuple(process for process in reading.processes if process.pid not in own)
    return others[len(own) :] if len(others) == len(reading.processes) else others


class Sampler:
    """A thread that reads devices every SAMPLE_SECONDS, from `start` to `stop`."""

    def __init__(self, devices: Sequence[Device], *, period: float = SAMPLE_SECONDS) -> None:
        self._devices, self._period = tuple(devices), period
        self._times: list[float] = []
        self._watts: list[float] = []
        self._looks: list[tuple[float, tuple[DeviceReading, ...]]] = []
        self._sampling_seconds = 0.0
        self.first: tuple[DeviceReading, ...] = ()
        """Full readings at the start."""
        self.last: tuple[DeviceReading, ...] = ()
        """Full readings at the end."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start reading; do nothing without devices."""
        if self._devices:
            self._stop.clear()
            self.first = tuple(device.read() for device in self._devices)
            self._thread = threading.Thread(target=self._run, daemon=True, name="telemetry")
            self._thread.start()

    def stop(self) -> None:
        """Stop sampling and take a last full reading, unless the driver hangs; the samples remain available."""
        if self._thread is None or self._stop.is_set():
            return
        self._stop.set()
        self._thread.join(timeout=DRIVER_SECONDS)
        if self._thread.is_alive():  # a GPU that fell off the bus: another reading would wait as well
            return
        self.sample()  # so that energy is known up to the end
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
        if watts:
            self._watts.append(sum(watts) / len(watts))
            self._times.append(time.time())  # last, so that a reader never finds a time without its value

    def mean_watts(self, start: float, end: float) -> float | None:
        """Return the mean power per device in watts between two moments (Unix time).

        Without a sample in between, return the nearest one, or None if it is more than NEAREST_SAMPLE_SECONDS from the
        middle.
        """
        times = self._times  # it only grows; a copy for each step would take longer, the longer the run
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
        """Return the reasons for a reduced clock in all samples, each once."""
        return tuple(sorted(set[str]().union(*self._reasons())))

    def _reasons(self) -> list[set[str]]:
        """Return the reasons for which the clock of a device was reduced, of each sample."""
        return [{why for reading in readings for why in reading.throttled_by} for _, readings in self._looks]

    @property
    def boundary(self) -> str | None:
        """Return the hardware that the power of these devices includes, or None where no device states it."""
        return ", ".join(dict.fromkeys(device.boundary for device in self._devices if device.boundary)) or None

    @property
    def seconds_per_sample(self) -> float | None:
        """Return the mean time in seconds that one reading of all devices takes; None without samples."""
        return self._sampling_seconds / len(self._looks) if self._looks else None

    def columns(self, ended_at: FloatArray, seconds: FloatArray) -> dict[str, FloatArray]:
        """Return columns of `Steps` for rows with these ends (Unix time) and durations, as means over the devices.

        They are power_watts_per_gpu (see `mean_watts`), energy_joules_per_gpu from the devices' counters, clock_hertz,
        temperature_celsius of the hottest device, and, by the share of the readings in which the clock of a device was
        reduced, throttled_seconds (for any reason) and slowdown_seconds (for another one than the power cap). A column
        that the devices do not report is left out; a row in which several readings in a row are missing is nan.
        """
        found: dict[str, FloatArray] = {}
        if self._times:
            rows = zip(ended_at - seconds, ended_at, strict=True)
            found["power_watts_per_gpu"] = np.array([self.mean_watts(*row) for row in rows], float)
        if len(self._looks) < 2:
            return found
        figures = {figure: self._looked(figure) for figure in FIGURES}
        if self.counter_refused() is None and (energy := figures["energy_joules"]) is not None:
            found["energy_joules_per_gpu"] = energy.growth(ended_at, seconds)
        for figure in ("clock_hertz", "temperature_celsius"):
            if (level := figures[figure]) is not None:
                found[figure] = level.integral().growth(ended_at, seconds) / seconds
        times = np.array([moment for moment, _ in self._looks])
        for column, normal in (("throttled_seconds", set[str]()), ("slowdown_seconds", {POWER_CAP})):
            held = np.array([bool(one - normal) for one in self._reasons()], float)
            found[column] = _Series(times, held, np.zeros(len(times) - 1)).integral().growth(ended_at, seconds)
        return found

    def _looked(self, figure: str) -> _Series | None:
        """Return a figure over time, its mean or maximum over the devices; None with fewer than two complete readings.

        A reading in which a device did not report the figure is left out. Where several in a row are left out, the
        series has a gap.
        """
        rows = self._values(figure)
        whole = np.flatnonzero(np.isfinite(rows).all(axis=1))
        if len(whole) < 2:
            return None
        times = np.array([self._looks[number][0] for number in whole])
        lost = np.where(np.diff(whole) > 1 + MOST_MISSING, np.diff(times), 0.0)
        return _Series(times, FIGURES[figure][1](rows[whole], axis=1), lost)

    def _values(self, figure: str) -> FloatArray:
        """Return a figure of every reading, shape (readings, devices), nan where a device did not report it."""
        rows = [[getattr(one, figure) for one in looks] for _, looks in self._looks]
        return np.array(rows, float).reshape(len(rows), len(self._devices))

    def counter_refused(self) -> str | None:
        """Return the reason why an energy counter cannot be used; None if all can, or without counters."""
        times = np.array([moment for moment, _ in self._looks])
        for joules, watts in zip(self._values("energy_joules").T, self._values("power_watts").T, strict=True):
            known = np.isfinite(joules)
            growth = np.diff(joules[known])
            if (growth < 0).any():
                return "it went backwards: it wrapped, or the driver was reset"
            drawn = np.max(watts[watts > 0], initial=0.0) or np.inf  # a device without a power reading has no limit
            if (growth > MOST_ABOVE_POWER * drawn * (np.diff(times[known]) + COUNTER_PATIENCE_SECONDS)).any():
                return "it jumped by more than the device can have drawn"
            moments, busy = times[known], np.nan_to_num(watts[known]) > 0
            changes = np.flatnonzero(np.concatenate([[True], growth > 0, [True]]))
            for first, following in pairwise(changes):  # consecutive readings with the same value
                stood = moments[first:following][busy[first:following]]  # readings at which it drew power
                if len(stood) and stood[-1] - stood[0] >= COUNTER_PATIENCE_SECONDS:
                    return "it stood still while the device drew power"
        return None

    def warnings(self) -> list[str]:
        """Return the warnings about clocks reduced below the power cap, the energy counter and missing figures."""
        held: list[str] = [
            Notice("clock_limited", "clock", why=why, count=count, looks=len(self._looks))
            for why, count in sorted(Counter(chain.from_iterable(self._reasons())).items())
            if why != POWER_CAP
        ]
        return [*held, *self.column_warnings()]

    def column_warnings(self) -> list[Notice]:
        """Return notices about an energy counter that cannot be used and about figures with missing readings."""
        refused, say = self.counter_refused(), partial(Notice, field="power_metrics")
        found = [] if refused is None else [say("energy_counter_refused", why=refused)]
        for figure, (name, _) in FIGURES.items():
            known = np.isfinite(self._values(figure))
            if known.any() and (missing := _not_bridged(np.all(known, axis=1))):
                found.append(say("readings_missing", name=name, missing=missing, readings=len(known)))
        return found


def _not_bridged(whole: NDArray[np.bool_]) -> int:
    """Return the number of incomplete readings that leave steps without a figure: several in a row, or at an end.

    whole: for each reading, True if every device reported the figure.
    """
    if whole.sum() < 2:
        return int((~whole).sum())
    edges = np.flatnonzero(np.diff(np.concatenate([[True], whole, [True]]).astype(np.int8)))
    runs = zip(edges[::2], edges[1::2], strict=True)
    return sum(int(end - start) for start, end in runs if start == 0 or end == len(whole) or end - start > MOST_MISSING)


@dataclass(frozen=True)
class _Series:
    """A figure over time, without the readings in which a device did not report it."""

    times: FloatArray
    values: FloatArray
    lost: FloatArray
    """For each reading, the seconds to the next reading if several readings between them are missing, else 0."""

    def integral(self) -> _Series:
        """Return the running integral over time; each value holds until the next reading."""
        return replace(self, values=_running(self.values[:-1] * np.diff(self.times)))

    def growth(self, ended_at: FloatArray, seconds: FloatArray) -> FloatArray:
        """Return the growth of a running sum over each row; nan outside of the readings and where several are missing.

        ended_at: ends of the rows (Unix time), by the device's clock, which may run apart from the host's by
        CLOCK_DRIFT. seconds: their durations.
        """
        start, drift = ended_at - seconds, CLOCK_DRIFT * (self.times[-1] - self.times[0])
        inside = np.isfinite(ended_at) & (start >= self.times[0] - drift) & (ended_at <= self.times[-1] + drift)

        def grown(running: FloatArray) -> FloatArray:
            return np.interp(ended_at, self.times, running) - np.interp(start, self.times, running)

        return np.where(inside & ~(grown(_running(self.lost)) > 0), grown(self.values), np.nan)


def _running(steps: FloatArray) -> FloatArray:
    """Return the cumulative sums, beginning with 0."""
    return np.concatenate([[0.0], np.cumsum(steps)])
