"""Causes of a training that ended early, by its exit code and the texts of frameworks, libraries and systems.

Readers of logs and launchers of processes use the same table and the same words. A text that also occurs in a healthy
log ("out of memory" in an advice, "Connection reset by peer" of an upload) counts only for a process that is known to
have failed.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from tensorprimat.core.errors import MAKE_ROOM
from tensorprimat.system.line_kinds import kinds_of

OUT_OF_MEMORY = "out of memory"
INTERRUPTED = "interrupted"
RANK_LOST = "lost rank"
TIMEOUT = "collective timeout"

BY_SYSTEM = "by the system because memory ran out"
KILLED = f"was killed (SIGKILL): by hand, or {BY_SYSTEM} (then dmesg says so)"
KILLED_FOR_MEMORY = f"was killed (SIGKILL) {BY_SYSTEM}"
LOST = "crashed or was killed, perhaps because memory ran out (see dmesg)"
"""Ends of a sentence that begins with a process: killed for an unknown reason, killed for lack
of memory, ended for an unknown reason."""
SHELL_SIGNAL = 128  # a shell's exit code of a command that died of signal N is 128 + N
KERNEL_KILL = r"\boom[-_ ]kill|OOM Killed|Out of memory: Kill|srun: error: [^\n]{0,200}Out Of Memory"
"""Words of the kernel and Slurm about a process that was killed because the host's memory, or its share, ran out."""
TRACEBACK = "Traceback (most recent call last)"
"""First line of an exception in Python, which a program may also print and then continue."""
CHILD_FAILED = "ChildFailedError"
"""Exception in which torchrun ends with a summary of the ranks that failed."""
DEATHS = ("slurmstepd: error", "srun: error", "CANCELLED AT", CHILD_FAILED, "exitcode ", "group FAILED")
"""Texts of launchers after processes ended early. Readers divide a log there, because later rows are of another
training; most of these texts name no cause."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One cause, the texts that prove it, and the texts that prove it only for a process that failed."""

    name: str
    """Name in `Run.ended_by`."""
    proof: str
    """Regular expression."""
    proof_once_failed: str = "(?!)"
    """Regular expression; by default nothing more."""
    advice: str = ""
    """Message of a launcher: the failure and its remedy. Empty: the last line of the output is more precise."""


CAUSES = (
    Cause(
        name=OUT_OF_MEMORY,
        proof=r"OutOfMemoryError|(?:CUDA|HIP)(?: error:)? out of memory|hipErrorOutOfMemory|RESOURCE_EXHAUSTED"
        r"|CUBLAS_STATUS_ALLOC_FAILED|HIPBLAS_STATUS_ALLOC_FAILED|DefaultCPUAllocator: can't allocate memory"
        rf"|{KERNEL_KILL}",
        proof_once_failed=r"(?i:out of memory|can(?:'t|not) allocate memory|bad_alloc|unable to allocate"
        r"|could not create a (?:primitive|memory)|\bMemoryError\b)",  # the last but one: oneDNN
    ),
    Cause(
        name="disk full",
        proof=r"No space left on device|Disk quota exceeded",
        advice=f"the disk is full; {MAKE_ROOM}",
    ),
    Cause(name="cancelled", proof=r"slurmstepd: error: .{0,200}CANCELLED|\bCANCELLED AT\b|DUE TO TIME LIMIT"),
    Cause(name=INTERRUPTED, proof=r"\bKeyboardInterrupt\b"),
    Cause(
        name=TIMEOUT,
        proof=r"(?:NCCL|RCCL|[Ww]atchdog).{0,300}(?:timed out|[Tt]imeout)",
        advice="a collective operation timed out because a rank did not join it; the logs of the other ranks name "
        "the first error",
    ),
    Cause(
        name=RANK_LOST,
        proof=r"(?:NCCL|RCCL)[^\n]{0,300}remote process exited",
        proof_once_failed=r"Connection closed by peer|Connection reset by peer|remote process exited",
        advice=f"the connection to another rank was lost; it {LOST}",
    ),
    Cause(
        name="killed by a signal",
        proof=r"received SIG(?:TERM|KILL|INT)|death signal|Signal \d+ \(SIG[A-Z]+\)|Segmentation fault|SignalException"
        r"|\(core dumped\)|(?m:(?:^|: |\d )\s*Killed(?:\s*$|\s{2}))",  # the last: shells and srun
    ),
    Cause(
        name="crashed",
        proof=rf"(?m:^[^\n]{{0,200}}{re.escape(TRACEBACK)}|{CHILD_FAILED}|exitcode\s*: -?[1-9]|^Aborted)",
    ),
)
"""In the order in which they are looked for: a crash out of memory is out of memory."""
ADVICE = {cause.name: cause.advice for cause in CAUSES}
CONSEQUENCES = (RANK_LOST, TIMEOUT)
"""Causes that one rank reports because another one failed: the other rank's error says more."""

