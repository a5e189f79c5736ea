#!/usr/bin/env python3
"""Time `tprimat explain` on a synthetic trace, next to TraceLens and HolisticTraceAnalysis where they are installed.

The trace has the events of PyTorch's profiler: steps of a training with operators, launches and kernels, with shapes.
Each tool reads it in a process of its own; time and peak memory are those of that process, imports included. The other
tools compute their breakdown of the time of the GPU.

Examples:
  python3 perf/explain.py
  python3 perf/explain.py --megabytes 20 --python /tmp/others/bin/python

Exit codes: 0 at most 10 s of the processor and 1 GB for 200 MB, 1 more than that.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_SECONDS, MOST_BYTES = 10.0, 10**9  # of a trace of 200 MB on two cores
STEPS = 4
LAUNCHES = (
    ("aten::mm", "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"),
    ("aten::add", "vectorized_elementwise_kernel<4>"),
)
TRACELENS = "from TraceLens import TreePerfAnalyzer as T; T.from_file({!r}).get_df_gpu_timeline()"
HTA = """from hta.trace_analysis import TraceAnalysis as T
T(trace_files={{0: {0!r}}}, trace_dir="/").get_temporal_breakdown(visualize=False)"""


def write_trace(path: Path, size: int) -> int:
    """Write a trace of about so many bytes; return the number of its events."""
    one = _events(0, 0.0)
    layers = max(1, round(size / STEPS / len(json.dumps(one))))
    count = 0
    with path.open("w") as file:
        file.write('{"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}], "traceEvents": [')
        for step in range(STEPS):
            began = step * (layers * 100.0 + 1000)
            mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1,
                    "ts": began, "dur": layers * 100.0 + 900}  # fmt: skip
            file.write(("," if count else "") + json.dumps(mark))
            count += 1
            for layer in range(layers):
                events = _events(2 * (step * layers + layer) + 1, began + 10 + 100 * layer)
                file.write("," + ",".join(map(json.dumps, events)))
                count += len(events)
        file.write("]}")
    return count


def _events(number: int, at: float) -> list[dict[str, object]]:
    """Return the events of two launches. number: correlation of the first; at: µs."""
    made: list[dict[str, object]] = []
    for place, (operator, kernel) in enumerate(LAUNCHES):
        start, host = at + 45 * place, {"pid": 1, "tid": 1}
        shapes = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["c10::BFloat16"] * 2,
                  "Input Strides": [[4096, 1], [4096, 1]], "External id": number + place}  # fmt: skip
        launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start + 2, "dur": 3.0, **host,
                  "args": {"correlation": number + place, "External id": number + place}}  # fmt: skip
        flow = {"id": number + place, "cat": "ac2g", "name": "ac2g"}
        made += [
            {"ph": "X", "cat": "cpu_op", "name": f"{operator}_", "ts": start, "dur": 9.0, **host, "args": shapes},
            {"ph": "X", "cat": "cpu_op", "name": operator, "ts": start + 1, "dur": 7.0, **host, "args": shapes},
            launch,
            {"ph": "s", "pid": 1, "tid": 1, "ts": start + 2, **flow},
            {"ph": "f", "pid": 0, "tid": 7, "ts": start + 6, "bp": "e", **flow},
            {"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7, "ts": start + 6, "dur": 40.0,
             "args": {"device": 0, "stream": 7, "correlation": number + place, "grid": [16, 1, 1], "block": [128, 1, 1],
                      "External id": number + place, "registers per thread": 168}},
        ]  # fmt: skip
    return made


def measured(command: list[str]) -> tuple[float, float, float] | None:
    """Return seconds, seconds of the processor and peak bytes of a command; None where it fails."""
    began = time.perf_counter()
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    return None if status else (time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=200)
    parser.add_argument("--python", default=sys.executable, help="Python that has TraceLens and HolisticTraceAnalysis")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "synthetic.json"
        events = write_trace(path, round(flags.megabytes * 1e6))
        commands = {
            "tprimat explain": [sys.executable, "-m", "tensorprimat", "explain", str(path)],
            "TraceLens, timeline": [flags.python, "-c", TRACELENS.format(str(path))],
            "HolisticTraceAnalysis, breakdown": [flags.python, "-c", HTA.format(str(path))],
        }
        print(f"{path.stat().st_size / 1e6:.0f} MB, {events:,} events\n")
        print("| tool | seconds | CPU seconds | peak memory, GB |\n|---|---:|---:|---:|")
        found = {}
        for name, command in commands.items():
            found[name] = seen = measured(command)
            shown = "not installed | – | –" if seen is None else f"{seen[0]:.1f} | {seen[1]:.1f} | {seen[2] / 1e9:.2f}"
            print(f"| {name} | {shown} |", flush=True)
    ours, share = found["tprimat explain"], max(flags.megabytes / 200, 0.1)
    return 0 if ours and ours[1] <= MOST_SECONDS * share and ours[2] <= MOST_BYTES else 1


if __name__ == "__main__":
    raise SystemExit(main())
