"""The nanoGPT family: nanoGPT, build-nanogpt, nanochat, modded-nanogpt and llm.c (C and Python).

What the numbers mean, from the training scripts themselves:
- nanoGPT, `iter 5: loss …, time 1431.27ms, mfu …%`: the time of that one iteration, whatever the log interval. An
  iteration that evaluated or saved first has that inside. `mfu` is a running mean against an A100 and is not read.
- build-nanogpt, `step 5 | loss: … | dt: 338.52ms | tok/sec: …`: the time of that step with a preceding validation,
  HellaSwag or sampling inside.
- nanochat, `step 00005/16704 (0.03%) | loss: … | dt: 648.81ms | tok/sec: 808,077 | mfu: …`: synchronised time of the
  step alone. Its loss is a smoothed one. tok/sec is over ALL GPUs in both. mfu is 0 where the GPU is unknown.
- modded-nanogpt, `step:6/1670 train_time:849ms step_avg:141.57ms`: train_time is the clock of the whole run, stopped in
  validation; a step's time is its growth since the row before. step_avg is a running mean and is not read. Where only
  validations are printed, the time between them is a mean over the steps between.
- llm.c, `step 5/18865 | loss … | 354.65 ms | 58.1% bf16 MFU | 1478276 tok/s`: time of the step; tok/s is a running
  mean and is not read.
The records of modded-nanogpt begin with thousands of lines of source that mention all of these words, but hold no
number where a row has one.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tensorprimat.core.clocks import Evidence, LogClock
from tensorprimat.core.steps import Step
from tensorprimat.logs import devices, fields
from tensorprimat.logs.fields import NUMBER, WHOLE
from tensorprimat.logs.format import Reading
from tensorprimat.logs.text import Log

MIB = 2**20
MILLISECOND = 1e-3
UNTIMED = 10  # nanochat's total time begins behind this step


@dataclass(kw_only=True)
class _Seen:
    config: dict[str, Any] = field(default_factory=dict)
    gpu_info: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    gpus: set[str] = field(default_factory=set)
    """Numbers of the devices that nvidia-smi listed."""
    gpus_in_use: set[str] = field(default_factory=set)
    """Numbers of the devices on which nvidia-smi listed a process."""
    tokens_per_step: int | None = None
    batch_grows: bool = False
    """True if the batch follows a schedule, so that no step's tokens are known."""
    peaks: dict[str, float] = field(default_factory=dict)
    timestamp: float | None = None
    warmed_up: bool = False
    """The log declares a warm-up before the clock starts."""
    clock: LogClock | None = None
    totals: _Totals = field(default_factory=lambda: _Totals())


@dataclass(kw_only=True)
class _Totals:
    """Clock of nanochat: the times of all steps behind UNTIMED added up, in minutes with two decimals."""

    first: tuple[int, float] | None = None
    """(step, seconds)"""
    last: tuple[int, float] | None = None
    is_one_run: bool = True
    """The clock and the steps only grew."""

    def note(self, step: int, minutes: float | None) -> None:
        """Take in the clock of one row."""
        if minutes is None or step < UNTIMED:
            return
        reading = (step, 60 * minutes)
        if self.last is not None and (step <= self.last[0] or reading[1] < self.last[1]):
            self.is_one_run = reading == self.last and self.is_one_run  # a row may be printed twice
        self.first, self.last = self.first or reading, reading

    @property
    def clock(self) -> LogClock | None:
        """Return the time between the first and the last row that state it."""
        if self.first is None or self.last is None or not self.is_one_run or self.last[0] == self.first[0]:
            return None
        return LogClock(
            name="total time",
            seconds=self.last[1] - self.first[1],
            steps=float(self.last[0] - self.first[0]),
            after_step=self.first[0],
            tells_all=True,
            resolution=0.6,
        )


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """The form in which one project writes a row."""

    project: str
    mark: str
    """Text in every row: a line without it is skipped in a twentieth of the time."""
    pattern: re.Pattern[str]
    unit: float = MILLISECOND
    """Of the time on the row, in seconds."""
    holds_evaluation: bool = False
    """True if the time of the row contains an evaluation or checkpoint announced since the previous row."""


