"""Inputs of derived figures, from result and catalogue: each with its source, or the reason why it is None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tensorprimat.core import settings
from tensorprimat.core.errors import UsageError
from tensorprimat.core.figures import Input, missing
from tensorprimat.core.quantities import alternatives, as_stated, count, of_data_sheet
from tensorprimat.core.result import MemoryMetrics, Result
from tensorprimat.core.units import GB, MEGA, TERA
from tensorprimat.facts import catalogue
from tensorprimat.facts.catalogue import Gpu, SourcedValue
from tensorprimat.models import presets, shapes
from tensorprimat.storage.preflight import Preflight

CONFIGURED = "the run's configuration"
PROCESSOR = "no peak FLOP/s is known for this CPU"


def why_no_gpu(result: Result) -> str:
    """Return the reason why `catalogue.find_gpu_of` finds no entry for the device that ran."""
    name = result.gpu_info.device_name
    if result.platform == "cpu":
        return PROCESSOR
    if not name:
        return "the GPU is unknown; give --gpu"
    if variants := [gpu.name for gpu in catalogue.variants_of(result.gpu_info)]:
        flags = [f"--gpu {one.replace(' ', '-')}" for one in variants]
        return f"{name} may be {alternatives(variants)}, which differ; give {alternatives(flags)}"
    near = catalogue.nearest_gpu(name)
    return f"{name} is not in the catalogue of GPUs" + (f"; did you mean {near}?" if near else "")


def rate_per_gpu(result: Result) -> Input:
    """Return the tokens/s/GPU of the measured steps."""
    return _rate(result, "tokens/s/GPU", "per GPU", "tokens_per_second_per_gpu", "tokens_per_second")


def rate_input(result: Result) -> Input:
    """Return the tokens/s over all GPUs."""
    return _rate(result, "tokens/s over all GPUs", "over all GPUs", "tokens_per_second")


def _rate(result: Result, name: str, of_what: str, figure: str, *also: str) -> Input:
    """Return a token rate. figure: the field that holds it; also: fields whose warnings may explain a missing rate."""
    value = getattr(result.performance_metrics, figure)
    because = _reason(result, figure, *also) or _unknown_rate(result, of_what)
    known = value if value and value > 0 else None
    return Input(name=name, value=known, unit="tokens/s", source=_basis(result), because=because)


def _basis(result: Result) -> str:
    performance = result.performance_metrics
    over = "" if performance.measured_steps is None else f" over {performance.measured_steps} steps"
    if performance.basis == "step_times":
        return f"{'measured' if result.provenance.timing == 'measured' else 'from reported step times'}{over}"
    if performance.basis == "reported_rates":
        return f"the framework's own rate{over}"
    return "as the file reports it, without steps"


def _reason(result: Result, *subjects: str) -> str | None:
    """Return the notice that says why a figure is unknown."""
    return next((one for one in result.remarks if one.field in subjects and one.code in _WHY_UNKNOWN), None)


_WHY_UNKNOWN = frozenset({"rate_unknown", "gpus_unknown", "process_rate", "means_undecided"})


def _unknown_rate(result: Result, of_what: str) -> str:
    """Return why there is no token rate, with the flags that state the missing facts."""
    config = result.training_config
    flags = {name: settings.flag(name) for name in ("num_gpus", "global_batch_size", "sequence_length")}
    unstated = [flag for name, flag in flags.items() if getattr(config, name) is None]
    return f"token rate {of_what} is unknown" + (f"; give {', '.join(unstated)}" if unstated else "")


def shape(result: Result) -> Input:
    """Return the model's shape, where run or log confirms it or the user states it."""
    known, name = result.model.shape, result.model.name
    origin = result.provenance.assumed.get("model.shape")
    advice, described = "", None
    if named := shapes.of_name(name) if name else None:
        advice = f" {named.name}" if named.preset is None else ", or --preset full"
        advice += f" if {name!r} is the published model"
    if known is not None:
        described = f"{shapes.title_of(known) or 'own shape'} ({count(presets.parameters(known))} parameters)"
    return Input(
        name="model shape",
        value=described,
        source=f"stated by {origin}" if origin else "confirmed by run or log",
        because=f"MFU needs the model's dimensions, which neither run nor log states; give --shape{advice}",
    )


