"""The NeMo engine against the real NeMo: recipes, serialisation, and training that agrees with NeMo's own log."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "nemo_env"
MODELS = ("llama", "qwen", "mistral")
STEPS = 4  # after one of warm-up
PRINTED_DIGITS = 2e-3  # NeMo prints four significant digits, rounded down or up
HOOK_SECONDS = 0.25  # its timer stops before the batch-end hooks, logging among them; ours runs from end to end


def python(shim, *arguments, PYTHONPATH="", **environment):  # noqa: N803
    """Return a fresh interpreter that finds the project, its tiny recipe and the stand-ins for CUDA."""
    path = os.pathsep.join(filter(None, (PYTHONPATH, str(ROOT), str(HERE), str(shim))))
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )  # fmt: skip


def test_the_collection_has_the_three_recipes():
    from nemo.collections import llm

    from tensorprimat.engines.nemo import engine as nemo

    assert llm.llama31_8b
    assert llm.qwen25_7b
    assert llm.mistral_7b
    assert nemo.unavailable() is None


def test_nemos_mistral_exchanges_attention_heads_so_that_context_parallel_allows_its_window():
    from nemo.collections import llm

    recipe = llm.mistral_7b.pretrain_recipe()
    config = recipe.model.config.__fn_or_cls__(cp_comm_type=recipe.model.config.cp_comm_type)
    assert (config.window_size, config.cp_comm_type) == ([4096, 0], "a2a")


@pytest.mark.parametrize("model", MODELS)
def test_this_tools_recipe_in_fp8_survives_serialisation_with_the_callback(model, tmp_path):
    from nemo_run.core.serialization.zlib_json import ZlibJSONSerializer

    from tensorprimat.core.spec import RunSpec
    from tensorprimat.engines.callback import BenchmarkCallback
    from tensorprimat.engines.nemo import recipe as nemo_recipe
    from tensorprimat.engines.torch.profile import StepProfiler

    spec = RunSpec(
        model=model, preset="full", engine="nemo", steps=20, warmup_steps=5, micro_batch_size=1, global_batch_size=128,
        sequence_length=8192, precision="fp8", num_gpus=8, tensor_model_parallel_size=4, platform="nvd",
        output_dir=str(tmp_path), options={"profile": str(tmp_path / "profile")},
    )  # fmt: skip
    recipe = nemo_recipe.build_recipe(spec)
    serialiser = ZlibJSONSerializer()
    assert serialiser.deserialize(serialiser.serialize(recipe)) == recipe
    assert recipe.trainer.plugins.fp8 == "hybrid"
    assert recipe.trainer.plugins.fp8_recipe == "delayed"
    assert recipe.data.seq_length == recipe.model.config.seq_length == 8192
    assert (recipe.data.global_batch_size, recipe.data.micro_batch_size) == (128, 1)
    assert recipe.trainer.strategy.tensor_model_parallel_size == 4
    assert recipe.trainer.strategy.sequence_parallel is True
    assert recipe.trainer.strategy.context_parallel_size == 1
    kinds = [callback.__fn_or_cls__ for callback in recipe.trainer.callbacks]
    assert kinds[-2:] == [BenchmarkCallback, StepProfiler], "the profiler writes after the end of a step"


@pytest.mark.parametrize(("precision", "scales"), [("bf16", None), ("fp8", "delayed"), ("fp16", None)])
def test_precision_and_scales_come_from_the_trainer_and_nothing_contradicts_them(precision, scales, tmp_path):
    from types import SimpleNamespace

    import fiddle

    from tensorprimat.core.spec import RunSpec
    from tensorprimat.engines import introspect
    from tensorprimat.engines.nemo import recipe as nemo_recipe

    spec = RunSpec(
        model="llama", preset="full", engine="nemo", steps=20, warmup_steps=5, micro_batch_size=1, global_batch_size=8,
        sequence_length=8192, precision=precision, num_gpus=8, platform="nvd", output_dir=str(tmp_path),
    )  # fmt: skip
    recipe = nemo_recipe.build_recipe(spec)
    trainer = SimpleNamespace(precision_plugin=fiddle.build(recipe.trainer.plugins))
    found = introspect._precision(trainer)
    assert (found["precision"], found["fp8_recipe"]) == (precision, scales)
    assert not found.keys() & recipe.trainer.callbacks[-1].training_config.keys()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_a_recipe_carries_nvidias_performance_settings(model, precision, tmp_path):
    from nemo_run.core.serialization.zlib_json import ZlibJSONSerializer

    from tensorprimat.core.spec import RunSpec
    from tensorprimat.engines.nemo import recipe as nemo_recipe

    spec = RunSpec(
        model=model, preset="full", engine="nemo", steps=20, warmup_steps=5, micro_batch_size=1, global_batch_size=128,
        sequence_length=8192, precision=precision, num_gpus=8, context_parallel_size=2, platform="nvd",
        output_dir=str(tmp_path),
    )  # fmt: skip
    recipe = nemo_recipe.build_recipe(spec)
    assert recipe.trainer.strategy.sequence_parallel is False, "there is no tensor parallelism to go with"
    ddp = recipe.trainer.strategy.ddp
    assert (ddp.overlap_grad_reduce, ddp.overlap_param_gather, ddp.check_for_nan_in_grad) == (True, True, False)
    assert (ddp.grad_reduce_in_fp32, recipe.trainer.plugins.grad_reduce_in_fp32) == (False, False)
    assert recipe.optim.config.use_precision_aware_optimizer is (precision == "bf16")
    config = recipe.model.config
    assert config.cross_entropy_fusion_impl == "te"
    assert (config.apply_rope_fusion, config.bias_activation_fusion, config.bias_dropout_fusion) == (True, True, True)
    names = [callback.__fn_or_cls__.__name__ for callback in recipe.trainer.callbacks]
    assert names.count("MegatronCommOverlapCallback") == names.count("GarbageCollectionCallback") == 1
    serialiser = ZlibJSONSerializer()
    assert serialiser.deserialize(serialiser.serialize(recipe)) == recipe


@pytest.mark.parametrize(("gpu", "graphs"), [("NVIDIA B200", True), ("NVIDIA H100 80GB HBM3", False)])
def test_a_recipe_has_cuda_graphs_where_nvidias_table_has_them_and_the_result_records_it(gpu, graphs, tmp_path):
    from tensorprimat.core.spec import RunSpec
    from tensorprimat.engines.nemo import recipe as nemo_recipe

    spec = RunSpec(
        model="llama", preset="full", engine="nemo", steps=20, warmup_steps=5, micro_batch_size=2,
        global_batch_size=128, sequence_length=8192, precision="fp8", num_gpus=8, platform="nvd",
        output_dir=str(tmp_path),
    )  # fmt: skip
    recipe = nemo_recipe.build_recipe(spec, device_name=gpu)
    assert recipe.model.config.enable_cuda_graph is graphs
    assert recipe.trainer.strategy.use_te_rng_tracker is graphs
    (ours,) = (one for one in recipe.trainer.callbacks if one.__fn_or_cls__.__name__ == "BenchmarkCallback")
    assert ours.training_config.get("cuda_graphs", False) is graphs


@pytest.mark.parametrize("model", MODELS)
def test_nemos_own_recipe_in_fp8_survives_serialisation_with_the_callback(model, tmp_path):
    import nemo_run
    from nemo.collections import llm
    from nemo.collections.llm.recipes.precision.mixed_precision import bf16_with_fp8_mixed
    from nemo_run.core.serialization.zlib_json import ZlibJSONSerializer

    from tensorprimat.engines.callback import BenchmarkCallback
    from tensorprimat.engines.nemo import recipe as nemo_recipe

    own = getattr(llm, nemo_recipe.NEMO_RECIPES[model])
    recipe = own.pretrain_recipe(name=model, dir=str(tmp_path), num_nodes=1, num_gpus_per_node=8)
    recipe.trainer.plugins = bf16_with_fp8_mixed()
    recipe.trainer.callbacks.append(nemo_run.Config(BenchmarkCallback, output_dir=str(tmp_path), model_name=model))
    serialiser = ZlibJSONSerializer()
    assert serialiser.deserialize(serialiser.serialize(recipe)) == recipe


def agrees(result, log):
    """Check for equal steps, equal losses to the digits printed, and step times that the hooks explain."""
    ours = {step.index: step for step in result.steps}
    theirs = {step.index + 1: step for step in log.steps}  # NeMo counts its iterations from 0
    assert list(ours) == list(theirs) == list(range(1, STEPS + 2))
    for index, step in theirs.items():
        assert ours[index].loss == pytest.approx(step.loss, rel=PRINTED_DIGITS)
        if index > 1:
            assert ours[index].seconds == pytest.approx(step.seconds, abs=HOOK_SECONDS)


@pytest.mark.parametrize("model", MODELS)
def test_a_tiny_training_gives_the_same_steps_as_nemos_own_log(shim, model, tmp_path):
    from tensorprimat import logs
    from tensorprimat.storage import store

    shown = python(shim, HERE / "tiny.py", model, tmp_path / "result.json", STEPS)
    assert shown.returncode == 0, shown.stderr[-2000:]
    (tmp_path / "train.log").write_text(shown.stdout + shown.stderr)
    result = store.load(tmp_path / "result.json")
    assert result.model.preset is None  # it was called full, and is not
    agrees(result, logs.read(tmp_path / "train.log"))
    assert (result.model.name, result.provenance.engine, result.platform) == (model, "nemo", "cpu")
    config = result.training_config
    assert (config.global_batch_size, config.micro_batch_size, config.sequence_length) == (4, 1, 64)
    assert (config.data_parallel_size, config.gradient_accumulation_steps) == (1, 4)
    assert config.recompute == "none", "the configuration of NeMo's model states it"
    assert result.performance_metrics.measured_steps == STEPS


UNDER_TORCHRUN = """
if __name__ == "__main__":  # NeMo-Run reads this file again in every rank
    import tiny
    from tensorprimat.engines.nemo import engine as nemo
    from tensorprimat.engines.nemo import recipe as nemo_recipe
    spec = tiny.spec("llama", {folder!r}, devices=2)
    nemo.execute(tiny.shrink(nemo_recipe.build_recipe(spec, result_file={folder!r} + "/result.json")), spec)
