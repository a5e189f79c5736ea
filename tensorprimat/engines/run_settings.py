"""The settings of a run that the user chose by flag, before defaults and methodologies complete them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings that the user chose by flag; None means that the flag was not used."""

    steps: int
    warmup_steps: int
    seed: int
    preset: str | None = None
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    sequence_length: int | None = None
    precision: str | None = None
    tensor_model_parallel_size: int | None = None
    pipeline_model_parallel_size: int | None = None
    context_parallel_size: int | None = None
    methodology: str | None = None
    num_gpus: int | None = None
    num_nodes: int = 1
    strategy: str = "auto"
    recompute: str | None = None
    """none, selective or full; None leaves it to the memory there is (torch engine), or to none."""
    compile: bool | None = None
    attention: str | None = None
    master_weights: str | None = None
    fp8_recipe: str | None = None
    config: Mapping[str, Any] | None = None
    """Complete Hugging Face configuration where --model is a file."""
