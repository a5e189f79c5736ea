"""Processes that hold a GPU, and termination of those that a crashed training left behind.

nvidia-smi, rocm-smi and amd-smi list processes by the host's numbers; in a container, such a number may belong to
another process. A process counts here only if /proc shows it, in this PID namespace, with a GPU's device file open.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import psutil

from tensorprimat.core.errors import UsageError
from tensorprimat.core.units import GIB, MIB
from tensorprimat.machine import leftovers
from tensorprimat.system import processes as programs

DEVICES = ("/dev/nvidia[0-9]*", "/dev/kfd")
"""Device files that are open only in processes which compute on a GPU."""
_PATIENCE_SECONDS = 30.0  # a driver that hangs must not block this command
KILLED_SECONDS = 10.0  # a large process ends only after the driver has freed its memory
_POLL_SECONDS = 0.05
RELEASE_SECONDS = 5.0  # an H200's driver listed a process for a moment after its end
_RELEASE_POLL_SECONDS = 0.25
_ELSEWHERE = "not in this PID namespace: in a container, or on the host"
_STILL_LISTED = "has ended; the driver still lists its memory"


@dataclass(frozen=True, kw_only=True)
class Holder:
    """One process on a GPU, or one that only a vendor's program lists."""

    pid: int
    memory_bytes: float | None = None
    """GPU memory as the vendor's program states it; None if it does not."""
    user: str | None = None
    command: str = ""
    created: float | None = None
    """Start time in seconds since 1970. It identifies a process with the number, because numbers are reused."""
    keeps: str | None = None
    """Reason not to end the process; None for a leftover and, before `watched`, for a possible leftover."""
    can_be_chosen: bool = False
    """True if --pid may end it although it is not a leftover: it is the user's own, Python, and on a GPU."""

    @property
    def started_at(self) -> datetime | None:
        """Return the start time in local time."""
        return None if self.created is None else datetime.fromtimestamp(self.created)


def memory_by_process() -> tuple[dict[int, float | None], list[str]]:
    """Return the GPU memory in bytes by process number, and the vendors' programs that answered.

    A process that several programs list, such as rocm-smi and amd-smi, has the memory that the first of them states.
    """
    memory: dict[int, float | None] = {}
    answered = []
    for question, read in _QUESTIONS:
        text = _answer(question)
        if text is None:
            continue
        answered.append(question[0])
        listed: dict[int, float | None] = {}
        for pid, used in read(text):
            known = listed.get(pid)
            listed[pid] = used if known is None else known + (used or 0.0)  # one line per GPU
        memory |= {pid: used for pid, used in listed.items() if memory.get(pid) is None}
    return memory, answered


def _answer(question: Sequence[str]) -> str | None:
    answer = programs.ask(*question, patience_seconds=_PATIENCE_SECONDS)
    return answer.stdout if answer is not None and answer.returncode == 0 else None


def _nvidia(text: str) -> Iterable[tuple[int, float | None]]:
    for pid, used in re.findall(r"^(\d+), *(\S+)", text, re.MULTILINE):
        yield int(pid), float(used) * MIB if used.isdecimal() else None  # "[N/A]" if the driver reports none


def _rocm(text: str) -> Iterable[tuple[int, float | None]]:
    for pid, used in re.findall(r'"PID(\d+)": *"[^"]*?, *\d+, *(\w+),', text):
        yield int(pid), float(used) if used.isdecimal() else None


def _amd(text: str) -> Iterable[tuple[int, float | None]]:
    for gpu in _amd_gpus(text):
        processes = gpu.get("process_list")
        for entry in processes if isinstance(processes, list) else ():
            known = _within(entry, "process_info") or entry
            if str(_within(known, "pid")).isdecimal():
                cell = _within(known, "memory_usage", "vram_mem")
                scale = {"B": 1, "KB": 2**10, "MB": MIB, "GB": GIB}.get(str(_within(cell, "unit") or "B").upper())
                used = _within(cell, "value")
                yield int(known["pid"]), float(used) * scale if scale and isinstance(used, int | float) else None


