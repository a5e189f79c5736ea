"""From what a log says (`Reading`) and what the user said (`Given`) to a `Result` with every figure computed."""

from __future__ import annotations

import hashlib
import threading
from datetime import datetime, timezone
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from tensorprimat import __version__
from tensorprimat.core import models
from tensorprimat.core.errors import InputError
from tensorprimat.core.records import (
    STACK_OF_PLATFORM,
    GpuInfo,
    Model,
    PerformanceMetrics,
    Provenance,
    Record,
    Reported,
    Result,
    Run,
    Source,
    TrainingConfig,
)
from tensorprimat.core.steps import Steps, distinct
from tensorprimat.core.summary import summarise
from tensorprimat.logs import devices, endings
from tensorprimat.logs.format import Format, Given, Reading
from tensorprimat.logs.text import Log

_Record = TypeVar("_Record", bound=Record)

WORTH_A_THREAD_BYTES = 2**20  # starting one takes as long as hashing a few hundred kilobytes

SAMPLES, SAMPLES_PER_GPU = "reported_samples_per_second", "reported_samples_per_second_per_gpu"

FLAGS = {
    "num_gpus": "--num-gpus",
    "global_batch_size": "--global-batch-size",
    "micro_batch_size": "--micro-batch-size",
    "sequence_length": "--sequence-length",
    "precision": "--precision",
    "warmup_steps": "--warmup",
}
"""Fields of Given that are fields of TrainingConfig, with the flag that says them."""


def join(log: Log, format: Format, given: Given, warnings: list[str]) -> Result:
    """Read one log with one format; flags override, and every conflict is a warning that names both.

    warnings: what is known beforehand. A result record (the tool's own file) is amended, not built anew.
    """
    digest = _Digest(log)
    said = format.read(log)
    if isinstance(said, Result):
        return _amended(said, given, warnings)
    endings.examine(log, said)
    warnings = [*warnings, *said.warnings]
    assumed: dict[str, str] = {}
    config = _configuration(said.training_config, given, warnings, assumed)
    gpu_info = _gpu_info(said.gpu_info, config, given, warnings, assumed)
    platform = devices.platform_of(gpu_info.device_name) or said.platform
    if gpu_info.software_stack is None and platform:
        gpu_info = gpu_info.model_copy(update={"software_stack": STACK_OF_PLATFORM[platform]})
    steps = _with_work(said.steps, config, given)
    warnings += _conflicts_of_work(steps, config, given)
    return summarise(
        Result(
            platform=platform,
            source=said.source or f"{format.name} log",
            timestamp=said.timestamp,
            complete=said.complete,
            gpu_info=gpu_info,
            model=_model(_believed(Model, said.model, warnings), given, warnings, assumed),
            training_config=config,
            performance_metrics=_reported_means(_believed(Reported, said.reported, warnings), config),
            runs=_runs(said),
            provenance=Provenance(
                engine="logs",
                format=format.name,
                timing="reported",
                sources=(_source(log, format, digest),),
                host=said.host,
                tool_version=__version__,
                assumed=assumed,
            ),
            warnings=tuple(dict.fromkeys(warnings)),
            steps=steps,
        )
    )


def says_anything(result: Result) -> bool:
    """Whether a measured step, or a rate that the framework itself reported, came out."""
    performance = result.performance_metrics
    rates = (performance.avg_step_time_seconds, performance.tokens_per_second, performance.tokens_per_second_per_gpu)
    samples = (performance.samples_per_second, performance.samples_per_second_per_gpu)
    return any(rate is not None for rate in (*rates, *samples))


def _configuration(
    from_log: dict[str, Any], given: Given, warnings: list[str], assumed: dict[str, str]
) -> TrainingConfig:
    values = dict(from_log)
    for name, value in given.said().items():
        if name not in FLAGS:
            continue
        _override(values, name, value, FLAGS[name], warnings)
        assumed[name] = FLAGS[name]
    return _with_derived(_believed(TrainingConfig, values, warnings))


def _believed(record: type[_Record], said: dict[str, Any], warnings: list[str]) -> _Record:
    """The record of what a log says, without what no run can be: a batch of 10**100, from a line that was damaged."""
    try:
        return record(**said)
    except ValidationError as error:
        absurd = {str(found["loc"][0]) for found in error.errors()}
        warnings += [
            f"{name}: the log says {str(said[name])[:40]}, which cannot be; left out" for name in sorted(absurd)
        ]
        return record(**{name: value for name, value in said.items() if name not in absurd})


