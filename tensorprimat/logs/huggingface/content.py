"""The content of a Trainer's log or JSON file: rows, summaries, evaluations, settings."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tensorprimat.core.units import GIB
from tensorprimat.logs import fields, prefixes
from tensorprimat.logs.clocks import date_in
from tensorprimat.logs.format import Reading
from tensorprimat.logs.huggingface import rows
from tensorprimat.logs.huggingface.rows import LOSS, Row, is_row, position_of
from tensorprimat.logs.text import Log

SUMMARY_KEYS = (rows.SAMPLES_RATE, "train_steps_per_second")
FIRST_LINES = 10  # a document begins at the top of its file, after blank lines
LONGEST_DICTIONARY = 2**16  # characters; a row has some hundred
_HISTORY = '"log_history": ['
"""In the last line of ms-swift's logging.jsonl, which contains the rows of all lines before it once more."""
_ENTRY = re.compile(rb"^    \{[ \t\r]*$", re.MULTILINE)  # of a list in a document
_DICTIONARY = re.compile(r"\{['\"][^{}]*\}")
_ITEM = re.compile(r"'([^']{1,80})': (?:'([^']{0,200})'|([^,'{}\[\]]{1,60}))")
RESTATED_DIGITS = (1e-3, 0.006)  # rounding of a loss and of an epoch that a second row restates
DRAWN_SECONDS = 2  # between two drawings, in whole seconds, so more than 1 s; tqdm leaves out none after 0.1 s
_TRAINING_BAR = re.compile(
    r"^\s{0,200}(?:Train:?\s{0,9})?\d{1,3}%\|[^|]*\| (?P<step>\d{1,12})/(?P<total>\d{1,12}) "
    r"\[(?P<elapsed>\d{1,6}(?::\d\d){1,2})<"
)
TRAINER = {
    "Total train batch size (w. parallel, distributed & accumulation)": "global_batch_size",
    "Instantaneous batch size per device": "micro_batch_size",
    "Gradient Accumulation steps": "gradient_accumulation_steps",
}
"""Lines of the Trainer, which may start DeepSpeed's engine, too → field of TrainingConfig."""
_SETTINGS: tuple[tuple[re.Pattern[str], str], ...] = (
    *((re.compile(rf"{re.escape(text)} = {fields.WHOLE}"), name) for text, name in TRAINER.items()),
    (re.compile(rf"Total optimization steps = {fields.WHOLE}"), "max_steps"),
    (re.compile(rf"\bBatch size per device = {fields.WHOLE}"), "micro_batch_size"),  # Unsloth's banner
    (re.compile(rf"\bGradient accumulation steps = {fields.WHOLE}"), "gradient_accumulation_steps"),
    (re.compile(rf"\bTotal batch size (?:\([\d x]{{1,40}}\) )?= {fields.WHOLE}"), "global_batch_size"),
    (re.compile(rf"\b(?:Data Parallel|finetuning \| Num) GPUs = {fields.WHOLE}"), "num_gpus"),
    (re.compile(rf"\bmicro_batch_size['\"]?(?:=|: ){fields.SETTING}"), "micro_batch_size"),  # axolotl's
    (re.compile(rf"\bper_device_train_batch_size['\"]?(?:=|: ){fields.SETTING}"), "micro_batch_size"),
    (re.compile(rf"\bgradient_accumulation_steps['\"]?(?:=|: ){fields.SETTING}"), "gradient_accumulation_steps"),
    (re.compile(r"\brank: -?\d{1,6}, local_rank: -?\d{1,6}, world_size: (\d{1,7}), "), "world_size"),
    (re.compile(rf"\bsequence_parallel_size['\"]?(?:=|: ){fields.SETTING}"), "context_parallel_size"),
)
"""Lines of the Trainer that state one whole number."""
DEEPSPEED_LINE = re.compile(r"config\.py:\d+:print\]\s{1,3}(?P<name>\w+) \.* ?(?P<value>\S+)(?!\S| \d)")
DEEPSPEED_SETTINGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "train_batch_size": ("global_batch_size", int),
    "train_micro_batch_size_per_gpu": ("micro_batch_size", int),
    "gradient_accumulation_steps": ("gradient_accumulation_steps", int),
    "world_size": ("data_parallel_size", int),
    "zero_optimization_stage": ("strategy", lambda stage: f"zero-{int(stage)}" if int(stage) else "ddp"),
    "optimizer_name": ("optimizer", lambda name: None if name == "None" else name),
    "bfloat16_enabled": ("precision", lambda on: "bf16" if on == "True" else None),
    "fp16_enabled": ("precision", lambda on: "fp16" if on == "True" else None),
    "bfloat16_config": ("precision", lambda first: "bf16" if first == "enabled=True" else None),
    "float16_config": ("precision", lambda first: "fp16" if first == "enabled=True" else None),
}
"""Configuration that DeepSpeed prints when it starts → field of TrainingConfig and the conversion of its text."""
_TRAINED: tuple[re.Pattern[str], ...] = (
    re.compile(rf"\btrainable params: {fields.WHOLE} \|\| all params: {fields.WHOLE}"),  # of PEFT
    re.compile(rf"\bTrainable parameters = {fields.WHOLE} of {fields.WHOLE}"),  # Unsloth's banner
)
"""Lines that state how many parameters train, and of how many."""
_TRAINED_BY_PROCESS = re.compile(rf"\bNumber of trainable parameters = {fields.WHOLE}$")
"""The Trainer's own line: under FSDP and ZeRO-3 it counts the share of one GPU."""
_LOGGING_STEPS = re.compile(rf"\blogging_steps['\"]?(?:=|: ){fields.SETTING}")
_NOTABLE = re.compile(
    r"[Bb]atch size|logging_steps|micro_batch_size|Data Parallel|_train_batch_size|accumulation_steps|world_size"
    r"|parallel_size|Num GPUs|Accumulation steps|optimization steps|training from"
    r"|print\]|NVIDIA|AMD|\bMI\d{3}|[Tt]rainable param"
)
_TABLE_ROW = re.compile(r"^\s{0,9}(?P<name>epoch|train_\w{1,60}) {1,80}= {1,40}(?P<value>\d[^\n]{0,40}?)\s*$")
"""A line of the table `***** train metrics *****`, which Trainer.log_metrics prints with the summary once more."""
_STARTED = "Total optimization steps"  # every process prints it before it resumes
_RESUMED = re.compile(rf"\b(?:Continuing|Resuming) training from (?:[\w ]{{0,60}}\bglobal step {fields.WHOLE})?")
_SAVING = re.compile(r"\bSaving model checkpoint to ")
_EVALUATING = re.compile(r"\*{5} Running [\w ]{0,40}(?:[Ee]valuation|Prediction)")  # of the Trainer or a subclass


