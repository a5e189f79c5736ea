"""Reader of torchtitan logs: `step: 10 loss: 4.1 memory: 38.50GiB(48%) tps: 7,012 tflops: 410.10 mfu: 41.5%`.

What the numbers mean (torchtitan/components/metrics.py):
- `tps` (until November 2024 `wps`) is the tokens since the last line, over the time since then, per GPU: the tokens of
  a data-parallel rank are divided by the GPUs that share them. It is a mean over the log interval, so a row covers as
  many steps as lie since the last one; step 1 is always printed.
- Validation restarts clock and token count, so its time is in no row; a checkpoint does not, so its row is marked,
  except when a validation follows before the row. An asynchronous checkpoint lasts into the next steps in any case.
- No step time is printed. It follows from `tps` where the log states batch, sequence length and world size, because
  torchtitan divided just these tokens by it. `tps` is rounded to whole tokens: below LEAST_TPS that moves the time
  by more than 0.1 %, and the rows keep their rates alone.
- Memory is the peak that the allocator reserved since the last line, in GiB.
- Ranks that hold no loss (all pipeline stages but the last) print -1 for it.

TensorBoard and Weights & Biases get the same as metrics (`with_step_times`). `time_metrics/end_to_end(s)` is the time
since the last row or validation over the log interval, but after a validation and at the first row of a process fewer
steps lie in it (0.3.0). `throughput(tps)` is a mean over the same time, so the product of both shows how many.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorprimat.audit.evidence import Evidence
from tensorprimat.core.notices import Notice
from tensorprimat.core.result import ModelShape
from tensorprimat.core.settings import PARALLEL_SIZES, PRECISION_OF_DTYPE
from tensorprimat.core.steady import median
from tensorprimat.core.steps import FloatArray, Step, Steps
from tensorprimat.core.units import GB, GIB
from tensorprimat.logs import arguments, damage, fields
from tensorprimat.logs.clocks import date_in
from tensorprimat.logs.fields import NUMBER, WHOLE
from tensorprimat.logs.format import Reading
from tensorprimat.logs.prefixes import Origin
from tensorprimat.logs.text import Log
from tensorprimat.models import presets

LEAST_TPS = 500  # half a token in 500 is 0.1 %
TORCHTITAN_STEP_TIME = "time_metrics/end_to_end(s)"
LARGEST_DEVIATION = 0.05  # of a number of steps from a whole one
NO_LOSS = -1.0  # printed by ranks that hold none

_ROW = re.compile(r"(?<!validate )\bstep:\s*(\d{1,15})\s")
_FIELD = re.compile(
    rf"\b(loss|grad_norm|tflops|tps|wps):\s{{0,9}}({NUMBER})(?=\s)"
    rf"|\b(?P<sized>memory|mfu):\s{{0,9}}(?P<size>{NUMBER})(?:GiB|%)"
    r"|\b(?P<rate>tps|wps):\s{0,9}(?P<value>\d{1,3},\d{3})$"
)
"""A rate with a separator of thousands may be the last of a row: cut inside, it would have none, or fewer digits after
it. Every other number is followed by its unit or by the next name."""
_NAMES_RATE = re.compile(r"\b(?:tps|wps):\s{0,9}\S{1,40}\s+[a-z]")
"""A rate before another field, so that its row is not cut there; `4,0966` is one that no reader takes for a number."""
_VALIDATION = re.compile(rf"\bvalidate step:\s*(\d{{1,15}})\s+loss:\s*{NUMBER}")
_DATASET = re.compile(r"\bPreparing (\S{1,200}) dataset\b")
_CHECKPOINT = re.compile(r"\b(?:Saving|Staging) (?:the|a|an) (?:.{1,40} )?checkpoint\b")
_START = re.compile(r"Training starts at step (\d{1,15})")
_MESH = re.compile(
    r"Building device mesh with parallelism: (?P<named>.{1,400})"
    r"|Building \d-D device mesh with \[(?P<names>[^\]]{0,200})\], \[(?P<sizes>[^\]]{0,200})\]"
)
_CAPACITY = re.compile(
    r"\b(?P<kind>[A-Za-z]+) capacity: (?P<device>.{1,80}?)(?: \(\d+\))? with (?P<gib>[\d.]+)GiB memory"
)
_MODEL = re.compile(r"\bModel (?P<name>\S{1,60}(?: \S{1,60})?) size: (?P<parameters>[\d,]+) total parameters")
_MODEL_ARGUMENT = re.compile(
    r"(?:^\s*\"|\(|, )(dim|n_layers|n_heads|n_kv_heads|head_dim|hidden_dim|vocab_size|multiple_of|ffn_dim_multiplier"
    r"|qk_norm|enable_weight_tying|sliding_window\w*)(?:\": |=)(\d[\d.]{0,19}|[A-Za-z]{4,5})(?=[,)\s]|$)"
)
"""In "Building llama3 8Bwith {…}" of 0.2.2, an entry a line, and "Building llama3 8B with TransformerModelArgs(…)"."""
_TRAINER = re.compile(r"\bTrainer (?:is )?initialized\b|\bTraining starts at step .{1,80}batch size")

_SETTINGS: dict[str, re.Pattern[str]] = {
    "micro_batch_size": re.compile(rf"\blocal batch size {WHOLE}(?=,)"),
    "global_batch_size": re.compile(rf"\bglobal batch size {WHOLE}(?=,)"),
    "gradient_accumulation_steps": re.compile(rf"\bgradient accumulation steps {WHOLE}"),
    "sequence_length": re.compile(rf"\b(?:sequence|maximum context) length {WHOLE}"),
    "max_steps": re.compile(rf"\btotal steps {WHOLE}"),
    "tokens_per_step": re.compile(r"\b([\d,]{1,20}) tokens per train step"),
}
"""Field of TrainingConfig → expression for the line that the trainer prints at its start (tokens_per_step is no
field)."""

_ARGUMENTS = {
    "training.steps": "max_steps",
    "training.seq_len": "sequence_length",
    "training.local_batch_size": "micro_batch_size",
    "training.batch_size": "micro_batch_size",
    "training.global_batch_size": "global_batch_size",
    "training.seed": "seed",
}
"""Arguments of the command line, where a launcher echoed it; the trainer's own statements override them."""
_ARGUMENT = re.compile(r"--(?P<name>[a-z_]+\.[a-z_]+)[= ](?P<value>[\w.-]+)")

