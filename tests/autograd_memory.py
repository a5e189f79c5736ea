"""Count of what autograd keeps for backward, for tests of memory estimates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def kept_for_backward(
    network: torch.nn.Module, counts: Callable[[torch.Tensor], bool] = lambda _: True
) -> Iterator[dict[int, torch.UntypedStorage]]:
    """Collect the storages that autograd saves inside the block, each once and without the network's weights.

    counts: tensors for which it is False are left out. Holding a storage keeps another one from getting its address.
    """
    weights = {parameter.untyped_storage()._cdata for parameter in network.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights and counts(tensor):
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def total_bytes(kept: dict[int, torch.UntypedStorage]) -> int:
    """Return the bytes of all storages."""
    return sum(storage.nbytes() for storage in kept.values())
