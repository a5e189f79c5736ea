"""Figures of measured steps, each with the formula and the numbers that it was computed from.

`summary` takes their values; `--explain`, JSON and HTML show their terms (`explained`): the same computation for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from tensorprimat.core.figures import Figure, Input
from tensorprimat.core.quantities import count, counted, digits_of, precise, spelled_metric
from tensorprimat.core.result import TrainingConfig
from tensorprimat.core.steady import median
from tensorprimat.core.steps import FloatArray, Steps, distinct, finite

PRINTED = "reported_"
"""Beginning of the names of columns that hold what a framework printed."""
WORK_OF_RATES = {
    "reported_samples_per_second": ("samples", False),
    "reported_tokens_per_second": ("tokens", False),
    "reported_tokens_per_second_per_gpu": ("tokens", True),
    "reported_samples_per_second_per_gpu": ("samples", True),
}
"""Column of a rate → column of the work that it divides to give a time, and True if this needs the number of GPUs."""
RATES = tuple(WORK_OF_RATES)
POWER_COLUMN = "power_watts_per_gpu"
LEVEL_NAMES = {POWER_COLUMN: "power", "clock_hertz": "clock", "temperature_celsius": "temperature"}
"""Columns that state a level during a row, not work per second, with their names in messages."""
FEW_LINES = 5  # are named one by one
UNEVEN = 0.01  # of the mean: rows whose tokens differ by more are not alike


@dataclass(frozen=True, kw_only=True)
class Term(Figure):
    """A figure of steps: its value is known."""

    value: float
    printed: str | None = None
    """Rows and range of the rate that the framework printed for each row; None for a figure that is not made of one."""
    sums_seconds: bool = False
    """The step times of the rows are added up for this figure."""


def term_of(
    value: float,
    formula: str,
    put_in: str,
    *inputs: tuple[str, float, str],
    parts: Sequence[tuple[str, float, str]] = (),
    printed: str | None = None,
    sums_seconds: bool = False,
) -> Term:
    """Return a term. inputs: name, value and unit of the formula's numbers; parts: of those that make them up."""
    made_of = tuple(
        Input(name=name, value=number, unit=unit, in_formula=in_formula)
        for in_formula, numbers in ((True, inputs), (False, parts))
        for name, number, unit in numbers
    )
    return Term(
        value=value, own_formula=formula, put_in=put_in, inputs=made_of, printed=printed, sums_seconds=sums_seconds
    )


def _known(found: Mapping[str, Term | None]) -> dict[str, Term]:
    return {name: term for name, term in found.items() if term is not None}


def _counted_steps(steps: int, rows: str, remark: str) -> Term:
    put_in = f"{counted(steps, 'step')}{remark}"
    return term_of(steps, f"Σ steps covered, over {rows}", put_in, ("Σ steps covered", steps, "steps"))


_UNITS = {
    "_steps": "steps", "_steps_dropped": "steps", "tokens_per_step": "tokens", "_seconds": "s",
    "cv_step_time": "fraction",
    "_gb": "GB", "_bytes": "bytes", "_watts_per_gpu": "W", "_joules_per_gpu": "J", "_hertz": "Hz", "_celsius": "°C",
    "tflops_per_gpu": "TFLOP/s", "mfu": "fraction", "loss": "", "samples_to_train": "samples", "quality_target": "",
}  # fmt: skip
"""Ending of a field's name → unit."""


@cache
def unit_of(field: str) -> str:
    """Return the unit of a figure or of a column of steps by its name; "" for a loss and a target, which have none.

    >>> unit_of("tokens_per_second_per_gpu"), unit_of("reported_mfu"), unit_of("peak_memory_reserved_gb")
    ('tokens/s/GPU', 'fraction', 'GB')
    """
    if "_per_second" in field:
        return spelled_metric(field.removeprefix(PRINTED))
    return next(unit for ending, unit in _UNITS.items() if field.endswith(ending))


