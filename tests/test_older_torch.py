"""The torch engine without what older versions of torch lack: each absence is faked, and the fallback runs."""

import process_group
import pytest
import torch
from torch.nn import functional

from tensorprimat.core.spec import RunSpec
from tensorprimat.engines.torch import attention as torch_attention
from tensorprimat.engines.torch import model as torch_model
from tensorprimat.engines.torch.model import LanguageModel
from tensorprimat.engines.torch.module import TrainingModule
from tensorprimat.machine.environment import has_fused_norm
from tensorprimat.models import presets


def loss_and_gradient():
    torch.manual_seed(0)
    network = LanguageModel(presets.find_preset("llama", "tiny"))
    loss = network(torch.randint(0, 512, (2, 33)))
    loss.backward()
    return float(loss.detach()), network.decoder.layers[0].self_attn.k_proj.weight.grad


def test_torch_2_4_repeats_keys_and_values_instead_of_grouping_queries(monkeypatch):
    expected, gradient = loss_and_gradient()

    def older(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
        assert query.shape[1] == key.shape[1] == value.shape[1]
        return functional.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)

    monkeypatch.setattr(torch_attention, "HAS_GROUPED_QUERIES", False)
    monkeypatch.setattr(torch_attention, "scaled_dot_product_attention", older)
    loss, own = loss_and_gradient()
    assert loss == pytest.approx(expected, rel=1e-5)
    assert torch.allclose(own, gradient, atol=1e-5)
    shape = presets.find_preset("llama", "tiny").shape
    found = torch_attention.kernel(shape, batch=1, sequence_length=64, dtype=torch.float32, device=torch.device("cpu"))
    assert found in ("flash", "math")


def test_torch_2_4_masks_a_window_and_computes_soft_caps_without_flex_attention(monkeypatch):
    assert torch_attention.uses_flex("cuda")
    assert torch_model.attention_of("gemma2", "sdpa", "cuda") == "flex_attention"
    monkeypatch.setattr(torch_attention.importlib.util, "find_spec", lambda _: None)
    assert not torch_attention.uses_flex("cuda")
    assert torch_model.attention_of("gemma2", "sdpa", "cuda") == "eager"


@pytest.fixture
def mesh():
    with process_group.one_rank():
        yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))


@pytest.mark.filterwarnings("ignore")
def test_torch_2_4_and_2_5_split_weights_by_the_earlier_name_of_fully_shard(monkeypatch, mesh):
    import torch.distributed._composable.fsdp as earlier
    import torch.distributed.fsdp as public
    from torch.distributed.fsdp import FSDPModule

    called = []
    real = earlier.fully_shard
    monkeypatch.setattr(earlier, "fully_shard", lambda module, **options: called.append(1) or real(module, **options))
    monkeypatch.delattr(public, "fully_shard")
    monkeypatch.delattr(FSDPModule, "set_modules_to_forward_prefetch")  # from torch 2.5 on
    network = LanguageModel(presets.find_preset("llama", "tiny"))
    network.shard(mesh)
    assert len(called) == len(network.decoder.layers) + 1
    network(torch.randint(0, 512, (2, 33))).backward()


def test_torch_2_8_has_no_fused_norm_on_a_gpu_and_the_result_names_none(monkeypatch):
    monkeypatch.setattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", lambda _name, key: key == "MPS")
    assert not has_fused_norm("cuda")
    spec = RunSpec(
        model="llama", preset="tiny", engine="torch", steps=1, warmup_steps=0, micro_batch_size=1, global_batch_size=1,
        sequence_length=32, precision="bf16", num_gpus=1, platform="nvd",
    )  # fmt: skip
    module = TrainingModule(spec)
    monkeypatch.setattr(TrainingModule, "device", torch.device("cuda", 0))
    monkeypatch.setattr(module, "_attention_kernel", lambda _: None)
    assert module.benchmark_config()["fused_kernels"] == "linear cross-entropy, AdamW"
    monkeypatch.setattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", lambda _name, key: key == "CUDA")
    assert module.benchmark_config()["fused_kernels"].startswith("RMS norm, ")
    compiled = TrainingModule(spec.model_copy(update={"compile": True}))
    monkeypatch.setattr(compiled, "_attention_kernel", lambda _: None)
    assert (
        compiled.benchmark_config()["fused_kernels"] == "RMS norm, RoPE, SwiGLU, linear cross-entropy, compiled AdamW"
    )
