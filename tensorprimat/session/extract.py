"""Reading of named logs into results, pooling of logs that belong together (ranks, repetitions), following of a log.

For a log that a search found, the search and this machine supply facts that it lacks: the model, and the machine's GPU
if vendor and memory agree with the log.
"""

from __future__ import annotations

import glob
import os
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from tensorprimat import logs
from tensorprimat.analysis.sides import pooled_benchmark
from tensorprimat.core import identity, quantities, user_facts
from tensorprimat.core.errors import InputError, NotALogError, TensorPrimatError
from tensorprimat.core.fact_values import Statement, facts_for
from tensorprimat.core.notices import Notice
from tensorprimat.core.result import Result
from tensorprimat.core.units import GB
from tensorprimat.core.user_facts import UserFacts
from tensorprimat.logs import files
from tensorprimat.logs import paths as paths_of_logs
from tensorprimat.logs.text import Log
from tensorprimat.models import names
from tensorprimat.session.explain import one_liner
from tensorprimat.storage import store
from tensorprimat.system import regular

if TYPE_CHECKING:
    from tensorprimat.machine.platform import Machine

SAME_MEMORY = 0.005  # relative; logs print two decimals of GiB, and the variants of one GPU differ by more
ORIGIN = "this machine's GPU: vendor and memory agree with the log"
EACH = 0  # value of `segment` that reads every training; trainings are numbered from 1
FOLLOW_SECONDS = 2.0  # least interval between two readings of a growing log
_MLFLOW_FACTS = "meta.yaml"
"""File of an experiment or a run of MLflow, which holds no step."""
_LEVELS = 2  # of folders in a named one: mlruns/EXPERIMENT/RUN


@dataclass(frozen=True, kw_only=True)
class Extracted:
    """One result and the logs it came from."""

    logs: tuple[str, ...]
    result: Result

    @cached_property
    def paces(self) -> tuple[identity.Pace, ...]:
        """Return the speeds of the result; they are needed only to compare several logs."""
        return identity.paces(self.result)


def expand(named: Sequence[str]) -> list[str]:
    """Return the files of names, patterns and folders. Raises InputError where one names no file."""
    paths: list[str] = []
    for name in named:
        path = Path(name)
        if regular.refused_listing(path) is None:
            found = _below(path, _LEVELS)
        elif any(sign in name for sign in "*?[") and not os.path.exists(name):
            found = sorted(glob.glob(name, recursive=True))
        else:
            found = [name]
        if not found:
            raise _empty_folder(path) if os.path.isdir(name) else InputError("no file fits this pattern", path=name)
        paths += found
    return list(dict.fromkeys(paths))


def _below(folder: Path, levels: int) -> list[str]:
    """Return the paths to read in a folder; if it holds none, those of the folders in it."""
    found = log_files_of(folder)
    return found or [file for inside in subfolders(folder) if levels for file in _below(inside, levels - 1)]


