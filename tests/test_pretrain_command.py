"""Tests of pretrain_*.py and convert_checkpoint.py without NeMo: flags, variables, constants, a one-line refusal."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import scripts
from each import in_each

from tensorprimat.cli import main, pretrain
from tensorprimat.core.errors import UsageError
from tensorprimat.core.notices import Notice
from tensorprimat.core.result import GpuInfo
from tensorprimat.core.spec import MODELS, RunSettings
from tensorprimat.engines import prepare
from tensorprimat.engines.nemo import conversion
from tensorprimat.engines.nemo import engine as nemo
from tensorprimat.engines.nemo import recipe as nemo_recipe
from tensorprimat.engines.registry import ENGINES
from tensorprimat.machine.platform import Machine
from tensorprimat.models import presets

ROOT = Path(__file__).parents[1]
GPU = GpuInfo(device_name="NVIDIA H100 80GB HBM3", device_count=8, total_memory_gb=85.0)
H100 = Machine(platform="nvd", gpu_info=GPU, host="here")
LAPTOP = Machine(platform="cpu", gpu_info=GpuInfo(device_name="some CPU"), host="here")


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """Eight H100 with NeMo, where training only keeps each RunSpec; return the list of them."""
    specs = []
    monkeypatch.setattr("tensorprimat.machine.platform.detect_platform", lambda: H100)
    monkeypatch.setattr("tensorprimat.engines.registry.importable", lambda _: True)
    monkeypatch.setattr(nemo, "train", specs.append)
    monkeypatch.chdir(tmp_path)
    return specs


def script(model):
    """Return the script's own constants, as its call hands them over."""
    return scripts.load(f"pretrain_{model}.py").DEFAULTS


@pytest.mark.parametrize("model", MODELS)
def test_each_script_trains_its_model_by_the_agreed_methodology(model, trained):
    assert main(["pretrain"], defaults=script(model)) == 0
    (spec,) = trained
    assert (spec.model, spec.engine, spec.methodology, spec.num_gpus) == (model, "nemo", "agreed", 8)
    assert (spec.precision, spec.sequence_length) == ("fp8" if model == "llama" else "bf16", 8192)


def test_a_flag_overrides_a_variable_and_a_variable_overrides_the_scripts_constant(trained, monkeypatch):
    constants = {**script("llama"), "steps": 30, "warmup_steps": 3, "global_batch_size": 256}
    monkeypatch.setenv("TPRIMAT_STEPS", "40")
    monkeypatch.setenv("TPRIMAT_WARMUP_STEPS", "4")
    assert main(["pretrain", "--steps", "50"], defaults=constants) == 0
    (spec,) = trained
    assert (spec.steps, spec.warmup_steps, spec.global_batch_size) == (50, 4, 256)


def test_every_option_has_a_variable(capsys):
    assert main(["pretrain", "--help"]) == 0
    shown = capsys.readouterr().out
    for name in (
        "TENSOR_PARALLEL_SIZE", "PIPELINE_PARALLEL_SIZE", "CONTEXT_PARALLEL_SIZE", "MICRO_BATCH_SIZE",
        "GLOBAL_BATCH_SIZE", "SEQUENCE_LENGTH", "STEPS", "PRECISION", "NUM_GPUS", "NUM_NODES", "OUTPUT",
    ):  # fmt: skip
        assert f"TPRIMAT_{name}" in shown


def test_a_dry_run_shows_the_configuration_and_trains_nothing(trained, capsys):
    assert main(["pretrain", "--methodology", "identical", "--dry-run"], defaults=script("qwen")) == 0
    assert not trained
    shown = capsys.readouterr().out
    assert "Qwen2.5-7B" in shown
    assert "TP 4, DP 2" in shown
    assert "identical" in shown


@pytest.mark.skipif(importlib.util.find_spec("nemo") is not None, reason="NeMo is installed here")
def test_without_nemo_one_line_offers_the_torch_engine(tmp_path, capsys):
    assert main(["pretrain", "--output", str(tmp_path)], program="pretrain_llama.py") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pretrain_llama.py: the nemo engine needs nemo.collections.llm, nemo_run")
    assert "--engine torch" in line
    assert nemo.unavailable() == "NeMo is not installed"


