"""The package as others depend on it: what it exports, and what a wheel of it holds."""

import json
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import plausible
import pytest

import tensorprimat
from tensorprimat.cli import main
from tensorprimat.core.errors import UsageError
from tensorprimat.core.user_facts import UserFacts
from tensorprimat.facts.data_rows import tomllib
from tensorprimat.reports.json import render
from tensorprimat.storage.store import save

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


NOT_YET_IMPORTED = {
    "import tensorprimat": "torch numpy pydantic",
    "import compare_results": "numpy matplotlib pydantic rich",
    "from tensorprimat import logs; logs.read(sys.argv[1])": "scipy tensorprimat.logs.huggingface.reader "
    "tensorprimat.logs.mlperf.reader tensorprimat.logs.keyvalue tensorprimat.logs.tensorboard tensorprimat.logs.olmo",
    "from benchmark_utils import load_results, detect_platform; load_results(sys.argv[2:])": "torch lightning",
    "import tensorprimat.analysis.compare": "scipy.stats",
    "import tensorprimat.cli.aggregate, tensorprimat.reports.aggregate, tensorprimat.reports.plots.micro": "pandas",
    "from pathlib import Path; from tensorprimat.storage.store import load_all; "
    "from tensorprimat.analysis.compare import compare; from tensorprimat.reports.plots.comparison import "
    "comparison_plot; comparison_plot(compare(load_all([Path(sys.argv[2])])[0]))": "matplotlib.pyplot pandas torch",
}
"""Statements of a program in their order, and the modules that are not imported after each of them."""


def test_a_program_imports_no_module_before_it_needs_it(tmp_path):
    row = " iteration {0}/60 | elapsed time per iteration (ms): {1:.1f} | lm loss: 1.0 |\n"
    (tmp_path / "ramp.log").write_text("".join(row.format(n, 1000 + 9000 / n) for n in range(1, 61)))
    result = save(plausible.result("h100"), tmp_path, stamp="1")
    program = "import sys\n" + "".join(
        f"{does}\nprint([name for name in {modules.split()} if name in sys.modules])\n"
        for does, modules in NOT_YET_IMPORTED.items()
    )
    command = [sys.executable, "-c", program, tmp_path / "ramp.log", result]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = dict(zip(NOT_YET_IMPORTED, done.stdout.splitlines(), strict=False))
    assert found == dict.fromkeys(NOT_YET_IMPORTED, "[]"), done.stderr


@pytest.mark.parametrize("name", tensorprimat.__all__)
def test_every_public_name_can_be_imported_from_the_package(name):
    if name == "BenchmarkCallback":
        pytest.importorskip("lightning")
    assert callable(getattr(tensorprimat, name)) or isinstance(getattr(tensorprimat, name), str)


@pytest.mark.parametrize("module", ["tensorprimat", "benchmark_utils"])
def test_the_callback_without_lightning_names_the_extra_to_install(module):
    code = f"import sys; sys.modules['lightning'] = None; from {module} import BenchmarkCallback"
    refused = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    last = refused.stderr.splitlines()[-1]
    assert last.startswith("ImportError: BenchmarkCallback needs the package lightning")
    assert last.endswith("pip install 'tensorprimat[torch]'")


def test_an_unknown_name_is_refused_as_python_does():
    with pytest.raises(AttributeError, match="has no attribute 'benchmark'"):
        _ = tensorprimat.benchmark


def test_the_package_is_typed_and_licensed():
    assert (resources.files("tensorprimat") / "py.typed").is_file()
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_extras_name_what_each_part_needs():
    assert {"torch", "nemo", "logs", "amd", "nvidia", "all"} <= set(PROJECT["optional-dependencies"])


def megatron_log(path: Path, seconds: int) -> Path:
    """Write a Megatron log of 29 steps that take so long each."""
    path.write_text(
        "".join(
            f" [2026-01-16 07:{32 + i * seconds // 60}:{i * seconds % 60:02d}] iteration {i:8d}/{29:8d} | "
            f"consumed samples: {i * 8:12d} | elapsed time per iteration (ms): {1000.0 * seconds} | "
            "global batch size:     8 | lm loss: 1.0E+01 |\n"
            for i in range(1, 30)
        )
    )
    return path


def test_read_takes_a_result_file_and_a_log(tmp_path):
    result = tensorprimat.read(megatron_log(tmp_path / "train.log", 1))
    assert isinstance(result, tensorprimat.Result)
    assert result.performance_metrics.avg_step_time_seconds == 1.0
    stored = save(result, tmp_path, stamp="20260116_073200_000000")
    assert tensorprimat.read(stored).performance_metrics == result.performance_metrics


def test_compare_takes_results_paths_and_named_sides(tmp_path):
    facts = UserFacts(model_name="llama3-8b", gpu="H100", sequence_length=2048, num_gpus=8)
    logs = [megatron_log(tmp_path / f"{seconds}.log", seconds) for seconds in (1, 2, 3)]
    fast, slow, slower = (tensorprimat.read(log, facts=facts) for log in logs)
    of_results = tensorprimat.compare(slow, fast)
    assert [side.label for side in of_results.sides] == ["result 1", "result 2"]
    assert of_results.pairs[0].ratio.estimate.value == pytest.approx(2)
    named = tensorprimat.compare({"old": [slow, slower], "new": logs[0]}, baseline="new")
    assert [(side.label, len(side.files)) for side in named.sides] == [("old", 2), ("new", 1)]
    assert [(pair.baseline.label, pair.candidate.label) for pair in named.pairs] == [("new", "old")]


def test_compare_and_the_command_give_the_same_ratios(tmp_path, capsys):
    slow, fast = (megatron_log(tmp_path / f"{name}.log", seconds) for name, seconds in (("slow", 2), ("fast", 1)))
    assert main(["compare", str(slow), str(fast), "--json", "--no-plot", "--output-dir", str(tmp_path / "report")]) == 0
    printed = json.loads(capsys.readouterr().out)
    computed = json.loads(render(tensorprimat.compare(slow, str(fast))))
    assert {**computed, "generated_at": None} == {**printed, "generated_at": None}


def test_compare_without_a_side_is_refused():
    with pytest.raises(UsageError, match="no sides"):
        tensorprimat.compare()


def test_an_empty_side_is_refused_and_not_left_out():
    with pytest.raises(UsageError, match="side new: names no result"):
        tensorprimat.compare({"old": ["old.json"], "new": []})


def test_the_changelog_begins_with_the_packages_version_and_goes_back_from_there():
    sections = re.findall(r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    versions = [version for version, _ in sections]
    assert versions[0] == tensorprimat.__version__
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions)
    assert versions == sorted(versions, key=lambda version: [int(part) for part in version.split(".")], reverse=True)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", date) for _, date in sections[1:]), "an older version has a date"
