"""XTuner V1: `[XTuner][RANK 0][…][INFO] Epoch 1 Step 4/32 data_time: 0.0014 lr: 0.000059 time: 0.0303
text_tokens: 324.0 … tgs: 10682.3 e2e_tgs: 7431.9` on one line (xtuner/v1/train/trainer.py, `_log_step`, November 2026).

Every rank prints its own row. `time` is that of forward, backward and optimizer; the wait for data (`data_time`) is not
in it, nor in `tgs`, the rank's tokens divided by `time`. Here the time of a step is the sum of both, and the rate of a
rank is its tokens divided by this sum. Checkpoints are in neither. `reduced_consumed_tokens`, in newer releases, is the
total over all ranks; `total_consumed_tokens`, in older ones, is that of the rank.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tensorprimat.core.notices import Notice
from tensorprimat.core.steady import median
from tensorprimat.core.steps import LONGEST_STEP_SECONDS, Step, Steps
from tensorprimat.core.units import GIB
from tensorprimat.logs import fields, work
from tensorprimat.logs.clocks import date_in
from tensorprimat.logs.fields import NUMBER
from tensorprimat.logs.format import Reading
from tensorprimat.logs.text import Log

_NUMBER = rf"({NUMBER})"
_ROW = re.compile(
    r"\[XTuner\](?:\[RANK (?P<rank>\d{1,6})\])?(?P<head>.{0,200}?)\bStep (?P<step>\d{1,12})/(?P<last>\d{1,12}) "
    r"data_time: (?P<wait>\d{1,9}\.\d{1,9}) lr: (?P<lr>[\d.e+-]{1,30}) time: (?P<time>\d{1,9}\.\d{1,9}) "
    r"text_tokens: (?P<tokens>\d{1,15}(?:\.\d{1,9})?) (?P<rest>.*\btgs: \d.*)"
)
_LOSS = (re.compile(rf"\breduced_llm_loss: {_NUMBER}[, ]"), re.compile(rf"(?<!_)\bloss: {_NUMBER}[, ]"))
_TOTAL = re.compile(rf"\breduced_consumed_tokens: {_NUMBER} ")
_BATCH = re.compile(rf"\best_global_batch_tokens: {_NUMBER}(?: |$)")
_GRADIENT = re.compile(rf"\bgrad_norm: {_NUMBER} ")
_MEMORY = (re.compile(rf"\bmax_memory: {_NUMBER} GB "), re.compile(rf"\breserved_memory: {_NUMBER} GB "))
_ACCUMULATION = re.compile(r"\bgrad_accumulation_steps: (\d{1,9})\b")
_LONGEST_LINE = 2**13
UNEVEN_RANKS = 0.2  # of a rank's tokens, which differ from rank to rank


XTUNER_METRICS = frozenset(("time/step_time", "time/data_time", "runtime_info/tgs"))
"""Metrics that XTuner hands to its tracker (tracker.jsonl, TensorBoard) in the place of a row."""
NO_WAIT = Notice("wait_left_out", "tokens_per_second_per_gpu")
ONE_RANK = Notice("rows_of_one_rank", "tokens_per_second_per_gpu")


class _Row(NamedTuple):
    line: int
    rank: int | None
    match: re.Match[str]


def detect(log: Log) -> int:
    return sum("[XTuner]" in text and _ROW.search(text) is not None for _, text in log.head())


def read(log: Log) -> Reading:
    reading = Reading(source="XTuner")
    reading.warnings.append(NO_WAIT)
    attempts: list[dict[int, list[_Row]]] = [{}]
    for line, text in log.lines():
        text = text[:_LONGEST_LINE]
        if "[XTuner]" not in text:
            continue
        if match := _ROW.search(text):
            rank = None if match["rank"] is None else int(match["rank"])
            rows = attempts[-1].setdefault(int(match["step"]), [])
            if any(row.rank == rank for row in rows):  # the step is trained again
                attempts.append({int(match["step"]): (rows := [])})
            rows.append(_Row(line, rank, match))
        elif found := _ACCUMULATION.search(text):
            reading.training_config.setdefault("gradient_accumulation_steps", int(found[1]))
        else:
            reading.note_device(text)
    ranks = {row.rank for attempt in attempts for rows in attempt.values() for row in rows}
    gpus = len(ranks) if len(ranks) > 1 and ranks == set(range(len(ranks))) else None
    groups = [rows for attempt in attempts for rows in attempt.values() if gpus is None or len(rows) == gpus]
    if not groups:
        return reading
    if gpus:
        reading.training_config["num_gpus"] = gpus
    elif len(ranks) > 1:
        groups = [rows[:1] for rows in groups]
    reading.training_config["max_steps"] = int(groups[0][0].match["last"])
    reading.steps = _with_tokens(
        fields.merged(((None, _step(rows)) for rows in groups), reading.warnings), groups, reading
    )
    return reading


def with_waits(steps: Steps) -> tuple[Steps, list[str]]:
    """Return the rows of a tracker's table with the wait for data in their times and rates, and warnings about both."""
    computing, waits = steps.column("seconds"), np.nan_to_num(steps.column("data_wait_seconds"))
    rates = steps.column("reported_tokens_per_second_per_gpu") * computing / (computing + waits)
    steps = steps.replace(seconds=computing + waits, reported_tokens_per_second_per_gpu=rates)
    if steps.has("tokens"):
        return steps, [NO_WAIT]
    return steps.replace(relative_work=rates * (computing + waits)), [NO_WAIT, ONE_RANK]


