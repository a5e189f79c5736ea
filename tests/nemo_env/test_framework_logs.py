"""Logs of NeMo, Lightning and an older transformers, printed by themselves, are read as what they did."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "write_framework_logs.py"


def test_what_the_frameworks_of_this_environment_print_is_read_as_what_they_did():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert all(lines[name].endswith("agrees") for name in ("transformers", "lightning", "nemo"))
