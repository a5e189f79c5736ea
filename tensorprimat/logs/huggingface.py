"""Hugging Face Trainer and what builds on it (TRL, LLaMA-Factory, axolotl, ms-swift): `{'loss': 1.25, …}`.

Five shapes of one thing: dictionaries in a console log (numbers, or since transformers 5 quoted ones), with a tqdm bar
redrawn around them; `trainer_state.json`; `train_results.json` / `all_results.json`; ms-swift's `logging.jsonl`;
LLaMA-Factory's `trainer_log.jsonl`.

What the numbers mean (transformers/trainer.py, trainer_utils.speed_metrics; swift/trainers/patcher.py):
- A row has a loss, and no time of its own. What some rows have is a clock that started with the training:
  `train_runtime` (where num_input_tokens_seen is counted), ms-swift's `train_speed` times the step (a running mean of
  the whole run: elapsed time / steps), LLaMA-Factory's `total_tokens` over `throughput`,
  tqdm's elapsed time. A step's time is the growth of that clock, as a mean over the steps between two rows, where the
  clock is printed finely enough for it: to CLOCK_RESOLUTION of the time found. Otherwise the row has no time. Rates
  that are means since the start are never averaged again.
- The time of a row includes an evaluation printed before it.
- The summary at the end, `train_samples_per_second`, is all samples over the whole run time, first step, evaluations
  and checkpoints included: reported, without any variance. Every rank may print one, by its own clock: the middle one
  is the run's.
- ms-swift's `memory(GiB)` is the largest reserved memory so far.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorprimat.core.clocks import Evidence, LogClock
from tensorprimat.core.steps import Step, Steps
from tensorprimat.core.units import GIB
from tensorprimat.logs import devices, fields
from tensorprimat.logs.format import Reading
from tensorprimat.logs.text import Log

CLOCK_RESOLUTION = 0.005  # a clock rounded to more than 0.5 % of the time between two rows measures no step
COUNT_RESOLUTION = 0.01  # of train_steps_per_second; a coarser rate counts no steps
COARSEST_PRODUCT = 2.0  # seconds; beyond it ms-swift's elapsed_time, in whole seconds, is the finer clock
FEWEST_CLOCKED = 3  # rows with a clock; of fewer nothing was measured
FIRST_LINES = 10  # a document begins at the top of its file, blank lines aside
LONGEST_DICTIONARY = 2**16  # characters; a row has some hundred

_DICTIONARY = re.compile(r"\{['\"][^{}]*\}")
_ITEM = re.compile(r"'([^']{1,80})': (?:'([^']{0,200})'|([^,'{}\[\]]{1,60}))")
_TRAINING_BAR = re.compile(
    r"^\s{0,200}(?:Train:?\s{0,9})?\d{1,3}%\|[^|]*\| (?P<step>\d{1,12})/(?P<total>\d{1,12}) \[(?P<elapsed>[\d:]{4,12})<"
)
_TIME_OF_DAY = re.compile(r"(?:(\d{1,4}) days?, )?(\d{1,2}):(\d\d):(\d\d)")
_DURATION = re.compile(r"(?:(\d{1,9})d )?(?:(\d{1,9})h )?(?:(\d{1,9})m )?(\d{1,9})s")
_SETTINGS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"Total train batch size \(w\. parallel, distributed & accumulation\) = ([\d,]+)"),
        "global_batch_size",
    ),
    (re.compile(r"Instantaneous batch size per device = ([\d,]+)"), "micro_batch_size"),
    (re.compile(r"Gradient Accumulation steps = ([\d,]+)"), "gradient_accumulation_steps"),
    (re.compile(r"Total optimization steps = ([\d,]+)"), "max_steps"),
    (re.compile(r"print\]\s+train_batch_size \.+ ([\d,]+)"), "global_batch_size"),
    (re.compile(r"print\]\s+train_micro_batch_size_per_gpu  ?\.* ?([\d,]+)"), "micro_batch_size"),
    (re.compile(r"print\]\s+gradient_accumulation_steps \.+ ([\d,]+)"), "gradient_accumulation_steps"),
    (re.compile(r"print\]\s+world_size \.+ ([\d,]+)"), "num_gpus"),
    (re.compile(r"\bper_device_train_batch_size['\"]?(?:=|: )(\d{1,9})(?=[\s,)}]|$)"), "micro_batch_size"),
    (re.compile(r"\bgradient_accumulation_steps['\"]?(?:=|: )(\d{1,9})(?=[\s,)}]|$)"), "gradient_accumulation_steps"),
    (re.compile(r"\brank: -?\d{1,6}, local_rank: -?\d{1,6}, world_size: (\d{1,7}), "), "world_size"),
)
"""Lines of the Trainer, and of the DeepSpeed engine under it, that state one whole number."""
_NOTABLE = re.compile(
    r"batch size|_train_batch_size|accumulation_steps|world_size|Accumulation steps|optimization steps|print\]"
    r"|NVIDIA|AMD|\bMI\d{3}"
)
_SAVING = re.compile(r"\bSaving model checkpoint to ")

LOSS, RUNTIME, SAMPLES_RATE = "loss", "train_runtime", "train_samples_per_second"
SUMMARY_KEYS = (SAMPLES_RATE, "train_steps_per_second")
COMPANIONS = ("learning_rate", "grad_norm", "epoch", "global_step/max_steps", "step", "train_speed(s/it)", "iteration")
"""Keys of which a Trainer's row has one in addition to the loss; another dictionary with a loss is no row."""
FOREIGN = ("_step", "_runtime", "tps", "num_tokens_per_step")
"""Names of other loggers' rows: Weights & Biases, NeMo Automodel."""
POSITIONS = ("global_step/max_steps", "iteration", "current_steps", "step")
TOKENS_SEEN = ("num_input_tokens_seen", "total_tokens")
AXOLOTL_RATE = "tokens/train_per_sec_per_gpu"
ALLOCATED_PEAKS = ("memory/max_allocated (GiB)", "memory/max_mem_allocated(gib)")
RESERVED_PEAKS = ("memory(GiB)", "memory/device_reserved (GiB)", "memory/device_mem_reserved(gib)")
"""Peaks of the allocator in GiB: ms-swift's, axolotl's of several versions."""
REPORTED = {
    SAMPLES_RATE: "samples_per_second",
    "train_tokens_per_second": "tokens_per_second",
    RUNTIME: "runtime_seconds",
}
"""Key of the summary → field of Reported."""


