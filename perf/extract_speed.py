#!/usr/bin/env python3
"""Speed of reading logs, on inputs that this script generates; everything is compared in the same run.

    perf/extract_speed.py                 # 15 and 150 MB of Primus lines, 1 GB of a sparse log
    perf/extract_speed.py --scale 0.1     # a tenth of each
    perf/extract_speed.py --lines 10e6    # memory of a log of ten million lines (5.4 GB on disk)
    git worktree add ../before COMMIT && perf/extract_speed.py --against ../before    # two versions, in turns

Rows of the table:
  extract      the whole command in a fresh process, result file written (peak memory of all its processes together)
  parse        reading the format, every field into columns, no hashing, no writing; on one core or on all of them
  hash         SHA-256 of the file, which extract computes in a second thread
  cost of the hash  time of extract / the longer of extract without a hash and hash: median of --turns, range
  write        the result file of so many steps, with the sidecar that holds them
  three fields a plain loop over lines with one expression for three fields, as the usual scripts do it
  grep -c      the same file, for a sense of what the machine can do; the last column is the share of its speed
Each is the best of three, because other programs can only make it slower; the whole command and `write` are run once.

--against compares this checkout with another by processor time, on one core: both take turns, so that a machine whose
speed changes slows both. Its last column is the median over pairs of turns of the other's time over this one's.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from tensorprimat.system.processes import usable_cores

ROOT = Path(__file__).resolve().parents[1]
NEEDLE = "elapsed time per iteration"
MEGABYTE = 10**6


def iteration_line(number: int) -> str:
    """Return one line as Primus v26.5 prints it; every figure changes from line to line."""
    milliseconds = 2700.0 + number * 7 % 997 / 10
    seconds = number * 11 // 4  # since the first, by the mean of 2.75
    tokens = 128 * 8192 / milliseconds * 1000 / 8
    return (
        f"[202601{16 + seconds // 86400 % 14} {seconds // 3600 % 24:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}]"
        "[rank-7/8][INFO ] "
        f"[---------trainer.py:2560] : iteration {number:8d}/{20_000_000:8d} | consumed samples: {number * 128:12d} | "
        f"elapsed time per iteration (ms): {milliseconds:.1f}/{milliseconds + 3:.1f} | "
        f"compute per GPU (TFLOP/s/GPU): {1.6e6 / milliseconds:.1f} (avg 611.5)  | "
        f"tokens/s/GPU inst/harmonic mean: {tokens:.1f}/{tokens - 9:.1f} | "
        f"learning rate: {1e-6 * (number % 997):.6E} | "
        f"global batch size:   128 | lm loss: {2 + 9 / (1 + number % 9973):.6E} | loss scale: 1.0 | "
        f"grad norm: {1 + number % 97 / 7:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 | "
        f"hip mem usage/free/total/usage_ratio: {200 + number % 50 / 7:.2f}GB/28.63GB/255.98GB/88.81%\n"
    )


def noise(lines: int) -> list[str]:
    """Return lines of a program's other output: 79 bytes a line on average; real logs have 77 between iterations."""
    return [
        f"worker {i}: cache warmed, {i * 37} entries of {'/data/tokens/part.bin ' * (i % 4 * i % 5)}read\n"
        for i in range(lines)
    ]


def make(path: Path, *, lines: int, noise_between: int = 0) -> Path:
    """Return a log of iteration lines, with lines of noise before each."""
    between = "".join(noise(noise_between))
    with path.open("w", encoding="utf-8", buffering=2**22) as file:
        for number in range(1, lines + 1):
            file.write(between)
            file.write(iteration_line(number))
    return path