def performance_figures(
    config: TrainingConfig, steps: Steps, measured: Steps, *, timer: str | None, dropped: int, excluded: int
) -> dict[str, Term]:
    """Return the figures of PerformanceMetrics that the rows give, by field.

    steps: all rows; measured: those that are measured; timer: as for `step_seconds`; dropped, excluded: optimizer steps
    left out as warm-up, and because they contain other work.
    """
    covered = int(measured.column("covers").sum())
    declared = config.warmup_steps
    grounds = ", as the step times show" if declared is None else f"; declared for each run: {declared}"
    known = _known({
        "measured_steps": _counted_steps(covered, "the measured rows", f", {counted(len(measured), 'row')}"),
        "tokens_per_step": _tokens_per_step(measured),
        "warmup_steps_dropped": _counted_steps(dropped, "the rows before the measured ones", grounds),
        "excluded_steps": _counted_steps(
            excluded,
            "the rows after warm-up with other work inside (validation, checkpoint or profile)",
            f"; interrupted: {_rows(steps, steps.column('interrupted_by') != 0)}",
        ),
        **_totals(steps),
        **_over_times(config, measured, timer),
        **rates(config, measured),
    })  # fmt: skip
    return known if "avg_step_time_seconds" in known else known | over_rates(config, measured, known)


def over_rates(config: TrainingConfig, measured: Steps, known: Mapping[str, Term]) -> dict[str, Term]:
    """Return the mean step time that follows from the work of a step and a printed rate, for rows without times.

    known: rates of the rows. Tokens count only if the log counts them: a rate of tokens may leave padding or prompts
    out, which batch × length contains.
    """
    samples, tokens, covers = measured.columns("samples", "tokens", "covers")
    product = samples * (config.sequence_length or np.nan)
    is_counted = np.isfinite(tokens).any() and not np.array_equal(tokens, product, equal_nan=True)
    sized = np.isfinite(samples) & (covers > 0)
    of_step = np.average(samples[sized], weights=covers[sized]) if sized.any() else None
    of_tokens = _tokens_per_step(measured) if is_counted else None
    ways = (
        ("samples_per_step", of_step or config.global_batch_size, "samples_per_second", "sequences"),
        ("tokens_per_step", of_tokens.value if of_tokens else None, "tokens_per_second", "tokens"),
    )
    for name, work, rate, unit in ways:
        if work and rate in known:
            of_work, of_rate = (name, float(work), unit), (rate, known[rate].value, unit_of(rate))
            put_in = f"{precise(work)} {unit} / {precise(known[rate].value)} {unit_of(rate)}"
            mean = term_of(float(work) / known[rate].value, f"{name} / {rate}", put_in, of_work, of_rate)
            of_mean = ("avg_step_time_seconds", mean.value, "s")
            per_second = term_of(1 / mean.value, "1 / avg_step_time_seconds", f"1 / {precise(mean.value)} s", of_mean)
            return {"avg_step_time_seconds": mean, "steps_per_second": per_second}
    return {}


def _tokens_per_step(measured: Steps) -> Term | None:
    """Return the mean tokens of a step over the rows that state them; if they differ, the term names the range."""
    tokens, covers = measured.columns("tokens", "covers")
    known = np.isfinite(tokens) & (covers > 0)
    tokens, covers = measured.columns("tokens", "covers", rows=known)
    work, steps = float((tokens * covers).sum()), int(covers.sum())
    put_in = f"{count(work)} tokens / {counted(steps, 'step')}"
    if ends := token_range(measured):
        put_in += f", the mean of rows of {' to '.join(map(count, ends))} tokens a step"
    inputs = (("Σ tokens", work, "tokens"), ("steps", steps, ""))
    return term_of(work / steps, "Σ tokens / steps", put_in, *inputs) if work else None


def token_range(steps: Steps) -> tuple[float, float] | None:
    """Return the fewest and the most tokens of a step by the rows, where they differ."""
    tokens, covers = steps.columns("tokens", "covers")
    tokens = tokens[np.isfinite(tokens) & (covers > 0)]
    if not len(tokens) or np.ptp(tokens) <= UNEVEN * tokens.mean():
        return None
    return float(tokens.min()), float(tokens.max())


def _totals(steps: Steps) -> dict[str, Term | None]:
    """Return the sums over all rows, warm-up and interrupted ones included."""
    time, (seconds, covers) = steps.total_seconds(), steps.columns("seconds", "covers")
    of_all, timed = (_rows(steps, rows) for rows in (np.ones(len(covers), np.bool_), np.isfinite(seconds)))
    return {
        "total_steps": _counted_steps(int(covers.sum()), "all rows", f", {of_all}"),
        "total_time_seconds": None if time is None else _whole_time(time, "all rows with a time", timed),
    }


