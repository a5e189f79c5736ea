"""FP8 training of the torch engine: the linear layers of every decoder layer, converted by torchao.

Weights stay in bfloat16 and each product quantises its operands to E4M3 (or E5M2) with dynamic scales: one for a tensor
(`tensorwise`, the fastest) or one for a row (`rowwise`). Embedding, attention scores, norms and the head stay as they
are. torchao chooses AMD's E4M3 on the MI300 series by itself.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

from tensorprimat.core.errors import UsageError
from tensorprimat.core.spec import RunSpec

RECIPES = ("tensorwise", "rowwise")
DEFAULT_RECIPE = "tensorwise"
PACKAGE = "torchao"
MULTIPLE = 16  # of both sides of a matrix: what FP8 matrix units take
INSTEAD = {"nvd": "--engine nemo or bridge", "amd": "--engine primus"}
"""By platform: the engine that trains in FP8 without torchao."""


def check(spec: RunSpec) -> None:
    """Raise UsageError where the spec's FP8 cannot run here, naming what helps on its platform."""
    if spec.precision != "fp8":
        if spec.fp8_recipe is not None:
            raise UsageError(f"--fp8-recipe {spec.fp8_recipe}: only with --precision fp8")
        return
    if spec.platform == "cpu":
        raise UsageError("--precision fp8: not on a CPU; use fp32 or bf16")
    if importlib.util.find_spec(PACKAGE) is None:
        raise UsageError(
            f"--precision fp8: the torch engine needs {PACKAGE}, not installed here; pip install {PACKAGE}, or use "
            f"--precision bf16, or {INSTEAD[spec.platform]}"
        )


def recipe_of(spec: RunSpec) -> str | None:
    """Return the recipe that the spec trains with, or None without FP8."""
    return (spec.fp8_recipe or DEFAULT_RECIPE) if spec.precision == "fp8" else None


def convert(network: Any, recipe: str, *, emulate: bool = False) -> int:
    """Replace the linear layers of the network's decoder layers by FP8 ones; return how many.

    emulate: quantise, and multiply in the wider type, which runs on any device and says nothing about speed. Raises
    UsageError where no layer can be converted.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig.from_recipe_name(recipe)
    if emulate:
        config = dataclasses.replace(config, emulate=True)
    for layer in network.decoder.layers:
        convert_to_float8_training(layer, config=config, module_filter_fn=_fits)
    converted = sum(type(part).__name__ == "Float8Linear" for part in network.modules())
    if not converted:
        raise UsageError(
            "--precision fp8: no linear layer of this model has sides that are multiples of 16; use --precision bf16"
        )
    return converted


def _fits(part: Any, _name: str) -> bool:
    return bool(part.in_features % MULTIPLE == 0 and part.out_features % MULTIPLE == 0)
