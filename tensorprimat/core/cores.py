"""CPU cores that this process may run on."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Their number: on Linux what taskset, Slurm and containers leave of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
