"""FP8 of the torch engine: conversions, and refusals with their messages; perf/gpu_checks.py trains with torchao."""

import importlib.util
import logging
import sys
import types

import pytest
import torch

from tensorprimat.core import models, settings
from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import GpuInfo
from tensorprimat.core.spec import RunSpec
from tensorprimat.engines import ENGINES, prepare
from tensorprimat.engines.torch import engine, fp8
from tensorprimat.engines.torch.model import LanguageModel
from tensorprimat.machine.platform import Machine

RECIPES = settings.option("fp8_recipe").choices


def spec(**changes):
    return RunSpec(
        **{
            "model": "llama", "preset": "tiny", "engine": "torch", "steps": 2, "warmup_steps": 1,
            "micro_batch_size": 2, "global_batch_size": 4, "sequence_length": 32, "precision": "fp8", "num_gpus": 1,
            "platform": "nvd", **changes,
        }
    )  # fmt: skip


@pytest.mark.parametrize(
    ("platform", "num_gpus", "helps"),
    [("nvd", 2, ", or --engine nemo or bridge"), ("nvd", 1, ""), ("amd", 1, ", or --engine primus")],
)
def test_without_torchao_the_remedy_is_one_that_can_train_here(monkeypatch, platform, num_gpus, helps):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError) as refused:
        fp8.check(spec(platform=platform, num_gpus=num_gpus))
    assert str(refused.value).endswith(f"pip install torchao, or use --precision bf16{helps}")
    with pytest.raises(UsageError, match="--precision bf16 without --methodology"):
        fp8.check(spec(platform=platform, methodology="max"))


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
    assert str(refused.value) == (f"--precision fp8: {device} has no such matrix units; use --precision {instead}")


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
    """Stands in for torchao's layer."""


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
    network = LanguageModel(models.find("llama", "tiny"))
    before = sum(isinstance(part, torch.nn.Linear) for part in network.decoder.layers.modules())
    requested = stand_in(monkeypatch)
    assert fp8.convert(network, "rowwise") == before
    assert set(requested) == {"rowwise"}
    assert type(network.causal.lm_head) is torch.nn.Linear


def test_a_layer_is_converted_only_if_both_of_its_sides_fit(monkeypatch):
    network = LanguageModel(models.find("llama", "tiny"))
    sizes = [(16, 32), (32, 20), (20, 16), (20, 20)]
    for layer in network.decoder.layers:
        layer.mlp = torch.nn.Sequential(*(torch.nn.Linear(*size, bias=False) for size in sizes))
    stand_in(monkeypatch)
    fp8.convert(network, "tensorwise")
    for layer in network.decoder.layers:
        assert [type(part).__name__ for part in layer.mlp] == ["Float8Linear", "Linear", "Linear", "Linear"]


def test_a_model_whose_layers_do_not_fit_the_units_is_refused(monkeypatch):
    network = LanguageModel(models.find("llama", "tiny"))
    for layer in network.decoder.layers:
        for parent in list(layer.modules()):
            for name, part in list(parent.named_children()):
                if isinstance(part, torch.nn.Linear):
                    setattr(parent, name, torch.nn.Linear(17, 17, bias=False))
    stand_in(monkeypatch)
    with pytest.raises(UsageError, match="multiples of 16; use --precision bf16"):
        fp8.convert(network, "tensorwise")


def test_warnings_of_torchaos_import_are_not_printed():
    LanguageModel(models.find("llama", "tiny"))
    for name in ("torchao", "torch.utils._pytree"):
        assert not logging.getLogger(name).isEnabledFor(logging.WARNING)


@pytest.mark.parametrize(
    ("device", "changes", "complaint"),
    [
        ("NVIDIA H100 80GB HBM3", {}, "in MXFP8 on B200, GB200, B300, GB300, not on H100 SXM; use --fp8-recipe tensor"),
        ("AMD Instinct MI355X", {"platform": "amd"}, "not on MI355X; use --fp8-recipe tensorwise or rowwise"),
        ("NVIDIA B200", {"sequence_length": 33, "micro_batch_size": 1}, "33 tokens of a micro-batch do not divide"),
    ],
)
def test_mxfp8_is_refused_in_one_line_where_torchao_has_it_not(monkeypatch, device, changes, complaint):
    monkeypatch.setattr(fp8, "importable", lambda _: True)
    with pytest.raises(UsageError) as refused:
        fp8.check_mxfp8(spec(fp8_recipe="mxfp8", **changes), GpuInfo(device_name=device))
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_mxfp8_needs_a_torchao_that_has_it(monkeypatch):
    blackwell = GpuInfo(device_name="NVIDIA B200")
    monkeypatch.setattr(fp8, "importable", lambda _: False)
    with pytest.raises(UsageError, match="no MXFP8 training; pip install -U torchao, or use --fp8-recipe tensorwise"):
        fp8.check_mxfp8(spec(fp8_recipe="mxfp8"), blackwell)
    monkeypatch.setattr(fp8, "importable", lambda name: name == fp8.MXFP8_CONFIG)
    fp8.check_mxfp8(spec(fp8_recipe="mxfp8"), blackwell)
    fp8.check_mxfp8(spec(), GpuInfo(device_name="NVIDIA H100 80GB HBM3"))
    assert engine._declared(spec(fp8_recipe="mxfp8"))["fp8_recipe"] == "mxfp8"


def test_mxfp8_takes_the_layers_whose_sides_are_multiples_of_a_block(monkeypatch):
    network = LanguageModel(models.find("llama", "tiny"))
    for layer in network.decoder.layers:
        layer.mlp = torch.nn.Sequential(*(torch.nn.Linear(*size, bias=False) for size in ((32, 64), (48, 32))))
    wrapped, recipes = [], []
    modules = {name: types.ModuleType(name) for name in MXFP8_MODULES}
    config, quantization = modules["torchao.prototype.moe_training.config"], modules["torchao.quantization"]
    config.MXFP8TrainingRecipe = {"MXFP8_RCEIL": "real", "MXFP8_EMULATED_RCEIL": "emulated"}
    config.MXFP8TrainingOpConfig = types.SimpleNamespace(from_recipe=lambda one: recipes.append(one) or one)
    quantization.quantize_ = lambda part, *_, **__: wrapped.append((part.in_features, part.out_features))
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    count = fp8.convert(network, "mxfp8")
    assert recipes == ["real"]
    assert count == len(wrapped) == len(network.decoder.layers) * 5, "four of attention, one of two of the MLP"
    assert (48, 32) not in wrapped
    fp8.convert(network, "mxfp8", emulate=True)
    assert recipes[-1] == "emulated"


MXFP8_MODULES = (
    "torchao", "torchao.prototype", "torchao.prototype.moe_training", "torchao.prototype.moe_training.config",
    "torchao.quantization",
)  # fmt: skip
