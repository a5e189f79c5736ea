#!/usr/bin/env python3
"""Plant slowdowns into trainings on the CPU, and count how often `tprimat explain` names the right class first.

Each case trains a small Transformer twice under PyTorch's profiler, as it is and with one slowdown, and explains the
difference. The cases of a slowdown differ in the width, the depth, the sequence and the strength of the slowdown. The
table is in docs/how-to/why-is-it-faster.md.

Examples:
  python3 perf/planted_slowdowns.py
  python3 perf/planted_slowdowns.py --cases 6

Exit codes: 0 at least 90 % are right, 1 fewer are.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tensorprimat.traces.difference import by_group, difference_of  # noqa: E402  # found through the line above
from tensorprimat.traces.sides import ledger_at  # noqa: E402
from tensorprimat.traces.work import TraceFacts  # noqa: E402

EXPECTED = {
    "slower attention": "attention",
    "extra copies": "copies",
    "sleeping loader": "data_wait",
    "another optimizer": "optimizer",
    "recomputation": "recomputed work",
    "layer in fp32": "products",
}
"""Slowdown → group of classes that explains it."""
SIZES = list(itertools.product((192, 256), (2, 3), (128, 192, 256)))  # width, layers, tokens of a sequence
STEPS, WARM_UP, VOCABULARY = 5, 2, 500
LEAST_RIGHT = 0.9


class Layer(torch.nn.Module):
    """A layer of a Transformer with attention and a gated MLP."""

    def __init__(self, width: int, planted: str, strength: int) -> None:
        super().__init__()
        self.planted, self.strength = planted, strength
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.mixed, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 8 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:2], -1, 64)
        query, key, value = (one.reshape(shape).transpose(1, 2) for one in self.mixed(self.norms[0](x)).chunk(3, -1))
        for _ in range(8 * self.strength if self.planted == "slower attention" else 1):
            value = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(value.transpose(1, 2).reshape(x.shape))
        gate, up = self.up(self.norms[1](x)).chunk(2, -1)
        for _ in range(40 * self.strength if self.planted == "extra copies" else 0):
            up = up.transpose(0, 1).contiguous().transpose(0, 1).contiguous()
        return x + self.down(functional.silu(gate) * up)


class Model(torch.nn.Module):
    """A small language model; of one with a layer in fp32, all other layers are in bf16."""

    def __init__(self, width: int, layers: int, planted: str, strength: int) -> None:
        super().__init__()
        self.planted = planted
        self.embedding, self.head = torch.nn.Embedding(VOCABULARY, width), torch.nn.Linear(width, VOCABULARY)
        self.layers = torch.nn.ModuleList(Layer(width, planted, strength) for _ in range(layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for place, layer in enumerate(self.layers):
            if self.planted == "recomputation":
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                low = self.planted.startswith("layer in") and not (self.planted == "layer in fp32" and place == 0)
                with torch.autocast("cpu", torch.bfloat16, enabled=low):
                    x = layer(x)
        loss: torch.Tensor = functional.cross_entropy(self.head(x[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        return loss


class SlowDataset(TensorDataset):
    """Samples of which each takes a while."""

    def __init__(self, tokens: torch.Tensor, seconds: float) -> None:
        super().__init__(tokens)
        self.seconds = seconds

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return super().__getitem__(index)


def train(path: Path, size: tuple[int, int, int], planted: str, strength: int) -> None:
    """Train a few steps and write their trace."""
    width, layers, tokens = size
    torch.manual_seed(0)
    model = Model(width, layers, planted, strength)
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(model.parameters(), fused=True)]
    if planted == "another optimizer":
        matrices = [one for one in model.layers.parameters() if one.dim() == 2]
        optimizers = [torch.optim.Muon(matrices), torch.optim.AdamW(model.parameters(), fused=True)]
    seconds = 0.02 * strength if planted == "sleeping loader" else 0.0
    samples = torch.randint(VOCABULARY, (4 * (WARM_UP + STEPS), tokens))
    steps = schedule(wait=0, warmup=WARM_UP, active=STEPS, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=steps, record_shapes=True) as running:
        for (batch,) in DataLoader(SlowDataset(samples, seconds), batch_size=4):
            model(batch).backward()
            for optimizer in optimizers:
                optimizer.step()
            optimizers[-1].zero_grad()
            running.step()
    running.export_chrome_trace(str(path))


def named_first(folder: Path, size: tuple[int, int, int], planted: str, strength: int) -> str:
    """Return the group of classes that explains most of what a slowdown costs."""
    paths = [folder / name for name in ("a.json", "b.json")]
    plain = "layer in bf16" if planted == "layer in fp32" else ""
    for path, slowdown in zip(paths, (plain, planted), strict=True):
        train(path, size, slowdown, strength)
    found = difference_of(ledger_at(paths[0]), ledger_at(paths[1]), (TraceFacts(), TraceFacts()))
    return next(iter(by_group({row.name: row.difference for row in found.rows})))


def cases(count: int) -> Iterator[tuple[str, tuple[int, int, int], int]]:
    """Yield slowdown, size and strength of each case."""
    for number in range(count):
        planted = list(EXPECTED)[number % len(EXPECTED)]
        round_number = number // len(EXPECTED)
        yield planted, SIZES[round_number % len(SIZES)], 1 + round_number % 2


def main(on_case: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=60)
    count = parser.parse_args().cases
    torch.set_num_threads(1)
    right: dict[str, list[str]] = {planted: [] for planted in EXPECTED}
    with tempfile.TemporaryDirectory() as folder:
        for planted, size, strength in cases(count):
            right[planted].append(named_first(Path(folder), size, planted, strength))
            on_case(f"{planted}, {size}, strength {strength}: {right[planted][-1]}")
    print("\n| slowdown | class that explains it | named first |\n|---|---|---:|")
    for planted, found in right.items():
        print(f"| {planted} | {EXPECTED[planted]} | {found.count(EXPECTED[planted])} of {len(found)} |")
    share = sum(found.count(EXPECTED[planted]) for planted, found in right.items()) / count
    print(f"\n{share:.0%} of {count} cases")
    return 0 if share >= LEAST_RIGHT else 1


if __name__ == "__main__":
    raise SystemExit(main())
