"""Damaged inputs for perf/faults.py: logs, results, cells, series files, workbooks and event files, and their commands.

Every input comes from a seed that is read without a complaint, and from a random number generator with a fixed start,
so that a case can be made again from its number.
"""

from __future__ import annotations

import copy
import io
import json
import random
import re
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "perf"), str(ROOT / "tests")]

import fuzz_readers  # noqa: E402  # its seeds are used here too

EVIL_TEXT = (
    "1.2.3", "nan", "-nan", "inf", "1e400", "-1e400", "1e-320", "-1", "0", "1,2,3", "9" * 400, "0x1p3", "１２", "1_000",
    "", " ", "\x1b[2J", "\0", "\r", "{", "}}", "[" * 50, '"', "\ufeff", "None", "True", "%s%n", "../../x",
)  # fmt: skip
EVIL_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1e308, -1e308, 5e-324, 1e-320, 10**18, 10**19, 10**400, "", "nan", "inf", "many",
    [], [1], [None], {}, {"a": 1}, [[1]], ["nan"], float("nan"), float("inf"), "\x1b[2J", "x" * 5000,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of input: its seeds, how it is damaged, the name of its file, and the commands that read it."""

    seeds: Callable[[], Sequence[bytes]]
    damage: Callable[[bytes, random.Random], bytes]
    file: str
    commands: Sequence[Sequence[str]]
    """Arguments; FILE is the damaged file, JSON the result that names it (a series file), GOOD a whole
    result, FOLDER the folder of these, OUT a folder of outputs."""


def filled(command: Sequence[str], names: Mapping[str, Path]) -> list[str]:
    """Return a command with paths in the place of their names."""
    return [str(names.get(word, word)) for word in command]


def damaged_bytes(content: bytes, chance: random.Random) -> bytes:
    """Return the content with one to eight changes of bytes, pieces or words."""
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        at, length = chance.randrange(len(changed) + 1), chance.choice((1, 4, 30, 300))
        match chance.randrange(7):
            case 0:
                changed[at : at + length] = b""
            case 1:
                changed[at:at] = changed[at : at + length]
            case 2:
                changed[at : at + 1] = bytes([chance.randrange(256)])
            case 3:
                changed[at:at] = chance.choice(EVIL_TEXT).encode()
            case 4:
                changed = changed[:at] if chance.random() < 0.3 else changed
            case _:
                numbers = list(re.finditer(rb"\d[\d.,]*", changed))
                if numbers:
                    number = chance.choice(numbers)
                    changed[number.start() : number.end()] = chance.choice(EVIL_TEXT).encode()
    return bytes(changed)


def damaged_log(content: bytes, chance: random.Random) -> bytes:
    """Return a log with changed bytes, lines in another order, or lines of another format between its own."""
    if chance.random() < 0.6:
        return damaged_bytes(content, chance)
    lines = content.splitlines(keepends=True)
    match chance.randrange(4):
        case 0:
            chance.shuffle(lines)
        case 1:
            lines = [line + chance.choice(lines) if chance.random() < 0.3 else line for line in lines]
        case 2:
            lines = [
                line[: chance.randrange(len(line) + 1)] + b"\n" if chance.random() < 0.3 else line for line in lines
            ]
        case _:
            others = chance.choice(log_seeds()).splitlines(keepends=True)
            lines = [chance.choice(others) if chance.random() < 0.3 else line for line in lines]
    return b"".join(lines)


def damaged_json(content: bytes, chance: random.Random) -> bytes:
    """Return a JSON document with one to three values of another type or size, or with changed bytes."""
    if chance.random() < 0.2:
        return damaged_bytes(content, chance)
    document = copy.deepcopy(json.loads(content))
    for _ in range(chance.choice((1, 1, 2, 3))):
        places = list(_places(document))
        holder, key = chance.choice(places)
        match chance.randrange(6):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder[key:key] = [copy.deepcopy(holder[key])] * chance.choice((1, 3))
            case _:
                holder[key] = copy.deepcopy(chance.choice(EVIL_VALUES))
        if not isinstance(document, dict | list) or not document:
            break
    return json.dumps(document).encode()


def _places(document: Any) -> Any:
    """Yield (holder, key) of every value of a document; of long lists the first few."""
    items = document.items() if isinstance(document, dict) else enumerate(document[:8])
    for key, value in items:
        yield document, key
        if isinstance(value, dict | list) and value:
            yield from _places(value)


def damaged_events(content: bytes, chance: random.Random) -> bytes:
    """Return an event file whose records are damaged but have right checksums, with forged lengths now and then."""
    if chance.random() < 0.3:
        return damaged_bytes(content, chance)
    out, at = [], 0
    while at + 12 <= len(content):
        (size,) = struct.unpack_from("<Q", content, at)
        record = content[at + 12 : at + 12 + size]
        at += 16 + size
        if chance.random() < 0.4:
            record = damaged_bytes(record, chance)
        forged = chance.choice((0, 1, 2**31, 2**40, 2**63)) if chance.random() < 0.05 else len(record)
        out.append(fuzz_readers.framed(record, forged))
    return b"".join(out)


@cache
def log_seeds() -> tuple[bytes, ...]:
    """Return a small log of every text format."""
    return tuple(
        "\n".join(row.format(n) for n in range(1, 9)).encode() for rows in fuzz_readers.ROWS.values() for row in rows
    )


@cache
def result_seeds() -> tuple[bytes, ...]:
    """Return results of today's version and of older ones."""
    import plausible

    from tensorprimat.storage import store

    own = [store.to_json(plausible.result(machine, runs=2, steps=12)).encode() for machine in ("h100", "mi300x", "cpu")]
    return (*own, *fuzz_readers.DOCUMENTS["result"])


