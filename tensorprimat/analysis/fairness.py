"""The fairness verdict on two sides: the level of comparability, its sentence, the differences and unstated settings.

The levels are in `analysis/levels`, the fields in `core/identity`:

    identical            every work field and configuration field is stated by both and equal
    same_work            model shape, trainable parameters, sequence length and global batch are equal
    same_work_per_token  the same except for the global batch: throughput can be compared, loss over steps cannot
    same_task            both trained to one quality target (MLPerf)
    not_comparable       different work, a unit that cannot be normalised, or an impossible figure (`ratios` adds rates
                         that differ by a factor of more than a million)

If a side does not state its model shape, the shape of the known model that its name means is assumed. If a side does
not state its trainable parameters, all are assumed to train unless something hints at LoRA or freezing. The sentence
then says what is unstated, and the headline that it has to match. Files of earlier toolkits have no place for some
settings of the work; their step times are compared under the condition that these match.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tensorprimat.analysis.impossible import REMEDY, impossible
from tensorprimat.analysis.levels import LEVELS, LevelName
from tensorprimat.analysis.rates import (
    STEP_TIMES,
    TIME_TO_TRAIN,
    WORK_OF_STEP,
    metric_for,
    of_earlier_toolkits,
    unstated_by_all,
)
from tensorprimat.analysis.records import Difference, Fairness, the_settings
from tensorprimat.core.errors import UsageError
from tensorprimat.core.identity import BY_KEY, FIELDS, arguments_apart, values_of_fields
from tensorprimat.core.quantities import as_stated, shortened_list
from tensorprimat.core.result import Model, ModelShape, Result
from tensorprimat.facts import methodologies
from tensorprimat.models import flops, shapes

FEWEST_WITH_A_MISS = 3  # runs of a side, one of which may miss the quality target: a benchmark of MLPerf has 3 or more
MOCK_DATA = "mock"  # tokens without documents fill every sequence, so there is nothing to pack
_MOST_NAMED = 4  # settings that a sentence lists; the table has them all

PairValues = Mapping[str, tuple[str | None, ...]]
"""Key of a field → its value in baseline and candidate, None where it is not stated."""

_FROZEN = re.compile(r"(?<![a-z])(?:q?lora|dora|peft|adapter|frozen|freeze)", re.IGNORECASE)


def judge(baseline: Result, candidate: Result, *, strict: bool = False) -> Fairness:
    """Return the verdict level of the ratio of candidate to baseline, with its sentence and differences.

    strict: give no ratio below the level "same work", for example for a build server.
    """
    pair = (baseline, candidate)
    values = values_of_fields(pair)
    differences = _differences(pair, values)
    metric, remedy = metric_for(pair)
    unstated = unstated_by_all(pair) if metric == STEP_TIMES else ()
    work = _work(pair, values, differences, unstated)
    found = Fairness(
        verdict=work.level,
        differences=differences,
        unknown=tuple(d.label for d in differences if d.weight != "context" and None in d.values),
        sentence="",
        metric=metric,
        same_work=work.level in ("identical", "same_work") and not {*unstated} - {"num_gpus"},
    )
    refused = replace(found, verdict="not_comparable", metric=None)
    errors = tuple(error for result in pair for error in impossible(result))
    if errors:
        sentence = f"Not comparable: {'impossible figures' if len(errors) > 1 else 'an impossible figure'}"
        sentence += f" (MFU above 100 %). {REMEDY}"
        return replace(refused, sentence=sentence, errors=errors)
    if (task := _task(pair)) and not strict:
        return replace(
            found, verdict="same_task", sentence=_task_sentence(task, pair, differences), metric=TIME_TO_TRAIN
        )
    if not work.refusals and metric is None and remedy is not None:
        sentence = f"Not comparable: the rates of the sides have no common unit. {remedy}"
        return replace(refused, sentence=sentence, remedy=remedy)
    if not work.refusals and work.level == "same_work_per_token" and strict:
        work = _Work(refusals=_batch_differs(values), conditions=(), level="not_comparable", remedy=_SAME_BATCH)
    if work.refusals:
        sentence = f"Not comparable: {', '.join(work.refusals)}." + (f" {work.remedy}" if work.remedy else "")
        return replace(refused, sentence=sentence, remedy=work.remedy)
    sentence = _sentence(pair, values, work, differences)
    if unstated:
        sentence = f"Only step times are compared. {sentence}"
    return replace(found, conditions=work.conditions, sentence=sentence)


@dataclass(frozen=True, kw_only=True)
class _Work:
    """The comparison of two results' work, as far as both state it."""

    refusals: tuple[str, ...]
    """Differences that make the two sides different problems."""
    conditions: tuple[str, ...]
    """Fields that have to match and that one side or both do not state."""
    level: LevelName
    remedy: str | None = None
    """The one thing that would make them comparable."""


