"""Whole rounds of MLPerf Training: SUBMITTER/results/SYSTEM/BENCHMARK/result_*.txt and SUBMITTER/systems/SYSTEM.json.

`find_round_entries` lists the entries of a folder, `read_entry` turns one system's runs of one benchmark into an entry
of the library. A fact that cannot be read becomes a note of its entry; nothing is filled in for it.

Of a result file only the marks and settings are read (_KEYS): time to train, training and evaluation time, and samples.
`logs/mlperf/reader.py` reads all of one file.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tensorprimat.core import settings
from tensorprimat.core.errors import InputError
from tensorprimat.core.quantities import counted
from tensorprimat.facts import catalogue, mlperf_rules
from tensorprimat.logs.fields import number_in
from tensorprimat.logs.files import MAX_LINE_BYTES, with_numbers
from tensorprimat.logs.mlperf.events import (
    CONFIGURATION_KEYS,
    LINEAR_PRECISION,
    MARK,
    Event,
    MlperfContent,
    collect,
    configuration_of,
    events_in,
)
from tensorprimat.logs.mlperf.run import COUNTING, MlperfEvents
from tensorprimat.logs.mlperf.system import LONGEST_FACT, described, fact, json_object
from tensorprimat.mlperf.library import Entry, Library, LibraryRun
from tensorprimat.system import regular

_LICENCE = "Apache-2.0"
WORTH_A_PROCESS = 8  # number of entries to read for which starting a process pays
_MARKS = ("run_start", "block_start", *COUNTING)
_SETTINGS = (*CONFIGURATION_KEYS, *LINEAR_PRECISION, "submission_benchmark", "submission_division")
_KEYS = (*_MARKS, *_SETTINGS)
SHORTEST_IN_BLOCKS = 0.5  # share of the time outside evaluation; with less inside blocks, marks of blocks are missing
_EVENT = re.compile(MARK.encode() + rb'.*"key"\s*:\s*"(?:' + "|".join(_KEYS).encode() + rb')"')
Pairs = Sequence[tuple[float, float | None]]
"""(start, stop) of blocks or evaluations."""

MOST_FACTS = 24  # of the software of a system
PARALLELISM = {name: (settings.BY_NAME[name].symbol or "").lower() for name in settings.PARALLEL_SIZES}
_ROUND = re.compile(r"v?\d{1,2}\.\d{1,2}")


@dataclass(frozen=True, kw_only=True)
class SystemBenchmark:
    """The result files of one system on one benchmark."""

    round: str
    root: Path
    folder: Path
    files: tuple[Path, ...]


@dataclass(frozen=True, kw_only=True)
class Found:
    """Pairs of system and benchmark to read in a round, and the file count of each benchmark that is not read."""

    pairs: tuple[SystemBenchmark, ...]
    not_read: Mapping[str, int]
    empty: tuple[str, ...]
    """Folders of language models without result files."""


def round_name(text: str) -> str:
    """Return a round as its repository is named: v5.1. Raises ValueError for anything else.

    >>> round_name("5.1"), round_name("v6.0")
    ('v5.1', 'v6.0')
    """
    if not _ROUND.fullmatch(text.strip()):
        raise ValueError("must be the version of a round, such as v5.1")
    return f"v{text.strip().removeprefix('v')}"


def find_round_entries(root: Path, round: str) -> Found:
    """Return the entries of a round's folder. Raises InputError for a folder that is not a round."""
    if why := regular.refused_listing(root):
        raise InputError(why, path=root, remedy="name the folder of a round")
    pairs, not_read, empty, results = [], Counter[str](), [], 0
    for folder in sorted(root.glob("*/results/*/*")):
        if not os.path.isdir(folder):
            continue
        files = [path for path in folder.glob("result_*.txt") if os.path.isfile(path)]
        files.sort(key=lambda path: with_numbers(path.name))
        results += len(files)
        if mlperf_rules.is_of_another_task(folder.name):
            if files:
                not_read[folder.name] += len(files)
        elif files:
            pairs.append(SystemBenchmark(round=round, root=root, folder=folder, files=tuple(files)))
        else:
            empty.append(folder.relative_to(root).as_posix())
    if not results:
        raise InputError(
            "no SUBMITTER/results/SYSTEM/BENCHMARK/result_*.txt in it, so it is not a round of MLPerf Training",
            path=root,
            remedy="name a checkout of mlcommons/training_results_vX.Y",
        )
    return Found(pairs=tuple(pairs), not_read=dict(sorted(not_read.items())), empty=tuple(empty))


