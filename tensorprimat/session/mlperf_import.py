"""Import of a whole MLPerf round: its entries read by several processes, joined to a library with its source."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from tensorprimat.core import processes
from tensorprimat.core.errors import RunError
from tensorprimat.core.mlperf_library import Entry, Library
from tensorprimat.core.processes import usable_cores
from tensorprimat.logs.mlperf import round as mlperf_round

MOST_WORKERS = 16
WORTH_A_PROCESS = 8  # pairs; starting a process costs as much as reading a few
LICENCE = "Apache-2.0"


def entries(found: mlperf_round.Found) -> Iterator[Entry]:
    """Return the entries of a round one by one as they are read. Raises RunError where a process is killed."""
    workers = min(usable_cores(), MOST_WORKERS, len(found.pairs) // WORTH_A_PROCESS)
    if workers < 2:
        yield from map(mlperf_round.read, found.pairs)
        return
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, fresh, initializer=_begin, initargs=(os.getpid(),)) as pool:
        try:
            yield from pool.map(mlperf_round.read, found.pairs)
        except BrokenProcessPool as error:
            raise RunError("a process that read files was killed, perhaps because memory ran out") from error


def library(found: mlperf_round.Found, read: list[Entry], *, round: str) -> Library:
    """Return the library of one round, with its source, licence and what was not read."""
    source = {
        "round": round,
        "source": f"https://github.com/mlcommons/training_results_{round}",
        "licence": LICENCE,
        "not_read": dict(found.not_read),
        "empty": list(found.empty),
    }
    return Library(entries=tuple(sorted(read, key=lambda entry: entry.name)), sources=(source,))


def find(folder: Path, round: str) -> mlperf_round.Found:
    """Return what a round's folder holds. Raises InputError for a folder that is no round."""
    return mlperf_round.find(folder, round)


def _begin(parent: int) -> None:
    """Leave Ctrl-C to the first process and end with it."""
    processes.die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
