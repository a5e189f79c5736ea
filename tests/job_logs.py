"""Logs of training jobs in the frameworks' own spelling, for tests of files that hold several trainings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training: its settings, its true step time, and the steps that it prints."""

    gpus: int = 8
    batch: int = 64
    length: int = 2048
    seconds: float = 2.0
    startup: float = 2.7
    """Of the first step."""
    first: int = 1
    last: int = 40
    resumed: bool = False
    banner: bool = True
    hour: int = 8
    loss: float = 9.0
    """Before the first step; it falls by 0.01 a step."""
    wait: float = 0.0
    """Seconds between two steps that no row counts; the dates do."""

    def tflops(self, seconds: float) -> float:
        """Return TFLOP/s of a GPU in a step of so many seconds."""
        return self.batch * self.length / self.gpus / seconds * 400 / 8192

    @property
    def tokens_per_gpu(self) -> float:
        """Return tokens/s/GPU of a step."""
        return self.batch * self.length / self.seconds / self.gpus

    def steps(self) -> Iterator[tuple[int, float, datetime]]:
        """Return (number, seconds, moment) of every step."""
        now = datetime(2026, 1, 5, self.hour, tzinfo=timezone.utc)
        for number in range(self.first, self.last + 1):
            took = self.startup if number == self.first else self.seconds * (1 + 0.001 * (number % 3 - 1))
            now += timedelta(seconds=took + (self.wait if number > self.first else 0.0))
            yield number, took, now

    def log(
        self, row: Callable[[int, float, datetime], str], *, banner: Sequence[str] = (), resumed: Sequence[str] = ()
    ) -> list[str]:
        """Return the lines of a log: settings and the note of a resumption, where the job prints them, and all rows."""
        before = [*(banner if self.banner else ()), *(resumed if self.resumed else ())]
        return [*before, *(line for step in self.steps() for line in row(*step).split("\n"))]

    def resume(self, **changes: object) -> Job:
        """Return the job that continues where this one ended."""
        more = {"first": self.last + 1, "last": 2 * self.last, "resumed": True, "hour": self.hour + 1, **changes}
        return replace(self, **more)  # type: ignore[arg-type]


