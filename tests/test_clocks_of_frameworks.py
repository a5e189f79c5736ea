"""Clocks that frameworks print for the whole run: compared with the rows, with the reasons for a difference."""

import pytest

from tensorprimat import logs
from tensorprimat.core.errors import ContradictionError


def read(folder, *lines):
    path = folder / "run.log"
    path.write_text("\n".join(lines) + "\n")
    return logs.read(path)


def litgpt(folder, duration, *, steps=200, seconds=0.5, more=()):
    rows = [
        f"Epoch 1 | iter {n} step {n} | loss train: {9 - n / 100:.3f}, val: n/a | iter time: {seconds * 1000:.2f} ms "
        "(step) remaining time: 0:12:01"
        for n in range(1, steps + 1)
    ]
    end = ["| Performance", "| - Total tokens  : 12,288", f"| - Training Time : {duration:.2f} s"]
    return read(folder, *rows, *more, *end)


def nanochat(folder, counted, *, seconds=1.0, first=0):
    """Read a log whose clock grows by `counted` seconds per step, from step 11 on."""
    return read(
        folder,
        *(
            f"step {n:05d}/00500 ({n / 5:.2f}%) | loss: {9 - n / 100:.6f} | lrm: 1.00 | dt: {1000 * seconds:.2f}ms | "
            f"tok/sec: {int(524288 / seconds):,} | bf16_mfu: 40.00 | epoch: 1 | "
            f"total time: {max(0, n - 10) * counted / 60:.2f}m"
            for n in range(first, 400)
        ),
    )


def trainer(folder, *, evaluation, stated, runtime=None):
    """Read a log of a Trainer that counts tokens: 2 s a step, evaluations of some seconds after steps 100 and 200."""
    lines, clock = [], 10.0
    for step in range(10, 301, 10):
        clock += 20.0
        lines.append(
            str({"loss": 2.0 + step / 1000, "grad_norm": 1.5 + step / 1000, "learning_rate": 2e-05, "epoch": step / 300}
                | {"num_input_tokens_seen": 1000 * step, "train_runtime": round(clock, 4)})
        )  # fmt: skip
        if step in (100, 200):
            clock += evaluation
            lines.append(str({"eval_loss": 2.5, "eval_runtime": stated, "epoch": step / 300}))
    runtime = clock + 1 if runtime is None else runtime
    rates = {"train_samples_per_second": 4.0, "train_steps_per_second": round(300 / runtime, 6)}
    lines.append(str({"train_runtime": round(runtime, 4), **rates, "epoch": 1.0}))
    return read(folder, *lines)


def unexplained(result):
    return [warning for warning in result.warnings if warning.startswith("audit")]


def test_litgpts_training_time_agrees_with_the_sum_of_its_steps(tmp_path):
    result = litgpt(tmp_path, 100.4)
    assert (result.audit.clock, result.audit.explained_by, unexplained(result)) == ("Training Time", (), [])


def test_litgpts_validations_are_taken_out_of_its_training_time_with_their_seconds(tmp_path):
    result = litgpt(tmp_path, 130.5, more=("iter 200: val loss 2.5000, val time: 30000.00 ms",))
    assert result.audit.explained_by == ("evaluation 30 s, subtracted from the clock",)
    assert unexplained(result) == []


def test_a_training_time_that_no_row_explains_is_reported_and_a_larger_one_refused(tmp_path):
    assert "but 110 s by Training Time" in unexplained(litgpt(tmp_path, 110.0))[0]
    with pytest.raises(ContradictionError, match=r"take 100 s at the measured pace, but 150 s by Training Time"):
        litgpt(tmp_path, 150.0)
    with pytest.raises(ContradictionError, match=r"but 60 s by Training Time"):
        litgpt(tmp_path, 60.0)


def test_a_short_run_is_not_refused_for_the_time_before_its_first_step(tmp_path):
    result = litgpt(tmp_path, 11.2, steps=10)
    assert "but 11.2 s by Training Time" in unexplained(result)[0]
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.5)


def test_checkpoints_without_a_time_keep_litgpts_clock_from_refusing(tmp_path):
    result = litgpt(tmp_path, 150.0, more=("Saving checkpoint to 'out/step-00000200/lit_model.pth'",))
    assert "but 150 s by Training Time" in unexplained(result)[0]


def test_nanochats_total_time_agrees_with_its_steps(tmp_path):
    result = nanochat(tmp_path, 1.0)
    assert (result.audit.clock, result.audit.explained_by, unexplained(result)) == ("total time", (), [])
    assert result.audit.ratio == pytest.approx(1, abs=0.005)


def test_nanochats_total_time_of_a_resumed_run_counts_from_its_first_row(tmp_path):
    assert nanochat(tmp_path, 1.0, first=150).audit.ratio == pytest.approx(1, abs=0.005)


def test_a_total_time_that_contradicts_nanochats_rows_is_reported_and_a_larger_gap_refused(tmp_path):
    assert "by total time" in unexplained(nanochat(tmp_path, 1.1))[0]
    with pytest.raises(ContradictionError, match="by total time"):
        nanochat(tmp_path, 1.5)
    with pytest.raises(ContradictionError, match="by total time"):
        nanochat(tmp_path, 0.5)


def test_eval_runtime_is_the_evaluation_share_of_the_trainers_time(tmp_path):
    result = trainer(tmp_path, evaluation=30.0, stated=30.0)
    assert "evaluation 60 s, subtracted from the clock" in result.audit.explained_by
    assert not any("beyond" in sentence for sentence in result.audit.explained_by)
    assert unexplained(result) == []


def test_the_time_of_a_row_beyond_its_eval_runtime_is_distinguished(tmp_path):
    result = trainer(tmp_path, evaluation=60.0, stated=30.0)
    assert "rows with evaluation, beyond the 60 s that the log states for it 60 s" in result.audit.explained_by
    assert unexplained(result) == []


def test_evaluations_of_a_trainer_without_step_times_are_reported_with_their_seconds(tmp_path):
    printed = [str({"loss": 2.0 + n, "grad_norm": 1.0, "learning_rate": 1e-5, "epoch": n / 10}) for n in range(1, 10)]
    printed.insert(5, str({"eval_loss": 2.5, "eval_runtime": 31.5, "epoch": 0.5}))
    end = {"train_runtime": 836.4, "train_samples_per_second": 1.196, "train_steps_per_second": 0.005}
    result = read(tmp_path, *printed, str(end), str({"eval_loss": 2.4, "eval_runtime": 99.0}))
    assert any("evaluations (eval_runtime adds up to 31.5 s)" in warning for warning in result.warnings)
