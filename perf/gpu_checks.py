"""The parts of perf/mfu_ladder.py that check the torch engine and the telemetry: each returns its line or raises."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from perf.parts import NotHereError

if TYPE_CHECKING:
    import torch

    from tensorprimat.core.spec import RunSpec
    from tensorprimat.machine.device import Device

ROOT = Path(__file__).resolve().parent.parent


SAMPLER_SHARE = 0.05  # of the time between two samples
CLOCK_TOLERANCE = 0.005
FP8_TOLERANCE = 0.05  # relative, of a loss after six steps
FLEX_TOLERANCE = 0.02  # relative, of BF16, whose numbers have a relative step of 0.8 %


def on_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def can_compile() -> bool:
    """Return True if torch.compile has the compiler that it needs here."""
    return on_gpu() or any(map(shutil.which, ("c++", "g++", "clang++")))


def workload(precision: str, **changes: object) -> object:
    from tensorprimat.measure import grid
    from tensorprimat.measure.workload import Workload

    sizes = {"context_length": "16", "batch_size": "2", "pass_name": "train", "shapes": ("tiny=64/128/2/4",)}
    if on_gpu():
        sizes = {"context_length": "2048", "batch_size": "2", "pass_name": "train", "model_size": "large"}
    device = "cuda" if on_gpu() else "cpu"
    (spec,) = grid.cells(grid.GridOptions(**sizes, precision=precision, device=device, **changes))
    return Workload(spec)


def devices() -> str:
    """Check that telemetry knows each GPU by the identity that torch gives it, and that each draws power."""
    ids, found = _gpus()
    if len(found) != len(ids):
        raise RuntimeError(f"{len(found)} of {len(ids)} GPUs found by identity")
    watts = [device.glance().power_watts for device in found]
    if not all(watts):
        raise RuntimeError(f"a GPU draws no power: {watts}")
    return f"{len(ids)} GPUs by identity, {', '.join(f'{one:.0f} W' for one in watts if one)}"


def _gpus() -> tuple[Sequence[str], list[Device]]:
    """Return the identities of the GPUs as torch spells them, and the devices that telemetry finds by them.

    Where torch sees no GPU, those of NVML, which may be a stand-in (make test-ladder).
    """
    from tensorprimat.machine import telemetry
    from tensorprimat.machine.platform import detect_platform

    ids: Sequence[str] = detect_platform().gpu_ids
    if not on_gpu():
        ids = [one.id.removeprefix("GPU-").lower() for one in telemetry.open_devices(())]
    if not ids:
        raise NotHereError("torch is too old to identify its GPUs" if on_gpu() else "no GPU")
    if not telemetry.open_devices(()):
        raise NotHereError("no telemetry: NVML (nvidia-ml-py) and AMD SMI (amdsmi, which ROCm installs) show no device")
    return ids, telemetry.open_devices(ids)


def sampler() -> str:
    """Return the cost of one sample of the GPUs, whose goal is a small share of the time between two."""
    from tensorprimat.machine import telemetry

    _, known = _gpus()
    looks = telemetry.Sampler(known)
    looks.start()
    time.sleep(2.0)
    looks.stop()
    seconds = looks.seconds_per_sample
    if seconds is None:
        raise RuntimeError("no device to sample")
    goal = SAMPLER_SHARE * telemetry.SAMPLE_SECONDS
    return (
        f"a sample of {len(known)} devices takes {1e3 * seconds:.2f} ms, every {telemetry.SAMPLE_SECONDS:g} s, "
        f"goal: under {1e3 * goal:g} ms, {reached(seconds < goal)}"
    )


def reached(is_reached: bool) -> str:
    """Return "reached" or "missed". A missed goal is not a failure: a timing depends on what else the machine does."""
    return "reached" if is_reached else "missed"


def callback() -> str:
    """Return the cost of the callback for one step, by perf/callback_cost.py."""
    command = [sys.executable, str(ROOT / "perf" / "callback_cost.py"), "--steps", "2000" if on_gpu() else "400"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    printed = " ".join(done.stdout.strip().splitlines()[-1].split())
    return f"µs per step (median, quartiles): {printed}, {reached(done.returncode == 0)}"


LIMITED = """
import resource, sys
if {limit}:
    resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
