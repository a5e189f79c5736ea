"""Safe opening of input files: regular files only, so that no pipe blocks a command, and nothing fills memory."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tensorprimat.core.errors import InputError, InternalError, MissingFileError

_NEVER_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a pipe waits for a writer, which may never come


UNUSABLE = (ValueError, ArithmeticError, RecursionError, MemoryError)
"""Errors of code that meets a value which no measurement has: not a number, too large, nested too deep."""


FAULTS = (*UNUSABLE, LookupError, TypeError, AttributeError, AssertionError)
"""Errors of a reader that has not checked its input."""
DEBUG = "TPRIMAT_DEBUG"
"""Environment variable that lets errors of a reader through, for a traceback; --debug and the test suite set it."""


@contextmanager
def reading(name: Path | str, place: str) -> Iterator[None]:
    """Turn an error of a reader into one that names the file and the reader, so that other files are still read.

    place: in the program, as the message names it. Raises InternalError for FAULTS, unless DEBUG is set.
    """
    try:
        yield
    except FAULTS as error:
        if os.environ.get(DEBUG):
            raise
        raise InternalError(f"internal error in {place} ({_reason(error)})", path=name) from error


@contextmanager
def debugging() -> Iterator[None]:
    """Let errors of readers pass, in this process and in those that it starts."""
    before = os.environ.get(DEBUG)
    os.environ[DEBUG] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[DEBUG]


@contextmanager
def naming_file(name: Path | str) -> Iterator[None]:
    """Turn an error about a value into one that names the file; every reader of an input file runs inside this guard.

    Raises InputError for UNUSABLE. Errors of this program and OSError pass unchanged.
    """
    try:
        yield
    except UNUSABLE as error:
        raise InputError(f"holds a value that cannot be used ({_reason(error)})", path=name) from error


def _reason(error: BaseException) -> str:
    first = (str(error).splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def resolved(path: Path) -> Path:
    """Return a path as absolute, its links followed as far as they lead: Path.resolve fails on links in a circle."""
    return Path(os.path.realpath(path))


def file_state(path: Path) -> tuple[int, ...]:
    """Return values that change when a file grows, is truncated or replaced; () while there is no file."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: a null character in the name
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


def refused_listing(path: Path) -> str | None:
    """Return the reason why a path is no folder whose files can be listed; None for a folder."""
    try:
        os.scandir(path).close()
    except (FileNotFoundError, NotADirectoryError):
        if os.path.exists(path):
            return "a file, not a folder"
        return "a link that leads nowhere" if os.path.islink(path) else "no such folder"
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"
    return None


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file for reading. Raises InputError for everything else, without waiting."""
    try:
        handle = os.open(path, os.O_RDONLY | _NEVER_WAIT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise MissingFileError("no such file", path=path) from None
    except IsADirectoryError:
        raise InputError("a folder, not a file", path=path) from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", path=path) from error
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise InputError("a folder, not a file", path=path)
    raise InputError("is a pipe or a device, not a file", path=path, remedy="name a regular file")


def content(path: Path, *, most_bytes: int) -> bytes:
    """Return all bytes of a regular file. Raises InputError for one that is larger than `most_bytes` or unreadable."""
    with open_regular(path) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            if size <= most_bytes:
                found = file.read(size + 1)  # a buffer of most_bytes would cost more than reading a small file
                if len(found) > size:  # it grew meanwhile
                    found += file.read(most_bytes + 1 - len(found))
                if len(found) <= most_bytes:
                    return found
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}", path=path) from error
    raise InputError(f"more than {most_bytes // 2**20} MiB, which no file of this kind has", path=path)


def text_of_file(path: Path, *, most_bytes: int) -> str:
    """Return a regular file's UTF-8 text. Raises InputError as `content` does, and for a file that is not text."""
    try:
        return content(path, most_bytes=most_bytes).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("not UTF-8 text", path=path) from None


def json_document(content: bytes, path: Path, what: str, *, constants: Callable[[str], Any] | None = None) -> Any:
    """Return the content of a JSON document. Raises InputError for another one. what: kind of file, for the message.

    constants: function that returns the value of NaN and Infinity, by default that of Python.
    """
    try:
        return json.loads(content, parse_constant=constants)
    except UnicodeDecodeError:
        raise InputError(f"not text: {what} is a JSON file", path=path) from None
    except json.JSONDecodeError as error:
        raise InputError(f"invalid JSON: {error.msg}", path=path, line=error.lineno) from None
    except (RecursionError, ValueError) as error:  # nested thousands deep, or a number of thousands of digits
        raise InputError(f"JSON that cannot be read: {error}", path=path) from None


MOST_YAML_VALUES = 100_000  # with aliases and merge keys expanded, which can double with every line


def yaml_in(text: str) -> Any:
    """Return the content of a YAML document.

    Raises yaml.YAMLError for another text, and ValueError for a document with too many values, or that contains itself.
    """
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _expanded(node, {}) > MOST_YAML_VALUES:
            raise ValueError(f"more than {MOST_YAML_VALUES} values")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _expanded(node: Any, sizes: dict[int, float]) -> float:
    """Return the number of values and keys of a YAML node, infinite if it contains itself. sizes: of nodes, by id."""
    if id(node) not in sizes:
        sizes[id(node)] = math.inf
        parts = node.value if isinstance(node.value, list) else ()
        within = (inner for part in parts for inner in (part if isinstance(part, tuple) else (part,)))
        sizes[id(node)] = 1 + sum(_expanded(inner, sizes) for inner in within)
    return sizes[id(node)]
