"""`--executor` with the real NeMo-Run: what it would submit, and a run that it starts on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SHORT = ("--model", "llama", "--steps", "2", "--warmup-steps", "1", "--sequence-length", "32", "--engine", "torch")
H100 = ("--model", "llama", "--gpu", "H100", "--num-gpus", "8", "--nodes", "2", "--global-batch-size", "32", "--engine")


@pytest.fixture
def benchmark(tmp_path):
    def benchmark(*flags, **environment):
        return subprocess.run(
            [sys.executable, ROOT / "benchmark.py", *flags], capture_output=True, text=True, timeout=240, cwd=tmp_path,
            env={**os.environ, **environment},
        )  # fmt: skip

    return benchmark


def test_the_batch_script_asks_for_whole_nodes_and_starts_torchrun_on_each(benchmark, tmp_path):
    flags = ("--partition", "gpu", "--account", "lab", "--time", "00:30:00", "--dry-run")
    done = benchmark(*H100, "nemo", "--executor", "slurm", *flags)
    assert done.returncode == 0, done.stderr
    for line in (
        "#SBATCH --account=lab", "#SBATCH --partition=gpu", "#SBATCH --time=00:30:00", "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1", "#SBATCH --gpus-per-node=8", "#SBATCH --exclusive",
    ):  # fmt: skip
        assert line in done.stdout.splitlines()
    [started] = [line for line in done.stdout.splitlines() if line.startswith("srun ") and " torchrun " in line]
    assert "--nnodes 2 --nproc-per-node 8" in started
    assert f"{tmp_path}/output/cluster/dry_run/job/code/on_node.py tensorprimat.engines.nemo.engine" in started
    assert not (tmp_path / "output").exists(), "a dry run leaves nothing"


def test_a_container_gets_the_jobs_folder_and_the_users_mounts(benchmark, tmp_path):
    image = ("--container-image", "nvcr.io/nvidia/nemo:25.09", "--container-mounts", "/data:/data")
    done = benchmark(*H100, "torch", "--executor", "slurm", *image, "--dry-run")
    assert done.returncode == 0, done.stderr
    [started] = [line for line in done.stdout.splitlines() if line.startswith("srun ") and " torchrun " in line]
    folder = tmp_path / "output" / "cluster" / "dry_run" / "job"
    assert "--container-image nvcr.io/nvidia/nemo:25.09" in started
    assert f"--container-mounts /data:/data,{folder}:{folder}," in started
    assert "export PATH" not in done.stdout, "the image has its own"


def test_a_dry_run_shows_the_image_command_and_folder_for_docker(benchmark):
    done = benchmark(*SHORT, "--executor", "docker", "--container-image", "pytorch/pytorch", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "pytorch/pytorch" in done.stdout
    assert "/tensorprimat/code/on_node.py" in done.stdout
    assert "output/cluster/dry_run/job:/tensorprimat" in done.stdout


KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
current-context: none
users: [{name: none, user: {}}]
"""


def test_a_dry_run_shows_the_train_job_volume_and_script_for_kubernetes(benchmark, tmp_path):
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    flags = ("--executor", "kubernetes", "--container-image", "image:1", "--volume-claim", "shared", "--dry-run")
    done = benchmark(*H100, "torch", *flags, KUBECONFIG=str(tmp_path / "kubeconfig"))
    assert done.returncode == 0, done.stderr
    manifest, script = done.stdout[done.stdout.index("apiVersion") :].split("\n---\n")
    job = yaml.safe_load(manifest)["spec"]
    assert job["trainer"]["numNodes"] == 2
    assert job["trainer"]["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": "8"}
    [volume] = job["podTemplateOverrides"][0]["spec"]["volumes"]
    assert volume["persistentVolumeClaim"] == {"claimName": "shared"}
    assert "/nemo_run/code/on_node.py tensorprimat.engines.torch.engine --spec /nemo_run/spec.json" in script


def test_local_ranks_of_nemo_run_measure_one_training(benchmark, tmp_path):
    done = benchmark(*SHORT, "--executor", "local", "--num-gpus", "2")
    assert done.returncode == 0, done.stderr
    made = json.loads((tmp_path / "output" / "benchmark_cpu_llama.json").read_text())
    assert (made["training_config"]["num_gpus"], made["performance_metrics"]["total_steps"]) == (2, 3)
    assert "[CPU] Step" in done.stdout
