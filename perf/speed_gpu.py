#!/usr/bin/env python3
"""Speed of the torch engine on one GPU, compared with torchtitan and with a plain transformers loop, in turns.

    python perf/speed_gpu.py --json speed_gpu.json
    python perf/speed_gpu.py --turns 2 --programs engine,engine:35%,torchtitan:full,torchtitan:memory_budget=0.35,loop
    python perf/speed_gpu.py --cpu --preset tiny --programs engine,loop          (a trial of the script without a GPU)

Programs:
    engine[:HOW]       benchmark.py --engine torch; HOW as for its flag --activation-checkpointing (its own choice)
                       or fp8
    torchtitan:MODE    none, full, selective-op, selective-2 (every second layer) or memory_budget=0.35
    loop[:none]        a plain loop over transformers' model, compiled per layer; it recomputes all layers, or none

All train Llama 3.1 8B with random weights and tokens: BF16 weights and optimizer, micro-batches of one sequence, fused
AdamW, gradients clipped to norm 1. Each program is a fresh process with a time limit. A turn is one run of every
program, and each turn begins with another one. A program without enough memory is left out of later turns.

Power and clock are those of NVML during the measured steps. A ratio compares median step times: with several turns its
95 % interval is over the turns, with one turn over the steps, and another run may differ by more than that.

Exit codes:
    0  the fastest engine program is shown to reach the goal (--goal) against the best of the others
    1  it is shown to miss the goal, or a program failed for another reason than memory
    2  a flag is wrong, or something is not installed
    3  more turns are needed, or there is nothing to compare
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from perf import gpu_peers  # noqa: E402
from perf.turns import ratio_of_runs  # noqa: E402
from tensorprimat import logs  # noqa: E402
from tensorprimat.core.errors import TensorPrimatError, UsageError  # noqa: E402
from tensorprimat.core.units import GIGA, MEGA  # noqa: E402
from tensorprimat.machine import telemetry  # noqa: E402
from tensorprimat.machine.device import Device  # noqa: E402
from tensorprimat.system import atomic, processes  # noqa: E402

ALL = "engine,torchtitan:full,torchtitan:selective-op,torchtitan:memory_budget=0.35,torchtitan:none,loop"
NEEDED_BY_TORCHTITAN = ("torchtitan", "datasets", "torchdata", "tyro")
VERSION_OF_TORCHTITAN = "0.2.2"  # the last whose flags this script knows
OUT_OF_MEMORY = "out of memory"
SAMPLE_SECONDS = 0.5
LENGTHS = {"full": 8192, "tiny": 64}
FLAVORS = {"full": "8B", "tiny": "debugmodel"}  # of torchtitan; its smallest model is for trials of the script


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The training that all programs do."""

    preset: str
    sequence_length: int
    global_batch_size: int
    steps: int
    warmup_steps: int
    on_cpu: bool

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_size * self.sequence_length


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of one program; None where nothing was measured."""

    program: str
    turn: int
    process_seconds: float
    """From the start of the process to its end."""
    failure: str | None = None
    step_seconds: tuple[float, ...] = ()
    """Of the measured steps."""
    tokens_per_second: float | None = None
    """At the median step."""
    peak_allocated_bytes: float | None = None
    peak_reserved_bytes: float | None = None
    mean_clock_hertz: float | None = None
    mean_watts: float | None = None


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Speed of one program of ours over that of another; the ends of its interval are None with too few steps."""

    ours: str
    theirs: str
    turns: int
    value: float
    low: float | None
    high: float | None


def engine_command(mode: str, work: Workload, result: Path) -> list[str]:
    command = [
        sys.executable, str(ROOT / "benchmark.py"), "--model", "llama", "--preset", work.preset, "--engine", "torch",
        "--runs", "1", "--cooldown", "0", "--steps", str(work.steps), "--warmup-steps", str(work.warmup_steps),
        "--sequence-length", str(work.sequence_length), "--micro-batch-size", "1", "--num-gpus", "1",
        "--global-batch-size", str(work.global_batch_size), "--output", str(result),
        "--precision", "fp32" if work.on_cpu else "fp8" if mode == "fp8" else "bf16",
    ]  # fmt: skip
    if mode == "fp8":
        return command
    return [*command, "--activation-checkpointing", mode] if mode else command


