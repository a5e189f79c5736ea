"""The real NeMo, in an environment of its own: `make test-nemo`. Elsewhere these tests are skipped, saying so."""

import importlib.util
from pathlib import Path

import pytest

collect_ignore = ["tiny.py"]  # a program that tests start, which imports stand-ins for CUDA
SHIM = Path(__file__).parents[3] / "shared" / "nemo_on_cpu"


def pytest_collection_modifyitems(items):
    reason = None
    if importlib.util.find_spec("nemo") is None:
        reason = "NeMo is not installed here; make test-nemo runs this in its own environment"
    elif not SHIM.is_dir():
        reason = f"{SHIM} is absent: nothing stands in for CUDA"
    for item in items:
        if Path(item.path).is_relative_to(Path(__file__).parent):
            item.add_marker("nemo")
            item.add_marker(pytest.mark.filterwarnings("default"))  # NeMo's imports warn, of things in other houses
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))
