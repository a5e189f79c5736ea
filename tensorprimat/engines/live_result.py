"""The `Result` of a live training: its facts before the first step, its steps and figures at the end."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tensorprimat.core.errors import RunError, UsageError
from tensorprimat.core.notices import Notice
from tensorprimat.core.provenance import Provenance
from tensorprimat.core.result import STACK_OF_PLATFORM, Model, PerformanceMetrics, Result, Run, TrainingConfig
from tensorprimat.core.steps import Steps
from tensorprimat.core.summary import summarise
from tensorprimat.core.units import GB
from tensorprimat.core.version import __version__
from tensorprimat.engines import introspect
from tensorprimat.engines.memory import HOST_PEAK, MemoryReading
from tensorprimat.machine import environment, platform
from tensorprimat.models import names, presets
from tensorprimat.storage import store
from tensorprimat.system import atomic


@dataclass(frozen=True, kw_only=True)
class Declared:
    """The facts about the training that the user passes to the callback."""

    platform: str = "auto"
    model_name: str | None = None
    preset: str | None = None
    engine: str | None = None
    methodology: str | None = None
    warmup_steps: int | None = None
    training_config: Mapping[str, Any] = field(default_factory=dict)


def describe_training(trainer: Any, module: Any, declared: Declared, *, built: bool) -> Result:
    """Return a result without steps: machine, model, configuration and notices of a Lightning training.

    built: the model has its parameters and the trainer its optimizers (from on_train_start on).
    """
    machine = platform.detect_platform(cpu=trainer.strategy.root_device.type == "cpu")
    notices = list(machine.warnings)
    if declared.platform != "auto" and platform.PLATFORM_SPELLINGS[declared.platform] != machine.platform:
        notices.append(Notice("other_platform", "platform", requested=declared.platform, machine=machine.label))
    model = Model()
    if built:
        model, odd = introspect.model_stated_by(module) or introspect.describe_model(
            module, sharded=introspect.is_model_sharded(trainer)
        )
        notices += odd
    preset, contradicted = _preset(declared, model)
    notices += contradicted
    found = {**introspect.training_config(trainer, module), **(introspect.stated_by(module) if built else {})}
    model_name = names.resolve(declared.model_name) if declared.model_name else model.name
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    config = TrainingConfig.model_validate(
        {
            **introspect.framework(trainer),
            **found,
            **declared.training_config,
            "warmup_steps": declared.warmup_steps,
            "versions": {
                **environment.versions(),
                **environment.gpu_software(machine.platform, machine.gpu_ids),
            },
            "environment": environment.speed_variables(),
        }
    )
    if introspect.is_nemo(trainer) and machine.platform != "nvd":
        notices.append(Notice("nvidia_recipe", "engine", machine=machine.label))
    if introspect.is_nemo(trainer) and config.gradient_accumulation_steps is None:
        config = config.changed(gradient_accumulation_steps=introspect.accumulation(trainer, config))
    for name, value in found.items():
        stated = declared.training_config.get(name)
        if stated is not None and stated != value:
            notices.append(Notice("setting_of_trainer", "training_config", name=name, stated=stated, found=value))
    engine = declared.engine or ("nemo" if introspect.is_nemo(trainer) else None)
    return Result(
        platform=machine.platform,
        source=f"{engine} engine" if engine else "Lightning training",
        timestamp=now,
        methodology=declared.methodology,
        complete=False,
        gpu_info=machine.gpu_info,
        model=model.changed(name=model_name, preset=preset),
        training_config=config,
        performance_metrics=PerformanceMetrics(),
        runs=(Run(index=0, started_at=now, host=machine.host, seed=config.seed, complete=False),),
        provenance=Provenance(
            engine=engine,
            timing="measured",
            host=machine.host,
            gpu_ids=machine.gpu_ids,
            command=" ".join(sys.argv),
            commit=environment.commit_here(),
            tool_version=__version__,
        ),
        warnings=tuple(notices),
    )


def _preset(declared: Declared, model: Model) -> tuple[str | None, list[Notice]]:
    """Return the declared preset without a notice, or None and a notice if the trained model has another size."""
    try:
        preset = presets.find_preset(names.resolve(declared.model_name or ""), declared.preset or "")
    except UsageError:  # a model or preset that is not built in: nothing to compare it with
        return declared.preset, []
    expected = presets.parameters(preset.shape)
    if model.parameters in (None, expected):
        return declared.preset, []
    say = partial(Notice, "preset_of_other_size", "model", preset=declared.preset, title=preset.title)
    return None, [say(expected=expected, counted=model.parameters)]


def finish(
    result: Result, steps: Steps, *, memory: MemoryReading, ended_by: str | None, notices: Sequence[Notice]
) -> Result:
    """Return the result with its steps and every figure.

    memory: the last reading, each figure the maximum over ranks; ended_by: reason of an early end, None without one.
    """
    host_peak = memory.get(HOST_PEAK)
    columns = {name: value for name, value in memory.items() if name != HOST_PEAK}
    complete = ended_by is None and len(steps) > 0
    return summarise(
        result.changed(
            complete=complete,
            steps=_with_last_memory(steps, columns),
            host_memory_peak_gb=None if host_peak is None else host_peak / GB,
            runs=tuple(run.changed(complete=complete, ended_by=ended_by) for run in result.runs),
            warnings=(*result.warnings, *notices),
        )
    )


def _with_last_memory(steps: Steps, memory: MemoryReading) -> Steps:
    """Return the steps with the last reading, including the peaks of the whole run, in the last row."""
    if not len(steps) or not memory:
        return steps
    columns = {}
    for name, value in memory.items():
        column = np.array(steps.column(name))
        column[-1] = np.fmax(column[-1], value)
        columns[name] = column
    return steps.replace(**columns)


def check_writable(output_dir: str, result_file: str | None) -> None:
    """Raise RunError if the result could not be written: before the training, instead of after it."""
    folder = Path(output_dir) if result_file is None else Path(result_file).parent
    if why := atomic.unwritable(folder):
        raise RunError(f"{folder}: {why}; give another output folder")


def save_training(result: Result, *, output_dir: str, result_file: str | None, stamp: str) -> Path:
    """Write result_file if it is set, else the latest file and its history in output_dir; return the file.

    Without a model name the file name contains the stamp instead, and history has no copy. Raises OSError; RunError if
    output_dir could not be written and the result is in the temporary folder.
    """
    if result_file is not None:
        path = Path(result_file)
        atomic.write_atomically(path, store.to_json(result))
        return path
    folder = Path(output_dir)
    with store.rescuing(result, stamp):
        if result.model.name is None:
            path = folder / f"benchmark_{STACK_OF_PLATFORM[result.platform]}_{stamp}.json"
            atomic.write_atomically(path, store.to_json(result))
            return path
        return store.save(result, folder, stamp=stamp)
