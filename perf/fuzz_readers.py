#!/usr/bin/env python3
"""Coverage-guided fuzzing of every log reader: no input crashes or hangs one, whatever it holds.

    perf/fuzz_readers.py --seconds 60              # a minute for every reader
    perf/fuzz_readers.py --seconds 600 --reader megatron --reader excel
    perf/fuzz_readers.py --splices 3000            # pairs of logs joined at random lines; needs no atheris

Each reader runs in a process of its own under atheris (libFuzzer for Python), from seeds that this script makes. An
input passes if it becomes a result or one of the tool's own errors within HANG_SECONDS and MOST_MEGABYTES. Inputs that
do not are kept under --keep. --splices joins two logs of one format that differ in their settings and checks that no
figure mixes facts of both without a warning or a refusal. Exit code 0, 1 where a reader failed, 2 where atheris is not
installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


HANG_SECONDS = 10  # a reader takes milliseconds for a file of a few kilobytes
MOST_MEGABYTES = 2048
LONGEST_INPUT = 8192  # bytes; the smallest workbook has six thousand

TABLES = [
    tomllib.loads((ROOT / f"tensorprimat/data/{name}.toml").read_text("utf-8")) for name in ("formats", "dialects")
]
ROWS: Mapping[str, Sequence[str]] = {
    name: [sample["text"] for sample in format["samples"]]
    for table in TABLES
    for name, format in table.items()
    if "samples" in format
}
"""Rows of every text format, from its table: the package is imported only where atheris can follow it."""
"""Reader → rows of its formats, with a place for the number of the step."""
DOCUMENTS: Mapping[str, Sequence[bytes]] = {
    "huggingface": (
        b'{"global_step": 9, "log_history": [{"loss": 1.2, "step": 1, "learning_rate": 0.1, "epoch": 0.5}]}',
        b'{"train_runtime": 836.4, "train_samples_per_second": 1.196, "train_loss": 2.5}',
    ),
    "metrics": (
        b'[{"_step": 1, "_runtime": 5.5, "train/loss": 2.5}, {"_step": 2, "_runtime": 7.5, "train/loss": 2.4}]',
        b'{"_step": 9, "_runtime": 5.5, "throughput/tokens_per_sec": 99.5, "_wandb": {"runtime": 5}}',
    ),
    "result": (
        b'{"platform": "cuda", "performance_metrics": {"total_steps": 3, "tokens_per_second": 9.5},'
        b' "raw_step_times": [0.5, 0.5, 0.5], "training_config": {"global_batch_size": 8}}',
        b'{"platform": "nvd", "gpu_info": {"device_name": "NVIDIA H100"}, "performance_metrics": {"total_steps": 2},'
        b' "step_times": [0.5, 0.5], "loss_values": [2.5, "nan"], "parallelism_config": {"tensor": 8}}',
        b'{"schema_version": 3, "platform": "amd", "gpu_info": {}, "model": {"name": "llama"}, "training_config": {},'
        b' "performance_metrics": {}, "raw_step_times": [1.5, null], "step_metrics": {"loss": ["nan", 2.5],'
        b' "index": [1, 2], "interrupted_by": [null, "validation"]}, "runs": [{"index": 0}], "warnings": ["a: b"]}',
    ),
}
"""Reader → whole files."""


def cells(text: bytes) -> bytes:
    """Return a workbook whose sheets are the paragraphs of a text: name, then rows of cells with commas between."""
    import io

    import openpyxl

    book = openpyxl.Workbook()
    for paragraph in text.decode("utf-8", "replace").split("\n\n")[:8]:
        name, *rows = paragraph.split("\n")
        sheet = book.create_sheet(re.sub(r"[^\w ]", "", name)[:30] or "sheet")
        for row in rows[:50]:
            sheet.append([_value(cell) for cell in re.sub(r"[\x00-\x1f]", "", row).split(",")[:20]])
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


def _value(cell: str) -> str | float:
    with suppress(ValueError):
        return float(cell)
    return cell


def events(text: bytes) -> bytes:
    """Return an event file of scalars: one per line, as step, time, value and tag."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    found = [Event(wall_time=1.7e9, file_version="brain.Event:2")]
    for line in text.decode("utf-8", "replace").split("\n")[:200]:
        step, _, rest = line.partition(" ")
        time, _, rest = rest.partition(" ")
        value, _, tag = rest.partition(" ")
        with suppress(ValueError, OverflowError):
            scalar = Summary.Value(tag=tag, simple_value=float(value))
            found.append(Event(step=int(step), wall_time=float(time), summary=Summary(value=[scalar])))
    records = (event.SerializeToString() for event in found)
    return b"".join(framed(record, len(record)) for record in records)