def sequence_length(result: Result) -> Input:
    """Return the tokens of a sequence."""
    return Input(
        name="sequence length",
        value=result.training_config.sequence_length,
        unit="tokens",
        source=result.provenance.assumed.get("sequence_length", CONFIGURED),
        because="the sequence length is not stated; give --sequence-length",
    )


def peak_tflops(result: Result, gpu: Gpu | None) -> Input:
    """Return the dense peak of the device at the precision that ran."""
    ran = result.training_config.precision
    name, unit = f"dense {ran} peak" if ran else "dense peak", "TFLOP/s"
    if ran is None:
        because = "the precision is not stated; give --precision"
    elif gpu is None:
        because = why_no_gpu(result)
    elif ran in gpu.lacks:
        because = f"{gpu.name} has no matrix units for {ran}"
    else:
        return cell(name, gpu.peak(ran), unit, label=gpu.name, because=f"no dense {ran} peak of {gpu.name} is known")
    return missing(name, because, unit=unit)


def achievable_tflops(result: Result, gpu: Gpu | None, preflights: Sequence[Preflight] = ()) -> Input:
    """Return the best matrix product at the precision that ran: measured on the result's machine, or published for this
    kind of device.

    preflights: best rates that machines reached, newest first; the first one of the result's own machine counts.
    """
    ran = result.training_config.precision
    name, unit = f"best measured {ran} matrix rate" if ran else "best measured matrix rate", "TFLOP/s"
    machine = (result.platform, result.gpu_info.device_name, result.provenance.host)
    own = next((one for one in preflights if one.machine == machine), None)
    if own is not None and ran is not None and (measured := own.matmul_flops_per_second(ran)):
        source = f"preflight of {own.host}, {own.timestamp}"
        return Input(name=name, value=measured / TERA, unit=unit, source=source)
    if ran is None or gpu is None:
        because = why_no_gpu(result) if gpu is None else "the precision is not stated; give --precision"
        return missing(name, because, unit=unit)
    because = f"no measured {ran} matrix rate of {gpu.name} is in the catalogue"
    return cell(name, gpu.achievable_tflops.get(ran), unit, label=gpu.name, because=because)


def cell(name: str, fact: SourcedValue | None, unit: str, *, label: str, because: str) -> Input:
    """Return a cell of the catalogue; a range gives None, with the range as the reason."""
    if fact is None:
        return missing(name, because, unit=unit)
    if fact.value is None:
        ends = " to ".join(of_data_sheet(end) for end in (fact.low, fact.high) if end is not None)
        because = f"the {name} of {label} is a range ({ends} {unit})"
    return Input(name=name, value=fact.value, unit=unit, source=f"{label}: {fact.origin}", because=because)


NO_DEVICE_MEMORY = "a CPU has no device memory"
_COVERED = {
    "device_used": "whole device, as the driver reports it",
    "reserved": "the allocator's pool",
    "allocated": "tensors only; the device holds more",
}
"""Kinds of memory by their share of the device, the widest first."""


def memory_used(result: Result) -> Input:
    """Return the peak memory of the widest kind that was logged, in 10**9 bytes."""
    peaks = (result.memory_metrics or MemoryMetrics()).peaks()
    for kind, meaning in _COVERED.items():
        if (value := peaks.get(f"memory_{kind}")) is not None:
            return Input(name=f"peak memory ({kind})", value=value, unit="GB", source=meaning)
    because = NO_DEVICE_MEMORY if result.platform == "cpu" else "no device memory was logged"
    return missing("peak memory", because, unit="GB")