def extract(path: Path, folder: Path) -> tuple[float, float]:
    """Return the seconds and peak MB of the whole command, every process of it counted."""
    command = [sys.executable, str(ROOT / "extract_primus_metrics.py"), "--log-file", str(path)]
    started, peak = time.perf_counter(), 0
    with subprocess.Popen(
        [*command, "--model-name", "llama", "--output", str(folder)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as running:  # fmt: skip
        watched = psutil.Process(running.pid)
        while running.poll() is None:
            peak = max(peak, resident_bytes(watched))
            time.sleep(0.02)
        seconds = time.perf_counter() - started
    if running.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {running.returncode}")
    return seconds, peak / MEGABYTE


WITHOUT_HASH = """
import runpy, sys
from tensorprimat.system import digest
digest.Digest = lambda path: type("Unhashed", (), {"done": lambda self: ("0" * 64, path.stat().st_size)})()
sys.argv = ["extract_primus_metrics.py", *sys.argv[1:]]
runpy.run_path("extract_primus_metrics.py", run_name="__main__")
"""


def cost_of_hash(path: Path, folder: Path, *, turns: int) -> list[float]:
    """Return for each turn: time of the whole command / the longer of its time without a hash and that of the hash.

    The ratios are sorted.
    """
    arguments = ["--log-file", str(path), "--model-name", "llama", "--output", str(folder)]
    whole = [sys.executable, "extract_primus_metrics.py", *arguments]
    without = [sys.executable, "-c", WITHOUT_HASH, *arguments]
    ratios = []
    for _ in range(turns):
        seconds = []
        for command in (whole, without):
            started = time.perf_counter()
            subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - started)
        ratios.append(seconds[0] / max(seconds[1], hashed(path)))
    return sorted(ratios)


def resident_bytes(process: psutil.Process) -> int:
    """Return the memory of a process and its descendants in bytes; memory that they share counts once."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):  # a process has ended meanwhile
        for one in (process, *process.children(recursive=True)):
            total += one.memory_full_info().pss
    return total


def parse(path: Path) -> tuple[float, int]:
    """Return the seconds to read all fields into columns, and the number of rows."""
    from tensorprimat.logs import format_named
    from tensorprimat.logs.text import Log

    started = time.perf_counter()
    reading = format_named("megatron").read(Log(path))
    return time.perf_counter() - started, len(reading.steps)


def parse_on_one_core(path: Path) -> tuple[float, int]:
    """Parse as `parse` does, by one process on one core."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        return parse(path)
    finally:
        os.sched_setaffinity(0, allowed)


def hashed(path: Path) -> float:
    """Return the seconds to compute the SHA-256 of a file."""
    digest = hashlib.sha256()
    started = time.perf_counter()
    with path.open("rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return time.perf_counter() - started


def written(path: Path, folder: Path) -> float:
    """Return the seconds to write the result."""
    from tensorprimat import logs
    from tensorprimat.storage import store

    result = logs.read(path)
    started = time.perf_counter()
    store.save(result, folder / "written", stamp="1")
    return time.perf_counter() - started


def three_fields(path: Path) -> tuple[float, int]:
    """Return the seconds of the usual loop (one expression, three fields, a list), and the number of rows."""
    pattern = re.compile(
        r"iteration\s+(\d+)/.*?elapsed time per iteration \(ms\): ([\d.]+)/"
        r".*?tokens/s/GPU inst/harmonic mean: ([\d.]+)/"
    )
    rows = []
    started = time.perf_counter()
    with path.open(encoding="utf-8") as file:
        for line in file:
            if match := pattern.search(line):
                rows.append((int(match[1]), float(match[2]), float(match[3])))
    return time.perf_counter() - started, len(rows)


def grep(path: Path) -> float:
    """Return the seconds of grep -c."""
    started = time.perf_counter()
    subprocess.run(
        ["grep", "-c", NEEDLE, str(path)], check=True, stdout=subprocess.PIPE
    )  # into /dev/null it stops early
    return time.perf_counter() - started


def show(
    what: str, path: Path, seconds: float, lines: int, *, peak: float | None = None, grep: float | None = None
) -> None:
    """Print one row of the table. grep: its seconds on the same file."""
    size = path.stat().st_size / MEGABYTE
    memory = f"{peak:8.0f} MB" if peak else " " * 11
    speed = f"{seconds:9.2f} s{size / seconds:9.0f} MB/s{lines / seconds:13,.0f} rows/s"
    share = f"{grep / seconds:8.2f}" if grep else ""
    print(f"{what:<34}{size:8.0f} MB{speed}{memory}{share}", flush=True)


def compare(other: Path, folder: Path, *, scale: float, turns: int) -> None:
    """Print the processor time of this checkout and of another one, in turns on one core."""
    size = len(iteration_line(1000))
    sparse = int(1000 * MEGABYTE * scale / (size + sum(map(len, noise(50)))))
    dense = int(150 * MEGABYTE * scale / size)
    paths = (
        make(folder / "dense_short.log", lines=dense // 10),
        make(folder / "dense.log", lines=dense),
        make(folder / "sparse.log", lines=sparse, noise_between=50),
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")  # an installed package has bytecode too
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(f"{'processor seconds':<34}{'this':>10}{'other':>10}{'other / this':>14}")
    for path in paths:
        for what, measure in (("extract", of_command), ("parse", of_parsing)):
            pairs = [
                tuple(measure(root, path, folder, environment) for root in (ROOT, other)) for _ in range(turns + 1)
            ][1:]  # the first turn compiles
            ours, theirs = (statistics.median(of) for of in zip(*pairs, strict=True))
            ratio = statistics.median(b / a for a, b in pairs)
            print(f"{what + ', ' + path.name:<34}{ours:10.2f}{theirs:10.2f}{ratio:14.2f}", flush=True)


PARSE = """
import pathlib, sys, time
from tensorprimat import logs
from tensorprimat.logs.text import Log
format = getattr(logs, "format_named", None) or logs.named  # the name before 2026-11-25
format = format("megatron")
format.detect(Log(pathlib.Path(sys.argv[1])))  # imports the reader
started = time.process_time()
format.read(Log(pathlib.Path(sys.argv[1])))
print(time.process_time() - started)
"""


def of_command(root: Path, path: Path, folder: Path, environment: dict[str, str]) -> float:
    """Return the processor seconds of the whole command of a checkout, from its start to its end."""
    results = folder / "results"
    shutil.rmtree(results, ignore_errors=True)
    command = [sys.executable, "extract_primus_metrics.py", "--log-file", str(path), "--model-name", "llama"]
    running = subprocess.Popen(
        [*command, "--output", str(results)],
        cwd=root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _, status, used = os.wait4(running.pid, 0)
    running.returncode = os.waitstatus_to_exitcode(status)
    if running.returncode:
        raise SystemExit(f"{root}: extraction ended with {running.returncode}")
    return used.ru_utime + used.ru_stime


def of_parsing(root: Path, path: Path, folder: Path, environment: dict[str, str]) -> float:  # noqa: ARG001
    """Return the processor seconds in which the reader of a checkout reads a log."""
    command = [sys.executable, "-c", PARSE, str(path)]
    done = subprocess.run(command, cwd=root, env=environment, check=True, text=True, capture_output=True)
    return float(done.stdout.split()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the sizes of the inputs")
    parser.add_argument("--lines", type=float, help="only the memory of a log of so many iteration lines")
    parser.add_argument("--against", type=Path, help="another checkout of this project, to compare with")
    parser.add_argument("--turns", type=int, default=7, help="of each with --against, and of the cost of the hash")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tprimat_perf_") as name:
        folder = Path(name)
        if arguments.against:
            compare(arguments.against.resolve(), folder, scale=arguments.scale, turns=arguments.turns)
            return 0
        print(f"{'':<34}{'size':>11}{'time':>11}{'speed':>14}{'rows':>20}{'peak':>11}{'of grep':>8}")
        if arguments.lines:
            count = int(arguments.lines)
            path = make(folder / "long.log", lines=count)
            seconds, peak = extract(path, folder)
            show("extract, result written", path, seconds, count, peak=peak)
            return 0
        size = len(iteration_line(1000))
        for megabytes in (15, 150):
            count = int(megabytes * MEGABYTE * arguments.scale / size)
            path = make(folder / f"dense_{megabytes}.log", lines=count)
            seconds, peak = extract(path, folder)
            show("extract, iteration lines only", path, seconds, count, peak=peak)
        for what, of in (
            ("parse, one core", parse_on_one_core),
            (f"parse, {usable_cores()} cores", parse),
            ("three fields, a loop", three_fields),
        ):
            seconds, rows = min(of(path) for _ in range(3))
            show(what, path, seconds, rows)
        show("hash, the same", path, min(hashed(path) for _ in range(3)), rows)
        show("write, the same", path, written(path, folder), rows)
        path.unlink()
        if shutil.which("grep"):
            count = int(1000 * MEGABYTE * arguments.scale / (size + sum(map(len, noise(50)))))
            path = make(folder / "sparse.log", lines=count, noise_between=50)
            of_grep = min(grep(path) for _ in range(3))
            show("grep -c, one row in 50 lines", path, of_grep, count, grep=of_grep)
            for what, of in (("parse, one core", parse_on_one_core), (f"parse, {usable_cores()} cores", parse)):
                seconds, rows = min(of(path) for _ in range(3))
                show(what, path, seconds, rows, grep=of_grep)
            show("hash, the same", path, min(hashed(path) for _ in range(3)), rows, grep=of_grep)
            seconds, peak = extract(path, folder)
            show("extract, the same", path, seconds, count, peak=peak, grep=of_grep)
            ratios = cost_of_hash(path, folder, turns=arguments.turns)
            median = statistics.median(ratios)
            print(f"{'cost of the hash, a ratio':<34}{median:20.2f}    ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one core
    sys.exit(main())
