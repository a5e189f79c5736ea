"""Every command's --help and its line about a wrong number are written for users, not for programmers in Python."""

from __future__ import annotations

import re

import pytest

from tensorprimat.cli import COMMANDS, main


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_no_type_of_python(command, capsys):
    assert main([command, "--help"]) == 0
    printed = capsys.readouterr().out
    assert not re.search(r"<(list|str|path|int)\b|\bx>=", printed)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--runs", "many"], "tprimat run: --runs many: must be a whole number"),
        (["run", "--runs=many"], "tprimat run: --runs many: must be a whole number"),
        (["run", "--global_batch_size", "1.5"], "tprimat run: --global_batch_size 1.5: must be a whole number"),
        (["run", "--runs="], "tprimat run: --runs '': must be a whole number"),
        (["run", "--cooldown", "long"], "tprimat run: --cooldown long: must be a number"),
        (["compare", "--warmup", "two"], "tprimat compare: --warmup two: must be a whole number"),
        (["compare", "--warmup", "-2"], "tprimat compare: --warmup-steps -2: must be 0 or more"),
        (["pretrain", "--num-nodes", "0"], "tprimat pretrain: --num-nodes 0: must be 1 or more"),
        (["passes", "--trials", "x"], "tprimat passes: --trials x: must be a whole number"),
    ],
)
def test_a_value_that_is_no_number_is_named_as_typed(arguments, says, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err.splitlines() == [says]


def test_a_wrong_number_in_an_environment_variable_is_named(monkeypatch, capsys):
    monkeypatch.setenv("TPRIMAT_STEPS", "many")
    assert main(["pretrain"]) == 2
    assert capsys.readouterr().err.splitlines() == ["tprimat pretrain: TPRIMAT_STEPS=many: must be a whole number"]
