"""Tests of benchmark.py on a real Slurm: NeMo-Run submits, torchrun starts two ranks, results and errors come back."""

import contextlib
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nemo_run") is None, reason="NeMo-Run is not in this environment; run make test-slurm"
)
ROOT = Path(__file__).parents[2]
SHORT = ("--steps", "3", "--warmup-steps", "1")
ENDLESS = ("--steps", "100000", "--warmup-steps", "1", "--num-gpus", "2")
TRAINING = ("--model", "llama", "--engine", "torch", "--sequence-length", "32")


class Launcher:
    """A running benchmark.py with its output."""

    def __init__(self, folder, *flags):
        self.folder = folder
        self.output = folder / "printed.txt"
        command = [sys.executable, ROOT / "benchmark.py", *TRAINING, "--executor", "slurm", *flags]
        with self.output.open("wb") as printed:
            self.process = subprocess.Popen(command, cwd=folder, stdout=printed, stderr=subprocess.STDOUT)

    @property
    def printed(self):
        return self.output.read_text()

    def until(self, text, seconds=120):
        end = time.monotonic() + seconds
        while not (found := re.search(text, self.printed)):
            assert self.process.poll() is None, self.printed
            assert time.monotonic() < end, self.printed
            time.sleep(0.2)
        return found

    @property
    def job(self):
        return self.until(r"Slurm job (\d+) is submitted")[1]

    def ended(self, seconds=180):
        return self.process.wait(timeout=seconds), self.printed.strip().splitlines()


@pytest.fixture
def launch(tmp_path):
    with contextlib.ExitStack() as stack:

        def start(*flags):
            launcher = Launcher(tmp_path, *flags)
            stack.callback(launcher.process.wait, timeout=30)
            stack.callback(launcher.process.terminate)
            return launcher

        yield start


@pytest.fixture(scope="module")
def too_long(tmp_path_factory):
    """A job that hangs until Slurm's shortest time limit, a minute, while the other tests run."""
    launcher = Launcher(tmp_path_factory.mktemp("too_long"), *ENDLESS, "--time", "1")
    launcher.until(r"\[CPU\] Step")
    for number in (0, 1):
        rank(number, launcher.folder).suspend()
    yield launcher
    if launcher.process.poll() is None:
        launcher.process.terminate()
        launcher.process.wait(timeout=30)


def complaint(lines):
    """Return the one line in which the launcher says what went wrong."""
    found = [line for line in lines if line.startswith("llama: ")]
    assert len(found) == 1, "\n".join(lines)
    return found[0]


@pytest.mark.usefixtures("too_long")
def test_a_rank_on_each_of_two_nodes_measures_one_training(launch, tmp_path):
    code, lines = launch(*SHORT, "--partition", "debug", "--nodes", "2", "--num-gpus", "1").ended()
    assert code == 0, "\n".join(lines)
    made = json.loads((tmp_path / "output" / "benchmark_cpu_llama.json").read_text())
    config = made["training_config"]
    assert (config["num_gpus"], config["num_nodes"], config["data_parallel_size"]) == (2, 2, 2)
    assert config["global_batch_size"] == 8
    assert config["micro_batch_size"] * config["gradient_accumulation_steps"] * 2 == 8
    assert (made["performance_metrics"]["total_steps"], made["performance_metrics"]["measured_steps"]) == (4, 3)
    assert "--executor slurm" in made["provenance"]["command"]
    assert any(line.startswith("[CPU] Step") for line in lines), "the job's own lines come through"
    assert sum("BENCHMARK COMPLETE" in line for line in lines) == 1
    [job] = (tmp_path / "output" / "cluster").iterdir()
    assert list(job.glob("logs/experiments/*/*/llama/log-*.out")), "logs are kept"
    assert not (job / "job" / "code").exists(), "the copy of the code is not"
    assert len(list((tmp_path / "output" / "history").iterdir())) == 1


def test_a_cancelled_job_is_reported(launch):
    launcher = launch(*ENDLESS)
    subprocess.run(["scancel", launcher.job], check=True)
    code, lines = launcher.ended()
    assert code == 1
    assert f"Slurm job {launcher.job} was cancelled (scancel, or the administrator)" in complaint(lines)
    named = re.search(r"its logs are in ([^;\s]+)", complaint(lines))[1]
    assert list((launcher.folder / named).rglob("*_sbatch.sh"))


def test_ctrl_c_cancels_the_job_reports_it_and_keeps_the_measured_steps(launch, tmp_path):
    launcher = launch(*ENDLESS)
    launcher.until(r"\[CPU\] Step")
    launcher.process.send_signal(signal.SIGINT)
    code, lines = launcher.ended()
    assert code == 1
    assert f"interrupted; Slurm job {launcher.job} was cancelled: without its launcher" in complaint(lines)
    state = subprocess.run(["scontrol", "show", "job", launcher.job], capture_output=True, text=True, check=True).stdout
    assert re.search("JobState=(CANCELLED|COMPLETING)", state)
    [kept] = (tmp_path / "output" / "history").glob("*_run1.json")
    assert json.loads(kept.read_text())["complete"] is False


def test_a_lost_rank_is_named(launch, tmp_path):
    launcher = launch(*ENDLESS)
    launcher.until(r"\[CPU\] Step")
    rank(1, tmp_path).kill()
    code, lines = launcher.ended()
    assert code == 1
    assert re.search(r"Slurm job \d+ failed: rank 1 on \S+ was killed \(SIGKILL\)", complaint(lines))
    kept = re.search(r"its output is in (\S+\.txt)", complaint(lines))[1]
    assert "SIGKILL" in (tmp_path / kept).read_text()


def rank(number, folder):
    """Return the process of one rank of the job that was started in a folder."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            of_job = any(str(folder) in word and word.endswith("on_node.py") for word in process.cmdline())
            if of_job and process.environ().get("RANK") == str(number):
                return process
    raise AssertionError(f"no rank {number}")


def test_a_refusal_of_slurm_is_reported_in_one_line(launch):
    code, lines = launch(*SHORT, "--partition", "nowhere").ended()
    assert code == 1
    assert "invalid partition" in complaint(lines).lower()
    assert not any("Traceback" in line for line in lines)


def test_a_job_that_meets_its_time_limit_is_reported(too_long):
    code, lines = too_long.ended()
    assert code == 1
    assert "was ended at its time limit; give more with --time" in complaint(lines)


def test_a_preflight_has_a_row_for_each_node_and_fails_below_a_share(tmp_path):
    command = [sys.executable, "-m", "tensorprimat", "preflight", "--quick", "--executor", "slurm", "--nodes", "2"]
    place = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "capture_output": True, "text": True}
    busy_too = [*command, "--fail-below", "1%", "--keep-noisy"]  # other tests may run on this machine
    done = subprocess.run(busy_too, **place, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    nodes = done.stdout.partition("Nodes, slowest first")[2]
    names = {line.split("|")[1].strip() for line in nodes.splitlines() if line.startswith("| ")}
    assert names >= {socket.gethostname().partition(".")[0], "second"}
    assert re.search(r"Slurm job \d+ is submitted", done.stderr)
    assert "measuring matrix products" in done.stderr
    [kept] = (tmp_path / "output" / "preflight").iterdir()
    made = json.loads(kept.read_text())
    assert (made["world_size"], made["collective_backend"], len(made["devices"])) == (2, "gloo", 2)


def test_a_preflight_that_slurm_refuses_is_reported_in_one_line(tmp_path):
    command = [sys.executable, "-m", "tensorprimat", "preflight", "--executor", "slurm", "--partition", "nowhere"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "invalid partition" in line.lower()
