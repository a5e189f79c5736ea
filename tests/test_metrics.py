"""Derived figures: what they are, what they rest on, and why some cannot be known."""

import re

import pytest
from each import in_each

from tensorprimat.analysis import formulas
from tensorprimat.analysis.metrics import MetricChoices, calculate_metrics
from tensorprimat.audit import checks
from tensorprimat.core.errors import UsageError
from tensorprimat.core.figures import DERIVED_FIGURES
from tensorprimat.core.notices import Notice
from tensorprimat.core.provenance import Provenance
from tensorprimat.core.result import (
    Experts,
    GpuInfo,
    MemoryMetrics,
    Model,
    PerformanceMetrics,
    PowerMetrics,
    Reported,
    Result,
    TrainingConfig,
)
from tensorprimat.facts import catalogue
from tensorprimat.models import flops, presets, shapes
from tensorprimat.storage import store


def result(**changes):
    """Return a result of Llama 8B on eight H100: 128 sequences of 8,192 tokens in 10 s, 13,107.2 tokens/s/GPU."""
    config = TrainingConfig(
        global_batch_size=128,
        micro_batch_size=2,
        sequence_length=8192,
        num_gpus=8,
        precision="bf16",
        **dict.fromkeys(("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"), 1),
        strategy="fsdp",
    ).model_copy(update=changes.pop("config", {}))
    performance = PerformanceMetrics(
        tokens_per_second=104_857.6,
        tokens_per_second_per_gpu=13_107.2,
        measured_steps=20,
        measured_time_seconds=200.0,
        basis="step_times",
        reported=changes.pop("reported", Reported()),
    ).model_copy(update=changes.pop("performance", {}))
    facts = {
        "platform": "nvd",
        "gpu_info": GpuInfo(device_name="NVIDIA H100 80GB HBM3", total_memory_gb=85.0),
        "model": Model(name="llama", preset="full", shape=presets.find_preset("llama").shape),
        "provenance": Provenance(timing="measured"),
        "memory_metrics": MemoryMetrics(peak_memory_allocated_gb=50.0, peak_memory_reserved_gb=68.0),
        **changes,
    }
    return Result(training_config=config, performance_metrics=performance, **facts)


def device(name, **facts):
    return GpuInfo(device_name=name, **facts)


def metric(name, measured=None, **assumptions):
    return calculate_metrics(measured or result(), MetricChoices(**assumptions))[name]


def test_mfu_is_model_flops_over_the_dense_peak_at_the_precision_that_ran():
    mfu = metric("mfu")
    assert mfu.value == pytest.approx(13_107.2 * 51_470_401_536 / 989.4e12)
    assert mfu.remark == "megatron convention, 989.4 TFLOP/s (dense bf16 peak)"
    assert metric("mfu", result(config={"precision": "fp8"})).value == pytest.approx(mfu.value / 2, rel=1e-3)


@in_each(
    ("convention", "percent"),
    [("6n", 48.7), ("palm", 61.7), ("torchtitan", 58.5), ("megatron", 52.0), ("nemo_transformer", 47.1)],
)
def test_one_rate_has_an_mfu_for_each_convention(convention, percent):
    slower = result(performance={"tokens_per_second_per_gpu": 10_000.0})
    assert 100 * metric("mfu", slower, convention=convention).value == pytest.approx(percent, abs=0.06)


def test_a_rate_of_a_file_that_does_not_count_its_steps_names_its_basis_alone():
    (rate,) = metric("tokens_per_second_per_gpu", result(performance={"measured_steps": None})).inputs
    assert rate.source == "measured"


@in_each("peft", [None, "lora"])
@in_each("convention", flops.CONVENTIONS)
def test_flops_per_token_can_be_computed_from_the_numbers_that_it_shows(convention, peft):
    charged = metric("flops_per_token", result(config={"peft": peft}), convention=convention)
    shown = re.findall(r"\b\d[\d,]*", charged.remark.partition(": ")[2])
    factor, weights, *attention = (int(number.replace(",", "")) for number in shown)
    assert factor == (4 if peft else 6)
    assert factor * weights + sum(attention) == charged.value


