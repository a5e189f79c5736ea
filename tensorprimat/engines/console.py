"""Console output of a training process: a start block, a line per logged step, an end block."""

from __future__ import annotations

from pathlib import Path

from tensorprimat.core.quantities import count, fixed, gigabytes, time_left
from tensorprimat.core.result import MemoryMetrics, Result
from tensorprimat.core.steps import Step
from tensorprimat.core.units import GB


def start_block(result: Result, *, label: str) -> str:
    """Return the block printed at the start: model, device and configuration.

    label: CUDA, ROCm or CPU.
    """
    config, model, gpu = result.training_config, result.model, result.gpu_info
    parameters = f"{count(model.parameters)} parameters" if model.parameters else None
    preset = f"preset {model.preset}" if model.preset else None
    batch = _joined(
        f"micro batch {config.micro_batch_size}" if config.micro_batch_size else None,
        f"{config.gradient_accumulation_steps} accumulated" if config.gradient_accumulation_steps else None,
        f"global batch {config.global_batch_size}" if config.global_batch_size else None,
        f"sequence {config.sequence_length}" if config.sequence_length else None,
        config.precision,
    )
    devices = f"{config.num_gpus or 1} × {gpu.device_name or 'unknown device'}"
    memory = gigabytes(gpu.total_memory_gb) if gpu.total_memory_gb and result.platform != "cpu" else None
    if config.max_steps is None:
        steps = None
    elif config.warmup_steps is None:
        steps = f"{config.max_steps}"
    else:
        steps = f"{config.warmup_steps} warm-up + {config.max_steps - config.warmup_steps} measured"
    lines = {
        "Model": _joined(model.name, preset, parameters),
        "Device": _joined(devices, memory, config.strategy),
        "Work": batch,
        "Steps": steps,
    }
    body = "\n".join(f"[{label}]   {name + ':':<8}{text}" for name, text in lines.items() if text)
    return f"[{label}] Training starts\n{body}"


def step_line(
    step: Step,
    *,
    label: str,
    mean_seconds: float | None,
    memory_bytes: float | None,
    pace_seconds: float | None = None,
    tokens: float | None = None,
    steps_left: int | None = None,
    warmup: bool = False,
) -> str:
    """Return the line of one step.

    mean_seconds: mean time of the measured steps so far, None before the first. memory_bytes: peak of the allocator so
    far. pace_seconds: expected time of a step. tokens: tokens of one optimizer step over all GPUs. steps_left:
    optimizer steps that follow. warmup: the step is not measured.

    >>> step = Step(index=10, seconds=1.25, loss=2.5)
    >>> print(step_line(step, label="CUDA", mean_seconds=1.245, memory_bytes=45.67e9))
    [CUDA] Step  10 | Time: 1.250s | Avg: 1.245s | Memory: 45.67GB | Loss: 2.5000
    >>> rest = {"pace_seconds": 1.2, "tokens": 1000, "steps_left": 90, "warmup": True}
    >>> print(step_line(step, label="CPU", mean_seconds=None, memory_bytes=None, **rest))
    [CPU] Step  10 | Time: 1.250s | Loss: 2.5000 | 800 tokens/s | 1:48 left | (warm-up, not measured)
    """
    parts = [f"[{label}] Step {step.index:>3}"]
    if step.seconds is not None:
        parts.append(f"Time: {fixed(step.seconds, 3)}s")
    if mean_seconds is not None:
        parts.append(f"Avg: {fixed(mean_seconds, 3)}s")
    if memory_bytes is not None:
        parts.append(f"Memory: {fixed(memory_bytes / GB, 2)}GB")
    if step.loss is not None:
        parts.append(f"Loss: {fixed(step.loss, 4)}")
    if tokens and step.seconds:
        parts.append(f"{count(tokens / step.seconds)} tokens/s")
    if steps_left and pace_seconds:
        parts.append(f"{time_left(steps_left * pace_seconds)} left")
    if warmup:
        parts.append("(warm-up, not measured)")
    if step.interrupted_by:
        parts.append(f"({step.interrupted_by} inside, not measured)")
    return " | ".join(parts)


def end_block(result: Result, *, label: str, path: Path | None, interruption_seconds: dict[str, float]) -> str:
    """Return the block printed at the end: totals, rates, memory, and the result's file unless path is None.

    interruption_seconds: by kind, such as validation.
    """
    figures, memory = result.performance_metrics, result.memory_metrics or MemoryMetrics()
    ended = "Training finished" if result.complete else f"Training ended early ({result.runs[-1].ended_by})"
    total = (
        f"{figures.total_steps} steps in {fixed(figures.total_time_seconds, 3)} s"
        if figures.total_steps and figures.total_time_seconds is not None
        else "no step finished"
    )
    per_gpu = figures.tokens_per_second_per_gpu
    rates = _joined(
        f"{count(figures.tokens_per_second)} tokens/s" if figures.tokens_per_second else None,
        f"{count(per_gpu)} tokens/s/GPU" if per_gpu and (result.training_config.num_gpus or 1) > 1 else None,
    )
    mean = figures.avg_step_time_seconds
    lines = {
        "Total": _joined(total, *(f"{kind} {fixed(spent, 3)} s" for kind, spent in interruption_seconds.items())),
        "Measured": None if mean is None else f"{figures.measured_steps} steps, mean {fixed(mean, 4)} s",
        "Rate": rates,
        "Memory": _joined(
            _gigabytes("allocated peak", memory.peak_memory_allocated_gb),
            _gigabytes("reserved peak", memory.peak_memory_reserved_gb),
        ),
        "Result": None if path is None else str(path),
    }
    body = "\n".join(f"[{label}]   {name + ':':<10}{text}" for name, text in lines.items() if text)
    return f"[{label}] {ended}\n{body}"


def _joined(*parts: str | None) -> str:
    return ", ".join(part for part in parts if part)


def _gigabytes(name: str, value: float | None) -> str | None:
    return None if value is None else f"{name} {gigabytes(value)}"
