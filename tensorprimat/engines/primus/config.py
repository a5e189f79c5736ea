"""Reader of a Primus experiment file, which merges presets, follows `extends` and fills in `${VAR:default}`.

Primus merges the trainer's preset (`config:`), the model's preset (`model:`) and the experiment's own `overrides:`,
later ones winning, after replacing placeholders from the environment (primus/core/config/yaml_loader.py; until v0.5
presets named their base by `bases:` and `includes:` instead of `extends:`). This reader does the same with safe YAML.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tensorprimat.core.errors import InputError
from tensorprimat.system import regular

PLACEHOLDER = re.compile(r"\$\{([^:{}$]{1,200})(?::([^}]{0,300}))?\}")
_NUMBER = re.compile(r"-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
CONFIGS_FOLDER = Path("primus", "configs")
PARENTS = ("extends", "bases", "includes")
"""Keys under which a file names its parents, by Primus version."""
TRAINERS = ("pre_trainer", "post_trainer")

_LARGEST_BYTES = 2**22  # of one file; Megatron's presets have some hundreds of settings

Settings = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Effective:
    """The settings that Megatron receives, from all files."""

    path: Path
    settings: Settings
    missing_presets: tuple[str, ...] = ()
    """Missing files that the experiment builds on; their settings are unknown."""

    def whole(self, name: str) -> int | None:
        """Return the value of a setting as a whole number; None if no file sets it. Raises InputError otherwise."""
        value = self.settings.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(f"{name}: {value!r} is not a whole number", path=self.path, remedy="correct it there")
        return value

    @property
    def precision(self) -> str | None:
        """Return fp4, fp8, bf16, fp16 or fp32; None if no file states a precision."""
        for name in ("fp4", "fp8", "bf16", "fp16"):
            if self.settings.get(name):
                return name
        return "fp32" if "bf16" in self.settings else None


def effective(path: Path, *, root: Path | None = None) -> Effective:
    """Return the settings of an experiment file, read as Primus reads it.

    root: the checkout whose presets it builds on (default: the checkout that contains the file, else $PRIMUS_PATH).
    Raises InputError for a file that is missing, is not YAML, is not an experiment, or has a placeholder without value.
    """
    experiment = _load(path)
    trainer = _trainer(experiment, path)
    presets = _presets(path, root)
    framework = str(trainer.get("framework", "megatron"))
    settings: dict[str, Any] = {}
    missing = []
    for kind, name in (("modules", trainer.get("config")), ("models", trainer.get("model"))):
        if not name:
            continue
        file = str(name) if str(name).endswith((".yaml", ".yml")) else f"{name}.yaml"
        preset = None if presets is None else presets / kind / framework / file
        if preset is None or not os.path.isfile(preset):
            missing.append(str(name))
            continue
        settings = _merged(settings, _load(preset))
    settings = _merged(settings, trainer.get("overrides") or {})
    return Effective(path=path, settings=settings, missing_presets=tuple(missing))


def derived_experiment(path: Path, changes: Settings) -> str:
    """Return the experiment file with some settings changed, as YAML; its placeholders stay placeholders.

    Raises InputError as `effective` does.
    """
    experiment = _parse(path)
    trainer = _trainer(experiment, path)
    trainer["overrides"] = {**(trainer.get("overrides") or {}), **changes}
    for key in PARENTS:
        if key in experiment:  # relative to the original file, so make them absolute
            experiment[key] = [str(regular.resolved(path.parent / parent)) for parent in _listed(experiment[key])]
    return yaml.safe_dump(experiment, sort_keys=False)


def _presets(path: Path, root: Path | None) -> Path | None:
    """Return the folder of presets: of the root, else of the checkout that contains the file, else of $PRIMUS_PATH."""
    named = os.environ.get("PRIMUS_PATH")
    candidates = (root, *regular.resolved(path).parents, Path(named) if named else None)
    return next(
        (found / CONFIGS_FOLDER for found in candidates if found and os.path.isdir(found / CONFIGS_FOLDER)), None
    )


def _trainer(experiment: dict[str, Any], path: Path) -> dict[str, Any]:
    modules = experiment.get("modules")
    found = next((modules[name] for name in TRAINERS if name in modules), None) if isinstance(modules, dict) else None
    if not isinstance(found, dict) or not isinstance(found.get("overrides") or {}, dict):
        raise InputError(
            "is not a Primus experiment: it has no modules: pre_trainer:",
            path=path,
            remedy="name a file of examples/megatron/configs",
        )
    return found


def _load(path: Path, below: Sequence[Path] = ()) -> dict[str, Any]:
    """Return a file's settings with placeholders filled in, merged over those of the files that it extends."""
    if regular.resolved(path) in below:
        raise InputError("extends itself", path=path, remedy="correct its extends:")
    document: dict[str, Any] = _filled(_parse(path), path)
    merged: dict[str, Any] = {}
    for key in PARENTS:
        for parent in _listed(document.pop(key, ())):
            merged = _merged(merged, _load(path.parent / parent, (*below, regular.resolved(path))))
    return _merged(merged, document)


def _parse(path: Path) -> dict[str, Any]:
    content = regular.text_of_file(path, most_bytes=_LARGEST_BYTES)
    try:
        with regular.naming_file(path):  # an impossible date, brackets nested too deeply, too many aliases
            document = regular.yaml_in(content)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "cannot be parsed"
        raise InputError(f"is not YAML: {problem}", path=path, line=None if mark is None else mark.line + 1) from None
    if not isinstance(document, dict):
        raise InputError("is not a Primus configuration: it holds no settings", path=path)
    return document


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(item) for item in value or ()]


def _filled(value: Any, path: Path) -> Any:
    """Return a value with its placeholders replaced; text that is then a number or truth value becomes one."""
    if isinstance(value, dict):
        return {key: _filled(item, path) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, path) for item in value]
    if not isinstance(value, str) or not PLACEHOLDER.search(value):
        return value

    def fill(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        filled = os.environ.get(name, default)
        if filled is None:
            raise InputError(
                f"${{{name}}} has no default and {name} is not set", path=path, remedy=f"export {name}=VALUE"
            )
        return filled

    return _scalar(PLACEHOLDER.sub(fill, value))


def _scalar(text: str) -> Any:
    """Return a scalar of YAML.

    >>> [_scalar(text) for text in ("8192", "1e-5", "true", "llama")]
    [8192, 1e-05, True, 'llama']
    """
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text


def _merged(base: Settings, over: Settings) -> dict[str, Any]:
    merged = copy.deepcopy(dict(base))
    for key, value in over.items():
        nested = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if nested else value
    return merged
