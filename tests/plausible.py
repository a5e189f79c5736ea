"""Results of runs that never took place, of a plausible size: for tests that need something to show."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorprimat.core.provenance import Provenance, Source
from tensorprimat.core.result import GpuInfo, MemoryMetrics, Model, PerformanceMetrics, Result, Run, TrainingConfig
from tensorprimat.core.steps import Steps
from tensorprimat.core.summary import summarise
from tensorprimat.models import presets

MACHINES: dict[str, dict[str, Any]] = {
    "h100": {
        "platform": "nvd",
        "gpu": {
            "device_name": "NVIDIA H100 80GB HBM3", "device_count": 8, "total_memory_gb": 85.0, "gpu_cores": 16896,
            "software_stack": "cuda", "software_version": "12.8", "pytorch_version": "2.8.0",
        },
        "config": {"num_gpus": 8, "num_nodes": 1, "precision": "bf16", "framework": "nemo", "strategy": "megatron"},
        "memory_gb": ("allocated", 61.2, "reserved", 68.9),
        "engine": "nemo",
    },
    "mi300x": {
        "platform": "amd",
        "gpu": {
            "device_name": "AMD Instinct MI300X", "device_count": 8, "total_memory_gb": 205.8, "gpu_cores": 19456,
            "software_stack": "rocm", "software_version": "6.4", "pytorch_version": "2.8.0",
        },
        "config": {"num_gpus": 8, "num_nodes": 1, "precision": "bf16", "framework": "primus", "strategy": "megatron"},
        "memory_gb": ("device_used", 148.3),
        "engine": "primus",
    },
    "cpu": {
        "platform": "cpu",
        "gpu": {
            "device_name": "Intel(R) Xeon(R) Platinum 8480C", "device_count": 1, "gpu_cores": 2,
            "software_stack": "cpu", "pytorch_version": "2.8.0+cpu",
        },
        "config": {"num_gpus": 1, "num_nodes": 1, "precision": "fp32", "framework": "torch"},
        "memory_gb": (),
        "engine": "torch",
    },
}  # fmt: skip


def result(
    machine: str = "h100",
    *,
    model: str = "llama",
    preset: str = "full",
    seconds: float = 12.8,
    noise: float = 0.004,
    runs: int = 1,
    run_noise: float = 0.002,
    steps: int = 50,
    warmup: int = 5,
    seed: int = 0,
    losses: bool = True,
    device_name: str | None = None,
    **config: Any,
) -> Result:
    """Return a whole result: `runs` repetitions of `steps` measured steps that take about `seconds` each."""
    facts, shape = MACHINES[machine], presets.find_preset(model, preset)
    random = np.random.default_rng(seed)
    length = warmup + steps
    columns: dict[str, list[np.ndarray]] = {"index": [], "seconds": [], "run": [], "loss": []}
    for run in range(runs):
        pace = seconds * (1 + run_noise * random.standard_normal())
        ramp = 1 + 2.5 * np.exp(-np.arange(length) / 0.9)
        columns["seconds"].append(pace * ramp * (1 + noise * np.abs(random.standard_normal(length))))
        columns["index"].append(np.arange(1, length + 1))
        columns["run"].append(np.full(length, run))
        columns["loss"].append(2.2 + 9.5 * np.exp(-np.arange(length) / 18) + 0.05 * random.standard_normal(length))
    if not losses:
        columns.pop("loss")
    rows = Steps({name: np.concatenate(parts) for name, parts in columns.items()})
    memory = facts["memory_gb"]
    for kind, peak in zip(memory[::2], memory[1::2], strict=True):
        rows = rows.replace(**{f"memory_{kind}_bytes": (peak + 0.1 * random.random(len(rows))) * 1e9})
    gpu = {**facts["gpu"], **({"device_name": device_name} if device_name else {})}
    batch = 8 if preset == "tiny" else 128
    defaults = {
        "global_batch_size": batch, "micro_batch_size": 1, "sequence_length": 128 if preset == "tiny" else 8192,
        "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "context_parallel_size": 1,
        "max_steps": length, "optimizer": "adamw", "data": "synthetic", "warmup_steps": warmup, "seed": 1234,
        "learning_rate": 3e-4, "compute_dtype": "bfloat16", "parameter_dtype": "bfloat16",
        "optimizer_dtype": "float32", "recompute": "none", "attention_backend": "flash", "compile": False,
        "fused_kernels": "all", "padded_vocabulary_size": shape.shape.vocab_size, "peft": "none",
    }  # fmt: skip
    log = facts["engine"] == "primus"
    return summarise(
        Result(
            platform=facts["platform"],
            source="primus log" if log else f"{facts['engine']} engine",
            timestamp="2025-11-03T14:12:09+00:00",
            gpu_info=GpuInfo(**gpu),
            model=Model(name=model, preset=preset, shape=shape.shape, parameters=presets.parameters(shape.shape)),
            training_config=TrainingConfig(**{**defaults, **facts["config"], **config}),
            performance_metrics=PerformanceMetrics(),
            host_memory_peak_gb=1.31 if machine == "cpu" else None,
            runs=tuple(
                Run(index=run, started_at=f"2025-11-03T{14 + run:02}:12:09+00:00", host="node-7", seed=1234 + run)
                for run in range(runs)
            ),
            provenance=Provenance(
                engine=facts["engine"],
                format="primus" if log else None,
                timing="reported" if log else "measured",
                timer=None if log else "device events",
                sources=(Source(file=f"training_{model}.log", sha256="5e" * 32, format="primus"),) if log else (),
                tool_version="1.0.0",
            ),
            steps=rows,
        )
    )


def bare(**known: Any) -> Result:
    """Return a result that knows nothing but the values that are passed."""
    unknown = {
        "platform": "nvd", "gpu_info": GpuInfo(), "model": Model(), "training_config": TrainingConfig(),
        "performance_metrics": PerformanceMetrics(),
    }  # fmt: skip
    return Result(**{**unknown, **known})


def means_only(machine: str = "h100") -> Result:
    """Return a minimal old result: reported means, no steps, no configuration, no timestamp."""
    facts = MACHINES[machine]
    return Result(
        platform=facts["platform"],
        gpu_info=GpuInfo(device_name=facts["gpu"]["device_name"]),
        model=Model(name="llama"),
        training_config=TrainingConfig(),
        performance_metrics=PerformanceMetrics(avg_step_time_seconds=9.8, basis="reported_means"),
        memory_metrics=MemoryMetrics(peak_memory_allocated_gb=61.0),
    )