SPELLINGS = (
    Spelling(
        project="nanoGPT",
        mark=", time ",
        pattern=re.compile(rf"\biter (?P<step>\d{{1,15}}): loss (?P<loss>{NUMBER}), time (?P<time>{NUMBER})ms"),
        holds_evaluation=True,
    ),
    Spelling(
        project="build-nanogpt",
        mark=" | dt: ",
        pattern=re.compile(
            rf"\bstep +(?P<step>\d{{1,15}}) \| loss: (?P<loss>{NUMBER}) \| lr:? (?P<lr>{NUMBER})"
            rf" \| norm: ?(?P<norm>{NUMBER}) \| dt: (?P<time>{NUMBER})ms \| tok/sec: (?P<tokens>{NUMBER})"
        ),
        holds_evaluation=True,
    ),
    Spelling(
        project="nanochat",
        mark=" dt: ",
        pattern=re.compile(
            rf"\bstep +(?P<step>\d{{1,15}})(?:/(?P<last>\d{{1,15}}))? \([\d.]+%\) \| loss: (?P<loss>{NUMBER}) \|"
            rf"(?: grad norm: (?P<norm>{NUMBER}) \|)?.{{0,60}}? dt: (?P<time>{NUMBER})ms"
            rf" \| tok/sec: (?P<tokens>{NUMBER})"
            rf"(?: \| (?:bf16_)?mfu: (?P<mfu>{NUMBER}))?"
            rf"(?:.{{0,200}}? \| total time: (?P<total>{NUMBER})m)?"
        ),
    ),
    Spelling(
        project="llm.c",
        mark=" tok/s",
        pattern=re.compile(
            rf"\bstep +(?P<step>\d{{1,15}})/(?P<last>\d{{1,15}}) ?[|:] (?:train )?loss (?P<loss>{NUMBER})"
            rf"(?: \([-+\w.]+z\))?(?: ?\| norm (?P<norm>{NUMBER})(?: \([-+\w.]+z\))?)?(?: ?\| lr (?P<lr>{NUMBER}))?"
            rf"(?: ?\| \(?| \()(?P<time>{NUMBER}) ms(?: \| (?P<mfu>{NUMBER})% \w+ MFU)?(?:,| \|) {NUMBER} tok/s"
        ),
    ),
    Spelling(
        project="llm.c",
        mark=" (took ",
        pattern=re.compile(
            rf"\bstep (?P<step>\d{{1,15}}): train loss (?P<loss>{NUMBER}) \(took (?P<time>{NUMBER}) ms\)"
        ),
    ),
)
_CLOCK = re.compile(
    rf"\bstep:(?P<step>\d{{1,15}})/(?P<last>\d{{1,15}}) (?:train_loss:(?P<loss>{NUMBER}) )?"
    rf"(?P<validation>(?:val_\w+:{NUMBER} )+)?train_time:(?P<time>{NUMBER})(?P<unit>m?s)\b"
)
_CLOCK_MARK = "train_time:"
_WARMED_UP = ("Compiling model and warming up kernels", "Resetting Model", "# Warmup the training kernels")
"""Beginnings of lines of modded-nanogpt versions that warm up on other data and reset the model before the clock
starts."""
_INTERRUPTION = re.compile(
    r"(?P<validation>^step \d+: train loss .*val loss|^validation loss:|^HellaSwag accuracy|^rank \d+ sample \d+:)"
    r"|^saving checkpoint to "
)