def torchtitan_command(mode: str, work: Workload, result: Path) -> list[str]:
    kind, _, value = mode.replace("selective-", "selective=").partition("=")
    option = {"selective": "selective_ac_option", "memory_budget": "memory_budget"}.get(kind)
    flags = {
        "model.name": "llama3",
        "model.flavor": FLAVORS[work.preset],
        "training.seq_len": work.sequence_length,
        "training.local_batch_size": 1,
        "training.global_batch_size": work.global_batch_size,
        "training.dtype": "bfloat16",
        "training.steps": work.warmup_steps + work.steps,
        "metrics.log_freq": 1,
        "optimizer.name": "AdamW",
        "optimizer.lr": gpu_peers.LEARNING_RATE,
        "job.dump_folder": result.with_suffix(""),
        "activation_checkpoint.mode": kind,
        **({f"activation_checkpoint.{option}": value} if option else {}),
    }
    switches = ("--compile.enable", "--metrics.disable_color_printing")
    pairs = [text for name, one in flags.items() for text in (f"--{name}", str(one))]
    return [sys.executable, "-m", "perf.gpu_peers", "torchtitan", *pairs, *switches]


def loop_command(mode: str, work: Workload, result: Path) -> list[str]:  # noqa: ARG001
    return [
        sys.executable, "-m", "perf.gpu_peers", "loop", "--preset", work.preset, "--recompute", mode or "full",
        "--sequence-length", str(work.sequence_length), "--global-batch-size", str(work.global_batch_size),
        "--steps", str(work.warmup_steps + work.steps),
    ]  # fmt: skip


OURS = "engine"
PROGRAMS: dict[str, tuple[Callable[[str, Workload, Path], list[str]], re.Pattern[str]]] = {
    OURS: (engine_command, re.compile(r".*")),  # benchmark.py checks it
    "torchtitan": (torchtitan_command, re.compile(r"none|full|selective-(op|[1-9]\d*)|memory_budget=(0?\.\d+|[01])")),
    "loop": (loop_command, re.compile(r"(none|full)?")),
}
"""Kind of a program → its command, and the modes that it takes."""


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default=ALL, help=f"separated by commas (default: {ALL})")
    parser.add_argument("--turns", type=int, default=1, help="runs of each program")
    parser.add_argument("--steps", type=int, default=6, help="measured steps of a run")
    parser.add_argument("--warmup-steps", type=int, default=4)
    parser.add_argument("--sequence-length", type=int, help=f"default: {LENGTHS['full']}, tiny: {LENGTHS['tiny']}")
    parser.add_argument("--global-batch-size", type=int, default=4, help="sequences of a step")
    parser.add_argument("--preset", choices=tuple(LENGTHS), default="full")
    parser.add_argument("--cpu", action="store_true", help="train on the CPU, in FP32 and without compilation")
    parser.add_argument("--limit", type=float, default=180.0, metavar="SECONDS", help="time limit of a run")
    parser.add_argument("--goal", type=float, default=1.0, help="ratio to the best of the others (1.02 on an H200)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured there after every run")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the output of the programs there")
    return parser.parse_args(argv)


def lacking_for_torchtitan() -> list[str]:
    """Return the packages of torchtitan that are not installed here."""
    return [name for name in NEEDED_BY_TORCHTITAN if importlib.util.find_spec(name) is None]


def checked_programs(text: str, *, on_cpu: bool) -> list[str]:
    """Return the programs to run. Raises UsageError for an unknown one, or one that cannot run here."""
    programs = list(dict.fromkeys(text.split(",")))
    for program in programs:
        kind, _, mode = program.partition(":")
        if kind not in PROGRAMS or not PROGRAMS[kind][1].fullmatch(mode):
            raise UsageError(f"--programs: unknown program {program!r}; --help lists the programs and their modes")
    if not any(program.startswith("torchtitan") for program in programs):
        return programs
    without = ",".join(program for program in programs if not program.startswith("torchtitan"))
    if missing := lacking_for_torchtitan():
        raise UsageError(
            f"{', '.join(missing)} not installed: run pip install torchtitan=={VERSION_OF_TORCHTITAN}, or leave "
            f"torchtitan out: --programs {without or OURS}"
        )
    if on_cpu:
        raise UsageError(f"torchtitan needs a GPU; leave it out: --programs {without or OURS}")
    return programs


