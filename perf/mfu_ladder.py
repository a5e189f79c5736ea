#!/usr/bin/env python3
"""Check the torch engine on the GPUs of this machine, part by part, and print its MFU from eager to compiled.

    make test-gpu                                   # every part; a CPU runs the same parts on tiny models
    python3 perf/mfu_ladder.py --parts sync,eager   # some of them

Each part writes one line (PASS, FAIL or SKIP) and never keeps the next one from running. Exit code 1 if a part failed.
The goal of the ladder: at least 60 % of the BF16 peak for a model of 3 billion parameters or more, by the convention
megatron, and at least 75 % of the best matrix product that this machine reaches. A global batch of 4 sequences on each
GPU keeps all parts within about 10 minutes on one H200, estimated at 35 to 60 % MFU.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

if TYPE_CHECKING:
    import torch

    from tensorprimat.analysis.metric import Metric

GOAL, GOAL_OF_PRODUCT = 0.60, 0.75
SEQUENCES = 4  # of one optimizer step on each GPU
SAMPLER_SHARE = 0.05  # of the time between two looks
CALLBACK_STEPS = 2000
CLOCK_TOLERANCE = 0.005
PART_SECONDS = 600


class NotHereError(Exception):
    """The part needs something that this machine has not."""


def on_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def workload(precision: str, **changes: object) -> object:
    from tensorprimat.micro import grid
    from tensorprimat.micro.workload import Workload

    sizes = {"context_length": "16", "batch_size": "2", "pass_name": "train", "shapes": ("tiny=64/128/2/4",)}
    if on_gpu():
        sizes = {"context_length": "2048", "batch_size": "2", "pass_name": "train", "model_size": "large"}
    device = "cuda" if on_gpu() else "cpu"
    (spec,) = grid.cells(grid.GridOptions(**sizes, precision=precision, device=device, **changes))
    return Workload(spec)


def benchmark(*flags: str) -> dict[str, object]:
    """Return the result of one run of benchmark.py; the tiny model without a GPU."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "benchmark.py"), "--model", "llama", "--engine", "torch", "--json"]
        gpus = int(flags[flags.index("--num-gpus") + 1])
        size = ["--preset", "tiny", "--sequence-length", "32", "--global-batch-size", "4"]
        if on_gpu():
            size = ["--global-batch-size", str(SEQUENCES * gpus)]
        short = ["--steps", "10", "--warmup-steps", "3", "--output", folder]
        done = subprocess.run(
            [*command, *size, *short, *flags], capture_output=True, text=True, timeout=PART_SECONDS, check=False
        )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    (result,) = json.loads(done.stdout)
    return dict(result)


def devices() -> str:
    """Telemetry knows each GPU by the identity that torch gives it, and each draws power."""
    if not on_gpu():
        raise NotHereError("no GPU")
    from tensorprimat.machine import telemetry
    from tensorprimat.machine.platform import detect

    ids = detect().gpu_ids
    found = telemetry.open_devices(ids)
    if len(found) != len(ids):
        raise RuntimeError(f"{len(found)} of {len(ids)} GPUs found by identity")
    watts = [device.glance().power_watts for device in found]
    if not all(watts):
        raise RuntimeError(f"a GPU draws no power: {watts}")
    return f"{len(ids)} GPUs by identity, {', '.join(f'{one:.0f} W' for one in watts if one)}"


def sampler() -> str:
    """Return the cost of a look at the GPUs, which must be a small share of the time between two."""
    from tensorprimat.machine import telemetry
    from tensorprimat.machine.device import DeviceReading
    from tensorprimat.machine.platform import detect

    sys.path.insert(0, str(ROOT / "tests"))
    from replay import Replay

    known = telemetry.open_devices(detect().gpu_ids) if on_gpu() else [Replay([DeviceReading(power_watts=1.0)])]
    looks = telemetry.Sampler(known)
    looks.start()
    time.sleep(2.0)
    looks.stop()
    seconds = looks.seconds_per_sample
    if not known or seconds is None:
        raise RuntimeError("no device to sample")
    if seconds > SAMPLER_SHARE * telemetry.SAMPLE_SECONDS:
        raise RuntimeError(f"a look takes {1e3 * seconds:.1f} ms of {1e3 * telemetry.SAMPLE_SECONDS:.0f}")
    return f"a look at {len(known)} devices takes {1e3 * seconds:.2f} ms, every {telemetry.SAMPLE_SECONDS:g} s"


