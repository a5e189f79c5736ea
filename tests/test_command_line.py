"""Every command's --help and its line about a wrong number are written for users, not for programmers in Python."""

import importlib
import re

import typer.main
from each import in_each
from typer.utils import get_params_from_function

from tensorprimat.cli import COMMANDS, main
from tensorprimat.cli.shared_options import number_as_typed


@in_each("command", COMMANDS)
def test_help_names_no_type_of_python(command, capsys):
    assert main([command, "--help"]) == 0
    printed = capsys.readouterr().out
    assert not re.search(r"<(list|str|path|int)\b|\bx>=", printed)


@in_each(
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


@in_each("typed", ["1e999", "-0.50", "nan", "-1_0.0", "-Infinity"])
@in_each(
    ("command", "flag"),
    [
        (["run", "--model", "llama", "--engine", "torch", "--dry-run"], "--cooldown"),
        (["run", "--model", "llama", "--engine", "torch", "--dry-run"], "--budget-minutes"),
        (["processes"], "--idle"),
        (["processes"], "--grace"),
        (["passes", "--device", "cpu"], "--memory-limit"),
    ],
)
def test_a_number_out_of_range_is_named_as_typed(command, flag, typed, capsys):
    assert main([*command, flag, typed]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tprimat {command[0]}: {flag} {typed}: must be ")


@in_each("name", COMMANDS)
def test_every_option_with_a_number_keeps_its_text(name):
    command = importlib.import_module(f"tensorprimat.cli.{name}").command
    numbers = [one for one in get_params_from_function(command).values() if "float" in str(one.annotation)]
    assert [one.name for one in numbers if one.default.parser is not number_as_typed] == []
    assert bool(numbers) == (name in ("run", "processes", "passes", "sweep", "explain"))


def test_a_wrong_number_in_an_environment_variable_is_named(monkeypatch, capsys):
    monkeypatch.setenv("TPRIMAT_STEPS", "many")
    assert main(["pretrain"]) == 2
    assert capsys.readouterr().err.splitlines() == ["tprimat pretrain: TPRIMAT_STEPS=many: must be a whole number"]


@in_each("name", COMMANDS)
def test_every_option_is_typed_by_its_name_in_any_version_of_typer(monkeypatch, name, capsys):
    as_placeholder = "get_default_option_flag_name"  # of typer 0.27: --ENGINE, for `--engine ENGINE`
    monkeypatch.setattr(typer.main, as_placeholder, lambda name, *_: name.upper(), raising=False)
    assert main([name, "--help"]) == 0
    assert not re.search(r"--[A-Z]", capsys.readouterr().out)


def test_a_mistyped_command_is_answered_with_the_nearest(capsys):
    assert main(["extarct"]) == 2
    assert "did you mean extract?" in capsys.readouterr().err


def test_the_options_of_run_are_grouped_and_each_is_named_once(capsys):
    assert main(["run", "--help"]) == 0
    shown = capsys.readouterr().out
    assert [line for line in shown.splitlines() if line[:1].isalpha() and line.endswith(":")][-1] == "Other:"
    flags = [line.split()[0] for line in shown.splitlines() if line.startswith("  --")]
    assert "--steps," not in flags
    assert len(flags) == len(set(flags)) > 40


def test_gpus_and_num_gpus_are_one_name(capsys):
    assert main(["run", "--gpus", "0", "--dry-run"]) == 2
    assert "--num-gpus 0: must be at least 1" in capsys.readouterr().err
