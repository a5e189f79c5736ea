"""`--executor`: checks before a job is sent, queries of Slurm, and the end of a job from its log."""

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import fake_primus
import pytest
import yaml
from each import in_each

from tensorprimat.cli import main
from tensorprimat.core.errors import RunError, UsageError
from tensorprimat.core.result import GpuInfo
from tensorprimat.core.spec import RunSpec
from tensorprimat.engines import launch, registry
from tensorprimat.engines.cluster import executors, scripts, slurm, submission
from tensorprimat.engines.cluster.executors import Cluster
from tensorprimat.engines.cluster.job_log import Console, Tail
from tensorprimat.engines.nemo import engine as nemo
from tensorprimat.engines.torch import fp8
from tensorprimat.machine.platform import Machine
from tensorprimat.session import append
from tensorprimat.storage.preflight import PreflightSpec
from tensorprimat.system import failures

HERE = Machine(platform="cpu", gpu_info=GpuInfo(device_name="a CPU"), host="login")


def without_torchao(monkeypatch):
    """Let FP8 find no package; other modules, which torch looks for when it is imported, stay as they are."""
    monkeypatch.setattr(fp8, "importlib", SimpleNamespace(util=SimpleNamespace(find_spec=lambda _: None)))


ON_KUBERNETES = ("--executor", "kubernetes", "--container-image", "image:1", "--volume-claim", "shared")


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Return a function that runs benchmark.py in an empty folder, with NeMo-Run and the executors' programs faked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(executors, "importable", lambda _: True)
    monkeypatch.setattr(executors.shutil, "which", lambda name: f"/usr/bin/{name}")

    def run(*flags):
        code = main(["run", "--model", "llama", *flags], program="benchmark.py")
        return code, *capfd.readouterr()

    return run


@in_each(
    ("flags", "complaint"),
    [
        (("--nodes", "2"), "--nodes 2: needs --executor, which starts the ranks: local, slurm, skypilot"),
        (("--partition", "gpu"), "--partition: needs --executor"),
        (("--nodes", "0"), "--nodes 0: must be at least 1"),
        (("--executor", "ssh"), "--executor ssh: no such executor; choose local, slurm, skypilot, kubernetes, docker"),
        (("--executor", "local", "--nodes", "2"), "--nodes 2: --executor local uses this machine only; use slurm"),
        (("--executor", "local", "--partition", "gpu"), "--partition: does not apply to --executor local; it is for"),
        (("--executor", "slurm", "--infra", "aws"), "--infra: does not apply to --executor slurm; it is for skypilot"),
        (("--executor", "slurm", "--time", "soon"), "--time soon: must be minutes, HH:MM:SS or D-HH:MM:SS"),
        (("--executor", "docker"), "--executor docker: needs --container-image as well"),
        (("--executor", "docker", "--container-image", "i", "--container-mounts", "/data"), "must be SRC:DST"),
        (("--executor", "kubernetes", "--container-image", "i"), "--executor kubernetes: needs --volume-claim as well"),
        ((*ON_KUBERNETES, "--namespace", "My_NS"), "--namespace My_NS: no name of Kubernetes, which has a-z"),
        ((*ON_KUBERNETES, "--volume-claim", "a..b"), "--volume-claim a..b: no name of Kubernetes"),
        (("--executor", "skypilot"), "--executor skypilot: needs --gpu as well"),
        (("--executor", "slurm", "--output", "my results"), "NeMo-Run cannot work in a path with spaces or /nemo_run"),
        (("--executor", "slurm", "--engine", "logs"), "--engine logs: --executor supports only nemo and torch"),
        (("--executor", "slurm", "--engine", "torch", "--profile", "torch"), "--profile torch: not with --executor"),
        (("--executor", "slurm", "--gpu", "H10000"), "--gpu H10000: not in the catalogue"),
        (("--executor", "slurm", "--gpu", "H100"), "--gpu H100: give --num-gpus too"),
        (("--executor", "slurm", "--nodes", "2", "--global-batch-size", "5"), "--global-batch-size 5 is not a"),
    ],
)  # fmt: skip
def test_a_job_that_cannot_be_sent_is_refused_in_one_line(run, flags, complaint):
    code, _, printed = run(*flags)
    assert code == 2
    assert complaint in printed
    assert len(printed.strip().splitlines()) == 1


