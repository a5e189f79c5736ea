"""Figures follow from steps: ratios of sums over the measured ones, and None where nothing was measured."""

import numpy as np
import plausible
import pytest
from each import in_each

from tensorprimat.core.notices import Notice
from tensorprimat.core.result import GpuInfo, Model, PerformanceMetrics, Reported, TrainingConfig
from tensorprimat.core.steps import Step, Steps
from tensorprimat.core.summary import pool, summarise
from tensorprimat.models import flops, presets


def result(rows, *, warmup_steps=1, platform="nvd", **config):
    return plausible.bare(
        platform=platform,
        model=Model(name="llama"),
        training_config=TrainingConfig(warmup_steps=warmup_steps, **config),
        steps=Steps.of(rows),
    )


def timed(*seconds, **fields):
    return [Step(index=i, seconds=value, **fields) for i, value in enumerate(seconds, start=1)]


def test_throughput_is_tokens_over_seconds_never_a_mean_of_rates():
    figures = summarise(
        result(timed(9.0, 1.0, 3.0), global_batch_size=4, sequence_length=100, num_gpus=2)
    ).performance_metrics
    assert figures.tokens_per_second == pytest.approx(2 * 400 / 4.0)
    assert figures.tokens_per_second_per_gpu == pytest.approx(100.0)
    assert figures.samples_per_second == pytest.approx(2.0)
    assert figures.basis == "step_times"


def test_the_first_step_never_counts_where_no_warm_up_was_declared():
    figures = summarise(result(timed(9.0, 1.0, 1.0), warmup_steps=None)).performance_metrics
    assert figures.avg_step_time_seconds == 1.0
    assert (figures.total_steps, figures.measured_steps, figures.warmup_steps_dropped) == (3, 2, 1)
    assert figures.total_time_seconds == 11.0


def test_every_row_counts_where_a_warm_up_of_no_step_was_declared():
    figures = summarise(result(timed(9.0, 1.0, 1.0), warmup_steps=0)).performance_metrics
    assert (figures.measured_steps, figures.warmup_steps_dropped) == (3, 0)


@in_each(("first", "measured"), [(1.0, 40), (0.98, 40), (1.5, 30)])
def test_a_first_row_of_many_steps_is_warm_up_only_where_it_is_the_slowest(first, measured):
    rows = [Step(index=10 * i, seconds=s, covers=10) for i, s in enumerate((first, 1.0, 1.01, 1.0), start=1)]
    assert summarise(result(rows, warmup_steps=None)).performance_metrics.measured_steps == measured


def test_declared_warm_up_counts_optimizer_steps_not_rows():
    rows = [Step(index=10 * i, seconds=s, covers=10) for i, s in enumerate((5.0, 2.0, 1.0, 1.0), start=1)]
    figures = summarise(result(rows, warmup_steps=20)).performance_metrics
    assert (figures.measured_steps, figures.measured_time_seconds) == (20, 20.0)


def test_a_step_that_holds_a_validation_is_left_out_and_counted():
    rows = [*timed(1.0, 1.0), Step(index=3, seconds=7.0, interrupted_by="validation"), Step(index=4, seconds=1.0)]
    summary = summarise(result(rows))
    assert summary.performance_metrics.max_step_time_seconds == 1.0
    assert summary.performance_metrics.excluded_steps == 1
    assert "steps_excluded" in [one.code for one in summary.remarks]


@in_each(
    ("rows", "sentence"),
    [
        (
            [
                *timed(1.0, 1.0, 1.0), Step(index=4, seconds=7.0, interrupted_by="validation"),
                Step(index=5, seconds=None), Step(index=6, seconds=None, covers=0),
                Step(index=1, seconds=1.0, segment=1), Step(index=2, seconds=1.0, segment=1),
            ],
            "only 2 measured rows, too few for an interval of this run alone; left out of the 8 rows: "
            "2 of other segments, 1 without steps of their own, 1 without a time, "
            "1 with a validation or checkpoint, 1 of the warm-up",
        ),
        (timed(1.0, 1.0), "alone; left out of the 2 rows: 1 of the warm-up"),
    ],
)  # fmt: skip
def test_few_measured_rows_are_told_with_all_rows_and_why_the_others_are_left_out(rows, sentence):
    assert any(sentence in warning for warning in summarise(result(rows)).warnings)


