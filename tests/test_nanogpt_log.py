"""The nanoGPT family: rates over all GPUs, running means, and times that contain an evaluation."""

import math
import re
from typing import Any

import pytest
from each import in_each

from tensorprimat.core.errors import NotALogError
from tensorprimat.logs.nanogpt.rows import ROW_SPELLINGS, Spelling

SOURCE = """import torch
def main():
    print(f"step:{step}/{train_steps} val_loss:{val_loss:.4f} train_time:{training_time_ms:.0f}ms step_avg:{avg:.2f}ms")
    print(f"iter {iter_num}: loss {lossf:.4f}, time {dt*1000:.2f}ms, mfu {running_mfu*100:.2f}%")
    print0(f"step {step:05d} ({pct:.2f}%) | loss: {loss:.6f} | dt: {dt * 1000:.2f}ms | tok/sec: {tok_per_sec:,}")
"""


def log(*lines: str) -> str:
    return "\n".join(lines) + "\n"


@in_each("spelling", ROW_SPELLINGS)
def test_the_pattern_of_a_row_contains_the_text_by_which_lines_are_selected(spelling: Spelling) -> None:
    assert re.sub(r"([|(])", r"\\\1", spelling.mark) in spelling.pattern.pattern


def test_nanogpt_gives_the_time_of_one_iteration(read_text: Any) -> None:
    rows = [f"iter {n}: loss 4.2082, time 143.27ms, mfu {-100 if n < 5 else 31.5:.2f}%" for n in range(0, 60, 10)]
    result = read_text(log("tokens per iteration will be: 491,520", "Overriding: block_size = 1024", *rows), num_gpus=8)
    assert (result.source, result.steps[1].seconds, result.steps[1].covers) == ("nanoGPT", pytest.approx(0.14327), 10)
    assert result.training_config.global_batch_size == 480
    assert result.performance_metrics.tokens_per_second == pytest.approx(491_520 / 0.14327)
    assert "reported_mfu" not in result.steps.seen


def test_an_iteration_of_nanogpt_that_evaluated_or_saved_is_marked(read_text: Any) -> None:
    def row(n: int, ms: float = 143.0) -> str:
        return f"iter {n}: loss 4.2082, time {ms:.2f}ms, mfu 31.50%"

    evaluated = "step 2: train loss 4.1, val loss 4.2"
    rows = [row(0), row(1), evaluated, row(2, 9000), row(3), "saving checkpoint to out", row(4, 5000), row(5)]
    result = read_text(log(*rows))
    assert [step.interrupted_by for step in result.steps] == ["", "", "validation", "", "checkpoint", ""]
    assert result.performance_metrics.max_step_time_seconds == pytest.approx(0.143)


@in_each("between", [" BPC", " BPC, lr 3e-4", ", lr 3e-4, norm 1.5", ""])
def test_a_loss_of_nanogpt_with_a_unit_is_not_read_and_its_time_is(read_text: Any, between: str) -> None:
    rows = [f"iter {n}: loss 2.3942{between}, time 143.27ms, mfu 7.10%" for n in range(0, 60, 10)]
    result = read_text(log(*rows))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.14327)
    assert [step.loss for step in result.steps] == [None if "BPC" in between else 2.3942] * 6


def test_llama2_c_gives_the_time_of_one_iteration_which_may_hold_an_evaluation(read_text: Any) -> None:
    def row(n: int, ms: float = 455.43, mfu: str = "12.34") -> str:
        return f"{n} | loss {9 - n / 100:.4f} | lr 3.000000e-04 | {ms:.2f}ms | mfu {mfu}%"

    rows = [row(0, 9000.0, "-100.00"), row(1), row(2), row(3, mfu=" 0.09"), row(5), row(6, 5000.0), row(7)]
    rows.insert(5, "step 6: train loss 8.9, val loss 8.9")
    result = read_text(log("tokens per iteration will be: 131,072", *rows))
    assert (result.source, result.provenance.format) == ("llama2.c", "nanogpt")
    assert [step.interrupted_by for step in result.steps] == [*[""] * 5, "validation", ""]
    assert result.performance_metrics.tokens_per_second == pytest.approx(131_072 / 0.45543)
    assert (result.steps[1].loss, result.steps[1].learning_rate) == (8.99, 3e-4)
    assert "reported_mfu" not in result.steps.seen