def memory_total(result: Result, gpu: Gpu | None) -> Input:
    """Return the memory of one device, in 10**9 bytes: as the device reports it, else its nameplate."""
    name, unit = "device memory", "GB"
    if reported := result.platform != "cpu" and result.gpu_info.total_memory_gb:
        return Input(name=name, value=reported, unit=unit, source="reported by the device or the log")
    if gpu is None:
        return missing(name, NO_DEVICE_MEMORY if result.platform == "cpu" else why_no_gpu(result), unit=unit)
    nameplate = cell(name, gpu.memory_gb, unit, label=gpu.name, because=f"the memory of {gpu.name} is not known")
    if nameplate.value is None or gpu.memory_bytes is None:
        return nameplate
    return Input(name=name, value=gpu.memory_bytes / GB, unit=unit, source=f"nameplate of {nameplate.source}")


def peak_clock(result: Result, gpu: Gpu | None) -> Input:
    """Return the clock at which the dense peak of the device at the precision that ran is defined."""
    name, ran = "clock of the peak", result.training_config.precision
    if gpu is None or ran not in catalogue.OF_MATRIX_CLOCK:
        why = why_no_gpu(result) if gpu is None else f"the clock of the dense {ran} peak of {gpu.name} is not known"
        return missing(name, why, unit="MHz")
    because = f"the clock at which the peaks of {gpu.name} are defined is not in the catalogue"
    return cell(name, gpu.matrix_clock_mhz, "MHz", label=gpu.name, because=because)


def mean_clock(result: Result) -> Input:
    """Return the mean clock of the compute units over the measured steps."""
    hertz = result.power_metrics and result.power_metrics.avg_clock_hertz
    value = hertz / MEGA if hertz else None
    return Input(name="mean clock", value=value, unit="MHz", source="measured", because="no clock was measured")


def sampled_power(result: Result, gpu: Gpu | None) -> Input:
    """Return the sampled watts of one GPU whose energy counter was read too."""
    measured = result.power_metrics
    watts = measured.avg_power_watts_per_gpu if measured and measured.sampled_energy_joules_per_gpu else None
    watts, of = (None, "") if watts is None else _of_one_die(watts, gpu)
    because = "power was not measured both by an energy counter and by samples"
    return Input(name="sampled power", value=watts, unit="W", source=f"measured by samples{of}", because=because)


def power_input(result: Result, gpu: Gpu | None) -> Input:
    """Return the watts of one GPU: measured (by the energy counter, else by samples) or nameplate, labelled."""
    name, unit = "power per GPU", "W"
    measured, seconds = result.power_metrics, result.performance_metrics.measured_time_seconds
    if measured is not None:
        watts, how = measured.avg_power_watts_per_gpu, ""
        of_same_steps = not len(result.steps) or result.steps.has("energy_joules_per_gpu")
        is_counted = watts is None or measured.sampled_energy_joules_per_gpu is not None
        if is_counted and of_same_steps and measured.energy_joules_per_gpu and seconds:
            watts, how = measured.energy_joules_per_gpu / seconds, " by counter"
        if watts:
            watts, of = _of_one_die(watts, gpu)
            return Input(name=name, value=watts, unit=unit, source=f"measured{how}{of}")
    if limit := result.gpu_info.power_limit_watts:
        limit, of = _of_one_die(limit, gpu)
        return Input(name=name, value=limit, unit=unit, source=f"nameplate: the device's power limit{of}")
    if gpu is None:
        why = "no nameplate power of a CPU is known" if result.platform == "cpu" else why_no_gpu(result)
        return missing(name, f"no power was measured, and {why}", unit=unit)
    nameplate = cell(name, gpu.tdp_watts, unit, label=gpu.name, because=f"no nameplate power of {gpu.name} is known")
    if nameplate.value is None:
        return missing(name, f"no power was measured, and {nameplate.because}", unit=unit)
    return replace(nameplate, source=f"nameplate: {nameplate.source}", because=None)


