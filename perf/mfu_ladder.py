#!/usr/bin/env python3
"""Check the torch engine on the GPUs of this machine, part by part, and print its MFU from eager to compiled.

    make test-gpu                                   # every part, on the GPUs of this machine
    make test-ladder                                # every part on the CPU: tiny models, gloo, a stand-in for NVML
    python3 perf/mfu_ladder.py --parts sync,eager   # some of them
    python3 perf/mfu_ladder.py --minutes 12         # those that begin and end within 12 minutes
    python3 perf/mfu_ladder.py --here --parts sync  # one of them in this process, with all that it prints

Each part writes one line (PASS, FAIL or SKIP) with its seconds. Parts run in three processes, with a time limit for
each part; after a part that fails, crashes or hangs, the others of its process run in a new one. Exit code 1 if a part
failed. Figures are printed with their goals; a missed goal is no failure.

The goals of the ladder: at least 60 % of the BF16 peak by the convention megatron, at least 75 % of the best matrix
product that this machine reaches, at least the speed of torchtitan (1.02 of it without recomputation), and 1.35 times
the speed of BF16 in FP8. A global batch of 4 sequences of Llama 3.1 8B on each GPU keeps all parts within about 12
minutes on one H200. Uncompiled layers that would recompute activations, as on one GPU of 80 GB, are half as many.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from perf.gpu_checks import (  # noqa: E402
    callback,
    can_compile,
    devices,
    events,
    flash,
    learns_in_fp8,
    loss,
    on_gpu,
    oom,
    reached,
    sampler,
    sync,
    update,
)  # fmt: skip
from perf.parts import FAIL, PASS, SKIP, NotHereError, free_memory, run, supervise  # noqa: E402

if TYPE_CHECKING:
    import torch

    from tensorprimat.core.figures import Figure

GOAL, GOAL_OF_PRODUCT, GOAL_OF_FP8 = 0.60, 0.75, 1.35
ESTIMATE_TOLERANCE = 0.03
SEQUENCES = 4  # of one optimizer step on each GPU
LOSS_TOLERANCE = 1e-4  # relative, of the same steps on one and on several devices in FP32
PART_SECONDS = 600.0  # of one part; the longest compile and train three times


def _recomputes() -> bool:
    """Return True if uncompiled llama, which needs the most memory of all parts, would recompute activations here."""
    from tensorprimat.core.spec import RunSettings
    from tensorprimat.engines import prepare
    from tensorprimat.engines.registry import ENGINES
    from tensorprimat.machine.platform import detect_platform

    settings = RunSettings(steps=8, warmup_steps=2, seed=1, num_gpus=1, global_batch_size=SEQUENCES, compile=False)
    return prepare.spec_of("llama", settings, engine=ENGINES["torch"], machine=detect_platform()).recompute != "none"


def _half_of_llama(folder: Path) -> Path:
    """Write the configuration of llama with half of its layers; return its path."""
    from tensorprimat.models.presets import find_preset

    llama = find_preset("llama")
    shape = llama.shape
    path = folder / "llama-16-layers" / "config.json"
    path.parent.mkdir()
    entries = {
        "model_type": "llama",
        "num_hidden_layers": shape.num_layers // 2,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.ffn_hidden_size,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": llama.max_position_embeddings,
        "rms_norm_eps": llama.rms_norm_eps,
        "rope_theta": llama.rope_theta,
    }
    path.write_text(json.dumps(entries))
    return path


@functools.cache
def benchmark(*flags: str, tiny: bool, whole: bool = False) -> dict[str, object]:
    """Return the result of one run of benchmark.py. tiny: of the tiny model in FP32. whole: train all layers."""
    with tempfile.TemporaryDirectory() as folder:
        model = str(_half_of_llama(Path(folder))) if not (tiny or whole) and _recomputes() else "llama"
        command = [sys.executable, str(ROOT / "benchmark.py"), "--model", model, "--engine", "torch", "--json"]
        gpus = int(flags[flags.index("--num-gpus") + 1])
        batch = ["--micro-batch-size", "1", "--global-batch-size", str(2 * _count())]
        size = ["--preset", "tiny", "--sequence-length", "32", "--precision", "fp32", *batch]
        if not tiny:
            size = ["--global-batch-size", str(SEQUENCES * gpus)]
        steps, warmup = map(str, _steps())
        short = ["--steps", steps, "--warmup-steps", warmup, "--output", folder]
        done = subprocess.run([*command, *size, *short, *flags], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    (result,) = json.loads(done.stdout)
    return dict(result)


def _steps() -> tuple[int, int]:
    """Return the numbers of measured and of warm-up steps of a run."""
    return (8, 2) if on_gpu() else (4, 1)


@functools.cache
def best_product(precision: str) -> float:
    """Return the best rate of a matrix product on one device, in FLOP/s, by the code of preflight."""
    import torch

    from tensorprimat.measure import matmul

    device = torch.device("cuda" if on_gpu() else "cpu")
    return max(matmul.matmul_rate(size, precision, device)[0] for size in ((4096, 8192) if on_gpu() else (256, 512)))


def product() -> str:
    """Return the best matrix product in the precisions of the ladder."""
    from tensorprimat.engines.torch.fp8 import has_units

    precisions = ("bf16", *(("fp8",) if has_units() else ())) if on_gpu() else ("fp32",)
    return ", ".join(f"{one} {best_product(one) / 1e12:,.3g} TFLOP/s" for one in precisions)


def _count() -> int:
    """Return the number of GPUs of this machine, or of processes on a CPU."""
    import torch

    return torch.cuda.device_count() if on_gpu() else 2


def _rung(*flags: str, whole: bool = False) -> str:
    from tensorprimat.analysis import metrics
    from tensorprimat.core.result import Result
    from tensorprimat.session.run_summary import startup_text

    result = Result.model_validate(benchmark(*flags, tiny=not on_gpu(), whole=whole))
    rate = result.performance_metrics.tokens_per_second_per_gpu
    measured = metrics.calculate_metrics(result)
    model = f"{result.model.name} of {result.model.parameters:,} parameters"
    recomputed = f"recomputation {result.training_config.recompute}"
    printed = [model, recomputed, f"{rate:,.0f} tokens/s/GPU", _mfu(measured["mfu"])]
    if (done := measured["model_tflops_per_gpu"].value) is not None:
        share = done * 1e12 / best_product(result.training_config.precision)
        printed.append(f"{share:.1%} of the best matrix product{_against(share, GOAL_OF_PRODUCT)}")
    for name, unit in (("mfu_at_clock", 1), ("joules_per_token", 1e3), ("sampled_joules_per_token", 1e3)):
        if (value := measured[name].value) is not None:
            printed.append(f"{name} {value:.1%}" if unit == 1 else f"{name} {unit * value:.2f} mJ")
    return ", ".join([*printed, f"start-up: {startup_text(result.runs[0])}"])


def _mfu(mfu: Figure) -> str:
    if mfu.value is None:
        return f"no MFU ({'; '.join(mfu.reasons)})"
    return f"MFU {mfu.value:.1%} ({mfu.remark}){_against(mfu.value, GOAL)}"


def _against(share: float, goal: float) -> str:
    """Return the goal and the mark of a share; an empty text on a CPU, whose tiny model has no goal."""
    return f", goal {goal:.0%} {reached(share >= goal)}" if on_gpu() else ""


def eager() -> str:
    """Return the first rung: no compilation."""
    return _rung("--no-compile", "--num-gpus", "1")


def _compiled_flags() -> tuple[str, ...]:
    """Return the flags of llama with compiled layers; on a CPU, which has memory for all activations, with a plan."""
    if not can_compile():
        raise NotHereError("torch.compile needs a C++ compiler on a CPU")
    return ("--compile", "--num-gpus", "1", *(() if on_gpu() else ("--activation-checkpointing", "35%")))


def compiled() -> str:
    """Return the second rung: all layers, compiled, with the plan of recomputation that the engine chooses.

    On a GPU the peak of the memory must be the estimated one.
    """
    flags = _compiled_flags()
    printed = _rung(*flags, whole=True)
    return f"{printed}, {_peak_as_estimated(*flags)}" if on_gpu() else printed


def _peak_as_estimated(*flags: str) -> str:
    """Return the peak of a run's memory and its estimate. Raises RuntimeError where they differ."""
    from tensorprimat.core.result import Result
    from tensorprimat.core.spec import RunSettings
    from tensorprimat.core.units import GB
    from tensorprimat.engines import prepare
    from tensorprimat.engines.registry import ENGINES
    from tensorprimat.machine.platform import detect_platform
    from tensorprimat.models import training_memory
    from tensorprimat.models.memory_estimate import CONTEXT_BYTES

    settings = RunSettings(steps=8, warmup_steps=2, seed=1, num_gpus=1, global_batch_size=SEQUENCES, compile=True)
    spec = prepare.spec_of("llama", settings, engine=ENGINES["torch"], machine=detect_platform())
    needed = (training_memory.estimate(spec).total - CONTEXT_BYTES) / GB  # the allocator does not count the driver
    memory = Result.model_validate(benchmark(*flags, tiny=False, whole=True)).memory_metrics
    peak = None if memory is None else memory.peak_memory_allocated_gb
    printed = f"estimated {needed:.1f} GB, allocated {peak or 0:.1f} GB"
    if peak is None or abs(peak - needed) > ESTIMATE_TOLERANCE * peak:
        raise RuntimeError(printed)
    return printed


