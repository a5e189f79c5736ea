"""Exchange of the largest memory between the ranks at the end of a training, with a time limit."""

from __future__ import annotations

from datetime import timedelta

from tensorprimat.core.notices import Notice

_PATIENCE_SECONDS = 30.0  # a rank that finished its last step answers in a fraction of this; a dead one never does


def largest_of_ranks(
    own: dict[str, float], *, patience_seconds: float = _PATIENCE_SECONDS
) -> tuple[dict[str, float], Notice | None]:
    """Return the maximum of each figure over all ranks; if a rank did not answer, this rank's figures and a notice.

    Every rank calls it with the same keys. The exchange has a group of its own, on the CPU: ranks may use the default
    group in a different order (NeMo 2.7's ProgressPrinter gathers its timers on rank 0 alone), and an NCCL collective
    that times out ends its process.
    """
    import torch
    import torch.distributed as distributed

    if not own or not distributed.is_available() or not distributed.is_initialized():
        return own, None
    figures = torch.tensor(list(own.values()), dtype=torch.float64, device="cpu")
    try:
        group = distributed.new_group(backend="gloo", timeout=timedelta(seconds=patience_seconds))
        distributed.all_reduce(figures, op=distributed.ReduceOp.MAX, group=group)
        distributed.destroy_process_group(group)
    except RuntimeError as error:  # torch.distributed's errors derive from it: a time-out, a peer that is gone, no gloo
        lines = str(error).splitlines() or [type(error).__name__]
        return own, Notice("memory_of_one_rank", "memory", why=lines[0])
    return dict(zip(own, figures.tolist(), strict=True)), None
