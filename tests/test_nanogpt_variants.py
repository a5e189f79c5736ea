"""Rows of programs that follow the nanoGPT family: parameter-golf, and build-nanogpt's fields in another order."""

from typing import Any

import pytest
from each import in_each

TOKENS, LENGTH, STEP = 786_432, 2048, 0.1
SETTINGS = (
    "Hyperparameters:", "  grad_accum_steps: 1", "  rope_train_seq_len: 4096", f"  train_batch_tokens: {TOKENS}",
    f"  train_seq_len: {LENGTH}", "  world_size: 8", "model_params:35943512", "warmup_step: 1/20", "warmup_step: 20/20",
    "0/20000 val_loss: 9.0090 val_bpb: 3.4877",
)  # fmt: skip


def mean_rate(step: int, *, slow_from: int = 10**9) -> str:
    """Return a row whose rate counts all steps so far; from `slow_from` on a step takes twice the time."""
    seconds = STEP * (step + max(0, step - slow_from))
    rate = step * TOKENS / seconds
    return f"{step}/20000 train_loss: {9 - step / 1e4:.4f} train_time: {seconds / 60:.1f}m tok/s: {rate:.0f}"


def read(read_text: Any, *lines: str) -> Any:
    return read_text("\n".join(lines) + "\n")


def test_a_mean_rate_since_the_start_is_turned_into_the_time_of_each_interval(read_text: Any) -> None:
    steps = (1, 2, 3, *range(500, 4001, 500))
    result = read(read_text, *SETTINGS, *(mean_rate(step, slow_from=2000) for step in steps))
    seconds = dict(zip(result.steps.column("index"), result.steps.column("seconds"), strict=True))
    assert seconds[2000] == pytest.approx(STEP, rel=1e-4)
    assert seconds[2500] == pytest.approx(2 * STEP, rel=1e-4)
    config, found = result.training_config, result.performance_metrics
    assert (config.global_batch_size, config.sequence_length, config.num_gpus) == (TOKENS // LENGTH, LENGTH, 8)
    assert (config.max_steps, config.gradient_accumulation_steps, result.model.parameters) == (20000, 1, 35943512)
    assert found.total_time_seconds == pytest.approx(4000 * STEP + 2000 * STEP, rel=1e-4)
    assert result.audit.ratio == pytest.approx(1, abs=1e-3)


def test_a_mean_rate_without_the_tokens_of_a_step_gives_the_rate_of_each_interval(read_text: Any) -> None:
    steps = (1, 2, 3, *range(500, 4001, 500))
    result = read(read_text, *(mean_rate(step, slow_from=2000) for step in steps))
    rates = dict(zip(result.steps.column("index"), result.steps.column("reported_tokens_per_second"), strict=True))
    assert rates[2000] == pytest.approx(TOKENS / STEP, rel=1e-4)
    assert rates[2500] == pytest.approx(TOKENS / STEP / 2, rel=1e-4)
    assert result.performance_metrics.tokens_per_second < TOKENS / STEP * 0.9
    assert result.performance_metrics.avg_step_time_seconds is None


@in_each(
    "row",
    [
        "step:{n}/20000 train_loss:6.9377 train_bpb:3.8739 train_time:{ms:.0f}ms step_avg:100.00ms lr_matrix:0.04",
        "step:{n}/20000 loss:6.9377 t:{ms:.0f}ms step_avg:100.0ms",
        "step:{n}/20000 loss:6.9377 t:{ms:.0f}ms avg:100.0ms",
        "1776142719.400 step:{n}/20000 train_loss:6.9377 train_time:{ms:.0f}ms step_avg:100.00ms",
    ],
)
def test_a_clock_is_read_among_other_fields(read_text: Any, row: str) -> None:
    lines = [row.format(n=n, ms=100 * n) for n in range(200, 4001, 200)]
    result = read(read_text, "train_batch_tokens:524288 train_seq_len:1024 iterations:20000", *lines)
    found = result.performance_metrics
    assert found.avg_step_time_seconds == pytest.approx(0.1)
    assert found.tokens_per_second == pytest.approx(5_242_880)
    assert result.steps.column("loss")[3] == 6.9377


def test_a_rate_with_underscores_between_its_thousands_is_no_rate_of_the_first_digits(read_text: Any) -> None:
    result = read(read_text, *(f"step {n} | loss: 4.5 | dt: 250.00ms | tokens/sec: 65_536.00" for n in range(12)))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.25)
    assert not result.steps.has("reported_tokens_per_second")


