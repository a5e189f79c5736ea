"""NeMo-Run's executor for each value of --executor, with torchrun as the launcher of ranks; errors of Docker."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tensorprimat.core.errors import RunError
from tensorprimat.engines.cluster import slurm
from tensorprimat.engines.cluster.executors import TIME_LIMIT, Cluster, JobSpec
from tensorprimat.system.failures import BY_SYSTEM

_PLACES = {"docker": "/tensorprimat", "skypilot": "/tensorprimat", "kubernetes": "/nemo_run"}
"""Executor → path of the job's folder as the ranks see it. Other executors share this machine's file system, so that
the path is the same."""

VOLUME = "/tensorprimat"
"""Mount point of the pods' volume: not NeMo-Run's default /nemo_run, because its own script creates a link there."""
IDLE_MINUTES = 10  # time without work after which SkyPilot ends its machines, so that nobody pays for a forgotten one
AS_IT_COMES = {"PYTHONUNBUFFERED": "1"}
"""Variables of the ranks: without this one torchrun forwards their lines in blocks of 8 KiB, mostly at the end."""
JOB_NAME_PREFIX = "tensorprimat."
PIP_INSTALL = "pip install torch lightning transformers numpy scipy pydantic psutil pyyaml"
"""Installation of the torch engine's imports on a bare cloud machine. An image is expected to have its own."""
FOR_FP8 = " torchao"


def path_for_ranks(cluster: Cluster, folder: Path) -> str:
    """Return the path under which ranks see a folder of this machine."""
    return _PLACES.get(cluster.executor, str(folder))


def build_executor(cluster: Cluster, spec: JobSpec, folder: Path) -> Any:
    """Return the executor for one run. folder: the folder that ranks find at `path_for_ranks` and can write to."""
    import nemo_run

    return _BUILDERS[cluster.executor](nemo_run, cluster, spec, folder)


def _gpus(spec: JobSpec) -> int | None:
    return None if spec.platform == "cpu" else spec.num_gpus


def _local(run: Any, _cluster: Cluster, spec: JobSpec, _folder: Path) -> Any:
    path = os.pathsep.join(filter(None, (_our_programs(), os.environ.get("PATH"))))
    return run.LocalExecutor(ntasks_per_node=spec.num_gpus, launcher="torchrun", env_vars={"PATH": path, **AS_IT_COMES})


def _slurm(run: Any, cluster: Cluster, spec: JobSpec, folder: Path) -> Any:
    """Return an executor for whole nodes, because other jobs on a node would change the step times."""
    image = cluster.container_image
    return run.SlurmExecutor(
        account=cluster.account,
        partition=cluster.partition,
        time=cluster.time or TIME_LIMIT,
        nodes=spec.num_nodes,
        ntasks_per_node=spec.num_gpus,
        gpus_per_node=_gpus(spec) if slurm.counts_gpus(cluster.partition) else None,
        exclusive=True,
        mem="0",  # all of the node's
        container_image=image,
        container_mounts=[*cluster.container_mounts, f"{folder}:{folder}"] if image else [],
        job_name_prefix=JOB_NAME_PREFIX,
        # NeMo-Run writes them into the batch script without quotes. Without an image the nodes use this Python.
        env_vars=dict(AS_IT_COMES) if image else {"PATH": f'{shlex.quote(_our_programs())}:"$PATH"', **AS_IT_COMES},
        packager=run.Packager(),
        launcher="torchrun",
        tunnel=run.LocalTunnel(job_dir=""),  # NeMo-Run 0.11 loses its batch script with any other folder
        poll_estimated_start_time=False,
    )


def _docker(run: Any, cluster: Cluster, spec: JobSpec, folder: Path) -> Any:
    amd = {"devices": ["/dev/kfd:/dev/kfd:rwm", "/dev/dri:/dev/dri:rwm"], "group_add": ["video"]}
    return run.DockerExecutor(
        container_image=cluster.container_image,
        ntasks_per_node=spec.num_gpus,
        num_gpus=spec.num_gpus if spec.platform == "nvd" else None,
        runtime="nvidia" if spec.platform == "nvd" else None,
        ipc_mode="host",  # the ranks' shared memory: Docker's own 64 MB are too few for NCCL
        volumes=[*cluster.container_mounts, f"{folder}:{_PLACES['docker']}"],
        additional_kwargs=amd if spec.platform == "amd" else {},
        env_vars=dict(AS_IT_COMES),
        packager=run.Packager(),
        launcher="torchrun",
    )


