"""The work of a step: its tokens from a running total, and weights for printed rates where steps have different numbers
of tokens.

Fine-tuning packs or pads sequences of any length, so one step has twice the tokens of another. The mean rate is then
all tokens over all seconds. Rows that state a rate and a time give their tokens; rows that state a rate alone are
weighted by the time between them, or by the tokens that enter the loss.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod, sqrt
from typing import Any

import numpy as np

from tensorprimat.audit import evidence
from tensorprimat.audit.evidence import Elapsed
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import percent
from tensorprimat.core.steady import median
from tensorprimat.core.steps import LONGEST_STEP_SECONDS, FloatArray, Steps
from tensorprimat.core.terms import UNEVEN
from tensorprimat.logs import changes, fields

MOST_RESTARTS = 0.02  # of the rows
PAUSE = 10.0  # times the median gap between rows: a longer one contains more than steps, even long ones
WORTH_REPORTING = 0.002  # of a mean rate
WHOLE_LENGTH = 0.25  # tokens; most difference between a length of a sequence that follows from rates and a whole number
_RATES = ("reported_tokens_per_second", "reported_tokens_per_second_per_gpu")
OF_REPLICAS = Notice("rate_of_replicas", "tokens_per_second_per_gpu")


def with_tokens(
    steps: Steps,
    totals: Mapping[int, float | None],
    *,
    by: str = "line",
    before_step: bool = False,
    done: Mapping[int, float | None] | None = None,
) -> Steps:
    """Return the rows with the tokens of a step from the growth of a total, where they do not state them, and with the
    time of a step from its tokens, where they state a rate over all GPUs and no time.

    totals: value of the column `by` → total of tokens, before the step (before_step) or after it. A number
    that falls more often than trainings restart is not a total. done: likewise the number of steps in the total, where
    rows state it (the last row of a training may count its own step).
    """
    if not steps.has("tokens") and len(steps):
        total = evidence.at(totals, steps.column(by))
        if len(_falls(total, steps)) <= max(1, MOST_RESTARTS * len(steps)):
            counted = evidence.at(done or {}, steps.column(by))
            tokens = growth_to_next(total, counted, steps) if before_step else fields.growth_of(total, steps)
            steps = steps.replace(tokens=tokens) if np.isfinite(tokens).any() else steps
    return with_times(steps)


def growth_to_next(total: FloatArray, counted: FloatArray, steps: Steps) -> FloatArray:
    """Return the growth of a total per step, from each row to the next; NaN in the last row of a stretch.

    counted: steps in the total, NaN where rows do not state it; shape (rows,), as total and the result.
    """
    numbers = counted if np.isfinite(counted).all() else steps.column("index").astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        grown = np.diff(total, append=np.nan) / np.diff(numbers, append=np.nan)
    grown[(np.diff(steps.column("segment"), append=-1) != 0) | ~(np.isfinite(grown) & (grown > 0))] = np.nan
    return np.asarray(grown)


def batch_and_length(samples: FloatArray, tokens: FloatArray, stated: Collection[str]) -> dict[str, int]:
    """Return the global batch and the length of a sequence, by field of TrainingConfig, each where all rows agree.

    samples, tokens: those of one step, NaN where unknown; shape (rows,). stated: fields that are known already.
    """
    found = {}
    for name, amounts in {"global_batch_size": samples, "sequence_length": tokens / samples}.items():
        known = amounts[np.isfinite(amounts)]
        if name not in stated and len(known) > 1 and (known == known[0]).all() and float(known[0]).is_integer():
            found[name] = int(known[0])
    return found


def length_by_rates(steps: Steps, gpus: int | None, batch: int | None) -> int | None:
    """Return the tokens of a sequence, where the rate per GPU and the time of every row give the same whole number.

    gpus: number of GPUs; batch: sequences of a step. Rounded rates and times leave a doubt, and give None.
    """
    if not (gpus and batch and steps.has("seconds") and steps.has(_RATES[1])):
        return None
    lengths = steps.column(_RATES[1]) * steps.column("seconds") * gpus / batch
    lengths = lengths[np.isfinite(lengths)]
    if not len(lengths):
        return None
    length = round(float(np.median(lengths)))
    return length if length >= 1 and bool((np.abs(lengths - length) <= WHOLE_LENGTH).all()) else None


def restarts(steps: Steps, totals: Mapping[int, float | None]) -> list[tuple[int, str]]:
    """Return (line, reason) of rows at which the total falls although the number of the step grows."""
    lines = steps.column("line")
    falls = _falls(evidence.at(totals, lines), steps)
    few = len(falls) <= max(1, MOST_RESTARTS * len(steps))
    return [(int(line), "the total of tokens goes back") for line in lines[falls]] if few else []


def weighted(
    steps: Steps, elapsed: Elapsed | None, labels: FloatArray | None, gpus: int | None, *, varies: bool
) -> tuple[Steps, list[str]]:
    """Return the rows with the tokens, or else the relative work, of each step, and a warning that states the weights
    behind the mean of their rates.

    elapsed: a clock that the rows state, in place of their dates; labels: tokens of each step that enter the loss;
    shape (rows,); gpus: number of GPUs; varies: steps of this framework hold different numbers of tokens.
    """
    rates = next((steps.column(name) for name in _RATES if steps.has(name)), None)
    if rates is None or steps.has("tokens"):
        return steps, []
    if steps.has("seconds"):
        over_all = 1 if steps.has(_RATES[0]) else gpus
        if not varies:
            return steps, []
        work = rates * steps.column("seconds")
        return (steps.replace(tokens=work * over_all) if over_all else steps.replace(relative_work=work)), []
    known = rates[1:][np.isfinite(rates[1:]) & (rates[1:] > 0)]
    # The mean rate of rows of equal time exceeds that of rows of equal work by this fraction.
    off = float(known.mean() * (1 / known).mean()) - 1 if len(known) else 0.0
    if off <= UNEVEN or (labels is not None and changes.level_of(labels) is not None):
        return steps, []
    seconds, error = _between_rows(steps, elapsed, rates)
    if seconds is not None and error <= UNEVEN:
        how = f"are weighted by {elapsed.name if elapsed else 'the timestamps of the rows'}"
        if error >= WORTH_REPORTING:
            how += f", whose rounding gives the mean a standard error of about {percent(error)}"
        return steps.replace(relative_work=rates * seconds), [_warning(how)]
    if labels is not None and np.isfinite(labels).all():
        how = "are weighted by the tokens that enter the loss, as if these were the same share of every step"
        return steps.replace(relative_work=labels), [_warning(how)]
    how = f"have equal weight; if the steps took equal time, the mean would be {percent(off, 0)} higher"
    return steps, [_warning(how)]


def _warning(how: str) -> Notice:
    return Notice("rates_weighted", "tokens_per_second_per_gpu", how=how)


def _between_rows(steps: Steps, elapsed: Elapsed | None, rates: FloatArray) -> tuple[FloatArray | None, float]:
    """Return the seconds of a step by the clock between its row and the one before, NaN where that is unknown, or None
    without a clock; and the relative standard deviation that the rounding of the clock leaves in the mean rate.
    """
    index = steps.column("index")
    moments = elapsed.of(steps) if elapsed else steps.column("ended_at")
    known = moments[np.isfinite(moments)]
    if len(known) < len(moments) / 2 or not len(known):
        return None, 0.0
    gaps, numbers = np.diff(moments, prepend=np.nan), np.diff(index, prepend=0)
    gaps[(np.diff(steps.column("segment"), prepend=-1) != 0) | (numbers <= 0) | (gaps < 0)] = np.nan
    usual = median(gaps[np.isfinite(gaps)]) if np.isfinite(gaps).any() else 0.0
    if usual > 0:
        gaps[gaps > PAUSE * usual] = np.nan
    timed = np.isfinite(gaps) & np.isfinite(rates)
    spent = float(gaps[timed].sum())
    if spent <= 0:
        return None, 0.0
    resolution = elapsed.resolution if elapsed else evidence.resolution_of(known)
    mean = float((rates[timed] * gaps[timed]).sum()) / spent
    # Rounding of a time stamp moves time from the row before it to the row after it, so their difference counts.
    error = resolution / sqrt(12) * float(np.sqrt((np.diff(rates[timed]) ** 2).sum())) / spent / mean
    return np.asarray(gaps / np.maximum(numbers, 1)), error


def with_times(steps: Steps, gpus: int | None = None) -> Steps:
    """Return the rows with the time of a step from its tokens and its rate, where they state no time.

    gpus: number of GPUs, by which a rate per GPU is one over all of them.
    """
    if steps.has("seconds") or not steps.has("tokens"):
        return steps
    if steps.has(_RATES[0]):
        rates = steps.column(_RATES[0])
    elif gpus:
        rates = gpus * steps.column(_RATES[1])
    else:
        return steps
    seconds = steps.column("tokens") / rates
    seconds[~((seconds > 0) & (seconds < LONGEST_STEP_SECONDS))] = np.nan
    return steps.replace(seconds=seconds) if np.isfinite(seconds).any() else steps


def _falls(total: np.ndarray, steps: Steps) -> np.ndarray:
    """Return the rows whose total is below that of the known row before, within a stretch of growing numbers."""
    known = np.flatnonzero(np.isfinite(total))
    fallen = (np.diff(total[known]) < 0) & (np.diff(steps.column("segment")[known]) == 0)
    return np.asarray(known[1:][fallen])


def without_rate_of_replicas(
    steps: Steps, config: dict[str, Any], corrected: tuple[int, ...]
) -> tuple[Steps, list[str]]:
    """Return the rows without a rate per GPU that is one per replica, or a warning if the number of GPUs is unknown.

    If the log does not state the number, it follows from the rates. Since version `corrected`, the rate over all GPUs
    divided by the rate per GPU is the number of GPUs. In older versions it is the number of replicas, which is
    multiplied by the tensor- and pipeline-parallel sizes.
    """
    if not corrected:
        return steps, []
    name, divisor = _RATES[1], changes.whole_gpus(steps)
    sizes = (config.get("tensor_model_parallel_size"), config.get("pipeline_model_parallel_size"))
    version = tuple(map(int, config["framework_version"].split("."))) if "framework_version" in config else ()
    if divisor and version >= corrected:
        config.setdefault("num_gpus", divisor)
    elif divisor and all(sizes) and (version or sizes == (1, 1)):
        config.setdefault("num_gpus", prod((divisor, *(size for size in sizes if size))))
    gpus = config.get("num_gpus")
    if gpus is None or not steps.has("reported_tokens_per_second"):
        return steps, [] if version >= corrected else [OF_REPLICAS]
    if divisor in (None, gpus):
        return steps, []
    return steps.without(name), []
