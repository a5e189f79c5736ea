"""`tprimat doctor` says which engines work here, and the command for each thing that is missing."""

import json
import sys
from types import SimpleNamespace

import pytest
from test_telemetry import nvml

from tensorprimat.cli import main
from tensorprimat.engines import registry
from tensorprimat.session import doctor


def examined(capsys, *flags):
    code = main(["doctor", *flags])
    captured = capsys.readouterr()
    assert captured.err == ""
    return code, captured.out


def test_the_engines_that_work_and_the_reasons_against_the_others_are_shown(capsys, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.delenv("PRIMUS_PATH", raising=False)
    code, text = examined(capsys, "--json")
    document = json.loads(text)
    engines = {one["name"]: one for one in document["engines"]}
    assert (code, document["works"], engines["torch"]["works"]) == (0, True, True)
    assert engines["torch"]["says"] == "llama tiny, fp32"
    assert "needs an NVIDIA GPU" in engines["bridge"]["says"] or "not installed here" in engines["bridge"]["says"]
    assert (engines["primus"]["works"], "export PRIMUS_PATH=" in engines["primus"]["says"]) == (False, True)
    assert "torch" in document["versions"]
    assert document["variables"]["NCCL_DEBUG"] == "INFO"


def test_without_torch_no_engine_works_and_the_command_that_installs_it_is_shown(capsys, monkeypatch):
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda *_: None)
    code, text = examined(capsys)
    assert code == 1
    assert "torch: no, the torch engine needs torch, lightning, transformers, not installed" in " ".join(text.split())
    assert "pip install torch lightning 'transformers>=4.53'" in " ".join(text.split())


def test_a_missing_package_has_its_command(monkeypatch):
    monkeypatch.setattr(doctor, "importable", lambda name: name != "openpyxl")
    assert doctor.diagnose().missing == {"openpyxl (Excel profiles)": f"{sys.executable} -m pip install openpyxl"}


@pytest.mark.parametrize("columns", ["80", "120"])
def test_each_gpu_has_driver_memory_cap_clock_and_its_processes(capsys, monkeypatch, columns):
    memory = SimpleNamespace(free=70e9)
    driver = nvml(nvmlDeviceGetMemoryInfo=memory, nvmlDeviceGetEnforcedPowerLimit=350_000)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setenv("COLUMNS", columns)
    _, text = examined(capsys)
    shown = " ".join(text.split())
    assert "70 GB free" in shown
    assert "of 350 W" in shown
    assert max(map(len, text.splitlines())) <= int(columns)
