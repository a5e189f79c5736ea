"""Process trees and temporary folders: everything that this program starts ends with it, even after kill -9.

Three things that a command may start or make, and the event that ends each:
- `popen` starts a command below a guard (system/guard), which kills every descendant of the command when the command or
  this process ends, in whatever session a descendant lives;
- copies of this process (multiprocessing) call `die_with_parent` first;
- `scratch_folder` lends a temporary folder named after its owner; the guard removes it after a kill, and the next one
  that is made sweeps away those whose owner is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tensorprimat.core.errors import RunError
from tensorprimat.core.quantities import count
from tensorprimat.system import guard

PREFIX = "tensorprimat-"
SCRATCH = "TPRIMAT_SCRATCH"
"""Environment variable that names the folder for a command's own temporary folders."""
TREE = "TPRIMAT_TREE"
"""Variable that marks every descendant of a guarded command, in case its guard is killed."""
END_SECONDS = 5.0  # time that a guard has to kill everything: a driver may hold a process
_POLL_SECONDS = 0.005
PROC = Path("/proc")

_NAME = re.compile(rf"{PREFIX}(?P<system>[0-9a-f]{{8}})-(?P<pid>\d+)-(?P<started>\d+)-\w+")
_NEVER_A_PROGRAM = 0x00200000 | 0x00000004  # linux/sched.h: PF_KTHREAD, PF_EXITING
_numbers = itertools.count()


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends; ends at once if that has happened already.

    parent: the parent's number, taken before this process was started. Without effect elsewhere than on Linux.
    """
    guard.prctl(guard.PR_SET_PDEATHSIG, signal.SIGKILL)
    if guard.IS_LINUX and os.getppid() != parent:
        os._exit(1)


def popen(
    command: Sequence[str], *, scratch: Path | None = None, env: Mapping[str, str] | None = None, **settings: Any
) -> subprocess.Popen[Any]:
    """Start a command below a guard; its exit code is the command's. Raises OSError where there is no such command.

    scratch: a folder that the command may use, removed if this process is killed. settings: those of Popen.
    """
    environment = dict(os.environ if env is None else env)
    program = shutil.which(command[0], path=environment.get("PATH")) if os.sep not in command[0] else command[0]
    if program is None:
        raise FileNotFoundError(2, "No such file or directory", command[0])
    mark = f"{os.getpid()}.{started(os.getpid())}.{next(_numbers)}"
    environment[TREE] = f"{environment.get(TREE, '')}/{mark}/"
    if scratch is not None:
        environment |= {SCRATCH: str(scratch), **_temporary(environment, scratch)}
    guarded = [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(scratch or ""), *command]
    child = subprocess.Popen(guarded, env=environment, **settings)
    child.tree_mark = mark  # type: ignore[attr-defined]  # kept with the process that it is about
    return child


def _temporary(environment: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """Return variables that put other programs' temporary files into a folder, but keep torch.compile's cache.

    A link stands for the cache's usual place, because torch keeps the compiled headers of a CPU's kernels there even if
    TORCHINDUCTOR_CACHE_DIR names another one.
    """
    usual = compile_cache({})
    usual.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (scratch / usual.name).symlink_to(usual)
    return {"TMPDIR": str(scratch), "TORCHINDUCTOR_CACHE_DIR": str(compile_cache(environment))}


def compile_cache(environment: Mapping[str, str]) -> Path:
    """Return the folder in which torch.compile keeps compiled code for later processes."""
    return Path(environment.get("TORCHINDUCTOR_CACHE_DIR") or Path(tempfile.gettempdir(), f"torchinductor_{_user()}"))


def _user() -> str:
    import getpass

    try:
        return re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError, ImportError):  # a container that runs as a number without a name
        return str(os.getuid())


def run_guarded(
    command: Sequence[str], *, capture_output: bool = False, **settings: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a command below a guard to its end, as subprocess.run does. Raises OSError where there is no such command."""
    if capture_output:
        settings |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = popen(command, **settings)
    try:
        out, err = child.communicate()
    finally:
        end(child)
    return subprocess.CompletedProcess(command, child.returncode, out, err)


def ask(*command: str, patience_seconds: float) -> subprocess.CompletedProcess[str] | None:
    """Return the answer of a program that only reports something; None where it is missing or does not answer."""
    try:
        return subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=patience_seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def terminate(child: subprocess.Popen[Any]) -> None:
    """Send SIGTERM to a guarded command."""
    child.send_signal(signal.SIGUSR1)


def stop(child: subprocess.Popen[Any], *requests: tuple[Callable[[], object], float]) -> None:
    """Call functions that request an end, each followed by its seconds of waiting, until the command ends.

    A Ctrl-C shortens the wait. The command may outlive the last one.
    """
    for request, patience in requests:
        with contextlib.suppress(ProcessLookupError):
            request()
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            child.wait(timeout=patience)
            return


def end(child: subprocess.Popen[Any]) -> None:
    """Kill a guarded command and every descendant that is left of it, and wait until they are gone."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.send_signal(signal.SIGUSR2)
        child.wait(timeout=END_SECONDS)
    if child.poll() is None:
        child.kill()
    kill_marked(f"/{child.tree_mark}/")  # type: ignore[attr-defined]
    child.wait()


def kill_marked(mark: str) -> None:
    """Kill the user's processes that carry a mark in their environment until none is found, for at most END_SECONDS."""
    until = time.monotonic() + END_SECONDS
    empty_before: set[int] = set()
    while True:
        found, empty = marked(mark)
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not (found or empty - empty_before) or time.monotonic() > until:
            return
        empty_before = {pid for pid in empty if not _starts_a_program(pid)}
        time.sleep(_POLL_SECONDS)


