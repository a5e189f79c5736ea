#!/usr/bin/env python3
"""Speed of the torch engine and of `tprimat passes` against other programs: tokens/s of all in turn, in one run.

    python perf/speed_others.py                                   (the 4-layer, 256-wide shape on this machine's device)
    python perf/speed_others.py --precision bf16 --layers 16 --width 2048 --vocabulary 128256 --sequence 4096 --compile

Ours: the engine (Lightning Trainer, BenchmarkCallback and all) and the train pass of `tprimat passes`. The others:
transformers' own step (its model's own loss), a plain nanoGPT-style loop on a model written here, and litgpt where it
is installed (pip install litgpt). All have the same shape, tokens, precision, AdamW, clipping and threads. They take
turns step by step, inside one training of the engine, so that whatever else the machine does falls on all of them; some
turns together are one observation: the ratio of their median steps, which a stall of the machine does not move. The
table divides the tokens/s of the engine, and of `passes`, by those of each other program.

Exit code 0: ours are shown not to be slower than any (lower bound of each ratio's 95 % interval at least 0.98); 1: one
is shown to be slower; 3: more --turns are needed to tell.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import logging
import math
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from lightning.pytorch import Callback, Trainer
from torch import nn
from torch.nn import functional

from perf.turns import TURNS_TOGETHER, ratio_of
from tensorprimat.core.result import ModelShape
from tensorprimat.core.spec import RunSpec
from tensorprimat.engines.callback import BenchmarkCallback
from tensorprimat.engines.torch import data as torch_data
from tensorprimat.engines.torch import engine as torch_engine
from tensorprimat.engines.torch import model as torch_model
from tensorprimat.engines.torch import module as torch_module
from tensorprimat.measure.workload import Workload as PassWorkload
from tensorprimat.models.presets import Preset, parameters
from tensorprimat.storage.micro_result import CellSpec

LEAST_RATIO = 0.98
WARM_UP = 3  # turns, compilation included
CLIP = 1.0
OURS = ("engine", "passes")

Step = Callable[[], None]
"""One optimizer step, without waiting for the device at its end."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--feed-forward", type=int, help="default: 8/3 of the width, to a multiple of 64")
    parser.add_argument("--heads", type=int, help="default: width / 64")
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4, help="sequences of a micro-batch")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of an optimizer step")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    parser.add_argument("--compile", action="store_true", help="torch.compile for every contender")
    parser.add_argument("--turns", type=int, default=150, help=f"steps of each, at least {2 * TURNS_TOGETHER}")
    return parser.parse_args()


class Workload:
    """One shape, one precision, one device, and the tokens that every contender trains on."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = torch.bfloat16 if arguments.precision == "bf16" else torch.float32
        heads = arguments.heads or max(1, arguments.width // 64)
        feed_forward = arguments.feed_forward or 64 * math.ceil(arguments.width * 8 / 3 / 64)
        self.preset = Preset(
            model="course",
            name="comparison",
            title="comparison",
            shape=ModelShape(
                num_layers=arguments.layers, hidden_size=arguments.width, ffn_hidden_size=feed_forward,
                num_attention_heads=heads, num_key_value_heads=heads, head_dim=arguments.width // heads,
                vocab_size=arguments.vocabulary,
            ),
            rope_theta=10_000.0,
            rms_norm_eps=1e-5,
            max_position_embeddings=arguments.sequence,
            micro_batch_size=arguments.batch,
            global_batch_size=arguments.batch * arguments.accumulate,
            sequence_length=arguments.sequence,
        )  # fmt: skip
        stream = torch_data.TokenStream(vocabulary_size=arguments.vocabulary, seed=1)
        batches = torch_data.StepBatches(
            stream, micro_batch_size=arguments.batch, accumulation=arguments.accumulate,
            sequence_length=arguments.sequence,
            rank=0, replicas=1,
        )  # fmt: skip
        self._loader = iter(torch_data.loader(batches, pinned=self.device.type == "cuda"))

    @property
    def tokens_per_step(self) -> int:
        return self.arguments.batch * self.arguments.accumulate * self.arguments.sequence

    def batch(self) -> torch.Tensor:
        """Return one step's tokens on the device, shape (micro-batches, sequences, length + 1)."""
        return next(self._loader).to(self.device, non_blocking=True)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def passes_step(work: Workload) -> Step:
    """Return the train pass of `tprimat passes`, with the batches and the clipping of the others."""
    shape, arguments = work.preset.shape, work.arguments
    spec = CellSpec(
        model_size="comparison", d_model=shape.hidden_size, d_ff=shape.ffn_hidden_size, num_layers=shape.num_layers,
        num_heads=shape.num_attention_heads, vocab=shape.vocab_size, context_length=arguments.sequence,
        batch_size=arguments.batch, pass_name="train", precision=arguments.precision, compile=arguments.compile,
        device=work.device.type, num_warmups=0, num_trials=1,
    )  # fmt: skip

    class Fitted(PassWorkload):
        def __init__(self) -> None:
            super().__init__(spec)
            self._batches = itertools.chain.from_iterable(iter(work.batch, None))
            assert self._optimizer is not None
            self._optimizer.register_step_pre_hook(self._clip)

        def _clip(self, *_: object) -> None:
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), CLIP)

    return Fitted().step


