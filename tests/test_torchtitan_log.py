"""Tests of torchtitan logs: rates per GPU, means over a log interval, ranks without loss, validation lines."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.core.errors import NotALogError
from tensorprimat.core.units import GIB

TRAINER = (
    "[titan] 2026-01-05 08:00:00,250 - root - INFO - Trainer is initialized with local batch size 2, "
    "global batch size 16, gradient accumulation steps 1, sequence length 4096, total steps 40 (warmup 2)"
)
MESH = (
    "[titan] 2026-01-05 08:00:00,100 - root - INFO - Building device mesh with parallelism: "
    "pp=1, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=2"
)
CAPACITY = "[titan] 2026-01-05 08:00:00,150 - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory"
TOKENS_PER_GPU = 16 * 4096 / 8


def row(
    step: int, tps: str = "8,192", *, loss: str = "9.87654", rate: str = "tps", tail: str = "", rank: str = ""
) -> str:
    return (
        f"{rank}[titan] 2026-01-05 08:01:{step % 60:02},500 - root - INFO - "
        f"\x1b[31mstep: {step:2}  \x1b[32mloss: {loss}  "
        f"\x1b[38;2;180;60;0mgrad_norm:  1.2500  \x1b[38;2;54;234;195mmemory: 38.50GiB(48.67%)  \x1b[34m{rate}: {tps}  "
        f"{tail or chr(27) + '[36mtflops: 1,000.13  ' + chr(27) + '[35mmfu: 42.50%'}\x1b[39m"
    )


def log(*lines: str) -> str:
    return "\n".join([MESH, CAPACITY, TRAINER, "[titan] Training starts at step 1", *lines]) + "\n"


def test_every_number_of_a_coloured_row_is_read(read_text: Any) -> None:
    step = read_text(log(row(1), row(2))).steps[1]
    assert (step.index, step.loss, step.gradient_norm, step.line) == (2, 9.87654, 1.25, 6)
    assert step.memory_reserved_peak_bytes == 38.5 * GIB
    assert step.reported_tokens_per_second_per_gpu == 8192
    assert step.reported_tflops_per_gpu == 1000.13
    assert step.reported_mfu == pytest.approx(0.425)


@in_each(
    ("line", "setting", "value"),
    [
        ("Applied selective activation checkpointing to the model", "recompute", "selective"),
        ("Applied SelectiveAC activation checkpointing to the model", "recompute", "selective"),
        ("Applied FullAC activation checkpointing to the model", "recompute", "full"),
        ("Selected 0.5 budget option", "recompute", "memory_budget"),
        ("Applied FSDP to the model", "strategy", "fsdp"),
        ("Applied FSDP2 to Kimi Linear", "strategy", "fsdp"),
        ("Applied fully_shard to the model", "strategy", "fsdp"),
    ],
)
def test_a_setting_has_one_name_in_old_and_new_releases(read_text: Any, line: str, setting: str, value: str) -> None:
    printed = f"[titan] 2026-07-05 08:00:00,300 - root - INFO - {line}"
    assert getattr(read_text(log(printed, row(1), row(2))).training_config, setting) == value


def test_configuration_comes_from_the_trainers_lines(read_text: Any) -> None:
    result = read_text(log(row(1), row(2)))
    config = result.training_config
    assert (config.num_gpus, config.global_batch_size, config.micro_batch_size, config.sequence_length) == (
        8, 16, 2, 4096,
    )  # fmt: skip
    assert (config.tensor_model_parallel_size, config.expert_model_parallel_size, config.max_steps) == (2, 2, 40)
    gpu = result.gpu_info
    assert (gpu.device_name, gpu.gpu_cores, result.platform) == ("NVIDIA H100 80GB HBM3", 16896, "nvd")
    assert result.timestamp == "2026-01-05T08:00:00"


TITAN = "[titan] 2026-01-05 08:00:00,160 - root - INFO - "
LLAMA_8B = """\
Building llama3 8Bwith {
  "dim": 4096,
  "n_layers": 32,
  "n_heads": 32,
  "n_kv_heads": 8,
  "vocab_size": 128256,
  "multiple_of": 1024,
  "ffn_dim_multiplier": 1.3,
  "norm_eps": 1e-05,
  "rope_scaling_args": {
    "scaling_factor": 8.0
  }
}"""
DEBUG_MODEL = (
    "Building llama3 debugmodel with TransformerModelArgs(_enforced='All fields have defaults.', dim=256, n_layers=6, "
    "n_heads=16, n_kv_heads=None, vocab_size=2048, multiple_of=256, ffn_dim_multiplier=None, norm_eps=1e-05)"
)
QWEN_14B = (
    "Building qwen3 14B with Qwen3ModelArgs(dim=5120, n_layers=40, n_heads=40, n_kv_heads=8, vocab_size=151936, "
    "head_dim=128, hidden_dim=17408, qk_norm=True, enable_weight_tying=False, moe_enabled=False)"
)


@in_each(
    ("arguments", "parameters", "numbers"),
    [
        (LLAMA_8B, "8,030,261,248", (32, 4096, 14336, 32, 8, 128, 128256)),
        (DEBUG_MODEL, "6,163,712", (6, 256, 768, 16, 16, 16, 2048)),
        (QWEN_14B, "14,768,307,200", (40, 5120, 17408, 40, 8, 128, 151936)),
        (LLAMA_8B, "8,030,261,249", None),  # not the model that these arguments describe
        (LLAMA_8B.replace('  "n_layers": 32,\n', ""), "8,030,261,248", None),
        (QWEN_14B.replace("moe", "sliding_window_size=128, moe"), "14,768,307,200", None),  # of which layers?
    ],
)
def test_the_printed_arguments_give_the_shape_that_has_the_printed_parameters(
    read_text: Any, arguments: str, parameters: str, numbers: tuple[int, ...] | None
) -> None:
    counted = f"{TITAN}Model llama3 8B size: {parameters} total parameters"
    shape = read_text(log(f"{TITAN}{arguments}", counted, row(1), row(2))).model.shape
    assert (shape and tuple(shape.model_dump().values())[:7]) == numbers


def test_a_real_torchtitan_log_states_the_shape_of_our_own_run(shared: Path) -> None:
    ours, theirs = (
        logs.read(shared / "gpu" / name) for name in ("h200_no_recompute.json", "torchtitan_h200_no_recompute.log")
    )
    assert ours.model.shape == theirs.model.shape is not None


def test_step_times_follow_from_the_rate_where_batch_length_and_world_size_are_known(read_text: Any) -> None:
    result = read_text(log(row(1), row(2), row(3)))
    assert result.steps[1].seconds == pytest.approx(TOKENS_PER_GPU / 8192)
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(8192)


def test_a_rate_of_few_whole_tokens_is_too_coarse_for_a_time(read_text: Any) -> None:
    result = read_text(log(row(1, "9"), row(2, "12"), row(3, "13")))
    assert "seconds" not in result.steps.seen
    assert result.performance_metrics.basis == "reported_rates"
    assert "rate_too_coarse" in [one.code for one in result.remarks]


def test_rates_around_the_coarsest_accepted_one_give_every_row_a_time(read_text: Any) -> None:
    rates = ["520", "480"] * 10
    result = read_text(log(*(row(n, rate) for n, rate in enumerate(rates, start=1))))
    assert np.isfinite(result.steps.column("seconds")).all()
    seconds = result.steps.column("seconds")
    assert seconds[1] / seconds[0] == pytest.approx(520 / 480)


def test_without_a_configuration_only_the_rates_are_known(read_text: Any) -> None:
    result = read_text("\n".join([row(1), row(2, "7,000"), row(3, "7,000")]) + "\n")
    assert result.raw_step_times == []
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(7000)
    assert result.performance_metrics.tokens_per_second is None


def test_a_row_covers_the_steps_since_the_last_one(read_text: Any) -> None:
    result = read_text(log(row(1), row(10), row(20), row(40)))  # row 30 was lost
    assert result.steps.column("covers").tolist() == [1, 9, 10, 10]


def test_a_resumed_run_covers_its_own_training_only(read_text: Any) -> None:
    text = log(row(110), row(120), row(130)).replace("Training starts at step 1\n", "Training starts at step 106\n")
    assert read_text(text).steps.column("covers").tolist() == [5, 10, 10]


def test_validation_is_not_a_step_and_restarts_the_clock(read_text: Any) -> None:
    validation = "[titan] \x1b[33mvalidate step: 15  \x1b[32mloss:  8.1  memory:  9.99GiB(1.2%)  \x1b[34mtps: 90,000"
    result = read_text(log(row(1), row(10), validation, row(20)))
    assert result.steps.column("index").tolist() == [1, 10, 20]
    assert result.steps.column("covers").tolist() == [1, 9, 5]
    assert not result.steps.column("interrupted_by").any()


@pytest.mark.parametrize(
    "announced", ["Saving the checkpoint (or staging if async is enabled).", "Staging the checkpoint."]
)
def test_a_row_with_a_checkpoint_inside_is_marked(read_text: Any, announced: str) -> None:
    steps = read_text(log(row(1), row(2), f"[titan] {announced}", row(3), row(4))).steps
    assert [step.interrupted_by for step in steps] == ["", "", "checkpoint", ""]


@in_each(
    ("announced", "interrupted"),
    [
        ("Saving the checkpoint.", ""),  # its time is in no row: the validation restarted the clock
        ("Staging the checkpoint.", "checkpoint"),  # it is written while the next steps run
        ("Saving the checkpoint (or staging if async is enabled).", "checkpoint"),
    ],
)
def test_a_checkpoint_before_a_validation_is_inside_the_next_row_only_if_it_may_be_asynchronous(
    read_text: Any, announced: str, interrupted: str
) -> None:
    validation = "[titan] validate step: 15  loss:  8.1  memory:  9.99GiB(1.2%)  tps: 90,000"
    steps = read_text(log(row(1), row(10), f"[titan] {announced}", validation, row(20))).steps
    assert [step.interrupted_by for step in steps] == ["", "", interrupted]


def test_a_validation_after_every_row_contradicts_no_date(read_text: Any) -> None:
    lines, clock = [], 100.0
    for step in (1, *range(5, 45, 5)):
        clock += 5 if step > 1 else 1  # a second per step
        stamp = f"2026-01-05 08:{int(clock // 60):02}:{clock % 60:06.3f}".replace(".", ",")
        lines.append(row(step).replace(f"2026-01-05 08:01:{step % 60:02},500", stamp))
        clock += 4
        lines.append(f"[titan] validate step: {step}  loss:  8.1  memory:  9.99GiB(1.2%)  tps: 90,000")
    result = read_text(log(*lines))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(1)
    assert not [warning for warning in result.warnings if warning.startswith("audit")]
    assert any("evaluation" in reason for reason in result.audit.explained_by)


@in_each("rows_before", [0, 1, 3])
def test_the_data_set_of_a_validation_begins_no_training(read_text: Any, rows_before: int) -> None:
    training, validation = (f"{TITAN}Preparing {name} dataset from allenai/c4" for name in ("c4", "c4_validation"))
    lines = [row(n) for n in (1, 10, 20, 30, 40, 50, 60, 70)]
    validated = "[titan] validate step: 15  loss:  8.1  memory:  9.99GiB(1.2%)  tps: 90,000"
    lines[rows_before:rows_before] = [validation, validated] if rows_before else [validation]
    result = read_text(f"{training}\n{log(*lines)}")
    assert (result.training_config.data, result.training_config.num_gpus) == ("c4", 8)
    assert set(result.steps.column("segment").tolist()) == {0}


def test_two_processes_in_one_file_keep_what_each_states_before_its_mesh(read_text: Any) -> None:
    opening = "[titan] 2026-01-05 08:00:00,050 - root - INFO - torchtitan version: 0.3.0"
    process = [opening, CAPACITY, MESH, TRAINER]
    first = [*process, "[titan] Training starts at step 1", row(1), row(10), row(20)]
    second = [*process, "[titan] Training starts at step 21", row(21), row(30), row(40)]
    result = read_text("\n".join([*first, *second]) + "\n")
    assert result.gpu_info.device_name == "NVIDIA H100 80GB HBM3"
    assert result.steps.column("segment").tolist() == [0, 0, 0, 1, 1, 1]


def test_the_spelling_of_2024_is_read(read_text: Any) -> None:
    result = read_text("\n".join(row(n, "2,345", rate="wps", tail="mfu: N/A") for n in (1, 2, 3)) + "\n")
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(2345)
    assert "reported_mfu" not in result.steps.seen


def test_rows_of_several_ranks_are_one_step_and_the_loss_comes_from_the_last_stage(read_text: Any) -> None:
    lines = [
        line
        for n in (1, 2, 3)
        for line in (
            row(n, rank="[rank0]:", loss="-1.00000"),
            row(n, "8,150", rank="[rank4]:", loss="5.12500").replace("38.50GiB", "61.25GiB"),
        )
    ]
    steps = read_text(log(*lines)).steps
    assert steps.column("index").tolist() == [1, 2, 3]
    assert [(step.loss, step.reported_tokens_per_second_per_gpu) for step in steps] == [(5.125, 8192)] * 3
    assert steps[0].memory_reserved_peak_bytes == 61.25 * GIB


def test_a_loss_that_no_rank_prints_is_none(read_text: Any) -> None:
    assert "loss" not in read_text(log(row(1, loss="-1.0000"), row(2, loss="-1.0000"))).steps.seen


def test_a_loss_of_nan_stays_nan(read_text: Any) -> None:
    result = read_text(log(row(1), row(2, loss="nan"), row(3, loss="    nan")))
    assert math.isnan(result.steps[1].loss)
    assert any(warning.startswith("loss: nan in 2 of 3") for warning in result.warnings)


def test_the_lines_of_newer_trainers_give_the_batch(read_text: Any) -> None:
    printed = (
        "[titan] Trainer is initialized with 8192 tokens per DP rank, 65,536 tokens per train step, "
        "gradient accumulation steps 2, maximum context length 4096, total steps 9 (warmup 1)"
    )
    result = read_text("\n".join([MESH, printed, row(1), row(2), row(3)]) + "\n")
    assert result.training_config.global_batch_size == 16
    assert result.steps[2].seconds == pytest.approx(TOKENS_PER_GPU / 8192)


def test_the_command_line_fills_settings_that_the_trainer_does_not_print(read_text: Any) -> None:
    command = (
        "+ torchrun --nproc_per_node=8 -m train --training.seq_len=2048 --training.dtype=bfloat16 --compile.enable"
    )
    config = read_text("\n".join([command, row(1), row(2)]) + "\n").training_config
    assert (config.sequence_length, config.precision, config.compile) == (2048, "bf16", True)


def test_fp8_replaces_the_precision_around_it(read_text: Any) -> None:
    lines = [
        "+ torchrun --training.dtype=bfloat16", "[titan] Float8 training active with recipe rowwise", row(1), row(2),
    ]  # fmt: skip
    config = read_text("\n".join(lines) + "\n").training_config
    assert (config.precision, config.fp8_recipe) == ("fp8", "rowwise")


def test_a_crash_after_rows_leaves_an_incomplete_result(read_text: Any) -> None:
    result = read_text(
        log(row(1), row(2), row(3), "Traceback (most recent call last):", "torch.OutOfMemoryError: CUDA")
    )
    assert (result.complete, result.runs[0].ended_by) == (False, "out of memory")


def test_a_crash_before_the_first_step_is_refused(read_text: Any) -> None:
    with pytest.raises(NotALogError, match="no step times"):
        read_text(log("Traceback (most recent call last):"))


def test_primus_prefix_gives_world_size_clock_and_vendor(read_text: Any) -> None:
    lines = []
    for n in range(1, 5):
        plain = row(n).partition("INFO - ")[2]
        lines.append(f"[20260105 08:01:0{n}][rank-0/16][INFO ] [--------metrics.py:488] : {plain}")
    result = read_text("\n".join(lines) + "\n")
    assert (result.training_config.num_gpus, result.platform) == (16, "amd")
    assert result.source == "Primus (torchtitan backend)"
    assert result.timestamp == "2026-01-05T08:01:01"
    assert [step.ended_at - result.steps[0].ended_at for step in result.steps] == [0, 1, 2, 3]


def test_rows_of_reinforcement_learning_are_refused_in_one_line_that_names_them(read_text: Any) -> None:
    rows = [
        f"[titan] 2026-05-01 10:00:{n:02},123 - root - INFO - ----------\n"
        f"Train | Step: {n:2}  loss/mean: 0.42  rollout_reward/_mean: 1.25  perf/tokens_per_second: 1234.5  "
        "timing/step/total: 12.3"
        for n in range(1, 40)
    ]
    named = r"torchtitan's reinforcement learning .* generation of answers"
    with pytest.raises(NotALogError, match=named) as refused:
        read_text("\n".join(rows) + "\n")
    assert "\n" not in str(refused.value)
    assert "looked for rows of" not in str(refused.value)


def test_a_row_whose_rate_is_no_number_is_a_step_and_named(read_text: Any) -> None:
    rows = [row(n, "4,0966" if n % 4 == 0 else "8,192") for n in range(1, 41)]
    result = read_text(log(*rows, row(41, "8,1", tail=" ").rstrip()))  # the last one is cut there
    assert result.performance_metrics.total_steps == 40
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(8192)
    (notice,) = [one for one in result.remarks if one.code == "damaged_values"]
    assert notice.values["where"] == "in 10 rows (first on line 8)"
