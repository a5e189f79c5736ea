"""Detection of processes that the kernel killed because memory ran out, by the counter of this process's control group.

The counter is the proof that a process which ended by SIGKILL was not killed by hand. Linux counts a victim in its own
group, whichever limit was reached: memory.events (version 2, descendants included) and memory.oom_control (version 1),
Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

import contextlib

from tensorprimat.machine import host_memory

_COUNTERS = {1: "memory.oom_control", 2: "memory.events"}
"""File with the counter, by version of the control groups."""


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
    version, folders = host_memory.memory_groups()
    for folder in folders:
        with contextlib.suppress(OSError, ValueError, KeyError):  # absent, or without this counter (Linux before 4.13)
            fields = dict(line.split() for line in (folder / _COUNTERS[version]).read_text().splitlines())
            return int(fields["oom_kill"])
    return None
