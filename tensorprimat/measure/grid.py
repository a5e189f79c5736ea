"""Conversion of flags to cells: the sizes, shapes and axes that `tprimat passes`, `warmup` and `sweep` share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorprimat.core.errors import UsageError
from tensorprimat.core.quantities import alternatives, as_stated
from tensorprimat.models import presets, shapes
from tensorprimat.models.presets import COURSE, Preset
from tensorprimat.storage.micro_result import ATTENTIONS, CELL_PRECISIONS, PASSES, CellSpec

DEFAULT_TRIALS = 10
FFN_FACTOR = 4  # d_ff / d_model if a flag sets d_model but none sets d_ff, as in small, medium, large, xl and 2.7B


Size = dict[str, Any]
"""The fields of CellSpec that a size sets: name and numbers of its shape, context length and batch by default."""


@dataclass(frozen=True, kw_only=True)
class GridOptions:
    """The values of the flags, as typed; None for a flag that is not used. Commas separate the items of a list."""

    model_size: str | None = None
    shapes: Sequence[str] = ()
    """--shape name=d_model/d_ff/layers/heads."""
    label: str | None = None
    d_model: int | None = None
    d_ff: int | None = None
    num_layers: int | None = None
    num_heads: int | None = None
    vocab_size: int | None = None
    context_length: str | None = None
    batch_size: str | None = None
    pass_name: str = "all"
    precision: str | None = None
    attention: str = "sdpa"
    autocast: bool | None = None
    """Use of autocast; None means on for fp16, which cannot train without it, and off for any other precision."""
    compile: bool = False
    data: str | None = None
    seed: int = 1234
    device: str = "cpu"
    warmup_steps: int = 5
    measure_steps: int | None = None
    trials: int | None = None
    steps_per_trial: int | None = None
    memory_limit_gb: float | None = None


def cells(options: GridOptions) -> list[CellSpec]:
    """Return every cell of the grid: sizes outermost, passes innermost. Raises UsageError naming the flag."""
    if options.memory_limit_gb is not None and not 0 < options.memory_limit_gb < math.inf:  # NaN fails both comparisons
        raise UsageError(f"--memory-limit {as_stated(options.memory_limit_gb)}: must be a number above 0")
    trials, steps = trials_of(options)
    precisions = _words(
        "--precision", options.precision or ("fp32" if options.device == "cpu" else "bf16"), CELL_PRECISIONS
    )
    contexts = None if options.context_length is None else whole_numbers("--context-length", options.context_length)
    batches = None if options.batch_size is None else whole_numbers("--batch-size", options.batch_size)
    return [
        CellSpec(
            **{**size, "context_length": context, "batch_size": batch},
            pass_name=pass_name,  # type: ignore[arg-type]  # one of PASSES: _passes has looked
            precision=precision,
            autocast=precision == "fp16" if options.autocast is None else options.autocast,
            compile=options.compile,
            attention=attention,
            data=options.data,
            seed=options.seed,
            device=options.device,
            num_warmups=options.warmup_steps,
            num_trials=trials,
            num_steps=steps,
            memory_limit_gb=options.memory_limit_gb,
        ).check()
        for size in sizes(options)
        for context, batch, precision, attention, pass_name in itertools.product(
            contexts or [size["context_length"]],
            batches or [size["batch_size"]],
            precisions,
            _words("--attention", options.attention, ATTENTIONS),
            _passes(options.pass_name),
        )
    ]


def trials_of(options: GridOptions) -> tuple[int, int]:
    """Return the number of trials and the number of steps of each; --measure-steps is their product."""
    total, trials, steps = options.measure_steps, options.trials, options.steps_per_trial
    for flag, value in (("--measure-steps", total), ("--trials", trials), ("--steps-per-trial", steps)):
        if value is not None and value < 1:
            raise UsageError(f"{flag} {value}: must be at least 1")
    if total is None:
        return trials or DEFAULT_TRIALS, steps or 1
    divisor = trials or steps or 1
    if total % divisor or (trials and steps and trials * steps != total):
        flags = [f"--{name} {value}" for name, value in (("trials", trials), ("steps-per-trial", steps)) if value]
        raise UsageError(
            f"--measure-steps {total} contradicts {' × '.join(flags)}: it is the number of trials times the steps per "
            "trial; leave one of them out"
        )
    return (trials, total // trials) if trials else (total // (steps or 1), steps or 1)


def sizes(options: GridOptions) -> list[Size]:
    """Return the shapes that flags request by name, by --shape or by numbers; without such a flag the small one."""
    numbers = {
        name: getattr(options, name)
        for name in ("d_model", "d_ff", "num_layers", "num_heads")
        if getattr(options, name) is not None
    }
    if numbers and (options.model_size or options.shapes):
        name, value = next(iter(numbers.items()))
        other = f"--model-size {options.model_size}" if options.model_size else f"--shape {options.shapes[0]}"
        raise UsageError(
            f"{other} and --{name.replace('_', '-')} {value} contradict: a size already sets its shape; use one of them"
        )
    for name, value in numbers.items():
        if value < 1:
            raise UsageError(f"--{name.replace('_', '-')} {value}: must be at least 1")
    small = _named("small")
    if numbers:
        width: int = numbers.get("d_model") or small["d_model"]
        found = [{**small, "model_size": "custom", "d_ff": FFN_FACTOR * width, **numbers}]
    else:
        own = [_own(text, small) for text in options.shapes]
        names = _split("--model-size", options.model_size) if options.model_size else []
        known = {size["model_size"]: size for size in own}
        found = [known.get(name) or _named(name) for name in names]
        found += [size for size in own if size["model_size"] not in names]
        found = found or [small]
    if options.label is not None:
        if len(found) > 1:
            raise UsageError(f"--label {options.label}: labels one size, and there are {len(found)}; leave it out")
        found[0] = {**found[0], "model_size": options.label}
    if options.vocab_size is not None:
        found = [{**size, "vocab": options.vocab_size} for size in found]
    labels = [size["model_size"] for size in found]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise UsageError(f"two sizes have the name {twice}; rename one")
    return found


def size_names() -> list[str]:
    """Return every name that --model-size accepts."""
    return [name for preset in presets.PRESETS for name in _names_of(preset)]


def _names_of(preset: Preset) -> list[str]:
    """Return the names of a preset; the last one labels its size."""
    if preset.model == COURSE:
        return [preset.name]
    own = f"{preset.model}-{preset.name}"
    return [own, preset.model] if preset.name == "full" else [own]


def _named(word: str) -> Size:
    """Return the size with a name: small to 2.7B, or a model such as llama, qwen-tiny, mistral-v0.3."""
    for preset in presets.PRESETS:
        names, shape = _names_of(preset), preset.shape
        if word.lower().replace("2_7b", "2.7b") in [name.lower() for name in names]:
            return {
                "model_size": names[-1],
                "architecture": preset.model,
                "preset": None if preset.model == COURSE else preset.name,
                "d_model": shape.hidden_size,
                "d_ff": shape.ffn_hidden_size,
                "num_layers": shape.num_layers,
                "num_heads": shape.num_attention_heads,
                "vocab": shape.vocab_size,
                "context_length": preset.sequence_length,
                "batch_size": preset.micro_batch_size,
            }
    ladder = ", ".join(preset.name for preset in presets.PRESETS if preset.model == COURSE)
    raise UsageError(
        f"--model-size {word}: no such size; sizes: {ladder}, llama, qwen, mistral, llama-tiny and so on, or one that "
        "--shape names"
    )


def _own(text: str, small: Size) -> Size:
    """Return the size that a value of --shape describes, such as custom=384/1536/6/6."""
    name, (width, ffn, layers, heads) = shapes.stated_numbers(text)
    numbers = {"d_model": width, "d_ff": ffn, "num_layers": layers, "num_heads": heads}
    return {**small, "model_size": name, **numbers}


def _passes(text: str) -> list[str]:
    words = _words("--pass", text.replace("_", "-"), (*PASSES, "all"))
    return list(PASSES) if "all" in words else words


def _split(flag: str, text: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UsageError(f"{flag} {text!r}: an empty value; separate values by single commas")
    return list(dict.fromkeys(words))


def _words(flag: str, text: str, known: Sequence[str]) -> list[str]:
    for word in (words := _split(flag, text)):
        if word not in known:
            raise UsageError(f"{flag} {word}: must be {alternatives(known)}")
    return words


def whole_numbers(flag: str, text: str) -> list[int]:
    """Return the numbers of a text such as "128,256". Raises UsageError naming the flag."""
    try:
        return [int(word) for word in _split(flag, text)]
    except ValueError:
        raise UsageError(f"{flag} {text}: write whole numbers separated by commas, such as 128,256") from None
