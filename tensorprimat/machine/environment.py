"""The software of a run: package versions, and the environment variables that change speed."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib import metadata

PACKAGES = (
    "torch", "lightning", "transformers", "nemo_toolkit", "nemo_run", "megatron-core", "transformer_engine", "torchao",
    "flash-attn", "triton", "numpy",
)  # fmt: skip
SETTINGS = (
    "CUDA_", "CUBLAS_", "NVIDIA_TF32", "NCCL_", "NVTE_", "HIP_", "HSA_", "ROCR_", "RCCL_", "GPU_MAX_HW_QUEUES",
    "HIPBLASLT_", "PYTORCH_", "TORCH_", "TORCHINDUCTOR_", "TRITON_", "OMP_NUM_THREADS", "MKL_",
)  # fmt: skip
"""Beginnings of the names of environment variables that change how fast training runs."""
NO_SETTINGS = ("_PATH", "_HOME", "_DIR", "_FILE", "_ROOT", "_CACHE", "_VERSION", "VISIBLE_DEVICES", "_VISIBLE_DEVICES")
"""Suffixes of names that only state a path, the release of an image, or the GPUs of a job."""


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of Python and of the installed packages, by name; nothing is imported."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def settings() -> dict[str, str]:
    """Return the environment variables of this process that change speed, by name."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(SETTINGS) and not name.endswith(NO_SETTINGS)
    }
