"""The programs that perf/speed_gpu.py compares the torch engine with, each run in a process of its own.

    python -m perf.gpu_peers torchtitan FLAGS        torchtitan's own trainer and flags, on random tokens
    python -m perf.gpu_peers loop --preset full      a plain loop over a model of transformers

torchtitan needs neither tokenizer nor data set here. Nothing else of it is changed: its rows are its own. Both print a
line with their peak memory (`peak_line`) after the last step.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from tensorprimat.core.units import GIB
from tensorprimat.models.presets import find_preset

LEARNING_RATE = "3e-5"  # as the torch engine


def peak_line(allocated_bytes: float, reserved_bytes: float) -> str:
    return f"peak memory: allocated {allocated_bytes:.0f} bytes, reserved {reserved_bytes:.0f} bytes"


PEAK = re.compile(r"peak memory: allocated (\d+) bytes, reserved (\d+) bytes")


def torchtitan(flags: list[str]) -> None:
    """Run torchtitan's trainer as its own launcher does for one GPU; flags: of torchtitan."""
    sys.argv = ["torchtitan", *flags]  # torchtitan reads it when it is imported
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(
        RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), LOG_RANK="0"
    )
    from torchtitan import train
    from torchtitan.components.metrics import build_metrics_processor
    from torchtitan.models import llama3
    from torchtitan.protocols import train_spec

    peaks = {"memory/max_active(GiB)": 0.0, "memory/max_reserved(GiB)": 0.0}

    class Peaks:
        """A sink of torchtitan's metrics that keeps the largest value of each memory figure."""

        def log(self, metrics: dict[str, Any], step: int) -> None:  # noqa: ARG002
            peaks.update({name: max(value, metrics[name]) for name, value in peaks.items()})

        def close(self) -> None:
            print(peak_line(*(GIB * gib for gib in peaks.values())), flush=True)

    def metrics_with_peaks(*arguments: Any, **more: Any) -> Any:
        processor = build_metrics_processor(*arguments, **more)
        processor.logger = Peaks()
        return processor

    spec = replace(
        llama3.get_train_spec(),
        build_tokenizer_fn=None,
        build_dataloader_fn=RandomTokens,
        build_metrics_processor_fn=metrics_with_peaks,
    )
    train_spec.register_train_spec("llama3", spec)
    train.main(train.Trainer)


class RandomTokens:
    """Data loader of random tokens, which takes the arguments of torchtitan's own loader."""

    def __init__(self, *, job_config: Any, **_: Any) -> None:
        from torchtitan.models.llama3 import llama3_args

        self.vocabulary = llama3_args[job_config.model.flavor].vocab_size
        self.batch, self.length = job_config.training.local_batch_size, job_config.training.seq_len

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yield inputs and labels, int64 of shape (sequences, length)."""
        import torch

        while True:
            tokens = torch.randint(self.vocabulary, (self.batch, self.length + 1))
            yield {"input": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: random tokens have no state."""


def loop(flags: list[str]) -> None:
    """Train in a plain loop: layers and loss compiled on a GPU, fused AdamW, one wait for the device in each step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="full")
    parser.add_argument("--recompute", choices=("full", "none"), default="full")
    for name in ("--sequence-length", "--global-batch-size", "--steps"):
        parser.add_argument(name, type=int, required=True)
    arguments = parser.parse_args(flags)
    import torch
    from torch.nn import functional
    from transformers import AutoModelForCausalLM

    from tensorprimat.engines.torch.model import transformers_config

    preset = find_preset("llama", arguments.preset)
    on_gpu = torch.cuda.is_available()
    device, dtype = torch.device("cuda" if on_gpu else "cpu"), torch.bfloat16 if on_gpu else torch.float32
    config = transformers_config(preset, sequence_length=arguments.sequence_length)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").train()
    if arguments.recompute == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    if on_gpu:
        loss_of = torch.compile(loss_of)
        for layer in model.model.layers:
            layer.compile(dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=float(LEARNING_RATE), fused=True)
    batches = arguments.global_batch_size
    before = time.perf_counter()
    for step in range(1, arguments.steps + 1):
        losses = []
        for _ in range(batches):
            tokens = torch.randint(preset.shape.vocab_size, (1, arguments.sequence_length + 1), device=device)
            hidden = model.model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
            loss = loss_of(model.lm_head(hidden), tokens[:, 1:].contiguous()) / batches
            loss.backward()
            losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total = sum(losses).item()  # waits for the device
        now = time.perf_counter()
        date = datetime.now(timezone.utc).isoformat(sep=" ", timespec="milliseconds")
        print(f"{date} step {step} | loss {total:.4f} | {1e3 * (now - before):.2f} ms/step", flush=True)
        before = now
    if on_gpu:
        print(peak_line(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))


if __name__ == "__main__":
    {"torchtitan": torchtitan, "loop": loop}[sys.argv[1]](sys.argv[2:])
