"""Facts that the user states: they fill gaps, replace values only with a warning, and end warnings about gaps."""

import numpy as np
import pytest
from each import in_each

from tensorprimat.core.errors import UsageError
from tensorprimat.core.fact_values import read_statements
from tensorprimat.core.notices import Notice
from tensorprimat.core.result import GpuInfo, Model, PerformanceMetrics, Result, TrainingConfig
from tensorprimat.core.steps import Steps
from tensorprimat.core.summary import summarise
from tensorprimat.core.user_facts import UserFacts, amended, with_parallelism
from tensorprimat.models import presets, shapes


def of_steps(*, seconds: float = 2.0, warnings: tuple[str, ...] = (), gpu: GpuInfo | None = None, **config) -> Result:
    """Return a result of 20 steps; keyword arguments state its configuration."""
    columns = {"index": np.arange(1, 21), "seconds": np.full(20, seconds)}
    return summarise(
        Result(
            platform=None,
            gpu_info=gpu or GpuInfo(),
            model=Model(name=config.pop("model", None), parameters=config.pop("parameters", None)),
            training_config=TrainingConfig(**config),
            performance_metrics=PerformanceMetrics(),
            warnings=warnings,
            steps=Steps(columns),
        )
    )


def of_means(**figures) -> Result:
    """Return a result of an old version that holds means only."""
    config = TrainingConfig(**figures.pop("config", {}))
    return Result(
        platform="nvd",
        gpu_info=GpuInfo(device_name="NVIDIA H100 80GB HBM3"),
        model=Model(name="llama"),
        training_config=config,
        performance_metrics=PerformanceMetrics(basis="reported_means", **figures),
    )


def about(result: Result, subject: str) -> list[Notice]:
    return [one for one in result.remarks if one.field == subject]


def test_a_stated_fact_fills_an_unknown_one_and_is_recorded_with_its_flag():
    before = of_steps(num_gpus=8)
    (told,) = about(before, "tokens_per_second")
    assert (told.code, told.values) == ("rate_unknown", {"missing": ["--sequence-length", "--global-batch-size"]})
    result = amended(before, UserFacts(sequence_length=2048, global_batch_size=16))
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(16 * 2048 / 2.0 / 8)
    assert result.provenance.assumed == {
        "sequence_length": "--sequence-length",
        "global_batch_size": "--global-batch-size",
    }


def test_a_warning_disappears_once_a_stated_fact_answers_it():
    advice = "num_gpus: 8 ranks wrote init_start; if each drove one GPU, say --num-gpus 8"
    before = of_steps(sequence_length=128, global_batch_size=4, warnings=(advice, "host: something else"))
    assert advice in before.warnings
    result = amended(before, UserFacts(num_gpus=8))
    assert advice not in result.warnings
    assert "host: something else" in result.warnings
    assert about(result, "tokens_per_second_per_gpu") == []


def test_a_warning_that_only_half_is_answered_is_computed_anew():
    result = amended(of_steps(), UserFacts(sequence_length=2048))
    assert [one.values for one in about(result, "tokens_per_second")] == [{"missing": ["--global-batch-size"]}]


def test_a_fact_of_one_log_is_replaced_with_a_warning_that_names_both_values():
    result = amended(of_steps(num_gpus=4, sequence_length=128, global_batch_size=4), UserFacts(num_gpus=8))
    assert result.training_config.num_gpus == 8
    (told,) = about(result, "num_gpus")
    assert (told.code, told.values) == ("fact_overridden", {"flag": "--num-gpus", "stated": 8, "known": 4})


def test_a_fact_stated_for_all_only_fills_gaps_and_names_the_flag_that_overrides():
    result = amended(of_steps(precision="fp8"), UserFacts(precision="bf16", sequence_length=128, overrides=False))
    assert (result.training_config.precision, result.training_config.sequence_length) == ("fp8", 128)
    (warning,) = about(result, "precision")
    assert "fp8" in warning
    assert "--precision SIDE=bf16 overrides it" in warning
    assert "precision" not in result.provenance.assumed


def test_stating_a_fact_of_the_log_again_changes_nothing():
    before = of_steps(num_gpus=8, sequence_length=128, global_batch_size=16)
    result = amended(before, UserFacts(num_gpus=8, sequence_length=128, global_batch_size=16))
    assert result.provenance.assumed == {}
    assert result.warnings == before.warnings
    assert result.performance_metrics == before.performance_metrics


