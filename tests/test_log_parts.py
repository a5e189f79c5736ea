"""Several processes that read a large log give the same result as one."""

from __future__ import annotations

import gzip
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorprimat.logs import files, parallel
from tensorprimat.logs.megatron import reader as megatron
from tensorprimat.logs.parallel import Stretch
from tensorprimat.logs.text import Log

ROOT = Path(__file__).parents[1]

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="one process reads elsewhere than on Linux")


@given(
    text=st.lists(st.text("ab\n", max_size=12)).map("".join),
    cuts=st.lists(st.integers(1, 60), max_size=4, unique=True).map(sorted),
    block=st.integers(1, 9),
)
def test_the_stretches_of_a_log_together_hold_every_line_once(tmp_path_factory, text, cuts, block):
    path = tmp_path_factory.mktemp("log") / "a.log"
    path.write_text(text)
    cuts = [cut for cut in cuts if cut <= len(text)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "LOOK_BYTES", block)
        starts = [0, *files.line_starts(path, cuts)]
        spans = zip(starts, [*starts[1:], sys.maxsize], strict=True)
        found = [b"".join(files.blocks_between(path, *span, block)) for span in spans]
    assert b"".join(found).decode() == text
    spoken = [part for part in found if part]
    assert all(part.endswith(b"\n") for part in spoken[:-1])
    begun = [0, *(place + 1 for place, sign in enumerate(text) if sign == "\n"), len(text)]
    assert starts[1:] == [next((place for place in begun if place >= cut), len(text)) for cut in cuts]


def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"\xef\xbb\xbfone\ntwo\n")
    assert b"".join(files.blocks_between(path, 0, 4)) == b"one\n"


