"""Settings that Megatron's forks state on their rows, or in the configuration of DeepSpeed."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_megatron import GBS, read, row


def test_deepspeeds_batch_counts_where_neither_rows_nor_arguments_state_one(tmp_path: Path) -> None:
    prefix = "[2021-05-27 19:49:22,949] [INFO] [config.py:904:print]   "
    dump = [f"{prefix}train_batch_size ............. 1024", f"{prefix}train_micro_batch_size_per_gpu  4",
            "  world_size ...................... 64", "  seq_length ...................... 1024"]  # fmt: skip
    rows = [
        f" iteration {n:8d}/    1000 | elapsed time per iteration (ms): 145207.0 | learning rate: 3.750E-05 | "
        f"lm loss: 1.28E+01 | number of skipped iterations:   0 | number of nan iterations:   0 |"
        for n in range(1, 9)
    ]
    config = read(tmp_path, [*dump, *rows]).training_config
    assert (config.global_batch_size, config.micro_batch_size, config.num_gpus) == (1024, 4, 64)
    arguments = ["  global_batch_size ............... 512", "  micro_batch_size ................ 2"]
    config = read(tmp_path, [*dump, *arguments, *rows]).training_config
    assert (config.global_batch_size, config.micro_batch_size) == (512, 2)


@pytest.mark.parametrize("spelled", ["actual seqlen:  2048", "actual seq length: 2048", "seq_length: 2048"])
def test_the_length_on_a_row_is_the_length_of_its_sequences(tmp_path: Path, spelled: str) -> None:
    rows = [row("2021", n, 2700.0 + n).replace("| loss scale", f"| {spelled} | loss scale") for n in range(1, 9)]
    result = read(tmp_path, rows)
    assert result.training_config.sequence_length == 2048
    assert result.performance_metrics.tokens_per_second == pytest.approx(GBS * 2048 / 2.705, rel=0.01)