def test_an_mfu_above_the_peak_has_a_warning():
    assert "above the peak" in metric("mfu", result(performance={"tokens_per_second_per_gpu": 30_000.0})).remark


def test_an_mfu_in_fp8_names_the_parts_that_stay_in_bf16():
    """Llama 3.1 8B at 8,192 tokens: 51.47 GFLOP, of which 3.15 for the head and 6.44 for attention."""
    body, rest, whole = 41.876, 3.152 + 6.442, 51.470
    peak = whole / (body / 1978.9 + rest / 989.4)
    mfu = metric("mfu", result(config={"precision": "fp8"}))
    printed = (
        f"{100 * mfu.value * 1978.9 / peak:.1f} % of a mixed peak of {peak:,.0f} TFLOP/s (layers' matrices at "
        "the fp8 peak, output head and attention at the bf16 peak of 989.4)"
    )
    assert printed in mfu.remark
    assert "mixed peak" not in metric("mfu").remark


def test_an_mfu_of_packed_sequences_states_its_value_without_attention():
    """Llama 3.1 8B at 8,192 tokens: 6.44 of 51.47 GFLOP are attention."""
    packed = result(config={"packing": True})
    mfu = metric("mfu", packed)
    least = mfu.value * (1 - 6.442 / 51.470)
    assert f"one document; if attention stays within documents, MFU is at least {100 * least:.1f} %" in mfu.remark
    assert "document" not in metric("mfu").remark
    assert "document" not in metric("mfu", packed, convention="6n").remark


@in_each(
    ("changes", "because"),
    [
        ({"gpu_info": device("NVIDIA Rubin")}, "NVIDIA Rubin is not in the catalogue of GPUs"),
        ({"gpu_info": device("MI3000X")}, "MI3000X is not in the catalogue of GPUs; did you mean MI300X?"),
        ({"gpu_info": device("NVIDIA H100")}, "NVIDIA H100 may be H100 SXM, H100 PCIe or H100 NVL, which differ"),
        ({"gpu_info": device(None)}, "the GPU is unknown; give --gpu"),
        ({"platform": "cpu", "gpu_info": device("AMD EPYC 9654")}, "no peak FLOP/s is known for this CPU"),
        ({"config": {"precision": None}}, "the precision is not stated"),
        ({"config": {"precision": "fp4"}}, "H100 SXM has no matrix units for fp4"),
        ({"config": {"precision": "int4"}}, "no dense int4 peak of H100 SXM is known"),
        (
            {"gpu_info": device("NVIDIA B200"), "config": {"precision": "tf32"}},
            "the dense tf32 peak of B200 is a range (1,100 to 1,125 TFLOP/s)",
        ),
        (
            {"model": Model(name="llama", preset="full")},
            "MFU needs the model's dimensions, which neither run nor log states; give --shape, or --preset full if "
            "'llama' is the published model",
        ),
        ({"config": {"sequence_length": None}}, "the sequence length is not stated; give --sequence-length"),
        ({"performance": {"tokens_per_second_per_gpu": None}}, "token rate per GPU is unknown"),
    ],
)
def test_a_missing_input_gives_no_mfu_but_the_reason(changes, because):
    mfu = metric("mfu", result(**changes))
    assert mfu.value is None
    assert because in mfu.because


def test_the_reason_for_a_missing_rate_is_the_results_own_warning():
    warning = Notice("rate_unknown", "tokens_per_second", missing=["--sequence-length"])
    unrated = result(performance={"tokens_per_second_per_gpu": None}, warnings=(warning,))
    assert metric("tokens_per_second_per_gpu", unrated).because == warning


