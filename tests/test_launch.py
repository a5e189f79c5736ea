"""However a training process ends, the benchmark continues with one sentence and the measured steps."""

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tensorprimat.core.errors import OutOfMemoryError, RunError, UsageError
from tensorprimat.core.spec import RunSpec
from tensorprimat.engines import launch
from tensorprimat.system import failures, processes

SPEC = RunSpec(
    model="llama", preset="tiny", engine="torch", steps=3, warmup_steps=1, micro_batch_size=1, global_batch_size=2,
    sequence_length=16, precision="fp32", num_gpus=1,
)  # fmt: skip

WRITE_RESULT = """
import argparse, json, os, signal, subprocess, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--spec")
parser.add_argument("--result")
paths = parser.parse_args()
spec = json.load(open(paths.spec))

def write(steps, complete=True):
    from pathlib import Path
    from tensorprimat.storage import store
    from tensorprimat.system import atomic
    from tensorprimat.core.result import GpuInfo, Model, PerformanceMetrics, Result, TrainingConfig
    from tensorprimat.core.steps import Step, Steps
    from tensorprimat.core.summary import summarise
    rows = [Step(index=i + 1, seconds=0.5, samples=2, tokens=32) for i in range(steps)]
    result = Result(platform="cpu", gpu_info=GpuInfo(), model=Model(name=spec["model"], preset=spec["preset"]),
                    training_config=TrainingConfig(warmup_steps=1), performance_metrics=PerformanceMetrics(),
                    complete=complete, steps=Steps.of(rows))
    atomic.write_atomically(Path(paths.result), store.to_json(summarise(result)))
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a few lines of Python in the place of an engine; gives its ending and the lines it printed."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run_body(body, *, on_line=None):
        (tmp_path / "stand_in_engine.py").write_text(WRITE_RESULT + textwrap.dedent(body))
        lines = []
        ending = launch.run_in_process(
            SPEC,
            module="stand_in_engine",
            log=tmp_path / "history" / "kept.txt",
            on_line=lambda line: (lines.append(line), on_line and on_line(line)),
        )
        return ending, lines

    return run_body


def test_a_run_gives_its_result_and_its_lines_as_they_come(run):
    ending, lines = run("print('[CPU] Step   1 | Time: 0.500s')\nwrite(4)")
    assert lines == ["[CPU] Step   1 | Time: 0.500s"]
    assert ending.error is None
    assert ending.result.model.name == "llama"
    assert ending.result.performance_metrics.measured_steps == 3


def test_lines_are_live_even_when_the_child_does_not_flush(run, tmp_path):
    seen = tmp_path / "seen"
    body = f"""
        print('early')
        until = time.monotonic() + 30
        while not os.path.exists({str(seen)!r}) and time.monotonic() < until:
            time.sleep(0.01)
        print('late' if os.path.exists({str(seen)!r}) else 'early was not seen')
        write(4)
    """
    _, lines = run(body, on_line=lambda _: seen.touch())
    assert lines == ["early", "late"]


def test_lines_about_the_vanishing_scratch_folder_are_not_shown(run):
    _, lines = run("print('Result:', paths.result)\nprint('shown')\nwrite(4)")
    assert lines == ["shown"]


def test_a_crash_is_one_sentence_and_its_stderr_is_kept(run, tmp_path):
    ending, _ = run("print('a warning', file=sys.stderr)\nraise RuntimeError('expected all tensors on one device')")
    assert isinstance(ending.error, RunError)
    kept = tmp_path / "history" / "kept.txt"
    message = str(ending.error)
    assert message.startswith("RuntimeError: expected all tensors on one device")
    assert str(kept) in message
    assert "\n" not in message
    assert "a warning" in kept.read_text()


def test_measurements_before_a_crash_come_back_incomplete(run):
    ending, _ = run("write(3, complete=False)\nsys.exit('torch_engine: the data ran out')")
    assert len(ending.result.steps) == 3
    assert not ending.result.complete
    assert "the data ran out" in str(ending.error)


@pytest.mark.parametrize(
    "printed",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory",
        "MemoryError: Cannot allocate memory",
    ],
)
def test_running_out_of_memory_names_the_flags_that_help(run, printed):
    ending, _ = run(f"print({printed!r}, file=sys.stderr)\nsys.exit(1)")
    assert isinstance(ending.error, OutOfMemoryError)
    message = str(ending.error)
    assert message.startswith("out of memory: llama (tiny), micro batch 1, global batch 2, sequence 16, fp32, 1 device")
    assert "--sequence-length 8" in message


def test_an_engines_own_sentence_is_passed_on_whatever_follows_it(run):
    ending, _ = run(
        "print('torch engine: out of memory: too much; try less', file=sys.stderr)\n"
        "print('noise of an interpreter that ends', file=sys.stderr)\nsys.exit(1)"
    )
    assert isinstance(ending.error, OutOfMemoryError)
    assert str(ending.error).startswith("out of memory: too much; try less")


def test_a_killed_process_is_reported_as_killed(run):
    ending, _ = run("os.kill(os.getpid(), signal.SIGKILL)")
    assert str(ending.error).startswith(f"the training process {failures.KILLED}; for less memory try ")
    assert ending.result is None


def test_a_process_that_the_kernel_killed_for_memory_is_reported_as_such(run, tmp_path, monkeypatch):
    events = tmp_path / "memory.events"
    events.write_text("oom_kill 4\n")
    (tmp_path / "own").write_text("0::/\n")
    monkeypatch.setattr(processes, "GROUPS", tmp_path)
    monkeypatch.setattr(processes, "GROUP_OF_PROCESS", tmp_path / "own")
    ending, _ = run(f"open({str(events)!r}, 'w').write('oom_kill 5')\nos.kill(os.getpid(), signal.SIGKILL)")
    assert str(ending.error).startswith(f"the training process {failures.KILLED_FOR_MEMORY}; for less memory try ")


def test_another_fatal_signal_is_named(run):
    ending, _ = run("os.kill(os.getpid(), signal.SIGSEGV)")
    assert "died of SIGSEGV" in str(ending.error)


def test_exit_code_2_of_the_engine_is_a_usage_error(run):
    ending, _ = run("print('torch engine: --precision fp8: this CPU has none', file=sys.stderr)\nsys.exit(2)")
    assert isinstance(ending.error, UsageError)
    assert str(ending.error) == "--precision fp8: this CPU has none"


def test_an_engine_that_ends_without_a_result_is_reported_as_failed(run):
    ending, _ = run("pass")
    assert "without a complete result" in str(ending.error)


def test_a_worker_that_outlives_its_leader_is_not_waited_for(run):
    started = time.monotonic()
    ending, lines = run(
        """
        worker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])
        print(worker.pid)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert "was killed (SIGKILL)" in str(ending.error)
    assert "for less memory try --sequence-length 8 (other work), --recompute" in str(ending.error)
    assert "--preset tiny" not in str(ending.error)  # which it has
    assert time.monotonic() - started < 20
    assert not is_running(int(lines[0]))