def test_without_nemo_run_the_error_names_its_installation_and_an_alternative(run, monkeypatch):
    monkeypatch.setattr(executors, "importable", lambda name: name != "nemo_run")
    code, _, printed = run("--executor", "slurm")
    assert code == 2
    assert "--executor slurm needs nemo_run, not installed here; pip install 'nemo_run==0.11.1'" in printed
    assert "torchrun or srun … -m tensorprimat run" in printed


def test_without_nemo_run_a_dry_run_prints_a_script_for_sbatch_whose_ranks_train_what_was_typed(run, monkeypatch):
    monkeypatch.setattr(executors, "importable", lambda name: name == "torch")
    there = ("--executor", "slurm", "--nodes", "2", "--num-gpus", "8", "--gpu", "H100", "--partition", "gpu")
    code, printed, _ = run(*there, "--steps", "7", "--recompute", "--runs", "3", "--dry-run")
    assert code == 0
    lines = [line for line in printed.splitlines() if line.startswith(("#SBATCH", "srun"))]
    assert {"#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=8", "#SBATCH --partition=gpu"} <= set(lines)
    assert " -m tensorprimat run --model llama --steps 7 --recompute --output output/array_" in lines[-1]
    assert lines[-1].endswith('/array_"$SLURM_ARRAY_JOB_ID"/run_"$SLURM_ARRAY_TASK_ID"')
    assert "#SBATCH --array=1-3" in lines
    _, printed, _ = run(*there, "--output", "my'results", "--dry-run")
    assert printed.splitlines()[-2].endswith("""--model llama --output 'my'"'"'results'""")
    assert "--array" not in printed, "one run is no array"
    assert run(*there, "--runs", "2", "--output", "x.json", "--dry-run")[0] == 2, "the runs would write one file"
    image = ("--container-image", "image:1", "--engine", "nemo")
    assert run(*there, *image, "--dry-run")[0] == 2, "the ranks of srun train with the torch engine alone"


COUNT, QUANTITY, POD = int, (int, str), {
    "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str}, "emptyDir": {"medium": str}}],
    "containers": [{"name": str, "volumeMounts": [{"name": str, "mountPath": str}]}],
}  # fmt: skip
TRAIN_JOB = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "TrainJob",
    "metadata": {"name": re.compile("[a-z]([-a-z0-9]{0,61}[a-z0-9])?"), "namespace": str},
    "spec": {
        "runtimeRef": {"name": "torch-distributed"},
        "trainer": {
            "image": str, "command": [str], "args": [str], "env": [{"name": str, "value": str}], "numNodes": COUNT,
            "numProcPerNode": COUNT,
            "resourcesPerNode": {"limits": {"nvidia.com/gpu": QUANTITY, "amd.com/gpu": QUANTITY}},
        },
        "runtimePatches": [{"manager": str, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [
            {"name": "node", "template": {"spec": {"template": {"spec": POD}}}},
        ]}}}}],
    },
}  # fmt: skip
"""Fields of a TrainJob that may be used, and their types, by the CRD of kubeflow/trainer 8c0f5059 (2026-08-21)."""


def misfits(value, known, where="job"):
    """Return the places of a document that the known fields and types do not allow."""
    if isinstance(known, dict) and isinstance(value, dict):
        return [
            one
            for name, inner in value.items()
            for one in (misfits(inner, known[name], f"{where}.{name}") if name in known else [f"{where}.{name}"])
        ]
    if isinstance(known, list) and isinstance(value, list):
        return [one for inner in value for one in misfits(inner, known[0], where)]
    if isinstance(known, re.Pattern):
        return [] if known.fullmatch(value) else [where]
    return [] if value == known or (isinstance(known, (type, tuple)) and isinstance(value, known)) else [where]


