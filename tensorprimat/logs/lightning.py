"""Lightning: CSVLogger's metrics.csv, and the text of its progress bars (tqdm's and rich's).

Of the columns of a metrics.csv these carry time: ThroughputMonitor's `train/time` (seconds of training since its
start, validation left out), whose differences over differences of `step` are step times, and NeMo's
`train_step_timing in s`. Every other column is looked through for loss and learning rate only.

A progress bar says how many batches were done in how much time: a mean over an epoch, with validation and rounding in
it. It is kept as the reported step time, without rows.
"""

from __future__ import annotations

import csv
import re
from array import array

import numpy as np

from tensorprimat.core.steps import Steps
from tensorprimat.logs.fields import LARGEST_STEP, LONGEST_STEP_SECONDS, last_of_steps, merged_columns
from tensorprimat.logs.format import Reading
from tensorprimat.logs.text import Log

TIME_SO_FAR = ("train/time", "train|time")
STEP_SECONDS = ("train_step_timing in s",)
LOSSES = ("train_loss", "train_loss_step", "train/loss", "loss", "reduced_train_loss")
LEARNING_RATES = ("lr", "learning_rate")
KINDS = {"so_far": TIME_SO_FAR, "seconds": STEP_SECONDS, "loss": LOSSES, "learning_rate": LEARNING_RATES}
LONGEST_ROW = 2**16  # characters of a CSV row or a bar; csv refuses fields beyond 2**17

ROUNDED_RATE, ROUNDED_SECONDS = 0.005, 0.5  # how far a bar's it/s and its clock can be from the truth

_BAR = re.compile(
    r"\bEpoch (?P<epoch>\d{1,9})\S{0,20}\s.{0,500}?(?P<done>\d{1,12})/\d{1,12} "
    r"(?:\[(?P<elapsed>\d{1,6}(?::\d\d){1,2})<[^,\]]{0,40}, *(?P<rate>\d{1,12}\.\d{2})(?P<unit>it/s|s/it)"  # tqdm
    r"|(?P<window_elapsed>\d{1,6}:\d\d:\d\d) • \S{1,20} +\d{1,12}\.\d{2}it/s)"  # rich: a rate of the last moments
)


def detect(log: Log) -> int:
    lines = log.head()
    first = next(lines, (0, ""))[1]
    if _is_header(first):
        return sum(1 for _, text in lines if text.count(",") >= first.count(","))
    return int(
        any(_bar(text) for text in (first, *(text for _, text in lines)))
    )  # next to rows a bar does not count as one


def read(log: Log) -> Reading:
    reading = Reading(steps=Steps({}), source="Lightning")
    if _is_header(next(log.lines(), (0, ""))[1]):
        reading.steps = _steps(log, reading)
    else:
        _report_bars(log, reading)
    return reading


def _is_header(text: str) -> bool:
    """Return True for the head of a metrics.csv that carries time as this module reads it; `metrics` reads others."""
    names = text.lstrip("\ufeff").split(",") if len(text) < LONGEST_ROW else []
    return "step" in names and any(name in names for name in (*TIME_SO_FAR, *STEP_SECONDS))


class _Numbers:
    """The numbers of one kind: the line, step and value of each."""

    def __init__(self) -> None:
        self.lines, self.steps, self.values = array("q"), array("q"), array("d")

    def add(self, line: int, step: int, value: float) -> None:
        """Add a number."""
        self.lines.append(line)
        self.steps.append(step)
        self.values.append(value)


