"""Shapes with experts, latent attention and windows: published parameter counts, logs that state them, --shape."""

import json
from types import SimpleNamespace

import pytest
import torch
from each import in_each

from tensorprimat.analysis.metrics import calculate_metrics
from tensorprimat.core.errors import UsageError
from tensorprimat.core.result import ModelShape
from tensorprimat.engines import introspect
from tensorprimat.facts import data_rows
from tensorprimat.models import decoders, flops, presets, shapes

GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 2880, "vocab_size": 201088, "num_hidden_layers": 24,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880,
    "num_local_experts": 32, "num_experts_per_tok": 4, "attention_bias": True, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "vocab_size": 129280, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "num_nextn_predict_layers": 1, "tie_word_embeddings": False,
}  # fmt: skip
QWEN_MOE = {
    "model_type": "qwen2_moe", "hidden_size": 2048, "vocab_size": 151936, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 5632, "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632, "num_experts": 60, "num_experts_per_tok": 4, "decoder_sparse_step": 1,
    "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK_V2_LITE = DEEPSEEK_V3 | {
    "model_type": "deepseek_v2", "hidden_size": 2048, "vocab_size": 102400, "num_hidden_layers": 27,
    "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
    "first_k_dense_replace": 1, "num_nextn_predict_layers": None,
}  # fmt: skip


def written(tmp_path, config):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return shapes.parse_shape(str(path))


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        # OpenAI, gpt-oss model card, 2025-08-05, table 1: 20.91 and 3.61 billion, the output head among the active ones
        (GPT_OSS, 20.91e9, 3.61e9),
        # deepseek-ai/DeepSeek-V3, README_WEIGHTS.md, 2025-01: 671 and 36.6 billion, the output head's 0.9 among them
        (DEEPSEEK_V3, 671e9, 36.6e9),
    ],
    ids=["gpt-oss-20b", "DeepSeek-V3"],
)
def test_a_configuration_with_experts_has_the_parameters_that_its_publisher_counts(tmp_path, config, total, active):
    shape = written(tmp_path, config).shape
    assert presets.parameters(shape) == pytest.approx(total, rel=1e-3)
    assert presets.matrix_parameters(shape) == pytest.approx(active, rel=1e-3)


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        (
            QWEN_MOE,
            14.3e9,
            2.7e9 - 0.3e9,
        ),  # Qwen/Qwen1.5-MoE-A2.7B, 2024-03: 14.3 and 2.7, the input embedding included
        (DEEPSEEK_V2_LITE, 15.7e9, 2.4e9),  # deepseek-ai/DeepSeek-V2-Lite, 2024-05
    ],
    ids=["Qwen1.5-MoE", "DeepSeek-V2-Lite"],
)
def test_counts_that_a_publisher_rounds_to_a_tenth_of_a_billion_agree(tmp_path, config, total, active):
    shape = written(tmp_path, config).shape
    assert presets.parameters(shape) == pytest.approx(total, abs=0.05e9)
    assert presets.matrix_parameters(shape) == pytest.approx(active, abs=0.06e9)


@in_each("config", [GPT_OSS, DEEPSEEK_V3])
@in_each("length", [100, 4096, 8192])
def test_flops_of_a_token_count_active_experts_and_visible_pairs_alone(tmp_path, config, length):
    by_layer = decoders.decoder_of(config).flops_per_token([length])
    assert flops.per_token(written(tmp_path, config).shape, length) == pytest.approx(by_layer, rel=1e-9)


BY_NVIDIA = {
    "deepseekv3-671b": "MLPerf-DeepSeek-V3",  # with multi-token prediction, as MLPerf
    "qwen3-30b-a3b": "Qwen3-30B-A3B",
    "qwen3-235b-a22b": "Qwen3-235B-A22B",
    "gpt-oss-120b": "gpt-oss-120b",
}
TABLES = [row for row in data_rows.read_data("published")["result"] if row.get("framework") == "Megatron-Bridge 26.08"]


@in_each("model", BY_NVIDIA)
def test_flops_of_a_token_are_those_of_nvidias_tables(model):
    rows = [row for row in TABLES if row["model"] == model]
    assert rows
    for row in rows:
        by_table = row["tflops_per_gpu"] * 1e12 / row["tokens_per_second_per_gpu"]
        ours = flops.per_token(shapes.parse_shape(BY_NVIDIA[model]).shape, row["sequence_length"])
        assert ours == pytest.approx(by_table, rel=0.01)


