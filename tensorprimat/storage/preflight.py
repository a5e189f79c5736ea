"""`Preflight`: the best measured rates of one machine, kept per machine and joined to training results.

SI inside (FLOP/s, bytes/s, seconds). "best" is the fastest of several intervals, "typical" their median.
"""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from tensorprimat.core.errors import InputError
from tensorprimat.core.folders import DEFAULT_FOLDER
from tensorprimat.core.quantities import percent, stated_share
from tensorprimat.core.records import Count, Finite, Record, first_fault
from tensorprimat.core.result import GpuInfo
from tensorprimat.facts import catalogue
from tensorprimat.system import regular
from tensorprimat.system.atomic import write_atomically

_LARGEST_BYTES = 2**24  # a record has some kilobytes
COMPARED = "bf16"
"""Precision in which a single GPU is compared with the catalogue."""
PREFLIGHT_FOLDER = "preflight"
"""Subfolder of an output folder that contains preflights."""


class PreflightSpec(Record):
    """Settings of a preflight on the nodes of a cluster: the submitting process writes them, the ranks read them."""

    model: Literal["preflight"] = "preflight"
    """Name of the job, where a training has its model."""
    platform: Literal["nvd", "amd", "cpu"]
    quick: bool
    num_gpus: int
    """Processes of one node, one for each GPU."""
    num_nodes: int
    output_dir: str = str(DEFAULT_FOLDER)


class MatrixRate(Record):
    """A product of two square matrices."""

    precision: str
    size: int
    best_flops_per_second: float
    typical_flops_per_second: float
    peak_flops_per_second: Finite = None
    """Dense peak, from the catalogue."""
    achieved_flops_per_second: Finite = None
    """Best product that others measured on this GPU, from the catalogue."""
    achieved_source: str | None = None


class Bandwidth(Record):
    """A measured bandwidth."""

    kind: Literal["copy", "read", "triad", "host_to_device", "device_to_host"]
    size_bytes: int
    best_bytes_per_second: float
    typical_bytes_per_second: float
    peak_bytes_per_second: Finite = None


class Collective(Record):
    """One collective at one message size, timed by its slowest process."""

    kind: Literal["all_reduce", "all_gather", "reduce_scatter"]
    dtype: str | None = None
    """Type of the numbers, which are summed; None in older records, whose all-reduce took the maximum of float32."""
    size_bytes: int
    seconds: float
    bus_bytes_per_second: float
    """Algorithm bandwidth × share that each link carries: 2(n−1)/n for all-reduce, (n−1)/n else (as in nccl-tests)."""


class DeviceCheck(Record):
    """One GPU of the machine on its own, or one process of several on CPUs, to compare it with the others."""

    index: int
    """Number of the GPU on its node, as the driver counts; of a CPU, the number of the process there."""
    host: str | None = None
    """Node that has it; None in older records."""
    id: str | None = None
    flops_per_second: float
    power_limit_watts: Finite = None
    throttled_by: tuple[str, ...] = ()
    other_processes: int = 0


class NodeLook(Record):
    """The look of one node for other work and changing limits, while the preflight's processes were idle."""

    host: str
    disturbed_by: tuple[str, ...] = ()
    """A sentence for each disturbance; empty if there was none."""


@dataclass(frozen=True, kw_only=True)
class NodeRate:
    """The GPUs of one node, against the median GPU of all nodes."""

    host: str
    gpus: int
    slowest: DeviceCheck
    median_flops_per_second: float
    slowest_share: float
    """Rate of the slowest GPU over that of the median GPU of all nodes."""
    look: NodeLook | None = None
    """None if nobody looked for other work, as in older records of several processes."""


