"""FP8 of the torch engine: conversions, and refusals with their messages; perf/gpu_checks.py trains with torchao."""

import importlib.util
import logging
import sys
import types

import pytest
import torch
from architectures import completed

from tensorprimat.core import settings
from tensorprimat.core.errors import RunError, UsageError
from tensorprimat.core.result import GpuInfo
from tensorprimat.core.spec import RunSpec
from tensorprimat.engines import prepare
from tensorprimat.engines.registry import ENGINES
from tensorprimat.engines.torch import engine, fp8
from tensorprimat.engines.torch.model import LanguageModel
from tensorprimat.engines.torch.module import TrainingModule
from tensorprimat.machine.platform import Machine
from tensorprimat.models import presets
from tensorprimat.storage import store

RECIPES = settings.option("fp8_recipe").choices


def spec(**changes):
    return RunSpec(
        **{
            "model": "llama", "preset": "tiny", "engine": "torch", "steps": 2, "warmup_steps": 1,
            "micro_batch_size": 2, "global_batch_size": 4, "sequence_length": 32, "precision": "fp8", "num_gpus": 1,
            "platform": "nvd", **changes,
        }
    )  # fmt: skip


H100, GB200 = ("nvd", "NVIDIA H100 80GB HBM3", 85.0), ("nvd", "NVIDIA GB200", 198.0)
MI300X = ("amd", "AMD Instinct MI300X", 206.1)


def machine(platform, device, memory_gb, count):
    gpu_info = GpuInfo(device_name=device, device_count=count, total_memory_gb=memory_gb)
    return Machine(platform=platform, gpu_info=gpu_info, host="here")


@pytest.mark.parametrize(
    ("gpu", "count", "model", "helps"),
    [
        (H100, 8, "llama", ", or --engine nemo or bridge"), (H100, 2, "llama", ""), (H100, 1, "llama", ""),
        (GB200, 1, "llama", ""), (GB200, 1, "mistral", ", or --engine nemo or bridge"),
        (MI300X, 1, "llama", ", or --engine primus"), (MI300X, 1, "mistral", ""),
    ],
    ids=str,
)  # fmt: skip
def test_without_torchao_the_remedy_names_the_engines_that_can_train_here(monkeypatch, gpu, count, model, helps):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    here = machine(*gpu, count)
    planned = spec(platform=gpu[0], num_gpus=count, model=model, preset="full", global_batch_size=16)
    with pytest.raises(UsageError) as refused:
        prepare.check_spec(ENGINES["torch"], planned, here)
    assert str(refused.value).endswith(f"pip install torchao, or use --precision bf16{helps}")
    with pytest.raises(UsageError, match=r"--precision bf16$"):
        engine.check_packages(planned.changed(preset="tiny"))
    with pytest.raises(UsageError, match="--precision bf16 without --methodology"):
        engine.check_packages(planned.changed(methodology="max"))


def test_packages_of_this_machine_do_not_matter_to_ranks_in_a_container(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    here = machine(*H100, 8)
    for changes in ({}, {"precision": "bf16", "attention_backend": "flash"}):
        planned = spec(num_gpus=8, preset="full", global_batch_size=16, **changes)
        with pytest.raises(UsageError, match="not installed"):
            prepare.check_spec(ENGINES["torch"], planned, here)
        prepare.check_spec(ENGINES["torch"], planned, here, packages=False)
    old = machine("nvd", "NVIDIA A100-SXM4-80GB", 85.1, 8)
    with pytest.raises(UsageError, match="has no FP8 matrix units"):
        prepare.check_spec(ENGINES["torch"], spec(num_gpus=8, global_batch_size=16), old, packages=False)


GPUS = {
    "Tesla T4": (7, 5), "NVIDIA A10": (8, 6), "NVIDIA L4": (8, 9), "NVIDIA GeForce RTX 5090": (12, 0),
    "AMD Instinct MI100": "gfx908:sramecc+:xnack-", "AMD Instinct MI300X VF": "gfx942:sramecc+:xnack-",
    "AMD Radeon AI PRO R9700": "gfx1201",
}  # fmt: skip


def seen_by_torch(monkeypatch, device):
    """Let torch see one GPU of GPUS; return the machine that has it."""
    amd = isinstance(GPUS[device], str)
    major, minor = (9, 0) if amd else GPUS[device]
    properties = types.SimpleNamespace(major=major, minor=minor, gcnArchName=GPUS[device] if amd else device)
    monkeypatch.setattr(torch.version, "hip", "7.0" if amd else None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: device)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())  # torchao
    gpu_info = GpuInfo(device_name=device, device_count=1, total_memory_gb=150.0)
    return Machine(platform="amd" if amd else "nvd", gpu_info=gpu_info, host="here")


