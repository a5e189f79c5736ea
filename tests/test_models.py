"""Presets and their parameter counts."""

import pytest
from each import in_each

from tensorprimat.core.errors import UsageError
from tensorprimat.models import presets

PINNED = {  # parameters, input embedding, P_mm
    ("llama", "full"): (8_030_261_248, 525_336_576, 7_504_658_432),
    ("qwen", "full"): (7_615_616_512, 544_997_376, 7_070_285_824),
    ("mistral", "full"): (7_241_732_096, 131_072_000, 7_110_393_856),
    ("mistral", "v0.3"): (7_248_023_552, 134_217_728, 7_113_539_584),
    ("llama", "tiny"): (1_901_696, 524_288, 1_376_256),
    ("qwen", "tiny"): (2_443_136, 622_592, 1_818_624),
    ("mistral", "tiny"): (1_115_264, 131_072, 983_040),
    ("course", "small"): (128_625_408, 7_680_000, 120_926_208),
    ("course", "medium"): (423_183_360, 10_240_000, 412_893_184),
    ("course", "large"): (969_411_840, 12_800_000, 956_518_400),
    ("course", "xl"): (1_998_235_200, 16_000_000, 1_982_080_000),
    ("course", "2.7B"): (3_406_809_600, 25_600_000, 3_381_043_200),
}


def test_every_preset_is_pinned():
    assert {(preset.model, preset.name) for preset in presets.PRESETS} == set(PINNED)


@in_each(("name", "counts"), PINNED.items())
def test_parameters_are_the_published_ones(name, counts):
    shape = presets.find_preset(*name).shape
    assert (presets.parameters(shape), presets.embedding_parameters(shape), presets.matrix_parameters(shape)) == counts


def test_tied_embeddings_count_once_but_the_head_still_multiplies():
    shape = presets.find_preset("llama", "tiny").shape
    tied = shape.model_copy(update={"tied_embeddings": True})
    assert presets.parameters(shape) - presets.parameters(tied) == presets.embedding_parameters(shape)
    assert presets.matrix_parameters(tied) == presets.matrix_parameters(shape)


def test_an_mlp_without_a_gate_has_one_matrix_less():
    shape = presets.find_preset("llama", "tiny").shape
    plain = shape.model_copy(update={"gated_mlp": False})
    assert presets.parameters(shape) - presets.parameters(plain) == presets.mlp_matrix_parameters(shape)


def test_tiny_presets_keep_the_features_of_the_architecture():
    for model in ("llama", "qwen", "mistral"):
        full, tiny = presets.find_preset(model, "full").shape, presets.find_preset(model, "tiny").shape
        assert tiny.num_key_value_heads < tiny.num_attention_heads
        assert tiny.attention_bias == full.attention_bias
        assert (tiny.sliding_window is None) == (full.sliding_window is None)
    mistral = presets.find_preset("mistral", "tiny")
    assert mistral.shape.sliding_window < mistral.sequence_length


@in_each(
    ("requested", "found"),
    [(("llama", "real"), "full"), (("Llama", "FULL"), "full"), (("course", "2_7B"), "2.7B"), (("course", "XL"), "xl")],
)
def test_other_spellings_find_the_same_preset(requested, found):
    assert presets.find_preset(*requested).name == found


def test_the_size_called_2_7b_shows_its_real_count():
    assert presets.find_preset("course", "2.7B").title == "2.7B, 3,406.8 M parameters"


def test_an_unknown_model_or_preset_lists_the_known_ones():
    with pytest.raises(UsageError, match="no model 'gpt'; models: llama, qwen, mistral, course"):
        presets.find_preset("gpt", "full")
    with pytest.raises(UsageError, match=r"no preset 'huge' of mistral; presets: full, v0\.3, tiny"):
        presets.find_preset("mistral", "huge")


def test_a_shape_is_recognised_only_when_all_of_it_agrees():
    shape = presets.find_preset("qwen", "full").shape
    assert presets.identify(shape).title == "Qwen2.5-7B"
    assert presets.identify(shape.model_copy(update={"num_layers": 27})) is None
