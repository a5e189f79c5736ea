"""The wheel in an empty environment: it installs, and every command runs without a checkout (make test-package).

TENSORPRIMAT_TEST_WHEEL names the Pythons, by path; 1 is the one that runs the tests. The pinned versions of
constraints.txt hold for that one only, because some of them need a newer Python than the oldest supported.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tensorprimat.cli import COMMANDS

ROOT = Path(__file__).parents[1]
LINE = (
    " [2026-01-16 07:32:{i:02d}] iteration {i:8d}/      40 | consumed samples: {n:12d} | elapsed time per "
    "iteration (ms): 1000.0 | global batch size:     8 | lm loss: 1.0E+01 |\n"
)

NAMED = os.environ.get("TENSORPRIMAT_TEST_WHEEL", "").split()
PYTHONS = [sys.executable if name == "1" else name for name in NAMED]

pytestmark = pytest.mark.skipif(not PYTHONS, reason="builds and installs a wheel from the registry: make test-package")


def run(*command, cwd):
    """Run a command without the checkout on Python's path."""
    words, environment = [str(word) for word in command], {**os.environ, "PYTHONPATH": ""}
    return subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=environment, timeout=600, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, built from a copy: setuptools would add what an earlier build left in build/lib."""
    folder, copy = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("copy") / "checkout"
    left_out = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "docs", "output", "tests")
    shutil.copytree(ROOT, copy, ignore=left_out)
    built = run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, copy, cwd=folder)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("tensorprimat-*.whl")
    return path


@pytest.fixture(scope="module", params=PYTHONS or [""], ids=lambda python: Path(python).parent.parent.name)
def environment(request, wheel, tmp_path_factory):
    """An empty virtual environment with nothing but the wheel and what it depends on; the folder of its programs."""
    folder = tmp_path_factory.mktemp("environment")
    made = run(request.param, "-m", "venv", folder / "venv", cwd=folder)
    assert made.returncode == 0, made.stderr
    programs = folder / "venv" / "bin"
    pins = ("--constraint", ROOT / "constraints.txt") if request.param == sys.executable else ()
    installed = run(programs / "python", "-m", "pip", "install", "--quiet", *pins, wheel, cwd=folder)
    assert installed.returncode == 0, installed.stderr
    return programs


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_its_manual(environment, command, tmp_path):
    shown = run(environment / "tprimat", command, "--help", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "Usage: tprimat" in shown.stdout


@pytest.mark.parametrize("module", ["tensorprimat", "benchmark_utils", "enhanced_metrics", "compare_results"])
def test_every_script_with_public_imports_is_in_the_wheel(environment, module, tmp_path):
    imported = run(environment / "python", "-W", "error", "-c", f"import {module}", cwd=tmp_path)
    assert imported.returncode == 0, imported.stderr


def test_a_log_becomes_a_report_without_a_checkout(environment, tmp_path):
    (tmp_path / "train.log").write_text("".join(LINE.format(i=i, n=8 * i) for i in range(1, 41)))
    read = run(environment / "tprimat", "extract", "train.log", "--model-name", "llama", "--json", cwd=tmp_path)
    assert read.returncode == 0, read.stderr
    assert json.loads(read.stdout)["performance_metrics"]["avg_step_time_seconds"] == 1.0
    assert run(environment / "tprimat", "extract", "train.log", "--model-name", "llama", cwd=tmp_path).returncode == 0
    compared = run(environment / "tprimat", "compare", "output", cwd=tmp_path)
    assert compared.returncode == 0, compared.stderr
    assert (tmp_path / "output" / "comparison_report.html").is_file()
    assert (tmp_path / "output" / "comparison_plot.png").is_file()


RUNS = {
    "run": ("--model llama --dry-run", 2, ""),
    "pretrain": ("--dry-run", 2, "NeMo"),
    "convert": ("--model qwen --source absent --output checkpoint --dry-run", 2, "absent"),
    "extract": ("train.log --model-name llama --sequence-length 8192 --num-gpus 8 --output-dir base", 0, ""),
    "compare": ("base", 0, ""),
    "enhance": ("base --explain", 0, ""),
    "metrics": ("base/benchmark_unknown_llama.json", 0, ""),
    "analyze": ("base train.log", 0, ""),
    "gate": ("--baseline base --candidate base", 3, ""),
    "explain": ("absent.json", 2, "absent.json"),
    "history": ("base", 0, ""),
    "passes": ("--model-size llama-tiny", 2, "need the package torch"),
    "warmup": ("--model-size llama-tiny", 2, "need the package torch"),
    "sweep": ("--model-size llama-tiny", 2, "need the package torch"),
    "aggregate": ("cell.json", 0, ""),
    "preflight": ("", 2, "torch"),
    "primus": ("absent.yaml", 2, "absent.yaml"),
    "mlperf": ("list", 0, ""),
    "project": ("", 0, ""),
    "demo": ("--no-open", 0, ""),
    "verify": ("base", 0, ""),
    "processes": ("--dry-run", 0, ""),
    "list": ("base", 0, ""),
    "export": ("base --output store", 2, "pyarrow"),
    "bundle": ("base --output proof.zip", 0, ""),
    "reproduce": ("--list 26.08", 0, ""),
    "doctor": ("", 1, ""),
    "bisect": ("--good a --bad b -- true", 2, "git"),
    "overhead": ("--model llama", 2, "torch"),
}
"""Command → arguments, exit code and a part of its message. Those that train refuse in one sentence without torch."""


def test_every_command_runs_without_a_checkout(environment, tmp_path):
    assert set(RUNS) == set(COMMANDS)
    (tmp_path / "train.log").write_text("".join(LINE.format(i=i, n=8 * i) for i in range(1, 41)))
    (tmp_path / "cell.json").write_text('{"model_size": "small", "mean_time_ms": 1.5}')
    for command in sorted(RUNS, key=lambda name: name != "extract"):  # the others read its result
        words, code, message = RUNS[command]
        done = run(environment / "tprimat", command, *words.split(), cwd=tmp_path)
        assert (done.returncode, message in done.stderr) == (code, True), f"{command}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        assert "unexpected error" not in done.stderr


def test_a_sweep_is_estimated_without_torch(environment, tmp_path):
    done = run(environment / "tprimat", "sweep", "--model-size", "llama-tiny", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "torch is not installed" in done.stderr
    assert "llama-tiny" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_completions_from_the_installed_command(environment, shell, tmp_path):
    request = {
        "_TPRIMAT_COMPLETE": f"complete_{shell}", "COMP_WORDS": "tprimat gate --max", "COMP_CWORD": "2",
        "_TYPER_COMPLETE_ARGS": "tprimat gate --max", "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }  # fmt: skip
    done = run("env", *(f"{name}={value}" for name, value in request.items()), environment / "tprimat", cwd=tmp_path)
    assert "--max-slowdown" in done.stdout


def test_the_library_of_mlperf_results_is_in_the_wheel(environment, tmp_path):
    listed = run(environment / "tprimat", "mlperf", "list", "--published", "--json", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert {row["kind"] for row in json.loads(listed.stdout)} == {"mlperf", "published"}
    shown = run(environment / "tprimat", "demo", "--no-open", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert (tmp_path / "tprimat_demo" / "comparison_report.html").is_file()


def test_every_file_of_the_data_folder_is_in_the_wheel(environment):
    place = "import importlib.resources as r; print(*(f.name for f in (r.files('tensorprimat') / 'data').iterdir()))"
    listed = run(environment / "python", "-c", place, cwd=environment)
    assert {path.name for path in (ROOT / "tensorprimat" / "data").iterdir()} - {"__pycache__"} <= set(
        listed.stdout.split()
    )