def _steps(log: Log, reading: Reading) -> Steps:
    """Return a row per line that carries time, with the loss and learning rate that were logged for the same step."""
    found = _columns(log, reading)
    so_far, own = found["so_far"], found["seconds"]
    clock, steps = np.array(so_far.values), np.array(so_far.steps)
    grown, covers = np.diff(clock, prepend=np.nan), np.diff(steps, prepend=0)
    forward = (covers > 0) & (grown > 0)  # the first has no clock before it
    index = np.concatenate([steps, np.array(own.steps)])
    line = np.concatenate([np.array(so_far.lines), np.array(own.lines)])
    seconds = np.concatenate([np.where(forward, grown / np.where(forward, covers, 1), np.nan), np.array(own.values)])
    covers = np.concatenate([np.where(forward, covers, 1), np.ones(len(own.steps), np.int64)])
    untimed = np.arange(len(seconds)) < len(steps)  # a reading of the clock may have no time
    usable = (untimed & np.isnan(seconds)) | ((seconds > 0) & (seconds < LONGEST_STEP_SECONDS))
    rows = np.flatnonzero(usable)
    rows = rows[np.argsort(line[rows], kind="stable")]
    columns = {"index": index[rows], "covers": covers[rows], "seconds": seconds[rows], "line": line[rows]}
    masks = {}
    for name in ("loss", "learning_rate"):
        values, known = last_of_steps(np.array(found[name].steps), np.array(found[name].values), index[rows])
        if known.any():
            columns[name], masks[name] = values, known & np.isnan(values)
    return merged_columns(Steps(columns, logged_nan=masks))


def _columns(log: Log, reading: Reading) -> dict[str, _Numbers]:
    """Return the numbers of each kind; a row of another width is a torn one and left out."""
    found = {name: _Numbers() for name in KINDS}
    width, step_cell, cells_of = 0, 0, dict[str, list[int]]()
    for line, text in log.lines():
        if len(text) > LONGEST_ROW:
            continue
        cells = next(csv.reader([text]), []) if '"' in text else text.split(",")
        if not width or ("step" in text and _is_header(text)):
            if width:
                reading.begins.append((line, f"another head of columns in line {line}"))
            names = [_plain(name.lstrip("\ufeff")) for name in cells]
            width, step_cell = len(names), names.index("step")
            cells_of = {
                kind: [names.index(name) for name in spellings if name in names] for kind, spellings in KINDS.items()
            }
            continue
        step = _number(cells[step_cell]) if len(cells) == width else None
        if step is None or not 0 <= step < LARGEST_STEP:
            continue
        timed = False
        for kind, places in cells_of.items():
            for place in places:
                if (value := _number(cells[place])) is not None:
                    if kind != "seconds" or not timed:
                        found[kind].add(line, int(step), value)
                    timed = timed or kind == "so_far"
                    break
    return found


def _plain(name: str) -> str:
    """Return a column's name as the tables above have it: LearningRateMonitor's lr-AdamW is lr."""
    return "lr" if name.startswith("lr-") else name


def _number(cell: str) -> float | None:
    try:
        return float(cell) if cell else None
    except ValueError:
        return None


def _bar(text: str) -> re.Match[str] | None:
    """Return a drawing of a training bar; NeMo's, which carry step times, are another format's."""
    if ("it/s" not in text and "s/it" not in text) or "Epoch" not in text or "train_step_timing" in text:
        return None
    return _BAR.search(text[:LONGEST_ROW])


def _report_bars(log: Log, reading: Reading) -> None:
    """Report the mean over all epochs but the first, which includes start-up; of a single epoch its mean."""
    last_drawing = {int(match["epoch"]): match for _, text in log.lines() if (match := _bar(text))}
    epochs = [last_drawing[epoch] for epoch in sorted(last_drawing)]
    batches, seconds = 0, 0.0
    for match in epochs[1:] or epochs:
        if duration := _duration(match):
            batches += int(match["done"])
            seconds += duration
    if batches and seconds:
        reading.reported["step_time_seconds"] = seconds / batches
        reading.warnings.append(
            f"step_time: a progress bar's mean over {batches} batches, with validation and rounding in it; "
            "a batch is a step only without gradient accumulation"
        )


def _duration(match: re.Match[str]) -> float | None:
    """Return the seconds that a bar has run: by its clock of whole seconds, or by tqdm's mean rate where
    that is finer.
    """
    clock = (match["elapsed"] or match["window_elapsed"]).split(":")
    elapsed = sum(int(part) * 60**power for power, part in enumerate(reversed(clock)))
    rate, done = float(match["rate"] or 0), int(match["done"])
    if rate and (not elapsed or ROUNDED_RATE / rate < ROUNDED_SECONDS / elapsed):
        return done * rate if match["unit"] == "s/it" else done / rate
    return float(elapsed) or None
