"""Tests of tests/warm_server.py: messages where it cannot start or has ended, and the imports of its processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import warm_relay
import warm_server

from tensorprimat.core.version import __version__


def test_a_server_that_dies_while_it_imports_is_reported_at_once_with_its_errors(tmp_path, monkeypatch):
    broken = tmp_path / "server.py"
    broken.write_text("import sys\nsys.exit('no torch for you')\n")
    monkeypatch.setattr(warm_server, "__file__", str(broken))
    monkeypatch.setattr(warm_server.tempfile, "mkdtemp", lambda **_: str(tmp_path))
    began = time.monotonic()
    for _worker in range(2):
        with pytest.raises(RuntimeError, match="ended before it could serve:\nno torch for you"):
            warm_server.shared(tmp_path, owner=os.getpid())
    assert time.monotonic() - began < 60


def test_a_program_whose_server_has_ended_says_so(tmp_path):
    call = f"import sys, warm_relay; sys.argv = ['python', '-c', '']; warm_relay.main({str(tmp_path / 'socket')!r})"
    environment = {**os.environ, "PYTHONPATH": str(Path(warm_relay.__file__).parent)}
    done = subprocess.run([sys.executable, "-c", call], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.strip() == f"the warm Python at {tmp_path / 'socket'} has ended"


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
