"""Measurement of a machine's best performance, which is kept only if nothing else used the machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tensorprimat.core.errors import InputError, UsageError
from tensorprimat.core.quantities import alternatives
from tensorprimat.core.result import GpuInfo
from tensorprimat.engines import launch, launchers
from tensorprimat.engines.cluster import executors, submission
from tensorprimat.machine import platform
from tensorprimat.storage import preflight as records
from tensorprimat.storage import store
from tensorprimat.system.atomic import write_atomically

if TYPE_CHECKING:
    from tensorprimat.engines.cluster.executors import Cluster
    from tensorprimat.machine.platform import Machine
    from tensorprimat.measure.preflight import OnPart
    from tensorprimat.storage.preflight import Preflight, PreflightSpec


@dataclass(frozen=True, kw_only=True)
class RecordPlace:
    """The folder or file into which a preflight's record is written."""

    folder: Path
    file: Path | None = None
    """File that the user names for the record; None for a file in the folder, named after the machine."""

    def keep(self, found: Preflight) -> Path:
        """Write the record and return its path. Raises OSError."""
        if self.file is None:
            return records.save(found, self.folder / records.PREFLIGHT_FOLDER)
        write_atomically(self.file, found.model_dump_json(indent=2))
        return self.file


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a preflight."""

    found: Preflight
    path: Path | None
    """File of the record; None if it was not kept, because other work used the machine."""
    slow: tuple[str, ...] = ()
    """A sentence for each GPU below the requested share of the median (a single GPU: of the best published rate)."""

    @property
    def failed(self) -> bool:
        """Return True if the figures were not kept or a GPU is too slow."""
        return self.path is None or bool(self.slow)


def device_of(device: str, machine: Machine) -> str:
    """Return torch's name of the device to measure, cpu or cuda:N. Raises UsageError if it does not exist."""
    chosen = ("cpu" if machine.platform == "cpu" else "cuda") if device == "auto" else device
    found = platform.existing_device(chosen, machine, flag_value=device, own_number=os.environ.get("LOCAL_RANK", "0"))
    if ":" in chosen and launchers.connected_processes(os.environ) > 1:
        raise UsageError(f"--device {device}: each process that torchrun starts takes a GPU of its own; --device cuda")
    return found


def _check_share(least_share: float | None, devices: int, device: GpuInfo) -> None:
    """Raise UsageError for a share if there is neither another device nor a published rate to compare with."""
    if least_share is not None and not records.has_reference(devices, device):
        raise UsageError(
            "--fail-below: there is one device here and no published rate of it to compare with; leave it out, or "
            "measure several devices"
        )


def run_preflight(
    device: str, place: RecordPlace, *, quick: bool, keep_noisy: bool, least_share: float | None, on_part: OnPart
) -> Outcome | None:
    """Measure this machine and keep the record; return None on every rank but the first.

    keep_noisy: keep the record even if something disturbed the measurement on a node. least_share: share (0 to 1) of
    the median GPU's rate that each GPU must reach; for a single GPU, share of the best published rate. Raises
    UsageError for a device that does not exist, and for a least_share without another device or a published rate to
    compare with.
    """
    machine = platform.detect_platform(cpu=device == "cpu")
    chosen = device_of(device, machine)
    here = 1 if chosen == "cpu" else machine.gpu_info.device_count or 1
    _check_share(least_share, max(here, launchers.connected_processes(os.environ)), machine.gpu_info)
    from tensorprimat.measure import watch

    found = watch.measure_watched(machine, chosen, quick=quick, on_part=on_part)
    return None if found is None else _outcome(found, place, keep_noisy=keep_noisy, least_share=least_share)


def _outcome(found: Preflight, place: RecordPlace, *, keep_noisy: bool, least_share: float | None) -> Outcome:
    """Keep a record, unless something disturbed the measurement, and compare its GPUs."""
    path = place.keep(found) if keep_noisy or not found.disturbances else None
    slow = () if path is None or least_share is None else found.below(least_share)
    return Outcome(found=found, path=path, slow=slow)


RANK_MODULE = "tensorprimat.measure.watch"
"""Module that measures in the ranks of a job."""