from tensorprimat.engines.torch.engine import main
sys.exit(main(sys.argv[1:]))
"""


def oom() -> str:
    """Run out of memory, which must end in one line that names a smaller batch, never in a traceback."""
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
            [sys.executable, "-c", program, *files], cwd=ROOT, capture_output=True, text=True, check=False
        )
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    if done.returncode != 1 or "torch engine: out of memory: " not in last:
        raise RuntimeError(f"exit code {done.returncode}: {last}")
    return last.partition(": ")[2]


def _platform() -> str:
    from tensorprimat.machine.platform import detect_platform

    return detect_platform().platform


WAITS = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select")
"""Operations whose result the host needs: on a GPU each of them waits for everything queued before it."""


def sync() -> str:
    """Check that no operation of the engine or of its callback makes the host wait for the GPU between two steps.

    Trains Llama, and a small Gemma 2, whose attention needs a mask in every layer. On a CPU, which is never waited for,
    operations that would wait on a GPU fail.
    """
    from tensorprimat.core.spec import RunSpec
    from tensorprimat.engines.torch import config

    small = {"preset": "tiny", "sequence_length": 32, "precision": "fp32"}
    size = {"preset": "full", "sequence_length": 4096, "precision": "bf16"} if on_gpu() else small
    spec = RunSpec(
        model="llama", engine="torch", steps=2, warmup_steps=1, num_gpus=1, platform=_platform(),
        micro_batch_size=1, global_batch_size=2, compile=on_gpu(), recompute="full" if on_gpu() else "none", **size,
    )  # fmt: skip
    gemma = config.model_of_config("gemma2", config.completed_config("gemma2", "gemma2", {}), "tiny")
    longer = {"preset": "tiny", "sequence_length": 256 if on_gpu() else 32, "recompute": "none"}
    for one in (spec, spec.changed(model="gemma2", config=gemma.config, **longer)):
        _train_without_waiting(one)
    steps = "no wait from the first to the last of 3 steps of Llama and Gemma 2, callback included"
    return steps + ("" if on_gpu() else ", by the operations that would wait on a GPU")


def _train_without_waiting(spec: RunSpec) -> None:
    """Train; raise an error where the host waits for the GPU after the first step."""
    from lightning.pytorch import Callback

    from tensorprimat.engines import clock
    from tensorprimat.engines.torch.engine import callback_of, trainer_of
    from tensorprimat.engines.torch.module import TrainingModule

    class BusyClock(clock.Clock):
        """A CPU's clock that has reached no mark, like that of a busy GPU, so that the callback reads no step early."""

        def reached(self, mark: clock.StepMark) -> bool:  # noqa: ARG002
            return not watched.watching

    class Watched(Callback):  # type: ignore[misc]
        watching = False

        def on_train_batch_end(self, *arguments: object) -> None:
            index = arguments[-1]
            if index == 0:  # the first step compiles, and makes the optimizer's state
                watch.enter_context(waits_forbidden())
                self.watching = True
            elif index == spec.max_steps - 1:
                watch.close()
                self.watching = False

    watched = Watched()
    with contextlib.ExitStack() as watch, tempfile.TemporaryDirectory() as folder:
        if not on_gpu():
            watch.enter_context(mock.patch.object(clock, "choose_clock", return_value=BusyClock()))
        module = TrainingModule(spec)
        callbacks = [callback_of(spec, module, Path(folder) / "result.json"), watched]  # it ends its step first
        with contextlib.redirect_stdout(sys.stderr):
            trainer_of(spec, callbacks).fit(module)


@contextlib.contextmanager
def waits_forbidden() -> Iterator[None]:
    """Raise an error from an operation that makes the host wait for the GPU; on a CPU, from one that would do so."""
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
    """Compare the clock of the steps with a synchronised wall clock."""
    from tensorprimat.engines import clock

    work = workload("bf16")
    kind = "cuda" if on_gpu() else "cpu"
    timer = clock.choose_clock(kind, sync=False)
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


def _milliseconds(work: Callable[[], object], times: int = 8) -> float:
    """Return the time of one call on the device, after two calls that compile and allocate."""
    from tensorprimat.engines import clock

    timer = clock.choose_clock("cuda" if on_gpu() else "cpu", sync=False)
    for _ in range(2):
        work()
    timer.synchronise()
    first = timer.mark()
    for _ in range(times):
        work()
    last = timer.mark()
    timer.synchronise()
    return 1e3 * timer.seconds(first, last) / times


UPDATE_GOAL, LOSS_GOAL = 0.8, 0.9
"""Goals of the time of clipping with AdamW, and of head with loss: shares of that of separate kernels."""


