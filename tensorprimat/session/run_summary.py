"""Rows of the blocks that a benchmark prints: the plan before the runs, and the results after them."""

from __future__ import annotations

from tensorprimat.core import quantities, settings
from tensorprimat.core.result import MEMORY_KINDS, MemoryMetrics, Result, Run
from tensorprimat.core.spec import RunSpec
from tensorprimat.core.units import GB
from tensorprimat.core.vocabulary import Recompute
from tensorprimat.engines.modules import memory_estimate, recomputed_share
from tensorprimat.engines.registry import ENGINES
from tensorprimat.facts import catalogue
from tensorprimat.machine.platform import LABELS, Machine
from tensorprimat.models import training_memory
from tensorprimat.models.custom import model_of
from tensorprimat.session import run_time

RECOMPUTED = {
    Recompute.NONE: "",
    Recompute.ALL_LAYERS: "; activations of all layers are recomputed",
    Recompute.SECOND_LAYERS: "; activations of every second layer are recomputed",
}
XGMI_LINKS = 7  # of an AMD GPU, each to another one of its node; NVLink's switch gives all links to any pair
SUMMARY_TITLES = ("Model", "Preset", "Runs", "Step time", "Tokens/s", "Tokens/s/GPU", "Peak memory")


def start_rows(spec: RunSpec, machine: Machine, *, runs: int, cooldown_seconds: float) -> list[tuple[str, str]]:
    """Return the rows of the start block, as (label, text): model, device and configuration."""
    preset, sequences = model_of(spec), quantities.counted(spec.global_batch_size, "sequence")
    each = "process" if machine.platform == "cpu" else "GPU" if spec.model_parallel_size == 1 else "replica"
    processes = f"{spec.data_parallel_size} {each}"
    if spec.data_parallel_size > 1:
        processes += "es" if machine.platform == "cpu" else "s"
    repeated = (
        f", {runs} runs with {quantities.stated_seconds(cooldown_seconds)} between them" if runs > 1 else ", 1 run"
    )
    return [
        ("Model", f"{preset.title}, {quantities.count(preset.parameters)} parameters (preset {preset.name})"),
        ("Engine", spec.engine),
        ("Device", device(machine)),
        (
            "Batch",
            f"{sequences} of {quantities.count(spec.sequence_length)} tokens: micro batch {spec.micro_batch_size} × "
            f"{spec.gradient_accumulation_steps} accumulated × {processes}",
        ),
        ("Precision", spec.precision),
        *([("Parallel", parallel(spec))] if spec.model_parallel_size > 1 else []),
        *([("Methodology", spec.methodology)] if spec.methodology else []),
        *(("Note", note) for note in spec.notes),
        *([("Memory", needed)] if (needed := memory_estimate_text(spec, machine)) else []),
        *([("Network", needed)] if (needed := network_text(spec, machine)) else []),
        ("Steps", f"{_steps(spec)}{repeated}"),
    ]


def memory_estimate_text(spec: RunSpec, machine: Machine) -> str | None:
    """Return the estimated memory of one GPU, with its parts; None for an engine without an estimate."""
    device_name = machine.gpu_info.device_name
    needed = memory_estimate(spec, device_name)
    if needed is None:
        return None
    parts = needed.described
    recomputed = RECOMPUTED.get(spec.recompute, f"; {spec.recompute}")
    megatron = ENGINES[spec.engine].megatron
    if megatron is not None and (again := megatron.recomputed_by_recipe(spec, device_name)):
        recomputed = f"; NVIDIA's recipe recomputes the activations of {again} layers"
    elif not recomputed and (share := recomputed_share(spec, device_name)):
        recomputed = (
            f"; the engine's configuration recomputes the activations of {quantities.percent(share, 0)} of the layers"
        )
    by_shape = spec.config is not None and training_memory.COUNTED not in spec.options
    uncounted = "; activations from the model's shape alone, because torch cannot count them" if by_shape else ""
    return f"about {quantities.size(needed.total)} on each GPU: {parts}{recomputed}{uncounted}"


