"""Detection of other work and of changing frequency or power limits, which disturb a measurement on this machine.

The machine is read before and after a run, while the benchmark is idle. The load average covers the last minute, which
includes our own run, so the machine counts as busy only if the load average and the present CPU use are both high.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import fixed, listed, percent
from tensorprimat.core.result import POWER_CAP
from tensorprimat.machine import telemetry
from tensorprimat.machine.device import HEAT, Device
from tensorprimat.system.processes import usable_cores

LOOK_SECONDS = 0.3  # a share of CPU time over less time is inexact: it has only a few scheduler ticks
BUSY_SHARE = 0.25  # share of the cores; if others use more, a step slows by more than the scatter of runs
MOVED = 0.01  # relative; a cap is a setting, so any change is more than rounding
CAPS = Path("/sys/devices/system/cpu/cpufreq")  # Linux; elsewhere no cap is read


@dataclass(frozen=True, kw_only=True)
class GpuLook:
    """The state of one GPU at one moment, as far as it disturbs a measurement."""

    id: str
    other_processes: int
    power_limit_watts: float | None
    max_clock_hertz: float | None
    throttled_by: tuple[str, ...]
    number: int = 0
    """Among those that the process sees."""


@dataclass(frozen=True, kw_only=True)
class NoiseReading:
    """The state of the machine at one moment, as far as it disturbs a measurement."""

    cores: int
    """Number of cores that this process may use."""
    load: float | None
    """Average number of runnable processes over the last minute; None where the system does not report it."""
    busy_share: float
    """Share of the usable cores' time in use over LOOK_SECONDS, while this program is idle."""
    cpu_cap_hertz: float | None
    """Highest CPU frequency that the system allows now, mean over the cores."""
    gpus: tuple[GpuLook, ...] = ()

    @property
    def is_busy(self) -> bool:
        """Return True if other processes use the machine now and have done so for a while."""
        return self.busy_share >= BUSY_SHARE and (self.load is None or self.load > self.cores)


def observe_machine(gpu_ids: Sequence[str] = ()) -> NoiseReading:
    """Return the present state of the machine; takes LOOK_SECONDS. gpu_ids: GPUs that take part; empty: read no GPU."""
    load = None
    with contextlib.suppress(OSError):
        load = os.getloadavg()[0]
    return NoiseReading(
        cores=usable_cores(),
        load=load,
        busy_share=_busy_share(),
        cpu_cap_hertz=_cpu_cap(CAPS),
        gpus=tuple(_gpu(*place) for place in enumerate(telemetry.open_devices(gpu_ids))) if gpu_ids else (),
    )


def _gpu(number: int, device: Device) -> GpuLook:
    reading = device.read()
    return GpuLook(
        number=number,
        id=device.id,
        other_processes=sum(process.pid != os.getpid() for process in reading.processes),
        power_limit_watts=reading.power_limit_watts,
        max_clock_hertz=reading.max_clock_hertz,
        throttled_by=reading.throttled_by,
    )


def _busy_share() -> float:
    """Return the share of CPU time in use on the cores that this process may use, over LOOK_SECONDS."""
    percents = psutil.cpu_percent(interval=LOOK_SECONDS, percpu=True)
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(percents))
    own = [percents[core] for core in usable if core < len(percents)] or percents
    return sum(own) / len(own) / 100


def _cpu_cap(folder: Path) -> float | None:
    """Return the mean of scaling_max_freq in hertz (sysfs has kHz), or None where there is none."""
    caps = []
    for file in folder.glob("policy*/scaling_max_freq"):
        with contextlib.suppress(OSError, ValueError):
            caps.append(1000 * float(file.read_text()))
    return sum(caps) / len(caps) if caps else None


def about(now: NoiseReading, when: str) -> list[Notice]:
    """Return a notice for everything that disturbs a run. when: a phrase such as "before run 1"."""
    return [*company(now, when), *clocks(now, when)]


def company(now: NoiseReading, when: str) -> list[Notice]:
    """Return a notice for other work on the CPU, and one for each GPU with other processes."""
    say, found = partial(Notice, field="noise", when=when), []
    if now.is_busy:
        load = "" if now.load is None else f", load {fixed(now.load, 1)}"
        found.append(say("other_work", share=percent(now.busy_share, 0), cores=now.cores, load=load))
    for gpu in now.gpus:
        if gpu.other_processes:
            processes = "1 other process" if gpu.other_processes == 1 else f"{gpu.other_processes} other processes"
            found.append(say("shared_gpu", processes=processes, gpu=gpu.number))
    return found


def clocks(now: NoiseReading, when: str) -> list[Notice]:
    """Return a notice for every GPU whose clock is reduced below its power cap; only a hot one is advised to cool."""
    found = []
    for gpu in now.gpus:
        if why := listed(reason for reason in gpu.throttled_by if reason != POWER_CAP):
            is_hot = any(reason.startswith(HEAT) for reason in gpu.throttled_by)
            advice = "; --cooldown 60 lets it cool between runs" if is_hot else ""
            found.append(Notice("clock_reduced", "noise", when=when, gpu=gpu.number, why=why, advice=advice))
    return found


def moved(before: NoiseReading, after: NoiseReading, when: str) -> list[Notice]:
    """Return a notice for every limit that changed between two readings."""
    say, found = partial(Notice, field="noise", when=when), []
    if _differs(before.cpu_cap_hertz, after.cpu_cap_hertz):
        found.append(say("cpu_cap_moved", before=before.cpu_cap_hertz, after=after.cpu_cap_hertz))
    known = {gpu.id: gpu for gpu in before.gpus}
    for gpu in after.gpus:
        earlier = known.get(gpu.id, gpu)
        if _differs(earlier.power_limit_watts, gpu.power_limit_watts):
            caps = partial(say, before=earlier.power_limit_watts, after=gpu.power_limit_watts)
            found.append(caps("power_cap_moved", gpu=gpu.number))
        if _differs(earlier.max_clock_hertz, gpu.max_clock_hertz):
            found.append(say("highest_clock_moved", gpu=gpu.number))
    return found


def _differs(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and abs(after - before) > MOVED * before
