"""The NeMo engine: NVIDIA's own recipe, trained through NeMo-Run, timed by our callback.

    python -m tensorprimat.engines.nemo.engine --spec spec.json --result result.json

Needs NeMo 2.1 to 2.7 (nemo.collections.llm; in 3.0 Megatron-Bridge replaces it), on a GPU with Transformer Engine. For
several GPUs NeMo-Run's local executor starts the ranks with torchrun; a process that torchrun or srun started trains as
one rank.
Exit codes: 0 done, 1 the training failed, 2 NeMo cannot run here.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from tensorprimat.core.errors import InputError, RunError, UsageError
from tensorprimat.core.result import Platform
from tensorprimat.core.spec import RunSpec
from tensorprimat.engines import failures, launchers
from tensorprimat.engines.cluster import executors
from tensorprimat.engines.entry import parser_of, run_spec
from tensorprimat.engines.launch import process_environment
from tensorprimat.engines.nemo import recipe as nemo_recipe
from tensorprimat.engines.registry import ENGINES, importable
from tensorprimat.machine.platform import Machine, detect_platform
from tensorprimat.storage import store
from tensorprimat.system.failures import OUT_OF_MEMORY
from tensorprimat.system.safe_text import one_line

NEMO_SEED = 1234  # the default of nemo.lightning's init_parallel_ranks, which no recipe can change


def unavailable(platform: Platform = "cpu") -> str | None:
    """Return why NeMo cannot be used here, as a sentence; None if it can. platform: platform of the training."""
    if importlib.util.find_spec("nemo") is None:
        return "NeMo is not installed"
    if not importable("nemo.collections.llm"):
        version = importlib.import_module("nemo").__dict__.get("__version__", "of unknown version")
        return f"NeMo {version} has no llm collection; NeMo 3 names Megatron-Bridge as its successor"
    if importlib.util.find_spec("nemo_run") is None:
        return "NeMo is installed without NeMo-Run; pip install nemo_run"
    if lacking := ENGINES["nemo"].missing_packages(platform):
        return f"NeMo needs {', '.join(lacking)} on a GPU, not installed here; NVIDIA's NeMo image has it"
    try:
        llm = importlib.import_module("nemo.collections.llm")
    except Exception as error:  # noqa: BLE001  megatron-core builds an extension: without a GPU, IndexError
        because = one_line(failures.end_reason(error))
        return f"NeMo's llm collection cannot be imported ({because}); see requirements-nemo.txt"
    unknown = [name for name in nemo_recipe.NEMO_RECIPES.values() if not hasattr(llm, name)]
    if unknown:
        return (
            f"this NeMo lacks the recipe {unknown[0]}; its optional packages are incomplete, see requirements-nemo.txt"
        )
    return None


def check(spec: RunSpec, machine: Machine) -> None:
    """Raise UsageError where NeMo cannot run the spec here."""
    spec.check()
    if machine.platform != "nvd" and ENGINES["nemo"].missing_packages():  # an installed NeMo may run on ROCm
        raise UsageError(
            f"--engine nemo needs an NVIDIA GPU, and this is a {machine.label} machine; try benchmark.py --engine torch"
        )
    if spec.preset != "full":
        raise UsageError(
            f"--preset {spec.preset}: NeMo has recipes for the full models only; try benchmark.py --engine torch"
        )
    if spec.strategy != "auto":
        raise UsageError(f"--strategy {spec.strategy}: NeMo always uses its Megatron strategy; leave the flag out")
    if spec.seed != NEMO_SEED:
        raise UsageError(f"--seed {spec.seed}: NeMo 2 always uses seed {NEMO_SEED}; leave the flag out")
    if spec.num_nodes > 1 and executors.OPTION not in spec.options and not started_by_launcher():
        raise UsageError(
            f"--num-nodes {spec.num_nodes}: start the script with srun or torchrun on every node, "
            "or use benchmark.py --nodes with --executor"
        )
    nemo_recipe.precision_recipe(spec)


def started_by_launcher() -> bool:
    """Return True if a launcher started this process among several.

    SLURM_NTASKS alone is no sign of it: Slurm sets it in the batch script too, before any srun. Raises UsageError for a
    Slurm job name with which each task would train alone.
    """
    launchers.training_rank(os.environ)
    return launchers.started_processes(os.environ) > 1


def train(spec: RunSpec, *, result_file: Path | None = None) -> None:
    """Build the recipe and train. Raises UsageError where NeMo cannot run, RunError where the training fails."""
    if reason := unavailable(spec.platform):
        raise UsageError(f"{reason}; try benchmark.py --engine torch")
    recipe = nemo_recipe.build_recipe(
        spec.check(), result_file=None if result_file is None else str(result_file), device_name=_device_name(spec)
    )
    try:
        execute(recipe, spec)
    except RunError as error:
        if result_file is not None and _ran_out_of_memory(result_file):  # NeMo-Run knows only that a rank failed
            raise failures.out_of_memory(spec) from error
        raise


def _ran_out_of_memory(result_file: Path) -> bool:
    """Return True if the callback's result states that the training ran out of memory."""
    try:
        runs = store.load(result_file).runs
    except InputError:  # not written, or without a step
        return False
    return any(run.ended_by == OUT_OF_MEMORY for run in runs)


