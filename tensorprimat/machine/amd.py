"""AMD GPUs through AMD SMI (package amdsmi, which comes with ROCm)."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorprimat.core.result import POWER_CAP
from tensorprimat.core.units import MEGA
from tensorprimat.machine.device import HEAT, Device, DeviceReading, Process

MICRO = 1e-6

ABSENT = (2**16 - 1, 2**32 - 1, 2**64 - 1)
"""Values with all bits set, which the driver writes into the fields of gpu_metrics that a GPU does not have."""

# amdgpu's gpu_metrics 1.6 and later (MI300): how long each limit has held the clock down, in counts that only grow.
# amdsmi_get_violation_status of AMD SMI reads the same counts twice and waits a tenth of a second in between.
_THROTTLING = {
    "ppt_residency_acc": POWER_CAP,
    "socket_thm_residency_acc": HEAT,
    "hbm_thm_residency_acc": f"{HEAT} (memory)",
    "vr_thm_residency_acc": f"{HEAT} (voltage regulators)",
    "prochot_residency_acc": f"{HEAT} (hardware)",
}
# Bits of indep_throttle_status, which GPUs without these counts have (MI200 and before): SMU_THROTTLER_*_BIT of
# amdgpu_smu.h, read on 2026-11-27.
_FLAGS = {0xFF: POWER_CAP, 0xFF << 16: "the current limit", 0xFFFF << 32: HEAT}


class AmdDevice:
    """One GPU by its AMD SMI handle."""

    def __init__(self, smi: Any, handle: Any) -> None:
        self._smi, self._handle = smi, handle
        asic = self._ask("amdsmi_get_gpu_asic_info")
        self.id = str(asic.get("asic_serial", "")).lower().removeprefix("0x")
        self.name = str(asic.get("market_name", "AMD GPU"))
        driver = self._ask("amdsmi_get_gpu_driver_info").get("driver_version")
        self.driver: str | None = f"amdgpu {driver}" if driver and driver != "N/A" else None
        bus = self._ask("amdsmi_get_gpu_device_bdf").get("value")
        self.bus: str | None = None if bus is None else str(bus).lower()
        self._held: dict[str, float] = {}
        two_dies = "MI250" in self.name  # software sees two devices, but the board has one power meter
        self.boundary: str | None = f"{'board of two dies' if two_dies else 'socket'}, as AMD SMI counts it"

    def _ask(self, question: str, *arguments: Any) -> Mapping[str, Any]:
        """Return one answer of AMD SMI as a dictionary; empty where this GPU or driver does not answer."""
        try:
            answer = getattr(self._smi, question)(self._handle, *arguments)
        except (self._smi.AmdSmiException, KeyError, AttributeError, ValueError):
            # KeyError: a status without a name in the Python package; AttributeError: a function of later versions;
            # ValueError: the name of a process, which the kernel cuts after 15 bytes, within a character of UTF-8
            return {}
        return answer if isinstance(answer, Mapping) else {"value": answer}

    def glance(self) -> DeviceReading:
        smi = self._smi
        power, energy = self._ask("amdsmi_get_power_info"), self._ask("amdsmi_get_energy_count")
        clock = self._ask("amdsmi_get_clock_info", smi.AmdSmiClkType.GFX)
        hottest = self._ask(
            "amdsmi_get_temp_metric", smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
        )
        return DeviceReading(
            power_watts=_number(power, "current_socket_power", "average_socket_power"),
            energy_joules=_product(
                _number(energy, "energy_accumulator", "power"), _number(energy, "counter_resolution"), MICRO
            ),
            clock_hertz=_product(_number(clock, "clk", "cur_clk"), MEGA),
            temperature_celsius=_number(hottest, "value"),
            throttled_by=self._throttled_by(),
        )

    def read(self) -> DeviceReading:
        smi = self._smi
        clock, cap = self._ask("amdsmi_get_clock_info", smi.AmdSmiClkType.GFX), self._ask("amdsmi_get_power_cap_info")
        memory = self._ask("amdsmi_get_gpu_vram_usage")  # in MiB
        used, total = _number(memory, "vram_used"), _number(memory, "vram_total")
        default = _number(cap, "default_power_cap", "power_cap_default")  # the second one: older packages
        return replace(
            self.glance(),
            power_limit_watts=_product(_number(cap, "power_cap"), MICRO),
            default_power_limit_watts=_product(default, MICRO),
            max_clock_hertz=_product(_number(clock, "max_clk"), MEGA),
            free_memory_bytes=None if used is None or total is None else (total - used) * 2.0**20,
            processes=self._processes(),
        )

    def _throttled_by(self) -> tuple[str, ...]:
        """Return the reasons for a reduced clock since the last reading; on MI200 and older at this moment."""
        metrics = self._ask("amdsmi_get_gpu_metrics_info")
        counts = {name: count for name in _THROTTLING if (count := _number(metrics, name)) is not None}
        grown = tuple(_THROTTLING[name] for name, count in counts.items() if count > self._held.get(name, count))
        self._held = counts
        if counts:
            return grown
        flags = int(_number(metrics, "indep_throttle_status") or 0)
        named = tuple(why for bits, why in _FLAGS.items() if flags & bits)
        return named or ("a limit that the driver does not name",) * bool(_number(metrics, "throttle_status"))

    def _processes(self) -> tuple[Process, ...]:
        listed = self._ask("amdsmi_get_gpu_process_list").get("value", ())
        return tuple(
            Process(pid=int(one["pid"]), memory_bytes=_number(one, "mem"))
            for one in listed
            if isinstance(one, Mapping) and "pid" in one  # before ROCm 6 the list held opaque handles
        )


def _number(answer: Mapping[str, Any], *names: str) -> float | None:
    """Return the first number among the values of some keys; AMD SMI's missing values ("N/A", ABSENT) are skipped."""
    values = (answer.get(name) for name in names)
    numbers = (v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool))
    return next((float(v) for v in numbers if v not in ABSENT), None)


def _product(*factors: float | None) -> float | None:
    known = [factor for factor in factors if factor is not None]
    return math.prod(known) if len(known) == len(factors) else None


def devices() -> list[Device]:
    """Return every GPU that AMD SMI lists; [] where the package, the library or the driver is missing."""
    folder = Path(os.environ.get("ROCM_PATH") or "/opt/rocm") / "share" / "amd_smi"  # where ROCm itself puts it
    if "amdsmi" not in sys.modules and importlib.util.find_spec("amdsmi") is None and os.path.isdir(folder / "amdsmi"):
        sys.path.append(str(folder))
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints when it does not find its library
            import amdsmi
    except (ImportError, KeyError, OSError, AttributeError):  # KeyError: ROCm's folder is not in the environment
        return []
    try:
        amdsmi.amdsmi_init()
        return [AmdDevice(amdsmi, handle) for handle in amdsmi.amdsmi_get_processor_handles()]
    except amdsmi.AmdSmiException:
        return []
