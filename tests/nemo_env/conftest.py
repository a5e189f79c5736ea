"""Tests with the real NeMo in its own environment, by `make test-nemo`; skipped where NeMo is not installed."""

import importlib.util
from pathlib import Path

import pytest

collect_ignore = ["tiny.py", "convert_on_cpu.py"]  # programs that tests start, which import replacements of CUDA calls
SHIM = Path(__file__).parents[3] / "shared" / "nemo_on_cpu"


@pytest.fixture(scope="session")
def shim():
    """The folder of `cpu_shim`, which replaces the CUDA calls that Megatron makes on every device."""
    if not SHIM.is_dir():
        pytest.skip(f"needs {SHIM}, which replaces calls of CUDA and is not part of the project")
    return SHIM


def pytest_collection_modifyitems(items):
    absent, here = importlib.util.find_spec("nemo") is None, Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker("nemo")
            item.add_marker(pytest.mark.filterwarnings("default"))  # NeMo's imports warn about other packages
            if absent:
                reason = "NeMo is not in this environment; run make test-nemo"
                item.add_marker(pytest.mark.skip(reason=reason))
