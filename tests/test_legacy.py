"""Result files of older versions load: figures anew from their steps, or as reported where there are none."""

import json
import math

import numpy as np
import pytest
from each import in_each

from tensorprimat.analysis.fairness import judge
from tensorprimat.core import fact_values
from tensorprimat.core.errors import InputError
from tensorprimat.core.summary import summarise
from tensorprimat.session.sides import laid_over
from tensorprimat.storage import store

VERSION_1 = {
    "platform": "cuda",
    "gpu_info": {
        "platform": "cuda", "device_count": 8, "device_name": "NVIDIA H100 80GB HBM3", "total_memory_gb": 85.0,
        "gpu_cores": 0, "pytorch_version": "2.7.0", "cuda_version": "12.8",
    },
    "timestamp": "2026-01-05T14:30:22.104217",
    "training_config": {
        "max_steps": 5, "global_batch_size": 16, "micro_batch_size": "N/A", "sequence_length": 4096, "num_gpus": 8,
    },
    "performance_metrics": {
        "total_steps": 5, "total_time_seconds": 14.2, "avg_step_time_seconds": 2.0, "steps_per_second": 0.5,
        "tokens_per_second": 32768.0, "tokens_per_second_per_gpu": 4096.0, "throughput_per_gpu_core": 0,
    },
    "raw_step_times": [6.0, 2.0, 2.1, 1.9, 2.0],
    "memory_metrics": {"avg_memory_allocated_gb": 40.0, "peak_memory_allocated_gb": 44.5},
}  # fmt: skip
VERSION_2 = {
    "platform": "nvd",
    "gpu_info": {"device_name": "NVIDIA H100 80GB HBM3", "software_stack": "nemo", "software_version": "12.8"},
    "timestamp": "2026-02-02T21:00:00",
    "parallelism_config": {
        "strategy_name": "unknown",
        "tensor_parallel_size": 4,
        "pipeline_model_parallel_size": 1,
        "gradient_accumulation_steps": 64,
    },
    "training_config": {"global_batch_size": 128, "sequence_length": 2048, "num_gpus": 8, "max_steps": -1},
    "performance_metrics": {"avg_step_time_seconds": 3.0, "tokens_per_second_per_gpu": 10922.7},
    "step_times": [9.0, 3.0, 3.0, 3.0],
    "loss_values": [12.5, float("nan"), 11.0, 10.5],
    "learning_rates": [0.0, 1e-6, 2e-6, 3e-6],
}
MINIMAL = {
    "platform": "rocm",
    "gpu_info": {"device_name": "AMD Instinct MI300X"},
    "performance_metrics": {"avg_step_time_seconds": 1.25, "throughput_steps_per_second": 0.8},
    "memory_metrics": {"peak_memory_allocated_gb": 46.0},
}


def read(folder, document, name="benchmark_cuda_llama.json"):
    path = folder / name
    path.write_text(json.dumps(document))
    return store.load(path)


def changed(document, **sections):
    """Return a deep copy with some keys of some sections, or whole entries, set anew."""
    copy = json.loads(json.dumps(document))
    for name, value in sections.items():
        if isinstance(value, dict) and isinstance(copy.get(name), dict):
            copy[name].update(value)
        else:
            copy[name] = value
    return copy


def test_version_1_gets_todays_names_and_figures_from_its_steps(tmp_path):
    result = read(tmp_path, VERSION_1)
    assert (result.platform, result.gpu_info.software_stack, result.gpu_info.software_version) == (
        "nvd",
        "cuda",
        "12.8",
    )
    assert result.model.name == "llama"
    assert result.performance_metrics.basis == "step_times"
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0)
    assert result.performance_metrics.tokens_per_second == pytest.approx(16 * 4096 / 2.0)
    assert result.performance_metrics.reported.tokens_per_second == 32768.0
    assert result.timestamp == "2026-01-05T14:30:22.104217"


def test_figures_reported_once_for_the_run_stay_next_to_recomputed_ones(tmp_path):
    memory = read(tmp_path, VERSION_1).memory_metrics
    assert (memory.avg_memory_allocated_gb, memory.peak_memory_allocated_gb) == (40.0, 44.5)


def test_placeholders_for_unknown_become_none_with_a_warning(tmp_path):
    result = read(tmp_path, VERSION_1)
    assert result.gpu_info.gpu_cores is None
    assert result.training_config.micro_batch_size is None
    told = [(one.field, one.values) for one in result.remarks if one.code == "value_unknown"]
    assert ("training_config", {"key": "micro_batch_size", "value": "'N/A'"}) in told
    assert ("gpu_info", {"key": "gpu_cores", "value": "0"}) in told


