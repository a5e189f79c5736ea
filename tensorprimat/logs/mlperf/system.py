"""The system of an MLPerf run: by its log, and by the submission's description if it is stored with the log.

A submission keeps results/SYSTEM/BENCHMARK/result_0.txt and systems/SYSTEM.json (`number_of_nodes`,
`accelerators_per_node`, `accelerator_model_name`; numbers are text in most files). The description was checked by the
round, and logs have been seen that name another GPU, so it wins.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tensorprimat.core.errors import InputError
from tensorprimat.core.notices import Notice
from tensorprimat.core.quantities import counted, listed
from tensorprimat.core.settings import MODEL_PARALLEL
from tensorprimat.facts import devices
from tensorprimat.logs import fields
from tensorprimat.logs.format import Reading
from tensorprimat.system import regular
from tensorprimat.system.safe_text import one_line

_LARGEST_BYTES = 2**20  # a description has a few kilobytes
LONGEST_FACT = 200  # characters; software stacks of published rounds have up to 111
COPY_SIZES = (1, 2, 4, 8, 16, 32, 64)  # possible GPUs per model copy, where the log states none
FOLDERS_ABOVE = 5  # result_0.txt, or power/result_0/node_0.txt, below results/SYSTEM/BENCHMARK

_PLATFORM = re.compile(r"(?:(?P<nodes>\d{1,5})x)?(?P<device>\S.*)")
_ACCELERATOR = re.compile(
    r"(?<![A-WYZa-wyz])(?P<gpu>(?:(?:GB|GH|MI|H|B)\d{2,3}[A-Z]{0,2}|A(?:10|16|30|40|100|800)|L(?:4|20|40)S?|V100)(?![A-Za-z0-9])"
    r"(?:[-_](?:SXM\d?|PCIe|NVL|OAM|\d{2,3}GB)){0,3})|TPU|Gaudi|Trainium|\bHL-\d",
    re.IGNORECASE,
)
"""A name of an accelerator in that of a system, as H100-SXM-80GB in XE9680x8H100-SXM-80GB; D74H-7U has none."""
_CONFIG_FILE = re.compile(r"_(?P<nodes>\d{1,5})x(?P<gpus>\d{1,3})x\d{1,5}(?:_|\.sh)")
"""`config_MI355X_1x8x1.sh`: nodes × GPUs of a node × …"""
_WORLD_SIZE = re.compile(r"\bslurm2pytorch: .{0,200}\bWORLD_SIZE=(\d{1,6})\b")
SYSTEM_MARK = ":::SYSJSON "
_MODEL_NAME = re.compile(r"\b(?:GB|GH|MI|H|A|B|L|V)\d{2,3}[A-Z]?\b")


@dataclass(frozen=True, kw_only=True)
class System:
    """The content of a system description; None for a field that it leaves out."""

    file: str
    device: str | None
    nodes: int | None
    gpus_per_node: int | None

    @property
    def gpus(self) -> int | None:
        """Return the number of accelerators in all nodes, or None if unknown."""
        return self.nodes * self.gpus_per_node if self.nodes and self.gpus_per_node else None


@dataclass(kw_only=True)
class LaunchLines:
    """Facts in the lines that NVIDIA's launcher prints between the events, and the highest task label of srun."""

    system: System | None = None
    """The system in the line `:::SYSJSON {…}`, which counts every GPU of a node, used or not."""
    world_sizes: set[int] = field(default_factory=set)
    last_task: int = 0

    def take(self, text: str, task: int | None) -> None:
        """Take in one line of the log. task: its label, as `srun -l` prints it."""
        self.last_task = max(self.last_task, task or 0)
        if match := _WORLD_SIZE.search(text):
            self.world_sizes.add(int(match[1]))
        if self.system is None and (at := text.find(SYSTEM_MARK)) >= 0:
            try:
                stated, _ = json.JSONDecoder().raw_decode(text, at + len(SYSTEM_MARK))
            except (ValueError, RecursionError):
                return
            if isinstance(stated, dict):
                self.system = described("", stated)


