"""OLMo and OLMo-core: a line `[step=10/10000,epoch=0]` and, indented below it, one `name=value` per line.

What the numbers mean (olmo/train.py, SpeedMonitor; olmo_core/train/callbacks/speed_monitor.py):
- OLMo's `throughput/device/tokens_per_second` is a mean over a sliding window of up to `speed_monitor.window_size`
  steps, per GPU. Windows overlap, so the spread of these rates says little about single steps. OLMo-core's
  `throughput/device/TPS` is the rate of the one step; its `(actual avg)` is a running mean and is not read.
- OLMo prints no step time, so its rates are the measurement. OLMo-core's `throughput/device/BPS` is one over the time
  of the step. A step after which a checkpoint or an evaluation follows includes it, and its block says so.
- The monitor of OLMo begins after the first batch, and again after every checkpoint and evaluation, so neither is in a
  rate; a block without a rate (the first) is not a row.
- `throughput/total_tokens` counts over all GPUs: its growth is the tokens of a step.
- Memory: `System/Peak GPU Memory (MB)` is the allocator's peak over all ranks, in units of 10**6 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tensorprimat.core.notices import Notice
from tensorprimat.core.result import ModelShape
from tensorprimat.core.steps import Step
from tensorprimat.core.units import GIB
from tensorprimat.facts import devices
from tensorprimat.logs import arguments, changes, fields, work
from tensorprimat.logs.clocks import date_in
from tensorprimat.logs.format import Reading
from tensorprimat.logs.text import Log

_BLOCK = re.compile(r"\[step=(?P<step>\d{1,15})/(?P<last>[\d,]{1,15}|\?\?\?),epoch=\d{1,9}(?:,eta=[^\]]{1,60})?\]\s*$")
_ABSL = r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} {1,8}\d{1,20} [\w.-]{1,80}:\d{1,7}\] "
"""Stamp of glog and absl, which a launcher may put before every line of a block, not only the first."""
_METRIC = re.compile(
    rf"(?:{_ABSL})?\s+(?P<name>[A-Za-z][\w/ ()%.*-]{{1,80}})=(?P<value>{fields.NUMBER})(?P<suffix>[BTPE])?\s*$"
)
_SUFFIXES = {"B": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
"""Of numbers from 10**9 on, which OLMo-core 3 rounds to four or five digits."""
_NOTABLE = re.compile(
    r"Config\(|Total number of parameters|Building transformer with|\bDevice: |^\d{4}-\d\d-\d\d"
    r"|\"(?:global_batch_size|rank_microbatch_size|sequence_length)\":|world[ _]size"
)
_PARAMETERS = re.compile(r"Total number of parameters: ([\d,]+)|Building transformer with ([\d,]+) total params")
_HOST = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d{3}\s+(?P<host>[\w.-]{1,255}):\d{1,7}\s")
_ARGUMENT = re.compile(r"\b(\w+)=('[^']*'|[\w.+-]+)(?=\s{0,9}[,)])(?!,\d)")

_CORE_ARGUMENT = re.compile(
    r"\b(?P<name>global_batch_size|rank_microbatch_size|sequence_length|world[ _]size)\"?(?:=|: ?)"
    r"(?P<value>\d{1,18}(?:,\d{3})*)(?=[\s,)}]|$)"
)
CORE_SETTINGS = {
    "global_batch_size": "batch_tokens",
    "rank_microbatch_size": "micro_batch_tokens",
    "world size": "num_gpus",
    "world_size": "num_gpus",
}

_RATES = ("throughput/device/tokens_per_second", "throughput/device/TPS")
_METRICS: dict[str, tuple[str, float]] = {
    "train/CrossEntropyLoss": ("loss", 1.0),
    "train/CE loss": ("loss", 1.0),
    "optim/total_grad_norm": ("gradient_norm", 1.0),
    "optim/total grad norm": ("gradient_norm", 1.0),
    "optim/learning_rate_group0": ("learning_rate", 1.0),
    "optim/LR (group 0)": ("learning_rate", 1.0),
    **dict.fromkeys(_RATES, ("reported_tokens_per_second_per_gpu", 1.0)),
    "throughput/device/MFU": ("reported_mfu", 0.01),
    "throughput/device/flopsPS": ("reported_tflops_per_gpu", 1e-12),
    "System/Peak GPU Memory (MB)": ("memory_allocated_peak_bytes", 1e6),
    "gpu_memory/GPU reserved mem (GiB)": ("memory_reserved_peak_bytes", float(GIB)),
}
"""Printed name → field of Step and unit."""
_OTHER_WORK = {"checkpoint/save_duration_s": "checkpoint", "throughput/in-loop eval time (s)": "validation"}
"""Metrics of OLMo-core of which one is in a block whose step's time contains that work: its speed monitor runs last."""
BATCHES_PER_SECOND = "throughput/device/BPS"
"""Batches per second of OLMo-core. A batch is an optimizer step, so this is one over the time of the step."""
_TOTALS = ("throughput/total_tokens", "throughput/total tokens")

_SETTINGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "global_train_batch_size": ("global_batch_size", fields.whole),
    "max_sequence_length": ("sequence_length", fields.whole),
    "max_duration": ("max_steps", fields.whole),
    "distributed_strategy": ("strategy", str),
    "name": ("optimizer", str),
    "flash_attention": ("attention_backend", {"True": "flash"}.get),
    "activation_checkpointing": ("recompute", {"None": "none", "whole_layer": "full"}.get),
}
"""Argument of the TrainConfig(…) that OLMo prints → field of TrainingConfig; of equal names the first counts: the first
name is that of the optimizer. Others are read by the names that all frameworks share."""


def detect(log: Log) -> int:
    inside = found = 0
    for _, text in log.head():
        if "[step=" in text and _BLOCK.search(text):
            inside = 1
        elif inside and (metric := _METRIC.match(text)):
            if metric["name"] in _RATES:
                found, inside = found + 1, 0
        elif text.strip():
            inside = 0
    return found


def read(log: Log) -> Reading:
    reading = Reading(training_config={"framework": "olmo"}, source="OLMo")
    totals: dict[int, float] = {}
    steps = fields.merged(((None, step) for step in _rows(log, reading, totals)), reading.warnings)
    single = reading.training_config.pop("single", None)  # OLMo-core times one step
    steps = work.with_tokens(steps, totals)
    tokens = steps.column("tokens")[np.isfinite(steps.column("tokens"))]
    if single and len(tokens) > 1 and (tokens == tokens[0]).all():
        steps = steps.replace(tokens=float(tokens[0]))  # later totals are rounded
    if single and (gpus := changes.whole_gpus(steps)):
        reading.training_config.setdefault("num_gpus", gpus)
    reading.steps = steps
    for name in ("batch_tokens", "micro_batch_tokens"):
        reading.training_config.pop(name, None)
    if reading.training_config.pop("window", None) and len(steps) > 1:
        reading.warnings.append(Notice("rate_of_window", "tokens_per_second_per_gpu"))
    return reading


def _rows(log: Log, reading: Reading, totals: dict[int, float]) -> Iterator[Step]:
    """Yield the blocks that carry a rate."""
    block: dict[str, Any] = {}
    stated: set[str] = set()
    before = ""
    for line, text in log.lines_of_one_rank(_BLOCK.search):
        if text == before or not text.strip():
            continue  # written twice by two loggers, or a blank line
        before = text
        if block and (metric := _METRIC.match(text)) and metric["name"] not in stated:
            stated.add(metric["name"])  # a second one belongs to another block whose first line is lost
            if metric["name"] == _RATES[1]:
                reading.training_config["single"] = True
            _take(metric, block, totals)
            continue
        if "reported_tokens_per_second_per_gpu" in block:
            yield Step(**{"seconds": None, **block})
        block, stated = {}, set()
        if "[step=" in text and (head := _BLOCK.search(text)):
            block = {"index": int(head["step"]), "line": line, "ended_at": date_in(text[: head.start()])}
        elif _NOTABLE.search(text):
            _notice(text, reading)
    if "reported_tokens_per_second_per_gpu" in block:
        if log.tail(1)[-1]:  # its last value may have lost digits
            reading.warnings.append(Notice("block_without_end", "steps", line=block["line"]))
        else:
            yield Step(**{"seconds": None, **block})


