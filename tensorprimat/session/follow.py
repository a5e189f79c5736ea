"""The work of `extract --follow`: compute the figures of a log again whenever it grows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tensorprimat import logs
from tensorprimat.core.errors import InputError, NotALogError, UsageError
from tensorprimat.core.statements import Statement, facts_for
from tensorprimat.session.explain import one_liner

FOLLOW_SECONDS = 2.0  # between two looks at a growing log; longer where reading it takes longer


def follow(paths: Sequence[str], stated: Sequence[Statement], format: str | None) -> Iterator[str]:
    """Yield a line for each growth of the log, without end.

    Raises UsageError for anything but one file, InputError for a file that cannot be read.
    """
    if len(paths) != 1 or paths[0] == logs.STDIN:
        raise UsageError("--follow watches one file")
    path, seen = Path(paths[0]), None
    logs.Log(path).opening(1)  # what cannot be read is refused at once
    yield f"following {path}; Ctrl-C ends it and writes the result"
    while True:
        started = time.monotonic()
        if (state := _state(path)) != seen:
            seen = state
            yield _progress(path, stated, format)
        time.sleep(max(FOLLOW_SECONDS, 5 * (time.monotonic() - started)))


def _state(path: Path) -> tuple[int, ...]:
    """Return values that change when a log grows, is truncated or replaced; () if there is no log at the moment."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _progress(path: Path, stated: Sequence[Statement], format: str | None) -> str:
    """Return the present figures of a growing log. Launchers create it empty, and rotation removes it for a moment."""
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
