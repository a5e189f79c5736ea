"""A large text read in stretches by several processes, because threads would wait for the interpreter's lock.

A copy of this process reads each stretch; it ends after it has sent its findings, or when the reader is gone; nothing
is left behind whatever happens to the reader. Where copies are not safe (elsewhere than on Linux), in a process that is
itself one of many, and for text that is packed or short, this process reads all of it.

concurrent.futures cannot be used here: before Python 3.14 it cannot end a process at work, and one that is killed costs
the outcomes of all.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import register_after_fork
from typing import NamedTuple, TypeVar

from tensorprimat.core import processes
from tensorprimat.core.errors import InputError
from tensorprimat.core.processes import usable_cores
from tensorprimat.logs import files
from tensorprimat.logs.text import Log

STRETCH_BYTES = 2**28  # at most: the findings of a process are held twice while they are sent
WORTH_PROCESSES_BYTES = 2**27  # read in a fifth of a second, where a process takes a hundredth to begin and to end
MOST_PROCESSES = 8

StretchOutcome = TypeVar("StretchOutcome")


class Stretch(NamedTuple):
    """Whole lines of a text, from byte `start` to before byte `stop`."""

    start: int
    stop: int


class _Running(NamedTuple):
    process: BaseProcess
    answer: Connection
    stretch: Stretch


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
    """Provide the result of `work` on each stretch, in their order, computed by one process per processor.

    They begin at once. Raises the errors of `work`. A stretch whose process gives no answer, because it was ended or
    could not be started, is read in this process.
    """
    waiting, running = deque(stretches), deque[_Running]()
    try:
        _begin(work, waiting, running)
        yield _in_order(work, waiting, running)
    finally:
        for process in running:
            _end(process)


def _begin(work: Callable[[Stretch], StretchOutcome], waiting: deque[Stretch], running: deque[_Running]) -> None:
    # OSError: this user may start no more processes, or open no more files. Those that run do the rest.
    with contextlib.suppress(OSError):
        while waiting and len(running) < _processes():
            running.append(_started(work, waiting[0]))
            waiting.popleft()


def _started(work: Callable[[Stretch], StretchOutcome], stretch: Stretch) -> _Running:
    context = multiprocessing.get_context("fork")
    answer, question = context.Pipe(duplex=False)
    register_after_fork(
        answer, Connection.close
    )  # a copy with this end open would keep the pipes of other copies alive after the reader has ended
    process = context.Process(target=_answer, args=(os.getpid(), question, work, stretch), daemon=True)
    with question, _interrupts_ignored():
        process.start()
    return _Running(process, answer, stretch)


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Let processes that are started inside ignore Ctrl-C, which a terminal sends to all: the reader ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _in_order(
    work: Callable[[Stretch], StretchOutcome], waiting: deque[Stretch], running: deque[_Running]
) -> Iterator[StretchOutcome]:
    while waiting or running:
        if not running:
            yield work(waiting.popleft())
            _begin(work, waiting, running)
            continue
        try:
            outcome: StretchOutcome = running[0].answer.recv()
        except (EOFError, OSError):  # OSError: it was ended in the middle of its answer
            outcome = work(running[0].stretch)
        _end(running.popleft())
        _begin(work, waiting, running)
        yield outcome


def _end(running: _Running) -> None:
    """Kill the process: the copied program may ignore other signals, and the process holds nothing to save."""
    running.answer.close()
    running.process.kill()
    running.process.join()


def _answer(reader: int, question: Connection, work: Callable[[Stretch], StretchOutcome], stretch: Stretch) -> None:
    processes.die_with_parent(reader)
    # Without an answer the reader does the work and raises its error. The pipe is broken if the reader has ended.
    with question, contextlib.suppress(InputError, MemoryError, BrokenPipeError):
        question.send(work(stretch))
