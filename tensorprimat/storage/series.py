"""Series files: the steps of a very long result, in a file next to its JSON, named after its content.

A file is written whole before a JSON names it, and no other content ever takes its name, so a result and its steps
cannot be mixed up. The JSON keeps the whole hash (`series_sha256`), which is checked before anything is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from tensorprimat.core.errors import InputError, MissingFileError
from tensorprimat.core.quantities import count
from tensorprimat.core.steps import COLUMNS, FLOAT_COLUMNS, INTERRUPTIONS, Steps
from tensorprimat.system import digest, regular

LARGEST_SERIES_BYTES = 2**30  # ten million rows of twelve columns
NAME_DIGITS = 16  # of the hash in the file's name; the JSON has all of it
_OWN_NAME = re.compile(rf"series_[0-9a-f]{{{NAME_DIGITS}}}\.npz")
NAN_PREFIX = "nan:"
_REMEDY = "copy it again from where it was written, or extract the log again"
BROKEN = (
    ValueError, OSError, EOFError, KeyError, TypeError, MemoryError, NotImplementedError, RuntimeError, OverflowError,
    SyntaxError, zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError,
)  # fmt: skip
"""Errors of numpy and zipfile for a file whose bytes were changed."""


def to_bytes(steps: Steps) -> bytes:
    """Return the content of the series file of some steps; equal steps give equal bytes."""
    columns = {name: steps.column(name) for name in steps.seen}
    masks = {NAN_PREFIX + name: mask for name in steps.seen if (mask := steps.logged_nan(name)).any()}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **columns, **masks)
    return file.getvalue()  # a view of it in a cycle of objects makes Python 3.13 and later print an error


def series_file_name(sha256: str) -> str:
    """Return the name of the series file whose content has this SHA-256."""
    return f"series_{sha256[:NAME_DIGITS]}.npz"


def is_own_name(name: str) -> bool:
    """Return True for a name that `series_file_name` gives."""
    return _OWN_NAME.fullmatch(name) is not None


def is_whole(path: Path, sha256: str) -> bool:
    """Return True if a file exists and has this SHA-256."""
    with contextlib.suppress(InputError):
        return digest.sha256(path) == sha256
    return False


def read_series(path: Path, name: str, *, sha256: str | None) -> Steps:
    """Return the steps of a series file that a JSON names.

    path: the JSON. Raises InputError for a file that is missing, damaged or of another result.
    """
    if Path(name).name != name:
        raise InputError(f"series_file {name!r} is not a plain file name", path=path)
    try:
        content = regular.content(path.parent / name, most_bytes=LARGEST_SERIES_BYTES)
    except MissingFileError:
        raise MissingFileError(
            f"its step series {name} is missing", path=path, remedy="copy it into the folder of the JSON file"
        ) from None
    except InputError as error:
        raise InputError(f"its step series {name} {error.what}", path=path) from error
    if sha256 is None:
        raise InputError(f"its step series {name} has no hash (series_sha256)", path=path, remedy=_REMEDY)
    if sha256_of(content) != sha256:
        raise InputError(f"its step series {name} is damaged or of another result", path=path, remedy=_REMEDY)
    try:
        return from_bytes(content)
    except BROKEN as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"its step series {name} cannot be read: {first}", path=path, remedy=_REMEDY) from error


def sha256_of(content: bytes) -> str:
    """Return the hash that the JSON keeps."""
    return hashlib.sha256(content).hexdigest()


def from_bytes(content: bytes) -> Steps:
    """Return the steps of a series file. Raises one of BROKEN for a file that is not a series file."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > len(content):
            raise ValueError(f"claims to hold {count(unpacked)} bytes in {count(len(content))}")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        found = {name: arrays[name] for name in arrays.files}
    columns = {name: _column(name, values) for name, values in found.items() if not name.startswith(NAN_PREFIX)}
    masks = {name: _of_kind(name, values, "b") for name, values in found.items() if name.startswith(NAN_PREFIX)}
    return Steps(columns, logged_nan={name.removeprefix(NAN_PREFIX): mask for name, mask in masks.items()})


def _column(name: str, values: Any) -> Any:
    if name not in COLUMNS:
        raise ValueError(f"no such column: {name}")
    if name in FLOAT_COLUMNS:
        return _of_kind(name, values, "fiu").astype(np.float64, copy=False)
    whole = _of_kind(name, values, "iub")
    if name == "interrupted_by" and len(whole) and not 0 <= whole.min() <= whole.max() < len(INTERRUPTIONS):
        raise ValueError("interrupted_by holds a number without a meaning")
    return whole


def _of_kind(name: str, values: Any, kinds: str) -> Any:
    if values.ndim != 1 or values.dtype.kind not in kinds:
        raise ValueError(f"column {name} is {values.ndim}-dimensional {values.dtype}")
    return values


def remove_unnamed(folder: Path, name: str) -> None:
    """Remove a series file that no JSON of a folder names any more, after its only JSON was replaced."""
    if not is_own_name(name):
        return  # somebody else's
    encoded = name.encode()
    with contextlib.suppress(InputError, OSError):
        for path in folder.glob("*.json"):
            if os.path.isfile(path) and path.stat().st_size <= LARGEST_SERIES_BYTES and encoded in path.read_bytes():
                return
        os.unlink(folder / name)
