"""Conversion of a Hugging Face checkpoint by NeMo's own importer, after a check of disk space and memory."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tensorprimat.core.errors import InputError, MissingFileError, RunError, UsageError
from tensorprimat.core.quantities import size
from tensorprimat.core.units import GB
from tensorprimat.engines import failures, prepare
from tensorprimat.engines.nemo import engine as nemo
from tensorprimat.machine.host_memory import available_bytes
from tensorprimat.models import presets
from tensorprimat.system import regular

HUB = "hf://"
BYTES_PER_PARAMETER = 2  # in the published checkpoint and the converted one: both are bfloat16
LARGEST_CONFIG_BYTES = 2**20  # of a checkpoint's config.json, which has some kilobytes
IN_MEMORY = 2  # copies at once: the model as transformers loads it and the one that NeMo fills from it; measured 1.9
OWN_BYTES = 1 * GB  # NeMo's and torch's code and buffers without a model; measured 0.9 GB
LAYERS_OF = "transformer_engine"  # package whose layers NeMo's importers require
_ENDINGS = (RuntimeError, OSError, ValueError, AssertionError, MemoryError, LookupError, TypeError, AttributeError)
"""Exceptions that importers raise if a checkpoint is not as they expect."""
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
"""Weight files that transformers loads: those of the first pattern, else those of the second."""


KINDS = {
    "llama": ("LlamaModel", "Llama31Config8B", "llama"),
    "qwen": ("Qwen2Model", "Qwen25Config7B", "qwen2"),
    "mistral": ("MistralModel", "MistralConfig7B", "mistral"),
}
"""Our model → its model and configuration in nemo.collections.llm, and its `model_type` in a config.json."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """The disk space and memory that a conversion needs, in bytes."""

    download_bytes: int
    """Bytes downloaded into the Hugging Face cache; 0 for a folder."""
    output_bytes: int
    memory_bytes: int


def needs(model: str, source: str) -> Needs:
    """Return the least disk space and memory for a conversion, by a folder's weights or the published model's size.

    Raises UsageError for an unknown model or a source that is neither folder nor hub name, InputError for a folder that
    contains no checkpoint of this model.
    """
    if model not in KINDS:
        raise UsageError(f"--model {model}: no such model; models: {', '.join(KINDS)}")
    if source.startswith(HUB):
        weights = BYTES_PER_PARAMETER * presets.parameters(presets.find_preset(model).shape)
        return Needs(download_bytes=weights, output_bytes=weights, memory_bytes=IN_MEMORY * weights + OWN_BYTES)
    folder = Path(source)
    if not os.path.isdir(folder):
        raise UsageError(f"--source {source}: no such folder; for the Hugging Face hub write {HUB}ORGANISATION/NAME")
    _check_model_type(folder / "config.json", model)
    loaded = next((files for pattern in WEIGHTS if (files := list(folder.glob(pattern)))), [])
    weights = sum(file.stat().st_size for file in loaded)
    if not weights:
        raise InputError(f"no weights ({', '.join(WEIGHTS)})", path=folder, remedy="give a checkpoint")
    return Needs(download_bytes=0, output_bytes=weights, memory_bytes=IN_MEMORY * weights + OWN_BYTES)


def _check_model_type(config: Path, model: str) -> None:
    if not os.path.exists(config):
        raise MissingFileError("no such file", path=config, remedy="give a Hugging Face checkpoint")
    try:
        model_type = json.loads(regular.text_of_file(config, most_bytes=LARGEST_CONFIG_BYTES)).get("model_type")
    except (ValueError, AttributeError) as error:
        raise InputError("not a Hugging Face configuration", path=config) from error
    if model_type != KINDS[model][2]:
        raise InputError(f"model_type is {model_type!r}, not {KINDS[model][2]!r}", path=config)


def check_room(needed: Needs, output: Path) -> list[str]:
    """Return warnings about memory and the download. Raises UsageError where the output's disk lacks the space."""
    free = _free_bytes(output)
    if free < needed.output_bytes:
        raise UsageError(
            f"--output {output}: needs {size(needed.output_bytes)}, but only {size(free)} are free; choose another disk"
        )
    warnings = []
    cache = Path(os.path.expanduser(os.environ.get("HF_HOME", "~/.cache/huggingface")))
    if (free := _free_bytes(cache)) < needed.download_bytes:
        warnings.append(
            f"{cache}: the download needs {size(needed.download_bytes)}, unless the checkpoint is there already, but "
            f"only {size(free)} are free; set HF_HOME to another folder"
        )
    available = available_bytes()
    if available < needed.memory_bytes:
        warnings.append(
            f"memory: the conversion needs {size(needed.memory_bytes)}, but only {size(available)} are available; "
            "the system may kill it"
        )
    return warnings


def check_output(output: Path, *, overwrite: bool) -> None:
    """Raise UsageError where the checkpoint could not get its name: before hours of work, instead of after them."""
    prepare.check_folder(output)
    prepare.check_folder(_partial(output))
    if os.path.islink(output):
        raise UsageError(f"--output {output}: a link, which a checkpoint cannot replace; name its target")
    if os.path.exists(output) and not overwrite:
        raise UsageError(f"--output {output}: exists; give --overwrite or another folder")


def _partial(output: Path) -> Path:
    """Return the folder next to the output in which the conversion writes."""
    return output.with_name(f".{output.name}.partial")


def _free_bytes(path: Path) -> int:
    """Return the free bytes of the disk that holds a path, or would hold it if the path does not exist yet."""
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if os.path.exists(folder))
    return shutil.disk_usage(existing).free


def convert_checkpoint(model: str, source: str, output: Path, *, overwrite: bool = False) -> Path:
    """Convert a checkpoint and return the output folder.

    The conversion writes into a temporary folder next to the output, so that no partial checkpoint has the final name.
    NeMo prints on stdout. Raises UsageError without NeMo or Transformer Engine or where the output exists, RunError
    where NeMo's importer fails.
    """
    if reason := nemo.unavailable():
        raise UsageError(f"{reason}; conversion needs NeMo 2.1 to 2.7: make nemo-env, or NVIDIA's image")
    if importlib.util.find_spec(LAYERS_OF) is None:
        raise UsageError(
            "Transformer Engine is not installed, and NeMo's importers support only its layers; "
            "convert in NVIDIA's image"
        )
    check_output(output, overwrite=overwrite)
    llm = importlib.import_module("nemo.collections.llm")
    broken_weights = importlib.import_module("safetensors").SafetensorError
    nemo_model, nemo_config, _ = KINDS[model]
    partial = _partial(output)
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    where = source if source.startswith(HUB) else f"{HUB}{Path(source).absolute()}"
    try:
        target = getattr(llm, nemo_model)(getattr(llm, nemo_config)())
        llm.import_ckpt(model=target, source=where, output_path=partial)
        if os.path.exists(output):
            shutil.rmtree(output)
        partial.rename(output)
    except (*_ENDINGS, broken_weights) as error:
        raise RunError(f"{source}: conversion failed: {failures.end_reason(error)}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return output
