"""Rows at which the work or the speed of a step changes permanently, found from the rows alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tensorprimat.audit.checks import TOKENS_CHANGE
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import count, significant
from tensorprimat.core.steps import Steps
from tensorprimat.core.summary import pace_of
from tensorprimat.core.terms import RATES

_FLOPS = ("reported_tflops_per_gpu", "reported_mfu")
"""Printed rates of arithmetic; multiplied by the step time they are the work of a device in a step."""
WHOLE_RATIO = 0.005  # how near the ratio of two rates must be to a whole number of GPUs
MOST_GPUS_BY_RATIO = 64  # above it the tolerance is 0.1 GPUs, because WHOLE_RATIO of it comes near half a GPU
STEADY_ROWS = 3  # of equal work, before and after a change
SAME_WORK, _OTHER_WORK = 0.03, 0.2  # shares of the work of a step: rounding, and another batch or length
MANY = 1000  # an amount from which on its fraction is not shown
LEVEL_ROWS = 0.8  # least share of rows near their level; the others may be slow steps whose rate is a mean


def of_work(steps: Steps) -> Iterator[tuple[int, str]]:
    """Yield (row, reason) where the work of a step changes for good.

    The signs: the batch gets smaller; the GPUs that the rates imply, the tokens of a step, or the product of a rate and
    the step time changes. A batch that grows is a ramp-up. Nothing is yielded if rows are not in the order of lines.
    """
    lines = steps.column("line")
    if not (lines > 0).all() or (np.diff(lines) <= 0).any():
        return
    samples = steps.column("samples")
    if steps.has("samples"):
        for row in np.flatnonzero(np.diff(samples) < 0).tolist():
            yield row + 1, f"the global batch falls from {count(samples[row])} to {count(samples[row + 1])}"
    for row in _shifts(implied_gpus(steps)):
        yield row, "the number of GPUs that the rates imply changes"
    if not steps.has("samples"):
        for row, is_restart in _other_tokens(steps.column("tokens")):
            if is_restart:
                yield row, "the tokens of a step change"
    per_step = 1.0 if not steps.has("samples") else samples
    for names in (_FLOPS,) if steps.has("samples") else (_FLOPS, RATES):
        name = next((name for name in names if steps.has(name)), None)
        if name is None or not steps.has("seconds"):
            continue
        rate = steps.column(name)
        work = rate * steps.column("seconds") / per_step
        shifts = _shifts(work)
        for row in shifts if shifts and _stays_level(work, shifts) else ():
            around = rate[max(0, row - STEADY_ROWS) : row + STEADY_ROWS]
            if names is RATES or np.ptp(around) > 0:  # a constant rate is not computed, so it is not evidence
                yield row, f"{name} × seconds changes, so the work changes"


def _stays_level(work: np.ndarray, shifts: list[int]) -> bool:
    """Return True if most rows between two shifts are near one level; if not, rates and step times do not agree."""
    near = 0
    for stretch in np.split(work, shifts):
        known = stretch[np.isfinite(stretch)]
        if len(known):  # a stretch of rows without a time has no level
            near += np.count_nonzero(np.abs(known - np.median(known)) <= _OTHER_WORK / 2 * np.median(known))
    return bool(near >= LEVEL_ROWS * np.count_nonzero(np.isfinite(work)))


def of_level(amounts: np.ndarray, steps: Steps, what: str) -> Iterator[tuple[int, str]]:
    """Yield (line, reason) of rows at which the level of `amounts` changes for good. amounts: shape (rows,)."""
    lines = steps.column("line")
    if (lines > 0).all() and (np.diff(lines) > 0).all():
        for row in _shifts(amounts):
            yield int(lines[row]), f"{what} change"


def level_of(amounts: np.ndarray) -> float | None:
    """Return the amount that all steps share, except for rounding; None where they differ or are unknown."""
    known = amounts[np.isfinite(amounts)]
    steady = len(known) >= STEADY_ROWS and np.ptp(known) <= SAME_WORK * known.min()
    return float(np.median(known)) if steady else None


def _other_tokens(tokens: np.ndarray) -> Iterator[tuple[int, bool]]:
    """Yield (row, True if another training begins there) where the tokens of a step reach another level.

    A level that grows is a ramp-up, unless a row between both levels belongs to neither: its tokens are the difference
    of two trainings' totals, so another training begins there.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        jumps = np.abs(np.diff(np.log(tokens), prepend=np.nan, append=np.nan)) > _OTHER_WORK
    spikes = jumps[:-1] & jumps[1:]
    levels = np.where(spikes, np.nan, tokens)
    for row in _shifts(levels):
        last = int(np.flatnonzero(np.isfinite(levels[:row]))[-1])  # a row between both levels begins the second
        yield last + 1, bool(spikes[last + 1 : row].any() or levels[row] < levels[last])


