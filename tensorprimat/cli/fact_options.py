"""Options by which a user states facts that a log or result lacks: the same flags for every command that reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tensorprimat.cli import known_values as known
from tensorprimat.cli.shared_options import Command, typed_option, with_options
from tensorprimat.core import settings

if TYPE_CHECKING:
    from tensorprimat.core.statements import Statement

GPU_HELP = "Name of the GPU, such as MI300X or 'NVIDIA H100'."
PRESET_HELP = "Size of the model; full states that it has its published dimensions."
SHAPE_HELP = "Dimensions: a known model, a Hugging Face config.json, or name=d_model/d_ff/layers/heads."
PRECISION = "Precision that ran: fp32, tf32, bf16, fp16, fp8 or fp4."
MODEL_NAME = "Name of the model, such as llama."
FACT_OPTIONS: Mapping[str, tuple[str, str, known.Values | None]] = {
    "model_name": ("MODEL", MODEL_NAME, known.models),
    "gpu": ("NAME", GPU_HELP, known.gpu_names),
    "num_gpus": ("N", settings.option("num_gpus").help, None),
    "preset": ("NAME", PRESET_HELP, known.of_setting("preset")),
    "shape": ("SHAPE", SHAPE_HELP, None),
    "precision": ("P", PRECISION, known.precisions),
    "sequence_length": ("N", settings.option("sequence_length").help, None),
    "global_batch_size": ("N", settings.option("global_batch_size").help, None),
}
"""Fact → its value on the command line, its help, and the values that the shell completes."""
WARMUP = (settings.flag("warmup_steps"), "--warmup")
"""Spellings of the option that leaves out steps, the one of `tprimat run` first."""
LOG_OPTIONS = {**FACT_OPTIONS, "micro_batch_size": ("N", settings.option("micro_batch_size").help, None)}


def with_fact_options(
    *, after: str, options: Mapping[str, tuple[str, str, known.Values | None]] = FACT_OPTIONS, side: str = "[SIDE=]"
) -> Callable[[Command], Command]:
    """Return a decorator that gives a command one option for each fact that a user can state, after a parameter.

    side: how --help shows that a value may be for one input only.
    """
    made = [
        typed_option(name, list[str] | None, f"{side}{metavar}", text, offers=offers)
        for name, (metavar, text, offers) in options.items()
    ]
    return with_options(made, after=after)


def statements(typed: Mapping[str, Any], *, warmup_steps: int | None = None) -> tuple[Statement, ...]:
    """Return the stated facts, checked. typed: the keywords of a command. Raises UsageError that names the flag."""
    from tensorprimat.core.statements import read_statements

    return read_statements({**{name: typed.get(name) for name in LOG_OPTIONS}, "warmup_steps": warmup_steps})