MESH = dict(zip(("tp", "pp", "cp", "ep"), PARALLEL_SIZES, strict=True))
OUTSIDE_THE_PRODUCT = ("ep", "etp")  # experts are spread over GPUs that the other sizes already count

_MARKS: tuple[tuple[re.Pattern[str], str, Any], ...] = (
    (
        re.compile(r"Compiling (?:each|the) .{1,80}with torch\.compile|--compile\.enable\b(?!=[Ff]alse)"),
        "compile",
        True,
    ),
    (re.compile(r"Applied HSDP to the model"), "strategy", "hsdp"),
    (re.compile(r"Applied (?:.{1,80} )?(?:FSDP2?\b|fully_shard to the model)"), "strategy", "fsdp"),
    (re.compile(r"Applied DDP to the model"), "strategy", "ddp"),
    (re.compile(r"Float8 training active"), "precision", "fp8"),
    (re.compile(r"Float8 training active with recipe (\S+)"), "fp8_recipe", None),
    (re.compile(r"Applied (\w+) activation checkpointing to the model"), "recompute", None),
    (re.compile(r"Applied SelectiveAC activation checkpointing"), "recompute", "selective"),  # since June 2026
    (re.compile(r"Applied FullAC activation checkpointing"), "recompute", "full"),
    (re.compile(r"Selected \S+ budget option"), "recompute", "memory_budget"),
    (re.compile(r"torchtitan version: (?!0\.0\.0)(\S+)"), "framework_version", None),  # 0.0.0: never installed
)
"""Lines that state one setting: its name, and its value or None where the line contains it."""

_DTYPE = re.compile(r"--training\.(?:dtype|mixed_precision_param)[= ](\w+)")

_NOTABLE = re.compile(
    r"\[titan\]|Train|mesh|capacity:|total parameters|version:|Applied|Compiling|Float8|budget option|"
    r"--[a-z]+\.[a-z]|Building |^\s*\""
)
"""Texts of which every line that states something contains one; most lines of a long log need no other check."""


