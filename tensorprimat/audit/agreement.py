"""The figures of a result held against one another: a rate is implied by counters and clocks, by other rates, and by
TFLOP/s, so a name that claims the wrong scope shows.

`with_scopes` decides which work the rates of rows count, and which of two rates that no factor reconciles holds: that
which a count, a clock or another rate supports. TFLOP/s and MFU only choose between readings of one rate. Where nothing
decides there is no figure. audit/reported does the same for means of a whole run, and names what still contradicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from tensorprimat.audit.rounding import error_of_mean, unit_of_values
from tensorprimat.audit.rows import announced_before
from tensorprimat.core import quantities, settings
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import alternatives, digits_of, listed
from tensorprimat.core.result import Result, TrainingConfig
from tensorprimat.core.steady import median
from tensorprimat.core.steps import FloatArray, Steps, finite
from tensorprimat.core.terms import PRINTED, Term, combined, usable_rate
from tensorprimat.core.units import TERA
from tensorprimat.facts import catalogue
from tensorprimat.models import flops

DISAGREEMENT = 0.02  # figures that imply one another may differ by rounding and by when the clock is read, not by more
WHOLE_FACTOR = 0.03  # how near a ratio must be to a whole number (or its inverse) to point at a wrong configuration
MOST_OFF_WHOLE = 0.1  # the same as a difference: beyond 17, every ratio is within 3 % of a whole number
LONGEST_START = 0.25  # share of a whole training's clock that start-up and evaluations may take, besides the rows
TOTAL, PER_GPU = "reported_tokens_per_second", "reported_tokens_per_second_per_gpu"
_RATES_OF = {
    "samples": ("reported_samples_per_second", "reported_samples_per_second_per_gpu"),
    "tokens": (TOTAL, PER_GPU),
}
"""Work → columns of its printed rates, of all GPUs and of one."""
_TIME, _TOKENS, _UNDECIDED = "seconds", "tokens_per_second", "rows_undecided"
_GIVES = {
    _TIME: "the work of a step over its time",
    "samples": "samples/s × tokens of a sequence",
    **dict.fromkeys((total for total, _ in _RATES_OF.values()), "the printed rate"),
    **dict.fromkeys((per_gpu for _, per_gpu in _RATES_OF.values()), "the printed rate of one GPU × the GPUs"),
}
"""Column of rows → name of the rate of all GPUs that it gives."""
OF_SAMPLES = _GIVES["samples"]
_UNEXPLAINED = "no known factor explains the difference"
COUNTER = "the log's count of tokens over its clock"
OF_ROWS = "the work of the rows over the time between them"
FEWEST_GAPS = 4  # between rows, for a median
UNEVEN_GAPS = 0.25  # share by which the median of the gaps may differ from the steps in them


def with_scopes(result: Result, *, is_work_stated: bool = False) -> Result:
    """Return the result of a log with rates that count what their names say, and without those that others contradict;
    its figures are yet to be computed.

    is_work_stated: the user states the work of a step, which is then not in dispute.
    """
    for work in _RATES_OF if len(result.steps) else ():
        result = _without_the_odd(_with_rates(result, work), work, is_work_stated=is_work_stated)
    return result


def processes_of(config: TrainingConfig) -> int | None:
    """Return the number of processes that train side by side: one for each GPU, or what the parts of a batch give."""
    batch, micro, accumulated = config.global_batch_size, config.micro_batch_size, config.gradient_accumulation_steps
    if config.num_gpus:
        return config.num_gpus // settings.replica_devices(config) or None
    known = batch and micro and accumulated and batch % (micro * accumulated) == 0
    return batch // (micro * accumulated) if known and batch and micro and accumulated else None


def _factors(config: TrainingConfig) -> dict[str, float]:
    """Return the numbers by which rates of tokens of one training are usually apart, by name."""
    gpus, processes = config.num_gpus or 1, processes_of(config) or 1
    accumulated, length = config.gradient_accumulation_steps or 1, config.sequence_length or 1
    known = {
        "the GPUs": gpus,
        "the processes": processes,
        "the accumulation": accumulated,
        "the GPUs × the accumulation": gpus * accumulated,
        "the GPUs and the accumulation": max(gpus / accumulated, accumulated / gpus),
        "the GPUs of a replica": settings.replica_devices(config),
        "the tokens of a sequence": length,
    }
    return {name: factor for name, factor in known.items() if factor > 1}


def factor_between(one: float, other: float, config: TrainingConfig) -> str | None:
    """Return the known factor by which two rates are apart, as "the GPUs, 8"; None for any other ratio."""
    ratio = max(one, other) / min(one, other)
    near = (item for item in _factors(config).items() if abs(ratio / item[1] - 1) <= DISAGREEMENT)
    return next((f"{name}, {quantities.as_stated(factor)}" for name, factor in near), None)


def agree(one: float, other: float) -> bool:
    return abs(one / other - 1) <= DISAGREEMENT


def tolerance(result: Result) -> float:
    """Return by how much a printed figure may differ from one of coarsely printed step times."""
    return DISAGREEMENT + (result.provenance.rounding or 0.0)


def product(rate: float | None, factor: int | None) -> float | None:
    return rate * factor if rate and factor else None


def whole_factor(ratio: float) -> int | None:
    """Return the whole number of 2 or more by which two figures are apart, either way; None for another ratio."""
    factor = max(ratio, 1 / ratio)
    whole = round(factor)
    return whole if whole >= 2 and abs(factor - whole) <= min(WHOLE_FACTOR * whole, MOST_OFF_WHOLE) else None


def rates_of_tflops(result: Result) -> list[float]:
    """Return the tokens/s/GPU that the printed TFLOP/s, or else the MFU, gives by each convention."""
    reported = result.performance_metrics.reported
    tflops, mfu = (
        getattr(reported, name) or getattr(combined(result.steps, f"reported_{name}"), "value", None)
        for name in ("tflops_per_gpu", "mfu")
    )
    peak = catalogue.dense_peak(catalogue.find_gpu_of(result.gpu_info), result.training_config.precision)
    tflops = tflops or (mfu * peak if mfu and peak else None)
    return [tflops * TERA / each for each in flops.countings(result).values()] if tflops else []


def with_gpus(result: Result, processes: int | None) -> Result:
    """Return the result with one GPU for each process, unless the log or the user states the number of GPUs."""
    config = result.training_config
    if config.num_gpus or not processes or processes < 2:
        return result
    gpus = processes * settings.replica_devices(config)
    origin = "one for each process, by the rates and counts of the log"
    return result.changed(
        training_config=config.changed(num_gpus=gpus),
        gpu_info=result.gpu_info.changed(device_count=gpus),
        provenance=result.provenance.changed(assumed={**result.provenance.assumed, "num_gpus": origin}),
    )


def _with_rates(result: Result, work: str) -> Result:
    """Return a result of rows whose printed rates count what their names say; each that did not is a notice.

    Rows with the work and a time of a step that does not follow from a rate need none. work: samples or tokens.
    """
    steps, seen, notices = result.steps, result.steps.seen, list[Notice]()
    counts = _counts_over_clocks(result, work, _work_of(result, work))
    counted, how, least = counts[0] if counts else (None, "", 0.0)
    if how == COUNTER and PER_GPU in seen:
        result = with_gpus(result, processes_of(result.training_config))
    config = result.training_config
    gpus, accumulated = config.num_gpus or processes_of(config), config.gradient_accumulation_steps or 1
    amount = _work_of(result, work, config.global_batch_size)
    is_timed = "seconds" in seen and (work == "samples" or _is_known(amount))
    tflops = rates_of_tflops(result) if counted is None and gpus and work == "tokens" else []
    for name, claimed in zip(_RATES_OF[work], (1, gpus), strict=True):
        if name not in seen:
            continue
        rate, is_timer = combined(steps, name), work == "tokens" and _is_timer(steps, name, claimed)
        if rate is None or (counted is None and not tflops) or not (claimed or how == COUNTER):
            continue
        if is_timed and not is_timer and (gpus or how != COUNTER):
            continue
        scopes = _scopes(gpus, accumulated)
        fitting = [
            scope
            for scope in scopes
            if (counted and _fits(counted, rate.value * scope, least))
            or any(agree(rate.value * scope, per_gpu * (gpus or 1)) for per_gpu in tflops)
        ]
        factor = counted / (rate.value * claimed) if counted and claimed else 1.0
        whole = whole_factor(factor) if how != COUNTER else None
        if how == OF_ROWS and (gpus or factor < 1):
            whole = None  # only work that was done proves that a rate leaves processes out
        elif how == OF_ROWS and whole and not fitting:
            scopes, fitting = {whole: f"one of {whole} processes"}, [whole]
        is_odd = work == "samples" and factor > 1 + UNEVEN_GAPS / 2  # one may leave out what the rows' clock counts
        if (claimed and claimed in fitting) or not (fitting or how == COUNTER or whole or is_odd):
            continue
        by = _by(how, counted, work) if counted else "the printed TFLOP/s or MFU decides"
        say = partial(Notice, field=name.removeprefix("reported_"), printed=rate.value, by=by)
        if len(fitting) == 1 and claimed:
            factor = fitting[0] / claimed
            steps = steps.replace(**{name: steps.column(name) * factor})
            steps = steps.replace(seconds=steps.column("seconds") / factor) if is_timer else steps
            notices.append(say("rate_rescoped", scope=scopes[fitting[0]]))
        else:
            steps = steps.without(name)
            why = _UNEXPLAINED if claimed else "the number of GPUs is unknown"
            notices.append(say("rate_contradicted", unknown=why))
    is_decided = bool(notices) or (is_timed and _is_known(amount))
    settled = ("rate_of_all_assumed", f"{work}_per_second") if is_decided else ()
    known = [one for one in result.remarks if (one.code, one.field) != settled]
    return result.changed(steps=steps, warnings=(*known, *notices))


def _without_the_odd(result: Result, work: str, *, is_work_stated: bool) -> Result:
    """Return a result of rows without the time or the rate that a count, a clock or another rate contradicts.

    Where no known factor reconciles them and nothing decides, a notice says so, and `without_disputed` heeds it.
    work: samples or tokens.
    """
    config, steps = result.training_config, result.steps
    levels, near = _levels(result, work)
    is_timed = (first := next(iter(levels), "")) == _TIME
    if is_timed and is_work_stated:
        return result
    off = {name: level / levels[first] - 1 for name, level in levels.items()}
    odd = [
        name
        for name in off
        if abs(off[name]) > near
        and not (is_timed and _is_explained(result, work, off[name] + 1))
        and not (name == "samples" and off[name] > 0)  # samples may be shorter than the longest sequence
    ]
    if not odd:
        return result
    disputed = (first, odd[0])
    backing: dict[str, list[str]] = {name: [] for name in disputed}
    for name, level in levels.items():  # printed rates have one timer
        fitting = [one for one in disputed if agree(level, levels[one])] if is_timed or name == "samples" else []
        if name not in disputed and fitting == ([first] if is_timed else fitting[:1]):
            backing[fitting[0]].append(_by(_GIVES[name], level, work))
    for counted, how, least in _counts_over_clocks(result, work, _work_of(result, work, config.global_batch_size)):
        close = [name for name in disputed if _fits(counted, levels[name], DISAGREEMENT)]
        fitting = close or [name for name in disputed if _fits(counted, levels[name], least)]
        if len(fitting) == 1 and how != OF_SAMPLES:
            backing[fitting[0]].append(_by(how, counted, work))
    sides = [name for name in disputed if backing[name]]
    if len(sides) != 1:
        return _undecided(result, levels, odd[0], work)
    [held], notices = sides, []
    for name in odd if held == first else [first]:
        by = backing[held][0]
        if name == _TIME:
            by = f"{_by(_GIVES[_TIME], levels[_TIME], work)}, while {by}"
        say = partial(Notice, "rate_contradicted", "step_time" if name == _TIME else name.removeprefix(PRINTED), by=by)
        notices.append(say(printed=median(finite(steps.column(name))), unknown=_UNEXPLAINED))
        steps = steps.without(name)
    return result.changed(steps=steps, warnings=(*result.remarks, *notices))


def _is_explained(result: Result, work: str, ratio: float) -> bool:
    """Return True if a known factor, padding or the wait for data explains a printed rate over that by the times."""
    steps, config = result.steps, result.training_config
    if factor_between(ratio, 1.0, config):
        return True
    whole = (config.global_batch_size or np.nan) * (config.sequence_length or np.nan if work == "tokens" else 1)
    padding = whole / _work_of(result, work, config.global_batch_size)
    waiting = steps.column(_TIME) / (steps.column(_TIME) - steps.column("data_wait_seconds"))
    return any(len(known) and agree(median(known), ratio) for known in map(finite, (padding, waiting)))


def _undecided(result: Result, levels: Mapping[str, float], odd: str, work: str) -> Result:
    """Return the result with a notice that its rows have no rate, and without printed rates if these alone differ."""
    steps, field, flags, told = result.steps, f"{work}_per_second", [], ""
    if _TIME in levels:
        sizes = sizes_behind(result.training_config, field)
        remedy, flags = reconcile(levels[_TIME], levels[odd], sizes), [*sizes]
        told = f"; {remedy} would reconcile them" if remedy else f"; {listed(flags)} state the work of a step"
    for name in _RATES_OF[work] if _TIME not in levels else ():
        steps = steps.without(name)
    given = listed([_by(_GIVES[name], level, work) for name, level in levels.items()])
    notice = Notice(_UNDECIDED, field, remedies=flags, given=given, told=told)
    return result.changed(steps=steps, warnings=(*result.remarks, notice))


def without_disputed(result: Result, figures: dict[str, Term]) -> dict[str, Term]:
    """Return the figures of rows, by field, without the rates that the figures of the rows dispute."""
    fields = {one.field for one in result.remarks if one.code == _UNDECIDED}
    disputed = tuple(fields | ({_TOKENS} if fields else set()))  # tokens are counted in samples
    return {name: term for name, term in figures.items() if not name.startswith(disputed)} if disputed else figures


def _levels(result: Result, work: str) -> tuple[dict[str, float], float]:
    """Return the rates of all GPUs by the times of the rows, or without them by samples, and by each printed rate, over
    the rows that have all of them; and by how much they may differ. None are returned where there is only one.
    """
    steps, config, seen, rates = result.steps, result.training_config, result.steps.seen, {}
    gpus = None if "num_gpus" in result.provenance.assumed else config.num_gpus
    if _TIME in seen:
        rates[_TIME] = _work_of(result, work, config.global_batch_size) / steps.column(_TIME)
    for name, factor in zip(_RATES_OF[work], (1, gpus), strict=True):
        if name in seen:
            rates[name] = usable_rate(steps, name) * (factor or np.nan)
    if work == "tokens" and (of_samples := _RATES_OF["samples"][0]) in seen:
        rates["samples"] = usable_rate(steps, of_samples) * (config.sequence_length or np.nan)
    if len(rates) < 2:
        return {}, 0.0
    line, index, interrupted = steps.columns("line", "index", "interrupted_by")
    announced = announced_before(line, index, result.evidence)
    is_alone = (announced == 0) & (interrupted == 0)  # a rate may hold what the row's time leaves out
    known = {name: of_rows for name, rate in rates.items() if _is_known(of_rows := np.where(is_alone, rate, np.nan))}
    first = next(iter(known.values()), np.empty(0))
    ratios = {name: of_rows for name, rate in known.items() if len(of_rows := finite(rate / first))}
    near = tolerance(result) + sum(error_of_mean(one, unit_of_values(one)) for one in map(finite, known.values()))
    return {name: median(finite(first)) * median(of_rows) for name, of_rows in ratios.items()}, near


def _by(how: str, rate: float, work: str) -> str:
    return f"{how} is {digits_of(rate)} {work}/s"


def _fits(counted: float, rate: float, least: float) -> bool:
    """Return True if a count over a clock supports a rate. least: share by which it may be lower."""
    return -least <= counted / rate - 1 <= max(DISAGREEMENT, least / 2)


def _is_known(column: FloatArray) -> bool:
    return bool(np.isfinite(column).any())


def _is_timer(steps: Steps, name: str, claimed: int | None) -> bool:
    """Return True if the times of the rows follow from their tokens and this rate. claimed: GPUs that it leaves out."""
    if not claimed or not all(map(steps.has, (name, "seconds", "tokens"))):
        return False
    ratio = finite(steps.column("tokens") / steps.column("seconds") / claimed / steps.column(name))
    return bool(len(ratio) and np.allclose(ratio, 1, rtol=0, atol=1e-9))


def _scopes(gpus: int | None, accumulated: int) -> dict[int, str]:
    """Return factor from a printed rate to that of all work of all GPUs → what the rate counts."""
    part = f"one of {accumulated} accumulated batches of " if accumulated > 1 else ""
    scopes = {accumulated: f"{part}all GPUs", 1: "all GPUs"}
    if gpus:
        scopes |= {gpus * accumulated: f"{part}one GPU", gpus: "one GPU"}
    return scopes


def _work_of(result: Result, work: str, batch: int | None = None) -> FloatArray:
    """Return the work of a step by the rows, NaN where unknown; shape (rows,). batch: samples where no row has any."""
    steps, seen = result.steps, result.steps.seen
    if work == "tokens" and work in seen:
        return steps.column(work)
    samples = steps.column("samples") if "samples" in seen or not batch else np.full(len(steps), float(batch))
    return samples if work == "samples" else samples * (result.training_config.sequence_length or np.nan)


def _counts_over_clocks(result: Result, work: str, amount: FloatArray) -> list[tuple[float, str, float]]:
    """Return the rates of all GPUs that counters and clocks, and rates of samples, give: the rate, its name, and the
    share by which it may be lower than the rate of the rows; the surest first.

    amount: work of a step, shape (rows,).
    """
    counted = result.performance_metrics.reported.counted_tokens_per_second
    samples = combined(result.steps, _RATES_OF["samples"][0])
    of_samples = product(samples.value if samples else None, result.training_config.sequence_length)
    of_tokens = [(counted, COUNTER, LONGEST_START), (of_samples, OF_SAMPLES, DISAGREEMENT)] if work == "tokens" else []
    known = [*of_tokens, (_over_clock(result, amount), OF_ROWS, UNEVEN_GAPS)]
    return [(rate, how, least) for rate, how, least in known if rate]


def _over_clock(result: Result, work: FloatArray) -> float | None:
    """Return the median of the work of a step over the time between the rows, per second; None without a clock.

    work: of each step, NaN where unknown; shape (rows,).
    """
    steps, elapsed = result.steps, result.evidence.elapsed
    moments = elapsed.of(steps) if elapsed else steps.column("ended_at")
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = work[1:] * np.diff(steps.column("index")) / np.diff(moments)
    rates = finite(rates[rates > 0])
    return median(rates) if len(rates) >= FEWEST_GAPS else None


def reconcile(computed: float, reported: float, config_value: dict[str, int | None]) -> str | None:
    """Return the flag values that would make both rates agree; None unless a whole factor of 2 or more separates them.

    config_value maps a flag to its present value, for values that scale the computed rate ("--num-gpus" divides it).
    """
    ratio = reported / computed
    if (whole := whole_factor(ratio)) is None:
        return None
    proposals = []
    for flag, value in config_value.items():
        grows = (ratio > 1) != (flag == "--num-gpus")
        if value and (grows or value % whole == 0):
            proposals.append(f"{flag} {value * whole if grows else value // whole}")
    return alternatives(proposals) if proposals else None


FLAGS_BEHIND: dict[str, tuple[str, ...]] = {
    "tokens_per_second": ("sequence_length", "global_batch_size"),
    "tokens_per_second_per_gpu": ("sequence_length", "global_batch_size", "num_gpus"),
    "samples_per_second": ("global_batch_size",),
    "avg_step_time_seconds": (),
}
"""Figure that a framework may report, too → settings whose values scale the computed one."""


def sizes_behind(config: TrainingConfig, figure: str) -> dict[str, int | None]:
    """Return the flags whose values scale a computed figure, with their present values."""
    return {settings.flag(name): getattr(config, name) for name in FLAGS_BEHIND[figure]}
