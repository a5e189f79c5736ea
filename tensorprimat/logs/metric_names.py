"""Names under which frameworks hand their metrics to Weights & Biases, MLflow, CSV and JSON files: data for `metrics`.

A name is looked up as it is, then without the prefix of its section. If a framework divides by the number of GPUs, its
rates go to the field per GPU, whatever their name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tensorprimat.core.units import GIB

SECTIONS = ("train/", "train_", "train|", "torchtune/", "metrics/", "trainer/", "performance/")

TIME_SO_FAR = ("train/time", "train|time")
"""Names of the seconds of training since its start, by Lightning's ThroughputMonitor."""
EVALUATION = ("eval/", "eval_", "val/", "validation", "val_loss", "valid/", "valid_loss", "test/", "test_loss")
"""Prefixes of names of an evaluation's metrics."""
_SECONDS: Mapping[str, float] = {
    "iteration-time": 1.0,  # Megatron-LM's
    "train_step_timing in s": 1.0,  # NeMo's
    "time_metrics/end_to_end(s)": 1.0,  # torchtitan's
    "perf/step_time_seconds": 1.0,  # MaxText's
    "time/secs_per_step": 1.0,
    "perf/time_per_step": 1.0,
    "timing_s/step": 1.0,
    "timing/train/total_step_time": 1.0,
    "throughput/duration": 1.0,  # Levanter's
    "time_per_step_s": 1.0,
    "step_time_s": 1.0,
    "step_time_seconds": 1.0,
    "seconds_per_step": 1.0,
    "train/time(s)": 1.0,
    "time_per_iteration_ms": 1e-3,
    "elapsed_time_per_iteration_ms": 1e-3,
    "step_time_ms": 1e-3,
    "step_time": 1.0,
}
UNITLESS_TIMES = ("step_time",)
"""Names of step times that do not say their unit."""

_TOKENS_PER_SECOND = (
    *("throughput/tokens_per_sec", "tokens_per_sec", "tokens_per_second", "tokens/s", "tok_per_sec", "tok/sec"),
    "throughput/tokens_per_second",
    "tps",  # NeMo Automodel's
)
_TOKENS_PER_SECOND_PER_GPU = (
    *("throughput/device/tokens_per_sec", "throughput/device/TPS", "throughput/device/tokens_per_second"),
    *("device/tokens_per_sec", "tokens_per_second_per_gpu", "tokens_per_sec_per_gpu", "tokens_per_gpu_per_sec"),
    *("tps_per_gpu", "tokens/train_per_sec_per_gpu", "perf/throughput", "valid_tokens_per_sec_per_gpu"),
    *("throughput(tps)", "wps", "perf/per_device_tokens_per_sec"),
)

