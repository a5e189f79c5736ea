#!/usr/bin/env python3
"""Write logs with the frameworks' own printing code, read them, and compare with a clock of this script.

    tools/write_framework_logs.py                                     # what this environment holds
    tools/write_framework_logs.py --python .venv-nemo/bin/python      # what another environment holds, too
    tools/write_framework_logs.py --install "lightning==2.4.0 torch"  # pinned versions, in an environment made for it
    PRIMUS_PATH=~/Primus tools/write_framework_logs.py                # Primus's logger and training-log classes, too

A framework runs a few steps that sleep, in a process of its own, and prints as it always does. One line per framework
and version says whether our reader finds the steps, their times, their tokens and their losses. One command thus
checks a new release. Megatron-LM's own training log is not among them: megatron-core's wheel (0.16.1) holds
megatron/core alone, without the training loop that prints; NeMo and Primus print with it or in its form. Exit codes:
0 all agree, 1 one differs or fails, 2 usage, 3 nothing that could be tried.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from framework_truth import INTERVAL, LOG, STEPS, TRUTH, Truth, differences

SECONDS = 0.05  # of a step: long enough for four printed digits, short enough for a test
TOKENS, BATCH = 4096, 8
NOT_HERE = 3


class NotHereError(Exception):
    """The framework is not installed, or not in a form that can print here."""


def version_of(package: str) -> str:
    """Return the installed version. Raises NotHereError without one."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise NotHereError(f"{package} is not installed") from error


def worked(truth: Truth, steps: int = STEPS) -> Iterator[tuple[int, float]]:
    """Yield (step, loss) after each step's work, and keep the truth about it."""
    truth.ends.append(time.perf_counter())
    for step in range(1, steps + 1):
        time.sleep(SECONDS)
        truth.ends.append(time.perf_counter())
        truth.losses.append(3 - step / 100)
        yield step, truth.losses[-1]