def read_entry(pair: SystemBenchmark) -> Entry:
    """Return the entry of one pair: every run with its time, the settings in the logs, and the system."""
    notes: list[str] = []
    runs, settings = _runs(pair, notes)
    system = _system(pair, notes)
    known = described("", system)
    device, gpu = known.device, catalogue.find_gpu(known.device)
    if system and not known.gpus:
        notes.append("the system's description states no number of nodes and accelerators, so the GPUs are unknown")
    config = _agreed(settings, notes)
    if mlperf_rules.benchmark_rules(pair.folder.name) is None:
        notes.append(
            f"the rules of {pair.folder.name} are not known, so {counted(len(runs), 'run')} count as all that it needs "
            "and tokens are not counted"
        )
    if not mlperf_rules.states_length(pair.folder.name):
        config.pop("sequence_length", None)
    return Entry(
        round=pair.round,
        submitter=pair.folder.parents[2].name,
        system=pair.folder.parent.name,
        benchmark=pair.folder.name,
        division=fact(system.get("division")),
        availability=fact(system.get("status")),
        gpu=gpu.name if gpu else device,
        device_name=device,
        num_gpus=known.gpus,
        num_nodes=known.nodes,
        framework=fact(system.get("framework")),
        software=_software(system.get("other_software_stack")),
        global_batch_size=config.get("global_batch_size"),
        sequence_length=config.get("sequence_length"),
        precision=config.get("precision"),
        parallelism={short: config[name] for name, short in PARALLELISM.items() if name in config},
        scaling_factor=_scaling_factor(pair, notes),
        runs=tuple(runs),
        notes=tuple(notes),
    )


def _runs(pair: SystemBenchmark, notes: list[str]) -> tuple[list[LibraryRun], list[dict[str, Any]]]:
    runs, settings = [], []
    for path in pair.files:
        name = path.relative_to(pair.root).as_posix()
        try:
            run, content, torn = _read(path, name)
        except (InputError, OSError) as error:
            reason = error.what if isinstance(error, InputError) else error.strerror
            notes.append(f"{path.name}: {reason}; it counts as a failed run")
            runs.append(LibraryRun(file=name, sha256="", status="cannot be read"))
            continue
        runs.append(run)
        settings.append(configuration_of(content.settings))
        if not run.succeeded:
            notes.append(f"{path.name}: {run.status}; it counts as a failed run")
        if torn:
            notes.append(f"{path.name}: {counted(torn, 'truncated line')} of the MLPerf log skipped")
        if len(content.runs) > 1:
            notes.append(f"{path.name}: more than one run; the first one counts")
        benchmark = content.settings.get("submission_benchmark")
        if isinstance(benchmark, str) and benchmark != pair.folder.name:
            notes.append(f"{path.name}: the log says {benchmark[:40]}, the folder {pair.folder.name}, which is used")
    return runs, settings


def _agreed(settings: list[dict[str, Any]], notes: list[str]) -> dict[str, Any]:
    """Return the settings that all files share; one that differs between runs is unknown and named."""
    agreed: dict[str, Any] = {}
    for name in (*PARALLELISM, "global_batch_size", "sequence_length", "precision"):
        values = {config[name] for config in settings if name in config}
        if len(values) == 1:
            agreed[name] = values.pop()
        elif values:
            notes.append(f"{name} differs between runs: {', '.join(map(str, sorted(values)))}")
    return agreed


def _system(pair: SystemBenchmark, notes: list[str]) -> dict[str, Any]:
    system = pair.folder.parent.name
    path = pair.folder.parents[2] / "systems" / f"{system}.json"
    stated = json_object(path)
    if isinstance(stated, dict):
        return stated
    notes.append(f"systems/{path.name}: {stated}; GPU, count and software are unknown")
    return {}


def _scaling_factor(pair: SystemBenchmark, notes: list[str]) -> float | None:
    path = pair.folder / "scaling.json"
    if not os.path.exists(path):
        return 1.0
    stated = json_object(path)
    factor = stated.get("scaling_factor") if isinstance(stated, dict) else None
    if (number := number_in(factor)) and number > 0:
        return number
    notes.append("scaling.json: no scaling_factor that is a positive number; there is no score without it")
    return None


