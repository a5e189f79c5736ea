"""The torch engine: training of llama, qwen, mistral or a Hugging Face configuration on CUDA, ROCm or CPU.

    python -m tensorprimat.engines.torch.engine --spec spec.json --result result.json
    torchrun --nproc-per-node 2 -m tensorprimat.engines.torch.engine --spec spec.json --result result.json

Trains the RunSpec's model in this process (and, without torchrun or srun, in the others that Lightning starts),
prints a line every few steps and writes the Result of this one run, marked incomplete where it could not finish.
Exit codes: 0 done, 1 the run failed or was interrupted, 2 a spec that cannot work here.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from tensorprimat.core import settings
from tensorprimat.core.errors import RunError, UsageError
from tensorprimat.core.quantities import stated_seconds
from tensorprimat.core.result import Startup
from tensorprimat.core.spec import RunSpec
from tensorprimat.engines import failures, profiling
from tensorprimat.engines.entry import parser_of, run_spec
from tensorprimat.engines.registry import ENGINES, check_model_parallel
from tensorprimat.engines.torch import fp8
from tensorprimat.machine import environment
from tensorprimat.machine.platform import Machine, detect_platform, multiply_float32_in
from tensorprimat.models.custom import TrainedModel, model_of
from tensorprimat.models.training_memory import is_sharded, strategy_of, uses_autocast
from tensorprimat.system.processes import usable_cores

_PATIENCE_SECONDS = 300.0  # rank 0 has to import the same packages first, maybe from a slower disk
ANSWER_SECONDS = 5.0  # time limit of one connection attempt
_REMEDY = "set MASTER_ADDR to an address of the first node that every node can reach, and MASTER_PORT to a free port"

PRINTED_LINES = 10  # least number of step lines that a benchmark of 10 or more steps prints

# Warnings that libraries print on every run of this engine about intended behaviour.
EXPECTED_WARNINGS = (
    r".*does not have many workers.*",  # the training process makes the tokens
    r".*isinstance\(treespec, LeafSpec\).*",  # Lightning uses an interface that torch deprecates
    r".*`IterableDataset` has `__len__` defined.*",
    r".*srun.*command is available on your system but is not used.*",
)


NOT_IN_FLASH_ATTN = {"gpt_oss": "attention sinks", "llama4_text": "attention in chunks"}
"""Architecture that the package flash-attn does not support → the feature that it lacks."""


def check(spec: RunSpec, machine: Machine) -> None:
    """Raise UsageError where this engine or machine cannot run the spec, regardless of the installed packages."""
    check_model_parallel(ENGINES["torch"], spec)
    spec.check()
    model = model_of(spec)
    if spec.strategy != "auto" and spec.num_gpus * spec.num_nodes == 1:
        raise UsageError(f"--strategy {spec.strategy}: one device needs no strategy; leave --strategy out")
    if spec.compile and (switch := environment.compiling_disabled()):
        raise UsageError(f"--compile: {switch} turns torch.compile off; unset it, or leave --compile out")
    fp8.check_units(spec, machine.gpu_info)  # first: installing a package does not add matrix units
    fp8.check_fp8(spec)
    fp8.check_layers(spec)
    if spec.master_weights and spec.precision not in ("bf16", "fp8"):
        raise UsageError(f"--master-weights {spec.master_weights}: only with --precision bf16 or fp8")
    _check_autocast(spec, model)
    if spec.attention_backend == "flash" and spec.platform != "cpu":
        _check_flash(spec, model)
    if spec.platform == "cpu":
        if spec.precision in ("fp16", "tf32"):
            raise UsageError(f"--precision {spec.precision}: not on a CPU; use fp32 or bf16")
        if spec.attention_backend == "flash":
            raise UsageError("--attention flash: not on a CPU; use sdpa")
        return
    if machine.platform != spec.platform:
        raise UsageError(f"the spec is for platform {spec.platform}, but torch sees a {machine.label} machine")
    visible = machine.gpu_info.device_count or 0
    if spec.num_gpus > visible:
        raise UsageError(f"--num-gpus {spec.num_gpus}: only {visible} GPU{'s' * (visible != 1)} visible here")
    fp8.check_mxfp8(spec, machine.gpu_info)


def _check_autocast(spec: RunSpec, model: TrainedModel) -> None:
    """Raise UsageError where autocast would leave experts in float32, because it does not cast grouped products."""
    if not (uses_autocast(spec) and any(layer.experts for layer in model.decoder.layers)):
        return
    flag, instead = "--precision fp16", "use --precision bf16"
    if spec.precision != "fp16":
        several = spec.num_gpus * spec.num_nodes > 1
        flag, instead = "--master-weights fp32", "use --strategy fsdp" if several else "leave it out"
    raise UsageError(f"{flag}: autocast would multiply the experts of this model in float32; {instead}")


def _check_flash(spec: RunSpec, model: TrainedModel) -> None:
    """Raise UsageError where the package flash-attn cannot compute the model's attention."""
    if spec.precision in ("fp32", "tf32"):
        raise UsageError(f"--attention flash: not with --precision {spec.precision}; it needs bf16, fp16 or fp8")
    if lacking := NOT_IN_FLASH_ATTN.get(model.decoder.kind):
        raise UsageError(f"--attention flash: {spec.model} has {lacking}, which the package flash-attn lacks; use sdpa")


