"""Grouping of result files into the sides of a comparison: which files enter, which are pooled, each side's name."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tensorprimat.core import settings
from tensorprimat.core.errors import UsageError
from tensorprimat.core.identity import (
    BY_KEY,
    FIELDS,
    PACE_COLUMNS,
    Pace,
    allowed_scatter,
    arguments_apart,
    differing_fields,
    other_speed,
    paces,
    seeds_agree,
    share_a_log,
    signature,
    stated_by_some,
)
from tensorprimat.core.notices import Notice
from tensorprimat.core.provenance import LOGS
from tensorprimat.core.quantities import counted, shortened_list, significant, spelled_metric
from tensorprimat.core.result import Result
from tensorprimat.core.summary import pool, summarise
from tensorprimat.facts.devices import short_device
from tensorprimat.models import names
from tensorprimat.storage.store import Loaded

PLATFORM_NAMES = {"nvd": "NVIDIA", "amd": "AMD", "cpu": "CPU"}
"""In reading order, which is also the order in which a baseline is chosen."""


def device_label(result: Result) -> str:
    """Return the device's short name, else its vendor's."""
    name = result.gpu_info.device_name
    return short_device(name) if name else PLATFORM_NAMES.get(result.platform or "", "unknown device")


_SHORT = {name: one.symbol for name, one in settings.BY_NAME.items() if one.symbol} | {
    "sequence_length": "sequence", "global_batch_size": "batch", "micro_batch_size": "micro batch",
    "gradient_accumulation_steps": "accumulation",
}  # fmt: skip
"""Setting → its word in a label, where that is shorter than its name in a sentence."""
BY: dict[str, Callable[[Result], str]] = {
    "platform": device_label,
    "engine": lambda result: result.provenance.engine or "unknown engine",
    "precision": lambda result: (result.training_config.precision or "unknown precision").upper(),
    "preset": lambda result: result.model.preset or "unknown preset",
    "gpu": lambda result: short_device(result.gpu_info.device_name or "unknown GPU"),
}
"""Property that separates sides → function that returns the label of a side."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """Everything that was measured for one label and one model; equal only to itself."""

    label: str
    key: str
    """Label without the additions that distinguish sides of equal labels."""
    files: tuple[str, ...]
    result: Result
    """Pooled over its files."""
    runs: tuple[Result, ...]
    """Each run, summarised alone."""
    hosts: tuple[str | None, ...]
    """One per run."""


def paired_model(result: Result) -> str:
    """Return the name under which results are paired: one for all spellings of a model."""
    return names.key(result.model.name) if result.model.name else "unknown model"


def paired_models(items: Sequence[Loaded]) -> list[str]:
    """Return the name under which each result is paired: one for all spellings of a model, and for all equal shapes.

    Where the user named the sides and each contains one model, they are compared whatever their models are called.
    """
    names_of = [paired_model(item.result) for item in items]
    of_shape: dict[str, str] = {}
    renamed: dict[str, str] = {}
    for item, name in zip(items, names_of, strict=True):
        shape = BY_KEY["shape"].read(item.result)
        if shape is not None:
            first = of_shape.setdefault(shape, renamed.get(name, name))
            if first != name:
                renamed.setdefault(name, first)
    found = [renamed.get(name, name) for name in names_of]
    per_side: dict[str | None, set[str]] = {}
    for item, name in zip(items, found, strict=True):
        per_side.setdefault(item.side, set()).add(name)
    if None not in per_side and len(per_side) > 1 and all(len(models) == 1 for models in per_side.values()):
        return [found[0]] * len(found)
    return found


def usable_results(loaded: Iterable[Loaded]) -> tuple[list[Loaded], list[str]]:
    """Return results that may enter, each run once, and a sentence for everything left out."""
    kept, warnings = [], []
    seen: dict[Hashable, list[Result]] = {}
    for item in loaded:
        name = item.path.name
        measured = item.result.performance_metrics.measured_steps
        if not item.result.complete and measured and (item.side is not None or item.result.is_usable):
            warnings.append(f"{name}{_unfinished(item.result)}")
        elif not item.result.complete:
            warnings.append(f"{name}: left out, the benchmark did not finish")
            continue
        if item.result.provenance.profiled:
            warnings.append(f"{name}: left out, a profiler slowed the run down")
            continue
        fresh = _without_known_runs(item.result, seen, item.side)
        if fresh is None:
            warnings.append(f"{name}: left out, another file holds its runs")
            continue
        if fresh is not item.result:
            warnings.append(f"{name}: runs that are also in another file are counted once")
        kept.append(replace(item, result=fresh))
    return kept, warnings


def _unfinished(result: Result) -> str:
    """Return the end of a sentence about a result with unfinished runs: how many, and that all their steps count."""
    steps = counted(result.performance_metrics.measured_steps or 0, "measured step")
    if len(result.runs) < 2:
        return f": the run did not finish; its {steps} count"
    unfinished = sum(not run.complete for run in result.runs) or "at least 1"
    return f" and the runs pooled with it: {unfinished} of {len(result.runs)} did not finish; all {steps} count"


def _without_known_runs(result: Result, seen: dict[Hashable, list[Result]], side: str | None) -> Result | None:
    """Return the result without runs seen before on its side, and add its runs to `seen`.

    These have the same device, configuration and step times (without steps, the same figures), and the same start or,
    without one, the same log.

    None where no run is left. A latest file and its copy in history hold the same runs: counted twice, they would make
    the interval too narrow.
    """
    started = {run.index: run.started_at or result.timestamp for run in result.runs} or {0: result.timestamp}
    column = result.steps.column("run")
    times_and_rates = np.stack([result.steps.column(name) for name in PACE_COLUMNS])
    fresh = []
    for run, start in started.items():
        times = times_and_rates[:, column == run].tobytes()
        alike = seen.setdefault((side, result.gpu_info.device_name, start, times), [])
        of_work = [other for other in alike if signature(result) == signature(other)]
        known = of_work if start is not None else [other for other in of_work if share_a_log(result, other)]
        if not times:  # no steps: the same moment and the same figures
            known = [other for other in known if other.performance_metrics == result.performance_metrics]
        if not known:
            fresh.append(run)
            alike.append(result)
    if not fresh:
        return None
    return result if len(fresh) == len(started) else _only(result, fresh)


def _only(result: Result, runs: Sequence[int]) -> Result:
    """Return some runs of a result, summarised anew; power that the file states for all runs is not of some of them."""
    steps = result.steps.take(np.isin(result.steps.column("run"), runs))
    facts = tuple(run for run in result.runs if run.index in runs)
    of_all = len(facts) == len(result.runs)
    return summarise(result.changed(steps=steps, runs=facts, power_metrics=result.power_metrics if of_all else None))


def gather(items: Sequence[Loaded], by: str) -> list[Group]:
    """Group files of one model as sides, in reading order, and pool those that are runs of one benchmark.

    Files that the user put on one side are runs of one benchmark unless they are known to differ, and keep the order in
    which the sides were named. Other files have to agree in everything, their speed included.
    """
    ordered = _as_named(items) if all(item.side is not None for item in items) else _as_found(items, by)
    firsts = [files[0].result for files in ordered]
    keys = [BY[by](files[0].result) if files[0].side is None else files[0].side for files in ordered]
    titles = keys
    if by == "platform" and len({BY_KEY["precision"].read(first) for first in firsts}) > 1:
        titles = [
            with_precision(key, files[0].result) if files[0].side is None else key
            for key, files in zip(keys, ordered, strict=True)
        ]
    labels = distinct_labels(titles, firsts, [files[0].path for files in ordered])
    return [_group(label, key, files) for label, key, files in zip(labels, keys, ordered, strict=True)]


def gather_models(items: Sequence[Loaded], by: str) -> dict[str, list[Group]]:
    """Return the sides of every model, by the name under which its results are paired. Raises UsageError for `by`."""
    if by not in BY:
        raise UsageError(f"--by {by}: must be one of {', '.join(BY)}")
    of_model: dict[str, list[Loaded]] = {}
    for item, model in zip(items, paired_models(items), strict=True):
        of_model.setdefault(model, []).append(item)
    return {model: gather(of_one, by) for model, of_one in of_model.items()}


def labels_of(loaded: Sequence[Loaded], *, by: str = "platform") -> list[str | None]:
    """Return the label of the side that each result is on; None for a result that is left out."""
    groups = [group for of_model in gather_models(usable_results(loaded)[0], by).values() for group in of_model]
    return [
        next((one.label for one in groups if str(item.path) in one.files and item.side in (None, one.key)), None)
        for item in loaded
    ]


def _as_named(items: Sequence[Loaded]) -> list[list[Loaded]]:
    """Return the files of every benchmark on every side, sides in the order in which they were named.

    A file joins a benchmark if it can be pooled with all files in it. Files with the same settings are represented
    by one of them.
    """
    benchmarks: list[tuple[list[Loaded], dict[tuple[str | None, ...], Result]]] = []
    for item in items:
        stated = signature(item.result) if len(item.result.steps) else None
        for files, kinds in benchmarks:
            if files[0].side != item.side or stated is None or not kinds:
                continue
            alike = (
                other.platform == item.result.platform and not differing_fields(other, item.result, unknown_equal=True)
                for other in kinds.values()
            )
            if stated in kinds or all(alike):
                files.append(item)
                kinds.setdefault(stated, item.result)
                break
        else:
            benchmarks.append(([item], {} if stated is None else {stated: item.result}))
    order = list(dict.fromkeys(item.side for item in items))
    return sorted((files for files, _ in benchmarks), key=lambda files: order.index(files[0].side))


def _as_found(items: Sequence[Loaded], by: str) -> list[list[Loaded]]:
    """Return the files of every benchmark: equal in every field, and not clearly of another speed."""
    members: dict[tuple[object, ...], list[_Benchmark]] = {}
    for item in items:
        result = item.result
        alone = None if len(result.steps) else item.path
        of_key = members.setdefault((BY[by](result), signature(result), alone), [])
        speeds = paces(result)
        for benchmark in of_key:
            if not other_speed(benchmark.slowest, speeds) and not other_speed(benchmark.fastest, speeds):
                benchmark.add(item, speeds)
                break
        else:
            of_key.append(_Benchmark(files=[item], slowest=speeds, fastest=speeds))
    every = [benchmark.files for of_key in members.values() for benchmark in of_key]
    return sorted(every, key=lambda files: _rank(files[0].result, by))


@dataclass(kw_only=True)
class _Benchmark:
    """Files of one benchmark, and the range of their speeds: a further file is compared with the range's two ends."""

    files: list[Loaded]
    slowest: tuple[Pace, ...]
    fastest: tuple[Pace, ...]

    def add(self, item: Loaded, speeds: tuple[Pace, ...]) -> None:
        """Add one file and widen the range; each end has the smallest spread of all files."""
        self.files.append(item)
        self.slowest = _end(self.slowest, speeds, min)
        self.fastest = _end(self.fastest, speeds, max)


