"""Inputs of 100 MB of every kind, and the seconds and memory of every command that reads them.

Each is what its program would write, but rows without other lines between them: the most work per byte. Seconds are of
the processor, all processes of the command together, so that other work on the machine does not count.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "perf"), str(ROOT / "tests")]

import numpy as np  # noqa: E402
from extract_speed import resident_bytes  # noqa: E402
from fault_inputs import cell_seeds, filled  # noqa: E402

MOST_SECONDS = 20
MOST_BYTES = 10**9
PATIENCE_SECONDS = 120  # wall-clock time after which a command is ended
SIZE_BYTES = 10**8
READING = (("extract", "--log-file", "FILE", "--output-dir", "OUT"), ("analyze", "FILE"))
RESULTS = (
    ("compare", "FILE", "GOOD", "--output-dir", "OUT"), ("metrics", "FILE"),
    ("enhance", "FILE", "GOOD", "--output-dir", "OUT"), ("gate", "--baseline", "GOOD", "--candidate", "FILE"),
    ("analyze", "FILE"), ("history", "FOLDER", "--output-dir", "OUT"), ("verify", "FOLDER"),
)  # fmt: skip
CELLS = (("aggregate", "FILE"), ("verify", "FOLDER"))


class Large(NamedTuple):
    """One kind of large input: the file, its writer and the commands that read it."""

    file: str
    write: Callable[[Path, int], None]
    commands: Sequence[Sequence[str]]


def write_lines(make: Callable[[int], Sequence[str]], path: Path, size: int) -> None:
    """Write the log of as many steps as fill `size` bytes. make: returns the log of a number of steps."""
    few, more = (sum(len(line.encode()) + 1 for line in make(count)) for count in (100_000, 200_000))
    path.write_text("\n".join(make(int(100_000 + (size - few) / (more - few) * 100_000))) + "\n")


def job_lines(name: str, count: int) -> Sequence[str]:
    """Return the log of a training of so many steps, by the generators of the tests."""
    from job_logs import Job
    from table_logs import ALL_JOBS

    return ALL_JOBS[name](Job(last=count))


def noise(path: Path, size: int) -> None:
    """Write the output of a program that trains nothing."""
    numbered(
        lambda n: f"worker {n % 64}: cache warmed, {n * 37} entries of /data/tokens/part-{n:07}.bin read", path, size
    )


def numbered(line: Callable[[int], str], path: Path, size: int) -> None:
    """Write lines until they are `size` bytes."""
    with path.open("w") as file:
        written = 0
        for number in itertools.count(1):
            written += file.write(line(number) + "\n")
            if written >= size:
                return


def one_line(path: Path, size: int) -> None:
    """Write one line without an end, of the words that a row is made of."""
    path.write_text(
        "step: 1 loss: 2.5 elapsed time per iteration (ms): 2701.5 | tps: 1,000 [INFO] "[:64] * (size // 64)
    )


def trainer_state(path: Path, size: int) -> None:
    """Write what the Hugging Face Trainer saves with a checkpoint."""
    rows = [
        {"epoch": n / 1000, "grad_norm": 1.5 + n % 7, "learning_rate": 5e-05, "loss": 9.5 - n % 997 / 200, "step": n}
        for n in range(1, size // 170)
    ]
    path.write_text(json.dumps({"global_step": len(rows), "max_steps": len(rows), "log_history": rows}, indent=2))


def result(path: Path, size: int) -> None:
    """Write a result file with all its steps in the JSON, as other programs write it."""
    import plausible

    from tensorprimat.storage import store

    seen = json.loads(store.to_json(plausible.result("h100", runs=1, steps=40)))
    length = len(seen["raw_step_times"])
    count = size // (len(json.dumps([seen["raw_step_times"], seen["step_metrics"]])) // length)
    seen["raw_step_times"] = [12.8 + n % 997 / 1e3 for n in range(count)]
    columns = {name: list(itertools.islice(itertools.cycle(v), count)) for name, v in seen["step_metrics"].items()}
    seen["step_metrics"] = {**columns, "index": list(range(1, count + 1))}
    path.write_text(json.dumps(seen))


def series(path: Path, size: int) -> None:
    """Write a result whose steps are in a series file of `size` bytes."""
    import plausible

    from tensorprimat.storage import series as series_files
    from tensorprimat.storage import store

    few = plausible.result("h100", runs=1, steps=1000)
    a_row = len(series_files.to_bytes(few.steps)) / len(few.steps)
    store.write(plausible.result("h100", runs=1, steps=int(size / a_row)), path)


def cells(path: Path, size: int) -> None:
    """Write the cells of a sweep as one list."""
    cell = json.loads(cell_seeds()[1])[0]
    rows = ({**cell, "context_length": 128 + n, "mean_time_ms": 9.5 + n % 97} for n in range(size // 105))
    path.write_text(json.dumps(list(rows)))


def own_cells(path: Path, size: int) -> None:
    """Write our own cells as one list."""
    cell = json.loads(cell_seeds()[0])
    path.write_text(json.dumps([{**cell, "context_length": 128 + n} for n in range(size // len(json.dumps(cell)))]))


def workbook(path: Path, size: int) -> None:
    """Write a TraceLens workbook of large sheets; workbooks are packed, so `size` counts their unpacked text."""
    import openpyxl

    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("gpu_timeline")
    for row in (("type", "time ms", "percent"), ("computation_time", 60.0, 60), ("total_time", 100.0, 100)):
        sheet.append(row)
    for name in ("ops_summary_by_category", "nccl_summary_implicit_sync"):
        sheet = book.create_sheet(name)
        sheet.append(("op category", "Count", "total_direct_kernel_time_ms"))
        for number in range(size // 2 // 120):
            sheet.append((f"GEMM_{number}", number % 977, number * 0.37))
    book.save(path)


def packed_workbook(path: Path, size: int) -> None:
    """Write a workbook whose file has `size` bytes."""
    import openpyxl

    random = np.random.default_rng(0)
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("ops_summary_by_category")
    sheet.append(("op category", "Count", "total_direct_kernel_time_ms"))
    for number, value in enumerate(random.random(size // 22).tolist()):
        sheet.append((f"op {number}", number, value))
    book.save(path)


EVENT_TAGS = ("iteration-time", "lm loss", "learning-rate", "grad-norm", "batch-size", "throughput")


def events(path: Path, size: int, tags: Sequence[str] = EVENT_TAGS) -> None:
    """Write an event file with a record for every scalar, as SummaryWriter does."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    from tensorprimat.logs.tensorboard import checksums

    def framed(records: np.ndarray) -> np.ndarray:
        length = np.frombuffer(np.full(len(records), records.shape[1], "<u8").tobytes(), np.uint8).reshape(-1, 8)
        first, last = (checksums(part).view(np.uint8).reshape(-1, 4) for part in (length, records))
        return np.concatenate([length, first, records, last], axis=1)

    def bytes_of(event: Event) -> np.ndarray:
        return np.frombuffer(event.SerializeToString(), np.uint8)

    first = 2**14  # steps whose varint has three bytes
    a_step = sum(len(bytes_of(_scalar(Event, Summary, tag, first, 1.7e9, 1.5))) + 16 for tag in tags)
    count = min(size // a_step, 2**21 - first)
    number = np.arange(first, first + count)
    values = (2 + number % 97 / 100).astype("<f4").view(np.uint8).reshape(-1, 4)
    times = (1.7e9 + number * 2.0).astype("<f8").view(np.uint8).reshape(-1, 8)
    varint = np.stack([number & 127 | 128, number >> 7 & 127 | 128, number >> 14], axis=1).astype(np.uint8)
    parts = []
    for tag in tags:
        record = np.tile(bytes_of(_scalar(Event, Summary, tag, first, 1.7e9, 1.5)), (count, 1))
        record[:, 1:9], record[:, 10:13], record[:, -4:] = times, varint, values
        parts.append(framed(record))
    opening = framed(bytes_of(Event(wall_time=1.7e9, file_version="brain.Event:2"))[None])
    path.write_bytes(opening.tobytes() + np.concatenate(parts, axis=1).tobytes())


def _scalar(event: type, summary: type, tag: str, step: int, at: float, value: float) -> object:
    return event(wall_time=at, step=step, summary=summary(value=[summary.Value(tag=tag, simple_value=value)]))  # type: ignore[attr-defined]


def few_events(path: Path, size: int) -> None:
    """Write an event file of one loss a step."""
    events(path, size, ("train/loss",))


def event_texts(path: Path, size: int) -> None:
    """Write an event file of a loss and a text of another length at every step."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto

    from tensorprimat.logs.tensorboard import checksums

    def framed(event: Event) -> bytes:
        content = event.SerializeToString()
        length = len(content).to_bytes(8, "little")
        first, last = (checksums(np.frombuffer(part, np.uint8)[None]).tobytes() for part in (length, content))
        return bytes(length + first + content + last)

    def text(number: int) -> Event:
        tensor = TensorProto(dtype=7, string_val=[b"sample of a generated text " * 200][:1])
        tensor.string_val[0] = tensor.string_val[0][: 400 + number]
        return Event(
            wall_time=1.7e9, step=1, summary=Summary(value=[Summary.Value(tag="sample/text_summary", tensor=tensor)])
        )

    texts = [framed(text(number)) for number in range(2000)]
    written, opening = 0, Event(wall_time=1.7e9, file_version="brain.Event:2")
    with path.open("wb") as file:
        file.write(framed(opening))
        for step in itertools.count(1):
            file.write(texts[step * 977 % len(texts)])
            written += file.write(framed(_scalar(Event, Summary, "train/loss", step, 1.7e9 + 2 * step, 2.5)))
            written += len(texts[step * 977 % len(texts)])
            if written >= size:
                return


def profile(path: Path, size: int) -> None:
    """Write a trace of PyTorch's profiler."""
    event = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "args": {"stream": 7, "External id": 1}}
    rows = ({**event, "name": f"gemm_{n % 500}", "ts": n * 11.5, "dur": 9.25} for n in range(size // 130))
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(rows)}))


