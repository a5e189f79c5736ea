"""Tests of the engine chosen for a model and machine, and of requests that are refused before anything runs."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
from each import in_each

from tensorprimat.cli import main
from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import GpuInfo
from tensorprimat.core.spec import MODELS, RunSettings
from tensorprimat.engines import prepare, registry
from tensorprimat.engines.choice import choose_engines, looks_for_logs
from tensorprimat.engines.cluster import executors, submission
from tensorprimat.engines.modules import MODULES, memory_model
from tensorprimat.engines.primus import checkout as primus_checkout
from tensorprimat.engines.registry import ENGINES, log_scripts
from tensorprimat.facts.data_rows import tomllib
from tensorprimat.machine.platform import Machine
from tensorprimat.session.plan import obstacle_of

ROOT = Path(__file__).parents[1]
CPU = Machine(platform="cpu", gpu_info=GpuInfo(device_count=1, total_memory_gb=16.0), host="here")
EIGHT_GPUS = Machine(platform="nvd", gpu_info=GpuInfo(device_count=8, total_memory_gb=85.0), host="here")


def chosen(requested, platform, with_log=()):
    plan = choose_engines(requested, platform=platform, models=MODELS, with_log=with_log)
    return {model: engine and engine.name for model, engine in plan.engines.items()}


def test_a_laptop_without_any_log_trains_tiny_models():
    assert chosen("auto", "cpu") == {"llama": "torch", "qwen": "torch", "mistral": "torch"}
    assert prepare.spec_of("llama", settings(), engine=ENGINES["torch"], machine=CPU).preset == "tiny"


def test_where_one_model_has_a_log_the_others_are_not_trained():
    assert chosen("auto", "cpu", ["llama"]) == {"llama": "logs", "qwen": None, "mistral": None}


def test_nothing_is_trained_instead_of_a_log_that_no_model_is_known_to_own():
    plan = choose_engines("auto", platform="cpu", models=MODELS, with_log=(), with_unassigned=["llama"])
    assert (set(plan.engines.values()), plan.from_logs) == ({None}, True)
    assert "--engine torch" in plan.because


def test_rocm_reads_logs_and_trains_only_on_request():
    assert chosen("auto", "amd") == {"llama": None, "qwen": None, "mistral": None}
    assert chosen("auto", "amd", ["qwen"]) == {"llama": None, "qwen": "primus", "mistral": None}


@in_each("platform", ["nvd", "amd", "cpu"])
def test_the_torch_engine_trains_everywhere_on_request(platform):
    assert set(chosen("torch", platform, ["llama"]).values()) == {"torch"}


@in_each(
    ("absent", "engine", "because"),
    [
        ((), "nemo", "the NeMo engine trains on this GPU"),
        (
            ("transformer_engine",),
            "bridge",
            "the Megatron-Bridge engine trains on this GPU; not installed here: the NeMo engine (no "
            "transformer_engine)",
        ),
        (
            ("nemo",),
            "bridge",
            "the Megatron-Bridge engine trains on this GPU; not installed here: the NeMo engine (no "
            "nemo.collections.llm, nemo_run)",
        ),
        (
            ("nemo", "megatron"),
            "torch",
            "the torch engine (Lightning) trains on this GPU; not installed here: the NeMo engine (no "
            "nemo.collections.llm, nemo_run), the Megatron-Bridge engine (no megatron.bridge)",
        ),
    ],
)
def test_cuda_trains_with_nemo_then_bridge_then_torch_and_states_the_reason(monkeypatch, absent, engine, because):
    monkeypatch.setattr(registry, "importable", lambda name: not name.startswith(absent) if absent else True)
    plan = choose_engines("auto", platform="nvd", models=MODELS, with_log=())
    assert {chosen.name for chosen in plan.engines.values()} == {engine}
    assert plan.because == because
    assert registry.default_engine("nvd") == engine, "its results have no engine in their names"


H100, H200, B200 = ("NVIDIA H100 80GB HBM3", 85.0), ("NVIDIA H200", 150.8), ("NVIDIA B200", 191.5)


def gpus(device, count):
    name, memory_gb = device
    gpu_info = GpuInfo(device_name=name, device_count=count, total_memory_gb=memory_gb)
    return Machine(platform="nvd", gpu_info=gpu_info, host="here")


@pytest.fixture
def plan_on(monkeypatch):
    """Function that returns the plan of --engine auto on a machine where packages are installed."""

    def plan(machine, *packages, models=("llama",), **flags):
        here = (*packages, "torch", "transformer_engine")
        monkeypatch.setattr(registry, "importable", lambda name: name.startswith(here))
        obstacle = obstacle_of(settings(**flags), machine)
        return choose_engines("auto", platform="nvd", models=models, with_log=(), obstacle=obstacle)

    return plan


def engine_names(plan):
    return [engine.name for engine in plan.engines.values()]


@pytest.mark.parametrize(
    ("device", "package", "because"),
    [
        (H100, "nemo", "has context parallel 2 (NVIDIA's published settings), which needs a multiple of 2 GPUs"),
        (H200, "nemo", "has context parallel 2 (NVIDIA's published settings), which needs a multiple of 2 GPUs"),
        (B200, "nemo", "at micro batch 2 needs about 235 GB on 1 GPU of 192 GB"),
        (H100, "megatron", "at micro batch 1 needs about 198 GB on 1 GPU of 85 GB"),
        (H200, "megatron", "at micro batch 1 needs about 198 GB on 1 GPU of 151 GB"),
        (B200, "megatron", "at micro batch 2 needs about 235 GB on 1 GPU of 192 GB"),
    ],
)
def test_one_gpu_that_nvidias_settings_do_not_fit_trains_with_torch_and_states_the_reason(
    plan_on, device, package, because
):
    plan = plan_on(gpus(device, 1), package)
    assert engine_names(plan) == ["torch"]
    title = ENGINES["nemo" if package == "nemo" else "bridge"].title
    assert f"trains on this GPU; not {title}, because llama {because}; not installed here: the " in plan.because
    prepare.check_memory(spec(gpus(device, 1)), gpus(device, 1))


@pytest.mark.parametrize("package", ["nemo", "megatron"])
def test_eight_gpus_train_with_nvidias_engine(plan_on, package):
    plan = plan_on(gpus(H100, 8), package, models=MODELS)
    assert set(engine_names(plan)) == {"nemo" if package == "nemo" else "bridge"}
    assert "because" not in plan.because


def test_models_with_other_engines_are_named(plan_on):
    plan = plan_on(gpus(B200, 1), "nemo", models=MODELS)
    assert engine_names(plan) == ["torch", "nemo", "nemo"]
    assert plan.because.startswith(
        "the torch engine (Lightning) trains llama on this GPU; the NeMo engine trains qwen, mistral on this GPU; not "
        "the NeMo engine, because llama at"
    )


@pytest.mark.parametrize(
    ("machine", "flags", "engine"),
    [
        (gpus(B200, 1), {"recompute": "full"}, "nemo"),
        (gpus(H100, 8), {"micro_batch_size": 64}, "nemo"),
        (gpus(H100, 1), {"tensor_model_parallel_size": 2}, "nemo"),
        (gpus(H100, 8), {"compile": True}, "nemo"),
        (gpus(H100, 1), {"compile": True}, "torch"),
        (gpus(H100, 8), {"num_gpus": 1}, "torch"),
        (gpus(H100, 1), {"methodology": "max"}, "nemo"),
        (gpus(H100, 1), {"methodology": "identical"}, "nemo"),
    ],
    ids=str,
)
def test_a_flag_changes_the_engine_only_where_the_other_could_never_train(plan_on, machine, flags, engine):
    assert engine_names(plan_on(machine, "nemo", **flags)) == [engine]


def test_a_methodology_that_does_not_fit_is_refused_with_the_flags_to_use_instead():
    alone = gpus(H100, 1)
    with pytest.raises(UsageError, match=r"use more --num-gpus, or --engine torch without --methodology$"):
        prepare.check_memory(
            prepare.spec_of("llama", settings(methodology="max"), engine=ENGINES["bridge"], machine=alone), alone
        )


def test_the_reason_for_an_engine_follows_from_the_requested_configuration(plan_on):
    plan = plan_on(gpus(H100, 1), "nemo", context_parallel_size=1)
    assert engine_names(plan) == ["torch"]
    assert "because llama at micro batch 1 needs about 198 GB on 1 GPU of 85 GB" in plan.because


def test_ranks_that_slurm_starts_use_the_engine_that_fits_their_number_of_gpus(monkeypatch):
    monkeypatch.setattr(registry, "importable", lambda _: True)
    cluster = executors.Cluster(executor="slurm")
    for count, engine in ((1, "torch"), (8, "nemo")):
        obstacle = obstacle_of(settings(), gpus(H100, count))
        plan = executors.plan_engines("auto", cluster, platform="nvd", models=["llama"], obstacle=obstacle)
        assert engine_names(plan) == [engine]
        assert "trains, started by slurm" in plan.because


@in_each(
    ("device", "count", "flags", "complaint"),
    [
        (
            H100, 1, {},
            "context parallel 2 (NVIDIA's published settings): 1 device cannot hold replicas of 2 (tensor × pipeline × "
            "context parallel size); use more --num-gpus, or --engine torch",
        ),
        (
            B200, 1, {"context_parallel_size": 2},
            "--context-parallel-size 2: 1 device cannot hold replicas of 2 (tensor × pipeline × context parallel size);"
            " change --num-gpus or a parallel size",
        ),
        (
            H200, 3, {},
            "context parallel 2 (NVIDIA's published settings): 3 devices cannot hold replicas of 2 (tensor × pipeline "
            "× context parallel size); use --context-parallel-size 1",
        ),
        (
            H100, 6, {},
            "global batch size 128 (NVIDIA's published settings) is not a multiple of micro batch size 1 (NVIDIA's "
            "published settings) × 3 data-parallel replicas; try --global-batch-size 129",
        ),
        (
            H100, 1, {"methodology": "identical"},
            "tensor parallel 4 (--methodology identical): 1 device cannot hold replicas of 4 (tensor × pipeline × "
            "context parallel size); change --num-gpus or leave --methodology out",
        ),
    ],
)  # fmt: skip
def test_a_refusal_names_a_flag_only_if_it_was_used_and_else_where_the_value_is_from(device, count, flags, complaint):
    with pytest.raises(UsageError) as refused:
        prepare.spec_of("llama", settings(**flags), engine=ENGINES["nemo"], machine=gpus(device, count))
    assert str(refused.value) == complaint


@pytest.mark.parametrize("engine", ["nemo", "bridge"])
def test_a_preset_that_the_engine_lacks_is_refused_before_its_batch_is_divided(engine):
    with pytest.raises(UsageError, match=r"^--preset tiny: the .* engine trains full models only; add --engine torch"):
        prepare.spec_of("llama", settings(preset="tiny"), engine=ENGINES[engine], machine=gpus(H100, 8))


@pytest.mark.parametrize(
    ("platform", "device"), [("nvd", "NVIDIA A100-SXM4-80GB"), ("amd", "AMD Instinct MI250X / MI250")]
)
def test_a_gpu_without_fp8_units_is_refused_before_missing_packages_are_reported(monkeypatch, platform, device):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    gpu_info = GpuInfo(device_name=device, device_count=8, total_memory_gb=68.7)
    machine = Machine(platform=platform, gpu_info=gpu_info, host="here")
    with pytest.raises(UsageError, match=r"^--precision fp8: .* has no FP8 matrix units; use --precision bf16$"):
        prepare.check_spec(ENGINES["torch"], spec(machine, precision="fp8"), machine)


def test_logs_are_looked_for_only_where_they_can_matter():
    assert looks_for_logs("auto", "cpu")
    assert looks_for_logs("auto", "amd")
    assert not looks_for_logs("auto", "nvd")
    assert looks_for_logs("logs", "nvd")
    assert not looks_for_logs("torch", "cpu")


def test_an_unknown_engine_is_refused_with_the_known_ones():
    known = "engines: auto, torch, nemo, bridge, primus, logs"
    with pytest.raises(UsageError, match=f"--engine jax: no such engine; {known}"):
        chosen("jax", "cpu")


def test_an_engine_that_lacks_its_packages_names_them_and_the_remedy(monkeypatch):
    monkeypatch.setattr(registry, "importable", lambda name: name == "torch")
    with pytest.raises(
        UsageError, match="the torch engine needs lightning, transformers, not installed here; pip install"
    ):
        prepare.check_engine(ENGINES["torch"])


@pytest.fixture
def without_transformer_engine(monkeypatch):
    monkeypatch.setattr(registry, "importable", lambda name: name != "transformer_engine")
    monkeypatch.setattr(executors, "importable", lambda _: True)
    monkeypatch.setattr(executors.shutil, "which", lambda name: name)
    monkeypatch.setattr(submission, "executor_script", lambda *_, **__: "")  # it runs NeMo-Run


def test_no_package_of_a_gpu_is_imported_to_find_it(tmp_path, monkeypatch):
    (tmp_path / "transformer_engine").mkdir()
    (tmp_path / "transformer_engine" / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert "transformer_engine" not in ENGINES["nemo"].missing_packages("nvd")


@pytest.mark.parametrize("platform", ["nvd", "amd"])
@pytest.mark.usefixtures("without_transformer_engine")
def test_nemo_without_transformer_engine_is_refused_on_a_gpu(tmp_path, monkeypatch, capsys, platform):
    gpu_info = EIGHT_GPUS.gpu_info
    machine = Machine(platform=platform, gpu_info=gpu_info, host="here")
    monkeypatch.setattr("tensorprimat.cli.benchmark.detect_platform", lambda **_: machine)
    assert main(["run", "--engine", "nemo", "--model", "llama", "--output", str(tmp_path)], program="tprimat") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "tprimat: the nemo engine needs transformer_engine, not installed here; use NVIDIA's NeMo image, which has all "
        "that NeMo needs on a GPU, or benchmark.py --engine torch"
    )
    prepare.check_engine(ENGINES["nemo"], "cpu")


@in_each(
    "flags",
    [
        ("--gpu", "H100", "--num-gpus", "8"),
        ("--executor", "slurm", "--gpu", "H100", "--num-gpus", "8"),
        ("--executor", "slurm", "--container-image", "image:1", "--engine", "nemo"),
    ],
)
@pytest.mark.usefixtures("without_transformer_engine")
def test_packages_for_a_gpu_are_not_asked_for_where_another_machine_or_an_image_trains(
    tmp_path, monkeypatch, capsys, flags
):
    monkeypatch.setattr("tensorprimat.cli.benchmark.detect_platform", lambda **_: gpus(H100, 8))
    monkeypatch.chdir(tmp_path)
    code = main(["run", "--model", "llama", "--dry-run", *flags])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    assert "the NeMo engine" in shown.out


@pytest.mark.parametrize("executor", ["local", "slurm"])
@pytest.mark.usefixtures("without_transformer_engine")
def test_an_executor_that_trains_with_the_packages_of_this_machine_asks_for_those_of_a_gpu(
    tmp_path, monkeypatch, capsys, executor
):
    monkeypatch.setattr("tensorprimat.cli.benchmark.detect_platform", lambda **_: gpus(H100, 8))
    monkeypatch.chdir(tmp_path)
    flags = ["run", "--model", "llama", "--dry-run", "--executor", executor]
    assert main(flags) == 0
    shown = capsys.readouterr().out
    assert f"the torch engine (Lightning) trains, started by {executor}; not installed here: the NeMo engine" in shown
    assert main([*flags, "--engine", "nemo"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "the nemo engine needs transformer_engine, not installed here" in line


@pytest.mark.usefixtures("without_transformer_engine")
def test_the_engine_without_a_name_in_its_files_is_the_one_that_auto_chooses_there():
    for cluster, engine in ((executors.Cluster(), "bridge"), (executors.Cluster(executor="slurm"), "nemo")):
        assert executors.cluster_default_engine(cluster, "nvd") == engine


@pytest.mark.parametrize("name", ["TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"])
def test_a_run_that_a_variable_keeps_from_compiling_is_recorded_as_uncompiled(monkeypatch, name):
    assert spec(EIGHT_GPUS).compile
    monkeypatch.setenv(name, "1")
    quiet = spec(EIGHT_GPUS)
    assert not quiet.compile
    assert [(one.code, one.values) for one in quiet.notes] == [("compiling_disabled", {"variable": f"{name}=1"})]
    assert (spec().notes, spec(EIGHT_GPUS, compile=False).notes) == ((), ())
    with pytest.raises(UsageError, match=f"--compile: {name}=1 turns torch.compile off; unset it, or leave --compile"):
        prepare.check_spec(ENGINES["torch"], spec(EIGHT_GPUS, compile=True), EIGHT_GPUS)


@in_each("version", ["4.52.4", "4.46.0", "3.5"])
def test_a_transformers_that_ignores_a_layers_recompute_is_refused_with_its_version(monkeypatch, version):
    real = registry.find_package
    old, new = SimpleNamespace(version=version), SimpleNamespace(version="4.53.0.dev0")
    monkeypatch.setattr(registry, "find_package", lambda name: old if name == "transformers" else real(name))
    needed = rf"the torch engine needs transformers 4.53 or newer \({version} is installed\); pip install"
    with pytest.raises(UsageError, match=needed):
        prepare.check_engine(ENGINES["torch"])
    monkeypatch.setattr(registry, "find_package", lambda name: new if name == "transformers" else real(name))
    prepare.check_engine(ENGINES["torch"])


def test_the_oldest_versions_of_an_engine_are_those_that_are_installed_with_it():
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["torch"]
    oldest = ENGINES["torch"].oldest
    assert sorted(extra) == sorted(f"{name}>={major}.{minor}" for name, (major, minor) in oldest.items())


def test_a_package_below_a_missing_one_is_not_importable():
    assert not registry.importable("no_such_package.part")
    assert registry.importable("tensorprimat.core")


def settings(**changes):
    return RunSettings(**{"steps": 20, "warmup_steps": 5, "seed": 1, **changes})


def spec(machine=CPU, model="llama", **changes):
    return prepare.spec_of(model, settings(**changes), engine=ENGINES["torch"], machine=machine)


def test_a_gpu_machine_trains_the_real_model_in_bf16_on_all_its_gpus():
    made = spec(EIGHT_GPUS)
    assert (made.preset, made.precision, made.num_gpus, made.platform) == ("full", "bf16", 8, "nvd")
    assert (made.micro_batch_size, made.global_batch_size, made.sequence_length) == (1, 128, 8192)


def test_a_flag_wins_over_the_preset():
    made = spec(micro_batch_size=4, global_batch_size=16, sequence_length=64, precision="bf16", num_gpus=2)
    assert (made.micro_batch_size, made.global_batch_size, made.sequence_length) == (4, 16, 64)
    assert (made.precision, made.num_gpus, made.gradient_accumulation_steps) == ("bf16", 2, 2)


@in_each(
    ("changes", "complaint"),
    [
        ({"steps": 0}, "--steps 0"),
        ({"warmup_steps": -1}, "--warmup-steps -1"),
        ({"micro_batch_size": 0}, "--micro-batch-size 0"),
        ({"global_batch_size": -8}, "--global-batch-size -8"),
        ({"global_batch_size": 7}, "--global-batch-size 7 is not a multiple"),
        ({"sequence_length": 0}, "--sequence-length 0"),
        ({"sequence_length": 100_000}, "--sequence-length 100000: Llama-3.1 tiny supports 2048"),
        ({"num_gpus": 0}, "--num-gpus 0"),
        ({"precision": "fp7"}, "--precision fp7"),
        ({"preset": "huge"}, "--preset huge: no preset 'huge' of llama; presets: full, tiny"),
        (
            {"tensor_model_parallel_size": 2},
            "--tensor-parallel-size 2: the torch engine supports data parallelism only; use 1$",
        ),
    ],
)
def test_a_spec_that_cannot_work_names_its_flag(changes, complaint):
    with pytest.raises(UsageError, match=complaint):
        spec(**changes)


def test_more_gpus_than_there_are_is_refused():
    with pytest.raises(UsageError, match="--num-gpus 16: this machine has 8"):
        spec(EIGHT_GPUS, num_gpus=16)


def test_a_model_that_cannot_fit_is_refused_before_it_is_built():
    with pytest.raises(UsageError, match=r"needs at least 64\.2 GB on each of 1 device "):
        prepare.check_memory(spec(preset="full"), CPU)
    prepare.check_memory(spec(EIGHT_GPUS), EIGHT_GPUS)


def test_every_engine_that_trains_names_its_modules():
    assert set(MODULES) == {name for name, engine in ENGINES.items() if engine.trains}
    assert all(row.program for row in MODULES.values())


@in_each("name", MODULES)
def test_the_modules_of_an_engine_have_the_functions_that_are_called(name):
    offers = {
        "configuration": ("spec_of", "spec_advice"),
        "checkout": ("models_here", "machine_of", "configures", "NO_CONFIG"),
        "command": ("show_command",),
    }
    for part, functions in offers.items():
        module = MODULES[name].load(part)
        assert module is None or all(hasattr(module, function) for function in functions)
    assert (MODULES[name].configuration is not None) == ENGINES[name].own_configuration
    estimates = memory_model(ENGINES[name])
    assert callable(estimates.estimate)
    assert callable(estimates.recomputed_share)


def test_the_scripts_that_write_a_log_exist_for_the_models_that_primus_configures():
    scripts = ENGINES["primus"].log_scripts
    assert set(scripts) == {model for model in MODELS if primus_checkout.configures(model)}
    for model, script in scripts.items():
        assert (ROOT / script).is_file()
        assert log_scripts(model) == [script]
    assert log_scripts("mistral") == []
