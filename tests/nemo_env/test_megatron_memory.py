"""Bytes that a layer of the real Megatron Core hands to backward, against core/megatron_memory."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")

import autograd_memory  # noqa: E402
import process_group  # noqa: E402

from tensorprimat.core import megatron_memory  # noqa: E402
from tensorprimat.core.result import ModelShape  # noqa: E402

TOKENS = 64


class _FlashKeeps(torch.autograd.Function):
    """Keeps what a flash kernel keeps: its inputs, its output, and one log-sum for each query."""

    @staticmethod
    def forward(context, query, key, value):
        output = torch.empty_like(query)
        context.save_for_backward(query, key, value, output, query.new_empty(query.shape[:3], dtype=torch.float32))
        return output


class _Flash(torch.nn.Module):
    def __init__(self, *_, **__):
        super().__init__()

    def forward(self, query, key, value, *_, **__):
        return _FlashKeeps.apply(query, key, value).flatten(2)


class _NormKeeps(torch.autograd.Function):
    """Keeps what Transformer Engine's RMS norm keeps: its input and one inverse deviation for each token."""

    @staticmethod
    def forward(context, hidden):
        context.save_for_backward(hidden, hidden.new_empty((*hidden.shape[:-1], 1), dtype=torch.float32))
        return torch.empty_like(hidden)


class _Norm(torch.nn.Module):
    def __init__(self, *_, **__):
        super().__init__()

    def forward(self, hidden):
        return _NormKeeps.apply(hidden)


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
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.spec_utils import build_module
    from megatron.core.transformer.transformer_config import TransformerConfig

    shape = ModelShape(
        num_layers=1, hidden_size=512, ffn_hidden_size=1792, num_attention_heads=8, num_key_value_heads=2, head_dim=64,
        vocab_size=1024, gated_mlp=gated,
    )  # fmt: skip
    config = TransformerConfig(
        num_layers=1, hidden_size=512, ffn_hidden_size=1792, num_attention_heads=8, num_query_groups=2, kv_channels=64,
        gated_linear_unit=gated, activation_func=torch.nn.functional.silu if gated else torch.nn.functional.gelu,
        add_bias_linear=False, bias_activation_fusion=gated, normalization="RMSNorm", bf16=True,
        params_dtype=torch.bfloat16, hidden_dropout=0.0, attention_dropout=0.0, use_cpu_initialization=True,
    )  # fmt: skip
    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = _Flash
    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = _Norm
    layer = build_module(spec, config=config, layer_number=1).to(torch.bfloat16)
    positions = torch.randn(TOKENS, 1, 1, 64)
    hidden = torch.randn(TOKENS, 1, 512, dtype=torch.bfloat16, requires_grad=True)
    with autograd_memory.kept_for_backward(layer, lambda tensor: tensor.shape != positions.shape) as kept:
        layer(hidden, attention_mask=None, rotary_pos_emb=(positions, positions))
    estimated = TOKENS * megatron_memory.kept_bytes_per_token(shape, fp8=False)
    assert estimated == pytest.approx(autograd_memory.total_bytes(kept), rel=0.1)
