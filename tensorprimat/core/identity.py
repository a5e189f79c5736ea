"""Identity of a benchmark: the fields that two runs must share, and the tests that distinguish runs.

`FIELDS` is the one list of facts that decide it: those of the model, the settings of `core/settings`, the software.
Extract, append, compare, history and analyze ask this module whether two results are runs of one benchmark;
`analysis/fairness` reads the same list to say how two benchmarks differ.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorprimat.core import settings
from tensorprimat.core.quantities import as_stated, count, shortened_list, shown_value, stated_watts
from tensorprimat.core.result import Result, Run
from tensorprimat.core.settings import Setting, Weight
from tensorprimat.core.steady import NORMAL_MAD, median
from tensorprimat.core.steps import FloatArray, Steps, finite
from tensorprimat.core.summary import select_measured
from tensorprimat.core.user_facts import with_parallelism
from tensorprimat.models import flops, names

Reader = Callable[[Result], str | None]

SAME_SPEED = 0.04  # repetitions whose steps are all alike scatter by 1 to 2 %
OTHER_SPEED = 0.08  # days, cooling and noise move a machine by some percent; not by more
STEADY = 12.0  # times the spread of steps, between the two: 0.3 % allow 4 %, 0.7 % allow 8 %
SPREADS = 2.0  # and on a noisy machine at least this many times the spread of its own steps
SAME_MOMENT = 2.0  # seconds: how far the dates of one iteration differ between ranks of one run
FEWEST_VALUES = 2  # different values of a pace that two runs can share by chance: "6.06 s, 6.06 s, 6.05 s"
_MOST_VALUES = 3  # of runs that a sentence names
SAME_PACE = 0.01  # relative: ranks of one run wait for each other in every step
PACE_COLUMNS = (
    "seconds", "reported_tokens_per_second_per_gpu", "reported_tokens_per_second", "reported_samples_per_second",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Field:
    """One fact of a result that identity and fairness look at."""

    key: str
    """Key in the result."""
    label: str
    weight: Weight
    read: Reader
    """Return the value as a person reads it, or None where the result does not state it."""
    applies: Callable[[Result], bool] = lambda _: True
    """Return False where the fact does not exist for this result, such as an FP8 recipe in BF16."""
    identifies: bool = True
    """False for a field that differs between runs of one benchmark: the seed."""


def _text(value: Any) -> str | None:
    return None if value is None or value == "" else shown_value(value)


def _values_of_runs(result: Result, name: str) -> set[Any]:
    """Return the values of a setting of runs, such as "seed": those of the runs if they differ, else the result's."""
    own = {getattr(run, name) for run in result.runs} - {None}
    return own if len(own) > 1 else {getattr(result.training_config, name)} - {None}


def seeds_agree(results: Sequence[Result]) -> bool:
    """Return True if the seeds of the result with the fewest are among those of all others: further runs have more."""
    seeds = [_values_of_runs(result, "seed") for result in results]
    fewest = min(seeds, key=len)
    return bool(fewest) and all(fewest <= others for others in seeds)


def _reader(setting: Setting) -> Reader:
    """Return a reader of a setting; words are read in lower case, and other spellings of one value as that value.

    Where the runs have different values of their own (of the seed), those are returned.
    """
    of_runs = setting.name in Run.model_fields

    def read(result: Result) -> str | None:
        value = getattr(result.training_config, setting.name)
        own = sorted(_values_of_runs(result, setting.name)) if of_runs else []
        if len(own) > 1:
            return shortened_list(list(map(str, own)), _MOST_VALUES)
        if value is None or value == "":
            return None
        if setting.kind == "word":
            word = str(value).lower()
            return setting.same.get(word, word)
        if setting.kind == "upper":
            return str(value).upper()
        return as_stated(value) if setting.kind == "number" else shown_value(value)

    return read


def _model(result: Result) -> str | None:
    return names.key(result.model.name) if result.model.name else None