@in_each(
    "row",
    [
        "step {n}, loss: {loss}, dt: 250.00ms, tok/sec: 65536.00",
        "step {n:4d}, loss: {loss}, norm: 1.2500, dt: 250.00ms, tok/sec: 65536.00",
        "step {n}, loss: {loss}, norm:1.2500, lr:0.0006000, dt: 250.00ms, tok/sec: 65536.00",
        "step {n} with loss: {loss}, dt: 250.00ms, tok/sec: 65536.00",
        "step {n} | loss: {loss} | dt: 250.00ms | tok/sec: 65536.00 | norm: 1.2500 | lr: 0.000600",
        "step: {n} | train loss: {loss} | lr: 6e-04 | norm: 1.2500 | dt: 250.00ms | tok/sec: 65536.00",
        "step {n} | loss: {loss} | lr: 6.0000e-04 | norm: 1.2500 | time: 250.00ms | tokens/sec: 65536.00",
        "step : {n} | loss: {loss} | dt: 250.00 ms | tokens/sec: 65,536.00 | LR:0.000600 | norm:1.250",
        "Epoch: 1 | Step {n:4d} | loss: {loss} | norm: 1.2500 | time taken: 250.00ms | tokens/sec: 65536.00",
        "Step {n:6d} | Loss: {loss} | LR: 6.00e-04 | Time: 250.00ms | Tokens/sec: 65536 (avg: 65000)",
        "step {n:5d} | loss: {loss} | lr 6.0000e-04 | norm: 1.2500 | time: 250.00ms | tok/s: 65536.00",
    ],
)
def test_fields_of_build_nanogpt_are_read_in_any_order(read_text: Any, row: str) -> None:
    result = read(read_text, *(row.format(n=n, loss=f"{9 - n / 10:.6f}") for n in range(12)))
    step = result.steps[4]
    assert (step.index, step.seconds, step.loss, step.reported_tokens_per_second) == (4, 0.25, 8.6, 65536.0)
    assert step.learning_rate == (6e-4 if "lr:" in row or "lr " in row else None)
    assert step.gradient_norm == (1.25 if "norm" in row else None)
    assert result.performance_metrics.tokens_per_second == pytest.approx(65536)


def test_settings_and_peak_of_autoresearch_are_read(read_text: Any) -> None:
    head = ["Vocab size: 8,192", "Model config: {'sequence_len': 2048, 'vocab_size': 8192, 'n_layer': 8}",
            "Gradient accumulation steps: 4"]  # fmt: skip
    rows = "\r".join(
        f"step {n:05d} ({n / 9:.1f}%) | loss: {9 - n / 100:.6f} | lrm: 1.00 | dt: 334ms | tok/sec: 1,569,724 | "
        f"mfu: 50.5% | epoch: 1 | remaining: {300 - n}s    "
        for n in range(60)
    )
    result = read(read_text, *head, rows, "---", "val_bpb:          0.997900", "peak_vram_mb:     45060.2")
    config = result.training_config
    assert (config.sequence_length, config.gradient_accumulation_steps) == (2048, 4)
    assert result.memory_metrics.peak_memory_allocated_gb == pytest.approx(45060.2 * 2**20 / 1e9)
    assert result.performance_metrics.total_steps == 60


def test_the_first_of_rows_ten_steps_apart_counts_ten_steps(read_text: Any) -> None:
    rows = [
        f"step:{n}/500 train_loss:{4 - n / 500:.4f} train_time:{141 * n}ms step_avg:141.00ms"
        for n in range(10, 501, 10)
    ]
    assert read_text("\n".join(rows) + "\n").performance_metrics.total_steps == 500
