"""Lines of the nanoGPT family between the rows, which state settings, devices, memory and dates."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from tensorprimat.core.clocks import LogClock
from tensorprimat.core.settings import PRECISION_OF_DTYPE, PRECISIONS
from tensorprimat.core.units import MIB
from tensorprimat.logs import fields
from tensorprimat.logs.clocks import date_in
from tensorprimat.logs.fields import WHOLE
from tensorprimat.logs.format import Reading
from tensorprimat.logs.nanogpt.clocks import TotalTime

_CONFIGURATION: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(rf"^tokens per iteration will be: {WHOLE}"), "tokens_per_step"),
    (re.compile(rf"^total desired batch size: {WHOLE}"), "tokens_per_step"),
    (re.compile(rf"^Total batch size {WHOLE} =>"), "tokens_per_step"),
    (re.compile(rf"^\| total batch size +\| {WHOLE}"), "tokens_per_step"),
    (re.compile(rf"^Overriding: gradient_accumulation_steps = {WHOLE}"), "gradient_accumulation_steps"),
    (re.compile(rf"[Gg]radient accumulation steps: {WHOLE}"), "gradient_accumulation_steps"),
    (re.compile(rf"^Model config: \{{.{{0,400}}'sequence_len': {WHOLE}"), "sequence_length"),
    (re.compile(rf"^Overriding: block_size = {WHOLE}"), "sequence_length"),
    (re.compile(rf"^Tokens / micro-batch / rank: \d+ x {WHOLE} ="), "sequence_length"),
    (re.compile(rf"^\| sequence length T +\| {WHOLE}"), "sequence_length"),
    (re.compile(rf"^Overriding: batch_size = {WHOLE}"), "micro_batch_size"),
    (re.compile(rf"^Tokens / micro-batch / rank: {WHOLE} x \d+ ="), "micro_batch_size"),
    (re.compile(rf"^\| micro batch size B +\| {WHOLE}"), "micro_batch_size"),
    (re.compile(rf"Distributed world size: {WHOLE}"), "num_gpus"),
    (re.compile(rf"^\| num_processes +\| {WHOLE}"), "num_gpus"),
    (re.compile(rf"^\| num_parameters +\| {WHOLE}"), "parameters"),
    (re.compile(rf"^Number of parameters: {WHOLE}"), "parameters"),
    (re.compile(rf"^Tokens / micro-batch / rank: \d+ x \d+ = {WHOLE}"), "tokens_of_rank"),
    (re.compile(rf"^Tokens / micro-batch: {WHOLE}"), "tokens_of_ranks"),
    (re.compile(rf"^ {{0,4}}train_batch_tokens: ?{WHOLE}"), "tokens_per_step"),
    (re.compile(rf"(?<!\w)train_seq_len: ?{WHOLE}"), "sequence_length"),
    (re.compile(rf"^ {{0,4}}world_size: ?{WHOLE}"), "num_gpus"),
    (re.compile(rf"^ {{0,4}}(?:world_size:\d{{1,7}} )?grad_accum_steps: ?{WHOLE}"), "gradient_accumulation_steps"),
    (re.compile(rf"^ {{0,4}}model_params: ?{WHOLE}"), "parameters"),
)
"""Lines before the rows that state one whole number."""
_PRECISION = re.compile(r"^(?:COMPUTE_DTYPE: torch\.|\| precision +\| )(\w+)")
_BATCH_OF_SOURCE = re.compile(r"^\s{1,8}train_batch_size\s?: int = (\d{1,9}(?: ?\* ?\d{1,9}){0,4})\s*(?:#.*)?$")
"""modded-nanogpt's records hold the program that wrote them; its hyperparameter counts tokens over all devices."""
_BATCH_SCHEDULE = re.compile(r"^\s{1,8}train_bs_schedule\b")
_SMI_PROCESS = re.compile(r"^\|\s+(\d{1,2})\s+N/A\s+N/A\s+\d{1,9}\s+C\s")
_FP8 = re.compile(r"FP8 training enabled")
_DEVICE = re.compile(
    r"^GPU: (.{1,80}?) \| Peak FLOPS|^\| device +\| (.{1,80}?) +\|$"
    r"|^\|\s+(\d{1,2})  (NVIDIA \S.{0,60}?)  +(?:On|Off)  \|"
)
_TORCH = re.compile(r"^Running PyTorch (\S+)", re.IGNORECASE)
_PEAK = re.compile(
    r"^[Pp]eak memory (?:usage|allocated|consumption): ([\d.,]+) ?MiB(?: reserved: ([\d.,]+) MiB)?"
    r"|^peak_vram_mb: +([\d.]+)"
)
_DATE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_SMI_DATE = re.compile(r"^[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d{1,2}) (\d\d:\d\d:\d\d \d{4})\s*$")
"""The first line of nvidia-smi; a page that it was copied from may have joined the two blanks before the day."""
NOTABLE = re.compile(
    r"FP8 training enabled|world size"
    r"|^(?:\s+train_b|Number of par|tokens per iter|total desired|=> calc|Total batch|Tokens /|Overriding:|\||GPU:"
    r"| {0,4}(?:train_batch_tokens|train_seq_len|world_size|grad_accum_steps|model_params):"
    r"|COMPUTE_DTYPE|Running [Pp]y[Tt]orch|[Pp]eak memory|peak_vram_mb|Model config: \{|Gradient accum"
    r"|\d{4}-|[A-Z][a-z]{2} [A-Z][a-z]{2} +\d)"
)
"""Beginnings of lines that state something; most lines need no other check."""