@dataclass(kw_only=True, slots=True)
class _Row:
    """One dictionary with a loss, in numbers: of a long log a million are kept."""

    line: int | None
    step: int | None
    clock: tuple[float, float] | None
    """(seconds since training began, how finely they are known)"""
    interrupted_by: str
    evaluation_seconds: float = 0.0
    """Of the evaluations before the row, as the log states them."""
    loss: float | None
    learning_rate: float | None
    gradient_norm: float | None
    allocated_peak: float | None
    reserved_peak: float | None
    rate: float | None
    """Tokens/s/GPU as axolotl counts them."""
    tokens: float | None
    """So far."""
    epoch: float | None


@dataclass(kw_only=True)
class _Content:
    rows: list[_Row] = field(default_factory=list)
    last: Mapping[str, str] = field(default_factory=dict)
    """The dictionary of the last row."""
    counts_trained_tokens: bool = False
    """True where axolotl printed its rate."""
    summaries: list[Mapping[str, str]] = field(default_factory=list)
    interrupted_by: str = ""
    """Work announced since the last row."""
    evaluation_seconds: float = 0.0
    """Since the last row, as the log states them."""
    bar: tuple[int, float] | None = None
    """(steps done, seconds) of the training bar as last drawn."""
    config: dict[str, Any] = field(default_factory=dict)
    gpu_info: dict[str, Any] = field(default_factory=dict)
    timestamp: float | None = None


def detect(log: Log) -> int:
    found = sum(1 for _, text in log.head() for said in _dictionaries(text) if _is_row(said) or _is_summary(said))
    if not found and _opens_as_document(log) and (content := _document(log)):
        return len(content.rows) + len(content.summaries)
    return found


def read(log: Log) -> Reading:
    content = (_document(log) if _opens_as_document(log) else None) or _text(log)
    config, reported, total = _configuration(content.config), _reported(content), _total_steps(content)
    reading = Reading(
        steps=_steps(content.rows, total, _final_epoch(content)),
        evidence=_evidence(content, total),
        training_config={"framework": "transformers", **config},
        gpu_info=content.gpu_info,
        reported=reported,
        platform=devices.platform_of(content.gpu_info.get("device_name")),
        source="Hugging Face Trainer",
        timestamp=fields.iso(content.timestamp),
    )
    if content.counts_trained_tokens:
        reading.warnings.append(
            "tokens_per_second_per_gpu: axolotl counts the tokens that enter the loss; masked prompts are left out"
        )
    if reported and not np.isfinite(reading.steps.column("seconds")).any():
        evaluations = sum(row.evaluation_seconds for row in content.rows) + content.evaluation_seconds
        stated = f" (eval_runtime adds up to {evaluations:,.1f} s)" if evaluations else ""
        reading.warnings.append(
            f"steps: the log has no step times, only means over the whole run, start, evaluations{stated} and "
            "checkpoints included; so no variance is known"
        )
    return reading