def run_file(text: bytes) -> bytes:
    """Return a run file of Weights & Biases: one call of wandb.log per line, as `name value` pairs."""
    calls = []
    for line in text.decode("utf-8", "replace").split("\n")[:200]:
        words = line.split(" ")
        calls.append(protobuf(HISTORY, protobuf_items(dict(zip(words[::2], words[1::2], strict=False)))))
    return run_file_of(calls)


def run_file_of(records: Sequence[bytes]) -> bytes:
    """Return records of Protocol Buffers in the blocks of a run file, long ones in fragments."""
    from tensorprimat.logs.files import WANDB_OPENING
    from tensorprimat.logs.wandb_run import (
        FIRST_FRAGMENT,
        LAST_FRAGMENT,
        MIDDLE_FRAGMENT,
        WANDB_BLOCK_BYTES,
        WANDB_HEADER_BYTES,
        WHOLE_FRAGMENT,
    )

    written = bytearray(WANDB_OPENING)
    for record in records:
        rest, begins = record, True
        while begins or rest:
            room = WANDB_BLOCK_BYTES - len(written) % WANDB_BLOCK_BYTES
            if room < WANDB_HEADER_BYTES:
                written += bytes(room)
                room = WANDB_BLOCK_BYTES
            part, rest = rest[: room - WANDB_HEADER_BYTES], rest[room - WANDB_HEADER_BYTES :]
            kind = bytes(
                [(FIRST_FRAGMENT if rest else WHOLE_FRAGMENT) if begins else MIDDLE_FRAGMENT if rest else LAST_FRAGMENT]
            )
            written += struct.pack("<IH", zlib.crc32(part, zlib.crc32(kind)), len(part)) + kind + part
            begins = False
    return bytes(written)


def protobuf(field: int, content: bytes) -> bytes:
    """Return a field of a message: its number, length and content."""

    def varint(number: int) -> bytes:
        return bytes([number]) if number < 0x80 else bytes([number & 0x7F | 0x80]) + varint(number >> 7)

    return varint(field << 3 | 2) + varint(len(content)) + content


def protobuf_items(values: Mapping[str, str]) -> bytes:
    """Return the items of a history or configuration, from values in JSON by name."""
    return b"".join(
        protobuf(1, protobuf(1, name.encode("utf-8", "replace")) + protobuf(16, value.encode("utf-8", "replace")))
        for name, value in values.items()
    )


def framed(record: bytes, length: int) -> bytes:
    """Return a record of an event file with its length and both checksums."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    head = struct.pack("<Q", length)
    return head + struct.pack("<I", masked_crc32c(head)) + record + struct.pack("<I", masked_crc32c(record))


HISTORY = 2  # field of a record with a call of wandb.log
CALLS = "\n".join(
    f"train/global_step {n} train/loss 2.{n} _step {n} _timestamp {1.76e9 + n} train/tokens_per_second 99{n}"
    for n in range(1, 12)
).encode()

SHEETS = b"""gpu_timeline
type,time ms,percent
computation_time,60.0,60
idle_time,19.0,19
total_time,100.0,100

ops_summary_by_category
op category,Count,total_direct_kernel_time_ms
GEMM,10,40.0

