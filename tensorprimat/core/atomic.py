"""Atomic writing of files: no reader, kill or full disk leaves half a file."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tensorprimat.core import processes

WRITTEN_AT_ONCE_BYTES = 2**20  # one write of 20 MB took up to ten times as long as 20 of 1 MB (Linux 6.18, ext4)


def write_atomically(path: Path, content: str | bytes | Callable[[IO[bytes]], None]) -> None:
    """Write a whole file or nothing: temporary file in the same folder, fsync, rename. Raises OSError.

    content: the file's content, or a function that writes it where it is too large for memory. A device or a pipe
    (/dev/null) is written to as it is: renaming would put a file in its place.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as device:
            _fill(device, content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    processes.sweep_once(path.parent)
    temporary = path.parent / f".{path.name[:100]}.{processes.PREFIX}{processes.owner()}-{os.urandom(4).hex()}.tmp"
    try:
        with _nameless(path.parent) or temporary.open("xb") as file:
            _fill(file, content)
            file.flush()
            os.fsync(file.fileno())
            if not temporary.exists():
                _give_name(file, temporary)
        os.replace(temporary, path)
    except BaseException as error:  # Ctrl-C too: no half-written file stays behind, and the error goes on
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and (error.filename is None or str(error.filename).startswith("/proc/")):
            error.filename = str(path)  # a full disk does not say which file
        raise


def impossible(path: Path) -> str | None:
    """Return the reason why nothing can have this path, such as a name that is too long; None if something could."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        return error.strerror or str(error) if isinstance(error, OSError) else str(error)
    return None


def unwritable(folder: Path) -> str | None:
    """Return the reason why nothing can be written in a folder, or None; create the folder if it does not exist."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return None if os.access(folder, os.W_OK | os.X_OK) else "no permission to write"


def _fill(file: IO[bytes], content: str | bytes | Callable[[IO[bytes]], None]) -> None:
    if callable(content):
        content(file)
        return
    # "replace": a text may contain the name of a file that is not UTF-8
    whole = memoryview(content.encode(errors="replace") if isinstance(content, str) else content)
    for start in range(0, len(whole), WRITTEN_AT_ONCE_BYTES):
        file.write(whole[start : start + WRITTEN_AT_ONCE_BYTES])


def _give_name(file: IO[bytes], path: Path) -> None:
    here = f"/proc/self/fd/{file.fileno()}"
    try:  # the path is absolute; any src_dir_fd makes CPython call linkat, which follows this symbolic link
        os.link(here, path, src_dir_fd=file.fileno(), follow_symlinks=True)
    except OSError:  # a file system that creates nameless files but cannot link them
        shutil.copyfile(here, path)


def _nameless(folder: Path) -> IO[bytes] | None:
    """Return a file without a name, which vanishes if this process is killed; None where the system has none."""
    with contextlib.suppress(AttributeError, OSError):  # elsewhere than on Linux, or a file system that cannot
        handle = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        if os.path.exists(f"/proc/self/fd/{handle}"):
            return os.fdopen(handle, "wb")
        os.close(handle)
    return None
