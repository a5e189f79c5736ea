"""Timestamps before rows are compared with the times in them, whatever program wrote them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.core.errors import ContradictionError
from tensorprimat.core.result import Result

START = datetime(2026, 1, 5, 8, 0, 0, tzinfo=timezone.utc)


def nemo(n: int, seconds: float, at: datetime) -> str:
    return (
        f"[NeMo I {at:%Y-%m-%d %H:%M:%S} nemo_logging:393] Training epoch 0, iteration {n}/99 | lr: 1e-05 | "
        f"global_batch_size: 8 | global_step: {n} | reduced_train_loss: {11 - n / 100:.4f} | "
        f"train_step_timing in s: {seconds:.4f} | consumed_samples: {8 * n + 8}"
    )


def maxtext(n: int, seconds: float, at: datetime) -> str:
    return (
        f"I{at:%m%d %H:%M:%S.%f} 139812 metric_logger.py:181] completed step: {n}, seconds: {seconds:.3f}, "
        f"TFLOP/s/device: 210.123, Tokens/s/device: {8192 / seconds:.3f}, total_weights: 65536, loss: {9 - n / 100:.3f}"
    )


def nanotron(n: int, seconds: float, at: datetime) -> str:
    return (
        f"{at:%m/%d/%Y %H:%M:%S} [INFO|DP=0|PP=0|TP=0]: iteration: {n} / 100 | consumed_tokens: {n * 4096} | "
        f"time_per_iteration_ms: {seconds * 1000:.4g} | tokens_per_sec: {4096 / seconds:.4g} | "
        f"tokens_per_sec_per_gpu: {512 / seconds:.4g} | global_batch_size: 8 | lm_loss: {9 - n / 100:.3f} | "
        "lr: 0.0003 | grad_norm: 1.5 | "
    )


def litgpt_in_kubernetes(n: int, seconds: float, at: datetime) -> str:
    return (
        f"{at:%Y-%m-%dT%H:%M:%S.%f}789Z Epoch 1 | iter {n} step {n} | loss train: {9 - n / 100:.3f}, val: n/a | "
        f"iter time: {seconds * 1000:.2f} ms (step) remaining time: 0:12:01"
    )


def nanochat_in_kubernetes(n: int, seconds: float, at: datetime) -> str:
    return (
        f"{at:%Y-%m-%dT%H:%M:%S.%f}Z stdout F step {n:05d}/00100 ({n:.2f}%) | loss: {9 - n / 100:.6f} | lrm: 1.00 | "
        f"dt: {1000 * seconds:.2f}ms | tok/sec: {int(524288 / seconds):,} | mfu: 40.00 | total time: 1.00m"
    )


ROWS = (nemo, maxtext, nanotron, litgpt_in_kubernetes, nanochat_in_kubernetes)
Row = Callable[[int, float, datetime], str]


def read(path: Path, row: Row, seconds: float, gaps: Sequence[float]) -> Result:
    """Read a log whose rows all state `seconds`; gaps: time that really passed before each."""
    at, lines = START, []
    for n, gap in enumerate(gaps, start=1):
        at += timedelta(seconds=gap)
        lines.append(row(n, seconds, at) + "\n")
    path.write_text("".join(lines))
    return logs.read(path)


@in_each("row", ROWS)
def test_stamps_that_agree_with_the_rows_are_the_clock_of_the_audit(tmp_path, row):
    result = read(tmp_path / "run.log", row, 2.0, [2.0] * 40)
    assert result.audit is not None
    assert (result.audit.clock, result.audit.explained_by) == ("the timestamps of the rows", ())
    assert result.audit.ratio == pytest.approx(1, abs=0.03)
    assert not any(warning.startswith("audit") for warning in result.warnings)


@in_each("row", ROWS)
def test_a_pause_between_two_stamps_is_named_with_its_seconds(tmp_path, row):
    result = read(tmp_path / "run.log", row, 2.0, [2.0] * 20 + [32.0] + [2.0] * 19)
    assert result.audit.explained_by in (("pauses between rows 30 s",), ("pauses between rows 31 s",))
    assert not any(warning.startswith("audit") for warning in result.warnings)


@in_each("row", ROWS)
def test_stamps_that_leave_a_tenth_unexplained_are_the_first_warning(tmp_path, row):
    result = read(tmp_path / "run.log", row, 2.0, [2.3] * 80)
    assert result.warnings[0].startswith("audit: 79 steps take 158 s at the measured pace, but 18")
    assert "by the timestamps of the rows" in result.warnings[0]


@in_each("row", ROWS)
def test_stamps_that_contradict_the_rows_refuse_the_log(tmp_path, row):
    with pytest.raises(ContradictionError, match=r"at the measured pace, but .* by the timestamps of the rows"):
        read(tmp_path / "run.log", row, 2.0, [3.0] * 80)


def test_a_stamp_in_the_middle_of_a_redrawn_line_is_that_of_its_row(tmp_path):
    path = tmp_path / "run.log"
    at = [START + timedelta(seconds=2 * n) for n in range(40)]
    path.write_text("".join(f"loading 5%|#\r{nemo(n, 2.0, when)}\n" for n, when in enumerate(at)))
    assert logs.read(path).audit.ratio == pytest.approx(1)
