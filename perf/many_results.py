#!/usr/bin/env python3
"""Time of `tprimat export` and of queries with `tprimat list --from` over many result files, on this machine.

    python3 perf/many_results.py                100,000 files of 3 machines, 3 models and 50 seeds, 5 + 10 steps each
    python3 perf/many_results.py --files 1000

Goal: a query of 100,000 results ≤ 2 s. The time of a query is the best of three whole calls of the command, with the
start of Python; nothing is asserted.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
PER_FOLDER = 1000
QUERIES = {
    "best of each model and GPU": ["--best"],
    "SQL over results": [
        "--query",
        "SELECT model, gpu, count(*), max(tokens_per_second_per_gpu), median(avg_step_time_seconds) FROM results "
        "GROUP BY ALL ORDER BY ALL",
    ],
    "SQL over results and steps": [
        "--query",
        "SELECT model, gpu, count(*), quantile_cont(seconds, 0.99) FROM results JOIN steps USING (file) GROUP BY ALL",
    ],
}


def write_results(folder: Path, count: int) -> None:
    """Write `count` results whose figures vary, each begun at another time."""
    import plausible

    from tensorprimat.storage import store

    results = [
        plausible.result(machine, model=model, runs=1, steps=10, seed=seed)
        for seed in range(50)
        for machine in ("h100", "mi300x", "cpu")
        for model in ("llama", "qwen", "mistral")
    ]
    stamp = str(results[0].timestamp)
    texts = [store.to_json(result) for result in results]
    for index in range(count):
        place = folder / f"{index // PER_FOLDER:03d}"
        place.mkdir(exist_ok=True)
        began = datetime(2025, 11, 3, tzinfo=timezone.utc) + timedelta(minutes=index)
        text = texts[index % len(texts)].replace(stamp, began.isoformat())
        (place / f"benchmark_{index:06d}.json").write_text(text)


def seconds_of(*arguments: str | Path) -> float:
    """Return the seconds of one call of tprimat, whose output is dropped."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "tensorprimat", *map(str, arguments)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000, help="number of result files")
    count = parser.parse_args().files
    with contextlib.ExitStack() as stack:
        results = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_results(results, count)
        print(f"{f'export of {count:,} results':<40} {seconds_of('export', results, '--output', store):8.2f} s")
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        print(f"{'largest process':<40} {memory / 1024:8.0f} MiB")
        print(f"{'store':<40} {sum(file.stat().st_size for file in store.iterdir()) / 2**20:8.1f} MiB")
        for name, flags in QUERIES.items():
            print(f"{name:<40} {min(seconds_of('list', '--from', store, *flags) for _ in range(3)):8.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