def _whole_time(time: float, rows: str, counted_rows: str) -> Term:
    amount = "Σ seconds × steps covered"
    put_in = f"{precise(time)} s, {counted_rows}"
    return term_of(time, f"{amount}, over {rows}", put_in, (amount, time, "s"), sums_seconds=True)


def _over_times(config: TrainingConfig, measured: Steps, timer: str | None) -> dict[str, Term | None]:
    """Return the statistics of the step times of the measured rows."""
    mean, time = step_seconds(config, measured, timer), measured.total_seconds()
    if mean is None or time is None:
        return {}
    seconds = measured.column("seconds")
    times = finite(seconds)
    of_mean = ("avg_step_time_seconds", mean.value, "s")
    put_in = f"1 / {precise(mean.value)} s"
    found: dict[str, Term | None] = {
        "measured_time_seconds": _whole_time(time, "the measured rows", counted(len(times), "row")),
        "avg_step_time_seconds": mean,
        "steps_per_second": term_of(1 / mean.value, "1 / avg_step_time_seconds", put_in, of_mean),
    }
    picks = (("median", "middle", median(times)), ("min", "shortest", times.min()), ("max", "longest", times.max()))
    for name, word, value in picks:
        formula = f"the {word} step time of the measured rows"
        row = int(np.nanargmin(np.abs(seconds - value)))  # the nearest one to a median that lies between two
        put_in = f"{precise(value)} s, {measured.place(row)}"
        if timer in RATES and (made := step_seconds(config, measured.take(slice(row, row + 1)), timer)):
            put_in += f": {made.put_in}"
        found[f"{name}_step_time_seconds"] = term_of(float(value), formula, put_in, (formula, float(value), "s"))
    if len(times) > 1:
        squares, rows = float(((times - times.mean()) ** 2).sum()), len(times)
        found["std_step_time_seconds"] = deviation = term_of(
            float(np.std(times, ddof=1)),
            "standard deviation of the measured rows' step times: √(Σ (seconds − mean)² / (rows − 1))",
            f"√({precise(squares)} s² / {rows - 1}), {counted(rows, 'row')}",
            ("Σ (seconds − mean)²", squares, "s²"),
            ("rows", rows, ""),
        )
        put_in = f"{precise(deviation.value)} s / {precise(mean.value)} s"
        formula = "std_step_time_seconds / avg_step_time_seconds"
        of_deviation = ("std_step_time_seconds", deviation.value, "s")
        found["cv_step_time"] = term_of(deviation.value / mean.value, formula, put_in, of_deviation, of_mean)
    return found


def reported(measured: Steps) -> dict[str, Term]:
    """Return the framework's printed figures, combined over the measured rows, by field of Reported."""
    names = ("tokens_per_second", "tokens_per_second_per_gpu", "samples_per_second", "tflops_per_gpu", "mfu")
    return _known({name: combined(measured, f"{PRINTED}{name}") for name in names})


def final_loss(steps: Steps) -> Term | None:
    """Return the loss of the last row that has one."""
    losses = steps.column("loss")
    known = np.flatnonzero(np.isfinite(losses))
    if not len(known):
        return None
    value, name = float(losses[known[-1]]), "loss of the last row that has one"
    put_in = f"{precise(value)}, {steps.place(int(known[-1]))}"
    return term_of(value, f"{name}, of all rows", put_in, (name, value, ""))