@in_each(
    ("flags", "nodes", "processes", "limits"),
    [
        (("--gpu", "H100", "--num-gpus", "8", "--nodes", "2", "--engine", "torch"), 2, 8, {"nvidia.com/gpu": 8}),
        (("--gpu", "MI300X", "--num-gpus", "4", "--namespace", "team-a"), 1, 4, {"amd.com/gpu": 4}),
        (("--gpu", "cpu", "--num-gpus", "2"), 1, 2, None),
    ],
)
def test_without_nemo_run_a_dry_run_prints_a_train_job_that_kubeflow_accepts(
    run, monkeypatch, flags, nodes, processes, limits
):
    monkeypatch.setattr(executors, "importable", lambda name: name == "torch")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    code, printed, complaint = run(*ON_KUBERNETES, *flags, "--steps", "7", "--output", "/home/me/Results", "--dry-run")
    assert code == 0, complaint
    (job,) = yaml.safe_load_all(printed[printed.index("apiVersion:") : printed.index("Dry run: nothing was")])
    assert misfits(job, TRAIN_JOB) == []
    assert set(job["spec"]) == set(TRAIN_JOB["spec"])
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (nodes, processes)
    assert trainer["resourcesPerNode"].get("limits") == limits
    engine = ["--engine", "torch"] if "--engine" in flags else []
    words = ["--model", "llama", "--steps", "7", *engine, "--output", "/tensorprimat/Results"]
    assert [*trainer["command"], *trainer["args"]] == ["torchrun", "-m", "tensorprimat", "run", *words]
    assert trainer["env"] == [{"name": "PYTHONUNBUFFERED", "value": "1"}]
    assert "hf_secret" not in printed


def test_each_run_on_kubernetes_is_a_job_with_a_name_and_a_folder_of_its_own(run, monkeypatch):
    monkeypatch.setattr(executors, "importable", lambda name: name == "torch")
    code, printed, complaint = run(*ON_KUBERNETES, "--gpu", "MI300X", "--num-gpus", "8", "--runs", "3", "--dry-run")
    assert code == 0, complaint
    jobs = [*yaml.safe_load_all(printed[printed.index("apiVersion:") : printed.index("Dry run: nothing was")])]
    assert [job["metadata"]["name"] for job in jobs] == [f"tensorprimat-llama-run-{run}" for run in (1, 2, 3)]
    assert [job["spec"]["trainer"]["args"][-1] for job in jobs] == [
        f"/tensorprimat/output/run_{run}" for run in (1, 2, 3)
    ]


@in_each(["Qwen3_30B.A3B", "été/" * 40, "-", "x" * 300])
def test_any_name_of_a_model_makes_a_name_that_kubernetes_allows(model):
    cluster = Cluster(executor="kubernetes", container_image="i", volume_claim="c")
    for runs in (1, 12):
        text = scripts.own_script(spec(model=model), cluster, (), output=Path("output"), runs=runs)
        for job in yaml.safe_load_all(text):
            assert misfits(job, TRAIN_JOB) == []
            assert len(job["metadata"]["name"]) < 50


def test_without_slurm_a_run_is_refused_but_the_script_is_shown(run, monkeypatch, tmp_path):
    monkeypatch.setattr(executors.shutil, "which", lambda _: None)
    code, _, printed = run("--executor", "slurm")
    assert (code, "sbatch is not on this machine" in printed) == (2, True)
    executors.check_cluster(Cluster(executor="slurm"), nodes=2, folder=tmp_path, dry_run=True)


def test_ranks_that_torchrun_started_are_not_sent_elsewhere(run, monkeypatch):
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for flag in (("--executor", "slurm"), ("--executor", "slurm", "--nodes", "2")):
        code, _, printed = run(*flag)
        assert code == 2
        assert "--executor slurm: not under torchrun" in printed


