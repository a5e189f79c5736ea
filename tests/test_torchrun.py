"""The number of GPUs by the command line that a log contains, and what a log of few rows says of them."""

from __future__ import annotations

from typing import Any

import pytest

from tensorprimat.core.errors import NotALogError

ROW = "step {n} | loss {loss:.4f} | 512.{n} ms/step | 8,{n}00 tok/s\n"
MEGATRON = (
    " iteration {n:8}/ 60 | consumed samples: {s} | elapsed time per iteration (ms): 2040.{n} | lm loss: 3.{n}E+00 |\n"
)
ROWS = "".join(ROW.format(n=n, loss=9 - n / 10) for n in range(10, 40))


@pytest.mark.parametrize(
    ("command", "gpus"),
    [
        ("+ torchrun --nproc_per_node=8 train.py", 8),
        ("torchrun --nnodes 2 --nproc-per-node 8 train.py", 16),
        ("python -m torch.distributed.run --standalone --nnodes=4 --nproc_per_node=4 a.py", 4),
        ("python3 -m torch.distributed.launch --nproc_per_node 2 train.py", 2),
        ("torchrun --nnodes=2 \\\n    --nproc-per-node=4 \\\n    train.py", 8),
        ("torchrun --nproc_per_node=gpu train.py", None),
        ("torchrun --nnodes=1:4 --nproc_per_node=8 train.py", None),
        ("torchrun train.py", None),
    ],
)
def test_a_command_of_torchrun_states_the_gpus(read_text: Any, command: str, gpus: int | None) -> None:
    result = read_text(f"{command}\n{ROWS}")
    assert result.training_config.num_gpus == gpus
    assert ("num_gpus" in result.provenance.assumed) == (gpus is not None)


def test_a_printed_world_size_wins(read_text: Any) -> None:
    dump = "torchrun --nproc_per_node=8 train.py\n  world_size ............ 16\n  num_layers ........ 4\n"
    text = dump + "".join(MEGATRON.format(n=n, s=16 * n) for n in range(1, 20))
    assert read_text(text).training_config.num_gpus == 16


def test_the_refusal_of_a_single_row_says_how_to_count_it(read_text: Any) -> None:
    with pytest.raises(NotALogError, match=r"count the only one: tprimat extract --warmup-steps 0"):
        read_text(MEGATRON.format(n=10, s=160))
