"""Every error of TensorPrimat that a user can cause or repair.

TensorPrimatError               one line: where, what, what to do
├── UsageError            (2)   flags that are wrong, clash, or cannot work here
│   └── DoesNotFitError   (2)   a configuration that needs more devices or memory than there are
├── InputError            (2)   a file that cannot be read as the expected kind
│   ├── MissingFileError  (2)   a file that does not exist
│   ├── NotALogError      (2)   a readable file that contains no step times
│   │   └── NoFormatError (2)   a text in which no known format recognises anything
│   ├── InternalError     (2)   a reader failed on a file that it should have read or refused
│   └── ContradictionError(2)   a log whose own clock contradicts the figures read from it
├── MissingPackageError   (2)   an optional dependency is not installed
└── RunError              (1)   training started, or should have, and did not finish
    └── OutOfMemoryError  (1)   the device's memory was not enough

The command line prints the message as one line on stderr and exits with `exit_code`.
"""

from __future__ import annotations

import copyreg
import errno
import os
from os import PathLike
from typing import Any


class TensorPrimatError(Exception):
    """Base of all errors that are reported to the user as one line, without a traceback."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """Let an error pass between processes whole, whatever arguments its class takes."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class UsageError(TensorPrimatError):
    """A flag or an argument is wrong; the message names it."""

    exit_code = 2


class DoesNotFitError(UsageError):
    """A configuration that cannot be divided among the devices, or needs more memory than one has."""

    def __init__(self, problem: str, *, remedy: str, because: str) -> None:
        self.problem = problem
        """First part of the message; the remedy follows it."""
        self.because = because
        """Phrase without a remedy, whose subject is the configuration."""
        super().__init__(f"{problem}; {remedy}")


class InputError(TensorPrimatError):
    """A file cannot be used; the message says where, what and what to do.

    >>> str(InputError("no elapsed time", path="primus.log", line=120, remedy="try --format nemo"))
    'primus.log:120: no elapsed time; try --format nemo'
    """

    exit_code = 2

    def __init__(
        self, what: str, *, path: str | PathLike[str] | None = None, line: int | None = None, remedy: str | None = None
    ) -> None:
        self.what, self.path, self.line, self.remedy = what, path, line, remedy
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(f"{where}{what}" + (f"; {remedy}" if remedy else ""))


class MissingFileError(InputError):
    """A file does not exist."""


class ReportError(InputError):
    """A file is a report that this program made from results, not a result."""


class NotALogError(InputError):
    """The file is readable but no known format finds usable step timing in it."""


class ContradictionError(InputError):
    """A log whose own clock contradicts the figures read from it, so that none of them can be trusted."""


class InternalError(InputError):
    """A reader failed on a file that it should have read or refused: an error of this program."""

    def __init__(self, what: str, *, path: str | PathLike[str] | None = None) -> None:
        remedy = "please report it with what --debug prints; no figure is taken from the file"
        super().__init__(what, path=path, remedy=remedy)


class NoFormatError(NotALogError):
    """Nothing in the file is of any known format: it is something else than a training log."""


class MissingPackageError(TensorPrimatError):
    """An optional package is missing for the requested work.

    >>> str(MissingPackageError("openpyxl", needed_for="Excel profiles"))
    'Excel profiles need the package openpyxl, which is not installed; pip install openpyxl'
    """

    exit_code = 2

    def __init__(self, package: str, *, needed_for: str) -> None:
        super().__init__(f"{needed_for} need the package {package}, which is not installed; pip install {package}")


class RunError(TensorPrimatError):
    """A run could not start, failed, was interrupted, or could not save its result."""


class OutOfMemoryError(RunError):
    """The device ran out of memory; the message names configuration and remedies."""


MAKE_ROOM = "make room there, or write to another disk"
"""Remedy for a full disk, also where a training's output states it (system/failures)."""
_REMEDIES = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), f"; {MAKE_ROOM}") | dict.fromkeys(
    (errno.EACCES, errno.EPERM, errno.EROFS), "; name a path that you may use"
)


def of_file_system(error: OSError) -> str:
    """Return an error of the file system in one line: where, what, and what to do where that is known.

    >>> of_file_system(PermissionError(errno.EACCES, "Permission denied", "/root/x"))
    '/root/x: Permission denied; name a path that you may use'
    """
    if error.errno == errno.ENOENT and not os.path.isabs(str(error.filename or "")):
        try:
            os.getcwd()
        except FileNotFoundError:
            return "the working folder was deleted; change to another folder"
    return f"{error.filename or 'file system'}: {error.strerror or error}{_REMEDIES.get(error.errno or 0, '')}"
