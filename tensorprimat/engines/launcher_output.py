"""Run a framework's own launcher: keep and show its output, and report its failure in one line."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from tensorprimat.core.errors import RunError, TensorPrimatError
from tensorprimat.core.result import Result
from tensorprimat.core.spec import RunSpec
from tensorprimat.core.steps import Step
from tensorprimat.core.units import GIB
from tensorprimat.engines import console, failures, launch
from tensorprimat.logs.fields import number
from tensorprimat.machine import host_memory
from tensorprimat.storage import store
from tensorprimat.system import processes
from tensorprimat.system.failures import (
    ADVICE,
    OUT_OF_MEMORY,
    cause_of_failure,
    ending,
    is_consequence,
    is_failure_summary,
    signal_of_rank,
    was_killed,
)

_GRACE_SECONDS = 10.0  # time for interrupted ranks to leave their collectives
SHOWN_LINES = 15  # last lines of a failed training that are shown again
CAUSE_LINES = 400  # last lines searched for the cause: a traceback of each of eight ranks, then torchrun's summary

_LONGEST_LINE = 2**12  # characters of a line that are searched and shown; each has up to four bytes

_ITERATION = re.compile(r"iteration\s+(\d{1,12})/\s*\d+ \|.*?elapsed time per iteration \(ms\): *([\d.]{1,30})")
_MEMORY = re.compile(r"mem usage/free/total/usage_ratio: *([\d.]{1,30})Gi?B")
_LOSS = re.compile(r"lm loss: *(\S{1,30})")
_COLOUR = re.compile(r"\x1b\[[\d;]{0,30}m")
_RAISED = re.compile(r"(?:^|\]: ?|\s)[\w.]*(?:Error|Exception): ")  # "[rank0]: torch.distributed.DistBackendError: …"
_RANK = re.compile(r"\[rank\d+\]")
_COMPLAINT = re.compile(r"error|exception|fatal|no such|denied|refused|not found", re.IGNORECASE)
"""These three patterns only find the line to quote; the patterns that prove a cause are in system/failures."""


def follow_launcher(
    command: Sequence[str],
    log: IO[bytes],
    *,
    name: str,
    spec: RunSpec,
    environment: Mapping[str, str],
    folder: Path | None = None,
) -> RunError | None:
    """Run a command, copy its output to a log and to stdout, and return the error if it failed, else None.

    log: an unbuffered file, so that it can be watched. name: the framework's name. spec: the training, for the remedies
    in the error. folder: the working folder.
    """
    with processes.scratch_folder() as scratch:  # torchrun leaves a folder behind when it is killed
        kills = host_memory.KillWatch()
        child = processes.popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            scratch=scratch,
        )
        assert child.stdout is not None
        terminate = partial(processes.terminate, child)
        tail: deque[str] = deque(maxlen=CAUSE_LINES)
        show = _Shown(label="ROCM" if spec.platform == "amd" else "CUDA", warmup_steps=spec.warmup_steps)
        try:
            with child.stdout:
                for raw in launch.line_beginnings(child.stdout, longest=4 * _LONGEST_LINE, copy=log.write):
                    line = displayed_line(raw)
                    if line.strip():
                        tail.append(line)
                    with contextlib.suppress(OSError):  # the training continues if our output has no reader left
                        print(show(line), flush=True)
            child.wait()
        except KeyboardInterrupt:
            only_wait = child.poll  # first, because its processes have received the Ctrl-C too
            processes.stop(child, (only_wait, _GRACE_SECONDS), (terminate, _GRACE_SECONDS))
            return RunError(f"interrupted; its log: {log.name}")
        except OSError as error:  # the disk is full: a training without its log cannot be measured
            processes.stop(child, (terminate, _GRACE_SECONDS))
            return RunError(f"{log.name}: {error.strerror}; {name} was ended; make room, or name another --output")
        finally:
            processes.end(child)
    if child.returncode == 0:
        return None
    return _failure(spec, name, child.returncode, list(tail), log.name, memory_ran_out=kills.killed())


def keep(read: Callable[[], Result], result_file: Path, *, name: str, failure: RunError | None) -> None:
    """Write the result of a training's log, and raise the error if the training failed.

    read: returns the log as a result. name: the framework's name. Raises RunError also where a training ended normally
    but its log cannot be read as a result.
    """
    try:
        result = read()
    except TensorPrimatError as error:
        raise failure or RunError(f"{name} ended normally, but {error}") from error
    store.write(result.changed(complete=failure is None and result.complete), result_file)
    if failure is not None:
        raise failure


def displayed_line(raw: bytes) -> str:
    """Return a line as text without colours; for a progress bar that redraws itself, its last state."""
    text = raw.decode(errors="replace").rstrip("\r\n")
    return _COLOUR.sub("", text.rpartition("\r")[2])[:_LONGEST_LINE]


def complaint(lines: Sequence[str]) -> str | None:
    """Return the line that states the error: a raised exception, else the last line that complains; None without one.

    It is the last exception of the rank that failed first. Other ranks then report a lost connection, which is returned
    only if no rank raised anything else.

    >>> complaint(["[rank1]: ValueError: bad shape", "error_file: <N/A>", "torchrun exited with code 1"])
    '[rank1]: ValueError: bad shape'
    >>> complaint(["[rank1]: ValueError: bad shape", "[rank0]: RuntimeError: Connection closed by peer"])
    '[rank1]: ValueError: bad shape'
    """
    output = [line.strip() for line in lines if not is_failure_summary(line)]
    raised = [line for line in output if _RAISED.search(line)]
    if raised:
        own = [line for line in raised if not is_consequence(line)] or raised
        first = _rank(own[0])
        return [line for line in own if _rank(line) == first][-1]
    return next((line for line in reversed(output) if _COMPLAINT.search(line)), None)


def _rank(line: str) -> str | None:
    """Return the prefix that torch puts before the lines of a rank's traceback; None without one."""
    match = _RANK.match(line)
    return match[0] if match else None


