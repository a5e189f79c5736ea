"""What a cell will need, before it runs: memory from the shape, time from FLOPs and a rate.

Estimates, and said to be: they answer "does it fit, and is it minutes or hours".
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorprimat.core import catalogue, models
from tensorprimat.core.cells import CellSpec
from tensorprimat.core.preflight import Preflight
from tensorprimat.core.units import GB, TERA
from tensorprimat.machine.platform import Machine
from tensorprimat.micro.limits import LARGEST_LOGITS

BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}

# What autograd keeps of one token in one layer of transformers' Llama, in numbers: counted with saved_tensors_hooks on
# CPU, fp32, SDPA (tests/test_sweep.py counts again). The two norms keep four widths in float32 whatever the precision.
WIDTHS_SAVED, WIDTHS_IN_FP32, FFN_WIDTHS_SAVED = 6, 4, 4

PROCESS_BYTES = 0.4e9  # resident memory of a process with torch and transformers; a GPU's allocator does not count it

UTILISATION = 0.4  # of the best matrix rate: what training reaches where nothing is wrong
QUICK_SIZE = {"cpu": 1024, "cuda": 8192}  # of a product that is timed where no rate is known: tenths of a second
START_SECONDS = 8.0  # of a fresh process: importing torch and transformers, building the model


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Of one cell."""

    memory_gb: float
    seconds: float | None
    """The whole process, warm-up included; None where no rate is known."""


def estimate(spec: CellSpec, *, flops_per_second: float | None) -> Estimate:
    """flops_per_second: the best matrix rate of the device at this precision, measured or nameplate."""
    steps = spec.num_warmups + spec.num_trials * spec.num_steps
    work = steps * spec.step_flops / (flops_per_second * UTILISATION) if flops_per_second else None
    return Estimate(
        memory_gb=(state_bytes(spec) + activation_bytes(spec) + (PROCESS_BYTES if spec.device == "cpu" else 0)) / GB,
        seconds=None if work is None else START_SECONDS + work,
    )


def state_bytes(spec: CellSpec) -> float:
    """Weights, gradients and AdamW's two moments, as far as the pass needs them."""
    weight = 4 if spec.autocast else BYTES[spec.precision]
    copies = {"forward": 1, "forward-backward": 2, "train": 4}[spec.pass_name]
    cast = BYTES[spec.precision] if spec.autocast else 0  # autocast keeps its copies of the weights for backward
    return float(models.parameters(spec.shape) * (weight * copies + cast))


def activation_bytes(spec: CellSpec) -> float:
    """What autograd keeps of one batch, and the logits with their gradient."""
    width = BYTES[spec.precision]
    shape = spec.shape
    per_layer = (
        WIDTHS_SAVED * shape.hidden_size * width
        + WIDTHS_IN_FP32 * shape.hidden_size * 4
        + FFN_WIDTHS_SAVED * shape.ffn_hidden_size * width
    )
    if spec.attention == "eager":
        per_layer += shape.num_attention_heads * spec.context_length * width
    logits = min(spec.tokens * shape.vocab_size, LARGEST_LOGITS) * 4 * 2
    return float(spec.tokens * shape.num_layers * per_layer + logits)


def best_rate(machine: Machine, device: str, precision: str, *, kept: Preflight | None = None) -> tuple[float, str]:
    """FLOP/s of matrix products that the device reaches at this precision, and where the figure comes from.

    kept: a preflight of this machine. Without it and without an entry in the catalogue, one product is timed now.
    """
    if kept is not None and (measured := kept.matmul_flops_per_second(precision)):
        return measured, f"preflight of {kept.timestamp}"
    gpu = (
        None if device == "cpu" else catalogue.find_gpu(machine.gpu_info.device_name, machine.gpu_info.total_memory_gb)
    )
    fact = (gpu.achievable_tflops.get(precision) or gpu.peak(precision)) if gpu else None
    if fact is not None and fact.value:
        return fact.value * TERA, fact.origin
    import torch

    from tensorprimat.micro import matmul

    size = QUICK_SIZE["cpu" if device == "cpu" else "cuda"]
    return matmul.rate(size, precision, torch.device(device), repeats=2)[0], f"one product of {size} × {size} just now"
