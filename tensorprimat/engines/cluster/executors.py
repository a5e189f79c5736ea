"""`--executor local|slurm|skypilot|kubernetes|docker`: ranks that NeMo-Run starts with torchrun, here or elsewhere.

This module holds the flags and the checks before a job is submitted; `nemo_run` makes executors of NeMo-Run from them,
and `submission` is the process that submits one run, follows it and brings its result back.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorprimat.core.errors import UsageError
from tensorprimat.core.quantities import alternatives, listed
from tensorprimat.core.records import Record
from tensorprimat.core.result import GpuInfo, Platform
from tensorprimat.core.spec import RunSpec
from tensorprimat.core.units import GB
from tensorprimat.engines import registry
from tensorprimat.engines.choice import Obstacle, Plan, in_order
from tensorprimat.engines.registry import ENGINES, NVIDIA_ORDER, OWN, importable
from tensorprimat.facts import catalogue
from tensorprimat.machine.platform import PLATFORM_SPELLINGS, Machine
from tensorprimat.storage.preflight import PreflightSpec
from tensorprimat.system import regular

OPTION = "executor"
"""Option of a RunSpec: the value of --executor, if an executor starts its ranks."""
TRAINS_THERE = tuple(name for name in NVIDIA_ORDER if ENGINES[name].under_executor)
"""Engines whose ranks an executor can start, in the order in which `auto` tries them."""
TIME_LIMIT = "01:00:00"  # of a Slurm job without --time
NODE = "node"  # host name of a node that is not known yet
NEMO_RUN = "pip install 'nemo_run==0.11.1' 'leptonai<0.28' (newer leptonai breaks its import)"
WITHOUT = {
    "run": "or start the ranks yourself: torchrun or srun … -m tensorprimat run",
    "preflight": "or start the ranks yourself: torchrun … -m tensorprimat preflight",
}
"""Command → advice for use without an executor."""

JobSpec = RunSpec | PreflightSpec
"""Spec of a job's work. An executor uses its model, platform and numbers of nodes and GPUs."""


class Cluster(Record):
    """The values of --executor and its flags; a field is None if its flag was not used."""

    executor: str = ""
    """One of EXECUTORS; "" if this program starts the ranks itself."""
    account: str | None = None
    partition: str | None = None
    time: str | None = None
    """Slurm's time limit: minutes, HH:MM:SS or D-HH:MM:SS."""
    container_image: str | None = None
    container_mounts: tuple[str, ...] = ()
    """SRC:DST or SRC:DST:OPTION, as the executor's own tool reads them."""
    gpu: str | None = None
    """Name of each node's GPUs; None if the nodes are like this machine."""
    infra: str | None = None
    namespace: str | None = None
    volume_claim: str | None = None

    @property
    def own_packages(self) -> bool:
        """Return True if ranks use the packages of an image or a rented machine, which are not known here."""
        return self.container_image is not None or self.executor == "skypilot"

    @property
    def flags_used(self) -> dict[str, object]:
        """Return the values of the flags that the user set, by field."""
        return {name: value for name, value in self.model_dump(exclude={"executor"}).items() if value}


@dataclass(frozen=True, kw_only=True)
class Executor:
    """One row of EXECUTORS."""

    title: str
    """Name of its jobs in messages."""
    takes: tuple[str, ...] = ()
    """Fields of Cluster that it accepts."""
    needs: tuple[str, ...] = ()
    """Fields of Cluster that it requires."""
    several_nodes: bool = True
    packages: tuple[str, ...] = ("nemo_run",)
    install: str = NEMO_RUN
    program: str | None = None
    """Program on this machine that submits its jobs; None without one."""