def rates(config: TrainingConfig, measured: Steps) -> dict[str, Term]:
    """Return tokens/s, tokens/s/GPU, samples/s and samples/s/GPU of the measured rows, as far as they are known."""
    gpus, length = config.num_gpus, config.sequence_length
    found = {
        name: work_rate(config, measured, unit) or combined(measured, f"{PRINTED}{name}")
        for name, unit in (("tokens_per_second", "tokens"), ("samples_per_second", "samples"))
    }
    tokens, samples = found["tokens_per_second"], found["samples_per_second"]
    if tokens is None and samples is not None and length:
        tokens = _extended(samples, samples.value * length, "×", length, "tokens of a sequence", "tokens")
    per_gpu = _per_gpu(tokens, gpus) or combined(measured, "reported_tokens_per_second_per_gpu")
    if tokens is None and per_gpu is not None and gpus:
        tokens = _extended(per_gpu, per_gpu.value * gpus, "×", gpus, "GPUs")
    samples_per_gpu = _per_gpu(samples, gpus) or combined(measured, "reported_samples_per_second_per_gpu")
    return _known({
        "tokens_per_second": tokens, "tokens_per_second_per_gpu": per_gpu,
        "samples_per_second": samples, "samples_per_second_per_gpu": samples_per_gpu,
    })  # fmt: skip


def work_rate(config: TrainingConfig, measured: Steps, unit: str) -> Term | None:
    """Return the sum of work over sum of seconds, over rows that know both. unit: tokens or samples."""
    seconds, amount = measured.columns("seconds", unit)
    known = np.isfinite(seconds) & np.isfinite(amount)
    if not known.any():
        return None
    covers, seconds, amount = measured.columns("covers", "seconds", unit, rows=known)
    time, work, steps = float((seconds * covers).sum()), float((amount * covers).sum()), int(covers.sum())
    if time <= 0 or not work:
        return None
    work_done, parts = f"{count(work)} {unit} ({counted(steps, 'step')})", [("steps", steps, "")]
    batch, length = config.global_batch_size, config.sequence_length
    if batch and (unit == "samples" or length):
        product = batch * steps * (length or 1 if unit == "tokens" else 1)
        if product == work:
            work_done = f"{batch} sequences × {f'{length} tokens × ' if unit == 'tokens' else ''}{steps} steps"
            of_sequence = [("tokens of a sequence", length, "tokens")] if unit == "tokens" and length else []
            parts = [("sequences of a step", batch, "sequences"), *of_sequence, *parts]
    put_in = f"{work_done} / {precise(time)} s"
    sums = ((f"Σ {unit}", work, unit), ("Σ seconds", time, "s"))
    return term_of(work / time, f"Σ {unit} / Σ seconds", put_in, *sums, parts=parts, sums_seconds=True)


def combined(steps: Steps, name: str) -> Term | None:
    """Return a printed rate over several rows, as total work over total time; None where no row carries it.

    With times: rate × time is the work of a row. Without: work / rate is the time of a row (a work-weighted harmonic
    mean); `work_of` gives the work. The mean of a level (LEVEL_NAMES) without times is that over the steps.
    """
    if not steps.has(name):
        return None
    usable = stated_rows(*steps.columns(name, "covers"))
    if not usable.any():
        return None
    rate, covers, seconds = steps.columns(name, "covers", "seconds", rows=usable)
    if is_timed := bool(np.isfinite(seconds).all()):
        spent = seconds * covers
        above, below = float((rate * spent).sum()), float(spent.sum())
        unit = unit_of(name)
        of_product = "J" if unit == "W" else unit.replace("/s", "", 1) if "/s" in unit else f"{unit}·s"
        how, sums, shown = "time", ("Σ (rate × seconds)", "Σ seconds"), (of_product, "s")
    elif name in LEVEL_NAMES:
        above, below = float((rate * covers).sum()), float(covers.sum())
        how, sums, shown = "steps", ("Σ (value × steps)", "Σ steps"), (f"{unit_of(name)}·steps", "steps")
    else:
        of_row, unit = work_of(steps, name, usable)
        work = of_row * covers
        above, below = float(work.sum()), float((work / rate).sum())
        how, sums, shown = f"work (of a row: {unit})", ("Σ work", "Σ (work / rate)"), (_UNIT_OF_WORK.get(unit, ""), "")
    numbers = " / ".join(f"{precise(v)} {u}".rstrip() for v, u in zip((above, below), shown, strict=True))
    low, high = float(rate.min()), float(rate.max())
    of_rows = f"{name} of {counted(len(rate), 'row')}, from {digits_of(low)} to {digits_of(high)}"
    return term_of(
        above / below,
        f"{name} combined by {how}: {' / '.join(sums)}",
        f"{of_rows}: {numbers}",
        (sums[0], above, shown[0]),
        (sums[1], below, shown[1]),
        parts=(
            ("rows", len(rate), ""),
            ("lowest rate", low, unit_of(name)),
            ("highest rate", high, unit_of(name)),
        ),
        printed=of_rows if name.startswith(PRINTED) else None,
        sums_seconds=is_timed,
    )


