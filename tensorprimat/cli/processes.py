"""`tprimat processes`, `./fix_gpu_memory.sh`: show processes that use GPU memory, and end leftover training."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensorprimat.cli.shared_options import switch, takes, takes_number

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tensorprimat.machine.gpu_processes import Holder

_FILE_WIDTH = 200  # of the table in a file or a pipe, where nothing has to be wrapped
NO_CACHE_STEP = (
    "PyTorch's cache cannot be cleared from outside: empty_cache() frees only the cache of the process that calls it."
)


def command(
    pid: Annotated[
        list[int] | None, takes("PID", "End this process too, even if it is not a leftover (repeatable).")
    ] = None,
    yes: Annotated[bool, switch("--yes", "Do not ask.")] = False,
    dry_run: Annotated[bool, switch("--dry-run", "Print what would be ended; end nothing.")] = False,
    idle: Annotated[float, takes_number("S", "Idle seconds (no CPU, file or GPU use) that make a leftover.")] = 30.0,
    grace: Annotated[float, takes_number("S", "Seconds between SIGTERM and SIGKILL.")] = 10.0,
) -> int:
    """Show GPU memory by process, and offer to end leftover Python training processes.

    A leftover is a Python process of yours that has a GPU open, has lost its parent, and used neither CPU, files nor
    GPU for --idle seconds while this command watched it. A process is not a leftover if its parent is unknown (docker
    exec, kubectl exec), or if it belongs to a live session, a batch job or a service. In doubt, a process is listed and
    not ended. No other process is ended, except one named by --pid, if it is yours, runs Python and uses a GPU.

    SIGTERM comes first. For a process that still runs after --grace seconds, the command asks again; with --yes it is
    killed if --pid names it or if it is still idle. Without a terminal and without --yes nothing is ended.

    \b
    Examples:
      ./fix_gpu_memory.sh
      ./fix_gpu_memory.sh --pid 4711 --yes

    \b
    Exit codes:
      0  shown, and the selected processes have ended
      1  a process could not be ended
      2  a flag is wrong, or --pid names a process that must not be ended
    """
    from tensorprimat.core.errors import UsageError
    from tensorprimat.core.quantities import as_stated
    from tensorprimat.machine import gpu_processes
    from tensorprimat.reports import harmless

    for flag, value, least in (("--grace", grace, 0.0), ("--idle", idle, 0.1)):
        if not (math.isfinite(value) and value >= least):
            raise UsageError(f"{flag} {as_stated(value)}: must be {as_stated(least)} or more seconds")
    console = harmless.console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    chosen = gpu_processes.chosen_of(_listed(console, idle), pid or [])
    if not chosen:
        console.print(f"Nothing to end. {NO_CACHE_STEP}", soft_wrap=True)
        return 0
    numbers = ", ".join(str(holder.pid) for holder in chosen)
    asks = sys.stdin.isatty() and sys.stdout.isatty() and not yes
    if dry_run:
        console.print(f"Dry run: would end {numbers}")
        return 0
    if not yes and not asks:
        console.print(f"Can be ended: {numbers}. Without a terminal, --yes is needed to end them.")
        return 0
    if asks and not typer.confirm(f"End {numbers}?"):
        return 0
    left = _end(console, chosen, named=pid or [], asks=asks, idle=idle, grace=grace)
    running = [holder.pid for holder in left]
    console.print("\nAfterwards:")
    _listed(console, None, ended=[holder.pid for holder in chosen if holder.pid not in running])
    return 1 if left else 0


def _end(
    console: Any, chosen: Sequence[Holder], *, named: Sequence[int], asks: bool, idle: float, grace: float
) -> Sequence[Holder]:
    """Ask processes to end, then kill those that the user or the rule still allows; return those that still run."""
    from tensorprimat.machine import gpu_processes

    left = gpu_processes.ask_to_end(chosen, grace_seconds=grace)
    if not left:
        return []
    if asks:
        numbers = ", ".join(str(holder.pid) for holder in left)
        kept = [] if typer.confirm(f"{numbers} still run after SIGTERM. Kill them (SIGKILL)?") else left
    else:
        left = gpu_processes.still_idle(left, named, seconds=idle)
        kept = [holder for holder in left if holder.keeps is not None and holder.pid not in named]
        for holder in kept:
            console.print(f"{holder.pid} was not killed after SIGTERM: {holder.keeps}; --pid {holder.pid} kills it")
    unkillable = gpu_processes.insist([holder for holder in left if holder not in kept])
    if unkillable:
        console.print(
            f"Still running: {', '.join(str(holder.pid) for holder in unkillable)}; the driver holds them, see dmesg"
        )
    return [*kept, *unkillable]


def _listed(console: Any, idle: float | None, *, ended: Collection[int] = ()) -> list[Holder]:
    """Return the processes on GPUs and show them; those that may be leftovers are watched first.

    idle: seconds to watch; None: do not look for leftovers. ended: processes that this command has ended.
    """
    from rich.table import Table

    from tensorprimat.core.quantities import size, stated_seconds
    from tensorprimat.machine import gpu_processes

    memory, answered = gpu_processes.released(ended)
    found = gpu_processes.holders(memory, ended=ended)
    if idle is not None and any(holder.keeps is None for holder in found):
        console.print(f"Watching the processes for {stated_seconds(idle)} ...")
        found = gpu_processes.watched(found, seconds=idle)
    if not answered:
        console.print(
            "nvidia-smi, rocm-smi and amd-smi are not available; processes found by open device files only:",
            soft_wrap=True,
        )
    if not found:
        console.print("No process uses a GPU.")
        return []
    table = Table("PID", "User", "GPU memory", "Since", "State", "Command", box=None, pad_edge=False)
    for holder in found:
        used = "unknown" if holder.memory_bytes is None else size(holder.memory_bytes)
        since = "" if holder.started_at is None else f"{holder.started_at:%m-%d %H:%M}"
        state = holder.keeps or ("leftover" if idle else "")
        table.add_row(str(holder.pid), holder.user or "", used, since, state, holder.command[:60])
    console.print(table, soft_wrap=True)
    return found
