"""The table of log formats. The reader of a format is imported when the first log of that format is met."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from tensorprimat.logs.dialects import DIALECTS
from tensorprimat.logs.format import Format


def _late(module: str, function: str) -> Callable[..., Any]:
    """Return a function of a reader that imports the reader when it is called.

    All readers together take as long to import as 20 MB of a log to read, because of their expressions.
    """

    def call(*arguments: Any, **named: Any) -> Any:
        return getattr(import_module(f"tensorprimat.logs.{module}"), function)(*arguments, **named)

    return call


def _format(name: str, *, module: str = "", **stated: Any) -> Format:
    """Return the format whose module, of the same name unless another is stated, has `detect` and `read`."""
    return Format(name=name, detect=_late(module or name, "detect"), read=_late(module or name, "read"), **stated)


_DIALECTS = tuple(
    Format(
        name=dialect.name,
        reads=dialect.reads,
        looks_for=dialect.looks_for,
        needles=tuple(mark.encode() for mark in dialect.marks),
        detect=partial(_late("keyvalue", "detect"), dialect=dialect),
        read=partial(_late("keyvalue", "read"), dialect=dialect),
        opens=dialect.row if dialect.block else "",
    )
    for dialect in DIALECTS
)
"""One format for each dialect."""
FORMATS: tuple[Format, ...] = (
    _format(
        "megatron",
        module="megatron.reader",
        reads="Megatron-LM (2021 to now), Primus, Megatron-Bridge, Megatron-DeepSpeed and forks",
        looks_for="lines with 'iteration N/M | … elapsed time per iteration (ms):'",
        needles=(b"elapsed time per iteration", b"s GPU utilization: "),
    ),
    _format(
        "nemo",
        reads="NeMo 2.x progress lines, every set of metrics, any log interval; progress bars of NeMo 1.x",
        looks_for="'epoch …, iteration …/… | … | train_step_timing in s: …'",
        needles=(b", iteration ", b"train_step_timing in s="),
    ),
    _format(
        "torchtitan",
        reads="torchtitan, all spellings since 2024 (wps, tps), under torchrun, Slurm or Primus",
        looks_for="'step: … loss: … memory: … tps:' (or wps)",
        needles=(b"memory:",),
    ),
    _format(
        "maxtext",
        reads="MaxText and MaxDiffusion, on GPUs and TPUs, also under Primus and inside prose",
        looks_for="'completed step: …, seconds: …'",
        needles=(b"completed step:",),
    ),
    _format(
        "huggingface",
        module="huggingface.reader",
        reads="Hugging Face Trainer: logs, trainer_state.json, train_results.json, all_results.json; jsonl of ms-swift "
        "and LLaMA-Factory",
        looks_for="\"{'loss': …, 'learning_rate': …}\", \"{'train_runtime': …, 'train_samples_per_second': …}\"",
        needles=(b"'loss'", b'"loss"', b"train_runtime"),
    ),
    _format(
        "nanogpt",
        module="nanogpt.reader",
        reads="nanoGPT, build-nanogpt, nanochat, modded-nanogpt, llm.c",
        looks_for="'iter N: loss …, time …ms', 'step N | loss: … | dt: …ms', 'step:N/M train_time:…', "
        "'step N/M | … tok/s'",
        needles=(b", time ", b" | dt: ", b" dt: ", b" tok/s", b" (took ", b"train_time:"),
    ),
    _format(
        "olmo",
        reads="OLMo and OLMo-core console logs",
        looks_for="'[step=…/…,epoch=…]' and below it 'throughput/device/tokens_per_second=…' (or TPS)",
        needles=(b"[step=",),
    ),
    _format(
        "deepspeed",
        reads="DeepSpeed: throughput timer, pipeline engine, DeepSpeed-Chat",
        looks_for="'CurrSamplesPerSec=', 'iter time (s):' or 'E2E latency='",
        needles=(b"E2E latency=", b"End-to-End => Latency", b"iter time (s):", b"SamplesPerSec="),
    ),
    _format(
        "litgpt",
        reads="LitGPT pretraining and fine-tuning",
        looks_for="'iter N step N | loss train: … iter time: … ms'",
        needles=(b"iter time: ",),
    ),
    _format(
        "lightning",
        reads="Lightning's CSVLogger (metrics.csv) and progress bars",
        looks_for="a metrics.csv with step and train/time or train_step_timing in s, or bars 'Epoch N: … it/s' or s/it",
        needles=(b",step", b"step,", b'"step"', b"it/s", b"s/it"),
    ),
    _format(
        "mlperf",
        module="mlperf.reader",
        reads="MLPerf Training result files: AMD's samples/s and blocks, NVIDIA's step seconds",
        looks_for="':::MLLOG' lines: tracked_stats with throughput or train_step_time, or block_start and block_stop",
        needles=(b":::MLLOG",),
    ),
    *_DIALECTS,
    _format(
        "metrics",
        reads="Weights & Biases histories and summaries, CSV and JSON lines of metrics by name, among them NeMo "
        "Automodel's jsonl and Levanter's JSON logger",
        looks_for="a table with a step column (step, _step, global_step …) and a step time, a rate or W&B's clock",
        needles=(b'step"', b",step", b"step,", b'"Step"', b"Step,", b"_runtime"),
    ),
    _format(
        "mlflow",
        reads="MLflow's metric files of a run, with its parameters",
        looks_for="files below 'metrics' with lines 'timestamp value step'",
        needles=(b"\n15", b"\n16", b"\n17", b"\n18", b"\n19"),  # milliseconds since 1970 of the years 2017 to 2033
    ),
    _format(
        "madengine",
        reads="madengine's perf.csv: the last run of the table, one mean without a clock to check it by",
        looks_for="a CSV with the columns model, performance, metric and gpu_architecture",
        needles=(b"performance,metric", b"gpu_architecture"),
    ),
    _format(
        "tensorboard",
        reads="event files and folders of Megatron-LM, NeMo, torchtitan, MaxText and Hugging Face",
        looks_for="TensorBoard event files with a step time or a loss",
    ),
    _format(
        "excel",
        reads="TraceLens reports: GPU busy, computation, exposed communication and idle time (shown by tprimat "
        "analyze)",
        looks_for="an Excel workbook with the sheet gpu_timeline",
    ),
    _format(
        "result",
        reads="the tool's own result files, version 1 to now",
        looks_for="a JSON object with performance_metrics",
        needles=(b'"performance_metrics"',),
    ),
    _format(
        "timestamps",
        reads="any training loop that prints date, step and loss, and no step time",
        looks_for="lines with a date and time, 'step N' (or iteration) and 'loss N'",
        last_resort=True,
    ),
)
