"""The Megatron-Bridge engine without a GPU: a fake package of the same name prints the lines of a training."""

import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
from each import in_each

from tensorprimat.core.errors import RunError, UsageError
from tensorprimat.core.result import GpuInfo
from tensorprimat.core.spec import MODELS, RunSpec
from tensorprimat.engines import bridge
from tensorprimat.facts.data_rows import tomllib
from tensorprimat.machine.platform import Machine
from tensorprimat.storage import store

ROOT = Path(__file__).parents[1]
H100 = Machine(platform="nvd", gpu_info=GpuInfo(device_name="NVIDIA H100 80GB HBM3", device_count=8), host="here")
LAPTOP = Machine(platform="cpu", gpu_info=GpuInfo(device_name="some CPU"), host="here")

FACTS = tomllib.loads((Path(__file__).parent / "bridge_facts.toml").read_text())

STAND_IN = """
from types import SimpleNamespace

def qwen25_7b_pretrain_config():
    part = lambda *names: SimpleNamespace(**dict.fromkeys(names))
    return SimpleNamespace(
        model=part("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
            "virtual_pipeline_model_parallel_size", "sequence_parallel", "seq_length", "recompute_granularity",
            "recompute_method", "recompute_num_layers"),
        dataset=part("seq_length", "random_seed"), tokenizer=part("tokenizer_type", "tokenizer_model", "vocab_size"),
        train=part("train_iters", "micro_batch_size", "global_batch_size"), validation=part("eval_iters"),
        scheduler=part("lr_warmup_iters"), logger=part("log_interval"), checkpoint=part("save", "load"),
        rng=part("seed"), mixed_precision=None,
        env_vars={"NVTE_FWD_LAYERNORM_SM_MARGIN": 20, "PYTORCH_CUDA_ALLOC_CONF": "the recipe's", "NCCL_NVLS_ENABLE": 0})
"""
TRAINING = """
import os

def pretrain(config, forward_step_func):
    print("allocator:", os.environ["PYTORCH_CUDA_ALLOC_CONF"], flush=True)
    for step in range(1, config.train.train_iters + 1):
        print(f" [2026-11-21 10:00:{step:02d}] iteration {step:8d}/{config.train.train_iters:8d} | consumed samples:"
            f" {step * config.train.global_batch_size:12d} | elapsed time per iteration (ms): {500 + step:.1f} |"
            f" learning rate: 1.0E-06 | global batch size: {config.train.global_batch_size:5d} |"
            f" lm loss: {12 - step / 10:.6E} | loss scale: 1.0 | grad norm: 3.000 |"
            " number of skipped iterations:   0 | number of nan iterations:   0 |", flush=True)
    FAILURE
"""


def spec(tmp_path, model="qwen", **stated):
    return RunSpec(
        **{
            "model": model, "preset": "full", "engine": "bridge", "steps": 5, "warmup_steps": 1,
            "micro_batch_size": 1, "global_batch_size": 8, "sequence_length": 2048, "precision": "bf16",
            "num_gpus": 1, "methodology": None, "platform": "nvd", "output_dir": str(tmp_path / "output"), **stated,
        }
    )  # fmt: skip


def recipe():
    names = {}
    exec(STAND_IN, names)
    return names["qwen25_7b_pretrain_config"]()


def run(tmp_path, failure="pass"):
    """Run the engine's own process, with the stand-in for Megatron-Bridge in reach."""
    package = tmp_path / "site" / "megatron" / "bridge"
    (package / "training").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "recipes.py").write_text(STAND_IN)
    (package / "training" / "pretrain.py").write_text(textwrap.dedent(TRAINING).replace("FAILURE", failure))
    (package / "training" / "gpt_step.py").write_text("forward_step = None\n")
    requested = tmp_path / "spec.json"
    requested.write_text(spec(tmp_path).model_dump_json())
    return subprocess.run(
        [sys.executable, "-m", bridge.__name__, "--spec", str(requested), "--result", str(tmp_path / "result.json")],
        capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{tmp_path / 'site'}", "PYTHONUNBUFFERED": "1",
             "NCCL_NVLS_ENABLE": "1"},
    )  # fmt: skip


