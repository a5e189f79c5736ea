"""Counts and FLOPs of decoders of every architecture, against transformers' classes, torch's counter and masks."""

import json
import math

import pytest
import torch
from architectures import completed, tiny

from tensorprimat.core.errors import UsageError
from tensorprimat.models import decoders, flops, presets
from tensorprimat.models.families import FAMILIES

transformers = pytest.importorskip("transformers")
from each import in_each, in_some  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from transformers import (  # noqa: E402
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
)
from transformers.masking_utils import eager_mask  # noqa: E402

LENGTH = 96
MIXTURES = [kind for kind, family in FAMILIES.items() if family.experts]
DENSE = [kind for kind in FAMILIES if kind not in MIXTURES]


def built(config, **changes):
    configuration = AutoConfig.for_model(**{**config, **changes})
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(configuration)](configuration)


@in_each("kind", FAMILIES)
def test_the_class_of_transformers_has_as_many_parameters(kind):
    config = completed(kind, num_hidden_layers=6)
    with torch.device("meta"):
        network = built(config)
    assert decoders.decoder_of(config).parameters == sum(weight.numel() for weight in network.parameters())


@in_each("kind", FAMILIES)
def test_a_file_as_transformers_writes_it_states_enough(kind):
    config = completed(kind, num_hidden_layers=6)
    written = json.loads(AutoConfig.for_model(**config).to_json_string(use_diff=True))
    assert decoders.decoder_of(written) == decoders.decoder_of(config)


def counted_or_named(config):
    """Return the numbers of the model, or the text of the refusal."""
    try:
        return decoders.decoder_of(config)
    except UsageError as error:
        return str(error)


@in_each("kind", FAMILIES)
def test_an_entry_that_a_file_lacks_counts_as_in_transformers_or_is_named(kind):
    config = completed(kind, num_hidden_layers=6)
    decoder = decoders.decoder_of(config)
    for name in config.keys() - {"model_type"}:
        shortened = {key: value for key, value in config.items() if key != name}
        found = counted_or_named(shortened)
        assert found == decoder or (name in found and found.endswith(": is missing"))


@in_each(
    ("kind", "changes"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"tie_word_embeddings": True}),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 3}),
        ("qwen3_moe", {"mlp_only_layers": [0], "decoder_sparse_step": 2}),
        ("deepseek_v3", {"q_lora_rank": None, "first_k_dense_replace": 1}),
        ("llama4_text", {"interleave_moe_layer_step": 2}),
        ("gemma3_text", {"tie_word_embeddings": False}),
        ("qwen2_moe", {"qkv_bias": False, "decoder_sparse_step": 2}),
        ("deepseek_v2", {"q_lora_rank": None, "first_k_dense_replace": 1, "attention_bias": True}),
        ("glm4", {"attention_bias": True}),
        ("glm4_moe", {"attention_bias": True, "use_qk_norm": True}),
        ("glm4_moe", {"use_qk_norm": False, "n_shared_experts": 2}),
        ("seed_oss", {"attention_bias": False, "attention_out_bias": True}),
        ("ernie4_5", {"use_bias": True}),
        ("smollm3", {"attention_bias": True, "mlp_bias": True}),
        ("granite", {"attention_bias": True, "mlp_bias": True}),
        ("arcee", {"attention_bias": True, "mlp_bias": True}),
        ("cohere", {"use_qk_norm": True, "attention_bias": True}),
        ("phimoe", {"attention_bias": True, "lm_head_bias": True}),
        ("starcoder2", {"use_bias": False}),
    ],
)
def test_switches_of_an_architecture_change_counts_as_in_transformers(kind, changes):
    config = completed(kind, num_hidden_layers=6, **changes)
    with torch.device("meta"):
        network = built(config)
    assert decoders.decoder_of(config).parameters == sum(weight.numel() for weight in network.parameters())