def megatron(job: Job) -> list[str]:
    lines = []
    if job.banner:
        lines += [
            f"using world size: {job.gpus}, data-parallel size: {job.gpus}, context-parallel size: 1, "
            "tensor-model-parallel size: 1, pipeline-model-parallel size: 1",
            "------------------------ arguments ------------------------",
            *(f"  {name} {'.' * (48 - len(name))} {value}" for name, value in megatron_arguments(job).items()),
            "-------------------- end of arguments ---------------------",
        ]
    if job.resumed:
        lines += [
            f" loading distributed checkpoint from /ckpt at iteration {job.first - 1}",
            f"  successfully loaded checkpoint from /ckpt [ t 1/1, p 1/1 ] at iteration {job.first - 1}",
        ]
    lines.append("[before the start of training step] datetime: 2026-01-05 08:00:00 ")
    for number, seconds, now in job.steps():
        lines.append(
            f" [{now:%Y-%m-%d %H:%M:%S}] iteration {number:8d}/ 5000 | consumed samples: {number * job.batch:12d} | "
            f"elapsed time per iteration (ms): {seconds * 1000:.1f} | "
            f"throughput per GPU (TFLOP/s/GPU): {job.tflops(seconds):.1f} | "
            f"learning rate: 1.0E-04 | global batch size: {job.batch:5d} | lm loss: {job.loss - number / 100:.6E} | "
            "loss scale: 1.0 | grad norm: 1.0 | number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
    return lines


def megatron_arguments(job: Job) -> dict[str, object]:
    printed = {
        **{f"an_argument_{n}": n for n in range(150)},
        "global_batch_size": job.batch,
        "micro_batch_size": 1,
        "seq_length": job.length,
        "world_size": job.gpus,
        "bf16": True,
        "fp16": False,
        "train_iters": 5000,
    }
    return dict(sorted(printed.items()))


def primus(job: Job) -> list[str]:
    prefix = f"[20260105 {job.hour:02}:00:00][rank-{job.gpus - 1}/{job.gpus}][INFO ] [--------trainer.py:2488] : "
    return [prefix + line for line in megatron(replace(job))]


def torchtitan(job: Job) -> list[str]:
    def say(text: str, now: datetime | None = None) -> str:
        return f"[titan] {now or datetime(2026, 1, 5, job.hour):%Y-%m-%d %H:%M:%S},000 - root - INFO - {text}"

    lines = []
    if job.banner:
        lines += [
            say("Starting job: Llama 3 8B training"),
            say(f"Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard={job.gpus}, cp=1, tp=1"),
            say("CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory"),
        ]
    if job.resumed:
        lines.append(say(f"Loading the checkpoint from /ckpt/step-{job.first - 1}."))
    if job.banner:
        lines += [
            say(
                f"Trainer is initialized with local batch size {job.batch // job.gpus}, global batch size {job.batch}, "
                f"gradient accumulation steps 1, sequence length {job.length}, total steps 1000 (warmup 2)"
            )
        ]
    lines.append(say(f"Training starts at step {job.first}"))
    for number, seconds, now in job.steps():
        tps = job.batch * job.length / job.gpus / seconds
        lines.append(
            say(
                f"step: {number:2}  loss: {job.loss - number / 100:.5f}  grad_norm:  1.2500  memory: 38.50GiB(48.67%)  "
                f"tps: {tps:,.0f}  tflops: 400.13  mfu: 42.50%",
                now,
            )
        )
    return lines


def nemo(job: Job) -> list[str]:
    return job.log(
        lambda number, seconds, _: (
            f"Training epoch 0, iteration {number}/999 | lr: 3e-07 | global_batch_size: {job.batch} | "
            f"global_step: {number} | reduced_train_loss: {job.loss - number / 100:.4g} | "
            f"train_step_timing in s: {seconds:.4g} | consumed_samples: {number * job.batch}"
        ),
        banner=[
            "[NeMo I 2026-01-05 08:00:00 nemo_logging:393] Padded vocab_size: 128256, original vocab_size: 128256",
            "GPU available: True (cuda), used: True",
            f"All distributed processes registered. Starting with {job.gpus} processes",
        ],
        resumed=["Restoring states from the checkpoint path at /ckpt"],
    )


def maxtext(job: Job) -> list[str]:
    tokens = job.batch * job.length
    return job.log(
        lambda number, seconds, _: (
            f"completed step: {number}, seconds: {seconds:.3f}, TFLOP/s/device: 400.0, "
            f"Tokens/s/device: {tokens / seconds / job.gpus:.3f}, total_weights: {tokens}, "
            f"loss: {job.loss - number / 100:.3f}"
        ),
        banner=[
            f"Config param per_device_batch_size: {job.batch / job.gpus}",
            f"Config param global_batch_size_to_train_on: {job.batch}",
            f"Config param max_target_length: {job.length}",
            "Config param model_name: llama3.1-8b",
            "System Information: Jax Version: 0.6.0",
            f"Num_devices: {job.gpus}, shape (8,)",
        ],
        resumed=[f"restoring from this run's directory step {job.first - 1}"],
    )


def litgpt(job: Job) -> list[str]:
    return [
        "Seed set to 42",
        *job.log(
            lambda number, seconds, _: (
                f"Epoch 1 | iter {number} step {number} | loss train: {job.loss - number / 100:.3f}, val: n/a | "
                f"iter time: {seconds * 1000:.2f} ms (step) remaining time: 0:12:01"
            ),
            banner=[
                "{'checkpoint_dir': PosixPath('checkpoints/meta'),",
                f" 'devices': {job.gpus},",
                " 'model_name': 'pythia-160m',",
                " 'num_nodes': 1,",
                " 'precision': 'bf16-true',",
                f" 'train': TrainArgs(global_batch_size={job.batch},",
                f"                    micro_batch_size={job.batch // job.gpus},",
                f"                    max_seq_length={job.length})}}",
            ],
            resumed=["Resuming training from /ckpt"],
        ),
    ]


def xtuner(job: Job) -> list[str]:
    tokens = job.batch * job.length
    return job.log(
        lambda number, seconds, clock: (
            f"[XTuner][RANK 0][{clock}][INFO] Epoch 1 Step {number}/100 data_time: 0.0000 lr: 6.0e-05 "
            f"time: {seconds:.4f} text_tokens: {tokens / job.gpus} reduced_consumed_tokens: {number * tokens} "
            f"reduced_llm_loss: {job.loss - number / 100:.8f} grad_norm: 1.5 tgs: {tokens / job.gpus / seconds:.1f} "
            f"est_global_batch_tokens: {tokens} "
        ),
        banner=["[FSDP Sharding]:   0%|          | 0/3 [00:00<?, ?it/s]"],
        resumed=["[XTuner][RANK 0][2026-01-05 08:00:00][INFO] Resume from ckpt"],
    )


def nanochat(job: Job) -> list[str]:
    tokens = job.batch * job.length
    return job.log(
        lambda number, seconds, _: (
            f"step {number:05d}/16704 (0.03%) | loss: {job.loss - number / 100:.6f} | grad norm: 0.1 | lrm: 1.00 | "
            f"dt: {seconds * 1000:.2f}ms | tok/sec: {tokens / seconds:,.0f} | "
            f"mfu: {job.tflops(seconds) / 9.89:.2f} | total time: 1.0m"
        ),
        banner=[
            "Autodetected device type: cuda",
            f"2026-01-05 08:00:00,100 - nanochat.common - INFO - Distributed world size: {job.gpus}",
            f"Tokens / micro-batch / rank: {job.batch // job.gpus} x {job.length} = {tokens // job.gpus:,}",
            f"Total batch size {tokens:,} => gradient accumulation steps: 1",
        ],
        resumed=[f"Resuming optimization from step {job.first - 1}"],
    )


def modded_nanogpt(job: Job) -> list[str]:
    clock, lines = 0.0, ["Running Python 3.12.7", "Running PyTorch 2.10.0 compiled for CUDA 12.8"]
    for number, seconds, _ in job.steps():
        clock += seconds * 1000
        lines.append(
            f"step:{number}/6200 train_loss:{job.loss - number / 100:.4f} train_time:{clock:.0f}ms step_avg:2000.00ms"
        )
    return [*lines, "peak memory allocated: 31010 MiB reserved: 31450 MiB"]


def huggingface(job: Job) -> list[str]:
    lines = []
    if job.banner:
        lines += [
            "***** Running training *****",
            f"  Instantaneous batch size per device = {job.batch // job.gpus}",
            f"  Total train batch size (w. parallel, distributed & accumulation) = {job.batch}",
            "  Gradient Accumulation steps = 1",
            "  Total optimization steps = 400",
        ]
    if job.resumed:
        lines.append("  Continuing training from checkpoint, will skip to saved global_step")
    clock, tokens = 0.0, 0
    for number, seconds, _ in job.steps():
        clock += seconds
        tokens += job.batch * job.length
        row = {"loss": job.loss - number / 100, "grad_norm": 0.75, "learning_rate": 2e-05, "epoch": 0.5}
        row |= {"num_input_tokens_seen": tokens, "step": number, "train_runtime": f"{clock:.4f}"}
        lines.append(str(row))
    done = job.last - job.first + 1
    lines.append(
        str(
            {
                "train_runtime": round(clock, 4),
                "train_samples_per_second": round(done * job.batch / clock, 3),
                "train_steps_per_second": round(done / clock, 3),
                "train_loss": 2.1,
            }
        )
    )
    return lines


def olmo(job: Job) -> list[str]:
    return job.log(
        lambda number, seconds, now: (
            f"{now:%Y-%m-%d %H:%M:%S}.009\tnode-3:0\tolmo.train:979\tINFO\t[step={number}/15000,epoch=0]\n"
            f"    train/CrossEntropyLoss={job.loss - number / 100:.3f}\n"
            f"    throughput/total_tokens={number * job.batch * job.length:,}\n"
            f"    throughput/device/tokens_per_second={job.batch * job.length / job.gpus / seconds:,.1f}"
        ),
        banner=[
            "2026-01-05 08:00:00.016\tnode-3:0\ttrain:98\tINFO\tTrainConfig(run_name='small', seed=6198, "
            f"model=ModelConfig(d_model=2048, max_sequence_length={job.length}, precision='amp_bf16'), "
            f"global_train_batch_size={job.batch}, device_train_batch_size={job.batch // job.gpus}, "
            "speed_monitor=SpeedMonitorConfig(window_size=1))"
        ],
        resumed=["2026-01-05 08:00:01.016\tnode-3:0\ttrain:210\tINFO\tLoading checkpoint from /ckpt..."],
    )


def deepspeed(job: Job) -> list[str]:
    stamp = f"[2026-01-05 {job.hour:02}:00:00,100] [INFO]"
    lines = []
    if job.banner:
        lines += [
            f"{stamp} [launch.py:163:main] WORLD INFO DICT: {{'localhost': [0]}}",
            f"{stamp} [launch.py:163:main] dist_world_size={job.gpus}",
            f"{stamp} [config.py:960:print] DeepSpeedEngine configuration:",
            f"{stamp} [config.py:964:print]   train_batch_size ............. {job.batch}",
            f"{stamp} [config.py:964:print]   train_micro_batch_size_per_gpu  {job.batch // job.gpus}",
        ]
    if job.resumed:
        lines.append(f"{stamp} [torch_checkpoint_engine.py:27:load] [Torch] Loading checkpoint from /ckpt...")
    timed = 0.0
    for number, seconds, now in job.steps():
        timed += seconds if number > job.first + 1 else 0.0
        mean = (number - job.first - 1) * job.batch / timed if timed else 0.0
        lines.append(
            f"[{now:%Y-%m-%d %H:%M:%S},250] [INFO] [timer.py:199:stop] epoch=0/micro_step={number}/"
            f"global_step={number}, RunningAvgSamplesPerSec={mean:.6f}, CurrSamplesPerSec={job.batch / seconds:.6f}, "
            "MemAllocated=3.5GB, MaxMemAllocated=20.25GB"
        )
    return lines


def lightning(job: Job) -> list[str]:
    lines, clock = ["epoch,step,train/time,train_loss"], 0.0
    for number, seconds, _ in job.steps():
        clock += seconds
        lines.append(f"0,{number},{clock:.6f},{job.loss - number / 100:.4f}")
    return lines


def mlperf(job: Job) -> list[str]:
    now = datetime(2026, 1, 5, job.hour, tzinfo=timezone.utc).timestamp()
    lines: list[str] = []

    def say(key: str, value: object = None, after: float = 0.0, **metadata: object) -> None:
        nonlocal now
        now += after
        event = {"namespace": "", "time_ms": round(now * 1000), "event_type": "POINT_IN_TIME", "key": key}
        lines.append(":::MLLOG " + json.dumps({**event, "value": value, "metadata": {"file": "x.py", **metadata}}))

    say("submission_benchmark", "llama31_8b")
    say("init_start")
    say("submission_platform", "1xNVIDIA GB200")
    say("global_batch_size", job.batch)
    say("max_sequence_length", job.length)
    say("run_start")
    say("block_start")
    warm = replace(job, startup=job.seconds)  # its warm-up lies before run_start
    for done, (_, seconds, _) in enumerate(warm.steps(), start=1):
        say(
            "tracked_stats",
            {"train_step_time": seconds},
            seconds + job.wait,
            step=done - 1.0,
            samples_count=done * job.batch,
        )
    say("run_stop", None, 0.1, status="success")
    return lines


JOBS: dict[str, Callable[[Job], list[str]]] = {
    "megatron": megatron, "primus": primus, "nemo": nemo, "torchtitan": torchtitan, "maxtext": maxtext,
    "litgpt": litgpt, "xtuner": xtuner, "nanochat": nanochat, "modded-nanogpt": modded_nanogpt,
    "huggingface": huggingface, "olmo": olmo, "deepspeed": deepspeed, "lightning": lightning, "mlperf": mlperf,
}  # fmt: skip