def _configuration(said: dict[str, Any]) -> dict[str, Any]:
    """Return settings with the global batch that follows from them (ms-swift prints its parts alone)."""
    config = dict(said)
    processes = config.pop("world_size", None)
    if processes and processes > 1:  # a single process may drive several GPUs
        config.setdefault("num_gpus", processes)
    parts = [config.get("micro_batch_size"), config.get("gradient_accumulation_steps"), processes]
    if all(parts):
        config.setdefault("global_batch_size", math.prod(part for part in parts if part))
    return config


def _is_row(said: Mapping[str, str]) -> bool:
    return LOSS in said and any(name in said for name in COMPANIONS) and not any(name in said for name in FOREIGN)


def _is_repeated(said: Mapping[str, str], content: _Content) -> bool:
    """Return True if a row was printed twice: two steps may share a loss of 0 or a gradient of nan, no real value."""
    if said != content.last or not content.rows:
        return False
    same_place = content.rows[-1].step in (None, _position(said))  # a bar drawn between them tells steps apart
    return same_place and all(fields.positive(said.get(name)) for name in (LOSS, "grad_norm"))


def _is_summary(said: Mapping[str, str]) -> bool:
    return RUNTIME in said and any(name in said for name in SUMMARY_KEYS)


def _is_evaluation(said: Mapping[str, str]) -> bool:
    return any(name.startswith("eval_") for name in said)


def _dictionaries(text: str) -> Iterator[dict[str, str]]:
    """Flat dictionaries in a line, in Python's or in JSON's spelling, with their values as text."""
    if "{" not in text or len(text) > LONGEST_DICTIONARY:
        return
    for match in _DICTIONARY.finditer(text):
        if match[0][1] == '"':
            try:
                yield _flat(json.loads(match[0]))
            except (ValueError, RecursionError):
                continue
        else:
            yield {name: quoted or bare.strip() for name, quoted, bare in _ITEM.findall(match[0])}


def _flat(document: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in document.items() if isinstance(value, int | float | str)}


def _opens_as_document(log: Log) -> bool:
    line, text = next(((line, text) for line, text in log.head() if text.strip()), (0, ""))
    return text.lstrip().startswith("{") and line <= FIRST_LINES


def _document(log: Log) -> _Content | None:
    """Return the content of trainer_state.json, train_results.json or all_results.json; None for any other file."""
    try:
        document = json.loads(log.text())
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    content = _Content()
    history = document.get("log_history")
    entries = history if isinstance(history, list) else [document]
    lines = _lines_of_entries(log) if isinstance(history, list) else []
    for position, entry in enumerate(entries):
        if isinstance(entry, dict):
            _take(_flat(entry), lines[position] if position < len(lines) else None, content)
    if not (content.rows or content.summaries):
        return None
    for name, target in (("max_steps", "max_steps"), ("train_batch_size", "micro_batch_size")):
        if isinstance(value := document.get(name), int) and value > 0:
            content.config[target] = value
    return content


def _lines_of_entries(log: Log) -> list[int]:
    """On which line each entry of log_history begins, in the layout that json.dump(indent=2) gives it."""
    inside, found = False, []
    for line, text in log.lines():
        inside = inside or '"log_history"' in text
        if inside and text.rstrip() == "    {":
            found.append(line)
    return found


def _text(log: Log) -> _Content:
    content = _Content()
    for line, text in log.lines_of_one_rank(lambda text: any(map(_is_row, _dictionaries(text)))):
        if "%|" in text and (bar := _TRAINING_BAR.match(text)):
            _note_bar(bar, content)
        for said in _dictionaries(text):
            _take(said, line, content)
        if text[:1] == "{" and text[-1:] == "}":
            continue
        if _SAVING.search(text):
            content.interrupted_by = content.interrupted_by or "checkpoint"
        elif _NOTABLE.search(text):
            _notice(text, content)
    return content


