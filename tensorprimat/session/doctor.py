"""The work of `doctor`: what is installed here, which engines would train, and the command for each missing thing."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tensorprimat.core.errors import DoesNotFitError, UsageError
from tensorprimat.core.spec import RunSettings
from tensorprimat.engines import prepare
from tensorprimat.engines.modules import modules_of
from tensorprimat.engines.registry import ENGINES, Engine, importable
from tensorprimat.machine import environment, gpu_processes, noise, telemetry
from tensorprimat.machine.device import DeviceReading
from tensorprimat.machine.platform import Machine, detect_platform

_MODEL = "llama"
"""Model whose run is planned to find out whether an engine works."""
_OPTIONAL = {
    "matplotlib": "plots as PNG and SVG", "torchao": "FP8 with the torch engine",
    "tensorboard": "TensorBoard's event files",
    "openpyxl": "Excel profiles", "zstandard": "logs that zstd packed", "pynvml": "readings of NVIDIA GPUs",
    "pyarrow": "tprimat export", "duckdb": "queries of tprimat list",
}  # fmt: skip
"""Import name of a package that some commands need → its use."""
_PACKAGE_OF = {"pynvml": "nvidia-ml-py"}


@dataclass(frozen=True, kw_only=True)
class EngineState:
    """Answer for one engine: does it train here."""

    name: str
    works: bool
    says: str
    """Reason why not, with the command or setting that changes it, or a remark."""


@dataclass(frozen=True, kw_only=True)
class GpuState:
    """One GPU and its readings, now."""

    name: str
    driver: str | None
    reading: DeviceReading


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """State of a machine for this tool."""

    machine: Machine
    versions: Mapping[str, str]
    variables: Mapping[str, str]
    engines: Sequence[EngineState]
    gpus: Sequence[GpuState]
    holders: Sequence[gpu_processes.Holder]
    """Processes that use a GPU."""
    remarks: Sequence[str]
    """Notices about the machine, such as other work on it."""
    missing: Mapping[str, str]
    """Thing that is missing and its use → the command that installs it."""

    def document(self) -> dict[str, Any]:
        """Return the state for programs."""
        facts = {**asdict(self), "machine": self.machine.facts_of_a_measurement()}
        return {"kind": "diagnosis", "works": any(one.works for one in self.engines), **facts}


def diagnose() -> Diagnosis:
    """Return the state of this machine; imports torch, starts no training."""
    machine = detect_platform()
    engines = [_state_of(engine, machine) for engine in ENGINES.values() if engine.trains]
    devices = telemetry.open_devices(machine.gpu_ids)
    memory, _ = gpu_processes.memory_by_process()
    remarks: list[str] = [*machine.warnings, *noise.about(noise.observe_machine(machine.gpu_ids), "now")]
    if machine.platform != "cpu" and not devices:
        remarks.append("no driver library answers, so power, clocks and memory of the GPUs are unknown")
    if switch := environment.compiling_disabled():
        remarks.append(f"{switch} turns torch.compile off; unset it")
    return Diagnosis(
        machine=machine,
        versions={**environment.versions(), **environment.gpu_driver(), **environment.gpu_places()},
        variables=environment.speed_variables(),
        engines=engines,
        gpus=[GpuState(name=one.name, driver=one.driver, reading=one.read()) for one in devices],
        holders=gpu_processes.holders(memory),
        remarks=[str(one) for one in remarks],
        missing={
            f"{name} ({use})": f"{sys.executable} -m pip install {_PACKAGE_OF.get(name, name)}"
            for name, use in _OPTIONAL.items()
            if not importable(name)
        },
    )


def _state_of(engine: Engine, machine: Machine) -> EngineState:
    """Return whether an engine would train a model with its defaults on this machine."""
    try:
        prepare.check_engine(engine, machine.platform)
        checkout = modules_of(engine).load("checkout")
        if checkout is not None and checkout.models_here((_MODEL,)) is None:
            return EngineState(name=engine.name, works=False, says=checkout.NO_CHECKOUT)
        here = machine if checkout is None else checkout.machine_of(machine)
        spec = prepare.spec_of(_MODEL, RunSettings(steps=20, warmup_steps=5, seed=0), engine=engine, machine=here)
        prepare.check_spec(engine, spec, here)
    except DoesNotFitError as error:
        return EngineState(name=engine.name, works=True, says=f"smaller models only: {error}")
    except UsageError as error:
        return EngineState(name=engine.name, works=False, says=str(error))
    return EngineState(name=engine.name, works=True, says=f"{_MODEL} {spec.preset}, {spec.precision}")