class _Shown:
    """A formatter that rewrites Megatron's iteration lines in this tool's form and keeps all other lines."""

    def __init__(self, *, label: str, warmup_steps: int = 0) -> None:
        self._label = label
        self._warmup_steps = max(1, warmup_steps)  # the first row never counts
        self._first: int | None = None
        self._measured: list[float] = []

    def __call__(self, line: str) -> str:
        match = _ITERATION.search(line)
        milliseconds = None if match is None else number(match[2])
        if match is None or milliseconds is None:  # a mixture of two ranks' lines is shown unchanged
            return line
        seconds, memory, loss = milliseconds / 1000, _MEMORY.search(line), _LOSS.search(line)
        used = None if memory is None else number(memory[1])
        index = int(match[1])
        self._first = index if self._first is None else self._first
        warmup = index - self._first < self._warmup_steps
        self._measured += [] if warmup else [seconds]
        return console.step_line(
            Step(index=index, seconds=seconds, loss=number(loss[1]) if loss else None),
            label=self._label,
            mean_seconds=sum(self._measured) / len(self._measured) if self._measured else None,
            memory_bytes=None if used is None else used * GIB,  # GiB whatever its label says
            warmup=warmup,
        )


def _failure(spec: RunSpec, name: str, code: int, tail: list[str], log: str, *, memory_ran_out: bool) -> RunError:
    """Print the launcher's last lines and return the error that names the cause in one line."""
    print(f"{name} failed; the last lines of {log}:", file=sys.stderr)
    for line in tail[-SHOWN_LINES:]:
        print(f"  {line}", file=sys.stderr)
    cause = cause_of_failure("\n".join(tail))
    if cause == OUT_OF_MEMORY:
        return failures.out_of_memory(spec, f"; its log: {log}")
    error = complaint(tail)
    if error is None or is_consequence(error) or _rank(error) is None:  # no rank raised an error of its own
        if killed := next((number for line in tail if (number := signal_of_rank(line))), None):
            how = ending(-killed, memory_ran_out=memory_ran_out)
            return RunError(f"{name}: a rank {how}; its log: {log}")
        if cause is not None and (advice := ADVICE[cause]):
            return RunError(f"{name}: {advice}; its log: {log}")
    how = ending(code, memory_ran_out=memory_ran_out) + ("; its last line" if was_killed(code) else "")
    return RunError(f"{name} {how}: {error or (tail or ['no output'])[-1].strip()}; its log: {log}")