def _shape(result: Result) -> str | None:
    """Return the numbers of the shape; a sliding window that no sequence reaches is not a difference."""
    if (shape := result.model.shape) is None:
        return None
    window, longest = shape.sliding_window, result.training_config.sequence_length or math.inf
    seen = f", window {window}" if window and window < longest else ""
    if seen and shape.windowed_layers not in (None, shape.num_layers):
        seen += f" in {shape.windowed_layers} layers"
    if experts := shape.experts:
        seen += f", {experts.active} of {experts.count} experts × {experts.ffn_hidden_size} in {experts.layers} layers"
        seen += f", shared experts × {experts.shared_ffn_hidden_size}" if experts.shared_ffn_hidden_size else ""
    if shape.multi_token_layers:
        seen += f", {shape.multi_token_layers} multi-token layers"
    if latent := shape.latent_attention:
        ranks = f"{latent.query_rank or 'no'}/{latent.key_value_rank}"
        sizes = f"{latent.plain_head_dim}+{latent.rotated_head_dim}/{latent.value_head_dim}"
        seen += f", latent attention of ranks {ranks}, heads × {sizes}"
    seen += ", ungated MLP" * (not shape.gated_mlp) + ", attention bias" * shape.attention_bias
    seen += ", tied embeddings" * shape.tied_embeddings
    return (
        f"{shape.num_layers} layers × {shape.hidden_size}, FFN {shape.ffn_hidden_size}, "
        f"{shape.num_attention_heads}/{shape.num_key_value_heads} heads × {shape.head_dim}, "
        f"vocabulary {shape.vocab_size}{seen}"
    )


PRETRAINING_ENGINES = ("torch", "nemo", "bridge")
"""Engines of this project: they train every parameter, which files of theirs before 2026-11-21 do not say."""


def _trainable(result: Result) -> str | None:
    """Return "all", or the number of parameters that train; None where neither run nor log states it.

    A log that states the shape of its model trains all of it, unless it says something of LoRA or frozen parameters.
    """
    trainable, every = result.model.trainable_parameters, result.model.parameters
    if trainable is not None:
        return "all" if every and trainable >= every else count(trainable)
    if result.training_config.peft is None and result.provenance.engine in PRETRAINING_ENGINES:
        return "all"
    states_shape = result.model.shape is not None and "model.shape" not in result.provenance.assumed
    if result.training_config.peft is None and states_shape and flops.frozen_parameters(result) is False:
        return "all"
    return "all" if result.training_config.peft == "none" else None


def _spelled_out(values: Mapping[str, str], between: str) -> str | None:
    return ", ".join(f"{name}{between}{value}" for name, value in sorted(values.items())) or None


_MEGATRON = ("megatron", "nemo", "primus")
"""Words of frameworks that pad vocabularies and fuse kernels by option."""
APPLIES: dict[settings.Applies, Callable[[Result], bool]] = {
    "always": lambda _: True,
    "several GPUs": lambda result: (result.training_config.num_gpus or 2) > 1,
    "FP8": lambda result: (result.training_config.precision or "").lower() in ("fp8", "fp4"),
    "Megatron": lambda result: any(word in (result.training_config.framework or "").lower() for word in _MEGATRON),
    "where stated": lambda _: False,
}


def _settings(*weights: Weight) -> list[Field]:
    return [
        Field(key=one.name, label=one.label, weight=one.weight, applies=APPLIES[one.applies],
              read=_reader(one), identifies=one.identifies)
        for one in settings.SETTINGS
        if one.weight is not None and one.weight in weights
    ]  # fmt: skip


def _fact(key: str, label: str, weight: Weight, read: Callable[[Result], Any]) -> Field:
    return Field(key=key, label=label, weight=weight, read=lambda result: _text(read(result)))


