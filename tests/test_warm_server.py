"""Tests of tests/warm_server.py: messages where it cannot start or has ended, and the imports of its processes."""

import os
import subprocess
from pathlib import Path

import pytest

from tensorprimat.core.version import __version__


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="there is a warm Python on Linux only")
@pytest.mark.parametrize(("named", "version"), [("this", __version__), ("another", "another one"), ("none", "none")])
def test_a_process_gets_the_package_that_its_paths_name(tmp_path, warm_python, named, version):
    (tmp_path / "tensorprimat" / "core").mkdir(parents=True)
    (tmp_path / "tensorprimat" / "__init__.py").touch()
    (tmp_path / "tensorprimat" / "core" / "version.py").write_text("__version__ = 'another one'\n")
    paths = {"this": str(Path(__file__).parents[1]), "another": str(tmp_path), "none": ""}
    code = (
        "import sys\n"
        "print('tensorprimat.storage.store' in sys.modules)\n"
        "try:\n    from tensorprimat.core.version import __version__\nexcept ImportError:\n    __version__ = 'none'\n"
        "print(__version__)"
    )
    done = subprocess.run(
        [warm_python, "-c", code],
        env={**os.environ, "PYTHONPATH": paths[named]},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [str(named == "this"), version], done.stderr