def loop(work: Workload, model: nn.Module, loss_of: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    """Return the step of a plain training loop. loss_of: tokens (sequences, length + 1) to a loss."""
    optimizer = work.optimizer(model)

    def step() -> None:
        batch = work.batch()
        for tokens in batch:
            (loss_of(tokens) / len(batch)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def transformers_step(work: Workload) -> Step:
    """Return a step with the model class's own loss, as transformers' Trainer calls it (with logits in float32)."""
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    model = LlamaForCausalLM(torch_model.transformers_config(work.preset)).to(work.device, work.dtype).train()
    if work.arguments.compile:
        model.compile(dynamic=False)
    # It shifts labels by itself, so they are the same tokens; the last position has no label.
    return loop(
        work, model, lambda tokens: model(input_ids=tokens[:, :-1], labels=tokens[:, :-1], use_cache=False).loss
    )


class PlainBlock(nn.Module):
    """RMSNorm, causal attention with RoPE, SwiGLU."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        width, hidden = shape.hidden_size, shape.ffn_hidden_size
        self.heads = shape.num_attention_heads
        self.attention_norm, self.feed_norm = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate_up, self.down = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        sequences, length, width = x.shape
        parts = self.qkv(self.attention_norm(x)).view(sequences, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        attended = functional.scaled_dot_product_attention(
            turned(query, cosine, sine), turned(key, cosine, sine), value, is_causal=True
        )
        x = x + self.out(attended.transpose(1, 2).reshape(sequences, length, width))
        gate, up = self.gate_up(self.feed_norm(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


def turned(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Return x after rotary position embedding. x: (sequences, heads, length, head size)."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


class PlainModel(nn.Module):
    """A model as one would write it in an afternoon."""

    def __init__(self, shape: ModelShape, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.blocks = nn.ModuleList(PlainBlock(shape) for _ in range(shape.num_layers))
        self.norm = nn.RMSNorm(shape.hidden_size, eps=1e-5)
        self.head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        frequencies = 1.0 / 10_000.0 ** (torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        angles = torch.outer(torch.arange(length).float(), frequencies).repeat(1, 2)
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens[:, :-1])
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def plain(work: Workload) -> Step:
    """Return the step of a nanoGPT-style loop on a model of its own."""
    model = PlainModel(work.preset.shape, work.arguments.sequence).to(work.device, work.dtype)
    if work.arguments.compile:
        model.compile(dynamic=False)
    return loop(work, model, model)


def litgpt_step(work: Workload) -> Step:
    """Return a step of litgpt's model with its chunked cross-entropy, as litgpt's pretrain command uses them."""
    from litgpt import GPT, Config
    from litgpt.utils import chunked_cross_entropy

    shape = work.preset.shape
    config = Config(
        name="comparison", block_size=work.arguments.sequence, vocab_size=shape.vocab_size,
        padded_vocab_size=shape.vocab_size, n_layer=shape.num_layers, n_head=shape.num_attention_heads,
        n_embd=shape.hidden_size, rotary_percentage=1.0, parallel_residual=False, bias=False, norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP", intermediate_size=shape.ffn_hidden_size,
    )  # fmt: skip
    model = GPT(config).to(work.device, work.dtype)
    if work.arguments.compile:
        model.compile(dynamic=False)
    return loop(work, model, lambda tokens: chunked_cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]))


class Turns(Callback):  # type: ignore[misc]
    """Callback that times a step of each other contender, in changing order, after each step of the engine."""

    def __init__(self, work: Workload, others: dict[str, Step], turns: int) -> None:
        self.work, self.others, self.turns = work, others, turns
        self.seconds: dict[str, list[float]] = {name: [] for name in ("engine", *others)}

    def on_train_start(self, *_: object) -> None:
        self._since = self.now()

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        if len(self.seconds["engine"]) == trainer.global_step:  # within gradient accumulation
            return
        self.seconds["engine"].append(self.now() - self._since)
        names = list(self.others)
        first = trainer.global_step % len(names)
        for name in names[first:] + names[:first]:
            begin = self.now()
            self.others[name]()
            self.seconds[name].append(self.now() - begin)
        self._since = self.now()

    def now(self) -> float:
        self.work.synchronise()
        return time.perf_counter()


def train(work: Workload, turns: Turns) -> None:
    """Run the engine's own training, with everybody else's steps between its own."""
    arguments = work.arguments
    spec = RunSpec(
        model="course", preset="small", engine="torch", steps=turns.turns, warmup_steps=WARM_UP,
        micro_batch_size=arguments.batch, global_batch_size=arguments.batch * arguments.accumulate,
        sequence_length=arguments.sequence, precision=arguments.precision, num_gpus=1,
        platform="cpu" if work.device.type == "cpu" else "nvd", compile=arguments.compile,
    )  # fmt: skip
    module = torch_module.TrainingModule(spec)
    module.preset = work.preset
    with tempfile.TemporaryDirectory() as folder:
        callback = BenchmarkCallback(result_file=f"{folder}/result.json", print_every=0, power=False)
        Trainer(
            accelerator=work.device.type, devices=1, precision=torch_engine.lightning_precision(spec),
            max_steps=spec.max_steps, callbacks=[callback, turns], logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
        ).fit(module)  # fmt: skip


def report(seconds: dict[str, list[float]], tokens: int) -> int:
    """Print the table; return the exit code."""
    print(f"{'':<14}{'tokens/s':>10}" + "".join(f"{f'{name} / it, 95 % interval':>32}" for name in OURS))
    shown_slower = undecided = False
    for name, own in seconds.items():
        line = f"{name:<14}{tokens / statistics.median(own):>10,.0f}"
        for ours in OURS if name not in OURS else ():
            ratio, low, high = ratio_of(seconds[ours], own)
            line += f"{f'{ratio:.3f} ({low:.3f} to {high:.3f})':>32}"
            shown_slower, undecided = shown_slower or high < LEAST_RATIO, undecided or low < LEAST_RATIO
        print(line)
    return 1 if shown_slower else 3 if undecided else 0


def main() -> int:
    arguments = options()
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_float32_matmul_precision("high" if arguments.precision == "tf32" else "highest")
    torch.manual_seed(1)
    work = Workload(arguments)
    others = {"passes": passes_step(work), "transformers": transformers_step(work), "plain loop": plain(work)}
    if importlib.util.find_spec("litgpt") is not None:
        others["litgpt"] = litgpt_step(work)
    else:
        print("litgpt is not installed (pip install litgpt): left out")
    print(
        f"{parameters(work.preset.shape):,} parameters, {work.tokens_per_step} tokens a step, {arguments.precision}, "
        f"{work.device.type}, {torch.get_num_threads()} threads, {arguments.turns} turns"
    )
    turns = Turns(work, others, arguments.turns)
    train(work, turns)
    return report({name: own[WARM_UP:] for name, own in turns.seconds.items()}, work.tokens_per_step)


if __name__ == "__main__":
    sys.exit(main())