def test_another_number_of_gpus_leaves_no_stale_parallel_sizes():
    before = of_steps(
        num_gpus=8, tensor_model_parallel_size=1, pipeline_model_parallel_size=1, data_parallel_size=8,
        micro_batch_size=1, global_batch_size=32, gradient_accumulation_steps=4,
    )  # fmt: skip
    config = amended(before, UserFacts(num_gpus=16)).training_config
    assert (config.data_parallel_size, config.gradient_accumulation_steps) == (16, 2)


# Devices


@in_each(
    ("sizes", "replicas", "accumulation"),
    [
        ({"num_gpus": 16, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1}, 8, 8),
        ({"num_gpus": 16, "data_parallel_size": 4}, 4, 16),
        ({"num_gpus": 16, "gradient_accumulation_steps": 8}, 8, 8),
        ({"num_gpus": 12, "gradient_accumulation_steps": 8}, None, 8),
        ({"gradient_accumulation_steps": 8}, 8, 8),
        ({"num_gpus": 16}, None, None),
        ({"num_gpus": 1}, 1, 64),
        ({"data_parallel_size": 3}, 3, None),
    ],
)
def test_sizes_that_follow_from_the_others_are_filled_in(sizes, replicas, accumulation):
    config = with_parallelism(TrainingConfig(global_batch_size=128, micro_batch_size=2, **sizes))
    assert (config.data_parallel_size, config.gradient_accumulation_steps) == (replicas, accumulation)


def test_a_stated_device_keeps_the_facts_of_the_log():
    before = of_steps(gpu=GpuInfo(total_memory_gb=206.1, software_stack="rocm")).model_copy(update={"platform": "amd"})
    result = amended(before, UserFacts(gpu="MI300X"))
    assert result.gpu_info.device_name == "MI300X"
    assert result.gpu_info.total_memory_gb == 206.1
    assert result.platform == "amd"
    assert result.provenance.assumed["device_name"] == "--gpu"
    assert about(result, "gpu_info") == []


def test_a_stated_device_of_the_other_vendor_is_a_warning():
    before = of_steps().model_copy(update={"platform": "amd"})
    alone = amended(before, UserFacts(gpu="NVIDIA H100"))
    assert "platform amd" in about(alone, "gpu_info")[0]
    for_all = amended(before, UserFacts(gpu="NVIDIA H100", overrides=False))
    assert for_all.platform == "amd"
    assert for_all.gpu_info.device_name is None


def test_a_stated_device_with_another_memory_than_the_logs_is_a_warning():
    before = of_steps(gpu=GpuInfo(total_memory_gb=288.0)).model_copy(update={"platform": "amd"})
    (warning,) = about(amended(before, UserFacts(gpu="MI300X")), "gpu_info")
    assert "192" in warning
    assert "288" in warning


def test_a_measured_device_is_not_renamed_by_another_spelling():
    gpu = GpuInfo(device_name="AMD Instinct MI300X", gpu_cores=19456)
    result = amended(of_steps(gpu=gpu), UserFacts(gpu="MI300X"))
    assert result.gpu_info.device_name == "AMD Instinct MI300X"
    assert result.gpu_info.gpu_cores == 19456


# Shapes


def test_a_stated_shape_gives_parameters_and_preset_and_is_labelled():
    result = amended(of_steps(), UserFacts(shape=shapes.parse_shape("llama3.1-8b")))
    assert result.model.shape == presets.find_preset("llama").shape
    assert (result.model.name, result.model.preset, result.model.parameters) == ("llama", "full", 8_030_261_248)
    assert result.provenance.assumed["model.shape"] == "--shape llama3.1-8b"


def test_a_preset_confirms_the_model_that_the_result_names():
    result = amended(of_steps(model="qwen25_7b"), UserFacts(preset="full"))
    assert result.model.shape == presets.find_preset("qwen").shape
    assert result.model.name == "qwen25_7b"
    assert result.provenance.assumed["model.shape"] == "--preset full"


@pytest.mark.parametrize("name", ["llama2_70b", None])
def test_a_preset_of_a_model_that_has_none_is_refused_with_the_flag_that_helps(name):
    with pytest.raises(UsageError, match="--shape"):
        amended(of_steps(model=name), UserFacts(preset="full"))


def test_a_shape_that_contradicts_the_logs_parameter_count_is_a_warning():
    result = amended(of_steps(parameters=70_000_000_000), UserFacts(shape=shapes.parse_shape("llama3.1-8b")))
    (warning,) = about(result, "model shape")
    assert "70,000,000,000" in warning


