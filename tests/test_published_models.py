"""Shapes of published models that this tool does not train: data/models.toml, --shape and pairing by name."""

import pytest
from each import in_each

from tensorprimat.core.errors import UsageError
from tensorprimat.facts import catalogue
from tensorprimat.models import presets, shapes

MODELS = catalogue.published_models()


@in_each("model", MODELS)
def test_a_published_shape_has_the_parameters_that_its_publisher_counts(model):
    norms = 2 * model.shape.head_dim * model.shape.num_layers if model.title.startswith("Qwen3") else 0
    rounded = model.title.startswith(("DeepSeek", "MLPerf")) or "gpt-oss" in model.title  # billions, or biases
    assert presets.parameters(model.shape) + norms == pytest.approx(model.parameters, rel=1e-3 if rounded else 0)


@in_each("model", [model for model in MODELS if model.shape.experts])
def test_a_published_mixture_has_the_active_parameters_that_its_publisher_counts(model):
    either = presets.matrix_parameters(model.shape), presets.active_parameters(model.shape)
    assert min(abs(count / model.active_parameters - 1) for count in either) < 0.02


@in_each("model", MODELS)
def test_every_published_model_is_found_by_its_names_and_no_other_model_has_them(model):
    for name in (model.title, *model.also):
        assert shapes.of_name(name).shape == model.shape
        assert shapes.of_name(f"{name}-Instruct").shape == model.shape
        assert shapes.known_preset(name) is None
    assert sum(other.shape == model.shape for other in MODELS) == 1


@in_each(
    ("spelled", "title"),
    [
        ("meta-llama/Llama-2-70b-hf", "Llama-2-70B"),
        ("llama3.1_70B", "Llama-3.1-70B"),
        ("llama3 70B", "Llama-3.1-70B"),
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama-3.1-70B"),
        ("llama31_405b", "Llama-3.1-405B"),
        ("qwen3 14B", "Qwen3-14B"),
        ("Qwen/Qwen2.5-72B", "Qwen2.5-72B"),
        ("Llama-3.2-1B", "Llama-3.2-1B"),
        ("Qwen2.5-0.5B", "Qwen2.5-0.5B"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("gpt_oss_20b", "MLPerf-gpt-oss-20b"),
        ("deepseekv3_671b", "MLPerf-DeepSeek-V3"),
        ("deepseek-ai/DeepSeek-V3", "DeepSeek-V3"),
        ("mistralai/Mixtral-8x7B-v0.1", "Mixtral-8x7B"),
        ("qwen3_30B_A3B", "Qwen3-30B-A3B"),
    ],
)
def test_spellings_of_frameworks_mean_the_published_model(spelled, title):
    assert shapes.of_name(spelled).name == title


@in_each("name", ["llama2_70b_lora", "qwen3-coder-30b", "my-14b", "Qwen2-72B-lora", "codellama-70b"])
def test_a_name_that_only_resembles_a_published_model_has_no_shape(name):
    assert shapes.of_name(name) is None


def test_an_unknown_shape_is_refused_with_the_known_names():
    with pytest.raises(UsageError, match=r"Llama-3\.1-8B.*Llama-2-70B.*Qwen3-32B"):
        shapes.parse_shape("llama5-9b")
