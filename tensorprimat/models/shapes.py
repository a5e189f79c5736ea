"""Model shapes as people state them: a known model, a Hugging Face config.json, or the numbers themselves.

`--shape` of every command is read here. A name is looked up in models/presets whatever its punctuation, organisation
and suffix are: "llama3.1-8b", "meta-llama/Llama-3.1-8B-Instruct" and "llama31_8b" are one model.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.core.quantities import count, listed
from tensorprimat.core.result import ModelShape
from tensorprimat.facts import catalogue, mlperf_rules
from tensorprimat.models import huggingface, names, presets
from tensorprimat.models.families import FAMILIES
from tensorprimat.models.presets import COURSE, Preset
from tensorprimat.system import regular

NUMBERS = re.compile(r"(?P<name>[^=/]{1,80})=(?P<numbers>\d{1,15}(?:/\d{1,15}){1,9})")
"""name=d_model/d_ff/layers/heads, and where a model has them /kv_heads/vocabulary."""
HOW_TO_WRITE = "name=d_model/d_ff/layers/heads, such as custom=384/1536/6/6"
MORE_NUMBERS = "; /kv_heads and /vocabulary may follow"

_SUFFIXES = re.compile(r"(?:instruct|base|chat|hf|it|pretrain|bf16|fp8|fp16){1,9}$")
_LARGEST_CONFIG_BYTES = 2**20
CONFIG_FILE = "config.json"


@dataclass(frozen=True, kw_only=True)
class NamedShape:
    """A shape that the user stated."""

    text: str
    """Text that the user typed."""
    name: str
    """Name in messages and results."""
    shape: ModelShape
    preset: Preset | None = None
    """The preset, if this project knows the model."""
    assumption: str | None = None
    """Assumption about anything that the numbers leave open."""


def parse_shape(text: str) -> NamedShape:
    """Return the shape that a text states. Raises UsageError that says how to write it.

    >>> parse_shape("llama3.1-8b").name, parse_shape("meta-llama/Llama-3.1-8B").shape.hidden_size
    ('Llama-3.1-8B', 4096)
    >>> parse_shape("mine=384/1536/6/6").shape.num_layers
    6
    """
    if NUMBERS.fullmatch(text):
        return _of_numbers(text)
    path = Path(text)
    for file in (path / CONFIG_FILE, path):
        if os.path.isfile(file):
            return _of_config(text, file)
    if named := of_name(text):
        return named
    titles = [one.title for one in presets.PRESETS if one.name in ("full", "v0.3")]
    titles += [one.title for one in catalogue.published_models()]
    raise UsageError(
        f"--shape {text}: no file of that name and no known model ({', '.join(titles)}; llama-tiny …; "
        f"small … 2.7B); else write {HOW_TO_WRITE}{MORE_NUMBERS}"
    )


def of_name(name: str) -> NamedShape | None:
    """Return the shape of the model that a name means, in any spelling; None for a name of no known model.

    >>> of_name("llama31_8b").name, of_name("Qwen/Qwen3-14B").shape.num_layers, of_name("llama2_70b_lora")
    ('Llama-3.1-8B', 40, None)
    """
    if preset := known_preset(name):
        return NamedShape(text=name, name=preset.title, shape=preset.shape, preset=preset)
    rules = mlperf_rules.benchmark_rules(name)
    if rules and rules.shape:  # MLPerf changes vocabularies: its own name counts
        return replace(parse_shape(rules.shape), text=name)
    one = _published_by_key().get(names.key(name)) or _published_by_key().get(_plain(name))
    return None if one is None else NamedShape(text=name, name=one.title, shape=one.shape)


@cache
def _published_by_key() -> dict[str, catalogue.PublishedModel]:
    """Return the published models by the keys of all their names, and by their names without punctuation."""
    return {
        spelled: one
        for one in catalogue.published_models()
        for name in (one.title, *one.also)
        for spelled in (names.key(name), _plain(name))
    }


def title_of(shape: ModelShape) -> str | None:
    """Return the title of the known model that has exactly this shape; None where no model has it."""
    if preset := presets.identify(shape):
        return preset.title
    return next((one.title for one in catalogue.published_models() if one.shape == shape), None)


def known_preset(name: str) -> Preset | None:
    """Return the preset that a model's name means, in any spelling; None where no preset has that name.

    >>> [known_preset(name).title for name in ("llama31_8b", "qwen2.5-7b", "mistral-7b")], known_preset("llama2_70b")
    (['Llama-3.1-8B', 'Qwen2.5-7B', 'Mistral-7B-v0.1'], None)
    """
    plain = _plain(name)
    if found := next((one for one in presets.PRESETS if plain in map(_plain, _names(one))), None):
        return found
    model = names.known_model(name)
    return presets.find_preset(model) if model in ("llama", "qwen") else None  # versions of mistral differ in shape


def of_preset(preset: str, model: str | None) -> NamedShape | None:
    """Return the shape of a preset of the model that a name means; None where the name means no model with presets.

    Raises UsageError for a preset that this model does not have.

    >>> of_preset("full", "llama31_8b").name, of_preset("tiny", "qwen").name, of_preset("full", "llama2_70b")
    ('Llama-3.1-8B', 'Qwen2.5 tiny', None)
    """
    named = known_preset(model or "")
    if named is None:
        return None
    if presets.ALIASES.get(preset.lower(), preset.lower()) != named.name.lower() or named.model == COURSE:
        named = presets.find_preset(named.model, preset)
    return NamedShape(text=f"{named.model}-{named.name}", name=named.title, shape=named.shape, preset=named)


def _names(preset: Preset) -> list[str]:
    """Return every word that means a preset."""
    if preset.model == COURSE:
        return [preset.name]
    bare = [preset.model, preset.title.removesuffix("-v0.1")] if preset.name == "full" else []
    return [preset.title, f"{preset.model}-{preset.name}", *bare]


def _plain(name: str) -> str:
    """Return a model's name without organisation, punctuation, case and the words that do not change its shape."""
    last = name.strip().rstrip("/").rpartition("/")[2]
    plain = re.sub(r"[^a-z0-9]", "", last.casefold())
    return _SUFFIXES.sub("", plain).removeprefix("meta") or plain


