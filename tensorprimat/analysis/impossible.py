"""Detection of figures above the device's peak: no verdict may be based on them, whatever the interval."""

from __future__ import annotations

from collections.abc import Sequence

from tensorprimat.core.quantities import count, of_data_sheet, percent
from tensorprimat.core.result import Result
from tensorprimat.core.units import TERA
from tensorprimat.facts import catalogue
from tensorprimat.models import flops

_ROUNDING = 1.005  # a peak and a rate are printed with three digits
REMEDY = "Check the settings that the error names, and state the correct ones by flag."
_LOOK_FOR = "check --sequence-length, --global-batch-size, --num-gpus, --precision and --gpu"


def impossible(result: Result) -> tuple[str, ...]:
    """Return a sentence for every figure above the device's peak; () where no figure is known to be impossible."""
    limit, per_token = _limit(result), flops.charged_per_token(result)
    if limit is None:
        return ()
    peak, name = limit
    device, above = result.gpu_info.device_name, peak * _ROUNDING
    rate = result.performance_metrics.tokens_per_second_per_gpu
    achieved = rate * per_token / TERA if rate and per_token else None
    reported, stated = result.performance_metrics.reported.tflops_per_gpu, of_data_sheet(peak)
    if achieved is not None and achieved > above:
        wrong = f"{count(achieved)} TFLOP/s per GPU would be an MFU of {percent(achieved / peak, 0)} ({name} {stated} "
        wrong += "TFLOP/s)"
    elif reported and reported > above:
        wrong = f"the framework reports {count(reported)} TFLOP/s per GPU, above the {name} ({stated} TFLOP/s)"
    else:
        return ()
    return (f"{device}: {wrong}, which is impossible; {_LOOK_FOR}.",)


def impossible_of_sides(sides: Sequence[tuple[str, Result]]) -> tuple[str, ...]:
    """Return the sentences about labelled results, each once; labelled where several results are of one device."""
    devices = [result.gpu_info.device_name for _, result in sides]
    found = [
        f"{label}, {error}" if devices.count(device) > 1 and label != device else error
        for (label, result), device in zip(sides, devices, strict=True)
        for error in impossible(result)
    ]
    return tuple(dict.fromkeys(found))


def _limit(result: Result) -> tuple[float, str] | None:
    """Return the dense peak in TFLOP/s at the precision that ran, or the highest one that the device could have."""
    ran, found = result.training_config.precision, catalogue.find_gpu_of(result.gpu_info)
    candidates = [found] if found is not None else list(catalogue.variants_of(result.gpu_info))
    of_precision = [fact for gpu in candidates if ran and (fact := gpu.peak(ran))]
    facts = of_precision or [fact for gpu in candidates for fact in gpu.peak_tflops.values()]
    values = [value for fact in facts if (value := fact.value if fact.value is not None else fact.high)]
    if not values:
        return None
    return max(values), f"dense {ran} peak" if of_precision else "highest dense peak"
