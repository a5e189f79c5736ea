"""Hugging Face configuration files for `--model path/to/config.json`, completed and checked by transformers."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import warnings
from pathlib import Path
from typing import Any

from tensorprimat.core.errors import UsageError
from tensorprimat.core.spec import MODELS
from tensorprimat.models import custom, decoders, names, shapes
from tensorprimat.models.families import FAMILIES
from tensorprimat.models.presets import ALIASES
from tensorprimat.system import regular

_NOT_OF_TRAINING = (
    "transformers_version", "dtype", "torch_dtype", "architectures", "auto_map", "quantization_config", "use_cache",
    "_name_or_path", "_attn_implementation", "_attn_implementation_internal", "_experts_implementation", "model_type",
)  # fmt: skip
"""Entries without effect on the model's shape, or that would choose a precision, which --precision does."""

_TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")
"""Entries that no training here uses: they are set to None, because an embedding does not train the padding row."""


def read_model_config(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the complete configuration of `--model TEXT`.

    Raises UsageError for a file that is not a config.json, or for an unsupported architecture.
    """
    path = Path(text)
    if os.path.isdir(path):
        path = path / shapes.CONFIG_FILE
    if not os.path.isfile(path):
        raise UsageError(
            f"--model {text}: no such model; models: {', '.join(MODELS)}, all, or the path of a Hugging Face "
            "config.json"
        )
    kind, entries = shapes.read_config(path, f"--model {text}")
    if kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise UsageError(f"--model {text}: the torch engine does not train model_type {kind!r}, only {known}")
    config = completed_config(text, kind, entries)
    try:
        decoders.decoder_of(config)
    except UsageError as error:
        raise UsageError(f"--model {text}: {error}") from error
    _check_classes(text, config)
    return _name(entries, path), config


def _check_classes(text: str, config: dict[str, Any]) -> None:
    """Raise UsageError where transformers cannot build the model; without torch do nothing."""
    if importlib.util.find_spec("torch") is None:
        return
    import transformers

    from tensorprimat.engines.torch import model as torch_model

    who = f"transformers {transformers.__version__}"
    try:
        torch_model.check_classes(config)
    except _refusals() as error:
        value = error.args[0] if isinstance(error, KeyError) and error.args else None
        if entry := _entry_of(value, config):
            raise UsageError(f"--model {text}: {entry}: {who} has no {value!r}") from error
        raise UsageError(f"--model {text}: {who} cannot build the model ({_sentence(error)})") from error


def _entry_of(value: Any, entries: dict[str, Any], before: str = "") -> str | None:
    """Return the name of the entry that has a value, None if none has; "rope_parameters.rope_type" for a nested one."""
    for name, found in entries.items():
        if isinstance(found, dict):
            if inner := _entry_of(value, found, f"{before}{name}."):
                return inner
        elif isinstance(value, str) and found == value:
            return before + name
    return None


def _sentence(error: BaseException) -> str:
    """Return the last line of an error's message, or the name of its class if the message is empty."""
    last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
    return last[0].strip()


def _name(entries: dict[str, Any], path: Path) -> str:
    """Return the name of the model: from the file's `_name_or_path`, else from its folder or its own file name.

    The name of a built-in model gets the suffix "-config".
    """
    title = str(entries.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
    name = (
        title
        or (regular.resolved(path).parent.name if path.name == shapes.CONFIG_FILE else path.stem)
        or str(entries["model_type"])
    )
    return f"{name}-config" if names.known_model(name) in (*MODELS, None) and name.lower() in (*MODELS, "all") else name


def completed_config(text: str, kind: str, entries: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration completed with transformers' defaults. Raises UsageError if transformers refuses it."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing to download
    if importlib.util.find_spec("transformers") is None:
        raise UsageError(f"--model {text}: transformers is not installed here; pip install transformers")
    import transformers

    if kind not in transformers.CONFIG_MAPPING:
        raise UsageError(
            f"--model {text}: transformers {transformers.__version__} has no architecture {kind!r}; install a newer one"
        )
    settings = {name: value for name, value in entries.items() if name not in _NOT_OF_TRAINING}
    settings |= dict.fromkeys(_TOKEN_IDS)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            full = transformers.AutoConfig.for_model(kind, **settings).to_dict()
    except _refusals() as error:
        raise UsageError(f"--model {text}: transformers refuses the configuration ({_sentence(error)})") from error
    complete = {name: value for name, value in full.items() if name not in _NOT_OF_TRAINING}
    try:
        plain = json.loads(json.dumps({**complete, "model_type": kind}))
    except (TypeError, ValueError) as error:
        raise UsageError(f"--model {text}: its configuration is not plain JSON ({error})") from error
    return dict(plain)


def _refusals() -> tuple[type[BaseException], ...]:
    """Return the exceptions that transformers raises for an entry that it refuses; newer versions define their own."""
    from huggingface_hub import errors

    refusal = getattr(errors, "StrictDataclassError", None)
    plain = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError)
    return (*plain, refusal) if isinstance(refusal, type) else plain


def model_of_config(name: str, config: dict[str, Any], preset: str) -> custom.ConfiguredModel:
    """Return the full or the tiny preset of a configured model. Raises UsageError for an invalid configuration."""
    if ALIASES.get(preset.lower(), preset.lower()) != "tiny":
        return custom.configured(name, config, preset)
    small = {key: value for key, value in custom.tiny(config).items() if key != "model_type"}
    return custom.configured(name, completed_config(name, str(config["model_type"]), small), preset)
