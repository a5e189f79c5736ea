"""The names of torch devices that a user may give: cpu, cuda and cuda:N, and whether this machine has them."""

from __future__ import annotations

import re

from tensorprimat.core.errors import UsageError
from tensorprimat.core.quantities import counted
from tensorprimat.machine.platform import Machine

_NAME = re.compile(r"cpu|cuda(?::(?P<number>[0-9]{1,9}))?")  # int() refuses some of what isdigit() accepts, such as ²


def existing_device(device: str, machine: Machine, *, flag_value: str | None = None, own_number: str = "0") -> str:
    """Return "cpu", or "cuda:N" with the number of the GPU. Raises UsageError, naming --device, for any other name and
    for a device that the machine lacks.

    flag_value: text of the flag if that was another name, such as auto. own_number: number of the GPU for plain "cuda",
    such as the local rank.
    """
    flag = f"--device {flag_value or device}"
    named = _NAME.fullmatch(device)
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
