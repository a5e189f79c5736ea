"""Figures that a framework printed: which mean of a whole run holds, and notices about those that differ from ours.

Of means that imply one another the reading that most others support holds, and of equals a count over a clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tensorprimat.audit.agreement import (
    COUNTER,
    DISAGREEMENT,
    FLAGS_BEHIND,
    OF_SAMPLES,
    agree,
    factor_between,
    processes_of,
    product,
    rates_of_tflops,
    reconcile,
    sizes_behind,
    tolerance,
    whole_factor,
    with_gpus,
)
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import digits_of, fixed, significant
from tensorprimat.core.result import Result
from tensorprimat.core.terms import RATES
from tensorprimat.core.units import TERA
from tensorprimat.facts import catalogue
from tensorprimat.models import flops


def with_means(result: Result) -> Result:
    """Return a result of means with the tokens/s that holds; any other as it is.

    Where only the rate of one process is printed, and others show how many there are, each has one GPU.
    """
    is_timed = result.steps.has("seconds") or any(map(result.steps.has, RATES))
    if is_timed or result.performance_metrics.basis != "reported_means":
        return result
    figures, config, readings = result.performance_metrics, result.training_config, _readings(result)
    reported, total = figures.reported, _held(readings, result)
    if of_process := reported.tokens_per_second_per_process:
        if not readings and config.num_gpus == 1:
            total = of_process
        processes = whole_factor(total / of_process) if total and total > of_process else None
        if processes and processes_of(config) in (None, processes):
            result = with_gpus(result, processes)
            config = result.training_config
    elif not readings:
        return result
    gpus, samples = config.num_gpus, figures.samples_per_second
    means = figures.changed(
        tokens_per_second=total,
        tokens_per_second_per_gpu=total and total / gpus if gpus else reported.tokens_per_second_per_gpu,
        samples_per_second_per_gpu=samples / gpus if samples and gpus else figures.samples_per_second_per_gpu,
    )
    return result.changed(performance_metrics=means)


def _readings(result: Result) -> dict[str, float]:
    """Return the tokens/s of all GPUs that each mean of the whole run implies, the surest first."""
    figures, config = result.performance_metrics, result.training_config
    reported, processes = figures.reported, processes_of(config)
    known = {
        COUNTER: reported.counted_tokens_per_second,
        "the printed rate": reported.tokens_per_second,
        "the printed rate of one process × the processes": product(reported.tokens_per_second_per_process, processes),
        "the printed rate of one GPU × the GPUs": product(reported.tokens_per_second_per_gpu, config.num_gpus),
        OF_SAMPLES: product(figures.samples_per_second, config.sequence_length),
    }
    return {name: rate for name, rate in known.items() if rate}


def _held(readings: Mapping[str, float], result: Result) -> float | None:
    """Return the reading that holds against the others; None where nothing decides."""
    if not readings:
        return None
    support = {name: sum(agree(other, rate) for other in readings.values()) for name, rate in readings.items()}
    best = max(readings, key=lambda name: support[name])  # the first of equals
    rivals = [name for name in readings if support[name] == support[best] and not agree(readings[name], readings[best])]
    if not rivals or best == COUNTER:
        return readings[best]
    gpus, by_tflops = result.training_config.num_gpus or 1, rates_of_tflops(result)
    apart = [readings[name] for name in (best, *rivals)]
    supported = [total for total in apart if any(agree(total / gpus, per_gpu) for per_gpu in by_tflops)]
    if len(supported) == 1:
        return supported[0]
    rate, of_samples = readings[best], readings.get(OF_SAMPLES)
    if of_samples is None or rivals != [OF_SAMPLES]:
        return None
    one_process = result.performance_metrics.reported.tokens_per_second_per_process
    if factor_between(rate, of_samples, result.training_config) or (one_process and agree(of_samples, one_process)):
        return of_samples
    return None if whole_factor(of_samples / rate) else rate  # samples may be shorter than the longest sequence


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
    by = next((name for name, rate in readings.items() if agree(rate, total)), "the result")
    say, notices = partial(Notice, field="tokens_per_second", by=by, total=total), []
    if of_process and not agree(of_process, total):
        times = fixed(total / of_process, 2)
        notices.append(say("process_rate_corrected", printed=of_process, times=times))
    for name, rate in readings.items():
        if not agree(rate, total):
            factor = factor_between(rate, total, result.training_config)
            why = f"they differ by {factor}" if factor else f"{fixed(total / rate, 2)} times as much"
            notices.append(say("means_differ", name=name, rate=rate, why=why))
    return notices


def _of_rows(result: Result) -> list[Notice]:
    notices = []
    performance, config = result.performance_metrics, result.training_config
    for name in FLAGS_BEHIND:
        computed = getattr(performance, name)
        reported = getattr(performance.reported, name.removeprefix("avg_"))
        if not computed or not reported or abs(reported / computed - 1) <= tolerance(result):
            continue
        if performance.reported.runtime_seconds and not whole_factor(reported / computed):
            continue  # a mean of the whole training, which the audit compares with the rows
        if name == "tokens_per_second_per_gpu" and (divisor := _other_divisor(result)):
            say = partial(Notice, "other_divisor", name, gpus=config.num_gpus, divisor=divisor)
            notices.append(say(computed=computed, reported=reported))
            continue
        of_rows = "work of the measured rows / their time" if performance.basis == "step_times" else "from their rates"
        told = f"; the result uses the computed rate ({of_rows})"
        if name == "avg_step_time_seconds":
            told = "; the result uses the computed time, the mean of the measured rows"
        if factor := name.startswith("tokens") and factor_between(reported, computed, config):
            told = f" (they differ by {factor}); the result uses the computed rate"
        elif remedy := reconcile(computed, reported, sizes_behind(config, name)):
            times = f"{fixed(reported / computed, 2)} times"
            told = f" ({times}); {remedy} would reconcile them, unless settings and rows are of different jobs"
        notices.append(
            Notice(
                "reported_differs", name, computed=computed, reported=reported, told=told, off=reported / computed - 1
            )
        )
    return [*notices, *_work_of_rows(result)]


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
    config, tokens = result.training_config, result.performance_metrics.tokens_per_step or 0.0
    batch, length = config.global_batch_size or 0, config.sequence_length or 0
    most, stated = batch * length, result.provenance.assumed.keys() & {"global_batch_size", "sequence_length"}
    if not most or result.steps.has("samples") or stated:  # flags that contradict a log are reported when applied
        return []
    if tokens <= most * (1 + DISAGREEMENT):
        return []
    return [Notice("work_of_rows", "tokens_per_step", tokens=tokens, most=most, batch=batch, length=length)]


def _of_flops(result: Result) -> list[Notice]:
    """Compare reported TFLOP/s and MFU with those computed from the shape, by the convention that comes nearest.

    An MFU printed with TFLOP/s is checked against the TFLOP/s only, so that one wrong figure is one notice.
    """
    reported, notices = result.performance_metrics.reported, []
    rate = result.performance_metrics.tokens_per_second_per_gpu or 0.0
    computed = {name: rate * count / TERA for name, count in flops.countings(result).items() if rate}
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


def _nearest_of_those_off(result: Result, reported: float, computed: dict[str, float]) -> tuple[str, float] | None:
    """Return name and value of the nearest computed figure, or None if one agrees with the reported one."""
    if not computed:
        return None
    name = min(computed, key=lambda name: abs(reported / computed[name] - 1))
    return None if abs(reported / computed[name] - 1) <= tolerance(result) else (name, computed[name])
