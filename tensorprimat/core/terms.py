"""Rates and times of measured steps, each with the formula and the numbers that it was computed from.

`summary` takes their values, `--explain` prints their terms: the same computation for both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensorprimat.core.records import TrainingConfig
from tensorprimat.core.steps import FloatArray, Steps

RATES = (
    *("reported_samples_per_second", "reported_tokens_per_second", "reported_tokens_per_second_per_gpu"),
    "reported_samples_per_second_per_gpu",
)


@dataclass(frozen=True, kw_only=True)
class Term:
    """A figure and what it was computed from."""

    value: float
    formula: str
    """In symbols: Σ tokens / Σ seconds."""
    put_in: str
    """The formula with its numbers."""


def rates(config: TrainingConfig, measured: Steps) -> dict[str, Term]:
    """Return tokens/s, tokens/s/GPU, samples/s and samples/s/GPU of the measured rows, as far as they are known."""
    gpus, length = config.num_gpus, config.sequence_length
    found = {
        name: work_rate(config, measured, unit) or combined(measured, f"reported_{name}")
        for name, unit in (("tokens_per_second", "tokens"), ("samples_per_second", "samples"))
    }
    tokens, samples = found["tokens_per_second"], found["samples_per_second"]
    if tokens is None and samples is not None and length:
        tokens = _scaled(samples, float(length), f" × {length} tokens of a sequence", " × tokens of a sequence")
    per_gpu = _per_gpu(tokens, gpus) or combined(measured, "reported_tokens_per_second_per_gpu")
    if tokens is None and per_gpu is not None and gpus:
        tokens = _scaled(per_gpu, float(gpus), f" × {gpus} GPUs", " × GPUs")
    terms = {
        "tokens_per_second": tokens,
        "tokens_per_second_per_gpu": per_gpu,
        "samples_per_second": samples,
        "samples_per_second_per_gpu": _per_gpu(samples, gpus)
        or combined(measured, "reported_samples_per_second_per_gpu"),
    }
    return {name: term for name, term in terms.items() if term is not None}


def work_rate(config: TrainingConfig, measured: Steps, unit: str) -> Term | None:
    """Sum of work over sum of seconds, over rows that know both. unit: tokens or samples."""
    covers, seconds, amount = measured.column("covers"), measured.column("seconds"), measured.column(unit)
    usable = np.isfinite(seconds) & np.isfinite(amount)
    spent, done = _of(seconds * covers, usable), _of(amount * covers, usable)
    time, work = float(spent.sum()), float(done.sum())
    if time <= 0 or not work:
        return None
    steps = int(_of(covers, usable).sum())
    told = f"{work:,.0f} {unit} of {steps} steps"
    batch, length = config.global_batch_size, config.sequence_length
    if batch and (unit == "samples" or length):
        product = batch * steps * (length or 1 if unit == "tokens" else 1)
        if product == work:
            told = f"{batch} sequences × {f'{length} tokens × ' if unit == 'tokens' else ''}{steps} steps"
    return Term(value=work / time, formula=f"Σ {unit} / Σ seconds", put_in=f"{told} / {time:,.6g} s")


def combined(steps: Steps, name: str) -> Term | None:
    """A printed rate over several rows, as total work over total time; None where no row carries it.

    With times: rate × time is the work of a row. Without: rows of equal steps did equal work, so work / rate is the
    time (a work-weighted harmonic mean).
    """
    if not steps.has(name):
        return None
    rate, covers = steps.column(name), steps.column("covers")
    usable = np.isfinite(rate) & (rate > 0) & (covers > 0)
    if not usable.any():
        return None
    rate, covers, seconds = (_of(column, usable) for column in (rate, covers, steps.column("seconds")))
    if np.isfinite(seconds).all():
        spent = seconds * covers
        value = float((rate * spent).sum() / spent.sum())
        how = "time: Σ (rate × seconds) / Σ seconds"
    else:
        samples = _of(steps.column("samples"), usable)
        work = np.where(np.isfinite(samples), samples, 1.0) * covers
        value = float(work.sum() / (work / rate).sum())
        how = "work: Σ work / Σ (work / rate)"
    low, high = shown(float(rate.min())), shown(float(rate.max()))
    return Term(
        value=value, formula=f"{name} combined by {how}", put_in=f"{name} of {len(rate)} rows, from {low} to {high}"
    )


def time_of(steps: Steps) -> float | None:
    """Seconds of all rows that have a time: sum of mean step time × steps covered."""
    return total(steps.column("seconds") * steps.column("covers"))


def total(values: FloatArray) -> float | None:
    """Sum of what is known; None where nothing is."""
    finite = _of(values, np.isfinite(values))
    return float(finite.sum()) if len(finite) else None


def step_seconds(config: TrainingConfig, measured: Steps, timer: str | None) -> Term | None:
    """Mean time of a step. timer: the printed rate that the rows' times were made of, where no line prints a time."""
    time = time_of(measured)
    steps = float(_of(measured.column("covers"), np.isfinite(measured.column("seconds"))).sum())
    if not time or not steps:
        return None
    if timer in RATES and (rate := combined(measured, timer)):
        value, gpus = time / steps, config.num_gpus
        unit, divided = ("tokens" if "tokens" in timer else "samples"), timer.endswith("_per_gpu") and bool(gpus)
        return Term(
            value=value,
            formula=f"{unit} of a step{' / GPUs' if divided else ''} / {timer}; no line prints a time",
            put_in=f"{shown(value * rate.value * (gpus or 1 if divided else 1))} {unit}"
            f"{f' / {gpus} GPUs' if divided else ''} / {shown(rate.value)} ({rate.put_in})",
        )
    return Term(
        value=time / steps,
        formula="Σ seconds / steps, over the measured rows",
        put_in=f"{time:,.6g} s, {steps:.0f} steps",
    )


def shown(value: float) -> str:
    """A figure for a person: four digits, or one decimal from 100 on."""
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"


def _per_gpu(term: Term | None, gpus: int | None) -> Term | None:
    return _scaled(term, 1 / gpus, f" / {gpus} GPUs", " / GPUs") if term and gpus else None


def _scaled(term: Term, factor: float, put_in: str, symbols: str) -> Term:
    value = term.value * factor if factor >= 1 else term.value / round(1 / factor)
    return Term(value=value, formula=term.formula + symbols, put_in=term.put_in + put_in)


def _of(values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Those values that are wanted; mostly all, and then of millions no copy is made."""
    return values if wanted.all() else values[wanted]
