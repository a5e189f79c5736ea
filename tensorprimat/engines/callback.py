"""`BenchmarkCallback`: times the optimizer steps of any Lightning or NeMo training and writes the result file.

    from benchmark_utils import BenchmarkCallback
    trainer = Trainer(callbacks=[BenchmarkCallback(output_dir="./output", model_name="llama")], ...)

A step runs from one step end to the next. A step ends when `trainer.global_step` increases: under gradient accumulation
Lightning calls its batch hooks once per micro-batch, NeMo once per step. Plain constructor arguments make the callback
serialisable: `run.Config(BenchmarkCallback, model_name="llama")`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    from lightning.pytorch.callbacks import Callback
except ModuleNotFoundError as error:
    raise ImportError(
        f"BenchmarkCallback needs the package {error.name}, which is not installed; pip install 'tensorprimat[torch]'"
    ) from error

from tensorprimat.core.errors import UsageError
from tensorprimat.core.notices import Notice
from tensorprimat.core.result import Result, Startup, TrainingConfig
from tensorprimat.core.steps import Steps
from tensorprimat.engines import clock, console, live_result, power
from tensorprimat.engines.batches import BatchCounter, tokens_of_step, with_counted_work
from tensorprimat.engines.failures import end_reason
from tensorprimat.engines.introspect import compile_seconds, is_nemo, observed_by, optimizer_dtype
from tensorprimat.engines.live_result import Declared
from tensorprimat.engines.memory import DeviceMemory, largest_of_ranks
from tensorprimat.engines.recorder import Recorder, mean_loss
from tensorprimat.machine import platform as machines
from tensorprimat.machine import telemetry
from tensorprimat.storage import store

if TYPE_CHECKING:
    import torch


READ_AT_ONCE = 64  # step ends that are read together; reading each one alone would miss the CPU's cache


class BenchmarkCallback(Callback):  # type: ignore[misc]  # Lightning is not there for the type checker
    """A Lightning callback on rank 0 that measures step time, loss, learning rate, memory and power of a training.

    It does not wait for the GPU between the first and the last step, unless `sync` is set.
    """

    def __init__(
        self,
        output_dir: str = "./output",
        platform: str = "auto",
        model_name: str | None = None,
        *,
        preset: str | None = None,
        engine: str | None = None,
        methodology: str | None = None,
        warmup_steps: int | None = None,
        training_config: Mapping[str, Any] | None = None,
        result_file: str | None = None,
        print_every: int = 10,
        sync: bool = False,
        power: bool = True,
    ) -> None:
        """Create the callback; every argument is optional.

        Args:
            output_dir: Folder for benchmark_{cuda,rocm,cpu}_{model}.json and history/.
            platform: auto, nvd, amd or cpu; a value that contradicts the training becomes a warning.
            model_name: Name of the model in the result and its file; by default the name that the model states. Without
                any name, the file name contains the time instead.
            preset: Recorded in the result.
            engine: Recorded in the result.
            methodology: Recorded in the result.
            warmup_steps: Number of warm-up steps; None detects it from the step times.
            training_config: Fields of TrainingConfig, such as those that the trainer does not know; they override the
                trainer's values. If the batches contradict a batch size or the sequence length, the value of the
                batches replaces it, with a warning.
            result_file: Write this one file instead of files in output_dir.
            print_every: Steps between printed lines, 0 for none.
            sync: Wait for the GPU at every step end instead of recording device events.
            power: Sample the GPUs' power if the driver's Python package is installed.

        Raises UsageError for an unknown platform or a negative number.
        """
        if platform != "auto" and platform not in machines.PLATFORM_SPELLINGS:
            raise UsageError(f"platform={platform!r}: must be auto, nvd, amd or cpu")
        if print_every < 0 or (warmup_steps or 0) < 0:
            raise UsageError("print_every and warmup_steps must not be negative")
        self.output_dir, self.result_file = output_dir, result_file
        self.print_every, self.sync, self.power = print_every, sync, power
        self.declared = Declared(
            platform=platform,
            model_name=model_name,
            preset=preset,
            engine=engine,
            methodology=methodology,
            warmup_steps=warmup_steps,
            training_config=dict(training_config or {}),
        )
        self.result: Result | None = None
        """The result, once the training has ended (rank 0)."""
        self.result_path: Path | None = None
        """The file that contains it."""
        self.startup = Startup()
        """The parts of the start-up that the caller has measured before the training."""
        self._start_over()

    def _start_over(self) -> None:
        self._stamp = store.new_stamp()
        self._described: Result | None = None
        self._recorder: Recorder | None = None
        self._memory: DeviceMemory | None = None
        self.sampler: telemetry.Sampler | None = None
        """Reads power and clock while the training runs; None without a GPU whose driver answers."""
        self._memory_peak: float | None = None
        self._step = 0
        self._counter: BatchCounter | None = None
        self._losses: list[torch.Tensor] = []
        self._divides_loss = False
        self._learning_rate: float | None = None
        self._data_wait: float | None = None
        self._waiting_since: float | None = None
        self._alone = False
        self._line_due = False
        self._frozen = False

    # The run begins.

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        self._start_over()
        self._began = time.perf_counter()
        self.result = self.result_path = None
        if trainer.is_global_zero:
            live_result.check_writable(self.output_dir, self.result_file)
            self._described = live_result.describe_training(trainer, pl_module, self.declared, built=False)
            _bracket_checkpoints(trainer, self)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        device = trainer.strategy.root_device
        self._memory = DeviceMemory(device)
        self._memory.restart_peaks()
        if not trainer.is_global_zero:
            return
        self._described = live_result.describe_training(trainer, pl_module, self.declared, built=True)
        self._step = trainer.global_step
        # Several processes also wait for each other between batches (Lightning 2.6 exchanges a flag before each one).
        self._alone = trainer.world_size == 1
        self._counter = None if is_nemo(trainer) else BatchCounter()  # NeMo shows one batch of each step
        self._divides_loss = pl_module.automatic_optimization
        if device.type == "cuda":
            self._described = power.with_own_gpus(self._described, trainer)
        if self.power and device.type == "cuda":
            self.sampler = telemetry.Sampler(power.devices_of(self._described))
            self.sampler.start()
        if self.print_every:
            self._print(console.start_block(self._described, label=self._label))
        timer = clock.choose_clock(device.type, sync=self.sync)
        self._recorder = Recorder(timer, warmup_steps=self._described.training_config.warmup_steps)
        self._recorder.start()
        self.startup = self.startup.changed(model_seconds=time.perf_counter() - self._began)

    # In every step: microseconds, and never a wait for the device.

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._recorder is not None:
            self._recorder.step_starts()
        if self._waiting_since is None:
            return
        if batch is not None:  # NeMo fetches its batches inside the step, where their wait cannot be measured
            self._data_wait = (self._data_wait or 0.0) + time.perf_counter() - self._waiting_since
        self._waiting_since = None

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if self._recorder is not None:
            rate = optimizer.param_groups[0]["lr"]
            self._learning_rate = rate if isinstance(rate, int | float) else None  # a tensor's value requires a wait

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        recorder = self._recorder
        if self.declared.engine is not None and not self._frozen:
            self._freeze_objects()
        if recorder is None:
            return
        # Lightning passes a dict; a check for any Mapping costs ten times as much.
        loss = outputs.get("loss") if type(outputs) is dict or isinstance(outputs, Mapping) else outputs
        if loss is not None:
            self._losses.append(loss.detach())
        if self._counter is not None:
            self._counter.add(batch)
        step = trainer.global_step
        if step > self._step:
            # Lightning divides the loss in its outputs by the number of micro-batches, which a callback may schedule.
            scale = trainer.accumulate_grad_batches if self._divides_loss else 1
            self._end_step(recorder, step, loss_scale=scale)
        if self._alone:
            self._waiting_since = time.perf_counter()

    def _freeze_objects(self) -> None:
        """Leave all present objects out of later garbage collections, on every rank, in a process of an engine.

        The libraries and their compiled code are a million objects: a full collection takes the host 0.3 to 0.5 s, and
        an idle device waits for it. The first batch is over, so the first step, which is never measured, pays.
        """
        gc.collect()
        gc.freeze()
        self._frozen = True

    def _end_step(self, recorder: Recorder, step: int, *, loss_scale: int) -> None:
        loss = mean_loss(self._losses, scale=loss_scale)
        memory = self._memory.read_sometimes() if self._memory else {}
        recorder.step_end(
            step,
            covers=step - self._step,
            loss=loss,
            learning_rate=self._learning_rate,
            data_wait_seconds=self._data_wait,
            memory=memory,
        )
        if self._counter is not None:
            self._counter.end_step(step - self._step)
        if memory:
            self._memory_peak = memory["memory_allocated_peak_bytes"]
        self._step, self._data_wait = step, None
        self._losses.clear()
        if self.print_every and step % self.print_every == 0:
            self._line_due = True
        if self._line_due or recorder.waiting >= READ_AT_ONCE:
            for row in recorder.drain():
                self._show(row)

    # Events between two steps.

    @contextmanager
    def interruption(self, kind: str) -> Iterator[None]:
        """Mark the current step as interrupted by other work ("validation", "checkpoint", "profile").

        Such a step is not measured.
        """
        self._interrupt(kind)
        try:
            yield
        finally:
            self._resume()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._interrupt("validation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._resume()

    def _interrupt(self, kind: str) -> None:
        self._waiting_since = self._data_wait = None
        if self._recorder is not None:
            self._recorder.interruption_starts(kind)

    def _resume(self) -> None:
        if self._recorder is not None:
            self._recorder.interruption_ends()

    # The run ends.

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._memory is None:
            return
        for row in self._recorder.finish() if self._recorder else ():
            self._show(row)
        memory, lost = largest_of_ranks(self._memory.read_last())
        self._write(trainer, memory=memory, ended_by=None, notices=[lost] if lost else [])

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self._recorder is not None:
            self._recorder.abandon()
        memory = self._memory.read_last() if self._memory else {}
        self._write(trainer, memory=memory, ended_by=end_reason(exception), notices=[])
        self._close(trainer)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._close(trainer)

    def _close(self, trainer: Any) -> None:
        """Release everything that belongs to this run except the result."""
        vars(trainer).pop("save_checkpoint", None)
        if self.sampler is not None:
            self.sampler.stop()
        if self._frozen:
            gc.unfreeze()
        self._start_over()

    def _write(self, trainer: Any, *, memory: dict[str, float], ended_by: str | None, notices: list[Notice]) -> None:
        """Summarise and save the result, once; does nothing on other ranks than 0."""
        if self._described is None or self.result is not None:
            return
        described, recorder = self._described, self._recorder
        config = described.training_config
        if config.optimizer_dtype is None:
            config = config.changed(optimizer_dtype=optimizer_dtype(trainer))
        ran, contradictions = observed_by(trainer.lightning_module, config)
        config, notices = config.changed(**ran), [*notices, *contradictions]
        first = recorder.step(0).seconds if recorder is not None and len(recorder.steps) else None
        startup = self.startup.changed(first_step_seconds=first, compile_seconds=compile_seconds())
        runs = tuple(run.changed(startup=startup) for run in described.runs)
        described = described.changed(training_config=config, runs=runs)
        if recorder is not None:
            timer = described.provenance.changed(timer=recorder.clock.name)
            described = described.changed(provenance=timer)
            notices = notices + recorder.notices
        steps = recorder.steps if recorder else Steps({})
        if self._counter is not None:
            automatic = trainer.lightning_module.automatic_optimization
            described, steps, odd = with_counted_work(described, steps, self._counter.steps, automatic=automatic)
            notices = [*notices, *odd]
        if self.sampler is not None:
            self.sampler.stop()
            notices = [*notices, *self.sampler.column_warnings(), *power.unmeasured(described, self.sampler)]
            described, steps = power.with_telemetry(described, steps, self.sampler)
        self.result = live_result.finish(described, steps, memory=memory, ended_by=ended_by, notices=notices)
        try:
            self.result_path = live_result.save_training(
                self.result, output_dir=self.output_dir, result_file=self.result_file, stamp=self._stamp
            )
        finally:  # shown even if it cannot be saved
            if self.print_every and self.sampler is not None and (cost := power.line(self.sampler)):
                self._print(cost)
            if self.print_every:
                spent = recorder.interruption_seconds if recorder else {}
                path = None if self.result_file else self.result_path  # the caller prints the file that it named
                self._print(console.end_block(self.result, label=self._label, path=path, interruption_seconds=spent))

    # Console output.

    @property
    def _label(self) -> str:
        return machines.LABELS[self._described.platform] if self._described and self._described.platform else "?"

    def _show(self, row: int) -> None:
        recorder = self._recorder
        if recorder is None or not self.print_every or recorder.index(row) % self.print_every:
            return
        self._line_due = False
        pace = recorder.timed_seconds / recorder.timed_steps if recorder.timed_steps else None
        mean = recorder.measured_seconds / recorder.measured_steps if recorder.measured_steps else None
        config = self._described.training_config if self._described is not None else TrainingConfig()
        counted = self._counter.steps[row] if self._counter is not None else None
        self._print(
            console.step_line(
                recorder.step(row),
                label=self._label,
                mean_seconds=mean,
                memory_bytes=self._memory_peak,
                pace_seconds=pace,
                tokens=tokens_of_step(config, counted),
                steps_left=config.max_steps - recorder.index(row) if config.max_steps else None,
                warmup=recorder.is_warmup(row),
            )
        )

    def _print(self, text: str) -> None:
        print(text, flush=True)


def _bracket_checkpoints(trainer: Any, callback: BenchmarkCallback) -> None:
    """Wrap the trainer's `save_checkpoint`, so that each checkpoint marks the step that it interrupts.

    Lightning writes every checkpoint by this method. It does not call the hook on_save_checkpoint for checkpoints of
    weights alone, and it has no hook for the end of a checkpoint.
    """
    save = trainer.save_checkpoint

    @wraps(save)
    def bracketed(*args: Any, **kwargs: Any) -> Any:
        with callback.interruption("checkpoint"):
            return save(*args, **kwargs)

    trainer.save_checkpoint = bracketed
