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
"""aside(function, *arguments) begins the call; calling what it returns gives the outcome, or raises what was raised."""


@contextlib.contextmanager
def second_process() -> Iterator[Aside]:
    """Lend an Aside; elsewhere than on Linux, and on one core, the work is done in this process when its outcome is
    requested.

    The second process begins with the first call, as a copy of this one: the earlier, the smaller.
    """
    if sys.platform != "linux" or usable_cores() == 1:
        yield functools.partial
        return
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork"), _begin, (os.getpid(),)) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Read thousands of files without the search for cycles, which would pass over all of them again and again.

    What was read is kept out of that search afterwards too: it lives until the command ends.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _begin(parent: int) -> None:
    """Leave Ctrl-C, which reaches the whole group of processes, to the one that started the others; end with it."""
    processes.die_with_parent(parent)
    gc.disable()  # it does one piece of work and hands over all of it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