def test_nodes_have_the_gpu_of_the_flag_or_else_that_of_this_machine():
    assert executors.node_machine(Cluster(executor="slurm"), None, HERE) is HERE
    node = executors.node_machine(Cluster(executor="slurm", gpu="NVIDIA H100 80GB HBM3"), 8, HERE)
    assert (node.platform, node.gpu_info.device_count) == ("nvd", 8)
    assert executors.node_machine(Cluster(executor="slurm", gpu="MI300X"), 8, HERE).platform == "amd"
    assert executors.node_machine(Cluster(executor="slurm", gpu="cpu"), None, node).platform == "cpu"


H100 = ("--gpu", "H100", "--num-gpus", "8", "--dry-run")


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (
            ("--executor", "slurm", "--container-image", "nvcr.io/nvidia/nemo:25.09"),
            "--container-image nvcr.io/nvidia/nemo:25.09: this machine cannot see which engines it contains; add "
            "--engine nemo or torch",
        ),
        (
            ("--executor", "skypilot", "--engine", "nemo"),
            "--engine nemo: needs an image on --executor skypilot; add --container-image",
        ),
        (
            ("--executor", "slurm", "--engine", "torch", "--precision", "fp8"),
            "--precision fp8: the torch engine needs torchao, not installed here",
        ),
    ],
)
def test_an_engine_that_this_machine_cannot_see_is_not_chosen_by_its_packages(run, monkeypatch, flags, complaint):
    without_torchao(monkeypatch)
    code, _, printed = run(*flags, *H100)
    assert code == 2
    assert complaint in printed


@pytest.mark.parametrize(
    ("flags", "engine"),
    [
        (("slurm", "--container-image", "image:1", "--engine", "torch", "--precision", "fp8"), "torch"),
        (("slurm", "--container-image", "image:1", "--engine", "torch", "--attention", "flash"), "torch"),
        (("slurm", "--container-image", "image:1", "--engine", "nemo"), "nemo"),
        (("skypilot",), "torch"),
        (("skypilot", "--precision", "fp8"), "torch"),
    ],
)
def test_packages_of_this_machine_do_not_matter_to_ranks_that_have_their_own(run, monkeypatch, flags, engine):
    sent = []
    monkeypatch.setattr(registry, "importable", lambda name: name.startswith("nemo") != (engine == "nemo"))
    without_torchao(monkeypatch)
    monkeypatch.setattr(submission, "executor_script", lambda spec, *_, **__: sent.append(spec) or "")
    code, _, printed = run("--executor", *flags, *H100)
    assert (code, [one.engine for one in sent]) == (0, [engine]), printed


@pytest.mark.parametrize("installed", [True, False], ids=["login node with NeMo", "without"])
@pytest.mark.parametrize(
    ("flags", "stem"),
    [
        (("slurm", "--container-image", "image:1", "--engine", "torch"), "benchmark_cuda_llama_torch"),
        (("slurm", "--container-image", "image:1", "--engine", "nemo"), "benchmark_cuda_llama"),
        (("skypilot",), "benchmark_cuda_llama"),
    ],
)
def test_a_result_of_an_image_has_the_same_name_whatever_the_login_node_has(run, monkeypatch, flags, stem, installed):
    folders = []

    def sent(_spec, *, wrapping, **_):
        folders.append(Path(wrapping[wrapping.index("--folder") + 1]).name)
        return launch.Ending(result=None, error=RunError("the job failed"))

    monkeypatch.setattr(registry, "importable", lambda name: installed or not name.startswith("nemo"))
    monkeypatch.setattr(launch, "run_in_process", sent)
    code, _, printed = run("--executor", *flags, "--gpu", "H100", "--num-gpus", "8")
    assert (code, [re.sub(r"_\d{8}_\d{6}_\d+_run1", "", name) for name in folders]) == (1, [stem]), printed


def spec(**changes):
    fields = {
        "model": "llama", "preset": "full", "engine": "nemo", "steps": 1, "warmup_steps": 0, "micro_batch_size": 1,
        "global_batch_size": 16, "sequence_length": 128, "precision": "bf16", "num_gpus": 8, "num_nodes": 2,
        "platform": "nvd", **changes,
    }  # fmt: skip
    return RunSpec.model_validate(fields)