@pytest.mark.skipif(importlib.util.find_spec("nemo") is not None, reason="NeMo is installed here")
def test_a_nemo_without_the_collection_is_reported_before_other_missing_packages(tmp_path, monkeypatch):
    (tmp_path / "nemo").mkdir()
    (tmp_path / "nemo" / "__init__.py").write_text("__version__ = '3.0.0'\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        printed = nemo.unavailable()
    finally:
        sys.modules.pop("nemo", None)
    assert printed == "NeMo 3.0.0 has no llm collection; NeMo 3 names Megatron-Bridge as its successor"


@pytest.fixture
def nemo_whose_llm_is(tmp_path, monkeypatch):
    """Function that installs a NeMo and a NeMo-Run, whose module nemo.collections.llm is the program that it gets."""
    if importlib.util.find_spec("nemo") is not None:
        pytest.skip("NeMo is installed here")
    packages = ("nemo", "nemo.collections", "nemo.collections.llm", "nemo_run")

    def install(program):
        for package in packages:
            folder = tmp_path / package.replace(".", "/")
            folder.mkdir()
            (folder / "__init__.py").write_text(program if package == "nemo.collections.llm" else "")
        monkeypatch.syspath_prepend(tmp_path)

    yield install
    for package in packages:
        sys.modules.pop(package, None)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("[][0]", "IndexError: list index out of range"),
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("raise RuntimeError('no driver\\n\\tand more')", "RuntimeError: no driver"),
    ],
)
def test_any_error_while_nemo_is_imported_is_the_reason_in_one_line(nemo_whose_llm_is, program, reason):
    nemo_whose_llm_is(program)
    assert nemo.unavailable() == f"NeMo's llm collection cannot be imported ({reason}); see requirements-nemo.txt"


@pytest.mark.parametrize("platform", ["nvd", "amd"])
def test_nemo_without_transformer_engine_cannot_train_on_a_gpu_and_is_not_imported(nemo_whose_llm_is, platform):
    nemo_whose_llm_is("raise RuntimeError('imported')")
    spec = prepare.spec_of("llama", RunSettings(steps=2, warmup_steps=1, seed=1), engine=ENGINES["nemo"], machine=H100)
    with pytest.raises(UsageError) as refused:
        nemo.train(spec.changed(platform=platform))
    assert str(refused.value) == (
        "NeMo needs transformer_engine on a GPU, not installed here; NVIDIA's NeMo image has it; try benchmark.py "
        "--engine torch"
    )
    assert "transformer_engine" not in nemo.unavailable()


def test_pretrain_without_transformer_engine_is_refused_in_one_line_on_a_gpu_only(trained, monkeypatch, capsys):
    monkeypatch.setattr("tensorprimat.engines.registry.importable", lambda name: name != "transformer_engine")
    assert main(["pretrain", "--dry-run"], program="pretrain_llama.py") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pretrain_llama.py: the nemo engine needs transformer_engine, not installed here; use ")
    assert not trained
    monkeypatch.setattr("tensorprimat.machine.platform.detect_platform", lambda: LAPTOP)
    assert main(["pretrain"], program="pretrain_llama.py") == 0
    assert len(trained) == 1


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_user_can_stop_the_import_of_nemo(nemo_whose_llm_is, stop):
    nemo_whose_llm_is(f"raise {stop.__name__}")
    with pytest.raises(stop):
        nemo.unavailable()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--model", "gpt"], "--model gpt: no such model; models: llama, qwen, mistral"),
        (["--precision", "fp32"], "--precision fp32: NeMo trains in bf16, fp8, fp16"),
        (["--tensor-parallel-size", "3"], "8 devices cannot hold replicas of 6"),
        (["--num-gpus", "16"], "--num-gpus 16: this machine has 8"),
        (["--num-nodes", "2"], "--num-nodes 2: start the script with srun or torchrun"),
        (["--steps", "many"], "--steps many: must be a whole number"),
        (["--micro-batch-size", "0"], "--micro-batch-size 0"),
    ],
)
def test_a_setting_that_nemo_lacks_is_refused_in_one_line(arguments, complaint, trained, capsys):
    assert main(["pretrain", *arguments], defaults={"model": "llama"}) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line
    assert not trained


TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2"}
SRUN = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_NUM_NODES": "2", "SLURM_PROCID": "0"}


