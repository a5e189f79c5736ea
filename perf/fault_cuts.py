"""Spliced, folded and cut logs of every format: no figure that the whole log lacks, unless a warning says so."""

from __future__ import annotations

import random
import re
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "perf")]

import fuzz_readers  # noqa: E402

from tensorprimat.core.steps import FLOAT_COLUMNS  # noqa: E402

UNUSED = ("ended_at", "learning_rate", "gradient_norm")
"""Metrics that change by powers of ten and are printed with %g: two that were spliced look like one. No figure of a
report is computed from them."""
COLUMNS = tuple(name for name in FLOAT_COLUMNS if name not in UNUSED)
SAME = 1e-5  # relative
SHARE = 0.1  # of the values that may be new: fewer do not move a median
ROWS = 9
TERMINALS = (60, 80, 100, 120)  # characters: usual widths


def variants(text: str, chance: random.Random) -> tuple[str, str]:
    """Return the name of a damage and the damaged text."""
    lines = text.splitlines()
    width = chance.choice((chance.randrange(12, max(len(line) for line in lines) + 1), *TERMINALS))
    match chance.randrange(7):
        case 0:
            return f"folded at {width}", folded(text, width)
        case 1:
            return f"cut at {width}", "\n".join(line[: behind_number(line, width)] for line in lines) + "\n"
        case 2:
            return "decimal commas", with_commas(text)
        case 3:
            at = len(text) - chance.randrange(1, len(lines[-1]) + 2)
            return f"truncated at {at}, in its last line", text[:at]
        case 4:
            return "line ends of Windows", folded(text, width).replace("\n", "\r\n")
        case 5:
            at = chance.randrange(len(text) // 2, len(text))
            return f"truncated at {at}", text[:at]
        case _:
            first, second = sorted((chance.randrange(len(text)), chance.randrange(len(text))))
            return f"spliced at {first} and {second}", text[:second] + text[first:]


def folded(text: str, width: int) -> str:
    """Return a text as `fold -w` writes it."""
    pieces = (line[at : at + width] for line in text.splitlines() for at in range(0, max(len(line), 1), width))
    return "\n".join(pieces) + "\n"


def with_commas(text: str) -> str:
    """Return a text with decimal commas."""
    return re.sub(r"(?<=\d)\.(?=\d)", ",", text)


def behind_number(line: str, width: int) -> int:
    """Return where a line is cut: rows that all end inside their last number cannot be told from whole ones."""
    while 0 < width < len(line) and line[width - 1] in "0123456789.,eE+-" and line[width] in "0123456789.,eE+-":
        width += 1
    return width


def values(result: object) -> dict[str, set[float]]:
    """Return the printed values of a result by column."""
    steps = result.steps  # type: ignore[attr-defined]
    return {name: {float(v) for v in steps.column(name).tolist() if v == v} for name in COLUMNS if steps.has(name)}


def foreign(whole: dict[str, set[float]], damaged: dict[str, set[float]]) -> str | None:
    """Return the first column of which many values are in no row of the whole log."""
    for name, found in damaged.items():
        known = whole.get(name, set())
        new = [v for v in found if not any(abs(v - k) <= SAME * max(abs(k), 1e-9) for k in known)]
        if known and len(new) > SHARE * len(found):
            return f"{name} {sorted(new)[:3]}"
    return None


def run(count: int, seed: int) -> list[str]:
    """Try damaged logs over all formats; return a sentence for each that is silently wrong."""
    from tensorprimat import logs
    from tensorprimat.core.errors import TensorPrimatError

    failures = []
    begun = time.monotonic()
    rows = [(name, row) for name, listed in fuzz_readers.ROWS.items() for row in listed]
    with tempfile.TemporaryDirectory(prefix="faults_") as folder:
        path = Path(folder, "a.log")
        for number in range(seed, seed + count):
            name, row = rows[number % len(rows)]
            text = "\n".join(row.format(n) for n in range(1, ROWS)) + "\n"
            path.write_text(text)
            try:
                whole = logs.read(path)
            except TensorPrimatError:  # a row that is only part of a log
                continue
            what, damaged = variants(text, random.Random(f"cut {number}"))
            path.write_text(damaged)
            try:
                found = logs.read(path)
            except TensorPrimatError:
                continue
            wrong = foreign(values(whole), values(found))
            if wrong and not set(found.warnings) - set(whole.warnings):
                failures.append(f"{name} {what} (number {number}): {wrong} without a warning")
    spent = time.monotonic() - begun
    print(f"cuts       {count:>7} spliced, folded and cut logs, {len(failures)} failed, {spent:.0f} s", flush=True)
    return failures
