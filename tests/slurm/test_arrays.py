"""Tests of job arrays and srun on a real Slurm; they need no NeMo-Run."""

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

from test_analyze import litgpt_log

from tensorprimat.cli import main
from tensorprimat.engines.cluster import executors

ROOT = Path(__file__).parents[2]
TPRIMAT = (sys.executable, "-m", "tensorprimat")


def called(*command, folder):
    """Return the ended process of a command that finds this package."""
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip


def test_the_tasks_of_an_array_survey_a_folder_and_their_parts_give_the_bytes_of_one_machine(tmp_path):
    (tmp_path / "old").mkdir()
    for number in range(7):
        (tmp_path / f"old/{number}.log").write_text(litgpt_log(0.5 + number / 70))
    task = shlex.join([*TPRIMAT, "analyze", "old", "--shard", "slurm", "--output", "parts"])
    done = called("sbatch", "--wait", "--array=1-3", "--wrap", task, folder=tmp_path)
    assert done.returncode == 0, "\n".join(path.read_text() for path in tmp_path.glob("slurm-*.out"))
    assert len([*(tmp_path / "parts").iterdir()]) == 3
    merged = called(*TPRIMAT, "analyze", "--merge", "parts", "--json", folder=tmp_path)
    assert merged.returncode == 0, merged.stderr
    assert merged.stdout == called(*TPRIMAT, "analyze", "old", "--json", folder=tmp_path).stdout


def test_the_runs_of_an_array_are_one_side_of_a_comparison_and_each_stays_in_history(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(executors, "importable", lambda name: name == "torch")
    flags = ["--model", "llama", "--steps", "3", "--warmup-steps", "1", "--sequence-length", "32", "--num-gpus", "1"]
    assert main(["run", *flags, "--executor", "slurm", "--runs", "3", "--dry-run"]) == 0
    shown = capfd.readouterr().out
    (tmp_path / "job.sh").write_text(shown[shown.index("#!/bin/bash") : shown.index("Dry run:")])
    done = called("sbatch", "--wait", "--parsable", "job.sh", folder=tmp_path)
    assert done.returncode == 0, "\n".join(path.read_text() for path in tmp_path.glob("slurm-*.out"))
    runs = tmp_path / "output" / f"array_{done.stdout.strip()}"
    assert [len([*(runs / f"run_{number}" / "history").iterdir()]) for number in (1, 2, 3)] == [1, 1, 1]
    compared = called(*TPRIMAT, "compare", f"a={runs}", f"b={runs}", "--json", folder=tmp_path)
    assert compared.returncode == 0, compared.stderr
    assert json.loads(compared.stdout)["ratio"]["rests_on"] == "3 runs against 3 runs"


def test_plain_srun_starts_the_ranks_without_nemo_run(tmp_path):
    flags = ["--model", "llama", "--steps", "2", "--warmup-steps", "1", "--sequence-length", "32"]
    first = socket.gethostname().partition(".")[0]  # the one that has a name for rank 0 to be found by
    done = subprocess.run(
        ["srun", f"--nodelist={first}", "--ntasks=2", sys.executable, "-m", "tensorprimat", "run", *flags],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = json.loads((tmp_path / "output" / "benchmark_cpu_llama.json").read_text())
    config = made["training_config"]
    assert (config["num_gpus"], config["num_nodes"], config["data_parallel_size"]) == (2, 1, 2)
    assert done.stdout.count("BENCHMARK COMPLETE") == 1
