"""Runs of the torch engine in processes of their own: ranks, signals, memory and specs that cannot work."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from each import in_each
from test_torch_engine import MODULE, Run, spec_of

from tensorprimat.engines.torch import engine as torch_engine

ROOT = Path(__file__).resolve().parent.parent


def check_two_ranks(result, printed):
    assert sum("Training finished" in line for line in printed) == 1
    config = result.training_config
    assert (config.num_gpus, config.data_parallel_size, config.strategy) == (2, 2, "ddp")
    assert (config.global_batch_size, config.gradient_accumulation_steps) == (4, 1)
    figures = result.performance_metrics
    assert figures.tokens_per_second_per_gpu == pytest.approx(figures.tokens_per_second / 2, rel=1e-3)
    assert not [warning for warning in result.warnings if warning.startswith(("training_config", "memory: "))]


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("start", ["Lightning", "torchrun"])
def test_two_processes_write_one_result(tmp_path, start):
    launcher = [sys.executable]
    if start == "torchrun":
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = Run(tmp_path, spec_of(num_gpus=2), launcher=launcher)
    code, printed, complaints = run.end()
    assert code == 0, complaints
    check_two_ranks(run.result, printed)


NOTING_NORMS = """
import os, sys
from tensorprimat.engines.torch import engine, module, optimizer

def clip(self, limit, clip=optimizer.AdamW.clip):
    norm = clip(self, limit)
    os.write(1, f"norm {norm.item()}\\n".encode())  # at once, since all ranks share a pipe
    return norm