@contextlib.contextmanager
def printing_into(path: Path) -> Iterator[None]:
    """Send stdout and stderr to a file."""
    with path.open("w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        yield


def transformers(into: Path) -> Truth:
    """Print with the Trainer's `log` and its progress bar, which need no accelerate to be called."""
    truth = Truth(framework="transformers", version=version_of("transformers"), tokens_per_step=TOKENS)
    from transformers import Trainer, TrainerControl, TrainerState
    from transformers.trainer_callback import ProgressCallback
    from transformers.trainer_utils import speed_metrics

    bar, state, control = (
        ProgressCallback(),
        TrainerState(max_steps=STEPS, is_world_process_zero=True),
        TrainerControl(),
    )
    arguments = SimpleNamespace(include_num_input_tokens_seen="all")
    handler = SimpleNamespace(on_log=lambda a, s, c, logs: bar.on_log(a, s, c, logs=logs))
    trainer = SimpleNamespace(
        state=state, args=arguments, control=control, callback_handler=handler, _initial_num_input_tokens_seen=0
    )
    with printing_into(into / LOG):
        bar.on_train_begin(arguments, state, control)
        began = time.time()
        for step, loss in worked(truth):
            state.global_step, state.epoch, state.num_input_tokens_seen = step, step / STEPS, step * TOKENS
            bar.on_step_end(arguments, state, control)
            if step % INTERVAL == 0:
                Trainer.log(trainer, {"loss": loss, "grad_norm": 1.5, "learning_rate": 1e-5}, began)  # type: ignore[arg-type]
        Trainer.log(trainer, speed_metrics("train", began, num_samples=STEPS * BATCH, num_steps=STEPS))  # type: ignore[arg-type]
        bar.on_train_end(arguments, state, control)
    return truth


def _lightning_module(truth: Truth) -> Any:
    """Return a LightningModule whose steps sleep; `truth` keeps when they end."""
    import lightning.pytorch as pl
    import torch

    class Sleeper(pl.LightningModule):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if not truth.ends:
                truth.ends.append(time.perf_counter())
            time.sleep(SECONDS)
            truth.losses.append(3 - (batch_idx + 1) / 100)
            self.log("reduced_train_loss", truth.losses[-1], prog_bar=True)
            self.log("global_batch_size", float(BATCH), prog_bar=True)
            return self.layer(batch[0]).sum() * 0

        def on_train_batch_end(self, *_: Any) -> None:
            truth.ends.append(time.perf_counter())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(
                torch.utils.data.TensorDataset(torch.zeros(STEPS * BATCH, 1)), batch_size=BATCH
            )

    return Sleeper()


def _fit(truth: Truth, into: Path, callbacks: list[Any], logger: Any) -> None:
    import lightning.pytorch as pl

    quiet = {"enable_checkpointing": False, "enable_model_summary": False}
    if not any(hasattr(callback, "train_description") for callback in callbacks):
        quiet["enable_progress_bar"] = False
    trainer = pl.Trainer(
        max_steps=STEPS, accelerator="cpu", devices=1, logger=logger, callbacks=callbacks,
        log_every_n_steps=INTERVAL, default_root_dir=str(into), **quiet,
    )  # fmt: skip
    kind = type(trainer.strategy)
    if not hasattr(kind, "current_epoch_step"):  # NeMo's progress printer asks NeMo's strategy
        kind.current_epoch_step = property(lambda _: trainer.global_step)  # type: ignore[attr-defined]
    trainer.fit(_lightning_module(truth))


def lightning(into: Path) -> Truth:
    """Write CSVLogger's metrics.csv with the times of ThroughputMonitor."""
    truth = Truth(framework="lightning", version=version_of("lightning"))
    from lightning.pytorch.callbacks import ThroughputMonitor
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(str(into), name="", version="", flush_logs_every_n_steps=1)
    with printing_into(into / "console.txt"):
        _fit(truth, into, [ThroughputMonitor(batch_size_fn=lambda batch: len(batch[0]), window_size=INTERVAL)], logger)
    truth.log, truth.first_index = "metrics.csv", 0
    return truth


def nemo(into: Path) -> Truth:
    """Print with NeMo 2's progress printer and timing callback."""
    truth = Truth(framework="nemo", version=version_of("nemo_toolkit"), first_index=0)
    try:
        from megatron.core.num_microbatches_calculator import init_num_microbatches_calculator
        from nemo.lightning.pytorch.callbacks.progress_printer import ProgressPrinter
        from nemo.utils.exp_manager import TimingCallback
    except ImportError as error:
        raise NotHereError(f"nemo without its progress printer: {error}") from error
    init_num_microbatches_calculator(0, None, BATCH, BATCH, 1)
    with printing_into(into / LOG):
        _fit(truth, into, [TimingCallback(), ProgressPrinter(log_interval=INTERVAL)], False)
    return truth


def litgpt(into: Path) -> Truth:
    """Pretrain a model of one layer with litgpt's own loop; the end of a step is the call for the next batch."""
    truth = Truth(framework="litgpt", version=version_of("litgpt"))
    import lightning as lit
    import torch
    from litgpt import GPT, Config
    from litgpt.args import EvalArgs, TrainArgs
    from litgpt.pretrain import fit

    shape = Config(name="tiny", block_size=16, vocab_size=32, padded_vocab_size=32, n_layer=1, n_head=1, n_embd=8)
    fabric = lit.Fabric(devices=1, accelerator="cpu")
    model = fabric.setup(GPT(shape))
    model.register_forward_hook(lambda *_: time.sleep(SECONDS))
    optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), 0.1))
    batch = torch.zeros(BATCH, shape.block_size + 1, dtype=torch.long)
    train = TrainArgs(
        global_batch_size=BATCH, micro_batch_size=BATCH, max_tokens=BATCH * shape.block_size * STEPS, max_norm=1.0,
        log_interval=1, save_interval=None, lr_warmup_steps=1, min_lr=0.0,
    )  # fmt: skip

    def batches() -> Iterator[Any]:
        for _ in range(STEPS + 1):
            truth.ends.append(time.perf_counter())
            yield batch

    state = {"model": model, "optimizer": optimizer, "iter_num": 0, "step_count": 0}
    evaluation = EvalArgs(interval=10**6, max_iters=1, initial_validation=False, final_validation=False)
    with printing_into(into / LOG):
        fit(fabric, 1, state, _Once(batches), [batch], into, None, train, evaluation)
    return truth


