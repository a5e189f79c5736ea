"""The figures of a result held against one another: a rate is implied by counters and clocks, by other rates, and by
TFLOP/s, so a name that claims the wrong scope shows.

`with_scopes` decides which work the rates of tokens in a log count, before any figure is computed from them;
`disagreements` names what still contradicts in any result. The reading that most others support holds, and of equals a
count over a clock. TFLOP/s and MFU only choose between other readings. Where nothing decides there is no figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from tensorprimat.core import catalogue, quantities, settings
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import alternatives, count, digits_of, fixed, significant
from tensorprimat.core.result import Reported, Result, TrainingConfig
from tensorprimat.core.steady import median
from tensorprimat.core.steps import FloatArray, Steps, finite
from tensorprimat.core.terms import RATES, combined
from tensorprimat.core.units import TERA
from tensorprimat.models import flops

DISAGREEMENT = 0.02  # figures that imply one another may differ by rounding and by when the clock is read, not by more
WHOLE_FACTOR = 0.03  # how near a ratio must be to a whole number (or its inverse) to point at a wrong configuration
MOST_OFF_WHOLE = 0.1  # the same as a difference: beyond 17, every ratio is within 3 % of a whole number
LONGEST_START = 0.25  # share of a whole training's clock that start-up and evaluations may take, besides the rows
TOTAL, PER_GPU = "reported_tokens_per_second", "reported_tokens_per_second_per_gpu"
_SAMPLES, _SAMPLES_PER_GPU = "reported_samples_per_second", "reported_samples_per_second_per_gpu"
PROCESSES = "the printed rate of one process × the processes"
COUNTER = "the log's count of tokens over its clock"
OF_ROWS = "the work of the rows over the time between them"
FEWEST_GAPS = 4  # between rows, for a median
UNEVEN_GAPS = 0.25  # share by which the median of the gaps may differ from the steps in them
OF_SAMPLES = "samples/s × tokens of a sequence"


def with_scopes(result: Result) -> Result:
    """Return the result of a log with rates of tokens that count what their names say, and without those that nothing
    decides; its figures are yet to be computed.
    """
    result = _with_rates(_with_rates_of_samples(result)) if len(result.steps) else result
    is_timed = result.steps.has("seconds") or any(map(result.steps.has, RATES))
    return _with_means(result) if result.performance_metrics.basis == "reported_means" and not is_timed else result


def _processes(config: TrainingConfig) -> int | None:
    """Return the number of processes that train side by side: one for each GPU, or what the parts of a batch give."""
    batch, micro, accumulated = config.global_batch_size, config.micro_batch_size, config.gradient_accumulation_steps
    if config.num_gpus:
        return config.num_gpus // settings.replica_devices(config) or None
    known = batch and micro and accumulated and batch % (micro * accumulated) == 0
    return batch // (micro * accumulated) if known and batch and micro and accumulated else None


def _factors(config: TrainingConfig) -> dict[str, float]:
    """Return the numbers by which rates of tokens of one training are usually apart, by name."""
    gpus, processes = config.num_gpus or 1, _processes(config) or 1
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


def _factor_between(one: float, other: float, config: TrainingConfig) -> str | None:
    """Return the known factor by which two rates are apart, as "the GPUs, 8"; None for any other ratio."""
    ratio = max(one, other) / min(one, other)
    near = (item for item in _factors(config).items() if abs(ratio / item[1] - 1) <= DISAGREEMENT)
    return next((f"{name}, {quantities.as_stated(factor)}" for name, factor in near), None)


def _agree(one: float, other: float) -> bool:
    return abs(one / other - 1) <= DISAGREEMENT


def _disagreement(result: Result) -> float:
    """Return by how much a printed figure may differ from one of coarsely printed step times."""
    return DISAGREEMENT + (result.provenance.rounding or 0.0)


def _readings(result: Result) -> dict[str, float]:
    """Return the tokens/s of all GPUs that each mean of the whole run implies, the surest first."""
    figures, config = result.performance_metrics, result.training_config
    reported, processes = figures.reported, _processes(config)
    known = {
        COUNTER: reported.counted_tokens_per_second,
        "the printed rate": reported.tokens_per_second,
        PROCESSES: _product(reported.tokens_per_second_per_process, processes),
        "the printed rate of one GPU × the GPUs": _product(reported.tokens_per_second_per_gpu, config.num_gpus),
        OF_SAMPLES: _product(figures.samples_per_second, config.sequence_length),
    }
    return {name: rate for name, rate in known.items() if rate}


def _product(rate: float | None, factor: int | None) -> float | None:
    return rate * factor if rate and factor else None


def _held(readings: Mapping[str, float], result: Result) -> float | None:
    """Return the reading that holds against the others; None where nothing decides."""
    if not readings:
        return None
    support = {name: sum(_agree(other, rate) for other in readings.values()) for name, rate in readings.items()}
    best = max(readings, key=lambda name: support[name])  # the first of equals
    rivals = [
        name for name in readings if support[name] == support[best] and not _agree(readings[name], readings[best])
    ]
    if not rivals or best == COUNTER:
        return readings[best]
    gpus, by_tflops = result.training_config.num_gpus or 1, _rates_of_tflops(result)
    apart = [readings[name] for name in (best, *rivals)]
    supported = [total for total in apart if any(_agree(total / gpus, per_gpu) for per_gpu in by_tflops)]
    if len(supported) == 1:
        return supported[0]
    rate, of_samples = readings[best], readings.get(OF_SAMPLES)
    if of_samples is None or rivals != [OF_SAMPLES]:
        return None
    one_process = result.performance_metrics.reported.tokens_per_second_per_process
    if _factor_between(rate, of_samples, result.training_config) or (one_process and _agree(of_samples, one_process)):
        return of_samples
    return None if _whole(of_samples / rate) else rate  # samples may be shorter than the longest sequence


def _whole(ratio: float) -> int | None:
    """Return the whole number of 2 or more by which two figures are apart, either way; None for another ratio."""
    factor = max(ratio, 1 / ratio)
    whole = round(factor)
    return whole if whole >= 2 and abs(factor - whole) <= min(WHOLE_FACTOR * whole, MOST_OFF_WHOLE) else None


def _rates_of_tflops(result: Result) -> list[float]:
    """Return the tokens/s/GPU that the printed TFLOP/s, or else the MFU, gives by each convention."""
    reported = result.performance_metrics.reported
    tflops, mfu = (
        getattr(reported, name) or getattr(combined(result.steps, f"reported_{name}"), "value", None)
        for name in ("tflops_per_gpu", "mfu")
    )
    peak = catalogue.dense_peak(catalogue.find_gpu_of(result.gpu_info), result.training_config.precision)
    tflops = tflops or (mfu * peak if mfu and peak else None)
    return [tflops * TERA / each for each in flops.countings(result).values()] if tflops else []


def _with_means(result: Result) -> Result:
    """Return a result of means with the tokens/s that holds. Where only the rate of one process is printed, and others
    show how many there are, each has one GPU.
    """
    figures, config, readings = result.performance_metrics, result.training_config, _readings(result)
    reported, total = figures.reported, _held(readings, result)
    if of_process := reported.tokens_per_second_per_process:
        if not readings and config.num_gpus == 1:
            total = of_process
        processes = _whole(total / of_process) if total and total > of_process else None
        if processes and _processes(config) in (None, processes):
            result = _with_gpus(result, processes)
            config = result.training_config
    elif not readings:
        return result
    gpus, samples = config.num_gpus, figures.samples_per_second
    means = figures.changed(
        tokens_per_second=total,
        tokens_per_second_per_gpu=_per_gpu(total, gpus, reported),
        samples_per_second_per_gpu=samples / gpus if samples and gpus else figures.samples_per_second_per_gpu,
    )
    return result.changed(performance_metrics=means)


def _per_gpu(total: float | None, gpus: int | None, reported: Reported) -> float | None:
    if gpus is None:
        return reported.tokens_per_second_per_gpu
    return total / gpus if total else None


def _with_gpus(result: Result, processes: int | None) -> Result:
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


def _with_rates(result: Result) -> Result:
    """Return a result of rows whose printed rates count what their names say; each that did not is a notice.

    Rows with the work and a time of a step that does not follow from a rate need none.
    """
    steps, notices = result.steps, list[Notice]()
    counted, how, least = _work_over_clock(result)
    if how == COUNTER and steps.has(PER_GPU):
        result = _with_gpus(result, _processes(result.training_config))
    config = result.training_config
    gpus, accumulated = config.num_gpus or _processes(config), config.gradient_accumulation_steps or 1
    is_known = steps.has("tokens") or (config.sequence_length and (config.global_batch_size or steps.has("samples")))
    tflops = _rates_of_tflops(result) if counted is None and gpus else []
    for name, claimed in ((TOTAL, 1), (PER_GPU, gpus)):
        rate, is_timer = combined(steps, name), _is_timer(steps, name, claimed)
        if rate is None or (counted is None and not tflops) or not (claimed or how == COUNTER):
            continue
        if is_known and steps.has("seconds") and not is_timer and (gpus or how != COUNTER):
            continue
        scopes = _scopes(gpus, accumulated)
        fitting = [
            scope
            for scope in scopes
            if (counted and -least <= counted / (rate.value * scope) - 1 <= max(DISAGREEMENT, least / 2))
            or any(_agree(rate.value * scope, per_gpu * (gpus or 1)) for per_gpu in tflops)
        ]
        whole = _whole(counted / (rate.value * claimed)) if counted and claimed and how != COUNTER else None
        if how == OF_ROWS and (gpus or (counted or 0) < rate.value):
            whole = None  # only work that was done proves that a rate leaves processes out
        elif how == OF_ROWS and whole and not fitting:
            scopes, fitting = {whole: f"one of {whole} processes"}, [whole]
        if (claimed and claimed in fitting) or not (fitting or how == COUNTER or whole):
            continue
        by = f"{how} is {digits_of(counted)} tokens/s" if counted else "the printed TFLOP/s or MFU decides"
        say = partial(Notice, field=name.removeprefix("reported_"), printed=rate.value, by=by)
        if len(fitting) == 1 and claimed:
            factor = fitting[0] / claimed
            steps = steps.replace(**{name: steps.column(name) * factor})
            steps = steps.replace(seconds=steps.column("seconds") / factor) if is_timer else steps
            notices.append(say("rate_rescoped", scope=scopes[fitting[0]]))
        else:
            steps = steps.without(name)
            unknown = "no known factor explains the difference" if claimed else "the number of GPUs is unknown"
            notices.append(say("rate_contradicted", unknown=unknown))
    total, per_gpu = combined(steps, TOTAL), combined(steps, PER_GPU)
    needed = not (is_known and result.steps.has("seconds"))
    if needed and total and per_gpu and gpus and gpus > 1 and _agree(total.value, per_gpu.value):
        steps = steps.without(TOTAL).without(PER_GPU)
        notices.append(Notice("rates_undecided", "steps", rate=total.value, gpus=gpus))
    is_decided = bool(notices) or bool(is_known and result.steps.has("seconds"))
    known = [one for one in result.remarks if not (is_decided and one.code == "rate_of_all_assumed")]
    return result.changed(steps=steps, warnings=(*known, *notices))


def _with_rates_of_samples(result: Result) -> Result:
    """Return a result of rows without times whose rates of samples do not contradict the count of samples over a clock.

    A whole factor is the processes that a rate leaves out, or the GPUs that one per GPU counts; without one, a rate
    that is below the work that was done is left out.
    """
    steps, gpus, notices = result.steps, result.training_config.num_gpus, list[Notice]()
    counted = None if steps.has("seconds") else _over_clock(result, steps.column("samples"))
    for name, claimed in ((_SAMPLES, 1), (_SAMPLES_PER_GPU, gpus)):
        rate = combined(steps, name)
        if not (counted and rate and claimed):
            continue
        factor = counted / (rate.value * claimed)
        whole = _whole(factor)
        by = f"{OF_ROWS} is {digits_of(counted)} samples/s"
        say = partial(Notice, field=name.removeprefix("reported_"), printed=rate.value, by=by)
        if whole and (whole == gpus or (factor > 1 and not gpus)):
            steps = steps.replace(**{name: steps.column(name) * (whole if factor > 1 else 1 / whole)})
            scope = "all GPUs" if factor < 1 else "one GPU" if gpus else f"one of {whole} processes"
            notices.append(say("rate_rescoped", scope=scope))
        elif factor > 1 + UNEVEN_GAPS / 2:
            steps = steps.without(name)
            notices.append(say("rate_contradicted", unknown="no known factor explains the difference"))
    return result.changed(steps=steps, warnings=(*result.remarks, *notices)) if notices else result


def _is_timer(steps: Steps, name: str, claimed: int | None) -> bool:
    """Return True if the times of the rows follow from their tokens and this rate. claimed: GPUs that it leaves out."""
    if not claimed or not (steps.has(name) and steps.has("seconds") and steps.has("tokens")):
        return False
    ratio = finite(steps.column("tokens") / steps.column("seconds") / claimed / steps.column(name))
    return bool(len(ratio) and np.allclose(ratio, 1, rtol=0, atol=1e-9))


def _scopes(gpus: int | None, accumulated: int) -> dict[int, str]:
    """Return factor from a printed rate to that of all tokens of all GPUs → what the rate counts."""
    part = f"one of {accumulated} accumulated batches of " if accumulated > 1 else ""
    scopes = {accumulated: f"{part}all GPUs", 1: "all GPUs"}
    if gpus:
        scopes |= {gpus * accumulated: f"{part}one GPU", gpus: "one GPU"}
    return scopes


def _work_over_clock(result: Result) -> tuple[float | None, str, float]:
    """Return the tokens/s of all GPUs that counters and a clock, or else rates of samples, give, their name, and the
    share by which they may be lower than the rate of the rows.
    """
    if counted := result.performance_metrics.reported.counted_tokens_per_second:
        return counted, COUNTER, LONGEST_START
    steps, length = result.steps, result.training_config.sequence_length
    if (samples := combined(steps, _SAMPLES)) and length:
        return samples.value * length, OF_SAMPLES, DISAGREEMENT
    work = steps.column("tokens") if steps.has("tokens") else steps.column("samples") * (length or np.nan)
    rate = _over_clock(result, work)
    return (rate, OF_ROWS, UNEVEN_GAPS) if rate else (None, "", 0.0)


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
    if (whole := _whole(ratio)) is None:
        return None
    proposals = []
    for flag, value in config_value.items():
        if not value:
            continue
        grows = (ratio > 1) != (flag == "--num-gpus")
        if grows:
            proposals.append(f"{flag} {value * whole}")
        elif value % whole == 0:
            proposals.append(f"{flag} {value // whole}")
    return alternatives(proposals) if proposals else None


_SCALED_BY: dict[str, tuple[str, ...]] = {
    "tokens_per_second": ("--sequence-length", "--global-batch-size"),
    "tokens_per_second_per_gpu": ("--sequence-length", "--global-batch-size", "--num-gpus"),
    "samples_per_second": ("--global-batch-size",),
    "avg_step_time_seconds": (),
}
"""Figure that a framework may report, too → flags whose values scale the computed one."""


def disagreements(result: Result) -> list[Notice]:
    """Return a notice for each figure that another one of the result contradicts."""
    of_means = result.performance_metrics.basis == "reported_means"
    return [*(_of_means if of_means else _of_rows)(result), *_of_flops(result)]


def _of_means(result: Result) -> list[Notice]:
    """Return notices about means of the whole run that imply another rate than the one that holds."""
    performance, readings = result.performance_metrics, _readings(result)
    total, of_process = performance.tokens_per_second, performance.reported.tokens_per_second_per_process
    if total is None and not readings:
        return [Notice("process_rate", "tokens_per_second", printed=of_process)] if of_process else []
    if total is None:
        given = ", ".join(f"{name} gives {digits_of(rate)}" for name, rate in readings.items())
        return [Notice("means_undecided", "tokens_per_second", given=given)]
    by = next((name for name, rate in readings.items() if _agree(rate, total)), "the result")
    say, notices = partial(Notice, field="tokens_per_second", by=by, total=total), []
    if of_process and not _agree(of_process, total):
        times = fixed(total / of_process, 2)
        notices.append(say("process_rate_corrected", printed=of_process, times=times))
    for name, rate in readings.items():
        if not _agree(rate, total):
            factor = _factor_between(rate, total, result.training_config)
            why = f"they differ by {factor}" if factor else f"{fixed(total / rate, 2)} times as much"
            notices.append(say("means_differ", name=name, rate=rate, why=why))
    return notices


def _of_rows(result: Result) -> list[Notice]:
    notices = []
    performance, config = result.performance_metrics, result.training_config
    sizes = {
        settings.flag(name): getattr(config, name) for name in ("sequence_length", "global_batch_size", "num_gpus")
    }
    for name, flags in _SCALED_BY.items():
        computed = getattr(performance, name)
        reported = getattr(performance.reported, name.removeprefix("avg_"))
        if not computed or not reported or abs(reported / computed - 1) <= _disagreement(result):
            continue
        if performance.reported.runtime_seconds and not _whole(reported / computed):
            continue  # a mean of the whole training, which the audit compares with the rows
        if name == "tokens_per_second_per_gpu" and (divisor := _other_divisor(result)):
            say = partial(Notice, "other_divisor", name, gpus=config.num_gpus, divisor=divisor)
            notices.append(say(computed=computed, reported=reported))
            continue
        told = f"; {_used(result, name, reported / computed)}"
        if factor := name.startswith("tokens") and _factor_between(reported, computed, config):
            told = f" (they differ by {factor}); the result uses the computed rate"
        elif remedy := reconcile(computed, reported, {flag: size for flag, size in sizes.items() if flag in flags}):
            times = f"{fixed(reported / computed, 2)} times"
            told = f" ({times}); {remedy} would reconcile them, unless settings and rows are of different jobs"
        notices.append(
            Notice(
                "reported_differs", name, computed=computed, reported=reported, told=told, off=reported / computed - 1
            )
        )
    return [*notices, *_work_of_rows(result)]


def _used(result: Result, name: str, ratio: float) -> str:
    """Return a clause that says which of two figures the result uses and why, and what would make them agree.

    ratio: reported figure over computed one.
    """
    performance, config = result.performance_metrics, result.training_config
    if name == "avg_step_time_seconds":
        return "the result uses the computed time, the mean of the measured rows"
    is_timed, tokens, batch = performance.basis == "step_times", performance.tokens_per_step, config.global_batch_size
    agrees = []
    if name == "samples_per_second":
        agrees += [f"a batch of {significant(batch * ratio, 4)} instead of {batch}"] if batch else []
    elif tokens:
        agrees.append(f"{count(round(tokens * ratio))} tokens a step instead of {count(tokens)}")
    if is_timed and (mean := performance.avg_step_time_seconds):
        agrees.append(f"a step of {quantities.seconds(mean / ratio)} instead of {quantities.seconds(mean)}")
    why = "work of the measured rows / their time" if is_timed else "from the rates of the measured rows"
    return f"the result uses the computed rate ({why})" + (
        f"; the reported rate would need {', or '.join(agrees)}" if agrees else ""
    )


def _other_divisor(result: Result) -> int | None:
    """Return the whole number by which the framework divided its rate over all GPUs, where only that number differs.

    None unless the number of GPUs was stated by flag: what the log says itself is checked like any other setting.
    """
    performance = result.performance_metrics
    total, per_gpu = performance.reported.tokens_per_second, performance.reported.tokens_per_second_per_gpu
    computed = performance.tokens_per_second
    if "num_gpus" not in result.provenance.assumed or not (total and per_gpu and computed):
        return None
    divisor = round(total / per_gpu)
    is_whole = divisor >= 1 and abs(total / per_gpu / divisor - 1) <= DISAGREEMENT
    return divisor if is_whole and abs(total / computed - 1) <= DISAGREEMENT else None


def _work_of_rows(result: Result) -> list[Notice]:
    """Return a notice about rows with more tokens than a global batch of full sequences: padding makes fewer."""
    config, tokens = result.training_config, result.performance_metrics.tokens_per_step
    if not (config.global_batch_size and config.sequence_length and tokens) or result.steps.has("samples"):
        return []
    if not result.provenance.assumed.keys().isdisjoint(("global_batch_size", "sequence_length")):
        return []  # flags contradict the log: reported when they are applied
    most = config.global_batch_size * config.sequence_length
    if tokens <= most * (1 + DISAGREEMENT):
        return []
    batch, length = config.global_batch_size, config.sequence_length
    return [Notice("work_of_rows", "tokens_per_step", tokens=tokens, most=most, batch=batch, length=length)]


def _of_flops(result: Result) -> list[Notice]:
    """Compare reported TFLOP/s and MFU with those computed from the shape, by the convention that comes nearest.

    An MFU printed with TFLOP/s is checked against the TFLOP/s only, so that one wrong figure is one notice.
    """
    reported, notices = result.performance_metrics.reported, []
    computed = _tflops_by_convention(result)
    if reported.tflops_per_gpu and (nearest := _nearest_of_those_off(result, reported.tflops_per_gpu, computed)):
        name, tflops = nearest
        say = partial(Notice, "flops_differ", "tflops_per_gpu")
        off = reported.tflops_per_gpu / tflops - 1
        notices.append(say(computed=tflops, convention=name, reported=reported.tflops_per_gpu, off=off))
    precision = result.training_config.precision
    if reported.mfu and (peak := catalogue.dense_peak(catalogue.find_gpu_of(result.gpu_info), precision)):
        rates = {"the reported TFLOP/s": reported.tflops_per_gpu} if reported.tflops_per_gpu else computed
        if nearest := _nearest_of_those_off(result, reported.mfu, {name: rate / peak for name, rate in rates.items()}):
            name, mfu = nearest
            say = partial(Notice, "mfu_differs", "mfu", convention=name, precision=precision, peak=peak)
            computed_mfu, reported_mfu = significant(mfu, 3), significant(reported.mfu, 3)
            notices.append(say(computed=computed_mfu, reported=reported_mfu, off=reported.mfu / mfu - 1))
    return notices


def _tflops_by_convention(result: Result) -> dict[str, float]:
    """Return the model TFLOP/s per GPU by each convention; none where the shape, the length or the rate is unknown."""
    rate = result.performance_metrics.tokens_per_second_per_gpu
    return {name: rate * count / TERA for name, count in flops.countings(result).items()} if rate else {}


def _nearest_of_those_off(result: Result, reported: float, computed: dict[str, float]) -> tuple[str, float] | None:
    """Return name and value of the nearest computed figure, or None if one agrees with the reported one."""
    if not computed:
        return None
    name = min(computed, key=lambda name: abs(reported / computed[name] - 1))
    return None if abs(reported / computed[name] - 1) <= _disagreement(result) else (name, computed[name])