def speed() -> str:
    """Return the speed of the compiled rung over that of torchtitan, or of a plain loop where that is not installed."""
    from perf import speed_gpu
    from tensorprimat.core.result import Result
    from tensorprimat.machine import telemetry

    result = Result.model_validate(benchmark(*_compiled_flags(), tiny=not on_gpu(), whole=True))
    config = result.training_config
    steps = result.steps.take(result.steps.column("index") > config.max_steps - _steps()[0])
    ours = speed_gpu.Run(program="engine", turn=1, process_seconds=0.0, step_seconds=tuple(steps.column("seconds")))
    work = speed_gpu.Workload(
        preset="full" if on_gpu() else "tiny", sequence_length=config.sequence_length, steps=_steps()[0],
        global_batch_size=config.global_batch_size, warmup_steps=_steps()[1], on_cpu=not on_gpu(),
    )  # fmt: skip
    keeps_all = config.recompute == "none"
    modes = ["none"] if keeps_all else ["selective-op", "memory_budget=0.35"]
    programs = [f"torchtitan:{mode}" for mode in modes]
    if speed_gpu.lacking_for_torchtitan() or not on_gpu():
        programs = ["loop:none" if keeps_all else "loop"]
    devices = telemetry.open_devices(()) if on_gpu() else []
    with tempfile.TemporaryDirectory() as folder:
        runs = [speed_gpu.run(one, 1, work, devices[:1], Path(folder), limit=180.0) for one in programs]
    if failed := [one for one in runs if one.failure and one.failure != speed_gpu.OUT_OF_MEMORY]:
        raise RuntimeError(f"{failed[0].program}: {failed[0].failure}")
    found = speed_gpu.ratios([ours, *runs])
    if not found:
        raise NotHereError(f"{', '.join(programs)}: out of memory")
    goal = 1.02 if keeps_all else 1.0
    against = f", goal {goal:.2f}x {reached(found[0].value >= goal)}" if on_gpu() else ""
    return "; ".join(f"{speed_gpu.in_words(one)} of {one.theirs}" for one in found) + against


