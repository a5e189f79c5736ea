"""fix_gpu_memory.sh: only leftovers of ours that hold a GPU are ended. Real processes, and programs that list them."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import fake_primus
import psutil
import pytest

from tensorprimat.cli import main
from tensorprimat.machine import gpu_processes

HOLD = "import sys, time, signal; f = open(sys.argv[1]); {more}; print('ready', flush=True); time.sleep(60)"
ORPHAN = (
    "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[2], sys.argv[1]], "
    "start_new_session=True, stdout=sys.stdout); print(p.pid, flush=True)"
)


@pytest.fixture
def device(tmp_path, monkeypatch):
    """A file that stands for /dev/nvidia0."""
    path = tmp_path / "nvidia0"
    path.touch()
    monkeypatch.setattr(gpu_processes, "DEVICES", (str(path),))
    return path


@pytest.fixture
def started():
    """Processes that the test has started, or their numbers; ended with it."""
    processes = []
    yield processes
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(getattr(process, "pid", process), signal.SIGKILL)
        if isinstance(process, subprocess.Popen):
            process.communicate()


def orphan(device, started, more="pass"):
    """A Python process with the device open whose parent has ended."""
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(device), HOLD.format(more=more)], stdout=subprocess.PIPE, text=True
    )
    said = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
    parent.stdout.close()
    parent.wait()
    pid = int(next(iter(said - {"ready"})))
    started.append(pid)
    return pid


def child(device, started):
    """A Python process with the device open that we, its parent, wait for."""
    process = subprocess.Popen([sys.executable, "-c", HOLD.format(more="pass"), str(device)], stdout=subprocess.PIPE)
    process.stdout.readline()
    started.append(process)
    return process


def adopted_by_a_reaper(pid):
    parent = psutil.Process(pid).parent()
    return parent is None or parent.pid == 1 or parent.name() in gpu_processes.REAPERS


def fake_smi(monkeypatch, folder, **programs):
    for name, text in programs.items():
        fake_primus.program(folder, name.replace("_", "-"), f"cat <<'END'\n{text}\nEND\n")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def processes(capsys, *flags):
    code = main(["processes", *flags], program="fix_gpu_memory.sh")
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_a_leftover_is_listed_with_its_memory_and_ended_when_told(device, started, tmp_path, monkeypatch, capsys):
    pid = orphan(device, started)
    assert adopted_by_a_reaper(pid)
    fake_smi(monkeypatch, tmp_path / "bin", nvidia_smi=f"{pid}, 1024")
    code, said = processes(capsys, "--dry-run")
    assert (code, f"would end {pid}" in said, "1.07 GB" in said) == (0, True, True)
    assert psutil.pid_exists(pid)
    code, said = processes(capsys, "--yes")
    assert code == 0
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_without_a_terminal_and_without_yes_nothing_is_ended(device, started, capsys):
    pid = orphan(device, started)
    code, said = processes(capsys)
    assert code == 0
    assert f"Could be ended: {pid}. No terminal to ask on" in said
    assert psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_one_that_ignores_sigterm_is_killed_after_the_grace_time(device, started):
    pid = orphan(device, started, more="signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    begun = time.monotonic()
    assert gpu_processes.end([pid], grace_seconds=0.5) == []
    assert time.monotonic() - begun >= 0.5
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_one_whose_parent_runs_is_ended_only_if_named(device, started, capsys):
    process = child(device, started)
    code, said = processes(capsys, "--yes")
    assert "waits for it" in said
    assert "Nothing to end" in said
    assert process.poll() is None
    code, _ = processes(capsys, "--yes", "--pid", str(process.pid), "--grace", "5")
    assert code == 0
    assert process.wait(timeout=5) == -signal.SIGTERM


def test_what_is_not_python_or_not_on_a_gpu_is_never_ended(device, started, tmp_path, monkeypatch, capsys):
    with device.open() as held:
        other = subprocess.Popen(["sleep", "60"], stdin=held)
    off = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    started += [other, off]
    fake_smi(monkeypatch, tmp_path / "bin", nvidia_smi=f"{off.pid}, [N/A]\n999999999, 5")
    code, said = processes(capsys, "--yes")
    assert code == 0
    assert "is not Python" in said
    assert "has no GPU open here" in said
    assert "not in this PID namespace" in said
    for pid in (other.pid, off.pid, 999_999_999, 1):
        code, said = processes(capsys, "--yes", "--pid", str(pid))
        assert (code, len(said.strip().splitlines()) >= 1) == (2, True)
    assert (other.poll(), off.poll()) == (None, None)
    assert gpu_processes.end([other.pid, off.pid], grace_seconds=0) == []
    assert (other.poll(), off.poll()) == (None, None), "judged again at the moment of the signal"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_users_process_is_never_ended(device, started, capsys):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(more="import os; os.setuid(65534)"), str(device)], stdout=subprocess.PIPE
    )
    process.stdout.readline()
    started.append(process)
    code, said = processes(capsys, "--yes", "--pid", str(process.pid))
    assert code == 2
    assert "belongs to" in said
    assert process.poll() is None


def test_every_vendors_program_is_understood(tmp_path, monkeypatch):
    fake_smi(
        monkeypatch,
        tmp_path,
        nvidia_smi="11, 2048\n11, 1024\n12, [N/A]",
        rocm_smi='{"system": {"PID21": "python3, 2, 2353860608, 0, 0", "PID22": "x, 1, UNKNOWN, UNKNOWN, UNKNOWN"}}',
        amd_smi='[{"gpu": 0, "process_list": [{"process_info": {"name": "python3", "pid": 31, '
        '"memory_usage": {"vram_mem": {"value": 3, "unit": "GB"}}}}]}, '
        '{"gpu": 1, "process_list": [{"process_info": "No running processes detected"}]}]',
    )
    memory, answered = gpu_processes.listed()
    assert answered == ["nvidia-smi", "rocm-smi", "amd-smi"]
    assert memory == {11: 3072 * 2**20, 12: None, 21: 2353860608, 22: None, 31: 3 * 2**30}


def test_a_program_that_fails_or_talks_nonsense_is_passed_over(tmp_path, monkeypatch):
    fake_smi(monkeypatch, tmp_path, amd_smi="not json", rocm_smi="WARNING: no GPU")
    fake_primus.program(tmp_path, "nvidia-smi", "echo 5, 5; exit 9")
    assert gpu_processes.listed() == ({}, ["rocm-smi", "amd-smi"])


@pytest.mark.usefixtures("device")
def test_it_says_why_no_step_clears_the_cache(capsys):
    code, said = processes(capsys)
    assert code == 0
    assert "No process is on a GPU" in said
    assert "empty_cache()" in said
    code, said = processes(capsys, "--grace", "-1")
    assert code == 2
