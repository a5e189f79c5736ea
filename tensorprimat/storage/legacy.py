"""Result files of versions 1 and 2, and the minimal one that contains only means, converted to version 3.

Version 1 says `platform: "cuda"` and names the model, if at all, in its file name. Version 2 adds `parallelism_config`,
top-level `step_times`, `loss_values` and `learning_rates`, and may call the software stack "nemo". Both write "N/A", 0,
-1 or infinity for an unknown value: it becomes None here, with a warning. Where there are steps, every figure
is computed anew by core/summary and the file's own are kept as reported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeGuard

from tensorprimat.core.errors import InputError
from tensorprimat.core.notices import Notice
from tensorprimat.core.provenance import LOGS
from tensorprimat.core.result import (
    SCHEMA_VERSION,
    STACK_OF_PLATFORM,
    GpuInfo,
    MemoryMetrics,
    PerformanceMetrics,
    PowerMetrics,
    TrainingConfig,
)
from tensorprimat.core.spec import MODELS
from tensorprimat.core.units import GB, GIB
from tensorprimat.models import names

_PLATFORMS = {"cuda": "nvd", "nvd": "nvd", "nvidia": "nvd", "nemo": "nvd", "rocm": "amd", "amd": "amd", "cpu": "cpu"}
_ENGINES_IN_NAMES = {"nemo": "nemo", "primus": "primus", "prim": "primus"}
"""Spelling in file names and software stacks of version 2 → engine of this project; other trainers have none."""
_TIMING = {"primus": "reported"}
"""Engine of such a file → who measured its steps, where it is not this project."""

_ALIASES = {
    "sequence_length": ("seq_length",),
    "tensor_model_parallel_size": ("tensor_parallel_size", "tensor_parallel"),
    "pipeline_model_parallel_size": ("pipeline_parallel_size", "pipeline_parallel"),
    "gradient_accumulation_steps": ("grad_accum_steps",),
    "data": ("dataset",),
    "steps_per_second": ("throughput_steps_per_second",),
    "software_version": ("cuda_version", "rocm_version"),
}
"""Field of today's record → other keys that older files use for it."""

SERIES = {
    "seconds": ("raw_step_times", "step_times"),
    "loss": ("raw_loss_values", "loss_values"),
    "learning_rate": ("raw_learning_rates", "learning_rates"),
    "memory": ("raw_memory_values", "memory_values"),
}
"""Column of `Steps` → keys of the series at the top level; a memory series is in GB."""

_SECTIONS = (
    "gpu_info", "training_config", "parallelism_config", "performance_metrics", "memory_metrics", "power_metrics",
)  # fmt: skip
_RATES = ("tokens_per_second", "tokens_per_second_per_gpu", "samples_per_second")
_SAME_COUNT = 0.01  # relative: rates are printed with a decimal or two
SAME_PEAK = 0.001  # relative: a peak and its series are rounded to two decimals

DEVICE_USED_METHODS = ("smi_total_vram",)
"""Values of `measurement_method` that read the whole device from the driver; the others read the allocator."""

_LARGEST = 10**30  # no count is larger, and some larger integers have no float
UNKNOWN_WORDS = frozenset({"", "-", "n/a", "na", "none", "null", "unknown", "nan", "inf", "-inf", "infinity"})
_FILE_TIME = re.compile(r"(?<!\d)(\d{8})_(\d{6})(?!\d)")
_EARLIER_NAME = re.compile(r"train_(?:nvd|amd)_(?P<framework>[a-z]+)_(?P<rest>.+)")
_FILE_NAME = re.compile(r"benchmark_(?:cuda|rocm|cpu|nemo|nvd|amd|unknown)_(?P<rest>.+)", re.IGNORECASE)


