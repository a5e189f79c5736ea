"""`tprimat gate --run` decides by runs in turn, and the GitHub Action around it tells everybody what it found."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml

from tensorprimat.analysis import pairs
from tensorprimat.cli import main

ROOT = Path(__file__).parents[1]
TRAIN = """
import random, sys
random.seed()
for i in range(1, 13):
    ms = 1000 * {factor} * random.gauss(1, 0.003)
    print(f"[2026-01-05 10:00:{{i:02d}}] iteration {{i:8d}}/      12 | consumed samples: {{64 * i:12d}} | "
          f"elapsed time per iteration (ms): {{ms:.1f}} | global batch size:    64 | lm loss: {{9 - i / 10:.3f}} |")
"""
FACTS = ("--sequence-length", "4096", "--num-gpus", "8", "--model-name", "llama")


def git(folder, *words):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Return the folder of a repository with one commit of a training whose steps take a second."""
    folder = tmp_path / "program"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "train.py").write_text(TRAIN.format(factor=1.0))
    git(folder, "add", "train.py")
    git(folder, "commit", "--quiet", "--message", "first")
    monkeypatch.chdir(folder)
    return folder


def gate(capsys, *flags):
    command = f"{sys.executable} train.py"
    code = main(["gate", "--run", command, "--writes", "-", "--base-ref", "HEAD", "--max-pairs", "8", *FACTS, *flags])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.usefixtures("repository")
def test_a_checkout_of_equal_speed_passes(capsys):
    code, text, _ = gate(capsys)
    assert (code, "a slowdown of 3 % is ruled out" in text) == (0, True)


def test_a_slower_checkout_fails_and_json_junit_and_markdown_state_both_speeds(repository, capsys):
    (repository / "train.py").write_text(TRAIN.format(factor=1.06))
    code, text, _ = gate(capsys, "--json", "--junit", "gate.xml", "--comment", "gate.md")
    document = json.loads(text)
    (check,) = document["checks"]
    assert (code, document["status"], check["kind"], check["status"]) == (1, "fail", "throughput", "fail")
    assert check["baseline"] == pytest.approx(64 * 4096 / 8, rel=0.02)
    assert check["candidate"] / check["baseline"] == pytest.approx(1 / 1.06, rel=0.02)
    assert check["low"] < check["change"] < check["high"] < -0.03
    suite = ElementTree.parse("gate.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    message = suite[0][0].get("message")
    assert "a slowdown of more than 3 % is shown, by 8 pairs of runs in turn on one machine" in message
    assert all(f"{check[side]:,.0f}" in message for side in ("baseline", "candidate"))
    columns = "| model | check | outcome | baseline | candidate | change |"
    assert columns in Path("gate.md").read_text()
    assert git(repository, "worktree", "list").count("\n") == 1
    assert git(repository, "status", "--short").splitlines()[0] == " M train.py"


@pytest.mark.usefixtures("repository")
def test_files_that_pass_need_no_runs_and_others_are_no_alarm_before_the_runs(capsys, tmp_path):
    for name, factor in (("base", 1.0), ("slow", 1.2)):
        for number in range(3):
            log = tmp_path / name / f"{number}.log"
            log.parent.mkdir(exist_ok=True)
            text = subprocess.run(
                [sys.executable, "-c", TRAIN.format(factor=factor)], capture_output=True, text=True
            ).stdout
            log.write_text(text.replace("2026-01-05", f"2026-01-0{number + 1}"))
    accept = ("--accept", "same_work", "--gpu", "H100")
    code, _, error = gate(capsys, str(tmp_path / "base"), str(tmp_path / "base"), *accept)
    assert (code, "run 1" in error) == (0, False)
    code, text, error = gate(capsys, str(tmp_path / "base"), str(tmp_path / "slow"), *accept)
    assert (code, "run 1" in error, "8 pairs of runs" in text) == (0, True, True)  # the checkout is as fast as HEAD


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--run", "true", "--base-ref", "nowhere"], "nowhere"),
        (["--run", "true"], "--run and --base-ref need each other"),
        (["one", "two", "--candidate", "three"], "name two results"),
        (["one", "two", "three"], "name two results"),
        ([], "name a candidate"),
    ],
)
@pytest.mark.usefixtures("repository")
def test_wrong_use_is_refused_in_one_line(capsys, flags, says):
    assert main(["gate", *flags]) == 2
    error = capsys.readouterr().err
    assert (error.count("\n"), says in error) == (1, True)