def update() -> str:
    """Return the time of clipping and AdamW, folded into each other, as a share of two passes, with bytes and launches.

    On a GPU of 80 GB and more for the weights of Llama 3.1 8B, else for those of the tiny model.
    """
    import torch

    from tensorprimat.engines.torch.model import LanguageModel
    from tensorprimat.engines.torch.optimizer import adamw
    from tensorprimat.models.presets import find_preset

    large = on_gpu() and torch.cuda.get_device_properties(0).total_memory > 75e9
    with torch.device("cuda" if on_gpu() else "cpu"):
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = LanguageModel(find_preset("llama", "full" if large else "tiny"))
        finally:
            torch.set_default_dtype(torch.float32)
    weights = list(model.parameters())
    for weight in weights:
        weight.grad = 1e-3 * torch.randn_like(weight)
    found = []
    for folded in (False, True):
        optimizer = adamw(model, fused=True, compiled=folded and can_compile())

        def step(optimizer: Any = optimizer, folded: bool = folded) -> None:
            if folded:
                optimizer.clip(1.0)
            else:
                torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()

        found.append((_milliseconds(step), _launches(step)))
        del optimizer, step
    (plain, many), (ours, few) = found
    count = sum(weight.numel() for weight in weights)
    share = ours / plain
    return (
        f"{count:,} weights: {plain:.1f} ms for {20 * count / 1e9:.3g} GB in {many} kernels before, {ours:.1f} ms for "
        f"{16 * count / 1e9:.3g} GB in {few} kernels now, {share:.2f} of it, goal {UPDATE_GOAL} "
        f"{reached(share <= UPDATE_GOAL)}"
    )


def _launches(work: Callable[[], object]) -> int:
    """Return the number of kernels of one call; on a CPU that of all operations."""
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    kind, device = ProfilerActivity.CPU, DeviceType.CPU
    if on_gpu():
        kind, device = ProfilerActivity.CUDA, DeviceType.CUDA  # without the calls of the runtime
    with profile(activities=[kind]) as seen:
        work()
        if on_gpu():
            torch.cuda.synchronize()
    return sum(event.count for event in seen.key_averages() if event.device_type == device)


def loss() -> str:
    """Return the time of head and loss with compiled chunks, as a share of that with separate kernels."""
    import torch

    from tensorprimat.engines.torch.cross_entropy import linear_cross_entropy
    from tensorprimat.models.presets import find_preset

    if not can_compile():
        raise NotHereError("torch.compile needs a C++ compiler on a CPU")
    shape = find_preset("llama", "full" if on_gpu() else "tiny").shape
    device = "cuda" if on_gpu() else "cpu"
    torch.manual_seed(1)
    rows = 8192 if on_gpu() else 128
    hidden = torch.randn(rows, shape.hidden_size, device=device, dtype=torch.bfloat16, requires_grad=True)
    head = (0.02 * torch.randn(shape.vocab_size, shape.hidden_size, device=device)).bfloat16().requires_grad_()
    targets = torch.randint(shape.vocab_size, (rows,), device=device)
    losses, times = [], []
    for compiled in (False, True):

        def once(compiled: bool = compiled) -> torch.Tensor:
            value = linear_cross_entropy(hidden, head, targets, compiled=compiled)
            value.backward()
            hidden.grad = head.grad = None
            return value.detach()

        times.append(_milliseconds(once))
        losses.append(once().item())
    if abs(losses[0] - losses[1]) > 1e-3 * losses[0]:
        raise RuntimeError(f"loss {losses[0]:.5f} by separate kernels, {losses[1]:.5f} compiled")
    share = times[1] / times[0]
    return (
        f"{rows} tokens: {times[0]:.2f} ms by separate kernels, {times[1]:.2f} ms compiled, {share:.2f} of it, "
        f"goal {LOSS_GOAL} {reached(share <= LOSS_GOAL)}; loss {losses[1]:.4f}"
    )


def flash() -> str:
    """Check that SDPA chooses a flash kernel (cuDNN's too) on a GPU, and compare FlexAttention with a dense mask."""
    import torch

    from tensorprimat.engines.torch import attention as torch_attention
    from tensorprimat.models.presets import find_preset

    device = torch.device("cuda" if on_gpu() else "cpu")
    kernel = torch_attention.kernel(
        find_preset("llama").shape,
        batch=1,
        sequence_length=4096 if on_gpu() else 64,
        dtype=torch.bfloat16,
        device=device,
    )
    if on_gpu() and kernel not in ("flash", "cudnn"):
        raise RuntimeError(f"the kernel is {kernel}")
    return f"kernel {kernel}{_beside_package(device) if on_gpu() else ''}; {windowed(device)}"