@in_each("placeholder", [-1, 0, "N/A", math.inf, "unknown"])
def test_a_placeholder_is_never_read_as_a_rate(tmp_path, placeholder):
    document = changed(MINIMAL, performance_metrics={"tokens_per_second": placeholder})
    result = read(tmp_path, document)
    assert result.performance_metrics.tokens_per_second is None
    assert ("value_unknown", "tokens_per_second") in [(one.code, one.values.get("key")) for one in result.remarks]


@in_each(
    ("name", "model"),
    [
        ("benchmark_cuda_20260105_143022.json", None),
        ("benchmark_rocm_qwen.json", "qwen"),
        ("benchmark_rocm_llama_70b.json", "llama_70b"),
        ("benchmark_cuda_mistral_20260105_143022.json", "mistral"),
        ("train_amd_prim_qwen.json", "qwen"),
        ("results.json", None),
    ],
)
def test_the_model_comes_from_the_file_name(tmp_path, name, model):
    result = read(tmp_path, VERSION_1, name)
    assert result.model.name == model
    assert any(warning.startswith("model:") for warning in result.warnings) == (model is None)


def test_the_users_model_name_wins(tmp_path):
    stated = fact_values.read_statements({"model_name": ["mistral"]})
    (loaded,) = laid_over([store.Loaded(path=tmp_path, result=read(tmp_path, VERSION_1))], stated)
    assert loaded.result.model.name == "mistral"


def test_the_date_comes_from_the_file_name_where_the_file_has_none(tmp_path):
    result = read(tmp_path, MINIMAL, "benchmark_cuda_20260105_143022.json")
    assert result.timestamp == "2026-01-05T14:30:22"


def test_digits_that_are_not_a_date_give_no_date(tmp_path):
    assert read(tmp_path, MINIMAL, "benchmark_cuda_99999999_143022.json").timestamp is None
    assert read(tmp_path, changed(MINIMAL, timestamp="yesterday")).timestamp is None


def test_version_2_brings_its_parallelism_series_and_engine(tmp_path):
    result = read(tmp_path, VERSION_2, "train_nvd_nemo_llama.json")
    config = result.training_config
    assert (config.tensor_model_parallel_size, config.pipeline_model_parallel_size) == (4, 1)
    assert config.gradient_accumulation_steps == 64
    assert config.max_steps is None
    assert (result.gpu_info.software_stack, result.provenance.engine) == ("cuda", "nemo")
    assert [step.learning_rate for step in result.steps] == [0.0, 1e-6, 2e-6, 3e-6]
    assert result.steps.logged_nan("loss").tolist() == [False, True, False, False]


def test_a_series_of_another_length_is_left_out_with_a_warning(tmp_path):
    result = read(tmp_path, changed(VERSION_2, learning_rates=[1e-6, 2e-6]))
    assert "learning_rate" not in result.steps.seen
    warning = "learning_rate: left out, 2 values cannot be assigned to 4 steps"
    assert warning in result.warnings


def test_placeholders_among_step_times_become_none(tmp_path):
    result = read(tmp_path, changed(VERSION_1, raw_step_times=[6.0, 2.0, -1, 2.0, 0, "N/A", 2.0]))
    assert [step.seconds for step in result.steps] == [6.0, 2.0, None, 2.0, None, None, 2.0]
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0)
    assert ("values_unknown", {"unknown": 3, "values": 7}) in [(one.code, one.values) for one in result.remarks]


def test_a_file_of_means_alone_has_reported_means(tmp_path):
    result = read(tmp_path, MINIMAL, "benchmark_rocm_llama.json")
    assert result.performance_metrics.basis == "reported_means"
    assert result.performance_metrics.avg_step_time_seconds == 1.25
    assert result.performance_metrics.steps_per_second == 0.8
    assert result.memory_metrics.peak_memory_allocated_gb == 46.0
    assert (len(result.steps), result.timestamp, result.platform) == (0, None, "amd")


def test_a_rate_that_the_steps_contradict_is_a_warning_that_names_the_cause(tmp_path):
    result = read(tmp_path, changed(VERSION_1, performance_metrics={"tokens_per_second": 4 * 32768.0}))
    assert any("--sequence-length 16384" in warning for warning in result.warnings)
    assert result.performance_metrics.tokens_per_second == pytest.approx(32768.0)