@dataclass(kw_only=True)
class Content:
    """Rows, summaries, evaluations and settings of a Trainer's log or JSON file."""

    rows: list[Row] = field(default_factory=list)
    last: Mapping[str, str] = field(default_factory=dict)
    """The dictionary of the last row."""
    counts_trained_tokens: bool = False
    """True if axolotl printed its rate."""
    summaries: list[Mapping[str, str]] = field(default_factory=list)
    interrupted_by: str = ""
    """Validation or checkpoint announced since the last row; empty for none."""
    evaluation_seconds: float = 0.0
    """Since the last row, as the log states them."""
    bar: tuple[int, float] | None = None
    """(steps done, seconds) of the training bar as last drawn."""
    first_bar: tuple[int, float] | None = None
    """The same of its first drawing that shows a step."""
    total_of_bar: int | None = None
    """Steps planned, where a bar alone states them."""
    resumed_at: int | None = None
    """Steps of the checkpoint from which the training went on, 0 for none, as the log states them."""
    reading: Reading = field(
        default_factory=lambda: Reading(training_config={"framework": "transformers"}, source="Hugging Face Trainer")
    )
    """Settings so far; the reader adds everything else at the end."""
    logging_steps: int | None = None
    """Optimizer steps of a row, as the log states it."""


def _is_repeated(row: Mapping[str, str], content: Content) -> bool:
    """Return True if a row repeats the last one. Equal rows are two steps if loss or gradient is 0, nan or missing."""
    if row != content.last or not content.rows:
        return False
    same_place = content.rows[-1].step in (None, position_of(row))  # a bar drawn between them separates steps
    return same_place and all(fields.positive(row.get(name)) for name in (LOSS, "grad_norm"))