@dataclass(kw_only=True)
class _Seen(Reading):
    source: str = "torchtitan"
    arguments: dict[str, Any] = field(default_factory=dict)
    model_arguments: dict[str, str] = field(default_factory=dict)
    tokens_per_step: int | None = None
    validations: set[int] = field(default_factory=set)
    announced: dict[int, str] = field(default_factory=dict)
    """Line → "validation"."""
    starts: list[int] = field(default_factory=list)
    has_rows: bool = False
    """Rows were read: later statements are of another training, which may fail before its first row."""


def detect(log: Log) -> int:
    likely = (text for _, text in log.head() if "memory:" in text and "step:" in text)
    return sum(1 for text in likely if ("tps:" in text or "wps:" in text) and _step(0, text, ""))


def read(log: Log) -> Reading:
    seen = _Seen()
    steps = fields.merged(_rows(log, seen), seen.warnings)
    seen.training_config = config = {**seen.arguments, **seen.training_config}
    if (tokens := seen.tokens_per_step) and (length := config.get("sequence_length")) and tokens % length == 0:
        config.setdefault("global_batch_size", tokens // length)
    config["framework"] = "torchtitan"
    batch, length, gpus = (config.get(name) for name in ("global_batch_size", "sequence_length", "num_gpus"))
    tokens = seen.tokens_per_step or (batch * length if batch and length else None)
    if len(steps) and not (steps.has("reported_tflops_per_gpu") or steps.has("reported_mfu")):
        seen.warnings.append(Notice("rows_cut", "steps"))  # every version prints TFLOP/s or MFU after the rate
    if tokens and gpus:
        seen.timer = "reported_tokens_per_second_per_gpu"
        if steps.has(seen.timer):
            steps, coarse = _timed(steps, tokens / gpus)
            seen.warnings += coarse
    unread = ~np.isfinite(steps.column("reported_tokens_per_second_per_gpu"))
    if unread.any():
        places = damage.places(steps, unread)
        seen.warnings.append(Notice("damaged_values", "steps", what="the rate is", where=places, why="it is no number"))
    starts = {segment: first - 1 for segment, first in enumerate(seen.starts)}
    seen.steps = fields.with_intervals(steps, starts=starts, extra_boundaries=seen.validations)
    seen.evidence = Evidence(announced=seen.announced)
    return seen


def _rows(log: Log, seen: _Seen) -> Iterator[tuple[int | None, Step]]:
    saved: set[int | None] = set()  # ranks whose next row holds a checkpoint
    staged: set[int | None] = set()  # of these, ranks that write it during the next steps
    prepared = ""  # first data set since a row or validation; a validation's own is prepared after the training's
    for line, origin, text in log.lines_by_rank():
        if "step:" in text:
            if step := _step(line, text, "checkpoint" if origin.rank in saved else ""):
                saved.discard(origin.rank)
                staged.discard(origin.rank)
                seen.has_rows = True
                if prepared:
                    seen.training_config.setdefault("data", prepared)
                    prepared = ""
                if origin.primus:
                    step = step.changed(ended_at=step.ended_at or date_in(origin.time or ""))
                    _notice_primus(origin, step, seen)
                yield origin.rank, step
            elif match := _VALIDATION.search(text):
                seen.validations.add(int(match[1]))
                seen.announced[line] = "validation"
                prepared = ""
                if origin.rank not in staged:
                    saved.discard(origin.rank)
        elif _CHECKPOINT.search(text):
            saved.add(origin.rank)
            if "tag" in text:  # "Staging the checkpoint", "Saving the checkpoint (or staging if async is enabled)"
                staged.add(origin.rank)
        else:
            if match := _DATASET.search(text):
                prepared = prepared or match[1]
            _notice(text, origin, seen)


def _step(line: int, text: str, interrupted_by: str) -> Step | None:
    row = _ROW.search(text)
    if row is None:
        return None
    values = {
        match[1] or match["sized"] or match["rate"]: match[2] or match["size"] or match["value"]
        for match in _FIELD.finditer(text, row.end())
    }
    rate = fields.positive(values.get("tps") or values.get("wps"))
    if rate is None and not _NAMES_RATE.search(text, row.end()):
        return None
    loss = fields.number(values.get("loss"))
    norm = fields.number(values.get("grad_norm"))
    return Step(
        index=int(row[1]),
        seconds=None,
        ended_at=date_in(text[: row.start()]),
        loss=None if loss == NO_LOSS else loss,
        gradient_norm=None if norm == NO_LOSS else norm,
        memory_reserved_peak_bytes=fields.positive(values.get("memory"), GIB),
        reported_tokens_per_second_per_gpu=rate,
        reported_tflops_per_gpu=fields.positive(values.get("tflops")),
        reported_mfu=fields.positive(values.get("mfu"), 0.01),
        interrupted_by=interrupted_by,
        line=line,
    )


def _timed(steps: Steps, tokens_per_gpu: float) -> tuple[Steps, list[str]]:
    """Return the rows with the mean time of one optimizer step, where the rounded rates are exact enough, else a
    warning. All rows get a time, or none: times of the faster rows alone would be no mean of the training.
    """
    rate = steps.column("reported_tokens_per_second_per_gpu")
    usual = median(rate[np.isfinite(rate)])
    if usual < LEAST_TPS:
        return steps, [Notice("rate_too_coarse", "step_time", off=0.5 / usual)]
    return steps.replace(seconds=tokens_per_gpu / np.where(rate > 0, rate, np.nan)), []


def _notice(text: str, origin: Origin, seen: _Seen) -> None:
    """Keep the facts that a line between the rows states about the run."""
    if not _NOTABLE.search(text):
        return
    if seen.timestamp is None:
        seen.timestamp = fields.iso(date_in(text)) if "[titan]" in text else None
    if (match := _START.search(text)) and origin.rank in (None, 0):
        seen.starts.append(int(match[1]))
    if _TRAINER.search(text):
        _notice_trainer(text, seen)
    elif match := _MESH.search(text):
        if not (seen.has_rows and "num_gpus" in seen.training_config):
            _notice_mesh(match, seen.training_config)
    elif match := _CAPACITY.search(text):
        seen.gpu_info["device_name"] = match["device"]
        if memory := fields.positive(match["gib"], GIB / GB):
            seen.gpu_info["total_memory_gb"] = memory
    elif (match := _MODEL.search(text)) and not (seen.has_rows and seen.model):
        parameters = fields.whole(match["parameters"])
        seen.model = {"name": match["name"], "parameters": parameters}
        if shape := _shape(seen.model_arguments, parameters):
            seen.model["shape"] = shape
    seen.model_arguments.update(_MODEL_ARGUMENT.findall(text))
    for pattern, name, value in _MARKS:
        if match := pattern.search(text):
            seen.training_config[name] = match[1] if value is None else value
    for match in _ARGUMENT.finditer(text):
        if (target := _ARGUMENTS.get(match["name"])) and (stated := fields.whole(match["value"])):
            seen.arguments[target] = stated
    if (match := _DTYPE.search(text)) and match[1] in PRECISION_OF_DTYPE:
        seen.arguments["precision"] = PRECISION_OF_DTYPE[match[1]]


def _shape(stated: dict[str, str], parameters: int | None) -> ModelShape | None:
    """Return the shape that a model's arguments state; None unless it has the number of parameters that is printed.

    Experts, biases and layers that the arguments do not describe make another number.
    """
    width, layers, heads, vocabulary, ffn, multiple = (
        fields.whole(stated.get(name))
        for name in ("dim", "n_layers", "n_heads", "vocab_size", "hidden_dim", "multiple_of")
    )
    if not (width and layers and heads and vocabulary and (ffn or multiple)) or "sliding" in "".join(stated):
        return None
    if multiple:  # torchtitan/models/llama3/model/model.py, FeedForward
        least = int((fields.positive(stated.get("ffn_dim_multiplier")) or 1) * int(8 * width / 3))
        ffn = -(-least // multiple) * multiple
    shape = arguments.shape_of(
        num_layers=layers,
        hidden_size=width,
        ffn_hidden_size=ffn,
        num_attention_heads=heads,
        num_key_value_heads=fields.whole(stated.get("n_kv_heads")) or heads,
        head_dim=fields.whole(stated.get("head_dim")) or width // heads,
        vocab_size=vocabulary,
        tied_embeddings=stated.get("enable_weight_tying", "").lower() == "true",
    )
    if shape is None:
        return None
    norms = 2 * layers * shape.head_dim if stated.get("qk_norm", "").lower() == "true" else 0
    return shape if presets.parameters(shape) + norms == parameters else None


def _notice_primus(origin: Origin, step: Step, seen: _Seen) -> None:
    """Note that Primus runs torchtitan with one process for each GPU, and on AMD GPUs only."""
    seen.platform, seen.source = "amd", "Primus (torchtitan backend)"
    if origin.world_size:
        seen.training_config.setdefault("num_gpus", origin.world_size)
    if seen.timestamp is None:
        seen.timestamp = fields.iso(step.ended_at)


def _notice_trainer(text: str, seen: _Seen) -> None:
    for name, pattern in _SETTINGS.items():
        if (match := pattern.search(text)) and (value := fields.whole(match[1])):
            if name == "tokens_per_step":
                seen.tokens_per_step = seen.tokens_per_step if seen.has_rows and seen.tokens_per_step else value
            elif name not in seen.training_config or not seen.has_rows:
                seen.training_config[name] = value


def _notice_mesh(match: re.Match[str], config: dict[str, Any]) -> None:
    """Note world size and parallel sizes; the product of a complete mesh is the number of GPUs."""
    if match["named"] is not None:
        stated = dict(re.findall(r"\b([a-z_]+)=((?:,(?=\d)|[^,\s)])*)", match["named"]))
        if "tp" not in stated or not all(size.isdecimal() for size in stated.values()):
            return  # cut off
        sizes = {name: int(size[:6]) for name, size in stated.items()}
    else:
        names = re.findall(r"[a-z_]+", match["names"])
        sizes = dict(zip(names, map(int, re.findall(r"\d{1,6}", match["sizes"])), strict=False))
    if not sizes:
        return
    config["num_gpus"] = math.prod(size for name, size in sizes.items() if name not in OUTSIDE_THE_PRODUCT)
    for name, size in sizes.items():
        if name in MESH:
            config[MESH[name]] = size


def with_step_times(steps: Steps, validations: np.ndarray) -> tuple[Steps, list[str]]:
    """Return the rows with the steps that each covers and the mean time of one, and a warning if that is unknown.

    validations: numbers of the steps after which a validation ran. If the rates contradict the number of steps, for
    example because the validations were not exported, the rows keep their rates alone.
    """
    interval = _interval(steps)
    if interval <= 1:
        return steps, []
    covers = fields.with_intervals(steps, extra_boundaries=validations.tolist()).column("covers")
    printed, rates = steps.column("seconds"), steps.column("reported_tokens_per_second_per_gpu")
    known = np.isfinite(printed) & np.isfinite(rates)
    if known.any():
        counted = _counted(interval * (printed * rates)[known], covers[known])
        if counted is None or counted.max() > interval:
            return steps.replace(seconds=np.full(len(steps), np.nan), covers=covers), [
                Notice("interval_contradicted", "step_time", name=TORCHTITAN_STEP_TIME)
            ]
        covers = covers.copy()
        covers[known] = counted
    return steps.replace(seconds=printed * interval / covers, covers=covers), []


def _interval(steps: Steps) -> int:
    """Return the log interval, the usual distance between rows; 1 if it is unknown.

    torchtitan logs the multiples of the interval, and the first step of every process.
    """
    index, segment = steps.column("index").astype(np.int64), steps.column("segment")
    later = np.flatnonzero(np.diff(segment, prepend=-1) == 0)
    distances = np.diff(index)[later[1:] - 1] if len(later) > 1 else index[later]
    return fields.usual_distance(distances[distances > 0])


def _counted(tokens: FloatArray, covers: np.ndarray) -> np.ndarray | None:
    """Return the steps of each row by its tokens, where most rows contain the steps that their numbers show; None if a
    row would hold a fraction of a step.

    >>> _counted(np.array([100.0, 500.0, 200.0, 500.0, 500.0]), np.array([1, 5, 5, 5, 5]))
    array([1, 5, 2, 5, 5])
    >>> _counted(np.array([100.0, 510.0, 770.0]), np.array([5, 5, 5]))
    """
    exact = tokens / median(tokens / covers)
    whole = np.rint(exact).astype(np.int64)
    return whole if (whole >= 1).all() and (np.abs(exact - whole) < LARGEST_DEVIATION).all() else None
