"""The settings of a published result beside the user's, and what a difference is known to cost.

The cost of a difference is not assumed: it is the ratio of two published rates of one framework, model and GPU whose
stated settings differ in this one alone, such as torchtitan's rows with and without torch.compile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Literal

from tensorprimat.analysis.fairness import judge
from tensorprimat.core import identity
from tensorprimat.core.result import Result
from tensorprimat.core.settings import SETTINGS
from tensorprimat.facts import catalogue
from tensorprimat.facts.catalogue import Published
from tensorprimat.mlperf.score import Scored
from tensorprimat.reproduce import published
from tensorprimat.reproduce.published import Baseline

_DEVICE, _PRECISION, _RECIPE = "device", "precision", "fp8_recipe"
_MAPS = ("versions", "environment")
"""Fields with several values, each of which is a setting of its own."""
_SIZE = ("count", "always")
_NOT_COMPARED = {"engine", "timing", "power_limit_watts", "methodology", "preset", "seed", "warmup_steps", *_MAPS}
_IN_NOTES = {one.name for one in SETTINGS if one.weight == "configuration" and (one.kind, one.applies) != _SIZE}
"""Settings that the notes of the published tables can state again: all but batches, GPUs and the usual sizes."""
_MINUTES, _RATE = "minutes to train", "tokens/s/GPU"
_REMEDY = "./benchmark.py --reproduce NAME trains the published settings."


SettingState = Literal["different", "not stated by you", "not stated by the source", "equal"]
STATES: tuple[SettingState, ...] = ("different", "not stated by you", "not stated by the source", "equal")


@dataclass(frozen=True, kw_only=True)
class KnownCost:
    """The speed with the user's value over that with the published one, in published pairs that differ in it alone."""

    low: float
    high: float
    pairs: int
    sources: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SettingLine:
    """One setting of both sides, as a person reads it; None where a side does not state it."""

    key: str
    label: str
    published: str | None
    yours: str | None
    cost: KnownCost | None = None

    @property
    def state(self) -> SettingState:
        """Return how the two values relate."""
        if self.yours is None:
            return "not stated by you"
        if self.published is None:
            return "not stated by the source"
        return "equal" if self.published == self.yours else "different"


@dataclass(frozen=True, kw_only=True)
class SpeedGap:
    """The measured and the published figure of one kind; more is faster, also for minutes in `ratio`."""

    figure: str
    measured: float
    published: float
    ratio: float
    """Measured speed over published speed."""
    explained: tuple[float, float] | None = None
    """Lowest and highest product of the known costs; None without a known one."""

    @property
    def rest(self) -> tuple[float, float] | None:
        """Return the ratio that is left after the known costs, lowest and highest."""
        return None if self.explained is None else (self.ratio / self.explained[1], self.ratio / self.explained[0])


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """One comparison with a published result."""

    baseline: Baseline
    row: Published
    """Statements of the source, also where the baseline has no rate."""
    result: str
    """The user's result, by its file."""
    lines: tuple[SettingLine, ...]
    """Differences first, those with the largest known cost before others."""
    gap: SpeedGap | None
    because: str | None = None
    """Reason why there is no gap."""

    def of_state(self, state: SettingState) -> tuple[SettingLine, ...]:
        return tuple(line for line in self.lines if line.state == state)


def reproduction_of(baseline: Baseline, result: Result, name: str) -> Reproduction:
    """Return the settings of both sides, the gap between their speeds, and what known differences explain of it."""
    row = published.stated_row(baseline)
    theirs = published.as_result(row)
    lines = sorted(_lines(row, theirs, result), key=_order)
    gap, because = _gap(baseline, theirs, result, lines)
    return Reproduction(baseline=baseline, row=row, result=name, lines=tuple(lines), gap=gap, because=because)


def _lines(row: Published, theirs: Result, ours: Result) -> Iterator[SettingLine]:
    values, own = _values(theirs), _values(ours)
    if own.get(_DEVICE) in [gpu.name for gpu in catalogue.variants_of(theirs.gpu_info)]:
        values[_DEVICE] = own[_DEVICE]  # a source that states no variant, such as "A100"
    for key in dict.fromkeys((*values, *own)):
        label = "GPU" if key == _DEVICE else identity.BY_KEY[key].label
        one = SettingLine(key=key, label=label, published=values.get(key), yours=own.get(key))
        yield _with_cost(one, row, values, own)
    for name in _MAPS:
        stated, set_here = (getattr(side.training_config, name) for side in (theirs, ours))
        for key in dict.fromkeys((*sorted(stated), *sorted(set_here))):
            yield SettingLine(key=f"{name}.{key}", label=key, published=stated.get(key), yours=set_here.get(key))


def _values(result: Result) -> dict[str, str]:
    """Return what a result states, by key of its field, as a person reads it."""
    variants = catalogue.variants_of(result.gpu_info)
    device = variants[0].name if len(variants) == 1 else result.gpu_info.device_name
    found = {_DEVICE: device} if device else {}
    for field in identity.FIELDS:
        if field.key not in _NOT_COMPARED and (value := field.read(result)) is not None:
            found[field.key] = value
    return found


