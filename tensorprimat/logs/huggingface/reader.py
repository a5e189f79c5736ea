"""Hugging Face Trainer and the trainers built on it (TRL, LLaMA-Factory, axolotl, ms-swift): `{'loss': 1.25, …}`.

Five shapes of one thing: dictionaries in a console log (numbers, or since transformers 5 quoted ones), with a tqdm bar
redrawn around them; `trainer_state.json`; `train_results.json` / `all_results.json`; ms-swift's `logging.jsonl`;
LLaMA-Factory's `trainer_log.jsonl`.

What the numbers mean (transformers/trainer.py, trainer_utils.speed_metrics; swift/trainers/patcher.py):
- A row has a loss, and no time of its own. Some rows have a clock that started with the training:
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

Rows of several processes in one file: LLaMA-Factory's ranks, and trainings side by side, may append to the same log.

Their steps and clocks alternate, so the time between two lines is that of no process. `of_one_process` distinguishes
them by their clocks, and keeps the rows of the one that wrote most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import multimode

import numpy as np

from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import fixed
from tensorprimat.logs import work
from tensorprimat.logs.clocks import stamps_of
from tensorprimat.logs.format import Reading
from tensorprimat.logs.huggingface import run
from tensorprimat.logs.huggingface.content import (
    count_in_document,
    dictionaries_in,
    is_summary_row,
    of_document,
    of_text,
    opens_as_document,
    table_row,
)
from tensorprimat.logs.huggingface.rows import Row, is_row
from tensorprimat.logs.huggingface.steps import steps_of_rows
from tensorprimat.logs.repeats import goes_back
from tensorprimat.logs.text import Log

_LEAST_ROWS = 8
ALTERNATING = 0.25  # of the rows that go back, or repeat a step: restarts are far fewer
_LOOKED_AT = 8  # processes that began last
_FARTHEST = 3  # times the usual distance between two rows of one process: two rows may be lost

OF_TRL = "step_time"
"""Mean time of generation, forward and backward since the row before (trl/trainer/grpo_trainer.py, training_step)."""


def detect(log: Log) -> int:
    found = sum(1 for _, text in log.head() for row in dictionaries_in(text) if is_row(row) or is_summary_row(row))
    if not found and opens_as_document(log):
        found = count_in_document(log)
    return found or int(is_summary_row(dict(filter(None, (table_row(text) for _, text in log.head())))))


def read(log: Log) -> Reading:
    content = (of_document(log) if opens_as_document(log) else None) or of_text(log)
    content.rows, processes = of_one_process(content.rows)
    dated = run.count_from_start(content)
    reading, span = content.reading, run.span_of(content)
    reported, total = run.reported_by(content, span), run.trained_steps(content, span)
    _configure(reading, reported)
    evidence = run.trainer_evidence(content, span, total)
    moments = [row.moment for row in content.rows if dated and row.moment is not None]
    for row, moment in zip(content.rows, moments, strict=False):
        row.clock = moment.seconds - moments[0].seconds, moment.resolution / 2
    stamped = not reported and not dated and _with_stamps(log, content.rows, content.logging_steps)
    every = content.logging_steps if stamped else None
    steps = steps_of_rows(content.rows, total, run.final_epoch(content), every, reading.warnings, dated=dated)
    if not steps.has("relative_work") and steps.has("seconds"):
        steps, _ = work.weighted(steps, None, None, reading.training_config.get("num_gpus"), varies=True)
    reading.steps, reading.reported, reading.evidence = steps, reported, evidence
    reading.steps = run.with_samples(content, reading)
    reading.timing = "timestamps" if stamped or dated else "reported"
    if processes > 1:
        reading.warnings.append(Notice("processes_alternate", "steps", processes=processes))
    if counts_others := run.warning_of(content, span, timed=steps.has("seconds")):
        reading.warnings.append(counts_others)
    if content.counts_trained_tokens:
        reading.warnings.append(Notice("rate_of_loss_tokens", "tokens_per_second_per_gpu"))
    if reported and not np.isfinite(reading.steps.column("seconds")).any():
        evaluations = sum(row.evaluation_seconds for row in content.rows) + content.evaluation_seconds
        stated = f" (eval_runtime adds up to {fixed(evaluations, 1)} s)" if evaluations else ""
        reading.warnings.append(Notice("means_only", "steps", stated=stated))
        if not content.rows and not content.bar and not content.resumed_at and "samples_per_second" in reported:
            reading.warnings.append(Notice("samples_of_others", "samples_per_second"))
    if dated:
        reading.warnings.append(Notice("timed_by_moments", "steps"))
    if stamped:
        reading.warnings.append(Notice("timed_by_lines", "steps", logging_steps=content.logging_steps))
    elif stamped is None:
        reading.warnings.append(Notice("interval_unknown", "steps"))
    elif OF_TRL in content.last and not reported and not steps.has("seconds"):
        reading.warnings.append(Notice("time_without_optimizer", "steps", column=OF_TRL))
    return reading


def _configure(reading: Reading, reported: dict[str, float]) -> None:
    """Add the global batch that follows from other settings (ms-swift prints its parts alone).

    The Trainer counts every process as a replica, also those that share a sequence; a rate from that count is left out.
    """
    config = reading.training_config
    processes = config.pop("world_size", None)
    if processes and processes > 1:  # a single process may drive several GPUs
        config.setdefault("num_gpus", processes)
    parts = [config.get("micro_batch_size"), config.get("gradient_accumulation_steps"), processes]
    if all(parts):
        of_all = math.prod(part for part in parts if part)
        shared = config.get("context_parallel_size") or 1  # processes of one sequence
        if config.setdefault("global_batch_size", of_all) == of_all and shared > 1 and not processes % shared:
            config["global_batch_size"] = of_all // shared
            if round(reported.get("samples_per_second", 0.0) * reported.get("step_time_seconds", 0.0)) == of_all:
                del reported["samples_per_second"]


def _with_stamps(log: Log, rows: Sequence[Row], logging_steps: int | None) -> bool | None:
    """Give every row the clock of the timestamp that a collector (docker, journald) put before its line.

    Return True if that was done, and None if only the number of steps of a row is missing. Return False if a row states
    its step or a clock, or if timestamps are missing or equal.
    """
    if len(rows) < 2 or any(row.clock is not None or row.step is not None for row in rows):
        return False
    moments = stamps_of(log, sorted({row.line for row in rows if row.line is not None}))
    stamps = [moments.get(row.line or 0) for row in rows]
    first = stamps[0]
    if first is None or None in stamps or stamps[-1] == first:
        return False
    if not logging_steps:
        return None
    for row, stamp in zip(rows, stamps, strict=True):
        if stamp is not None:
            row.clock = stamp.seconds - first.seconds, stamp.resolution / 2
    return True


@dataclass(kw_only=True)
class _Process:
    rows: list[Row]
    longest: int
    """Most steps between two rows that follow each other."""
    pace: float | None = None
    """Seconds of a step between its last two rows."""

    def gap(self, row: Row) -> tuple[float, float] | None:
        """Return the distance of a row from the last of this process: steps, and the change of the seconds per step.

        None if the row cannot follow: its step or clock is not later, its step is too far away, or it has no clock.
        """
        last = self.rows[-1]
        steps = (row.step or 0) - (last.step or 0)
        if not 0 < steps <= self.longest or row.clock is None or last.clock is None or row.clock[0] < last.clock[0]:
            return None
        pace = (row.clock[0] - last.clock[0]) / steps
        return steps, abs(pace - self.pace) if self.pace is not None else 0.0

    def add(self, row: Row) -> None:
        """Take the row as the next of this process."""
        last = self.rows[-1]
        if row.clock and last.clock:
            self.pace = (row.clock[0] - last.clock[0]) / ((row.step or 0) - (last.step or 0))
        self.rows.append(row)


def of_one_process(found: Sequence[Row]) -> tuple[list[Row], int]:
    """Return the rows of the process that wrote most, and the number of processes that wrote about as many.

    Rows of one process, with a restart or two or from the newest to the oldest, are returned as they are.
    """
    rows = list(found)
    if len(rows) < _LEAST_ROWS or any(row.step is None or row.clock is None for row in rows):
        return rows, 1
    if goes_back([row.step or 0 for row in rows]):
        return rows, 1  # of one process, the newest first
    back = sum((after.step or 0) <= (before.step or 0) for before, after in pairwise(rows))
    if back < ALTERNATING * len(rows):
        return rows, 1
    longest = _FARTHEST * _interval([row.step or 0 for row in rows])
    processes: list[_Process] = []
    for row in rows:
        near = [(gap, process) for process in processes[-_LOOKED_AT:] if (gap := process.gap(row))]
        if near:
            min(near, key=lambda each: each[0])[1].add(row)
        else:
            processes.append(_Process(rows=[row], longest=longest))
    most = max(processes, key=lambda process: len(process.rows)).rows
    return most, sum(2 * len(process.rows) > len(most) for process in processes)


def _interval(steps: Sequence[int]) -> int:
    """Return the usual distance between two rows of one process, with up to _LOOKED_AT processes in turn."""
    distances = (
        after - before
        for ahead in range(1, _LOOKED_AT + 1)
        for before, after in zip(steps, steps[ahead:], strict=False)
        if after > before
    )
    return min(multimode(distances))
