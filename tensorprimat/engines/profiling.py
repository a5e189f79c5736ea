"""`--profile torch|nsys|rocprof`: choice of the profiler of a run, and its command line.

A profiler slows a run down, so its result is marked, is written into history only, and never enters a comparison.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tensorprimat.core.errors import UsageError
from tensorprimat.core.quantities import alternatives
from tensorprimat.engines.registry import ENGINES, Engine

STEM = "profile"
"""Option of a RunSpec: output path of PyTorch's profiler, without suffix."""

PROGRAMS = {"torch": None, "nsys": "nsys", "rocprof": "rocprofv3"}
"""Value of --profile → the program that it needs; None for PyTorch's own profiler, inside the engine."""
_WHERE = {
    "nsys": "install NVIDIA Nsight Systems, or run in NVIDIA's PyTorch container",
    "rocprof": "install ROCm's rocprofiler-sdk, or run in AMD's PyTorch container",
}


def check_profiler(name: str, engine: Engine) -> None:
    """Raise UsageError for a profiler that does not exist, is not installed, or cannot profile this engine."""
    if name not in PROGRAMS:
        raise UsageError(f"--profile {name}: no such profiler; choose {', '.join(PROGRAMS)}")
    if not engine.trains:
        raise UsageError(f"--profile {name}: reading logs has nothing to profile; give an --engine that trains")
    program = PROGRAMS[name]
    if program is None and not engine.torch_profiler:
        able = alternatives([row.name for row in ENGINES.values() if row.torch_profiler])
        others = ", ".join(other for other, program in PROGRAMS.items() if program is not None)
        raise UsageError(f"--profile {name}: only with --engine {able}; --engine {engine.name} has --profile {others}")
    if program is not None and shutil.which(program) is None:
        raise UsageError(f"--profile {name}: {program} is not installed; {_WHERE[name]}")


def profiler_command(name: str, stem: Path) -> list[str]:
    """Return the profiler's command, which precedes that of the run. stem: the profile's path without suffix."""
    if name == "nsys":
        return ["nsys", "profile", f"--output={stem}", "--trace=cuda,nvtx,osrt", "--sample=none"]
    if name == "rocprof":
        return [
            "rocprofv3", "--kernel-trace", "--stats",
            "--output-format", "csv", "pftrace",  # the default changed in ROCm 7
            "--output-directory", str(stem.parent),
            "--output-file", f"{stem.name}_%pid%",  # else every rank writes the same file
            "--",
        ]  # fmt: skip
    return []


def options(name: str, stem: Path) -> Mapping[str, str]:
    """Return the RunSpec options for a profiler inside the engine; {} for a profiler that is a program."""
    return {STEM: str(stem)} if PROGRAMS[name] is None else {}
