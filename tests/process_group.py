"""A process group of one rank on the CPU, for tests of code that needs one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_rank() -> Iterator[None]:
    """Initialise torch.distributed with one rank on a free port, and destroy the group afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