def network_text(spec: RunSpec, machine: Machine) -> str | None:
    """Return the bytes that one GPU receives in a step, and the least time that its links need, if their rate is known.

    None for one GPU, on a CPU, and for an engine whose traffic is not known.
    """
    if not ENGINES[spec.engine].own_training or machine.platform == "cpu" or spec.data_parallel_size == 1:
        return None
    received = training_memory.network_bytes(spec)
    text = f"{quantities.size(received)} to each GPU in a step"
    gpu, estimate = catalogue.find_gpu_of(machine.gpu_info), run_time.of_run(spec, machine)
    link = gpu and gpu.link_gb_per_second
    if spec.num_nodes > 1 or gpu is None or not link or not link.value or estimate is None:
        return text
    rate = link.value * GB * (min(1.0, (spec.num_gpus - 1) / XGMI_LINKS) if gpu.vendor == "amd" else 1.0)
    least, computing = map(quantities.short_seconds, (received / rate, estimate.step_seconds))
    return f"{text}, at least {least} at {quantities.size(rate)}/s; computing the step takes about {computing}"


def _steps(spec: RunSpec) -> str:
    if ENGINES[spec.engine].detects_warmup:
        return f"{spec.max_steps} iterations, warm-up detected from their times"
    return f"{spec.warmup_steps} warm-up + {spec.steps} measured"


def parallel(spec: RunSpec) -> str:
    """Return the parallel sizes above 1, such as "TP 4, DP 2"; "" for one GPU."""
    sizes = {name: getattr(spec, name) for name in (*settings.MODEL_PARALLEL, "data_parallel_size")}
    return ", ".join(f"{settings.BY_NAME[name].symbol} {size}" for name, size in sizes.items() if size > 1)


def device(machine: Machine) -> str:
    """Return the device's name with its count, memory and software stack, as far as they are known."""
    gpu = machine.gpu_info
    name = gpu.device_name or "unknown device"
    if machine.platform == "cpu":
        return f"{name}, {gpu.gpu_cores} cores" if gpu.gpu_cores else name
    memory = f", {quantities.size(GB * gpu.total_memory_gb)} each" if gpu.total_memory_gb else ""
    return f"{gpu.device_count} × {name}{memory}, {machine.label} {gpu.software_version or ''}".rstrip()


def what_ran(result: Result) -> str:
    """Return the model and platform in a phrase, with the preset unless it is full."""
    model = result.model
    preset = f" ({model.preset})" if model.preset not in (None, "full") else ""
    platform = "an unknown device" if result.platform is None else LABELS[result.platform]
    return f"{model.name or 'unnamed model'}{preset} on {platform}"


def end_rows(result: Result) -> list[tuple[str, str]]:
    """Return the rows of the end block: totals and figures of a result."""
    figures, config = result.performance_metrics, result.training_config
    runs = max(1, len(result.runs))
    total_steps = "unknown" if figures.total_steps is None else quantities.count(figures.total_steps)
    if figures.measured_steps:
        total_steps += f", {quantities.count(figures.measured_steps)} measured"
    gpu = _device_that_ran(result)
    rows = [
        ("Device", f"{config.num_gpus} × {gpu}" if config.num_gpus and result.platform != "cpu" else gpu),
        ("Runs", str(runs)),
        ("Total steps", total_steps),
        ("Total time", _with_unit(figures.total_time_seconds, "s", 2)),
        ("Avg step time", _step_time(result)),
        ("Throughput", _with_unit(figures.tokens_per_second, "tokens/s", 1)),
        ("Peak memory", _memory(result.memory_metrics, result.host_memory_peak_gb)),
    ]  # fmt: skip
    if config.num_gpus != 1 and figures.tokens_per_second_per_gpu is not None:
        per, unit = ("Per process", "tokens/s") if result.platform == "cpu" else ("Per GPU", "tokens/s/GPU")
        rows.append((per, _with_unit(figures.tokens_per_second_per_gpu, unit, 1)))
    if config.global_batch_size and config.sequence_length:
        sequences = quantities.counted(config.global_batch_size, "sequence")
        rows.append(("Batch", f"{sequences} of {quantities.count(config.sequence_length)} tokens"))
    losses = [run.final_loss for run in result.runs if run.final_loss is not None]
    if losses:
        rows.append(("Final loss", ", ".join(map(quantities.loss, losses))))
    return rows