FIELDS: tuple[Field, ...] = (
    _fact("model", "model", "work", _model),
    _fact("methodology", "methodology", "work", lambda result: result.methodology),
    _fact("preset", "preset", "work", lambda result: result.model.preset),
    _fact("shape", "model shape", "work", _shape),
    _fact("trainable_parameters", "trainable parameters", "work", _trainable),
    *_settings("work", "configuration"),
    _fact("engine", "engine", "context", lambda result: result.provenance.engine),
    *_settings("context"),
    _fact("software_version", "CUDA / ROCm version", "context", lambda result: result.gpu_info.software_version),
    _fact("pytorch_version", "PyTorch version", "context", lambda result: result.gpu_info.pytorch_version),
    _fact("versions", "package versions", "context", lambda result: _spelled_out(result.training_config.versions, " ")),
    _fact("environment", "environment variables", "context",
          lambda result: _spelled_out(result.training_config.environment, "=")),
    _fact("timing", "step times", "context", lambda result: result.provenance.timing),
    _fact("power_limit_watts", "power limit", "context",
          lambda result: (watts := result.gpu_info.power_limit_watts) and stated_watts(watts)),
)  # fmt: skip
BY_KEY = {field.key: field for field in FIELDS}


def values_of_fields(results: Sequence[Result]) -> dict[str, tuple[str | None, ...]]:
    """Return the value of every field in each result, derived from the others where only they are stated.

    Seeds that agree are equal.
    """
    whole = [result.changed(training_config=with_parallelism(result.training_config)) for result in results]
    every = [{field.key: field.read(result) for field in FIELDS} for result in whole]
    for values in every:
        if values["seed"] != every[0]["seed"] and seeds_agree(results):
            values["seed"] = every[0]["seed"]
    return {key: tuple(values[key] for values in every) for key in BY_KEY}


_DEVICE = _fact("device", "device", "configuration", lambda result: result.gpu_info.device_name)
"""Not a field of fairness, which compares devices, but always one of identity."""


def signature(result: Result, *, context: bool = True) -> tuple[str | None, ...]:
    """Return platform, device and every identifying field: equal for runs of one benchmark; two unknown values are
    equal.

    context: False leaves out versions, timer and limits, but keeps the engine.
    """
    return (result.platform, *(field.read(result) for field in _fields(context)))


def _fields(context: bool) -> list[Field]:
    return [_DEVICE, *(f for f in FIELDS if f.identifies and (context or f.weight != "context" or f.key == "engine"))]


def differing_fields(one: Result, other: Result, *, unknown_equal: bool = False, context: bool = True) -> list[Field]:
    """Return the fields in which two results differ, so that they are not runs of one benchmark; empty if they are.

    unknown_equal: a fact that only one of them states counts as equal, as among files that the user put on one side.
    """
    read = ((field, field.read(one), field.read(other)) for field in _fields(context))
    return [f for f, ours, theirs in read if ours != theirs and not (unknown_equal and None in (ours, theirs))]


def stated_by_some(results: Sequence[Result]) -> list[str]:
    """Return the labels of identifying facts that some of these results state and others do not."""
    stated = ((field.label, {field.read(result) for result in results}) for field in _fields(context=False))
    return [label for label, values in stated if None in values and len(values) > 1]