@pytest.mark.usefixtures("warm")
def test_a_training_is_started_followed_and_read_from_its_log(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "[CUDA] Step   6 | Time: 0.506s | Avg: 0.504s | Loss: 11.4000" in done.stdout
    result = store.load(tmp_path / "result.json")
    assert result.steps.column("seconds").tolist() == pytest.approx([0.501, 0.502, 0.503, 0.504, 0.505, 0.506])
    config = result.training_config
    assert (config.global_batch_size, config.sequence_length, config.precision) == (8, 2048, "bf16")
    assert (config.framework, result.provenance.engine, result.model.name) == ("Megatron-Bridge", "bridge", "qwen")
    assert result.complete
    assert list((tmp_path / "output").glob("bridge_training_qwen_*.log"))


@pytest.mark.usefixtures("warm")
def test_variables_of_the_recipe_and_of_the_user_reach_the_ranks_and_the_result_records_them(tmp_path):
    done = run(tmp_path)
    (log,) = (tmp_path / "output").glob("bridge_training_qwen_*.log")
    assert "allocator: the recipe's" in log.read_text()
    recorded = store.load(tmp_path / "result.json").training_config.environment
    expected = {
        "NVTE_FWD_LAYERNORM_SM_MARGIN": "20",
        "PYTORCH_CUDA_ALLOC_CONF": "the recipe's",
        "NCCL_NVLS_ENABLE": "1",
    }
    assert expected.items() <= recorded.items(), done.stderr
    assert "python" in store.load(tmp_path / "result.json").training_config.versions


@pytest.mark.usefixtures("warm")
def test_a_training_that_fails_keeps_its_log_and_its_measured_steps(tmp_path):
    done = run(tmp_path, failure="raise RuntimeError('NCCL gave up')")
    assert done.returncode == 1
    assert "bridge engine: Megatron-Bridge exited with 1: " in done.stderr
    assert "NCCL gave up" in done.stderr
    result = store.load(tmp_path / "result.json")
    assert not result.complete
    assert len(result.steps) == 6


def test_every_value_of_the_spec_is_set_in_the_recipe(tmp_path):
    requested = spec(tmp_path, precision="fp8", num_gpus=8, tensor_model_parallel_size=4, sequence_length=4096)
    config = bridge.configure_recipe(recipe(), requested)
    assert (config.model.tensor_model_parallel_size, config.model.sequence_parallel) == (4, True)
    assert config.model.seq_length == config.dataset.seq_length == 4096
    assert (config.train.train_iters, config.train.micro_batch_size, config.train.global_batch_size) == (6, 1, 8)
    assert config.mixed_precision == "bf16_with_fp8_current_scaling_mixed"
    assert (config.logger.log_interval, config.validation.eval_iters) == (1, 0)
    assert config.tokenizer.vocab_size == 152_063


OFFERED = [f"llama3_8b_pretrain_8gpu_{gpu}_{kind}_config" for gpu in ("h100", "gb200") for kind in ("bf16", "fp8cs")]


@in_each(
    ("changes", "gpu", "name"),
    [
        ({"precision": "fp8"}, "NVIDIA H100 80GB HBM3", "llama3_8b_pretrain_8gpu_h100_fp8cs_config"),
        ({"precision": "bf16"}, "NVIDIA H200", "llama3_8b_pretrain_8gpu_h100_bf16_config"),
        ({"precision": "fp8"}, "NVIDIA GB200", "llama3_8b_pretrain_8gpu_gb200_fp8cs_config"),
        ({"precision": "fp8"}, "NVIDIA B200", None),
        ({"precision": "fp16"}, "NVIDIA H100", None),
        ({"model": "qwen"}, "NVIDIA H100", None),
        ({"num_gpus": 4}, "NVIDIA H100", None),
        ({}, "NVIDIA A100-SXM4-80GB", None),
    ],
)
def test_the_performance_recipe_is_that_of_the_gpu_its_count_and_the_precision(tmp_path, changes, gpu, name):
    requested = spec(tmp_path, **{"model": "llama", "num_gpus": 8, **changes})
    assert bridge.performance_recipe_name(requested, gpu, OFFERED) == name


def test_a_performance_recipe_keeps_its_own_precision_and_recomputation(tmp_path):
    tuned = recipe()
    tuned.mixed_precision, tuned.model.recompute_granularity = "its own", "its own"
    requested = spec(tmp_path, precision="fp8", context_parallel_size=1)
    config = bridge.configure_recipe(tuned, requested, is_performance_recipe=True)
    assert (config.mixed_precision, config.model.recompute_granularity) == ("its own", "its own")
    assert config.train.global_batch_size == 8
    config = bridge.configure_recipe(
        tuned, requested.model_copy(update={"recompute": "full"}), is_performance_recipe=True
    )
    assert config.model.recompute_granularity == "full"


def test_another_recipe_gets_the_settings_common_to_performance_recipes(tmp_path):
    plain = recipe()
    plain.ddp = SimpleNamespace(check_for_nan_in_grad=True, grad_reduce_in_fp32=True)
    fusions = ("apply_rope_fusion", "bias_activation_fusion", "bias_dropout_fusion")
    vars(plain.model).update(dict.fromkeys(fusions, False))
    config = bridge.configure_recipe(plain, spec(tmp_path))
    assert (config.ddp.check_for_nan_in_grad, config.ddp.grad_reduce_in_fp32) == (False, False)
    assert all(getattr(config.model, fusion) for fusion in fusions), "as in NVIDIA's model of Llama"


def test_a_version_that_has_moved_a_setting_is_followed_or_refused_by_name(tmp_path):
    older = recipe()
    older.train.eval_iters = 32
    del older.validation
    assert bridge.configure_recipe(older, spec(tmp_path)).train.eval_iters == 0
    del older.scheduler.lr_warmup_iters
    with pytest.raises(RunError, match=r"has no scheduler\.lr_warmup_iters in its recipes; try --engine torch"):
        bridge.configure_recipe(older, spec(tmp_path))


@in_each("version", FACTS["versions"])
def test_every_name_used_of_megatron_bridge_is_in_each_of_its_versions(version):
    for model in MODELS:
        assert bridge.recipe_name(model, version["recipes"]).startswith(bridge.BRIDGE_RECIPES[model])
    there = {*FACTS["places"], *version["moved"]}
    for places, _ in bridge.BRIDGE_SETTINGS:
        assert there.intersection(places), places
    assert set(bridge.BRIDGE_PRECISIONS.values()) <= set(FACTS["precisions"])


def test_a_package_without_the_recipe_is_refused():
    with pytest.raises(UsageError, match="this Megatron-Bridge has no pretrain recipe of llama31_8b; try --engine"):
        bridge.recipe_name("llama", dir(SimpleNamespace()))


@in_each(
    ("machine", "stated", "complaint"),
    [
        (LAPTOP, {}, "--engine bridge needs an NVIDIA GPU, and this is a CPU machine"),
        (H100, {"preset": "tiny"}, "--preset tiny: Megatron-Bridge has recipes for the full models only"),
        (H100, {"precision": "fp32"}, "--precision fp32: Megatron-Bridge trains in bf16, fp8, fp16"),
        (H100, {"num_nodes": 2}, "2 nodes: the bridge engine trains on one; try --engine nemo"),
    ],
)
def test_a_run_that_it_does_not_support_is_refused_in_one_line(machine, stated, complaint, tmp_path):
    with pytest.raises(UsageError, match=complaint):
        bridge.check(spec(tmp_path, **stated), machine)