def log_with_everything(path: Path, *, iterations: int = 700) -> Path:
    """Return a log of iterations, a restart, checkpoints, validations, a broken line and noise."""
    with path.open("w") as file:
        for number in [*range(1, 4 * iterations // 7), *range(3 * iterations // 7, iterations)]:
            file.write("loading something\n" * (number % 4))
            if number % (iterations // 8) == 0:
                file.write(f"  successfully saved checkpoint at iteration {number} to /checkpoints\n")
            if number % (iterations // 10) == 0:
                file.write(f" validation loss at iteration {number} | lm loss value: 2.5\n")
            broken = "what" if number == 4 * iterations // 5 else f"{1000 + number % 7}.5"
            file.write(
                f" [2026-01-16 10:{number // 60 % 60:02d}:{number % 60:02d}] iteration {number:8d}/ 1000 | consumed "
                f"samples: {number * 128} | elapsed time per iteration (ms): {broken} | learning rate: 1.0E-05 | "
                f"global batch size:   128 | lm loss: {9 - number / 100:.6E} | loss scale: 1.0 | grad norm: 1.5 |\n"
            )
    return path


@linux_only
@pytest.mark.parametrize(("stretch_bytes", "iterations"), [(700, 70), (5_000, 350), (40_000, 700)])
def test_several_processes_read_the_same_as_one(monkeypatch, tmp_path, stretch_bytes, iterations):
    log = Log(log_with_everything(tmp_path / "train.log", iterations=iterations))
    alone = megatron.read(log)
    in_stretches(monkeypatch, stretch_bytes)
    assert len(parallel.stretches(log, first_bytes=megatron.FACTS_BYTES)) > 2
    together = megatron.read(log)
    assert together.warnings == alone.warnings
    assert together.training_config == alone.training_config
    assert together.timestamp == alone.timestamp
    for name in ("line", "index", "seconds", "loss", "segment", "interrupted_by", "covers"):
        np.testing.assert_array_equal(together.steps.column(name), alone.steps.column(name))


@linux_only
def test_step_time_lines_keep_their_iterations_when_processes_share_the_reading(monkeypatch, tmp_path):
    path = tmp_path / "train.log"
    row = " iteration {0}/ 900 | elapsed time per iteration (ms): 25{1}00.0 | lm loss: 2.5E+00 |\n"
    told = "Step Time : 25.{0}0s GPU utilization: 41{0}.0MODEL_TFLOP/s/GPU\n"
    with path.open("w") as file:
        for number in range(1, 900):
            file.write(row.format(number, number % 9) + (told.format(number % 9) if number % 50 == 1 else ""))
    monkeypatch.setattr(files, "BLOCK_BYTES", 500)
    alone = megatron.read(Log(path))
    in_stretches(monkeypatch, 20_000)
    together = megatron.read(Log(path))
    assert np.isfinite(alone.steps.column("reported_tflops_per_gpu")).sum() == 18
    for name in ("line", "reported_tflops_per_gpu"):
        np.testing.assert_array_equal(together.steps.column(name), alone.steps.column(name))


@linux_only
def test_a_packed_log_is_read_by_one_process(monkeypatch, tmp_path):
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress(log_with_everything(tmp_path / "train.log").read_bytes()))
    in_stretches(monkeypatch, 500)
    assert parallel.stretches(Log(path), first_bytes=500) == []


def killed_at_1(here: int, stretch: Stretch) -> int:
    """Return where a stretch starts; the process of stretch 1 is killed, unless it is `here`."""
    if stretch.start == 1 and os.getpid() != here:
        os.kill(os.getpid(), signal.SIGKILL)
    return stretch.start


@linux_only
def test_the_work_of_processes_that_end_with_a_killed_one_is_done_again():
    work = partial(killed_at_1, os.getpid())
    with parallel.outcomes(work, [Stretch(start, start + 1) for start in range(5)]) as found:
        assert list(found) == [0, 1, 2, 3, 4]


def asleep(_: Stretch) -> None:
    time.sleep(60)


@linux_only
def test_no_process_is_left_when_the_reader_gives_up():
    def give_up_early() -> None:
        with parallel.outcomes(asleep, [Stretch(0, 1), Stretch(1, 2)]):
            assert multiprocessing.active_children()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        give_up_early()
    assert not multiprocessing.active_children()


class KilledWhileSaved:
    """Findings whose process is killed while it saves them, unless it is `here`."""

    def __init__(self, here: int) -> None:
        self.here = here

    def __reduce__(self) -> tuple[type[KilledWhileSaved], tuple[int]]:
        if os.getpid() != self.here:
            os.kill(os.getpid(), signal.SIGKILL)
        return KilledWhileSaved, (self.here,)


def found_by_doomed(here: int, stretch: Stretch) -> tuple[int, KilledWhileSaved]:
    return stretch.start, KilledWhileSaved(here)


@linux_only
def test_the_work_of_a_process_killed_in_the_middle_of_its_answer_is_done_again():
    with parallel.outcomes(partial(found_by_doomed, os.getpid()), [Stretch(1, 2)]) as found:
        assert [start for start, _ in found] == [1]


def refuse_in_a_copy(here: int, stretch: Stretch) -> int:
    if os.getpid() != here:
        raise MemoryError
    return stretch.start


@linux_only
def test_the_work_of_a_process_without_memory_is_done_by_the_reader():
    with parallel.outcomes(partial(refuse_in_a_copy, os.getpid()), [Stretch(1, 2), Stretch(2, 3)]) as found:
        assert list(found) == [1, 2]


@linux_only
@pytest.mark.parametrize("allowed", [0, 1])
def test_where_too_few_processes_can_be_started_this_process_does_the_work(monkeypatch, allowed):
    fork, left = os.fork, [allowed]

    def refused() -> int:
        left[0] -= 1
        if left[0] < 0:
            raise BlockingIOError
        return fork()

    monkeypatch.setattr(os, "fork", refused)
    work = partial(killed_at_1, os.getpid())
    with parallel.outcomes(work, [Stretch(start, start + 1) for start in range(3)]) as found:
        assert list(found) == [0, 1, 2]
    assert not multiprocessing.active_children()


READER = """
import sys, time
from tensorprimat.logs import parallel as parts

def work(stretch):
    time.sleep(float(sys.argv[1]))
    return b"x" * 2**20

with parts.outcomes(work, [parts.Stretch(0, 1), parts.Stretch(1, 2)]) as found:
    try:
        print("begun", flush=True)
        for _ in range(6000):
            time.sleep(0.01)  # a signal just before a sleep is handled after it
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def reader(seconds: float) -> subprocess.Popen[str]:
    """Return a program in a session of its own, whose processes sleep for `seconds` before they answer."""
    command = [sys.executable, "-c", READER, str(seconds)]
    begun = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=ROOT
    )
    assert begun.stdout is not None
    assert begun.stdout.readline() == "begun\n"
    return begun


@linux_only
def test_ctrl_c_in_a_terminal_reaches_the_reader_alone():
    with reader(60) as begun:
        os.killpg(begun.pid, signal.SIGINT)
        assert begun.communicate(timeout=20) == ("interrupted\n", "")


@linux_only
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_when_the_reader_is_killed(by):
    with reader(0.5) as begun:
        begun.send_signal(by)
        assert begun.communicate(timeout=20) == ("", "")  # the last process to close them has ended


def in_stretches(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(parallel, "STRETCH_BYTES", size)
    monkeypatch.setattr(parallel, "WORTH_PROCESSES_BYTES", size)
    monkeypatch.setattr(megatron, "FACTS_BYTES", size)
    monkeypatch.setattr(parallel, "usable_cores", lambda: 2)