class Preflight(Record):
    """The preflight of one machine: the content of one file."""

    kind: Literal["preflight"] = "preflight"
    schema_version: int = 1
    platform: str
    device: str
    device_name: str | None = None
    device_count: Count = None
    total_memory_gb: Finite = None
    host: str
    gpu_ids: tuple[str, ...] = ()
    torch_version: str | None = None
    tool_version: str | None = None
    timestamp: str
    seconds: Finite = None
    """Duration of the measurement."""
    matmul: tuple[MatrixRate, ...] = ()
    bandwidth: tuple[Bandwidth, ...] = ()
    collectives: tuple[Collective, ...] = ()
    collective_backend: str | None = None
    world_size: int = 1
    launch_seconds: Finite = None
    """Host time to hand one tiny kernel to the device, when nothing waits for it."""
    devices: tuple[DeviceCheck, ...] = ()
    looks: tuple[NodeLook, ...] = ()
    """Of each node; empty in older records."""
    warnings: tuple[str, ...] = ()
    """All of them; those of `looks` name their node if there are several."""

    @property
    def disturbances(self) -> tuple[str, ...]:
        """Return a sentence for everything that disturbed the measurement; it names the node if there are several."""
        several = len(self.looks) > 1
        return tuple(
            f"{look.host}: {sentence}" if several else sentence for look in self.looks for sentence in look.disturbed_by
        )

    def matmul_flops_per_second(self, precision: str) -> float | None:
        """Return the best rate at a precision over all sizes; None where it was not measured."""
        return max((row.best_flops_per_second for row in self.matmul if row.precision == precision), default=None)

    def memory_bytes_per_second(self) -> float | None:
        """Return the best memory bandwidth of any kind on the device."""
        on_device = [row for row in self.bandwidth if row.kind in ("copy", "read", "triad")]
        return max((row.best_bytes_per_second for row in on_device), default=None)

    def nodes(self) -> tuple[NodeRate, ...]:
        """Return each node with its slowest GPU, the slowest node first; none where no GPU was tried alone."""
        groups: dict[str, list[DeviceCheck]] = {}
        for check in sorted(self.devices, key=lambda check: check.flops_per_second):
            groups.setdefault(check.host or self.host, []).append(check)
        looks = {look.host: look for look in self.looks}
        return tuple(
            NodeRate(
                host=host,
                gpus=len(checks),
                slowest=checks[0],
                median_flops_per_second=_median(checks),
                slowest_share=checks[0].flops_per_second / _median(self.devices),
                look=looks.get(host),
            )
            for host, checks in groups.items()
        )

    @property
    def unit(self) -> str:
        """Return the word for one of `devices`."""
        return "process" if self.device == "cpu" else "GPU"

    @property
    def units(self) -> str:
        """Return the word for several of `devices`."""
        return "processes" if self.device == "cpu" else "GPUs"

    def below(self, share: float) -> tuple[str, ...]:
        """Return a sentence for each GPU that reaches less than a share of the median GPU of all nodes.

        A single GPU is compared with the best published product of its kind; without one, a sentence says so.
        """
        if len(self.devices) < 2:
            return self._below_published(share)
        middle = _median(self.devices)
        return tuple(
            f"{check.host or self.host}: {self.unit.lower()} {check.index} reaches "
            f"{percent(check.flops_per_second / middle, 1)} of the median of {len(self.devices)} {self.units}, "
            f"less than {stated_share(share)}"
            for check in self.devices
            if check.flops_per_second < share * middle
        )

    def _below_published(self, share: float) -> tuple[str, ...]:
        rows = [row for row in self.matmul if row.precision == COMPARED and row.achieved_flops_per_second]
        if not rows:
            return (f"{self.host}: no measured {COMPARED} rate can be compared with the published one",)
        reached = max(row.best_flops_per_second / (row.achieved_flops_per_second or 1) for row in rows)
        if reached >= share:
            return ()
        return (
            f"{self.host}: the {self.unit} reaches {percent(reached, 1)} of the best published {COMPARED} rate, "
            f"less than {stated_share(share)}",
        )

    @property
    def machine(self) -> tuple[str | None, str | None, str | None]:
        """Return platform, device and host: equal for whatever was measured on the same machine."""
        return self.platform, self.device_name, self.host


def has_reference(devices: int, device: GpuInfo) -> bool:
    """Return True if `below` can compare: with other devices, or one with the best published product of its kind."""
    gpu = catalogue.find_gpu_of(device)
    published = gpu.achievable_tflops.get(COMPARED) if gpu else None
    return devices > 1 or bool(published and published.value)


def _median(checks: Sequence[DeviceCheck]) -> float:
    return statistics.median(check.flops_per_second for check in checks)


def _file_name(preflight: Preflight) -> str:
    """Return the name of a preflight's file, the same for every preflight of a machine, device and process count."""
    words = [preflight.host, preflight.device_name or preflight.platform, preflight.device]
    if preflight.world_size > 1:
        words.append(f"{preflight.world_size}-processes")
    return "_".join(["preflight", *(re.sub(r"[^A-Za-z0-9]+", "-", word).strip("-") for word in words)]) + ".json"


def save(preflight: Preflight, folder: Path) -> Path:
    """Write a preflight into a folder, under `_file_name`, and return its path. Raises OSError."""
    path = folder / _file_name(preflight)
    write_atomically(path, preflight.model_dump_json(indent=2) + "\n")
    return path


def load(path: Path) -> Preflight:
    """Read a preflight. Raises InputError for any other file."""
    document = regular.json_document(regular.content(path, most_bytes=_LARGEST_BYTES), path, "a preflight")
    if not isinstance(document, dict) or document.get("kind") != "preflight":
        raise InputError("JSON, but not a preflight", path=path)
    try:
        return Preflight.model_validate(document)
    except ValidationError as error:
        raise InputError(first_fault(error), path=path) from error


def kept(folders: Iterable[Path]) -> list[Preflight]:
    """Return every preflight in these folders' `preflight` folders (or in themselves), newest first.

    Those whose processes shared one CPU come last: none of them had the whole CPU.
    """
    found = []
    for folder in folders:
        places = [place for place in (folder, folder / PREFLIGHT_FOLDER) if os.path.isdir(place)]
        for path in [path for place in places for path in place.glob("preflight_*.json")]:
            try:
                found.append(load(path))
            except InputError:  # no figure needs a preflight, so a broken one is ignored
                continue
    return sorted(found, key=lambda one: (one.device != "cpu" or one.world_size == 1, one.timestamp), reverse=True)
