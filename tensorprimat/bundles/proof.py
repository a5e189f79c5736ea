"""Packing of a folder of results with its logs, and verification of the bundle without anything else."""

from __future__ import annotations

import getpass
import gzip
import os
import platform as host_platform
import re
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, count
from pathlib import Path
from typing import IO, Any

import numpy as np

from tensorprimat import logs as readers
from tensorprimat.analysis.verify import Finding, found_log, log_places, verify
from tensorprimat.bundles import archive
from tensorprimat.bundles.redaction import Redactor
from tensorprimat.core.errors import InputError, TensorPrimatError
from tensorprimat.core.quantities import as_stated, counted
from tensorprimat.core.result import Result
from tensorprimat.core.version import __version__
from tensorprimat.logs.files import files_below
from tensorprimat.machine import environment
from tensorprimat.storage import series, store
from tensorprimat.system import digest, regular

_RESULTS, _LOGS = "results", "logs"
"""Folders of a bundle."""
_FEWEST_LOSSES = 8  # two in each of the quarters that are compared
_READ_AGAIN = 1e-5  # relative: the series of a result has 6 digits


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A bundle that was written."""

    manifest_sha256: str
    files: int
    replaced: int
    """Places from which a name was removed."""
    left_out: Mapping[str, str]
    """File → reason."""


def pack(folder: Path, path: Path, *, logs: Sequence[Path] = (), keep_names: bool = False) -> Packed:
    """Write the files of a folder, and the logs of its results, to a bundle.

    logs: further folders for the logs. keep_names: redact nothing, and pack binary files too. Raises InputError for a
    folder without results.
    """
    for one in (folder, *logs):
        if why := regular.refused_listing(one):
            raise InputError(why, path=one)
    left_out: dict[str, str] = {}
    members = dict(_files_of(folder, path, left_out))
    results = {name: result for name, file in members.items() if (result := _result_of(file)) is not None}
    if not results:
        raise InputError("no benchmark results in this folder", path=folder, remedy="name a folder with result files")
    members |= _logs_of(results, members, log_places(folder, logs), left_out)
    names = None if keep_names else _names_in(members, results)
    if names is not None:
        for name in list(members):
            if why := _not_redactable(members[name], names):
                left_out[name] = f"{why}; --keep-names packs it"
                del members[name]
    replaced: dict[str, int] = {}
    plain = _plain_names(members, names)
    writers = {plain[name]: partial(_write_member, file, names, replaced) for name, file in members.items()}
    commands = {result.provenance.command for result in results.values() if result.provenance.command}
    facts: dict[str, Any] = {
        "kind": "bundle",
        "format": archive.FORMAT_VERSION,
        "tool_version": __version__,
        "names": "kept" if names is None else "redacted",
        "left_out": {_plain(name, names): _plain(why, names) for name, why in left_out.items()},
        "commands": sorted(_plain(command, names) for command in commands),
        "environment_of_packing": {
            "system": f"{host_platform.system()} {host_platform.machine()}",
            "versions": {**environment.versions(), **environment.gpu_driver(), **environment.gpu_places()},
            "variables": {name: _plain(value, names) for name, value in environment.speed_variables().items()},
        },
    }
    sha256 = archive.write_bundle(path, writers, facts)
    return Packed(
        manifest_sha256=sha256, files=len(writers), replaced=sum(replaced.values()), left_out=facts["left_out"]
    )


def _plain_names(members: Iterable[str], names: Redactor | None) -> dict[str, str]:
    """Return each name, and each folder of one, as it stands in the bundle; no two become one."""
    plain = {"": ""}
    for member in members:
        parts = member.split("/")
        for depth, part in enumerate(parts):
            if (own := "/".join(parts[: depth + 1])) not in plain:
                bare = re.sub(archive.UNSAFE, "_", _plain(part, names))
                above = plain["/".join(parts[:depth])]
                tried = (f"{above}/{number}{bare}".lstrip("/") for number in chain([""], map("{}-".format, count(2))))
                plain[own] = next(one for one in tried if one not in plain.values())
    return plain


def _plain(text: str, names: Redactor | None) -> str:
    return text if names is None else names.apply(text)[0]


def _files_of(folder: Path, path: Path, left_out: dict[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield the regular files of a folder by their names in the bundle; bundles and links are left out."""
    for root, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted(Path(root, name) for name in files):
            name = f"{_RESULTS}/{file.relative_to(folder).as_posix()}"
            if os.path.islink(file) or not os.path.isfile(file):
                left_out[name] = "a link, a pipe or a device"
            elif file.suffix in archive.SIGNATURES or (file.suffix != ".npz" and archive.is_bundle(file)):
                left_out[name] = "an archive or a signature"
            elif regular.resolved(file) != regular.resolved(path):
                yield name, file
    left_out.pop(f"{_RESULTS}/{path.name}", None)  # the bundle of an earlier call, which this one replaces