def _take(said: Mapping[str, str], line: int | None, content: _Content) -> None:
    if _is_row(said):
        if not _is_repeated(said, content):
            content.rows.append(_row(said, line, content))
            content.interrupted_by, content.evaluation_seconds, content.last = "", 0.0, said
            content.counts_trained_tokens |= AXOLOTL_RATE in said
    elif _is_summary(said):
        content.summaries.append(said)
    elif _is_evaluation(said):
        content.interrupted_by = "validation"
        if not content.summaries:  # behind the summary nothing is part of the training's time
            runtimes = [value for name, value in said.items() if name.startswith("eval_") and name.endswith("_runtime")]
            content.evaluation_seconds += sum(fields.seconds(value) or 0.0 for value in runtimes)


def _row(said: Mapping[str, str], line: int | None, content: _Content) -> _Row:
    return _Row(
        line=line,
        step=_position(said),
        clock=_clock(said),
        interrupted_by=content.interrupted_by,
        evaluation_seconds=content.evaluation_seconds,
        loss=fields.number(said.get(LOSS)),
        learning_rate=fields.positive(_first_of(said, ("learning_rate", "lr"))),
        gradient_norm=fields.number(said.get("grad_norm")),
        allocated_peak=fields.positive(_first_of(said, ALLOCATED_PEAKS), GIB),
        reserved_peak=fields.positive(_first_of(said, RESERVED_PEAKS), GIB),
        rate=fields.positive(_first_of(said, ("tokens_per_gpu_per_sec", AXOLOTL_RATE))),
        tokens=fields.number(_first_of(said, TOKENS_SEEN)),
        epoch=fields.positive(said.get("epoch")),
    )


def _position(said: Mapping[str, str]) -> int | None:
    """Return the optimizer step that a row states."""
    for name in POSITIONS:
        if name in said and (step := fields.whole(said[name].split("/")[0])):
            return step
    return None


def _clock(said: Mapping[str, str]) -> tuple[float, float] | None:
    """Return the seconds since training began by what the row states, and half the last digit that it
    was printed with.
    """
    if runtime := fields.seconds(said.get(RUNTIME)):
        return runtime, _half_digit(said[RUNTIME])
    if by_tokens := _clock_of_tokens(said):
        return by_tokens
    if (passed := _TIME_OF_DAY.fullmatch(said.get("elapsed_time", ""))) and _position(said) is not None:
        days, hours, minutes, rest = (int(part or 0) for part in passed.groups())
        return days * 86400.0 + hours * 3600 + minutes * 60 + rest + 0.5, 0.5  # LLaMA-Factory cuts seconds off
    step, elapsed = _position(said), _duration(said.get("elapsed_time"))
    if step is None or elapsed is None:
        return None
    for name, power in (("train_speed(s/it)", 1), ("train_speed(iter/s)", -1)):
        if speed := fields.positive(said.get(name)):
            clock = step * speed**power
            resolution = clock * _half_digit(said[name]) / speed
            # A resumed run counts its speed from where it resumed; then the product is not the time that elapsed.
            if abs(clock - elapsed) > 1 + resolution:
                return None
            return (clock, resolution) if resolution <= COARSEST_PRODUCT else (elapsed + 0.5, 0.5)  # it is cut off
    return None


def _clock_of_tokens(said: Mapping[str, str]) -> tuple[float, float] | None:
    """LLaMA-Factory's clock: all tokens so far over the rate since the start, which it rounds to two decimals."""
    tokens, rate = fields.positive(said.get("total_tokens")), fields.positive(said.get("throughput"))
    if not (tokens and rate):
        return None
    return tokens / rate, tokens / rate * min(_half_digit(said["throughput"]), 0.005) / rate


def _half_digit(text: str) -> float:
    """Return half a unit of the last digit of a printed number; of four significant digits where trailing zeros are
    dropped.

    transformers 5 prints every float by `.4g`, so 83.40 is "83.4" and 5000 is known to half a second.

    >>> _half_digit("836.3940"), _half_digit("2.534e+04"), _half_digit("83.4"), _half_digit("5000")
    (5e-05, 5.0, 0.005, 0.5)
    """
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    half = 0.5 * 10.0 ** (int(exponent or 0) - decimals)
    value = abs(float(text))
    return min(half, 0.5 * 10.0 ** (math.floor(math.log10(value)) - 3)) if value > 0 else half