def check_packages(spec: RunSpec, others: Sequence[str] = ()) -> None:
    """Raise UsageError where a package that the spec needs is not installed in this Python.

    others: engines that could train this in FP8 without the package that it lacks, for the message.
    """
    fp8.check_torchao(spec, others)
    if spec.attention_backend == "flash":
        from tensorprimat.engines.torch.attention import flash_package

        if flash_package() is None:
            raise UsageError("--attention flash: the package flash-attn is not installed; use sdpa")


def lightning_precision(spec: RunSpec) -> str:
    """Return Lightning's name of the spec's precision.

    Without master weights, bf16 means that weights, gradients and optimizer state are bf16, as in litgpt: a 7B model
    then needs 8 bytes per parameter instead of 16 and fits one 80 GB device. With master weights, FSDP casts weights to
    bf16 before it gathers them; autocast would cast them after that, which doubles the bytes between the devices and
    keeps a copy of every weight until backward.
    """
    if spec.precision in ("bf16", "fp8"):  # with FP8 linear layers the rest of the model is in bf16
        if spec.master_weights is None:
            return "bf16-true"
        return "32-true" if is_sharded(spec) else "bf16-mixed"
    return {"fp32": "32-true", "tf32": "32-true", "fp16": "16-mixed"}[spec.precision]


