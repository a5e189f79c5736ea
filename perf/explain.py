#!/usr/bin/env python3
"""Time `tprimat explain` on a synthetic trace, next to TraceLens and HolisticTraceAnalysis where they are installed.

The trace has the events of PyTorch's profiler: steps of a training with operators, launches and kernels, with shapes.
Each tool reads it in a process of its own; time and peak memory are those of that process, imports included. The other
tools compute their breakdown of the time of the GPU.

With --traces, the idle time of the GPU and the hidden part of the communication instead, in per cent, next to those of
HolisticTraceAnalysis.

Examples:
  python3 perf/explain.py
  python3 perf/explain.py --python /tmp/others/bin/python --traces HolisticTraceAnalysis/tests/data/trace_diff/*/*.gz
  python3 perf/explain.py --megabytes 20 --python /tmp/others/bin/python

Exit codes: 0 at most 10 s of the processor and 1 GB for 200 MB, shares at most 1 point apart; 1 more than that.
"""

from __future__ import annotations

import argparse
import json
import math
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

SHARES = """import json
from hta.trace_analysis import TraceAnalysis as T
found = T(trace_files={{0: {0!r}}}, trace_dir="/")
idle = found.get_temporal_breakdown(visualize=False)["idle_time_pctg"][0]
try:
    hidden = found.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"][0]
except ValueError:  # without communication
    hidden = float("nan")
print(json.dumps([float(idle), float(hidden)]))"""


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


def output_of(command: list[str]) -> str:
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def compare_shares(traces: list[Path], python: str) -> int:
    """Print the shares of each trace by both programs; return 1 if two are more than 1 point apart."""
    print("| trace | idle, tprimat | idle, HTA | hidden, tprimat | hidden, HTA |\n|---|---:|---:|---:|---:|")
    apart = 0.0
    for path in traces:
        ours = output_of([sys.executable, "-m", "tensorprimat", "explain", "--whole", "--json", str(path)])
        theirs = output_of([python, "-c", SHARES.format(str(path))])
        if not ours or not theirs:
            print(f"| {path.name} | {'' if ours else 'refused'} | {'' if theirs else 'refused'} | | |")
            continue
        span = json.loads(ours)["sides"][0]["span"]
        own = [math.nan if share is None else 100 * share for share in (span["idle_share"], span["overlap_share"])]
        pairs = list(zip(own, json.loads(theirs.splitlines()[-1]), strict=True))
        apart = max([apart, *(abs(one - other) for one, other in pairs if not math.isnan(one + other))])
        cells = [f"{share:.1f}" if share == share else "–" for pair in pairs for share in pair]
        print(f"| {path.name} | {' | '.join(cells)} |", flush=True)
    return int(apart > 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=200)
    parser.add_argument("--python", default=sys.executable, help="Python that has TraceLens and HolisticTraceAnalysis")
    parser.add_argument("--traces", type=Path, nargs="+", help="traces whose shares are compared")
    flags = parser.parse_args()
    if flags.traces:
        return compare_shares([path.absolute() for path in flags.traces], flags.python)
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