def _differences(pair: Sequence[Result], values: PairValues) -> tuple[Difference, ...]:
    """Return the fields that differ. One that only one result states is listed too, unless its weight is context."""
    differences = []
    for field in FIELDS:
        ours, theirs = of_pair = values[field.key]
        if ours != theirs and (field.weight != "context" or None not in of_pair):
            differences.append(Difference(field=field.key, label=field.label, values=of_pair, weight=field.weight))
    return (*differences, *_arguments(pair))


def _arguments(results: Sequence[Result]) -> list[Difference]:
    """Return the printed arguments that differ and are no field, as one difference; at most _MOST_NAMED are named."""
    apart = [name for name in arguments_apart(results) if name not in BY_KEY]
    if not apart:
        return []
    stated = [result.provenance.arguments for result in results]
    values = tuple(shortened_list([f"{name} {one.get(name, '–')}" for name in apart], _MOST_NAMED) for one in stated)
    return [Difference(field="arguments", label="printed arguments", values=values, weight="configuration")]


_WITH_SHAPE = "Comparable with --shape."
_SAME_BATCH = "Comparable with the same global batch on both sides, or without --strict."
_SAME_SIZE = "Train both with ./benchmark.py --methodology agreed: same batch and sequence, each vendor's tuning."
_SAME_LENGTH = "Train both with ./benchmark.py --sequence-length N, or with ./benchmark.py --methodology agreed."
_REMEDIES = {
    "shape": "Benchmark the same model on both sides.",
    "model": "Benchmark the same model on both sides.",
    "preset": "Benchmark the same model on both sides.",
    "trainable_parameters": "Comparable if the same parameters train on both sides.",
    "peft": "Comparable if the same parameters train on both sides.",
    "packing": "Comparable with the same packing on both sides.",
    "sequence_length": _SAME_LENGTH,
    "methodology": _SAME_SIZE,
}
"""Field of the work that differs → what makes the sides comparable; the first one is named."""


def _work(
    pair: Sequence[Result], values: PairValues, differences: Sequence[Difference], unstated: Collection[str]
) -> _Work:
    """Judge the fields of the work alone. unstated: fields of it that neither side states, which become conditions."""
    known = {d.field: d for d in differences if d.weight == "work"}
    if methodologies.reconciled(pair):
        del known["methodology"]
    remedies = [remedy for key, remedy in _REMEDIES.items() if key in known and _refuses(known[key])]
    refusals = [_spell_work(d) for d in known.values() if d.field in _REMEDIES and _refuses(d)]
    conditions: list[str] = []
    reason, remedy = _unstated_shape(pair)
    if remedy == _WITH_SHAPE and "model" not in known and of_earlier_toolkits(pair):
        reason = "model shape" if pair[0].model.name else "model"
    if "shape" not in known or not _refuses(known["shape"]):
        if reason in ("model shape", "model"):
            conditions.append(reason)
        elif reason:
            refusals.append(reason)
            remedies.append(remedy or "")
    if "sequence_length" not in unstated and any(one.training_config.sequence_length is None for one in pair):
        refusals.append("at least one side does not state the sequence length")
        if remedies and remedies[-1] == _WITH_SHAPE:
            remedies[-1] = "Comparable with --shape and --sequence-length."
        remedies.append("Comparable once it is stated: use --sequence-length.")
    trained = _trained(pair, values["trainable_parameters"])
    if trained == "trainable parameters":
        conditions.append(trained)
    elif trained:
        refusals.append(trained)
        remedies.append("Comparable once both sides state which parameters train.")
    if "packing" in known and not _refuses(known["packing"]):
        conditions.append("packing")
    conditions += [WORK_OF_STEP[key] for key in unstated]
    batches = values["global_batch_size"]
    if refusals:
        if len(set(batches)) > 1 and None not in batches:
            refusals.append(_spell_work(known["global_batch_size"]))
        return _Work(refusals=tuple(dict.fromkeys(refusals)), conditions=(), level="not_comparable", remedy=remedies[0])
    level: LevelName = "same_work"
    if "global_batch_size" not in unstated and (None in batches or batches[0] != batches[1]):
        level = "same_work_per_token"
    elif not conditions and _all_stated_and_equal(pair, values) and not _arguments(pair):
        level = "identical"
    return _Work(refusals=(), conditions=tuple(conditions), level=level)