def stated_numbers(text: str, *, most: int = 4) -> tuple[str, list[int]]:
    """Return name and numbers of "name=d_model/d_ff/layers/heads", four or, up to `most`, more. Raises UsageError."""
    match = NUMBERS.fullmatch(text)
    numbers = list(map(int, match["numbers"].split("/"))) if match else []
    if match is None or not 4 <= len(numbers) <= most:
        raise UsageError(f"--shape {text}: write it as {HOW_TO_WRITE}{MORE_NUMBERS if most > 4 else ''}")
    width, heads = numbers[0], numbers[3]
    if min(numbers) < 1:
        raise UsageError(f"--shape {text}: every number must be at least 1")
    if width % heads or (width // heads) % 2:
        raise UsageError(f"--shape {text}: {heads} heads do not divide a width of {width} into heads of even width")
    return match["name"], numbers


def _of_numbers(text: str) -> NamedShape:
    """Build a shape of Llama's architecture from its numbers."""
    name, (width, ffn, layers, heads, *more) = stated_numbers(text, most=6)
    key_value_heads = more[0] if more else heads
    if heads % key_value_heads:
        raise UsageError(f"--shape {text}: {key_value_heads} key-value heads do not divide {heads} heads")
    vocabulary = more[1] if len(more) > 1 else presets.COURSE_VOCABULARY
    shape = presets.shape_of_numbers(layers, width, ffn, heads, key_value_heads, vocabulary)
    assumed = [] if more else [f"{heads} key-value heads"]
    assumed += [] if len(more) > 1 else [f"a vocabulary of {count(vocabulary)}"]
    assumption = f"{listed(assumed)} assumed" if assumed else None
    return NamedShape(text=text, name=name, shape=shape, preset=presets.identify(shape), assumption=assumption)


def read_config(path: Path, where: str) -> tuple[str, dict[str, Any]]:
    """Return `model_type` and all entries of a config.json of a text model.

    Raises UsageError, led by `where` (the flag), for any other file.
    """
    try:
        config = json.loads(regular.text_of_file(path, most_bytes=_LARGEST_CONFIG_BYTES))
    except InputError as error:
        raise UsageError(f"{where}: {error.what}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not a config.json ({str(error).splitlines()[0]})") from error
    if not isinstance(config, dict):
        raise UsageError(f"{where}: not a Hugging Face config.json (it holds no object)")
    kind, inner = config.get("model_type"), config.get("text_config")
    if not isinstance(kind, str):
        raise UsageError(f"{where}: not a Hugging Face config.json (it has no model_type)")
    if isinstance(inner, dict) and kind not in FAMILIES and inner.get("model_type") in FAMILIES:
        raise UsageError(f"{where}: a multimodal model; write its text_config into a file of its own and name that")
    return kind, config


def _of_config(text: str, path: Path) -> NamedShape:
    """Read a Hugging Face config.json."""
    where = f"--shape {text}"
    kind, config = read_config(path, where)
    if kind not in huggingface.kinds():
        raise UsageError(
            f"{where}: the cost of model_type {kind!r} is not known, only that of {', '.join(huggingface.kinds())}; "
            f"a dense decoder can be stated as {HOW_TO_WRITE}{MORE_NUMBERS}"
        )
    try:
        shape = huggingface.of_config(config)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    own = config.get("_name_or_path") or (path.parent.name if path.name == CONFIG_FILE else path.stem) or kind
    name = title_of(shape) or str(own)
    later = "no multi-token prediction assumed" if config.get("num_nextn_predict_layers") else None
    return NamedShape(text=text, name=name, shape=shape, preset=presets.identify(shape), assumption=later)