"""


def test_two_ranks_that_nemo_run_starts_with_torchrun_write_one_result(shim, tmp_path):
    from tensorprimat import logs
    from tensorprimat.storage import store

    script = tmp_path / "script.py"
    script.write_text(UNDER_TORCHRUN.format(folder=str(tmp_path)))
    (tmp_path / "sitecustomize.py").write_text("import cpu_shim\n")  # ranks import NeMo before they know of `tiny`
    shown = python(shim, script, NEMORUN_HOME=str(tmp_path), PYTHONPATH=str(tmp_path))
    assert shown.returncode == 0, shown.stderr[-2000:]
    result = store.load(tmp_path / "result.json")
    assert (result.training_config.num_gpus, result.training_config.data_parallel_size) == (2, 2)
    assert result.training_config.gradient_accumulation_steps == 2
    assert result.performance_metrics.measured_steps == STEPS
    (log,) = tmp_path.glob(
        "experiments/*/*/llama/nemo_run/*/llama/0/combined.log"
    )  # what NeMo-Run prints may lack rows
    agrees(result, logs.read(log))
    assert not [warning for warning in result.warnings if warning.startswith("memory:")]


PROFILED = """
import tiny
from tensorprimat.engines.nemo import engine as nemo
from tensorprimat.engines.nemo import recipe as nemo_recipe
spec = tiny.spec("llama", {folder!r}).model_copy(update={{"options": {{"profile": {folder!r} + "/profile"}}}})
nemo.execute(tiny.shrink(nemo_recipe.build_recipe(spec, result_file={folder!r} + "/result.json")), spec)
"""


def test_the_torch_profiler_records_steps_of_a_nemo_training(shim, tmp_path):
    from tensorprimat.storage import store

    shown = python(shim, "-c", PROFILED.format(folder=str(tmp_path)))
    assert shown.returncode == 0, shown.stderr[-2000:]
    assert "aten::" in (tmp_path / "profile.txt").read_text()
    assert (tmp_path / "profile.trace.json.gz").stat().st_size > 0
    steps = store.load(tmp_path / "result.json").steps
    assert [step.interrupted_by for step in steps] == ["", "", "", "", "profile"]


LIVE = """
import tiny, nemo_run as run
from benchmark_utils import BenchmarkCallback
from tensorprimat.engines.nemo import recipe as nemo_recipe
recipe = tiny.shrink(nemo_recipe.build_recipe(tiny.spec("llama", {folder!r})))
recipe.trainer.callbacks = [BenchmarkCallback(output_dir={folder!r}, platform="auto", model_name="llama")]
run.run(recipe, direct=True)
"""


def test_a_live_callback_works_when_the_recipe_runs_directly(shim, tmp_path):
    from tensorprimat.storage import store

    shown = python(shim, "-c", LIVE.format(folder=str(tmp_path)))
    assert shown.returncode == 0, shown.stderr[-2000:]
    (file,) = tmp_path.glob("benchmark_cpu_llama*.json")
    assert store.load(file).performance_metrics.total_steps == STEPS + 1