def execute(recipe: Any, spec: RunSpec) -> None:
    """Run a recipe: in this process for one GPU or as one of several ranks, else by NeMo-Run with torchrun."""
    for name, value in _environment(spec).items():
        os.environ.setdefault(name, value)
    if spec.num_gpus == 1 or started_by_launcher():
        import nemo_run as run

        # If an error arrives here, the callback has already recorded it. Megatron asserts its arguments.
        with failures.of_training(spec, ValueError, AssertionError):
            run.run(recipe, direct=True)
    else:
        _run_under_torchrun(recipe, spec)


def _environment(spec: RunSpec) -> dict[str, str]:
    """Return NVIDIA's performance variables for this machine's GPU; a value that the user has set takes precedence."""
    if spec.platform != "nvd":
        return {}
    variables = nemo_recipe.performance_environment(spec, _device_name(spec))
    return {name: os.environ.get(name, value) for name, value in variables.items()}


def _device_name(spec: RunSpec) -> str | None:
    return detect_platform().gpu_info.device_name if spec.platform == "nvd" else None


def _run_under_torchrun(recipe: Any, spec: RunSpec) -> None:
    """Let NeMo-Run start all ranks of this machine, and print their log as it grows."""
    import nemo_run as run

    programs = str(Path(sys.executable).parent)  # torchrun's folder, where no environment is activated
    executor = run.LocalExecutor(
        ntasks_per_node=spec.num_gpus,
        launcher="torchrun",
        env_vars={
            **_environment(spec),
            "PYTHONPATH": process_environment()["PYTHONPATH"],  # the ranks have to find the callback
            "PATH": os.pathsep.join(filter(None, (programs, os.environ.get("PATH")))),
        },
    )
    with run.Experiment(f"tensorprimat_{spec.model}", executor=executor) as experiment:
        experiment.add(recipe, executor=executor, name=spec.model, tail_logs=True)
        experiment.run(detach=False, tail_logs=True)
    # The end of the block waits for the job; experiment.status() does not cover local jobs.
    states = [job.state.name for job in experiment.jobs]
    if states != ["SUCCEEDED"]:
        raise RunError(f"NeMo-Run reports {', '.join(states)}; its log is above")


def main(argv: list[str] | None = None) -> int:
    parser = parser_of("tensorprimat.engines.nemo.engine", __doc__, needs_result=False)
    return run_spec("nemo", RunSpec, parser, lambda spec, options: train(spec, result_file=options.result), argv)


if __name__ == "__main__":
    sys.exit(main())
