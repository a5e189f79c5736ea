"""The interface of a GPU that each vendor's module implements: its readings, and the processes on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

HEAT = "heat"


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process that holds memory on the device."""

    pid: int
    memory_bytes: float | None = None


@dataclass(frozen=True, kw_only=True)
class DeviceReading:
    """The figures of one device at one moment; None where the device does not report a figure."""

    power_watts: float | None = None
    energy_joules: float | None = None
    """Energy used since the driver was loaded."""
    power_limit_watts: float | None = None
    default_power_limit_watts: float | None = None
    clock_hertz: float | None = None
    """Clock of the compute units."""
    max_clock_hertz: float | None = None
    temperature_celsius: float | None = None
    throttled_by: tuple[str, ...] = ()
    """Reasons for a reduced clock, as text; those of a temperature begin with HEAT. Empty if the clock is not reduced,
    or if the device reports no reason."""
    free_memory_bytes: float | None = None
    processes: tuple[Process, ...] = ()


class Device(Protocol):
    """One GPU whose figures can be read."""

    id: str
    """Identity of the GPU, as the driver spells it."""
    name: str
    boundary: str | None
    """Description of the hardware that its power and energy include."""
    driver: str | None
    """Name and version of the driver, for example "NVIDIA 580.95.05"; None where it does not answer."""
    bus: str | None
    """Address on the PCI bus as Linux spells it, for example 0000:19:00.0; None where the driver does not answer."""

    def read(self) -> DeviceReading:
        """Return all figures, now."""

    def glance(self) -> DeviceReading:
        """Return power, energy, clock, temperature and throttling, the figures that are read while training runs."""