@pytest.mark.usefixtures("repository")
def test_a_command_that_fails_or_writes_nothing_new_is_an_error_of_the_run(capsys):
    for command, writes, says in (
        ("echo broken; exit 3", "-", "ended with exit code 3: … broken"),
        ("true", "none.log", "the command wrote no none.log"),
    ):
        assert main(["gate", "--run", command, "--writes", writes, "--base-ref", "HEAD"]) == 1
        assert says in capsys.readouterr().err


def test_the_time_of_a_command_that_writes_nothing_is_measured(repository, capsys):
    (repository / "go.sh").write_text("sleep 0.02\n")
    git(repository, "add", "go.sh")
    git(repository, "commit", "--quiet", "--message", "second")
    (repository / "go.sh").write_text("sleep 0.4\n")
    code = main(["gate", "--run", "bash go.sh", "--base-ref", "HEAD", "--max-pairs", "8", "--json"])
    (check,) = json.loads(capsys.readouterr().out)["checks"]
    assert (code, check["what"]) == (1, "throughput (runs/s)")


def test_equal_programs_give_no_alarm_and_slower_ones_are_found():
    decisions = {0.0: [], 0.03: []}
    for slowdown, found in decisions.items():
        random = np.random.default_rng(1)
        for _ in range(60):
            spikes = 1 + random.uniform(0.05, 0.3, (2, 20)) * (random.random((2, 20)) < 0.05)
            seconds = random.uniform(0.97, 1.28) * spikes * np.exp(0.015 * random.standard_normal((2, 20)))
            logs = -np.log(seconds * [[1.0], [1 / (1 - slowdown)]])
            found.append(pairs.decide_pairs(logs, limit=0.03, most=20)[0])
    assert decisions[0.0].count("slower") == 0
    assert decisions[0.03].count("slower") >= 54


def test_the_p_value_is_the_share_of_all_exchanges():
    logs = np.array([[0.002, -0.001, 0.0, 0.001, -0.002], [-0.01, -0.012, -0.011, -0.013, -0.009]])
    assert pairs.p_value(logs, 0.0, slower=True) == pytest.approx(1 / 32)
    assert pairs.p_value(logs, 0.0, slower=False) == pytest.approx(1.0)
    change, low, high = pairs.interval_of_pairs(logs, confidence=0.9)
    assert low < change < high
    assert change == pytest.approx(-0.011, abs=0.0005)
    assert not math.isfinite(pairs.interval_of_pairs(logs[:, :2])[1])


def steps_of_action():
    return {step["name"]: step for step in yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]}


class Runner:
    """The shell steps of the action, run as GitHub's runner does."""

    def __init__(self, folder, repository, **inputs):
        document = yaml.safe_load((ROOT / "action.yml").read_text())
        self.inputs = {name: str(one.get("default", "")) for name, one in document["inputs"].items()} | inputs
        self.folder, self.repository, self.outputs = folder, repository, {}
        (folder / "bin").mkdir(exist_ok=True)

    def gh(self, script):
        path = self.folder / "bin" / "gh"
        path.write_text(f'#!/bin/bash\necho "$@" >> {self.folder}/gh.txt\n{script}\n')
        path.chmod(0o755)

    def value(self, text):
        known = {"github.action_path": ROOT, "github.repository": "one/two", "github.token": "t"}
        known |= {f"inputs.{name}": value for name, value in self.inputs.items()}
        known |= {f"steps.gate.outputs.{name}": value for name, value in self.outputs.items()}
        known["github.event.pull_request.number"] = 7
        return str(known[text.removeprefix("${{ ").removesuffix(" }}")]) if "${{" in text else text

    def run(self, name):
        step = steps_of_action()[name]
        environment = {key: self.value(text) for key, text in step.get("env", {}).items()}
        summary, output = self.folder / "summary.md", self.folder / "output.txt"
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.repository, capture_output=True, text=True,
            env={
                **os.environ, **environment, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
                "GITHUB_STEP_SUMMARY": str(summary), "GITHUB_OUTPUT": str(output), "RUNNER_TEMP": str(self.folder),
            },
        )  # fmt: skip
        if output.exists():
            self.outputs = dict(line.split("=", 1) for line in output.read_text().splitlines())
        return done

    @property
    def summary(self):
        return (self.folder / "summary.md").read_text()