def test_a_mean_that_the_steps_contradict_is_a_warning(tmp_path):
    result = read(tmp_path, changed(VERSION_1, performance_metrics={"avg_step_time_seconds": 1.0}))
    (told,) = (one.values for one in result.remarks if one.field == "avg_step_time_seconds")
    assert (told["computed"], told["reported"]) == (2, 1)
    assert "the result uses the computed time, the mean of the measured rows" in told["told"]


def test_memory_taken_from_a_primus_log_is_the_whole_devices_in_gib(tmp_path):
    memory = read(tmp_path, changed(VERSION_1, source="primus_log_extraction")).memory_metrics
    assert memory.peak_memory_allocated_gb is None
    assert memory.peak_memory_device_used_gb == pytest.approx(44.5 * 1.073741824)


def test_a_memory_series_of_an_old_file_is_converted_to_bytes_of_its_kind(tmp_path):
    document = changed(VERSION_1, memory_values=[40.0] * 5, memory_metrics={"measurement_method": "smi_total_vram"})
    steps = read(tmp_path, document).steps
    assert steps[0].memory_device_used_bytes == 40.0e9
    assert "memory_allocated_bytes" not in steps.seen


@in_each(
    ("document", "reason"),
    [
        (
            changed(MINIMAL, performance_metrics=dict.fromkeys(MINIMAL["performance_metrics"], "N/A")),
            "nothing was measured",
        ),
        (changed(VERSION_1, training_config=[1, 2]), "training_config is list"),
        (changed(VERSION_1, raw_step_times="2.0"), "raw_step_times is str"),
        (changed(VERSION_1, training_config={"num_gpus": "eight"}), "num_gpus"),
        (changed(VERSION_1, schema_version=4), "reads up to 3; update TensorPrimat"),
        (changed(VERSION_1, schema_version=2), "schema_version 2, .* versions 1 and 2 have no schema_version; remove"),
        (changed(VERSION_1, schema_version="3"), "schema_version '3', .* have no schema_version; remove"),
    ],
)
def test_a_file_that_cannot_be_converted_is_refused_in_one_line(tmp_path, document, reason):
    with pytest.raises(InputError, match=reason) as refusal:
        read(tmp_path, document)
    assert str(refusal.value).startswith(str(tmp_path))
    assert "\n" not in str(refusal.value)


def test_two_old_files_pool_with_the_higher_peak(tmp_path):
    from tensorprimat.core.summary import pool

    first = read(tmp_path, VERSION_1)
    second = read(tmp_path, changed(VERSION_1, memory_metrics={"peak_memory_allocated_gb": 50.0}))
    pooled = pool([first, second])
    assert pooled.memory_metrics.peak_memory_allocated_gb == 50.0
    assert len(pooled.runs) == 2


def test_a_memory_series_keeps_the_reserved_memory_and_the_peak_of_its_file(tmp_path):
    memory = {
        "avg_memory_allocated_gb": 45.1, "peak_memory_allocated_gb": 45.89, "avg_memory_reserved_gb": 48.2,
        "peak_memory_reserved_gb": 50.25,
    }  # fmt: skip
    document = changed(VERSION_1, raw_memory_values=[44.0, 45.67, 45.0, 45.5, 45.2], memory_metrics=memory)
    result = read(tmp_path, document)
    kept = result.memory_metrics
    assert (kept.peak_memory_allocated_gb, kept.peak_memory_reserved_gb) == (45.89, 50.25)
    assert kept.avg_memory_reserved_gb == 48.2
    assert kept.avg_memory_allocated_gb == pytest.approx((45.67 + 45.0 + 45.5 + 45.2) / 4)
    warning = "memory_metrics: the peak is 45.89 GB in this file, but its series reaches 45.67 GB; the peak of the file"
    assert [note for note in result.warnings if note.startswith(warning)]


def test_a_series_above_the_peak_of_its_file_is_the_peak(tmp_path):
    document = changed(VERSION_1, raw_memory_values=[44.0, 46.0, 45.0, 45.5, 45.2])
    result = read(tmp_path, document)
    assert result.memory_metrics.peak_memory_allocated_gb == 46.0
    assert ("peaks_differ", "the higher one is kept") in [(one.code, one.values.get("kept")) for one in result.remarks]


@in_each(
    ("count", "per_gpu", "gpus"), [(8, 4096.0, 8), (8, 4101.3, 8), (4, 4096.0, None), (8, None, None), (1, 32768.0, 1)]
)
def test_the_device_count_is_the_number_of_gpus_where_the_rates_confirm_it(tmp_path, count, per_gpu, gpus):
    document = changed(
        VERSION_1, gpu_info={"device_count": count}, performance_metrics={"tokens_per_second_per_gpu": per_gpu}
    )
    del document["training_config"]["num_gpus"]
    result = read(tmp_path, document)
    assert result.training_config.num_gpus == gpus
    assert ("num_gpus" in result.provenance.assumed) is (gpus is not None)