def masters() -> str:
    """Return the rung of compiled layers with float32 master weights, which the published rows of vendors have."""
    from tensorprimat.core.errors import UsageError
    from tensorprimat.core.spec import RunSettings
    from tensorprimat.engines import prepare
    from tensorprimat.engines.registry import ENGINES
    from tensorprimat.machine.platform import detect_platform

    flags = _compiled_flags()
    machine, torch_engine = detect_platform(), ENGINES["torch"]
    settings = RunSettings(steps=8, warmup_steps=2, seed=1, num_gpus=1, master_weights="fp32", precision="bf16")
    try:
        prepare.check_memory(prepare.spec_of("llama", settings, engine=torch_engine, machine=machine), machine)
    except UsageError as error:
        raise NotHereError(f"no memory for it: {error}") from error
    return _rung(*flags, "--precision", "bf16", "--master-weights", "fp32", whole=True)


def graphs() -> str:
    """Return what CUDA graphs of each layer gain over compiled layers; without a GPU torch compiles and records none.

    Short sequences are where launching kernels costs most. The losses of both ways must agree.
    """
    import torch

    if not can_compile():
        raise NotHereError("torch.compile needs a C++ compiler on a CPU")
    printed = []
    for length in (512, 4096) if on_gpu() else (32,):
        torch._dynamo.reset()
        free_memory()
        (plain, loss), (graph, other) = (_timed(_compiled_step(length, cuda_graphs=one)) for one in (False, True))
        if abs(loss - other) > 0.01 * loss:
            raise RuntimeError(f"{length} tokens: loss {loss:.4f} without graphs, {other:.4f} with them")
        gained = f"{plain / graph:.3f}x the rate" if on_gpu() else "compiled, no graph on a CPU"
        printed.append(f"{length} tokens: {gained}, loss {other:.4f}")
    torch._dynamo.reset()
    return "; ".join(printed)


