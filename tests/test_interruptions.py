"""Ctrl-C and odd names at every moment of a command: one line, never a traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from each import in_each
from test_verify import ROW

from tensorprimat.cli import main
from tensorprimat.storage import store

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals and names of bytes as Linux has them")


@in_each("module", ["typer", "pydantic", "tensorprimat.cli.verify", "tensorprimat.analysis.verify"])
def test_ctrl_c_during_an_import_is_reported_in_one_line(module, tmp_path):
    """A module of that name waits for Ctrl-C while it is imported."""
    hook = tmp_path / "sitecustomize.py"
    hook.write_text(
        "import sys, time\n"
        "class Slow:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            print('importing', flush=True)\n"
        "            for _ in range(600):\n"  # a signal between this line and one long sleep would wake nobody
        "                time.sleep(0.1)\n"
        "sys.meta_path.insert(0, Slow())\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-m", "tensorprimat", "verify", str(tmp_path)], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert child.stdout.readline() == "importing\n"
    child.send_signal(signal.SIGINT)
    _, printed = child.communicate(timeout=30)
    assert (child.returncode, "interrupted" in printed, "Traceback" in printed) == (1, True, False), printed


def test_a_log_whose_name_is_not_utf_8_is_read_and_its_result_written(tmp_path, capsys):
    log = tmp_path / os.fsdecode(b"run-\xff-\xc3.log")
    log.write_text(
        "".join(ROW.format(second=i, index=i, samples=64 * i, ms=1000 + 7.3 * (i % 5)) for i in range(1, 41))
    )
    assert main(["extract", "--log-file", str(log), "--model-name", "llama", "--output", f"{tmp_path}/out/"]) == 0
    assert main(["extract", "--log-file", str(log), "--json"]) == 0
    assert "unexpected" not in capsys.readouterr().err
    (written,) = (tmp_path / "out").glob("*.json")
    assert len(store.load(written).steps) == 40