@pytest.mark.parametrize(("model", "tflops", "tokens"), [("gpt-oss-20b", 279, 13_058), ("gpt-oss-120b", 231, 7_626)])
def test_automodels_tables_take_hidden_size_over_heads_as_the_head_size_of_gpt_oss(model, tflops, tokens):
    """Source: NVIDIA-NeMo/Automodel, docs/performance-summary.mdx (2026), length 4096; its heads have 64 dimensions.

    tokens: per second and GPU.
    """
    shape = shapes.of_name(model).shape
    narrow = shape.model_copy(update={"head_dim": shape.hidden_size // shape.num_attention_heads})
    by_table = tflops * 1e12 / tokens
    assert flops.per_token(narrow, 4096) == pytest.approx(by_table, rel=5e-3)
    assert flops.per_token(shape, 4096) > 1.07 * by_table


@in_each(
    "change",
    [
        {"num_experts_per_tok": 40},
        {"num_local_experts": None},
        {"model_type": "llama4_text", "attention_chunk_size": 64, "layer_types": ["chunked_attention"] * 24},
        {"model_type": "llama"},
        {"model_type": "deepseek_v2", "kv_lora_rank": 512},
    ],
)
def test_a_configuration_that_no_shape_expresses_is_refused(tmp_path, change):
    with pytest.raises(UsageError, match="--shape"):
        written(tmp_path, GPT_OSS | change)


def test_a_file_with_experts_is_written_and_read_back_as_it_was(tmp_path):
    shape = written(tmp_path, DEEPSEEK_V3).shape
    assert ModelShape.model_validate_json(shape.model_dump_json()) == shape
    dense = presets.find_preset("llama").shape.model_dump()
    assert not {"experts", "latent_attention", "windowed_layers"} & set(dense)


ROW = (
    " [2026-01-05 08:00:{0:02d}] iteration {0:8d}/     100 | consumed samples: {1:12d} |"
    " elapsed time per iteration (ms): 2000.0 | learning rate: 1.0E-06 | global batch size:    16 |"
    " lm loss: 1.1E+01 | loss scale: 1.0 |"
    " grad norm: 3.000 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
ROWS = "\n".join(ROW.format(number, 16 * number) for number in range(1, 21)) + "\n"
MIXTRAL = {
    "num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32, "num_query_groups": 8,
    "group_query_attention": True, "kv_channels": 128, "swiglu": True, "untie_embeddings_and_output_weights": True,
    "vocab_size": 32000, "num_experts": 8, "moe_router_topk": 2, "moe_ffn_hidden_size": 14336,
    "moe_shared_expert_intermediate_size": None, "moe_layer_freq": 1, "multi_latent_attention": False,
    "mtp_num_layers": None, "seq_length": 4096, "world_size": 8, "bf16": True, "fp16": False, "window_size": None,
}  # fmt: skip
DEEPSEEK = MIXTRAL | {
    "num_layers": 61, "hidden_size": 7168, "ffn_hidden_size": 18432, "num_attention_heads": 128,
    "num_query_groups": 1, "group_query_attention": False, "vocab_size": 129280, "num_experts": 256,
    "moe_router_topk": 8, "moe_ffn_hidden_size": 2048, "moe_shared_expert_intermediate_size": 2048,
    "moe_layer_freq": [0] * 3 + [1] * 58, "multi_latent_attention": True, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_head_dim": 128, "qk_pos_emb_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip


def dumped(arguments):
    """Return Megatron's print of its arguments."""
    return "".join(f"  {name} {'.' * (48 - len(name))} {value}\n" for name, value in arguments.items())


def test_a_megatron_log_of_experts_has_an_mfu_of_active_experts(read_text):
    result = read_text(dumped(MIXTRAL) + ROWS, gpu="NVIDIA H100 80GB HBM3")
    shape = result.model.shape
    assert presets.matrix_parameters(shape) == pytest.approx(12.75e9, rel=1e-3)  # Mistral AI: 12.9 with the embedding
    mfu = calculate_metrics(result)["mfu"]
    tokens = 16 * 4096 / 2.0 / 8
    assert mfu.value == pytest.approx(tokens * flops.per_token(shape, 4096) / 989.4e12, rel=1e-3)


@pytest.mark.parametrize("frequency", [[0] * 3 + [1] * 58, "([0]*3+[1]*58)"], ids=str)
def test_a_megatron_log_with_latent_attention_and_dense_first_layers_is_deepseek_v3(read_text, frequency):
    result = read_text(dumped(DEEPSEEK | {"moe_layer_freq": frequency}) + ROWS)
    assert presets.matrix_parameters(result.model.shape) == pytest.approx(36.6e9, rel=1e-3)
    with_later = read_text(dumped(DEEPSEEK | {"mtp_num_layers": 1}) + ROWS).model.shape
    assert presets.matrix_parameters(with_later) > presets.matrix_parameters(result.model.shape) + 1.6e9


@in_each(
    ("change", "reason"),
    [
        ({"moe_layer_freq": "[0, 1, 1]"}, "moe_layer_freq"),
        ({"moe_router_topk": None}, "moe_router_topk"),
        ({"kv_lora_rank": None}, "kv_lora_rank"),
        ({"linear_attention_freq": 4}, "linear_attention_freq"),
        ({"hybrid_override_pattern": "M-M*"}, "hybrid_override_pattern"),
        ({"moe_latent_size": 1024}, "moe_latent_size"),
        ({"moe_router_topk": 512}, "512 active of 256"),
    ],
)
def test_a_megatron_log_with_incomplete_layers_has_no_shape_and_a_reason(read_text, change, reason):
    result = read_text(dumped(DEEPSEEK | change) + ROWS)
    assert result.model.shape is None
    assert any(reason in warning and "--shape" in warning for warning in result.warnings)


def test_a_summary_of_megatron_bridge_names_its_experts_and_the_windows_of_every_second_layer(read_text):
    numbers = {
        "bf16": True, "ffn_hidden_size": 2880, "gated_linear_unit": True, "hidden_size": 2880, "kv_channels": 64,
        "moe_ffn_hidden_size": 2880, "moe_router_topk": 4, "num_attention_heads": 64, "num_layers": 24,
        "num_moe_experts": 32, "num_query_groups": 8, "window_attn_skip_freq": 2, "window_size": (127, 0),
    }  # fmt: skip
    listed = "".join(f"  {name}: {value}  (Mcore default: None)\n" for name, value in numbers.items())
    summary = f"[model] Non-default values (vs Mcore TransformerConfig):\n{listed}[tokenizer]:\n  vocab_size: 201088\n"
    shape = read_text(summary + ROWS).model.shape
    assert presets.matrix_parameters(shape) == pytest.approx(3.61e9, rel=1e-3)
    assert (shape.sliding_window, shape.windowed_layers) == (128, 12)


def test_every_switch_of_megatron_for_a_gated_mlp_counts_three_matrices(read_text):
    plain = read_text(dumped(MIXTRAL | {"swiglu": False}) + ROWS).model.shape
    gated = read_text(dumped(MIXTRAL | {"swiglu": False, "quick_geglu": True}) + ROWS).model.shape
    assert (plain.gated_mlp, gated.gated_mlp) == (False, True)


def test_defaults_of_latent_attention_that_megatron_bridge_leaves_out_are_known(read_text):
    numbers = {
        "ffn_hidden_size": 18432, "gated_linear_unit": True, "hidden_size": 7168, "moe_ffn_hidden_size": 2048,
        "moe_layer_freq": [0] * 3 + [1] * 58, "moe_router_topk": 8, "moe_shared_expert_intermediate_size": 2048,
        "num_attention_heads": 128, "num_layers": 61, "num_moe_experts": 256, "q_lora_rank": 1536,
    }  # fmt: skip
    listed = "".join(f"  {name}: {value}  (Mcore default: None)\n" for name, value in numbers.items())
    summary = f"[model] Non-default values (vs Mcore MLATransformerConfig):\n{listed}  vocab_size: 129280\n"
    assert presets.matrix_parameters(read_text(summary + ROWS).model.shape) == pytest.approx(36.6e9, rel=1e-3)


def test_a_dense_model_of_megatron_deepspeed_has_one_expert_in_brackets(read_text):
    dense = {name: value for name, value in MIXTRAL.items() if not name.startswith("moe_")}
    assert read_text(dumped(dense | {"num_experts": [1]}) + ROWS).model.shape.experts is None
    assert read_text(dumped(dense | {"num_experts": [128]}) + ROWS).model.shape is None


class Holder(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config


def test_a_live_model_with_experts_is_never_counted_as_a_dense_one():
    dense = {"num_layers": 4, "hidden_size": 64, "ffn_hidden_size": 256, "num_attention_heads": 4, "vocab_size": 512}
    for extra in ({"num_moe_experts": 8}, {"multi_latent_attention": True}, {"n_routed_experts": 4}):
        found, _ = introspect.describe_model(Holder(SimpleNamespace(**dense, **extra)), sharded=True)
        assert found.shape is None
    mixed = SimpleNamespace(**GPT_OSS, to_dict=lambda: GPT_OSS)
    found, _ = introspect.describe_model(Holder(mixed), sharded=True)
    assert presets.matrix_parameters(found.shape) == pytest.approx(3.61e9, rel=1e-3)