optimizer.AdamW.clip = clip
module.TrainingModule._has_compiled_adamw = property(lambda self: self._spec.compile)  # as on a GPU
sys.exit(engine.main(sys.argv[3:]))
"""
CPU_NORM = 1e-4  # relative: torch adds the squares of a weight on a CPU in float32, one after the other
PLAN = "40 % of activations kept: queries, attention, up recomputed"


def trained(folder, processes, **changes):
    """Return the losses of a training, the norms of its gradients on each rank, and its figures."""
    folder.mkdir(exist_ok=True)
    script = folder / "noting.py"  # a file: Lightning starts the other ranks with the same command
    script.write_text(NOTING_NORMS)
    spec = spec_of(num_gpus=processes, steps=3, micro_batch_size=1, global_batch_size=24, **changes)
    run = Run(folder, spec, launcher=(sys.executable, script), environment={"PYTHONPATH": os.fspath(ROOT)})
    code, printed, complaints = run.end()
    assert code == 0, complaints
    norms = [float(line.split()[1]) for line in printed if line.startswith("norm ")]
    return run.result.steps.column("loss"), norms, run.result.performance_metrics


@pytest.fixture(scope="module")
def one_process(tmp_path_factory, warm_python):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", warm_python)
        return trained(tmp_path_factory.mktemp("one"), 1)


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    ("processes", "changes"),
    [
        (2, {"strategy": "ddp", "recompute": "every second layer"}),
        (4, {"strategy": "fsdp", "reshard": False, "recompute": PLAN}),
        *(
            pytest.param(processes, changes, marks=pytest.mark.thorough)
            for processes, changes in [
                (2, {"strategy": "ddp", "recompute": "full", "compile": True}),
                (2, {"strategy": "fsdp", "recompute": PLAN, "compile": True}),
                (3, {"strategy": "fsdp", "recompute": "full", "compile": True}),  # 128 rows are no multiple of 3
                (8, {"strategy": "ddp"}),
                (8, {"strategy": "fsdp", "recompute": PLAN}),
            ]
        ),
    ],
)
def test_ranks_train_as_one_process_does(tmp_path, one_process, processes, changes):
    losses, norms, figures = trained(tmp_path, processes, **changes)
    expected, expected_norms, _ = one_process
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert max(expected_norms) > 2, "the gradients are clipped"
    np.testing.assert_allclose(sorted(norms), sorted(processes * expected_norms), rtol=CPU_NORM)
    assert figures.tokens_per_step == 24 * 32
    tokens = figures.tokens_per_second_per_gpu * processes * figures.measured_time_seconds
    assert tokens == pytest.approx(figures.measured_steps * 24 * 32, rel=2e-3)  # seconds have three decimals


@pytest.mark.usefixtures("warm")
def test_split_weights_with_masters_in_float32_are_recorded_as_they_are(tmp_path):
    split = {"strategy": "fsdp", "precision": "bf16", "master_weights": "fp32", "reshard": False}
    run = Run(tmp_path, spec_of(num_gpus=2, **split))
    code, _, complaints = run.end()
    assert code == 0, complaints
    config = run.result.training_config
    assert (config.precision, config.compute_dtype) == ("bf16", "bfloat16")
    assert (config.parameter_dtype, config.optimizer_dtype) == ("float32", "float32")
    assert config.strategy == "fsdp, weights kept after forward"
    assert not [warning for warning in run.result.warnings if warning.startswith("training_config")]


@pytest.mark.usefixtures("warm")
def test_ranks_that_srun_starts_find_each_other(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    step = {
        "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "train", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_NNODES": "1",
        "SLURM_NODELIST": "127.0.0.1", "SLURM_NODEID": "0", "MASTER_PORT": port,
    }  # fmt: skip
    runs = [
        Run(tmp_path, spec_of(num_gpus=2), environment={**step, "SLURM_PROCID": rank, "SLURM_LOCALID": rank})
        for rank in ("0", "1")
    ]
    (first, printed, complaints), (second, silent, _) = [run.end() for run in runs]
    assert (first, second) == (0, 0), complaints
    assert silent == []
    check_two_ranks(runs[0].result, printed)


@in_each(
    ("variables", "own"),
    [
        ({}, False),
        ({"SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}, False),
        ({"SLURM_NTASKS": "2"}, True),  # in the batch script itself
        ({"SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"}, True),  # one task that shall start the other rank
        ({"SLURM_NTASKS": "1", "TORCHELASTIC_RUN_ID": "7"}, False),
    ],
)
def test_no_process_waits_for_ranks_that_slurm_does_not_start(monkeypatch, variables, own):
    for name in ("SLURM_NTASKS", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "2")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert bool(torch_engine._environment(spec_of(num_gpus=2))) == own


@pytest.mark.usefixtures("warm")
def test_out_of_memory_is_reported_in_one_line_with_configuration_and_remedies(tmp_path):
    limited = (
        "import resource, runpy, sys\n"
        "resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))\n"
        f"sys.exit(__import__('{MODULE}', fromlist=['main']).main(sys.argv[3:]))\n"
    )
    spec = spec_of(micro_batch_size=8192, global_batch_size=8192, sequence_length=2048)
    run = Run(tmp_path, spec, launcher=(sys.executable, "-c", limited))
    code, _, complaints = run.end()
    assert code == 1
    (line,) = complaints
    assert line.startswith(
        "torch engine: out of memory: llama (tiny), micro batch 8192, global batch 8192, sequence 2048"
    )
    assert "try --micro-batch-size 4096, --sequence-length 1024" in line
    document = run.document
    assert document["complete"] is False
    assert document["runs"][0]["ended_by"] == "out of memory"
    assert document["training_config"]["micro_batch_size"] == 8192


@pytest.mark.usefixtures("warm")
@in_each(("number", "processes"), [(signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGTERM, 1)])
def test_a_signal_leaves_the_measurements_and_no_traceback(tmp_path, number, processes):
    run = Run(tmp_path, spec_of(steps=100_000, num_gpus=processes))
    run.wait_for_step()
    os.killpg(run.process.pid, number)
    code, _, complaints = run.end(timeout=60)
    assert code == 1
    assert "torch engine: interrupted; steps measured so far are kept" in complaints
    assert not [line for line in complaints if "Traceback" in line]
    result = run.result
    assert not result.complete
    assert len(result.steps) > 0
    assert result.runs[0].ended_by in ("interrupted", "terminated")


@pytest.mark.usefixtures("warm")
def test_a_rank_that_dies_ends_the_other(tmp_path):
    run = Run(tmp_path, spec_of(steps=100_000, num_gpus=2))
    run.wait_for_step()
    ranks = subprocess.run(["pgrep", "-f", run.spec_file], capture_output=True, text=True, check=True)
    (other,) = {int(number) for number in ranks.stdout.split()} - {run.process.pid}
    os.kill(other, signal.SIGKILL)
    began = time.monotonic()
    code, _, _ = run.end(timeout=60)
    assert code != 0
    assert time.monotonic() - began < 45


@in_each(
    ("content", "message"),
    [
        ("", "Invalid JSON"),
        ('{"model": "llama"}', "preset: Field required"),
        (spec_of(precision="fp8").model_dump_json(), "--precision fp8: not on a CPU"),
    ],
)
def test_a_spec_that_cannot_work_is_refused_in_one_line_with_exit_code_2(tmp_path, capsys, content, message):
    path = tmp_path / "spec.json"
    path.write_text(content)
    assert torch_engine.main(["--spec", str(path), "--result", str(tmp_path / "result.json")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "result.json").exists()


def test_a_missing_spec_is_reported_in_one_line_with_exit_code_2(tmp_path, capsys):
    assert torch_engine.main(["--spec", str(tmp_path / "none.json"), "--result", "unused.json"]) == 2
    assert capsys.readouterr().err.endswith("none.json: no such file\n")