def _duration(text: str | None) -> float | None:
    """`1h 13m 46s` in seconds."""
    match = _DURATION.fullmatch(text or "")
    if match is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


def _note_bar(bar: re.Match[str], content: _Content) -> None:
    """Note the step and time that a drawing of the training bar shows.

    tqdm redraws the bar after each row that it lets through, so the drawing after a row shows the row's step. The
    training bar is the first one without a name; others (evaluations) count to another total.
    """
    if int(bar["total"]) != content.config.setdefault("max_steps", int(bar["total"])):
        return
    step = int(bar["step"])
    elapsed = 0.0
    for part in bar["elapsed"].split(":"):
        elapsed = elapsed * 60 + int(part or 0)
    content.bar = step, elapsed
    last = content.rows[-1] if content.rows else None
    if last is not None and last.step is None:
        last.step = step
        last.clock = last.clock or (elapsed, 0.5)


def _notice(text: str, content: _Content) -> None:
    if content.timestamp is None:
        content.timestamp = fields.moment(text)
    for pattern, name in _SETTINGS:
        if (match := pattern.search(text)) and (value := fields.whole(match[1])):
            content.config[name] = value
    if "device_name" not in content.gpu_info and (device := devices.find_name(text)):
        content.gpu_info["device_name"] = device


@dataclass(kw_only=True, slots=True)
class _Interval:
    """The time and tokens between a row and the row from which its time is counted."""

    seconds: float | None = None
    """Of one step."""
    tokens: float | None = None
    steps: int = 1
    interrupted_by: str = ""