def callback() -> str:
    """Return the cost of the callback for one step, by perf/callback_cost.py."""
    command = [sys.executable, str(ROOT / "perf" / "callback_cost.py"), "--steps", str(CALLBACK_STEPS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PART_SECONDS, check=False)
    if not done.stdout.strip():
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    said = " ".join(done.stdout.strip().splitlines()[-1].split())
    if done.returncode:
        raise RuntimeError(said)
    return f"µs per step (median, quartiles): {said}"


LIMITED = """
import resource, sys
if {limit}:
    resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
from tensorprimat.engines.torch.engine import main
sys.exit(main(sys.argv[1:]))
"""


def oom() -> str:
    """Return what lack of memory ends as: one line that names a smaller batch, never a traceback."""
    from tensorprimat.core.spec import RunSpec

    size = {"preset": "full", "micro_batch_size": 64, "sequence_length": 8192, "precision": "bf16"}
    if not on_gpu():
        size = {"preset": "tiny", "micro_batch_size": 8192, "sequence_length": 2048, "precision": "fp32"}
    spec = RunSpec(
        model="llama", engine="torch", steps=1, warmup_steps=0, num_gpus=1, platform=_platform(),
        global_batch_size=size["micro_batch_size"], **size,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "spec.json").write_text(spec.model_dump_json())
        files = ["--spec", f"{folder}/spec.json", "--result", f"{folder}/result.json"]
        program = LIMITED.format(limit=0 if on_gpu() else 6 * 2**30)
        done = subprocess.run(
            [sys.executable, "-c", program, *files],
            cwd=ROOT, capture_output=True, text=True, timeout=PART_SECONDS, check=False,
        )  # fmt: skip
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    if done.returncode != 1 or "torch engine: out of memory: " not in last:
        raise RuntimeError(f"exit code {done.returncode}: {last}")
    return last.partition(": ")[2]


def _platform() -> str:
    from tensorprimat.machine.platform import detect

    return detect().platform


WAITS = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select")
"""Operations whose outcome the host needs: on a GPU each of them waits for everything queued before it."""


def sync() -> str:
    """No operation of the engine's training step makes the host wait for the GPU.

    On a CPU, which is never waited for, operations that would wait on a GPU fail.
    """
    from lightning.pytorch import Callback

    from tensorprimat.core.spec import RunSpec
    from tensorprimat.engines.torch.engine import trainer_of
    from tensorprimat.engines.torch.module import TrainingModule

    size = {"preset": "full", "sequence_length": 4096, "precision": "bf16"}
    if not on_gpu():
        size = {"preset": "tiny", "sequence_length": 32, "precision": "fp32"}
    spec = RunSpec(
        model="llama", engine="torch", steps=2, warmup_steps=1, num_gpus=1, platform=_platform(),
        micro_batch_size=1, global_batch_size=2, compile=on_gpu(), recompute="full" if on_gpu() else "none", **size,
    )  # fmt: skip

    with contextlib.ExitStack() as watch:

        class Watched(Callback):  # type: ignore[misc]
            def on_train_batch_start(self, *arguments: object) -> None:
                if arguments[-1]:  # the first step compiles, and makes the optimizer's state
                    watch.enter_context(waits_forbidden())

            def on_train_batch_end(self, *_: object) -> None:
                watch.close()

        trainer_of(spec, [Watched()]).fit(TrainingModule(spec))
    return "no wait inside 2 steps of the engine" + ("" if on_gpu() else ", by the operations that would wait on a GPU")


@contextlib.contextmanager
def waits_forbidden() -> Iterator[None]:
    """Raise an error from the operation that makes the host wait for the GPU; on a CPU, that would do so."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Refusing(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if function.overloadpacket.__name__ in WAITS:
                raise RuntimeError(f"the host waits for the device: {function}")
            return function(*args, **(kwargs or {}))

    if not on_gpu():
        with Refusing():
            yield
        return
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def events() -> str:
    """Return the clock of the steps agrees with a synchronised wall clock."""
    from tensorprimat.engines import clock

    work = workload("bf16")
    kind = "cuda" if on_gpu() else "cpu"
    timer = clock.choose(kind, sync=False)
    work.step()
    timer.synchronise()
    began, first = time.perf_counter(), timer.mark()
    for _ in range(20):
        work.step()
    last = timer.mark()
    timer.synchronise()
    wall, measured = time.perf_counter() - began, timer.seconds(first, last)
    if abs(wall - measured) > CLOCK_TOLERANCE * wall + 1e-3:
        raise RuntimeError(f"{timer.name} {measured:.4f} s, wall clock {wall:.4f} s")
    return f"{timer.name} {measured:.4f} s, wall clock {wall:.4f} s"


def flash() -> str:
    """SDPA chooses the flash kernel for the model's attention."""
    import torch

    from tensorprimat.core.models import find
    from tensorprimat.engines.torch import attention as torch_attention

    device = torch.device("cuda" if on_gpu() else "cpu")
    kernel = torch_attention.kernel(
        find("llama").shape, batch=1, sequence_length=4096 if on_gpu() else 64, dtype=torch.bfloat16, device=device
    )
    if on_gpu() and kernel not in ("flash", "cudnn"):
        raise RuntimeError(f"the kernel is {kernel}")
    return f"kernel {kernel}"


@functools.cache
def best_product(precision: str) -> float:
    """Return the best rate of a matrix product on one device, in FLOP/s, by the code of preflight."""
    import torch

    from tensorprimat.micro import matmul

    device = torch.device("cuda" if on_gpu() else "cpu")
    return max(matmul.rate(size, precision, device)[0] for size in ((4096, 8192) if on_gpu() else (256, 512)))


def product() -> str:
    """Return the best matrix product in the precisions of the ladder."""
    precisions = ("bf16", *(("fp8",) if has_fp8() else ())) if on_gpu() else ("fp32",)
    return ", ".join(f"{one} {best_product(one) / 1e12:,.3g} TFLOP/s" for one in precisions)


def has_fp8() -> bool:
    """Return True if the GPU is known to have matrix units for FP8."""
    from tensorprimat.core import catalogue
    from tensorprimat.machine.platform import detect

    found = detect().gpu_info
    gpu = catalogue.find_gpu(found.device_name, found.total_memory_gb)
    return gpu is not None and "fp8" not in gpu.lacks


def _rung(*flags: str) -> str:
    from tensorprimat.analysis import metrics
    from tensorprimat.core.result import Result

    result = Result.model_validate(benchmark(*flags))
    rate = result.performance_metrics.tokens_per_second_per_gpu
    measured = metrics.measure(result)
    said = [f"{rate:,.0f} tokens/s/GPU", _mfu(measured["mfu"])]
    if (done := measured["model_tflops_per_gpu"].value) is not None:
        share = done * 1e12 / best_product(result.training_config.precision)
        said.append(f"{share:.1%} of the best matrix product{_against(share, GOAL_OF_PRODUCT)}")
    return ", ".join(said)


def _mfu(mfu: Metric) -> str:
    if mfu.value is None:
        return f"no MFU ({'; '.join(mfu.reasons)})"
    return f"MFU {mfu.value:.1%} ({mfu.remark}){_against(mfu.value, GOAL)}"


def _against(share: float, goal: float) -> str:
    """Return the goal, and whether a share reaches it; nothing on a CPU, whose tiny model has no goal."""
    return f", goal {goal:.0%} {'reached' if share >= goal else 'missed'}" if on_gpu() else ""


def eager() -> str:
    """Return the first rung: no compilation."""
    return _rung("--no-compile", "--num-gpus", "1")


def compiled() -> str:
    """Return the second rung: each layer compiled."""
    if not can_compile():
        raise NotHereError("torch.compile needs a C++ compiler on a CPU")
    return _rung("--compile", "--num-gpus", "1")


def graphs() -> str:
    """Return what CUDA graphs of each layer gain over compiled layers; without a GPU torch compiles and records none.

    Short sequences are where launching kernels costs most. The losses of both ways must agree.
    """
    import torch

    if not can_compile():
        raise NotHereError("torch.compile needs a C++ compiler on a CPU")
    said = []
    for length in (512, 4096) if on_gpu() else (32,):
        torch._dynamo.reset()
        (plain, loss), (graph, other) = (_timed(_compiled_step(length, cuda_graphs=one)) for one in (False, True))
        if abs(loss - other) > 0.01 * loss:
            raise RuntimeError(f"{length} tokens: loss {loss:.4f} without graphs, {other:.4f} with them")
        gained = f"{plain / graph:.3f}x the rate" if on_gpu() else "compiled, no graph on a CPU"
        said.append(f"{length} tokens: {gained}, loss {other:.4f}")
    torch._dynamo.reset()
    return "; ".join(said)


def _compiled_step(length: int, *, cuda_graphs: bool) -> Callable[[], torch.Tensor]:
    """Return forward and backward of eight layers of llama, or of its tiny model on a CPU, compiled layer by layer."""
    import torch

    from tensorprimat.core.models import find
    from tensorprimat.engines.torch.model import LanguageModel

    preset = find("llama", "full" if on_gpu() else "tiny")
    torch.manual_seed(1)
    preset = dataclasses.replace(preset, shape=preset.shape.model_copy(update={"num_layers": 8 if on_gpu() else 2}))
    with torch.device("cuda" if on_gpu() else "cpu"):
        model = LanguageModel(preset, sequence_length=length).to(torch.bfloat16)
        tokens = torch.arange(length + 1).unsqueeze(0)
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

    timer = clock.choose("cuda" if on_gpu() else "cpu", sync=False)
    for _ in range(3):
        loss = step()
    timer.synchronise()
    first = timer.mark()
    for _ in range(steps):
        loss = step()
    last = timer.mark()
    timer.synchronise()
    return timer.seconds(first, last) / steps, loss.item()


def can_compile() -> bool:
    """Return True if torch.compile has the compiler that it needs here."""
    return on_gpu() or any(map(shutil.which, ("c++", "g++", "clang++")))


def fp8() -> str:
    """Return the third rung: compiled, with FP8 linear layers by torchao, both recipes."""
    if not on_gpu():
        raise NotHereError("FP8 needs the matrix units of a GPU")
    from importlib.util import find_spec

    if find_spec("torchao") is None:
        raise NotHereError("torchao is not installed; pip install torchao")
    import torch

    from tensorprimat.engines.torch.fp8 import MXFP8, MXFP8_GPUS

    has_mxfp8 = any(name in torch.cuda.get_device_name() for name in MXFP8_GPUS)
    flags = ("--compile", "--num-gpus", "1", "--precision", "fp8", "--fp8-recipe")
    recipes = ("tensorwise", "rowwise", *((MXFP8,) if has_mxfp8 else ()))
    return "; ".join(f"{recipe}: {_rung(*flags, recipe)}" for recipe in recipes)


def group() -> str:
    """DDP and FSDP2 each take a step over a group of one: NCCL (RCCL) starts on a single GPU, gloo on a CPU."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from tensorprimat.core.models import find
    from tensorprimat.engines.torch.model import LanguageModel

    kind, backend = ("cuda", "nccl") if on_gpu() else ("cpu", "gloo")
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh(kind, (1,))
        losses = []
        for strategy in ("ddp", "fsdp"):
            torch.manual_seed(1)
            with torch.device(kind):
                model, tokens = LanguageModel(find("llama", "tiny"), sequence_length=32), torch.arange(66).view(2, 33)
            network = torch.nn.parallel.DistributedDataParallel(model) if strategy == "ddp" else model
            if strategy == "fsdp":
                model.shard(mesh)
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
    """Replicas on all GPUs here (NCCL or RCCL), on two processes of a CPU (gloo)."""
    return _shared("ddp")


def fsdp() -> str:
    """Return the rate with the weights split over all GPUs here, or over two processes of a CPU."""
    return _shared("fsdp")


def _shared(strategy: str) -> str:
    import torch

    count = torch.cuda.device_count() if on_gpu() else 2
    if count < 2:
        raise NotHereError("one GPU only; see group")
    return _rung("--num-gpus", str(count), "--strategy", strategy)


PARTS: dict[str, Callable[[], str]] = {
    part.__name__: part
    for part in (
        devices,
        sampler,
        callback,
        sync,
        events,
        flash,
        oom,
        product,
        eager,
        compiled,
        graphs,
        fp8,
        group,
        ddp,
        fsdp,
    )
}


def run(names: Sequence[str], parts: dict[str, Callable[[], str]]) -> int:
    """Run the parts in their order, print a line for each, and return the number that failed."""
    failed = 0
    for name in names:
        began = time.perf_counter()
        try:
            verdict, said = "PASS", parts[name]()
        except NotHereError as why:
            verdict, said = "SKIP", str(why)
        except BaseException as error:  # one part must never take the others' lines with it
            if isinstance(error, KeyboardInterrupt):
                raise
            verdict, said, failed = "FAIL", f"{type(error).__name__}: {str(error).strip()}", failed + 1
        print(f"{verdict} {name:<9} {time.perf_counter() - began:6.1f} s  {said.splitlines()[0]}", flush=True)
    return failed


def main(argv: Sequence[str] | None = None) -> int:
    """Run what --parts names; return 1 where a part failed, 2 for a part that does not exist."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="which, separated by commas (%(default)s)")
    names = parser.parse_args(argv).parts.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"--parts {unknown[0]}: must be of {', '.join(PARTS)}")
    return 1 if run(names, PARTS) else 0


if __name__ == "__main__":
    sys.exit(main())