def train(spec: RunSpec, result_file: Path, *, waits: bool = False) -> None:
    """Train one run and write its result. waits: after the imports, wait for a line on stdin.

    Raises UsageError before the training; RunError or OutOfMemoryError if the training fails, after a result of the
    steps so far is written.
    """
    _prepare_process(spec)
    _import_libraries(spec)
    imported = time.time() - psutil.Process().create_time()
    if waits:
        sys.stdin.readline()  # the other ranks, which Lightning starts with the same flags, find its end
    began = time.perf_counter()
    machine = detect_platform(cpu=spec.platform == "cpu")
    check(spec, machine)
    check_packages(spec)
    import torch

    from tensorprimat.engines.torch.module import TrainingModule

    multiply_float32_in(spec.precision)
    if spec.platform == "cpu" and spec.num_gpus > 1:  # one process keeps torch's default, or OMP_NUM_THREADS
        torch.set_num_threads(max(1, usable_cores() // spec.num_gpus))
    module = TrainingModule(spec)
    callback = callback_of(spec, module, result_file)
    trainer = trainer_of(spec, [callback, *_profilers(spec)])
    if _is_srun_task(spec) and "TORCHELASTIC_RUN_ID" not in os.environ and trainer.world_size > 1:
        check_srun()
    callback.startup = Startup(imports_seconds=imported, device_seconds=time.perf_counter() - began)
    _fit(trainer, module, spec)


def _import_libraries(spec: RunSpec) -> None:
    """Import what the run needs, apart from the classes of its model; nothing here creates a context on a GPU."""
    for name in ("tensorprimat.engines.torch.module", *(["torch._inductor.compile_fx"] if spec.compile else [])):
        importlib.import_module(name)


def callback_of(spec: RunSpec, module: Any, result_file: Path) -> Any:
    """Return the BenchmarkCallback of a spec, which writes the result of the run to a file."""
    from tensorprimat.engines.callback import BenchmarkCallback

    return BenchmarkCallback(
        platform=spec.platform,
        model_name=spec.model,
        preset=module.preset.name,
        engine="torch",
        methodology=spec.methodology,
        warmup_steps=spec.warmup_steps,
        training_config={**_declared(spec), "learning_rate": module.learning_rate},
        result_file=str(result_file),
        print_every=max(1, min(10, spec.max_steps // PRINTED_LINES)),
    )


def trainer_of(spec: RunSpec, callbacks: list[Any]) -> Any:
    """Return a spec's Lightning Trainer, without any feature that costs time in a step."""
    from lightning.pytorch import Trainer

    _quieten()
    return Trainer(
        accelerator="cpu" if spec.platform == "cpu" else "gpu",
        devices=spec.num_gpus,
        num_nodes=spec.num_nodes,
        strategy=_strategy(spec),
        plugins=_environment(spec),
        precision=lightning_precision(spec),
        max_steps=spec.max_steps,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,
        use_distributed_sampler=False,
    )


def _profilers(spec: RunSpec) -> list[Any]:
    """Return a profiler of the first steps after the warm-up if the spec requests one."""
    if profiling.STEM not in spec.options:
        return []
    from tensorprimat.engines.torch.profile import StepProfiler

    return [StepProfiler(spec.options[profiling.STEM], first_step=spec.warmup_steps)]


def _prepare_process(spec: RunSpec) -> None:
    """Apply the settings that torch and transformers read when they are imported."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # random weights: nothing to download
    if spec.platform == "nvd":  # prevents fragmentation of memory in long runs; HIP has no expandable segments
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)


def _quieten() -> None:
    """Suppress messages that libraries print on every run; unexpected warnings are still shown."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in EXPECTED_WARNINGS:
        warnings.filterwarnings("ignore", message=message)


def _strategy(spec: RunSpec) -> Any:
    from lightning.pytorch.strategies import ModelParallelStrategy

    from tensorprimat.engines.torch.module import OneDevice, Replicas

    backend = "gloo" if spec.platform == "cpu" else None  # Lightning's own choice on a GPU: nccl, which is RCCL on ROCm
    kind = strategy_of(spec)
    if kind == "ddp":
        return Replicas(process_group_backend=backend, gradient_as_bucket_view=True)
    if kind == "fsdp":
        replicas = spec.data_parallel_size
        return ModelParallelStrategy(data_parallel_size=replicas, tensor_parallel_size=1, process_group_backend=backend)
    return OneDevice("cpu" if spec.platform == "cpu" else "cuda:0")


def _environment(spec: RunSpec) -> list[Any]:
    """Return a Lightning plugin that starts the ranks, if Lightning would wait for ranks that no launcher starts.

    Lightning takes every process in a Slurm job for a rank that srun started. That is wrong in the shell of a batch
    script, and in an srun step of one task that trains on several devices.
    """
    if "SLURM_NTASKS" not in os.environ or "TORCHELASTIC_RUN_ID" in os.environ:
        return []
    if _is_srun_task(spec):
        os.environ.setdefault("SLURM_NTASKS_PER_NODE", str(spec.num_gpus))  # Lightning refuses srun --ntasks without it
        return []
    from lightning.pytorch.plugins.environments import LightningEnvironment

    return [LightningEnvironment()]


def _is_srun_task(spec: RunSpec) -> bool:
    """Return True if srun started all ranks of this training."""
    ranks = str(spec.num_gpus * spec.num_nodes)
    return "SLURM_STEP_ID" in os.environ and os.environ.get("SLURM_NTASKS") == ranks


def _declared(spec: RunSpec) -> dict[str, Any]:
    """Return the facts about the training that only the spec knows."""
    return {
        **spec.configuration,
        **dict.fromkeys(settings.PARALLEL_SIZES, 1),
        "attention_backend": spec.attention_backend or "sdpa",
        "fp8_recipe": fp8.recipe_of(spec),
        "data": "synthetic",
        "framework": "transformers on Lightning",
        "framework_version": environment.versions(("transformers",)).get("transformers"),
    }


def _fit(trainer: Any, module: Any, spec: RunSpec) -> None:
    """Train the module. The callback has already recorded an error that arrives here."""
    try:
        with failures.of_training(spec):
            trainer.fit(module)
    finally:
        if trainer.state.status == "interrupted":
            stop = getattr(trainer.strategy.launcher, "kill", None)
            if stop is not None:
                stop(signal.SIGTERM)  # ranks that Lightning started, which may wait for this one for ever


def main(argv: Sequence[str] | None = None) -> int:
    parser = parser_of("tensorprimat.engines.torch.engine", __doc__)
    parser.add_argument("--wait", action="store_true", help="after the imports, wait for a line on stdin")
    return run_spec(
        "torch", RunSpec, parser, lambda spec, options: train(spec, options.result, waits=options.wait), argv
    )


def check_srun() -> None:
    """Raise RunError where the host that Lightning reads from Slurm's list has no address or does not answer."""
    from lightning.fabric.plugins.environments import SLURMEnvironment

    place = SLURMEnvironment()
    host, port = place.main_address, place.main_port
    try:
        socket.getaddrinfo(host, port)
    except OSError as error:
        raise RunError(
            f"srun: the host of rank 0, {host}, has no address here ({error.strerror}); {_REMEDY}"
        ) from error
    if place.global_rank() > 0:
        wait_for(host, port, patience_seconds=_PATIENCE_SECONDS)


def wait_for(host: str, port: int, *, patience_seconds: float) -> None:
    """Wait until the port accepts connections. Raises RunError after the time limit."""
    until = time.monotonic() + patience_seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=ANSWER_SECONDS).close()
        except OSError as error:
            if time.monotonic() > until:
                raise RunError(
                    f"srun: rank 0 did not answer at {host}:{port} in {stated_seconds(patience_seconds)} ({error}); "
                    f"{_REMEDY}"
                ) from error
            time.sleep(0.5)
        else:
            return


if __name__ == "__main__":
    sys.exit(main())
