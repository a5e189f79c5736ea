"""SHA-256 of files as they are on disk; that of a large one is computed in a second thread while the file is read."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

from tensorprimat.core.errors import InputError
from tensorprimat.system import regular

WORTH_A_THREAD_BYTES = 2**20  # starting one takes as long as hashing a few hundred kilobytes
DIGEST_BLOCK_BYTES = 2**20  # stays in the cache of a core from reading to hashing


class Digest:
    """The digest of one regular file; of a large one it is computed in a second thread."""

    def __init__(self, path: Path) -> None:
        self._path, self._hash, self._size_bytes = path, hashlib.sha256(), 0
        self._problem: InputError | None = None
        self._thread: threading.Thread | None = None
        if not os.path.isfile(path) or path.stat().st_size < WORTH_A_THREAD_BYTES:
            self._run()
            return
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        block = memoryview(bytearray(DIGEST_BLOCK_BYTES))
        try:
            with regular.open_regular(self._path) as file:
                while count := file.readinto(block):  # type: ignore[attr-defined]
                    self._hash.update(block[:count])
                    self._size_bytes += count
        except InputError as error:
            self._problem = error
        except OSError as error:
            self._problem = InputError(f"cannot be read: {error.strerror or error}", path=self._path)

    def done(self) -> tuple[str, int]:
        """Return the digest and the number of bytes that it covers, after all are read.

        A log that grows while it is read has another size by then. Raises InputError for a file that could not be read.
        """
        if self._thread is not None:
            self._thread.join()
        if self._problem is not None:
            raise self._problem
        return self._hash.hexdigest(), self._size_bytes


def sha256(path: Path) -> str:
    """Return the SHA-256 of a regular file. Raises InputError where it cannot be read."""
    return Digest(path).done()[0]