class _Once:
    """A loader that a training goes through once."""

    def __init__(self, batches: Callable[[], Iterator[Any]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self._batches()


def torchtitan(into: Path) -> Truth:
    """Print with torchtitan's MetricsProcessor; without a GPU its memory is made up."""
    truth = Truth(framework="torchtitan", version=version_of("torchtitan"), tokens_per_step=TOKENS * BATCH, gpus=1)
    with printing_into(into / LOG):
        from torchtitan.components.metrics import DeviceMemStats, MetricsProcessor
        from torchtitan.tools import utils
        from torchtitan.tools.logging import init_logger

        init_logger()
        memory = DeviceMemStats(1.0, 1.0, 1.5, 2.0, 0, 0)
        processor = SimpleNamespace(
            config=SimpleNamespace(log_freq=INTERVAL), parallel_dims=SimpleNamespace(non_data_parallel_size=1),
            device_memory_monitor=SimpleNamespace(get_peak_stats=lambda: memory, reset_peak_stats=lambda: None),
            color=utils.Color(), gpu_peak_flops=1e15, num_flops_per_token=1e6, has_quantization=False,
            ntokens_since_last_log=0, data_loading_times=[], time_last_log=time.perf_counter(),
            logger=SimpleNamespace(log=lambda *_: None),
        )  # fmt: skip
        for step, loss in worked(truth):
            processor.ntokens_since_last_log += TOKENS * BATCH
            processor.data_loading_times.append(0.0)
            if step == 1 or step % INTERVAL == 0:
                MetricsProcessor.log(processor, step, loss, loss, 1.5)  # type: ignore[arg-type, unused-ignore]
    return truth


def primus(into: Path) -> Truth:
    """Print Megatron's line through Primus's averages and its coloured logger, from the checkout at PRIMUS_PATH."""
    checkout = Path(os.environ.get("PRIMUS_PATH", ""))
    if not (checkout / "primus" / "core" / "utils" / "logger.py").is_file():
        raise NotHereError("PRIMUS_PATH names no checkout of Primus")
    if importlib.util.find_spec("loguru") is None or importlib.util.find_spec("torch") is None:
        raise NotHereError("Primus's logger needs loguru and torch")
    git = ["git", "-C", str(checkout), "describe", "--always", "--tags"]
    described = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    truth = Truth(framework="primus", version=described or "checkout", tokens_per_step=TOKENS * BATCH, gpus=8)
    sys.path.insert(0, str(checkout))
    with printing_into(into / LOG):
        from primus.core.utils import logger

        logger.setup_logger(
            logger.LoggerConfig(
                exp_root_path=str(into),
                work_group="w",
                user_name="u",
                exp_name="e",
                module_name="m",
                rank=7,
                world_size=8,
            )
        )
        from primus.backends.megatron.patches.training_log import print_rank_last_patches as patches

        arguments = SimpleNamespace(
            seq_length=TOKENS, world_size=8, log_avg_skip_iterations=2, log_avg_reset_interval=50, micro_batch_size=1,
            global_batch_size=BATCH, data_parallel_size=8,
        )  # fmt: skip
        extensions = [patches.ElapsedAverageExtension(arguments), patches.ThroughputAverageExtension(arguments)]
        logger._logger.info(f"  seq_length ................................. {TOKENS}")
        for step, loss in worked(truth):
            milliseconds = (truth.ends[-1] - truth.ends[-2]) * 1000
            line = (
                f" [{time.strftime('%Y-%m-%d %H:%M:%S')}] iteration {step:8d}/{STEPS:8d} |"
                f" consumed samples: {step * BATCH:12d} | elapsed time per iteration (ms): {milliseconds:.1f} |"
                f" throughput per GPU (TFLOP/s/GPU): 490.0 | learning rate: 4.134000E-07 |"
                f" global batch size: {BATCH:5d} | lm loss: {loss:.6E} |"
            )
            for extension in extensions:
                line = extension.inject(line, patches.parse_training_log_line(line))
            logger._logger.info(line)
    return truth


WRITERS: dict[str, Callable[[Path], Truth]] = {
    "transformers": transformers,
    "lightning": lightning,
    "nemo": nemo,
    "litgpt": litgpt,
    "torchtitan": torchtitan,
    "primus": primus,
}


def write(name: str, into: Path) -> int:
    """Write one log and the truth about it, in a process of its own."""
    try:
        truth = WRITERS[name](into)
    except NotHereError as error:
        print(error)
        return NOT_HERE
    (into / TRUTH).write_text(json.dumps(asdict(truth)))
    return 0


def verdict(python: str, name: str) -> tuple[str, bool | None]:
    """Return the line about one framework in one environment, and whether it agrees; None where it is not there."""
    with tempfile.TemporaryDirectory(prefix="tprimat_drift_") as folder:
        command = [python, str(Path(__file__).resolve()), "--inside", name, "--into", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == NOT_HERE:
            return f"{name:<14} {'-':<12} not tried: {done.stdout.strip().splitlines()[-1]}", None
        if done.returncode:
            return f"{name:<14} {'-':<12} FAILED: {(done.stderr.strip().splitlines() or ['no message'])[-1]}", False
        truth = Truth(**json.loads(Path(folder, TRUTH).read_text()))
        found = differences(truth, Path(folder, truth.log))
    agreement = "agrees" if not found else f"DIFFERS: {'; '.join(found)}"
    return f"{truth.framework:<14} {truth.version:<12} {agreement}", not found


def installed(requirements: str, folder: Path) -> str:
    """Return the Python of a new environment with these packages. Raises CalledProcessError where pip fails."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", *requirements.split()], check=True)
    return python


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", action="append", choices=[*WRITERS], help="only this one; may be repeated")
    parser.add_argument("--python", action="append", default=[], help="another environment's Python; may be repeated")
    parser.add_argument("--install", action="append", default=[], metavar="PACKAGES", help="pinned versions for pip")
    parser.add_argument("--inside", choices=[*WRITERS], help=argparse.SUPPRESS)
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.inside:
        return write(options.inside, options.into)
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="tprimat_drift_") as folder:
        pythons = [sys.executable, *options.python]
        try:
            pythons += [installed(packages, Path(folder, str(n))) for n, packages in enumerate(options.install)]
        except subprocess.CalledProcessError as error:
            parser.error(f"--install: pip ended with exit code {error.returncode}")
        for python in pythons:
            for name in options.framework or WRITERS:
                line, agrees = verdict(python, name)
                print(line, flush=True)
                outcomes.append(agrees)
    tried = [agrees for agrees in outcomes if agrees is not None]
    return NOT_HERE if not tried else 0 if all(tried) else 1


if __name__ == "__main__":
    sys.exit(main())
