"""Rows of ms-swift that state a rate of their own step: the work of a step follows from its rate and its time."""

import json
from typing import Any

import pytest

TOKENS = [4000, 36000, 1000, 8000, 120000, 20000, 3000]  # of a step, over all GPUs
STEP, GPUS = 20.0, 8


def rows(steps: int = 40) -> list[dict[str, Any]]:
    return [
        {
            "loss": round(2.37011719 - n / 100, 8), "grad_norm": 140.0, "learning_rate": 3.33e-06, "epoch": n / 1000,
            "global_step/max_steps": f"{n}/{steps}", "elapsed_time": f"{int(n * STEP) // 60}m {int(n * STEP) % 60}s",
            "tokens_per_gpu_per_sec": round(TOKENS[n % len(TOKENS)] / STEP / GPUS, 1), "memory(GiB)": 62.13,
            "train_speed(s/it)": STEP,
        }
        for n in range(1, steps + 1)
    ]  # fmt: skip


def mean_rate(first: int, last: int) -> float:
    """Return all tokens of the steps over all seconds and GPUs."""
    return sum(TOKENS[n % len(TOKENS)] for n in range(first, last + 1)) / (last - first + 1) / STEP / GPUS


def test_the_mean_rate_is_all_tokens_over_all_seconds(read_text: Any) -> None:
    world = "rank: 0, local_rank: 0, world_size: 8, local_world_size: 8\n"
    result = read_text(world + "".join(f"{row}\n" for row in rows()))
    found = result.performance_metrics
    assert found.tokens_per_second_per_gpu == pytest.approx(mean_rate(3, 40), rel=0.02)
    assert found.tokens_per_second == pytest.approx(GPUS * mean_rate(3, 40), rel=0.02)
    assert found.avg_step_time_seconds == pytest.approx(STEP)


@pytest.mark.parametrize(("sharers", "batch", "reported"), [(1, 128, 6.4), (2, 64, None)])
def test_processes_that_share_a_sequence_are_one_replica(
    read_text: Any, sharers: int, batch: int, reported: float | None
) -> None:
    world = "rank: 0, local_rank: 0, world_size: 8, local_world_size: 8\nargs: SftArguments(\n"
    world += f"gradient_accumulation_steps=16,\nper_device_train_batch_size=1,\nsequence_parallel_size={sharers},\n"
    summary = {"train_runtime": "800", "train_samples_per_second": "6.4", "train_steps_per_second": "0.05"}
    result = read_text(world + "".join(f"{row}\n" for row in [*rows(), summary]))
    assert (result.training_config.global_batch_size, result.training_config.context_parallel_size) == (batch, sharers)
    assert result.performance_metrics.samples_per_second == pytest.approx(batch / STEP)
    assert result.performance_metrics.reported.samples_per_second == reported


def test_steps_of_unequal_work_are_weighted_where_no_line_states_the_gpus(read_text: Any) -> None:
    result = read_text("".join(f"{json.dumps(row)}\n" for row in rows()))
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(mean_rate(3, 40), rel=0.02)
    assert "damaged_values" not in [one.code for one in result.remarks]


def test_rates_of_steps_of_unequal_time_count_by_their_time(read_text: Any) -> None:
    tokens, now, lines = 8000, 0, []
    for n, row in enumerate(rows(), 1):
        spent = 40 if n % 2 else 10
        now += spent
        rate = {"tokens_per_gpu_per_sec": tokens / spent / GPUS, "train_speed(s/it)": now / n}
        lines.append(json.dumps({**row, **rate, "elapsed_time": f"{now // 60}m {now % 60}s"}) + "\n")
    found = read_text("".join(lines)).performance_metrics
    assert found.tokens_per_second_per_gpu == pytest.approx(2 * tokens / 50 / GPUS, rel=0.03)


def test_the_history_after_the_rows_is_not_a_second_training(read_text: Any) -> None:
    history = [{"loss": row["loss"], "grad_norm": 140.0, "epoch": row["epoch"], "step": n} for n, row in
               enumerate(rows(), 1)]  # fmt: skip
    state = {"last_model_checkpoint": None, "best_metric": None, "global_step": 40, "log_history": history}
    result = read_text("".join(f"{json.dumps(row)}\n" for row in [*rows(), state]))
    assert result.performance_metrics.total_steps == 40
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(STEP)
    assert not [warning for warning in result.warnings if "restarts" in warning or "spelled" in warning]


def test_a_rate_that_transformers_rounded_to_three_decimals_counts_no_steps(read_text: Any) -> None:
    slow = [{**row, "train_speed(s/it)": 86.17, "elapsed_time": f"{int(86.17 * n)}s"} for n, row in
            enumerate(rows(), 1)]  # fmt: skip
    summary = {"train_runtime": f"{40 * 86.17 + 2:.4g}", "train_samples_per_second": "1.49",
               "train_steps_per_second": "0.012", "train_loss": "1.3", "global_step/max_steps": "40/40"}  # fmt: skip
    result = read_text("".join(f"{row}\n" for row in [*slow, summary]))
    assert result.audit.ratio == pytest.approx(1, abs=0.005)
    assert not [warning for warning in result.warnings if "audit" in warning]


def test_a_peak_that_grows_once_and_rows_of_unequal_tokens_are_not_suspected(read_text: Any) -> None:
    found = [{**row, "memory(GiB)": 26.8 if n == 0 else 43.59} for n, row in enumerate(rows())]
    result = read_text("".join(f"{json.dumps(row)}\n" for row in found))
    assert not [warning for warning in result.warnings if "spelled" in warning or "median of all rows" in warning]
