"""`tprimat project`: the rate of a training at another number of GPUs, as an interval, with its error known."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.core.safe_text import one_line

if TYPE_CHECKING:
    from tensorprimat.analysis.projection import ScalingGroup


def command(
    benchmark: Annotated[
        str, typer.Option(metavar="NAME", help="MLPerf benchmark whose scaling is taken, such as llama2_70b_lora.")
    ] = "llama2_70b_lora",
    source: Annotated[
        Path | None, typer.Option("--from", metavar="RESULT", help="Result file that holds the measured rate.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(metavar="NUMBER", help="Number of GPUs to project to.")] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="GPU of the projection; must be that of the result.")
    ] = None,
    library: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Library with the scaling points (default: the package's).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Project the rate of a result to another number of GPUs, as a 90 % interval (strong scaling).

    The model: samples/s grow with a power of the number of GPUs. The power and its spread come from the submitters of
    MLPerf Training that ran one benchmark on several numbers of GPUs. Every point is also predicted from other GPUs
    alone; if fewer than 85 % or more than 95 % of at least 20 such points are in their interval, the projection is not
    reliable and is refused. Without --from, these points are listed. Reports contain no projection.

    \b
    Examples:
      tprimat project --benchmark llama2_70b_lora
      tprimat project --from output/benchmark_rocm_llama2-70b-lora.json --gpus 64

    \b
    Exit codes:
      0  done
      2  a flag is wrong, or projection is not reliable for the benchmark
    """
    from tensorprimat.analysis import projection
    from tensorprimat.core import mlperf_library

    found = projection.groups(mlperf_library.load(library).entries)
    if source is None:
        if gpus is not None or gpu is not None:
            raise UsageError("--gpus and --gpu need --from, the result that holds the measured rate")
        _print_validation(found, benchmark, as_json)
        return 0
    if gpus is None or gpus < 1:
        raise UsageError("--gpus: must be a number of GPUs to project to")
    document = _project(found, benchmark, source, gpus, gpu)
    print(json.dumps(document, indent=2, ensure_ascii=False) if as_json else document["sentence"])
    return 0


def _project(
    found: tuple[ScalingGroup, ...], benchmark: str, source: Path, gpus: int, gpu: str | None
) -> dict[str, Any]:
    from tensorprimat.analysis import projection
    from tensorprimat.core import catalogue, names
    from tensorprimat.core.store import load

    result = load(source)
    count, rate = result.training_config.num_gpus, result.performance_metrics.tokens_per_second_per_gpu
    if not count or not rate:
        raise InputError("states no number of GPUs or no tokens/s/GPU", path=source)
    device = result.gpu_info.device_name or "unknown GPU"
    if gpu is not None and catalogue.find_gpu(gpu) != catalogue.find_gpu(device):
        raise UsageError(f"--gpu {gpu}: the result is of {device}; a projection stays on its GPU")
    exponent, validation = projection.project(found, benchmark, gpus / count)
    trained = result.model.name
    other = "" if trained and names.key(trained) == names.key(benchmark) else f", another task than {trained or 'this'}"
    each = [rate * factor * count / gpus for factor in exponent.factor(gpus / count)]
    middle, low, high = (float(f"{value:.6g}") for value in each)
    sentence = (
        f"{one_line(device)}: {rate:,.0f} tokens/s/GPU on {count} GPUs, {middle:,.0f} ({low:,.0f} to {high:,.0f}) on "
        f"{gpus}, {projection.CONFIDENCE:.0%} interval, if it scales as {exponent.groups} submissions of {benchmark} "
        f"did{one_line(other)} (samples/s × GPUs^{exponent.mean:.3f} ± {exponent.half_width:.3f}); "
        f"{projection.verdict(validation)}. "
        "The global batch and the network are taken to be like theirs; the scatter of the result itself is not in it."
    )
    return {
        "benchmark": benchmark, "gpu": device, "measured_gpus": count, "gpus": gpus, "measured": rate,
        "tokens_per_second_per_gpu": middle, "low": low, "high": high, "confidence": projection.CONFIDENCE,
        "exponent": exponent.mean, "left_out_points": len(validation.points), "coverage": validation.coverage,
        "median_error": validation.median_error, "sentence": sentence,
    }  # fmt: skip


def _print_validation(found: tuple[ScalingGroup, ...], benchmark: str, as_json: bool) -> None:
    from tensorprimat.analysis import projection
    from tensorprimat.reports.mlperf import table

    validation = projection.validate([group for group in found if group.benchmark == benchmark])
    rows = [
        (
            point.fewer.entry.name,
            f"{point.fewer.entry.num_gpus} → {point.more.entry.num_gpus}",
            f"{point.more.samples_per_second:.4g}",
            f"{point.predicted:.4g}",
            f"{point.low:.4g} to {point.high:.4g}",
            "" if point.covered else "missed",
        )
        for point in validation.points
    ]
    if as_json:
        names = ("from", "gpus", "measured", "predicted", "interval", "missed")
        document = {
            "benchmark": benchmark, "shown_to_work": validation.works, "left_out_points": len(validation.points),
            "coverage": validation.coverage if math.isfinite(validation.coverage) else None,
            "median_error": validation.median_error if math.isfinite(validation.median_error) else None,
            "points": [dict(zip(names, row, strict=True)) for row in rows],
        }  # fmt: skip
        print(json.dumps(document, indent=2, ensure_ascii=False))
        return
    if rows:
        print(table(("from", "GPUs", "measured", "predicted", "interval", "missed"), rows), end="")
    shown = "shown to work" if validation.works else "not shown to work"
    print(f"{one_line(benchmark)}: projection is {shown}: {projection.verdict(validation)}.")