def test_ctrl_c_stops_the_child_and_keeps_its_measurements(run):
    def interrupt_at_first(line):
        if line == "training":
            os.kill(os.getpid(), signal.SIGINT)

    ending, lines = run(
        """
        try:
            print(os.getpid())
            print('training')
            time.sleep(60)
        except KeyboardInterrupt:
            print('x' * 1_000_000)  # more than a pipe holds
            write(3, complete=False)
            sys.exit(1)
        """,
        on_line=interrupt_at_first,
    )
    assert ending.interrupted
    assert str(ending.error) == "interrupted"
    assert len(ending.result.steps) == 3
    assert not is_running(int(lines[0]))


def test_a_child_that_ignores_ctrl_c_is_ended_anyway(run, monkeypatch):
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0.5)
    monkeypatch.setattr(launch, "TERMINATE_SECONDS", 0.5)
    ending, lines = run(
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(os.getpid())
        time.sleep(60)
        """,
        on_line=lambda _: os.kill(os.getpid(), signal.SIGINT),
    )
    assert ending.interrupted
    assert not is_running(int(lines[0]))


def test_a_reader_of_our_output_that_goes_away_leaves_no_child_behind(run):
    pids = []

    def break_pipe(line):
        pids.append(int(line))
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run("print(os.getpid())\ntime.sleep(60)", on_line=break_pipe)
    assert not is_running(pids[0])


def test_the_beginning_of_a_line_without_end_is_shown(run):
    ending, lines = run("print('x' * 3_000_000)\nprint('after')\nwrite(4)")
    assert ending.error is None
    assert [len(line) for line in lines[:2]] == [launch.LONGEST_LINE, 5]


def test_the_child_finds_the_package_from_any_folder(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ending, _ = run("write(4)")
    assert ending.error is None


def test_the_error_of_the_rank_that_failed_counts_and_not_the_connection_that_another_lost(run):
    ending, _ = run(
        f"""
        print('torch engine (rank 1): out of memory: llama (tiny); try --recompute', file=sys.stderr)
        print({"torch engine: training failed: " + failures.ADVICE[failures.RANK_LOST]!r}, file=sys.stderr)
        sys.exit(1)
        """
    )
    assert isinstance(ending.error, OutOfMemoryError)
    assert str(ending.error).startswith("out of memory: llama (tiny); try --recompute")


@pytest.mark.usefixtures("warm")
def test_a_process_that_imports_during_a_pause_trains_only_when_it_is_let_go(tmp_path):
    lines = []
    with launch.engine_process(SPEC, module="tensorprimat.engines.torch.engine", waits=True) as process:
        launch.cool_down(3.0, lambda _: None)
        assert process.child.poll() is None
        let_go = time.time()
        ending = launch.run_in_process(
            SPEC, module="", log=tmp_path / "kept.txt", on_line=lines.append, process=process
        )
    assert ending.error is None
    (run,) = ending.result.runs
    assert ending.result.steps[0].ended_at > let_go
    startup = run.startup.model_dump()
    assert startup.pop("compile_seconds") is None
    assert all(0 < seconds < 60 for seconds in startup.values()), startup
    assert startup["first_step_seconds"] == pytest.approx(ending.result.steps[0].seconds, rel=1e-3)
    with launch.engine_process(SPEC, module="tensorprimat.engines.torch.engine", waits=True) as process:
        pass
    assert process.child.poll() is not None, "a process that is never let go ends with the pause"


@pytest.mark.parametrize(("beside_modules", "of_another", "kept"), [(0, 0, True), (1, 0, False), (0, 1, False)])
def test_bytecode_is_kept_for_the_next_run_where_the_libraries_keep_none(
    tmp_path, monkeypatch, beside_modules, of_another, kept
):
    library = tmp_path / "torch.py"
    library.write_text("")
    specification = importlib.util.spec_from_file_location("torch", library)
    if beside_modules:
        Path(specification.cached).parent.mkdir()
        Path(specification.cached).write_bytes(b"")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__spec__=specification))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
    monkeypatch.setattr(os, "getuid", lambda: cache.stat().st_uid + of_another)
    subprocess.run([sys.executable, "-c", "import json"], env=launch.process_environment(), check=True)
    assert bool(list(cache.glob("bytecode/**/json/__init__*.pyc"))) == kept


def test_the_cool_down_counts_its_remaining_seconds_down(monkeypatch):
    left, slept = [], []
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr(launch, "time", clock)
    launch.cool_down(2.5, left.append)
    assert (left, slept) == ([2.5, 1.5, 0.5], [1.0, 1.0, 0.5])


def is_running(pid):
    """Return True if a process still runs; a zombie that its parent has not collected does not count."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