def _refuses(difference: Difference) -> bool:
    """Return True if a difference forbids a ratio. Presets count only if one is tiny; otherwise the shapes decide."""
    if difference.field == "preset":
        return "tiny" in difference.values and len(set(difference.values)) > 1
    return difference.field != "model" and None not in difference.values


def _unstated_shape(pair: Sequence[Result]) -> tuple[str | None, str | None]:
    """Return ("model shape", None) for a ratio under that condition, or the reason against a ratio and its remedy.

    (None, None) if both sides state their shape.
    """
    if all(result.model.shape is not None for result in pair):
        return None, None
    shapes = []
    for result in pair:
        shape = result.model.shape or shape_of_name(result.model)
        if shape is None:
            name = f"the name {result.model.name!r} is not a known model" if result.model.name else "no model is named"
            return f"the model shape is not stated and {name}", _WITH_SHAPE
        shapes.append(BY_KEY["shape"].read(result.changed(model=result.model.changed(shape=shape))))
    if len(set(shapes)) > 1:
        names = [result.model.name or "unnamed model" for result in pair]
        different = f"models ({' against '.join(names)})" if len(set(names)) > 1 else "model shapes"
        return f"different {different}", _REMEDIES["model"]
    return "model shape", None


def shape_of_name(model: Model) -> ModelShape | None:
    """Return the shape of the known model that a name means, of the named preset if there is one; None otherwise."""
    if not model.name:
        return None
    try:
        preset = shapes.of_preset(model.preset, model.name) if model.preset else None
    except UsageError:  # a preset of the file's own
        return None
    named = preset or shapes.of_name(model.name)
    return named.shape if named else None


def _trained(pair: Sequence[Result], stated: Sequence[str | None]) -> str | None:
    """Return "trainable parameters" for a ratio under that condition, or the reason against a ratio.

    stated: the trainable parameters of each; None if both state them.
    """
    if None not in stated:
        return None
    for result, value in zip(pair, stated, strict=True):
        if value in (None, "all") and hints_at_freezing(result):
            return "one side trains only some of its parameters (LoRA or frozen layers) and does not state which"
        if value not in (None, "all"):
            return f"one side trains {value} parameters, the other does not state how many"
    return "trainable parameters"


def hints_at_freezing(result: Result) -> bool:
    """Return True if the result says or its name suggests that not every parameter trains."""
    peft = (result.training_config.peft or "none").lower()
    trainable, every = result.model.trainable_parameters, result.model.parameters
    if peft != "none" or (trainable and every and trainable < every):
        return True
    if trainable is None and flops.trains_few(result, result.model.shape or shape_of_name(result.model)):
        return True
    names = (result.model.name, result.model.preset, result.performance_metrics.reported.benchmark)
    return result.training_config.peft is None and any(text and _FROZEN.search(text) for text in names)