MADENGINE = "model,n_gpus,nnodes,training_precision,machine_name,gpu_architecture,performance,metric,status"
EXPORTS: Mapping[str, tuple[str, str, Callable[[int], str]]] = {
    "wandb export": (
        "history.jsonl", "",
        lambda n: f'{{"_step": {n}, "_runtime": {n * 2.5}, "_timestamp": {1.7e9 + n * 2.5}, "train/loss": {loss(n)}, '
        f'"tokens_per_sec": {1e5 + n % 777}}}',
    ),
    "mlflow export": ("loss", "", lambda n: f"{1700000000000 + n * 2500} {loss(n)} {n}"),
    "csv export": (
        "metrics.csv", "step,epoch,step_time,tokens_per_sec,loss",
        lambda n: f"{n},0,{2 + n % 97 / 100},{1e5 + n % 777},{loss(n)}",
    ),
    "madengine export": (
        "perf.csv", MADENGINE,
        lambda n: f"llama_{n},8,1,bf16,node,gfx942,{120 + n % 97}.5,tokens/s/gpu,SUCCESS",
    ),
    "bar": ("train.log", "", lambda n: f"Epoch 0:  50%|#####     | {n}/100000000 [00:00<00:05,  2.00it/s, loss=1.2]"),
}  # fmt: skip
"""Exports of trackers: file, first line, and one row a step."""