def test_every_metric_has_a_value_or_a_reason():
    for measured in (result(), result(gpu_info=device(None), model=Model(), memory_metrics=None)):
        metrics = calculate_metrics(measured)
        assert set(metrics) == set(DERIVED_FIGURES) - {"break_even_price_usd_per_gpu_hour", "budget_saving_usd"}
        for name, figure in metrics.items():
            assert (figure.value is None) == (figure.because is not None), name


def test_every_input_has_a_source_or_a_reason():
    for measured in (result(), result(gpu_info=device("unheard of"), memory_metrics=None)):
        for figure in calculate_metrics(measured).values():
            for item in figure.inputs:
                assert item.source if item.value is not None else item.because, (figure.name, item.name)


HEAD = 128256 * 4096  # weights of Llama's output head, which no framework runs again
ALL_LAYERS = 1 + (51_470_401_536 - 6 * HEAD) / 3 / 51_470_401_536


@in_each(("recompute", "factor"), [("none", 1), ("full", ALL_LAYERS), ("Full", ALL_LAYERS)])
def test_hfu_counts_recomputed_activations(recompute, factor):
    measured = result(config={"recompute": recompute})
    assert metric("hfu", measured).value == pytest.approx(metric("mfu", measured).value * factor)


def test_hfu_of_adapters_adds_recomputation_to_the_flops_that_frozen_weights_cost():
    """A frozen weight costs 4 FLOPs per token, and its forward pass again costs 2 as that of any other weight."""
    shape = presets.find_preset("llama").shape
    adapted = Model(name="llama", shape=shape, parameters=presets.parameters(shape), trainable_parameters=20_000_000)
    measured = result(model=adapted, config={"recompute": "full", "peft": "lora"})
    weights, head = 7_504_658_432, 128_256 * 4096
    attention = 6 * 32 * 4096 * 8192
    executed = 4 * weights + attention + 2 * (weights - head) + attention / 3
    assert metric("hfu", measured).value == pytest.approx(13_107.2 * executed / 989.4e12)


def test_selective_recompute_runs_only_the_attention_core_again():
    measured = result(config={"recompute": "selective"})
    per_token, attention = 51_470_401_536, 6 * 32 * 4096 * 8192
    expected = metric("mfu", measured).value * (1 + attention / 3 / per_token)
    assert metric("hfu", measured).value == pytest.approx(expected)


def test_selective_recompute_of_torchtitan_runs_every_second_matrix_product_again():
    """Of a layer of Llama 3.1 8B: K, output and up; Q, V, gate and down are kept, and so is the attention."""
    measured = result(config={"recompute": "selective", "framework": "torchtitan"})
    factor = metric("hfu", measured).value / metric("mfu", measured).value
    again = 2 * 32 * (4096 * 1024 + 4096 * 4096 + 4096 * 14336)
    assert factor == pytest.approx(1 + again / 51_470_401_536)
    assert round(factor, 3) == 1.099
    assert metric("hfu", measured).remark == "recompute every second matrix product"


def test_selective_recompute_of_torchtitan_without_a_gate_runs_k_output_and_down_again():
    shape = presets.find_preset("llama").shape.model_copy(update={"gated_mlp": False})
    config = {"recompute": "selective", "framework": "torchtitan"}
    measured = result(config=config, model=Model(name="llama", shape=shape))
    factor = metric("hfu", measured).value / metric("mfu", measured).value
    again = 2 * 32 * (4096 * 1024 + 4096 * 4096 + 14336 * 4096)
    assert factor == pytest.approx(1 + again / flops.per_token(shape, 8192))


def test_selective_recompute_of_torchtitan_is_not_counted_for_biases():
    """Torch computes Q, K and V with biases by addmm, and torchtitan counts mm."""
    config = {"recompute": "selective", "framework": "torchtitan"}
    hfu = metric("hfu", result(config=config, model=Model(name="qwen", shape=presets.find_preset("qwen").shape)))
    assert hfu.value is None
    assert hfu.because.endswith("every second matrix product is not known for an attention with biases")