def test_nemo_runs_on_several_nodes_only_through_an_executor():
    node = executors.node_machine(Cluster(executor="slurm", gpu="H100"), 8, HERE)
    nemo.check(spec(options={executors.OPTION: "slurm"}), node)
    with pytest.raises(UsageError, match="--nodes with --executor"):
        nemo.check(spec(), node)


def test_a_run_on_several_nodes_may_join_an_earlier_one_of_as_many_gpus():
    assert append.planned_result(spec(), HERE).training_config.num_gpus == 16, "what such a run's result says"


@pytest.fixture
def controller(tmp_path, monkeypatch):
    """Stand-ins for Slurm's commands: scontrol's answer, its exit code, and sacct's answer."""

    def controller(answer="", code=0, complaint="", accounting="exit 1"):
        fake_primus.program(tmp_path / "bin", "scontrol", f"echo '{answer}'; echo '{complaint}' >&2; exit {code}")
        fake_primus.program(tmp_path / "bin", "sacct", accounting)

    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return controller


def test_a_jobs_state_is_read_from_the_controller(controller):
    controller("JobId=7 JobName=tensorprimat.llama JobState=PENDING Reason=Resources NodeList=(null) ExitCode=0:0")
    state = slurm.job_state("7")
    assert (state.word, state.reason, state.nodes, state.ended) == ("PENDING", "Resources", None, False)
    controller("JobId=7 JobState=TIMEOUT Reason=TimeLimit NodeList=node-[1-2]")
    assert slurm.job_state("7").ended
    assert "time limit; give more with --time" in slurm.job_state("7").ending


def test_a_job_the_controller_has_forgotten_is_looked_up_in_the_accounting_if_there_is_one(controller):
    unknown = "slurm_load_jobs error: Invalid job id specified"
    controller(code=1, complaint=unknown, accounting="echo 'CANCELLED by 0|node-1'")
    assert slurm.job_state("7") == slurm.JobState(word="CANCELLED", nodes="node-1")
    controller(code=1, complaint=unknown)
    assert slurm.job_state("7") is None


def test_a_controller_that_does_not_answer_does_not_end_the_job(controller):
    controller(code=1, complaint="Unable to contact slurm controller (connect failure)")
    assert slurm.job_state("7").word == slurm.UNANSWERED
    assert not slurm.job_state("7").ended


def test_an_answer_of_slurm_without_a_state_does_not_end_the_wait_for_a_job(controller):
    controller("JobId=7")  # of a controller that is being replaced
    assert slurm.job_state("7") == slurm.JobState(word=slurm.UNANSWERED)
    unknown = "slurm_load_jobs error: Invalid job id specified"
    controller(code=1, complaint=unknown, accounting="echo '|'")
    assert slurm.job_state("7") is None
    controller(code=1, complaint=unknown, accounting="echo; echo 'TIMEOUT|n1'")
    assert slurm.job_state("7") == slurm.JobState(word="TIMEOUT", nodes="n1")


@pytest.mark.parametrize(("gres", "counts"), [("gpu:h100:8(S:0-1)", True), ("(null)", False)])
def test_gpus_are_requested_where_slurm_allocates_them(tmp_path, monkeypatch, gres, counts):
    fake_primus.program(tmp_path / "bin", "sinfo", f"echo '{gres}'")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert slurm.counts_gpus("gpu") is counts


SUMMARY = """\
[default0]:torch engine: training failed: RuntimeError: peer closed the connection
============================================================
on_node.py FAILED
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : node-2
  rank      : 9 (local_rank: 1)
  exitcode  : {code} (pid: 71)
  error_file: <N/A>
"""


@pytest.fixture
def console():
    return Console(out=io.StringIO(), err=io.StringIO())


def test_a_lost_rank_is_named_as_the_cause_whatever_the_others_print(console):
    for line in SUMMARY.format(code=-9).splitlines():
        console.show(line)
    assert console.cause() == f"rank 9 on node-2 {failures.KILLED}"