@pytest.mark.parametrize(
    ("device", "instead"), [("Tesla T4", "fp16"), ("NVIDIA A10", "bf16"), ("AMD Instinct MI100", "bf16")]
)
def test_a_gpu_that_the_catalogue_does_not_hold_is_refused_if_it_has_no_fp8_units(monkeypatch, device, instead):
    on = seen_by_torch(monkeypatch, device)
    with pytest.raises(UsageError) as refused:
        prepare.check_spec(ENGINES["torch"], spec(platform=on.platform), on)
    assert str(refused.value) == (f"--precision fp8: {device} has no FP8 matrix units; use --precision {instead}")


@pytest.mark.parametrize(
    "device", ["NVIDIA L4", "NVIDIA GeForce RTX 5090", "AMD Instinct MI300X VF", "AMD Radeon AI PRO R9700"]
)
def test_a_gpu_with_fp8_units_is_accepted(monkeypatch, device):
    on = seen_by_torch(monkeypatch, device)
    prepare.check_spec(ENGINES["torch"], spec(platform=on.platform), on)


def test_parallel_sizes_on_amd_are_sent_to_primus():
    with pytest.raises(UsageError, match="use 1, or --engine primus"):
        engine.check(spec(platform="amd", precision="bf16", tensor_model_parallel_size=2, num_gpus=2), None)


def test_fp8_trains_in_bfloat16_around_its_products():
    assert engine.lightning_precision(spec()) == "bf16-true"
    assert engine.lightning_precision(spec(master_weights="fp32")) == "bf16-mixed"


def test_the_result_names_the_recipe_that_ran():
    assert engine._declared(spec())["fp8_recipe"] == "tensorwise"
    assert engine._declared(spec(fp8_recipe="rowwise"))["fp8_recipe"] == "rowwise"
    assert engine._declared(spec(precision="bf16"))["fp8_recipe"] is None


class _Float8(torch.nn.Linear):
    """Stand-in for torchao's layer."""


_Float8.__name__ = "Float8Linear"


def stand_in(monkeypatch):
    """Put a torchao in place that replaces layers by name only; return the recipes that are requested.

    After the model is built: transformers looks for the real one.
    """
    requested = []

    class Float8LinearConfig:
        @staticmethod
        def from_recipe_name(name):
            requested.append(name)
            return name

    def convert(module, *, module_filter_fn, config):
        assert config in RECIPES
        for parent in list(module.modules()):
            for name, part in list(parent.named_children()):
                if type(part) is torch.nn.Linear and module_filter_fn(part, name):
                    setattr(parent, name, _Float8(part.in_features, part.out_features, bias=False))
        return module

    package, inner = types.ModuleType("torchao"), types.ModuleType("torchao.float8")
    inner.Float8LinearConfig, inner.convert_to_float8_training = Float8LinearConfig, convert
    monkeypatch.setitem(sys.modules, "torchao", package)
    monkeypatch.setitem(sys.modules, "torchao.float8", inner)
    return requested