def _with_cost(line: SettingLine, row: Published, theirs: Mapping[str, str], ours: Mapping[str, str]) -> SettingLine:
    """Return the line with its known cost. A recipe belongs to its precision, so both have one cost, at the first."""
    if line.state != "different":
        return line
    before, after, key = str(line.published), str(line.yours), line.key
    if line.key == _PRECISION:
        before, after = _with_recipe(theirs), _with_recipe(ours)
    elif line.key == _RECIPE:
        if theirs.get(_PRECISION) != ours.get(_PRECISION):
            return line
        key, before, after = _PRECISION, _with_recipe(theirs), _with_recipe(ours)
    return replace(line, cost=known_cost(key, before, after, row))


def _with_recipe(values: Mapping[str, str]) -> str:
    return " ".join(filter(None, (values.get(_PRECISION), values.get(_RECIPE))))


def known_cost(key: str, before: str, after: str, near: Published) -> KnownCost | None:
    """Return the speed with one value over that with another, from pairs of published rows.

    near: pairs of its GPU and model are used where there are any, else those of its GPU, else all.
    """
    found = [
        (ratio if values == (before, after) else 1 / ratio, row)
        for pair_key, values, ratio, row in _pairs()
        if pair_key == key and values in ((before, after), (after, before))
    ]
    if not found:
        return None
    of_gpu = [one for one in found if one[1].gpu == near.gpu]
    found = [one for one in of_gpu if one[1].model == near.model] or of_gpu or found
    ratios = [ratio for ratio, _ in found]
    sources = tuple(dict.fromkeys(row.source for _, row in found))
    return KnownCost(low=min(ratios), high=max(ratios), pairs=len(ratios), sources=sources)


@cache
def _pairs() -> tuple[tuple[str, tuple[str, str], float, Published], ...]:
    """Return (key, values, rate of the second over the first, row) of published rows that differ in one setting.

    A note states some settings again and others that no field holds, each between commas: beyond the setting that
    differs, two notes of a pair are equal.
    """
    rows = [(row, row.tokens_per_second_per_gpu, _of_row(row)) for row in catalogue.published_tables()]
    return tuple(
        (key, (ours[key], theirs[key]), second_rate / rate, first)
        for (first, rate, ours), (second, second_rate, theirs) in combinations(rows, 2)
        if rate and second_rate and first.source == second.source
        and len(apart := [one for one in {*ours, *theirs} if ours.get(one) != theirs.get(one)]) == 1
        and (key := apart[0]) in ours
        and key in theirs
        and max(len(_noted(first) - _noted(second)), len(_noted(second) - _noted(first))) <= (key in _IN_NOTES)
    )  # fmt: skip


def _noted(row: Published) -> set[str]:
    return set((row.note or "").partition(";")[0].split(", "))


def _of_row(row: Published) -> dict[str, str]:
    """Return what a row states; precision and recipe are one value, because the recipe depends on the precision."""
    values = _values(published.as_result(row))
    if _PRECISION in values:
        values[_PRECISION] = _with_recipe(values)
    values.pop(_RECIPE, None)
    return values


def _gap(
    baseline: Baseline, theirs: Result, ours: Result, lines: Sequence[SettingLine]
) -> tuple[SpeedGap | None, str | None]:
    """Return the gap, or None and the reason: the sides are not comparable, or share no figure."""
    entry = baseline.entry
    minutes = Scored(entry).minutes if entry is not None else None
    seconds = [run.time_to_train_seconds for run in ours.runs if run.time_to_train_seconds]
    rate, measured = (side.performance_metrics.tokens_per_second_per_gpu for side in (theirs, ours))
    if rate and measured:
        fairness = judge(theirs, ours)
        if fairness.verdict == "not_comparable":
            remedy = fairness.remedy or ""
            sentence = fairness.sentence.removesuffix(remedy)  # it is about two sides that the user can train
            return None, sentence + _REMEDY if remedy else sentence
        figure, stated, ratio = _RATE, rate, measured / rate
    elif entry and minutes and seconds and ours.performance_metrics.reported.benchmark == entry.benchmark:
        measured = math.fsum(seconds) / len(seconds) / 60
        figure, stated, ratio = _MINUTES, minutes, minutes / measured
    else:
        return None, f"No gap can be stated: the sides share neither {_RATE} nor {_MINUTES} of one benchmark."
    costs = [line.cost for line in lines if line.cost is not None]
    explained = (math.prod(cost.low for cost in costs), math.prod(cost.high for cost in costs)) if costs else None
    return SpeedGap(figure=figure, measured=measured, published=stated, ratio=ratio, explained=explained), None


def _order(line: SettingLine) -> tuple[int, float, int]:
    """Return the place of a line: by state, then by the size of its known cost, then work before context."""
    cost = 0.0 if line.cost is None else -abs(math.log(line.cost.low * line.cost.high)) - 1
    weights = {field.key: place for place, field in enumerate(identity.FIELDS)}
    return STATES.index(line.state), cost, weights.get(line.key, -1 if line.key == _DEVICE else len(weights))