def spec_of_preflight(
    device: str, cluster: Cluster, place: RecordPlace, *, quick: bool, num_gpus: int | None, nodes: int, dry_run: bool
) -> PreflightSpec | None:
    """Return the preflight of a cluster's nodes; None without --executor, where this machine is measured.

    Raises UsageError for a wrong or clashing flag, and for processes of srun that would disturb each other.
    """
    _check_ranks(cluster, place)
    for flag, value in (("--nodes", nodes), ("--num-gpus", num_gpus)):
        if value is not None and value < 1:
            raise UsageError(f"{flag} {value}: must be at least 1")
    if cluster.executor and cluster.executor not in TAKEN:
        raise UsageError(f"--executor {cluster.executor}: preflight runs with {alternatives(TAKEN)} only")
    executors.check_cluster(cluster, nodes=nodes, folder=place.folder, dry_run=dry_run, command="preflight")
    if not cluster.executor:
        if num_gpus is not None:
            raise UsageError(f"--num-gpus {num_gpus}: needs --executor, or torchrun, which starts a process for each")
        if dry_run:
            raise UsageError("--dry-run: needs --executor, whose job it prints; --quick measures here in seconds")
        return None
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"--device {device}: with --executor it must be auto, cpu or cuda")
    node = executors.node_machine(cluster, num_gpus, platform.detect_platform(cpu=device == "cpu"))
    if device == "cuda" and node.platform == "cpu":
        raise UsageError("--device cuda: this machine has no GPU; --gpu NAME names the GPU of each node")
    own = 1 if node.platform == "cpu" else node.gpu_info.device_count or 1
    return records.PreflightSpec(platform=node.platform, quick=quick, num_gpus=num_gpus or own, num_nodes=nodes)


def _check_ranks(cluster: Cluster, place: RecordPlace) -> None:
    """Raise UsageError if a launcher started several processes that would not measure together.

    torchrun connects its processes. srun does not: one process of each node measures its node, and several would
    measure the same devices at the same time.
    """
    rank = launchers.rank_of(os.environ)
    if rank is None or rank.world_size == 1:
        return
    if cluster.executor:
        raise launchers.rank_refusal(
            f"--executor {cluster.executor}", rank, because="whose processes would each submit the job"
        )
    if rank.launcher == "srun" and rank.world_size > rank.nodes:
        because = "whose processes on one node would measure the same devices at the same time"
        raise launchers.rank_refusal("several processes per node", rank, because=f"{because}; use torchrun")
    if rank.launcher == "srun" and place.file is not None:
        raise launchers.rank_refusal(
            f"--output {place.file}", rank, because="whose processes would all write it; name a folder"
        )


TAKEN = ("slurm", "local")
"""Executors that a preflight can use, because their ranks see this machine's files."""


def preflight_script(spec: PreflightSpec, cluster: Cluster, place: RecordPlace) -> str:
    """Return the script that a preflight would submit. Raises RunError if NeMo-Run cannot write it."""
    return submission.executor_script(spec, cluster, module=RANK_MODULE, folder=place.folder / "cluster" / "dry_run")


def run_on_cluster(
    spec: PreflightSpec,
    cluster: Cluster,
    place: RecordPlace,
    *,
    keep_noisy: bool,
    least_share: float | None,
    on_line: Callable[[str], None],
) -> Outcome:
    """Measure every node in one job and keep the record. Raises RunError where the job fails."""
    _check_share(least_share, spec.num_gpus * spec.num_nodes, GpuInfo(device_name=cluster.gpu))
    folder = place.folder / "cluster" / f"preflight_{store.new_stamp()}"
    submit = submission.submit_command(cluster, folder)
    with launch.engine_process(spec, module=RANK_MODULE, wrapping=submit) as process:
        code, interrupted = launch.supervise(process, on_line)
        if interrupted or code:
            lines = process.stderr_file.read_text(encoding="utf-8", errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "the job printed nothing")
            raise launch.cluster_error(process.stderr_file, "interrupted" if interrupted else last)
        try:
            found = records.load(process.result_file)
        except InputError as error:
            why = f"the preflight left no record: {error.what}"
            raise launch.cluster_error(process.stderr_file, why) from error
    return _outcome(found, place, keep_noisy=keep_noisy, least_share=least_share)
