"""Start of an engine's runs, each in a fresh process: live output, cool-down between runs, and their outcomes.

An engine's module is called as `python -m MODULE --spec FILE --result FILE`: it reads a RunSpec, trains, prints its
lines on stdout, writes a Result of one run (marked incomplete where it could not finish) and exits 0, or 1 or 2 with
one line on stderr. An `Ending` describes its outcome, however it ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, AnyStr

import tensorprimat
from tensorprimat.core.errors import InputError, OutOfMemoryError, RunError, TensorPrimatError, UsageError
from tensorprimat.core.records import Record
from tensorprimat.core.result import Result
from tensorprimat.core.spec import RunSpec
from tensorprimat.engines import failures
from tensorprimat.engines.registry import ENGINES
from tensorprimat.machine import host_memory
from tensorprimat.storage import store
from tensorprimat.system import atomic, processes
from tensorprimat.system.failures import (
    ADVICE,
    OUT_OF_MEMORY,
    cause_of_failure,
    ending,
    signal_of,
    was_killed,
)

GRACE_SECONDS = 15.0  # time to write the measurements; importing torch alone, which ignores signals, takes 5 s
TERMINATE_SECONDS = 5.0
LONGEST_LINE = 2**14  # characters of a line that are passed to on_line
TAIL_LINES = 40  # last lines of stderr, which are searched for the cause

CLUSTER = "cluster engine: "
"""Prefix of the line in which engines/cluster/submission reports the outcome of a job on other machines."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """The outcome of one process, with its measurements."""

    result: Result | None
    """The complete result; after an error the measurements so far, or None without any."""
    error: TensorPrimatError | None = None
    interrupted: bool = False
    """The user pressed Ctrl-C, so that no further run starts."""


def cool_down(seconds: float, on_wait: Callable[[float], None]) -> None:
    """Wait for the device to cool down. on_wait: called every second with the seconds left."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        on_wait(left)
        time.sleep(min(1.0, left))


@dataclass(frozen=True, kw_only=True)
class EngineProcess:
    """The process of one run and its files."""

    child: subprocess.Popen[str]
    scratch: Path
    result_file: Path
    stderr_file: Path
    waits: bool = False
    """It waits after its imports, until `run_in_process` lets it go on."""


@contextlib.contextmanager
def engine_process(
    spec: Record, *, module: str, wrapping: Sequence[str] = (), waits: bool = False
) -> Iterator[EngineProcess]:
    """Start a fresh process for a spec and end it after the block.

    wrapping: command before the engine's command (a profiler). waits: the process (of the torch engine) imports its
    libraries and waits, without a context on a GPU, so that a pause before the run is used for the imports.
    """
    with processes.scratch_folder() as scratch:
        spec_file, result_file, stderr_file = (scratch / name for name in ("spec.json", "result.json", "stderr"))
        spec_file.write_text(spec.model_dump_json())
        command = [*wrapping, sys.executable, "-m", module, "--spec", str(spec_file), "--result", str(result_file)]
        with _started([*command, *(["--wait"] if waits else [])], stderr_file, scratch, waits=waits) as child:
            yield EngineProcess(
                child=child, scratch=scratch, result_file=result_file, stderr_file=stderr_file, waits=waits
            )


def run_in_process(
    spec: RunSpec,
    *,
    module: str,
    log: Path,
    on_line: Callable[[str], None],
    wrapping: Sequence[str] = (),
    process: EngineProcess | None = None,
) -> Ending:
    """Run a spec in a fresh process and return the outcome. on_line: called with each line of its stdout as it comes.

    wrapping: command before the engine's command (a profiler). log: file for the process's stderr if the run fails.
    process: one that waits; None starts one. Ctrl-C stops the process and is returned as an Ending.
    """
    kills = host_memory.KillWatch()
    with contextlib.nullcontext(process) if process else engine_process(spec, module=module, wrapping=wrapping) as used:
        code, interrupted = supervise(used, on_line)
        ended = time.time()
        result = _read(used.result_file)
        if not interrupted and code == 0 and result is not None and result.complete:
            return Ending(result=result if wrapping else _with_writing(result, ended))
        error = cluster_error(used.stderr_file) if interrupted else _cause(spec, code, used.stderr_file, log, kills)
        partial = None if result is None else result.changed(complete=False)
        return Ending(result=partial, error=error, interrupted=interrupted)


def _with_writing(result: Result, ended: float) -> Result:
    """Return the result of a process of this machine with the time that it took after its last step.

    ended: end of the process (Unix time).
    """
    (run,) = result.runs
    seconds = ended - float(result.steps.column("ended_at")[-1])
    if run.startup is None or not seconds >= 0:  # nan without the times of the steps
        return result
    return result.changed(runs=(run.changed(startup=run.startup.changed(writing_seconds=seconds)),))


@contextlib.contextmanager
def _started(command: list[str], stderr_file: Path, scratch: Path, *, waits: bool) -> Iterator[subprocess.Popen[Any]]:
    """Start a command and end it after the block. waits: it reads a line from stdin."""
    with stderr_file.open("wb") as stderr:
        # In a session of its own: a Ctrl-C reaches this process alone, which can signal all processes of the command.
        child = processes.popen(
            command,
            scratch=scratch,
            stdin=subprocess.PIPE if waits else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
            encoding="utf-8",
            errors="replace",
            env=process_environment(),
        )
        try:
            yield child
        finally:
            processes.end(child)
            for stream in filter(None, (child.stdin, child.stdout)):
                stream.close()