def stated_rows(values: np.ndarray, covers: np.ndarray) -> np.ndarray:
    """Return True for each row that states a printed rate or a level above 0; shape (rows,)."""
    states: np.ndarray = np.isfinite(values) & (values > 0) & (covers > 0)
    return states


def usable_rate(steps: Steps, name: str) -> FloatArray:
    """Return a printed rate, NaN for rows where it is not above 0; shape (rows,)."""
    rate = steps.column(name)
    return np.where(rate > 0, rate, np.nan)


_UNIT_OF_WORK = {"its tokens": "tokens", "its samples": "samples"}


def work_of(steps: Steps, rate: str, usable: np.ndarray) -> tuple[FloatArray, str]:
    """Return the work of one step of each usable row, which is the weight of its rate, and its name in words.

    A row that does not state it has the mean weight of the others; if no row states it, all have equal weight.
    """
    names = {"tokens": "its tokens", "samples": "its samples", "relative_work": "its share of the log's work"}
    for name, unit in names.items():
        if steps.has(name) and (name != "tokens" or name in rate):
            (work,) = steps.columns(name, rows=usable)
            known = np.isfinite(work) & (work >= 0)
            if work[known].any():
                return np.where(known, work, work[known].mean()), unit
    return np.ones(int(usable.sum())), "the same for all"


def step_seconds(config: TrainingConfig, measured: Steps, timer: str | None) -> Term | None:
    """Return the mean time of a step. timer: printed rate that times were computed from, if no line prints one."""
    time, (covers, times) = measured.total_seconds(), measured.columns("covers", "seconds")
    steps = int(covers[np.isfinite(times)].sum())
    if not time or not steps:
        return None
    if timer in RATES and (rate := combined(measured, timer)):
        (unit, per_gpu), seconds = WORK_OF_RATES[timer], time / steps
        gpus = config.num_gpus if per_gpu else None
        work = seconds * rate.value * (gpus or 1)
        return term_of(
            seconds,
            f"{unit} of a step{' / GPUs' if gpus else ''} / {timer}; no line prints an exact time",
            f"{precise(work)} {unit}{f' / {gpus} GPUs' if gpus else ''} / {precise(rate.value)} ({rate.printed})",
            (f"{unit} of a step", work, unit),
            *((("GPUs", gpus, ""),) if gpus else ()),
            (timer, rate.value, unit_of(timer)),
        )
    return term_of(
        time / steps,
        "Σ seconds / steps, over the measured rows",
        f"{precise(time)} s / {counted(steps, 'step')}",
        ("Σ seconds", time, "s"),
        ("steps", steps, ""),
        sums_seconds=True,
    )


def describe_lines(lines: Sequence[int] | np.ndarray) -> str:
    """Return the lines of many rows in a few words; -1 is not a line."""
    known = np.asarray(lines)
    known = np.array(distinct(known[known > 0])) if len(known) <= FEW_LINES else known[known > 0]
    if not len(known):
        return "log lines unknown"
    if len(known) <= FEW_LINES:
        return f"line{'s' * (len(known) > 1)} {', '.join(map(str, known.tolist()))}"
    return f"{len(known)} lines from {known.min()} to {known.max()}"


def _rows(steps: Steps, rows: np.ndarray) -> str:
    return f"{int(rows.sum())} of {len(rows)} rows, {describe_lines(steps.columns('line', rows=rows)[0])}"


def _per_gpu(term: Term | None, gpus: int | None) -> Term | None:
    return _extended(term, term.value / gpus, "/", gpus, "GPUs") if term and gpus else None


def _extended(term: Term, value: float, sign: str, factor: int, name: str, unit: str = "") -> Term:
    formula, put_in = f"{term.formula} {sign} {name}", f"{term.put_in} {sign} {factor} {name}"
    inputs = (*term.inputs, Input(name=name, value=factor, unit=unit))
    return replace(term, value=value, own_formula=formula, put_in=put_in, inputs=inputs)
