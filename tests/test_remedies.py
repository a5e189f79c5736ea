"""A remedy names a flag that the command which shows it accepts, or the command that does."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest
from test_stated_commands import bare

from tensorprimat.cli import COMMANDS, main

PACKAGE = Path(__file__).parents[1] / "tensorprimat"
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
OF_ANOTHER_COMMAND = re.compile(r"(?:\w+\.py|tprimat \w+)(?: [^;:]*)?$")
"""What stands before a flag of another command than the one that speaks: "benchmark.py --steps N"."""

LOGS = ("run", "extract", "analyze")
RESULTS = ("compare", "enhance", "metrics")
SHOWN_BY = {
    "core/checks.py": (*LOGS, *RESULTS),
    "core/legacy.py": (*RESULTS, "analyze", "extract"),
    "core/shapes.py": (*LOGS, *RESULTS, "sweep"),
    "core/spec.py": ("run", "pretrain"),
    "analysis/inputs.py": RESULTS,
    "analysis/memory.py": RESULTS,
    "analysis/returns.py": ("enhance", "metrics"),
    "analysis/ratios.py": ("compare",),
    "analysis/impossible.py": RESULTS,
    "reports/words.py": ("compare",),
    "engines/nemo.py": ("run", "pretrain"),
    "engines/nemo_recipe.py": ("run", "pretrain"),
    "engines/methodology.py": ("run",),
    "engines/torch_engine.py": ("run",),
    "engines/primus_spec.py": ("run",),
    "engines/endings.py": ("run",),
    "engines/launch.py": ("run",),
    "core/training_memory.py": ("run",),
    "micro/advice.py": ("sweep",),
    "micro/warmup.py": ("warmup",),
    "session/found_log.py": ("run",),
    **{f"logs/{path.name}": LOGS for path in (PACKAGE / "logs").glob("*.py")},
}
"""Module → commands that show its messages."""
NO_REMEDY = {
    "core/spec.py": {"--num-nodes"},  # echoes what was typed: run and pretrain spell it differently
    "engines/nemo.py": {"--preset", "--strategy", "--seed", "--engine", "--num-nodes", "--spec", "--result"},
    "engines/launch.py": {"--spec", "--result"},
    "engines/torch_engine.py": {"--spec", "--result"},
    "logs/__init__.py": {"--format"},
    "logs/joining.py": {"--segment"},
    "logs/deepspeed.py": None,  # flags of the launchers whose logs are read
    "logs/megatron_config.py": None,
    "logs/torchtitan.py": None,
    "logs/prefixes.py": None,
    "micro/warmup.py": {"--warmup-steps"},  # advice for every other command, which all have it
}
"""Flags that a module only echoes, hands to a child process, or reads in logs; None for all."""


def accepted(command):
    """The long options of a command."""
    parameters = inspect.signature(import_module(f"tensorprimat.cli.{command}").command, eval_str=True).parameters
    flags = {"--help"}
    for name, parameter in parameters.items():
        if not hasattr(parameter.annotation, "__metadata__"):  # typer's own context
            continue
        option = parameter.annotation.__metadata__[0]
        declared = [option.default, *(getattr(option, "param_decls", None) or ())]
        spelled = {word for text in declared if isinstance(text, str) for word in text.split("/") if word[:2] == "--"}
        flags |= spelled or {f"--{name.replace('_', '-')}"}
    return flags


ACCEPTED = {command: accepted(command) for command in COMMANDS}


def texts(path):
    """Every string of a module that is no docstring; an f-string as one text, with {} for what is filled in."""
    tree = ast.parse(path.read_text())
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside | documented:
            yield node.value


def remedies(text):
    """Flags of a text that are meant for the command that shows it."""
    return [match[0] for match in FLAG.finditer(text) if not OF_ANOTHER_COMMAND.search(text[: match.start()])]


@pytest.mark.parametrize("module", sorted(SHOWN_BY))
def test_every_flag_in_a_message_is_one_of_the_commands_that_show_it(module):
    path = PACKAGE / module
    passed_over = NO_REMEDY.get(module, set())
    if passed_over is None or not path.is_file():
        pytest.skip("its flags are not this tool's")
    wrong = {
        (flag, command)
        for text in texts(path)
        for flag in remedies(text)
        for command in SHOWN_BY[module]
        if flag not in passed_over and flag not in ACCEPTED[command]
    }
    assert wrong == set()


def test_a_remedy_that_names_another_command_is_meant_for_that_one():
    assert remedies("give --num-gpus; benchmark.py --steps N for longer runs") == ["--num-gpus"]
    assert remedies("tprimat extract --segment reads it alone, or give --gpu") == []


def said_by(capsys, command, path, tmp_path):
    output = {
        "compare": ["--output", tmp_path / "o", "--no-plot"],
        "enhance": ["--output", tmp_path / "o", "--no-plot"],
    }
    assert main([command, str(path), *map(str, output.get(command, []))]) == 0
    captured = capsys.readouterr()
    report = tmp_path / "o" / ("comparison_report.md" if command == "compare" else "enhanced_report.md")
    return captured.out + captured.err + (report.read_text() if report.is_file() else "")


@pytest.mark.parametrize("command", ["compare", "enhance", "metrics", "analyze"])
@pytest.mark.parametrize("facts", [{}, {"sequence_length": 2048, "global_batch_size": 8}, {"num_gpus": 8}])
def test_what_a_command_says_of_a_bare_result_names_only_its_own_flags(tmp_path, capsys, command, facts):
    path = bare(tmp_path / "old.json", **facts)
    said = " ".join(said_by(capsys, command, path, tmp_path).split())
    named = set(remedies(said))
    assert named - ACCEPTED[command] == set()
    if command in ("enhance", "metrics"):
        assert "--gpu" in named


def test_a_price_that_compare_asks_for_can_be_given_to_it(tmp_path, capsys):
    path = bare(tmp_path / "old.json", sequence_length=2048, global_batch_size=8, num_gpus=8)
    flags = ["--output", str(tmp_path / "o.md"), "--gpu", "Unit 7"]
    assert main(["compare", str(path), *flags, "--price", "Unit 7=2.5", "--shape", "llama", "--precision", "bf16"]) == 0
    assert "--price Unit 7=2.5" in (tmp_path / "o.md").read_text()
    assert main(["compare", str(path), *flags, "--price", "free"]) == 2
    assert "--price free" in capsys.readouterr().err
