"""Logs that NeMo, Lightning and an older transformers print themselves give the steps that really ran."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "write_framework_logs.py"


def test_logs_of_the_frameworks_in_this_environment_are_read_as_the_training_that_took_place():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert all(lines[name].endswith("agrees") for name in ("transformers", "lightning", "nemo"))