def test_an_ambiguous_gpu_lists_the_names_that_are_accepted():
    because = metric("mfu", result(gpu_info=device("H100"))).because
    assert because.endswith("give --gpu H100-SXM, --gpu H100-PCIe or --gpu H100-NVL")
    assert all(catalogue.find_gpu(name) for name in ("H100-SXM", "H100-PCIe", "H100-NVL"))


def test_only_the_variants_of_the_devices_memory_are_offered():
    of_80 = device("H100").model_copy(update={"total_memory_gb": 85.0})
    because = metric("mfu", result(gpu_info=of_80)).because
    assert because == "H100 may be H100 SXM or H100 PCIe, which differ; give --gpu H100-SXM or --gpu H100-PCIe"


@pytest.mark.parametrize(("device_name", "watts"), [("AMD Instinct MI250X", 280.0), ("AMD Instinct MI300X", 560.0)])
def test_the_power_limit_of_a_board_of_two_dies_is_shared_by_both(device_name, watts):
    gpu_info = device(device_name).model_copy(update={"power_limit_watts": 560.0})
    assert metric("power_watts_per_gpu", result(gpu_info=gpu_info)).value == watts


@in_each(
    "shape",
    [
        shapes.of_name("gpt-oss-20b").shape,
        shapes.of_name("DeepSeek-V3").shape,
        presets.find_preset("mistral").shape.model_copy(update={"windowed_layers": 16}),
    ],
)
def test_hfu_is_unknown_where_every_second_of_unlike_layers_is_recomputed(shape):
    measured = result(config={"recompute": "every second layer"}, model=Model(shape=shape))
    assert "the cost of recomputing every second layer is not known" in metric("hfu", measured).because


def test_hfu_is_unknown_where_recompute_is_not_stated_or_not_understood():
    assert metric("hfu").because == "activation recomputation is not stated"
    assert "'sometimes' is unknown" in metric("hfu", result(config={"recompute": "sometimes"})).because


def test_the_share_of_the_best_matrix_rate_is_shown_next_to_mfu():
    share = metric("achievable_fraction")
    assert share.value == pytest.approx(metric("model_tflops_per_gpu").value / 794.5)
    assert metric("achievable_fraction", result(gpu_info=device("NVIDIA L40S"))).value is None


def test_a_sliding_window_lowers_the_flops_of_long_sequences():
    mistral = Model(name="mistral", preset="full", shape=presets.find_preset("mistral").shape)
    assert metric("flops_per_token", result(model=mistral)).value == 47_494_201_344


@in_each("own", ["palm", "6n", "megatron", "nemo_transformer"])
def test_reported_tflops_are_restated_once_their_convention_is_clear(own):
    shape = presets.find_preset("llama").shape
    printed = Reported(tflops_per_gpu=13_107.2 * flops.per_token(shape, 8192, own) / 1e12)
    restated = metric("reported_tflops_per_gpu_restated", result(reported=printed))
    assert restated.value == pytest.approx(metric("model_tflops_per_gpu").value)
    assert restated.remark == f"the framework counted FLOPs by {own}"


@pytest.mark.parametrize("frozen", [False, True])
def test_reported_tflops_of_adapters_are_restated_to_those_of_mfu_however_frozen_weights_were_counted(frozen):
    shape = presets.find_preset("llama").shape
    adapted = Model(name="llama", shape=shape, parameters=presets.parameters(shape), trainable_parameters=20_000_000)
    counted = flops.per_token(shape, 8192, "palm") - (2 * presets.parameters(shape) if frozen else 0)
    printed = Reported(tflops_per_gpu=13_107.2 * counted / 1e12)
    measured = result(model=adapted, config={"peft": "lora"}, reported=printed)
    restated = metric("reported_tflops_per_gpu_restated", measured)
    assert restated.value == pytest.approx(metric("model_tflops_per_gpu", measured).value)
    own = "palm, frozen weights at 4 FLOPs" if frozen else "palm"
    assert restated.remark == f"the framework counted FLOPs by {own}"
    assert not [text for text in checks.derived_notices(measured, ()) if text.startswith("tflops_per_gpu")]


