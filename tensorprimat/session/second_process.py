"""Processes that do part of a command's work: a fork of this one, or fresh ones for many files."""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from tensorprimat.core.errors import RunError
from tensorprimat.machine import host_memory
from tensorprimat.system import processes
from tensorprimat.system.failures import KILLED_FOR_MEMORY, LOST
from tensorprimat.system.processes import usable_cores

MOST_WORKERS = 16  # number of processes; more would only wait for the disk

FileItem = TypeVar("FileItem")
FileContent = TypeVar("FileContent")
StartCall = Callable[..., Callable[[], Any]]
"""start_call(function, *arguments) starts the call; returns a function that waits for its result or error."""


@contextlib.contextmanager
def second_process() -> Iterator[StartCall]:
    """Yield a StartCall, which runs a function in a second process.

    On other systems than Linux, and on one core, this process does the work when its result is requested. The first
    call forks the second process from this one, so an early call copies less memory.
    """
    if sys.platform != "linux" or usable_cores() == 1:
        yield functools.partial
        return
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork"), _begin, (os.getpid(),)) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection while thousands of files are read: it would scan all their objects repeatedly.

    The objects are excluded from later collections too, because they live until the command ends.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _begin(parent: int) -> None:
    """Ignore Ctrl-C, which the parent process handles, and end when the parent ends."""
    processes.die_with_parent(parent)
    gc.disable()  # this process does one task and returns nearly every object that it makes
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def in_processes(
    read: Callable[[FileItem], FileContent], items: Sequence[FileItem], *, worth: int, at_once: int = 1
) -> Iterator[FileContent]:
    """Yield `read` of each item, in their order; several processes read them if there are many.

    worth: number of items for which starting a process pays. at_once: number of items that a process gets at a time.
    Raises RunError where the system kills a process.
    """
    workers = min(usable_cores(), MOST_WORKERS, len(items) // worth)
    if workers < 2:
        yield from map(read, items)
        return
    kills = host_memory.KillWatch()
    # Fresh processes: a fork could copy a lock that a thread of numpy or of the progress bar holds at that moment.
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, fresh, initializer=_begin_reading, initargs=(os.getpid(),)) as pool:
        try:
            yield from pool.map(read, items, chunksize=at_once)
        except BrokenProcessPool as error:
            raise RunError(f"a process that read files {KILLED_FOR_MEMORY if kills.killed() else LOST}") from error


def _begin_reading(parent: int) -> None:
    """Let Ctrl-C end this worker without a message (the parent prints one), and end it when the parent ends."""
    processes.die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
