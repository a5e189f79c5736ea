"""Check that a rank started by srun can reach rank 0; without it torch waits silently for half an hour."""

from __future__ import annotations

import socket
import time

from tensorprimat.core.errors import RunError
from tensorprimat.core.quantities import stated_seconds

_PATIENCE_SECONDS = 300.0  # rank 0 has to import the same packages first, maybe from a slower disk
ANSWER_SECONDS = 5.0  # time limit of one connection attempt
_REMEDY = "set MASTER_ADDR to an address of the first node that every node can reach, and MASTER_PORT to a free port"


def check_srun() -> None:
    """Raise RunError where the host that Lightning reads from Slurm's list has no address or does not answer."""
    from lightning.fabric.plugins.environments import SLURMEnvironment

    place = SLURMEnvironment()
    host, port = place.main_address, place.main_port
    try:
        socket.getaddrinfo(host, port)
    except OSError as error:
        raise RunError(
            f"srun: the host of rank 0, {host}, has no address here ({error.strerror}); {_REMEDY}"
        ) from error
    if place.global_rank() > 0:
        wait_for(host, port, patience_seconds=_PATIENCE_SECONDS)


def wait_for(host: str, port: int, *, patience_seconds: float) -> None:
    """Wait until the port accepts connections. Raises RunError after the time limit."""
    until = time.monotonic() + patience_seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=ANSWER_SECONDS).close()
        except OSError as error:
            if time.monotonic() > until:
                raise RunError(
                    f"srun: rank 0 did not answer at {host}:{port} in {stated_seconds(patience_seconds)} ({error}); "
                    f"{_REMEDY}"
                ) from error
            time.sleep(0.5)
        else:
            return
