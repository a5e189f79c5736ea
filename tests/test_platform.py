"""Platform detection on this machine, and on others with torch's answers faked."""

import importlib.util
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

from tensorprimat.machine import environment, platform
from tensorprimat.system.processes import usable_cores


def fake_torch(*devices, hip=None, cuda="12.8"):
    """Return as much of torch as detection asks, for GPUs that are not here."""
    return SimpleNamespace(
        __version__="2.9.0",
        version=SimpleNamespace(hip=hip, cuda=cuda),
        cuda=SimpleNamespace(device_count=lambda: len(devices), get_device_properties=lambda index: devices[index]),
    )


def h100(**changes):
    facts = {
        "name": "NVIDIA H100 80GB HBM3", "total_memory": 85_017_493_504, "multi_processor_count": 132, "major": 9,
        "minor": 0, "uuid": "aa47b36e-4d4b-0a1a-9a42-2f0f5a6c0d11",
    }  # fmt: skip
    return SimpleNamespace(**{**facts, **changes})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_machine_without_a_gpu_is_a_cpu():
    machine = platform.detect_platform()
    assert (machine.platform, machine.label, machine.gpu_info.software_stack) == ("cpu", "CPU", "cpu")
    assert machine.gpu_info.device_name
    assert machine.gpu_info.pytorch_version == torch.__version__
    assert machine.gpu_info.gpu_cores == usable_cores() >= 1
    assert machine.gpu_info.total_memory_gb > 0.1


def test_a_process_detects_its_devices_once(monkeypatch):
    counted = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: counted.append("asked") or False)
    first = platform.detect_platform()
    assert platform.detect_platform() is platform.detect_platform(cpu=False) is first
    assert counted == ["asked"]


def test_the_cpu_can_be_requested_where_there_is_a_gpu():
    assert platform.detect_platform(cpu=True).platform == "cpu"


def test_a_machine_without_torch_is_a_cpu_with_a_warning(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    machine = platform.detect_platform()
    assert machine.platform == "cpu"
    assert machine.gpu_info.pytorch_version is None
    assert [(one.code, one.field) for one in machine.warnings] == [("torch_missing", "platform")]


def test_cuda_devices_are_described_in_the_drivers_words():
    machine = platform._gpu(fake_torch(h100(), h100()), ())
    assert (machine.platform, machine.label) == ("nvd", "CUDA")
    info = machine.gpu_info
    assert (info.device_name, info.device_count, info.gpu_cores) == ("NVIDIA H100 80GB HBM3", 2, 16_896)
    assert (info.software_stack, info.software_version) == ("cuda", "12.8")
    assert info.total_memory_gb == pytest.approx(85.017, abs=0.001)
    assert machine.gpu_ids == ("aa47b36e-4d4b-0a1a-9a42-2f0f5a6c0d11",) * 2


def test_rocm_is_recognised_by_torch():
    mi300x = h100(name="AMD Instinct MI300X", multi_processor_count=304, uuid="35663862-6331-6434-6537-613261396230")
    machine = platform._gpu(fake_torch(mi300x, hip="6.4.43483", cuda=None), ())
    assert (machine.platform, machine.label) == ("amd", "ROCm")
    assert (machine.gpu_info.software_stack, machine.gpu_info.software_version) == ("rocm", "6.4.43483")
    assert machine.gpu_info.gpu_cores == 19_456
    assert machine.gpu_ids == ("5f8bc1d4e7a2a9b0",)


def test_an_unknown_generation_has_no_core_count():
    assert platform._gpu(fake_torch(h100(major=99)), ()).gpu_info.gpu_cores is None


def test_gpus_that_differ_are_a_warning():
    machine = platform._gpu(fake_torch(h100(), h100(name="NVIDIA L40S")), ())
    (warning,) = machine.warnings
    assert (warning.code, warning.field) == ("gpus_differ", "gpu_info")
    assert warning.values == {"names": "NVIDIA H100 80GB HBM3, NVIDIA L40S", "first": "NVIDIA H100 80GB HBM3"}


def test_a_gpu_that_cannot_be_started_is_a_warning_with_the_drivers_reason(monkeypatch):
    def busy(_):
        raise RuntimeError(
            "CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCompile with TORCH_USE_CUDA_DSA"
        )

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", busy)
    machine = platform.detect_platform()
    assert machine.platform == "cpu"
    (told,) = machine.warnings
    why = "CUDA error: CUDA-capable device(s) is/are busy or unavailable"
    assert (told.code, told.values) == ("gpu_unusable", {"torch": torch.__version__, "why": why})


def test_versions_are_those_of_installed_packages_and_import_nothing():
    program = (
        "import sys; from tensorprimat.machine.environment import versions; print(versions()['torch']);"
        "sys.exit('torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (0, torch.__version__)
    assert "no-such-package" not in environment.versions(("no-such-package",))


def test_benchmark_utils_names_a_missing_attribute():
    import benchmark_utils

    assert set(benchmark_utils.__all__) == {"BenchmarkCallback", "detect_platform", "load_results"}
    with pytest.raises(AttributeError, match="no attribute 'BenchmarkCallbacks'"):
        _ = benchmark_utils.BenchmarkCallbacks


@pytest.mark.parametrize(("hip", "requested"), [(None, None), ("6.4.1", "1")])
def test_tf32_is_also_set_in_rocms_own_way(hip, requested, monkeypatch):
    monkeypatch.delenv("HIPBLASLT_ALLOW_TF32", raising=False)
    monkeypatch.setattr(torch.version, "hip", hip)
    before = torch.get_float32_matmul_precision()
    try:
        platform.multiply_float32_in("fp32")
        assert torch.get_float32_matmul_precision() == "highest"
        assert "HIPBLASLT_ALLOW_TF32" not in os.environ
        platform.multiply_float32_in("tf32")
        assert torch.get_float32_matmul_precision() == "high"
        assert os.environ.get("HIPBLASLT_ALLOW_TF32") == requested
    finally:
        torch.set_float32_matmul_precision(before)
        os.environ.pop("HIPBLASLT_ALLOW_TF32", None)