def is_summary_row(row: Mapping[str, Any]) -> bool:
    return rows.RUNTIME in row and any(name in row for name in SUMMARY_KEYS)


def _is_of_the_same_step(row: Mapping[str, str], last: Mapping[str, str]) -> bool:
    """Return True for two rows of which one restates the other."""
    if rows.is_callback_row(row) == rows.is_callback_row(last):
        return False
    pairs = [(fields.number(row.get(name)), fields.number(last.get(name))) for name in (LOSS, "epoch")]
    return all(
        one is not None and other is not None and abs(one - other) <= tolerance * max(1.0, abs(other))
        for (one, other), tolerance in zip(pairs, RESTATED_DIGITS, strict=True)
    )


def dictionaries_in(text: str) -> Iterator[dict[str, str]]:
    """Yield the flat dictionaries in a line, in Python's or in JSON's spelling, with their values as text."""
    if "{" not in text or len(text) > LONGEST_DICTIONARY or (_HISTORY in text and text.startswith("{")):
        return
    for match in _DICTIONARY.finditer(text):
        if match[0][1] == '"':
            if document := fields.json_in(match[0]):
                yield _flat(document)
        else:
            yield {name: quoted or bare.strip() for name, quoted, bare in _ITEM.findall(match[0])}


def _flat(document: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in document.items() if isinstance(value, int | float | str)}


def opens_as_document(log: Log) -> bool:
    line, text = next(((line, text) for line, text in log.head() if text.strip()), (0, ""))
    return text.lstrip().startswith("{") and line <= FIRST_LINES


def count_in_document(log: Log) -> int:
    """Return how many rows and summaries `of_document` would find, from the names of their entries alone."""
    return sum(is_row(entry) or is_summary_row(entry) for entry in _entries(_document(log)))


def of_document(log: Log) -> Content | None:
    """Return the content of trainer_state.json, train_results.json or all_results.json; None for any other file."""
    document = _document(log)
    content = Content()
    entries = _entries(document)
    lines = _lines_of_entries(log) if "log_history" in document else []
    for position, entry in enumerate(entries):
        _take(_flat(entry), lines[position] if position < len(lines) else None, content)
    if not (content.rows or content.summaries):
        return None
    for name, target in (("max_steps", "max_steps"), ("train_batch_size", "micro_batch_size")):
        if isinstance(value := document.get(name), int) and value > 0:
            content.reading.training_config[target] = value
    return content


def _document(log: Log) -> Mapping[str, Any]:
    document = fields.json_in(log.text())
    return document if isinstance(document, dict) else {}