def _end(ours: tuple[Pace, ...], theirs: tuple[Pace, ...], choose: Callable[[float, float], float]) -> tuple[Pace, ...]:
    others = {pace.metric: pace for pace in theirs}
    return tuple(
        replace(pace, value=choose(pace.value, other.value), spread=min(pace.spread, other.spread))
        if (other := others.get(pace.metric))
        else pace
        for pace in ours
    )


def _rank(result: Result, by: str) -> tuple[int, str]:
    """Return a sort key: the platform (NVIDIA, AMD, CPU, unknown) if sides are platforms, then the label."""
    platforms = list(PLATFORM_NAMES)
    place = platforms.index(result.platform) if result.platform in platforms else len(platforms)
    return (place if by == "platform" else 0, BY[by](result))


def _group(label: str, key: str, files: Sequence[Loaded]) -> Group:
    runs = [run for file in files for run in runs_of(file.result)]
    result = files[0].result if len(files) == 1 else pooled_benchmark([file.result for file in files], "files")
    names = tuple(str(file.path) for file in files)
    return _side(label, key, names, _with_unlike_speeds(result, runs), runs)


def _side(label: str, key: str, files: tuple[str, ...], result: Result, runs: Sequence[Result]) -> Group:
    hosts = tuple((run.runs[0].host if run.runs else None) or run.provenance.host for run in runs)
    return Group(label=label, key=key, files=files, result=result, runs=tuple(runs), hosts=hosts)