def test_parameters_of_a_shape_that_replaces_the_logs_shape_have_its_flag_as_origin():
    llama, qwen = presets.find_preset("llama"), presets.find_preset("qwen")
    model = Model(name="llama", shape=llama.shape, parameters=llama.parameters)
    read = of_steps().changed(model=model)
    replaced = amended(read, UserFacts(shape=shapes.parse_shape("qwen2.5-7b")))
    assert replaced.model.parameters == qwen.parameters
    assert replaced.provenance.assumed["model.parameters"] == "--shape qwen2.5-7b"
    unnamed = of_steps().changed(model=model.changed(shape=None))
    assert (
        "model.parameters"
        not in amended(unnamed, UserFacts(shape=shapes.parse_shape("llama3.1-8b"))).provenance.assumed
    )


def test_a_shape_that_the_log_states_is_replaced_only_where_the_fact_is_stated_for_it_alone():
    first = amended(of_steps(), UserFacts(shape=shapes.parse_shape("llama3.1-8b")))
    kept = amended(first, UserFacts(shape=shapes.parse_shape("qwen2.5-7b"), overrides=False))
    assert kept.model.shape == presets.find_preset("llama").shape
    assert about(kept, "model shape")
    replaced = amended(first, UserFacts(shape=shapes.parse_shape("qwen2.5-7b")))
    assert replaced.model.shape == presets.find_preset("qwen").shape
    assert replaced.model.parameters == presets.parameters(presets.find_preset("qwen").shape)


# Means without steps


def test_means_of_an_old_file_become_rates_once_batch_and_length_are_stated():
    result = amended(
        of_means(avg_step_time_seconds=10.0), UserFacts(global_batch_size=128, sequence_length=8192, num_gpus=8)
    )
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(128 * 8192 / 10 / 8)
    assert about(result, "tokens_per_second") == []


def test_a_rate_of_an_old_file_is_divided_by_the_stated_number_of_gpus():
    result = amended(of_means(tokens_per_second=1000.0), UserFacts(num_gpus=8))
    assert result.performance_metrics.tokens_per_second_per_gpu == 125.0


def test_a_rate_that_a_file_gives_is_kept_where_nothing_it_rests_on_changes():
    before = of_means(tokens_per_second=1000.0, tokens_per_second_per_gpu=125.0, config={"num_gpus": 8})
    after = amended(before, UserFacts(precision="bf16")).performance_metrics
    assert (after.tokens_per_second, after.tokens_per_second_per_gpu) == (1000.0, 125.0)


# Ways to write a shape


@in_each(
    ("text", "title"),
    [
        ("llama3.1-8b", "Llama-3.1-8B"),
        ("Llama-3.1-8B", "Llama-3.1-8B"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("llama31_8b", "Llama-3.1-8B"),
        ("llama", "Llama-3.1-8B"),
        ("llama-tiny", "Llama-3.1 tiny"),
        ("Qwen/Qwen2.5-7B", "Qwen2.5-7B"),
        ("mistral-7b", "Mistral-7B-v0.1"),
        ("mistralai/Mistral-7B-v0.3", "Mistral-7B-v0.3"),
        ("2.7B", None),
    ],
)
def test_a_known_model_is_found_in_every_spelling(text, title):
    preset = shapes.parse_shape(text).preset
    assert preset is not None
    assert preset.title == title or preset.name == text


@in_each("text", ["llama3.1-71b", "gpt", "", "x=1/2/3", "x=384/1536/6/7", "x=0/1/1/1", "x=8/8/1/2/3"])
def test_a_text_that_is_not_a_shape_is_refused_in_one_line_that_names_the_flag(text):
    with pytest.raises(UsageError) as refusal:
        shapes.parse_shape(text)
    assert str(refusal.value).startswith(f"--shape {text}: ")


def test_numbers_may_end_in_key_value_heads_and_vocabulary():
    shape = shapes.parse_shape("mine=4096/14336/32/32/8/128256").shape
    assert shape == presets.find_preset("llama").shape
    assert shapes.parse_shape("mine=4096/14336/32/32/8/128256").assumption is None
    assert "vocabulary of 10,000 assumed" in (shapes.parse_shape("mine=384/1536/6/6").assumption or "")


@in_each(("typed", "name"), [("RTX4090", "RTX 4090"), ("H100", "H100 SXM"), ("mi-355x", "MI355X")])
def test_a_gpu_is_found_as_users_type_it(typed, name):
    (one,) = read_statements({"gpu": [typed]})
    assert one.value == name


def test_a_gpu_that_the_catalogue_does_not_have_is_named_with_the_nearest():
    (notice,) = (one for one in amended(of_steps(), UserFacts(gpu="MI3000X")).remarks if one.code == "gpu_unknown")
    assert notice.endswith("did you mean MI300X?")
