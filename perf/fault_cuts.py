"""Spliced, folded and cut logs of every format: a figure that the whole log does not give must come with a warning."""

from __future__ import annotations

import random
import re
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "perf"), str(ROOT / "tests")]

import fuzz_readers  # noqa: E402
from job_logs import Job  # noqa: E402
from table_logs import ALL_JOBS  # noqa: E402

from tensorprimat.core.result import Result  # noqa: E402
from tensorprimat.core.steps import FLOAT_COLUMNS  # noqa: E402

UNUSED = ("ended_at", "learning_rate", "gradient_norm")
"""Metrics that change by powers of ten and are printed with %g: two that were spliced look like one. No figure of a
report is computed from them."""
COLUMNS = tuple(name for name in FLOAT_COLUMNS if name not in UNUSED)
SAME = 5e-3  # relative: differences that no comparison resolves
SHARE = 0.15  # share of rows that may change: one of eight moves no median
HEADLINES = ("avg_step_time_seconds", "tokens_per_second", "tokens_per_second_per_gpu", "samples_per_second")
ROWS = 9
TERMINALS = (60, 80, 100, 120)  # characters: usual widths
TABLES = ("lightning", "metrics table")  # of the jobs: metrics.csv files


def variants(text: str, chance: random.Random, *, is_job: bool = False) -> tuple[str, str]:
    """Return the name of a damage and the damaged text.

    is_job: the text is a whole log, so that a cut at one column may be inside the last number of its rows.
    """
    lines = text.splitlines()
    width = chance.choice((chance.randrange(12, max(len(line) for line in lines) + 1), *TERMINALS))
    match chance.randrange(7):
        case 0:
            return f"folded at {width}", folded(text, width)
        case 1:
            cut = (line[: width if is_job else behind_number(line, width)] for line in lines)
            return f"cut at {width}", "\n".join(cut) + "\n"
        case 2:
            return "decimal commas", with_commas(text)
        case 3:
            at = len(text) - chance.randrange(1, len(lines[-1]) + 2)
            return f"truncated at {at}, in its last line", text[:at]
        case 4:
            return f"folded at {width}, with line ends of Windows", folded(text, width).replace("\n", "\r\n")
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
    """Return the width at which to cut a line: the given one, or the end of the number that is there.

    Rows that are cut inside a number look like whole rows of a framework that prints fewer digits.
    """
    while 0 < width < len(line) and line[width - 1] in "0123456789.,eE+-" and line[width] in "0123456789.,eE+-":
        width += 1
    return width


def values(result: Result) -> dict[str, list[float]]:
    """Return the printed values of a result by column."""
    steps = result.steps
    return {name: [float(v) for v in steps.column(name).tolist() if v == v] for name in COLUMNS if steps.has(name)}


def foreign(whole: dict[str, list[float]], damaged: dict[str, list[float]]) -> str | None:
    """Return the first column of which many values are in no row of the whole log."""
    for name, found in damaged.items():
        known = set(whole.get(name, ()))
        new = [v for v in found if not any(abs(v - k) <= SAME * max(abs(k), 1e-9) for k in known)]
        if known and len(new) > SHARE * len(found):
            return f"{name} {sorted(new)[:3]}"
    return None


def other_headline(whole: Result, damaged: Result) -> str | None:
    """Return the first figure that differs between the log of a job and the damaged one."""
    for name in HEADLINES:
        true, found = getattr(whole.performance_metrics, name), getattr(damaged.performance_metrics, name)
        if true and found and abs(found / true - 1) > SAME:
            return f"{name} {found:g} for {true:g}"
    return None


def any_job(chance: random.Random) -> Job:
    """Return a job of any size; it prints 40 rows and its settings."""
    seconds = round(chance.choice((0.1, 0.3, 1, 3, 10, 40)) * chance.uniform(1, 3), 4)
    return Job(
        gpus=chance.choice((1, 4, 8, 16, 64)),
        batch=chance.choice((16, 64, 256, 512)),
        length=chance.choice((2048, 4096, 8192)),
        seconds=seconds,
        startup=seconds * chance.uniform(1, 4),
    )


def silently_wrong(path: Path, text: str, damaged: str, *, is_job: bool) -> str | None:
    """Return the figure that a damaged log gets wrong without a warning; None if there is none or a log is refused.

    is_job: all steps of the log take about the same time, so that its figures are those of any part of it.
    """
    from tensorprimat import logs
    from tensorprimat.core.errors import TensorPrimatError

    results = []
    for content in (text, damaged):
        path.write_text(content)
        try:
            results.append(logs.read(path))
        except TensorPrimatError:
            return None
    whole, found = results
    if set(found.warnings) - set(whole.warnings):
        return None
    return foreign(values(whole), values(found)) or (other_headline(whole, found) if is_job else None)


def run(count: int, seed: int) -> list[str]:
    """Try damaged logs over all formats; return a sentence for each that is silently wrong."""
    failures = []
    begun = time.monotonic()
    rows = [(name, row) for name, listed in fuzz_readers.ROWS.items() for row in listed]
    jobs = list(ALL_JOBS.items())
    with tempfile.TemporaryDirectory(prefix="faults_") as folder:
        for number in range(seed, seed + count):
            chance = random.Random(f"cut {number}")
            if is_job := number % 2 == 0:
                name, make = jobs[number // 2 % len(jobs)]
                text = "\n".join(make(any_job(chance))) + "\n"
            else:
                name, row = rows[number // 2 % len(rows)]
                text = "\n".join(row.format(n) for n in range(1, ROWS)) + "\n"
            what, damaged = variants(text, chance, is_job=is_job)
            path = Path(folder, "a.csv" if is_job and name in TABLES else "a.log")
            if wrong := silently_wrong(path, text, damaged, is_job=is_job):
                failures.append(f"{name} {what} (number {number}): {wrong} without a warning")
    spent = time.monotonic() - begun
    print(f"cuts       {count:>7} spliced, folded and cut logs, {len(failures)} failed, {spent:.0f} s", flush=True)
    return failures


def every_column(jobs: int, seed: int) -> list[str]:
    """Cut the logs of some jobs, in every format, at every column; return a sentence for each silently wrong cut."""
    failures, count = [], 0
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="faults_") as folder:
        for number in range(seed, seed + jobs):
            job = any_job(random.Random(f"columns {number}"))
            for name, make in ALL_JOBS.items():
                lines = make(job)
                path = Path(folder, "a.csv" if name in TABLES else "a.log")
                for width in range(12, max(len(line) for line in lines)):
                    count += 1
                    cut = "\n".join(line[:width] for line in lines) + "\n"
                    if wrong := silently_wrong(path, "\n".join(lines) + "\n", cut, is_job=True):
                        failures.append(f"{name} of job {number} cut at {width}: {wrong} without a warning")
    spent = time.monotonic() - begun
    print(f"columns    {count:>7} logs cut at one column, {len(failures)} failed, {spent:.0f} s", flush=True)
    return failures
