"""Count of what autograd keeps for backward, for tests of memory estimates."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves


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


class PeakOfStorages(TorchDispatchMode):
    """Peak of the bytes in storages that operations inside the block made, counted while these are alive.

    there: tensors made before the block; a view of one adds no bytes.
    """

    def __init__(self, *there: torch.Tensor) -> None:
        super().__init__()
        self.peak_bytes, self._now = 0, 0
        self._alive = {tensor.untyped_storage()._cdata for tensor in there}

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        results = operation(*arguments, **(named or {}))
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor) and not is_traceable_wrapper_subclass(tensor):  # DTensor: no memory
                self._add(tensor.untyped_storage())
        return results

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._alive:
            self._alive.add(key)
            self._now += size
            self.peak_bytes = max(self.peak_bytes, self._now)
            weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self._now -= size