def test_slurms_line_about_a_kill_for_memory_is_the_proof_of_its_reason(console):
    console.show(
        "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed."
    )
    assert console.cause() == f"a process {failures.KILLED_FOR_MEMORY}"
    for line in SUMMARY.format(code=-9).splitlines():
        console.show(line)
    assert console.cause() == f"rank 9 on node-2 {failures.KILLED_FOR_MEMORY}"


def test_the_error_of_a_rank_that_failed_by_itself_is_the_reported_cause(console):
    for line in SUMMARY.format(code=1).splitlines():
        console.show(line)
    assert console.cause() == "training failed: RuntimeError: peer closed the connection"


def test_a_connection_that_another_rank_lost_is_not_the_cause(console):
    console.show("[default1]:torch engine (rank 1): out of memory: llama (full); try --recompute")
    lost = f"torch engine: training failed: {failures.ADVICE[failures.RANK_LOST]}"
    console.show(f"[default0]:{lost}")
    assert console.cause() == "out of memory: llama (full); try --recompute"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("llama/0 bash: line 1: torchrun: command not found", "torchrun: command not found"),
        ("slurmstepd: error: execve(): torchrun: No such file or directory",
         "execve(): torchrun: No such file or directory"),
        ("[default0]:ModuleNotFoundError: No module named 'torch'", "ModuleNotFoundError: No module named 'torch'"),
    ],
)  # fmt: skip
def test_a_missing_program_of_an_image_or_a_node_is_named_as_the_cause(console, line, cause):
    console.show(line)
    assert console.cause() == cause


def test_the_engines_own_lines_are_shown_and_the_rest_is_kept(console):
    console.show("[default0]:[CUDA] Step  10 | Time: 1.234s")
    console.show("(llama, pid=7) [default0]:[ROCM]   Work:   micro batch 1")
    console.show("a library's chatter")
    assert console.out.getvalue() == "[CUDA] Step  10 | Time: 1.234s\n[ROCM]   Work:   micro batch 1\n"
    assert console.err.getvalue() == "a library's chatter\n"
    assert console.cause() is None


def test_a_line_of_the_log_is_shown_once_and_whole(tmp_path, console):
    tail, log = Tail(tmp_path, "*.out"), tmp_path / "log-1.out"
    tail.show(console)
    log.write_text("one\ntw")
    tail.show(console)
    log.write_text("one\ntwo\nthree")
    tail.show(console)
    assert list(console.output) == ["one", "two"]
    tail.show(console, last=True)
    assert list(console.output) == ["one", "two", "three"]


ELSEWHERE = """
import signal, sys, time
def stop(*_):
    print("cluster engine: interrupted; Slurm job 7 was cancelled", file=sys.stderr)
    sys.exit(1)
signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
time.sleep(60)
"""


def test_ctrl_c_reports_the_outcome_of_the_job(tmp_path):
    program = tmp_path / "elsewhere.py"
    program.write_text(ELSEWHERE)

    def interrupt(_line):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)  # the signal arrives here

    ending = launch.run_in_process(
        spec(), module="unused", log=tmp_path / "log", on_line=interrupt, wrapping=[sys.executable, str(program)]
    )
    assert ending.interrupted
    assert str(ending.error) == "interrupted; Slurm job 7 was cancelled"


def test_a_script_that_nemo_run_cannot_write_is_reported_in_one_line(monkeypatch, tmp_path):
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="noise\nkubernetes: no configuration found\n")
    monkeypatch.setattr(submission.processes, "run_guarded", lambda *_, **__: failed)
    with pytest.raises(RunError, match="--executor kubernetes: kubernetes: no configuration found"):
        submission.executor_script(spec(), Cluster(executor="kubernetes"), module="m", folder=tmp_path)


def test_a_spec_file_is_read_as_the_work_that_it_describes():
    measured = PreflightSpec(platform="cpu", quick=True, num_gpus=1, num_nodes=2)
    for work in (spec(), spec(model="preflight"), measured):
        assert submission.SPEC.validate_json(work.model_dump_json()) == work
