"""Shell completion offers every command and every option of each."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tensorprimat.cli import COMMANDS, completion, main

PAGE = (Path(__file__).parents[1] / "docs" / "reference" / "commands.md").read_text()


def complete(*words, shell="bash"):
    """Return the completions of the last word, as the shell's own function requests them."""
    request = {
        completion.REQUEST: f"complete_{shell}",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
        "_TYPER_COMPLETE_ARGS": " ".join(words),
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tensorprimat"],
        env={**os.environ, **request},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def offered(monkeypatch, capsys):
    """A function that returns the completions of the last word, without a process."""

    def ask(*words):
        monkeypatch.setenv(completion.REQUEST, "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        assert main([]) == 0
        return capsys.readouterr().out.split()

    return ask


def test_every_command_is_offered(offered):
    assert set(offered("tprimat", "")) >= set(COMMANDS)
    assert offered("tprimat", "pref") == ["preflight"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_offered(command, offered):
    shown = set(offered("tprimat", command, "--"))
    manual = PAGE.partition(f"## tprimat {command}")[2].partition("\n## ")[0].partition("\nOptions:\n")[2]
    expected = set(re.findall(r"^  (?:-\w, )?(--[a-z][a-z0-9-]*)", manual, re.M))
    assert expected
    assert shown >= expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_completions_from_a_process(shell):
    assert "--max-slowdown" in complete("tprimat", "gate", "--max", shell=shell)


def test_install_completion_writes_into_the_start_up_files_of_the_shell(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tensorprimat", "--install-completion", "bash"],
        env={**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [script] = [path for path in tmp_path.rglob("*") if path.is_file() and "tprimat" in path.name]
    assert completion.REQUEST in script.read_text()
    assert "tprimat" in (tmp_path / ".bashrc").read_text()
