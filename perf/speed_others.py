#!/usr/bin/env python3
"""Is the training step of `tprimat passes` as fast as what one would use instead? (The engine's: engine_speed.py.)

    python perf/speed_others.py                                   (the 4-layer, 256-wide shape on this machine's device)
    python perf/speed_others.py --precision bf16 --layers 16 --width 2048 --vocabulary 128256 --sequence 4096 --compile

Contenders, shapes, tokens, clipping, AdamW and the taking of turns are those of engine_speed.py: transformers' own
step, a plain nanoGPT-style loop, and litgpt where it is installed (pip install litgpt). Exit code 0: `passes` is shown
not to be slower than any (lower bound of the ratio's 95 % interval at least 0.98), 1 where it is shown to be slower,
3 where more --rounds are needed to tell.
"""

from __future__ import annotations

import importlib.util
import itertools
import statistics
import sys
import warnings

import engine_speed as others
import torch

from tensorprimat.core.cells import CellSpec
from tensorprimat.core.models import parameters
from tensorprimat.micro.workload import Workload as PassWorkload

CLIP = 1.0  # as the other contenders


class Fitted(PassWorkload):
    """The pass's own step, fed and clipped as the other contenders are."""

    def __init__(self, spec: CellSpec, work: others.Workload) -> None:
        super().__init__(spec)
        self._batches = itertools.chain.from_iterable(iter(work.batch, None))
        assert self._optimizer is not None
        self._optimizer.register_step_pre_hook(self._clip)

    def _clip(self, *_: object) -> None:
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), CLIP)


def passes_step(work: others.Workload) -> others.Contender:
    """The train pass of `tprimat passes`."""
    shape, given = work.preset.shape, work.given
    spec = CellSpec(
        model_size="comparison", d_model=shape.hidden_size, d_ff=shape.ffn_hidden_size, num_layers=shape.num_layers,
        num_heads=shape.num_attention_heads, vocab=shape.vocab_size, context_length=given.sequence,
        batch_size=given.batch, pass_name="train", precision=given.precision, compile=given.compile,
        device=work.device.type, num_warmups=0, num_trials=1,
    )  # fmt: skip
    workload = Fitted(spec, work)

    def train(steps: int) -> float:
        return statistics.median([timed(workload, work) for _ in range(steps)][1:])

    return train


def timed(workload: PassWorkload, work: others.Workload) -> float:
    """Seconds of one step, the device idle before and after."""
    work.synchronise()
    begin = others.time.perf_counter()
    workload.step()
    work.synchronise()
    return others.time.perf_counter() - begin


def main() -> int:
    given = others.options()
    warnings.filterwarnings("ignore")
    torch.set_float32_matmul_precision("high" if given.precision == "tf32" else "highest")
    torch.manual_seed(1)
    work = others.Workload(given)
    contenders = {
        "passes": passes_step(work), "transformers": others.transformers_step(work), "plain loop": others.plain(work),
    }  # fmt: skip
    if importlib.util.find_spec("litgpt") is not None:
        contenders["litgpt"] = others.litgpt_step(work)
    else:
        print("litgpt is not installed (pip install litgpt): left out")
    print(
        f"{parameters(work.preset.shape):,} parameters, {work.tokens_per_step} tokens a step, {given.precision}, "
        f"{work.device.type}, {torch.get_num_threads()} threads, {given.rounds} rounds of {given.steps} steps"
    )
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for train in contenders.values():
        train(3)  # warm-up, compilation
    names = list(contenders)
    for turn in range(given.rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds[name].append(contenders[name](given.steps))
    return report(seconds, work.tokens_per_step)


def report(seconds: dict[str, list[float]], tokens: int) -> int:
    """Print the table; the exit code."""
    print(f"{'':<14}{'tokens/s':>12}{'ratio of passes to it, 95 % interval':>42}")
    shown_slower = undecided = False
    for name, own in seconds.items():
        rate = tokens / statistics.median(own)
        if name == "passes":
            print(f"{name:<14}{rate:>12,.0f}")
            continue
        ratio, low, high = others.interval([theirs / ours for theirs, ours in zip(own, seconds["passes"], strict=True)])
        print(f"{name:<14}{rate:>12,.0f}{f'{ratio:.3f} ({low:.3f} to {high:.3f})':>42}")
        shown_slower = shown_slower or high < others.LEAST_RATIO
        undecided = undecided or low < others.LEAST_RATIO
    return 1 if shown_slower else 3 if undecided else 0


if __name__ == "__main__":
    sys.exit(main())
