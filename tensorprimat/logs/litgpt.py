"""LitGPT: `Epoch 1 | iter 4 step 1 | loss train: 10.9, val: n/a | iter time: 321.40 ms (step) …`; of 2023, as Lit-GPT:
`iter 4 step 1: loss 10.9, iter time: 321.40ms (optimizer.step)`.

The time is one iteration's, that is one micro-batch's, in pretraining without the wait for its batch; `(step)` marks
the iteration that ends with the optimizer's step (litgpt/pretrain.py and finetune/*.py, `fit`). A step's time is the
sum over its iterations, known where every one of them was printed, or where each step is one iteration. Pretraining
prints the last iteration alone, then `remaining time`: the time so far / the iterations so far × the iterations to
come. If the settings state how many are to come (`max_tokens`), the time so far follows from it. It checks the times of
the steps, or replaces them where no row states any. Without `max_tokens`, such a log has no step times.
`Training Time`, at the end, starts before the first validation and holds validations (`val time`) and checkpoints. The
summary's own `Tok/sec` divides by a clock reading instead of the training time and is not read; the rate is the
summary's tokens divided by its training time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tensorprimat.audit.evidence import Elapsed, Evidence, LogClock
from tensorprimat.audit.findings import FEWEST_DATED
from tensorprimat.core.notices import Notice
from tensorprimat.core.settings import LIGHTNING_PRECISIONS
from tensorprimat.core.steps import Step, Steps
from tensorprimat.core.units import GB
from tensorprimat.logs import headers, prefixes
from tensorprimat.logs.clocks import Moment, TimeMark, pauses, timed_steps
from tensorprimat.logs.fields import clock_seconds, merged, number, whole
from tensorprimat.logs.format import Reading
from tensorprimat.logs.model_names import model_name
from tensorprimat.logs.text import Log

_ROW = re.compile(
    r"(?:Epoch \d{1,9} \| )?\biter (?P<iter>\d{1,15}) (?:\| )?st[eE]p (?P<step>\d{1,15})(?: ?\||:)"
    r"(?: loss (?:train(?: \(curr\))?: )?(?P<loss>[-+]?\d{1,15}(?:\.\d{1,9})?|nan|inf),)?.{0,200}?"
    r"\biter time: (?P<ms>\d{1,15}(?:\.\d{1,9})?) ?ms(?P<ends> \((?:(?:optimizer\.|opt\.)?step)\))?"
    r"(?: remaining time: (?P<clock>(?:\d{1,6} days?, )?\d{1,2}:\d\d:\d\d))?"
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
RESUMES = "Resuming training from "
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
    other_work: dict[int, str] = {}
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
            other_work[line] = "validation"
        if _SAVING.search(text):
            settings["saved"] = "yes"
            other_work[line] = "checkpoint"
        headers.note_counts(text, counts)
        for name, pattern in _TOTALS.items():
            if (match := pattern.search(text)) and (total := number(match[1])) is not None:
                totals[name] = total
        if "longest sequence length in the train data" in text:
            settings["padded"] = "yes"
        if text.startswith(RESUMES):
            settings["resumed"] = "yes"
    reading = Reading(source="LitGPT log")
    reading.steps = merged(((None, step) for step in _steps(rows)), reading.warnings)
    _configure(reading, settings)
    reading.model |= headers.counted_model(counts)
    reading.training_config |= headers.config_of_counts(counts)
    by_iterations = reading.steps.has("seconds")
    clock = _clock_of(rows, _last_iteration(reading.training_config, settings))
    if clock and not by_iterations:
        _time_from_remaining(reading, clock, other_work)
    reading.evidence = _evidence(reading.steps, totals, saved="saved" in settings)
    if by_iterations and any(match["clock"] for _, match in rows):
        _check_by_remaining(reading, clock, other_work)
    _report(reading, totals, rows, resumed="resumed" in settings)
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


def _time_from_remaining(reading: Reading, found: list[_Clocked], other_work: dict[int, str]) -> None:
    """Time steps by the run's clock, computed from the remaining time and the settings, unless the printed times of
    iterations contradict it.

    other_work: line → "validation" or "checkpoint".
    """
    marks, seen = list[TimeMark](), 0
    for line, match, passed, share in found:
        between = [kind for at, kind in other_work.items() if seen < at < line]
        marks.append(
            TimeMark(
                line=line,
                step=int(match["step"]),
                moment=Moment(seconds=passed, resolution=share, has_year=False),
                loss=number(match["loss"]),
                interrupted_by=between[0] if between else "",
            )
        )
        seen = line
    steps = timed_steps(marks)
    clock = marks[-1].moment.seconds / int(found[-1][1]["iter"])
    printed = float(np.median([float(match["ms"]) for _, match, _, _ in found])) / 1000
    if steps.has("seconds") and SLOWEST_SHARE <= clock / printed <= 1 + _SAME_TIME:
        reading.steps, reading.begins = steps, pauses(steps)
        reading.warnings.append(Notice("timed_by_remaining", "steps"))


_Clocked = tuple[int, re.Match[str], float, float]
"""(line, row, seconds since the start of training, their resolution) of the last iteration of a step."""


def _clock_of(rows: Rows, last: int | None) -> list[_Clocked]:
    """Return the clock at the last iterations of steps.

    It follows from the time that remains. last: number of the last planned iteration. The list is empty if that is
    None, and after a resume, because the clock leaves out the training before it.
    """
    ending = [(line, match) for line, match in rows if match["ends"] and match["clock"]]
    iterations = [int(match["iter"]) for _, match in ending]
    if last is None or not ending or iterations != sorted(set(iterations)) or not 0 < iterations[-1] <= last:
        return []
    if iterations[0] > 2 * int(np.diff([0, *iterations]).min()):
        return []
    found = []
    for (line, match), iteration in zip(ending, iterations, strict=True):
        if iteration == last:
            continue
        share = iteration / (last - iteration)
        left = clock_seconds(match["clock"]) + 0.5  # cut off to a second
        found.append((line, match, left * share, share))
    return found


def _check_by_remaining(reading: Reading, found: list[_Clocked], other_work: dict[int, str]) -> None:
    """Add the clock of a pretraining to the evidence, or a warning that nothing shows its waits for data.

    Its loop fetches a batch before it starts the timer of the iteration; that of fine-tuning, which prints no remaining
    time, fetches it after. other_work: line → "validation" or "checkpoint".
    """
    early = [one for one in found if one[3] <= _COARSEST]
    if len(early) >= FEWEST_DATED:
        clock = Elapsed(
            name="the remaining time",
            seconds={line: passed for line, _, passed, _ in early},
            resolution=max(share for *_, share in early),
            by="line",
        )
        reading.evidence = replace(reading.evidence, elapsed=clock, announced=other_work)
    elif not reading.evidence.clocks:
        reading.warnings.append(Notice("wait_unknown", "steps"))


_COARSEST = 2.0  # seconds: most resolution of the clock that follows from the remaining time
NEARLY_ALL = 0.02  # of the steps: the last ones may be in no row
SLOWEST_SHARE, _SAME_TIME = 0.3, 0.15  # mean iteration over the printed one, which includes the optimizer: 0.3 to 1.15


def _last_iteration(config: dict[str, Any], settings: dict[str, str]) -> int | None:
    """Return the number of the last planned iteration of a process."""
    words = (settings.get("max_tokens"), settings.get("max_seq_length"), settings.get("block_size"))
    tokens, length, block = (int(word) if word and word.isdecimal() else None for word in words)
    micro, devices = config.get("micro_batch_size"), config.get("num_gpus")
    length = length or block
    return tokens // devices // (micro * length) if tokens and devices and micro and length else None


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


def _whole_run(rows: Rows) -> int | None:
    """Return the steps of a whole run; None if more than a share of NEARLY_ALL of them may be in no row."""
    iterations = [int(match["iter"]) for _, match in rows]
    interval = max(np.diff([0, *iterations]).tolist(), default=0)
    steps = int(rows[-1][1]["step"]) if rows else 0
    if iterations != sorted(set(iterations)) or not steps:
        return None
    return steps if interval / iterations[-1] + 1 / steps <= NEARLY_ALL else None


def _report_tokens(reading: Reading, tokens: float, duration: float, rows: Rows, *, resumed: bool) -> None:
    """Add the rate of the final summary. Its tokens are those of all trainings; its time began with the last one."""
    iterations = [int(match["iter"]) for _, match in rows]
    before = iterations[0] - int(np.diff([0, *iterations])[1:].min(initial=iterations[0])) if iterations else 0
    if before <= 0:
        reading.reported["tokens_per_second"] = tokens / duration
    elif not resumed:
        reading.warnings.append(Notice("beginning_missing", "tokens_per_second", first=iterations[0]))
    else:
        reading.reported["tokens_per_second"] = tokens * (1 - before / iterations[-1]) / duration
        reading.warnings.append(
            Notice("tokens_since_resume", "tokens_per_second", before=before, since=iterations[-1] - before)
        )


def _report(reading: Reading, totals: dict[str, float], rows: Rows, *, resumed: bool) -> None:
    """Add the figures of the final summary, which cover the whole run including validation and saving."""
    if duration := totals.get("seconds"):
        reading.reported["runtime_seconds"] = duration
        untimed = "seconds" not in reading.steps.seen
        if untimed and (tokens := totals.get("tokens")):
            _report_tokens(reading, tokens, duration, rows, resumed=resumed)
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