def _compiled_step(length: int, *, cuda_graphs: bool) -> Callable[[], torch.Tensor]:
    """Return forward and backward of eight layers of llama, or of its tiny model on a CPU, compiled layer by layer."""
    import torch

    from tensorprimat.engines.torch.model import LanguageModel
    from tensorprimat.models.presets import find_preset

    preset = find_preset("llama", "full" if on_gpu() else "tiny")
    torch.manual_seed(1)
    preset = dataclasses.replace(preset, shape=preset.shape.model_copy(update={"num_layers": 8 if on_gpu() else 2}))
    rows, dtype = (1, torch.bfloat16) if on_gpu() else (2, torch.float32)  # on a CPU as in the compiled rung
    with torch.device("cuda" if on_gpu() else "cpu"):
        model = LanguageModel(preset, sequence_length=length).to(dtype)
        tokens = torch.arange(rows * (length + 1)).view(rows, -1)
    model.restore_rotary()
    model.compile_layers(cuda_graphs=cuda_graphs)

    def step() -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        loss = model(tokens)
        loss.backward()
        model.zero_grad(set_to_none=True)
        return loss.detach().clone()

    return step


def _timed(step: Callable[[], torch.Tensor], steps: int = 10) -> tuple[float, float]:
    """Return the mean seconds of a step after a warm-up, and the loss."""
    from tensorprimat.engines import clock

    timer = clock.choose_clock("cuda" if on_gpu() else "cpu", sync=False)
    for _ in range(3):
        loss = step()
    timer.synchronise()
    first = timer.mark()
    for _ in range(steps):
        loss = step()
    last = timer.mark()
    timer.synchronise()
    return timer.seconds(first, last) / steps, loss.item()