def test_a_sentence_of_an_older_file_that_is_longer_today_is_not_repeated():
    old = "steps: only 1 measured row, too few for an interval of this run alone"
    warnings = summarise(result(timed(1.0, 1.0)).changed(warnings=(Notice.of(old),))).warnings
    assert [one for one in warnings if "too few" in one] == [f"{old}; left out of the 2 rows: 1 of the warm-up"]


def test_rates_without_times_are_combined_harmonically():
    rows = [
        Step(index=i, seconds=None, samples=8, reported_samples_per_second=r) for i, r in ((1, 1.0), (2, 2.0), (3, 4.0))
    ]
    figures = summarise(result(rows)).performance_metrics
    assert figures.samples_per_second == pytest.approx(2 / (1 / 2 + 1 / 4))
    assert figures.basis == "reported_rates"


def test_a_step_time_follows_from_the_work_of_a_step_and_a_rate_and_says_so():
    rows = [
        Step(index=i, seconds=None, reported_samples_per_second=16.0, reported_tokens_per_second=9e3) for i in (1, 2, 3)
    ]
    derived = summarise(result(rows, global_batch_size=32, sequence_length=2048))
    figures = derived.performance_metrics
    assert (figures.avg_step_time_seconds, figures.steps_per_second) == (2.0, 0.5)
    assert (figures.std_step_time_seconds, figures.measured_time_seconds) == (None, None)
    assert "step_time_derived" in [one.code for one in derived.remarks]
    times = summarise(result([one.changed(seconds=2.0) for one in rows]))
    assert (times.performance_metrics.basis, times.performance_metrics.avg_step_time_seconds) == ("reported_rates", 2.0)
    assert "step_time_derived" not in [one.code for one in times.remarks]


def test_batch_times_length_and_a_rate_of_tokens_give_no_step_time_because_the_rate_may_leave_padding_out():
    rows = [Step(index=i, seconds=None, samples=32, tokens=65536, reported_tokens_per_second=9e3) for i in (1, 2, 3)]
    figures = summarise(result(rows, global_batch_size=32, sequence_length=2048)).performance_metrics
    assert figures.avg_step_time_seconds is None
    counted = [one.changed(tokens=18_000) for one in rows]
    assert summarise(result(counted)).performance_metrics.avg_step_time_seconds == 2.0


def test_a_rate_printed_with_times_is_weighted_by_time():
    slow = Step(index=3, seconds=3.0, reported_tokens_per_second=20.0)
    rows = [*timed(1.0, 1.0, reported_tokens_per_second=100.0), slow]
    assert summarise(result(rows)).performance_metrics.tokens_per_second == pytest.approx((100 + 60) / 4)


def test_the_longest_stretch_between_restarts_is_measured_and_named():
    rows = timed(1.0, 1.0) + [Step(index=i, seconds=2.0, segment=1) for i in range(1, 6)]
    summary = summarise(result(rows))
    assert summary.performance_metrics.avg_step_time_seconds == 2.0
    assert summary.runs[0].segment == 1
    told = [(one.code, one.values) for one in summary.remarks]
    assert ("segment_chosen", {"segments": 2, "number": 2, "others": ""}) in told


@pytest.mark.parametrize(("loss", "measured"), [(3.02, 118), (2.5, 79)])
def test_a_resume_repeats_the_steps_since_its_checkpoint_once(loss, measured):
    """Steps 1 to 50 and 41 to 120; with another loss at the same steps the second is another training."""
    rows = [Step(index=n, seconds=2.0, loss=3.0) for n in range(1, 51)]
    rows += [Step(index=n, seconds=2.0, loss=loss, segment=1) for n in range(41, 121)]
    assert summarise(result(rows)).performance_metrics.measured_steps == measured


def test_a_row_of_all_steps_since_the_start_is_no_resume():
    """As where nanoGPT's rows of validation repeat the number and the mean time of the row before."""
    rows = [Step(index=n, seconds=0.5, loss=3.0, covers=100) for n in range(100, 1100, 100)]
    rows += [Step(index=n, seconds=0.5, loss=3.0, covers=n, segment=1) for n in (1000, 1100)]
    assert summarise(result(rows)).runs[0].measured_steps <= 1100


