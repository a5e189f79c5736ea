"""The software of a run: versions and commits of packages, the container, environment variables that change speed."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform as host_platform
import re
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tensorprimat.core.result import Platform
from tensorprimat.machine import telemetry
from tensorprimat.system.packages import find_package
from tensorprimat.system.processes import first_line

_PACKAGES = (
    "torch", "lightning", "transformers", "nemo_toolkit", "nemo_run", "megatron-core", "transformer_engine", "torchao",
    "flash-attn", "triton", "numpy",
)  # fmt: skip
_SETTINGS = (
    "CUDA_", "CUBLAS", "CUDNN_", "NVIDIA_TF32", "NCCL_", "NVSHMEM_", "NVTE_", "HIP_", "HSA_", "ROCR_", "RCCL_",
    "GPU_MAX_HW_QUEUES", "HIPBLASLT_", "ROCBLAS_", "MIOPEN_", "PRIMUS_TURBO_", "PATCH_TE_FLASH_ATTN",
    "USE_ROCM_AITER", "UCX_", "FI_", "PYTORCH_", "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "TRITON_",
    "FLASH_ATTENTION_", "AMD_", "DEBUG_CLR_", "OMP_NUM_THREADS", "KMP_", "MKL_",
)  # fmt: skip
"""Prefixes of environment variables that change how fast training runs."""
COMPILING_OFF = ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE")
"""Variables whose value "1" makes torch.compile return the model uncompiled."""
CHOSEN_FILES = ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_CONF_FILE", "NCCL_TUNER_CONFIG_FILE")
"""Variables with paths that change how fast training runs: NCCL reads its topology and tuning from these files."""
NO_SETTINGS = ("_PATH", "_HOME", "_DIR", "_FILE", "_ROOT", "_CACHE", "_VERSION", "VISIBLE_DEVICES", "_VISIBLE_DEVICES")
"""Suffixes of variables that only state a path, the release of an image, or the GPUs of a job."""


CONTAINER = "container"
"""Key of the container's image among the versions."""
GPU_DRIVER = "GPU driver"
"""Key of the driver among the versions."""
_PCI_DEVICES = Path("/sys/bus/pci/devices")
_IMAGE_FILE = Path("/run/.containerenv")
_IMAGE_PATHS = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
_COMMIT_DIGITS = 12
_LARGEST_GIT_FILE = 2**24  # characters; packed-refs of NeMo has 2 MB


def versions(packages: Iterable[str] = _PACKAGES) -> dict[str, str]:
    """Return the versions of Python, of the installed packages and of the container, by name; nothing is imported.

    A package that was installed from a git repository has its commit after its version.
    """
    found = {"python": host_platform.python_version()}
    for package in packages:
        if (installed := find_package(package)) is not None:
            commit = _commit_of(installed)
            found[package] = installed.version + (f" (git {commit})" if commit else "")
    return found | ({CONTAINER: image} if (image := container(os.environ)) else {})


def gpu_driver(gpu_ids: Iterable[str] = ()) -> dict[str, str]:
    """Return the driver of these GPUs (empty: of all GPUs) under the key "GPU driver"; {} where no driver answers."""
    drivers = {device.driver: None for device in telemetry.open_devices(gpu_ids) if device.driver}
    return {GPU_DRIVER: ", ".join(drivers)} if drivers else {}


def gpu_places(gpu_ids: Iterable[str] = ()) -> dict[str, str]:
    """Return the PCIe links and the NUMA nodes of these GPUs (empty: of all GPUs), as Linux states them, by name."""
    links, nodes = dict[str, None](), dict[str, None]()
    for device in telemetry.open_devices(gpu_ids):
        speed, width, node = (
            first_line(_PCI_DEVICES / (device.bus or "") / name)
            for name in ("max_link_speed", "max_link_width", "numa_node")
        )
        if speed and width:
            links[f"{speed.removesuffix(' PCIe')} x{width}"] = None
        if node and node != "-1":
            nodes[node] = None
    found = {"PCIe": links, "NUMA nodes of the GPUs": nodes}
    return {name: ", ".join(values) for name, values in found.items() if values}


