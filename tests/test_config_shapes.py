"""Model shapes from a config.json: windows, names of GPT-2, entries that are odd or absent."""

import json

import pytest
from architectures import completed
from each import in_each

from tensorprimat.core.errors import UsageError
from tensorprimat.models import huggingface, presets, shapes

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip


def config_file(folder, **changed):
    path = folder / "config.json"
    path.write_text(json.dumps({name: value for name, value in {**LLAMA, **changed}.items() if value != "absent"}))
    return path


def test_a_config_json_of_hugging_face_is_read_from_the_file_or_its_folder(tmp_path):
    path = config_file(tmp_path)
    assert shapes.parse_shape(str(path)).shape == presets.find_preset("llama").shape
    assert shapes.parse_shape(str(tmp_path)).preset == presets.find_preset("llama")


def test_a_window_that_is_switched_off_is_not_a_window(tmp_path):
    qwen = {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}
    assert shapes.parse_shape(str(config_file(tmp_path, **qwen))).shape.sliding_window is None
    mistral = {"model_type": "mistral", "sliding_window": 4096}
    assert shapes.parse_shape(str(config_file(tmp_path, **mistral))).shape.sliding_window == 4096


@in_each(
    ("published", "windows"),
    [
        ({"model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 6}, (512, 27)),
        ({"model_type": "gemma2", "sliding_window": 4096}, (4096, 16)),
        ({"model_type": "cohere2", "sliding_window": 4096, "sliding_window_pattern": 4}, (4096, 24)),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 20},
         (4096, 12)),
        ({"model_type": "qwen2", "sliding_window": 4096}, (None, None)),
        ({"model_type": "mistral"}, (4096, None)),
        ({"model_type": "mistral", "sliding_window": None}, (None, None)),
    ],
)  # fmt: skip
def test_a_file_without_layer_types_has_the_windows_of_its_architecture(tmp_path, published, windows):
    shape = shapes.parse_shape(str(config_file(tmp_path, **published))).shape
    assert (shape.sliding_window, shape.windowed_layers) == windows


def test_a_config_json_of_gpt2_is_read_by_the_names_that_it_uses(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_inner": None}))
    shape = shapes.parse_shape(str(path)).shape
    assert (shape.ffn_hidden_size, shape.gated_mlp, shape.tied_embeddings) == (3072, False, True)
    assert presets.matrix_parameters(shape) == 12 * 12 * 768**2 + 50_257 * 768


def refusal_of(config):
    try:
        huggingface.of_config(config)
    except UsageError as error:
        return str(error)
    return ""


@in_each("kind", ["qwen3", "qwen3_moe", "deepseek_v3", "gemma3_text", "smollm3", "llama4_text"])
def test_an_odd_entry_is_counted_or_refused_in_one_line(kind):
    config = completed(kind)
    for name in config:
        for odd in (None, 0, -1, 3, 2.5, "many", [], [1], {}, True, 10**9):
            assert "\n" not in refusal_of({**config, name: odd})


@in_each(
    "changed", [{"model_type": "mixtral"}, {"model_type": "absent"}, {"hidden_size": "absent"}, {"vocab_size": -1}]
)
def test_a_config_json_whose_cost_is_not_known_is_refused(changed, tmp_path):
    with pytest.raises(UsageError, match="--shape"):
        shapes.parse_shape(str(config_file(tmp_path, **changed)))
