"""The hook of OLMo and OLMo-core: settings and the shape of the model.

Meaning of the numbers (olmo/train.py, SpeedMonitor; olmo_core/train/callbacks/speed_monitor.py):
- OLMo's `throughput/device/tokens_per_second` is a mean over a sliding window of up to `speed_monitor.window_size`
  steps, per GPU. Windows overlap, so the spread of these rates says little about single steps. OLMo-core's
  `throughput/device/TPS` is the rate of the one step, and `throughput/device/BPS` is one over its time; a step after
  which a checkpoint or an evaluation follows includes it, and its block says so.
- The monitor of OLMo begins after the first batch, and again after every checkpoint and evaluation, so neither is in a
  rate; a block without a rate (the first) is not a row.
- Memory: `System/Peak GPU Memory (MB)` is the allocator's peak over all ranks, in units of 10**6 bytes.
"""

from __future__ import annotations

import re

from tensorprimat.core.notices import Notice
from tensorprimat.core.steps import finite
from tensorprimat.logs import arguments, fields, headers
from tensorprimat.logs.clocks import date_in
from tensorprimat.logs.format import Reading
from tensorprimat.logs.text import Log

_ARGUMENT = re.compile(r"\b(\w+)=('[^']*'|[\w.+-]+)(?=\s{0,9}[,)])(?!,\d)")
_OF_CORE = re.compile(
    r"\b(global_batch_size|rank_microbatch_size|sequence_length|world[ _]size)\"?(?:=|: ?)(\d{1,18}(?:,\d{3})*)"
    r"(?=[\s,)}]|$)"
)
_HOST = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d{3}\s+([\w.-]{1,255}):\d{1,7}\s")


def add_olmos_settings(log: Log, reading: Reading) -> None:
    """Add the settings that lines before the first row state; OLMo-core counts a batch in tokens."""
    config, stated, core = reading.training_config, dict[str, str](), dict[str, int | None]()
    for text in headers.lines_before_rows(log, reading.steps):
        if reading.host is None and (match := _HOST.match(text)):
            reading.host, reading.timestamp = match[1], fields.iso(date_in(text))
        if "TrainConfig(" in text:
            stated = {name: value.strip("'") for name, value in reversed(_ARGUMENT.findall(text))}
        for name, value in _OF_CORE.findall(text):
            core.setdefault(name.replace(" ", "_"), fields.whole(value))
    config |= arguments.settings_of(stated.items())
    batch, of_device, length, window = (
        fields.whole(stated.get(name))
        for name in ("global_train_batch_size", "device_train_batch_size", "max_sequence_length", "window_size")
    )
    counts = {"sequence_length": length or core.get("sequence_length"), "num_gpus": core.get("world_size")}
    if batch and of_device and batch % of_device == 0:
        counts["num_gpus"] = batch // of_device
    for name, field in (("global_batch_size", "global_batch_size"), ("rank_microbatch_size", "micro_batch_size")):
        if (length := counts["sequence_length"]) and (amount := core.get(name)) and amount % length == 0:
            counts[field] = amount // length
    config |= {name: value for name, value in counts.items() if value}
    if "run_name" in stated:
        reading.model["name"] = stated["run_name"]
    if window and len(reading.steps) > 1:
        reading.warnings.append(Notice("rate_of_window", "tokens_per_second_per_gpu"))
    tokens = finite(reading.steps.column("tokens"))
    if reading.steps.has("seconds") and len(tokens) > 1 and (tokens == tokens[0]).all():
        reading.steps = reading.steps.replace(tokens=float(tokens[0]))  # OLMo-core rounds later totals
