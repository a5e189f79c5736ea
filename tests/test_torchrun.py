"""The number of GPUs by the command line that a log contains, and what a log of few rows says of them."""

from typing import Any

import pytest
from each import in_each
from job_logs import Job
from table_logs import ALL_JOBS

from tensorprimat.core.errors import NotALogError

ROW = "step {n} | loss {loss:.4f} | 512.{n} ms/step | 8,{n}00 tok/s\n"
MEGATRON = (
    " iteration {n:8}/ 60 | consumed samples: {s} | elapsed time per iteration (ms): 2040.{n} | lm loss: 3.{n}E+00 |\n"
)
ROWS = "".join(ROW.format(n=n, loss=9 - n / 10) for n in range(10, 40))


@in_each(
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
        ("/opt/venv/bin/torchrun --standalone --nnodes=$NODES --nproc_per_node=8 -m package.train", 8),
        ("torchrun --nproc=8 --nnodes=2 train.py", 16),
        ("cmd: ['torchrun', '--nproc_per_node', '8', '--nnodes=2', 'train.py']", 16),
        ("torchrun --nproc_per_node=8 train.py --nnodes 4", 8),
        ('torchrun --nproc_per_node=8 train.py\n  File "/usr/local/bin/torchrun", line 33, in <module>', 8),
        ("torchrun --nproc_per_node=4 check.py\ntorchrun --nproc_per_node=8 train.py", 8),
        ("torchrun --nnodes=$NODES --nproc_per_node=8 train.py", None),
        ("torchrun train.py --nproc_per_node=8", None),
    ],
)
def test_a_command_of_torchrun_states_the_gpus(read_text: Any, command: str, gpus: int | None) -> None:
    result = read_text(f"{command}\n{ROWS}")
    assert result.training_config.num_gpus == gpus
    assert ("num_gpus" in result.provenance.assumed) == (gpus is not None)


def test_a_command_of_torchrun_states_the_nodes_and_a_line_before_the_rows_pytorch(read_text: Any) -> None:
    for line in ("PyTorch version 2.9.1+cu128 available.", "torch version: 2.9.1+cu128"):
        result = read_text(f"torchrun --nnodes=2 --nproc_per_node=8 train.py\n{line}\n{ROWS}")
        assert (result.training_config.num_nodes, result.gpu_info.pytorch_version) == (2, "2.9.1+cu128")
    assert read_text(f"built with torch 2.9.1\n{ROWS}").gpu_info.pytorch_version is None


def test_a_printed_world_size_wins(read_text: Any) -> None:
    dump = "torchrun --nproc_per_node=8 train.py\n  world_size ............ 16\n  num_layers ........ 4\n"
    text = dump + "".join(MEGATRON.format(n=n, s=16 * n) for n in range(1, 20))
    assert read_text(text).training_config.num_gpus == 16


@in_each("name", ["megatron", "deepspeed", "nanochat", "loop", "huggingface", "timestamps"])
def test_readers_of_every_kind_take_the_command(read_text: Any, name: str) -> None:
    text = "\n".join(ALL_JOBS[name](Job()))
    printed = read_text(text).training_config.num_gpus
    result = read_text("+ torchrun --nproc_per_node=8 --nnodes=2 train.py\n" + text)
    assert result.training_config.num_gpus == (printed or 16)


def test_a_second_launch_with_other_gpus_is_another_training(read_text: Any) -> None:
    texts = [
        f"+ torchrun --nproc_per_node={gpus} train.py\nSetting OMP_NUM_THREADS\n{rows}"
        for gpus, rows in ((8, ROWS), (4, ROWS.replace("512.", "912.")))
    ]
    segments = read_text("".join(texts)).provenance.segments
    assert [segment.differs.get("num_gpus") for segment in segments] == ["8", None]


def test_the_refusal_of_a_single_row_says_how_to_count_it(read_text: Any) -> None:
    with pytest.raises(NotALogError, match=r"count the only one: tprimat extract --warmup-steps 0"):
        read_text(MEGATRON.format(n=10, s=160))
