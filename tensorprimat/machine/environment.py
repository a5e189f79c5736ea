"""Which software took part: versions of packages, and the settings that change speed."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib import metadata

PACKAGES = (
    "torch", "lightning", "transformers", "nemo_toolkit", "nemo_run", "megatron-core", "transformer_engine",
    "flash-attn", "triton", "numpy",
)  # fmt: skip
SETTINGS = ("CUDA_", "HIP_", "ROCR_", "NCCL_", "RCCL_", "NVTE_", "PYTORCH_", "TORCH_", "OMP_NUM_THREADS", "HIPBLASLT_")
"""Beginnings of the names of environment variables that change how fast training runs."""


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Version by package, for those that are installed, and of Python; nothing is imported."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def settings() -> dict[str, str]:
    """Environment variables of this process that change speed, by name."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS)}
