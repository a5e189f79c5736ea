"""FP8 training of the torch engine: the linear layers of every decoder layer, converted.

linear.py multiplies with one scale per tensor where a single device has the memory to keep its weights in FP8 during a
step; torchao converts the layers elsewhere, and for the other recipes.

Weights stay in their own type and each product quantises its operands to E4M3 (or E5M2) with dynamic scales: one per
tensor (`tensorwise`, the fastest), one per row (`rowwise`), or one power of two per 32 neighbours (`mxfp8`, for which
Blackwell has matrix units). Every matrix of the layers is converted; a model where this is impossible is refused.
Embedding, attention scores, norms and the head stay as they are. On the MI300 series torchao uses AMD's E4M3.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Sequence
from typing import Any

from tensorprimat.core.errors import RunError, UsageError
from tensorprimat.core.quantities import alternatives
from tensorprimat.core.result import GpuInfo
from tensorprimat.core.spec import RunSpec
from tensorprimat.engines.registry import importable
from tensorprimat.facts import catalogue
from tensorprimat.models.custom import model_of
from tensorprimat.models.training_memory import KEPT_FP8

MXFP8 = "mxfp8"
DEFAULT_RECIPE = "tensorwise"
TORCHAO = "torchao"
MULTIPLE = 16  # both sides of a matrix must be multiples of it for FP8 matrix units
BLOCK = 32  # neighbours that share one scale in MXFP8, along every axis that a product sums over
NVIDIA_UNITS = (8, 9)
AMD_UNITS = ("gfx94", "gfx95", "gfx12")
"""Least compute capability, and prefixes of AMD's architectures, with matrix units for FP8.

torch 2.13 multiplies in FP8 on the same ones, but of gfx12 only on gfx120 (torch/testing/_internal/common_cuda.py,
evaluate_platform_supports_fp8)."""
MXFP8_GPUS = ("B200", "GB200", "B300", "GB300")
"""GPUs of the catalogue on which torchao trains in MXFP8.

Its kernels need compute capability 10 (torchao 0.18, prototype/mx_formats/kernels.py); those for MI355X are not in a
release (pytorch/ao, pull request 4275 of 2026-04-14)."""
MXFP8_CONFIG = "torchao.prototype.moe_training.config"
"""Module of torchao's MXFP8 training, as in torchao 0.18."""


def check_fp8(spec: RunSpec) -> None:
    """Raise UsageError where the spec's settings of FP8 contradict each other."""
    if spec.precision != "fp8" and spec.fp8_recipe is not None:
        raise UsageError(f"--fp8-recipe {spec.fp8_recipe}: only with --precision fp8")
    if spec.precision == "fp8" and spec.platform == "cpu":
        raise UsageError("--precision fp8: not on a CPU; use fp32 or bf16")


def check_torchao(spec: RunSpec, others: Sequence[str]) -> None:
    """Raise UsageError where torchao, or its part for the recipe, is not installed.

    others: engines that could train this in FP8 without it.
    """
    if spec.precision != "fp8" or KEPT_FP8 in spec.options:
        return
    if importlib.util.find_spec(TORCHAO) is None:
        bf16 = "--precision bf16" + (" without --methodology" if spec.with_methodology_flag else "")
        raise UsageError(
            f"{spec.named('precision')}: the torch engine needs {TORCHAO}, not installed here; pip install {TORCHAO}, "
            f"or use {bf16}{f', or --engine {alternatives(others)}' if others else ''}"
        )
    if spec.fp8_recipe == MXFP8 and not importable(MXFP8_CONFIG):
        raise UsageError(
            f"--fp8-recipe mxfp8: the installed torchao has no MXFP8 training; pip install -U {TORCHAO}, or "
            "use --fp8-recipe tensorwise or rowwise"
        )


def check_units(spec: RunSpec, gpu_info: GpuInfo) -> None:
    """Raise UsageError where the spec's GPU is one that torch sees here and has no matrix units for FP8.

    `prepare.check_precision` covers only the GPUs in the catalogue.
    """
    if spec.precision != "fp8" or spec.platform == "cpu":
        return
    import torch

    if not torch.cuda.is_available() or has_units() or torch.cuda.get_device_name(0) != gpu_info.device_name:
        return
    instead = "bf16" if torch.cuda.get_device_properties(0).major >= 8 else "fp16"  # every AMD GPU reports 9 or more
    raise UsageError(
        f"{spec.named('precision')}: {gpu_info.device_name} has no FP8 matrix units; use --precision {instead}"
        + (" without --methodology" if spec.with_methodology_flag else "")
    )


def has_units() -> bool:
    """Return True if the first GPU that torch sees has matrix units for FP8."""
    import torch

    gpu = torch.cuda.get_device_properties(0)
    return gpu.gcnArchName.startswith(AMD_UNITS) if torch.version.hip else (gpu.major, gpu.minor) >= NVIDIA_UNITS


