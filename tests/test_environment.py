"""The software that a result records: commits of packages from git, and the container."""

import json
import sys
from importlib import metadata

import pytest
from each import in_each
from replay import Replay

from tensorprimat.machine import environment
from tensorprimat.machine.device import DeviceReading

COMMIT = "0123456789" * 4


def installed(folder, origin):
    """Return a package as pip leaves it, with its record of where it came from (PEP 610)."""
    info = folder / "megatron_core-0.15.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: megatron-core\nVersion: 0.15.3\n")
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin))
    return metadata.PathDistribution(info)


def recorded(monkeypatch, distribution):
    monkeypatch.setattr(environment, "find_package", lambda _: distribution)
    return environment.versions(["megatron-core"])["megatron-core"]


@in_each(
    ("origin", "version"),
    [
        (None, "0.15.3"),
        ({"url": "https://github.com/x", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}, "0.15.3 (git 012345678901)"),
        ({"url": "file:///somewhere", "dir_info": {"editable": True}}, "0.15.3"),
        ([], "0.15.3"),
    ],
)
def test_a_package_from_git_is_recorded_with_its_commit(monkeypatch, tmp_path, origin, version):
    assert recorded(monkeypatch, installed(tmp_path, origin)) == version


@in_each("content", [None, "", "Metadata-Version: 2.1\nName: megatron-core\n"])
def test_metadata_that_a_removed_package_left_behind_hide_no_version(monkeypatch, tmp_path, content):
    left, good = tmp_path / "left", tmp_path / "good"
    good.mkdir()
    installed(good, None)
    info = left / "megatron_core-0.14.0.dist-info"
    info.mkdir(parents=True)
    if content is not None:
        (info / "METADATA").write_text(content)
    monkeypatch.syspath_prepend(left)
    assert "megatron-core" not in environment.versions(["megatron-core"])
    monkeypatch.setattr(sys, "path", [*sys.path, str(good)])
    assert environment.versions(["megatron-core"])["megatron-core"] == "0.15.3"


@pytest.mark.parametrize("packed", [False, True])
def test_a_package_that_is_worked_on_in_place_has_the_commit_of_its_working_tree(monkeypatch, tmp_path, packed):
    tree = tmp_path / "Megatron LM"
    (tree / ".git" / "refs" / "heads").mkdir(parents=True)
    (tree / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    if packed:
        (tree / ".git" / "packed-refs").write_text(f"# pack-refs\n{'f' * 40} refs/heads/my\n{COMMIT} refs/heads/main\n")
    else:
        (tree / ".git" / "refs" / "heads" / "main").write_text(f"{COMMIT}\n")
    origin = {"url": tree.as_uri(), "dir_info": {"editable": True}}
    assert recorded(monkeypatch, installed(tmp_path, origin)) == "0.15.3 (git 012345678901)"
    (tree / "scripts").mkdir()
    monkeypatch.chdir(tree / "scripts")
    assert environment.commit_here() == "012345678901"


@in_each(
    ("file", "variables", "image"),
    [
        (None, {}, None),
        ('engine="podman-5"\nimage="rocm/primus:v26.1"\nimageid="ab"\n', {}, "rocm/primus:v26.1"),
        (None, {"APPTAINER_CONTAINER": "/images/nemo_25.11.sif"}, "nemo_25.11.sif"),
        (None, {"NVIDIA_PRODUCT_NAME": "PyTorch", "NVIDIA_PYTORCH_VERSION": "25.10"}, "NVIDIA PyTorch 25.10"),
        (None, {"NVIDIA_PRODUCT_NAME": "PyTorch"}, None),
    ],
)
def test_the_container_is_what_its_maker_states(monkeypatch, tmp_path, file, variables, image):
    stated = tmp_path / ".containerenv"
    if file is not None:
        stated.write_text(file)
    monkeypatch.setattr(environment, "_IMAGE_FILE", stated)
    assert environment.container(variables) == image


def test_the_driver_and_the_communication_library_of_a_gpu_are_recorded(monkeypatch):
    torch = pytest.importorskip("torch")
    devices = [Replay([DeviceReading()], id=name) for name in "ab"]
    for device in devices:
        device.driver = "NVIDIA 580.95.05"
    monkeypatch.setattr(environment.telemetry, "open_devices", lambda _ids: devices)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 3))
    assert environment.gpu_software("nvd", ["a", "b"]) == {"GPU driver": "NVIDIA 580.95.05", "NCCL": "2.27.3"}
    assert environment.gpu_software("amd", []) == {"GPU driver": "NVIDIA 580.95.05", "RCCL": "2.27.3"}
    assert environment.gpu_software("cpu", []) == {}


def test_the_links_and_numa_nodes_of_the_gpus_are_recorded_where_linux_states_them(tmp_path, monkeypatch):
    devices = [Replay([DeviceReading()], id=name) for name in "abc"]
    for device, bus, node in zip(devices, ("0000:19:00.0", "0000:9a:00.0", None), ("0", "1", ""), strict=True):
        device.bus = bus
        if bus:
            (tmp_path / bus).mkdir()
            for name, text in (("max_link_speed", "32.0 GT/s PCIe"), ("max_link_width", "16"), ("numa_node", node)):
                (tmp_path / bus / name).write_text(f"{text}\n")
    monkeypatch.setattr(environment.telemetry, "open_devices", lambda _ids: devices)
    monkeypatch.setattr(environment, "_PCI_DEVICES", tmp_path)
    assert environment.gpu_places() == {"PCIe": "32.0 GT/s x16", "NUMA nodes of the GPUs": "0, 1"}
    monkeypatch.setattr(environment, "_PCI_DEVICES", tmp_path / "elsewhere")
    assert environment.gpu_places() == {}


@in_each(
    "name",
    [
        "CUDA_DEVICE_MAX_CONNECTIONS", "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE", "CUDNN_LOGLEVEL_DBG",
        "NCCL_ALGO", "NCCL_TOPO_FILE", "NCCL_TUNER_CONFIG_FILE", "RCCL_MSCCL_ENABLE", "NVTE_FUSED_ATTN",
        "HSA_NO_SCRATCH_RECLAIM", "GPU_MAX_HW_QUEUES", "HIPBLASLT_ALLOW_TF32", "ROCBLAS_LAYER", "MIOPEN_FIND_MODE",
        "PRIMUS_TURBO_GEMM_BACKEND", "PATCH_TE_FLASH_ATTN", "UCX_TLS", "FI_PROVIDER",
        "TRITON_HIP_USE_ASYNC_COPY", "TORCH_NCCL_HIGH_PRIORITY", "PYTORCH_CUDA_ALLOC_CONF",
        "TORCHDYNAMO_DISABLE", "AMD_SERIALIZE_KERNEL", "FLASH_ATTENTION_TRITON_AMD_ENABLE", "KMP_AFFINITY",
        "DEBUG_CLR_GRAPH_PACKET_CAPTURE",
    ],
)  # fmt: skip
def test_a_variable_that_changes_speed_is_recorded(name):
    assert environment.speed_variables({name: "1"}) == {name: "1"}


@in_each("name", ["CUDA_HOME", "NCCL_DEBUG_FILE", "TRITON_CACHE_DIR", "CUDA_VISIBLE_DEVICES", "HOME"])
def test_a_variable_that_states_a_path_or_selects_devices_is_not_recorded(name):
    assert environment.speed_variables({name: "1"}) == {}