def pooled_benchmark(results: Sequence[Result], sources: str) -> Result:
    """Pool runs of one benchmark; a fact that only some of the sources ("files", "logs") state becomes a warning."""
    notes = []
    if partly := stated_by_some(results):
        notes.append(f"only some of the {len(results)} {sources} state {', '.join(partly)}")
    if apart := arguments_apart(results):
        named = [f"{name} ({', '.join(values)})" for name, values in apart.items()]
        notes.append(f"printed arguments differ: {shortened_list(named, _MOST_NAMED)}")
    told = [Notice("pooled_although", "runs", note=note) for note in notes]
    if any(result.provenance.engine == LOGS for result in results) and not told:
        told = _rule_of_scatter(results)
    whole = pool(results)
    return whole.changed(warnings=(*whole.warnings, *told))


_MOST_NAMED = 4  # arguments


def _rule_of_scatter(results: Sequence[Result]) -> list[Notice]:
    """Return a notice on the rule by which logs are taken as runs of one benchmark; none where no speed is known."""
    found = sorted((pair[0] for result in results if (pair := paces(result))), key=lambda pace: pace.value)
    if len(found) < 2:
        return []
    allowed = allowed_scatter(max(pace.spread for pace in found))
    apart = found[-1].value / found[0].value - 1
    return [Notice("pooled_by_rule", "runs", logs=len(results), apart=apart, allowed=allowed)]