def _within(found: Any, *keys: str) -> Any:
    """Return what objects within objects hold under these keys; None where one of them is absent or no object."""
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _amd_gpus(text: str) -> list[dict[str, Any]]:
    """Return the object of each GPU in an answer of amd-smi: a list, or in newer versions the value of "gpu_data"."""
    try:
        answer = json.loads(text)
    except json.JSONDecodeError:
        return []
    gpus = answer.get("gpu_data") if isinstance(answer, dict) else answer
    return [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []


_QUESTIONS: tuple[tuple[tuple[str, ...], Callable[[str], Iterable[tuple[int, float | None]]]], ...] = (
    (("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"), _nvidia),
    (("rocm-smi", "--showpids", "--json"), _rocm),
    (("amd-smi", "process", "--json"), _amd),
)


def _gpu_uses() -> dict[str, float | None]:
    """Return the utilization of every GPU in percent by its name; None for a GPU that does not report it."""
    return {gpu: use for question, read in _USE_QUESTIONS for gpu, use in read(_answer(question) or "")}


def _nvidia_use(text: str) -> Iterable[tuple[str, float | None]]:
    for gpu, percent in re.findall(r"^([\w-]+), *(\S+)", text, re.MULTILINE):
        yield gpu, _percent(percent)


def _rocm_use(text: str) -> Iterable[tuple[str, float | None]]:
    with contextlib.suppress(json.JSONDecodeError):
        cards = json.loads(text)
        for name, card in cards.items() if isinstance(cards, dict) else ():
            if (use := _within(card, "GPU use (%)")) is not None:
                yield str(name), _percent(str(use))


def _amd_use(text: str) -> Iterable[tuple[str, float | None]]:
    for card in _amd_gpus(text):
        activity = _within(card, "usage", "gfx_activity")
        value = activity.get("value") if isinstance(activity, dict) else activity
        yield f"gpu{card.get('gpu')}", _percent(str(value))


def _percent(text: str) -> float | None:
    """Return a utilization, or None for "[N/A]" and for a number that cannot be one.

    >>> _percent("7"), _percent("[N/A]"), _percent("1024")
    (7.0, None, None)
    """
    return float(text) if re.fullmatch(r"\d{1,3}(\.\d+)?", text) and float(text) <= 100 else None


def _gpus_of() -> dict[int, list[str]]:
    """Return the UUIDs of the GPUs that nvidia-smi lists for each process number."""
    text = _answer(("nvidia-smi", "--query-compute-apps=pid,gpu_uuid", "--format=csv,noheader")) or ""
    found: dict[int, list[str]] = {}
    for pid, gpu in re.findall(r"^(\d+), *(GPU-[\w-]+)", text, re.MULTILINE):
        found.setdefault(int(pid), []).append(gpu)
    return found


_USE_QUESTIONS: tuple[tuple[tuple[str, ...], Callable[[str], Iterable[tuple[str, float | None]]]], ...] = (
    (("nvidia-smi", "--query-gpu=uuid,utilization.gpu", "--format=csv,noheader,nounits"), _nvidia_use),
    (("rocm-smi", "--showuse", "--json"), _rocm_use),
    (("amd-smi", "metric", "--usage", "--json"), _amd_use),
)


def released(ended: Collection[int]) -> tuple[dict[int, float | None], list[str]]:
    """Return `memory_by_process` once the vendors' programs list none of the processes that have ended.

    A driver needs a moment to free the memory of a process; after RELEASE_SECONDS, the last answer is returned.
    """
    until = time.monotonic() + RELEASE_SECONDS
    while True:
        memory, answered = memory_by_process()
        if time.monotonic() > until or not any(pid in memory for pid in ended):
            return memory, answered
        time.sleep(_RELEASE_POLL_SECONDS)


def holders(memory: Mapping[int, float | None], *, ended: Collection[int] = ()) -> list[Holder]:
    """Return every process that has a GPU open or that a vendor's program lists, sorted by number.

    This process and its parents are left out. memory: as `memory_by_process` returns it. ended: processes that this
    command has ended.
    """
    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        if process.pid in spared:
            continue
        held = _holds(process.pid)
        if held or process.pid in memory:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(_holder(process, held, memory.get(process.pid)))
    known = {holder.pid for holder in found} | spared
    elsewhere = [
        Holder(pid=pid, memory_bytes=used, keeps=_STILL_LISTED if pid in ended else _ELSEWHERE)
        for pid, used in memory.items()
        if pid not in known
    ]
    return sorted([*found, *elsewhere], key=lambda holder: holder.pid)


def _holds(pid: int) -> bool:
    """Return True if the process has one of the device files open; False also if reading is not permitted."""
    try:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                target = os.readlink(descriptor)
                if any(fnmatch(target, pattern) for pattern in DEVICES):
                    return True
    except OSError:  # ended meanwhile, or another user's
        return False
    return False


def _holder(process: psutil.Process, held: bool, used: float | None) -> Holder:
    keeps, choosable = _judged(process, held)
    try:
        command = " ".join(process.cmdline()) or process.name()
    except psutil.AccessDenied:
        command = process.name()
    return Holder(
        pid=process.pid,
        memory_bytes=used,
        user=process.username(),
        command=command,
        created=process.create_time(),
        keeps=keeps,
        can_be_chosen=choosable,
    )


def _judged(process: psutil.Process, held: bool) -> tuple[str | None, bool]:
    """Return the reason to keep a process (None if that depends on its activity), and True if --pid may name it."""
    if process.uids().real != os.getuid():
        return f"belongs to {process.username()}", False
    if not held:
        return "has no GPU open here: the number may belong to another process on the host", False
    if not _is_python(process):
        return "is not Python", False
    return leftovers.why_kept(process), True


def watched(found: Sequence[Holder], *, seconds: float) -> list[Holder]:
    """Watch the possible leftovers for a time; return all processes, with a reason in `keeps` for those in use."""
    possible = [process for holder in found if holder.keeps is None and (process := _same(holder)) is not None]
    reasons = leftovers.watch(possible, seconds, _gpu_uses, _gpus_of()) if possible else {}
    return [
        replace(holder, keeps=reasons.get(holder.pid, "has ended")) if holder.keeps is None else holder
        for holder in found
    ]


def _same(holder: Holder) -> psutil.Process | None:
    """Return the process that was listed; None if it has ended or its number now belongs to another one."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(holder.pid)
        if process.create_time() == holder.created:
            return process
    return None


def _is_python(process: psutil.Process) -> bool:
    try:
        program = process.exe()
    except psutil.AccessDenied:
        return False
    return re.fullmatch(r"python[\d.]*", Path(program).name) is not None


def chosen_of(found: Sequence[Holder], named: Collection[int]) -> list[Holder]:
    """Return the leftovers and the processes that the user names by --pid.

    Raises UsageError for a named process that uses no GPU or must not be ended.
    """
    by_pid = {holder.pid: holder for holder in found}
    for number in named:
        if number not in by_pid:
            raise UsageError(f"--pid {number}: does not use a GPU here")
        if not by_pid[number].can_be_chosen:
            raise UsageError(f"--pid {number}: {by_pid[number].keeps}; it is not ended")
    return [holder for holder in found if holder.keeps is None or holder.pid in named]


def still_idle(left: Sequence[Holder], named: Collection[int], *, seconds: float) -> list[Holder]:
    """Watch processes that SIGTERM has not ended, except those that the user names; return those that still run.

    A process that is in use has the reason in `keeps`. seconds: time without any use after which a process is a
    leftover.
    """
    again = {holder.pid: holder for holder in watched([one for one in left if one.pid not in named], seconds=seconds)}
    found = [again.get(holder.pid, holder) for holder in left]
    return [holder for holder in found if (process := _same(holder)) is not None and _runs(process)]


def ask_to_end(chosen: Iterable[Holder], *, grace_seconds: float) -> list[Holder]:
    """Send SIGTERM to processes, and return those that still run after the grace time.

    Each process is judged again just before the signal. It gets none if its number belongs to another process by then,
    or if it is a leftover that now has a reason in `keeps`.
    """
    return _signalled(chosen, psutil.Process.terminate, grace_seconds)


def insist(chosen: Iterable[Holder]) -> list[Holder]:
    """Send SIGKILL to processes that SIGTERM has not ended, and return those that the driver still holds."""
    return _signalled(chosen, psutil.Process.kill, KILLED_SECONDS)


def _signalled(
    chosen: Iterable[Holder], send: Callable[[psutil.Process], None], patience_seconds: float
) -> list[Holder]:
    signalled = []
    for holder in chosen:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = _same(holder)
            if process is None:
                continue
            keeps, choosable = _judged(process, _holds(holder.pid))
            if choosable and (keeps is None or holder.keeps is not None):
                send(process)
                signalled.append((holder, process))
    until = time.monotonic() + patience_seconds
    while (left := [one for one, process in signalled if _runs(process)]) and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
    return left


def _runs(process: psutil.Process) -> bool:
    """Return True for a process that has not ended; a zombie has, because it holds no memory."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