def test_memory_peak_is_over_all_rows_and_average_over_measured_ones():
    rows = [
        Step(index=1, seconds=1.0, memory_allocated_bytes=1e9, memory_allocated_peak_bytes=9e9),
        Step(index=2, seconds=1.0, memory_allocated_bytes=2e9, memory_allocated_peak_bytes=4e9),
    ]
    memory = summarise(result(rows)).memory_metrics
    assert (memory.avg_memory_allocated_gb, memory.peak_memory_allocated_gb) == (2.0, 9.0)
    assert memory.peak_memory_reserved_gb is None


def test_a_cpu_has_no_device_memory_with_a_reason():
    summary = summarise(result(timed(1.0, 1.0), platform="cpu"))
    assert summary.memory_metrics is None
    assert any(warning.startswith("memory_metrics:") for warning in summary.warnings)


def test_rates_of_older_files_that_no_setting_reconciles_say_which_one_the_result_uses():
    rows = timed(9.0, *[2.0] * 9, reported_tokens_per_second=3600.0, reported_samples_per_second=0.9)
    summary = summarise(result(rows, global_batch_size=2, sequence_length=4096, num_gpus=1))
    assert summary.performance_metrics.tokens_per_second == 4096
    told = [one for one in summary.remarks if one.code == "reported_differs"]
    assert [(one.field, one.values["computed"], one.values["reported"]) for one in told] == [
        ("tokens_per_second", 4096, 3600), ("samples_per_second", 1, pytest.approx(0.9))
    ]  # fmt: skip
    of_rows = "; the result uses the computed rate (work of the measured rows / their time)"
    assert [one.values["told"] for one in told] == [of_rows] * 2


def test_rates_that_differ_by_an_integer_factor_name_the_value_that_reconciles_them():
    rows = timed(9.763, 9.763, reported_tokens_per_second_per_gpu=13425.0)
    warnings = summarise(result(rows, global_batch_size=128, sequence_length=2048, num_gpus=8)).warnings
    assert any("--sequence-length 8192" in warning for warning in warnings)


def test_a_missing_sequence_length_leaves_tokens_unknown_and_names_the_flag():
    summary = summarise(result(timed(1.0, 1.0), global_batch_size=8))
    assert summary.performance_metrics.tokens_per_second is None
    assert any("--sequence-length" in warning for warning in summary.warnings)


def test_a_nan_loss_is_a_warning():
    rows = [*timed(1.0), Step(index=2, seconds=1.0, loss=float("nan"))]
    assert any(warning.startswith("loss: nan in 1 of 2") for warning in summarise(result(rows)).warnings)


def test_summarising_twice_changes_nothing():
    once = summarise(result(timed(1.0, 2.0, 3.0), global_batch_size=2))
    assert summarise(once) == once


def test_pooling_keeps_every_run_and_divides_sums_by_sums():
    runs = [
        summarise(result(timed(9.0, s, s), global_batch_size=1, sequence_length=10, num_gpus=1)) for s in (1.0, 3.0)
    ]
    joined = pool(runs)
    assert [run.index for run in joined.runs] == [0, 1]
    assert [run.avg_step_time_seconds for run in joined.runs] == [1.0, 3.0]
    assert joined.performance_metrics.tokens_per_second == pytest.approx(40 / 8)
    assert not any("run 1: only" in w and "run 1: run 1" in w for w in joined.warnings)


def test_a_single_row_has_a_reported_rate_but_no_measured_step():
    rows = timed(1.0, reported_tokens_per_second_per_gpu=500.0)
    summary = summarise(result(rows))
    figures = summary.performance_metrics
    assert figures.measured_steps == 0
    assert figures.avg_step_time_seconds is None
    assert figures.reported.tokens_per_second_per_gpu == 500.0
    assert "warmup_too_long" in [one.code for one in summary.remarks]


def test_a_result_without_steps_keeps_the_reported_figures():
    bare = result([]).model_copy(
        update={"performance_metrics": PerformanceMetrics(avg_step_time_seconds=1.5, reported=Reported(mfu=0.4))}
    )
    assert summarise(bare).performance_metrics.avg_step_time_seconds == 1.5


