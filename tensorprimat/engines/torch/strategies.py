"""Lightning strategies that leave weights and optimizer state on the device when training ends.

Lightning copies both to the host after `fit`, and also after an exception: 64 GB for Llama 3.1 8B, which took 30 s on
an H200 and needs as much host memory. Nothing reads the copy, because the process ends. Lightning's strategy for FSDP2
copies nothing.
"""

from __future__ import annotations

from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.strategies.strategy import Strategy
from torch.optim import Optimizer


class _EndsInPlace(Strategy):
    """A strategy that ends without a copy of the optimizer state; `TrainingModule.cpu` prevents that of the weights."""

    def teardown(self) -> None:
        self.optimizers: list[Optimizer] = []
        super().teardown()


class OneDevice(_EndsInPlace, SingleDeviceStrategy):
    """Training on one device."""


class Replicas(_EndsInPlace, DDPStrategy):
    """Training of replicas, one per device, whose gradients are averaged (DDP)."""
