"""FP8 of the torch engine: what is converted, what is refused, and by which words."""

import importlib.util
import sys
import types

import pytest
import torch

from tensorprimat.core import models
from tensorprimat.core.errors import UsageError
from tensorprimat.core.spec import RunSpec
from tensorprimat.engines.torch import engine, fp8
from tensorprimat.engines.torch.model import LanguageModel

TORCHAO = importlib.util.find_spec("torchao") is not None


def spec(**changes):
    return RunSpec(
        **{
            "model": "llama", "preset": "tiny", "engine": "torch", "steps": 2, "warmup_steps": 1,
            "micro_batch_size": 2, "global_batch_size": 4, "sequence_length": 32, "precision": "fp8", "num_gpus": 1,
            "platform": "nvd", **changes,
        }
    )  # fmt: skip


@pytest.mark.parametrize(("platform", "helps"), [("nvd", "--engine nemo or bridge"), ("amd", "--engine primus")])
def test_without_torchao_the_remedy_is_one_of_the_platform(monkeypatch, platform, helps):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError) as refused:
        fp8.check(spec(platform=platform))
    assert str(refused.value).endswith(f"pip install torchao, or use --precision bf16, or {helps}")


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
    """Put a torchao in place that replaces layers by name only; return the recipes that it is asked for.

    After the model is built: transformers looks for the real one.
    """
    asked = []

    class Float8LinearConfig:
        @staticmethod
        def from_recipe_name(name):
            asked.append(name)
            return name

    def convert(module, *, module_filter_fn, config):
        assert config in fp8.RECIPES
        for parent in list(module.modules()):
            for name, part in list(parent.named_children()):
                if type(part) is torch.nn.Linear and module_filter_fn(part, name):
                    setattr(parent, name, _Float8(part.in_features, part.out_features, bias=False))
        return module

    package, inner = types.ModuleType("torchao"), types.ModuleType("torchao.float8")
    inner.Float8LinearConfig, inner.convert_to_float8_training = Float8LinearConfig, convert
    monkeypatch.setitem(sys.modules, "torchao", package)
    monkeypatch.setitem(sys.modules, "torchao.float8", inner)
    return asked


def test_every_linear_layer_but_the_head_is_converted(monkeypatch):
    network = LanguageModel(models.find("llama", "tiny"))
    before = sum(isinstance(part, torch.nn.Linear) for part in network.decoder.layers.modules())
    asked = stand_in(monkeypatch)
    assert fp8.convert(network, "rowwise") == before
    assert set(asked) == {"rowwise"}
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


@pytest.mark.skipif(not TORCHAO, reason="torchao is not installed: pip install torchao")
@pytest.mark.parametrize("recipe", fp8.RECIPES)
def test_a_model_learns_with_emulated_fp8_products_almost_as_in_bfloat16(recipe):
    def losses(convert):
        torch.manual_seed(0)
        network = LanguageModel(models.find("llama", "tiny")).to(torch.bfloat16)
        if convert:
            fp8.convert(network, recipe, emulate=True)
        optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
        tokens = torch.randint(0, 512, (2, 33))
        found = []
        for _ in range(6):
            loss = network(tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(float(loss.detach()))
        return found

    plain, quantised = losses(convert=False), losses(convert=True)
    assert quantised[-1] < quantised[0] - 0.5
    assert quantised == pytest.approx(plain, rel=0.05)
    assert quantised != plain


@pytest.mark.gpu
@pytest.mark.skipif(not (TORCHAO and torch.cuda.is_available()), reason="needs a GPU and torchao")
@pytest.mark.parametrize("recipe", fp8.RECIPES)
def test_fp8_products_run_on_the_gpu(recipe):
    network = LanguageModel(models.find("llama", "tiny")).to("cuda", torch.bfloat16)
    fp8.convert(network, recipe)
    loss = network(torch.randint(0, 512, (2, 33), device="cuda"))
    loss.backward()
    assert torch.isfinite(loss)
