"""The modules of each engine, by name; they are not in the registry, so that they can import the registry."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from tensorprimat.core.spec import RunSpec
from tensorprimat.engines.registry import ENGINES, Engine
from tensorprimat.models.memory_estimate import MemoryEstimate


@dataclass(frozen=True, kw_only=True)
class EngineModules:
    """One row of MODULES: names of modules, each of which is imported only where it is used."""

    name: str
    """Name of the engine in ENGINES."""
    program: str | None = None
    """Module that a fresh process runs (see engines/launch), with a function `check` of the spec; None for an engine
    that only reads logs."""
    memory: str | None = None
    """Module with the functions `estimate` (memory of one device), `recomputed_share` and, for an engine without
    Megatron Core, `remedies`; None: the engine's MegatronCore has them, if set."""
    configuration: str | None = None
    """Module whose `spec_of` plans a run by the framework's own configuration files, and whose `spec_advice` returns
    warnings about a run that can work; None for an engine without such files."""
    checkout: str | None = None
    """Module whose `models_here` and `machine_of` find the checkout that trains, whose `configures` names the models
    that it can train, and whose NO_CONFIG is the message for any other; without a checkout the engine reads logs. None
    for an engine that consists of packages."""
    command: str | None = None
    """Module whose `show_command` shows what the framework would start, for --dry-run; None for an engine that starts
    no other program."""

    def load(self, part: str) -> Any:
        """Import and return the module of one field; None if the engine has none."""
        name = getattr(self, part)
        return None if name is None else importlib.import_module(name)


MODULES = {
    row.name: row
    for row in (
        EngineModules(
            name="torch", program="tensorprimat.engines.torch.engine", memory="tensorprimat.models.training_memory"
        ),
        EngineModules(name="nemo", program="tensorprimat.engines.nemo.engine"),
        EngineModules(name="bridge", program="tensorprimat.engines.bridge"),
        EngineModules(
            name="primus",
            program="tensorprimat.engines.primus.engine",
            memory="tensorprimat.engines.primus.memory",
            configuration="tensorprimat.engines.primus.spec",
            checkout="tensorprimat.engines.primus.checkout",
            command="tensorprimat.engines.primus.engine",
        ),
    )
}


def modules_of(engine: Engine) -> EngineModules:
    """Return the modules of an engine; none for one that only reads logs."""
    return MODULES.get(engine.name, EngineModules(name=engine.name))


def memory_model(engine: Engine) -> Any:
    """Return the module or MegatronCore with the functions of `EngineModules.memory`; None without estimates."""
    return modules_of(engine).load("memory") or engine.megatron


def memory_estimate(spec: RunSpec, device_name: str | None) -> MemoryEstimate | None:
    """Return the estimated memory of one GPU with the engine's settings; None on a CPU or without an estimate."""
    model = None if spec.platform == "cpu" else memory_model(ENGINES[spec.engine])
    estimate: MemoryEstimate | None = model and model.estimate(spec, device_name)
    return estimate


def recomputed_share(spec: RunSpec, device_name: str | None) -> float | None:
    """Return the share of the layers whose forward pass runs again in backward; None where it is not known."""
    model = memory_model(ENGINES[spec.engine])
    share: float | None = model and model.recomputed_share(spec, device_name)
    return share