def marked(mark: str) -> tuple[list[int], set[int]]:
    """Return the user's living processes that carry a mark in their environment, and those without any environment.

    This process is left out. While a process starts a program (exec), the kernel shows an empty environment for a
    moment, so those of the second set need another look.
    """
    found, empty = [], set()
    encoded = mark.encode()
    for folder in PROC.glob("[0-9]*") if guard.IS_LINUX else ():
        with contextlib.suppress(OSError):  # another user's, or ended meanwhile
            environment = (folder / "environ").read_bytes()
            if encoded in environment and int(folder.name) != os.getpid():
                found.append(int(folder.name))
            elif not environment:
                state, *_, flags = _stat_of(folder.name)[:7]  # proc(5): fields 3 and 9, from 1
                if state not in ("Z", "X") and not int(flags) & _NEVER_A_PROGRAM:
                    empty.add(int(folder.name))
    return found, empty


def _starts_a_program(pid: int) -> bool:
    """Return True if a process has no environment yet, because it is inside exec."""
    with contextlib.suppress(OSError):
        return int(_stat_of(pid)[47]) == 0  # proc(5): field 50, counted from 1
    return False


def _stat_of(pid: int | str) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on (proc(5)). Raises OSError if the process has ended."""
    return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()


def started(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; None if it does not run or if this is unknown."""
    try:
        fields = _stat_of(pid)
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])  # proc(5): field 22, counted from 1


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a temporary folder; it is deleted after the context, by the guard, or at the next call on this machine.

    Raises RunError if the disk is full.
    """
    above = Path(os.environ.get(SCRATCH) or tempfile.gettempdir())
    if not os.path.isdir(above):
        above = Path(tempfile.gettempdir())
    sweep(above)
    if lacking := lack_of_room(above):
        raise RunError(lacking)
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{owner()}-", dir=above, ignore_cleanup_errors=True) as name:
        yield Path(name)


LEAST_ROOM_BYTES = 2**20
"""Free bytes without which a temporary folder cannot be trusted with the result of a run."""


def lack_of_room(folder: Path) -> str | None:
    """Return what is wrong if the disk of a temporary folder is full, else None."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return None
    if free >= LEAST_ROOM_BYTES:
        return None
    left = f"{count(free // 2**10)} KiB left on the disk of temporary files"
    return f"{folder}: {left}; make room, or set TMPDIR to another disk"


def owner() -> str:
    """Return a name that no other process of any machine has: system, process number, start time."""
    return f"{_system()}-{os.getpid()}-{started(os.getpid()) or 0}"


@cache
def _system() -> str:
    """Return the name of this boot and PID namespace: a shared /tmp holds folders of other containers and hosts."""
    with contextlib.suppress(OSError):
        known = Path("/proc/sys/kernel/random/boot_id").read_text() + os.readlink("/proc/self/ns/pid")
        return hashlib.sha256(known.encode()).hexdigest()[:8]
    return "00000000"


def is_abandoned(name: str) -> bool:
    """Return True if a name made with `owner` belongs to a process of this system that has ended."""
    match = _NAME.search(name)
    if match is None or match["system"] != _system() or _system() == "00000000":
        return False
    return started(int(match["pid"])) != int(match["started"])


@cache
def sweep_once(folder: Path) -> None:
    """Sweep a folder, but only once per process."""
    sweep(folder)


def sweep(folder: Path) -> None:
    """Remove the temporary folders and files of ended processes of this user from a folder."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if PREFIX in entry.name and is_abandoned(entry.name):
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid != os.getuid():
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        shutil.rmtree(entry.path, ignore_errors=True)
                    else:
                        os.unlink(entry.path)


GROUPS = Path("/sys/fs/cgroup")
GROUP_OF_PROCESS = Path("/proc/self/cgroup")


def control_groups(controller: str) -> tuple[int, list[Path]]:
    """Return the version of the control groups of this process for a controller, and their folders, own group first.

    The folders are those of the own group and of every group above it, because a container may not see its own path and
    a limit of any of them holds. The list is empty on another system than Linux.
    """
    try:
        groups = [line.split(":", 2) for line in GROUP_OF_PROCESS.read_text().splitlines()]
    except OSError:  # not Linux
        return 2, []
    for number, controllers, path in sorted(groups, key=lambda group: group[0] == "0"):
        if number == "0" or controller in controllers.split(","):
            root = GROUPS if number == "0" else GROUPS / controller
            folder = root / path.lstrip("/")
            inside = [place for place in (folder, *folder.parents) if place == root or root in place.parents]
            return 2 if number == "0" else 1, inside
    return 2, []


def usable_cores() -> int:
    """Return the number of CPU cores that this process may use: on Linux as taskset, Slurm and containers allow."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
        return min(cores, quota_of_cores() or cores)
    return os.cpu_count() or 1


def quota_of_cores() -> int | None:
    """Return the number of cores whose time the control groups grant this process, rounded up; None for no limit.

    `docker run --cpus` and Kubernetes set it; /sys/fs/cgroup/…/cpu.max holds microseconds per period, or "max".
    """
    quotas = []
    for folder in (*control_groups("cpu")[1], GROUPS / "cpu"):  # the last: version 1
        of_version_1 = (first_line(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        stated = first_line(folder / "cpu.max") or " ".join(of_version_1)
        quota, _, period = stated.partition(" ")
        with contextlib.suppress(ValueError, ZeroDivisionError):
            quotas += [math.ceil(int(quota) / int(period))] if quota.isdecimal() else []
    return max(1, min(quotas)) if quotas else None


def first_line(path: Path) -> str:
    """Return the first line of a file; empty without one."""
    try:
        return path.read_text("ascii", "replace").split("\n", 1)[0].strip()
    except OSError:
        return ""
