"""Detection of the platform that torch can use, CUDA, ROCm or CPU, and of a device that a user names."""

from __future__ import annotations

import importlib.util
import os
import platform as host_platform
import re
import socket
import warnings
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorprimat.core.errors import UsageError
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import counted
from tensorprimat.core.result import GpuInfo, Platform
from tensorprimat.core.units import GB
from tensorprimat.core.version import __version__
from tensorprimat.machine.host_memory import total_bytes
from tensorprimat.system.processes import usable_cores

if TYPE_CHECKING:
    from types import ModuleType

    from tensorprimat.core.spec import RunSpec

LABELS: dict[Platform, str] = {"nvd": "CUDA", "amd": "ROCm", "cpu": "CPU"}
"""Label of a platform on the console."""
PLATFORM_SPELLINGS: dict[str, Platform] = {
    "nvd": "nvd", "nvidia": "nvd", "cuda": "nvd", "amd": "amd", "rocm": "amd", "hip": "amd", "cpu": "cpu",
}  # fmt: skip
"""Accepted spelling of a platform → platform."""

CUDA_CORES_PER_SM = {
    (6, 0): 64, (6, 1): 128, (7, 0): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 7): 128, (8, 9): 128,
    (9, 0): 128, (10, 0): 128, (10, 3): 128, (12, 0): 128,
}  # fmt: skip
"""Compute capability → FP32 lanes of one multiprocessor (CUDA C++ Programming Guide, arithmetic throughput table)."""
STREAM_PROCESSORS_PER_CU = 64  # in every CDNA generation (AMD CDNA 3 white paper, compute unit)