@pytest.mark.parametrize("environment", [TORCHRUN, SRUN], ids=["torchrun", "srun"])
@pytest.mark.parametrize("flags", [[], ["--num-nodes", "2", "--num-gpus", "4"]])
def test_a_launcher_sets_the_gpus_and_nodes(environment, flags, trained, monkeypatch):
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["pretrain", *flags], defaults={"model": "llama"}) == 0
    (spec,) = trained
    assert (spec.num_gpus, spec.num_nodes) == (4, 2)
    assert os.environ.get("SLURM_NTASKS_PER_NODE") == ("4" if environment is SRUN else None)
    os.environ.pop("SLURM_NTASKS_PER_NODE", None)


@pytest.mark.parametrize(
    ("flags", "changed", "complaint"),
    [
        (["--num-gpus", "8"], {}, "--num-gpus 8: torchrun has started 4 processes per node"),
        (["--num-nodes", "3"], {}, "--num-nodes 3: torchrun has started processes on 2 nodes"),
        ([], {"WORLD_SIZE": "7"}, "torchrun: 7 processes on 2 nodes; start the same number on each"),
    ],
)
def test_a_number_that_the_launcher_contradicts_is_refused(flags, changed, complaint, trained, monkeypatch, capsys):
    for name, value in {**TORCHRUN, **changed}.items():
        monkeypatch.setenv(name, value)
    assert main(["pretrain", *flags], defaults={"model": "llama"}) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(complaint)
    assert not trained


def test_a_job_in_which_each_task_would_train_alone_is_refused_before_training(trained, monkeypatch, capsys):
    for name, value in {**SRUN, "SLURM_JOB_NAME": "interactive"}.items():
        monkeypatch.setenv(name, value)
    assert main(["pretrain"], defaults={"model": "llama"}) == 2
    assert "each task would train alone; give srun --job-name=benchmark, or use torchrun" in capsys.readouterr().err
    assert not trained


