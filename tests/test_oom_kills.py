"""Proof that the kernel killed a process for lack of memory: the counter of a control group, and what it decides."""

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from each import in_each

from tensorprimat.core.units import GB
from tensorprimat.machine import host_memory, platform
from tensorprimat.system import failures, processes

HYBRID = "9:name=systemd:/\n4:memory:/jobs/7\n3:cpuset:/\n0::/\n"
UNIFIED = "0::/user.slice/session-3.scope\n"
IN_A_CONTAINER = "0::/\n"


def group(root, folder, name, kills):
    (root / folder).mkdir(parents=True, exist_ok=True)
    (root / folder / name).write_text(kills)


EVENTS = "low 0\nhigh 0\nmax 41\noom 2\noom_kill {}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"


@in_each(
    ("groups", "folder", "name", "text", "kills"),
    [
        (UNIFIED, "user.slice/session-3.scope", "memory.events", EVENTS, 3),
        (UNIFIED, "user.slice", "memory.events", EVENTS, 3),  # the memory controller ends above the session
        (IN_A_CONTAINER, ".", "memory.events", EVENTS, 3),
        (HYBRID, "memory/jobs/7", "memory.oom_control", CONTROL, 3),
        (HYBRID, "memory", "memory.oom_control", CONTROL, 3),  # a container that is told the host's path
        (HYBRID, "memory/jobs/7", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n", None),  # Linux 4.12
        (UNIFIED, "other", "memory.events", EVENTS, None),
    ],
)
def test_the_kill_counter_is_that_of_the_processs_own_control_group_or_the_nearest_one_above(
    tmp_path, monkeypatch, groups, folder, name, text, kills
):
    own = tmp_path / "own"
    own.write_text(groups)
    group(tmp_path / "root", folder, name, text.format(3))
    monkeypatch.setattr(processes, "GROUP_OF_PROCESS", own)
    monkeypatch.setattr(processes, "GROUPS", tmp_path / "root")
    assert host_memory.count_oom_kills() == kills


V2 = {"memory.max": "8000", "memory.current": "7500", "memory.stat": "anon 500\ninactive_file 4000\nactive_file 1000\n"}
V1 = {
    "memory.limit_in_bytes": "8000", "memory.usage_in_bytes": "7500",
    "memory.stat": "inactive_file 1\ntotal_inactive_file 4000\ntotal_active_file 1000\n",
}  # fmt: skip
LIMITS = ("memory.max", "memory.limit_in_bytes")
UNLIMITED = {"memory.max": "max", "memory.current": "7500"}


@in_each(
    ("groups", "files", "left"),
    [
        (IN_A_CONTAINER, {".": V2}, 5500),  # cached files are no reason to run out of memory
        (UNIFIED, {"user.slice/session-3.scope": V2}, 5500),
        (UNIFIED, {"user.slice/session-3.scope": UNLIMITED, "user.slice": V2}, 5500),  # the limit of a job
        (UNIFIED, {"user.slice/session-3.scope": {**V2, "memory.stat": ""}, ".": {}}, 500),
        (UNIFIED, {"user.slice": V2, "user.slice/session-3.scope": {**V2, "memory.max": "7000"}}, 4500),
        (HYBRID, {"memory/jobs/7": V1}, 5500),
        (HYBRID, {"memory": {**V1, "memory.limit_in_bytes": "9223372036854771712"}}, None),
        (UNIFIED, {"other": V2}, None),
        (UNIFIED, {"user.slice": {**V2, "memory.max": "100"}}, 0),
    ],
)
def test_memory_that_can_be_allocated_is_within_the_limits_of_all_control_groups(
    tmp_path, monkeypatch, groups, files, left
):
    own = tmp_path / "own"
    own.write_text(groups)
    for folder, texts in files.items():
        for name, text in texts.items():
            group(tmp_path / "root", folder, name, text)
    monkeypatch.setattr(processes, "GROUP_OF_PROCESS", own)
    monkeypatch.setattr(processes, "GROUPS", tmp_path / "root")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10**6, total=10**7))
    assert host_memory.available_bytes() == (10**6 if left is None else left)
    limits = [int(text) for of in files.values() for name, text in of.items() if name in LIMITS and text != "max"]
    expected = 10**7 if left is None else min(limits)
    platform._detect.cache_clear()  # of the case before
    assert platform.detect_platform(cpu=True).gpu_info.total_memory_gb * GB == pytest.approx(expected)


def test_a_system_without_control_groups_has_no_counter(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "GROUP_OF_PROCESS", tmp_path / "absent")
    assert host_memory.count_oom_kills() is None
    assert not host_memory.KillWatch().killed()


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux'")
def test_a_kill_by_hand_does_not_raise_the_kill_counter():
    watch = host_memory.KillWatch()
    assert host_memory.count_oom_kills() in (None, *range(10**6))
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not watch.killed()


@pytest.mark.parametrize("code", [-9, 137])
def test_a_kill_has_no_reason_without_proof(code):
    assert failures.ending(code) == (
        "was killed (SIGKILL): by hand, or by the system because memory ran out (then dmesg says so)"
    )
    assert failures.ending(code, memory_ran_out=True) == "was killed (SIGKILL) by the system because memory ran out"


@in_each(
    ("code", "how"),
    [(-7, "died of SIGBUS"), (143, "died of SIGTERM"), (-70, "died of signal 70"), (255, "exited with 255"),
     (1, "exited with 1"), (127, "exited with 127"), (128, "exited with 128")],
)  # fmt: skip
def test_any_other_end_is_named_by_its_signal_or_code_without_blaming_memory(code, how):
    assert failures.ending(code) == failures.ending(code, memory_ran_out=True) == how


PACKAGE = Path(failures.__file__).parents[1]
VOCABULARY = ("was killed (SIGKILL", "system because", "died of SIG", "died of {", "signal.Signals(")


@in_each(sorted(PACKAGE.rglob("*.py")))
def test_only_one_module_words_how_a_process_ended(path):
    if path != Path(failures.__file__):
        found = [words for words in VOCABULARY if words in path.read_text()]
        assert not found, "use system/failures: ending, KILLED, LOST …"
