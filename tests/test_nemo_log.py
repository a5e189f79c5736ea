"""NeMo 2's progress line: 0-based iterations, means over the log interval, metrics that come and go."""

from typing import Any

import pytest
from each import in_each

from tensorprimat.core.errors import InputError


def row(iteration: int, *metrics: str, seconds: str | None = "0.5", last: int = 99, start: str = "Training ") -> str:
    timing = [f"train_step_timing in s: {seconds}"] if seconds else []
    printed = [
        "lr: 2.999e-07",
        "global_batch_size: 16",
        f"global_step: {iteration}",
        "reduced_train_loss: 6.466",
        *timing,
        *metrics,
    ]
    return f"{start}epoch 0, iteration {iteration}/{last} | " + " | ".join(printed)


def log(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def test_every_metric_of_a_row_is_read(read_text: Any) -> None:
    metrics = (
        "max_memory_reserved: 68719476736", "max_memory_allocated: 3.4e+10", "grad_norm: 1.25",
        "TFLOPS_per_GPU: 1.249e+03", "tokens_per_sec_per_gpu: 8.192e+03", "consumed_samples: 32", "val_loss: 7.1",
    )  # fmt: skip
    step = read_text(log(row(0), row(1, *metrics), row(2, *metrics))).steps[1]
    assert (step.index, step.seconds, step.loss, step.learning_rate) == (1, 0.5, 6.466, 2.999e-07)
    assert (step.memory_reserved_peak_bytes, step.memory_allocated_peak_bytes) == (2**36, 3.4e10)
    assert (step.reported_tflops_per_gpu, step.reported_tokens_per_second_per_gpu) == (1249, 8192)
    assert (step.samples, step.gradient_norm, step.line) == (16, 1.25, 2)


def test_older_names_of_memory_metrics_are_read_as_reserved_peak_and_allocated(read_text: Any) -> None:
    old = ("peak_memory_usage: 68719476736", "memory_allocated: 34359738368")
    step = read_text(log(row(0, *old), row(1, *old), row(2, *old))).steps[1]
    assert (step.memory_reserved_peak_bytes, step.memory_allocated_bytes) == (2**36, 2**35)
    assert step.memory_allocated_peak_bytes is None


def test_the_batch_is_configuration_and_the_length_comes_from_the_flag(read_text: Any) -> None:
    result = read_text(log(*(row(n) for n in range(12))), sequence_length=4096, num_gpus=8)
    assert result.training_config.global_batch_size == 16
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(16 * 4096 / 0.5 / 8)


def test_a_row_averages_the_log_interval(read_text: Any) -> None:
    steps = read_text(log(*(row(n) for n in (9, 19, 29, 49)))).steps  # iteration 39 was lost
    assert steps.column("covers").tolist() == [10, 10, 10, 10]
    assert steps.column("index").tolist() == [9, 19, 29, 49]


def test_a_first_row_covers_no_more_steps_than_there_were(read_text: Any) -> None:
    assert read_text(log(row(0), row(10), row(20))).steps.column("covers").tolist() == [1, 10, 10]


def test_the_batch_follows_from_consumed_samples(read_text: Any) -> None:
    rows = [
        f"Training epoch 0, iteration {n}/9 | lr: 1e-4 | reduced_train_loss: 6.1 | train_step_timing in s: 0.5"
        for n in range(6)
    ]
    lines = [rows[0], *(f"{text} | consumed_samples: {32 * (n + 1)}" for n, text in enumerate(rows[1:], start=1))]
    result = read_text(log(*lines))
    assert result.steps[0].samples is None
    assert [step.samples for step in result.steps[2:]] == [32] * 4


def test_missing_metrics_stay_none(read_text: Any) -> None:
    steps = read_text(log(row(0, seconds=None), row(1), row(2))).steps
    assert steps[0].seconds is None
    assert steps[1].reported_tflops_per_gpu is None


def test_validation_is_not_a_step(read_text: Any) -> None:
    text = log(
        row(0), row(1), "Validation: iteration 1/5", "Validation: iteration 2/5", row(2, "val_loss: 7.0"), row(3)
    )
    assert read_text(text).steps.column("index").tolist() == [0, 1, 2, 3]


def test_rows_of_several_ranks_are_one_step(read_text: Any) -> None:
    lines = [f"[default{rank}]:{row(n)}" for n in range(3) for rank in range(8)]
    assert len(read_text(log(*lines)).steps) == 3


def test_parallel_sizes_come_from_the_groups(read_text: Any) -> None:
    printed = [
        "All distributed processes registered. Starting with 8 processes",
        "[NeMo I 2025-05-01 10:00:00 init:496] All tensor model parallel group ranks: [[0, 1], [2, 3], [4, 5], [6, 7]]",
        "[NeMo I 2025-05-01 10:00:00 init:550] All pipeline model parallel group ranks: [[0], [1], [2], [3]]",
        "[NeMo I 2025-05-01 10:00:00 init:500] All context parallel group ranks: [[0, 2], [1, 3]]",
        "[NeMo I 2025-05-01 10:00:00 base:49] Padded vocab_size: 128256, original vocab_size: 128000, dummy tokens",
    ]
    config = read_text(log(*printed, *(row(n) for n in range(3)))).training_config
    assert (config.num_gpus, config.tensor_model_parallel_size, config.context_parallel_size) == (8, 2, 2)
    assert (config.pipeline_model_parallel_size, config.padded_vocabulary_size) == (1, 128256)


def test_iterations_that_start_again_in_every_epoch_are_one_training(read_text: Any) -> None:
    rows = [
        f"Training epoch {n // 20}, iteration {n % 20}/19 | lr: 3e-05 | global_batch_size: 8 | global_step: {n} | "
        f"reduced_train_loss: {9 - n / 100:.4g} | train_step_timing in s: {2 + n % 7 / 1000:.4g}"
        for n in range(60)
    ]
    result = read_text("\n".join(rows) + "\n")
    assert result.steps.column("index").tolist() == list(range(60))
    assert (result.runs[0].segments, result.performance_metrics.measured_steps) == (1, 59)


def bar(n: int, seconds: float, elapsed: float, of: int) -> str:
    """Return a drawing of the bar of NeMo 1 at step n, with the numbers of a step."""
    clock = f"{elapsed // 60:02.0f}:{elapsed % 60:02.0f}"
    numbers = f"reduced_train_loss=7.{of:03}, global_step={of - 1}.0, consumed_samples={of * 256}.0"
    return f"Epoch 0: :  {n}%|███   | {n}/100 [{clock}<00:00, v_num=3, {numbers}, train_step_timing in s={seconds:.3f}]"


@pytest.mark.parametrize("between", ["\r", "\n"])
def test_the_last_drawing_of_each_step_of_an_older_bar_is_its_row(read_text: Any, between: str) -> None:
    times = [0.0, 15.0, *(3.5 + n % 5 / 100 for n in range(99))]
    drawings, elapsed = [], 0.0
    for n in range(1, 101):
        elapsed += times[n]
        if n > 1:
            drawings.append(bar(n, times[n - 1], elapsed, n - 1).replace(f"global_step={n - 2}.0", ""))
        drawings.append(bar(n, times[n], elapsed, n))
    result = read_text(between.join(drawings) + "\n", sequence_length=4096, num_gpus=8)
    assert result.provenance.format == "nemo"
    assert result.steps.column("index").tolist() == list(range(100))
    assert result.steps.column("seconds").tolist() == pytest.approx(times[1:])
    assert result.performance_metrics.tokens_per_second == pytest.approx(256 * 4096 / 3.52, rel=0.001)
    assert (result.audit.clock, result.audit.ratio) == ("the progress bar", pytest.approx(1, abs=0.01))


def newer_bar(done: int, global_step: str) -> str:
    return (
        f"Epoch 0:   0%|          | {done}/2383206 [{done // 60:02d}:{done % 60:02d}<99:00, 1.00it/s, v_num=x, "
        f"global_step={global_step}, train_step_timing in s=1.000, reduced_train_loss=2.39, lr=1e-6]"
    )


@in_each("per_step", [2, 4, 32])
@in_each("as_bar", [True, False])
def test_the_time_of_a_batch_is_not_that_of_an_optimizer_step_that_accumulates_several(
    read_text: Any, as_bar: bool, per_step: int
) -> None:
    rows = [
        newer_bar(done, f"{done // per_step:.3f}") if as_bar
        else row(done - 1, seconds="1.0").replace(f"global_step: {done - 1}", f"global_step: {done // per_step}")
        for done in range(33, 97)
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"unknown: global_step grows by \d+ while the rows count 9[56]"):
        read_text(log(*rows))


@in_each("first", [1, 794, 48_210])
def test_a_bar_that_rounds_global_step_and_draws_it_late_counts_optimizer_steps(read_text: Any, first: int) -> None:
    rows = [newer_bar(done, f"{max(done - 2, 0):.3g}") for done in range(first, first + 40)]
    assert read_text(log(*rows)).performance_metrics.avg_step_time_seconds == 1.0


def test_the_list_of_step_times_at_the_end_of_a_log_is_read_where_no_row_is(read_text: Any) -> None:
    times = ", ".join(f"{7.1 + n % 5 / 100:.2f}" for n in range(30))
    text = f"[NeMo I 2025-03-10 16:24:43 perf_metrics_utils:42] train_step_timing in s: [{times}]\n"
    result = read_text(text, global_batch_size=256, sequence_length=4096, num_gpus=8)
    assert (result.provenance.format, len(result.steps)) == ("nemo", 30)
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(7.12, abs=0.002)
    assert "listed_times" in [notice.code for notice in result.remarks]
    for damaged in (text[:-4], text.replace("7.", "x")):
        with pytest.raises(InputError):
            read_text(damaged)
    other = text.replace("7.1", "8.1")
    assert [step.segment for step in read_text(text + text + other).steps] == [0] * 30 + [1] * 30