CONFIGURATION: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(rf"^tokens per iteration will be: {WHOLE}"), "tokens_per_step"),
    (re.compile(rf"^total desired batch size: {WHOLE}"), "tokens_per_step"),
    (re.compile(rf"^Total batch size {WHOLE} =>"), "tokens_per_step"),
    (re.compile(rf"^\| total batch size +\| {WHOLE}"), "tokens_per_step"),
    (re.compile(rf"^Overriding: gradient_accumulation_steps = {WHOLE}"), "gradient_accumulation_steps"),
    (re.compile(rf"gradient accumulation steps: {WHOLE}"), "gradient_accumulation_steps"),
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
)
"""Lines before the rows that state one whole number."""
PRECISIONS = (
    (re.compile(r"^COMPUTE_DTYPE: torch\.(\w+)"), {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}),
    (re.compile(r"^\| precision +\| (\w+)"), {"BF16": "bf16", "TF32": "tf32", "FP32": "fp32", "FP16": "fp16"}),
)
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
_PEAK = re.compile(r"^[Pp]eak memory (?:usage|allocated|consumption): ([\d.,]+) ?MiB(?: reserved: ([\d.,]+) MiB)?")
_DATE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_SMI_DATE = re.compile(
    r"^[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d{1,2}) (\d\d:\d\d:\d\d) (\d{4})\s*$"
)  # nvidia-smi's first line
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_NOTABLE = re.compile(
    r"FP8 training enabled|world size"
    r"|^(?:\s+train_b|Number of par|tokens per iter|total desired|=> calc|Total batch|Tokens /|Overriding:|\||GPU:"
    r"|COMPUTE_DTYPE|Running [Pp]y[Tt]orch|[Pp]eak memory|\d{4}-|[A-Z][a-z]{2} [A-Z][a-z]{2} +\d)"
)
"""Beginnings of lines that state something; most lines need no other check."""


def detect(log: Log) -> int:
    return sum(1 for _, text in log.head() if _row(text) or _clock_row(text))


def _row(text: str) -> tuple[Spelling, re.Match[str]] | None:
    for spelling in SPELLINGS:
        if spelling.mark in text and (match := spelling.pattern.search(text)):
            return spelling, match
    return None


def _clock_row(text: str) -> re.Match[str] | None:
    return _CLOCK.search(text) if _CLOCK_MARK in text else None


