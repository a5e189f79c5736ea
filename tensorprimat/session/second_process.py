"""A second process that takes over part of a command's work, where this system forks safely and has two cores."""

from __future__ import annotations

import contextlib
import functools
import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from tensorprimat.core import processes
from tensorprimat.core.processes import usable_cores

Aside = Callable[..., Callable[[], Any]]
"""aside(function, *arguments) starts the call and returns a function that waits for its result or raises its error."""


@contextlib.contextmanager
def second_process() -> Iterator[Aside]:
    """Yield an Aside. On other systems than Linux, and on one core, this process does the work when its result is
    requested.

    The first call forks the second process from this one, so an early call copies less memory.
    """
    if sys.platform != "linux" or usable_cores() == 1:
        yield functools.partial
        return
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork"), _begin, (os.getpid(),)) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection while thousands of files are read: it would scan all of them again and again.

    The objects are excluded from later collections, too, because they live until the command ends.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _begin(parent: int) -> None:
    """Ignore Ctrl-C, which the parent process handles, and end with that process."""
    processes.die_with_parent(parent)
    gc.disable()  # it does one piece of work and hands over all of it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