def test_build_nanogpt_counts_all_gpus_and_marks_other_work_inside_a_step(read_text: Any) -> None:
    def row(n: int) -> str:
        return f"step {n:5d} | loss: 6.103515 | lr 3.0000e-04 | norm: 0.5000 | dt: 338.52ms | tok/sec: 1548765.25"

    text = log(
        "total desired batch size: 524288", row(0), row(1), "validation loss: 6.1", row(2),
        "HellaSwag accuracy: 1/2=0.5", row(3),
    )  # fmt: skip
    steps = read_text(text).steps
    assert (steps[1].seconds, steps[1].learning_rate, steps[1].gradient_norm) == (pytest.approx(0.33852), 3e-4, 0.5)
    assert (steps[1].reported_tokens_per_second, steps[1].tokens) == (1548765.25, 524288)
    assert [step.interrupted_by for step in steps] == ["", "", "validation", "validation"]


def row_of_build_nanogpt(n: int, ms: float) -> str:
    return f"step {n:5d} | loss: 6.5 | lr 3.0000e-04 | norm: 1.0 | dt: {ms:.2f}ms | tok/sec: {5e8 / ms:.2f}"


@in_each(
    "words",
    [
        "val loss: 3.2811",
        "2026-01-05 08:00:00 step 9 | val_loss 3.28",
        "[Validation] loss 3.2",
        "Eval Loss: 3.28",
        "Saving checkpoint to out/",
        "saved model.pt",
    ],
)
def test_other_work_that_a_derived_script_announces_in_its_own_words_is_marked(read_text: Any, words: str) -> None:
    rows = [row_of_build_nanogpt(n, 4500 if n % 10 == 0 else 500) for n in range(1, 41)]
    lines = [line for n, row in enumerate(rows, 1) for line in ([words, row] if n % 10 == 0 else [row])]
    result = read_text(log(*lines))
    assert result.performance_metrics.max_step_time_seconds == pytest.approx(0.5)
    assert ("steps_excluded", {"steps": 4, "work": "a validation or checkpoint"}) in [
        (one.code, one.values) for one in result.remarks
    ]


@in_each("distance, left_out", [(50, True), (0, False)])
def test_slow_rows_at_a_regular_distance_are_evaluations_without_their_lines(
    read_text: Any, distance: int, left_out: bool
) -> None:
    slow = set(range(distance, 401, distance)) if distance else {30, 80, 170, 230, 300}
    rows = [f"iter {n}: loss 4.1030, time {40079.99 if n in slow else 561.05}ms" for n in range(0, 401, 10)]
    result = read_text(log(*rows))
    assert (result.performance_metrics.max_step_time_seconds < 1) == left_out
    assert any("8 rows, one every 50 steps" in warning for warning in result.warnings) == left_out


def test_a_script_that_announces_an_evaluation_before_every_row_keeps_its_times(read_text: Any) -> None:
    rows = [row_of_build_nanogpt(n, 500) for n in range(100, 1100, 100)]
    result = read_text(log(*(line for row in rows for line in (row, "val loss 3.3"))))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.5)


