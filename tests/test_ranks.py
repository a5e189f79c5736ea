"""Tests of the exchange between ranks at the end of a training, including that none waits for a lost rank."""

import socket
import subprocess
import sys

import pytest

RANK = """
import sys
import torch.distributed as distributed
from tensorprimat.engines import memory
rank, port, behaviour = int(sys.argv[1]), sys.argv[2], sys.argv[3]
distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
if behaviour == "gone" and rank == 1:
    sys.exit(0)
if behaviour == "out of step" and rank == 0:  # as NeMo's progress printer does, on rank 0 alone
    import torch
    distributed.all_gather_into_tensor(torch.zeros(0), torch.zeros(0))
print(memory.largest_of_ranks({"peak": 10.0 * (rank + 1)}, patience_seconds=2.0 if behaviour == "gone" else 30.0))
"""


def said_by_rank_0(behaviour):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-c", RANK]
    processes = [
        subprocess.Popen(
            [*command, str(rank), port, behaviour], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        for rank in (0, 1)
    ]
    try:
        printed = [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return printed[0]


@pytest.mark.parametrize("behaviour", ["in step", "out of step"])
@pytest.mark.usefixtures("warm")
def test_every_rank_learns_the_largest_figure_even_if_the_default_group_is_out_of_step(behaviour):
    assert said_by_rank_0(behaviour) == "({'peak': 20.0}, None)\n"


@pytest.mark.usefixtures("warm")
def test_a_rank_that_is_gone_is_not_waited_for_and_is_reported():
    printed = said_by_rank_0("gone")
    assert printed.startswith("({'peak': 10.0}, 'memory: not every rank answered at the end (")