def test_the_action_runs_in_turn_and_writes_summary_annotation_and_comment(repository, tmp_path):
    (repository / "train.py").write_text(TRAIN.format(factor=1.08))
    runner = Runner(tmp_path, repository, python=sys.executable, run=f"{sys.executable} train.py", writes="-",
                    arguments=" ".join(FACTS), **{"base-ref": "HEAD", "max-pairs": "8"})  # fmt: skip
    runner.gh('case "$*" in *paginate*) ;; *) ;; esac')
    assert runner.run("Install").returncode == 0
    done = runner.run("Gate")
    assert done.returncode == 0, done.stderr
    assert runner.outputs["status"] == "fail"
    assert "Benchmark gate failed" in runner.summary
    assert done.stdout.startswith("::error")
    assert json.loads(Path(runner.outputs["folder"], "gate.json").read_text())["status"] == "fail"
    assert runner.run("Comment").returncode == 0
    calls = (tmp_path / "gh.txt").read_text().splitlines()
    assert "--method POST repos/one/two/issues/7/comments" in calls[1]
    assert runner.run("Outcome").returncode != 0
    runner.gh('case "$*" in *paginate*) echo 42 ;; esac')
    runner.run("Comment")
    assert "--method PATCH repos/one/two/issues/comments/42" in (tmp_path / "gh.txt").read_text()


def test_the_action_passes_with_a_baseline_from_a_branch_and_a_fork_gets_only_the_summary(repository, tmp_path):
    remote, new = tmp_path / "remote.git", tmp_path / "new"
    git(repository, "checkout", "--quiet", "--orphan", "baselines")
    for number in range(3):
        for folder in (repository, new):
            folder.mkdir(exist_ok=True)
            text = subprocess.run(
                [sys.executable, "-c", TRAIN.format(factor=1.0)], capture_output=True, text=True
            ).stdout
            (folder / f"{number}.log").write_text(text.replace("2026-01-05", f"2026-01-0{number + 1}"))
    git(repository, "rm", "--quiet", "--cached", "-r", ".")
    git(repository, "add", *(f"{number}.log" for number in range(3)))
    git(repository, "commit", "--quiet", "--message", "baseline")
    git(repository, "clone", "--quiet", "--bare", ".", str(remote))
    git(repository, "remote", "add", "origin", str(remote))
    arguments = " ".join((*FACTS, "--accept same_work"))
    runner = Runner(tmp_path, repository, python=sys.executable, candidate=str(new), arguments=arguments,
                    **{"baseline-branch": "baselines"})  # fmt: skip
    runner.gh("exit 1")
    done = runner.run("Gate")
    assert (runner.outputs["status"], done.returncode) == ("pass", 0), runner.summary
    assert "Benchmark gate passed" in runner.summary
    assert done.stdout.startswith("::notice")
    assert json.loads(Path(runner.outputs["folder"], "gate.json").read_text())["status"] == "pass"
    assert runner.run("Outcome").returncode == 0
    done = runner.run("Comment")
    assert (done.returncode, "no permission to comment" in done.stdout) == (0, True)


def test_an_error_of_the_action_is_in_the_summary(repository, tmp_path):
    runner = Runner(tmp_path, repository, python=sys.executable, run="exit 3", **{"base-ref": "HEAD"})
    assert runner.run("Gate").stdout.startswith("::error title=TensorPrimat::Benchmark gate: error")
    assert (runner.outputs["status"], "ended with exit code 3" in runner.summary) == ("error", True)
    assert runner.run("Outcome").returncode == 1
    runner.inputs |= {"arguments": "--assume-run-cv\n*", "run": 'echo "a b"\nexit 3'}
    runner.run("Gate")
    assert "--assume-run-cv *" in runner.summary


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"candidate": ".", "baseline-branch": "none"}, "none: no such file"),
        ({"run": "true", "base-ref": "HEAD~9"}, "HEAD~9: no such commit"),
    ],
)
def test_a_baseline_that_is_not_there_yet_is_in_the_summary_of_the_action(repository, tmp_path, inputs, says):
    git(repository, "remote", "add", "origin", str(tmp_path / "nowhere"))
    runner = Runner(tmp_path, repository, python=sys.executable, **inputs)
    runner.run("Gate")
    assert (runner.outputs.get("status"), says in runner.summary) == ("error", True), runner.summary


def test_the_shell_steps_of_the_action_pass_shellcheck():
    shellcheck = Path(sys.executable).with_name("shellcheck")
    if not shellcheck.exists():
        pytest.skip("needs shellcheck")
    for name, step in steps_of_action().items():
        done = subprocess.run([shellcheck, "-s", "bash", "-"], input=step["run"], capture_output=True, text=True)
        assert done.returncode == 0, f"{name}: {done.stdout}"
