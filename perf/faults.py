#!/usr/bin/env python3
"""Fault injection: damaged inputs for every reading command, kills at random moments for every command with processes.

    make test-faults             # a sample, under three minutes
    make test-faults FULL=1      # 100,000 damaged inputs, 1,000 spliced, folded and cut logs, 300 kills,
                                 # the log of one job in every format, cut at every column (3,000 logs)
    perf/faults.py --inputs 2000 --kind cells --seed 7
    perf/faults.py --large       # 100 MB of every kind: seconds and memory of every command that reads it

A damaged input passes if the command ends within 20 s and 1 GB without an unexpected error. A killed command passes if
10 s later none of its processes runs, no temporary file is left, and every JSON file is whole. Exit code 0, or 1 where
anything failed; each failure is printed, its input is kept under --keep.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import fault_cuts
import fault_kills
import fault_large
from fault_inputs import KINDS, filled, unpacked_series

HANG_SECONDS = 20
MOST_BYTES = 10**9
BATCH = 50  # inputs per process: a process for each would spend its time on imports
SAMPLE = {"inputs": 900, "kills": 8, "cuts": 120, "columns": 0}
FULL = {"inputs": 100_000, "kills": 300, "cuts": 1_000, "columns": 1}
SIGNS = ("unexpected error", "internal error", "Traceback")


def one_input(kind: str, number: int, folder: Path) -> tuple[str, list[str]]:
    """Make damaged input number N of a kind; return its file and a command that reads it."""
    chance = random.Random(f"{kind} {number}")
    chosen = KINDS[kind]
    content = chosen.damage(chance.choice(chosen.seeds()), chance)
    for left in folder.iterdir():
        if left.name.startswith("damaged") or left.name.startswith("events"):
            left.unlink()
    file = folder / chosen.file
    if kind == "series":
        unpacked_series(content, folder)
    else:
        file.write_bytes(content)
    command = chosen.commands[number % len(chosen.commands)]
    names = {"FILE": file, "GOOD": folder / "good.json", "OUT": folder.parent / "out", "FOLDER": folder}
    return file.name, filled(command, {**names, "JSON": file.with_suffix(".json")})


def batch(kind: str, numbers: Sequence[int], place: Path, keep: Path, report: int) -> None:
    """Run inputs in this process; write a line per failure, and the number before each input, to a descriptor."""
    from tensorprimat.cli import main

    folder = place / "in"
    os.chdir(place)
    for number in numbers:
        file, command = one_input(kind, number, folder)
        os.write(report, f"at {number}\n".encode())
        printed = io.StringIO()
        signal.alarm(HANG_SECONDS)
        begun = time.monotonic()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            main(command)
        signal.alarm(0)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        text = printed.getvalue()
        sign = next((line for line in text.splitlines() if any(word in line for word in SIGNS)), None)
        why = sign or (f"used {used / 1e9:.1f} GB" if used > MOST_BYTES else None)
        if why:
            keep.mkdir(parents=True, exist_ok=True)
            shutil.copy2(folder / file, keep / f"{kind}-{number}-{file}")
            os.write(
                report, f"failed {number} {' '.join(command[:1])} {time.monotonic() - begun:.1f}s: {why}\n".encode()
            )


def inputs(kind: str, first: int, count: int, keep: Path) -> list[str]:
    """Try damaged inputs of a kind; return a sentence for each that failed."""
    import plausible

    from tensorprimat.storage import store

    failures = []
    for start in range(first, first + count, BATCH):
        numbers = list(range(start, min(start + BATCH, first + count)))
        while numbers:
            with tempfile.TemporaryDirectory(prefix="faults_") as name:
                (Path(name) / "in").mkdir()
                store.write(plausible.result("mi300x", runs=2), Path(name, "in", "good.json"))
                heard, told = os.pipe()
                child = os.fork()
                if not child:
                    os.close(heard)
                    batch(kind, numbers, Path(name), keep, told)
                    os._exit(0)
                os.close(told)
                with os.fdopen(heard) as lines:
                    printed = lines.read().splitlines()
                status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            failures += [f"{kind} {line.removeprefix('failed ')}" for line in printed if line.startswith("failed")]
            done = [int(line.split()[1]) for line in printed if line.startswith("at ")]
            if status == 0:
                break
            last = done[-1] if done else numbers[0]
            how = f"no answer in {HANG_SECONDS} s" if status == -signal.SIGALRM else f"process ended with {status}"
            failures.append(f"{kind} {last}: {how}")
            numbers = [number for number in numbers if number > last]
    return failures


def main(argv: Sequence[str] | None = None) -> int:
    """Inject faults; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all of it: hours on two cores")
    parser.add_argument("--inputs", type=int, help="damaged inputs, over all kinds")
    parser.add_argument("--kills", type=int, help="kills, over all commands")
    parser.add_argument("--cuts", type=int, help="spliced, folded and cut logs, over all formats")
    parser.add_argument("--columns", type=int, help="jobs whose logs, in every format, are cut at every column")
    parser.add_argument("--kind", action="append", choices=[*KINDS], help="only this kind of input (repeatable)")
    parser.add_argument(
        "--large", nargs="*", metavar="KIND", help="instead of these: inputs of 100 MB, of every kind or of those named"
    )
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--keep", type=Path, default=Path("fault_failures"), help="where inputs that failed are kept")
    arguments = parser.parse_args(argv)
    planned = {name: getattr(arguments, name) for name in SAMPLE}
    if arguments.large is not None:
        failures = fault_large.run(fault_large.SIZE_BYTES, arguments.large)
        print("\n".join(f"FAILED {failure}" for failure in failures))
        return 1 if failures else 0
    if all(value is None for value in planned.values()):
        planned = dict(FULL if arguments.full else SAMPLE)
    keep, failures = arguments.keep.resolve(), []
    kinds = arguments.kind or [*KINDS]
    for kind in kinds if planned["inputs"] else ():
        begun, count = time.monotonic(), planned["inputs"] // len(kinds)
        found = inputs(kind, arguments.seed, count, keep)
        failures += found
        print(
            f"{kind:<10} {count:>7} damaged inputs, {len(found)} failed, {time.monotonic() - begun:.0f} s", flush=True
        )
    if planned["cuts"]:
        failures += fault_cuts.run(planned["cuts"], arguments.seed)
    if planned["columns"]:
        failures += fault_cuts.every_column(planned["columns"], arguments.seed)
    if planned["kills"]:
        failures += fault_kills.run(planned["kills"], arguments.seed)
    for place, times in Counter(failures).most_common():
        print(f"FAILED {place}" + (f" ({times} times)" if times > 1 else ""))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