def lift(document: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the document of an older version as one of version 3, ready for `Result.model_validate`.

    path: the file that it was read from; its name may contain the model and the date.
    Raises InputError for a document that states a schema_version, and for a section or series of a wrong type.
    """
    if "schema_version" in document:
        stated = document["schema_version"]
        why, remedy = "files of versions 1 and 2 have no schema_version", "remove the key from a file of version 1 or 2"
        if _number(stated) and stated > SCHEMA_VERSION:
            why, remedy = f"this program reads up to {SCHEMA_VERSION}", "update TensorPrimat"
        raise InputError(f"schema_version {stated!r}, but {why}", path=path, remedy=remedy)
    notices: list[Notice] = []
    sections = {name: _section(document, name, path) for name in _SECTIONS}
    gpu = sections["gpu_info"]
    names_of_platform = (document.get("platform"), *map(gpu.get, ("hardware_type", "platform", "software_stack")))
    platform = _first_known(names_of_platform, _PLATFORMS)
    names_of_engine = (document.get("framework"), gpu.get("software_stack"), *path.stem.split("_"))
    engine = _first_known(names_of_engine, _ENGINES_IN_NAMES)
    columns = _columns(document, path, notices)
    config = {**sections["parallelism_config"], **sections["training_config"]}
    config.setdefault("framework", document.get("framework") or _framework_of_file(path))
    config.setdefault("data", document.get("dataset") or _data_of_file(path))
    figures = _known(sections["performance_metrics"], PerformanceMetrics, "performance_metrics", notices)
    from_primus_log = str(document.get("source") or "").startswith("primus")
    memory = _memory(sections["memory_metrics"], columns, from_primus_log, notices)
    host = _clean({"host_memory_peak_gb": document.get("host_memory_peak_gb")}, "host memory", notices)
    config_facts = _known(config, TrainingConfig, "training_config", notices)
    gpu_facts = _known(gpu, GpuInfo, "gpu_info", notices)
    assumed = _confirmed_gpus(config_facts, gpu_facts, figures)
    if columns:
        columns["index"] = list(range(1, len(columns["seconds"]) + 1))
        assumed["index"] = "row numbers: this file does not number its steps"
    return {
        "schema_version": SCHEMA_VERSION,
        "platform": platform,
        "source": document.get("source"),
        "timestamp": _timestamp(document, path, notices),
        "gpu_info": {**gpu_facts, "software_stack": platform and STACK_OF_PLATFORM[platform]},
        "model": _model(document, config, path, notices),
        "training_config": config_facts | ({"framework": engine} if engine else {}),
        "performance_metrics": _performance(figures, with_steps="seconds" in columns),
        "memory_metrics": memory or None,
        "host_memory_peak_gb": host.get("host_memory_peak_gb"),
        "power_metrics": _known(sections["power_metrics"], PowerMetrics, "power_metrics", notices) or None,
        "provenance": {
            "engine": LOGS if from_primus_log else engine,
            "timing": "reported" if from_primus_log else _TIMING.get(engine or "", "measured"),
            "sources": [{"file": str(document["source_log_file"])}] if document.get("source_log_file") else [],
            "assumed": assumed,
        },
        "raw_step_times": columns.pop("seconds", []),
        "step_metrics": columns,
        "warnings": notices,
    }


def _confirmed_gpus(config: dict[str, Any], gpu: Mapping[str, Any], figures: Mapping[str, Any]) -> dict[str, str]:
    """Fill num_gpus from device_count where the file's own rates confirm it. Returns the assumption and its reason."""
    count, total, per_gpu = gpu.get("device_count"), figures.get(_RATES[0]), figures.get(_RATES[1])
    if config.get("num_gpus") is not None or not (_number(count) and _number(total) and _number(per_gpu)):
        return {}
    if abs(total / per_gpu / count - 1) > _SAME_COUNT:
        return {}
    config["num_gpus"] = count
    return {"num_gpus": f"gpu_info.device_count; tokens/s is {count} x tokens/s per GPU in this file"}


def _section(document: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    value = document.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InputError(f"{name} is {type(value).__name__}, not an object", path=path, remedy="repair the file")
    return value


def _first_known(words: Sequence[Any], meanings: Mapping[str, str]) -> str | None:
    """Return the meaning of the first word that has one; None where none has."""
    return next((meanings[word] for word in (str(word).lower() for word in words) if word in meanings), None)


def _model(document: Mapping[str, Any], config: Mapping[str, Any], path: Path, notices: list[Notice]) -> dict[str, Any]:
    model = document.get("model")
    facts = model if isinstance(model, dict) else {"name": model}
    spelled = (facts.get("name"), document.get("model_name"), config.get("model_name"), _model_of_file(path))
    name = next((names.resolve(str(name)) for name in spelled if name and str(name).lower() not in UNKNOWN_WORDS), None)
    if name is None:
        notices.append(Notice("model_unknown", "model"))
    parameters = _section(document, "model_info", path).get("total_params")
    return {"name": name, "parameters": _clean({"parameters": parameters}, "model_info", notices).get("parameters")}


def _model_of_file(path: Path) -> str | None:
    """Return the model that a file name states, such as llama for benchmark_cuda_llama.json, or None."""
    stem = _FILE_TIME.sub("", path.stem).strip("_")
    if match := _FILE_NAME.fullmatch(stem):
        return match["rest"].strip("_") or None
    named = {model for model in names.sized(stem) if model in MODELS} or names.families(stem)
    return named.pop() if len(named) == 1 else None


def _framework_of_file(path: Path) -> str | None:
    """Return the word of a file name between platform and model, such as mega for train_nvd_mega_llama_c4.json."""
    match = _EARLIER_NAME.fullmatch(path.stem)
    return match["framework"] if match and names.families(match["rest"]) else None


def _data_of_file(path: Path) -> str | None:
    """Return the data set that a file name ends with: train_nvd_nemo_llama_c4.json (BookCorpus is bc)."""
    ending = path.stem.rpartition("_")[2]
    return ending if path.stem.startswith("train_") and ending in ("bc", "c4") else None


def _timestamp(document: Mapping[str, Any], path: Path, notices: list[Notice]) -> str | None:
    stamp = document.get("timestamp")
    if stamp is not None:
        try:
            return datetime.fromisoformat(str(stamp).replace("Z", "+00:00")).isoformat()
        except ValueError:
            notices.append(Notice("no_date", "timestamp", stated=str(stamp)[:40]))
    if match := _FILE_TIME.search(path.stem):
        try:
            return datetime.strptime("".join(match.groups()), "%Y%m%d%H%M%S").isoformat()
        except ValueError:  # eight and six digits that are not a date
            pass
    return None


def _known(section: Mapping[str, Any], record: Any, name: str, notices: list[Notice]) -> dict[str, Any]:
    """Return a section's values for the fields of a record, under today's keys, without placeholders for "unknown"."""
    keys = {field: (field, *_ALIASES.get(field, ())) for field in record.model_fields}
    stated = {field: [section[key] for key in each if section.get(key) is not None] for field, each in keys.items()}
    return _clean({field: values[0] for field, values in stated.items() if values}, name, notices)


def _clean(values: Mapping[str, Any], name: str, notices: list[Notice]) -> dict[str, Any]:
    """Return the values that are known: no figure of an old file can be 0, negative or infinite."""
    kept = {field: value for field, value in values.items() if value is not None and _is_measured(value)}
    for field, value in values.items():
        if field not in kept and value not in (None, ""):
            notices.append(Notice("value_unknown", name, key=field, value=repr(value)))
    return kept


def _is_measured(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() not in UNKNOWN_WORDS
    if isinstance(value, int) and not isinstance(value, bool):
        return 0 < value < _LARGEST
    return not isinstance(value, float) or (math.isfinite(value) and value > 0)


def _number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _performance(figures: dict[str, Any], *, with_steps: bool) -> dict[str, Any]:
    """Return the file's means; with steps only as `reported`, because core/summary computes every figure again."""
    if not with_steps:
        return {**figures, "basis": "reported_means"}
    reported = {name: figures[name] for name in _RATES if name in figures}
    if "avg_step_time_seconds" in figures:
        reported["step_time_seconds"] = figures["avg_step_time_seconds"]
    return {"reported": reported}


def _memory(
    section: Mapping[str, Any], columns: dict[str, list[Any]], from_primus_log: bool, notices: list[Notice]
) -> dict[str, Any]:
    """Return the figures of memory, and move the series "memory" of `columns` to the column of its kind.

    Older versions called Primus' "hip mem usage" allocated memory; it is the whole device's use, in GiB.
    """
    figures = _known(section, MemoryMetrics, "memory_metrics", notices)
    used = from_primus_log or section.get("measurement_method") in DEVICE_USED_METHODS
    unit = GIB if from_primus_log else GB
    if "memory" in columns:
        kind = "memory_device_used_bytes" if used else "memory_allocated_bytes"
        columns[kind] = [None if value is None else value * unit for value in columns.pop("memory")]
    if used and figures:
        if from_primus_log:
            notices.append(Notice("memory_converted", "memory_metrics"))
        figures = {
            key.replace("_allocated_", "_device_used_"): value * unit / GB if isinstance(value, (int, float)) else value
            for key, value in figures.items()
        }
    _keep_peak(figures, columns, notices)
    return figures


def _keep_peak(figures: Mapping[str, Any], columns: dict[str, list[Any]], notices: list[Notice]) -> None:
    """Put the file's own peak into the last row of a column of peaks: the sampled series may have missed it."""
    for kind in ("memory_allocated", "memory_device_used"):
        seen = [value / GB for value in columns.get(f"{kind}_bytes", ()) if value is not None]
        peak = figures.get(f"peak_{kind}_gb")
        if not seen or not _number(peak):
            continue
        if abs(max(seen) / peak - 1) > SAME_PEAK:
            kept = "the peak of the file is kept" if peak > max(seen) else "the higher one is kept"
            notices.append(Notice("peaks_differ", "memory_metrics", stated=peak, highest=max(seen), kept=kept))
        columns[f"{kind}_peak_bytes"] = [*[None] * (len(columns[f"{kind}_bytes"]) - 1), peak * GB]


def _columns(document: Mapping[str, Any], path: Path, notices: list[Notice]) -> dict[str, list[Any]]:
    """Return the series that the file has, as columns of equal length; empty where no step has a time."""
    columns: dict[str, list[Any]] = {}
    for name, keys in SERIES.items():
        key = next((key for key in keys if document.get(key)), None)
        if key is None:
            continue
        if not isinstance(values := document[key], list):
            raise InputError(f"{key} is {type(values).__name__}, not a list", path=path, remedy="repair the file")
        columns[name] = _series(name, key, values, notices)
    times = columns.get("seconds", [])
    if all(seconds is None for seconds in times):
        return {}
    for name in [name for name, values in columns.items() if len(values) != len(times)]:
        notices.append(Notice("series_left_out", name, values=len(columns.pop(name)), steps=len(times)))
    return columns


def _series(name: str, key: str, values: Sequence[Any], notices: list[Notice]) -> list[Any]:
    """Return one series with None where nothing was measured; a loss that is nan stays nan."""
    series: list[Any] = []
    for value in values:
        number = value if _number(value) else math.inf
        if name == "loss" and (number != number or value == "nan"):
            series.append("nan")
        else:  # schedules start and end at 0
            is_valid = math.isfinite(number) and (number > 0 or (name == "learning_rate" and number == 0))
            series.append(number if is_valid else None)
    unmeasured = sum(old is not None and new is None for old, new in zip(values, series, strict=True))
    if unmeasured:
        notices.append(Notice("values_unknown", key, unknown=unmeasured, values=len(values)))
    return series