def read(log: Log) -> Reading:
    seen = _Seen()
    projects = _Projects()
    steps = fields.merged((None, step) for step in projects.noted(_rows(log, seen)))
    for name, peak in seen.peaks.items() if len(steps) else ():  # said once, at the end, about the whole run
        column = np.full(len(steps), np.nan)
        column[-1] = peak
        steps = steps.replace(**{name: column})
    if seen.batch_grows:
        seen.tokens_per_step = None
    if seen.tokens_per_step:
        steps = steps.replace(tokens=float(seen.tokens_per_step))
    config, length = seen.config, seen.config.get("sequence_length")
    if seen.tokens_per_step and length and seen.tokens_per_step % length == 0:
        config["global_batch_size"] = seen.tokens_per_step // length
    if seen.gpus:
        seen.gpu_info["device_count"] = len(seen.gpus)
        if seen.gpus_in_use == seen.gpus:
            config.setdefault("num_gpus", len(seen.gpus))
    of_rank, of_ranks = config.pop("tokens_of_rank", None), config.pop("tokens_of_ranks", None)
    if of_rank and of_ranks and of_ranks % of_rank == 0:
        config.setdefault("num_gpus", of_ranks // of_rank)
    project = projects.most
    return Reading(
        steps=steps,
        training_config={**config, "framework": project} if project else config,
        gpu_info=seen.gpu_info,
        model=seen.model,
        platform=devices.platform_of(seen.gpu_info.get("device_name")),
        source=project,
        timestamp=fields.iso(seen.timestamp),
        evidence=Evidence(clocks=(seen.clock,) if seen.clock else ()),
        begins=projects.begins(),
    )


def _rows(log: Log, seen: _Seen) -> Iterator[tuple[str, Step]]:
    """(project, row), in the order of the log."""
    interrupted_by = ""
    clock = _Clock()
    for line, text in log.lines_of_one_rank(lambda text: _row(text) or _clock_row(text)):
        if found := _row(text):
            spelling, match = found
            _plan(match, seen)
            if "total" in spelling.pattern.groupindex:
                seen.totals.note(int(match["step"]), fields.number(match["total"]))
            yield spelling.project, _step(line, spelling, match, interrupted_by)
            interrupted_by = ""
            continue
        if mark := _clock_row(text):
            _plan(mark, seen)
            clock.note(line, mark)
            continue
        if announced := _INTERRUPTION.search(text):
            interrupted_by = "validation" if announced["validation"] else interrupted_by or "checkpoint"
        elif _NOTABLE.search(text):
            _notice(text, seen)
        elif text.startswith(_WARMED_UP):
            seen.warmed_up = True
    seen.clock = seen.totals.clock
    if clock.total is not None:
        seen.clock = clock.total
        if seen.warmed_up:
            seen.config["warmup_steps"] = 0
    yield from (("modded-nanogpt", step) for step in clock.steps())


class _Projects:
    """The project of every row, by its line."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._lines, self._projects = array("q"), array("b")

    def noted(self, rows: Iterable[tuple[str, Step]]) -> Iterator[Step]:
        """Yield the rows, each noted."""
        for project, step in rows:
            if project not in self._names:
                self._names.append(project)
            self._lines.append(step.line or 0)
            self._projects.append(self._names.index(project))
            yield step

    @property
    def most(self) -> str | None:
        """Return the project with most rows, or None without a row."""
        return self._names[int(np.bincount(self._projects).argmax())] if self._names else None

    def begins(self) -> list[tuple[int, str]]:
        """Return (line, reason) of each row of another project than the row before it."""
        order = np.argsort(self._lines, kind="stable")
        lines, projects = np.array(self._lines)[order], np.array(self._projects)[order]
        return [
            (int(lines[row]), f"rows of {self._names[projects[row]]}") for row in np.flatnonzero(np.diff(projects)) + 1
        ]


def _plan(row: re.Match[str], seen: _Seen) -> None:
    """Note the planned number of steps if a row states it: `step 12/6200`."""
    if planned := fields.whole(row.groupdict().get("last")):
        seen.config["max_steps"] = planned


def _step(line: int, spelling: Spelling, match: re.Match[str], interrupted_by: str) -> Step:
    groups = match.groupdict()
    return Step(
        index=int(groups["step"]),
        seconds=fields.seconds(groups["time"], spelling.unit),
        loss=fields.number(groups["loss"]),
        learning_rate=fields.positive(groups.get("lr")),
        gradient_norm=fields.number(groups.get("norm")),
        reported_tokens_per_second=fields.positive(groups.get("tokens")),
        reported_mfu=fields.positive(groups.get("mfu"), 0.01),
        interrupted_by=interrupted_by if spelling.holds_evaluation else "",
        line=line,
    )


_HAS_LOSS, _IS_VALIDATION = 1, 2


class _Mark(NamedTuple):
    """One line of modded-nanogpt with a reading of the run's clock."""

    line: int
    step: int
    clock: float
    loss: float | None
    validation: bool


class _Clock:
    """The running clock of modded-nanogpt, converted to step times. Lines are kept as numbers: they may be millions."""

    def __init__(self) -> None:
        self._lines, self._steps, self._clocks = array("q"), array("q"), array("d")
        self._losses, self._flags = array("d"), array("b")

    def note(self, line: int, match: re.Match[str]) -> None:
        """One line with train_time."""
        clock = fields.number(match["time"])
        if clock is not None:
            loss = fields.number(match["loss"])
            self._lines.append(line)
            self._steps.append(int(match["step"]))
            self._clocks.append(clock * (MILLISECOND if match["unit"] == "ms" else 1.0))
            self._losses.append(math.nan if loss is None else loss)
            self._flags.append(_HAS_LOSS * (loss is not None) + _IS_VALIDATION * (match["validation"] is not None))

    def _marks(self) -> Iterator[_Mark]:
        for line, step, clock, loss, flags in zip(
            self._lines, self._steps, self._clocks, self._losses, self._flags, strict=True
        ):
            yield _Mark(line, step, clock, loss if flags & _HAS_LOSS else None, bool(flags & _IS_VALIDATION))

    @property
    def total(self) -> LogClock | None:
        """Return the clock of the whole run, if it was never set back."""
        if not self._lines or (np.diff(self._clocks) < 0).any() or (np.diff(self._steps) < 0).any():
            return None
        return LogClock(name="train_time", seconds=self._clocks[-1], steps=float(self._steps[-1]), resolution=1.0)

    def steps(self) -> Iterator[Step]:
        """Yield a row for every line of training; for every validation where only those were printed.

        The host runs ahead of the device until a validation waits for it: the wait is in the row after the validation.

        The clock may be set back (early versions leave out the first ten steps): such a row has no time.
        """
        trains = any(not flags & _IS_VALIDATION for flags in self._flags)
        before: _Mark | None = None
        for mark in self._marks():
            if before is not None and mark.step < before.step:
                before = None  # a restart
            if mark.validation and trains:
                before = before or mark  # the clock's start, printed at step 0
                continue
            distance = mark.step - before.step if before else 1
            if distance > 0 and (before or not mark.validation):
                grown = (mark.clock - before.clock) / distance if before else mark.clock
                usable = 0 < grown < fields.LONGEST_STEP_SECONDS and (before is not None or mark.step == 1)
                seconds = grown if usable else None
                yield Step(index=mark.step, seconds=seconds, covers=distance, loss=mark.loss, line=mark.line)
            before = mark


def _notice(text: str, seen: _Seen) -> None:
    """Keep what a line between the rows states about the run."""
    for pattern, name in CONFIGURATION:
        if (match := pattern.search(text)) and (value := fields.whole(match[1])):
            _set(name, value, seen)
    if match := _BATCH_OF_SOURCE.match(text):
        seen.tokens_per_step = math.prod(int(factor) for factor in match[1].split("*"))
        return
    seen.batch_grows = seen.batch_grows or _BATCH_SCHEDULE.match(text) is not None
    if match := _SMI_PROCESS.match(text):
        seen.gpus_in_use.add(match[1])
        return
    for pattern, names in PRECISIONS:
        if (match := pattern.search(text)) and match[1] in names:
            seen.config["precision"] = names[match[1]]
    if _FP8.search(text):
        seen.config["precision"] = "fp8"
    if match := _DEVICE.search(text):
        seen.gpu_info["device_name"] = match[1] or match[2] or match[4]
        seen.gpus |= {match[3]} - {None}
    elif match := _TORCH.search(text):
        seen.gpu_info["pytorch_version"] = match[1]
    elif match := _PEAK.search(text):
        for name, size in (("memory_allocated_peak_bytes", match[1]), ("memory_reserved_peak_bytes", match[2])):
            if peak := fields.positive(size, MIB):
                seen.peaks[name] = peak
    elif seen.timestamp is None and _DATE.match(text):
        seen.timestamp = fields.moment(text)
    elif (match := _SMI_DATE.match(text)) and match[1] in _MONTHS:
        seen.timestamp = fields.moment(f"{match[4]}-{_MONTHS.index(match[1]) + 1:02}-{int(match[2]):02} {match[3]}")


def _set(name: str, value: int, seen: _Seen) -> None:
    if name == "tokens_per_step":
        seen.tokens_per_step = value
    elif name == "parameters":
        seen.model["parameters"] = value
    else:
        seen.config[name] = value