def short_hash(result: Result) -> str:
    """Return 6 digits of a hash of the identity and of the logs that a result was read from, for a file name."""
    sources = sorted(source.sha256 or source.file for source in result.provenance.sources)
    text = repr((signature(result, context=False), sources))
    return hashlib.sha256(text.encode()).hexdigest()[:6]


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Speed of one result: it distinguishes two kinds of device if no log names them."""

    metric: str
    value: float
    spread: float
    """Robust relative spread of its steps; 0 where none is known."""


_PACES = ("avg_step_time_seconds", "tokens_per_second_per_gpu", "tokens_per_second", "samples_per_second")


def paces(result: Result) -> tuple[Pace, ...]:
    """Return every known speed of a result with the spread of its steps."""
    figures, spread = result.performance_metrics, _spread(result)
    known = {name: value for name in _PACES if (value := getattr(figures, name) or 0.0) > 0}
    return tuple(Pace(metric=name, value=value, spread=spread) for name, value in known.items())


def _spread(result: Result) -> float:
    """Return the largest relative spread of step times of a run: NORMAL_MAD · median absolute deviation / median."""
    if not len(result.steps):
        return 0.0
    steps, widths = result.steps, []
    pace = next((steps.column(name) for name in PACE_COLUMNS if steps.has(name)), np.full(len(steps), np.nan))
    for selection in select_measured(steps, warmup_steps=result.training_config.warmup_steps):
        rows = finite(pace[selection.rows])
        if len(rows) > 2:
            centre = median(rows)
            widths.append(NORMAL_MAD * median(np.abs(rows - centre)) / centre)
    return max(widths, default=0.0)


def other_speed(ours: Sequence[Pace], theirs: Sequence[Pace]) -> tuple[Pace, Pace] | None:
    """Return the two speeds if they differ by more than repetitions of one benchmark do, else None.

    Compares the first metric that both sides have.
    """
    for pace in ours:
        match = next((other for other in theirs if other.metric == pace.metric), None)
        if match is None:
            continue
        allowed = allowed_scatter(max(pace.spread, match.spread))
        return (pace, match) if abs(math.log(pace.value / match.value)) > math.log1p(allowed) else None
    return None


def allowed_scatter(spread: float) -> float:
    """Return by how much speeds of repetitions of one benchmark may differ. spread: relative, of the steps of a run."""
    return max(min(OTHER_SPEED, max(SAME_SPEED, STEADY * spread)), SPREADS * spread)


def arguments_apart(results: Sequence[Result]) -> dict[str, list[str]]:
    """Return the printed arguments that differ between results, with their values; one that a log omits is no value."""
    every = [result.provenance.arguments for result in results]
    values = {name: sorted({one[name] for one in every if name in one}) for arguments in every for name in arguments}
    return {name: different for name, different in values.items() if len(different) > 1}


def same_run(one: Result, other: Result) -> bool:
    """Return True if two logs are shown to be of one run, such as logs of two of its ranks.

    It takes positive evidence on the same steps. Where rows of both have dates, these alone decide: ranks print at the
    same moment, but each may print its own loss. Else other losses show two runs; equal step times, or equal losses at
    the same pace, show one. A fact that only one of them states proves nothing; an argument that both print shows two
    runs where it differs, such as those of a sweep that started at one moment.
    """
    is_of_steps = len(one.steps) and np.array_equal(one.steps.column("index"), other.steps.column("index"))
    if not is_of_steps or arguments_apart((one, other)):
        return False
    dates = _differences(one.steps, other.steps, "ended_at")
    if len(dates):
        return bool((dates <= SAME_MOMENT).all())
    losses, *paces = (_differences(one.steps, other.steps, name) for name in ("loss", *PACE_COLUMNS))
    if len(losses) and losses.any():
        return False
    measured = [column for column in paces if len(column)]
    if not measured:
        return bool(len(losses))
    chance = all(len(np.unique(finite(one.steps.column(name)))) <= FEWEST_VALUES for name in PACE_COLUMNS)
    if all(not column.any() for column in measured) and (len(losses) or not chance):
        return True
    return bool(len(losses)) and all(_within(one.steps, other.steps, name) for name in PACE_COLUMNS)


def share_a_log(one: Result, other: Result) -> bool:
    """Return True if two results were read from the same log, by its hash."""
    ours, theirs = ({source.sha256 for source in result.provenance.sources} - {None} for result in (one, other))
    return bool(ours & theirs)


def _differences(one: Steps, other: Steps, name: str) -> FloatArray:
    """Return the absolute differences of a column over the rows where both state it."""
    return finite(np.abs(one.column(name) - other.column(name)))


def _within(one: Steps, other: Steps, name: str) -> bool:
    """Return True if a pace agrees row by row as closely as ranks that wait for each other do."""
    ours, theirs = one.column(name), other.column(name)
    known = np.isfinite(ours) & np.isfinite(theirs)
    return bool((np.abs(ours - theirs)[known] <= SAME_PACE * np.abs(ours)[known]).all())


def continues(later: Result, earlier: Result) -> bool:
    """Return True if a log is the one that an earlier result was read from, as it was or grown since."""
    if share_a_log(later, earlier):
        return True
    names = [{source.file for source in result.provenance.sources} for result in (later, earlier)]
    if not names[0] & names[1]:
        return False
    rows = min(len(later.steps), len(earlier.steps))
    heads = (result.changed(steps=result.steps.take(slice(rows))) for result in (later, earlier))
    return rows > 0 and same_run(*heads)