def test_one_rank_shows_a_dry_run_for_all(trained, monkeypatch, capsys):
    for name, value in {**TORCHRUN, "RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    assert main(["pretrain", "--dry-run"], defaults={"model": "llama"}) == 0
    assert capsys.readouterr() == ("", "")
    assert not trained


def test_nemo_is_refused_where_there_is_no_nvidia_gpu():
    settings = RunSettings(steps=2, warmup_steps=1, seed=nemo.NEMO_SEED, preset="full")
    spec = prepare.spec_of("llama", settings, engine=ENGINES["nemo"], machine=LAPTOP)
    with pytest.raises(UsageError, match=r"an NVIDIA GPU, and this is a CPU machine; try benchmark\.py --engine torch"):
        nemo.check(spec, LAPTOP)


MI300X = Machine(
    platform="amd", gpu_info=GpuInfo(device_name="AMD Instinct MI300X", device_count=8, total_memory_gb=206.0), host="x"
)


@pytest.mark.parametrize("machine", [MI300X, LAPTOP], ids=["amd", "cpu"])
def test_installed_nemo_trains_on_other_hardware_and_the_result_names_the_platform(
    machine, trained, monkeypatch, capsys
):
    monkeypatch.setattr("tensorprimat.machine.platform.detect_platform", lambda: machine)
    assert main(["pretrain"], defaults={"model": "llama"}) == 0
    (spec,) = trained
    assert (spec.platform, spec.preset) == (machine.platform, "full")
    told = Notice("nvidia_recipe", "engine", machine={"amd": "ROCm", "cpu": "CPU"}[machine.platform])
    assert f"warning: {told}" in capsys.readouterr().err


def test_every_model_has_a_recipe_and_a_converter():
    assert set(nemo_recipe.NEMO_RECIPES) == set(conversion.KINDS) == set(MODELS)


def checkpoint(folder, model_type="llama", weights=1000):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    if weights:
        (folder / "model.safetensors").write_bytes(b"x" * weights)
    return str(folder)


def test_a_conversion_first_prints_the_space_and_memory_it_needs(tmp_path, capsys):
    assert conversion.needs("llama", "hf://meta-llama/Llama-3.1-8B").output_bytes == 2 * 8_030_261_248
    arguments = ["--model", "llama", "--source", checkpoint(tmp_path / "hf"), "--output", str(tmp_path / "new")]
    assert main(["convert", *arguments, "--dry-run"]) == 0
    assert "This needs at least 1 kB of disk" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_checkpoint_with_copies_of_its_weights_needs_the_space_of_those_that_transformers_loads(tmp_path):
    source = Path(checkpoint(tmp_path / "hf"))
    (source / "consolidated.safetensors").write_bytes(b"x" * 1000)  # Mistral's own format
    (source / "pytorch_model.bin").write_bytes(b"x" * 1000)
    assert conversion.needs("llama", str(source)).output_bytes == 1000
    (source / "model.safetensors").unlink()
    assert conversion.needs("llama", str(source)).output_bytes == 1000


def test_a_disk_without_room_is_refused(tmp_path):
    vast = conversion.Needs(download_bytes=0, output_bytes=2**60, memory_bytes=2**60)
    with pytest.raises(UsageError, match=r"needs .* GB, but only .* GB are free; choose another disk"):
        conversion.check_room(vast, tmp_path / "new")


def test_a_cache_without_room_for_the_download_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    vast = conversion.Needs(download_bytes=2**60, output_bytes=1, memory_bytes=1)
    (warning,) = conversion.check_room(vast, tmp_path / "new")
    assert warning.startswith(f"{tmp_path / 'cache'}: the download needs 1,152,921,505 GB")
    assert warning.endswith("set HF_HOME to another folder")


@in_each(
    ("model", "source", "complaint"),
    [
        ("gpt", "hf://a/b", "--model gpt: no such model; models: llama, qwen, mistral"),
        ("llama", "meta-llama/Llama-3.1-8B", "no such folder; for the Hugging Face hub write hf://"),
        ("qwen", "llama", "config.json: model_type is 'llama', not 'qwen2'"),
        ("llama", "empty", "no weights"),
        ("llama", "nothing", "config.json: no such file; give a Hugging Face checkpoint"),
        ("llama", "broken", "config.json: not a Hugging Face configuration"),
        ("llama", "pipe", "config.json: is a pipe or a device, not a file"),
    ],
)
def test_a_source_that_cannot_be_converted_is_refused_in_one_line(
    model, source, complaint, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    checkpoint(tmp_path / "llama")
    checkpoint(tmp_path / "empty", weights=0)
    (tmp_path / "nothing").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("[1]")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "config.json")
    assert main(["convert", "--model", model, "--source", source, "--output", "new"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line


def test_a_wrong_number_of_nodes_names_the_flag_of_this_command(trained, capsys):
    assert main(["pretrain", "--num-nodes", "0"]) == 2
    assert "--num-nodes" in capsys.readouterr().err
    assert not trained


def test_help_shows_the_defaults_of_nemos_recipes(capsys):
    assert main(["pretrain", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "(the methodology's, or bf16)" in shown
    assert "(agreed if it has values for the GPU, else none)" in shown


def test_help_names_the_batch_and_sequence_without_a_methodology():
    for name, value in presets.FULL_BATCH.items():
        assert pretrain.HERE[name]["shown_default"] == f"the methodology's, or {value}"


def test_ranks_that_torchrun_starts_find_this_package_from_any_folder_and_no_part_of_it_alone(monkeypatch, tmp_path):
    class Experiment:
        """Experiment of NeMo-Run that starts one rank's imports, in the environment of its executor."""

        def __init__(self, _name, *, executor):
            self.executor, self.jobs = executor, [SimpleNamespace(state=SimpleNamespace(name="SUCCEEDED"))]

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def add(self, *_, **__):
            pass

        def run(self, **_):
            program = "import importlib.util, tensorprimat.engines.entry as found; print(found.__file__); "
            program += "print([name for name in ('core', 'logs', 'data') if importlib.util.find_spec(name)])"
            ranks.append(subprocess.run(
                [sys.executable, "-c", program], cwd=tmp_path, env=self.executor["env_vars"], text=True, check=True,
                capture_output=True,
            ).stdout.splitlines())  # fmt: skip

    ranks = []
    nemo_run = SimpleNamespace(LocalExecutor=lambda **settings: settings, Experiment=Experiment)
    monkeypatch.setitem(sys.modules, "nemo_run", nemo_run)
    monkeypatch.setattr(nemo, "_environment", lambda _: {})
    settings = RunSettings(steps=2, warmup_steps=1, seed=nemo.NEMO_SEED)
    spec = prepare.spec_of("llama", settings, engine=ENGINES["nemo"], machine=H100)
    nemo.execute(None, spec)
    assert ranks == [[str(ROOT / "tensorprimat" / "engines" / "entry.py"), "[]"]]
