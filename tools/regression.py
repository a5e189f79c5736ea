#!/usr/bin/env python3
"""Read many logs with `extract --json` and write what came out, to compare two versions of the readers.

python3 tools/regression.py FOLDER … --output new.jsonl            read FOLDER and the logs of ../shared
python3 tools/regression.py --against old.jsonl new.jsonl          print what differs
python3 tools/regression.py --package ../other FOLDER --output old.jsonl      read with another checkout

Exit codes: 0 done or no difference, 1 something differs, 2 usage. public_logs.toml lists public logs to read.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SHARED = tuple(ROOT.parent / "shared" / name for name in ("logs", "cases", "gpu"))
SECONDS = 180  # that one log may take
SKIPPED = {".md", ".py", ".sh", ".toml", ".yaml", ".png"}
SECTIONS = {
    "model": ("name", "parameters", "shape"),
    "gpu_info": ("device_name", "device_count", "pytorch_version"),
    "training_config": (
        "max_steps", "global_batch_size", "micro_batch_size", "sequence_length", "num_gpus", "precision",
        "tensor_model_parallel_size", "pipeline_model_parallel_size", "learning_rate", "framework",
    ),
    "performance_metrics": (
        "total_steps", "measured_steps", "median_step_time_seconds", "avg_step_time_seconds", "tokens_per_second",
        "tokens_per_second_per_gpu", "samples_per_second", "basis", "reported",
    ),
    "memory_metrics": ("peak_memory_allocated_gb", "peak_memory_reserved_gb", "peak_memory_device_used_gb"),
}  # fmt: skip
"""Figures that are compared, by section of a result file."""


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="folders of logs; with --against, the newer file")
    parser.add_argument("--output", type=Path, help="file for one line of JSON per log")
    parser.add_argument("--against", type=Path, metavar="FILE", help="older file; print what differs from it")
    parser.add_argument("--package", type=Path, default=ROOT, help="checkout whose readers run (this one)")
    parser.add_argument("--jobs", type=int, help="processes (one per core)")
    options = parser.parse_args(argv)
    if options.against:
        if len(options.paths) != 1:
            parser.error("--against takes the two files and nothing else")
        lines = (map(json.loads, file.open()) for file in (options.against, options.paths[0]))
        return print_differences(*({record["path"]: record for record in records} for records in lines))
    if not options.output:
        parser.error("--output FILE is missing")
    logs = [file for folder in (*options.paths, *SHARED) for file in sorted(folder.rglob("*")) if _is_log(file)]
    sys.path.insert(0, str(options.package.resolve()))
    signal.signal(signal.SIGALRM, _stop)
    with multiprocessing.Pool(options.jobs, maxtasksperchild=50) as pool, options.output.open("w") as output:
        for record in pool.imap(read, map(str, logs)):
            print(json.dumps(record, sort_keys=True), file=output, flush=True)
    return 0


def read(path: str) -> dict[str, Any]:
    """Return what `extract --json` makes of a log: its outcome, and the key figures of each result."""
    from tensorprimat.cli import main as tprimat

    printed, said = io.StringIO(), io.StringIO()
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
            code = tprimat(["extract", path, "--json"], program="extract")
    except (TimeoutError, SystemExit) as error:
        return {"path": path, "outcome": f"{type(error).__name__}: {error}", "figures": []}
    finally:
        signal.alarm(0)
    results = json.loads(printed.getvalue() or "[]")
    figures = [dict(_figures(result)) for result in (results if isinstance(results, list) else [results])]
    return {"path": path, "outcome": "read" if not code else said.getvalue().strip(), "figures": figures}


def print_differences(old: dict[str, Any], new: dict[str, Any]) -> int:
    """Print each log whose record differs, figure by figure; return 1 if there is one."""
    differing = [path for path in sorted(old.keys() & new.keys()) if old[path] != new[path]]
    for path in differing:
        print(path)
        before, after = (dict(_flat(records[path])) for records in (old, new))
        for name in sorted(before.keys() | after.keys()):
            if before.get(name) != after.get(name):
                print(f"  {name}: {before.get(name)!r} -> {after.get(name)!r}")
    print(f"{len(differing)} of {len(old.keys() & new.keys())} logs differ")
    return 1 if differing else 0


def _stop(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


def _is_log(file: Path) -> bool:
    return file.is_file() and file.suffix not in SKIPPED and file.stat().st_size > 0


def _figures(result: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for section, names in SECTIONS.items():
        yield from ((f"{section}.{name}", (result.get(section) or {}).get(name)) for name in names)
    yield from ((name, result.get(name)) for name in ("source", "platform", "complete", "warnings"))


def _flat(record: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "outcome", record["outcome"]
    for number, figures in enumerate(record["figures"], start=1):
        for name, value in figures.items():
            parts = [(f" {text}", "stated") for text in value] if name == "warnings" else [("", value)]
            yield from ((f"{number} {name}{suffix}", part) for suffix, part in parts)


if __name__ == "__main__":
    sys.exit(main())