def supervise(process: EngineProcess, on_line: Callable[[str], None]) -> tuple[int, bool]:
    """Let a process go on that waits, and follow it to its end; return its exit code, and True if Ctrl-C stopped it.

    on_line: called with each line of its stdout as it comes.
    """
    child = process.child
    assert child.stdout is not None
    try:
        if child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has failed: its stderr says why
                child.stdin.write("\n")
                child.stdin.close()
        for line in line_beginnings(child.stdout, longest=LONGEST_LINE):
            if str(process.scratch) not in line:  # the folder is temporary
                on_line(line.rstrip("\r\n"))
        child.wait()
    except KeyboardInterrupt:
        threading.Thread(target=child.stdout.read, daemon=True).start()  # a full pipe would hold the process up
        patience = {signal.SIGINT: GRACE_SECONDS, signal.SIGTERM: TERMINATE_SECONDS}
        processes.stop(child, *((partial(os.killpg, child.pid, one), wait) for one, wait in patience.items()))
        return child.returncode, True
    return child.returncode, False


def process_environment() -> dict[str, str]:
    """Return the environment for a process of this package: it imports this copy and prints without buffering."""
    package_parent = str(Path(tensorprimat.__file__).parents[1])
    search_path = os.pathsep.join(filter(None, (package_parent, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": search_path, "PYTHONUNBUFFERED": "1", **_kept_bytecode()}


def _kept_bytecode() -> dict[str, str]:
    """Return variables with which Python keeps the bytecode of modules beside torch's compiled code.

    {} where Python keeps it beside the modules. Images often forbid that (PYTHONDONTWRITEBYTECODE, folders of another
    user): every process then compiles the libraries' modules again, which takes 10 s. Python checks time and size of a
    module before it uses its bytecode.
    """
    specification = getattr(sys.modules.get("torch"), "__spec__", None)  # imported, so it would have its bytecode
    if specification is None or sys.pycache_prefix or os.path.isfile(specification.cached or ""):
        return {}
    cache = processes.compile_cache(os.environ)
    if os.name != "posix" or (os.path.exists(cache) and cache.stat().st_uid != os.getuid()):
        return {}  # nobody else may write code for this user
    return {"PYTHONPYCACHEPREFIX": str(cache / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}


def line_beginnings(
    output: IO[AnyStr], *, longest: int, copy: Callable[[AnyStr], object] = lambda _: None
) -> Iterator[AnyStr]:
    """Yield the beginning of each line of a process's output as it comes, because a line may never end.

    longest: characters or bytes of a beginning. copy: called with each piece of the output, which together are all.
    """
    begins = True
    while piece := output.readline(longest):
        copy(piece)
        if begins:
            yield piece
        begins = piece[-1:] in ("\n", b"\n")


def _read(path: Path) -> Result | None:
    """Return the result that the process wrote; None if its file is missing or truncated, or contains no step."""
    try:
        result = store.load(path)
    except InputError:  # not written, or truncated: the run's own error says why
        return None
    return result if len(result.steps) else None


def cluster_error(stderr_file: Path, otherwise: str = "interrupted") -> RunError:
    """Return the error of a job on a cluster, from the last line with the prefix CLUSTER in a process's stderr.

    otherwise: the error if there is no such line.
    """
    lines = stderr_file.read_text(encoding="utf-8", errors="replace").splitlines()
    message = next((line for line in reversed(lines) if line.startswith(CLUSTER)), CLUSTER + otherwise)
    return RunError(message.removeprefix(CLUSTER))


def _cause(spec: RunSpec, code: int, stderr_file: Path, log: Path, kills: host_memory.KillWatch) -> TensorPrimatError:
    """Return the error of a process that failed; writes its stderr, if not empty, to the log."""
    text = stderr_file.read_text(encoding="utf-8", errors="replace")
    tail = [line.strip() for line in text.splitlines() if line.strip()][-TAIL_LINES:]
    kept = ""
    if tail:
        try:
            atomic.write_atomically(log, text)
            kept = f"; its output is in {log}"
        except OSError as error:  # the disk may be full; the error below, about the failure itself, is more important
            kept = f"; its output could not be stored in {log}: {error.strerror}"
    if own := [match["says"] for line in tail if (match := failures.ENGINES_OWN_LINE.match(line))]:
        message = failures.first_cause(own)
        kind = UsageError if code == 2 else OutOfMemoryError if cause_of_failure(message) == OUT_OF_MEMORY else RunError
        return kind(message + ("" if code == 2 else kept))
    last = tail[-1] if tail else processes.lack_of_room(stderr_file.parent) or "no output"
    cause = cause_of_failure("\n".join(tail))
    if cause == OUT_OF_MEMORY:
        return failures.out_of_memory(spec, kept)
    if cause is not None and (advice := ADVICE[cause]):
        return RunError(f"{advice}; {last}{kept}")
    if was_killed(code):
        tiny = ", --preset tiny (other work)" if ENGINES[spec.engine].own_training and spec.preset != "tiny" else ""
        return RunError(
            f"the training process {ending(code, memory_ran_out=kills.killed())}; for less memory try "
            f"{failures.memory_remedies(spec)}{tiny}{kept}"
        )
    if signal_of(code):
        return RunError(f"the training process {ending(code)}: {last}{kept}")
    if code == 0:
        return RunError(f"the training process ended without a complete result: {last}{kept}")
    return RunError(f"{last}{kept}")
