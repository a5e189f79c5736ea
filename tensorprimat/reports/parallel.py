"""Pictures drawn at the same time as each other, by a second process that gets ready while results are still read."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorprimat.analysis.records import Comparison

Pictures = dict[str, bytes]
"""A picture's files by their format, such as "png"."""

Draw = Callable[[Callable[["Comparison"], Pictures], "Comparison"], Callable[[], Pictures]]
"""Begins to draw what a renderer gives; calling what it returns gives it, or raises what the renderer raised."""


@contextlib.contextmanager
def drawing() -> Iterator[Draw]:
    """Lend a function that draws while the caller does something else.

    The earlier this is entered the better: the second process begins as a copy of this one, and loads matplotlib
    meanwhile. Where a system does not fork safely, a picture is drawn when it is asked for.
    """
    if sys.platform != "linux" or (os.cpu_count() or 1) == 1:
        yield functools.partial
        return
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork"), _leave_interrupts) as pool:
        pool.submit(_get_ready)
        yield lambda render, comparison: pool.submit(render, comparison).result


def _leave_interrupts() -> None:
    """Ctrl-C reaches the whole group of processes; the one that started the others answers it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _get_ready() -> None:
    from tensorprimat.reports import plots

    if plots.can_draw():
        plots.load()
