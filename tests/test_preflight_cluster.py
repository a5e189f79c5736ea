"""`tprimat preflight --executor`: nodes as rows, slow ones named, and a job that fails as one line."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tensorprimat.cli import main
from tensorprimat.core.notices import Notice
from tensorprimat.core.result import GpuInfo
from tensorprimat.engines.cluster import executors, submission
from tensorprimat.session import preflight
from tensorprimat.storage import preflight as records
from tensorprimat.storage.preflight import DeviceCheck, MatrixRate, Preflight, PreflightSpec

ROOT = Path(__file__).parents[1]

RANK = """
import sys
import torch
from tensorprimat.machine import noise
from tensorprimat.measure import collectives, matmul, preflight, watch

matmul.LEAST_SECONDS, preflight.LAUNCHES, collectives.COLLECTIVE_SIZES = 1e-4, 10, {"cpu": (4096,)}
preflight.QUICK_SIZES, preflight.QUICK_STREAM_BYTES = {"cpu": (32,)}, {"cpu": 2**16}
rate = matmul.matmul_rate
def slowed(size, precision, device, **more):
    if size == preflight.CPU_SIBLING_SIZE:
        return SPEED, SPEED
    return rate(size, precision, device, **more)
matmul.matmul_rate = slowed
look = noise.NoiseReading(cores=2, load=4.0, busy_share=BUSY, cpu_cap_hertz=None)
noise.observe_machine = lambda _: look
sys.exit(watch.main(sys.argv[1:]))
"""

SRUN = """
import os, shutil, subprocess, sys
place = {place!r}
arguments = sys.argv[1:]
result = arguments[arguments.index("--result") + 1]
spec = arguments[arguments.index("--spec") + 1]
print("Slurm job 7 is submitted")
ranks = []
for node, speed in enumerate({speeds!r}):
    more = {{"RANK": str(node), "LOCAL_RANK": "0", "WORLD_SIZE": str(len({speeds!r})), "OMP_NUM_THREADS": "1",
             "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}", "SLURMD_NODENAME": f"node{{node}}"}}
    source = {rank!r}.replace("SPEED", str(speed)).replace("BUSY", str({busy!r}[node]))
    program = [sys.executable, "-c", source, "--spec", spec, "--result", result]
    ranks.append(subprocess.Popen(program, env={{**os.environ, **more}}))
codes = [rank.wait() for rank in ranks]
if any(codes):
    print("cluster engine: Slurm job 7 failed", file=sys.stderr)
    sys.exit(1)
