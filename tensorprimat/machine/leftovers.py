"""The rule that decides if a process on a GPU is a leftover of a training that has ended.

A leftover is the user's own Python process that holds a GPU, has lost its parent, belongs to no living session, was not
started by docker exec or kubectl exec, belongs to no batch job or service, and has used neither CPU, files nor GPU for
a stated time. A process whose state cannot be read counts as in use, because a wrong decision would end a running
training.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tensorprimat.core.quantities import fixed, stated_seconds, stated_share

REAPERS = ("systemd", "init")
"""Programs other than process 1 that adopt orphans, such as a user's own systemd."""
_LAUNCHERS = re.compile(
    r"python[\d.]*|torchrun|accelerate|deepspeed|mpirun|mpiexec\S*|orted|prted|srun|ray|raylet|nemo"
)
"""Programs that start ranks in new sessions. As process 1 of a container they are the parents of its ranks."""
JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "OAR_JOB_ID", "_CONDOR_SLOT", "COBALT_JOBID")
"""Variables that a batch system sets in every process of a job, without Grid Engine's JOB_ID, a too common name."""
JOB_CGROUP = re.compile(r"slurm|/job_?\d|pbs|lsf|condor|flux-|oar/|\.service$|/run-[^/]*\.scope$", re.IGNORECASE)
"""Control groups of batch systems and of services that systemd still runs."""
IDLE_SHARE = 0.001  # share of one core's time: a watchdog thread that wakes ten times a second uses less
_TICK_SECONDS = 0.01  # the kernel counts CPU time in such units; an idle CUDA process on an H200 used one in 36 s
_SAMPLE_SECONDS = 1.0  # interval of GPU readings; vendors average the utilization over about as long

GpuUse = Callable[[], Mapping[str, float | None]]
"""Function that returns the utilization of every GPU in percent, by name; None for a GPU that does not report it."""


def why_kept(process: psutil.Process) -> str | None:
    """Return the reason that a Python process on a GPU is not a leftover, or None if that depends on its activity."""
    try:
        return _parent(process) or _pid_namespace(process) or _session(process) or _job(process)
    except (psutil.Error, OSError) as error:
        return f"cannot be judged: {error}"


def _parent(process: psutil.Process) -> str | None:
    number = process.ppid()
    if process.pid == 1 or number == 0:
        return "its parent is unknown (0): docker exec and kubectl exec start processes like this"
    parent = psutil.Process(number)
    name = parent.name()
    if number != 1 and name not in REAPERS:
        return f"its parent {number} ({name}) waits for it"
    if os.getsid(process.pid) == os.getsid(number):
        return f"process {number} ({name}) has started it"
    if number == 1 and _LAUNCHERS.fullmatch(name):
        return f"process 1 ({name}) is a launcher and may have started it"
    return None