_PROOFS = tuple((cause.name, re.compile(cause.proof)) for cause in CAUSES)
_PROOFS_ONCE_FAILED = tuple((cause.name, re.compile(f"{cause.proof}|{cause.proof_once_failed}")) for cause in CAUSES)
_SUSPICIOUS = (
    b"rror", b"raceback", b"SIG", b"ignal", b"CANCEL", b"LIMIT", b"nterrupt", b"ault", b"dump", b"imeout", b"timed out",
    b"out of memory", b"EXHAUSTED", b"ALLOC_FAILED", b"allocate", b"OOM", b"oom", b"Kill", b"exitcode", b"Abort",
    b"exited", b"space left", b"quota",
)  # fmt: skip
"""Every proof of a log contains one of these, and a plain search is much faster."""
_RANK_KILLED = re.compile(r"Signal (\d{1,3}) \((?:SIGKILL|SIGSEGV|SIGBUS)\) received by PID \d")
"""torchrun's line about a rank; not of SIGTERM, which torchrun itself sends to the ranks that are left."""
_SUMMARY = re.compile(
    rf"exited with code|exit ?code|{CHILD_FAILED}|elastic|error_file|root cause|^[\s=#*-]*$", re.IGNORECASE
)
_SIGKILL = 9
_HARMLESS = re.compile(
    r"Exception ignored (?:in|on|while)\b.*\n.*Traceback"
    r"(?:(?:(?!.*Traceback).*\n)+?.{0,200}(?:During handling|The above exception).{0,99}\n.{0,200}\n.{0,200}Traceback)*"
)
"""Traceback of an exception that ends nothing, as where an interpreter shuts down; Python 3.14 writes "while" and adds
the exceptions that were being handled."""


def cause_in(text: str) -> str | None:
    """Return the cause that the last lines of a log prove; None if they show none."""
    kinds = kinds_of(text.encode("utf-8", "replace"))
    return _first(_PROOFS, text) if any(word in kinds for word in _SUSPICIOUS) else None


def cause_of_failure(text: str) -> str | None:
    """Return the cause in the output of a process that failed; None if the text names none.

    >>> cause_in("set this to avoid running out of memory"), cause_of_failure("mlx: out of memory")
    (None, 'out of memory')
    """
    return _first(_PROOFS_ONCE_FAILED, text)


def is_consequence(message: str) -> bool:
    """Return True for the error of a rank that failed because another one did.

    >>> is_consequence("RuntimeError: [gloo] Connection closed by peer"), is_consequence("ValueError: bad shape")
    (True, False)
    """
    return cause_of_failure(message) in CONSEQUENCES or any(ADVICE[name] in message for name in CONSEQUENCES)


def signal_of_rank(line: str) -> int | None:
    """Return the number of the signal that killed a rank, from torchrun's line about it; None for any other line.

    >>> signal_of_rank("Signal 9 (SIGKILL) received by PID 2701"), signal_of_rank("step 9")
    (9, None)
    """
    match = _RANK_KILLED.search(line)
    return int(match[1]) if match else None


def is_failure_summary(line: str) -> bool:
    """Return True for a line that launchers print after a failure and that does not state its cause.

    >>> is_failure_summary("  exitcode  : 1 (pid: 12)"), is_failure_summary("ValueError: bad shape")
    (True, False)
    """
    return _SUMMARY.search(line) is not None


def was_killed(code: int) -> bool:
    """Return True for the exit code of a process that died of SIGKILL, as Python (-9) or a shell (137) has it."""
    return code in (-_SIGKILL, SHELL_SIGNAL + _SIGKILL)


def signal_of(code: int) -> str | None:
    """Return the name of the signal that ended a process, by its exit code; None if it ended by itself.

    >>> signal_of(-11), signal_of(139), signal_of(1)
    ('SIGSEGV', 'SIGSEGV', None)
    """
    number = -code if code < 0 else code - SHELL_SIGNAL
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}" if code < 0 else None


def ending(code: int, *, memory_ran_out: bool = False) -> str:
    """Return how a process ended, by its exit code, as the end of a sentence that begins with the process.

    memory_ran_out: there is a proof that the kernel killed it for lack of memory (machine/oom_kills, a line of Slurm).

    >>> ending(3), ending(-11)
    ('exited with 3', 'died of SIGSEGV')
    """
    if was_killed(code):
        return KILLED_FOR_MEMORY if memory_ran_out else KILLED
    name = signal_of(code)
    return f"exited with {code}" if name is None else f"died of {name}"


def shows_kernel_kill(text: str) -> bool:
    """Return True if an output proves that the kernel killed a process for lack of memory."""
    return re.search(KERNEL_KILL, text) is not None


def _first(proofs: tuple[tuple[str, re.Pattern[str]], ...], text: str) -> str | None:
    text = _HARMLESS.sub("", text)
    return next((name for name, proof in proofs if proof.search(text)), None)
