"""The NeMo engine: NVIDIA's own recipe, trained through NeMo-Run, timed by our callback.

    python -m tensorprimat.engines.nemo --spec spec.json --result result.json

Needs NeMo 2.1 to 2.7 (nemo.collections.llm; it is gone from 3.0, whose successor is Megatron-Bridge). Several GPUs are
started by NeMo-Run's local executor with torchrun; under an existing torchrun or srun the process trains as the rank it
is. Exit codes: 0 done, 1 the training failed, 2 NeMo cannot run here.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from tensorprimat.core.errors import RunError, TensorPrimatError, UsageError
from tensorprimat.core.spec import RunSpec
from tensorprimat.engines import nemo_recipe
from tensorprimat.machine.platform import Machine

ENVIRONMENT = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}  # long sequences fragment the allocator's blocks
RANK_VARIABLES = ("RANK", "SLURM_PROCID")  # set by torchrun and srun: somebody has started the ranks already


def unavailable() -> str | None:
    """Why NeMo cannot be used here, in one sentence; None where it can."""
    if importlib.util.find_spec("nemo") is None:
        return "NeMo is not installed"
    if importlib.util.find_spec("nemo_run") is None:
        return "NeMo is installed without NeMo-Run; pip install nemo_run"
    try:
        llm = importlib.import_module("nemo.collections.llm")
    except ImportError as error:
        version = importlib.import_module("nemo").__dict__.get("__version__", "of unknown version")
        return f"NeMo {version} has no llm collection ({error}); NeMo 3 names Megatron-Bridge as its successor"
    lacking = [name for name in nemo_recipe.RECIPES.values() if not hasattr(llm, name)]
    if lacking:
        return (
            f"this NeMo lacks the recipe {lacking[0]}; its optional packages are incomplete, see requirements-nemo.txt"
        )
    return None


def check(spec: RunSpec, _machine: Machine) -> None:
    """Raise UsageError where NeMo cannot run the spec here."""
    if reason := unavailable():
        raise UsageError(f"{reason}; try --engine torch")
    spec.check()


def train(spec: RunSpec, *, result_file: Path | None = None) -> None:
    """Build the recipe and train it. Raises UsageError where NeMo cannot, RunError where the training fails."""
    if reason := unavailable():
        raise UsageError(f"{reason}; try --engine torch")
    execute(nemo_recipe.build(spec.check(), result_file=None if result_file is None else str(result_file)), spec)


def execute(recipe: Any, spec: RunSpec) -> None:
    """Run a recipe: in this process for one GPU or one rank of several, else by NeMo-Run with torchrun."""
    import nemo_run as run

    os.environ.update({name: value for name, value in ENVIRONMENT.items() if name not in os.environ})
    if spec.num_gpus == 1 or any(name in os.environ for name in RANK_VARIABLES):
        run.run(recipe, direct=True)
        return
    package_parent = str(Path(__file__).parents[2])
    executor = run.LocalExecutor(
        ntasks_per_node=spec.num_gpus,
        launcher="torchrun",
        env_vars={
            **ENVIRONMENT,
            "PYTHONPATH": os.pathsep.join(filter(None, (package_parent, os.environ.get("PYTHONPATH")))),
        },
    )
    with run.Experiment(f"tensorprimat_{spec.model}", executor=executor) as experiment:
        experiment.add(recipe, executor=executor, name=spec.model, tail_logs=True)
        experiment.run(detach=False, tail_logs=True)
        states = {name: str(status["status"]) for name, status in experiment.status(return_dict=True).items()}
    failed = [f"{name}: {state}" for name, state in states.items() if "SUCCEEDED" not in state]
    if failed:
        raise RunError(f"NeMo-Run reports {', '.join(failed)}; its log is above")


def main(argv: list[str] | None = None) -> int:
    """Train what the spec says. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path, required=True, help="RunSpec as JSON")
    parser.add_argument(
        "--result", type=Path, help="where the result of this one run goes (default: the output folder)"
    )
    options = parser.parse_args(argv)
    try:
        train(RunSpec.model_validate_json(options.spec.read_text()), result_file=options.result)
    except TensorPrimatError as error:
        print(f"nemo engine: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("nemo engine: interrupted", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