def _override(values: dict[str, Any], name: str, value: object, flag: str, warnings: list[str]) -> None:
    known = values.get(name)
    if known is not None and known != value:
        warnings.append(f"{name}: {flag} {value} is used, though the log says {known}")
    values[name] = value


def _with_derived(config: TrainingConfig) -> TrainingConfig:
    """What follows from the parallel sizes, where all of them are known."""
    tensor, pipeline = config.tensor_model_parallel_size, config.pipeline_model_parallel_size
    if not (config.num_gpus and tensor and pipeline):
        return config
    replica = tensor * pipeline * (config.context_parallel_size or 1)
    replicas = config.data_parallel_size or (config.num_gpus // replica if config.num_gpus % replica == 0 else None)
    micro, batch, accumulation = config.micro_batch_size, config.global_batch_size, config.gradient_accumulation_steps
    if accumulation is None and replicas and micro and batch and batch % (micro * replicas) == 0:
        accumulation = batch // (micro * replicas)
    return config.model_copy(
        update={"data_parallel_size": replicas, "gradient_accumulation_steps": accumulation},
    )


def _gpu_info(
    from_log: dict[str, Any], config: TrainingConfig, given: Given, warnings: list[str], assumed: dict[str, str]
) -> GpuInfo:
    values = dict(from_log)
    if given.gpu:
        known = values.get("device_name")
        if known and known.casefold() != given.gpu.casefold():
            warnings.append(f"gpu_info: --gpu {given.gpu} is used, though the log says {known}")
        if known is None or known.casefold() != given.gpu.casefold():
            values = {"device_name": given.gpu}  # nothing else that the log says belongs to this device
        assumed["device_name"] = "--gpu"
    values.setdefault("device_count", config.num_gpus)
    return _believed(GpuInfo, values, warnings)


def _model(model: Model, given: Given, warnings: list[str], assumed: dict[str, str]) -> Model:
    preset = models.identify(model.shape) if model.shape else None
    known = model.name or (preset.model if preset else None)
    if given.model_name is not None:
        if known and not _same_name(known, given.model_name):
            warnings.append(f"model: --model-name {given.model_name} is used, though the log says {known}")
        assumed["model.name"] = "--model-name"
    return model.model_copy(
        update={
            "name": given.model_name or known,
            "preset": model.preset or (preset.name if preset else None),
            "parameters": model.parameters or (models.parameters(model.shape) if model.shape else None),
        }
    )


def _same_name(one: str, other: str) -> bool:
    """Whether one name is a longer spelling of the other: llama, llama3.1_8B-BF16-pretrain."""
    one, other = one.casefold(), other.casefold()
    return one in other or other in one


def _with_work(steps: Steps, config: TrainingConfig, given: Given) -> Steps:
    """Samples and tokens of a step where rows carry the one and the sequence length gives the other; rates over all."""
    if not len(steps):
        return steps
    if config.num_gpus and steps.has(SAMPLES_PER_GPU) and (given.num_gpus or not steps.has(SAMPLES)):
        steps = steps.replace(**{SAMPLES: steps.column(SAMPLES_PER_GPU) * config.num_gpus})
    if given.global_batch_size and "samples" in steps.seen:
        steps = steps.replace(samples=float(given.global_batch_size))
    if "samples" in steps.seen and config.sequence_length and ("tokens" not in steps.seen or given.sequence_length):
        samples = steps.column("samples")
        steps = steps.replace(tokens=np.asarray(samples * config.sequence_length, np.float64))
    return steps


def _conflicts_of_work(steps: Steps, config: TrainingConfig, given: Given) -> list[str]:
    """A log that counts the tokens of a step itself is believed; flags that make others of it are said."""
    if not (given.global_batch_size or given.sequence_length) or "tokens" not in steps.seen:
        return []
    counted = np.unique(steps.column("tokens")[np.isfinite(steps.column("tokens"))])
    product = (config.global_batch_size or 0) * (config.sequence_length or 0)
    if len(counted) != 1 or not product or counted[0] == product:
        return []
    return [
        f"tokens_per_step: the log counts {counted[0]:,.0f}, which is used, though --global-batch-size × "
        f"--sequence-length is {product:,}"
    ]


def _reported_means(reported: Reported, config: TrainingConfig) -> PerformanceMetrics:
    """Figures of a log that has only means for the whole run; a log with rows gets its figures from them instead."""
    gpus, length = config.num_gpus, config.sequence_length
    samples, tokens, per_gpu = (
        reported.samples_per_second,
        reported.tokens_per_second,
        reported.tokens_per_second_per_gpu,
    )
    if tokens is None and samples is not None and length:
        tokens = samples * length
    if tokens is None and per_gpu is not None and gpus:
        tokens = per_gpu * gpus
    if per_gpu is None and tokens is not None and gpus:
        per_gpu = tokens / gpus
    mean = reported.step_time_seconds
    known = any(value is not None for value in (samples, tokens, per_gpu, mean))
    return PerformanceMetrics(
        avg_step_time_seconds=mean,
        steps_per_second=1 / mean if mean else None,
        tokens_per_second=tokens,
        tokens_per_second_per_gpu=per_gpu,
        samples_per_second=samples,
        samples_per_second_per_gpu=samples / gpus if samples and gpus else None,
        basis="reported_means" if known else None,
        reported=reported,
    )


def _runs(said: Reading) -> tuple[Run, ...]:
    runs = distinct(said.steps.column("run")) or [0]
    return tuple(
        Run(
            index=run,
            started_at=said.timestamp,
            host=said.host,
            complete=said.complete or run != runs[-1],
            ended_by=said.ended_by if run == runs[-1] else None,
        )
        for run in runs
    )


def _source(log: Log, format: Format, digest: _Digest) -> Source:
    sha256, size_bytes = digest.of_what()
    if log.called:  # standard input has neither a name nor a date
        return Source(file=log.called, sha256=sha256, size_bytes=size_bytes, format=format.name)
    modified = datetime.fromtimestamp(log.path.stat().st_mtime, timezone.utc)
    return Source(
        file=log.path.name,
        sha256=sha256,
        size_bytes=size_bytes,
        format=format.name,
        modified_at=modified.isoformat(timespec="seconds"),
    )


class _Digest:
    """SHA-256 of the file as it is on disk, of a large one computed in a thread beside the reader."""

    def __init__(self, log: Log) -> None:
        self._hash, self._thread = hashlib.sha256(), None
        self._size_bytes = 0
        self._problem: InputError | None = None
        self._is_folder = log.is_folder
        if self._is_folder:
            return
        if log.size_bytes < WORTH_A_THREAD_BYTES:
            self._run(log)
            return
        self._thread = threading.Thread(target=self._run, args=(log,), daemon=True)
        self._thread.start()

    def _run(self, log: Log) -> None:
        try:
            for chunk in log.stored():
                self._hash.update(chunk)
                self._size_bytes += len(chunk)
        except InputError as error:
            self._problem = error

    def of_what(self) -> tuple[str | None, int | None]:
        """The digest and the number of bytes that it is of, once all are read; None for a folder.

        A log that grows while it is read has another size by then. Raises InputError for what could not be read.
        """
        if self._thread is not None:
            self._thread.join()
        if self._problem is not None:
            raise self._problem
        return (None, None) if self._is_folder else (self._hash.hexdigest(), self._size_bytes)


def _amended(result: Result, given: Given, warnings: list[str]) -> Result:
    """A result record read again, with what the user said laid over it."""
    notes = [*result.warnings, *warnings]
    assumed = dict(result.provenance.assumed)
    config = _configuration(result.training_config.model_dump(), given, notes, assumed)
    gpu_info = _gpu_info(result.gpu_info.model_dump(), config, given, notes, assumed)
    return summarise(
        result.model_copy(
            update={
                "training_config": config,
                "gpu_info": gpu_info,
                "platform": devices.platform_of(given.gpu) or result.platform,
                "model": _model(result.model, given, notes, assumed),
                "provenance": result.provenance.model_copy(update={"assumed": assumed}),
                "steps": _with_work(result.steps, config, given),
                "warnings": tuple(dict.fromkeys(notes)),
            }
        )
    )