def _empty_folder(folder: Path) -> InputError:
    inside = [one.name for one in subfolders(folder)]
    if not inside:
        return InputError("holds no file", path=folder)
    named = ", ".join(inside[:3]) + (" …" if len(inside) > 3 else "")
    return InputError(
        f"neither it nor its folders ({named}) hold a file", path=folder, remedy="search it with tprimat analyze"
    )


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder whose files may be runs; hidden ones and earlier results are left out."""
    return [
        path
        for path in sorted(folder.iterdir())
        if os.path.isdir(path) and not path.name.startswith(".") and path.name != store.HISTORY
    ]


def log_files_of(folder: Path) -> list[str]:
    """Return the paths to read in a folder: the folder itself if it is one log (TensorBoard), else its files."""
    if logs.detect_format(Log(folder)) is not None:
        return [str(folder)]
    files = (inside for inside in folder.iterdir() if os.path.isfile(inside) and inside.name != _MLFLOW_FACTS)
    return sorted(map(str, files))


def extract_each(
    paths: Sequence[str], stated: Sequence[Statement], *, format: str | None, segment: int | None = None
) -> Iterator[Extracted | TensorPrimatError]:
    """Yield the results of each log, or the error of one that cannot be read, as soon as it is known.

    Model, precision and platform that a log does not state may come from its path. segment: number of the training to
    read in a log with several; EACH reads all of them. Raises the error of the only log.
    """
    for path in paths:
        try:
            facts = facts_for(stated, path)
            if segment == EACH:
                results = logs.read_each(path, facts=facts, format=format, cited=True)
            else:
                results = [logs.read(path, facts=facts, format=format, segment=segment, cited=True)]
            if path != logs.STDIN:
                parts = paths_of_logs.parts_of(path)
                results = [paths_of_logs.with_path_facts(result, parts) for result in results]
        except TensorPrimatError as error:
            if len(paths) == 1:
                raise
            yield error
        else:
            yield from (Extracted(logs=(path,), result=result) for result in results)


def joined_logs(read: Iterable[Extracted], *, one_side: bool = False) -> tuple[list[Extracted], list[str]]:
    """Pool logs of one benchmark as its runs; of several logs of one run (ranks, copies) use only the first.

    one_side: the user put the logs on one side of a comparison. Then a fact that only some logs state counts as equal,
    and logs of different speed are pooled too. Returns the results, and a note on each decision that needs explanation.
    """
    benchmarks: list[list[Extracted]] = []
    notes: list[str] = []
    for extracted in read:
        earlier = (other for benchmark in benchmarks for other in benchmark)
        if twin := next((other for other in earlier if _are_one_run(other.result, extracted.result)), None):
            hashes = [[source.sha256 for source in one.result.provenance.sources] for one in (extracted, twin)]
            how = "a copy of the file" if hashes[0] == hashes[1] != [] else "a copy of it or another rank's log"
            notes.append(f"{extracted.logs[0]}: the same run as {twin.logs[0]}, {how}; not counted again")
            continue
        for benchmark in benchmarks:
            first = benchmark[0]
            if identity.differing_fields(first.result, extracted.result, unknown_equal=one_side):
                continue
            difference = None if one_side else _difference(benchmark, extracted)
            if difference is None:
                benchmark.append(extracted)
                break
            notes.append(
                f"{first.logs[0]} and {extracted.logs[0]}: equal settings, but {difference}; kept as two results. "
                f"{_to_separate(first, extracted)}"
            )
        else:
            benchmarks.append([extracted])
    for benchmark in benchmarks:
        notes += _continued(benchmark)
    return [_pooled(benchmark) for benchmark in benchmarks], notes


def _are_one_run(one: Result, other: Result) -> bool:
    """Return True for two logs of one run. A setting that only one of the two states is no difference."""
    return identity.same_run(one, other) and not identity.differing_fields(one, other, unknown_equal=True)


def _difference(benchmark: Sequence[Extracted], extracted: Extracted) -> str | None:
    """Return a clause on why a log of equal settings is of another benchmark, or None."""
    if _other_vendor(benchmark[0], extracted):
        return "their paths name GPUs of two vendors"
    unlike = (pair for one in benchmark if (pair := identity.other_speed(one.paces, extracted.paces)))
    return next((_spell(*pair) for pair in unlike), None)


def _other_vendor(first: Extracted, extracted: Extracted) -> bool:
    """Return True if neither log states its platform and their paths name different ones."""
    if first.result.platform or extracted.result.platform:
        return False
    named = {paths_of_logs.platform_in_path(paths_of_logs.parts_of(one.logs[0])) for one in (first, extracted)}
    return None not in named and len(named) > 1


def _to_separate(*two: Extracted) -> str:
    """Return the remedy for two logs of equal settings and different speed."""
    if any(one.result.gpu_info.device_name is None for one in two):
        return "If the devices differ, name each with --gpu"
    names = shlex.join(one.logs[0] for one in two)
    return f"Neither log states the reason; to compare them: tprimat compare {names}"


def _spell(one: identity.Pace, other: identity.Pace) -> str:
    if one.metric == "avg_step_time_seconds":
        return f"{quantities.seconds(one.value)} a step against {quantities.seconds(other.value)}"
    return (
        f"{quantities.rate(one.value)} {quantities.spelled_metric(one.metric)} against {quantities.rate(other.value)}"
    )


def _continued(members: Sequence[Extracted]) -> list[str]:
    """Return a note if logs that were pooled as repetitions have no step in common: they may be parts of one log."""
    spans = sorted(
        (int(steps.column("index").min()), int(steps.column("index").max()), extracted.logs[0])
        for extracted in members
        if len(steps := extracted.result.steps)
    )
    if len(spans) < 2 or not all(before[1] < after[0] for before, after in pairwise(spans)):
        return []
    names = shlex.join(name for _, _, name in spans)
    return [f"{names}: no step in common; if they are parts of one log, join them: cat {names} | tprimat extract -"]


def _pooled(members: Sequence[Extracted]) -> Extracted:
    if len(members) == 1:
        return members[0]
    result = pooled_benchmark([extracted.result for extracted in members], "logs")
    return Extracted(logs=tuple(name for extracted in members for name in extracted.logs), result=result)


def follow_log(path: Path, stated: Sequence[Statement], format: str | None) -> Iterator[str]:
    """Yield a line each time the log has changed, without end. Raises InputError for a file that cannot be read."""
    seen = None
    files.first_bytes(path, 1)  # a file that cannot be read is refused at once
    yield f"following {path}; Ctrl-C ends it and writes the result"
    while True:
        started = time.monotonic()
        if (state := regular.file_state(path)) != seen:
            seen = state
            yield _progress(path, stated, format)
        time.sleep(max(FOLLOW_SECONDS, 5 * (time.monotonic() - started)))


def _progress(path: Path, stated: Sequence[Statement], format: str | None) -> str:
    """Return the present figures of a growing log, or why there are none.

    The log may be empty at first, because launchers create it so, and missing for a moment during log rotation.
    """
    try:
        if path.stat().st_size == 0:
            return "no measured step yet: the log is empty"
        return one_liner(logs.read(path, facts=facts_for(stated, path), format=format))
    except FileNotFoundError:
        return f"{path} is gone; waiting for it"
    except NotALogError:
        return "no measured step yet"
    except InputError as error:
        return f"{error}; waiting"


def read_found_log(path: Path, model: str, facts: UserFacts, machine: Machine) -> Result:
    """Return the log as a result of the model. Raises InputError for a file that cannot be read.

    facts: the user's statements, which override those of the log.
    """
    result = logs.read(path, facts=replace(facts, preset=None))
    if facts.model_name is None:
        result = _named(result, model)
    return with_local_device(user_facts.amended(result, UserFacts(preset=facts.preset)), machine)


def _named(result: Result, model: str) -> Result:
    """Return the result under the model's name, unless the log itself names a model with its size."""
    trained = result.model.name
    if trained == model or (trained is not None and names.mentions(trained)):
        return result
    assumed = {**result.provenance.assumed, "model.name": f"the search for a log of {model}"}
    return result.changed(model=result.model.changed(name=model), provenance=result.provenance.changed(assumed=assumed))


def with_local_device(result: Result, machine: Machine) -> Result:
    """Return the result with this machine's GPU as its device if the log names no GPU and vendor and memory agree.

    The platform is always the log's. If the log prints no device memory or another size, the device stays unknown, with
    a notice.
    """
    gpu, here = result.gpu_info, machine.gpu_info
    if gpu.device_name is not None or machine.platform == "cpu" or here.device_name is None:
        return result
    if result.platform != machine.platform:
        return result
    there, memory = gpu.total_memory_gb, here.total_memory_gb
    if there is None or memory is None or abs(there / memory - 1) > SAME_MEMORY:
        printed = "no device memory" if there is None else f"{quantities.size(GB * there)} of device memory"
        notice = Notice("gpu_unnamed", "gpu_info", printed=printed, gpu=here.device_name)
        return result.changed(warnings=(*result.warnings, notice))
    assumed = {**result.provenance.assumed, "device_name": ORIGIN}
    return result.changed(
        gpu_info=gpu.changed(device_name=here.device_name, gpu_cores=here.gpu_cores),
        provenance=result.provenance.changed(assumed=assumed),
    )