def _take(metric: re.Match[str], block: dict[str, Any], totals: dict[int, float]) -> None:
    if metric["name"] in _TOTALS:  # rounded totals give no tokens of a step
        totals[block["line"]] = (not metric["suffix"] and fields.positive(metric["value"])) or np.nan
    elif metric["name"] in _OTHER_WORK:
        block["interrupted_by"] = _OTHER_WORK[metric["name"]]
    elif metric["name"] == BATCHES_PER_SECOND:
        if rate := fields.positive(metric["value"]):
            block["seconds"] = 1 / rate
    elif metric["name"] in _METRICS:
        name, unit = _METRICS[metric["name"]]
        unit *= _SUFFIXES.get(metric["suffix"] or "", 1.0)
        value = (
            fields.number(metric["value"]) if unit == 1.0 and name == "loss" else fields.positive(metric["value"], unit)
        )
        if value is not None:
            block[name] = value


def _notice(text: str, reading: Reading) -> None:
    """Keep the facts that a line between the blocks states about the run."""
    if reading.timestamp is None:
        reading.timestamp = fields.iso(date_in(text))
    if reading.host is None and (match := _HOST.match(text)):
        reading.host = match["host"]
    if match := _PARAMETERS.search(text):
        reading.model["parameters"] = fields.whole(match[1] or match[2])
    elif "Device: " in text and (name := devices.find_name(text)):
        reading.gpu_info["device_name"] = name
    elif "TrainConfig(" in text:
        _notice_configuration(text, reading)
    else:
        _notice_core(text, reading)


def _notice_core(text: str, reading: Reading) -> None:
    """Note the settings of OLMo-core, printed as dataclasses or as JSON; it counts batches in tokens."""
    config = reading.training_config
    for match in _CORE_ARGUMENT.finditer(text):
        if value := fields.whole(match["value"]):
            config.setdefault(CORE_SETTINGS.get(match["name"], match["name"]), value)
    length = config.get("sequence_length")
    for name, target in (("batch_tokens", "global_batch_size"), ("micro_batch_tokens", "micro_batch_size")):
        if length and (tokens := config.get(name)) and tokens % length == 0:
            config[target] = tokens // length


def _notice_configuration(text: str, reading: Reading) -> None:
    settings: dict[str, str] = {}
    for name, value in _ARGUMENT.findall(text):
        settings.setdefault(name, value.strip("'"))
    config = reading.training_config
    for name, (target, convert) in _SETTINGS.items():
        text = settings.get(name, "None")
        value = convert(text) if text != "None" or (name in settings and target == "recompute") else None
        if value is not None:
            config[target] = value
    per_device, batch = fields.whole(settings.get("device_train_batch_size")), config.get("global_batch_size")
    if per_device and batch and batch % per_device == 0:
        config["num_gpus"] = batch // per_device
    config["window"] = fields.whole(settings.get("window_size"))
    if "run_name" in settings:
        reading.model["name"] = settings["run_name"]
    if shape := _shape(settings):
        reading.model["shape"] = shape


def _shape(settings: dict[str, str]) -> ModelShape | None:
    """Return the model's shape, where every number of it is stated (olmo/config.py, ModelConfig)."""
    width, layers, heads = (fields.whole(settings.get(name)) for name in ("d_model", "n_layers", "n_heads"))
    vocabulary = fields.whole(settings.get("embedding_size")) or fields.whole(settings.get("vocab_size"))
    hidden = fields.whole(settings.get("mlp_hidden_size")) or (fields.whole(settings.get("mlp_ratio")) or 0) * (
        width or 0
    )
    if not (width and layers and heads and vocabulary and hidden) or width % heads:
        return None
    if settings.get("block_type") == "moe" or any(name.startswith("moe_") for name in settings):
        return None  # OLMoE: a mixture of experts has another cost, and its shared experts are not stated
    gated = settings.get("activation_type") == "swiglu"  # its hidden size counts gate and value together
    return arguments.shape_of(
        num_layers=layers,
        hidden_size=width,
        ffn_hidden_size=hidden // 2 if gated else hidden,
        num_attention_heads=heads,
        num_key_value_heads=fields.whole(settings.get("n_kv_heads")) or heads,
        head_dim=width // heads,
        vocab_size=vocabulary,
        gated_mlp=gated,
        tied_embeddings=settings.get("weight_tying") == "True",
    )