def test_reported_tflops_of_no_known_convention_are_not_restated():
    odd = metric("reported_tflops_per_gpu_restated", result(reported=Reported(tflops_per_gpu=1000.0)))
    assert odd.value is None
    assert (
        odd.because == "the reported rate implies 76.29 GFLOP per token, which no known convention gives for this shape"
    )


# Memory


def test_memory_utilization_takes_the_widest_kind_that_was_logged():
    assert metric("memory_utilization").value == pytest.approx(68 / 85)
    used = MemoryMetrics(peak_memory_reserved_gb=68.0, peak_memory_device_used_gb=80.0)
    whole = metric("memory_utilization", result(memory_metrics=used))
    assert whole.value == pytest.approx(80 / 85)
    assert whole.remark == "whole device, as the driver reports it"
    assert metric("memory_headroom_gb", result(memory_metrics=used)).value == pytest.approx(5)


@in_each(("peak", "advice"), [(20.0, "a larger micro batch may be faster"), (60.0, None), (84.0, "nearly full")])
def test_memory_utilization_gives_advice_where_low_and_where_high(peak, advice):
    remark = metric("memory_utilization", result(memory_metrics=MemoryMetrics(peak_memory_reserved_gb=peak))).remark
    assert (advice in remark) if advice else remark == "the allocator's pool"


def test_a_peak_above_the_device_memory_gives_no_negative_headroom_but_a_reason():
    measured = result(memory_metrics=MemoryMetrics(peak_memory_reserved_gb=90.0))
    for name in ("memory_utilization", "memory_headroom_gb", "largest_micro_batch_size"):
        assert metric(name, measured).value is None
        assert "the peak of 90.00 GB is above the device's 85.00 GB" in metric(name, measured).because


def test_device_memory_falls_back_to_the_nameplate_in_binary_gigabytes():
    plain = result(gpu_info=device("NVIDIA H100 80GB HBM3"))
    assert metric("memory_utilization", plain).value == pytest.approx(68e9 / (80 * 2**30))
    source = next(item.source for item in metric("memory_utilization", plain).inputs if item.name == "device memory")
    assert source.startswith("nameplate of H100 SXM")


def test_the_largest_micro_batch_separates_the_fixed_state_first():
    estimate = metric("largest_micro_batch_size")
    state = 8.030261248 * 16 / 8  # FSDP over eight replicas
    assert estimate.value == ((0.95 * 85 - state) / ((68 - state) / 2)) // 1
    assert estimate.remark.startswith(
        "estimate; weights, gradients and optimizer state: 16 bytes per parameter assumed"
    )


def test_the_fixed_state_follows_the_dtypes_where_they_are_stated():
    pure = {"parameter_dtype": "bf16", "optimizer_dtype": "bf16"}
    state = next(
        item for item in metric("largest_micro_batch_size", result(config=pure)).inputs if "fixed" in item.name
    )
    assert state.value == pytest.approx(8.030261248 * 8 / 8)
    master = {"parameter_dtype": "bf16", "optimizer_dtype": "fp32"}
    state = next(
        item for item in metric("largest_micro_batch_size", result(config=master)).inputs if "fixed" in item.name
    )
    assert state.value == pytest.approx(8.030261248 * 16 / 8)


def test_the_largest_micro_batch_is_never_below_the_one_that_ran():
    full = result(memory_metrics=MemoryMetrics(peak_memory_reserved_gb=84.5))
    assert metric("largest_micro_batch_size", full).value == 2