def _with_unlike_speeds(result: Result, runs: Sequence[Result]) -> Result:
    """Return the result with a warning where its runs differ by more than repetitions of one benchmark do."""
    found = sorted((pair for run in runs if (pair := paces(run))), key=lambda pair: pair[0].value)
    apart = other_speed(found[0], found[-1]) if len(found) > 1 else None
    if apart is None:
        return result
    unit = "seconds a step" if apart[0].metric == "avg_step_time_seconds" else spelled_metric(apart[0].metric)
    low, high = (significant(pace.value, 4) for pace in apart)
    note = Notice("speeds_unlike", "runs", low=low, high=high, unit=unit)
    return result.changed(warnings=(*result.warnings, note))


def single_side(result: Result) -> Group:
    """Return one result as a side of its own, without a label."""
    return _side("", "", (), result, runs_of(result))


def runs_of(result: Result) -> list[Result]:
    """Return each run of a result, summarised alone."""
    numbers = np.unique(result.steps.column("run")).tolist()
    return [result] if len(numbers) < 2 else [_only(result, [number]) for number in numbers]


def distinct_labels(labels: Sequence[str], results: Sequence[Result], paths: Sequence[Path]) -> list[str]:
    """Return the labels; equal ones get the property that distinguishes them, at worst their file.

    Precision comes first, because a speed means nothing without it: "H100 · FP8".
    """
    parts = []
    precisions: dict[str, set[str | None]] = {}
    for label, result in zip(labels, results, strict=True):
        precisions.setdefault(label, set()).add(BY_KEY["precision"].read(result))
    labels = [
        with_precision(label, result) if len(precisions[label]) > 1 else label
        for label, result in zip(labels, results, strict=True)
    ]
    for label, result in zip(labels, results, strict=True):
        alike = [other for other, name in zip(results, labels, strict=True) if name == label]
        difference = _distinguishing_labels(result, alike) if len(alike) > 1 else ""
        parts.append(f"{label} ({difference})" if difference else label)
    return [
        label if parts.count(label) == 1 else f"{label} [{path.stem}]" for label, path in zip(parts, paths, strict=True)
    ]


def with_precision(label: str, result: Result) -> str:
    """Return a label with the precision that ran: "H100 · BF16"."""
    how = BY_KEY["precision"].read(result)
    return f"{label} · {how}" if how and how not in label.upper() else label


def _distinguishing_labels(result: Result, alike: Sequence[Result]) -> str:
    """Return at most three labels, the device first, of fields that not all share, in the fairness table's order."""
    parts = [device_label(result)] if len({device_label(other) for other in alike}) > 1 else []
    for field in FIELDS:
        if field.key in ("shape", "versions", "precision") or (field.key == "seed" and seeds_agree(alike)):
            continue
        if len({field.read(other) for other in alike}) > 1:
            parts.append(f"{_SHORT.get(field.key, field.label)} {field.read(result) or 'not stated'}")
    return ", ".join(parts[:3])