@pytest.mark.parametrize("mfu", ["mfu: 50.51", "bf16_mfu: 50.51"])
def test_nanochat_counts_all_gpus(read_text: Any, mfu: str) -> None:
    header = ("Distributed world size: 8", "GPU: NVIDIA H100 80GB HBM3 | Peak FLOPS (BF16): 9.89e+14",
              "COMPUTE_DTYPE: torch.bfloat16 (auto)", "Tokens / micro-batch / rank: 32 x 2048 = 65,536",
              "Total batch size 524,288 => gradient accumulation steps: 1")  # fmt: skip
    rows = [
        f"step {n:05d}/16704 (0.06%) | loss: 2.886813 | lrm: 1.00 | dt: 648.81ms | tok/sec: 808,077 | {mfu} | epoch: 1"
        for n in range(4)
    ]
    result = read_text(log(*header, *rows, "Step 00004 | Validation bpb: 0.91", "Peak memory usage: 75422.02MiB"))
    assert result.performance_metrics.tokens_per_second == pytest.approx(524_288 / 0.64881)
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(524_288 / 0.64881 / 8)
    assert result.performance_metrics.reported.tokens_per_second == pytest.approx(808_077)
    assert result.steps[1].reported_mfu == pytest.approx(0.5051)
    config = result.training_config
    assert (config.precision, config.global_batch_size, config.max_steps) == ("bf16", 256, 16704)
    assert result.memory_metrics.peak_memory_allocated_gb == pytest.approx(75422.02 * 2**20 / 1e9)
    assert not result.steps.column("interrupted_by").any()


def test_an_unknown_gpu_has_no_mfu(read_text: Any) -> None:
    rows = [
        f"step {n:05d} (0.00%) | loss: nan | lrm: 1.00 | dt: 5.05ms | tok/sec: 25,328 | mfu: 0.00" for n in range(1, 4)
    ]
    result = read_text(log(*rows))
    assert "reported_mfu" not in result.steps.seen
    assert math.isnan(result.steps[0].loss)


def clock(step: int, milliseconds: int, validation: bool = False) -> str:
    loss = "val_loss:4.2975 " if validation else ""
    return f"step:{step}/1670 {loss}train_time:{milliseconds}ms step_avg:{milliseconds / max(step, 1):.2f}ms"


def test_the_clock_of_modded_nanogpt_becomes_times_of_steps(read_text: Any) -> None:
    rows = [
        clock(0, 0, True), clock(1, 473), clock(2, 570), clock(3, 667), clock(3, 760, True), clock(4, 780),
        clock(5, 870),
    ]  # fmt: skip
    result = read_text(SOURCE * 300 + log(*rows, "peak memory allocated: 34217 MiB reserved: 49936 MiB"))
    assert result.steps.column("index").tolist() == [1, 2, 3, 4, 5]
    assert [step.seconds for step in result.steps] == pytest.approx([0.473, 0.097, 0.097, 0.113, 0.09])
    assert result.steps[4].memory_reserved_peak_bytes == 49936 * 2**20


def test_a_clock_in_seconds_is_read(read_text: Any) -> None:
    rows = [f"step:{n}/100 train_time:{0.1 * n:.3f}s step_avg:100.00ms" for n in range(1, 5)]
    assert read_text(log(*rows)).steps[2].seconds == pytest.approx(0.1)


def test_a_clock_that_is_set_back_gives_no_time(read_text: Any) -> None:
    rows = [
        f"step:{n}/99 train_loss:5.5 train_time:{ms}ms step_avg:nanms"
        for n, ms in ((9, 9000), (10, 9950), (11, 96), (12, 194), (13, 290))
    ]
    seconds = [step.seconds for step in read_text(log(*rows)).steps]
    assert seconds[::2] == [None, None, pytest.approx(0.096)]
    assert seconds[1::2] == pytest.approx([0.95, 0.098])


def test_validations_alone_are_means_over_the_steps_between(read_text: Any) -> None:
    result = read_text(log(*(clock(n, 100 * n, True) for n in (0, 125, 250, 375))))
    assert result.steps.column("covers").tolist() == [125, 125, 125]
    assert result.steps[1].seconds == pytest.approx(0.1)
    assert "loss" not in result.steps.seen


def test_the_date_of_nvidia_smi_counts_with_one_blank_before_its_day_too(read_text: Any) -> None:
    result = read_text(log("Wed Sep 3 19:58:00 2025", clock(1, 99), clock(2, 199)))
    assert result.timestamp == "2025-09-03T19:58:00"


def test_a_date_of_nvidia_smi_that_does_not_exist_leaves_the_date_before_it(read_text: Any) -> None:
    result = read_text(log("2025-09-03 19:58:00", "Wed Sep 33 19:58:00 2025", clock(1, 99), clock(2, 199)))
    assert result.timestamp == "2025-09-03T19:58:00"


