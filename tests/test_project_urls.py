"""The metadata of a wheel names the public repository that its checkout is a clone of, and no other."""

import runpy
import shutil
import subprocess
import sys
import tarfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYPROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "tensorprimat"
version = "1"
dynamic = ["urls"]
[tool.setuptools]
py-modules = ["alone"]
"""
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def built(what, folder, output):
    """Return what the build backend makes of a folder: its path in `output`."""
    command = [sys.executable, "-c", BUILD, what, str(output)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return output / done.stdout.splitlines()[-1]


def urls(folder):
    """Return the pages that the setup.py of a folder states."""
    return runpy.run_path(str(folder / "setup.py"))["project_urls"]()


def urls_of_wheel(folder, output):
    metadata = built("prepare_metadata_for_build_wheel", folder, output) / "METADATA"
    return dict(pair.split(", ") for pair in Parser().parsestr(metadata.read_text()).get_all("Project-URL", []))


@pytest.fixture
def checkout(tmp_path):
    """A checkout of a package of one module, with the setup.py of this project."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    shutil.copy(ROOT / "setup.py", folder)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "alone.py").write_text("")
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    return folder


def cloned_from(checkout, address):
    subprocess.run(["git", "-C", checkout, "config", "remote.origin.url", address], check=True)


@pytest.mark.parametrize(
    "address",
    [
        "https://github.com/example/tensorprimat.git",
        "https://github.com/example/tensorprimat/",
        "https://user:secret@github.com/example/tensorprimat.git",
        "git@github.com:example/tensorprimat.git",
        "ssh://git@github.com:22/example/tensorprimat",
    ],
)
def test_a_wheel_names_the_pages_of_the_repository_that_it_was_cloned_from(checkout, address):
    cloned_from(checkout, address)
    assert urls(checkout) == {
        "Homepage": "https://github.com/example/tensorprimat",
        "Documentation": "https://github.com/example/tensorprimat/tree/HEAD/docs",
        "Changelog": "https://github.com/example/tensorprimat/blob/HEAD/CHANGELOG.md",
        "Issues": "https://github.com/example/tensorprimat/issues",
    }


@pytest.mark.parametrize("address", ["/srv/git/tensorprimat", "file:///srv/tensorprimat.git", "../tensorprimat"])
def test_a_clone_of_a_path_names_no_address(checkout, address):
    cloned_from(checkout, address)
    assert urls(checkout) == {}


def test_a_copy_inside_another_checkout_does_not_name_that_one(checkout):
    cloned_from(checkout, "https://github.com/example/something-else")
    inside = checkout / "third_party"
    inside.mkdir()
    for name in ("setup.py", "pyproject.toml", "alone.py"):
        shutil.copy(checkout / name, inside)
    assert urls(inside) == {}


def test_a_wheel_of_a_source_distribution_names_the_same_pages(checkout, tmp_path):
    cloned_from(checkout, "https://github.com/example/tensorprimat.git")
    with tarfile.open(built("build_sdist", checkout, tmp_path)) as archive:
        archive.extractall(tmp_path, filter="data")
    assert urls_of_wheel(checkout, tmp_path) == urls(checkout)
    assert urls_of_wheel(tmp_path / "tensorprimat-1", tmp_path) == urls(checkout)


def test_the_project_takes_its_addresses_from_setup_py():
    assert '"urls"' in (ROOT / "pyproject.toml").read_text().partition("dynamic = ")[2].splitlines()[0]