def _all_stated_and_equal(pair: Sequence[Result], values: PairValues) -> bool:
    """Return True if both state every setting that exists for them, and all are equal."""
    for field in FIELDS:
        if field.weight == "context" or field.key in ("model", "preset", "methodology", "peft", "packing"):
            continue
        ours, theirs = values[field.key]
        if ours != theirs or (ours is None and any(field.applies(result) for result in pair)):
            return False
    if any(
        packing is None and data != MOCK_DATA for packing, data in zip(values["packing"], values["data"], strict=True)
    ):
        return False  # documents of a data set have lengths of their own
    unequal = [key for key in ("methodology", "peft", "packing") if len(set(values[key])) > 1]
    return not unequal or (unequal == ["methodology"] and methodologies.reconciled(pair) is not None)


def _task(pair: Sequence[Result]) -> tuple[str, float] | None:
    """Return benchmark and quality target that both reached, or None."""
    tasks = {
        (result.performance_metrics.reported.benchmark, result.performance_metrics.reported.quality_target)
        for result in pair
    }
    (name, target), *others = tasks
    return (name, target) if not others and name and target is not None and all(map(_reached, pair)) else None


def _reached(result: Result) -> bool:
    """Return True if all runs reached the target, or all but one of FEWEST_WITH_A_MISS or more, as MLPerf allows."""
    missed = missed_target(result)
    return bool(result.runs) and (missed == 0 or (missed == 1 and len(result.runs) >= FEWEST_WITH_A_MISS))


def missed_target(result: Result) -> int:
    """Return how many runs did not reach the quality target that the result names, or do not say when."""
    return sum(not run.time_to_train_seconds for run in result.runs)


def _task_sentence(task: tuple[str, float], pair: Sequence[Result], differences: Sequence[Difference]) -> str:
    sentence = (
        f"Same task: both trained {task[0]} to the quality target {as_stated(task[1])}, each with its own settings"
    )
    for side, result in zip(("baseline", "candidate"), pair, strict=True):
        if missed_target(result):
            sentence += f"; 1 of {len(result.runs)} runs of the {side} did not reach it and is not in the time to train"
    told = [d for d in differences if d.field != "seed"]  # MLPerf requires another seed for every run
    named = _named(d for d in told if d.weight != "context" and None not in d.values)
    return f"{sentence}; {named}." if named else f"{sentence}."


def _batch_differs(values: PairValues) -> tuple[str, ...]:
    batches = [batch or "not stated" for batch in values["global_batch_size"]]
    return (f"global batch size {' against '.join(batches)}",)


def _sentence(pair: Sequence[Result], values: PairValues, work: _Work, differences: Sequence[Difference]) -> str:
    """Return the level in words; values are in the order baseline against candidate."""
    names = methodologies.reconciled(pair)
    if work.level == "identical":
        return f"{LEVELS['identical'].sentence}." + (f" {names}." if names else "")
    sentence = LEVELS[work.level].sentence
    configured = [d for d in differences if d.weight == "configuration" and None not in d.values]
    per_token = f"{LEVELS['same_work_per_token'].sentence}: at least one side does not state the global batch"
    batches = _batch_differs(values)[0].replace("global batch size", "global batch")
    if "not stated" not in batches:
        tail = "the sides may need different numbers of tokens to reach the same loss"
        per_token = f"{LEVELS['same_work_per_token'].sentence}: {batches}; {tail}"
    if work.level == "same_work_per_token":
        sentence = per_token
    if work.conditions:  # the headline says "if"
        opening = f"{per_token}. At" if work.level == "same_work_per_token" else "Same work as far as it is stated; at"
        sentence = f"{opening} least one side does not state {the_settings(work.conditions)}"
    if configured:
        sentence += f". The configuration differs: {_named(configured)}"
    unstated = [d for d in differences if d.weight == "configuration" and None in d.values]
    if unstated:
        sentence += f". Stated by one side only: {shortened_list([d.label for d in unstated], _MOST_NAMED)}"
    if names:
        sentence += f". {names}"
    return f"{sentence}."


def _named(differences: Iterable[Difference]) -> str:
    return shortened_list([_spell(difference) for difference in differences], 2 * _MOST_NAMED)


def _spell(difference: Difference) -> str:
    return f"{difference.label} {' against '.join(value or 'not stated' for value in difference.values)}"


def _spell_work(difference: Difference) -> str:
    return "different model shapes" if difference.field == "shape" else _spell(difference)  # the table has its numbers
