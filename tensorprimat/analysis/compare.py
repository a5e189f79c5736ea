"""Results to a Comparison: figures of each side with their intervals, and the ratios that they allow.

A ratio is candidate / baseline of a rate, so above 1 the candidate does more per second. If the user named the sides,
the first one is the baseline. If sides are platforms, the baseline is NVIDIA if present, then AMD, then CPU; otherwise
it is the first label in alphabetical order. `baseline=` chooses another. A group with several GPUs or configurations
becomes several sides, and every candidate is compared with the side of the baseline group that did the most similar
work.

A verdict needs two runs on each side. With one run a side has an interval for that run alone, and a verdict only under
an assumed run-to-run scatter (`assume_run_cv`), which is printed with it. All verdicts of one comparison, over its
candidates and models, are one family and are corrected together (Holm).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import chain

from tensorprimat.analysis.economics import unused_prices
from tensorprimat.analysis.estimates import estimate_figure
from tensorprimat.analysis.explanations import FROM_RUNS, explained
from tensorprimat.analysis.fairness import missed_target
from tensorprimat.analysis.impossible import impossible_of_sides
from tensorprimat.analysis.losses import parity
from tensorprimat.analysis.metrics import MetricChoices, calculate_metrics
from tensorprimat.analysis.rates import TIME_TO_TRAIN
from tensorprimat.analysis.ratios import (
    GroupPair,
    StatedScatter,
    compare_groups,
    mean_log,
    mean_ratio,
    phase_notice,
    ratios,
    same_run_warning,
)
from tensorprimat.analysis.records import Comparison, Pair, Side
from tensorprimat.analysis.sides import Group, gather_models, usable_results
from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import listed, stated_watts
from tensorprimat.storage.store import Loaded

IsBase = Callable[[Group], bool]


def compare(
    loaded: Sequence[Loaded],
    *,
    by: str = "platform",
    assume_run_cv: float | None = None,
    assume_host_cv: float | None = None,
    confidence: float = 0.95,
    baseline: str | None = None,
    strict: bool = False,
    choices: MetricChoices | None = None,
) -> Comparison:
    """Compare results; one side alone is reported alone.

    by: a key of BY. assume_run_cv: run-to-run coefficient of variation to assume for a side of one run (0.02 for 2 %).
    assume_host_cv: the same from machine to machine, for sides that were measured on one machine. confidence: of
    intervals and verdicts. baseline: label, or part of one, of the side that ratios divide by. strict: no ratio below
    the level "same work". choices: of the sides' metrics.
    Raises UsageError for a value out of range, a baseline that no side has, or an unknown FLOPs convention; InputError
    where nothing is left to show.
    """
    assumed = StatedScatter(
        run_cv=assume_run_cv, host_cv=assume_host_cv, confidence=confidence, strict=strict
    ).checked()
    choices = choices or MetricChoices()
    items, warnings = usable_results(loaded)
    if not items:
        raise InputError("no result can be used" + (f": {'; '.join(warnings)}" if warnings else ""))
    groups = gather_models(items, by)
    models = tuple(groups)
    sides = {id(group): side_of(group, model, assumed, choices) for model in models for group in groups[model]}
    is_base = None if baseline is None else _named_baseline(chain.from_iterable(groups.values()), baseline)
    group_pairs = {model: _group_pairs(groups[model], is_base, assumed) for model in models}
    several = any(len(of_model) > 1 for of_model in groups.values())
    if is_base is not None and several and not any(group_pairs.values()):
        labels = ", ".join(dict.fromkeys(side.label for side in sides.values()))
        found = any(is_base(group) for of_model in groups.values() for group in of_model)
        problem = "names every side that it could be compared with" if found else "no such side"
        raise UsageError(f"--baseline {baseline}: {problem}; sides: {labels}")
    in_order = [pair for model in models for pair in group_pairs[model]]
    mean = mean_log(list(group_pairs.values()))
    of_pairs, level_of_mean = ratios(in_order, assumed, mean=mean)
    pairs = tuple(
        Pair(
            model=sides[id(pair.baseline)].model,
            baseline=sides[id(pair.baseline)],
            candidate=sides[id(pair.candidate)],
            fairness=pair.fairness,
            ratio=ratio,
            losses=parity(pair.baseline, pair.candidate, pair.fairness),
        )
        for pair, ratio in zip(in_order, of_pairs, strict=True)
    )
    return Comparison(
        by="argument" if all(item.side is not None for item in items) else by,
        models=models,
        sides=tuple(sides.values()),
        pairs=pairs,
        mean_ratio=mean_ratio(list(group_pairs.values()), assumed, level_of_mean),
        warnings=(
            *warnings,
            *_unpaired(groups, group_pairs),
            *([] if is_base is None else _without_baseline(groups, group_pairs, is_base, str(baseline))),
            *filter(None, map(same_run_warning, in_order)),
            *filter(None, map(phase_notice, in_order)),
            *_missed_targets(in_order),
            *_unlike_caps(sides.values()),
            *unused_prices(list(sides.values()), choices.prices),
        ),
        errors=impossible_of_sides([(side.label, side.result) for side in sides.values()]),
        choices=choices,
        generated_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


FIGURES_OF_RUNS = (
    "avg_step_time_seconds", "steps_per_second", "samples_per_second", "samples_per_second_per_gpu",
    "tokens_per_second", "tokens_per_second_per_gpu",
)  # fmt: skip
"""Figures of a side that are means over its runs where it has several, as its intervals are."""


def side_of(group: Group, model: str, assumed: StatedScatter, choices: MetricChoices) -> Side:
    """Return a side as reports show it: a figure has one value, wherever it is shown or used."""
    of = {
        metric: estimate_figure(group, metric, assume_run_cv=assumed.run_cv, confidence=assumed.confidence)
        for metric in FIGURES_OF_RUNS
    }
    figures, means = explained(group.result), {}
    for metric, estimate in of.items():
        if (mean := estimate.mean_of_runs) is not None:
            means[metric] = mean.value
            figures["performance_metrics"][metric] = replace(mean, name=metric, origin=FROM_RUNS)
    result = group.result.changed(performance_metrics=group.result.performance_metrics.changed(**means))
    return Side(
        label=group.label,
        model=model,
        result=result,
        files=group.files,
        step_time_seconds=of["avg_step_time_seconds"],
        tokens_per_second=of["tokens_per_second"],
        tokens_per_second_per_gpu=of["tokens_per_second_per_gpu"],
        samples_per_second=of["samples_per_second"],
        metrics=calculate_metrics(result, choices, figures, label=group.label),
        figures=figures,
    )


def _group_pairs(groups: Sequence[Group], is_base: IsBase | None, assumed: StatedScatter) -> list[GroupPair]:
    """Return every candidate of a model with the baseline side whose work is most similar, the first of equals.

    is_base: returns True for a side that the user named as baseline; None: the sides of the first group are.
    """
    bases = [group for group in groups if (is_base(group) if is_base else group.key == groups[0].key)]
    candidates = [group for group in groups if group not in bases]
    if is_base is None and not candidates:  # one group only: its first side is the baseline
        bases, candidates = bases[:1], bases[1:]
    return [
        min((compare_groups(base, candidate, assumed) for base in bases), key=_unlikeness)
        for candidate in (candidates if bases else ())
    ]


def _named_baseline(groups: Iterable[Group], baseline: str) -> IsBase:
    """Return the test of a side against the name that the user gave: the strictest that any side of any model passes.

    The name is a side's whole label, key or platform; or else words of its label or device; or else a part of a word.
    """
    name = baseline.lower()
    in_words = re.compile(rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9])")

    def texts(group: Group) -> tuple[str, str]:
        return group.label.lower(), (group.result.gpu_info.device_name or "").lower()

    tests: tuple[IsBase, ...] = (
        lambda group: name in (group.label.lower(), group.key.lower(), group.result.platform),
        lambda group: any(map(in_words.search, texts(group))),
        lambda group: any(name in text for text in texts(group)),
    )
    every = list(groups)
    return next((test for test in tests if any(map(test, every))), tests[-1])


def _unlikeness(pair: GroupPair) -> tuple[bool, int, int]:
    weights = [difference.weight for difference in pair.fairness.differences]
    return pair.fairness.verdict == "not_comparable", weights.count("work"), weights.count("configuration")


def _unpaired(groups: Mapping[str, Sequence[Group]], group_pairs: Mapping[str, Sequence[GroupPair]]) -> list[str]:
    """Return a warning for every side that is in no pair although others of its model are."""
    alone = []
    for model, of_model in groups.items():
        paired = {id(group) for pair in group_pairs[model] for group in (pair.baseline, pair.candidate)}
        alone += [
            f"{group.label}: not compared, because each side is compared with the one whose work is most similar, and "
            "that is another; to compare this side, name the sides: tprimat compare NAME=PATH NAME=PATH"
            for group in of_model
            if paired and id(group) not in paired
        ]
    return alone


def _without_baseline(
    groups: Mapping[str, Sequence[Group]],
    group_pairs: Mapping[str, Sequence[GroupPair]],
    is_base: IsBase,
    baseline: str,
) -> list[str]:
    """Return a warning for every model whose sides are in no pair, because the baseline's name means none or all."""
    return [
        f"{model}: its sides are not compared, because --baseline {baseline} names "
        f"{'all' if any(map(is_base, of_model)) else 'none'} of them ({', '.join(group.label for group in of_model)})"
        for model, of_model in groups.items()
        if len(of_model) > 1 and not group_pairs[model]
    ]


