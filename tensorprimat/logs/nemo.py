"""NeMo 2's progress line: `Training epoch 0, iteration 45/99 | lr: … | train_step_timing in s: 6.08 | …`, and the bars
of older versions: `Epoch 0: :  46%|… | 46/100 [07:57<…, reduced_train_loss=7.310, train_step_timing in s=3.590]`.

What the numbers mean (nemo/lightning/pytorch/callbacks/progress_printer.py, strategies/megatron_strategy.py):
- Iterations count from 0, in every epoch again. NeMo's `global_step` is the same number in the first epoch and goes on:
  where a row of a later epoch has it, it is the index kept here.
- Every metric but global_step is the mean over `log_interval` steps, printed with 4 significant digits. So a row covers
  the distance to the row before it; rows are at every multiple of the interval.
- `train_step_timing in s` runs from the start to the end of a training batch. Validation and checkpoints lie outside;
  the data iterator is read inside.
- `consumed_samples` (missing on the very first row) grows by the global batch per step: where global_batch_size is not
  printed, its differences give it.
- `max_memory_reserved` and `max_memory_allocated` are the allocator's peaks since the start, in bytes. Before 2.4 they
  were called `peak_memory_usage` (reserved) and `memory_allocated`, which is the use at that moment.
- Under Lightning's own strategies (HFAutoModel) bars, iterations and the timing are those of one batch; an optimizer
  step, which global_step counts, may accumulate several.
- A bar counts steps from 1 and prints three digits of a number (lightning, progress/tqdm_progress.py, and tqdm's
  `format_num`). It is drawn for a step with the numbers of the step before, and then with its own: the last counts.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import numpy as np

from tensorprimat.audit.evidence import Elapsed, Evidence
from tensorprimat.core.notices import Notice
from tensorprimat.core.steps import Step, Steps
from tensorprimat.logs import fields, headers
from tensorprimat.logs.fields import NUMBER, SETTING
from tensorprimat.logs.format import Reading
from tensorprimat.logs.text import Log

_ROW = re.compile(
    r"\bepoch (?P<epoch>\d{1,9}), iteration (?P<step>\d{1,15})/(?P<last>\d{1,15})"
    r"(?P<fields>(?: \| [^|:]{1,60}: [^|\s]{1,60})+)"
)
_BAR = re.compile(
    r"\bEpoch (?P<epoch>\d{1,9})\S{0,3} .{0,400}?\| (?P<done>\d{1,12})/\d{1,12} \[(?P<elapsed>\d{1,6}(?::\d\d){1,2})<"
    r"(?P<fields>[^\]]{0,2000}train_step_timing in s=[^\]]{0,2000})\]"
)
_BAR_FIELD = re.compile(rf", ([^=,\]]{{1,60}})=({NUMBER})(?=[,\]]|$)")
_FIELD = re.compile(rf" \| ([^|:]{{1,60}}): ({NUMBER})(?=\s|$)")

BAR_TIMING = "train_step_timing in s="
_TIMING = "train_step_timing in s"
_LISTED = f"{_TIMING}: ["
"""Beginning of the list of all logged step times, which NeMo 1 prints at the end of a training."""
_NUMBERS = {"loss": "reduced_train_loss", "learning_rate": "lr", "gradient_norm": "grad_norm"}
AMOUNTS = {
    "samples": "global_batch_size",
    "memory_allocated_bytes": "memory_allocated",
    "memory_reserved_peak_bytes": "max_memory_reserved",
    "memory_allocated_peak_bytes": "max_memory_allocated",
    "reported_tokens_per_second_per_gpu": "tokens_per_sec_per_gpu",
    "reported_tflops_per_gpu": "TFLOPS_per_GPU",
}
"""Field of Step → metric on the line; an amount that is not above zero counts as missing."""
OLD_RESERVED_PEAK = "peak_memory_usage"

_NOTABLE = re.compile(
    r"All distributed processes registered|group ranks: \[\[|max_steps|[Vv]ocab_size|NVIDIA|AMD|MI\d{3}"
    r"|seq(?:uence)?_length|_batch_size|_parallel_size"
)
_PROCESSES = re.compile(r"Starting with (\d{1,7}) processes")
_GROUPS = re.compile(r"All (tensor model|pipeline model|context|expert model) parallel group ranks: \[\[([\d, ]*)\]")
_MAX_STEPS = re.compile(r"Trainer's 'max_steps' \((\d{1,15})\)|Trainer\.fit.{0,400}max_steps=(\d{1,15})")
_ARGUMENT = re.compile(  # Hydra's YAML, dataclasses, NeMo-Run's tables of a recipe
    r"(?<![A-Za-z_])(?:encoder_)?(?P<name>seq_length|sequence_length|micro_batch_size|global_batch_size|"
    r"(?:tensor_model|pipeline_model|context|expert_model)_parallel_size)['\"]?\s{0,40}(?:=|:|│|\||\.{2,})\s{0,40}"
    rf"(?P<value>{SETTING})"
)
_VOCABULARY = re.compile(r"Padded vocab_size: (\d{1,9})\b")
_LONGEST_NOTE = 2**16  # characters of a line; a recipe printed as one dataclass has some ten thousand


def detect(log: Log) -> int:
    rows = sum(1 for _, text in log.head() if ("iteration" in text and _is_row(text)) or _bar(text))
    return rows or len(_listed(log.head()))


def _bar(text: str) -> re.Match[str] | None:
    return _BAR.search(text[:_LONGEST_NOTE]) if BAR_TIMING in text else None


def _is_row(text: str) -> bool:
    if _TIMING not in text and _NUMBERS["loss"] not in text:  # most lines are done after this one look
        return False
    return (row := _ROW.search(text)) is not None and (_TIMING in row["fields"] or _NUMBERS["loss"] in row["fields"])


def read(log: Log) -> Reading:
    reading = Reading(training_config={"framework": "nemo"}, source="NeMo 2")
    consumed: dict[int, float] = {}
    drawn: dict[int, float] = {}
    counts: dict[str, Any] = {}
    batches = _Batches()
    lines = _lines(log, reading, counts)
    printed = (
        (rank, step)
        for line, rank, text in _last_drawings(lines)
        if (
            step := _step_of_bar(line, bar, drawn, consumed, batches)
            if (bar := _bar(text))
            else _step_of(line, text, consumed, batches)
        )
    )
    repeated: list[str] = []
    steps = fields.merged(printed, repeated)
    if not len(steps) and (listed := _listed(log.lines())):
        reading.source, reading.warnings = "NeMo", [Notice("listed_times", "steps")]
        reading.steps = Steps.of(listed)
        return reading
    reading.warnings += repeated if not drawn else ()  # a bar is drawn again with other values
    if accumulated := batches.accumulated():
        reading.warnings.append(accumulated)
        reading.steps = Steps.of([Step(index=row.index, seconds=None, loss=row.loss, line=row.line) for row in steps])
        return reading
    reading.steps = _with_samples(steps, consumed, by="index" if drawn else "line")
    reading.training_config |= {**_batch(steps), **headers.config_of_counts(counts)}
    if drawn:
        reading.source, reading.warnings = "NeMo", []
        reading.evidence = Evidence(elapsed=Elapsed(name="the progress bar", seconds=drawn, resolution=1.0))
    return reading


def _listed(lines: Iterable[tuple[int, str]]) -> list[Step]:
    """Return a row for each time of every whole list of step times; no line says which steps these are.

    A list of other times is that of another training.
    """
    found: dict[tuple[float | None, ...], int] = {}
    for line, text in lines:
        times, is_whole, _ = text.partition(_LISTED)[2].partition("]")
        if is_whole:
            found[tuple(fields.printed_seconds(one.strip()) for one in times.split(","))] = line
    return [
        Step(index=number, seconds=time, line=line, segment=segment)
        for segment, (times_of_one, line) in enumerate(found.items())
        for number, time in enumerate(times_of_one, 1)
        if any(times_of_one)
    ]


class _Batches:
    """Counts of batches and of optimizer steps on the rows of one epoch after the other."""

    FEWEST_PER_STEP = 1.5
    LAG = 2  # optimizer steps: a bar may be drawn before global_step is counted
    ROUNDED = 0.01  # of a count: a bar prints three digits

    def __init__(self) -> None:
        self._first: dict[str, tuple[int, float]] = {"0": (0, 0)}
        self._most: tuple[int, float] | None = None

    def note(self, epoch: str, done: int, values: Mapping[str, str]) -> None:
        """Note a row with its number in the epoch, from 1."""
        optimizer_steps = fields.number(values.get("global_step"))
        if optimizer_steps is None:
            return
        first_done, first_steps = self._first.setdefault(epoch, (done, optimizer_steps))
        batches, steps = done - first_done, optimizer_steps - first_steps
        at_most = steps + self.LAG + self.ROUNDED * optimizer_steps
        if steps >= 0 and batches > self.FEWEST_PER_STEP * at_most:
            self._most = max(self._most or (0, 0), (batches, steps))

    def accumulated(self) -> Notice | None:
        """Return the warning that a row is a batch of several in an optimizer step; None if it is a step."""
        if self._most is None:
            return None
        batches, steps = self._most
        return Notice("batches_accumulated", "steps", steps=steps, batches=batches)


def _last_drawings(lines: Iterator[tuple[int, int | None, str]]) -> Iterator[tuple[int, int | None, str]]:
    """Yield the lines, but only the last drawing of each step of a bar."""

    def drawn(line: tuple[int, int | None, str]) -> tuple[str, str] | None:
        return (bar["epoch"], bar["done"]) if (bar := _bar(line[-1])) else None

    for step, alike in groupby(lines, drawn):
        if step is None:
            yield from alike
        else:
            yield from deque(alike, maxlen=1)


def _step_of_bar(
    line: int, bar: re.Match[str], drawn: dict[int, float], consumed: dict[int, float], batches: _Batches
) -> Step:
    values = dict(_BAR_FIELD.findall("," + bar["fields"].partition(",")[2]))
    batches.note(bar["epoch"], int(bar["done"]), values)
    index = max(int(bar["done"]) - 1, fields.whole(values.get("global_step")) or 0)
    drawn[index] = fields.clock_seconds(bar["elapsed"])
    if samples := fields.positive(values.get("consumed_samples")):
        consumed[index] = samples  # many drawings share a line
    return Step(
        index=index,
        seconds=fields.printed_seconds(values.get(_TIMING)),
        loss=fields.number(values.get(_NUMBERS["loss"])),
        line=line,
    )


def _lines(log: Log, reading: Reading, counts: dict[str, Any]) -> Iterator[tuple[int, int | None, str]]:
    """Yield lines that may be rows, and note the facts that the others state."""
    for line, origin, text in log.lines_by_rank():
        if "iteration" in text or BAR_TIMING in text:
            yield line, origin.rank, text[:_LONGEST_NOTE]
        elif _NOTABLE.search(text):
            _notice(text, reading)
        else:
            headers.note_counts(text, counts)


def _step_of(line: int, text: str, consumed: dict[int, float], batches: _Batches) -> Step | None:
    """Return one row, with None for a missing metric; None if the line has neither a time nor a loss."""
    row = _ROW.search(text)
    if row is None:
        return None
    values = dict(_FIELD.findall(row["fields"]))
    if _TIMING not in values and _NUMBERS["loss"] not in values:
        return None
    if samples := fields.positive(values.get("consumed_samples")):
        consumed[line] = samples
    columns: dict[str, Any] = {name: fields.number(values.get(metric)) for name, metric in _NUMBERS.items()}
    columns |= {name: fields.positive(values.get(metric)) for name, metric in AMOUNTS.items()}
    if columns["memory_reserved_peak_bytes"] is None:
        columns["memory_reserved_peak_bytes"] = fields.positive(values.get(OLD_RESERVED_PEAK))
    index, over_all = int(row["step"]), fields.whole(values.get("global_step"))
    batches.note(row["epoch"], index + 1, values)
    if int(row["epoch"]) and over_all:
        index = max(index, over_all)
    return Step(index=index, seconds=fields.printed_seconds(values.get(_TIMING)), line=line, **columns)


def _with_samples(steps: Steps, consumed: dict[int, float], *, by: str) -> Steps:
    """Return the steps with the global batch from the samples consumed between rows, where the rows do not print it.

    consumed: by the column `by` of the rows.
    """
    if "samples" in steps.seen or len(consumed) < 2:
        return steps
    total = np.array([consumed.get(int(line), np.nan) for line in steps.column(by)])
    samples = np.round(fields.growth_of(total, steps))  # 4 digits: used only if every row gives the same whole batch
    known = samples[np.isfinite(samples)]
    return steps.replace(samples=samples) if len(known) and np.ptp(known) == 0 else steps


def _batch(steps: Steps) -> dict[str, Any]:
    """Return the global batch as configuration, where every row agrees on it."""
    samples = steps.column("samples")
    samples = np.unique(samples[np.isfinite(samples)])
    return {"global_batch_size": int(samples[0])} if len(samples) == 1 and float(samples[0]).is_integer() else {}


def _notice(text: str, reading: Reading) -> None:
    config = reading.training_config
    if match := _PROCESSES.search(text):
        config["num_gpus"] = int(match[1])
    elif match := _GROUPS.search(text):
        config[f"{match[1].replace(' ', '_')}_parallel_size"] = len(match[2].split(","))
    elif match := _MAX_STEPS.search(text):
        config["max_steps"] = int(match[1] or match[2])
    elif match := _VOCABULARY.search(text):
        config["padded_vocabulary_size"] = int(match[1])
    elif found := list(_ARGUMENT.finditer(text[:_LONGEST_NOTE])):
        for argument in found:
            target = "sequence_length" if argument["name"] == "seq_length" else argument["name"]
            if value := fields.whole(argument["value"]):
                config.setdefault(target, value)
    else:
        reading.note_device(text)
