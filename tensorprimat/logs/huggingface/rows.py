"""Rows of the Trainer: one dictionary with a loss, its step and the clock that it states."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tensorprimat.logs import fields
from tensorprimat.logs.clocks import Moment
from tensorprimat.logs.metric_columns import moment_of
from tensorprimat.logs.metric_names import CLOCKS_OF_TRACKERS, field_of

LOSS, RUNTIME, SAMPLES_RATE = "loss", "train_runtime", "train_samples_per_second"
_COMPANIONS = ("learning_rate", "grad_norm", "epoch", "global_step/max_steps", "step", "train_speed(s/it)", "iteration")
"""Keys of which a Trainer's row has one in addition to the loss; another dictionary with a loss is not a row."""
FOREIGN = ("_step", "_runtime", "tps", "num_tokens_per_step", "num_updates")
"""Names of other loggers' rows: Weights & Biases, NeMo Automodel, fairseq."""
OF_TRAINER = ("learning_rate", "epoch")
"""Names of each of the Trainer's rows. axolotl added tokens_per_second_per_gpu from August to December 2025: the
tokens of a mean step over the time of the last one (core/trainers/base.py), which is not read."""
POSITIONS = ("global_step/max_steps", "iteration", "current_steps", "step", "train/global_step")
TOKENS_SEEN = ("num_input_tokens_seen", "total_tokens", "num_tokens")
TRAINED_TOKENS = "tokens/trainable"
"""axolotl's total of the tokens that enter the loss: it is the weight of the rate of the same tokens."""
AXOLOTL_RATE = "tokens/train_per_sec_per_gpu"
_RATES_OF_TRAINER = (AXOLOTL_RATE, "tokens_per_gpu_per_sec", "train_speed(s/it)", "train_speed(iter/s)")
ALLOCATED_PEAKS = (
    "memory/max_allocated (GiB)",
    "memory/max_mem_allocated(gib)",
    "vram_allocated",
    "max_memory_allocated (GB)",
)
RESERVED_PEAKS = ("memory(GiB)", "memory/device_reserved (GiB)", "memory/device_mem_reserved(gib)", "vram_reserved")
"""Peaks of the allocator in GiB: ms-swift's, axolotl's of several versions, LLaMA-Factory's, optimum-habana's."""
COARSEST_PRODUCT = 2.0  # seconds; beyond it ms-swift's elapsed_time, in whole seconds, is the finer clock
TIME_PASSED = re.compile(r"(?:\d{1,6} days?, )?\d{1,2}:\d\d:\d\d(?P<fraction>\.\d{1,6})?")
_DURATION = re.compile(r"(?:(\d{1,9})d )?(?:(\d{1,9})h )?(?:(\d{1,9})m )?(\d{1,9})s")


@dataclass(kw_only=True, slots=True)
class Row:
    """One dictionary with a loss, in numbers: of a long log a million are kept."""

    line: int | None
    step: int | None
    moment: Moment | None = None
    """The time at which the row was written, as it states it."""
    clock: tuple[float, float] | None = None
    """(seconds since training began, how finely they are known)"""
    interrupted_by: str = ""
    evaluation_seconds: float = 0.0
    """Seconds of the evaluations before the row, as the log states them."""
    loss: float | None
    learning_rate: float | None = None
    gradient_norm: float | None = None
    allocated_peak: float | None = None
    reserved_peak: float | None = None
    rate: float | None = None
    """Tokens/s/GPU as axolotl counts them."""
    tokens: float | None = None
    """Tokens so far."""
    trained_tokens: float | None = None
    """Tokens so far that enter the loss."""
    epoch: float | None = None


def moment_of_row(row: Mapping[str, Any]) -> Moment | None:
    """Return the moment that a row states as seconds since 1970 or as a date."""
    return next((found for name in CLOCKS_OF_TRACKERS if name in row and (found := moment_of(name, row[name]))), None)