@in_each(
    ("changes", "because"),
    [
        ({"config": {"strategy": None}}, "the sharding of the data-parallel replicas is not stated (strategy)"),
        ({"config": {"tensor_model_parallel_size": None}}, "the parallel sizes are not all stated"),
        ({"config": {"tensor_model_parallel_size": 0}}, "the parallel sizes are not all stated"),
        ({"config": {"num_gpus": 0}}, "the number of GPUs and the parallel sizes are not all stated"),
        ({"config": {"num_gpus": 2, "tensor_model_parallel_size": 4}}, "2 GPUs cannot be divided into replicas of 4"),
        ({"config": {"num_gpus": 1, "tensor_model_parallel_size": 4}}, "1 GPU cannot be divided into replicas of 4"),
        ({"config": {"num_gpus": 12, "context_parallel_size": 8}}, "12 GPUs cannot be divided into replicas of 8"),
        ({"config": {"micro_batch_size": None}}, "the micro batch size is not stated"),
        ({"model": Model(name="llama")}, "the number of parameters is not known"),
        ({"config": {"strategy": "ddp"}}, "is below the estimated fixed state of 128.48 GB"),
        ({"config": {"expert_model_parallel_size": 8}}, "the share of the experts that one GPU holds is not known"),
        ({"config": {"num_gpus": 1, "expert_model_parallel_size": 8}}, "the share of the experts that one GPU holds"),
        ({"model": Model(shape=shapes.of_name("Mixtral-8x7B").shape)}, "the share of the experts"),
    ],
)
def test_an_estimate_without_its_grounds_is_not_made(changes, because):
    estimate = metric("largest_micro_batch_size", result(**changes))
    assert estimate.value is None
    assert because in estimate.because


@pytest.mark.parametrize("peak", [68, 68.0])
def test_a_peak_below_the_fixed_state_gives_no_estimate_whether_it_is_a_whole_number_or_not(peak):
    measured = result(config={"strategy": "ddp"})
    memory = measured.memory_metrics.changed(peak_memory_reserved_gb=peak)
    estimate = metric("largest_micro_batch_size", measured.changed(memory_metrics=memory))
    assert estimate.value is None
    assert "the peak of 68.00 GB is below the estimated fixed state" in estimate.because


# Energy and money


def test_measured_power_is_used_and_labelled():
    power = metric("power_watts_per_gpu", result(power_metrics=PowerMetrics(avg_power_watts_per_gpu=560.0)))
    assert (power.value, power.remark) == (560.0, "measured")


def test_measured_energy_gives_the_power():
    power = metric("power_watts_per_gpu", result(power_metrics=PowerMetrics(energy_joules_per_gpu=100_000.0)))
    assert (power.value, power.remark) == (500.0, "measured by counter")


def test_energy_is_that_of_the_counter_with_the_sampled_one_beside_it(shared):
    found = calculate_metrics(store.load(shared / "gpu/h200_no_recompute.json"))
    step = {"": 12_107.69 / 6, "sampled_": 12_074.2 / 6}
    for prefix, joules in step.items():
        assert found[f"{prefix}joules_per_step"].value == pytest.approx(joules, rel=1e-4)
        assert found[f"{prefix}joules_per_token"].value == pytest.approx(joules / 32_768, rel=1e-4)
        assert found[f"{prefix}tokens_per_watt_hour"].value == pytest.approx(3600 * 32_768 / joules, rel=1e-4)
    assert found["power_watts_per_gpu"].remark == "measured by counter"
    assert metric("sampled_joules_per_token").value is None


def test_mfu_at_the_mean_clock_is_that_of_the_peak_at_this_clock(shared):
    h200 = store.load(shared / "gpu/h200_no_recompute.json")
    mfu = calculate_metrics(h200)["mfu_at_clock"]
    assert mfu.value == pytest.approx(11_240.9 * 51_470_401_536 / (16_896 * 32 * 1.56353e9), rel=1e-4)
    assert mfu.remark == "1,564 MHz of 1,830 MHz, at which the peak is defined"
    assert metric("mfu_at_clock").because == "no clock was measured"
    blackwell = h200.changed(gpu_info=device("NVIDIA B200"))
    assert "not in the catalogue" in calculate_metrics(blackwell)["mfu_at_clock"].because
    in_fp32 = h200.changed(training_config=h200.training_config.changed(precision="fp32"))
    assert "the clock of the dense fp32 peak" in calculate_metrics(in_fp32)["mfu_at_clock"].because