def without(document, *keys, **sections):
    """Return a copy without settings of the training and without rates, which follow from them."""
    copy = changed(
        document, performance_metrics={"tokens_per_second_per_gpu": None, "tokens_per_second": None}, **sections
    )
    for key in keys:
        del copy["training_config"][key]
    return copy


@in_each(
    ("document", "name", "open_settings"),
    [
        (
            without(VERSION_1, "num_gpus"),
            "benchmark_{}_llama.json",
            ["model shape", "trainable parameters", "number of GPUs"],
        ),
        (
            without(VERSION_1, "num_gpus"),
            "benchmark_{}_20260105_143022.json",
            ["model", "trainable parameters", "number of GPUs"],
        ),
        (without(VERSION_2, "sequence_length"), "train_{}_llama.json", ["model shape", "sequence length"]),
        (
            without(VERSION_2, "sequence_length", "global_batch_size", "num_gpus"),
            "train_{}_llama.json",
            ["model shape", "sequence length", "number of GPUs", "global batch"],
        ),
    ],
)
def test_step_times_of_files_without_a_place_for_a_setting_are_compared_under_a_condition(
    tmp_path, document, name, open_settings
):
    sides = [read(tmp_path, document, name.format(platform)) for platform in ("nvd", "amd")]
    fairness = judge(*sides)
    assert (fairness.metric, fairness.verdict) == ("steps_per_second", "same_work")
    assert sorted(fairness.conditions) == sorted(open_settings)
    assert fairness.sentence.startswith("Only step times are compared. Same work as far as it is stated; at least")


def test_step_times_are_not_compared_where_the_machines_or_the_batches_are_known_to_differ(tmp_path):
    one = read(tmp_path, without(VERSION_1, "num_gpus", "sequence_length"))
    for document in (
        without(VERSION_1, "num_gpus", "sequence_length", gpu_info={"device_count": 4}),
        without(VERSION_1, "num_gpus", "sequence_length", training_config={"global_batch_size": 32}),
        without(VERSION_1, "num_gpus"),  # states the length that the other leaves open
    ):
        assert judge(one, read(tmp_path, document)).verdict == "not_comparable"


def test_outliers_of_a_file_without_step_numbers_are_named_by_row(tmp_path):
    times = [6.0, *[2.0, 2.01, 1.99] * 6, 9.0, *[2.0, 1.99] * 4]
    result = read(tmp_path, changed(VERSION_1, raw_step_times=times))
    (warning,) = (note for note in result.warnings if "outlier" in note)
    assert "row 20 took 9.000 s" in warning
    assert "step 0" not in warning


def test_an_outlier_in_which_the_device_waited_for_the_host_has_a_cause(shared):
    result = store.load(shared / "gpu" / "h100_full_recompute.json")  # step 10 took 4.181 s instead of 3.864
    for waited, sentence in (
        (0.1, "1 outlier of unknown cause is included (median 3.864 s): step 10 took 4.181 s"),
        (0.3, "1 outlier is included (median 3.864 s): step 10 took 4.181 s (the device waited 0.300 s for the host)"),
    ):
        waits = np.where(np.arange(len(result.steps)) == 9, waited, 0.0)
        again = summarise(result.changed(steps=result.steps.replace(host_wait_seconds=waits), warnings=()))
        assert [note for note in again.warnings if "outlier" in note] == [f"steps: run 1: {sentence}"]


def test_every_float_that_is_written_again_is_rounded(tmp_path):
    document = changed(
        VERSION_1,
        gpu_info={"total_memory_gb": 25.276502016},
        training_config={"learning_rate": 0.00030000000000000003},
        raw_memory_values=[45.123456789] * 5,
    )
    result = read(tmp_path, document).model_copy(update={"host_memory_peak_gb": 1.23456789012})
    written = json.loads(store.to_json(result))
    assert (written["gpu_info"]["total_memory_gb"], written["training_config"]["learning_rate"]) == (25.277, 0.0003)

    def floats(node):
        children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        yield from (child for child in children if isinstance(child, float))
        for child in children:
            yield from floats(child)

    assert [value for value in floats(written) if len(f"{value:.12g}".replace(".", "").strip("0")) > 9] == []