def test_every_linear_layer_but_the_head_is_converted(monkeypatch):
    network = LanguageModel(presets.find_preset("llama", "tiny"))
    before = sum(isinstance(part, torch.nn.Linear) for part in network.decoder.layers.modules())
    requested = stand_in(monkeypatch)
    assert fp8.convert_layers(network.decoder.layers, "rowwise") == before
    assert set(requested) == {"rowwise"}
    assert type(network.causal.lm_head) is torch.nn.Linear


@pytest.mark.parametrize("recipe", ["tensorwise", "mxfp8"])
@pytest.mark.parametrize("size", [(17, 17), (32, 20), (20, 32)])
def test_a_model_with_a_layer_that_does_not_fit_the_units_is_refused(recipe, size):
    network = LanguageModel(presets.find_preset("llama", "tiny"))
    network.decoder.layers[1].mlp.up_proj = torch.nn.Linear(*size, bias=False)
    with pytest.raises(UsageError, match=r"multiples of (16|32); mlp.up_proj.weight .* use --precision bf16$"):
        fp8.convert_layers(network.decoder.layers, recipe)


@pytest.mark.parametrize("preset", presets.PRESETS, ids=lambda preset: f"{preset.model}-{preset.name}")
def test_every_matrix_of_the_layers_of_a_built_in_model_is_converted(preset):
    with torch.device("meta"):
        network = LanguageModel(preset)
    for multiple in (fp8.MULTIPLE, fp8.BLOCK):
        fp8.check_matrix_sizes(network.decoder.layers, multiple)


def test_experts_that_are_linear_layers_are_refused_too(monkeypatch):
    """As in transformers 4; here nothing of the model is left but the number of tokens of an expert."""
    monkeypatch.setattr(fp8, "check_units", lambda *_: None)
    monkeypatch.setattr(fp8, "check_matrix_sizes", lambda *_: None)
    with pytest.raises(UsageError, match=r"^--precision fp8: the number of tokens of each expert varies"):
        engine.check(spec(model="qwen3_moe", config=completed("qwen3_moe"), preset="full"), machine(*H100, 1))


@pytest.mark.parametrize(("kind", "left"), [("mixtral", "mlp.gate.weight"), ("cohere", None), ("qwen3", None)])
def test_a_model_with_experts_is_refused_before_it_trains_in_fp8(monkeypatch, kind, left):
    """Its routed experts would multiply in bf16 under the peak of FP8."""
    monkeypatch.setattr(fp8, "check_units", lambda *_: None)
    planned = spec(model=kind, config=completed(kind), preset="full")
    if left is None:
        engine.check(planned, machine(*H100, 1))
        return
    with pytest.raises(UsageError, match=f"^--precision fp8: torchao converts .*{left} .*use --precision bf16$"):
        engine.check(planned, machine(*H100, 1))
    with pytest.raises(UsageError, match=r"bf16 without --methodology$"):
        engine.check(planned.changed(methodology="max"), machine(*H100, 1))
    engine.check(planned.changed(precision="bf16"), machine(*H100, 1))


def test_warnings_of_torchaos_import_are_not_printed():
    LanguageModel(presets.find_preset("llama", "tiny"))
    for name in ("torchao", "torch.utils._pytree"):
        assert not logging.getLogger(name).isEnabledFor(logging.WARNING)


