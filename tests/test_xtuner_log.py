"""XTuner's rows: the wait for data is part of a step, and the number of GPUs follows from the ranks."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tensorprimat.core.units import GIB

STEPS = 40


def row(
    step: int, *, rank: int = 0, seconds: float = 0.5, wait: float = 0.1, tokens: float = 4000.0, clock: int = 0,
    **more: float,
) -> str:  # fmt: skip
    total = "".join(f"{name}: {value} " for name, value in more.items())
    return (
        f"[XTuner][RANK {rank}][2026-01-05 08:{clock // 60:02}:{clock % 60:02}][INFO] Epoch 1 Step {step}/{STEPS} "
        f"data_time: {wait:.4f} lr: 6.000000e-05 time: {seconds:.4f} text_tokens: {tokens} {total}"
        f"total_loss: {9 - step / 100:.8f}, reduced_llm_loss: {8 - step / 100:.8f} grad_norm: 1.50000000 "
        f"max_memory: {5 + rank}.50 GB reserved_memory: 8.00 GB tgs: {tokens / seconds:.1f} eta: 0:01:00 \n"
    )


def rows(ranks: Sequence[int] = (0,), **more: Any) -> str:
    return "".join(row(n, rank=rank, clock=int(0.6 * n), **more) for n in range(1, STEPS + 1) for rank in ranks)


def test_the_wait_for_data_is_part_of_a_step_and_of_the_rate(read_text: Any) -> None:
    result = read_text("[XTuner][RANK 0][2026-01-05 08:00:00][INFO] grad_accumulation_steps: 2\n" + rows())
    performance = result.performance_metrics
    assert (result.provenance.format, result.source) == ("xtuner", "XTuner")
    assert performance.avg_step_time_seconds == pytest.approx(0.6)
    assert performance.tokens_per_second_per_gpu == pytest.approx(4000 / 0.6)
    assert (result.steps[0].loss, result.steps[0].data_wait_seconds) == (pytest.approx(7.99), 0.1)
    assert result.steps[0].memory_allocated_peak_bytes == 5.5 * GIB
    assert result.training_config.gradient_accumulation_steps == 2
    assert "rows_of_one_rank" in [one.code for one in result.remarks]


def test_rows_of_several_ranks_are_one_step_each_with_the_tokens_of_all(read_text: Any) -> None:
    text = "".join(
        row(n, rank=rank, tokens=4000.0 + 100 * rank, clock=int(0.6 * n))
        for n in range(1, STEPS + 1)
        for rank in (2, 0, 1)
    )
    result = read_text(text)
    performance = result.performance_metrics
    assert (len(result.steps), result.training_config.num_gpus) == (STEPS, 3)
    assert performance.tokens_per_second == pytest.approx(12300 / 0.6)
    assert performance.tokens_per_second_per_gpu == pytest.approx(4100 / 0.6)
    assert result.steps[0].memory_allocated_peak_bytes == 7.5 * GIB


def test_steps_of_different_length_are_weighted_by_their_tokens(read_text: Any) -> None:
    text = "".join(row(n, seconds=0.4 + n % 2, tokens=1000.0 + 7000 * (n % 2)) for n in range(1, STEPS + 1))
    performance = read_text(text).performance_metrics
    assert performance.tokens_per_second_per_gpu == pytest.approx(9000 / 2.0, rel=0.03)


def test_the_total_of_all_ranks_gives_the_tokens_of_a_step_where_one_rank_prints(read_text: Any) -> None:
    text = "".join(
        row(n, clock=int(0.6 * n), reduced_consumed_tokens=8 * 4000.0 * n, est_global_batch_tokens=8 * 4000.0)
        for n in range(1, STEPS + 1)
    )
    result = read_text(text)
    assert (result.performance_metrics.tokens_per_step, result.training_config.num_gpus) == (32000, 8)
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(4000 / 0.6)
    assert {"tokens_counted_by_ranks", "rows_of_one_rank"}.isdisjoint(one.code for one in result.remarks)


def test_ranks_that_share_a_batch_are_named_in_a_warning(read_text: Any) -> None:
    text = "".join(
        row(n, reduced_consumed_tokens=8 * 4000.0 * n, est_global_batch_tokens=4 * 4000.0) for n in range(1, STEPS + 1)
    )
    result = read_text(text)
    assert result.training_config.num_gpus == 8
    assert ("tokens_counted_by_ranks", 2) in [(one.code, one.values.get("ranks")) for one in result.remarks]


@pytest.mark.parametrize("totals", [False, True])
def test_the_trackers_table_gives_the_same_times_and_rates(read_text: Any, totals: bool) -> None:
    more = {"reduced_consumed_tokens": 4000.0 * 8, "est_global_batch_tokens": 4000.0 * 8} if totals else {}
    table = [
        {
            "lr": 6e-05, "time/data_time": 0.1, "time/step_time": 0.5, "time/train_time": 0.6 * n, "grad_norm": 1.5,
            "runtime_info/text_tokens": 4000.0, "runtime_info/tgs": 8000.0, "memory/max_memory_GB": 5.5,
            "loss/reduced_llm_loss": 8 - n / 100, "step": n,
        }
        | {f"runtime_info/{name}": value * (n if name.startswith("reduced") else 1) for name, value in more.items()}
        for n in range(1, STEPS + 1)
    ]  # fmt: skip
    result = read_text("".join(json.dumps(values) + "\n" for values in table), num_gpus=8)
    performance = result.performance_metrics
    assert (result.provenance.format, result.source) == ("metrics", "XTuner")
    assert performance.avg_step_time_seconds == pytest.approx(0.6)
    assert performance.tokens_per_second_per_gpu == pytest.approx(4000 / 0.6)
    assert (result.steps[0].loss, result.steps[0].memory_allocated_peak_bytes) == (7.99, 5.5 * GIB)


def test_rows_of_2025_without_an_epoch_are_read(read_text: Any) -> None:
    result = read_text(rows().replace("Epoch 1 Step", "Step").replace("00 grad_norm", "00, grad_norm"))
    assert len(result.steps) == STEPS
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.6)


def test_a_rank_without_a_row_of_the_last_step_leaves_that_step_out(read_text: Any) -> None:
    text = rows((0, 1)).splitlines(keepends=True)
    assert len(read_text("".join(text[:-1])).steps) == STEPS - 1


def test_a_training_that_begins_again_is_a_second_segment(read_text: Any) -> None:
    again = "".join(row(n, seconds=0.9, clock=100 + n) for n in range(11, STEPS + 1))
    bar = "[FSDP Sharding]:   0%|          | 0/3 [00:00<?, ?it/s]\n"
    result = read_text(bar + "".join(row(n, clock=n) for n in range(1, 21)) + bar + again)
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(1.0)
    assert len(result.provenance.segments) == 2