def run(program: str, turn: int, work: Workload, devices: Sequence[Device], folder: Path, limit: float) -> Run:
    """Run a program in a fresh process, sample the GPU meanwhile, and return what was measured."""
    kind, _, mode = program.partition(":")
    log = folder / f"{turn}_{re.sub(r'[^A-Za-z0-9.]+', '_', program)}.log"
    result = log.with_suffix(".json")
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", **os.environ, "TZ": "UTC"}
    environment |= {"HF_HUB_OFFLINE": "1", **({"CUDA_VISIBLE_DEVICES": ""} if work.on_cpu else {})}
    sampler = telemetry.Sampler(devices, period=SAMPLE_SECONDS)
    began, code = time.monotonic(), None
    sampler.start()
    with log.open("wb") as output:
        child = processes.popen(
            PROGRAMS[kind][0](mode, work, result), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            cwd=ROOT, env=environment,
        )  # fmt: skip
        try:
            code = child.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            pass
        finally:
            processes.end(child)
            sampler.stop()
    done = Run(program=program, turn=turn, process_seconds=time.monotonic() - began)
    text = log.read_text(encoding="utf-8", errors="replace")
    if code is None:
        return replace(done, failure=f"timed out: killed after {limit:g} s (--limit)")
    if code:
        last = (text.strip().splitlines() or ["no message"])[-1]
        return replace(done, failure=OUT_OF_MEMORY if OUT_OF_MEMORY in text.lower() else f"exit code {code}: {last}")
    try:
        return measured(done, result if kind == OURS else log, text, work, sampler)
    except TensorPrimatError as error:
        return replace(done, failure=str(error))


def measured(done: Run, file: Path, text: str, work: Workload, sampler: telemetry.Sampler) -> Run:
    """Return a run with what its result file or log holds of its measured steps."""
    result = logs.read(file)
    steps = result.steps.take(result.steps.column("index") > work.warmup_steps)
    seconds, ended_at = steps.column("seconds"), steps.column("ended_at")
    if len(seconds) != work.steps or not np.isfinite(seconds).all():
        return replace(done, failure=f"{np.isfinite(seconds).sum()} of {work.steps} step times found")
    peaks = result.memory_metrics.peaks() if result.memory_metrics else {}
    allocated, reserved = (
        GIGA * peaks[name] if name in peaks else None for name in ("memory_allocated", "memory_reserved")
    )
    if match := gpu_peers.PEAK.search(text):
        allocated, reserved = map(float, match.groups())
    clock = sampler.columns(ended_at, seconds).get("clock_hertz")
    return replace(
        done,
        step_seconds=tuple(map(float, seconds)),
        tokens_per_second=work.tokens_per_step / statistics.median(seconds),
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        mean_clock_hertz=None if clock is None or not np.isfinite(clock).any() else float(np.nanmean(clock)),
        mean_watts=sampler.mean_watts(ended_at[0] - seconds[0], ended_at[-1]),
    )


def ratio(ours: Sequence[Run], theirs: Sequence[Run]) -> Ratio | None:
    """Return the ratio of two programs over the turns in which both were measured; None without such a turn."""
    by_turn = {one.turn: one for one in theirs if one.step_seconds}
    pairs = [(one, by_turn[one.turn]) for one in ours if one.step_seconds and one.turn in by_turn]
    if not pairs:
        return None
    first, second = pairs[0]
    value, low, high = ratio_of_runs(*([one.step_seconds for one in side] for side in zip(*pairs, strict=True)))
    return Ratio(ours=first.program, theirs=second.program, turns=len(pairs), value=value, low=low, high=high)


def ratios(runs: Sequence[Run]) -> list[Ratio]:
    """Return every ratio of a program of ours to another one; those of the fastest of ours first, the smallest first.

    The first is that of the fastest engine program to the best of the others.
    """
    of_program: dict[str, list[Run]] = {}
    for one in runs:
        of_program.setdefault(one.program, []).append(one)
    is_ours = {program: program.partition(":")[0] == OURS for program in of_program}
    pairs = [(ours, theirs) for ours in of_program for theirs in of_program if is_ours[ours] and not is_ours[theirs]]
    found = [ratio(of_program[ours], of_program[theirs]) for ours, theirs in pairs]
    known = [each for each in found if each is not None]
    smallest = {each.ours: min(other.value for other in known if other.ours == each.ours) for each in known}
    return sorted(known, key=lambda each: (-smallest[each.ours], each.value))


COLUMNS = ("step", "tokens/s", "allocated", "reserved", "clock", "power", "process")
HEADER = f"{'turn':>4}  {'program':<30}" + "".join(f"{name:>12}" for name in COLUMNS)