def _summary(content: _Content) -> Mapping[str, str] | None:
    """Return the summary of the middle rank, by its runtime."""
    by_runtime = sorted(content.summaries, key=lambda said: fields.positive(said.get(RUNTIME)) or 0.0)
    return by_runtime[(len(by_runtime) - 1) // 2] if by_runtime else None


def _total_steps(content: _Content) -> float | None:
    """Optimizer steps of the whole run: stated, or the rate of the summary times its runtime."""
    summary = _summary(content)
    if summary is not None:
        rate, runtime = fields.positive(summary.get("train_steps_per_second")), fields.positive(summary.get(RUNTIME))
        # a rate of 0.001 to three decimals says nothing; of four digits it tells hundreds of steps exactly
        if rate and runtime and _half_digit(summary["train_steps_per_second"]) <= COUNT_RESOLUTION * rate:
            return float(round(rate * runtime))
    planned = content.config.get("max_steps")
    return float(planned) if isinstance(planned, int) else None


def _final_epoch(content: _Content) -> float | None:
    summary = _summary(content)
    return fields.positive(summary.get("epoch")) if summary is not None else None


def _evidence(content: _Content, total: float | None) -> Evidence:
    """Return train_runtime for the audit. The time after the last row with a clock belongs to no row."""
    summary = _summary(content)
    runtime = fields.positive(summary.get(RUNTIME)) if summary is not None else None
    clocked = [row for row in content.rows if row.clock is not None]
    numbered = [row.step for row in content.rows if row.step is not None]
    if not runtime or not total or summary is None or len(clocked) < FEWEST_CLOCKED or len(content.summaries) > 1:
        return Evidence()  # several ranks have several clocks
    if numbered != sorted(numbered):
        return Evidence()
    first, last = clocked[0].clock or (0.0, 0.0), clocked[-1].clock or (0.0, 0.0)
    interval = _steps_of_a_row(content.rows, total, _final_epoch(content)) if not numbered else 0
    places = [row.step if row.step is not None else n * interval for n, row in enumerate(content.rows, start=1)]
    timed = [place for place, row in zip(places, content.rows, strict=True) if row.clock is not None]
    before = max(0.0, timed[-1] - total) if timed[0] > total / 2 else 0.0  # a resume: its clock began behind them
    timed_rows = [place for place, row in enumerate(content.rows) if row.clock is not None]
    inside = content.rows[timed_rows[0] + 1 : timed_rows[-1] + 1]  # others are start-up, or after the last row
    evaluations = sum(row.evaluation_seconds for row in inside)
    return Evidence(
        clocks=(
            LogClock(
                name=RUNTIME,
                seconds=runtime,
                steps=total,
                first=(timed[0] - before, first[0]),
                last=(timed[-1] - before, last[0]),
                spent=(("evaluation", evaluations),) if evaluations else (),
                in_rows=True,
                tells_all=True,
                resolution=_half_digit(summary[RUNTIME]) + first[1] + last[1],
            ),
        )
    )


def _steps(found: list[_Row], total: float | None, final_epoch: float | None) -> Steps:
    """Return the rows as steps. Where none states its number they share the run's; where a number goes back, it
    restarted.

    total: optimizer steps of the whole run, final_epoch: its epochs, where the log tells.
    """
    if not found:
        return Steps({})
    numbered = all(row.step is not None for row in found)
    interval = 1 if numbered else _steps_of_a_row(found, total, final_epoch)
    index = [row.step if numbered and row.step is not None else n * interval for n, row in enumerate(found, start=1)]
    intervals = _intervals(found, index)
    if not numbered:
        intervals[0].steps = interval
    return fields.merged(
        (None, _step(row, number, between)) for row, number, between in zip(found, index, intervals, strict=True)
    )


def _steps_of_a_row(found: list[_Row], total: float | None, final: float | None) -> int:
    """Return the number of steps between rows without numbers, from the run's steps and the rows' share of epochs."""
    if not total:
        return 1
    last = found[-1].epoch
    share = last / final if last and final and last <= final else 1.0
    return max(1, round(total * share / len(found)))


def _intervals(found: list[_Row], index: list[int]) -> list[_Interval]:
    """Time and work of each row; rows are merged until the clock is fine enough for the time between them.

    A row inside such a stretch covers no step: the row at its end measures them all.
    """
    intervals = [_Interval() for _ in found]
    start, inside = 0, ""
    for place in range(1, len(found)):
        between, row, before = intervals[place], found[place], found[start]
        between.interrupted_by = row.interrupted_by
        if index[place] <= index[place - 1]:
            start, inside = place, ""
            continue
        between.steps = index[place] - index[place - 1]
        between.tokens = _tokens_between(found[place - 1], row, between.steps)
        if before.clock is None or row.clock is None:
            start, inside = place, ""
            continue
        inside = inside or row.interrupted_by
        grown, resolution = row.clock[0] - before.clock[0], row.clock[1] + before.clock[1]
        if grown <= 0 or resolution > CLOCK_RESOLUTION * grown:
            continue
        steps = index[place] - index[start]
        between.tokens = _tokens_between(before, row, steps)
        between.seconds, between.steps, between.interrupted_by = grown / steps, steps, inside
        for merged in intervals[start + 1 : place]:
            merged.steps = 0
        start, inside = place, ""
    return intervals


def _tokens_between(before: _Row, row: _Row, steps: int) -> float | None:
    """Return the tokens of one step between two rows that count them."""
    tokens = (row.tokens - before.tokens) / steps if before.tokens is not None and row.tokens is not None else None
    return tokens if tokens is not None and 0 < tokens < math.inf else None


def _first_of(said: Mapping[str, str], names: Iterable[str]) -> str | None:
    for name in names:
        if name in said:
            return said[name]
    return None


def _step(row: _Row, index: int, between: _Interval) -> Step:
    return Step(
        index=index,
        seconds=between.seconds,
        covers=between.steps,
        tokens=between.tokens,
        loss=row.loss,
        learning_rate=row.learning_rate,
        gradient_norm=row.gradient_norm,
        memory_allocated_peak_bytes=row.allocated_peak,
        memory_reserved_peak_bytes=row.reserved_peak,
        reported_tokens_per_second_per_gpu=row.rate,
        interrupted_by=between.interrupted_by or row.interrupted_by,
        line=row.line,
    )


def _reported(content: _Content) -> dict[str, Any]:
    """Return means over the whole run: the summary of the middle rank, or what the last row or bar says
    about the time.
    """
    reported: dict[str, Any] = {}
    if (summary := _summary(content)) is not None:
        for name, target in REPORTED.items():
            if value := fields.positive(summary.get(name)):
                reported[target] = value
        if (steps := _position(summary)) and (runtime := reported.get("runtime_seconds")):
            reported["step_time_seconds"] = runtime / steps
        return reported
    last = next((row for row in reversed(content.rows) if row.step and row.clock), None)
    if last is not None and last.step and last.clock and last.clock[1] <= CLOCK_RESOLUTION * last.clock[0]:
        reported["step_time_seconds"] = last.clock[0] / last.step
    elif content.rows and content.bar and content.bar[0] and CLOCK_RESOLUTION * content.bar[1] >= 0.5:
        reported["step_time_seconds"] = content.bar[1] / content.bar[0]
    return reported
