"""The command that submits a run, or a preflight, through an executor, and the script that it would submit."""

from __future__ import annotations

import sys
from pathlib import Path

from tensorprimat.core.errors import RunError
from tensorprimat.engines import launch
from tensorprimat.engines.cluster.executors import Cluster, JobSpec
from tensorprimat.system import processes, regular


def submit_command(cluster: Cluster, folder: Path) -> list[str]:
    """Return the command that submits an engine's command after it; [] without an executor. folder: of the job."""
    if not cluster.executor:
        return []
    module = "tensorprimat.engines.cluster.submission"
    return [sys.executable, "-m", module, "--cluster", cluster.model_dump_json(), "--folder", str(folder)]


def executor_script(spec: JobSpec, cluster: Cluster, *, module: str, folder: Path) -> str:
    """Return the script to submit, in the executor's own format. Raises RunError if NeMo-Run cannot write it."""
    with processes.scratch_folder() as scratch:
        stand_in = regular.resolved(scratch)
        spec_file = stand_in / "spec.json"
        spec_file.write_text(spec.model_dump_json())
        engine = [sys.executable, "-m", module, "--spec", str(spec_file), "--result", str(stand_in / "result.json")]
        command = [*submit_command(cluster, stand_in), "--dry-run", *engine]
        answer = processes.run_guarded(command, capture_output=True, text=True, env=launch.process_environment())
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["no output"])[-1]
        raise RunError(f"--executor {cluster.executor}: {last}")
    return str(answer.stdout).replace(str(stand_in), str(regular.resolved(folder))).rstrip()
