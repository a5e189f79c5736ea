"""The nanoGPT family: nanoGPT, build-nanogpt, nanochat, modded-nanogpt, parameter-golf, llm.c and llama2.c.

What the numbers mean, from the training scripts themselves:
- nanoGPT, `iter 5: loss …, time 1431.27ms, mfu …%`: the time of that one iteration, whatever the log interval. It
  includes an evaluation or a checkpoint with which the iteration began. `mfu` is a running mean against an A100 and is
  not read.
- build-nanogpt, `step 5 | loss: … | dt: 338.52ms | tok/sec: …`: the time of that step with a preceding validation,
  HellaSwag or sampling inside.
- nanochat, `step 00005/16704 (0.03%) | loss: … | dt: 648.81ms | tok/sec: 808,077 | mfu: …`: synchronised time of the
  step alone. Its loss is a smoothed one. tok/sec is over ALL GPUs in both. mfu is 0 where the GPU is unknown.
- modded-nanogpt, `step:6/1670 train_time:849ms step_avg:141.57ms`: train_time is the clock of the whole run, stopped in
  validation; a step's time is its growth since the row before. step_avg is a running mean and is not read. Where only
  validations are printed, the time between them is a mean over the steps between.
- parameter-golf prints the same, or `500/20000 train_loss: 3.38 train_time: 0.8m tok/s: 7715491`: tok/s is the tokens
  of all steps so far over train_time, over ALL GPUs.
- llm.c, `step 5/18865 | loss … | 354.65 ms | 58.1% bf16 MFU | 1478276 tok/s`: time of the step; tok/s is a running
  mean and is not read.
- llama2.c, `5 | loss … | lr … | 455.43ms | mfu …%`: the time of that one iteration, as nanoGPT's.
The records of modded-nanogpt begin with thousands of lines of source that mention all of these words, but contain no
number where a row has one.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tensorprimat.audit.evidence import Evidence, LogClock
from tensorprimat.core.notices import Notice
from tensorprimat.core.settings import PRECISION_OF_DTYPE, PRECISIONS
from tensorprimat.core.steady import median
from tensorprimat.core.steps import INTERRUPTIONS, Step, Steps
from tensorprimat.core.units import MIB
from tensorprimat.logs import fields, prefixes
from tensorprimat.logs.clocks import date_in
from tensorprimat.logs.fields import WHOLE
from tensorprimat.logs.format import Reading
from tensorprimat.logs.nanogpt import clocks, rows
from tensorprimat.logs.nanogpt.clocks import TotalTime
from tensorprimat.logs.text import Log

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

_WARMED_UP = (
    "Compiling model and warming up kernels", "Resetting Model", "# Warmup the training kernels", "warmup_step:",
)  # fmt: skip
"""Beginnings of lines of modded-nanogpt versions and parameter-golf that warm up on other data and reset the model
before the clock starts."""
_LONGEST_NOTE = 2**10  # characters of a line in which an announcement is looked for
COLD = 10.0  # times the median step: so slow a first step compiled or loaded data, even after a warm-up
COLD_SHARE = 0.015  # of the time of all steps; a first step with less is counted, as the records of modded-nanogpt do
_INTERRUPTION = re.compile(
    r"(?P<validation>^step \d+: train loss .*val loss|^validation loss:|^HellaSwag accuracy|^rank \d+ sample \d+:)"
    r"|^saving checkpoint to "
)
_OTHERWISE = re.compile(
    r"(?P<validation>\b(?:val(?:idation)?|eval(?:uation)?|test)\b\W{0,3}(?:loss|perplexity|ppl|bpb|acc)"
    r"|\b(?:val|validation|eval|test)_(?:loss|perplexity|ppl|bpb|acc))"
    r"|\b(?:saving|saved) (?:(?:the|a) )?(?:model|checkpoint)",
    re.IGNORECASE,
)
"""Words by which the many derived scripts announce the same."""
SLOW = 3  # times the rows before and after it: a row that may contain an evaluation
_FEWEST_SLOW = 3
ALL_OF_THEM = 0.9  # of the rows at the distance of the slow ones, as the last may be missing
_HOLD_EVALUATIONS = frozenset(spelling.project for spelling in rows.ROW_SPELLINGS if spelling.holds_evaluation)
_PROJECTS = (*dict.fromkeys(spelling.project for spelling in rows.ROW_SPELLINGS), "modded-nanogpt")
_MARKS = ("val", "Val", "VAL", "test", "Test", "TEST", "sav", "Sav", "SAV")
"""Texts of which such a line contains one."""


def detect(log: Log) -> int:
    return sum(1 for _, text in log.head() if rows.row_parts(text) or clocks.clock_parts(text))


def read(log: Log) -> Reading:
    seen = LineFacts()
    lines, projects = array("q"), array("b")

    def noted() -> Iterator[tuple[None, Step]]:
        for project, step in _rows(log, seen):
            lines.append(step.line or 0)
            projects.append(_PROJECTS.index(project))
            yield None, step

    steps = fields.merged(noted(), seen.warnings)
    for name, peak in seen.peaks.items() if len(steps) else ():  # printed once, at the end, for the whole run
        column = np.full(len(steps), np.nan)
        column[-1] = peak
        steps = steps.replace(**{name: column})
    if seen.batch_grows:
        seen.tokens_per_step = None
    if seen.tokens_per_step:
        steps = steps.replace(tokens=float(seen.tokens_per_step))
    config, length = seen.training_config, seen.training_config.get("sequence_length")
    if "warmup_steps" in config:
        config["warmup_steps"] = _cold_steps(steps)
    if seen.tokens_per_step and length and seen.tokens_per_step % length == 0:
        config["global_batch_size"] = seen.tokens_per_step // length
    if seen.gpus:
        seen.gpu_info["device_count"] = len(seen.gpus)
        if seen.gpus_in_use == seen.gpus:
            config.setdefault("num_gpus", len(seen.gpus))
    of_rank, of_ranks = config.pop("tokens_of_rank", None), config.pop("tokens_of_ranks", None)
    if of_rank and of_ranks and of_ranks % of_rank == 0:
        config.setdefault("num_gpus", of_ranks // of_rank)
    steps = _marked(steps, seen.announced_otherwise)
    if projects:
        seen.source = config["framework"] = _PROJECTS[np.bincount(projects).argmax()]
    if seen.source in _HOLD_EVALUATIONS:
        steps, unannounced = _without_unannounced(steps)
        seen.warnings += unannounced
    seen.steps, seen.begins = steps, _begins(np.array(lines), np.array(projects))
    if seen.clock:
        seen.evidence = Evidence(clocks=(seen.clock,))
    return seen


def _marked(steps: Steps, announced: Mapping[int, str]) -> Steps:
    """Return the rows with the interruptions that lines in other words announced.

    announced: line of a row → validation or checkpoint. If all rows after the first would be marked, none is: the log
    would have no step time, and such a script evaluates between the rows that it times.
    """
    interrupted = steps.column("interrupted_by").copy()
    for row, line in enumerate(steps.column("line").tolist()):
        if line in announced and not interrupted[row]:
            interrupted[row] = INTERRUPTIONS.index(announced[line])
    return steps if (interrupted[1:] > 0).all() else steps.replace(interrupted_by=interrupted)


def _without_unannounced(steps: Steps) -> tuple[Steps, list[Notice]]:
    """Return the rows with the evaluations that no line announces marked, as in a log of which only the rows were kept,
    and a warning: the slow rows, if they are those of every so many steps.
    """
    index, seconds, interrupted = (steps.column(name).copy() for name in ("index", "seconds", "interrupted_by"))
    around = np.fmax(np.append(seconds[1:], np.nan), np.append(np.nan, seconds[:-1])) if len(seconds) else seconds
    slow = (seconds > SLOW * around) & (interrupted == 0) & (index > 0)
    every = int(np.gcd.reduce(index[slow])) if slow.sum() >= _FEWEST_SLOW else 0
    if every <= fields.usual_distance(np.diff(index)):
        return steps, []
    if (slow | (interrupted > 0))[(index > 0) & (index % every == 0)].mean() < ALL_OF_THEM:
        return steps, []
    interrupted[slow] = INTERRUPTIONS.index("validation")
    warning = Notice("evaluations_unannounced", "steps", rows=int(slow.sum()), every=every, ratio=SLOW)
    return steps.replace(interrupted_by=interrupted), [warning]


def _cold_steps(steps: Steps) -> int:
    """Return the steps of the first row if it is COLD times as slow as the usual row of a log, else 0; of a log with
    several trainings the most.
    """
    seconds, covers = steps.column("seconds"), steps.column("covers")
    known = np.isfinite(seconds)
    if not known.any():
        return 0
    least = max(COLD * median(seconds[known]), COLD_SHARE * float((seconds * covers)[known].sum()))
    first = np.flatnonzero(np.diff(steps.column("index"), prepend=math.inf) <= 0)
    return int(covers[first[seconds[first] > least]].max(initial=0))


def _rows(log: Log, seen: LineFacts) -> Iterator[tuple[str, Step]]:
    """Yield (project, row), in the order of the log."""
    interrupted_by = otherwise = ""
    clock = clocks.TrainTime()
    for line, text in log.lines_of_one_rank(lambda text: rows.row_parts(text) or clocks.clock_parts(text)):
        if found := rows.row_parts(text):
            spelling, match = found
            note_planned_steps(match, seen)
            if "total" in spelling.pattern.groupindex:
                seen.totals.note(int(match["step"]), fields.number(match["total"]))
            if otherwise and spelling.holds_evaluation:
                seen.announced_otherwise[line] = otherwise
            yield spelling.project, rows.step(line, spelling, match, interrupted_by)
            interrupted_by = otherwise = ""
            continue
        if mark := clocks.clock_parts(text):
            note_planned_steps(mark, seen)
            clock.note(line, mark, None if seen.batch_grows else seen.tokens_per_step)
            continue
        plain = prefixes.undated(text)
        if plain is not text and seen.timestamp is None:
            seen.timestamp = fields.iso(date_in(text))
        if announced := _INTERRUPTION.search(plain):
            interrupted_by = "validation" if announced["validation"] else interrupted_by or "checkpoint"
            continue
        if NOTABLE.search(plain):
            notice(plain, seen)
        elif plain.startswith(_WARMED_UP):
            seen.warmed_up = True
        if any(map(text.__contains__, _MARKS)) and (announced := _OTHERWISE.search(plain[:_LONGEST_NOTE])):
            otherwise = "validation" if announced["validation"] else otherwise or "checkpoint"
    seen.clock = seen.totals.clock
    if clock.total is not None:
        seen.clock = clock.total
        if seen.warmed_up:
            seen.training_config["warmup_steps"] = 0
    yield from (("modded-nanogpt", step) for step in clock.steps())
    seen.warnings += clock.repeats.warnings()


def _begins(lines: np.ndarray, projects: np.ndarray) -> list[tuple[int, str]]:
    """Return (line, reason) of each row of another project than the row before it. lines, projects: shape (rows,)."""
    order = np.argsort(lines, kind="stable")
    lines, projects = lines[order], projects[order]
    others = np.flatnonzero(projects[1:] != projects[:-1]) + 1
    return [(int(lines[row]), f"rows of {_PROJECTS[projects[row]]}") for row in others]


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