def other_work(one: Steps, other: Steps) -> dict[str, tuple[int | str, int | str]]:
    """Return the amount of work per step in which two trainings differ: name → (of one, of the other); {} if in none.

    The amounts are the tokens of a step and, where the rows print rates and times, their products. An amount is
    compared where each training has one level of it in all of its steps. The first that differs is returned.
    """
    for name in ("tokens", *RATES, *_FLOPS):
        mine, theirs = (level_of(_amount(steps, name)) for steps in (one, other))
        if mine is None or theirs is None or abs(mine - theirs) <= _OTHER_WORK * min(mine, theirs):
            continue
        if name == "tokens":
            return {"tokens_per_step": (int(mine), int(theirs))}
        printed = np.concatenate([steps.column(name) for steps in (one, other)])
        if name in _FLOPS and np.ptp(printed[np.isfinite(printed)]) == 0:
            continue  # a constant rate is not computed, so it is not evidence
        shown = count if min(mine, theirs) >= MANY else significant
        return {f"{name} × seconds": (shown(mine), shown(theirs))}
    return {}


def _amount(steps: Steps, name: str) -> np.ndarray:
    """Return an amount of work of every step, NaN where unknown; (rows,). A product is that of one sample if known."""
    if name == "tokens":
        return steps.column("tokens")
    product = steps.column(name) * steps.column("seconds")
    return np.asarray(product / steps.column("samples") if steps.has("samples") else product)


def implied_gpus(steps: Steps) -> np.ndarray:
    """Return the rate over all GPUs divided by the rate per GPU, NaN where a row does not state both; (rows,)."""
    total = steps.column("reported_tokens_per_second")
    if not steps.has("reported_tokens_per_second"):
        total = steps.column("tokens") / steps.column("seconds")
    return np.asarray(total / steps.column("reported_tokens_per_second_per_gpu"))


def whole_gpus(steps: Steps, batch: int | None = None) -> int | None:
    """Return the number of GPUs by which all rows divide the rate over all GPUs; None where rounding leaves a doubt.

    batch: sequences of a step, which give the rate over all GPUs together with the step time where no row states it.
    """
    ratios = implied_gpus(steps)
    if batch and not np.isfinite(ratios).any():
        ratios = batch / steps.column("seconds") / steps.column("reported_samples_per_second_per_gpu")
    ratios = ratios[np.isfinite(ratios)]
    if not len(ratios):
        return None
    whole = round(float(np.median(ratios)))
    tolerance = WHOLE_RATIO * whole if whole <= MOST_GPUS_BY_RATIO else 0.1
    return whole if whole >= 1 and bool((np.abs(ratios - whole) <= tolerance).all()) else None


def _shifts(work: np.ndarray) -> list[int]:
    """Return rows at which the level of work, or of time, changes.

    The STEADY_ROWS before such a row agree with one another, and so do the STEADY_ROWS from it on.
    """
    known = np.flatnonzero(np.isfinite(work))
    values = work[known]
    if len(values) < 2 * STEADY_ROWS or np.ptp(values) <= _OTHER_WORK * values.min():
        return []
    jumps = np.flatnonzero(np.abs(np.diff(values)) > _OTHER_WORK * np.minimum(values[1:], values[:-1])) + 1
    found = []
    for at in jumps.tolist():
        before, after = values[max(0, at - STEADY_ROWS) : at], values[at : at + STEADY_ROWS]
        steady = all(
            len(level) == STEADY_ROWS and np.ptp(level) <= SAME_WORK * level.min() for level in (before, after)
        )
        if steady:
            found.append(int(known[at]))
    return found


def of_batch(samples: np.ndarray) -> Notice:
    """Return the warning about a batch that changes. samples: the batches of the rows in their order, all known."""
    grown = np.diff(samples)
    if (grown >= 0).all() or (grown <= 0).all():
        verb = "grows" if samples[-1] > samples[0] else "falls"
        return Notice("batch_changes", "global_batch_size", verb=verb, first=samples[0], last=samples[-1])
    return Notice("batch_varies", "global_batch_size", least=samples.min(), most=samples.max())


def of_speed(steps: Steps) -> Iterator[str]:
    """Yield warnings about a batch or tokens of a step that change, and about the first change of pace."""
    samples = steps.column("samples")[np.isfinite(steps.column("samples"))]
    if len(samples) and (samples != samples[0]).any():
        yield of_batch(samples)
    elif steps.has("tokens") and not len(samples):
        for row, _ in _other_tokens(steps.column("tokens")):
            step = int(steps.column("index")[row])
            yield Notice(TOKENS_CHANGE, "tokens_per_step", step=step)
    work = next((steps.column(name) for name in ("tokens", "samples") if steps.has(name)), np.ones(len(steps)))
    counted = (steps.column("interrupted_by") == 0) & (steps.column("covers") > 0)  # 0: a repeated row
    pace = np.where(counted, pace_of(steps) / work, np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        jumps = np.abs(np.diff(np.log(pace), prepend=np.nan, append=np.nan)) > _OTHER_WORK
    pace[jumps[:-1] & jumps[1:]] = np.nan  # a slow start, or a stall, between two levels
    for row in _shifts(pace)[:1]:
        before, after = (part[np.isfinite(part)] for part in (pace[:row], pace[row:]))
        ratio = np.mean(after[:STEADY_ROWS]) / np.mean(before[-STEADY_ROWS:])
        line = int(steps.column("line")[row])
        place = f"line {line}" if line > 0 else f"step {int(steps.column('index')[row])}"
        remedy = f"; to read only the log from there on: tail -n +{line} LOG | tprimat extract -" if line > 0 else ""
        yield Notice("pace_changes", "steps", place=place, times=significant(ratio, 3), remedy=remedy)