nccl_summary_implicit_sync
Collective name,dtype,In msg nelems,Group size,count,dur_sum,comm_latency_mean
allreduce,BFloat16,1048576,8,10,5.0,0.5"""
SCALARS = b"""1 1700000000.5 0.5 iteration-time
1 1700000000.5 9.5 lm loss
2 1700000001.0 0.5 iteration-time
3 1700000002 0.5 train_step_timing in s
4 1700000003 1.5 train/loss"""


def _same(text: bytes) -> bytes:
    return text


@dataclass(frozen=True, kw_only=True)
class Target:
    """The reader to fuzz, with its seeds."""

    format: str
    """Empty where the reader is to be found by detection."""
    seeds: Callable[[], list[bytes]]
    """Made on request: some need packages that are slow to import."""
    dress: Callable[[bytes], bytes] = _same
    """Function that makes a file of fuzzed bytes."""


def _rows_and_documents(name: str) -> list[bytes]:
    logs = ["\n".join(row.format(step) for step in range(1, 9)).encode() for row in ROWS.get(name, ())]
    return [*logs, *DOCUMENTS.get(name, ())]


def targets() -> dict[str, Target]:
    """Return every reader by its format's name, and "any", which detects the format.

    Binary formats are there a second time, with fuzzed contents in files of the right shape.
    """
    found = {
        name: Target(format=name, seeds=partial(_rows_and_documents, name))
        for name in dict.fromkeys((*ROWS, *DOCUMENTS))
    }
    if importlib.util.find_spec("openpyxl"):
        found["excel"] = Target(format="excel", seeds=lambda: [cells(SHEETS)])
        found["excel cells"] = Target(format="excel", seeds=lambda: [SHEETS], dress=cells)
    if importlib.util.find_spec("tensorboard"):
        found["tensorboard"] = Target(format="tensorboard", seeds=lambda: [events(SCALARS)])
        found["tensorboard scalars"] = Target(format="tensorboard", seeds=lambda: [SCALARS], dress=events)
    found["wandb"] = Target(format="wandb", seeds=lambda: [run_file(CALLS)])
    found["wandb calls"] = Target(format="wandb", seeds=lambda: [CALLS], dress=run_file)
    text = [name for name in found if name in ROWS or name in DOCUMENTS]
    found["any"] = Target(format="", seeds=lambda: [seed for name in text for seed in found[name].seeds()])
    return found


def fuzz(target: str, seconds: int, kept: Path) -> None:
    """Fuzz one target in this process; libFuzzer ends it."""
    import atheris

    with atheris.instrument_imports(include=["tensorprimat"]):
        from tensorprimat import logs
        from tensorprimat.core.errors import TensorPrimatError
    chosen = targets()[target]
    with tempfile.TemporaryDirectory(prefix="tprimat_fuzz_") as folder:
        corpus, file = Path(folder) / "corpus", Path(folder) / "a.log"
        corpus.mkdir()
        for number, seed in enumerate(chosen.seeds()):
            (corpus / str(number)).write_bytes(seed)

        def once(content: bytes) -> None:
            file.write_bytes(chosen.dress(content))
            with suppress(TensorPrimatError):
                logs.read(file, format=chosen.format or None)

        limits = (f"-max_total_time={seconds}", f"-timeout={HANG_SECONDS}", f"-rss_limit_mb={MOST_MEGABYTES}")
        keeping = (f"-max_len={LONGEST_INPUT}", f"-artifact_prefix={kept}/{target.replace(' ', '_')}-")
        atheris.Setup([sys.argv[0], *limits, *keeping, "-print_final_stats=1", str(corpus)], once)
        atheris.Fuzz()


def _survived(target: str, seconds: int, kept: Path) -> bool:
    """Fuzz one target in a process of its own and print a row of the table."""
    command = [sys.executable, __file__, "--inside", target, "--seconds", str(seconds), "--keep", str(kept)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
    )
    runs = re.search(r"number_of_executed_units: (\d+)", done.stdout)
    covered = re.findall(r"\bcov: (\d+)", done.stdout)
    outcome = "no crash, no hang" if done.returncode == 0 else f"FAILED, input kept under {kept}"
    print(f"{target:<20} {runs[1] if runs else '-':>9} inputs {covered[-1] if covered else '-':>6} edges  {outcome}")
    sys.stdout.flush()
    if done.returncode:
        print(done.stdout[-4000:], file=sys.stderr)
    return done.returncode == 0


def splice(cases: int) -> bool:
    """Join that many pairs of logs, of all formats that tests can write; return True if no figure mixes two trainings.

    Prints a row per format, and the smallest failing pair of lines where one fails.
    """
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    sys.path.insert(0, str(ROOT / "tests"))
    from table_logs import ALL_JOBS
    from test_segments import assert_nothing_is_mixed_silently, spliced

    share, failed = -(-cases // len(ALL_JOBS)), 0
    for name in ALL_JOBS:

        @settings(max_examples=share, deadline=None, database=None, suppress_health_check=[*HealthCheck])
        @given(data=st.data(), name=st.just(name))
        def once(data: st.DataObject, name: str) -> None:
            assert_nothing_is_mixed_silently(*data.draw(spliced(name)))

        outcome = "no figure of two trainings"
        try:
            once()
        except AssertionError as error:
            failed, outcome = failed + 1, f"FAILED: {error}"
        print(f"{name:<20} {share:>9} splices  {outcome}", flush=True)
    return failed == 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="for each reader (default 60)")
    parser.add_argument("--reader", action="append", choices=[*targets()], help="only this one; may be repeated")
    parser.add_argument("--splices", type=int, help="join so many pairs of logs instead")
    parser.add_argument("--keep", type=Path, default=Path("fuzz_failures"), help="where failing inputs are kept")
    parser.add_argument("--inside", choices=[*targets()], help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.splices:
        return 0 if splice(options.splices) else 1
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed; pip install atheris (Linux, Python 3.11 to 3.13)", file=sys.stderr)
        return 2
    options.keep.mkdir(parents=True, exist_ok=True)
    if options.inside:
        fuzz(options.inside, options.seconds, options.keep)
        return 0
    survived = [_survived(target, options.seconds, options.keep) for target in options.reader or targets()]
    with suppress(OSError):
        options.keep.rmdir()  # removed only if it is empty
    return 0 if all(survived) else 1


if __name__ == "__main__":
    sys.exit(main())