def _device_that_ran(result: Result) -> str:
    """Return the device's name, with the source of the name where the log does not state it."""
    name, origin = result.gpu_info.device_name, result.provenance.assumed.get("device_name")
    if name is None:
        vendor = {"nvd": "NVIDIA GPU", "amd": "AMD GPU", "cpu": "CPU"}.get(result.platform or "", "GPU")
        return f"unknown {vendor} (name it with --gpu)"
    return f"{name} ({origin})" if origin else name


def summary_row(result: Result) -> tuple[str, ...]:
    """Return a model's row in the table of models; the columns are SUMMARY_TITLES."""
    figures = result.performance_metrics
    return (
        result.model.name or "unknown",
        result.model.preset or "unknown",
        str(max(1, len(result.runs))),
        _with_unit(figures.avg_step_time_seconds, "s", 4),
        _with_unit(figures.tokens_per_second, "", 0).strip(),
        _with_unit(figures.tokens_per_second_per_gpu, "", 0).strip(),
        _short_memory(result),
    )


def run_line(result: Result, run: int) -> str:
    """Return one line for a run that has just ended."""
    figures = result.performance_metrics
    mean, rate = figures.avg_step_time_seconds, figures.tokens_per_second
    parts = [f"{figures.measured_steps} measured steps"]
    parts += [f"mean {quantities.seconds(mean)}"] if mean is not None else []
    parts += [f"{quantities.rate(rate)} tokens/s"] if rate is not None else []
    around = startup_text(result.runs[0])
    return f"Run {run}: {', '.join(parts)}" + (f" ({around})" if around else "")


def startup_text(run: Run) -> str:
    """Return the seconds around a run's steps by part, such as "imports 7.5 s, first step 2.9 s"; "" if unknown."""
    known = {name: value for name, value in run.startup or () if value is not None}
    return ", ".join(
        f"{name.removesuffix('_seconds').replace('_', ' ')} {quantities.fixed(seconds, 1)} s"
        for name, seconds in known.items()
    )


def _short_memory(result: Result) -> str:
    """Return the first measured peak of MEMORY_KINDS, else that of the process, in few characters for a column."""
    for kind, peak in (result.memory_metrics or MemoryMetrics()).peaks().items():
        return f"{quantities.gigabytes(peak)} {MEMORY_KINDS[kind]}"
    host = result.host_memory_peak_gb
    return quantities.NOT_MEASURED if host is None else f"{quantities.gigabytes(host)} process"


def _step_time(result: Result) -> str:
    figures = result.performance_metrics
    if figures.avg_step_time_seconds is None:
        return quantities.NOT_MEASURED
    spread = "" if figures.cv_step_time is None else f", ± {quantities.percent(figures.cv_step_time)} from step to step"
    return f"{quantities.seconds(figures.avg_step_time_seconds)}{spread}"


def _with_unit(value: float | None, unit: str, decimals: int) -> str:
    return quantities.NOT_MEASURED if value is None else f"{quantities.fixed(value, decimals)} {unit}"


def _memory(memory: MemoryMetrics | None, host_gb: float | None) -> str:
    """Return all measured peaks of device memory; without one, the resident peak of the training process."""
    words = {**MEMORY_KINDS, "memory_device_used": "used on the device"}
    known = (memory or MemoryMetrics()).peaks()
    peaks = [f"{quantities.gigabytes(peak)} {words[kind]}" for kind, peak in known.items()]
    if not peaks and host_gb is not None:
        peaks = [f"{quantities.gigabytes(host_gb)} resident in the training process (no device memory on a CPU)"]
    return ", ".join(peaks) or quantities.NOT_MEASURED
