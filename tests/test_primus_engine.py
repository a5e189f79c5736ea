"""`benchmark.py --engine primus` and run_primus_*.sh: Primus found, configured, run and read; and what goes wrong."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import fake_primus
import pytest

from tensorprimat.cli import main
from tensorprimat.core.errors import UsageError
from tensorprimat.engines.primus import checkout as primus_checkout

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture
def place(tmp_path):
    """A folder with a space in its name that holds a checkout."""
    fake_primus.checkout(tmp_path / "my work" / "Primus", gpus=("MI300X", "MI355X"))
    return tmp_path / "my work"


def environment(place, **more):
    kept = {name: value for name, value in os.environ.items() if not name.endswith(("_LOG", "_CONFIG"))}
    return kept | {"PRIMUS_PATH": str(place / "Primus"), "PRIMUS_GPU_MODEL": "MI300X", "NO_COLOR": "1"} | more


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run(place, monkeypatch, capfd):
    """Return a function that runs benchmark.py --engine primus in this process; its training is a real process."""

    def run(*flags, **variables):
        monkeypatch.chdir(place)
        for name in set(os.environ) - set(environment(place)):
            monkeypatch.delenv(name)
        for name, value in environment(place, **variables).items():
            monkeypatch.setenv(name, value)
        capfd.readouterr()
        code = main(["run", "--engine", "primus", "--output", "out", *flags], program="benchmark.py")
        return Done(code, *capfd.readouterr())

    return run


def result(place, name="benchmark_rocm_llama.json"):
    return json.loads((place / "out" / name).read_text())


def test_a_training_gives_a_result_and_its_log(place, run):
    done = run("--model", "llama", "--steps", "29", "--warmup-steps", "1")
    assert done.returncode == 0, done.stderr
    assert "[ROCM] Step  30 | Time: 2.001s | Avg: 2.00" in done.stdout
    assert re.fullmatch(r"Next: .*compare.* out", done.stdout.splitlines()[-1])
    made = result(place)
    assert (made["platform"], made["gpu_info"]["device_name"]) == ("amd", "MI300X")
    assert made["provenance"]["engine"] == "primus"
    assert made["provenance"]["assumed"]["device_name"] == "PRIMUS_GPU_MODEL"
    assert made["performance_metrics"]["total_steps"] == 30
    assert made["performance_metrics"]["tokens_per_second"] == pytest.approx(32 * 4096 / 2.0015, rel=1e-3)
    assert made["model"]["parameters"] == 8_030_261_248, "the configuration confirms the shape"
    config = made["training_config"]
    assert (config["micro_batch_size"], config["global_batch_size"], config["sequence_length"]) == (2, 32, 4096)
    assert (config["precision"], config["num_gpus"], config["tensor_model_parallel_size"]) == ("bf16", 8, 1)
    stamped = next((place / "out").glob("primus_training_llama_*.log"))
    assert stamped.read_text() == (place / "out" / "training_llama.log").read_text()
    assert "elapsed time per iteration" in stamped.read_text()


def test_the_result_has_the_environment_that_primus_set_and_the_commit_of_its_checkout(place, run):
    git = place / "Primus" / ".git"
    git.mkdir()
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "packed-refs").write_text(f"# pack-refs with: peeled\n{'0123456789' * 4} refs/heads/main\n")
    done = run("--model", "llama", "--steps", "5", NVTE_FUSED_ATTN="1")
    assert done.returncode == 0, done.stderr
    config = result(place)["training_config"]
    set_by_primus = {"HSA_NO_SCRATCH_RECLAIM": "1", "GPU_MAX_HW_QUEUES": "2"}
    assert {**set_by_primus, "NVTE_FUSED_ATTN": "1"}.items() <= config["environment"].items()
    assert not {"NCCL_DEBUG", "HF_TOKEN"} & set(config["environment"])
    assert config["versions"]["Primus"] == "git 012345678901"


def test_every_model_that_primus_has_is_trained_and_mistral_is_offered_the_torch_engine(place, run):
    done = run("--steps", "5", "--cooldown", "0")
    assert done.returncode == 0, done.stderr
    assert "mistral: Primus has no configuration of it; --engine torch trains it here" in done.stdout
    assert {path.name for path in (place / "out").glob("*.json")} == {
        "benchmark_rocm_llama.json",
        "benchmark_rocm_qwen.json",
    }


def test_a_short_run_names_the_settings_that_measure_more(run):
    assert "10 iterations leave few to measure" in run("--model", "llama", "--steps", "5").stdout
    assert "leave few" not in run("--model", "llama", "--steps", "45").stdout


def test_a_methodology_is_written_to_a_configuration_of_its_own_and_never_into_the_checkout(place, run):
    before = {path: path.read_bytes() for path in (place / "Primus").rglob("*") if path.is_file()}
    done = run("--model", "llama", "--methodology", "identical")
    assert done.returncode == 0, done.stderr
    made = result(place, "benchmark_rocm_llama_identical.json")
    assert made["methodology"] == "identical"
    assert made["training_config"]["tensor_model_parallel_size"] == 4
    assert (made["training_config"]["global_batch_size"], made["training_config"]["sequence_length"]) == (128, 2048)
    derived = next((place / "out").glob("primus_identical_llama_*.yaml")).read_text()
    assert "tensor_model_parallel_size: 4" in derived
    assert before == {path: path.read_bytes() for path in (place / "Primus").rglob("*") if path.is_file()}
    assert not (place / "out" / "training_llama.log").exists(), "a log does not say its methodology"


def test_flags_and_precision_reach_the_configuration(place, run):
    flags = ("--micro-batch-size", "4", "--global-batch-size", "64", "--sequence-length", "8192", "--precision", "fp8")
    assert run("--model", "llama", "--steps", "5", "--seed", "7", *flags).returncode == 0
    derived = next((place / "out").glob("*.yaml")).read_text()
    assert (
        "FP8-pretrain.yaml, with: train_iters 10, seed 7, micro_batch_size 4, global_batch_size 64, seq_length 8192"
        in (derived)
    )
    assert "max_position_embeddings: 8192" in derived, "Megatron refuses fewer positions than tokens"
    assert result(place)["training_config"]["precision"] == "fp8"


def test_a_failing_training_keeps_its_log_and_its_measured_steps(place, run):
    done = run("--model", "llama", FAKE_FAIL_AFTER="8")
    assert done.returncode == 1
    log = next((place / "out").glob("primus_training_llama_*.log"))
    assert f"Primus exited with 1: RuntimeError: the fake was told to fail; its log: {log.relative_to(place)}" in (
        done.stderr
    )
    assert "Traceback" not in done.stderr
    assert log.read_text().count("elapsed time per iteration") == 8
    partial = json.loads(next((place / "out" / "history").glob("*.json")).read_text())
    assert (partial["complete"], partial["performance_metrics"]["total_steps"]) == (False, 8)
    assert not (place / "out" / "benchmark_rocm_llama.json").exists()


def test_the_cause_is_reported_even_where_nothing_more_can_be_written(place, run, monkeypatch):
    fake_primus.write(place / "out" / "history", "a file where the folder should be, as good as a full disk")
    (place / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place / "temporary"))
    done = run("--model", "llama", FAKE_FAIL_AFTER="8")
    assert done.returncode == 1
    assert "Primus exited with 1: RuntimeError: the fake was told to fail; its log: out/primus_training_" in done.stderr
    assert "; its output could not be stored in out/history/" in done.stderr
    (kept,) = (place / "temporary").glob("benchmark_*.json")
    assert f"could not be kept in its folder: out/history: File exists; the result is in {kept}" in done.stderr


def test_a_training_that_fails_before_its_first_step_is_reported_in_one_line(place, run):
    fake_primus.write(place / "Primus" / "primus-cli", "echo 'gated repo: access denied'; exit 3\n")
    done = run("--model", "llama")
    assert done.returncode == 1
    assert "Primus exited with 3: gated repo: access denied" in done.stderr


def test_memory_that_runs_out_names_the_configuration_and_never_the_global_batch_as_remedy(run):
    words = "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB"
    done = run("--model", "llama", FAKE_FAIL_AFTER="2", FAKE_LAST_WORDS=words)
    assert done.returncode == 1
    assert "out of memory: llama (full), micro batch 2, global batch 32, sequence 4096" in done.stderr
    assert "try --micro-batch-size 1" in done.stderr
    assert "--global-batch-size" not in done.stderr


def test_ctrl_c_keeps_the_measured_steps(place):
    command = [sys.executable, str(ROOT / "benchmark.py"), "--engine", "primus", "--model", "llama", "--output", "out"]
    child = subprocess.Popen(
        command, cwd=place, env=environment(place, FAKE_SLOW="1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    for line in child.stdout:
        if "Step   4" in line:
            break
    child.send_signal(signal.SIGINT)
    _, printed = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "interrupted" in printed
    assert "Traceback" not in printed
    partial = json.loads(next((place / "out" / "history").glob("*.json")).read_text())
    assert partial["performance_metrics"]["total_steps"] >= 3
    assert partial["complete"] is False


def test_a_log_put_there_by_hand_is_moved_and_not_lost(place, run):
    (place / "out").mkdir()
    (place / "out" / "training_llama.log").write_text("mine")
    assert run("--model", "llama", "--steps", "5").returncode == 0
    assert [path.read_text() for path in (place / "out").glob("training_llama_before_*.log")] == ["mine"]


def test_an_old_checkout_is_started_by_its_script(place, run):
    fake_primus.checkout(place / "old", old=True)
    done = run("--model", "qwen", "--steps", "5", PRIMUS_PATH=str(place / "old"))
    assert done.returncode == 0, done.stderr
    shown = run("--model", "qwen", "--dry-run", PRIMUS_PATH=str(place / "old"))
    assert "EXP=" in shown.stdout
    assert "bash examples/run_pretrain.sh" in shown.stdout


def test_a_dry_run_is_passed_to_primus_and_writes_nothing(place, run):
    done = run("--model", "llama", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "8 × MI300X" in done.stdout
    assert "[fake] would train" in done.stdout
    assert "dry run, not done: pip install fake-requirement" in done.stdout
    assert not (place / "out").exists()


def test_a_dry_run_that_primus_fails_does_not_hide_the_models_after_it(run):
    done = run("--model", "all", "--dry-run", FAKE_DRY_RUN_EXIT="3")
    assert done.returncode == 1
    for model in ("llama", "qwen"):
        assert f"WOULD TRAIN - {model} on ROCm" in done.stdout
        assert f"{model}: primus-cli --dry-run exited with 3: it printed no reason" in done.stderr
    assert "every check passed" not in done.stdout


@pytest.mark.parametrize(
    ("variables", "flags", "complaint"),
    [
        ({"PRIMUS_PATH": "/no/such/folder"}, (), "PRIMUS_PATH=/no/such/folder: no such folder"),
        ({"PRIMUS_PATH": "/tmp"}, (), "PRIMUS_PATH=/tmp: is not a Primus checkout"),
        (
            {"PRIMUS_GPU_MODEL": "MI250X"},
            (),
            "there are configurations for MI300X, MI355X: select one with LLAMA_CONFIG=exam",
        ),
        ({"LLAMA_CONFIG": "none.yaml"}, (), "LLAMA_CONFIG=none.yaml: no such file"),
        ({"GPUS_PER_NODE": "many"}, (), "GPUS_PER_NODE=many: must be a number of GPUs"),
        ({}, ("--preset", "tiny"), "--preset tiny: Primus trains the full models"),
        ({}, ("--steps", "1", "--warmup-steps", "0"), "warms up for 2, and Megatron"),
        ({}, ("--global-batch-size", "30"), "--global-batch-size 30 is not a multiple"),
        ({}, ("--num-gpus", "16"), "--num-gpus 16: only 8 here"),
        ({}, ("--methodology", "fastest"), "must be agreed, max"),
    ],
)
def test_an_impossible_run_is_refused_in_one_line_before_anything_starts(place, run, variables, flags, complaint):
    done = run("--model", "llama", *flags, **variables)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (place / "out").exists()


def test_without_any_checkout_logs_are_read_as_before(place, monkeypatch):
    monkeypatch.delenv("PRIMUS_PATH", raising=False)
    variables = environment(place)
    del variables["PRIMUS_PATH"]
    command = [sys.executable, str(ROOT / "benchmark.py"), "--engine", "primus", "--model", "llama"]
    done = subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True, timeout=60)
    assert "No log file found for llama" in done.stdout
    assert done.returncode == 2


def test_rocm_names_the_gpu_where_no_variable_does(tmp_path, monkeypatch):
    fake_primus.program(tmp_path, "rocm-smi", "exit 1")
    fake_primus.program(tmp_path, "amd-smi", "echo '    MARKET_NAME: AMD Instinct MI325X'")
    monkeypatch.delenv("PRIMUS_GPU_MODEL", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert primus_checkout.gpu_model() == ("MI325X", "amd-smi")
    monkeypatch.setenv("PRIMUS_GPU_MODEL", "MI300X")
    assert primus_checkout.gpu_model() == ("MI300X", "PRIMUS_GPU_MODEL")
    fake_primus.program(tmp_path, "amd-smi", "echo no gpu")
    monkeypatch.delenv("PRIMUS_GPU_MODEL")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="no AMD Instinct GPU found"):
        primus_checkout.gpu_model()


@pytest.fixture(scope="session")
def clone(tmp_path_factory, warm_python):
    """The scripts in a folder with a space, without .venv: they run with the Python of the tests."""
    folder = tmp_path_factory.mktemp("a clone")
    for name in ("tensorprimat", "tools", "benchmark.py", "compare_results.py", *(p.name for p in ROOT.glob("*.sh"))):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv" / "bin").mkdir(parents=True)
    fake_primus.program(folder / ".venv" / "bin", "python", f'exec "{warm_python}" "$@"')
    return folder


def script(clone, place, name, *flags, **variables):
    return subprocess.run(
        [str(clone / name), *flags], cwd=place, env=environment(place, **variables), capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip


def test_the_scripts_train_ten_iterations_into_output_in_their_own_folder(clone, place):
    done = script(clone, place, "run_primus_all.sh", "--cooldown", "0")
    assert done.returncode == 0, done.stderr
    for model in ("llama", "qwen"):
        made = json.loads((clone / "output" / f"benchmark_rocm_{model}.json").read_text())
        assert made["performance_metrics"]["total_steps"] == 10
    assert "leave few to measure" in done.stdout


def test_train_iters_is_the_number_of_iterations(clone, place):
    assert script(clone, place, "run_primus_qwen.sh", TRAIN_ITERS="26").returncode == 0
    made = json.loads((clone / "output" / "benchmark_rocm_qwen.json").read_text())
    assert made["performance_metrics"]["total_steps"] == 26
    for wrong in ("none", "-5", "0", "1.5"):
        done = script(clone, place, "run_primus_llama.sh", TRAIN_ITERS=wrong)
        assert (done.returncode, done.stderr) == (
            2,
            f"TRAIN_ITERS={wrong}: must be a number of iterations, at least 2\n",
        )


def test_one_config_env_sets_the_work_of_the_scripts_of_both_vendors(tmp_path, clone, place):
    settings = tmp_path / "config.env"
    text = 'export SL="1024"  # tokens\r\nMBS = 1\nDP=2\nGA=4\nSEED=7\nLR=$(touch ran)\nlr=1\n# PP=9\nTRAIN_ITERS=12'
    settings.write_text(text, newline="")
    for wanted in ("run_primus_llama.sh", "run_benchmark.sh"):
        own = ["llama", "--engine", "torch"] if wanted == "run_benchmark.sh" else []
        done = script(clone, place, wanted, *own, "--seed", "8", "--dry-run", CONFIG_ENV=str(settings))
        assert done.returncode == 0, done.stderr
        assert "not used: LR lr" in done.stderr
        assert not Path("ran").exists()
        plan = " ".join(done.stdout.split())
        assert "8 sequences of 1,024 tokens: micro batch 1" in plan
        assert "1 warm-up + 11 measured" in plan or "llama: 12 iterations" in plan
    refused = script(clone, place, "run_benchmark.sh", "llama", CONFIG_ENV="missing.env")
    assert (refused.returncode, refused.stderr) == (2, "CONFIG_ENV=missing.env: no such file\n")


def test_a_script_never_reads_an_old_log_in_place_of_training(clone, place):
    variables = {"PRIMUS_PATH": ""}
    done = script(clone, place, "run_primus_llama.sh", **variables)
    assert done.returncode == 2
    assert "PRIMUS_PATH=/workspace/Primus: no such folder" in done.stderr


def test_a_script_fails_as_its_training_does(clone, place):
    done = script(clone, place, "run_primus_llama.sh", FAKE_FAIL_AFTER="3")
    assert done.returncode == 1
    assert "the fake was told to fail" in done.stderr


@pytest.mark.parametrize(("model", "fair"), [("llama", False), ("qwen", False), ("llama", True)])
def test_the_dual_comparison_labels_each_result_with_its_methodology(tmp_path, clone, place, model, fair):
    out = tmp_path / "results"
    variables = {"FAIR_CONFIG": "1"} if fair else {}
    done = script(clone, place, "run_amd_dual_comparison.sh", model, "--output", str(out), **variables)
    assert done.returncode == 0, done.stderr
    made = {path.name: json.loads(path.read_text())["methodology"] for path in out.glob("*.json")}
    methodologies = ("identical",) if fair else ("max", "identical")
    assert made == {f"benchmark_rocm_{model}_{name}.json": name for name in methodologies}
    named = re.findall(rf"  ./benchmark.py --model {model} --methodology (\w+)", done.stdout)
    assert named == list(methodologies)


def test_the_configuration_check_shows_the_differences_from_the_nvidia_side(clone, place):
    done = script(clone, place, "check_primus_config.sh")
    assert done.returncode == 0, done.stderr
    assert "qwen2.5_7B-BF16-pretrain.yaml" in done.stdout
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.strip()}
    assert rows["seq_length"] == ["4096", "8192", "differs"]
    assert rows["context_parallel_size"] == ["1", "2", "differs"]
    assert rows["pipeline_model_parallel_size"] == ["1", "1"]
    wrong = script(clone, place, "check_primus_config.sh", "none.yaml")
    assert (wrong.returncode, len(wrong.stderr.splitlines())) == (2, 1)


@pytest.mark.parametrize("name", [*sorted(path.name for path in ROOT.glob("*primus*.sh")), "fix_gpu_memory.sh"])
def test_every_script_shows_its_manual(clone, place, name):
    shown = script(clone, place, name, "--help")
    assert shown.returncode == 0
    assert f"./{name}" in shown.stdout
    assert "Exit codes" in shown.stdout


def test_nothing_of_a_killed_benchmark_keeps_running(place):
    command = [sys.executable, str(ROOT / "benchmark.py"), "--engine", "primus", "--model", "llama", "--output", "out"]
    child = subprocess.Popen(
        command, cwd=place, env=environment(place, FAKE_SLOW="1"), stdout=subprocess.PIPE, text=True
    )
    for line in child.stdout:
        if "Step   2" in line:
            break
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    log = next((place / "out").glob("primus_training_llama_*.log"))
    size = log.stat().st_size
    time.sleep(0.6)
    assert log.stat().st_size == size