"""
"""Stand-in for the process that submits a job: it starts a rank of each node itself."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def cluster(tmp_path, monkeypatch, warm):  # noqa: ARG001
    """Return a function that makes `--executor slurm` a cluster of nodes with these speeds."""
    monkeypatch.setattr(executors, "importable", lambda _: True)
    monkeypatch.setattr(executors.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.chdir(tmp_path)

    def nodes(*speeds, program=SRUN, busy=(0.0, 0.0)):
        script = tmp_path / "submit.py"
        script.write_text(program.format(place=str(tmp_path), speeds=speeds, port=free_port(), rank=RANK, busy=busy))
        monkeypatch.setattr(submission, "submit_command", lambda *_: [sys.executable, str(script)])
        return ["preflight", "--quick", "--device", "cpu", "--executor", "slurm", "--nodes", str(len(speeds))]

    return nodes


def test_every_node_has_a_row_and_a_slow_one_fails_the_command_by_name(cluster, tmp_path, capsys):
    assert main([*cluster(1e11, 7e10), "--fail-below", "90%"]) == 1
    out, err = capsys.readouterr()
    rows = [line for line in out.partition("Nodes, slowest first")[2].splitlines() if line.startswith("| node")]
    assert [row.split("|")[1].strip() for row in rows] == ["node1", "node0"]
    assert "node1: process 0 reaches 82.4 % of the median of 2 processes, less than 90 %" in err
    assert "Slurm job 7 is submitted" in err
    [kept] = (tmp_path / "output" / "preflight").iterdir()
    assert (records.load(kept).world_size, records.load(kept).collective_backend) == (2, "gloo")


def test_other_work_on_a_node_is_named_in_its_row_and_its_figures_are_not_kept(cluster, tmp_path, capsys):
    flags = cluster(1e11, 1e11, busy=(0.0, 0.5))
    assert main(flags) == 1
    out, err = capsys.readouterr()
    rows = [line for line in out.partition("Nodes, slowest first")[2].splitlines() if line.startswith("| node")]
    last = {row.split("|")[1].strip(): row.rstrip(" |").rpartition("|")[2].strip() for row in rows}
    assert last == {"node0": "none", "node1": "1, see warnings"}
    told = Notice("other_work", "noise", when="before the measurement", share="50 %", cores=2, load=", load 4.0")
    assert f"warning: node1: {told}" in err
    assert "warning: node0" not in err
    assert "not kept: the machine was not quiet" in err
    assert not (tmp_path / "output" / "preflight").exists()
    assert main([*flags, "--keep-noisy"]) == 0
    [kept] = (tmp_path / "output" / "preflight").iterdir()
    assert [(look.host, len(look.disturbed_by)) for look in records.load(kept).looks] == [("node0", 0), ("node1", 1)]


def alone(rate):
    """Return a preflight of one H100."""
    row = MatrixRate(
        precision="bf16", size=8192, best_flops_per_second=rate, typical_flops_per_second=rate,
        achieved_flops_per_second=8e14,
    )  # fmt: skip
    check = DeviceCheck(index=0, host="node1", flops_per_second=rate)
    return Preflight(
        platform="nvd", device="cuda", host="node1", timestamp="2026-01-02", matmul=(row,), devices=(check,)
    )


def test_one_gpu_is_compared_with_the_best_published_product():
    [printed] = alone(4e14).below(0.9)
    assert printed == "node1: the GPU reaches 50.0 % of the best published bf16 rate, less than 90 %"
    assert alone(7.9e14).below(0.9) == ()
    [printed] = alone(7.9e14).changed(matmul=()).below(0.9)
    assert printed == "node1: no measured bf16 rate can be compared with the published one"


@pytest.mark.parametrize("executor", [(), ("--executor", "slurm", "--partition", "cpu")])
def test_fail_below_without_a_reference_is_refused_before_anything_is_measured(cluster, capsys, executor):
    cluster(1.0)
    assert main(["preflight", "--device", "cpu", "--quick", *executor, "--fail-below", "90%"]) == 2
    assert "--fail-below: there is one device here and no published rate of it" in capsys.readouterr().err
    assert records.has_reference(1, GpuInfo(device_name="NVIDIA H100 80GB HBM3"))
    assert records.has_reference(2, GpuInfo())


def test_nodes_of_equal_speed_pass_fail_below(cluster, tmp_path, capsys):
    checks = tuple(DeviceCheck(index=0, host=f"node{n}", flops_per_second=1e11 - n) for n in (0, 1))
    record = Preflight(platform="cpu", device="cpu", host="node0", timestamp="2026-01-02", world_size=2, devices=checks)
    (tmp_path / "record.json").write_text(record.model_dump_json())
    program = "import shutil, sys\nshutil.copy({place!r} + '/record.json', sys.argv[-1])\n"
    assert main([*cluster(1.0, 1.0, program=program), "--fail-below", "90%", "--json"]) == 0
    out, err = capsys.readouterr()
    assert [check["host"] for check in json.loads(out)["devices"]] == ["node0", "node1"]
    assert "reaches" not in err


def test_a_job_that_fails_is_reported_in_one_line_and_keeps_nothing(cluster, tmp_path, capsys):
    failing = 'import sys\nprint("noise", file=sys.stderr)\nprint("cluster engine: Slurm job 7 failed: rank 1 on node2 was lost", file=sys.stderr)\nsys.exit(1)\n'  # noqa: E501
    assert main(cluster(1.0, 1.0, program=failing)) == 1
    assert capsys.readouterr().err == "tprimat preflight: Slurm job 7 failed: rank 1 on node2 was lost\n"
    assert not (tmp_path / "output" / "preflight").exists()


def test_a_job_that_leaves_no_record_is_an_error(cluster, capsys):
    assert main(cluster(1.0, program="print('fine')\n")) == 1
    assert "the preflight left no record" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--executor", "skypilot"), "--executor skypilot: preflight runs with slurm or local only"),
        (("--nodes", "2"), "--nodes 2: needs --executor, which starts the ranks: slurm, local"),
        (("--num-gpus", "2"), "--num-gpus 2: needs --executor"),
        (("--dry-run",), "--dry-run: needs --executor"),
        (("--executor", "slurm", "--device", "cuda:1"), "--device cuda:1: with --executor it must be auto, cpu or"),
        (("--executor", "slurm", "--device", "cuda"), "--device cuda: this machine has no GPU; --gpu NAME names"),
    ],
)  # fmt: skip
def test_a_job_that_cannot_be_sent_is_refused_in_one_line(cluster, capsys, flags, complaint):
    cluster(1.0)
    assert main(["preflight", *flags]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert complaint in line


def test_without_nemo_run_the_error_names_an_alternative(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(executors, "importable", lambda name: name != "nemo_run")
    assert main(["preflight", "--executor", "slurm", "--output", str(tmp_path)]) == 2
    assert "torchrun … -m tensorprimat preflight" in capsys.readouterr().err


@pytest.mark.usefixtures("warm")
def test_a_node_without_its_gpus_is_named(tmp_path):
    spec = tmp_path / "spec.json"
    spec.write_text(PreflightSpec(platform="nvd", quick=True, num_gpus=8, num_nodes=2).model_dump_json())
    done = subprocess.run(
        [sys.executable, "-m", preflight.RANK_MODULE, "--spec", spec, "--result", tmp_path / "result.json"],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "LOCAL_RANK": "3", "RANK": "11"},
    )  # fmt: skip
    assert done.returncode == 2
    assert f"preflight engine (rank 11): --num-gpus 8: torch sees 0 GPUs on {socket.gethostname()}" in done.stderr