def _of_one_die(watts: float, gpu: Gpu | None) -> tuple[float, str]:
    """Return the power of one die, and a remark.

    On a board with several dies, the first die reports the power of the board. A value above the limit of one die is
    therefore divided by the number of dies."""
    one_die = gpu.tdp_watts.value if gpu and gpu.dies > 1 and gpu.tdp_watts else None
    if gpu is None or not one_die or watts <= one_die:
        return watts, ""
    return watts / gpu.dies, f", 1/{gpu.dies} of the board"


def price(result: Result, gpu: Gpu | None, prices: Mapping[str, float], label: str | None = None) -> Input:
    """Return USD for an hour of one GPU: the user's own, else the catalogue's first.

    prices: price by the name that the user wrote ("H100", "MI300X", "cpu", or the label of a side), or by "" for every
    other device. label: of the side that the result is.
    Raises UsageError if two of the names mean this device alike and their prices differ.
    """
    stated = stated_price(_device_of(result), gpu, prices, label)
    listed = next((one for one in catalogue.prices() if gpu is not None and one.gpu == gpu.name), None)
    if stated is not None:
        usd, source = prices[stated], f"--price {stated}{'=' * bool(stated)}{as_stated(prices[stated])}"
    elif listed is not None:
        usd, source = listed.usd_per_gpu_hour, f"{listed.provider}, {listed.date.isoformat()}"
    else:
        return missing("price", _no_price(result, gpu), unit="USD/h")
    return Input(name="price", value=usd, unit="USD/h", source=source, stated_for=stated)


def _no_price(result: Result, gpu: Gpu | None) -> str:
    """Return the reason why there is no price, with flags that change it."""
    named = "cpu" if result.platform == "cpu" else gpu.name if gpu else result.gpu_info.device_name
    if named is None:
        return "no price is known, because the GPU is unknown; name it with --gpu, or give --price USD"
    flag = "--price USD" if set(named) & set("=,") else f'--price "{named}=USD"'
    return f"no price of {named} is known; give {flag}"


UNKNOWN_GPU_WORDS = ("unknown gpu", "unknown", "unknown device", "this device")
"""Names by which --price means a device that neither run nor log names."""


def _device_of(result: Result) -> str | None:
    return "cpu" if result.platform == "cpu" else result.gpu_info.device_name


def stated_price(
    device: str | None, gpu: Gpu | None, prices: Mapping[str, float], label: str | None = None
) -> str | None:
    """Return the name in `prices` that means a side, else its device and the fewest others; "" or None if none does.

    gpu: the catalogue's entry of the device. Raises UsageError if two names mean it alike and their prices differ.
    """
    if label and label in prices and not _is_named(label, device, gpu):
        return label
    meant = [name for name in prices if _is_named(name, device, gpu)]
    if not meant:
        return "" if "" in prices else None
    devices = {name: max(1, len(catalogue.variants(name))) for name in meant}
    first, *others = (name for name in meant if devices[name] == min(devices.values()))
    if clash := next((name for name in others if prices[name] != prices[first]), None):
        both = f"--price {first}={as_stated(prices[first])} and --price {clash}={as_stated(prices[clash])}"
        raise UsageError(f"{both} are prices of one device; leave one out")
    return first


def means(written: str, result: Result) -> bool:
    """Return True if a name that the user wrote means the device of a result."""
    return _is_named(written, _device_of(result), catalogue.find_gpu_of(result.gpu_info))


def _is_named(written: str, device: str | None, gpu: Gpu | None) -> bool:
    if not written:
        return False
    if not device:
        return written.casefold() in UNKNOWN_GPU_WORDS
    plain = catalogue.plain_name(written)
    meant = {gpu.name for gpu in catalogue.variants(written)}
    if gpu is not None and (plain == catalogue.plain_name(gpu.name) or gpu.name in meant):
        return True
    return plain == catalogue.plain_name(device) or written.casefold() == device.casefold()
