"""A small process between a command and its parent: it ends every descendant of the command when either ends.

    python -I -S guard.py PARENT_PID FOLDER COMMAND [ARGUMENT...]

Started by system/processes, with the standard library alone. Ranks of torchrun live in sessions of their own, so
neither Ctrl-C nor a signal to a process group reaches them. This process adopts descendants that lose their parent
(subreaper), receives a signal when its own parent dies, and then kills every descendant and removes FOLDER ("" for
none). When the command ends, the rest of its descendants is killed, and this process ends the same way as the command.

Signals: SIGUSR1 sends SIGTERM to the command, SIGUSR2 kills everything. SIGINT and SIGTERM to the process group reach
the command directly. This process ignores SIGINT, and SIGTERM while its parent lives.
"""

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import sys
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
IS_LINUX = sys.platform == "linux"
SECONDS = "TPRIMAT_SECONDS"
"""Variable that names a file for the command's own time, without the start and the end of this process."""
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_POLL_SECONDS = 0.5  # between two checks of the parent where the kernel sends no signal


def prctl(option: int, value: int) -> None:
    """Set a property of this process; without effect on other systems than Linux."""
    if IS_LINUX:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def descendants() -> list[int]:
    """Return the numbers of all living processes below this one (Linux; elsewhere none are known)."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc") if IS_LINUX else ():
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except OSError:  # ended meanwhile
                continue
            if state not in (b"Z", b"X"):
                parents[int(name)] = int(parent)
    below: list[int] = []
    layer = {os.getpid()}
    while layer:
        layer = {pid for pid, parent in parents.items() if parent in layer}
        below += layer
    return below


def kill_all(leader: int) -> None:
    """Kill every descendant, until none is left: one may start another meanwhile."""
    if not IS_LINUX and leader:
        _send(leader, signal.SIGKILL)
        return
    others: set[int] = set()
    while left := [pid for pid in descendants() if pid not in others]:
        others |= {pid for pid in left if not _send(pid, signal.SIGKILL)}
        _reap()
        time.sleep(0.005)


def _send(pid: int, number: int) -> bool:
    """Send a signal; return False for a process of another user (started by sudo), which this one must not wait for."""
    try:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    except PermissionError:
        return False
    return True


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main(argv: list[str]) -> int:
    """Run the command and guard it; returns its exit code, or dies of the signal that it died of."""
    parent, folder, command = int(argv[0]), argv[1], argv[2:]
    awaited = {*HANDLED, signal.SIGCHLD, signal.SIGALRM}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)  # for good: a handler could run just before a wait
    signal.signal(signal.SIGCHLD, lambda *_: None)  # an ignored signal would not wait outside of Linux
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    _end_without(parent, 0, folder)  # it may have died before the request to the kernel
    mine, place = os.getpid(), os.environ.pop(SECONDS, None)
    began = time.monotonic()
    leader = os.fork()
    if not leader:
        _become(command, mine, mask)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # the command alone holds the pipes, so that their readers see when it ends
        os.dup2(nothing, stream)
    if not IS_LINUX:
        signal.setitimer(signal.ITIMER_REAL, _POLL_SECONDS, _POLL_SECONDS)
    code = None
    while code is None:
        number = signal.sigwait(awaited)
        if number == signal.SIGCHLD:
            code = _code_of(leader)
        elif number == signal.SIGUSR1:
            _send(leader, signal.SIGTERM)
        elif number == signal.SIGUSR2:
            kill_all(leader)
            code = -signal.SIGKILL
        elif number in (signal.SIGTERM, signal.SIGALRM):
            _end_without(parent, leader, folder)
    if place:
        with open(place, "w") as file:
            file.write(str(time.monotonic() - began))
    kill_all(0)  # the number of the command may be given to another process
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (-code,))
        os.kill(os.getpid(), -code)
    return code


def _end_without(parent: int, leader: int, folder: str) -> None:
    """Kill every descendant and end, if the parent is gone."""
    if os.getppid() != parent:
        kill_all(leader)
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(128 + signal.SIGKILL)


def _become(command: list[str], guard: int, mask: set[int | signal.Signals]) -> None:
    """Turn this copy into the command, which ends with the guard."""
    try:
        for number in HANDLED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == guard:
            os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _code_of(leader: int) -> int | None:
    """Reap every process that has ended; return the command's exit code, negative for a signal, None while it runs."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            if pid == leader:
                code = os.waitstatus_to_exitcode(status)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
