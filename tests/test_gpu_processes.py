"""Tests that fix_gpu_memory.sh ends only the user's own idle leftovers on a GPU: real processes, faked GPU programs."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import fake_primus
import psutil
import pytest

from tensorprimat.cli import main
from tensorprimat.machine import gpu_processes, leftovers

READY = "print(os.getpid(), flush=True)"
HOLD = f"import os, sys, time, signal; f = open(sys.argv[1]); {{more}}; {READY}; time.sleep(60)"
ORPHAN = (
    "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[2], sys.argv[1]], "
    "start_new_session=True, stdout=sys.stdout)"
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
    for process in processes:  # all have been killed: one may hold the output of another open
        if isinstance(process, subprocess.Popen):
            process.communicate()


@pytest.fixture(autouse=True)
def patient(started, monkeypatch):
    """Let a watch last until each process at work has had CPU time: other programs may hold all cores for a second."""
    busiest = leftovers._busiest

    def used(pid):
        return sum(psutil.Process(pid).cpu_times()[:2])

    def was_seen(pid, before):
        try:
            return psutil.Process(pid).status() != psutil.STATUS_RUNNING or used(pid) - before > 0.05
        except psutil.NoSuchProcess:
            return True

    def watch(*arguments):
        pids = [pid for one in started if lives(pid := getattr(one, "pid", one))]
        before = {pid: used(pid) for pid in pids}
        found = busiest(*arguments)
        wait_until(lambda: all(was_seen(pid, before[pid]) for pid in pids))
        return found

    monkeypatch.setattr(leftovers, "_busiest", watch)


def orphan(device, started, more="pass", **settings):
    """Start a Python process with the device open whose parent has ended; return its number."""
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(device), HOLD.format(more=more)], stdout=subprocess.PIPE, text=True,
        **settings,
    )  # fmt: skip
    pid = int(parent.stdout.readline())  # its own word: lines of two writers may run into each other
    parent.stdout.close()
    parent.wait()
    started.append(pid)
    wait_until(lambda: adopted_by_a_reaper(pid))
    return pid


def wait_until(happens, patience=10):
    until = time.monotonic() + patience
    while not happens():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


def lives(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def child(device, started):
    """Start a Python process with the device open that this process, its parent, waits for."""
    process = subprocess.Popen([sys.executable, "-c", HOLD.format(more="pass"), str(device)], stdout=subprocess.PIPE)
    process.stdout.readline()
    started.append(process)
    return process


def adopted_by_a_reaper(pid):
    parent = psutil.Process(pid).parent()
    return parent is None or parent.pid == 1 or parent.name() in leftovers.REAPERS


NVIDIA_SMI = """case "$1" in
*compute-apps=pid,gpu_uuid*) cat <<'END'
{on}
END
;;
*compute-apps*) cat <<'END'
{apps}
END
;;
*) cat <<'END'
{use}
END
esac
"""


def fake_nvidia_smi(monkeypatch, folder, *pids, use="GPU-1, 0"):
    """Install a fake nvidia-smi that lists processes with 1024 MiB on GPU-1, and utilizations."""
    script = NVIDIA_SMI.format(
        on="\n".join(f"{pid}, GPU-1" for pid in pids), apps="\n".join(f"{pid}, 1024" for pid in pids), use=use
    )
    fake_primus.program(folder, "nvidia-smi", script)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(gpu_processes, "RELEASE_SECONDS", 0.1)  # this program lists a process after its end too


def fake_smi(monkeypatch, folder, **programs):
    for name, text in programs.items():
        fake_primus.program(folder, name.replace("_", "-"), f"cat <<'END'\n{text}\nEND\n")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def processes(capsys, *flags):
    code = main(["processes", *flags], program="fix_gpu_memory.sh")
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_a_leftover_is_listed_with_its_memory_and_ended_on_request(device, started, tmp_path, monkeypatch, capsys):
    pid = orphan(device, started)
    fake_nvidia_smi(monkeypatch, tmp_path / "bin", pid)
    code, printed = processes(capsys, "--dry-run", "--idle", "0.3")
    assert (code, f"would end {pid}" in printed, "1.07 GB" in printed) == (0, True, True)
    assert lives(pid)
    code, printed = processes(capsys, "--yes", "--idle", "0.3")
    assert (code, "has ended; the driver still lists its memory" in printed) == (0, True)
    assert not lives(pid)


def test_the_list_after_the_end_waits_until_the_driver_has_freed_the_memory(
    device, started, tmp_path, monkeypatch, capsys
):
    pid = orphan(device, started)
    fake_nvidia_smi(monkeypatch, tmp_path / "bin", pid)
    monkeypatch.setattr(gpu_processes, "RELEASE_SECONDS", 20.0)
    answers, answer = [], gpu_processes.memory_by_process

    def released_later():
        answers.append(answer())
        return answers[-1] if len(answers) < 4 else ({}, ["nvidia-smi"])

    monkeypatch.setattr(gpu_processes, "memory_by_process", released_later)
    code, printed = processes(capsys, "--yes", "--idle", "0.3")
    assert (code, printed.rstrip().endswith("Afterwards:\nNo process uses a GPU.")) == (0, True)
    assert len(answers) == 4


def test_one_tick_of_cpu_time_does_not_make_an_idle_process_busy():
    before = leftovers._Use(cpu_seconds=6.79, bytes_moved=7, on_disk=False)
    assert leftovers._activity(before, replace(before, cpu_seconds=6.80), seconds=4.0) is None
    assert "used 0.02 s of CPU" in leftovers._activity(before, replace(before, cpu_seconds=6.81), seconds=4.0)


def test_without_a_terminal_and_without_yes_nothing_is_ended(device, started, tmp_path, monkeypatch, capsys):
    pid = orphan(device, started)
    fake_nvidia_smi(monkeypatch, tmp_path / "bin", pid)
    code, printed = processes(capsys, "--idle", "0.3")
    assert code == 0
    assert f"Can be ended: {pid}. Without a terminal, --yes" in printed
    assert lives(pid)


BUSY = "exec('while True: pass')"
WRITING = "exec('while True: print(1, file=open(sys.argv[1] + str(1), chr(119))); time.sleep(0.01)')"


@pytest.mark.parametrize(("more", "reason"), [(BUSY, "s of CPU in"), (WRITING, "is at work")])
def test_an_active_orphan_is_taken_for_a_training_under_nohup_and_left_alone(
    device, started, tmp_path, monkeypatch, capsys, more, reason
):
    pid = orphan(device, started, more=f"{READY}; {more}")
    fake_nvidia_smi(monkeypatch, tmp_path / "bin", pid)
    code, printed = processes(capsys, "--yes", "--idle", "0.5")
    assert (code, reason in printed, "Nothing to end" in printed) == (0, True, True)
    assert lives(pid)


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        ("GPU-1, 7", "GPU GPU-1 is in use (7 %)"),
        ("GPU-1, [N/A]", "GPU-1 does not report"),
        ("GPU-2, 0", "GPU-1 does not report"),
        ("", "GPU-1 does not report"),
    ],
)
def test_an_orphan_on_a_gpu_in_use_or_in_doubt_is_left_alone(
    device, started, tmp_path, monkeypatch, capsys, use, reason
):
    pid = orphan(device, started)
    fake_nvidia_smi(monkeypatch, tmp_path / "bin", pid, use=use)
    code, printed = processes(capsys, "--yes", "--idle", "0.2")
    assert (code, reason in printed, "Nothing to end" in printed) == (0, True, True)
    assert lives(pid)


def test_without_a_program_that_knows_the_gpus_use_nothing_is_a_leftover(device, started, monkeypatch, capsys):
    pid = orphan(device, started)
    monkeypatch.setattr(gpu_processes, "_USE_QUESTIONS", ())
    code, printed = processes(capsys, "--yes", "--idle", "0.2")
    assert (code, "unclear: no program reports" in printed) == (0, True)
    assert lives(pid)


def test_a_process_with_parent_number_0_is_not_treated_as_an_orphan(device, started, tmp_path, monkeypatch, capsys):
    pid = orphan(device, started)
    fake_nvidia_smi(monkeypatch, tmp_path / "bin", pid)
    real = psutil.Process.ppid
    monkeypatch.setattr(psutil.Process, "ppid", lambda self: 0 if self.pid == pid else real(self))
    code, printed = processes(capsys, "--yes", "--idle", "0.2")
    assert (code, "docker exec and kubectl exec" in printed, "Nothing to end" in printed) == (0, True, True)
    assert lives(pid)


def test_a_rank_of_a_launcher_that_is_process_1_of_its_container_is_left_alone(
    device, started, tmp_path, monkeypatch, capsys
):
    pid = orphan(device, started)
    fake_nvidia_smi(monkeypatch, tmp_path / "bin", pid)
    real = psutil.Process.name
    monkeypatch.setattr(psutil.Process, "name", lambda self: "torchrun" if self.pid == 1 else real(self))
    code, printed = processes(capsys, "--yes", "--idle", "0.2")
    assert (code, "may have started it" in printed) == (0, True)
    assert lives(pid)


def test_a_process_of_a_batch_job_is_left_alone(device, started, tmp_path, monkeypatch, capsys):
    pid = orphan(device, started, env={**os.environ, "SLURM_JOB_ID": "7"})
    fake_nvidia_smi(monkeypatch, tmp_path / "bin", pid)
    code, printed = processes(capsys, "--yes", "--idle", "0.2")
    assert (code, "batch job (SLURM_JOB_ID=7)" in printed) == (0, True)
    assert lives(pid)


SESSION = (
    "import subprocess, sys, time; subprocess.run([sys.executable, '-c', sys.argv[3].replace("
    "', start_new_session=True', ''), sys.argv[1], sys.argv[2]]); time.sleep(60)"
)


def test_an_orphan_of_a_session_whose_first_process_lives_is_left_alone(device, started, tmp_path, monkeypatch, capsys):
    first = subprocess.Popen(
        [sys.executable, "-c", SESSION, str(device), HOLD.format(more="pass"), ORPHAN], stdout=subprocess.PIPE,
        start_new_session=True, text=True,
    )  # fmt: skip
    pid = int(first.stdout.readline())
    started += [first, pid]
    wait_until(lambda: adopted_by_a_reaper(pid))
    fake_nvidia_smi(monkeypatch, tmp_path / "bin", pid)
    code, shown = processes(capsys, "--yes", "--idle", "0.2")
    assert (code, f"first process {first.pid} still runs" in shown) == (0, True)
    assert lives(pid)


def listed(pid, **fields):
    """Return the entry of a real process, as the listing makes it."""
    return gpu_processes.Holder(pid=pid, created=psutil.Process(pid).create_time(), **fields)


def test_a_process_that_ignores_sigterm_is_killed_only_after_a_second_question(device, started):
    pid = orphan(device, started, more="signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    begun = time.monotonic()
    left = gpu_processes.ask_to_end([listed(pid)], grace_seconds=0.5)
    assert [holder.pid for holder in left] == [pid]
    assert time.monotonic() - begun >= 0.5
    assert lives(pid)
    assert gpu_processes.insist(left) == []
    assert not lives(pid)


def test_a_process_at_work_after_sigterm_is_not_killed_by_yes(device, started, tmp_path, monkeypatch, capsys):
    saves = "signal.signal(signal.SIGTERM, lambda *_: exec('while True: pass'))"
    pid = orphan(device, started, more=saves)
    fake_nvidia_smi(monkeypatch, tmp_path / "bin", pid)
    code, printed = processes(capsys, "--yes", "--idle", "0.3", "--grace", "0.2")
    assert (code, f"{pid} was not killed after SIGTERM: is at work" in printed) == (1, True)
    assert lives(pid)


def test_a_process_that_ends_during_the_second_check_counts_as_ended(device, started, tmp_path, monkeypatch, capsys):
    ends_late = "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), os._exit(0)))"
    pid = orphan(device, started, more=ends_late)
    fake_nvidia_smi(monkeypatch, tmp_path / "bin", pid)
    code, printed = processes(capsys, "--yes", "--idle", "1.5", "--grace", "0.2")
    assert (code, "was not killed" in printed) == (0, False), printed
    assert not lives(pid)


def test_after_sigterm_only_idle_or_named_processes_may_be_killed(device, started, tmp_path, monkeypatch):
    idle, busy, ended = (
        orphan(device, started),
        orphan(device, started, more=f"{READY}; {BUSY}"),
        orphan(device, started),
    )
    left = [listed(pid, can_be_chosen=True) for pid in (idle, busy, ended)]
    fake_nvidia_smi(monkeypatch, tmp_path / "bin", idle)
    os.kill(ended, signal.SIGKILL)
    wait_until(lambda: not lives(ended))
    after = gpu_processes.still_idle(left, [], seconds=0.3)
    assert [(holder.pid, holder.keeps is None) for holder in after] == [(idle, True), (busy, False)]
    after = gpu_processes.still_idle(left[:2], [busy], seconds=0.3)
    assert [(holder.pid, holder.keeps) for holder in after] == [(idle, None), (busy, None)]


def test_a_reused_process_number_gets_no_signal(device, started):
    pid = orphan(device, started)
    before = gpu_processes.Holder(pid=pid, created=psutil.Process(pid).create_time() - 5)
    assert gpu_processes.ask_to_end([before], grace_seconds=0) == []
    assert gpu_processes.insist([before]) == []
    assert lives(pid)


def test_a_process_whose_parent_runs_is_ended_only_if_named(device, started, capsys):
    process = child(device, started)
    code, printed = processes(capsys, "--yes", "--idle", "0.2")
    assert "waits for it" in printed
    assert "Nothing to end" in printed
    assert process.poll() is None
    code, _ = processes(capsys, "--yes", "--pid", str(process.pid), "--grace", "5")
    assert code == 0
    assert process.wait(timeout=5) == -signal.SIGTERM


def test_a_process_that_is_not_python_or_not_on_a_gpu_is_never_ended(device, started, tmp_path, monkeypatch, capsys):
    with device.open() as held:
        other = subprocess.Popen(["sleep", "60"], stdin=held)
    off = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    started += [other, off]
    fake_smi(monkeypatch, tmp_path / "bin", nvidia_smi=f"{off.pid}, [N/A]\n999999999, 5")
    code, printed = processes(capsys, "--yes")
    assert code == 0
    assert "is not Python" in printed
    assert "has no GPU open here" in printed
    assert "not in this PID namespace" in printed
    for pid in (other.pid, off.pid, 999_999_999, 1):
        code, printed = processes(capsys, "--yes", "--pid", str(pid))
        assert (code, len(printed.strip().splitlines()) >= 1) == (2, True)
    assert (other.poll(), off.poll()) == (None, None)
    assert gpu_processes.ask_to_end([listed(other.pid), listed(off.pid)], grace_seconds=0) == []
    assert (other.poll(), off.poll()) == (None, None), "judged again at the moment of the signal"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_users_process_is_never_ended(device, started, capsys):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(more="import os; os.setuid(65534)"), str(device)], stdout=subprocess.PIPE
    )
    process.stdout.readline()
    started.append(process)
    code, printed = processes(capsys, "--yes", "--pid", str(process.pid))
    assert code == 2
    assert "belongs to" in printed
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
    memory, answered = gpu_processes.memory_by_process()
    assert answered == ["nvidia-smi", "rocm-smi", "amd-smi"]
    assert memory == {11: 3072 * 2**20, 12: None, 21: 2353860608, 22: None, 31: 3 * 2**30}


@pytest.mark.parametrize("shape", ["{}", '{{"gpu_data": {}}}'])
def test_a_process_that_both_programs_of_rocm_list_has_its_memory_once(tmp_path, monkeypatch, shape):
    used = '[{"process_info": {"pid": 21, "memory_usage": {"vram_mem": {"value": 4096, "unit": "MB"}}}}]'
    gpus = ", ".join(f'{{"gpu": {number}, "process_list": {used}}}' for number in range(2))
    amd_smi = shape.format(f"[{gpus}]")
    rocm_smi = '{"system": {"PID21": "python3, 2, 8589934592, 0, 0"}}'
    for programs in ({"rocm_smi": rocm_smi}, {"amd_smi": amd_smi}, {"rocm_smi": rocm_smi, "amd_smi": amd_smi}):
        fake_smi(monkeypatch, tmp_path / "_".join(programs), **programs)
        assert gpu_processes.memory_by_process()[0] == {21: 8 * 2**30}


def test_a_program_that_fails_or_prints_nonsense_is_skipped(tmp_path, monkeypatch):
    fake_smi(monkeypatch, tmp_path, amd_smi="not json", rocm_smi="WARNING: no GPU")
    fake_primus.program(tmp_path, "nvidia-smi", "echo 5, 5; exit 9")
    assert gpu_processes.memory_by_process() == ({}, ["rocm-smi", "amd-smi"])


@pytest.mark.usefixtures("device")
def test_the_command_explains_why_no_step_clears_the_cache(capsys):
    code, printed = processes(capsys)
    assert code == 0
    assert "No process uses a GPU" in printed
    assert "empty_cache()" in printed
    code, printed = processes(capsys, "--grace", "-1")
    assert code == 2