@cache
def cell_seeds() -> tuple[bytes, ...]:
    """Return one cell of a sweep, and a cell of another tool."""
    from tensorprimat.storage import micro_result

    cell = micro_result.MicroResult(
        model_size="small", d_model=768, d_ff=3072, num_layers=12, num_heads=12, vocab=10000, context_length=256,
        batch_size=4, pass_name="train", precision="fp32", num_warmups=1, num_trials=4, device_name="cpu",
        platform="cpu",
        trial_times_ms=(10.5, 10.25, 10.75, 10.5), status="ok",
    )  # fmt: skip
    whole = micro_result.to_json(micro_result.with_figures(cell)).encode()
    return whole, b'[{"model_size": "small", "mean_time_ms": 9.5, "context_length": 128, "std_time_ms": 0.5}]'


@cache
def series_seeds() -> tuple[bytes, ...]:
    """Return a series file; `unpacked_series` writes the JSON that names the damaged one."""
    import plausible

    from tensorprimat.storage import series

    return (bytes(series.to_bytes(plausible.result("h100", runs=1, steps=30).steps)),)


def unpacked_series(content: bytes, folder: Path) -> None:
    """Write the JSON of an older version that names the damaged series file, which no hash protects."""
    import plausible

    from tensorprimat.storage import store

    result = plausible.result("h100", runs=1, steps=30)
    document = json.loads(store.to_json(result.model_copy(update={"series_file": "damaged.npz"})))
    (folder / "damaged.npz").write_bytes(content)
    (folder / "damaged.json").write_text(json.dumps(document))


@cache
def workbook_seeds() -> tuple[bytes, ...]:
    """Return a TraceLens workbook."""
    return (fuzz_readers.cells(fuzz_readers.SHEETS),)


def damaged_workbook(content: bytes, chance: random.Random) -> bytes:
    """Return a workbook with damaged cells, or with changed bytes inside or outside its archive."""
    import zipfile

    if chance.random() < 0.4:
        return fuzz_readers.cells(damaged_bytes(fuzz_readers.SHEETS, chance))
    if chance.random() < 0.3:
        return damaged_bytes(content, chance)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(out, "w") as copied:
        chosen = chance.choice(archive.namelist())
        for name in archive.namelist():
            inside = archive.read(name)
            copied.writestr(name, damaged_bytes(inside, chance) if name == chosen else inside)
    return out.getvalue()


@cache
def event_seeds() -> tuple[bytes, ...]:
    """Return an event file of several frameworks' tags."""
    return (fuzz_readers.events(fuzz_readers.SCALARS),)


OUT = ("--output-dir", "OUT", "--no-plot")
KINDS: Mapping[str, Kind] = {
    "logs": Kind(
        seeds=log_seeds, damage=damaged_log, file="damaged.log",
        commands=(("extract", "--log-file", "FILE", "--json"), ("analyze", "FILE", "--json")),
    ),
    "results": Kind(
        seeds=result_seeds, damage=damaged_json, file="damaged.json",
        commands=(
            ("compare", "FILE", "GOOD", *OUT), ("metrics", "FILE"), ("enhance", "FILE", "GOOD", "--output-dir", "OUT"),
            ("gate", "--baseline", "GOOD", "--candidate", "FILE"), ("analyze", "FILE"), ("verify", "FOLDER"),
            ("history", "FOLDER", "--output-dir", "OUT"),
        ),
    ),
    "cells": Kind(
        seeds=cell_seeds, damage=damaged_json, file="damaged.json",
        commands=(("aggregate", "FILE"), ("verify", "FOLDER")),
    ),
    "series": Kind(
        seeds=series_seeds, damage=damaged_bytes, file="damaged.npz",
        commands=(("compare", "JSON", "GOOD", *OUT), ("metrics", "JSON")),
    ),
    "workbooks": Kind(
        seeds=workbook_seeds, damage=damaged_workbook, file="damaged.xlsx",
        commands=(("analyze", "FILE"), ("extract", "--log-file", "FILE", "--json")),
    ),
    "events": Kind(
        seeds=event_seeds, damage=damaged_events, file="events.out.tfevents.1.host",
        commands=(("extract", "--log-file", "FILE", "--json"), ("analyze", "FILE")),
    ),
}  # fmt: skip
