"""`tprimat processes`, `./fix_gpu_memory.sh`: who uses GPU memory, and ending what a crashed training left behind."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorprimat.machine.gpu_processes import Holder

FILE_WIDTH = 200  # of the table in a file or a pipe, where nothing has to be wrapped
NO_CACHE_STEP = (
    "There is no step that clears PyTorch's cache: empty_cache() gives back what the calling process itself has "
    "cached, so another process's call frees nothing."
)


def command(
    pid: Annotated[
        list[int] | None,
        typer.Option(metavar="PID", help="End this one too, though its parent still runs (repeatable)."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be ended; end nothing.")] = False,
    grace: Annotated[float, typer.Option(metavar="S", help="Seconds between SIGTERM and SIGKILL.")] = 10.0,
) -> int:
    """Show GPU memory by process, and offer to end leftover Python training processes.

    A leftover is a Python process of yours that has a GPU open and has lost its parent. Nothing else is ever ended: not
    another user's process, not one that is not on a GPU, and one whose parent still runs only if --pid names it.
    Without a terminal and without --yes nothing is ended.

    \b
    Examples:
      ./fix_gpu_memory.sh
      ./fix_gpu_memory.sh --pid 4711 --yes

    \b
    Exit codes:
      0  shown, and what was to be ended has ended
      1  a process could not be ended
      2  a flag is wrong, or --pid names a process that is left alone
    """
    from rich.console import Console

    from tensorprimat.core.errors import UsageError
    from tensorprimat.machine import gpu_processes

    if not (math.isfinite(grace) and grace >= 0):
        raise UsageError(f"--grace {grace:g}: must be 0 or more seconds")
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    found = _listed(console)
    chosen = _chosen(found, pid or [])
    if not chosen:
        console.print(f"Nothing to end. {NO_CACHE_STEP}", soft_wrap=True)
        return 0
    numbers = ", ".join(str(holder.pid) for holder in chosen)
    if dry_run:
        console.print(f"Dry run: would end {numbers}")
        return 0
    if not yes and not (sys.stdin.isatty() and sys.stdout.isatty()):
        console.print(f"Could be ended: {numbers}. No terminal to ask on; --yes ends them.")
        return 0
    if not yes and not typer.confirm(f"End {numbers}?"):
        return 0
    left = gpu_processes.end([holder.pid for holder in chosen], grace_seconds=grace)
    console.print("\nAfterwards:")
    _listed(console)
    if left:
        console.print(f"Still running: {', '.join(map(str, left))}; the driver holds them, see dmesg")
        return 1
    return 0


def _listed(console: Any) -> list[Holder]:
    """Look, and show what was found."""
    from rich.table import Table

    from tensorprimat.core.units import GB
    from tensorprimat.machine import gpu_processes

    memory, answered = gpu_processes.listed()
    found = gpu_processes.holders(memory)
    if not answered:
        console.print(
            "Neither nvidia-smi, rocm-smi nor amd-smi answers; found by open device files alone:", soft_wrap=True
        )
    if not found:
        console.print("No process is on a GPU.")
        return []
    table = Table("PID", "User", "GPU memory", "Since", "", "Command", box=None, pad_edge=False)
    for holder in found:
        used = "unknown" if holder.memory_bytes is None else f"{holder.memory_bytes / GB:.2f} GB"
        since = "" if holder.started_at is None else f"{holder.started_at:%m-%d %H:%M}"
        table.add_row(str(holder.pid), holder.user or "", used, since, holder.keeps or "leftover", holder.command[:60])
    console.print(table, soft_wrap=True)
    return found


def _chosen(found: Sequence[Holder], named: Sequence[int]) -> list[Holder]:
    """The leftovers, and those that --pid names. Raises UsageError for a number that must be left alone."""
    from tensorprimat.core.errors import UsageError

    by_pid = {holder.pid: holder for holder in found}
    for number in named:
        if number not in by_pid:
            raise UsageError(f"--pid {number}: is not on a GPU here")
        if not by_pid[number].can_be_chosen:
            raise UsageError(f"--pid {number}: {by_pid[number].keeps}; it is left alone")
    return [holder for holder in found if holder.keeps is None or holder.pid in named]