def is_row(row: Mapping[str, Any]) -> bool:
    is_of_trainer = all(name in row for name in OF_TRAINER)
    foreign = any(name in row for name in FOREIGN) or (not is_of_trainer and any(map(_is_of_loop, row)))
    return LOSS in row and any(name in row for name in _COMPANIONS) and not foreign


@lru_cache(maxsize=2**12)
def _is_of_loop(name: str) -> bool:
    """Return True for a step time or a rate that a training loop of one's own prints, and the Trainer does not."""
    return name not in _RATES_OF_TRAINER and (field_of(name) or ("",))[0] in fields.MEASURES


def is_callback_row(row: Mapping[str, Any]) -> bool:
    """Return True for LLaMA-Factory's own copy of a row that the Trainer prints too; its throughput is a
    mean since the start.
    """
    return "throughput" in row and not any(name in row for name in ("grad_norm", "total_tokens", *POSITIONS))


def position_of(row: Mapping[str, str]) -> int | None:
    """Return the optimizer step that a row states."""
    for name in POSITIONS:
        if name in row and (step := fields.whole(row[name].split("/")[0])):
            return step
    return None


def first_of(row: Mapping[str, str], names: Iterable[str]) -> str | None:
    return next((row[name] for name in names if name in row), None)


def clock_of(row: Mapping[str, str]) -> tuple[float, float] | None:
    """Return the seconds since training began, by the row, and how far they may be off; None without a clock."""
    if runtime := fields.printed_seconds(row.get(RUNTIME)):
        return runtime, half_digit_of_trainer(row[RUNTIME])
    if by_tokens := _clock_of_tokens(row):
        return by_tokens
    passed = TIME_PASSED.fullmatch(row.get("elapsed_time", ""))
    if passed and not passed["fraction"] and position_of(row) is not None:
        return fields.clock_seconds(passed[0]) + 0.5, 0.5  # LLaMA-Factory cuts seconds off
    step, elapsed = position_of(row), _duration(row.get("elapsed_time"))
    if step is None or elapsed is None:
        return None
    for name, power in (("train_speed(s/it)", 1), ("train_speed(iter/s)", -1)):
        if speed := fields.positive(row.get(name)):
            pace = speed**power
            clock, half = step * pace, half_digit_of_trainer(row[name]) / speed
            if abs(clock - elapsed) > 1 + clock * half:  # a resumed run counts its speed from where it resumed
                steps = math.ceil((elapsed - 0.5) / pace)
                is_only = steps == math.floor((elapsed + 1) / pace)  # whole number that fits the clock
                clock = steps * pace if is_only and 0 < steps < step else math.inf
            # Whole seconds are rounded since ms-swift 4, and were cut off before.
            return (clock, clock * half) if clock * half <= COARSEST_PRODUCT else (elapsed + 0.25, 0.75)
    return None


def _clock_of_tokens(row: Mapping[str, str]) -> tuple[float, float] | None:
    """Return LLaMA-Factory's clock: all tokens so far over the rate since the start, which has two decimals."""
    tokens, rate = fields.positive(row.get("total_tokens")), fields.positive(row.get("throughput"))
    if not (tokens and rate):
        return None
    return tokens / rate, tokens / rate * min(half_digit_of_trainer(row["throughput"]), 0.005) / rate


def half_digit_of_trainer(text: str) -> float:
    """Return half a unit of the last digit of a printed number; of four significant digits where trailing zeros are
    dropped.

    transformers 5 prints every float by `.4g`, so 83.40 is "83.4" and 5000 is known to half a second.

    >>> [half_digit_of_trainer(text) for text in ("836.3940", "2.534e+04", "83.4", "5000")]
    [5e-05, 5.0, 0.005, 0.5]
    """
    half, value = fields.half_digit(text), abs(float(text))
    return min(half, 0.5 * 10.0 ** (math.floor(math.log10(value)) - 3)) if value > 0 else half


def _duration(text: str | None) -> float | None:
    """Return a duration such as `1h 13m 46s` in seconds."""
    match = _DURATION.fullmatch(text or "")
    if match is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)
