"""Options by which a user states facts that a log or result lacks: the same flags for every command that reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tensorprimat.core import settings

if TYPE_CHECKING:
    from tensorprimat.core.statements import Statement

GPU = "Name of the GPU, such as MI300X or 'NVIDIA H100', where a log or result names none."
PRESET = "Preset of the model that the log or result names: full confirms that it is the published one."
SHAPE = "Dimensions: a known model, a Hugging Face config.json, or name=d_model/d_ff/layers/heads."
PRECISION = "Precision that ran: fp32, tf32, bf16, fp16, fp8 or fp4."
NUM_GPUS, SEQUENCE_LENGTH, GLOBAL_BATCH_SIZE = (
    settings.option(name).help for name in ("num_gpus", "sequence_length", "global_batch_size")
)
MODEL_NAME = "Name of the model, such as llama, where a log or result has none."

GpuOption = Annotated[list[str] | None, typer.Option(metavar="[SIDE=]NAME", help=GPU)]
NumGpus = Annotated[list[str] | None, typer.Option(metavar="[SIDE=]N", help=NUM_GPUS)]
PresetOption = Annotated[list[str] | None, typer.Option(metavar="[SIDE=]NAME", help=PRESET)]
ShapeOption = Annotated[list[str] | None, typer.Option(metavar="[SIDE=]SHAPE", help=SHAPE)]
PrecisionOption = Annotated[list[str] | None, typer.Option(metavar="[SIDE=]P", help=PRECISION)]
SequenceLength = Annotated[list[str] | None, typer.Option(metavar="[SIDE=]N", help=SEQUENCE_LENGTH)]
GlobalBatchSize = Annotated[list[str] | None, typer.Option(metavar="[SIDE=]N", help=GLOBAL_BATCH_SIZE)]
ModelName = Annotated[list[str] | None, typer.Option(metavar="[SIDE=]MODEL", help=MODEL_NAME)]


def statements(
    *,
    gpu: list[str] | None,
    num_gpus: list[str] | None,
    preset: list[str] | None,
    shape: list[str] | None,
    precision: list[str] | None,
    sequence_length: list[str] | None,
    global_batch_size: list[str] | None,
    model_name: list[str] | None,
    micro_batch_size: list[str] | None = None,
    warmup_steps: int | None = None,
) -> tuple[Statement, ...]:
    """Return the stated facts, checked. Raises UsageError that names the flag."""
    from tensorprimat.core.statements import read

    return read(
        {
            "model_name": model_name,
            "gpu": gpu,
            "num_gpus": num_gpus,
            "preset": preset,
            "shape": shape,
            "precision": precision,
            "sequence_length": sequence_length,
            "global_batch_size": global_batch_size,
            "micro_batch_size": micro_batch_size,
            "warmup_steps": warmup_steps,
        }
    )