def test_a_row_that_restates_other_rows_is_neither_measured_nor_counted():
    restated = Step(index=3, seconds=9.0, covers=0, reported_samples_per_second=3.0)
    shown = summarise(result([*timed(1.0, 1.0, 1.0), restated]))
    figures = shown.performance_metrics
    assert (figures.total_steps, figures.total_time_seconds, figures.measured_steps) == (3, 3.0, 2)
    assert (figures.max_step_time_seconds, figures.reported.samples_per_second) == (1.0, None)
    assert len(shown.raw_step_times) == 4


def trained_shape(*, tflops=None, mfu=None, **config):
    """Return Llama 3.1 8B at 10,000 tokens/s on one H100, with what its framework says of that."""
    rows = timed(9.0, *[0.8192] * 9, reported_tflops_per_gpu=tflops, reported_mfu=mfu)
    stated = result(rows, global_batch_size=1, sequence_length=8192, num_gpus=1, **config)
    shape = presets.find_preset("llama").shape
    return summarise(
        stated.model_copy(update={"model": Model(shape=shape), "gpu_info": GpuInfo(device_name="H100 SXM")})
    )


def flops_warnings(summary):
    return [one for one in summary.remarks if one.field in ("tflops_per_gpu", "mfu")]


@in_each("convention", flops.CONVENTIONS)
def test_reported_flops_of_any_convention_agree_with_the_shape(convention):
    printed = 1e-8 * flops.per_token(presets.find_preset("llama").shape, 8192, convention)
    assert flops_warnings(trained_shape(tflops=printed * 1.015)) == []


def test_reported_flops_that_no_convention_gives_are_named_with_the_computed_ones():
    (warning,) = flops_warnings(trained_shape(tflops=450.0))
    assert warning.startswith("tflops_per_gpu: computed 466.4 (convention nemo_transformer, the nearest)")
    assert "the framework reported 450.0; comparisons use the computed one" in warning


def test_a_reported_mfu_is_compared_with_the_peak_at_the_precision_that_ran():
    assert flops_warnings(trained_shape(mfu=0.52, precision="bf16")) == []
    (warning,) = flops_warnings(trained_shape(mfu=0.44, precision="bf16"))
    assert (warning.code, warning.field, warning.values["reported"]) == ("mfu_differs", "mfu", "0.44")
    assert warning.values["computed"].startswith("0.47")
    (warning,) = flops_warnings(trained_shape(mfu=0.52, precision="fp8"))
    assert (warning.code, warning.values["precision"]) == ("mfu_differs", "fp8")
    assert flops_warnings(trained_shape(mfu=0.44)) == []


def test_a_wrong_mfu_with_right_flops_is_one_warning():
    (warning,) = flops_warnings(trained_shape(tflops=514.7, mfu=0.6, precision="bf16"))
    assert warning.startswith("mfu: computed 0.52 (the reported TFLOP/s, over")


def test_rows_without_times_are_not_said_to_be_warm_up():
    config = TrainingConfig(global_batch_size=8, sequence_length=128, num_gpus=1)
    read = plausible.bare(
        training_config=config, steps=Steps({"index": np.arange(1, 21), "loss": np.linspace(3.0, 2.0, 20)})
    )
    assert ("rows_without_rate", "steps") in [(one.code, one.field) for one in summarise(read).remarks]
    means = read.changed(performance_metrics=PerformanceMetrics(samples_per_second=40.0, basis="reported_means"))
    assert {"rows_without_rate", "warmup_too_long", "nothing_after_warmup"}.isdisjoint(
        one.code for one in summarise(means).remarks
    )
    short = read.changed(
        steps=Steps({"index": np.arange(1, 21), "seconds": np.full(20, 2.0)}),
        training_config=config.changed(warmup_steps=20),
    )
    told = {one.code: one.values for one in summarise(short).remarks}
    assert told["warmup_too_long"] == {"declared": 20}
    assert told.keys().isdisjoint({"rows_without_rate", "nothing_after_warmup"})