EXECUTORS = {
    "local": Executor(title="local run", several_nodes=False),
    "slurm": Executor(
        title="Slurm job",
        takes=("gpu", "account", "partition", "time", "container_image", "container_mounts"),
        program="sbatch",
    ),
    "skypilot": Executor(
        title="SkyPilot job",
        takes=("gpu", "infra", "container_image", "container_mounts"),
        needs=("gpu",),  # it rents the GPU that --gpu names
        packages=("nemo_run", "sky"),
        install="pip install 'nemo_run[skypilot]==0.11.1' 'leptonai<0.28'",
        program="rsync",
    ),
    "kubernetes": Executor(
        title="Kubernetes TrainJob",
        takes=("gpu", "namespace", "volume_claim", "container_image"),
        needs=("container_image", "volume_claim"),
        packages=("nemo_run", "kubernetes"),
        install="pip install 'nemo_run[kubeflow]==0.11.1' 'leptonai<0.28'",
        program="kubectl",
    ),
    "docker": Executor(
        title="Docker container",
        takes=("container_image", "container_mounts"),
        needs=("container_image",),
        several_nodes=False,
        packages=("nemo_run", "docker"),
        install=f"{NEMO_RUN[: NEMO_RUN.index(' (')]} docker",
        program="docker",
    ),
}

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # of a DNS name (RFC 1123)
_TIME = re.compile(r"(?:\d+-)?\d+(?::\d\d){0,2}")


def check_cluster(cluster: Cluster, *, nodes: int, folder: Path, dry_run: bool, command: str = "run") -> None:
    """Raise UsageError for flags that clash, and for software that this machine lacks.

    folder: --output. command: the command that was typed.
    """
    name = cluster.executor
    if not name:
        if flags := [*map(_flag, cluster.flags_used), *([f"--nodes {nodes}"] if nodes > 1 else [])]:
            known = "slurm, local" if command == "preflight" else ", ".join(EXECUTORS)
            raise UsageError(f"{flags[0]}: needs --executor, which starts the ranks: {known}")
        return
    if name not in EXECUTORS:
        raise UsageError(f"--executor {name}: no such executor; choose {', '.join(EXECUTORS)}")
    executor = EXECUTORS[name]
    for field in cluster.flags_used:
        if field not in executor.takes:
            takers = [other for other, row in EXECUTORS.items() if field in row.takes]
            raise UsageError(f"{_flag(field)}: does not apply to --executor {name}; it is for {', '.join(takers)}")
    for field in executor.needs:
        if field not in cluster.flags_used:
            raise UsageError(f"--executor {name}: needs {_flag(field)} as well")
    if nodes > 1 and not executor.several_nodes:
        raise UsageError(f"--nodes {nodes}: --executor {name} uses this machine only; use slurm, skypilot, kubernetes")
    if cluster.time is not None and not _TIME.fullmatch(cluster.time):
        raise UsageError(f"--time {cluster.time}: must be minutes, HH:MM:SS or D-HH:MM:SS")
    for mount in cluster.container_mounts:
        if not re.fullmatch(r"[^:\s]+:[^:\s]+(?::\w+)?", mount):
            raise UsageError(f"--container-mounts {mount}: must be SRC:DST, without spaces")
    named = {"namespace": [cluster.namespace or ""], "volume_claim": (cluster.volume_claim or "").split(".")}
    for field in named.keys() & cluster.flags_used.keys():
        if not all(_LABEL.fullmatch(label) for label in named[field]):
            flag = f"{_flag(field)} {getattr(cluster, field)}"
            raise UsageError(f"{flag}: no name of Kubernetes, which has a-z, 0-9 and -, at most 63 characters")
    if re.search(r"\s|/nemo_run", str(regular.resolved(folder))):  # it replaces /nemo_run by the job's folder
        raise UsageError(
            f"--output {folder}: NeMo-Run cannot work in a path with spaces or /nemo_run; choose another folder"
        )
    if not (dry_run and writes_own_script(cluster, command)):
        check_submitter(cluster, command)
    if not dry_run and executor.program and shutil.which(executor.program) is None:
        raise UsageError(
            f"--executor {name}: {executor.program} is not on this machine; run this where it is, {WITHOUT[command]}"
        )


def writes_own_script(cluster: Cluster, command: str = "run") -> bool:
    """Return True if a dry run writes the job of a training itself: on Slurm or Kubernetes, if NeMo-Run is absent."""
    if cluster.executor not in ("slurm", "kubernetes") or command != "run":
        return False
    return not all(map(importable, EXECUTORS[cluster.executor].packages))


def check_submitter(cluster: Cluster, command: str = "run") -> None:
    """Raise UsageError if this machine lacks packages that the executor needs."""
    executor = EXECUTORS[cluster.executor]
    if missing := [package for package in executor.packages if not importable(package)]:
        raise UsageError(
            f"--executor {cluster.executor} needs {', '.join(missing)}, not installed here; {executor.install}, "
            f"{WITHOUT[command]}"
        )