def _beside_package(device: torch.device) -> str:
    """Return the time of Llama's attention, forward and backward at 8,192 tokens, by torch and by FlashAttention."""
    import torch

    from tensorprimat.engines.torch import attention as torch_attention

    package = torch_attention.flash_package()
    if package is None:
        return " (no package flash-attn to time it against)"
    made = [torch.randn(1, heads, 8192, 128, dtype=torch.bfloat16, device=device) for heads in (32, 8, 8)]
    inputs = [one.requires_grad_() for one in made]

    def once(attention: Callable[..., Any]) -> float:
        return _milliseconds(lambda: attention(None, *inputs, scaling=128**-0.5)[0].sum().backward())

    torch_time, package_time = once(torch_attention.causal_attention), once(torch_attention.package_attention)
    return f" {torch_time:.2f} ms, {package} {package_time:.2f} ms"


def windowed(device: torch.device) -> str:
    """Return a line on the largest difference of compiled FlexAttention and SDPA with a dense mask in Mistral's window.

    A GPU computes the gradients of queries, keys and values too; a CPU has no backward pass of FlexAttention.
    """
    import torch

    from tensorprimat.engines.torch import attention as torch_attention
    from tensorprimat.models.presets import find_preset

    if not torch_attention.uses_flex("cuda"):
        return "this torch has no FlexAttention, so windows have a dense mask"
    if not can_compile():
        raise NotHereError("FlexAttention needs a C++ compiler on a CPU")
    shape = find_preset("mistral", "full" if on_gpu() else "tiny").shape
    window, length = shape.sliding_window, 2 * shape.sliding_window
    heads, pairs, width = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
    torch.manual_seed(1)
    made = [
        torch.randn(1, count, length, width, dtype=torch.bfloat16, device=device) for count in (heads, pairs, pairs)
    ]
    found = []
    for mask_of in (torch_attention._block_mask, torch_attention._dense_mask):
        inputs = [one.clone().requires_grad_(on_gpu()) for one in made]
        output, _ = torch_attention.causal_attention(None, *inputs, mask_of(length, window, device))
        if on_gpu():
            output.square().sum().backward()
        found.append([output.detach(), *(one.grad for one in inputs if one.grad is not None)])
    difference = max(
        float((one.float() - other.float()).norm() / other.float().norm()) for one, other in zip(*found, strict=True)
    )
    if difference > FLEX_TOLERANCE:
        raise RuntimeError(f"FlexAttention differs from a dense mask by {difference:.2%}")
    return f"FlexAttention with window {window} of {length} tokens differs from a dense mask by {difference:.2%}"


def learns_in_fp8(recipes: Sequence[str]) -> list[str]:
    """Check that a tiny model learns with FP8 products almost as in BF16; return the last loss by each recipe.

    A GPU multiplies in FP8; a CPU rounds as FP8 does and multiplies in BF16.
    """
    plain = _losses(None)
    found = []
    for recipe in recipes:  # "kept": our products, with weights in FP8 kept during a step
        losses = _losses(recipe)
        apart = max(abs(one - other) / other for one, other in zip(losses, plain, strict=True))
        if losses[-1] > losses[0] - 0.5 or apart > FP8_TOLERANCE or losses == plain:
            raise RuntimeError(f"{recipe}: losses {losses} in FP8, {plain} in BF16")
        found.append(f"{recipe}: loss {losses[-1]:.4f} ({plain[-1]:.4f} in BF16)")
    return found


def _losses(recipe: str | None) -> list[float]:
    """Return the losses of six steps of a tiny model; recipe: of its FP8 products, None for BF16."""
    import torch

    from tensorprimat.engines.torch import fp8, linear
    from tensorprimat.engines.torch.model import LanguageModel
    from tensorprimat.models.presets import find_preset

    torch.manual_seed(0)
    network = LanguageModel(find_preset("llama", "tiny")).to(torch.bfloat16)
    tokens = torch.randint(0, 512, (2, 33))
    if on_gpu():
        network, tokens = network.cuda(), tokens.cuda()
    if recipe:
        fp8.convert_layers(network.decoder.layers, recipe, kept=recipe == "kept", emulate=not on_gpu())
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    found = []
    for _ in range(6):
        if recipe == "kept":
            linear.keep_quantised(linear.linear_layers(network.decoder.layers), compiled=False)
        loss = network(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found
