"""Who holds a GPU, and ending what a crashed training left behind.

nvidia-smi, rocm-smi and amd-smi list processes by the host's numbers, which in a container may mean somebody else. A
process counts here only if /proc shows it, in this PID namespace, with a GPU's device file open.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path

import psutil

from tensorprimat.core.units import GIB

DEVICES = ("/dev/nvidia[0-9]*", "/dev/kfd")
"""Device files that only a process which computes on a GPU keeps open."""
PATIENCE_SECONDS = 30.0  # a driver that hangs must not hang us
KILLED_SECONDS = 10.0  # a driver gives back the memory of a large process before it is gone
POLL_SECONDS = 0.05
REAPERS = ("systemd", "init")
"""What takes in processes whose parent has ended, beside process 1: a user's own systemd."""
MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Holder:
    """One process on a GPU, or one that only a vendor's program knows."""

    pid: int
    memory_bytes: float | None = None
    """As the vendor's program says; None where it does not."""
    user: str | None = None
    command: str = ""
    started_at: datetime | None = None
    keeps: str | None = None
    """Why it must not be ended, in words; None for a leftover."""
    can_be_chosen: bool = False
    """Whether --pid may end it all the same: it is ours, Python, on a GPU, and only has somebody who waits for it."""


def listed(environment: Mapping[str, str] | None = None) -> tuple[dict[int, float | None], list[str]]:
    """Memory in bytes by process number, and the programs that answered."""
    memory: dict[int, float | None] = {}
    answered = []
    for question, read in _QUESTIONS:
        text = _answer(question, environment)
        if text is None:
            continue
        answered.append(question[0])
        for pid, used in read(text):
            known = memory.get(pid)
            memory[pid] = used if known is None else known + (used or 0.0)  # one line per GPU
    return memory, answered


def _answer(question: Sequence[str], environment: Mapping[str, str] | None) -> str | None:
    try:
        asked = subprocess.run(
            question, capture_output=True, env=None if environment is None else dict(environment),
            timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):  # not installed, or its driver does not answer
        return None
    return asked.stdout.decode(errors="replace") if asked.returncode == 0 else None


def _nvidia(text: str) -> Iterable[tuple[int, float | None]]:
    for pid, used in re.findall(r"^(\d+), *(\S+)", text, re.MULTILINE):
        yield int(pid), float(used) * MIB if used.isdigit() else None  # "[N/A]" under a driver that does not say


def _rocm(text: str) -> Iterable[tuple[int, float | None]]:
    for pid, used in re.findall(r'"PID(\d+)": *"[^"]*?, *\d+, *(\w+),', text):
        yield int(pid), float(used) if used.isdigit() else None


def _amd(text: str) -> Iterable[tuple[int, float | None]]:
    with contextlib.suppress(json.JSONDecodeError):
        for gpu in json.loads(text):
            for entry in gpu.get("process_list", ()) if isinstance(gpu, dict) else ():
                known = entry.get("process_info", entry) if isinstance(entry, dict) else None
                if isinstance(known, dict) and str(known.get("pid", "")).isdigit():
                    yield int(known["pid"]), _amd_bytes(known)


def _amd_bytes(known: Mapping[str, object]) -> float | None:
    usage = known.get("memory_usage")
    cell = usage.get("vram_mem") if isinstance(usage, dict) else None
    if not isinstance(cell, dict) or not isinstance(cell.get("value"), int | float):
        return None
    scale = {"B": 1, "KB": 2**10, "MB": MIB, "GB": GIB}.get(str(cell.get("unit", "B")).upper())
    return None if scale is None else float(cell["value"]) * scale


_QUESTIONS: tuple[tuple[tuple[str, ...], Callable[[str], Iterable[tuple[int, float | None]]]], ...] = (
    (("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"), _nvidia),
    (("rocm-smi", "--showpids", "--json"), _rocm),
    (("amd-smi", "process", "--json"), _amd),
)


def holders(memory: Mapping[int, float | None], *, devices: Sequence[str] | None = None) -> list[Holder]:
    """Every process that has a GPU open or that a vendor's program lists, in the order of their numbers."""
    patterns = DEVICES if devices is None else devices
    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        if process.pid in spared:
            continue
        held = _holds(process.pid, patterns)
        if held or process.pid in memory:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(_holder(process, held, memory.get(process.pid)))
    known = {holder.pid for holder in found} | spared
    elsewhere = [
        Holder(pid=pid, memory_bytes=used, keeps="not in this PID namespace: in a container, or on the host")
        for pid, used in memory.items()
        if pid not in known
    ]
    return sorted([*found, *elsewhere], key=lambda holder: holder.pid)


def _holds(pid: int, patterns: Sequence[str]) -> bool:
    """Whether the process has one of the device files open; False too where we may not look."""
    try:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                target = os.readlink(descriptor)
                if any(fnmatch(target, pattern) for pattern in patterns):
                    return True
    except OSError:  # ended meanwhile, or another user's
        return False
    return False


def _holder(process: psutil.Process, held: bool, used: float | None) -> Holder:
    keeps, choosable = _judged(process, held)
    with process.oneshot():
        try:
            command = " ".join(process.cmdline()) or process.name()
        except psutil.AccessDenied:
            command = process.name()
        return Holder(
            pid=process.pid,
            memory_bytes=used,
            user=process.username(),
            command=command,
            started_at=datetime.fromtimestamp(process.create_time()),
            keeps=keeps,
            can_be_chosen=choosable,
        )


def _judged(process: psutil.Process, held: bool) -> tuple[str | None, bool]:
    """Why a process stays, or None; and whether the user may choose it by its number all the same."""
    if process.uids().real != os.getuid():
        return f"belongs to {process.username()}", False
    if not held:
        return "has no GPU open here: the number may mean another process, on the host", False
    if not _is_python(process):
        return "is not Python", False
    waiting = _waiting_parent(process)
    return (None, True) if waiting is None else (f"{waiting} waits for it", True)


def _is_python(process: psutil.Process) -> bool:
    try:
        program = process.exe()
    except psutil.AccessDenied:
        return False
    return re.fullmatch(r"python[\d.]*", Path(program).name) is not None


def _waiting_parent(process: psutil.Process) -> str | None:
    """The parent that still runs; None for an orphan. Under process 1 is also what process 1 of a container has started
    itself: that one shares its session."""
    parent = process.parent()
    if parent is None:
        return None
    adopted = parent.pid == 1 or parent.name() in REAPERS
    try:
        of_parent = os.getsid(process.pid) == os.getsid(parent.pid)
    except (PermissionError, ProcessLookupError):
        of_parent = False
    return None if adopted and not of_parent else f"its parent {parent.pid} ({parent.name()})"


def end(pids: Iterable[int], *, grace_seconds: float, devices: Sequence[str] | None = None) -> list[int]:
    """SIGTERM, then after a grace time SIGKILL; gives back those that still run.

    Each is judged again at the moment of the signal: a number that means another process by then is left alone.
    """
    asked = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if _judged(process, _holds(pid, DEVICES if devices is None else devices))[1]:
                process.terminate()
                asked.append(process)
    left = _still_running(asked, grace_seconds)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return [process.pid for process in _still_running(left, KILLED_SECONDS)]


def _still_running(processes: list[psutil.Process], patience_seconds: float) -> list[psutil.Process]:
    """Those that have not ended after a time. One that has, and whose parent has not looked yet, holds nothing."""
    until = time.monotonic() + patience_seconds
    while (left := [process for process in processes if _runs(process)]) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
