#!/usr/bin/env python3
"""Start-up time of the commands, before they do anything useful, on this machine.

    python3 perf/startup.py              --help of every command, and compare_results.py on two results
    python3 perf/startup.py --files 10000   the same comparison over that many result files, too

Goals: --help ≤ 0.25 s, comparing two results ≤ 2 s, 10,000 files ≤ 10 s, on an idle machine. Each figure is the best of
five (one for many files): the least disturbed by whatever else the machine does. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
REPETITIONS = 5


def best(command: list[str], *, folder: Path = ROOT, repetitions: int = REPETITIONS) -> float:
    """Return the seconds of the fastest of several calls in fresh processes."""
    times = []
    for _ in range(repetitions):
        start = time.perf_counter()
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    return min(times)


def write_results(folder: Path, count: int) -> None:
    """Write `count` results of 5 + 50 synthetic steps, of two platforms in turn, each begun at another time."""
    import plausible

    from tensorprimat.storage import store

    results = [plausible.result("h100"), plausible.result("mi300x")]
    texts = [store.to_json(result) for result in results]
    for index in range(count):
        began = datetime(2025, 11, 3, tzinfo=timezone.utc) + timedelta(minutes=index)
        text = texts[index % 2].replace(str(results[0].timestamp), began.isoformat())
        (folder / f"benchmark_{index:05d}.json").write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=0, help="also compare this many result files")
    many = parser.parse_args().files
    from tensorprimat.cli import COMMANDS

    print(f"{'python3 -c pass':<40} {best([sys.executable, '-c', 'pass']):7.3f} s")
    for name in COMMANDS:
        print(f"{f'tprimat {name} --help':<40} {best([sys.executable, '-m', 'tensorprimat', name, '--help']):7.3f} s")
    compare = [sys.executable, str(ROOT / "compare_results.py"), "."]
    for count, repetitions in ((2, REPETITIONS), (many, 1)):
        if count:
            with tempfile.TemporaryDirectory() as folder:
                write_results(Path(folder), count)
                seconds = best(compare, folder=Path(folder), repetitions=repetitions)
            print(f"{f'compare_results.py on {count:,} files':<40} {seconds:7.3f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
