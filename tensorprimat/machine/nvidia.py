"""NVIDIA GPUs through NVML (package nvidia-ml-py)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tensorprimat.core.result import POWER_CAP
from tensorprimat.core.units import MEGA
from tensorprimat.machine.device import HEAT, Device, DeviceReading, Process

# nvml.h, nvmlClocksEventReasons: bits of limits that reduce the clock. Idle (0x1) and application clocks (0x2) are
# intended and not among them.
_THROTTLING = {
    0x4: POWER_CAP,
    0x8: "a hardware slowdown",
    0x20: HEAT,
    0x40: f"{HEAT} (hardware)",
    0x80: "the power brake",
}


class NvidiaDevice:
    """One GPU by its NVML handle."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self.id = _text(nvml.nvmlDeviceGetUUID(handle))
        self.name = _text(nvml.nvmlDeviceGetName(handle))
        driver = self._query(lambda: nvml.nvmlSystemGetDriverVersion())
        self.driver: str | None = None if driver is None else f"NVIDIA {_text(driver)}"
        address = self._query(lambda: _text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower())
        self.bus: str | None = None if address is None else address[-len("0000:00:00.0") :]  # NVML's domain is longer

    def _ask(self, question: str, *arguments: Any, scale: float = 1.0) -> float | None:
        """Return one number of NVML; None where this GPU or driver does not answer."""
        value = self._query(lambda: getattr(self._nvml, question)(self._handle, *arguments))
        return None if value is None else float(value) * scale

    def _query(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except (self._nvml.NVMLError, AttributeError):  # AttributeError: a function of other versions
            return None

    boundary: str | None = "GPU with its memory, as NVML counts it"

    def glance(self) -> DeviceReading:
        held = self._query(lambda: self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)) or 0
        return DeviceReading(
            power_watts=self._ask("nvmlDeviceGetPowerUsage", scale=1e-3),
            energy_joules=self._ask("nvmlDeviceGetTotalEnergyConsumption", scale=1e-3),
            clock_hertz=self._ask("nvmlDeviceGetClockInfo", self._nvml.NVML_CLOCK_SM, scale=MEGA),
            temperature_celsius=self._ask("nvmlDeviceGetTemperature", self._nvml.NVML_TEMPERATURE_GPU),
            throttled_by=tuple(why for bit, why in _THROTTLING.items() if held & bit),
        )

    def read(self) -> DeviceReading:
        """Return all figures, now; no processes of a divided GPU (MIG), whose driver lists those of all instances."""
        nvml = self._nvml
        is_divided = bool((self._query(lambda: nvml.nvmlDeviceGetMigMode(self._handle)) or (0,))[0])
        listed = None if is_divided else self._query(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(self._handle))
        memory = self._query(lambda: nvml.nvmlDeviceGetMemoryInfo(self._handle))
        return replace(
            self.glance(),
            power_limit_watts=self._ask("nvmlDeviceGetEnforcedPowerLimit", scale=1e-3),
            default_power_limit_watts=self._ask("nvmlDeviceGetPowerManagementDefaultLimit", scale=1e-3),
            max_clock_hertz=self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM, scale=MEGA),
            free_memory_bytes=None if memory is None else float(memory.free),
            processes=tuple(Process(pid=one.pid, memory_bytes=_bytes(one.usedGpuMemory)) for one in listed or ()),
        )


def _bytes(value: Any) -> float | None:
    return None if value is None else float(value)  # None in containers and under WDDM


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)  # bytes before nvidia-ml-py 11.5


def devices() -> list[Device]:
    """Return every GPU that answers NVML; [] where the package, the library or the driver is missing.

    A GPU that the user may not use, or that fell off the bus, is left out: NVML counts it too.
    """
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return []
    found: list[Device] = []
    for index in range(count):
        with contextlib.suppress(pynvml.NVMLError):
            found.append(NvidiaDevice(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index)))
    return found