def _result_of(file: Path) -> Result | None:
    """Return the result that a file holds; None for anything else."""
    return store.result_in(file) if file.suffix == ".json" else None


def _logs_of(
    results: Mapping[str, Result], members: Mapping[str, Path], places: Any, left_out: dict[str, str]
) -> dict[str, Path]:
    """Return the logs of results that are not among the members, by their names in the bundle."""
    found: dict[str, Path] = {}
    inside = {regular.resolved(file) for file in members.values()}
    for name, result in results.items():
        for source in result.provenance.sources:
            log = found_log(source, places)[0] if source.sha256 else None
            place = f"{_LOGS}/{(source.sha256 or '')[:8]}/{Path(source.file).name}"
            if log is None:
                left_out[place] = f"the log of {name} was not found; --logs DIR names its folder"
            elif regular.resolved(log) not in inside:
                found[place] = log
    return found


def _names_in(members: Mapping[str, Path], results: Mapping[str, Result]) -> Redactor:
    """Return the names of this machine, of the results and of every text."""
    try:
        user: str | None = getpass.getuser()
    except (KeyError, OSError):
        user = None
    hosts = {host for one in results.values() for host in (one.provenance.host, *(run.host for run in one.runs))}
    names = Redactor()
    names.learn_names(hosts=[*hosts, socket.gethostname()], users=[user])
    for name, file in members.items():
        names.learn(name)
        for line in archive.lines_of_text(file) if archive.is_text(file) else ():
            names.learn(line.decode(errors="surrogateescape"))
    return names.settled()


def _not_redactable(file: Path, names: Redactor) -> str | None:
    """Return the reason why a file cannot be packed without names; None if it can."""
    if series.is_own_name(file.name):
        return None  # numbers only
    if not archive.is_text(file):
        return "binary, so names in it cannot be removed"
    if file.suffix == ".json" or not _seconds_by_line(file):
        return None
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, file.name)
        with copy.open("wb") as to:
            _write_member(file, names, {}, to)
        same = _seconds_by_line(file) == _seconds_by_line(copy)
    return None if same else "without the names in it, its steps are read differently"


def _write_member(file: Path, names: Redactor | None, replaced: dict[str, int], to: IO[bytes]) -> dict[str, Any]:
    """Write a file, without the names in it if there are `names`; return facts for the manifest."""
    if names is None or series.is_own_name(file.name):
        with regular.open_regular(file) as content:
            while block := content.read(2**20):
                to.write(block)
        return {}
    count, is_packed = 0, archive.is_gzip(file)
    packed: Any = gzip.GzipFile(filename="", mode="wb", fileobj=to, mtime=0) if is_packed else to
    for line in archive.lines_of_text(file):
        text, number = names.apply(line.decode(errors="surrogateescape"))
        packed.write(text.encode(errors="surrogateescape"))
        count += number
    if is_packed:
        packed.close()
    replaced[str(file)] = count
    return {"original_sha256": digest.sha256(file), "replaced": count} if count or is_packed else {}