def _entries(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a state's history, with {} for each entry that is not a row; without a history the document itself."""
    history = document.get("log_history")
    if not isinstance(history, list):
        return [document]
    return [entry if isinstance(entry, dict) else {} for entry in history]


def _lines_of_entries(log: Log) -> array[int]:
    """Return the line on which each entry of log_history begins, in the layout of json.dump(indent=2)."""
    inside, found = False, array("q")
    for number, block in log.numbered_blocks():
        begin = 0 if inside else block.find(b'"log_history"')
        if begin < 0:
            continue
        inside, counted = True, 0
        for match in _ENTRY.finditer(block, begin):
            number += block.count(b"\n", counted, match.start())
            counted = match.start()
            found.append(number)
    return found


def table_row(text: str) -> tuple[str, str] | None:
    """Return name and value of a line of the summary's table, its runtime in seconds; None for any other line.

    >>> table_row("  train_runtime            = 0:16:40.50"), table_row("train_loss = x")
    (('train_runtime', '1000.5'), None)
    """
    if not (match := _TABLE_ROW.match(text)):
        return None
    if match["name"] != rows.RUNTIME:
        return match["name"], match["value"]
    passed = rows.TIME_PASSED.fullmatch(match["value"])
    return (rows.RUNTIME, str(fields.clock_seconds(passed[0]))) if passed and passed["fraction"] else None


def of_text(log: Log) -> Content:
    content = Content()
    table: dict[str, str] = {}
    for line, text in log.lines_of_one_rank(lambda text: any(map(is_row, dictionaries_in(text)))):
        if "%|" in text and (bar := _TRAINING_BAR.match(prefixes.undated(text))):
            _note_bar(bar, content)
        for row in dictionaries_in(text):
            _take(row, line, content)
        if text[:1] == "{" and text[-1:] == "}":
            continue
        if " = " in text and (entry := table_row(text)):
            table[entry[0]] = entry[1]
            continue
        if _SAVING.search(text):
            content.interrupted_by = content.interrupted_by or "checkpoint"
        elif _EVALUATING.search(text):
            content.interrupted_by = "validation"
        elif _NOTABLE.search(text):
            _notice(text, content)
    if is_summary_row(table) and not content.summaries:
        content.summaries.append(table)
    if content.summaries and content.total_of_bar and content.bar and not content.bar[0]:
        del content.reading.training_config["max_steps"]  # the bar of other work: it never moved
    if content.bar and content.rows[1:] and content.rows[-1].step is None:  # no drawing follows the last row
        last, known = content.rows[-1], content.rows[-2].step
        if known is not None and known < content.bar[0]:
            last.step, last.clock = content.bar[0], last.clock or (content.bar[1], 0.5)
    return content


def _take(row: Mapping[str, str], line: int | None, content: Content) -> None:
    if is_row(row):
        if content.rows and _is_of_the_same_step(row, content.last):
            if not rows.is_callback_row(row):  # the callback printed it with fewer digits
                kept = content.rows[-1]
                content.rows[-1] = replace(_row(row, line, content), interrupted_by=kept.interrupted_by, step=kept.step)
                content.last = row
        elif not _is_repeated(row, content):
            content.rows.append(_row(row, line, content))
            content.interrupted_by, content.evaluation_seconds, content.last = "", 0.0, row
            content.counts_trained_tokens |= rows.AXOLOTL_RATE in row
    elif is_summary_row(row):
        content.summaries.append(row)
    elif any(name.startswith("eval_") for name in row):
        content.interrupted_by = "validation"
        if not content.summaries:  # after the summary nothing is part of the training's time
            runtimes = [value for name, value in row.items() if name.startswith("eval_") and name.endswith("_runtime")]
            content.evaluation_seconds += sum(fields.printed_seconds(value) or 0.0 for value in runtimes)


def _row(row: Mapping[str, str], line: int | None, content: Content) -> Row:
    return Row(
        line=line,
        step=position_of(row),
        moment=rows.moment_of_row(row),
        clock=rows.clock_of(row),
        interrupted_by=content.interrupted_by,
        evaluation_seconds=content.evaluation_seconds,
        loss=fields.number(row.get(LOSS)),
        learning_rate=fields.positive(rows.first_of(row, ("learning_rate", "lr"))),
        gradient_norm=fields.number(row.get("grad_norm")),
        allocated_peak=fields.positive(rows.first_of(row, rows.ALLOCATED_PEAKS), GIB),
        reserved_peak=fields.positive(rows.first_of(row, rows.RESERVED_PEAKS), GIB),
        rate=fields.positive(rows.first_of(row, ("tokens_per_gpu_per_sec", rows.AXOLOTL_RATE))),
        tokens=fields.number(rows.first_of(row, rows.TOKENS_SEEN)),
        trained_tokens=fields.number(row.get(rows.TRAINED_TOKENS)),
        epoch=fields.positive(row.get("epoch")),
    )


def _note_bar(bar: re.Match[str], content: Content) -> None:
    """Note the step and time that a drawing of the training bar shows.

    tqdm redraws the bar after each row that it prints, so the drawing after a row shows the row's step. If that drawing
    is missing, the next one shows a later step, perhaps after an evaluation. Then the row has the step of the drawing
    before it, provided that steps are long enough for each to be drawn. The training bar is the last one before the
    first row without a name, or with the name Train; bars that count to another total (evaluations) are ignored.
    """
    total, config = int(bar["total"]), content.reading.training_config
    if "max_steps" not in config or (config["max_steps"] == content.total_of_bar and not content.rows):
        if total != content.total_of_bar:
            content.bar = content.first_bar = None
        config["max_steps"] = content.total_of_bar = total
    elif total != config["max_steps"]:
        return
    step, elapsed = int(bar["step"]), fields.clock_seconds(bar["elapsed"])
    before, content.bar = content.bar, (step, elapsed)
    if before is not None and (step < before[0] or elapsed < before[1]):
        content.first_bar = None  # another training begins
    if step and content.first_bar is None:
        content.first_bar = content.bar
    taken = content.rows[-2].step if content.rows[1:] else None
    if before and before[0] + 1 == step and before[0] != taken and elapsed - before[1] >= DRAWN_SECONDS:
        step, elapsed = before
    last = content.rows[-1] if content.rows else None
    if last is not None and last.step is None:
        last.step = step
        last.clock = last.clock or (elapsed, 0.5)


def _notice(text: str, content: Content) -> None:
    config, model = content.reading.training_config, content.reading.model
    content.reading.note_device(text)
    if content.reading.timestamp is None:
        content.reading.timestamp = fields.iso(date_in(text))
    if (match := _LOGGING_STEPS.search(text)) and (steps := fields.whole(match[1])):
        content.logging_steps = steps
    if _STARTED in text:
        content.resumed_at, content.first_bar = 0, None
    elif match := _RESUMED.search(text):
        content.resumed_at = fields.whole(match[1]) if match[1] else None
    if (match := DEEPSPEED_LINE.search(text)) and match["name"] in DEEPSPEED_SETTINGS and not content.rows:
        name, convert = DEEPSPEED_SETTINGS[match["name"]]
        keep_setting(config, ("num_gpus" if name == "data_parallel_size" else name, convert), match["value"])
    for pattern, name in _SETTINGS:
        if name in config and content.rows:
            continue  # after rows another training may start, and fail
        if (match := pattern.search(text)) and (value := fields.whole(match[1])):
            config[name] = value
    if (match := _TRAINED_BY_PROCESS.search(text.rstrip())) and (trained := fields.whole(match[1])):
        model.setdefault("trainable_parameters_per_process", trained)
    for pattern in () if "trainable_parameters" in model else _TRAINED:
        if (
            (match := pattern.search(text))
            and (trained := fields.whole(match[1]))
            and (every := fields.whole(match[2]))
        ):
            model |= {"trainable_parameters": trained, "parameters": every} if trained <= every else {}


def keep_setting(config: dict[str, Any], meaning: tuple[str, Callable[[str], Any]], text: str) -> None:
    """Add a setting that a text states, unless it is known, zero or no such value. meaning: its name and conversion."""
    name, convert = meaning
    try:
        value = convert(text)
    except ValueError:
        return
    if value is not None and value != 0:
        config.setdefault(name, value)
