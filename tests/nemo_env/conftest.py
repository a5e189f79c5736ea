"""The real NeMo, in an environment of its own: `make test-nemo`. Elsewhere these tests are skipped, saying so."""

import importlib.util
from pathlib import Path

import pytest

collect_ignore = ["tiny.py", "convert_on_cpu.py"]  # programs that tests start, which import stand-ins for CUDA
SHIM = Path(__file__).parents[3] / "shared" / "nemo_on_cpu"


@pytest.fixture(scope="session")
def shim():
    """The folder of `cpu_shim`, which stands in for the CUDA calls that Megatron makes whatever the device."""
    if not SHIM.is_dir():
        pytest.skip(f"{SHIM} is absent: nothing stands in for CUDA")
    return SHIM


def pytest_collection_modifyitems(items):
    absent = importlib.util.find_spec("nemo") is None
    for item in items:
        if Path(item.path).is_relative_to(Path(__file__).parent):
            item.add_marker("nemo")
            item.add_marker(pytest.mark.filterwarnings("default"))  # NeMo's imports warn, of things in other houses
            if absent:
                reason = "NeMo is not installed here; make test-nemo runs this in its own environment"
                item.add_marker(pytest.mark.skip(reason=reason))