def _step(rows: Sequence[_Row]) -> Step:
    """Return the step that rows of different ranks describe: the mean of their times, the sum of their tokens."""
    first, rest = rows[0].match, rows[0].match["rest"]
    wait = sum(float(row.match["wait"]) for row in rows) / len(rows)
    seconds = wait + sum(float(row.match["time"]) for row in rows) / len(rows)
    tokens = sum(float(row.match["tokens"]) for row in rows)
    allocated, reserved = (
        max(filter(None, (_found(pattern, row.match["rest"]) for row in rows)), default=None) for pattern in _MEMORY
    )
    return Step(
        index=int(first["step"]),
        seconds=seconds if 0 < seconds < LONGEST_STEP_SECONDS else None,
        data_wait_seconds=wait,
        tokens=tokens if len(rows) > 1 else None,
        reported_tokens_per_second_per_gpu=tokens / len(rows) / seconds if seconds and tokens else None,
        loss=next((loss for pattern in _LOSS if (loss := _found(pattern, rest)) is not None), None),
        learning_rate=fields.number(first["lr"]),
        gradient_norm=_found(_GRADIENT, rest),
        ended_at=date_in(first["head"]),
        line=rows[0].line,
        memory_allocated_peak_bytes=allocated * GIB if allocated else None,
        memory_reserved_peak_bytes=reserved * GIB if reserved else None,
    )


def _found(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return fields.number(match[1]) if match else None


def _with_tokens(steps: Steps, groups: Sequence[Sequence[_Row]], reading: Reading) -> Steps:
    """Return the steps with the tokens of all ranks; if the log has those of one rank alone, these are their work."""
    first = {rows[0].line: rows[0].match for rows in groups}
    lines = steps.column("line").tolist()
    if not steps.has("tokens"):
        steps = work.with_tokens(steps, {line: _found(_TOTAL, match["rest"]) for line, match in first.items()})
    own = np.array([float(first[line]["tokens"]) for line in lines])
    if not steps.has("tokens"):
        reading.warnings.append(ONE_RANK)
        return steps.replace(relative_work=own)
    batches = np.array([_found(_BATCH, first[line]["rest"]) or np.nan for line in lines])
    tokens = steps.column("tokens")
    known = np.isfinite(batches) & np.isfinite(tokens) & (own > 0)
    if known.any():
        _count_ranks(reading, median(tokens[known] / batches[known]), median(batches[known] / own[known]))
    return steps


def _count_ranks(reading: Reading, sharing: float, replicas: float) -> None:
    """Take the number of GPUs from the ranks that share a batch and the number of batches in a step."""
    ranks = round(sharing)
    if "num_gpus" not in reading.training_config and abs(sharing - ranks) < UNEVEN_RANKS and replicas.is_integer():
        reading.training_config |= {"num_gpus": ranks * int(replicas)} if ranks else {}
        reading.by_rows |= {"num_gpus"}
    if ranks > 1:
        reading.warnings.append(Notice("tokens_counted_by_ranks", "tokens_per_second", ranks=ranks))