def loss(number: int) -> str:
    """Return a loss that falls and rises."""
    return f"{9.5 - number % 997 / 200:.6f}"


def exported(name: str, path: Path, size: int) -> None:
    """Write what a tracker exports."""
    _, first, row = EXPORTS[name]
    numbered(lambda n: first if first and n == 1 else row(n), path, size)


SUFFIXES = {"lightning": "csv", "metrics table": "csv", "metrics rows": "jsonl"}
DOCUMENTS: Mapping[str, Large] = {
    "trainer state": Large("trainer_state.json", trainer_state, READING),
    "noise": Large("train.log", noise, READING),
    "one line": Large("train.log", one_line, READING),
    "events": Large("events.out.tfevents.1.host", events, READING),
    "events of a loss": Large("events.out.tfevents.1.host", few_events, READING),
    "event texts": Large("events.out.tfevents.1.host", event_texts, READING),
    "workbook": Large("report.xlsx", workbook, READING),
    "packed workbook": Large("report.xlsx", packed_workbook, READING),
    "profile": Large("trace.json", profile, READING),
    "result": Large("benchmark_cuda_llama.json", result, RESULTS),
    "series": Large("benchmark_cuda_llama.json", series, RESULTS),
    "foreign cells": Large("cells.json", cells, CELLS),
    "cells": Large("cells.json", own_cells, CELLS),
}