def _seconds_by_line(log: Path, format: str | None = None) -> dict[int, float]:
    """Return the step times of all trainings in a log by the number of their line; {} where none can be read."""
    try:
        results = readers.read_each(log, format=format)
    except TensorPrimatError:
        return {}
    rows = (zip(one.steps.column("line"), one.steps.column("seconds"), strict=True) for one in results)
    return {int(line): float(seconds) for row in rows for line, seconds in row if line >= 0 and np.isfinite(seconds)}


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A bundle that was verified."""

    findings: list[Finding]
    manifest_sha256: str
    manifest: Mapping[str, Any]
    training: Mapping[str, str]
    """Result → sentence on whether its training trained."""


def verify_bundle(path: Path, *, logs: Sequence[Path] = (), signer: Path | None = None) -> Verified:
    """Verify a bundle: every byte, every figure, and the steps of its logs. Raises InputError as `archive.unpack`."""
    with tempfile.TemporaryDirectory() as unpacked:
        root = Path(unpacked)
        opened = archive.unpack(path, root)
        if not opened.wrong and not os.path.isdir(root / _RESULTS):
            raise InputError("a bundle without results", path=path)
        found = [Finding(path=root / name, state=state, says=says) for name, state, says in opened.wrong]
        if signed := archive.signature_of(path, signer):
            found.append(Finding(path=root, state=signed[0], says=signed[1]))
        training: dict[Path, str] = {}
        if os.path.isdir(root / _RESULTS):
            found += verify(root / _RESULTS, logs=[root, *logs], originals=opened.originals)
            packed = {
                opened.originals.get(own, own): file for file in files_below(root) if (own := digest.sha256(file))
            }
            times = cache(_seconds_by_line)
            for file in sorted((root / _RESULTS).rglob("*.json")):
                if (result := _result_of(file)) is not None:
                    training[file] = f"{_of_loss(result)}; {_of_gradients(result)}"
                    found += _read_again(file, result, packed, times)
        latest = [file for file in training if file.parent.name != store.HISTORY] or list(training)
        return Verified(
            findings=[
                replace(one, path=path / one.path.relative_to(root), says=one.says.replace(f"{root}/", ""))
                for one in found
            ],
            manifest_sha256=opened.manifest_sha256,
            manifest=opened.manifest,
            training={file.relative_to(root).as_posix(): training[file] for file in latest},
        )


def _read_again(
    file: Path, result: Result, packed: Mapping[str, Path], times: Callable[[Path, str | None], dict[int, float]]
) -> Iterator[Finding]:
    """Read the logs of a result again and compare the step times of its rows, by their lines.

    packed: hash of a log as it was read → its file; times: `_seconds_by_line`.
    """
    lines, seconds, numbers = (result.steps.column(name) for name in ("line", "seconds", "source"))
    for number, source in enumerate(result.provenance.sources):
        log = packed.get(source.sha256 or "")
        again = {} if log is None else times(log, source.format)
        rows = [
            (float(mine), again[int(line)])
            for line, mine, of in zip(lines, seconds, numbers, strict=True)
            if of == number and int(line) in again and np.isfinite(mine)
        ]
        if not rows:
            continue
        unequal = [pair for pair in rows if abs(pair[0] / pair[1] - 1) > _READ_AGAIN]
        name = Path(source.file).name
        if not unequal:
            says = f"{counted(len(rows), 'step time')} read again from its log {name} agree"
            yield Finding(path=file, state="ok", says=says)
        else:
            mine, theirs = (as_stated(value) for value in unequal[0])
            share = f"{len(unequal)} of {counted(len(rows), 'step time')}"
            says = f"{share} differ from its log {name}: {mine} s, not {theirs} s"
            stated = result.provenance.assumed  # a stated batch or number of GPUs may change a time made from a rate
            yield Finding(path=file, state="unchecked" if stated else "differs", says=says)


def _of_loss(result: Result) -> str:
    """Return whether a training trained: its loss falls, as far as its steps state it."""
    falls, known = [], 0
    for run in np.unique(result.steps.column("run")) if len(result.steps) else ():
        rows = result.steps.column("run") == run
        loss = result.steps.column("loss")[rows]
        if nan := int(result.steps.logged_nan("loss")[rows].sum()):
            return f"the loss is nan in {counted(nan, 'row')}"
        loss = loss[np.isfinite(loss)]
        if len(loss) < _FEWEST_LOSSES:
            continue
        known += 1
        quarter = len(loss) // 4
        first, last = loss[:quarter], loss[-quarter:]
        error = np.sqrt((first.var(ddof=1) + last.var(ddof=1)) / quarter)
        falls.append((float(first.mean()), float(last.mean()), bool(first.mean() - last.mean() > 2 * error)))
    if not known:
        return "loss: not stated, or in too few steps"
    first, last, _ = falls[0]
    span = f"from {as_stated(round(first, 3))} to {as_stated(round(last, 3))} (first and last quarter)"
    if all(one[-1] for one in falls):
        return f"the loss falls {span}" + (f", also in {counted(known - 1, 'further run')}" if known > 1 else "")
    return f"no falling loss is shown: {span}" if known == 1 else f"no falling loss is shown in every run: {span}"


def _of_gradients(result: Result) -> str:
    norms = result.steps.column("gradient_norm")
    if nan := int(result.steps.logged_nan("gradient_norm").sum() + np.isinf(norms).sum()):
        return f"gradients are not finite in {counted(nan, 'row')}"
    known = int(np.isfinite(norms).sum())
    if not known:
        return "gradients: not stated"
    return f"gradients are finite in all {counted(known, 'row')} that state them"
