"""The test for a fused RMS norm kernel, for training and memory estimates; it also works without torch."""

from __future__ import annotations

from tensorprimat.engines.registry import importable


def fuses_norm(device_type: str) -> bool:
    """Return True if torch has one kernel for RMS norm on this kind of device; without torch, True for every GPU.

    The memory estimates use this function, so that they agree with the training.
    """
    if not importable("torch"):
        return device_type != "cpu"
    from tensorprimat.engines.torch import model

    return model.has_fused_norm(device_type)