def _unlike_caps(sides: Iterable[Side]) -> list[Notice]:
    """Return a notice for each kind of device that has another power cap on another side."""
    caps: dict[str, dict[float, dict[str, None]]] = {}
    for side in sides:
        info = side.result.gpu_info
        if info.device_name and info.power_limit_watts:
            caps.setdefault(info.device_name, {}).setdefault(info.power_limit_watts, {})[side.label] = None
    named = {
        device: [f"{stated_watts(cap)} ({listed(labels)})" for cap, labels in of_device.items()]
        for device, of_device in caps.items()
        if len(of_device) > 1
    }
    return [Notice("caps_unlike", "clock", device=device, caps=different) for device, different in named.items()]


def _missed_targets(group_pairs: Sequence[GroupPair]) -> list[str]:
    """Return a warning for every side whose runs missed the quality target, where rates are compared instead."""
    missed = {
        group.label: f"{group.label}: {missed_target(group.result)} of {len(group.runs)} runs did not reach the "
        "quality target, so the time to train is unknown and only rates are compared; give runs that reached it"
        for pair in group_pairs
        if pair.metric != TIME_TO_TRAIN
        for group in pair.groups
        if group.result.performance_metrics.reported.quality_target is not None and missed_target(group.result)
    }
    return list(missed.values())