def kinds() -> dict[str, Large]:
    """Return every kind of large input by name."""
    from table_logs import ALL_JOBS

    jobs = {
        name: Large(f"train.{SUFFIXES.get(name, 'log')}", partial(write_lines, partial(job_lines, name)), READING)
        for name in ALL_JOBS
    }
    exports = {name: Large(file, partial(exported, name), READING) for name, (file, _, _) in EXPORTS.items()}
    return {**jobs, **exports, **DOCUMENTS}


class Outcome(NamedTuple):
    """One command on one large input."""

    seconds: float
    peak_bytes: int
    code: int
    printed: str


def tried(command: Sequence[str], place: Path) -> Outcome:
    """Run a command to its end; return the seconds of the processor and the peak memory of all its processes."""
    peak, printed = 0, place / "printed"
    with printed.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "tensorprimat", *command], cwd=place, stdout=file, stderr=file,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    watchdog = threading.Timer(PATIENCE_SECONDS, process.kill)
    watchdog.start()
    while True:
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        peak = max(peak, memory_of_tree(process.pid))
        time.sleep(0.05)
    watchdog.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    words = printed.read_text(errors="replace").split("\n")
    line = next((line for line in words if re.search("rror|efused|more than|larger", line)), words[0])
    return Outcome(used.ru_utime + used.ru_stime, max(peak, used.ru_maxrss * 1024), process.returncode, line)


def made_elsewhere(kind: Large, path: Path, size: int) -> None:
    """Write an input in a process of its own: the peak of a command's memory counts what its parent held."""
    child = os.fork()
    if not child:
        kind.write(path, size)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit(f"{path.name} could not be written")


def memory_of_tree(pid: int) -> int:
    """Return the memory of a process and its descendants in bytes; memory that they share counts once."""
    import psutil

    with contextlib.suppress(psutil.Error):
        head = psutil.Process(pid)
        return resident_bytes(head) if head.children() else 0  # the kernel keeps the peak of one process
    return 0


def run(size: int, only: Sequence[str], keep: Path | None = None) -> list[str]:
    """Try every large input; print a line for each command and return a sentence for each that took too much."""
    import plausible

    from tensorprimat.storage import store

    failures = []
    print(f"{'input':<24}{'MB':>5} {'command':<9}{'cpu s':>7}{'MB peak':>9}  exit")
    for name, kind in kinds().items():
        if only and not any(name.startswith(word) for word in only):
            continue
        with tempfile.TemporaryDirectory(prefix="faults_", dir=keep) as folder:
            place, inside = Path(folder), Path(folder, "in")
            inside.mkdir()
            made_elsewhere(kind, inside / kind.file, size)
            store.write(plausible.result("mi300x", runs=2), place / "good.json")
            written = sum(path.stat().st_size for path in inside.iterdir()) / 1e6
            names = {"FILE": inside / kind.file, "GOOD": place / "good.json", "OUT": place / "out", "FOLDER": inside}
            for command in kind.commands:
                done = tried(filled(command, names), place)
                shutil.rmtree(place / "out", ignore_errors=True)
                row = f"{name:<24}{written:5.0f} {command[0]:<9}{done.seconds:7.1f}{done.peak_bytes / 1e6:9.0f}"
                print(f"{row}  {done.code}  {done.printed[:150] if done.code else ''}", flush=True)
                over = [
                    *([f"{done.seconds:.0f} s"] if done.seconds > MOST_SECONDS else []),
                    *([f"{done.peak_bytes / 1e9:.1f} GB"] if done.peak_bytes > MOST_BYTES else []),
                    *(["no answer" if done.code < 0 else done.printed] if done.code not in (0, 1, 2, 3) else []),
                ]
                if over or "unexpected error" in done.printed:
                    failures.append(f"large {name}, {command[0]}: {', '.join(over) or done.printed}")
    return failures
