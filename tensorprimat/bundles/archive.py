"""The file of a bundle: a ZIP of regular files, a manifest with their hashes, and two hashes at its end.

Equal input gives equal bytes. The last bytes are the hash of the manifest and that of every byte before them, so that
an altered byte is found wherever it is. Nothing is unpacked outside of a folder, as a link, or beyond the sizes that
the manifest states.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from tensorprimat.analysis.verify import VerifyState
from tensorprimat.core.errors import InputError, MissingPackageError, RunError, UsageError
from tensorprimat.system import atomic, digest, regular

FORMAT_VERSION = 1
"""Version of the file; a newer one is refused."""
MANIFEST = "manifest.json"
LARGEST_MANIFEST_BYTES = 2**25
_MOST_UNPACKED_BYTES = 2**35
MOST_PACKED = 300  # unpacked bytes of one packed byte; a log of equal lines has about 200
_SMALL_BYTES = 2**20  # unpacked size that is always accepted
_BLOCK_BYTES = 2**20
_END = "tprimat bundle, manifest sha256 {manifest}, file sha256 {file}\n"
_END_PATTERN = re.compile(rb"tprimat bundle, manifest sha256 ([0-9a-f]{64}), file sha256 ([0-9a-f]{64})\n")
_END_BYTES = len(_END.format(manifest="0" * 64, file="0" * 64))
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError, KeyError)
NAMESPACE = "tprimat-bundle"
"""Purpose of a signature by ssh-keygen, which refuses it for another one."""
SIGNATURES = (".sig", ".minisig")
UNSAFE = r"[\\:\0]"
"""Characters that a name in a bundle must not have: some systems take them for parts of a path."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A bundle whose files lie in a folder."""

    manifest: Mapping[str, Any]
    manifest_sha256: str
    wrong: tuple[tuple[str, VerifyState, str], ...]
    """Name of a member (empty: the file itself), its state as in analysis.verify, and the reason."""

    @property
    def originals(self) -> dict[str, str]:
        """Return the hash of each redacted file → that of the file before redaction."""
        return {one["sha256"]: one["original_sha256"] for one in self.manifest["files"] if "original_sha256" in one}


@contextmanager
def _open_plain(path: Path) -> Iterator[IO[bytes]]:
    """Open a regular file for reading, unpacked if gzip packed it."""
    with regular.open_regular(path) as file:
        yield gzip.GzipFile(fileobj=file) if is_gzip(path) else file  # type: ignore[misc]


def is_text(path: Path) -> bool:
    """Return True for a text, also one that gzip packed whole: no part of it contains a null character."""
    try:
        with _open_plain(path) as file:
            return not any(b"\0" in block for block in iter(partial(file.read, _BLOCK_BYTES), b""))
    except (OSError, EOFError, zlib.error):
        return False


def lines_of_text(path: Path) -> Iterator[bytes]:
    """Yield the lines of a text with their ends."""
    with _open_plain(path) as file:
        yield from file


def is_gzip(path: Path) -> bool:
    """Return True for a file that gzip packed."""
    with regular.open_regular(path) as file:
        return file.read(2) == b"\x1f\x8b"


def write_bundle(
    path: Path, members: Mapping[str, Callable[[IO[bytes]], dict[str, Any]]], facts: Mapping[str, Any]
) -> str:
    """Write a bundle whole or not at all; return the hash of its manifest. Raises OSError.

    members: name in the bundle → function that writes its bytes and returns facts for the manifest.
    """
    manifest_sha256 = ""

    def fill(file: IO[bytes]) -> None:
        nonlocal manifest_sha256
        with tempfile.TemporaryFile(dir=path.parent) as spool:
            with zipfile.ZipFile(spool, "w", zipfile.ZIP_DEFLATED) as archive:
                files = []
                for name, write in sorted(members.items()):
                    with archive.open(_info(name), "w", force_zip64=True) as packed:
                        hashing = _Hashing(packed)
                        about = write(hashing)  # type: ignore[arg-type]
                    files.append({"name": name, "sha256": hashing.hash.hexdigest(), "bytes": hashing.size, **about})
                document = json.dumps({**facts, "files": files}, indent=1, sort_keys=True) + "\n"
                archive.writestr(_info(MANIFEST), document)
                archive.comment = b" " * _END_BYTES
            manifest_sha256 = hashlib.sha256(document.encode()).hexdigest()
            left, hashed = spool.tell() - _END_BYTES, hashlib.sha256()
            spool.seek(0)
            while block := spool.read(min(_BLOCK_BYTES, left)):
                left -= len(block)
                hashed.update(block)
                file.write(block)
            file.write(_END.format(manifest=manifest_sha256, file=hashed.hexdigest()).encode())

    atomic.write_atomically(path, fill)
    return manifest_sha256


