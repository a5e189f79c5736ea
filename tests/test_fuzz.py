"""A short coverage-guided fuzz run over every reader; perf/fuzz_readers.py is the long one."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import scripts

from tensorprimat import logs

SCRIPT = Path(__file__).resolve().parents[1] / "perf" / "fuzz_readers.py"
SECONDS = 1  # of fuzzing; atheris takes as long again to instrument the readers


TARGETS = scripts.load("perf/fuzz_readers.py").targets()


def test_every_format_is_fuzzed():
    pytest.importorskip("openpyxl")
    pytest.importorskip("tensorboard")
    assert {target.format for target in TARGETS.values()} == {format.name for format in logs.FORMATS} | {""}


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_are_read_as_their_format(target, tmp_path):
    """A seed that no reader takes would leave nearly all of the reader unseen."""
    found = set()
    for number, seed in enumerate(TARGETS[target].seeds()):
        path = tmp_path / str(number)
        path.write_bytes(TARGETS[target].dress(seed))
        detection = logs.detect_format(logs.Log(path))
        found.add(detection.format.name if detection else "")
    assert TARGETS[target].format in found or (target == "any" and len(found) > 9)


@pytest.mark.fuzz
@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris is not installed; it has no wheel for every Python"
)
@pytest.mark.parametrize("target", TARGETS)
def test_a_short_fuzz_run_finds_no_crash_and_no_hang(target, tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, "--seconds", str(SECONDS), "--inside", target, "--keep", tmp_path],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
