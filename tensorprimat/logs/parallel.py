"""A large text read in stretches by several processes, because threads would wait for the interpreter's lock.

A copy of this process reads each stretch. Where copies are not safe (elsewhere than on Linux), in a process that is
itself one of many, and for text that is packed or short, this process reads all of it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, TypeVar

from tensorprimat.core.errors import InputError
from tensorprimat.logs import files
from tensorprimat.logs.text import Log
from tensorprimat.system import processes
from tensorprimat.system.processes import usable_cores

STRETCH_BYTES = 2**28  # at most: the findings of a process are held twice while they are saved
WORTH_PROCESSES_BYTES = 2**27  # read in a fifth of a second, where a process takes a hundredth to begin and to end
MOST_PROCESSES = 8

StretchOutcome = TypeVar("StretchOutcome")


class Stretch(NamedTuple):
    """Whole lines of a text, from byte `start` to before byte `stop`."""

    start: int
    stop: int


def _processes() -> int:
    return min(usable_cores(), MOST_PROCESSES)


def stretches(log: Log, *, first_bytes: int) -> list[Stretch]:
    """Return the stretches of a log that together are all of it; none where it is better read as a whole.

    first_bytes: of the first one, about.
    """
    rest = log.size_bytes - first_bytes
    alone = sys.platform != "linux" or usable_cores() == 1 or multiprocessing.parent_process() is not None
    if alone or rest < WORTH_PROCESSES_BYTES or log.is_binary or not files.has_its_own_bytes(log.path):
        return []
    rounds = -(-rest // (STRETCH_BYTES * _processes()))  # as many stretches as keep every processor busy to the end
    starts = [0, *files.line_starts(log.path, range(first_bytes, log.size_bytes, -(-rest // (rounds * _processes()))))]
    return [Stretch(*ends) for ends in zip(starts, [*starts[1:], sys.maxsize], strict=True)]  # it may still grow


@contextlib.contextmanager
def outcomes(
    work: Callable[[Stretch], StretchOutcome], stretches: Sequence[Stretch]
) -> Iterator[Iterator[StretchOutcome]]:
    """Provide the result of `work`, which can be pickled, on each stretch, in their order, by a process per processor.

    They begin at once, and none is left when the context ends. Raises the errors of `work`. A stretch without an answer
    is read in this process: where no process could be started, or one was killed, which ends the others as well.
    """
    if not stretches:
        yield iter(())
        return
    others = set(multiprocessing.active_children())
    number, fork = min(_processes(), len(stretches)), multiprocessing.get_context("fork")
    with processes.scratch_folder() as folder:
        pool = ProcessPoolExecutor(number, fork, processes.die_with_parent, (os.getpid(),))
        try:
            answers = _submitted(pool, [partial(_saved, folder, work, stretch) for stretch in stretches])
            yield (_outcome(work, *each) for each in zip_longest(stretches, answers))
        finally:
            started = set(multiprocessing.active_children()) - others
            for process in started:
                process.kill()  # the pool would wait for its work; it holds nothing to save
            pool.shutdown(cancel_futures=True)
            for process in started:
                process.join()  # the pool does not know those that were started before one could not be


def _submitted(pool: ProcessPoolExecutor, tasks: Sequence[Callable[[], Path | None]]) -> list[Future[Path | None]]:
    """Start the processes, which ignore Ctrl-C: a terminal sends it to all of them, and the reader ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return list(map(pool.submit, tasks))
    except OSError:  # this user may start no more processes, or open no more files
        return []
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _saved(folder: Path, work: Callable[[Stretch], object], stretch: Stretch) -> Path | None:
    """Save what was found in a stretch; return None if that fails, so that the reader does the work and raises why.

    A file holds it, because the reader would wait forever for the rest of a long answer whose process was killed.
    """
    file = folder / str(stretch.start)
    try:
        file.write_bytes(pickle.dumps(work(stretch), pickle.HIGHEST_PROTOCOL))
    except (InputError, MemoryError, OSError):
        return None
    return file


def _outcome(
    work: Callable[[Stretch], StretchOutcome], stretch: Stretch, answer: Future[Path | None] | None
) -> StretchOutcome:
    try:
        file = answer.result() if answer else None
    except BrokenProcessPool:
        file = None
    if file is None:
        return work(stretch)
    found: StretchOutcome = pickle.loads(file.read_bytes())
    file.unlink()
    return found