def fp8() -> str:
    """Return the third rung: compiled, with FP8 linear layers, and its rate over that of BF16.

    Every recipe of this GPU has to learn; the one that the engine chooses is trained. On a CPU they are emulated.
    """
    from importlib.util import find_spec

    import torch

    from tensorprimat.engines.torch.fp8 import MXFP8, MXFP8_GPUS, has_units

    if on_gpu() and not has_units():
        raise NotHereError(f"{torch.cuda.get_device_name()} has no matrix units for FP8")
    if find_spec("torchao") is None:
        raise NotHereError("torchao is not installed; pip install torchao")
    has_mxfp8 = not on_gpu() or any(name in torch.cuda.get_device_name() for name in MXFP8_GPUS)
    learnt = learns_in_fp8(("tensorwise", "rowwise", *((MXFP8,) if has_mxfp8 else ()), "kept"))
    if not on_gpu():
        return "; ".join(["emulated", *learnt])
    flags = (*_compiled_flags(), "--precision", "fp8")
    printed = _rung(*flags, whole=True)
    gained = _rate(*flags) / _rate(*_compiled_flags())
    against = f"{gained:.2f}x the rate of BF16, goal {GOAL_OF_FP8}x {reached(gained >= GOAL_OF_FP8)}"
    return "; ".join((f"{printed}, {against}", *learnt))


