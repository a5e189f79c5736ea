"""Memory of `--model config.json`: activations counted in the model's layers, against what autograd really keeps."""

import autograd_memory
import pytest
import torch
from architectures import completed
from each import in_some

from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import GpuInfo
from tensorprimat.core.spec import RunSettings
from tensorprimat.engines import prepare
from tensorprimat.engines.registry import ENGINES
from tensorprimat.engines.torch import config as torch_config
from tensorprimat.engines.torch import memory as torch_memory
from tensorprimat.engines.torch.model import LanguageModel
from tensorprimat.machine.platform import Machine
from tensorprimat.models import custom, training_memory
from tensorprimat.models.families import FAMILIES
from tensorprimat.session import run_summary

H200 = Machine(
    platform="nvd", gpu_info=GpuInfo(device_name="NVIDIA H200", device_count=8, total_memory_gb=150.8), host="here"
)
LENGTH = 64  # the window of tiny models


def spec_of(kind, **changes):
    settings = RunSettings(**{"steps": 3, "warmup_steps": 1, "seed": 1, "config": completed(kind), **changes})
    return prepare.spec_of(kind, settings, engine=ENGINES["torch"], machine=H200)


@in_some(4, "kind", FAMILIES)
def test_estimated_activations_of_every_architecture_equal_the_bytes_that_autograd_keeps(kind):
    spec = spec_of(
        kind, preset="tiny", compile=False, recompute="none", sequence_length=LENGTH, micro_batch_size=1, num_gpus=1,
        global_batch_size=1,
    )  # fmt: skip
    model = custom.model_of(spec)
    torch.set_default_dtype(torch.bfloat16)
    try:
        network = LanguageModel(model, sequence_length=LENGTH)
    finally:
        torch.set_default_dtype(torch.float32)
    torch_memory._use_kernels(network)
    with autograd_memory.kept_for_backward(network) as kept:
        network.hidden(torch.zeros((1, LENGTH), dtype=torch.long))
    counted = autograd_memory.total_bytes(kept)
    assert training_memory.estimate(spec).activations == pytest.approx(counted, rel=0.1)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch hides its own warning, unless warnings are errors
@pytest.mark.parametrize(("kind", "ratio"), [("llama", 1.0), ("qwen3", 1.08), ("mixtral", 1.15), ("llama4_text", 7.5)])
def test_a_compiled_layer_is_counted_in_the_graph_that_it_hands_to_backward(kind, ratio):
    """Llama's formula is exact; others keep norms of queries and keys, tokens of experts, or every expert."""
    model = torch_config.model_of_config(kind, completed(kind), "full")
    counted = torch_memory.mean_kept_bytes_per_token(model, precision="bf16", compiled=True)
    formula = training_memory.kept_bytes_per_token(
        model.memory_shape, width=2, compiled=True, fused_norm=True, whole_scores=0
    )
    assert counted / formula == pytest.approx(ratio, rel=0.02)


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("compiled", [True, False])
def test_autocast_is_counted_without_the_casts_of_the_weights(compiled):
    model = torch_config.model_of_config("llama", completed("llama"), "tiny")
    how = {"compiled": compiled, "fused_norm": True, "autocast": True}
    counted = torch_memory.mean_kept_bytes_per_token(model, precision="bf16", **how)
    formula = training_memory.kept_bytes_per_token(model.memory_shape, width=2, whole_scores=0, **how)
    assert counted == pytest.approx(formula, rel=0.03)


@pytest.mark.parametrize("fused_norm", [True, False])
def test_an_eager_layer_is_counted_with_and_without_a_fused_norm(fused_norm):
    model = torch_config.model_of_config("llama", completed("llama"), "tiny")
    counted = torch_memory.mean_kept_bytes_per_token(model, precision="bf16", compiled=False, fused_norm=fused_norm)
    formula = training_memory.kept_bytes_per_token(
        model.memory_shape, width=2, compiled=False, fused_norm=fused_norm, whole_scores=0
    )
    assert counted == pytest.approx(formula, rel=0.02)


def test_a_model_that_torch_cannot_count_is_estimated_by_its_shape_with_a_note(monkeypatch):
    counted = spec_of("mixtral", preset="tiny", num_gpus=1)
    assert "shape alone" not in run_summary.memory_estimate_text(counted, H200)

    def refuses(*_, **__):
        raise RuntimeError("not with such tensors")

    monkeypatch.setattr(torch_memory, "mean_kept_bytes_per_token", refuses)
    by_shape = spec_of("mixtral", preset="tiny", num_gpus=1)
    assert training_memory.estimate(by_shape).activations < training_memory.estimate(counted).activations
    assert "activations from the model's shape alone" in run_summary.memory_estimate_text(by_shape, H200)


WITHOUT_PLAN = {
    *("phi", "phi3", "glm4", "arcee", "starcoder2"),  # no gate, or fused projections
    *("mixtral", "olmoe", "qwen2_moe", "qwen3_moe", "gpt_oss", "deepseek_v2", "deepseek_v3", "llama4_text", "glm4_moe"),
    *("minimax_m2", "granitemoe", "phimoe"),
}


@in_some(4, "kind", FAMILIES)
def test_a_share_gives_a_plan_that_the_layers_of_an_architecture_run_or_is_refused(kind, monkeypatch):
    monkeypatch.setattr(torch_memory, "mean_kept_bytes_per_token", lambda *_, **__: 1e3)  # a share is of whatever it is
    small = {"preset": "tiny", "num_gpus": 1, "sequence_length": LENGTH, "precision": "bf16", "compile": False}
    if kind in WITHOUT_PLAN:
        with pytest.raises(UsageError, match="only for dense models with a gated MLP and fused attention, and not"):
            spec_of(kind, recompute="40%", **small)
        return
    spec, losses = spec_of(kind, recompute="40%", **small), []
    for plan in ("none", spec.recompute):
        torch.manual_seed(1)
        network = LanguageModel(custom.model_of(spec), sequence_length=LENGTH)
        if plan != "none":
            network.recompute_activations(plan)
        loss = network(torch.arange(LENGTH + 1)[None])
        loss.backward()
        losses.append([loss.item(), *(weight.grad.norm().item() for weight in network.decoder.layers.parameters())])
    assert losses[0] == losses[1]
