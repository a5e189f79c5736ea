#!/usr/bin/env python3
"""Print through how many modules and functions four usual flows pass, and how often they change the module.

python3 tools/flows.py            all four; the CPU training takes half a minute
python3 tools/flows.py extract    one of extract, compare, benchmark, analyze

A change of module is a call inside the package whose function stands in another file than that of the call before it.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = str(ROOT / "tensorprimat")
sys.path.insert(0, str(ROOT))
ROW = (
    " [2026-01-05 14:{minute:02d}:{second:02d}] iteration {step:8d}/      50 | consumed samples: {samples:12d} | "
    "elapsed time per iteration (ms): {ms:.1f} | throughput per GPU (TFLOP/s/GPU): 412.3 | learning rate: 1.0E-05 | "
    "global batch size:   128 | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 0.5 | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |"
)
TINY = ["run", "--engine", "torch", "--model", "llama", "--steps", "4"]


class Calls:
    """Counts the calls inside the package while it is entered."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str, int]] = set()
        self.changes = 0
        self._last = ""

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Count a call."""
        code = frame.f_code
        in_function = code.co_flags & inspect.CO_OPTIMIZED  # not the body of a module or a class
        if event != "call" or not in_function or not code.co_filename.startswith(PACKAGE):
            return
        self.functions.add((code.co_filename, code.co_name, code.co_firstlineno))
        self.changes += code.co_filename != self._last
        self._last = code.co_filename

    def __str__(self) -> str:
        """Return the counts in words."""
        modules = len({name for name, _, _ in self.functions})
        return f"{modules:4} modules {len(self.functions):5} functions {self.changes:6} changes of module"


def flows(folder: Path) -> dict[str, list[str]]:
    """Return the commands of the flows. folder: receives two logs and what the commands write."""
    for name, ms in (("a", 801.0), ("b", 652.0)):
        rows = [
            ROW.format(
                minute=int(step * ms) // 60_000,
                second=int(step * ms) // 1000 % 60,
                step=step,
                samples=128 * step,
                ms=ms + step % 3,
                loss=9.0 - step / 50,
            )
            for step in range(1, 51)
        ]
        head = [
            "  seq_length ................. 4096",
            "  world_size ................. 8",
            "  bf16 ....................... True",
        ]
        (folder / "logs").mkdir(exist_ok=True)  # apart from what the other flows write
        (folder / "logs" / f"{name}.log").write_text("\n".join([*head, *rows]) + "\n", encoding="utf-8")
    logs = [str(folder / "logs" / f"{name}.log") for name in "ab"]
    return {
        "extract": ["extract", logs[0]],
        "compare": ["compare", *logs],
        "benchmark": TINY,
        "analyze": ["analyze", str(folder / "logs")],
    }


def main(argv: Sequence[str]) -> int:
    """Run the flows; return an exit code."""
    from tensorprimat.cli import main as tprimat

    with tempfile.TemporaryDirectory() as name:
        known = flows(Path(name))
        if unknown := set(argv) - known.keys():
            print(f"flows.py: no flow {', '.join(sorted(unknown))}; flows: {', '.join(known)}", file=sys.stderr)
            return 2
        os.chdir(name)
        for flow in argv or known:
            calls, said = Calls(), io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                sys.setprofile(calls)
                try:
                    code = tprimat(known[flow])
                finally:
                    sys.setprofile(None)
            if code:
                print(said.getvalue(), file=sys.stderr)
                return 1
            print(f"{flow:10}{calls}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
