"""Lightning: CSVLogger's metrics.csv, and the text of its progress bars (tqdm's and rich's).

A metrics.csv is a table of metrics by name (`metrics`). Of its columns these carry time: ThroughputMonitor's
`train/time` (seconds of training since its start, validation left out), whose differences over differences of `step`
are step times, and NeMo's `train_step_timing in s`.

A progress bar says how many batches were done in how much time: a mean over an epoch, with validation and rounding in
it. It is kept as the reported step time, without rows.
"""

from __future__ import annotations

import re
from typing import Any

from tensorprimat.core.notices import Notice
from tensorprimat.logs import headers, metrics
from tensorprimat.logs.fields import clock_seconds
from tensorprimat.logs.format import Reading
from tensorprimat.logs.metric_names import is_lightnings
from tensorprimat.logs.progress import ClockReading, resumed_before
from tensorprimat.logs.text import Log

_LONGEST_ROW = 2**16  # characters of a bar

_ROUNDED_RATE, ROUNDED_SECONDS = 0.005, 0.5  # how far a bar's it/s and its clock can be from the truth

_BAR = re.compile(
    r"\bEpoch (?P<epoch>\d{1,9})\S{0,20}\s.{0,500}?(?P<done>\d{1,12})/\d{1,12} "
    r"(?:\[(?P<elapsed>\d{1,6}(?::\d\d){1,2})<[^,\]]{0,40}, *(?P<rate>\d{1,12}\.\d{2})(?P<unit>it/s|s/it)"  # tqdm
    r"|(?P<window_elapsed>\d{1,6}:\d\d:\d\d) • \S{1,20} +\d{1,12}\.\d{2}it/s)"  # rich: a rate of the last moments
)


def detect(log: Log) -> int:
    if is_lightnings(metrics.header_of(log)):
        return metrics.rows_in_head(log)
    return int(any(_bar(text) for _, text in log.head()))  # 1 at most: a format that finds rows ranks first


def read(log: Log) -> Reading:
    if is_lightnings(metrics.header_of(log)):
        return metrics.read(log)
    return _of_bars(log)


def _bar(text: str) -> re.Match[str] | None:
    """Return a drawing of a training bar; NeMo's, which carry step times, are another format's."""
    if ("it/s" not in text and "s/it" not in text) or "Epoch" not in text or "train_step_timing" in text:
        return None
    return _BAR.search(text[:_LONGEST_ROW])


def _of_bars(log: Log) -> Reading:
    """Return the mean over all epochs but the first, which includes start-up; of a single epoch its mean."""
    first_drawing: dict[int, re.Match[str]] = {}
    last_drawing: dict[int, re.Match[str]] = {}
    counts: dict[str, Any] = {}
    reading = Reading(source="Lightning")
    for _, text in log.lines():
        if match := _bar(text):
            epoch = int(match["epoch"])
            if int(match["done"]):
                first_drawing.setdefault(epoch, match)
            last_drawing[epoch] = match
        else:
            headers.note_counts(text, counts)
    reading.training_config |= headers.config_of_counts(counts)
    epochs = [last_drawing[epoch] for epoch in sorted(last_drawing)]
    batches, seconds = 0, 0.0
    for match in epochs[1:] or epochs:
        first, last = _progress(first_drawing.get(int(match["epoch"]), match)), _progress(match)
        if resumed_before(first, last):
            batches += last.steps - first.steps
            seconds += last.seconds - first.seconds
        elif duration := _duration(match):
            batches += int(match["done"])
            seconds += duration
    if batches and seconds:
        reading.reported["step_time_seconds"] = seconds / batches
        reading.warnings.append(Notice("time_of_batches", "step_time", batches=batches))
    return reading


def _progress(match: re.Match[str]) -> ClockReading:
    return ClockReading(int(match["done"]), clock_seconds(match["elapsed"] or match["window_elapsed"]))


def _duration(match: re.Match[str]) -> float | None:
    """Return the seconds of a bar by its clock of whole seconds, or by tqdm's mean rate where that is finer."""
    done, elapsed = _progress(match)
    rate = float(match["rate"] or 0)
    if rate and (not elapsed or _ROUNDED_RATE / rate < ROUNDED_SECONDS / elapsed):
        return done * rate if match["unit"] == "s/it" else done / rate
    return elapsed or None
