"""A Primus checkout on this machine: its folder, the GPU model, the configuration of a model, the command to start."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from tensorprimat.core.errors import UsageError
from tensorprimat.core.quantities import alternatives
from tensorprimat.core.result import GpuInfo
from tensorprimat.engines.primus.config import CONFIGS_FOLDER
from tensorprimat.machine.platform import Machine
from tensorprimat.system import processes, regular

DEFAULT_PATH = Path("/workspace/Primus")  # folder of the checkout in AMD's containers
CONFIGS = Path("examples", "megatron", "configs")
OLD_LAUNCHER = Path("examples", "run_pretrain.sh")
_LAUNCHERS = (Path("primus-cli"), Path("runner", "primus-cli"))
"""Newest path first: at the top since v26.2, under runner/ since v0.4; before that only examples/run_pretrain.sh."""

STEMS = {"llama": "llama3.1_8B", "qwen": "qwen2.5_7B"}
"""Prefixes of configuration files; Primus has none for Mistral 7B."""
NO_CONFIG = "Primus has no configuration of it; --engine torch trains it here"

GPU_MODEL = re.compile(r"\bMI\d{3}[A-Z]*\b")
QUESTIONS = (("rocm-smi", "--showproductname"), ("amd-smi", "static", "--asic"), ("rocminfo",))
"""Programs of ROCm that name the GPU, in the order in which they are tried."""
NO_CHECKOUT = (
    "no checkout here; git clone https://github.com/AMD-AGI/Primus ~/Primus && export PRIMUS_PATH=~/Primus (logs of "
    "Primus are read without one)"
)
"""Reason why nothing is trained without a checkout."""
GPUS_PER_NODE = 8  # Primus' own default where GPUS_PER_NODE is not set
_PATIENCE_SECONDS = 30.0  # a driver that hangs must not block this command


def find_checkout() -> Path | None:
    """Return the checkout: $PRIMUS_PATH, else DEFAULT_PATH; None without a checkout there.

    Raises UsageError where PRIMUS_PATH names something that is not a checkout.
    """
    named = os.environ.get("PRIMUS_PATH")
    if not named:
        return regular.resolved(DEFAULT_PATH) if _is_checkout(DEFAULT_PATH) else None
    root = Path(os.path.expanduser(named))
    if not os.path.isdir(root):
        raise UsageError(f"PRIMUS_PATH={named}: no such folder; clone https://github.com/AMD-AGI/Primus there")
    if not _is_checkout(root):
        raise UsageError(
            f"PRIMUS_PATH={named}: is not a Primus checkout (no {CONFIGS_FOLDER}, or neither primus-cli nor "
            f"{OLD_LAUNCHER})"
        )
    return regular.resolved(root)


def _is_checkout(root: Path) -> bool:
    return os.path.isdir(root / CONFIGS_FOLDER) and any(
        os.path.isfile(root / name) for name in (*_LAUNCHERS, OLD_LAUNCHER)
    )


def gpu_model() -> tuple[str, str]:
    """Return the model of the GPU ("MI300X") and its source: PRIMUS_GPU_MODEL or a program of ROCm.

    Raises UsageError if none names a model.
    """
    if named := os.environ.get("PRIMUS_GPU_MODEL"):
        return named, "PRIMUS_GPU_MODEL"
    for question in QUESTIONS:
        answer = processes.ask(*question, patience_seconds=_PATIENCE_SECONDS)
        if answer is not None and (match := GPU_MODEL.search(answer.stdout)):
            return match[0], question[0]
    programs = ", ".join(program for program, *_ in QUESTIONS)
    raise UsageError(
        f"no AMD Instinct GPU found ({programs} name none); set PRIMUS_GPU_MODEL=MI300X to state the model"
    )


def machine_of(machine: Machine) -> Machine:
    """Return the machine that Primus will train on: this one if this Python sees an AMD GPU.

    Else (without ROCm's torch, or for a dry run) it has the GPU of `gpu_model`, GPUS_PER_NODE times. Raises UsageError
    for a wrong number, or if no GPU model is found.
    """
    if machine.platform == "amd":
        return machine
    named = os.environ.get("GPUS_PER_NODE", str(GPUS_PER_NODE))
    if not named.isdecimal() or not int(named):
        raise UsageError(f"GPUS_PER_NODE={named}: must be a number of GPUs")
    gpu, _ = gpu_model()
    info = GpuInfo(device_name=gpu, device_count=int(named), software_stack="rocm")
    return Machine(platform="amd", gpu_info=info, host=machine.host, warnings=machine.warnings)


def models_here(models: Sequence[str]) -> list[str] | None:
    """Return the models for which Primus or the user's {MODEL}_CONFIG has a configuration; None without a checkout.

    Raises UsageError where PRIMUS_PATH names something that is not a checkout.
    """
    if find_checkout() is None:
        return None
    return [model for model in models if configures(model) or os.environ.get(f"{model.upper()}_CONFIG")]


def configures(model: str) -> bool:
    """Return True if a checkout can have a configuration of a model of this name."""
    return model in STEMS


def find_config(root: Path, model: str, *, gpu: str, precision: str | None) -> Path:
    """Return the experiment file for a model on a GPU, or the file that {MODEL}_CONFIG names.

    precision: None means bf16. Files without a precision in their name (until v0.5) serve every precision, files
    without a GPU's folder (until v0.4) every GPU. Raises UsageError that names the files searched.
    """
    variable = f"{model.upper()}_CONFIG"
    if named := os.environ.get(variable):
        path = next((path for path in (Path(named), root / named) if os.path.isfile(path)), None)
        if path is None:
            raise UsageError(f"{variable}={named}: no such file, nor in {root}")
        return regular.resolved(path)
    if not configures(model):
        raise UsageError(f"{model}: {NO_CONFIG}")
    stem = STEMS[model]
    names = (f"{stem}-{(precision or 'bf16').upper()}-pretrain.yaml", f"{stem}-pretrain.yaml")
    for folder in (CONFIGS / gpu, CONFIGS):
        for name in names:
            if os.path.isfile(path := root / folder / name):
                return path
    raise UsageError(_no_config(root, gpu, names, stem, variable))


def _no_config(root: Path, gpu: str, names: tuple[str, ...], stem: str, variable: str) -> str:
    looked = f"no {alternatives(names)} in {root / CONFIGS / gpu}"
    others = {path.parent.name: path for name in names for path in sorted((root / CONFIGS).glob(f"*/{name}"))}
    if others:
        instead = min(others.values()).relative_to(root)
        return (
            f"{looked}; there are configurations for {', '.join(sorted(others))}: select one with {variable}={instead}"
        )
    kin = sorted(path.name for path in (root / CONFIGS / gpu).glob(f"{stem}*.yaml"))
    there = f" ({', '.join(kin)})" if kin else ""
    return f"{looked}{there}; name one with {variable}=FILE"


def start_command(root: Path, config: Path, *, dry_run: bool = False) -> tuple[list[str], dict[str, str]]:
    """Return the command that trains a configuration, to be run in the checkout, and its environment variables.

    dry_run: Primus shows the training without starting it; see `can_dry_run`.
    """
    launcher = next((name for name in _LAUNCHERS if os.path.isfile(root / name)), None)
    if launcher is None:
        return ["bash", str(OLD_LAUNCHER)], {"EXP": str(config)}
    shown = ["--dry-run"] if dry_run else []
    return ["bash", str(launcher), "direct", *shown, "--", "train", "pretrain", "--config", str(config)], {}


def can_dry_run(root: Path) -> bool:
    """Return True if the checkout's launcher knows --dry-run (since v0.5)."""
    return os.path.isfile(root / "runner" / "primus-cli-direct.sh")