def describe_system(
    reading: Reading, settings: Mapping[str, Any], *, ranks: int, path: Path, launched: LaunchLines
) -> None:
    """Fill in device, nodes and GPUs from the log and the submission's description; warn if they contradict."""
    _take_platform(reading, settings)
    system = _find(path)
    if system is not None:
        _take_description(reading, system)
    if "num_gpus" not in reading.training_config:
        _take_counts(reading, settings, ranks)
    if system is None:
        _take_launch(reading, launched)
    platform = settings.get("submission_platform")
    if "device_name" not in reading.gpu_info and isinstance(platform, str) and platform.strip():
        kind = "a placeholder" if "PLACEHOLDER" in platform else "the name of a system and not of a GPU"
        reading.warnings.append(Notice("device_unnamed", "gpu_info", platform=platform, kind=kind))


def _find(path: Path) -> System | None:
    """Return the description that belongs to a result file, or None without a readable one."""
    folders = list(path.absolute().parents)[: FOLDERS_ABOVE + 1]
    for system, results in pairwise(folders):
        if results.name == "results":
            path = results.parent / "systems" / f"{system.name}.json"
            stated = json_object(path)
            return described(path.name, stated) if isinstance(stated, dict) else None
    return None


def json_object(path: Path) -> dict[str, Any] | str:
    """Return the JSON object in a file of a submission, or the reason why there is none."""
    try:
        content = json.loads(regular.content(path, most_bytes=_LARGEST_BYTES).decode("utf-8-sig", "replace"))
    except InputError as error:
        return error.what
    except (ValueError, RecursionError):
        return "no JSON"
    return content if isinstance(content, dict) else "no JSON object"


def described(name: str, stated: Mapping[str, Any]) -> System:
    """Return the fields of a system description. name: of its file."""
    return System(
        file=f"systems/{name}",
        device=fact(stated.get("accelerator_model_name")),
        nodes=fields.whole(str(stated.get("number_of_nodes")).strip()),
        gpus_per_node=fields.whole(str(stated.get("accelerators_per_node")).strip()),
    )


def fact(value: object) -> str | None:
    """Return a text fact on one line, cut with … after LONGEST_FACT; None for an empty one and for N/A."""
    return one_line(value, longest=LONGEST_FACT) or None if isinstance(value, str) and "N/A" not in value else None


def _take_platform(reading: Reading, settings: Mapping[str, Any]) -> None:
    platform = settings.get("submission_platform")
    match = _PLATFORM.fullmatch(platform.strip()) if isinstance(platform, str) else None
    if match and (device := _device_in(match["device"])):
        reading.gpu_info["device_name"] = device
    if match and match["nodes"]:
        reading.training_config["num_nodes"] = int(match["nodes"])


def _device_in(platform: str) -> str | None:
    """Return the device that the name of a system contains, or the name itself where it is that of a device.

    >>> _device_in("XE9680x8H100-SXM-80GB"), _device_in("NVIDIA DGX H100"), _device_in("D74H-7U")
    ('H100-SXM-80GB', 'NVIDIA DGX H100', None)
    """
    found = _ACCELERATOR.search(platform)
    if found is None:
        return None
    if not found["gpu"] or devices.find_name(platform) == platform:
        return platform
    gpu = found["gpu"].replace("_", "-")
    return gpu.upper() if gpu.islower() else gpu


def _take_description(reading: Reading, system: System) -> None:
    of_log, config = reading.gpu_info.get("device_name"), reading.training_config
    if system.device is not None:
        if of_log is not None and _differ(of_log, system.device):
            reading.warnings.append(
                Notice("device_of_description", "gpu_info", of_log=of_log, file=system.file, device=system.device)
            )
        reading.gpu_info["device_name"] = system.device
        reading.assumed["device_name"] = system.file
    nodes = config.get("num_nodes")
    if system.nodes is not None:
        if nodes is not None and nodes != system.nodes:
            reading.warnings.append(
                Notice("nodes_of_description", "num_nodes", nodes=nodes, file=system.file, described=system.nodes)
            )
        config["num_nodes"] = system.nodes
    if system.gpus is not None:
        config["num_gpus"] = system.gpus
        reading.assumed["num_gpus"] = (
            f"{system.file}: {counted(system.nodes or 0, 'node')} × {counted(system.gpus_per_node or 0, 'accelerator')}"
        )


