"""`--executor docker`: reports of a refusing daemon and an unusable image, and a training of two ranks.

The daemon is started here, on a socket of its own, where there is a dockerd and the right to start it (root).
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRAINING = (
    "--model", "llama", "--engine", "torch", "--sequence-length", "32", "--warmup-steps", "1", "--num-gpus", "2",
)  # fmt: skip
IMAGE = "tensorprimat-test:1"
QUIET = ("--storage-driver=vfs", "--iptables=false", "--ip6tables=false", "--bridge=none", "--ip-forward=false")
"""Nothing of this machine's network is touched."""


def start(folder, *flags, **environment):
    command = [sys.executable, ROOT / "benchmark.py", *TRAINING, "--executor", "docker", "--container-image", IMAGE]
    return subprocess.Popen(
        [*command, *flags], cwd=folder, env={**os.environ, **environment}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(launcher):
    printed, complaints = launcher.communicate(timeout=120)
    return launcher.returncode, printed, complaints.strip().splitlines()[-1] if complaints.strip() else ""


def test_a_daemon_that_does_not_answer_is_reported_in_one_line(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "docker").chmod(0o755)
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    code, _, complaint = ended(start(tmp_path, PATH=path, DOCKER_HOST=f"unix://{tmp_path}/none.sock"))
    assert code == 1
    assert complaint.startswith("llama: --executor docker: Error while fetching server API version")
    assert "`docker info` shows whether the daemon runs" in complaint


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    """DOCKER_HOST of a daemon that has an image without anything: this machine's programs are mounted into it."""
    if os.geteuid() or shutil.which("dockerd") is None:
        pytest.skip("starting a Docker daemon needs root and dockerd (apt install docker.io)")
    folder = tmp_path_factory.mktemp("docker")
    host = f"unix://{folder}/docker.sock"
    roots = (f"--data-root={folder}/data", f"--exec-root={folder}/exec", f"--pidfile={folder}/pid")
    with (folder / "dockerd.log").open("wb") as log:
        running = subprocess.Popen(["dockerd", "-H", host, *roots, *QUIET], stdout=log, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + 30
        while docker(host, "info").returncode:
            if running.poll() is not None or time.monotonic() > until:
                pytest.skip(f"no Docker daemon starts on this machine: {(folder / 'dockerd.log').read_text()[-500:]}")
            time.sleep(0.3)
        with tarfile.open(folder / "image.tar", "w") as image:
            for name in ("tmp", "proc", "sys", "dev", "etc", "usr"):
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
                image.addfile(entry)
            for name in ("bin", "sbin", "lib", "lib64"):
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = tarfile.SYMTYPE, f"usr/{name}"
                image.addfile(entry)
        path = f"ENV PATH={Path(sys.executable).parent}:/usr/bin:/bin"
        made = docker(host, "import", "--change", path, str(folder / "image.tar"), IMAGE)
        assert made.returncode == 0, made.stderr
        yield host
        docker(host, "network", "rm", "nemo_run")
    finally:
        running.terminate()
        running.wait(timeout=30)


def docker(host, *arguments):
    return subprocess.run(["docker", "-H", host, *arguments], capture_output=True, text=True, timeout=60, check=False)


def mounts(*places):
    return [word for place in places for word in ("--container-mounts", f"{place}:{place}:ro")]


MOUNTS = mounts(*sorted({"/usr", sys.prefix, sys.base_prefix}))


def test_two_ranks_in_a_container_measure_one_training(daemon, tmp_path):
    code, printed, complaint = ended(start(tmp_path, "--steps", "3", *MOUNTS, DOCKER_HOST=daemon))
    assert code == 0, complaint
    made = json.loads((tmp_path / "output" / "benchmark_cpu_llama.json").read_text())
    assert (made["training_config"]["num_gpus"], made["performance_metrics"]["total_steps"]) == (2, 4)
    assert re.search(r"\[CPU\] Step +4 ", printed)
    assert not docker(daemon, "ps", "--all", "--quiet").stdout


def test_an_image_without_torchrun_is_named_as_the_cause(daemon, tmp_path):
    code, _, complaint = ended(start(tmp_path, *mounts("/usr"), DOCKER_HOST=daemon))
    assert code == 1
    assert "the Docker container ended as FAILED: torchrun: command not found; its logs are in" in complaint


def test_a_killed_container_is_reported_and_not_waited_for_forever(daemon, tmp_path):
    launcher = start(tmp_path, "--steps", "100000", *MOUNTS, DOCKER_HOST=daemon)
    for line in launcher.stdout:  # which come as the ranks say them
        if "[CPU] Step  10" in line:
            break
    docker(daemon, "kill", docker(daemon, "ps", "--quiet").stdout.strip())
    code, _, complaint = ended(launcher)
    assert code == 1
    assert "the Docker container was removed before it had ended: by hand (docker kill)" in complaint
