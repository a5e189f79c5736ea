"""What a cell will need, before it runs: memory from the shape, time from FLOPs and a rate.

Estimates, and said to be: they answer "does it fit, and is it minutes or hours".
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorprimat.core import models
from tensorprimat.core.cells import CellSpec
from tensorprimat.core.units import GB
from tensorprimat.micro.limits import LARGEST_LOGITS

BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}

# What autograd keeps of one token in one layer of transformers' Llama, in numbers: counted with saved_tensors_hooks on
# CPU, fp32, SDPA (tests/test_sweep.py counts again). The two norms keep four widths in float32 whatever the precision.
WIDTHS_SAVED, WIDTHS_IN_FP32, FFN_WIDTHS_SAVED = 6, 4, 4

UTILISATION = 0.4  # of the best matrix rate: what training reaches where nothing is wrong
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
        memory_gb=(state_bytes(spec) + activation_bytes(spec)) / GB,
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
