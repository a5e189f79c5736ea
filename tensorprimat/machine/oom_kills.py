"""Detection of processes that the kernel killed because memory ran out, by the counter of this process's control group.

The counter is the proof that a process which ended by SIGKILL was not killed by hand. Linux counts a victim in its own
group, whichever limit was reached: memory.events (version 2, descendants included) and memory.oom_control (version 1),
Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

from pathlib import Path

_OWN_GROUPS = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")


class KillWatch:
    """A watch for kills: create it before a process starts, and ask it when the process has ended."""

    def __init__(self) -> None:
        self._before = count_oom_kills()

    def killed(self) -> bool:
        """Return True if the kernel has killed a process of this control group for lack of memory since creation."""
        after = count_oom_kills()
        return self._before is not None and after is not None and after > self._before


def count_oom_kills() -> int | None:
    """Return the number of processes of this control group that the kernel killed for lack of memory, or None."""
    try:
        groups = [line.split(":", 2) for line in _OWN_GROUPS.read_text().splitlines()]
    except OSError:  # not Linux
        return None
    for _, controllers, path in groups:
        if "memory" in controllers.split(","):
            return _read(_ROOT / "memory", path, "memory.oom_control")
    return next((_read(_ROOT, path, "memory.events") for number, _, path in groups if number == "0"), None)


def _read(root: Path, group: str, name: str) -> int | None:
    """Return the counter of a group, or of the nearest group above it, because a container may not see its own path."""
    folder = root / group.lstrip("/")
    for place in (folder, *folder.parents):
        try:
            fields = dict(line.split() for line in (place / name).read_text().splitlines())
            return int(fields["oom_kill"])
        except (OSError, ValueError, KeyError):  # absent, or without this counter (Linux before 4.13)
            if place == root:
                return None
    return None