def test_the_device_is_what_nvidia_smi_lists(read_text: Any) -> None:
    smi = [
        f"|   {n}  NVIDIA H100 80GB HBM3          On  |   00000000:{n}9:00.0 Off |                    0 |"
        for n in range(8)
    ]
    result = read_text(
        log(
            "Running PyTorch 2.9.0 compiled for CUDA 12.6",
            "Wed Sep  3 19:58:00 2025       ",
            *smi,
            clock(1, 99),
            clock(2, 199),
        )
    )
    assert (result.gpu_info.device_name, result.gpu_info.device_count) == ("NVIDIA H100 80GB HBM3", 8)
    assert (result.gpu_info.pytorch_version, result.timestamp) == ("2.9.0", "2025-09-03T19:58:00")
    assert result.training_config.num_gpus is None


@in_each(
    "row",
    [
        "step    {n}/18865 | loss 10.955029 (+nanz)| norm 15.3597 (+nanz)| lr 8.57e-07 | 354.65 ms | 58.1% bf16 MFU | "
        "1478276 tok/s",
        "step    {n}/18865 | train loss 10.955029 | norm 15.3597 | lr 8.57e-07 | (354.65 ms | 1478276 tok/s)",
        "step    {n}/18865: train loss 10.955029 (354.650000 ms, 1478276 tok/s)",
        "step {n}: train loss 10.955029 (took 354.650000 ms)",
        "step    {n}/18865 | loss       nan (+nanz)| norm     nan (+nanz)| lr 8.57e-07 | 354.65 ms | 58.1% bf16 MFU | "
        "1478276 tok/s",
    ],
)
def test_every_spelling_of_llm_c_is_read(read_text: Any, row: str) -> None:
    table = ("| total batch size      | 524288         |", "| sequence length T     | 1024           |",
             "| device                | NVIDIA A100-SXM4-80GB     |", "| num_processes         | 8           |",
             "| precision             | BF16           |")  # fmt: skip
    result = read_text(log(*table, *(row.format(n=n) for n in range(1, 5))))
    loss = math.nan if "nan (" in row else 10.955029
    assert (result.steps[1].seconds, result.steps[1].loss) == (pytest.approx(0.35465), pytest.approx(loss, nan_ok=True))
    assert "reported_tokens_per_second" not in result.steps.seen  # a running mean
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(524288 / 0.35465 / 8)
    assert (result.gpu_info.device_name, result.training_config.precision) == ("NVIDIA A100-SXM4-80GB", "bf16")


def test_source_code_is_not_a_log(read_text: Any) -> None:
    with pytest.raises(NotALogError):
        read_text(SOURCE * 10)


def test_losses_without_times_are_refused(read_text: Any) -> None:
    with pytest.raises(NotALogError):
        read_text(log(*(f"s:{n} trl:3.340{n}" for n in range(9))))


def test_flags_that_contradict_the_tokens_of_a_step_are_reported_and_the_log_is_used(read_text: Any) -> None:
    text = log(
        "tokens per iteration will be: 524,288", *(f"iter {n}: loss 4.2, time 100.00ms, mfu 9%" for n in range(9))
    )
    agreeing = read_text(text, global_batch_size=512, sequence_length=1024)
    assert not [warning for warning in agreeing.warnings if warning.startswith("tokens_per_step")]
    result = read_text(text, global_batch_size=64, sequence_length=1024)
    assert result.performance_metrics.tokens_per_second == pytest.approx(5_242_880)
    (warning,) = [warning for warning in result.warnings if warning.startswith("tokens_per_step")]
    assert "524,288" in warning
    assert "65,536" in warning


def test_step_times_are_differences_of_one_ranks_clock(read_text: Any) -> None:
    def rows(rank: int, first: int, last: int) -> str:
        return "".join(
            f"{rank}: step:{n}/100 train_loss:{9 - n / 10:.4f} train_time:{n * 150 + rank}ms\n"
            for n in range(first, last)
        )

    steps = read_text(rows(0, 1, 12) + rows(1, 1, 20) + rows(0, 12, 20)).steps
    assert steps.column("index").tolist() == list(range(1, 20))
    assert steps.column("seconds")[1:].tolist() == pytest.approx([0.15] * 18, abs=1e-6)
    assert not steps.column("segment").any()