@dataclass(kw_only=True)
class LineFacts(Reading):
    """The reading, with facts of the lines between the rows that only the reader needs."""

    gpus: set[str] = field(default_factory=set)
    """Numbers of the devices that nvidia-smi listed."""
    gpus_in_use: set[str] = field(default_factory=set)
    """Numbers of the devices on which nvidia-smi listed a process."""
    tokens_per_step: int | None = None
    batch_grows: bool = False
    """True if the batch follows a schedule, so that no step's tokens are known."""
    peaks: dict[str, float] = field(default_factory=dict)
    warmed_up: bool = False
    """The log declares a warm-up before the clock starts."""
    announced_otherwise: dict[int, str] = field(default_factory=dict)
    """Line of a row → validation or checkpoint before it that a derived script announced in its own words."""
    clock: LogClock | None = None
    totals: TotalTime = field(default_factory=lambda: TotalTime())


def note_planned_steps(row: re.Match[str], seen: LineFacts) -> None:
    """Note the planned number of steps if a row states it: `step 12/6200`."""
    if planned := fields.whole(row.groupdict().get("last")):
        seen.training_config["max_steps"] = planned


def notice(text: str, seen: LineFacts) -> None:
    """Keep the facts that a line between the rows states about the run."""
    for pattern, name in _CONFIGURATION:
        if (match := pattern.search(text)) and (value := fields.whole(match[1])):
            _set(name, value, seen)
    if match := _BATCH_OF_SOURCE.match(text):
        seen.tokens_per_step = math.prod(int(factor) for factor in match[1].split("*"))
        return
    seen.batch_grows = seen.batch_grows or _BATCH_SCHEDULE.match(text) is not None
    if match := _SMI_PROCESS.match(text):
        seen.gpus_in_use.add(match[1])
        return
    if match := _PRECISION.match(text):
        precision = PRECISION_OF_DTYPE.get(match[1], match[1].lower())
        if precision in PRECISIONS:
            seen.training_config["precision"] = precision
    if _FP8.search(text):
        seen.training_config["precision"] = "fp8"
    if match := _DEVICE.search(text):
        seen.gpu_info["device_name"] = match[1] or match[2] or match[4]
        seen.gpus |= {match[3]} - {None}
    elif match := _TORCH.search(text):
        seen.gpu_info["pytorch_version"] = match[1]
    elif match := _PEAK.search(text):
        allocated, reserved = match[1] or match[3], match[2]
        for name, size in (("memory_allocated_peak_bytes", allocated), ("memory_reserved_peak_bytes", reserved)):
            if peak := fields.positive(size, MIB):
                seen.peaks[name] = peak
    elif seen.timestamp is None and _DATE.match(text):
        seen.timestamp = fields.iso(date_in(text))
    elif match := _SMI_DATE.match(text):
        month, day, time_and_year = match.groups()
        seen.timestamp = fields.iso(date_in(f"{month} {day:>2} {time_and_year}")) or seen.timestamp


def _set(name: str, value: int, seen: LineFacts) -> None:
    if name == "tokens_per_step":
        seen.tokens_per_step = value
    elif name == "parameters":
        seen.model["parameters"] = value
    else:
        seen.training_config[name] = value