_DEVICE_NAME = re.compile(
    r"cpu|cuda(?::(?P<number>[0-9]{1,9}))?"
)  # int() refuses some of what isdigit() accepts, such as ²


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine and the devices that torch can use on it."""

    platform: Platform
    gpu_info: GpuInfo
    host: str
    gpu_ids: tuple[str, ...] = ()
    """Identity of each visible GPU, as its driver spells it."""
    warnings: tuple[Notice, ...] = ()

    @property
    def label(self) -> str:
        """Return the platform's label: CUDA, ROCm or CPU."""
        return LABELS[self.platform]

    def gpus_of(self, spec: RunSpec) -> tuple[str, ...]:
        """Return the identities of the GPUs of this machine that a run uses: the first num_gpus of the visible ones."""
        return self.gpu_ids[: spec.num_gpus]

    def facts_of_a_measurement(self) -> dict[str, Any]:
        """Return machine, versions and time, under the keys that the files of passes, sweep and preflight use."""
        return {
            "platform": self.platform,
            "device_name": self.gpu_info.device_name,
            "total_memory_gb": self.gpu_info.total_memory_gb,
            "host": self.host,
            "gpu_ids": self.gpu_ids,
            "torch_version": self.gpu_info.pytorch_version,
            "tool_version": __version__,
            "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        }


def detect_platform(*, cpu: bool = False) -> Machine:
    """Return the machine with the devices that torch can use; imports torch where it is installed.

    cpu: return the CPU even if there is a GPU, for training on the CPU. If the system has a GPU that torch cannot use,
    return the CPU with a notice. A process detects once: what torch can use is settled when it first opens a device.
    """
    return _detect(cpu)


@cache
def _detect(cpu: bool) -> Machine:
    if importlib.util.find_spec("torch") is None:
        return _cpu(None, (Notice("torch_missing", "platform"),))
    import torch

    if cpu:
        return _cpu(torch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()
    warned = tuple(Notice("torch_warns", "platform", text=str(one.message).splitlines()[0]) for one in caught)
    if not usable:
        return _cpu(torch, warned + _unused_gpu(torch))
    try:
        return _gpu(torch, warned)
    except RuntimeError as error:  # a GPU that another process has to itself, or with too little memory for a context
        because = (str(error).splitlines() or [type(error).__name__])[0]
        failed = Notice("gpu_unusable", "platform", torch=str(torch.__version__), why=because)
        return _cpu(torch, (*warned, failed))


def _gpu(torch: ModuleType, warned: tuple[Notice, ...]) -> Machine:
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    first = devices[0]
    names = sorted({device.name for device in devices})
    if len(names) > 1:
        warned += (Notice("gpus_differ", "gpu_info", names=", ".join(names), first=first.name),)
    rocm = torch.version.hip is not None
    return Machine(
        platform="amd" if rocm else "nvd",
        gpu_info=GpuInfo(
            device_name=first.name,
            device_count=len(devices),
            total_memory_gb=first.total_memory / GB,
            gpu_cores=_cores(first, rocm=rocm),
            software_stack="rocm" if rocm else "cuda",
            software_version=torch.version.hip if rocm else torch.version.cuda,
            pytorch_version=torch.__version__,
        ),
        host=socket.gethostname(),
        gpu_ids=tuple(_identity(str(device.uuid)) for device in devices if hasattr(device, "uuid")),
        warnings=warned,
    )


def _identity(uuid: str) -> str:
    """Return a device's identity: NVIDIA's UUID unchanged; for HIP the 16 characters that the UUID's bytes encode.

    >>> _identity("35663862-6331-6434-6537-613261396230")
    '5f8bc1d4e7a2a9b0'
    """
    try:
        letters = bytes.fromhex(uuid.replace("-", "")).decode("ascii")
        int(letters, 16)
    except ValueError:
        return uuid
    return letters


def _cores(device: Any, *, rocm: bool) -> int | None:
    if rocm:
        return int(device.multi_processor_count) * STREAM_PROCESSORS_PER_CU
    per_multiprocessor = CUDA_CORES_PER_SM.get((device.major, device.minor))
    return int(device.multi_processor_count) * per_multiprocessor if per_multiprocessor else None


def _unused_gpu(torch: ModuleType) -> tuple[Notice, ...]:
    """Return a notice if a GPU driver is loaded; called only where torch can use no GPU."""
    for node, vendor in ((Path("/dev/nvidiactl"), "NVIDIA"), (Path("/dev/kfd"), "AMD")):
        if os.path.exists(node):
            return (Notice("gpu_unseen", "platform", node=node, torch=str(torch.__version__), vendor=vendor),)
    return ()


def _cpu(torch: ModuleType | None, warned: tuple[Notice, ...] = ()) -> Machine:
    return Machine(
        platform="cpu",
        gpu_info=GpuInfo(
            device_name=_cpu_name(),
            device_count=1,
            total_memory_gb=total_bytes() / GB,
            gpu_cores=usable_cores(),
            software_stack="cpu",
            pytorch_version=None if torch is None else torch.__version__,
        ),
        host=socket.gethostname(),
        warnings=warned,
    )


def multiply_float32_in(precision: str) -> None:
    """Make torch multiply float32 matrices in TF32 for "tf32", else in full precision, from now on."""
    import torch

    if precision == "tf32" and torch.version.hip is not None:
        os.environ["HIPBLASLT_ALLOW_TF32"] = "1"  # without it ROCm's torch uses fp32: pytorch/pytorch#143549
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")


def _cpu_name() -> str:
    """Return the processor as the kernel names it, else its architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
            return next(names, None) or host_platform.machine()
    except FileNotFoundError:  # not Linux
        return host_platform.processor() or host_platform.machine()


def existing_device(device: str, machine: Machine, *, flag_value: str | None = None, own_number: str = "0") -> str:
    """Return "cpu", or "cuda:N" with the number of the GPU. Raises UsageError, naming --device, for any other name and
    for a device that the machine lacks.

    flag_value: text of the flag if that was another name, such as auto. own_number: number of the GPU for plain "cuda",
    such as the local rank.
    """
    flag = f"--device {flag_value or device}"
    named = _DEVICE_NAME.fullmatch(device)
    gpus = machine.gpu_info.device_count or 0
    if named is None:
        raise UsageError(f"{flag}: must be auto, cpu, cuda or cuda:N (cuda is also ROCm's name)")
    if device == "cpu":
        return device
    if machine.platform == "cpu":
        why = f" ({machine.warnings[0].text})" if machine.warnings else ""
        raise UsageError(f"{flag}: torch sees no GPU here{why}; use --device cpu")
    number = named["number"] or own_number
    if not number.isdecimal() or int(number) >= gpus:
        raise UsageError(f"{flag}: {counted(gpus, 'GPU')} here, numbered from 0")
    return f"cuda:{int(number)}"