FIELDS: Mapping[str, tuple[str, float]] = {
    **dict.fromkeys(("batch-size", "global_batch_size"), ("samples", 1.0)),
    "time_metrics/data_loading(s)": ("data_wait_seconds", 1.0),
    "mem-allocated-bytes": ("memory_allocated_bytes", 1.0),
    "mem-reserved-bytes": ("memory_reserved_bytes", 1.0),
    "mem-max-allocated-bytes": ("memory_allocated_peak_bytes", 1.0),
    "memory_allocated": ("memory_allocated_bytes", 1.0),
    **dict.fromkeys(("max_memory_allocated", "peak_memory_usage"), ("memory_allocated_peak_bytes", 1.0)),
    "max_memory_reserved": ("memory_reserved_peak_bytes", 1.0),
    "memory/max_reserved(GiB)": ("memory_reserved_peak_bytes", GIB),
    **dict.fromkeys(
        ("throughput", "TFLOPS_per_GPU", "tflops", "perf/per_device_tflops_per_sec"), ("reported_tflops_per_gpu", 1.0)
    ),
    "mfu(%)": ("reported_mfu", 0.01),
    **{name: ("seconds", scale) for name, scale in _SECONDS.items()},
    **dict.fromkeys(_TOKENS_PER_SECOND, ("reported_tokens_per_second", 1.0)),
    **dict.fromkeys(_TOKENS_PER_SECOND_PER_GPU, ("reported_tokens_per_second_per_gpu", 1.0)),
    **dict.fromkeys(
        ("throughput/samples_per_sec", "throughput/examples_per_second", "samples_per_sec", "samples_per_second"),
        ("reported_samples_per_second", 1.0),
    ),
    **dict.fromkeys(
        ("throughput/device/samples_per_sec", "device/samples_per_sec", "samples_per_sec_per_gpu"),
        ("reported_samples_per_second_per_gpu", 1.0),
    ),
    **dict.fromkeys(
        (
            *(
                "loss",
                "lm_loss",
                "lm loss",
                "loss/train/total",
                "Loss/train",
                "CE loss",
                "CrossEntropyLoss",
                "loss_step",
            ),
            *("reduced_train_loss", "loss_metrics/global_avg_loss", "learning/loss"),
        ),
        ("loss", 1.0),
    ),
    **dict.fromkeys(("grad_norm", "l2_norm/grad/global", "grad-norm", "learning/grad_norm"), ("gradient_norm", 1.0)),
    **dict.fromkeys(("lr", "learning_rate", "learning-rate", "learning/current_learning_rate"), ("learning_rate", 1.0)),
    **dict.fromkeys(("num_tokens_per_step", "perf/total_num_tokens", "tokens_per_step"), ("tokens", 1.0)),
    **dict.fromkeys(
        (
            "num_input_tokens_seen",
            "throughput/total_tokens",
            "throughput/total tokens",
            "consumed_tokens",
            "total_tokens",
            "tokens_seen",
            "num_tokens",  # TRL's, since the start
        ),
        ("total_tokens", 1.0),
    ),
    **dict.fromkeys(TIME_SO_FAR, ("seconds_so_far", 1.0)),
    "time/token": ("tokens_before", 1.0),  # Composer's, logged at the beginning of the step
    "mem": ("memory_allocated_peak_bytes", GIB),  # NeMo Automodel's
    "memory/peak_allocated_mem": ("memory_allocated_peak_bytes", 1e9),
    "memory/peak_reserved_mem": ("memory_reserved_peak_bytes", 1e9),
    "peak_memory_alloc": ("memory_allocated_peak_bytes", GIB),
    "peak_memory_reserved": ("memory_reserved_peak_bytes", GIB),
    "perf/max_memory_allocated_gb": ("memory_allocated_peak_bytes", GIB),
    "perf/max_memory_reserved_gb": ("memory_reserved_peak_bytes", GIB),
    "memory/max_allocated (GiB)": ("memory_allocated_peak_bytes", GIB),
    "memory/device_reserved (GiB)": ("memory_reserved_peak_bytes", GIB),
    "model_tflops_per_gpu": ("reported_tflops_per_gpu", 1.0),
    "throughput/device/flops_per_sec": ("reported_tflops_per_gpu", 1e-12),
    "throughput/device/mfu": ("reported_mfu", 1.0),
    "throughput/mfu": ("reported_mfu", 0.01),
    "perf/mfu/actor": ("reported_mfu", 1.0),
    "perf/total_num_images": ("samples", 1.0),
    **dict.fromkeys(("timing_s/testing", "timing_s/save_checkpoint"), ("other_work", 1.0)),  # verl's
    **dict.fromkeys(("timing/train/validation", "timing/train/checkpointing"), ("other_work", 1.0)),  # NeMo-RL's
}
"""Name → field of Step and factor to its unit. Or `total_tokens`: all so far; `tokens_before`: all before the step;
`seconds_so_far`: of training, without validation; `other_work`: a validation or checkpoint in the time of the step."""
OTHERWISE: Mapping[str, tuple[str, str]] = {
    "global_batch_size": ("time_per_iteration_ms", "tokens"),  # nanotron's
    "perf/throughput": ("perf/total_num_images", "reported_samples_per_second_per_gpu"),  # verl's
}
"""Name → the name beside which it means another field, and that field."""
RUNS = ("run", "run_id", "run_name", "run_uuid", "Name")
"""Names of columns that say to which run a row belongs."""

STEPS = (
    *("trainer/global_step", "train/global_step", "torchtune/global_step", "global_step", "iteration_step"),
    *("training/global_step", "step", "iteration", "Step", "_step"),
)
"""Names of the number of the optimizer step, the surest first: W&B's own `_step` counts its calls."""
CLOCK_MS = "timestamp_ms"
"""Milliseconds since 1970, as MLflow keeps them."""
CLOCKS = (CLOCK_MS, "_timestamp", "_runtime", "timestamp")
"""Names of the moment at which a row was logged: seconds since 1970 or since the start, or a date."""
MEASURES = (
    *("seconds", "reported_tokens_per_second", "reported_tokens_per_second_per_gpu"),
    *("reported_samples_per_second", "reported_samples_per_second_per_gpu"),
)
TOTALS: Mapping[str, str] = {
    "train_runtime": "runtime_seconds",
    "train_samples_per_second": "samples_per_second",
    "train_tokens_per_second": "tokens_per_second",
}
"""Means over a whole run that the Hugging Face Trainer logs once → field of Reported."""


LIGHTNING = (*TIME_SO_FAR, "train_step_timing in s")
"""Names of which a metrics.csv of Lightning or NeMo has one."""


def is_lightnings(names: Collection[str]) -> bool:
    """Return True for the columns of a metrics.csv of Lightning or NeMo."""
    return "step" in names and any(name in names for name in LIGHTNING)


def field_of(name: str) -> tuple[str, float] | None:
    """Return the field that a metric is, and the factor to its unit; None for one that is not known.

    >>> field_of("train/tokens_per_sec"), field_of("perf/time_per_step"), field_of("eval/loss")
    (('reported_tokens_per_second', 1.0), ('seconds', 1.0), None)
    """
    if name in FIELDS:
        return FIELDS[name]
    if name.startswith("lr-"):  # Lightning's LearningRateMonitor adds the optimizer
        return FIELDS["lr"]
    section = next((section for section in SECTIONS if name.startswith(section)), "")
    return FIELDS.get(name.removeprefix(section)) if section else None