def _no_products(module, query, key, value, *_args, **_kwargs):  # noqa: ARG001
    """Compute attention without matrix products, so that torch's counter sees the linear parts alone."""
    output = value.repeat_interleave(query.shape[1] // value.shape[1], 1) + query.mean() + key.mean()
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register("test_no_products", _no_products)


def linear_flops(network, device):
    tokens = torch.randint(0, 1000, (2, LENGTH), device=device)
    with FlopCounterMode(display=False) as counter:
        logits = network(input_ids=tokens, attention_mask=None, use_cache=False).logits
        logits.sum().backward()
    return counter.get_total_flops() / tokens.numel()


@in_some(3, "kind", DENSE)
def test_linear_flops_are_those_of_torchs_counter(kind):
    config = completed(kind, num_hidden_layers=4, vocab_size=32_000)
    with torch.device("meta"):
        network = built(config)
    network.config._attn_implementation = "test_no_products"
    counted = linear_flops(network, "meta")
    assert 6 * decoders.decoder_of(config).active_weights == pytest.approx(counted, rel=0.005)


@in_some(3, "kind", MIXTURES)
def test_a_token_costs_the_flops_of_its_active_experts_only(kind):
    model = tiny(kind)
    network = built(model.config)
    network.config._attn_implementation = "test_no_products"
    if network._can_set_experts_implementation():
        network.set_experts_implementation("eager")
    counted = linear_flops(network, "cpu")
    every = 6 * (model.decoder.layer_weights + model.decoder.embedding_weights)
    if kind == "llama4_text":  # transformers multiplies every expert, most of them with zeros: no work of the model
        assert counted == pytest.approx(every, rel=0.005)
        return
    assert counted < every
    assert 6 * model.decoder.active_weights == pytest.approx(counted, rel=0.005)


@in_each("length", [1, 2, 63, 64, 65, 200])
@in_each(("window", "chunk"), [(None, None), (64, None), (1, None), (None, 64), (None, 7)])
def test_counted_pairs_equal_those_of_the_mask(length, window, chunk):
    query, key = torch.arange(length)[:, None], torch.arange(length)[None, :]
    sees = key <= query
    if window:
        sees &= query - key < window
    if chunk:
        sees &= query // chunk == key // chunk
    assert decoders.pairs(length, window=window, chunk=chunk) == int(sees.sum()) - _halved(length, window)


def _halved(length, reach):
    """Return half of the diagonal; within a window of W tokens, W/2."""
    return min(length, reach or length) / 2


WINDOWED = {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": 64}


@in_each(
    ("kind", "changes"),
    [
        *((kind, {}) for kind in FAMILIES),
        *((kind, WINDOWED) for kind in ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "smollm3")),
        ("gemma3_text", {"sliding_window_pattern": 2}),
        ("cohere2", {"sliding_window_pattern": 3}),
        ("llama4_text", {"no_rope_layer_interval": 2}),
    ],
)
def test_each_layer_has_the_window_of_transformers_mask(kind, changes):
    model, length, seen = tiny(kind, **changes), LENGTH, []

    def count_pairs(module, query, key, value, attention_mask, **kwargs):
        seen.append(int((attention_mask[0, 0] == 0).sum()))
        return _no_products(module, query, key, value, **kwargs)

    AttentionInterface.register("test_pairs", count_pairs)
    AttentionMaskInterface.register("test_pairs", eager_mask)
    network = built(model.config)
    network.config._attn_implementation = "test_pairs"
    network(input_ids=torch.randint(0, 1000, (1, length)), use_cache=False)
    stated = {**model.config, **changes}
    without_types = {name: value for name, value in stated.items() if name != "layer_types"}
    for config in (stated, without_types):
        assert seen == [
            decoders.pairs(length, window=layer.window, chunk=layer.chunk) + _halved(length, layer.window)
            for layer in decoders.decoder_of(config).layers
        ]


def test_packed_documents_cost_the_flops_of_their_own_pairs():
    lengths = [5, 40, 51]
    document = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))
    sees = (document[:, None] == document[None, :]).tril()
    assert sum(decoders.pairs(length) for length in lengths) == int(sees.sum()) - sum(lengths) / 2


def test_attention_of_a_layer_is_scores_and_sums_over_the_visible_pairs():
    model = tiny("deepseek_v3")
    heads, score, value = model.config["num_attention_heads"], 16 + 8, 16
    pairs = sum(range(1, 1001)) - 500  # the diagonal counts half
    expected = len(model.decoder.layers) * 6 * heads * (score + value) * pairs
    assert model.decoder.attention_flops([1000]) == expected


@in_each("name", ["llama", "qwen", "mistral"])
def test_a_built_in_model_costs_the_same_by_both_ways(name):
    preset = presets.find_preset(name)
    shape = preset.shape
    entries = {
        "vocab_size": shape.vocab_size, "hidden_size": shape.hidden_size, "intermediate_size": shape.ffn_hidden_size,
        "num_hidden_layers": shape.num_layers, "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads, "sliding_window": shape.sliding_window,
    }  # fmt: skip
    kind = {"qwen": "qwen2"}.get(name, name)
    decoder = decoders.decoder_of(completed(kind, **entries))
    assert decoder.flops_per_token([8192]) == flops.per_token(shape, 8192)


