"""Meeting points of the processes that torchrun started, which use neither a device nor CPU time while they wait.

They are keys in the store through which torch connects the processes; a barrier of NCCL would need a GPU, and would
keep a core busy.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tensorprimat.core.errors import RunError
from tensorprimat.core.quantities import stated_seconds
from tensorprimat.engines.launchers import connected_processes

PATIENCE_SECONDS = 1800.0  # torch's own time limit for connecting


class Meeting:
    """The processes that torchrun started, as one that they all attend; a process that was started alone is its own."""

    def __init__(self) -> None:
        self.processes = connected_processes(os.environ)
        self.rank = int(os.environ.get("RANK", "0")) if self.processes > 1 else 0
        self._store: Any = None
        if self.processes > 1:
            import torch.distributed as dist

            store, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=PATIENCE_SECONDS)))
            self._store = dist.PrefixStore("tensorprimat", store)

    def wait(self, point: str) -> None:
        """Wait until every process is at this point. Raises RunError after PATIENCE_SECONDS."""
        if self._store is None:
            return
        if self._store.add(f"{point}/count", 1) == self.processes:
            self._store.set(f"{point}/all", "1")
        self._patiently(lambda: self._store.wait([f"{point}/all"], timedelta(seconds=PATIENCE_SECONDS)))

    def gathered(self, point: str, own: str) -> list[str] | None:
        """Return the text of every process by rank, on rank 0; None on the others. Raises RunError like `wait`."""
        if self._store is None:
            return [own]
        self._store.set(f"{point}/{self.rank}", own)
        if self.rank:
            return None
        keys = [f"{point}/{rank}" for rank in range(self.processes)]
        self._patiently(lambda: self._store.wait(keys, timedelta(seconds=PATIENCE_SECONDS)))
        return [self._store.get(key).decode() for key in keys]

    def _patiently(self, work: Callable[[], None]) -> None:
        try:
            work()
        except RuntimeError as error:  # torch's DistStoreError
            raise RunError(
                f"rank {self.rank}: the other {self.processes - 1} processes did not answer in "
                f"{stated_seconds(PATIENCE_SECONDS)}"
            ) from error