def test_the_mean_power_of_rows_without_times_is_no_harmonic_mean():
    """A level is not work per second: half of the steps at 100 W and half at 900 W are 500 W."""
    rows = [
        Step(index=number, seconds=None, reported_tokens_per_second=1e5, power_watts_per_gpu=watts)
        for number, watts in enumerate(10 * [100.0, 900.0], start=1)
    ]
    assert summarise(result(rows, warmup_steps=0)).power_metrics.avg_power_watts_per_gpu == pytest.approx(500.0)


def with_power(known, rows=50, **of_row):
    """Return power and its warnings of a result whose first rows state it. of_row: other figures of a row."""
    figures = of_row or {"power_watts_per_gpu": 700.0, "clock_hertz": 1.9e9, "temperature_celsius": 60.0}
    steps = [Step(index=number, seconds=1.0, **(figures if number <= known else {})) for number in range(1, rows + 1)]
    found = summarise(result(steps, warmup_steps=0))
    return found.power_metrics, [one for one in found.remarks if one.field == "power_metrics"]


def test_the_power_of_one_row_of_fifty_is_no_figure_of_all_and_the_warning_names_its_share():
    power, warnings = with_power(1)
    assert power is None
    assert {one.code for one in warnings} == {"power_sparse"}
    because = "because a minority may differ from the rest"
    assert [(one.values["level"], one.values["share"], one.values["so"]) for one in warnings] == [
        ("power", 0.02, f"there is no mean of it and no energy from it, {because}"),
        ("clock", 0.02, f"there is no mean of it, {because}"),
        ("temperature", 0.02, f"there is no mean of it, {because}"),
    ]


def test_means_of_the_larger_part_stand_with_its_share_but_energy_needs_nearly_all_rows():
    power, warnings = with_power(30)
    assert (power.avg_power_watts_per_gpu, power.avg_clock_hertz, power.max_temperature_celsius) == (700.0, 1.9e9, 60.0)
    assert power.energy_joules_per_gpu is None
    assert [one.values["so"] for one in warnings] == [
        "the mean is of that part, and there is no energy from it", "the mean is of that part",
        "the mean is of that part",
    ]  # fmt: skip
    assert [(one.code, one.values["share"]) for one in warnings] == [("power_sparse", pytest.approx(0.6))] * 3
    power, warnings = with_power(48)
    assert (power.energy_joules_per_gpu, warnings) == (700.0 * 50, [])


def test_a_share_of_rows_is_one_of_their_time():
    """One long row of two is most of the time, a short one is not."""
    rows = [Step(index=1, seconds=9.0, power_watts_per_gpu=500.0), Step(index=2, seconds=1.0)]
    assert summarise(result(rows, warmup_steps=0)).power_metrics.energy_joules_per_gpu == pytest.approx(5000.0)
    rows = [Step(index=1, seconds=1.0, power_watts_per_gpu=500.0), Step(index=2, seconds=9.0)]
    assert summarise(result(rows, warmup_steps=0)).power_metrics is None


def test_a_counter_that_some_rows_lack_is_no_energy_and_the_warning_says_what_takes_its_place():
    power, warnings = with_power(49, energy_joules_per_gpu=700.0)
    assert power is None
    told = {"rows": 49, "measured": 50}
    assert [(one.code, one.values) for one in warnings] == [("energy_sparse", {**told, "so": "there is no energy"})]
    power, warnings = with_power(49, energy_joules_per_gpu=700.0, power_watts_per_gpu=600.0)
    assert power.energy_joules_per_gpu == 600.0 * 50
    assert [one.values for one in warnings] == [{**told, "so": "the energy is power × time"}]


@pytest.mark.parametrize(("memory_gb", "peak"), [(100.5, "835.0"), (None, None)])
def test_a_reported_mfu_is_compared_with_the_peak_of_the_variant_that_has_the_devices_memory(memory_gb, peak):
    rows = timed(*[1.0] * 12, reported_mfu=0.9, reported_tflops_per_gpu=400.0)
    device = GpuInfo(device_name="NVIDIA H100", total_memory_gb=memory_gb)
    found = summarise(result(rows, precision="bf16").changed(gpu_info=device)).warnings
    told = [warning for warning in found if warning.startswith("mfu: ")]
    assert len(told) == (peak is not None)
    assert all(f"over the dense bf16 peak of {peak} TFLOP/s" in warning for warning in told)