def _flag(field: str) -> str:
    """Return the command-line flag of a field of Cluster.

    >>> _flag("container_image")
    '--container-image'
    """
    return "--" + field.replace("_", "-")


def node_machine(cluster: Cluster, num_gpus: int | None, here: Machine) -> Machine:
    """Return one node as a Machine: with the GPU of --gpu, else this machine. Raises UsageError for an unknown GPU.

    Its memory is what a driver reports for the GPU. If several GPUs of the catalogue have this name, it is the one with
    the least memory, and among equal ones the first: H100 means H100 SXM.
    """
    if cluster.gpu is None:
        return here
    if cluster.gpu.lower() == "cpu":
        return Machine(platform="cpu", gpu_info=GpuInfo(device_name="CPU of a node", software_stack="cpu"), host=NODE)
    kinds = catalogue.variants(cluster.gpu)
    if not kinds:
        known = ", ".join(gpu.name for gpu in catalogue.gpus())
        raise UsageError(f"--gpu {cluster.gpu}: not in the catalogue; it has {known}, and cpu")
    if num_gpus is None:
        raise UsageError(f"--gpu {cluster.gpu}: give --num-gpus too, the GPUs of each node")
    kind = min(kinds, key=lambda gpu: gpu.usable_bytes or math.inf)
    return Machine(
        platform=PLATFORM_SPELLINGS[kind.vendor.lower()],
        gpu_info=GpuInfo(
            device_name=cluster.gpu if len(kinds) == 1 else kind.name,
            device_count=num_gpus,
            total_memory_gb=kind.usable_bytes and kind.usable_bytes / GB,
        ),
        host=NODE,
    )


def plan_engines(
    requested: str, cluster: Cluster, *, platform: Platform, models: Sequence[str], obstacle: Obstacle = lambda *_: None
) -> Plan:
    """Return the engine that trains each model through the executor. Raises UsageError for one that cannot."""
    if requested not in ("auto", *TRAINS_THERE):
        raise UsageError(f"--engine {requested}: --executor supports only {listed(TRAINS_THERE)}")
    first = OWN if requested == "auto" and platform != "nvd" else requested
    bare = cluster.own_packages and cluster.container_image is None  # nemo_run installs only the torch engine there
    if bare and requested not in ("auto", OWN):
        raise UsageError(
            f"--engine {requested}: needs an image on --executor {cluster.executor}; add --container-image"
        )
    if first == "auto" and bare:
        first = OWN
    elif first == "auto" and cluster.own_packages:
        raise UsageError(
            f"--container-image {cluster.container_image}: this machine cannot see which engines it contains; add "
            f"--engine {alternatives(TRAINS_THERE)}"
        )
    order = TRAINS_THERE if first == "auto" else (first,)
    here = None if cluster.own_packages or cluster.gpu else platform  # the nodes have the packages of this machine
    return in_order(models, obstacle, order=order, where=f", started by {cluster.executor}", platform=here)


def cluster_default_engine(cluster: Cluster, platform: Platform) -> str:
    """Return the engine whose results have no engine in their file name.

    It is `registry.default_engine`. Only on NVIDIA GPUs with an image or a rented machine it is the first engine that
    `plan_engines` accepts there, so that the file name does not depend on the packages of this machine.
    """
    if platform != "nvd" or not cluster.own_packages:
        return registry.default_engine(platform, here=not cluster.executor)
    return TRAINS_THERE[0] if cluster.container_image is not None else OWN


def describe_cluster(cluster: Cluster, nodes: int) -> str:
    """Return the number of nodes, the executor and its flags, as a phrase.

    >>> describe_cluster(Cluster(executor="slurm", partition="debug"), 2)
    '2 through slurm (partition debug), assumed to be like this machine'
    """
    values = [
        f"{name.replace('_', ' ')} {value}" for name, value in cluster.flags_used.items() if isinstance(value, str)
    ]
    choices = f" ({', '.join(values)})" if values else ""
    like = "" if cluster.gpu or cluster.executor in ("local", "docker") else ", assumed to be like this machine"
    return f"{nodes} through {cluster.executor}{choices}{like}"