def test_nameplate_power_is_labelled_and_a_power_limit_overrides_the_catalogue():
    assert (metric("power_watts_per_gpu").value, metric("power_watts_per_gpu").remark) == (700.0, "nameplate")
    capped = result(gpu_info=device("NVIDIA H100 80GB HBM3", power_limit_watts=500.0))
    assert (metric("power_watts_per_gpu", capped).value, metric("joules_per_token", capped).remark) == (
        500,
        "nameplate",
    )


def test_a_range_of_nameplate_power_is_not_a_power():
    unclear = metric("tokens_per_watt_hour", result(gpu_info=device("NVIDIA GH200 480GB")))
    assert unclear.value is None
    assert "range (450 to 1,000 W)" in unclear.because


def test_energy_and_cost_follow_from_rate_power_and_price():
    priced = {"prices": {"H100": 3.6}}
    assert metric("joules_per_token").value == pytest.approx(700 / 13_107.2)
    assert metric("tokens_per_watt_hour").value == pytest.approx(13_107.2 * 3600 / 700)
    assert metric("model_tflops_per_watt").value == pytest.approx(metric("model_tflops_per_gpu").value / 700)
    assert metric("cost_usd_per_trillion_tokens", **priced).value == pytest.approx(1e12 / 13_107.2 / 1000)
    assert metric("tokens_per_dollar", **priced).value == pytest.approx(13_107_200 / 1)
    assert metric("time_to_1t_tokens_seconds").value == pytest.approx(1e12 / 104_857.6)
    assert metric("time_to_15t_tokens_seconds").value == pytest.approx(15e12 / 104_857.6)


def test_a_budget_of_the_users_own_scales_cost_time_and_energy():
    one, two = calculate_metrics(result()), calculate_metrics(result(), MetricChoices(budget_tokens=2e12))
    for name in ("budget_gpu_hours", "budget_seconds", "budget_energy_kwh", "budget_cost_usd"):
        assert two[name].value == pytest.approx(2 * one[name].value)
    assert one["budget_cost_usd"].value == pytest.approx(one["cost_usd_per_trillion_tokens"].value)
    assert one["budget_gpu_hours"].value == pytest.approx(8 * one["budget_seconds"].value / 3600)


@in_each(
    ("prices", "price", "source"),
    [
        ({}, 2.99, "Lambda, 2026-05-18"),
        ({"H100": 2.1}, 2.1, "--price H100=2.1"),
        ({"h100 sxm": 2.2}, 2.2, "--price h100 sxm=2.2"),
        ({"NVIDIA H100 80GB HBM3": 2.3}, 2.3, "--price NVIDIA H100 80GB HBM3=2.3"),
        ({"H100 PCIe": 1.0, "MI300X": 1.5}, 2.99, "Lambda, 2026-05-18"),
        ({"": 9.0}, 9.0, "--price 9"),
        ({"": 9.0, "H100": 2.1}, 2.1, "--price H100=2.1"),
    ],
)
def test_a_price_flag_overrides_the_catalogue(prices, price, source):
    found = metric("price_usd_per_gpu_hour", prices=prices)
    assert (found.value, found.remark) == (price, source)


def test_a_device_without_a_price_names_the_flag_that_states_one():
    unpriced = metric("tokens_per_dollar", result(gpu_info=device("NVIDIA Rubin")))
    assert unpriced.because == 'no price of NVIDIA Rubin is known; give --price "NVIDIA Rubin=USD"'
    processor = result(platform="cpu", gpu_info=device("AMD EPYC 9654"))
    assert metric("price_usd_per_gpu_hour", processor, prices={"CPU": 0.1}).value == 0.1
    assert 'give --price "cpu=USD"' in metric("price_usd_per_gpu_hour", processor).because