def packed_mfu(reported, decoder, *, charged, lengths):
    """Return the MFU if attention counts the packed documents instead of one sequence of `charged` tokens."""
    return reported * decoder.flops_per_token(lengths) / decoder.flops_per_token([charged])


def test_an_mfu_that_charged_whole_sequences_falls_when_packed_lengths_are_counted():
    decoder = tiny("llama").decoder
    whole, packed = decoder.attention_flops([65536]) / 65536, decoder.attention_flops([512] * 128) / 65536
    assert packed == pytest.approx(whole / 128)
    mfu = packed_mfu(0.40, decoder, charged=65536, lengths=[512] * 128)
    linear = 6 * decoder.active_weights
    assert mfu == pytest.approx(0.40 * (linear + packed) / (linear + whole))
    assert packed_mfu(0.40, decoder, charged=4096, lengths=[4096]) == 0.40


GLOBAL_EVERY, WINDOW, WIDTH = 6, 512, 6144


def marin(*, windowed=True):
    """Return 48 layers of width 6144: 4 of 128 experts of 3072, a shared one of 6144, 12 or 6 KV heads of 128."""
    layers = []
    for number in range(48):
        is_global = number % GLOBAL_EVERY == GLOBAL_EVERY - 1
        pair = 2 * 128 * (6 if is_global else 12)
        layers.append(
            decoders.Layer(
                attention_weights=WIDTH * (2 * WIDTH + pair), query_width=WIDTH, value_width=WIDTH, pair_width=pair,
                mlp_weights=3 * WIDTH * 6144 + WIDTH * 128, mlp_width=4 * 3072 + 6144, vectors=2 * WIDTH,
                expert_weights=3 * WIDTH * 3072, experts=128, active_experts=4,
                window=WINDOW if windowed and not is_global else None,
            )
        )  # fmt: skip
    return decoders.Decoder(
        kind="grug", hidden_size=WIDTH, vocab_size=128_256, tied_embeddings=False, layers=tuple(layers), vectors=WIDTH
    )


@in_each(
    ("length", "tokens_per_second", "reported", "true", "causal"),
    [(4096, 246_000, 22.24, 20.6, 20.3), (8192, 241_600, 23.75, 20.3, 20.1), (65536, 160_700, 36.45, 17.0, 15.1)],
)
def test_a_published_mfu_falls_by_as_much_as_its_authors_found(length, tokens_per_second, reported, true, causal):
    """Source: marin-community/marin, issue 7201, comment of 2026-07-27: 64 GB200 at 2.5 PFLOP/s each.

    The reported MFU charges every pair of every layer, the true one 512 keys for each query of a local layer. Both
    charge whole squares to global layers; half of them lies above the diagonal, so this project counts less.
    """
    decoder, unlimited = marin(), marin(windowed=False)
    weights, rate = 6 * decoder.active_weights, 100 * tokens_per_second / (64 * 2.5e15)
    square = 2 * unlimited.attention_flops([length]) / length
    assert rate * (weights + square) == pytest.approx(reported, rel=0.02)
    local = 40 * 12 * WIDTH * min(WINDOW, length)
    assert rate * (weights + square / GLOBAL_EVERY + local) == pytest.approx(true, rel=0.02)
    visible = weights + square / GLOBAL_EVERY / 2 + local * (1 - WINDOW / 2 / length)
    assert decoder.flops_per_token([length]) == pytest.approx(visible)
    assert rate * decoder.flops_per_token([length]) == pytest.approx(causal, abs=0.05)


def test_a_document_without_tokens_has_no_cost():
    with pytest.raises(ValueError, match="at least one token"):
        tiny("llama").decoder.flops_per_token([128, 0])


@in_each("entry", ["hidden_size", "num_hidden_layers", "vocab_size"])
def test_an_impossible_number_is_refused_with_its_entry(entry):
    config = completed("llama")
    for wrong in (0, -1, "many", 1.5, True):
        with pytest.raises(UsageError, match=entry):
            decoders.decoder_of({**config, entry: wrong})


def test_an_unknown_architecture_gives_no_decoder():
    with pytest.raises(UsageError, match="model_type 'mamba' is unknown"):
        decoders.decoder_of({"model_type": "mamba"})


def test_every_family_has_a_tiny_model_that_is_small():
    for kind in FAMILIES:
        assert tiny(kind).parameters < 10_000_000
        assert math.isfinite(tiny(kind).decoder.flops_per_token([128]))
