"""`tprimat bisect` finds the slow commit or version, and leaves the repository as it was."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest
from each import in_each
from test_gate_pairs import ROOT, TRAIN, git
from test_launch import is_running

from tensorprimat.analysis import search
from tensorprimat.cli import main
from tensorprimat.session import commits

COMMITS = 12


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """Return a repository of twelve commits after the tag good, of which the eighth makes steps 10 % slower."""
    folder = tmp_path_factory.mktemp("program")
    git(folder, "init", "--quiet")
    for number in range(COMMITS + 1):
        factor = 1.1 if number >= 8 else 1.0
        (folder / "train.py").write_text(TRAIN.format(factor=factor) + f"# {number}\n")
        git(folder, "add", "train.py")
        git(folder, "commit", "--quiet", "--message", f"change {number}")
        if number == 0:
            git(folder, "tag", "good")
    return folder


@pytest.fixture
def repository(committed, tmp_path, monkeypatch):
    """Return a copy of the repository, as the working folder."""
    folder = shutil.copytree(committed, tmp_path / "program")
    monkeypatch.chdir(folder)
    return folder


def state_of(folder):
    return (
        git(folder, "rev-parse", "HEAD"),
        git(folder, "status", "--short"),
        git(folder, "worktree", "list").count("\n"),
    )


def bisect(capsys, *flags, command=(sys.executable, "train.py")):
    code = main(["bisect", *flags, "--", *command])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_slow_commit_is_found_and_the_checkout_stays(repository, capsys):
    before = state_of(repository)
    code, text, error = bisect(capsys, "--good", "good", "--writes", "-", "--json")
    document = json.loads(text)
    assert (code, document["found"]) == (0, True), error
    assert [one["title"] for one in document["first_slow"]] == ["change 8"]
    assert document["ends"]["change"] == pytest.approx(1 / 1.1 - 1, abs=0.01)
    assert document["runs"] < 2 * 5 * COMMITS
    assert state_of(repository) == before


def test_a_commit_that_fails_is_left_out_and_its_neighbours_are_named(repository, capsys):
    commits = git(repository, "rev-list", "--reverse", "good..HEAD").split()
    broken = commits[6][:12]  # change 7, the last fast one
    command = f"case $(git rev-parse HEAD) in {broken}*) exit 1;; *) {sys.executable} train.py;; esac"
    code, text, error = bisect(capsys, "--good", "good", "--writes", "-", command=("bash", "-c", command))
    assert (code, f"left out: {broken}" in error) == (0, True)
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("  ")] == ["7", "8"]


@pytest.mark.usefixtures("repository")
def test_ends_of_equal_speed_are_reported_and_nothing_is_searched(capsys):
    code, text, _ = bisect(capsys, "--good", "good", "--bad", "HEAD~6", "--writes", "-")
    assert (code, "no slowdown is shown between the ends" in text) == (3, True)


def test_ctrl_c_leaves_no_worktree(repository):
    before = state_of(repository)
    child = subprocess.Popen(
        [sys.executable, "-m", "tensorprimat", "bisect", "--good", "good", "--", "sleep", "30"],
        cwd=repository, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    until = time.monotonic() + 30
    while state_of(repository)[2] < 3 and time.monotonic() < until:
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=30) == 1
    assert b"interrupted" in child.stderr.read()
    child.stderr.close()
    assert state_of(repository) == before


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_nothing_that_a_command_starts_outlives_its_run(tmp_path):
    """The ranks of torchrun are in sessions of their own, and would hold the GPUs of the next run."""
    command = ["bash", "-c", "setsid sleep 60 & echo $!; sleep 0.2"]
    _, printed = commits.run_in(commits.Program(name="one", folder=tmp_path), command)
    assert not is_running(int(printed))


@in_each(
    ("flags", "says"),
    [
        (["--good", "nowhere"], "nowhere: no such commit"),
        (["--good", "HEAD", "--bad", "good"], "does not come after"),
        (["--good", "HEAD"], "does not come after"),
        ([], "name either --good"),
        (["--versions", "torch"], "write it like torch==2.11..2.13"),
        (["--good", "good", "--min-slowdown", "0"], "above 0"),
    ],
)
@pytest.mark.usefixtures("repository")
def test_wrong_use_is_refused_in_one_line(capsys, flags, says):
    code, text, error = bisect(capsys, *flags)
    assert (code, text, error.count("\n"), says in error) == (2, "", 1, True), error


def test_local_changes_are_refused_in_one_line(repository, capsys):
    (repository / "train.py").write_text("changed")
    code, _, error = bisect(capsys, "--good", "good")
    assert (code, error.count("\n")) == (2, 1)
    assert "the repository has local changes (train.py); commit or stash them" in error


def test_a_folder_without_a_repository_is_refused_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, error = bisect(capsys, "--good", "a")
    assert (code, error.count("\n")) == (2, 1)


def wheel(folder, version, seconds):
    """Write a wheel of the package paced, whose version waits so long."""
    with zipfile.ZipFile(folder / f"paced-{version}-py3-none-any.whl", "w") as packed:
        info = f"paced-{version}.dist-info"
        packed.writestr("paced.py", f"import time\ntime.sleep({seconds})\n")
        packed.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: paced\nVersion: {version}\n")
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", "")


@pytest.mark.thorough
def test_the_slow_version_of_a_package_is_found_in_fresh_environments(tmp_path, capsys, monkeypatch):
    for version, seconds in (("1.0", 0.5), ("1.1", 0.02), ("1.2.0", 0.4), ("2.0", 0.5)):
        wheel(tmp_path, version, seconds)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.chdir(tmp_path)
    command = ("python", "-c", "import paced")
    code, text, error = bisect(capsys, "--versions", "paced==1.1..1.2", "--min-slowdown", "20%", command=command)
    assert code == 0, error
    assert text.splitlines()[-1] == "  1.2.0 paced 1.2.0"
    code, _, error = bisect(capsys, "--versions", "paced==3..4", command=command)
    assert (code, "fewer than two versions in that range; the newest are 1.0, 1.1, 1.2.0, 2.0" in error) == (2, True)


def test_a_planted_change_of_5_percent_among_64_commits_is_found_with_few_runs():
    random, found, pairs = np.random.default_rng(0), 0, 0
    for _ in range(40):
        planted = int(random.integers(64))

        def speed(slow, random=random):
            spike = 1 + random.uniform(0.05, 0.3) * (random.random() < 0.05)
            return math.log1p(-0.05 * slow) - 0.015 * random.standard_normal() - math.log(spike)

        located = search.find_change(
            64, lambda place, planted=planted: speed(place >= planted) - speed(False), change=math.log(0.95),
            deviation=0.015,
        )  # fmt: skip
        found += located.places == (planted,)
        pairs += located.pairs
    assert found >= 38
    assert pairs / 40 < 25