def test_the_first_price_of_a_gpu_in_the_catalogue_is_used():
    first = next(price for price in catalogue.prices() if price.gpu == "MI300X")
    mi300x = result(platform="amd", gpu_info=device("AMD Instinct MI300X VF"))
    assert metric("price_usd_per_gpu_hour", mi300x).value == first.usd_per_gpu_hour


def test_an_unknown_convention_is_refused():
    with pytest.raises(UsageError, match="no FLOPs convention"):
        calculate_metrics(result(), MetricChoices(convention="chinchilla"))


@in_each(
    ("wrong", "reason"),
    [
        ({"prices": {"H100": -1.0}}, "price of H100: -1 USD"),
        ({"prices": {"": float("nan")}}, "price of every device: nan USD"),
        ({"budget_tokens": -5.0}, "budget of -5 tokens"),
        ({"budget_tokens": float("inf")}, "budget of inf tokens"),
    ],
)
def test_choices_of_a_python_program_that_no_benchmark_can_have_are_refused(wrong, reason):
    with pytest.raises(UsageError, match=reason):
        MetricChoices(**wrong)


def test_absurd_figures_give_reasons_not_infinities():
    absurd = result(performance={"tokens_per_second_per_gpu": 1e-320, "tokens_per_second": 1e-320})
    for name in ("joules_per_token", "time_to_1t_tokens_seconds", "cost_usd_per_trillion_tokens"):
        assert metric(name, absurd).value is None
        assert metric(name, absurd).because == "its inputs give no finite number"
    assert metric("mfu", result(performance={"tokens_per_second_per_gpu": -5.0})).value is None


def test_formulas_agree_with_each_other():
    rate, price = 12_345.0, 2.5
    assert formulas.calculate_cost(1e9, rate, price) == pytest.approx(formulas.calculate_gpu_hours(1e9, rate) * price)
    assert formulas.calculate_tokens_per_watt_hour(rate, 700) == pytest.approx(
        3600 / formulas.calculate_joules_per_token(700, rate)
    )
    even = formulas.calculate_break_even_price(price, rate, 6_000.0)
    assert formulas.calculate_cost(1e12, 6_000.0, even) == pytest.approx(formulas.calculate_cost(1e12, rate, price))


PLAN = "34 % of activations kept: queries, keys, attention, gate recomputed"


def test_hfu_counts_the_operations_that_a_plan_names():
    measured = result(config={"recompute": PLAN})
    again = 2 * 32 * (4096 * 4096 + 4096 * 1024 + 4096 * 14336) + 2 * 32 * 4096 * 8192
    factor = metric("hfu", measured).value / metric("mfu", measured).value
    assert factor == pytest.approx(1 + again / 51_470_401_536)


@pytest.mark.parametrize("framework", ["transformers on Lightning", "torchtitan"])
def test_hfu_of_full_leaves_out_the_last_product_where_torch_does(framework):
    measured = result(config={"recompute": "full", "framework": framework})
    factor = metric("hfu", measured).value / metric("mfu", measured).value
    assert factor == pytest.approx(ALL_LAYERS - 2 * 32 * 4096 * 14336 / 51_470_401_536)


@in_each(("summed", "products"), [((), ("down",)), (("output", "down"), ())])
def test_hfu_counts_the_last_product_where_backward_needs_it(summed, products):
    shape = presets.find_preset("llama").shape
    given, plain = (
        metric("hfu", result(config={"recompute": PLAN}, model=Model(shape=one))).value
        for one in (shape.changed(summed_products=summed), shape)
    )
    mfu = metric("mfu", result(config={"recompute": PLAN})).value
    more = 2 * 32 * 4096 * 14336 * len(products)
    assert (given - plain) / mfu == pytest.approx(more / 51_470_401_536)


def test_hfu_is_unknown_for_a_plan_of_layers_without_its_operations():
    moe = presets.find_preset("llama").shape.model_copy(
        update={"experts": Experts(count=8, active=2, ffn_hidden_size=64, layers=32)}
    )
    assert "is unknown" in metric("hfu", result(config={"recompute": PLAN}, model=Model(shape=moe))).because
