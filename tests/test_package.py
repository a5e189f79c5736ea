"""The package as others depend on it: what it exports, and what a wheel of it holds."""

import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import tensorprimat
from tensorprimat.core.data_files import tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("name", tensorprimat.__all__)
def test_every_public_name_can_be_imported_from_the_package(name):
    if name == "BenchmarkCallback":
        pytest.importorskip("lightning")
    assert callable(getattr(tensorprimat, name)) or isinstance(getattr(tensorprimat, name), str)


def test_importing_the_package_imports_neither_torch_nor_numpy():
    code = "import sys, tensorprimat; print([name for name in ('torch', 'numpy', 'pydantic') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_an_unknown_name_is_refused_as_python_does():
    with pytest.raises(AttributeError, match="has no attribute 'benchmark'"):
        _ = tensorprimat.benchmark


def test_the_package_is_typed_and_licensed():
    assert (resources.files("tensorprimat") / "py.typed").is_file()
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_extras_name_what_each_part_needs():
    assert {"torch", "nemo", "logs", "amd", "nvidia", "all"} <= set(PROJECT["optional-dependencies"])


def test_read_takes_a_result_file_and_a_log(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(
        "".join(
            f" [2026-01-16 07:32:{i:02d}] iteration {i:8d}/{40:8d} | consumed samples: {i * 8:12d} | "
            "elapsed time per iteration (ms): 1000.0 | global batch size:     8 | lm loss: 1.0E+01 |\n"
            for i in range(1, 41)
        )
    )
    result = tensorprimat.read(log)
    assert isinstance(result, tensorprimat.Result)
    assert result.performance_metrics.avg_step_time_seconds == 1.0


def test_the_changelog_begins_with_the_packages_version_and_goes_back_from_there():
    sections = re.findall(r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    versions = [version for version, _ in sections]
    assert versions[0] == tensorprimat.__version__
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions)
    assert versions == sorted(versions, key=lambda version: [int(part) for part in version.split(".")], reverse=True)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", date) for _, date in sections[1:]), "an older version has a date"
