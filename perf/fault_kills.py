"""Kills at random moments over every command that starts a process: no process or file may be left after ten seconds.

Results that were there before a kill must be there after it, those of the history unchanged, and all must load.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "perf")]

from tensorprimat.system import processes  # noqa: E402

HISTORY = "history"
PATIENCE_SECONDS = 10.0
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
MARK = "TPRIMAT_FAULT"
LARGE_LOG_BYTES = 150 * 10**6  # so large that several processes read it
TINY = ("--engine", "torch", "--model", "llama", "--steps", "6", "--warmup-steps", "1", "--runs", "1")

PRIMUS = """
import sys
from pathlib import Path
from tensorprimat.core.spec import RunSpec
from tensorprimat.engines import launch
from tensorprimat.engines import launcher_output as following
import os
spec = RunSpec.model_construct(platform="amd", warmup_steps=0)
command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
           "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", sys.argv[1]]
with open("primus.log", "wb", buffering=0) as log:
    print(following.follow_launcher(command, log, name="Primus", spec=spec, environment=launch.process_environment()))
"""
RANK = """
import time
for index in range(1, 200):
    print(f" iteration {index}/ 200 | elapsed time per iteration (ms): 50.{index} | lm loss: 1.0 |", flush=True)
    time.sleep(0.05)
"""


def commands(place: Path) -> dict[str, tuple[list[str], float]]:
    """Return by name the arguments of Python for each command, and the seconds within which it is killed."""
    tool = ["-m", "tensorprimat"]
    out = str(place / "out")
    many = [str(path) for path in sorted((place / "results").glob("*.json"))]
    return {
        "compare": ([*tool, "compare", *many, "--output-dir", out], 4.0),
        "analyze": ([*tool, "analyze", str(place / "logs")], 4.0),
        "extract": ([*tool, "extract", "--log-file", str(place / "large.log"), "--output", out + "/"], 3.0),
        "sweep": ([*tool, "sweep", "--model-size", "small", "--context-length", "64,128", "--output", out + "/"], 12.0),
        "warmup": ([*tool, "warmup", "--model-size", "small", "--context-length", "64", "--output", out + "/"], 12.0),
        "torch, 1 rank": ([*tool, "run", *TINY, "--output", out + "/"], 20.0),
        "torch, 2 ranks": ([*tool, "run", *TINY, "--num-gpus", "2", "--output", out + "/"], 25.0),
        "Primus by torchrun": (["-c", PRIMUS, str(place / "rank.py")], 12.0),
    }


def prepare(place: Path) -> None:
    """Write what the commands read."""
    import fuzz_readers
    import plausible

    from tensorprimat.storage import store

    (place / "results").mkdir()
    (place / "logs").mkdir()
    (place / "rank.py").write_text(RANK)
    for number, machine in enumerate(("h100", "mi300x") * 2):
        store.write(plausible.result(machine, runs=2, steps=200), place / "results" / f"{number}.json")
    row = fuzz_readers.ROWS["megatron"][2].removeprefix("\x1b[32m")
    for number in range(450):
        (place / "logs" / f"{number}.log").write_text("\n".join(row.format(index) for index in range(1, 9)))
    lines = "\n".join(row.format(index) for index in range(1, 10_000)) + "\n"
    with (place / "large.log").open("w") as file:
        for _ in range(LARGE_LOG_BYTES // len(lines) + 1):
            file.write(lines)


def one(name: str, arguments: Sequence[str], seconds: float, place: Path, chance: random.Random) -> str | None:
    """Kill a command once; return what was left, or None."""
    before = {path: digest(path) for path in (place / "out").rglob("*.json")}
    mark, scratch = f"{os.getpid()}-{chance.random()}", place / "tmp"
    scratch.mkdir(exist_ok=True)
    environment = {**os.environ, MARK: mark, "TMPDIR": str(scratch), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    number, delay = chance.choice(SIGNALS), chance.uniform(0.05, seconds)
    with (place / "printed").open("wb") as printed:
        child = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=place,
            env=environment,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )
        try:
            child.wait(timeout=delay)
        except subprocess.TimeoutExpired:
            child.send_signal(number)
        until = (
            time.monotonic() + PATIENCE_SECONDS + (25.0 if number != signal.SIGKILL else 0.0)
        )  # time to write its results
        while time.monotonic() < until and child.poll() is None:
            time.sleep(0.05)
        until = time.monotonic() + PATIENCE_SECONDS
        while any(looked := processes.marked(f"{MARK}={mark}")) and time.monotonic() < until:
            time.sleep(0.1)
    left = looked[0]
    running = ", ".join(_command(pid) for pid in left)
    problems = [f"{len(left)} processes ({running}); it printed {_end_of(place / 'printed')!r}"] if left else []
    if child.poll() == 2:
        problems.append("refused: " + _end_of(place / "printed"))
    processes.kill_marked(f"{MARK}={mark}")
    child.wait()
    files = [path for path in scratch.iterdir() if not path.name.startswith(("torchinductor_", "torch_"))]
    files += list(place.rglob("*.tmp"))
    problems += [f"{len(files)} temporary files ({files[0].name})"] if files else []
    results = {path: digest(path) for path in (place / "out").rglob("*.json")}
    torn = [path.name for path in place.rglob("*.json") if not _whole(path)]
    problems += [f"torn {', '.join(torn)}"] if torn else []
    lost = [path.name for path in before if path.parent.name == HISTORY and results.get(path) != before[path]]
    lost += [path.name for path in before if path not in results]
    problems += [f"lost {', '.join(lost)}"] if lost else []
    unreadable = [path.name for path in results if (path.parent.name == HISTORY or "benchmark" in path.name)
                  and not _loads(path)]  # fmt: skip
    problems += [f"cannot be loaded: {', '.join(unreadable)}"] if unreadable else []
    shutil.rmtree(scratch)
    return f"{name}, {number.name} after {delay:.1f} s: {'; '.join(problems)}" if problems else None


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "ended"
    return " ".join(words)[-80:]


def _end_of(printed: Path) -> str:
    return printed.read_text(errors="replace")[-200:]


def digest(path: Path) -> str:
    """Return the SHA-256 of a file: what is in the history is never written again."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _loads(path: Path) -> bool:
    from tensorprimat.core.errors import TensorPrimatError
    from tensorprimat.storage import store

    try:
        store.load(path)
    except TensorPrimatError:
        return False
    return True


def _whole(path: Path) -> bool:
    try:
        json.loads(path.read_bytes())
    except ValueError:
        return False
    return True


def run(count: int, seed: int) -> list[str]:
    """Kill commands at random moments; return a sentence for each that left something."""
    begun, failures = time.monotonic(), []
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background command of a shell
    with tempfile.TemporaryDirectory(prefix="faults_") as folder:
        place = Path(folder)
        prepare(place)
        listed = list(commands(place).items())
        for number in range(seed, seed + count):
            name, (arguments, seconds) = listed[number % len(listed)]
            left = one(name, arguments, seconds, place, random.Random(f"kill {number}"))
            failures += [f"kill {number}: {left}"] if left else []
    print(
        f"{'kills':<10} {count:>7} kills, {len(failures)} left something, {time.monotonic() - begun:.0f} s", flush=True
    )
    return failures
