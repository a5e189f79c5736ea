"""Who stands on which side: files that may enter, pooled where they are runs of one thing, and each side's name."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tensorprimat.core import names
from tensorprimat.core.identity import FIELDS, signature
from tensorprimat.core.records import Result
from tensorprimat.core.store import Loaded
from tensorprimat.core.summary import pool, summarise

PLATFORM_NAMES = {"nvd": "NVIDIA", "amd": "AMD", "cpu": "CPU"}
"""In reading order, which is also the order in which a baseline is chosen."""


def device_label(result: Result) -> str:
    """The device's own name, else its vendor's."""
    return result.gpu_info.device_name or PLATFORM_NAMES.get(result.platform or "", "unknown device")


BY: dict[str, Callable[[Result], str]] = {
    "platform": device_label,
    "engine": lambda result: result.provenance.engine or "unknown engine",
    "precision": lambda result: (result.training_config.precision or "unknown precision").upper(),
    "preset": lambda result: result.model.preset or "unknown preset",
    "gpu": lambda result: result.gpu_info.device_name or "unknown GPU",
}
"""What can tell sides apart, and how a side is then called."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """Everything that was measured for one label and one model; equal only to itself."""

    label: str
    key: str
    """The label before sides of the same name were told apart."""
    files: tuple[str, ...]
    result: Result
    """Pooled over its files."""
    runs: tuple[Result, ...]
    """Each run, summarised alone."""
    hosts: tuple[str | None, ...]
    """One per run."""


def model_of(result: Result) -> str:
    """Return the name under which results are paired: one for all spellings of a model."""
    return names.key(result.model.name) if result.model.name else "unknown model"


def usable(loaded: Iterable[Loaded]) -> tuple[list[Loaded], list[str]]:
    """Results that may enter, each run once, and a sentence for everything left out."""
    kept, warnings = [], []
    seen: dict[Hashable, list[Result]] = {}
    for item in loaded:
        name = item.path.name
        if not item.result.complete:
            warnings.append(f"{name}: left out, the benchmark did not finish")
            continue
        if item.result.provenance.profiled:
            warnings.append(f"{name}: left out, a profiler slowed the run down")
            continue
        fresh = _without_known_runs(item.result, seen)
        if fresh is None:
            warnings.append(f"{name}: left out, its runs are in another file already")
            continue
        if fresh is not item.result:
            warnings.append(f"{name}: runs that are in another file already are counted once")
        kept.append(replace(item, result=fresh))
    return kept, warnings


def _without_known_runs(result: Result, seen: dict[Hashable, list[Result]]) -> Result | None:
    """The result without runs seen before: same device, configuration, start and step times. Adds to `seen`.

    None where no run is left. A latest file and its copy in history hold the same runs: counted twice they would feign
    certainty.
    """
    started = {run.index: run.started_at or result.timestamp for run in result.runs} or {0: result.timestamp}
    column, seconds = result.steps.column("run"), result.steps.column("seconds")
    fresh = []
    for run, start in started.items():
        times = seconds[column == run].tobytes()
        alike = seen.setdefault((result.gpu_info.device_name, start, times), [])
        if start is None or not times or all(signature(result) != signature(other) for other in alike):
            fresh.append(run)
            alike.append(result)
    if not fresh:
        return None
    return result if len(fresh) == len(started) else _only(result, fresh)


def _only(result: Result, runs: Sequence[int]) -> Result:
    """Some runs of a result, summarised anew."""
    steps = result.steps.take(np.isin(result.steps.column("run"), runs))
    facts = tuple(run for run in result.runs if run.index in runs)
    return summarise(result.model_copy(update={"steps": steps, "runs": facts}))


def gather(items: Sequence[Loaded], by: str) -> list[Group]:
    """Files of one model as sides, in reading order: pooled where everything that fairness looks at agrees."""
    members: dict[tuple[object, ...], list[Loaded]] = {}
    for item in items:
        result = item.result
        alone = None if len(result.steps) else item.path  # means without steps cannot be pooled
        key = (BY[by](result), result.platform, result.gpu_info.device_name, signature(result), alone)
        members.setdefault(key, []).append(item)
    ordered = sorted(members.values(), key=lambda files: _rank(files[0].result, by))
    firsts = [files[0].result for files in ordered]
    labels = tell_apart([BY[by](first) for first in firsts], firsts, [files[0].path for files in ordered])
    return [_group(label, files, by) for label, files in zip(labels, ordered, strict=True)]


def _rank(result: Result, by: str) -> tuple[int, str]:
    """NVIDIA, AMD, CPU, unknown; then by label; sorting keeps files of one rank in the order given."""
    platforms = list(PLATFORM_NAMES)
    place = platforms.index(result.platform) if result.platform in platforms else len(platforms)
    return (place if by == "platform" else 0, BY[by](result))


def _group(label: str, files: Sequence[Loaded], by: str) -> Group:
    runs = [run for file in files for run in runs_of(file.result)]
    return Group(
        label=label,
        key=BY[by](files[0].result),
        files=tuple(str(file.path) for file in files),
        result=files[0].result if len(files) == 1 else pool([file.result for file in files]),
        runs=tuple(runs),
        hosts=tuple((run.runs[0].host if run.runs else None) or run.provenance.host for run in runs),
    )


def runs_of(result: Result) -> list[Result]:
    """Each run of a result, summarised alone."""
    numbers = np.unique(result.steps.column("run")).tolist()
    return [result] if len(numbers) < 2 else [_only(result, [number]) for number in numbers]


def tell_apart(labels: Sequence[str], results: Sequence[Result], paths: Sequence[Path]) -> list[str]:
    """The labels, where those of the same name also say what tells them apart, at worst their file."""
    told = []
    for label, result in zip(labels, results, strict=True):
        alike = [other for other, name in zip(results, labels, strict=True) if name == label]
        apart = _what_tells_apart(result, alike) if len(alike) > 1 else ""
        told.append(f"{label} ({apart})" if apart else label)
    return [
        label if told.count(label) == 1 else f"{label} [{path.stem}]" for label, path in zip(told, paths, strict=True)
    ]


def _what_tells_apart(result: Result, alike: Sequence[Result]) -> str:
    """Device and the first fields, in the order of the fairness table, that not all of them share; at most three."""
    told = [device_label(result)] if len({device_label(other) for other in alike}) > 1 else []
    for field in FIELDS:
        if field.key not in ("shape", "versions") and len({field.read(other) for other in alike}) > 1:
            told.append(f"{field.label} {field.read(result) or 'not stated'}")
    return ", ".join(told[:3])