def _pid_namespace(process: psutil.Process) -> str | None:
    same = os.readlink(f"/proc/{process.pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    return None if same else "runs in a container"


def _session(process: psutil.Process) -> str | None:
    """Return the reason why a user may still be in the session of a process, or None."""
    session = os.getsid(process.pid)
    if session == 0:
        return "its session began outside this container"
    if process.terminal() is not None:
        return f"its session has a terminal ({process.terminal()})"
    if session != process.pid and _lives(session):
        return f"its session's first process {session} still runs"
    orphans = _own_orphans()
    for other in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if other != process.pid and os.getsid(other) == session and _lives(other) and not _below(other, orphans):
                return f"process {other} of its session still runs"
    return None


def _own_orphans() -> set[int]:
    """Return the numbers of the Python processes that have lost their parent; one session may leave several."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            adopted = process.ppid() == 1 or psutil.Process(process.ppid()).name() in REAPERS
            if adopted and re.match(r"python|pt_", process.name()):
                found.add(process.pid)
    return found


def _below(pid: int, tops: set[int]) -> bool:
    return pid in tops or any(parent.pid in tops for parent in psutil.Process(pid).parents())


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _job(process: psutil.Process) -> str | None:
    variables = process.environ()
    if job := next((f"{name}={variables[name]}" for name in JOB_VARIABLES if name in variables), None):
        return f"is in a batch job ({job})"
    for line in Path(f"/proc/{process.pid}/cgroup").read_text().splitlines():
        group = line.split(":", 2)[-1]
        if JOB_CGROUP.search(group):
            return f"is in the control group {group} of a job or service"
    return None


@dataclass(frozen=True)
class _Use:
    """The resources that a process, its descendants and the other processes of its session have used so far."""

    cpu_seconds: float
    bytes_moved: int
    on_disk: bool
    """True if one of them waits for a disk or a network file system (state D)."""


def _use(process: psutil.Process) -> _Use | str:
    """Return the resources used so far, or the reason that they are unknown."""
    cpu, moved, on_disk = 0.0, 0, False
    try:
        for member in _with_session(process):
            times, files = member.cpu_times(), member.io_counters()
            cpu += times.user + times.system
            moved += files.read_chars + files.write_chars
            on_disk = on_disk or member.status() == psutil.STATUS_DISK_SLEEP
    except (psutil.Error, OSError, AttributeError) as error:  # io_counters is missing on some systems
        return f"cannot be watched: {error}"
    return _Use(cpu, moved, on_disk)


def _with_session(process: psutil.Process) -> list[psutil.Process]:
    """Return a process, the others of its session (ranks that wait for each other), and all their descendants."""
    found = {process, *process.children(recursive=True)}
    session = os.getsid(process.pid)
    for other in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if os.getsid(other.pid) == session:
                found |= {other, *other.children(recursive=True)}
    return list(found)


def watch(
    processes: Iterable[psutil.Process], seconds: float, gpu_use: GpuUse, gpus_of: Mapping[int, Sequence[str]]
) -> dict[int, str | None]:
    """Watch processes for a time; return by process number the reason why it is in use, None if it used nothing.

    gpus_of: by process number the names of its GPUs; for a process that is missing there, the use of any GPU counts.
    """
    watched = list(processes)
    before = {process.pid: _use(process) for process in watched}
    busiest = _busiest(gpu_use, seconds)
    return {
        process.pid: _activity(before[process.pid], _use(process), seconds)
        or _gpu_activity(busiest, gpus_of.get(process.pid, tuple(busiest)))
        for process in watched
    }


def _busiest(gpu_use: GpuUse, seconds: float) -> dict[str, float | None]:
    """Return the highest utilization in percent of each GPU over a time; None if it was missing in one reading."""
    until = time.monotonic() + seconds
    busiest = dict(gpu_use())
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(_SAMPLE_SECONDS, left))
        now = gpu_use()
        for gpu in {*busiest, *now}:
            known, seen = busiest.get(gpu), now.get(gpu)
            busiest[gpu] = None if known is None or seen is None else max(known, seen)
    return busiest


def _activity(before: _Use | str, after: _Use | str, seconds: float) -> str | None:
    if isinstance(before, str) or isinstance(after, str):
        return before if isinstance(before, str) else str(after)
    cpu = after.cpu_seconds - before.cpu_seconds
    if cpu > max(IDLE_SHARE * seconds, 1.5 * _TICK_SECONDS) or cpu < 0:  # negative: one of its processes has ended
        return f"is at work: used {fixed(max(cpu, 0.0), 2)} s of CPU in {stated_seconds(seconds)}"
    if after.bytes_moved != before.bytes_moved or after.on_disk or before.on_disk:
        return f"is at work: read or wrote in {stated_seconds(seconds)}"
    return None


def _gpu_activity(busiest: Mapping[str, float | None], gpus: Sequence[str]) -> str | None:
    if not gpus:
        return "unclear: no program reports whether its GPU is in use"
    for gpu in gpus:
        percent = busiest.get(gpu)
        if percent is None:
            return f"unclear: GPU {gpu} does not report whether it is in use"
        if percent > 0:
            return f"its GPU {gpu} is in use ({stated_share(percent / 100)})"
    return None
