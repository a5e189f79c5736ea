"""`torchrun -m tensorprimat run` and `srun`: ranks that somebody else has started train together, once."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tensorprimat.cli import main
from tensorprimat.core.errors import RunError, UsageError
from tensorprimat.engines.launchers import (
    Rank,
    connected_processes,
    rank_of,
    set_lightning_tasks,
    started_processes,
    training_rank,
)
from tensorprimat.engines.nemo import engine as nemo
from tensorprimat.engines.torch import engine

ROOT = Path(__file__).parents[1]
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "3", "WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}
SRUN = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_PROCID": "1"}


@pytest.mark.usefixtures("warm")
def test_two_ranks_of_torchrun_measure_one_training(tmp_path):
    flags = ["--model", "llama", "--steps", "2", "--warmup-steps", "1", "--sequence-length", "32", "--output", "out"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "tensorprimat",
         "run", *flags],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = json.loads((tmp_path / "out" / "benchmark_cpu_llama.json").read_text())
    config = made["training_config"]
    assert (config["num_gpus"], config["num_nodes"], config["data_parallel_size"]) == (2, 1, 2)
    assert made["performance_metrics"]["total_steps"] == 3
    assert done.stdout.count("BENCHMARK COMPLETE") == 1, "rank 0 talks for all"
    assert "result.json" not in done.stdout, "a file that is gone already"
    assert len(list((tmp_path / "out" / "history").iterdir())) == 1


def test_the_rank_number_comes_from_the_launcher():
    assert rank_of(TORCHRUN) == Rank(launcher="torchrun", rank=3, world_size=4, nodes=2)
    assert rank_of(SRUN) == Rank(launcher="srun", rank=1, world_size=2, nodes=1)


DEEPSPEED = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_SIZE": "2", "CROSS_RANK": "1", "CROSS_SIZE": "2"}
PYTORCH_JOB = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456", "PET_NNODES": "2"}


@pytest.mark.parametrize(
    ("environment", "rank", "world_size", "nodes"),
    [
        (DEEPSPEED, 3, 4, 2),
        ({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, 1, 2, 1),
        ({"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, 9, 16, 2),
        (PYTORCH_JOB, 1, 2, 2),
        ({**SRUN, **DEEPSPEED}, 3, 4, 2),
    ],
)
def test_a_launcher_that_sets_rank_and_world_size_has_started_ranks(environment, rank, world_size, nodes):
    found = rank_of(environment)
    assert (found.rank, found.world_size, found.nodes) == (rank, world_size, nodes)
    assert started_processes(environment) == connected_processes(environment) == world_size


@pytest.mark.parametrize(
    "environment",
    [
        {**PYTORCH_JOB, "RANK": "0", "WORLD_SIZE": "1", "PET_NNODES": "1"},
        {**PYTORCH_JOB, "WORLD_SIZE": "16"},  # 2 pods of 8 processes, which torchrun starts in each pod
        {"WORLD_SIZE": "8"},
        {"RANK": "0"},
    ],
)
def test_a_pod_whose_processes_are_not_started_yet_is_no_rank(environment):
    assert rank_of(environment) is None
    assert started_processes(environment) == connected_processes(environment) == 1


def test_tasks_of_srun_are_connected_by_torch_only_if_they_have_its_variables():
    assert (started_processes(SRUN), connected_processes(SRUN)) == (2, 1)
    with_rank = {**SRUN, "RANK": "1", "WORLD_SIZE": "2"}
    assert (rank_of(with_rank).launcher, connected_processes(with_rank)) == ("srun", 2)


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({**TORCHRUN, "RANK": "first"}, "RANK=first: must be a number"),
        ({"RANK": "0", "WORLD_SIZE": "²"}, "WORLD_SIZE=²: must be a number"),
        ({**DEEPSPEED, "WORLD_SIZE": "5"}, "RANK=3, WORLD_SIZE=5 and 2 processes per node contradict each other"),
        ({**DEEPSPEED, "RANK": "4"}, "RANK=4, WORLD_SIZE=4 and 2 processes per node contradict each other"),
    ],
)
def test_variables_that_name_no_rank_are_refused_in_one_line(environment, complaint):
    with pytest.raises(UsageError) as refused:
        rank_of(environment)
    assert str(refused.value).startswith(complaint)


def test_lightning_gets_the_numbers_that_a_launcher_leaves_out(monkeypatch):
    for name in ("NODE_RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    set_lightning_tasks(rank_of(DEEPSPEED))
    assert (os.environ.pop("NODE_RANK"), os.environ.pop("LOCAL_RANK")) == ("1", "1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(UsageError, match="LOCAL_RANK=0: rank 3 of 2 processes per node must have 1"):
        set_lightning_tasks(rank_of(DEEPSPEED))
    os.environ.pop("NODE_RANK", None)


@pytest.mark.usefixtures("warm")
def test_two_ranks_of_a_launcher_without_torchruns_variables_measure_one_training(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    flags = ["--model", "llama", "--steps", "2", "--warmup-steps", "1", "--sequence-length", "32", "--output", "out"]
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTHONPATH": str(ROOT)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tensorprimat", "run", *flags], cwd=tmp_path, text=True,
            env={**shared, "RANK": rank, "LOCAL_RANK": rank}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in "01"
    ]  # fmt: skip
    printed = [rank.communicate(timeout=240) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], printed
    made = json.loads((tmp_path / "out" / "benchmark_cpu_llama.json").read_text())
    config = made["training_config"]
    assert (config["num_gpus"], config["num_nodes"], config["data_parallel_size"]) == (2, 1, 2)
    assert sum(out.count("BENCHMARK COMPLETE") for out, _ in printed) == 1, "rank 0 talks for all"


def test_a_process_that_nobody_has_launched_starts_its_own_ranks():
    assert rank_of({}) is None
    assert rank_of({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"}) is None, "the batch script itself"
    assert rank_of({**SRUN, "SLURM_STEP_NUM_TASKS": "1"}) is None


def test_an_interactive_job_in_which_each_task_would_train_alone_is_refused():
    with pytest.raises(UsageError, match="srun: Lightning treats a job named interactive"):
        training_rank({**SRUN, "SLURM_JOB_NAME": "interactive"})
    assert rank_of({**SRUN, "SLURM_JOB_NAME": "interactive"}) == rank_of(SRUN)


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ((), "--model all: not under torchrun"),
        (("--model", "llama", "--runs", "3"), "--runs 3: not under torchrun"),
        (("--model", "llama", "--engine", "logs"), "--engine logs: not under torchrun"),
        (("--model", "llama", "--target-ci", "1%"), "--target-ci: not under torchrun"),
        (("--model", "llama", "--max-runs", "5"), "--max-runs: not under torchrun"),
        (("--model", "llama", "--budget-minutes", "1"), "--budget-minutes: not under torchrun"),
        (("--model", "llama", "--cooldown", "5"), "--cooldown: not under torchrun"),
        (("--model", "llama", "--profile", "torch"), "--profile: not under torchrun"),
        (("--model", "llama", "--ab", "--precision fp32", "--ab", "--precision bf16"), "--ab: not under torchrun"),
        (("--model", "llama", "--num-gpus", "8"), "--num-gpus 8: torchrun has started 2 processes per node"),
        (("--model", "llama", "--global-batch-size", "6"), "--global-batch-size 6 is not a multiple"),
    ],
)
def test_an_option_that_ranks_lack_is_refused_in_one_line(monkeypatch, tmp_path, capsys, flags, complaint):
    monkeypatch.chdir(tmp_path)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert main(["run", *flags]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("command", ["passes", "warmup", "sweep"])
def test_a_measurement_of_one_device_is_refused_in_several_processes(monkeypatch, tmp_path, capsys, command):
    monkeypatch.chdir(tmp_path)
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert main([command, "--device", "cpu"]) == 2
    assert "a measurement of one device: not under torchrun" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [(TORCHRUN, "torchrun"), (SRUN, "srun"), (DEEPSPEED, "the launcher that set RANK and WORLD_SIZE")],
)
def test_a_conversion_is_refused_in_several_processes(monkeypatch, tmp_path, capsys, environment, launcher):
    monkeypatch.chdir(tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    flags = ["--model", "llama", "--source", "hf://meta-llama/Llama-3.1-8B", "--output", "new", "--dry-run"]
    assert main(["convert", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        f"tprimat convert: a conversion: not under {launcher}, which starts one training; run without {launcher}"
    )


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, False),  # the batch script itself
        (SRUN, True),
        (TORCHRUN, True),
        ({**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"}, False),
        ({"WORLD_SIZE": "2", "RANK": "0"}, True),  # another launcher
    ],
)
def test_nemo_starts_the_ranks_unless_a_launcher_has_started_them(monkeypatch, environment, expected):
    for name in ("WORLD_SIZE", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert nemo.started_by_launcher() is expected


def test_lightning_gets_the_number_of_tasks_per_node(monkeypatch):
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE", raising=False)
    monkeypatch.setenv("SLURM_NTASKS", "2")
    set_lightning_tasks(rank_of(SRUN))
    assert os.environ["SLURM_NTASKS_PER_NODE"] == "2"
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE")
    set_lightning_tasks(rank_of(TORCHRUN))
    assert "SLURM_NTASKS_PER_NODE" not in os.environ


@pytest.mark.usefixtures("warm")
def test_a_host_of_rank_0_without_an_address_is_reported_at_once_in_one_line(tmp_path):
    step = {**SRUN, "SLURM_JOB_ID": "70", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1", "SLURM_NODEID": "0"}
    flags = ["--model", "llama", "--steps", "2", "--warmup-steps", "1", "--sequence-length", "32"]
    done = subprocess.run(
        [sys.executable, "-m", "tensorprimat", "run", *flags], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env={**os.environ, **step, "SLURM_NODELIST": "nowhere.invalid", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "rank 1: srun: the host of rank 0, nowhere.invalid, has no address here" in done.stderr
    assert "set MASTER_ADDR" in done.stderr.splitlines()[-1]


def test_rank_0_is_waited_for_until_it_listens_or_the_time_is_over():
    with socket.create_server(("127.0.0.1", 0)) as rank_0:
        port = rank_0.getsockname()[1]
        engine.wait_for("127.0.0.1", port, patience_seconds=5)
    with pytest.raises(RunError, match=f"rank 0 did not answer at 127.0.0.1:{port} in 0.1 s .*; set MASTER_ADDR"):
        engine.wait_for("127.0.0.1", port, patience_seconds=0.1)


def test_only_one_module_decides_which_processes_were_started():
    readers = [
        str(path.relative_to(ROOT / "tensorprimat"))
        for path in (ROOT / "tensorprimat").rglob("*.py")
        if '"WORLD_SIZE"' in path.read_text()
    ]
    assert readers == ["engines/launchers.py"]
