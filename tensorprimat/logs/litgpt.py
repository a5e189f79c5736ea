"""LitGPT: `Epoch 1 | iter 4 step 1 | loss train: 10.9, val: n/a | iter time: 321.40 ms (step) …`; of 2023, as Lit-GPT:
`iter 4 step 1: loss 10.9, iter time: 321.40ms (optimizer.step)`.

The time is one iteration's, that is one micro-batch's, in pretraining without the wait for its batch; `(step)` marks
the iteration that ends with the optimizer's step (litgpt/pretrain.py and finetune/*.py, `fit`). A step's time is the
sum over its iterations, known where every one of them was printed, or where each step is one iteration. Pretraining
with accumulation prints the last one alone, so such a log has no step times.
`Training Time`, at the end, starts before the first validation and holds validations (`val time`) and checkpoints. The
summary's own `Tok/sec` divides by a clock reading instead of the training time and is not read; the rate is the
summary's tokens divided by its training time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from tensorprimat.audit.evidence import Evidence, LogClock
from tensorprimat.core.notices import Notice
from tensorprimat.core.settings import LIGHTNING_PRECISIONS
from tensorprimat.core.steps import Step, Steps
from tensorprimat.core.units import GB
from tensorprimat.logs import headers, prefixes
from tensorprimat.logs.fields import merged, number, whole
from tensorprimat.logs.format import Reading
from tensorprimat.logs.model_names import model_name
from tensorprimat.logs.text import Log

_ROW = re.compile(
    r"(?:Epoch \d{1,9} \| )?\biter (?P<iter>\d{1,15}) (?:\| )?st[eE]p (?P<step>\d{1,15})(?: ?\||:)"
    r"(?: loss (?:train(?: \(curr\))?: )?(?P<loss>[-+]?\d{1,15}(?:\.\d{1,9})?|nan|inf),)?.{0,200}?"
    r"\biter time: (?P<ms>\d{1,15}(?:\.\d{1,9})?) ?ms(?P<ends> \((?:(?:optimizer\.|opt\.)?step)\))?"
    r"(?P<pretrains> remaining time: )?"
)
_TOTALS = {
    "tokens": re.compile(r"\| - Total tokens\s*: (\d[\d,]{0,25})"),
    "seconds": re.compile(r"(?:\| - Training Time\s*|^Training time): (\d{1,12}(?:\.\d{1,9})?) ?s"),
    "memory_gb": re.compile(r"(?:\| - Memory Used\s*|^Memory used): (\d{1,9}(?:\.\d{1,9})?) GB"),
}
_VALIDATION = re.compile(r"^iter \d{1,15}: val loss [\w.+-]{1,20}, val time: (\d{1,15}(?:\.\d{1,9})?) ms")
_SAVING = re.compile(r"^Saving .{0,40}checkpoint to ")
_ARGUMENT = re.compile(
    r"(?:\b|')(?P<name>\w{1,40})(?:=|': )'?(?P<value>[\w.+-]{1,80})(?=['\"]?(?:[,)}\]](?!\d)|\s*$|\s+[^\s\d*/]))"
)
DUMP_OPENS = "{'"  # the first line of the arguments, as pprint writes them
FIRST_VALIDATION = 30.0  # seconds; Training Time includes it, and the example that fine-tuning generates
_LONGEST_ROW = 2**12  # characters of a line in which a row is looked for, from its end
_LONGEST_LINE = 2**14  # characters of a line in which arguments are looked for

Rows = list[tuple[int, re.Match[str]]]
"""(line, row) of each iteration that was printed."""
WHOLE_NUMBERS = {
    **{name: name for name in ("global_batch_size", "micro_batch_size", "max_steps", "devices", "num_nodes", "seed")},
    "max_seq_length": "sequence_length",
}
"""Argument that LitGPT prints when it starts → field of TrainingConfig (devices: of one node)."""


def detect(log: Log) -> int:
    return sum(1 for _, text in log.head() if _row(text))


def _row(text: str) -> re.Match[str] | None:
    return _ROW.search(text[-_LONGEST_ROW:]) if "iter time: " in text else None


def read(log: Log) -> Reading:
    rows: Rows = []
    settings: dict[str, str] = {}
    totals: dict[str, float] = {}
    counts: dict[str, Any] = {}
    for line, text in log.lines_of_one_rank(_row):
        if match := _row(text):
            if rows and rows[-1][1].groups() == match.groups():  # printed twice, by Ray or a launcher
                continue
            rows.append((line, match))
            continue
        text = prefixes.undated(text)
        if not rows and text.startswith(DUMP_OPENS):
            settings.clear()  # another attempt to start: the one before died without a row
        for match in _ARGUMENT.finditer(text[:_LONGEST_LINE]):
            settings.setdefault(match["name"], match["value"])
        if match := _VALIDATION.search(text):
            totals["validation"] = totals.get("validation", 0.0) + float(match[1]) / 1000
        if _SAVING.search(text):
            settings["saved"] = "yes"
        headers.note_counts(text, counts)
        for name, pattern in _TOTALS.items():
            if (match := pattern.search(text)) and (total := number(match[1])) is not None:
                totals[name] = total
        if "longest sequence length in the train data" in text:
            settings["padded"] = "yes"
    reading = Reading(source="LitGPT log")
    reading.steps = merged(((None, step) for step in _steps(rows)), reading.warnings)
    _configure(reading, settings)
    reading.model |= headers.counted_model(counts)
    reading.training_config |= headers.config_of_counts(counts)
    reading.evidence = _evidence(reading.steps, totals, saved="saved" in settings)
    is_timed = reading.steps.has("seconds") and not reading.evidence.clocks
    if is_timed and any(match["pretrains"] for _, match in rows):  # it fetches a batch before its timer starts
        reading.warnings.append(Notice("wait_unknown", "steps"))
    _report(reading, totals, rows)
    return reading


def _steps(rows: Rows) -> Iterator[Step]:
    """Yield one step per `(step)` line; without a time unless all of its iterations were printed."""
    seconds, expected = 0.0, 1  # the iteration that continues the sum without a gap
    for line, match in rows:
        iteration = int(match["iter"])
        whole = iteration == expected or iteration == int(match["step"])  # as many steps as iterations: each is a step
        seconds = seconds + float(match["ms"]) / 1000 if whole else math.nan
        expected = iteration + 1
        if match["ends"]:
            yield Step(
                index=int(match["step"]),
                seconds=seconds if seconds > 0 else None,
                loss=number(match["loss"]),
                line=line,
            )
            seconds = 0.0


def _configure(reading: Reading, settings: dict[str, str]) -> None:
    config = reading.training_config
    for name, field in WHOLE_NUMBERS.items():
        if settings.get(name, "").isdecimal() and int(settings[name]):
            config[field] = int(settings[name])
    if devices := config.pop("devices", None):
        config["num_gpus"] = config["data_parallel_size"] = devices * config.get("num_nodes", 1)
    if precision := LIGHTNING_PRECISIONS.get(settings.get("precision", "").split("-")[0]):
        config["precision"] = precision
    if "padded" in settings and config.pop("sequence_length", None):
        reading.warnings.append(Notice("lengths_unknown", "sequence_length"))
    elif settings.get("max_seq_length") == "None" and (length := whole(settings.get("block_size"))):
        config["sequence_length"] = length  # of pretraining, which fills every sequence
    if model := settings.get("model_name"):
        reading.model["name"] = model_name(model)


def _evidence(steps: Steps, totals: dict[str, float], *, saved: bool) -> Evidence:
    """Return the training time for the audit, where the rows are those of a run from its first step on.

    saved: the run wrote checkpoints, whose time the log does not state; then the clock refuses nothing.
    """
    index = steps.column("index")
    duration = totals.get("seconds")
    if not duration or not len(steps) or index[0] != 1 or (np.diff(index) <= 0).any() or not steps.has("seconds"):
        return Evidence()
    rows = float(np.nansum(steps.column("seconds") * steps.column("covers")))
    clock = LogClock(
        name="Training Time",
        seconds=duration,
        steps=float(index[-1]),
        spent=(("evaluation", totals["validation"]),) if totals.get("validation") else (),
        resolution=0.01,
        is_certain=not saved and not 0 < duration - rows < FIRST_VALIDATION,
    )
    return Evidence(clocks=(clock,))


NEARLY_ALL = 0.02  # of the steps: the last ones may be in no row


def _whole_run(rows: Rows) -> int | None:
    """Return the steps of a whole run; None if more than a share of NEARLY_ALL of them may be in no row."""
    iterations = [int(match["iter"]) for _, match in rows]
    interval = max(np.diff([0, *iterations]).tolist(), default=0)
    steps = int(rows[-1][1]["step"]) if rows else 0
    if iterations != sorted(set(iterations)) or not steps:
        return None
    return steps if interval / iterations[-1] + 1 / steps <= NEARLY_ALL else None


def _report_tokens(reading: Reading, tokens: float, duration: float, rows: Rows) -> None:
    """Add the rate of the final summary. Its tokens are those of all trainings; its time began with the last one."""
    iterations = [int(match["iter"]) for _, match in rows]
    interval = np.diff([0, *iterations])[1:].min(initial=iterations[0] if iterations else 0)
    if iterations and iterations[0] > interval:
        reading.warnings.append(Notice("beginning_missing", "tokens_per_second", first=iterations[0]))
    else:
        reading.reported["tokens_per_second"] = tokens / duration


def _report(reading: Reading, totals: dict[str, float], rows: Rows) -> None:
    """Add the figures of the final summary, which cover the whole run including validation and saving."""
    if duration := totals.get("seconds"):
        reading.reported["runtime_seconds"] = duration
        untimed = "seconds" not in reading.steps.seen
        if untimed and (tokens := totals.get("tokens")):
            _report_tokens(reading, tokens, duration, rows)
        if untimed and (steps := _whole_run(rows)):
            reading.reported["step_time_seconds"] = (duration - totals.get("validation", 0.0)) / steps
            reading.warnings.append(Notice("time_of_whole_run", "step_time", steps=steps, more=NEARLY_ALL))
    if (memory := totals.get("memory_gb")) and len(reading.steps):
        peaks = np.full(len(reading.steps), np.nan)
        peaks[-1] = memory * GB
        reading.steps = reading.steps.replace(memory_allocated_peak_bytes=peaks)
    if rows and "seconds" not in reading.steps.seen:
        reading.steps = Steps({})
        reading.warnings.append(Notice("iterations_incomplete", "steps", rows=len(rows)))