def gpu_software(platform: Platform, gpu_ids: Iterable[str]) -> dict[str, str]:
    """Return the versions of the driver and of torch's NCCL or RCCL, and the places of the GPUs; {} on a CPU.

    Imports torch.
    """
    if platform == "cpu":
        return {}
    library = {}
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.distributed.is_nccl_available():
            library["RCCL" if platform == "amd" else "NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    return {**gpu_driver(gpu_ids), **library, **gpu_places(gpu_ids)}


def container(variables: Mapping[str, str]) -> str | None:
    """Return the image of this container, as Podman, Apptainer or NVIDIA's images state it; None if unknown."""
    with contextlib.suppress(OSError):
        if stated := re.search(r'^image="([^"\n]+)"', _IMAGE_FILE.read_text(errors="replace"), re.MULTILINE):
            return stated[1]
    path = next((variables[name] for name in _IMAGE_PATHS if variables.get(name)), None)
    if path:
        return Path(path).name
    product = variables.get("NVIDIA_PRODUCT_NAME")
    release = product and variables.get(f"NVIDIA_{product.upper().replace(' ', '_')}_VERSION")
    return f"NVIDIA {product} {release}" if release else None


def _commit_of(installed: metadata.Distribution) -> str | None:
    """Return the commit from which a package was installed (PEP 610); None if it comes from a registry."""
    try:
        origin = json.loads(installed.read_text("direct_url.json") or "{}")
    except (OSError, ValueError):
        return None
    if not isinstance(origin, dict):
        return None
    if stated := (origin.get("vcs_info") or {}).get("commit_id"):
        return str(stated)[:_COMMIT_DIGITS]
    if not (origin.get("dir_info") or {}).get("editable"):
        return None
    return git_commit(Path(unquote(urlsplit(str(origin.get("url"))).path)))


def commit_here() -> str | None:
    """Return the commit of the nearest repository that contains the working folder; None outside of one."""
    try:
        folder = Path.cwd()
    except OSError:  # it was removed
        return None
    return next((git_commit(one) for one in (folder, *folder.parents) if os.path.exists(one / ".git")), None)


def git_commit(folder: Path) -> str | None:
    """Return the first digits of the commit that a working tree has checked out; None where that cannot be read.

    It reads git's files, because git refuses to answer in a folder of another user, which containers often have.
    """
    try:
        place = folder / ".git"
        if os.path.isfile(place):  # a worktree or a submodule
            place = folder / place.read_text().removeprefix("gitdir:").strip()
        head = (place / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return _digits(head)
        reference = head.removeprefix("ref: ")
        common = place / "commondir"
        shared = place / common.read_text().strip() if os.path.isfile(common) else place
        if os.path.isfile(shared / reference):
            return _digits((shared / reference).read_text())
        packed = (shared / "packed-refs").read_text()[:_LARGEST_GIT_FILE]
    except (OSError, UnicodeDecodeError):
        return None
    return _digits(next((line for line in packed.splitlines() if line.endswith(f" {reference}")), ""))


def compiling_disabled() -> str | None:
    """Return the environment variable that turns torch.compile off, as "NAME=1"; None if none does."""
    return next((f"{name}=1" for name in COMPILING_OFF if os.environ.get(name) == "1"), None)


def has_fused_norm(device_type: str) -> bool:
    """Return True if torch has one kernel for RMS norm on this kind of device (CUDA and ROCm from torch 2.9 on).

    Elsewhere torch.nn.RMSNorm is composed of several operations. Without torch, return True for every GPU.
    """
    if importlib.util.find_spec("torch") is None:
        return device_type != "cpu"
    import torch

    known = device_type == "cuda" and hasattr(torch.ops.aten, "_fused_rms_norm")
    return known and torch._C._dispatch_has_kernel_for_dispatch_key("aten::_fused_rms_norm", "CUDA")


def _digits(text: str) -> str | None:
    found = re.match(r"[0-9a-f]{40}", text)
    return found[0][:_COMMIT_DIGITS] if found else None


def speed_variables(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return those of the environment variables that change speed, by name."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if name in CHOSEN_FILES or (name.startswith(_SETTINGS) and not name.endswith(NO_SETTINGS))
    }
