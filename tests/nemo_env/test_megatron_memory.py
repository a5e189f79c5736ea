"""Bytes that a layer of the real Megatron Core hands to backward, against models/megatron_memory."""

import contextlib

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")

import autograd_memory  # noqa: E402
import process_group  # noqa: E402

from tensorprimat.core.result import ModelShape  # noqa: E402
from tensorprimat.models import megatron_memory  # noqa: E402
from tensorprimat.models.memory_estimate import CONTEXT_BYTES  # noqa: E402

TOKENS = 64


class _FlashKeeps(torch.autograd.Function):
    """Attention that keeps what a flash kernel keeps: its inputs, its output, and one log-sum for each query."""

    @staticmethod
    def forward(context, query, key, value):
        output = torch.empty_like(query)
        context.save_for_backward(query, key, value, output, query.new_empty(query.shape[:3], dtype=torch.float32))
        return output

    @staticmethod
    def backward(context, _gradient):
        return tuple(torch.empty_like(operand) for operand in context.saved_tensors[:3])


class _Flash(torch.nn.Module):
    def __init__(self, *_, **__):
        super().__init__()

    def forward(self, query, key, value, *_, **__):
        return _FlashKeeps.apply(query, key, value).flatten(2)


class _NormKeeps(torch.autograd.Function):
    """Norm that keeps what Transformer Engine's RMS norm keeps: its input and one inverse deviation for each token."""

    @staticmethod
    def forward(context, hidden):
        context.save_for_backward(hidden, hidden.new_empty((*hidden.shape[:-1], 1), dtype=torch.float32))
        return torch.empty_like(hidden)

    @staticmethod
    def backward(context, _gradient):
        return torch.empty_like(context.saved_tensors[0])


class _Norm(torch.nn.Module):
    def __init__(self, *_, **__):
        super().__init__()

    def forward(self, hidden):
        return _NormKeeps.apply(hidden)


class _SwigluKeeps(torch.autograd.Function):
    """SwiGLU that keeps its input, as Megatron's fused kernel does, and has no temporaries."""

    @staticmethod
    def forward(context, gate_and_up):
        context.save_for_backward(gate_and_up)
        return gate_and_up.new_empty((*gate_and_up.shape[:-1], gate_and_up.shape[-1] // 2))

    @staticmethod
    def backward(context, _gradient):
        return torch.empty_like(context.saved_tensors[0])


def layer_spec():
    """Return Megatron Core's layer for the CPU, with norm and attention that keep what the kernels of a GPU keep."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = _Flash
    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = _Norm
    return spec


def config_of(shape, **changes):
    from megatron.core.transformer.transformer_config import TransformerConfig

    return TransformerConfig(
        num_layers=shape.num_layers, hidden_size=shape.hidden_size, ffn_hidden_size=shape.ffn_hidden_size,
        num_attention_heads=shape.num_attention_heads, num_query_groups=shape.num_key_value_heads,
        kv_channels=shape.head_dim, gated_linear_unit=shape.gated_mlp, add_bias_linear=False,
        activation_func=torch.nn.functional.silu if shape.gated_mlp else torch.nn.functional.gelu,
        bias_activation_fusion=shape.gated_mlp, normalization="RMSNorm", bf16=True, params_dtype=torch.bfloat16,
        hidden_dropout=0.0, attention_dropout=0.0, use_cpu_initialization=True, **changes,
    )  # fmt: skip


@pytest.fixture
def one_rank():
    from megatron.core import parallel_state

    with process_group.one_rank():
        parallel_state.initialize_model_parallel()
        yield
        parallel_state.destroy_model_parallel()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("gated", [True, False])
def test_a_layer_keeps_the_estimated_bytes(gated):
    from megatron.core.transformer.spec_utils import build_module

    shape = ModelShape(
        num_layers=1, hidden_size=512, ffn_hidden_size=1792, num_attention_heads=8, num_key_value_heads=2, head_dim=64,
        vocab_size=1024, gated_mlp=gated,
    )  # fmt: skip
    layer = build_module(layer_spec(), config=config_of(shape), layer_number=1).to(torch.bfloat16)
    positions = torch.randn(TOKENS, 1, 1, 64)
    hidden = torch.randn(TOKENS, 1, 512, dtype=torch.bfloat16, requires_grad=True)
    with autograd_memory.kept_for_backward(layer, lambda tensor: tensor.shape != positions.shape) as kept:
        layer(hidden, attention_mask=None, rotary_pos_emb=(positions, positions))
    estimated = TOKENS * megatron_memory.megatron_kept_bytes_per_token(shape, fp8=False)
    assert estimated == pytest.approx(autograd_memory.total_bytes(kept), rel=0.1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("recompute", [False, True])
def test_layers_need_the_estimated_bytes_with_and_without_recomputation(monkeypatch, recompute):
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer import mlp
    from megatron.core.transformer.transformer_block import TransformerBlock, TransformerBlockSubmodules

    monkeypatch.setattr(random, "_get_all_rng_states", lambda: ())  # of CUDA's generators
    monkeypatch.setattr(random, "_set_all_rng_states", lambda: None)
    monkeypatch.setattr(random, "_fork_rng", contextlib.nullcontext)
    monkeypatch.setattr(mlp, "bias_swiglu_impl", lambda states, *_: _SwigluKeeps.apply(states))
    shape = ModelShape(
        num_layers=4, hidden_size=128, ffn_hidden_size=448, num_attention_heads=4, num_key_value_heads=1, head_dim=32,
        vocab_size=256,
    )  # fmt: skip
    tokens = 2048  # many for these weights, whose own gradients are not counted
    full = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    parts = TransformerBlockSubmodules(layer_specs=[layer_spec()] * 4, layer_norm=_Norm)
    block = TransformerBlock(config_of(shape, **(full if recompute else {})), parts, post_layer_norm=False)
    block = block.to(torch.bfloat16).train()
    weights = list(block.parameters())
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    hidden = torch.randn(tokens, 1, 128, dtype=torch.bfloat16, requires_grad=True)
    positions = torch.randn(tokens, 1, 1, 32)
    there = (hidden, positions, *weights, *(weight.grad for weight in weights))
    with autograd_memory.PeakOfStorages(*there) as counted:
        block(hidden, attention_mask=None, rotary_pos_emb=positions).sum().backward()
    needed = megatron_memory.of_layout(
        shape, megatron_memory.RankLayout(), micro_batch_size=1, sequence_length=tokens,
        recomputed_layers=4 if recompute else 0,
    )  # fmt: skip
    estimated = needed.activations + needed.workspace - CONTEXT_BYTES
    assert estimated == pytest.approx(counted.peak_bytes, rel=0.1)
