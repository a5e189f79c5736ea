"""What the ranks of one training tell each other about it: the largest memory, at the end only, without ever hanging."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PATIENCE_SECONDS = 30.0  # a rank that finished its last step is here within a fraction of this; a dead one never
POLL_SECONDS = 0.01


def largest(own: dict[str, float], *, device: torch.device) -> tuple[dict[str, float], str | None]:
    """The maximum of each figure over all ranks, and a warning where one did not answer (then the own figures stay).

    Every rank calls it with the same keys. device: where the default process group's collectives live.
    """
    import torch
    import torch.distributed as distributed

    if not own or not distributed.is_available() or not distributed.is_initialized():
        return own, None
    figures = torch.tensor(list(own.values()), dtype=torch.float64, device=device)
    try:
        work = distributed.all_reduce(figures, op=distributed.ReduceOp.MAX, async_op=True)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not work.is_completed():
            if time.monotonic() > deadline:
                return own, f"memory: not every rank answered within {PATIENCE_SECONDS:.0f} s; peaks are those of rank 0"
            time.sleep(POLL_SECONDS)
        work.wait()
    except RuntimeError as error:  # torch.distributed's errors derive from it: a peer closed its connection
        reason = str(error).splitlines()[0]
        return own, f"memory: a rank was lost at the end ({reason}); peaks are those of rank 0"
    return dict(zip(own, figures.tolist(), strict=True)), None