def _skypilot(run: Any, cluster: Cluster, spec: JobSpec, folder: Path) -> Any:
    image = cluster.container_image
    mounts = {there: here for here, there, *_ in (mount.split(":") for mount in cluster.container_mounts)}
    return run.SkypilotExecutor(
        container_image=f"docker:{image.removeprefix('docker:')}" if image else None,
        gpus=None if spec.platform == "cpu" else cluster.gpu,
        gpus_per_node=_gpus(spec),
        torchrun_nproc_per_node=spec.num_gpus,
        num_nodes=spec.num_nodes,
        infra=cluster.infra,
        file_mounts={**mounts, _PLACES["skypilot"]: str(folder)},
        setup=""
        if image
        else " ".join([PIP_INSTALL, *([FOR_FP8] if getattr(spec, "precision", None) == "fp8" else [])]),
        env_vars=dict(AS_IT_COMES),
        autodown=True,
        idle_minutes_to_autostop=IDLE_MINUTES,
        launcher="torchrun",
    )


def _kubernetes(run: Any, cluster: Cluster, spec: JobSpec, folder: Path) -> Any:
    amd = {"amd.com/gpu": str(spec.num_gpus)} if spec.platform == "amd" else {}
    return run.KubeflowExecutor(
        image=cluster.container_image,
        namespace=cluster.namespace or "default",
        num_nodes=spec.num_nodes,
        nprocs_per_node=spec.num_gpus,
        gpus_per_node=spec.num_gpus if spec.platform == "nvd" else None,
        extra_resource_requests=amd,
        extra_resource_limits=amd,
        volumes=[{"name": "tensorprimat", "persistentVolumeClaim": {"claimName": cluster.volume_claim}}],
        volume_mounts=[{"name": "tensorprimat", "mountPath": VOLUME}],
        workdir_pvc=cluster.volume_claim,
        workdir_pvc_path=VOLUME,
        workdir_local_path=str(folder),
        env_vars=dict(AS_IT_COMES),
        train_job_basename=f"tensorprimat-{spec.model}",
        packager=run.Packager(),
        launcher="torchrun",
    )


def _our_programs() -> str:
    """Return the folder of this Python's torchrun."""
    return str(Path(sys.executable).parent)


_BUILDERS: dict[str, Callable[[Any, Cluster, JobSpec, Path], Any]] = {
    "local": _local,
    "slurm": _slurm,
    "docker": _docker,
    "skypilot": _skypilot,
    "kubernetes": _kubernetes,
}


GONE = (
    "was removed before it had ended: by hand (docker kill), by a daemon that restarted, or "
    f"{BY_SYSTEM} (dmesg then says so)"
)


@contextlib.contextmanager
def docker_errors(image: str | None) -> Iterator[None]:
    """Turn an error of the Docker daemon into a RunError."""
    import docker.errors

    try:
        yield
    except docker.errors.DockerException as error:
        explanation = str(getattr(error, "explanation", None) or error).strip().splitlines()[0]
        raise RunError(
            f"--executor docker: {explanation}; `docker info` shows whether the daemon runs and accepts you, "
            f"`docker run --rm {image} torchrun --help` whether the image is available and complete"
        ) from error


def is_gone(job: Any) -> bool:
    """Return True if the container of NeMo-Run's job no longer exists and its exit status was not written.

    NeMo-Run 0.11 then waits for ever: Docker removes its containers when they end, and NeMo-Run reads the status file.
    """
    import docker

    app = job.handle.rpartition("/")[2]
    alive = docker.from_env().containers.list(filters={"label": f"nemo-run/id={app}"})
    return not alive and not any(Path(job.executor.job_dir).glob("status_*.out"))