def traces() -> str:
    """Record the profiles of perf/gpu_traces.py in output/traces, and explain them: they are test data of the project.

    On a CPU only those in its own precision.
    """
    from importlib.util import find_spec

    from perf import gpu_traces
    from tensorprimat.engines.torch.fp8 import has_units
    from tensorprimat.reports.ledger import sentence
    from tensorprimat.traces.difference import difference_of
    from tensorprimat.traces.sides import ledger_at
    from tensorprimat.traces.work import TraceFacts

    in_fp8 = on_gpu() and has_units() and find_spec("torchao") is not None
    names = [name for name, (precision, _) in gpu_traces.TRACES.items() if in_fp8 or precision != "fp8"]
    folder = ROOT / "output" / "traces"
    command = [sys.executable, str(ROOT / "perf" / "gpu_traces.py"), str(folder), "--traces", ",".join(names)]
    done = subprocess.run([*command, *([] if on_gpu() else ["--cpu"])], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    paths = {name: gpu_traces.path_of(folder, name) for name in names}
    ledgers = {name: ledger_at(path) for name, path in paths.items()}
    largest = max(path.stat().st_size for path in paths.values())
    again = ledgers["bf16_recomputed"]
    repeated = again.launches("recomputed_products") / max(again.launches("recomputed_attention"), 1)
    wrong = [f"{name}: {notice}" for name, one in ledgers.items() for notice in one.notices]
    steps = {name: len(one.by_step) for name, one in ledgers.items()}
    wrong += [f"{name}: {count} steps" for name, count in steps.items() if count != gpu_traces.STEPS]
    wrong += [f"{largest / 1e6:.1f} MB"] * (largest > gpu_traces.MOST_BYTES)
    wrong += [f"{repeated:g} products of a recomputed layer repeated"] * (on_gpu() and repeated != 6)
    if wrong:
        raise RuntimeError("; ".join(wrong))
    pairs = [("bf16_a", name) for name in names[1:]]
    found = [
        f"{one} → {other}: {sentence(difference_of(ledgers[one], ledgers[other], (TraceFacts(), TraceFacts())))}"
        for one, other in pairs
    ]
    return "; ".join([f"{len(names)} in {folder}, at most {largest / 1e6:.2f} MB", *found])


def _rate(*flags: str) -> float:
    """Return the tokens per second and GPU of all layers of llama."""
    figures: dict[str, float] = benchmark(*flags, tiny=not on_gpu(), whole=True)["performance_metrics"]  # type: ignore[assignment]
    return figures["tokens_per_second_per_gpu"]


def group() -> str:
    """Take a step with DDP and one with FSDP2 over a group of one: NCCL (RCCL) on a single GPU, gloo on a CPU."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from tensorprimat.engines.torch.model import LanguageModel
    from tensorprimat.models.presets import find_preset

    kind, backend = ("cuda", "nccl") if on_gpu() else ("cpu", "gloo")
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh(kind, (1,))
        losses = []
        for strategy in ("ddp", "fsdp"):
            torch.manual_seed(1)
            with torch.device(kind):
                model = LanguageModel(find_preset("llama", "tiny"), sequence_length=32, layers_later=strategy == "fsdp")
                tokens = torch.arange(66).view(2, 33)
                if strategy == "fsdp":
                    model.shard(mesh)
            network = torch.nn.parallel.DistributedDataParallel(model) if strategy == "ddp" else model
            loss = network(tokens)
            loss.backward()
            torch.optim.AdamW(network.parameters(), fused=True).step()
            losses.append(loss.item())
    finally:
        dist.destroy_process_group()
    if abs(losses[0] - losses[1]) > 1e-3 * losses[0]:
        raise RuntimeError(f"the losses differ: DDP {losses[0]:.4f}, FSDP2 {losses[1]:.4f}")
    return f"{backend}: DDP and FSDP2, loss {losses[0]:.4f}"


def ddp() -> str:
    """Train replicas on all GPUs here (NCCL or RCCL), on two processes of a CPU (gloo)."""
    return _shared("ddp")


def fsdp() -> str:
    """Return the rate with the weights split over all GPUs here, or over two processes of a CPU."""
    return _shared("fsdp")


def _shared(strategy: str) -> str:
    if _count() < 2:
        raise NotHereError("one GPU only; see group")
    flags = ("--num-gpus", str(_count()), "--strategy", strategy)
    printed = _rung(*flags)
    alone, shared = _losses("--no-compile", "--num-gpus", "1"), _losses(*flags)
    apart = max(abs(one - other) / one for one, other in zip(alone, shared, strict=True))
    if apart > LOSS_TOLERANCE:
        raise RuntimeError(f"the losses differ: {alone} on one, {shared} on {_count()}")
    return f"{printed}, losses of the tiny model within {LOSS_TOLERANCE:g} of those on one"


def _losses(*flags: str) -> list[float]:
    """Return the loss of each step of the tiny model."""
    columns: dict[str, list[float]] = benchmark(*flags, tiny=True)["step_metrics"]  # type: ignore[assignment]
    return columns["loss"]


GROUPS: tuple[tuple[Callable[[], str], ...], ...] = (
    (devices, sampler, callback, events, flash, group),
    (sync, graphs, update, loss),
    (oom, product, eager, compiled, ddp, fsdp, fp8, speed, masters, traces),
)
"""The parts that share a process, since each start costs seconds. The second group holds large models in GPU memory,
which ends with it; the last one trains in children, and compares them with one measurement of the product."""
PARTS = {part.__name__: part for parts in GROUPS for part in parts}


def main(argv: Sequence[str] | None = None) -> int:
    """Run what --parts names; return 1 where a part failed, 2 for a part that does not exist."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="which, separated by commas (%(default)s)")
    parser.add_argument("--here", action="store_true", help="in this process, up to the first failure")
    parser.add_argument("--no-skips", action="store_true", help="exit code 1 also where a part was skipped")
    parser.add_argument("--minutes", type=float, default=math.inf, help="skip what would end later (no limit)")
    options = parser.parse_args(argv)
    names = options.parts.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"--parts {unknown[0]}: must be one of {', '.join(PARTS)}")
    if options.here:
        return run(names, PARTS)
    began = time.monotonic()
    groups = [[part.__name__ for part in parts if part.__name__ in names] for parts in GROUPS]
    command = [sys.executable, __file__, "--here", "--parts"]
    verdicts = supervise(command, groups, limit_seconds=PART_SECONDS, all_seconds=60 * options.minutes)
    counts = Counter(verdicts.values())
    print(f"{counts[PASS]} passed, {counts[FAIL]} failed, {counts[SKIP]} skipped in {time.monotonic() - began:.0f} s")
    return 1 if counts[FAIL] or (options.no_skips and counts[SKIP]) else 0


if __name__ == "__main__":
    sys.exit(main())
