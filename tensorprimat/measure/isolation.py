"""Timing of one cell in a fresh process: `python -m tensorprimat.measure.isolation --spec FILE --result FILE`.

In a fresh process a cell does not inherit the allocator, caches or compiled kernels of another cell. If the process is
killed, the sweep continues, and the table shows OOM for this cell if the kernel counted a kill for lack of memory, else
"failed".
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tensorprimat.core.errors import TensorPrimatError, UsageError
from tensorprimat.engines import launch
from tensorprimat.engines.entry import parser_of
from tensorprimat.machine import host_memory
from tensorprimat.storage import micro_result
from tensorprimat.storage.micro_result import CellSpec, MicroResult
from tensorprimat.system import processes
from tensorprimat.system.failures import OUT_OF_MEMORY, ending, was_killed

MODULE = "tensorprimat.measure.isolation"
STOP_SECONDS = 5.0  # time between SIGTERM and SIGKILL


def measure_isolated(spec: CellSpec) -> MicroResult:
    """Time a cell in a separate process; return a failure as a cell, too.

    Raises UsageError where the cell cannot run here at all. Ctrl-C ends the process and raises KeyboardInterrupt.
    """
    with processes.scratch_folder() as scratch:
        spec_file, result_file = scratch / "spec.json", scratch / "cell.json"
        spec_file.write_text(spec.model_dump_json(by_alias=True))
        command = [sys.executable, "-m", MODULE, "--spec", str(spec_file), "--result", str(result_file)]
        kills = host_memory.KillWatch()
        code, output = _run(command, scratch)
        if code == 0:
            return micro_result.load(result_file)
    last = output[-1] if output else "no output"
    if code == UsageError.exit_code:
        raise UsageError(last.removeprefix("cell: "))
    values = {name: getattr(spec, name) for name in CellSpec.model_fields}
    short = was_killed(code) and kills.killed()
    how = f"the process {ending(code, memory_ran_out=short)}"
    if short:
        return MicroResult(**values, status="oom", reason=f"{OUT_OF_MEMORY}: {spec.title}; {how}")
    return MicroResult(**values, status="failed", reason=how if was_killed(code) else f"{how}: {last}")


def _run(command: Sequence[str], scratch: Path) -> tuple[int, list[str]]:
    """Run a command; return its exit code and the lines of its stderr.

    It runs in a session of its own, so that Ctrl-C reaches only this process.
    """
    child = processes.popen(
        command,
        scratch=scratch,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        encoding="utf-8",
        errors="replace",
        env=launch.process_environment(),
    )
    try:
        _, text = child.communicate()
    finally:
        _end(child)
    return child.returncode, [line.strip() for line in text.splitlines() if line.strip()]


def _end(child: subprocess.Popen[str]) -> None:
    """End all processes of the command's session, which may still run after Ctrl-C or as workers of the compiler."""
    with contextlib.suppress(ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
        os.killpg(child.pid, signal.SIGTERM)
        child.wait(timeout=STOP_SECONDS)
    processes.end(child)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser_of(MODULE, __doc__).parse_args(argv)
    from tensorprimat.measure import passes

    try:
        cell = passes.measure_cell(CellSpec.model_validate_json(arguments.spec.read_text()))
    except TensorPrimatError as error:
        print(f"cell: {error}", file=sys.stderr)
        return error.exit_code
    micro_result.save(cell, arguments.result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