class _Hashing:
    """A stream that hashes and counts the bytes written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.hash, self.size = file, hashlib.sha256(), 0

    def write(self, block: bytes) -> int:
        self.hash.update(block)
        self.size += len(block)
        return self._file.write(block)

    def flush(self) -> None:
        """Do nothing: the member is written when it is closed."""


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.compress_type, info.create_system, info.external_attr = zipfile.ZIP_DEFLATED, 3, (stat.S_IFREG | 0o644) << 16
    return info


def is_bundle(path: Path) -> bool:
    """Return True for a file that begins like a ZIP or ends like a bundle, also a damaged one."""
    with regular.open_regular(path) as file:
        head = file.read(4)
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _END_BYTES))
        return head == b"PK\x03\x04" or file.read().startswith(b"tprimat bundle,")


def unpack(path: Path, folder: Path) -> Opened:
    """Extract a bundle into an empty folder and compare every byte with its hashes.

    Raises InputError for a file that is no bundle or is of a newer version, and for one that would write outside of
    the folder, make a link or a device, or unpack to more than its manifest states.
    """
    if not is_bundle(path):
        raise InputError("neither a folder nor a bundle", path=path, remedy="tprimat bundle DIR -o FILE makes one")
    wrong: list[tuple[str, VerifyState, str]] = []
    end, hashed = _end_and_hash(path)
    if end is None:
        wrong.append(("", "differs", "the hashes at its end are damaged or missing"))
    elif hashed != end[1]:
        wrong.append(("", "differs", "its bytes are not those that were written"))
    try:
        with zipfile.ZipFile(path) as archive:
            infos = _checked(path, archive.infolist(), damaged=bool(wrong))
            if MANIFEST not in infos and not wrong:
                raise InputError(f"a ZIP without {MANIFEST}, so no bundle", path=path)
            text = archive.read(MANIFEST)
            sha256 = hashlib.sha256(text).hexdigest()
            if end is not None and sha256 != end[0]:
                wrong.append((MANIFEST, "differs", "its hash is not the one at the end of the bundle"))
            manifest = _manifest(path, text, wrong)
            wrong += _unpacked(archive, infos, manifest, folder)
    except _DAMAGE as error:
        wrong.append(("", "differs", f"damaged: {error}"))
        sha256, manifest = "", {"files": []}
    return Opened(manifest=manifest, manifest_sha256=sha256, wrong=tuple(dict.fromkeys(wrong)))


def _end_and_hash(path: Path) -> tuple[tuple[str, str] | None, str]:
    """Return the two hashes at the end of a file, None if they are not there, and the hash of the bytes before them."""
    hashed = hashlib.sha256()
    with regular.open_regular(path) as file:
        left = max(0, os.fstat(file.fileno()).st_size - _END_BYTES)
        while block := file.read(min(_BLOCK_BYTES, left)):
            left -= len(block)
            hashed.update(block)
        found = _END_PATTERN.fullmatch(file.read())
    return (found[1].decode(), found[2].decode()) if found else None, hashed.hexdigest()


def _checked(path: Path, infos: list[zipfile.ZipInfo], *, damaged: bool) -> dict[str, zipfile.ZipInfo]:
    """Return the members by name. Raises InputError for one that must not be unpacked, ValueError if it is damaged."""
    found: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        parts, kind = PurePosixPath(info.filename).parts, stat.S_IFMT(info.external_attr >> 16)
        largest = LARGEST_MANIFEST_BYTES if info.filename == MANIFEST else _MOST_UNPACKED_BYTES
        why = None
        if not parts or parts[0] == "/" or ".." in parts or re.search(rf"{UNSAFE}|//|^\./|/\.?$", info.filename):
            why = "a path outside of the folder, or none of a file"
        elif kind not in (0, stat.S_IFREG):
            why = "a link, a device or a folder, not a file"
        elif info.filename in found:
            why = "stored twice"
        elif info.file_size > min(largest, max(_SMALL_BYTES, MOST_PACKED * info.compress_size)):
            why = "more bytes than a file of its packed size unpacks to"
        if why and damaged:
            raise ValueError(f"{info.filename}: {why}")
        if why:
            raise InputError(f"refused, nothing was unpacked: {info.filename!r} is {why}", path=path)
        found[info.filename] = info
    return found


def _manifest(path: Path, text: bytes, wrong: list[tuple[str, VerifyState, str]]) -> dict[str, Any]:
    """Return the manifest. Raises InputError for one of a newer version, ValueError for one that is damaged."""
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("kind") != "bundle":
        if wrong:
            raise ValueError(f"{MANIFEST} is not that of a bundle")
        raise InputError(f"{MANIFEST} is not that of a bundle", path=path)
    if document.get("format") != FORMAT_VERSION:
        raise InputError(
            f"a bundle of format {document.get('format')} (TensorPrimat {document.get('tool_version')}); this version "
            f"reads format {FORMAT_VERSION}", path=path, remedy="update TensorPrimat",
        )  # fmt: skip
    files = document.get("files")
    kinds = {"name": str, "sha256": str, "bytes": int}
    if not isinstance(files, list) or not all(
        isinstance(one, dict) and all(type(one.get(key)) is kind for key, kind in kinds.items()) for one in files
    ):
        raise ValueError(f"{MANIFEST} lists no files")
    if not isinstance(document.get("left_out", {}), dict):
        raise ValueError(f"{MANIFEST} does not state what was left out")
    return document


def _unpacked(
    archive: zipfile.ZipFile, infos: Mapping[str, zipfile.ZipInfo], manifest: Mapping[str, Any], to: Path
) -> Iterator[tuple[str, VerifyState, str]]:
    """Extract the members that the manifest lists, and yield each that differs, is missing or is foreign."""
    listed = {str(one["name"]): one for one in manifest["files"]}
    yield from ((name, "missing", "the manifest lists it, the bundle lacks it") for name in listed if name not in infos)
    for name in infos:
        if name == MANIFEST:
            continue
        if name not in listed:
            yield name, "foreign", "the manifest does not list it"
            continue
        target, hashed, left = to / name, hashlib.sha256(), int(listed[name]["bytes"])
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with archive.open(name) as packed, target.open("xb") as file:
                while left >= 0 and (block := packed.read(_BLOCK_BYTES)):
                    left -= len(block)
                    hashed.update(block)
                    file.write(block)
        except _DAMAGE as error:
            yield name, "differs", f"damaged: {error}"
            continue
        if hashed.hexdigest() != listed[name]["sha256"]:
            yield name, "differs", "its hash is not the one of the manifest"


def sign_bundle(path: Path, key: Path) -> Path:
    """Write the signature of a bundle by a private key of ssh-keygen or minisign; return its file."""
    digest.sha256(key)  # raises InputError for a key that cannot be read
    is_minisign = b"minisign" in regular.content(key, most_bytes=2**16)[:100]
    signature = path.with_name(path.name + SIGNATURES[is_minisign])
    signature.unlink(missing_ok=True)  # ssh-keygen would ask
    _called(
        ["minisign", "-S", "-s", str(key), "-m", str(path), "-x", str(signature)]
        if is_minisign
        else ["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(path)],
        check=True,
    )
    return signature


def signature_of(path: Path, signer: Path | None) -> tuple[VerifyState, str] | None:
    """Return the state of the signature next to a bundle, and a sentence about it; None where there is none.

    signer: public key of ssh-keygen or minisign that must have made it. Raises UsageError if it is given in vain.
    """
    found = [one for ending in SIGNATURES if os.path.isfile(one := path.with_name(path.name + ending))]
    if not found:
        if signer is not None:
            raise UsageError(f"--signer {signer}: no signature next to the bundle ({path.name}.sig or .minisig)")
        return None
    by = f"by the key of {signer.name}" if signer else "by some key; --signer KEY checks whose it is"
    if found[0].suffix == ".minisig":
        if signer is None:
            return "unchecked", f"{found[0].name}: --signer KEY checks whose it is"
        good = _called(["minisign", "-V", "-p", str(signer), "-m", str(path), "-x", str(found[0])])
    elif signer is None:
        checks = ["ssh-keygen", "-Y", "check-novalidate", "-n", NAMESPACE, "-s", str(found[0])]
        good = _called(checks, content=path)
    else:
        with tempfile.TemporaryDirectory() as folder:
            allowed = Path(folder, "signers")
            allowed.write_text(f"signer {regular.text_of_file(signer, most_bytes=2**16).strip()}\n")
            checks = ["ssh-keygen", "-Y", "verify", "-f", str(allowed), "-I", "signer", "-n", NAMESPACE]
            good = _called([*checks, "-s", str(found[0])], content=path)
    if good:
        return "ok", f"signed {by}"
    return "differs", f"{found[0].name} is no valid signature of this file {by if signer else ''}".rstrip()


def _called(command: list[str], *, content: Path | None = None, check: bool = False) -> bool:
    """Run a program that signs or verifies; return True if it succeeds.

    check: raise RunError if it does not; it may ask for a password, so its stderr is shown.
    """
    if shutil.which(command[0]) is None:
        raise MissingPackageError(command[0], needed_for="Signatures")
    with open(content or os.devnull, "rb") as stdin:
        errors = None if check else subprocess.PIPE
        done = subprocess.run(
            command, stdin=stdin if content else None, stdout=subprocess.PIPE, stderr=errors, check=False
        )
    if check and done.returncode:
        raise RunError(f"{command[0]} did not sign the bundle (exit code {done.returncode}); see its message above")
    return done.returncode == 0