def _take_launch(reading: Reading, launched: LaunchLines) -> None:
    """Use the launcher's values where neither events nor a description state them.

    The SYSJSON line counts GPUs that were not used in some files (8 where 4 ran), so its count needs as many tasks.
    """
    system, config = launched.system, reading.training_config
    device = system.device if system else None
    if "device_name" not in reading.gpu_info and device and "No devices" not in device:
        reading.gpu_info["device_name"] = device
        reading.assumed["device_name"] = "SYSJSON line of the log"
    if "num_gpus" in config or any(Notice.of(one).field == "num_gpus" for one in reading.warnings):
        return
    if len(launched.world_sizes) > 1:
        stated = listed(map(str, sorted(launched.world_sizes)))
        reading.warnings.append(Notice("processes_unclear", "num_gpus", stated=stated))
    elif launched.world_sizes:
        (config["num_gpus"],) = launched.world_sizes
        reading.assumed["num_gpus"] = "WORLD_SIZE of the launcher, one GPU for each process"
    elif system and system.gpus and system.gpus == launched.last_task + 1:
        config["num_gpus"] = system.gpus
        reading.assumed["num_gpus"] = "SYSJSON line of the log, which agrees with the number of tasks"


def _differ(logged: str, described: str) -> bool:
    """Return True if two names are of two devices, by the model numbers in them (GB200, MI355X).

    >>> _differ("NVIDIA GB200", "NVIDIA Blackwell Ultra GPU (GB300)"), _differ("XE9680x8H200-SXM", "NVIDIA H200")
    (True, False)
    """
    ours, theirs = ({*_MODEL_NAME.findall(name.upper().replace("X", " "))} for name in (logged, described))
    return bool(ours and theirs) and not ours & theirs


def _take_counts(reading: Reading, settings: Mapping[str, Any], ranks: int) -> None:
    """Take the number of GPUs from the configuration file's name, or from the ranks that wrote init_start."""
    config = reading.training_config
    name = settings.get("config_filename")
    match = _CONFIG_FILE.search(name) if isinstance(name, str) else None
    stated = int(match["nodes"]) * int(match["gpus"]) if match else None
    if ranks > 1:
        contradiction = _contradiction(config, stated, ranks)
        if contradiction is None:
            config["num_gpus"] = ranks
            reading.assumed["num_gpus"] = f"{ranks} ranks that wrote init_start, one for each GPU"
        else:
            reading.warnings.append(Notice("ranks_contradict", "num_gpus", ranks=ranks, contradiction=contradiction))
    elif stated:
        config["num_gpus"] = stated
        reading.assumed["num_gpus"] = f"config_filename {name}"


def _contradiction(config: Mapping[str, Any], stated: int | None, ranks: int) -> str | None:
    """Return evidence in the log against one GPU for each rank, or None."""
    replica = math.prod(config.get(name, 1) for name in MODEL_PARALLEL)
    if stated is not None and stated != ranks:
        return f"config_filename states {stated} GPUs"
    if config.get("num_nodes") and ranks % config["num_nodes"]:
        return f"they do not divide among {config['num_nodes']} nodes"
    if ranks % replica:
        return f"a model copy takes {replica} GPUs"
    batch, replicas = config.get("global_batch_size"), ranks // replica
    copies = [replicas // size for size in COPY_SIZES if replicas % size == 0]
    if batch and all(batch % number for number in copies):
        return f"a batch of {batch} does not divide among them"
    return None
