"""Whole rounds of MLPerf Training: SUBMITTER/results/SYSTEM/BENCHMARK/result_*.txt and SUBMITTER/systems/SYSTEM.json.

`find_round_entries` lists the entries of a folder, `read_entry` turns one system's runs of one benchmark into an entry
of the library. A fact that cannot be read becomes a note of its entry; nothing is filled in for it.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorprimat.core import catalogue, mlperf_rules, regular, settings
from tensorprimat.core.errors import InputError
from tensorprimat.core.mlperf_library import Entry, LibraryRun
from tensorprimat.core.quantities import counted
from tensorprimat.logs.fields import number_in
from tensorprimat.logs.files import with_numbers
from tensorprimat.logs.mlperf import marks as mlperf_marks
from tensorprimat.logs.mlperf.events import configuration_of
from tensorprimat.logs.mlperf.system import LONGEST_FACT, described, fact, json_object

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
    known = {row.name for row in mlperf_rules.benchmarks()}
    pairs, not_read, empty, results = [], Counter[str](), [], 0
    for folder in sorted(root.glob("*/results/*/*")):
        if not os.path.isdir(folder):
            continue
        files = [path for path in folder.glob("result_*.txt") if os.path.isfile(path)]
        files.sort(key=lambda path: with_numbers(path.name))
        results += len(files)
        if folder.name not in known:
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
            run, marks = mlperf_marks.read_marks(path, name)
        except (InputError, OSError) as error:
            reason = error.what if isinstance(error, InputError) else error.strerror
            notes.append(f"{path.name}: {reason}; it counts as a failed run")
            runs.append(LibraryRun(file=name, sha256="", status="cannot be read"))
            continue
        runs.append(run)
        settings.append(configuration_of(marks.settings))
        if not run.succeeded:
            notes.append(f"{path.name}: {run.status}; it counts as a failed run")
        if marks.torn:
            notes.append(f"{path.name}: {counted(marks.torn, 'truncated line')} of the MLPerf log skipped")
        if marks.more_runs:
            notes.append(f"{path.name}: more than one run; the first one counts")
        benchmark = marks.settings.get("submission_benchmark")
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
