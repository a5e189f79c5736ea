"""Shell completion offers every command, every option of each, and the values that an option can have."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from each import in_each

from tensorprimat.cli import COMMANDS, COMPLETION_REQUEST, known_values, main
from tensorprimat.facts import catalogue
from tensorprimat.measure import grid
from tensorprimat.mlperf import library as mlperf_library

PAGES = Path(__file__).parents[1] / "docs" / "reference" / "commands"


def complete(*words, shell="bash"):
    """Return the completions of the last word, as the shell's own function requests them."""
    request = {
        COMPLETION_REQUEST: f"complete_{shell}",
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
        monkeypatch.setenv(COMPLETION_REQUEST, "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        assert main([]) == 0
        return capsys.readouterr().out.split()

    return ask


def test_every_command_is_offered(offered):
    assert set(offered("tprimat", "")) >= set(COMMANDS)
    assert offered("tprimat", "pref") == ["preflight"]


@in_each("command", COMMANDS)
def test_every_option_of_a_command_is_offered(command, offered):
    shown = set(offered("tprimat", command, "--"))
    manual = (PAGES / f"{command}.md").read_text()
    manual = re.split(r"\n(?:Options|What to train):\n", manual, maxsplit=1)[-1]
    expected = set(re.findall(r"^  (?:-\w, )?(--[a-z][a-z0-9-]*)", manual, re.M))
    assert expected
    assert shown >= expected


LLMS = ["llama", "qwen", "mistral"]


@in_each(
    ("words", "values"),
    [
        ("run --engine ", ["auto", "torch", "nemo", "bridge", "primus", "logs"]),
        ("run --model ", [*LLMS, "all"]),
        ("run --executor s", ["slurm", "skypilot"]),
        ("run --gpu MI300", ["MI300X", "MI300A"]),
        ("run --gpu H100-", ["H100-SXM", "H100-PCIe", "H100-NVL"]),
        ("run --gpu c", ["cpu"]),
        ("run --profile ", ["torch", "nsys", "rocprof"]),
        ("run --model-name q", ["qwen"]),
        ("run --precision f", ["fp32", "fp16", "fp8"]),
        ("run --preset ", ["full", "tiny"]),
        ("run --model Mixtral/conf", []),  # the shell then completes names of files
        ("extract --format mega", ["megatron"]),
        ("extract --gpu MI35", ["MI350X", "MI355X"]),
        ("extract --precision fp", ["fp32", "fp16", "fp8", "fp4"]),
        ("compare --by p", ["platform", "precision", "preset"]),
        ("gate --gpu B2", ["B200"]),
        ("history --metric samples", ["samples_per_second"]),
        ("history --model l", ["llama"]),
        ("mlperf ", ["import", "list", "show", "compare"]),
        ("mlperf list --benchmark llama2", ["llama2_70b_lora"]),
        ("mlperf list --gpu H200", ["H200-NVL", "H200-SXM"]),
        ("mlperf list --submitter Su", ["Supermicro"]),
        ("mlperf list --round v5", ["v5.0", "v5.1"]),
        ("project --benchmark gpt", ["gpt3"]),
        ("primus --methodology a", ["agreed"]),
        ("primus --gpu H20", ["H200-SXM", "H200-NVL", "H20", "H20-141GB"]),
        ("pretrain --model m", ["mistral"]),
        ("convert --model m", ["mistral"]),
        ("preflight --executor ", ["slurm", "local"]),
        ("preflight --device c", ["cpu", "cuda"]),
        ("passes --pass ", ["forward", "forward-backward", "train", "all"]),
        ("warmup --attention e", ["eager"]),
        ("sweep --model-size small,me", ["small,medium"]),
        ("sweep --precision bf16,", ["bf16,fp32", "bf16,tf32", "bf16,bf16", "bf16,fp16"]),
    ],
)
def test_the_known_values_of_an_option_are_offered(words, values, offered):
    assert sorted(offered("tprimat", *words.split(" "))) == sorted(values)


NAMED = {
    "gpu", "model", "model_name", "model_size", "engine", "executor", "format", "precision", "methodology", "benchmark",
    "metric", "preset", "profile", "attention", "strategy", "pass_name", "device", "by", "submitter", "round",
}  # fmt: skip
"""Options whose values are names that the tool knows."""


@in_each("command", COMMANDS)
def test_every_option_that_takes_a_known_name_offers_names(command):
    parameters = inspect.signature(import_module(f"tensorprimat.cli.{command}").command, eval_str=True).parameters
    for name in NAMED & set(parameters):
        [declared] = parameters[name].annotation.__metadata__
        assert declared.autocompletion is not None, name


def test_every_offered_name_is_read_as_the_name_itself():
    for gpu in catalogue.gpus():
        [offer] = [name for name in known_values.offer(known_values.gpu_names)(gpu.name.replace(" ", "-"))
                   if name == gpu.name.replace(" ", "-")]  # fmt: skip
        assert catalogue.variants(offer) == catalogue.variants(gpu.name) != ()
    entries = mlperf_library.load(None).entries
    for name in known_values.offer(known_values.of_mlperf("gpu"))(""):
        assert mlperf_library.of_gpu(entries, name), name
    for name in known_values.model_sizes():
        assert grid.cells(grid.GridOptions(model_size=name, pass_name="train")), name


@in_each(
    ("shell", "words", "offered"),
    [
        ("zsh", ("gate", "--max"), "--max-slowdown"),
        ("fish", ("run", "--engine", ""), "bridge"),
    ],
)
def test_a_shell_gets_completions_from_a_process(shell, words, offered):
    assert offered in complete("tprimat", *words, shell=shell)


TYPED = """
source {script}
while read -r typed; do
  eval "COMP_WORDS=($typed)"; COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
  _tprimat_completion tprimat
  echo "${{COMPREPLY[@]}}"
done
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_the_function_that_bash_installs_offers_the_values(tmp_path):
    offered = {
        "tprimat run --engine ''": "auto torch nemo bridge primus logs",
        "tprimat run --gpu H200-": "H200-SXM H200-NVL",
        "tprimat extract --format tor": "torchtitan torchtune",
    }
    shown = subprocess.run(
        [sys.executable, "-m", "tensorprimat", "--show-completion", "bash"],
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    (tmp_path / "completion.sh").write_text(shown.stdout)
    program = tmp_path / "tprimat"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -m tensorprimat\n")
    program.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", TYPED.format(script=tmp_path / "completion.sh")],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}, input="".join(f"{one}\n" for one in offered),
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == list(offered.values()), done.stderr


def test_install_completion_writes_into_the_start_up_files_of_the_shell(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tensorprimat", "--install-completion", "bash"],
        env={**os.environ, "HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [script] = [path for path in tmp_path.rglob("*") if path.is_file() and "tprimat" in path.name]
    assert COMPLETION_REQUEST in script.read_text()
    assert "tprimat" in (tmp_path / ".bashrc").read_text()
