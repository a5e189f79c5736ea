"""MLPerf result files of 2023 and 2024, whose marks count and nest in another way than those of later rounds."""

import pytest
from mlperf_journal import Journal


def test_a_block_around_all_evaluations_is_measured_between_them(tmp_path):
    """As gpt3 of Gaudi 2 in v3.1 and v4.0: one block for the run, whose epoch_count is that of one interval."""
    journal = Journal(submission_benchmark="gpt3", global_batch_size=2048, max_sequence_length=2048)
    interval = 12 * 2048 * 2048
    journal.say("run_start")
    journal.say("block_start", None, 4.0, first_epoch_num=0, epoch_count=interval)
    for number in range(1, 25):
        journal.say("eval_start", None, 140.0, epoch_num=number * interval)
        journal.say("eval_accuracy", 2.7, 18.6, epoch_num=number * interval)
        journal.say("eval_stop", epoch_num=number * interval)
    journal.say("block_stop", first_epoch_num=0)
    journal.say("run_stop", None, 0.0, status="success")
    result = journal.read(tmp_path / "run.txt")
    assert result.performance_metrics.samples_per_second == pytest.approx(12 * 2048 / 140)
    assert result.performance_metrics.measured_steps == 24 * 12
    assert result.audit is not None
    assert result.audit.ratio == pytest.approx(1.0, abs=0.03)


def test_a_block_start_that_counts_steps_does_not_count_as_samples(tmp_path):
    """As llama2_70b_lora by the reference in v4.0: no block_start before the first block, no time of evaluations."""
    journal = Journal(submission_benchmark="llama2_70b_lora", global_batch_size=8)
    journal.say("run_start")
    for number, samples in enumerate([1536, 1920, 2304, 2688]):
        journal.say("block_stop", None, 2160.0 if not number else 540.0, samples_count=samples)
        journal.say("eval_accuracy", 0.94, samples_count=samples)
        journal.say("block_start", samples_count=samples // 8)
    journal.say("run_stop", 0.92, samples_count=2688, status="success")
    result = journal.read(tmp_path / "run.txt")
    assert [step.covers for step in result.steps] == [192, 48, 48, 48]
    assert result.performance_metrics.samples_per_second == pytest.approx(2688 / (2160 + 3 * 540))
    assert "evaluation_counts" in [one.code for one in result.remarks]


def test_step_times_by_the_name_of_2023_are_rows(tmp_path):
    journal = Journal(submission_benchmark="gpt3", global_batch_size=2048, max_sequence_length=2048)
    tokens = 2048 * 2048
    journal.say("run_start")
    for block in range(3):
        journal.say("block_start", first_epoch_num=block * 4 * tokens, epoch_count=4 * tokens)
        for step in range(1, 5):
            journal.track({"train_step_timing": 11.0}, 11.0, step=(4 * block + step) * tokens)
        journal.say("block_stop", first_epoch_num=block * 4 * tokens, epoch_count=4 * tokens)
        journal.say("eval_start", epoch_num=4 * (block + 1) * tokens)
        journal.track({"validation_step_timing": 4.1}, 4.1, step=4 * (block + 1) * tokens)
        journal.say("eval_stop", epoch_num=4 * (block + 1) * tokens)
    journal.say("run_stop", None, 0.0, status="success")
    journal.track({"throughput": 345645.4}, 0.0, step=12 * tokens)
    result = journal.read(tmp_path / "run.txt")
    assert sum(step.covers for step in result.steps) == 12
    assert result.performance_metrics.samples_per_second == pytest.approx(2048 / 11)


def test_evaluations_with_a_time_of_their_own_need_no_warning(tmp_path):
    journal = Journal(global_batch_size=8)
    journal.say("run_start")
    for number in range(1, 4):
        journal.say("block_start", samples_count=(number - 1) * 384)
        journal.say("block_stop", None, 50.0, samples_count=number * 384)
        journal.say("eval_start", samples_count=number * 384)
        journal.say("eval_accuracy", 0.94, 9.0, samples_count=number * 384)
        journal.say("eval_stop", samples_count=number * 384)
    journal.say("run_stop", None, 0.0, samples_count=3 * 384, status="success")
    result = journal.read(tmp_path / "run.txt")
    assert "evaluation_counts" not in [one.code for one in result.remarks]
