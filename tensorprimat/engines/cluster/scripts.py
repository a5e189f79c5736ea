"""Jobs that a dry run writes without NeMo-Run, for the user to submit: a script for sbatch, a TrainJob for kubectl.

The ranks run `tprimat run`, and rank 0 writes the result. Each of several runs has a folder of its own; a comparison
takes the folder above them as one side and pools the runs.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from tensorprimat.core.spec import RunSpec
from tensorprimat.engines.cluster.executors import TIME_LIMIT, Cluster
from tensorprimat.engines.cluster.nemo_run import AS_IT_COMES, JOB_NAME_PREFIX, VOLUME

_API_VERSION = "trainer.kubeflow.org/v1alpha1"  # fields as of kubeflow/trainer 8c0f5059, 2026-08-21
_RUNTIME = "torch-distributed"  # Kubeflow's runtime that sets the variables by which torchrun finds the other nodes
_CONTAINER = "node"  # of that runtime, in its job of the same name
_LONGEST_NAME = 40  # characters of a TrainJob's name: those of its pods are longer, and have at most 63
_DEVICES = {"nvd": "nvidia.com/gpu", "amd": "amd.com/gpu"}
"""Platform → the resource of Kubernetes' device plugin."""
_SHARED_MEMORY = {"emptyDir": {"medium": "Memory"}}  # a pod's own 64 MB are too few for NCCL


def own_script(spec: RunSpec, cluster: Cluster, words: Sequence[str], *, output: Path, runs: int) -> str:
    """Return what submits the runs of a spec. words: arguments of `tprimat run`; output: folder or file of results."""
    write = _batch_script if cluster.executor == "slurm" else _train_jobs
    return write(spec, cluster, words, output, runs)


def _batch_script(spec: RunSpec, cluster: Cluster, words: Sequence[str], output: Path, runs: int) -> str:
    image = cluster.container_image
    options = {
        "job-name": f"{JOB_NAME_PREFIX}{spec.model}",
        "array": f"1-{runs}" if runs > 1 else None,
        "nodes": spec.num_nodes,
        "ntasks-per-node": spec.num_gpus,
        "gpus-per-node": None if spec.platform == "cpu" else spec.num_gpus,
        "exclusive": "",
        "mem": "0",
        "time": cluster.time or TIME_LIMIT,
        "partition": cluster.partition,
        "account": cluster.account,
    }
    mounts = {"container-image": image, "container-mounts": ",".join(cluster.container_mounts)}
    start = [f"--{name}={value}" for name, value in mounts.items() if value]
    python = "python3" if image else sys.executable
    to = shlex.quote(str(output))
    notes = ["# For sbatch, without NeMo-Run: srun starts the ranks, and rank 0 writes the result."]
    if runs > 1:
        notes.append(
            f"# Each task of the array is one run. Together they are one side: tprimat compare {to}/array_JOB …"
        )
        to += '/array_"$SLURM_ARRAY_JOB_ID"/run_"$SLURM_ARRAY_TASK_ID"'
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{name}={value}".removesuffix("=") for name, value in options.items() if value is not None),
        *notes,
        *(f"export {name}={value}" for name, value in AS_IT_COMES.items()),
        f"{shlex.join(['srun', *start, python, '-m', 'tensorprimat', 'run', *words])} --output {to}",
    ]
    return "\n".join(lines)


def _train_jobs(spec: RunSpec, cluster: Cluster, words: Sequence[str], output: Path, runs: int) -> str:
    """Return a TrainJob of Kubeflow for each run, as documents of YAML."""
    import yaml

    name = re.sub("[^a-z0-9]+", "-", f"tensorprimat-{spec.model.lower()}")[:_LONGEST_NAME].strip("-")
    results = PurePosixPath(VOLUME, output.name or "output")
    several = "; the runs are one side of tprimat compare" if runs > 1 else ""
    documents = [f"# For kubectl apply, without NeMo-Run: rank 0 writes to {results} in the volume{several}.\n"]
    for run in range(1, runs + 1):
        own, to = (f"{name}-run-{run}", results / f"run_{run}") if runs > 1 else (name, results)
        trainer = {
            "image": cluster.container_image,
            "command": ["torchrun"],
            "args": ["-m", "tensorprimat", "run", *words, "--output", str(to)],
            "env": [{"name": variable, "value": value} for variable, value in AS_IT_COMES.items()],
            "numNodes": spec.num_nodes,
            "numProcPerNode": spec.num_gpus,
            "resourcesPerNode": {"limits": {_DEVICES[spec.platform]: spec.num_gpus}}
            if spec.platform in _DEVICES
            else {},
        }
        job = {
            "apiVersion": _API_VERSION,
            "kind": "TrainJob",
            "metadata": {"name": own, "namespace": cluster.namespace or "default"},
            "spec": {
                "runtimeRef": {"name": _RUNTIME},
                "trainer": trainer,
                "runtimePatches": [_patch(cluster.volume_claim)],
            },
        }
        documents.append(yaml.safe_dump(job, sort_keys=False))
    return (documents[0] + "---\n".join(documents[1:])).rstrip()


def _patch(volume_claim: str | None) -> dict[str, Any]:
    """Return the patch that gives each pod the volume for results, and shared memory."""
    claim = {"persistentVolumeClaim": {"claimName": volume_claim}}
    sources: dict[str, dict[str, Any]] = {"results": claim, "memory": _SHARED_MEMORY}
    paths = {"results": VOLUME, "memory": "/dev/shm"}
    mounts = [{"name": name, "mountPath": path} for name, path in paths.items()]
    pod = {
        "volumes": [{"name": name, **source} for name, source in sources.items()],
        "containers": [{"name": _CONTAINER, "volumeMounts": mounts}],
    }
    job = {"name": _CONTAINER, "template": {"spec": {"template": {"spec": pod}}}}
    return {"manager": "tensorprimat", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}}}
