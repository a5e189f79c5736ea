"""Names of result files: a name that distinguishes a result from the others in its folder."""

from __future__ import annotations

import re

from tensorprimat.core.result import STACK_OF_PLATFORM, Result
from tensorprimat.facts.devices import short_device

DEFAULT_PRESET = {"cpu": "tiny"}  # by platform; elsewhere the real shape
DEFAULT_METHODOLOGY = "agreed"


def file_stem(result: Result, *, default_engine: str | None = None) -> str:
    """Return the name of a result's file without its ending.

    default_engine: the first engine that is installed on this machine. Another engine, a preset that is not the
    platform's default, a methodology that is not the default and a training selected from a log become suffixes. None
    leaves the engine out of the name.
    """
    stack = STACK_OF_PLATFORM[result.platform]
    parts = [f"benchmark_{stack}_{_file_safe(result.model.name or 'model')}"]
    engine = result.provenance.engine
    if default_engine is not None and engine is not None and engine != default_engine:
        parts.append(engine)
    if result.model.preset not in (None, DEFAULT_PRESET.get(result.platform or "", "full")):
        parts.append(str(result.model.preset))
    if result.methodology not in (None, DEFAULT_METHODOLOGY):
        parts.append(str(result.methodology))
    if result.provenance.segment is not None:
        parts.append(f"segment{result.provenance.segment}")
    return "_".join([parts[0], *map(_file_safe, parts[1:])])


def _file_safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.") or "model"


def distinguishing_facts(result: Result, held: Result, stem: str) -> str:
    """Return the facts by which a result differs from the one that has its name, for a file name; "" for none."""
    facts = (
        (result.gpu_info.device_name, held.gpu_info.device_name),
        (result.provenance.engine, held.provenance.engine),
        (result.model.preset, held.model.preset),
        (result.training_config.precision, held.training_config.precision),
        (result.methodology, held.methodology),
    )
    names = [_file_safe(short_device(mine)) for mine, theirs in facts if mine and mine != theirs]
    return "_".join(name for name in names if name not in stem.split("_"))