def row(one: Run) -> str:
    """Return the line of a run."""
    head = f"{one.turn:>4}  {one.program:<30}"
    if one.tokens_per_second is None:
        return f"{head}  {one.failure} ({one.process_seconds:.0f} s)"

    def figure(value: float | None, unit: float, symbol: str) -> str:
        return "–" if value is None else f"{value / unit:,.1f} {symbol}"

    cells = (
        f"{statistics.median(one.step_seconds):.3f} s",
        f"{one.tokens_per_second:,.0f}",
        figure(one.peak_allocated_bytes, GIGA, "GB"),
        figure(one.peak_reserved_bytes, GIGA, "GB"),
        figure(one.mean_clock_hertz, MEGA, "MHz"),
        figure(one.mean_watts, 1, "W"),
        f"{one.process_seconds:.0f} s",
    )
    return head + "".join(f"{cell:>12}" for cell in cells)


def in_words(one: Ratio) -> str:
    """Return a ratio with its interval and what that rests on."""
    if one.low is None or one.high is None:
        return f"{one.value:.3f}x (no interval: too few steps)"
    over = f"{one.turns} turns" if one.turns > 1 else "the steps of one turn"
    return f"{one.value:.3f}x ({one.low:.3f} to {one.high:.3f}, over {over})"


def exit_code(runs: Sequence[Run], found: Sequence[Ratio], goal: float) -> int:
    if any(one.failure and one.failure != OUT_OF_MEMORY for one in runs):
        return 1
    if not found or found[0].low is None or found[0].high is None:
        return 3
    return 0 if found[0].low >= goal else 1 if found[0].high < goal else 3


def measure(arguments: argparse.Namespace) -> int:
    """Run every program in turns, print a line after each run and the ratios at the end; return the exit code."""
    programs = checked_programs(arguments.programs, on_cpu=arguments.cpu)
    devices = [] if arguments.cpu else telemetry.open_devices(())[:1]
    if not (devices or arguments.cpu):
        raise UsageError("no GPU found; for a trial without one: --cpu --preset tiny --programs engine,loop")
    if min(arguments.turns, arguments.steps, arguments.global_batch_size) < 1 or arguments.warmup_steps < 0:
        raise UsageError("--turns, --steps and --global-batch-size must be at least 1, --warmup-steps at least 0")
    if arguments.json is not None and (why := atomic.refused_file(arguments.json)):
        raise UsageError(f"--json {arguments.json}: {why}")
    work = Workload(
        preset=arguments.preset, sequence_length=arguments.sequence_length or LENGTHS[arguments.preset],
        global_batch_size=arguments.global_batch_size, steps=arguments.steps, warmup_steps=arguments.warmup_steps,
        on_cpu=arguments.cpu,
    )  # fmt: skip
    name = f"{devices[0].name}, {devices[0].driver}" if devices else "CPU"
    print(f"{name}: llama {work.preset}, {work.global_batch_size} x {work.sequence_length} tokens a step")
    print(HEADER, flush=True)
    runs: list[Run] = []
    with ExitStack() as stack:
        folder = arguments.logs or stack.enter_context(processes.scratch_folder())
        folder.mkdir(parents=True, exist_ok=True)
        for turn in range(1, arguments.turns + 1):
            first = (turn - 1) % len(programs)
            for program in programs[first:] + programs[:first]:
                if any(one.program == program and one.failure for one in runs):
                    continue
                runs.append(run(program, turn, work, devices, folder.resolve(), arguments.limit))
                print(row(runs[-1]), flush=True)
                if arguments.json is not None:
                    parts = {"device": name, "workload": asdict(work), "goal": arguments.goal}
                    tables = {"runs": [asdict(one) for one in runs], "ratios": [asdict(one) for one in ratios(runs)]}
                    atomic.write_atomically(arguments.json, json.dumps({**parts, **tables}, indent=1) + "\n")
    found = ratios(runs)
    if found:
        print("\nspeed of the engine over that of another program (above 1: the engine is faster)")
        for one in found:
            print(f"{one.ours} / {one.theirs}: {in_words(one)}")
        best = found[0]
        print(f"\n{best.ours} / best of the others ({best.theirs}): {in_words(best)}; goal {arguments.goal:.2f}x")
    return exit_code(runs, found, arguments.goal)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = options(argv)
    try:
        return measure(arguments)
    except TensorPrimatError as error:
        print(f"speed_gpu.py: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
