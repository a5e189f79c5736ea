"""`tprimat pretrain`, `pretrain_llama.py`, `pretrain_qwen.py`, `pretrain_mistral.py`: NeMo's recipe, measured."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tensorprimat.cli import known_values as known
from tensorprimat.cli.shared_options import setting_values, switch, takes, with_settings
from tensorprimat.core.folders import DEFAULT_FOLDER
from tensorprimat.core.settings import MODEL_PARALLEL

if TYPE_CHECKING:
    from tensorprimat.core.spec import RunSpec
    from tensorprimat.machine.platform import Machine


_MODEL = "Model: llama, qwen or mistral."
_NODES = "Nodes, under srun or torchrun."
_OWN = (
    "steps",
    "warmup_steps",
    "methodology",
    *MODEL_PARALLEL,
    "micro_batch_size",
    "global_batch_size",
    "sequence_length",
    "precision",
    "num_gpus",
)
"""Settings of NeMo's recipes that a flag or an environment variable sets."""
HERE: dict[str, dict[str, Any]] = {
    "methodology": {"shown_default": "agreed if it has values for the GPU, else none"},
    "precision": {"help": "bf16 or fp8 (hybrid, delayed scaling).", "shown_default": "the methodology's, or bf16"},
    "micro_batch_size": {"shown_default": "the methodology's, or 1"},
    "global_batch_size": {"shown_default": "the methodology's, or 128"},
    "sequence_length": {"shown_default": "the methodology's, or 8192"},
    "num_gpus": {"help": "GPUs of one node.", "shown_default": "the launcher's, or all"},
}
"""Options of the recipes that differ from other engines'."""


@with_settings(*_OWN, after="model", differing=HERE, environment="TPRIMAT_", engines=False)
def command(
    model: Annotated[str, takes("MODEL", _MODEL, envvar="TPRIMAT_MODEL", offers=known.models)] = "llama",
    num_nodes: Annotated[int, takes("N", _NODES, envvar="TPRIMAT_NUM_NODES", show_default="the launcher's, or 1")] = 1,
    recompute: Annotated[
        bool,
        switch(
            "--recompute",
            "Compute activations again in the backward pass: less memory, slower.",
            envvar="TPRIMAT_RECOMPUTE",
        ),
    ] = False,
    output: Annotated[Path, takes("DIR", "Folder for the result.", envvar="TPRIMAT_OUTPUT")] = DEFAULT_FOLDER,
    dry_run: Annotated[bool, switch("--dry-run", "Print and check what would run; train nothing.")] = False,
    **chosen: Any,
) -> int:
    """Train one model with NVIDIA's NeMo recipe and measure it.

    NeMo-Run runs the recipe of nemo.collections.llm, with torchrun for several GPUs, and adds the benchmark callback,
    which writes DIR/benchmark_cuda_MODEL.json. Every value is set explicitly: by a flag, else by its environment
    variable, else by the constants at the top of the script, else by the methodology. Under torchrun or
    srun each process trains as one rank, and their number sets the GPUs and nodes.

    \b
    Examples:
      python3 pretrain_llama.py --steps 10
      TPRIMAT_PRECISION=bf16 torchrun --nproc-per-node 8 pretrain_qwen.py --methodology identical

    \b
    Exit codes:
      0  the result was written
      1  the training failed or was interrupted; finished measurements are kept
      2  a flag is wrong, or NeMo cannot run here
    """  # fmt: skip
    from tensorprimat.cli.options import refuse_file
    from tensorprimat.core.errors import UsageError
    from tensorprimat.core.fact_values import typed_count
    from tensorprimat.core.notices import Notice
    from tensorprimat.core.spec import MODELS, RunSettings
    from tensorprimat.core.vocabulary import Recompute
    from tensorprimat.engines import launchers, prepare
    from tensorprimat.engines.nemo import engine as nemo
    from tensorprimat.engines.registry import ENGINES
    from tensorprimat.machine.platform import detect_platform

    if model not in MODELS:
        raise UsageError(f"--model {model}: no such model; models: {', '.join(MODELS)}")
    nodes = typed_count("--num-nodes", str(num_nodes), least=1)
    engine = ENGINES["nemo"]
    refuse_file("--output", output, "name a folder, or give the file to benchmark.py --engine nemo --output")
    prepare.check_folder(output)
    machine = detect_platform()
    prepare.check_engine(engine, machine.platform)
    settings = RunSettings(
        seed=nemo.NEMO_SEED,
        **setting_values(chosen),
        num_nodes=nodes,
        preset="full",
        recompute=Recompute.ALL_LAYERS if recompute else None,
    )
    place = launchers.training_rank(os.environ)
    if place is not None:
        settings = launchers.settings_of_ranks(settings, place, nodes_flag="--num-nodes")
        launchers.set_lightning_tasks(place)
    speaks = place is None or place.rank == 0
    spec = prepare.spec_of(model, settings, engine=engine, machine=machine)
    spec = spec.changed(output_dir=str(output))
    prepare.check_spec(engine, spec, machine)
    if machine.platform != "nvd" and speaks:
        print(f"warning: {Notice('nvidia_recipe', 'engine', machine=machine.label)}", file=sys.stderr)
    if dry_run:
        return _show(spec, machine) if speaks else 0
    nemo.train(spec)
    return 0


def _show(spec: RunSpec, machine: Machine) -> int:
    """Print the planned training, a line per fact."""
    from tensorprimat.session import run_summary

    for name, value in run_summary.start_rows(spec, machine, runs=1, cooldown_seconds=0.0):
        print(f"{name + ':':<13}{value}")
    print("Dry run: nothing was trained; every check passed", file=sys.stderr)
    return 0
