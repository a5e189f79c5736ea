"""Timing of one cell in a fresh process: `python -m tensorprimat.measure.isolation --spec FILE --result FILE`.

In a fresh process a cell does not inherit the allocator, caches or compiled kernels of another cell. If the process is
killed, the sweep continues, and the table shows OOM for this cell if the kernel counted a kill for lack of memory, else
"failed".
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from tensorprimat.core.errors import UsageError
from tensorprimat.engines import launch
from tensorprimat.engines.entry import parser_of, run_spec
from tensorprimat.machine import host_memory
from tensorprimat.storage import micro_result
from tensorprimat.storage.micro_result import CellSpec, MicroResult
from tensorprimat.system import processes
from tensorprimat.system.failures import OUT_OF_MEMORY, ending, was_killed

MODULE = "tensorprimat.measure.isolation"


def measure_isolated(spec: CellSpec) -> MicroResult:
    """Time a cell in a separate process; return a failure as a cell, too.

    Raises UsageError where the cell cannot run here at all. Ctrl-C ends the process and raises KeyboardInterrupt.
    """
    with processes.scratch_folder() as scratch:
        spec_file, result_file = scratch / "spec.json", scratch / "cell.json"
        spec_file.write_text(spec.model_dump_json(by_alias=True))
        command = [sys.executable, "-m", MODULE, "--spec", str(spec_file), "--result", str(result_file)]
        kills = host_memory.KillWatch()
        ended = processes.run_guarded(
            command, scratch=scratch, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            start_new_session=True, encoding="utf-8", errors="replace", env=launch.process_environment(),
        )  # fmt: skip  # in a session of its own, so that Ctrl-C reaches only this process
        code, output = ended.returncode, [line.strip() for line in ended.stderr.splitlines() if line.strip()]
        if code == 0:
            return micro_result.load(result_file)
    last = output[-1] if output else "no output"
    if code == UsageError.exit_code:
        raise UsageError(last.removeprefix("cell engine: "))
    values = {name: getattr(spec, name) for name in CellSpec.model_fields}
    short = was_killed(code) and kills.killed()
    how = f"the process {ending(code, memory_ran_out=short)}"
    if short:
        return MicroResult(**values, status="oom", reason=f"{OUT_OF_MEMORY}: {spec.title}; {how}")
    return MicroResult(**values, status="failed", reason=how if was_killed(code) else f"{how}: {last}")


def _measure(spec: CellSpec, options: argparse.Namespace) -> None:
    from tensorprimat.measure import passes

    micro_result.save(passes.measure_cell(spec), options.result)


def main(argv: Sequence[str] | None = None) -> int:
    return run_spec("cell", CellSpec, parser_of(MODULE, __doc__), _measure, argv)


if __name__ == "__main__":
    sys.exit(main())