def check_mxfp8(spec: RunSpec, gpu_info: GpuInfo) -> None:
    """Raise UsageError where the spec's MXFP8 cannot run on this GPU, or with this batch."""
    if spec.fp8_recipe != MXFP8:
        return
    gpu = catalogue.find_gpu_of(gpu_info)
    if gpu is not None and gpu.name not in MXFP8_GPUS:
        raise UsageError(
            f"--fp8-recipe mxfp8: torchao trains in MXFP8 on {', '.join(MXFP8_GPUS)}, not on {gpu.name}; "
            "use --fp8-recipe tensorwise or rowwise"
        )
    tokens = spec.micro_batch_size * spec.sequence_length
    if tokens % BLOCK:
        raise UsageError(
            f"--fp8-recipe mxfp8: the {tokens} tokens of a micro-batch are not a multiple of {BLOCK}; "
            "change --sequence-length"
        )


def recipe_of(spec: RunSpec) -> str | None:
    """Return the recipe that the spec trains with, or None without FP8."""
    return (spec.fp8_recipe or DEFAULT_RECIPE) if spec.precision == "fp8" else None


def check_layers(spec: RunSpec) -> None:
    """Raise UsageError where torchao could not convert every matrix in the layers of the spec's configured model.

    Nothing is checked for the built-in models, which torchao can convert, and without torch: the training checks again.
    """
    if spec.precision != "fp8" or spec.config is None or not importable("torch"):
        return
    import torch

    from tensorprimat.engines.torch.model import LanguageModel

    model = model_of(spec)
    with torch.device("meta"):
        network = LanguageModel(model)
    named, suffix = spec.named("precision"), " without --methodology" * spec.with_methodology_flag
    check_matrix_sizes(network.decoder.layers, _multiple(spec.fp8_recipe), named, suffix)
    if any(layer.experts for layer in model.decoder.layers):
        raise UsageError(  # in transformers 4, where experts are linear layers
            f"{named}: the number of tokens of each expert varies from step to step, and FP8 products need a "
            f"multiple of {MULTIPLE}; use --precision bf16{suffix}"
        )


def convert_layers(layers: Sequence[Any], recipe: str, *, kept: bool = False, emulate: bool = False) -> int:
    """Convert the linear layers of decoder layers to FP8; return their number.

    kept: let linear.py multiply, with weights that are quantised before each step; else torchao converts the layers.
    emulate: quantise, but multiply in the wider type, which runs on any device, for tests and memory estimates. Raises
    UsageError where a matrix of the layers cannot be converted, because the MFU would then have the wrong peak. Raises
    RunError where torchao converts fewer than all.
    """
    import torch

    check_matrix_sizes(layers, _multiple(recipe))
    if kept:
        from tensorprimat.engines.torch import linear

        return len(linear.to_fp8(layers))
    products = sum(isinstance(part, torch.nn.Linear) for layer in layers for part in layer.modules())
    made = _to_mxfp8(layers, emulate=emulate) if recipe == MXFP8 else _to_float8(layers, recipe, emulate=emulate)
    if made != products:
        raise RunError(f"torchao converted {made} of {products} linear layers to FP8; use --precision bf16")
    return made


def _multiple(recipe: str | None) -> int:
    return BLOCK if recipe == MXFP8 else MULTIPLE


def check_matrix_sizes(layers: Sequence[Any], multiple: int, named: str = "--precision fp8", suffix: str = "") -> None:
    """Raise UsageError naming a matrix of decoder layers that torchao would not convert.

    It converts linear layers whose sides are multiples of `multiple`, but not routed experts, which are
    three-dimensional parameters.
    """
    import torch

    left = [
        f"{path}.{name}"
        for layer in layers
        for path, part in layer.named_modules()
        for name, parameter in part.named_parameters(recurse=False)
        if parameter.ndim > 1 and not type(part).__name__.endswith("Norm")  # a norm of Command R has a row per head
        if not (isinstance(part, torch.nn.Linear) and _fits(part, multiple))
    ]
    if left:
        raise UsageError(
            f"{named}: torchao converts linear layers with sides that are multiples of {multiple}; {left[0]} of this "
            f"model would stay in bf16, and an MFU of fp8 would be wrong; use --precision bf16{suffix}"
        )


def _to_float8(layers: Sequence[Any], recipe: str, *, emulate: bool) -> int:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig.from_recipe_name(recipe)
    if emulate:
        config = dataclasses.replace(config, emulate=True)
    for layer in layers:
        convert_to_float8_training(layer, config=config, module_filter_fn=lambda part, _: _fits(part, MULTIPLE))
    return sum(type(part).__name__ == "Float8Linear" for layer in layers for part in layer.modules())


def _to_mxfp8(layers: Sequence[Any], *, emulate: bool) -> int:
    """Replace the weights of the linear layers by MXFP8 tensors; return the number of replaced weights.

    The layers and the names of their weights do not change.
    """
    import torch
    from torchao.prototype.moe_training.config import MXFP8TrainingOpConfig, MXFP8TrainingRecipe
    from torchao.quantization import quantize_

    name = "MXFP8_EMULATED_RCEIL" if emulate else "MXFP8_RCEIL"
    config = MXFP8TrainingOpConfig.from_recipe(MXFP8TrainingRecipe[name])
    chosen = [part for layer in layers for part in layer.modules() if isinstance(part, torch.nn.Linear)]
    for part in chosen:
        quantize_(part, config, filter_fn=lambda module, _: isinstance(module, torch.nn.Linear))
    return sum(type(part.weight) is not torch.nn.Parameter for part in chosen)


def _fits(part: Any, multiple: int) -> bool:
    return bool(part.in_features % multiple == 0 and part.out_features % multiple == 0)