def warmed_up_record(*, header: str = "Compiling model and warming up kernels (~7 minutes on first execution)") -> str:
    """Return the newest scripts: batch and window grow by stages, so the steps of the later ones take longer."""
    times, lines = 0.0, [header, "Resetting Model", "step:0/300 val_loss:10.8 train_time:0ms step_avg:0.02ms"]
    for step in range(1, 301):
        times += 40.0 if step <= 100 else 60.0 if step <= 200 else 90.0
        lines.append(f"step:{step}/300 train_time:{times:.0f}ms step_avg:{times / step:.2f}ms")
    lines.append(f"step:300/300 val_loss:3.27 train_time:{times + 30:.0f}ms step_avg:{(times + 30) / 300:.2f}ms")
    return "\n".join(lines) + "\n"


def test_a_slow_first_step_of_a_record_counts_as_in_its_official_time(read_text: Any) -> None:
    lines = ["Resetting Model", "step:0/1500 val_loss:10.8 train_time:0ms step_avg:0.04ms"]
    times = 978.0
    for step in range(1, 1501):
        lines.append(f"step:{step}/1500 train_time:{times:.0f}ms step_avg:{times / step:.2f}ms")
        times += 33.0 if step < 500 else 60.0 if step < 1000 else 83.0
    figures = read_text("\n".join(lines) + "\n").performance_metrics
    assert figures.measured_steps == 1500
    assert figures.avg_step_time_seconds == pytest.approx(0.0592, rel=3e-3)


@in_each(("first", "again"), [(30_000, False), (30_000, True), (2_500, False)])
def test_a_first_step_that_compiles_after_a_declared_warm_up_is_left_out(
    read_text: Any, first: int, again: bool
) -> None:
    lines = ["warmup_step:1/20", "warmup_step:20/20", "step:0/20000 val_loss:6.93 train_time:0ms step_avg:0.02ms"]
    for step in (1, 2, 3, *range(100, 2001, 100)):
        time = first + 70 * (step - 1) + step % 3
        lines.append(f"step:{step}/20000 train_loss:4.2{step} train_time:{time}ms step_avg:{time / step:.2f}ms")
    figures = read_text("\n".join(lines * (1 + again)) + "\n").performance_metrics
    assert figures.warmup_steps_dropped == 1
    assert figures.avg_step_time_seconds == pytest.approx(0.070, rel=1e-3)


def test_every_step_counts_after_a_warm_up_that_the_log_declares(read_text: Any) -> None:
    result = read_text(warmed_up_record())
    assert result.training_config.warmup_steps == 0
    assert result.performance_metrics.measured_steps == 300
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.0633333, abs=1e-4)
    assert (result.audit.clock, result.audit.ratio) == ("train_time", pytest.approx(1.0, abs=2e-3))


@in_each("stamp", ["[2026-01-05 08:{}0:00] ", "2026-01-05 08:{}0:00,250 - INFO - ", "2026/01/05 08:{}0:00 | INFO | "])
def test_settings_and_evaluations_behind_a_time_stamp_are_read(stamp: str, read_text: Any) -> None:
    lines = (
        "Overriding: block_size = 1024",
        "tokens per iteration will be: 491,520",
        "step 0: train loss 10.9895, val loss 10.9900",
        *(f"iter {step}: loss 9.8023, time 462.31ms, mfu 28.88%" for step in (0, 10)),
        "step 15: train loss 9.4000, val loss 9.4100",
        *(f"iter {step}: loss 9.4981, time {9462 if step == 20 else 462}.31ms, mfu 28.91%" for step in (20, 30)),
    )
    result = read_text(log(*(stamp.format(number % 6) + line for number, line in enumerate(lines))))
    assert [step.interrupted_by for step in result.steps] == ["validation", "", "validation", ""]
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.46231)
    assert result.training_config.global_batch_size == 480