@pytest.mark.parametrize(
    ("device", "changes", "complaint"),
    [
        ("NVIDIA H100 80GB HBM3", {}, "in MXFP8 on B200, GB200, B300, GB300, not on H100 SXM; use --fp8-recipe tensor"),
        ("AMD Instinct MI355X", {"platform": "amd"}, "not on MI355X; use --fp8-recipe tensorwise or rowwise"),
        (
            "NVIDIA B200",
            {"sequence_length": 33, "micro_batch_size": 1},
            "33 tokens of a micro-batch are not a multiple",
        ),
    ],
)
def test_mxfp8_is_refused_in_one_line_where_it_cannot_run(monkeypatch, device, changes, complaint):
    monkeypatch.setattr(fp8, "importable", lambda _: True)
    with pytest.raises(UsageError) as refused:
        fp8.check_mxfp8(spec(fp8_recipe="mxfp8", **changes), GpuInfo(device_name=device))
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_mxfp8_needs_a_torchao_that_has_it(monkeypatch):
    blackwell = GpuInfo(device_name="NVIDIA B200")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())  # torchao
    monkeypatch.setattr(fp8, "importable", lambda _: False)
    fp8.check_mxfp8(spec(fp8_recipe="mxfp8"), blackwell)
    with pytest.raises(UsageError, match="no MXFP8 training; pip install -U torchao, or use --fp8-recipe tensorwise"):
        fp8.check_torchao(spec(fp8_recipe="mxfp8"), [])
    fp8.check_torchao(spec(), [])
    monkeypatch.setattr(fp8, "importable", lambda name: name == fp8.MXFP8_CONFIG)
    fp8.check_torchao(spec(fp8_recipe="mxfp8"), [])
    fp8.check_mxfp8(spec(), GpuInfo(device_name="NVIDIA H100 80GB HBM3"))
    assert engine._declared(spec(fp8_recipe="mxfp8"))["fp8_recipe"] == "mxfp8"


class _Wrapped(torch.nn.Parameter):
    """Stand-in for torchao's weight."""


def test_layers_that_torchao_leaves_as_they_are_end_the_run(monkeypatch):
    network = LanguageModel(presets.find_preset("llama", "tiny"))
    stand_in(monkeypatch)
    monkeypatch.setattr(sys.modules["torchao.float8"], "convert_to_float8_training", lambda module, **_: module)
    with pytest.raises(RunError, match="torchao converted 0 of 28 linear layers to FP8; use --precision bf16"):
        fp8.convert_layers(network.decoder.layers, "tensorwise")


def test_mxfp8_takes_every_linear_layer_but_the_head(monkeypatch):
    network = LanguageModel(presets.find_preset("llama", "tiny"))
    wrapped, recipes = [], []
    modules = {name: types.ModuleType(name) for name in MXFP8_MODULES}
    config, quantization = modules["torchao.prototype.moe_training.config"], modules["torchao.quantization"]
    config.MXFP8TrainingRecipe = {"MXFP8_RCEIL": "real", "MXFP8_EMULATED_RCEIL": "emulated"}
    config.MXFP8TrainingOpConfig = types.SimpleNamespace(from_recipe=lambda one: recipes.append(one) or one)

    def quantize_(part, *_, **__):
        wrapped.append((part.in_features, part.out_features))
        part.weight = _Wrapped(torch.empty(part.weight.shape))

    quantization.quantize_ = quantize_
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    count = fp8.convert_layers(network.decoder.layers, "mxfp8")
    assert recipes == ["real"]
    assert count == len(wrapped) == len(network.decoder.layers) * 7, "four of attention, three of the MLP"
    fp8.convert_layers(network.decoder.layers, "mxfp8", emulate=True)
    assert recipes[-1] == "emulated"


MXFP8_MODULES = (
    "torchao", "torchao.prototype", "torchao.prototype.moe_training", "torchao.prototype.moe_training.config",
    "torchao.quantization",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_a_training_in_fp8_does_not_contradict_lightning_which_has_no_word_for_it(tmp_path, monkeypatch):
    """With emulated products, so that the result says afterwards that none ran in FP8."""
    pytest.importorskip("torchao")
    convert = fp8.convert_layers
    monkeypatch.setattr(fp8, "convert_layers", lambda layers, recipe, **_: convert(layers, recipe, emulate=True))
    trained = spec(platform="cpu")
    module, file = TrainingModule(trained), tmp_path / "result.json"
    engine.trainer_of(trained, [engine.callback_of(trained, module, file)]).fit(module)
    assert "setting_of_trainer" not in [one.code for one in store.load(file).remarks]
    assert module.benchmark_config()["compute_dtype"] == "float8"
