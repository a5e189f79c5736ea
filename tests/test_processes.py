"""Everything that a command starts ends with it, in whatever session it lives, and its temporary files go too."""

import contextlib
import errno
import itertools
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from each import in_each

from tensorprimat.core.errors import RunError
from tensorprimat.engines import launcher_output
from tensorprimat.system import atomic, processes

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends children only on Linux")

LAUNCHER = """
import os, subprocess, sys, time
rank = [sys.executable, "-c", "import time; time.sleep(60)"]
ranks = [subprocess.Popen(rank, start_new_session=True) for _ in range(2)]
os.write(1, b"%d %d %d\\n" % (*(rank.pid for rank in ranks), os.getpid()))  # whole, whoever else writes
{then}
"""
OURS = """
import os, sys
from tensorprimat.system import processes
with processes.scratch_folder() as scratch:
    child = processes.popen([sys.executable, "-c", sys.argv[1]], scratch=scratch, start_new_session=True)
    os.write(1, b"%s %d\\n" % (os.fsencode(scratch), child.pid))
    child.wait()
"""


def lives(pid):
    return processes.started(pid) is not None


def wait_until(happens, patience=30):
    until = time.monotonic() + patience
    while not happens():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


@contextlib.contextmanager
def ours(then="time.sleep(60)"):
    """Start a program that runs a launcher with two ranks in own sessions; yield it, the rest and its folder."""
    program = subprocess.Popen(
        [sys.executable, "-c", OURS, LAUNCHER.format(then=then)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    first, second = sorted((program.stdout.readline().split(), program.stdout.readline().split()), key=len)
    family = [int(pid) for pid in second]
    try:
        yield program, int(first[1]), family, Path(first[0])
    finally:
        for pid in (program.pid, int(first[1]), *family):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        program.communicate()


@in_each("by", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ranks_in_sessions_of_their_own_end_with_the_program_and_its_folder_goes(by):
    with ours() as (program, guard, family, scratch):
        assert scratch.is_dir()
        program.send_signal(by)
        wait_until(lambda: not any(map(lives, [guard, *family])) and not scratch.exists())


def test_ranks_end_with_their_launcher():
    with ours(then="os.kill(os.getpid(), 9)") as (program, _, family, _):
        wait_until(lambda: not any(map(lives, family)))
        program.wait(timeout=10)


def test_ranks_end_even_if_their_guard_is_killed():
    child = processes.popen([sys.executable, "-c", LAUNCHER.format(then="time.sleep(60)")], stdout=subprocess.PIPE)
    family = [int(pid) for pid in child.stdout.readline().split()]
    child.stdout.close()
    child.kill()
    processes.end(child)
    wait_until(lambda: not any(map(lives, family)))


def test_a_process_that_is_about_to_start_its_program_is_found_by_its_mark(tmp_path, monkeypatch):
    """While it does (exec), the kernel shows an empty environment: one process in five, looked at at once."""
    marked = {**os.environ, processes.TREE: "/about-to-start/"}
    monkeypatch.setattr(processes, "PROC", tmp_path)  # with one process in it, so that the look is early
    for _ in range(100):
        child = subprocess.Popen(["sleep", "60"], env=marked, start_new_session=True)
        (tmp_path / str(child.pid)).symlink_to(f"/proc/{child.pid}")
        processes.kill_marked("/about-to-start/")
        assert child.wait(timeout=10) == -signal.SIGKILL


def test_a_process_without_any_environment_is_not_waited_for(monkeypatch):
    looks, look = itertools.count(), processes.marked

    def marked(mark):
        assert next(looks) < 50, "it is looked at again and again"
        return look(mark)

    monkeypatch.setattr(processes, "END_SECONDS", math.inf)
    with subprocess.Popen(["sleep", "60"], env={}) as child:
        wait_until(lambda: child.pid in processes.marked("/nobody/")[1])
        monkeypatch.setattr(processes, "marked", marked)
        processes.kill_marked("/nobody/")
        assert child.poll() is None
        child.kill()


def test_a_command_that_is_told_to_end_while_it_starts_does_end():
    for wait in range(0, 60, 3):  # milliseconds: before, while and after the guard starts the command
        child = processes.popen(["sleep", "60"])
        time.sleep(wait / 1000)
        processes.terminate(child)
        assert child.wait(timeout=10) in (-signal.SIGTERM, -signal.SIGUSR1)


@in_each(("does", "code"), [("exit 3", 3), ("kill -9 $$", -9), ("kill -11 $$", -11), ("true", 0)])
def test_a_guarded_command_ends_as_it_would_alone(does, code):
    assert processes.run_guarded(["sh", "-c", does]).returncode == code


def test_starting_a_missing_command_raises_file_not_found_error():
    with pytest.raises(FileNotFoundError, match="no-such-launcher"):
        processes.popen(["no-such-launcher"])


def test_a_garbled_line_of_a_launcher_is_shown_as_it_is():
    show = launcher_output._Shown(label="ROCM")
    line = (
        " iteration 3/ 50 | elapsed time per iteration (ms): 2701.3.4 | hip mem usage/free/total/usage_ratio: 1.2.3GB"
    )
    assert show(line) == line
    assert "0.004" in show(
        " iteration 4/ 50 | elapsed time per iteration (ms): 4.0 | mem usage/free/total/usage_ratio: 1.2.3GB"
    )


def test_the_average_of_a_launchers_lines_is_that_of_its_measured_steps():
    show = launcher_output._Shown(label="CUDA", warmup_steps=2)
    times = [9000.0, 4000.0, 1000.0, 2000.0]
    lines = [show(f" iteration {n}/ 4 | elapsed time per iteration (ms): {ms} |") for n, ms in enumerate(times, 1)]
    assert [line.endswith("(warm-up, not measured)") for line in lines] == [True, True, False, False]
    assert ["Avg" in line for line in lines] == [False, False, True, True]
    assert "Avg: 1.500s" in lines[3]


FORKING = """
import os, sys, time
from tensorprimat.session import second_process as aside
aside.usable_cores = lambda: 2
with aside.second_process() as begin:
    print(begin(os.getpid)(), flush=True)
    begin(time.sleep, 60)
    time.sleep(60)
"""


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
def test_the_second_process_of_compare_ends_with_the_first(by):
    program = subprocess.Popen([sys.executable, "-c", FORKING], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    second = int(program.stdout.readline())
    program.send_signal(by)
    program.communicate(timeout=10)
    wait_until(lambda: not lives(second))


def test_folders_of_ended_programs_are_swept_and_those_of_others_kept(tmp_path, monkeypatch):
    monkeypatch.setenv(processes.SCRATCH, str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    system, pid, start = processes.owner().split("-")
    names = {
        f"tensorprimat-{system}-{ended.pid}-1-abandoned": False,
        f"tensorprimat-{system}-{pid}-{int(start) - 1}-another": False,  # the number was used before
        f"tensorprimat-{system}-{pid}-{start}-mine": True,
        f"tensorprimat-00112233-{ended.pid}-1-elsewhere": True,  # of another container that shares /tmp
        "tensorprimat-notes": True,
    }
    for name in names:
        (tmp_path / name / "deep").mkdir(parents=True)
    with processes.scratch_folder() as scratch:
        assert scratch.parent == tmp_path
    assert {name: (tmp_path / name).exists() for name in names} == names


CACHES = """
import os, tempfile
tempfile.tempdir = None  # as in a process that has not asked for it
from torch._inductor.runtime.runtime_utils import cache_dir, default_cache_dir
os.makedirs(default_cache_dir(), exist_ok=True)
print(os.path.realpath(cache_dir()), os.path.realpath(default_cache_dir()))
"""


@pytest.mark.usefixtures("warm")
def test_torch_keeps_compiled_code_and_compiled_headers_when_the_temporary_folder_goes(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    with processes.scratch_folder() as scratch:
        child = processes.popen([sys.executable, "-c", CACHES], scratch=scratch, stdout=subprocess.PIPE, text=True)
        kept = child.communicate(timeout=120)[0].split()
    assert len(set(kept)) == 1, kept
    assert Path(kept[0]).parent == tmp_path
    assert Path(kept[0]).is_dir()
    assert not scratch.exists()


WRITING = """
import sys
from pathlib import Path
from types import SimpleNamespace
from tensorprimat.system import atomic
def content(file):
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    sys.stdin.read()
atomic.write_atomically(Path(sys.argv[1]), content)
"""


def test_kill_9_in_the_middle_of_a_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "result.json"
    path.write_text("old")
    program = subprocess.Popen(
        [sys.executable, "-c", WRITING, path], cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    program.stdout.readline()
    program.kill()
    program.communicate()
    atomic.write_atomically(tmp_path / "other.json", "new")
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"result.json": "old", "other.json": "new"}


def test_a_file_system_without_nameless_files_is_written_through_a_name_that_is_swept(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "_nameless", lambda _: None)
    atomic.write_atomically(tmp_path / "a.json", "whole")
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]
    gone = subprocess.Popen(["true"])
    gone.wait()
    system = processes.owner().split("-")[0]
    left = tmp_path / f".a.json.tensorprimat-{system}-{gone.pid}-1-00ff.tmp"
    left.touch()
    processes.sweep(tmp_path)
    assert not left.exists()


def test_a_file_without_a_name_gets_one_without_being_copied(tmp_path, monkeypatch):
    if (handle := atomic._nameless(tmp_path)) is None:
        pytest.skip("no files without a name here")
    handle.close()
    monkeypatch.setattr(atomic.shutil, "copyfile", lambda *_: pytest.fail("copied after it was written to disk"))
    atomic.write_atomically(tmp_path / "a.json", "whole")
    assert (tmp_path / "a.json").read_text() == "whole"


def test_a_full_disk_is_named_by_the_file_that_did_not_fit(tmp_path, monkeypatch):
    def full(source, *_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", source)

    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(atomic.shutil, "copyfile", full)
    with pytest.raises(OSError, match="No space left") as caught:
        atomic.write_atomically(tmp_path / "result.json", "whole")
    assert caught.value.filename == str(tmp_path / "result.json")
    assert list(tmp_path.iterdir()) == []


def test_a_forked_process_whose_parent_has_already_ended_exits_at_once(monkeypatch):
    ended = []
    monkeypatch.setattr(processes.os, "_exit", ended.append)
    processes.die_with_parent(os.getpid())  # which is not this process's parent
    processes.guard.prctl(processes.guard.PR_SET_PDEATHSIG, 0)
    assert ended == [1]


@in_each(
    ("files", "cores"),
    [
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "250000 100000"}, 3),
        ({"cpu.max": "400000 100000", "job/cpu.max": "150000 100000", "job/step/cpu.max": "max 100000"}, 2),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
)
def test_the_time_that_a_container_may_use_limits_the_cores(tmp_path, monkeypatch, files, cores):
    for name, content in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    (tmp_path / "cgroup").write_text("1:name=systemd:/\n0::/job/step\n")
    monkeypatch.setattr(processes, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(processes, "GROUP_OF_PROCESS", tmp_path / "cgroup")
    assert processes.quota_of_cores() == cores
    assert processes.usable_cores() == min(len(os.sched_getaffinity(0)), cores or 10**6)


@pytest.mark.parametrize(("free", "begins"), [(4096, False), (2**20, True)])
def test_a_full_disk_of_temporary_files_is_told_before_a_run_begins(tmp_path, monkeypatch, free, begins):
    monkeypatch.setenv(processes.SCRATCH, str(tmp_path))
    monkeypatch.setattr(processes.shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    told = pytest.raises(RunError, match=rf"^{tmp_path}: 4 KiB left .*; make room, or set TMPDIR to another disk$")
    with contextlib.nullcontext() if begins else told, processes.scratch_folder():
        assert begins
