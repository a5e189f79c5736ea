"""Host memory that this process can still allocate, within its control groups, and kills because memory ran out.

Linux limits a container or a batch job by its control group (cgroup): version 2 is described in
Documentation/admin-guide/cgroup-v2.rst, version 1 in cgroup-v1/memory.rst. A group's counter of kills (memory.events,
memory.oom_control) is the proof that a process which ended by SIGKILL was not killed by hand: Linux counts a victim in
its own group, whichever limit was reached.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from tensorprimat.system.processes import control_groups

_COUNTERS = {1: "memory.oom_control", 2: "memory.events"}
"""File with the counter, by version of the control groups."""

_LIMIT_AND_USE = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}
_FILE_CACHE = {1: ("total_inactive_file", "total_active_file"), 2: ("inactive_file", "active_file")}
"""Entries of memory.stat about cached files, whose memory the kernel frees before it refuses or kills anything."""


def available_bytes() -> float:
    """Return the bytes that this process could still allocate without swapping, within the limits of its groups."""
    import psutil

    version, folders = control_groups("memory")
    left = [float(psutil.virtual_memory().available)]
    for folder in folders:
        with contextlib.suppress(OSError, ValueError):  # a group without the controller, or without a limit ("max")
            limit, used = (float((folder / name).read_text()) for name in _LIMIT_AND_USE[version])
            left.append(limit - used + min(used, _cached_files(folder, version)))
    return max(0.0, min(left))


def total_bytes() -> float:
    """Return the bytes of host memory that this process can have at most: the machine's, or the limit of a group."""
    import psutil

    version, folders = control_groups("memory")
    limits = [float(psutil.virtual_memory().total)]
    for folder in folders:
        with contextlib.suppress(OSError, ValueError):
            limits.append(float((folder / _LIMIT_AND_USE[version][0]).read_text()))
    return min(limits)


def _cached_files(folder: Path, version: int) -> float:
    """Return the bytes of cached files that a group is charged with; 0 if it does not state them."""
    try:
        fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return sum(float(fields[name]) for name in _FILE_CACHE[version])
    except (OSError, ValueError, KeyError):
        return 0.0


class KillWatch:
    """A watch for kills: create it before a process starts, and ask it when the process has ended."""

    def __init__(self) -> None:
        self._before = count_oom_kills()

    def killed(self) -> bool:
        """Return True if the kernel has killed a process of this control group for lack of memory since creation."""
        after = count_oom_kills()
        return self._before is not None and after is not None and after > self._before


def count_oom_kills() -> int | None:
    """Return the number of processes of this control group that the kernel killed for lack of memory, or None.

    It is the counter of the nearest group that has one.
    """
    version, folders = control_groups("memory")
    for folder in folders:
        with contextlib.suppress(OSError, ValueError, KeyError):  # absent, or without this counter (Linux before 4.13)
            fields = dict(line.split() for line in (folder / _COUNTERS[version]).read_text().splitlines())
            return int(fields["oom_kill"])
    return None
