"""Atomic writing of files: no reader, kill or full disk leaves half a file."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from tensorprimat.system import processes

NO_PERMISSION = "no permission to write"
LONGEST_STEM_BYTES = 100  # of a temporary file's name: the whole name may have 255 bytes
WRITTEN_AT_ONCE_BYTES = 2**20  # one write of 20 MB took up to ten times as long as 20 of 1 MB (Linux 6.18, ext4)


def write_atomically(path: Path, content: str | bytes | Callable[[IO[bytes]], None]) -> None:
    """Write a whole file or nothing: temporary file in the same folder, fsync, rename. Raises OSError.

    content: the file's content, or a function that writes it where it is too large for memory. A device or a pipe
    (/dev/null) is written to as it is: renaming would put a file in its place.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        try:
            with path.open("wb") as device:
                _fill(device, content)
        except OSError as error:
            error.filename = str(path)  # a device that is full does not say its name
            raise
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    processes.sweep_once(path.parent)
    stem = os.fsencode(path.name)[:LONGEST_STEM_BYTES].decode(errors="ignore")
    temporary = path.parent / f".{stem}.{processes.PREFIX}{processes.owner()}-{os.urandom(4).hex()}.tmp"
    try:
        with _nameless(path.parent) or temporary.open("xb") as file:
            _fill(file, content)
            file.flush()
            os.fsync(file.fileno())
            if not os.path.exists(temporary):
                _give_name(file, temporary)
        os.replace(temporary, path)
    except BaseException as error:  # Ctrl-C too: no half-written file stays behind, and the error goes on
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and (error.filename is None or str(error.filename).startswith("/proc/")):
            error.filename = str(path)  # a full disk does not say which file
        raise


def unwritable(folder: Path) -> str | None:
    """Return the reason why nothing can be written in a folder, or None; create the folder if it does not exist."""
    if why := refused_folder(folder):
        return why
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return None


def refused_folder(folder: Path) -> str | None:
    """Return the reason why no file can be written in a folder, or None; the folder need not exist, and none is made.

    The reason is a phrase without its subject, unless the obstacle is a folder above this one. Raises FileNotFoundError
    for a relative path in a working folder that was deleted.
    """
    return _obstacle(folder, (folder, *folder.parents))


def refused_file(path: Path) -> str | None:
    """Return the reason why no file can be written at a path, or None; writes nothing, as `refused_folder`."""
    if os.path.isdir(path):
        return "a folder, not a file"
    if os.path.exists(path) and not os.path.isfile(path):  # a device or a pipe is written to as it is
        return None if os.access(path, os.W_OK) else NO_PERMISSION
    return _obstacle(path, path.parents)


def _obstacle(path: Path, places: Sequence[Path]) -> str | None:
    """Return the reason why the first of the places that exists takes nothing, or has no room for such names.

    places: folders in which the path lies or will lie, the innermost first.
    """
    existing = next(place for place in (*places, Path()) if os.path.lexists(place))
    subject = "" if existing == path else f"{existing} is "
    if not os.path.isdir(existing):
        leads_nowhere = os.path.islink(existing) and not os.path.exists(existing)
        return subject + ("a link that leads nowhere" if leads_nowhere else "a file, not a folder")
    inside = path.relative_to(existing)
    if existing == Path() and inside.parts[:1] == ("~",):
        return "the shell did not replace ~ by the home folder (write $HOME)"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.lstat(path)  # a path that is too long as a whole
        for name in inside.parts:
            with contextlib.suppress(FileNotFoundError):
                os.lstat(existing / name)
        with tempfile.TemporaryFile(dir=existing):
            pass
    except PermissionError:
        place = "this folder" if existing == Path() else existing
        return f"{NO_PERMISSION} in {place}" if subject else NO_PERMISSION
    except OSError as error:
        if isinstance(error, FileNotFoundError) and existing == Path():
            raise  # the working folder was deleted, as `of_file_system` reports
        return f"cannot be written ({error.strerror or error})"
    except ValueError as error:  # a null character in the name
        return f"cannot be written ({error})"
    return None


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