def _software(stack: object) -> dict[str, str]:
    if isinstance(stack, str):
        stack = {"stack": stack}
    if not isinstance(stack, dict):
        return {}
    found = {str(name)[:LONGEST_FACT]: text for name, value in stack.items() if (text := fact(value))}
    return dict(list(found.items())[:MOST_FACTS])


def _read(path: Path, name: str) -> tuple[LibraryRun, MlperfContent, int]:
    """Return the first run of a result file, called `name`, its content, and its number of truncated events.

    Raises InputError.
    """
    hashed, torn = hashlib.sha256(), list[int]()

    def events(file: IO[bytes]) -> Iterator[Event]:
        while line := file.readline(MAX_LINE_BYTES):
            hashed.update(line)
            if _EVENT.search(line):
                yield from events_in(line.decode("utf-8", "replace"), 0, torn)

    with regular.open_regular(path) as file:
        content = collect(events(file))
    return _run(content.runs[0], content.settings, name, hashed.hexdigest()), content, len(torn)


def _run(run: MlperfEvents, settings: dict[str, Any], name: str, sha256: str) -> LibraryRun:
    status, seconds = _status(run)
    if seconds is None:
        return LibraryRun(file=name, sha256=sha256, status=status)
    evaluated = _closed(_within(run, run.evaluations), run)
    return LibraryRun(
        file=name,
        sha256=sha256,
        status=status,
        seconds=round(seconds, 3),
        training_seconds=_training(run, seconds, evaluated),
        evaluation_seconds=None if evaluated is None else round(evaluated, 3),
        samples=next(filter(None, (_samples(run.counts.get(key, {}), settings) for key in COUNTING)), None),
    )


def _samples(counts: dict[str, float], settings: dict[str, Any]) -> float | None:
    """Return the samples that a mark counts; gpt3 logs tokens as epoch_num."""
    count, tokens = counts.get("samples_count"), counts.get("epoch_num")
    length = number_in(settings.get("max_sequence_length"))
    if count is None and tokens and length and settings.get("submission_benchmark") == "gpt3":
        count = tokens / length
    return count if count and count > 0 else None


def _status(run: MlperfEvents) -> tuple[str, float | None]:
    """Return the status and the time to train, which only a run with both marks in order has."""
    if run.started is None:
        return "no run_start", None
    if run.stopped is None:
        return "no run_stop", None
    if run.stopped <= run.started:
        return "run_stop is not after run_start", None
    return run.status or "run_stop without a status", run.stopped - run.started


def _within(run: MlperfEvents, pairs: Pairs) -> Pairs:
    """Return the pairs that begin between run_start and run_stop."""
    return [pair for pair in pairs if (run.started or 0.0) <= pair[0] < (run.stopped or 0.0)]


def _closed(pairs: Pairs, run: MlperfEvents) -> float | None:
    """Return the seconds inside the pairs, or None without pairs, or where one is open or out of order."""
    stopped, total = run.stopped or 0.0, 0.0
    for begin, end in pairs:
        if end is None or not begin <= end <= stopped:
            return None
        total += end - begin
    return total if pairs else None


def _training(run: MlperfEvents, seconds: float, evaluated: float | None) -> float | None:
    """Return the seconds of training: inside blocks where all are closed, else all but evaluation.

    None where neither is known: evaluation would count as training.
    """
    outside = None if evaluated is None else seconds - evaluated
    blocks = _within(run, [(block.started, block.stopped) for block in run.blocks])
    in_blocks = _closed(blocks, run)
    if in_blocks is not None:
        in_blocks -= sum(run.evaluated_seconds(start, stop) for start, stop in blocks if stop is not None)
        if in_blocks > SHORTEST_IN_BLOCKS * (seconds if outside is None else outside):
            return round(in_blocks, 3)
    return None if outside is None or outside <= 0 else round(outside, 3)


def library_of(found: Found, read: Sequence[Entry], *, round: str) -> Library:
    """Return the library of one round, with its source, its licence and the benchmarks that were not read."""
    source = {
        "round": round,
        "source": f"https://github.com/mlcommons/training_results_{round}",
        "licence": _LICENCE,
        "not_read": dict(found.not_read),
        "empty": list(found.empty),
    }
    return Library(entries=tuple(sorted(read, key=lambda entry: entry.name)), sources=(source,))
