"""MLPerf result files of v6.0, whose rows state samples but no step: a block's mean gives the time of its steps."""

import json

import pytest
from mlperf_journal import Journal


def rows_that_count_samples(journal: Journal, *, blocks: int = 2, rows: int = 6, interval: int = 4) -> None:
    """Write rows as NVIDIA does in v6.0: without a step, and with a row counter that restarts in each block."""
    journal.say("run_start")
    size = rows * interval
    for block in range(blocks):
        done = block * size
        journal.say("block_start", samples_count=size * 16, step=done)
        journal.track({"train_step_time": 0.02, "reduced_train_loss": 9.0}, 0.5, samples_count=done * 16)
        for row in range(1, rows):
            samples = (done + row * interval) * 16
            journal.track({"train_step_time": 0.5, "reduced_train_loss": 8.0}, 0.5 * interval, samples_count=samples)
        journal.track({"train_step_time": 0.5}, 0.5 * (interval - 1), samples_count=size * 16)
        journal.say("block_stop", samples_count=size * 16, step=done + size)
        journal.say("eval_start", samples_count=(done + size) * 16, step=done + size)
        journal.track({"validation_time": 7.0}, 7.0, step=done + size)
        journal.say("eval_stop", samples_count=(done + size) * 16, step=done + size)
    journal.say("run_stop", None, 0.0, status="success")


def test_rows_without_a_step_advance_by_samples_and_the_partial_first_row_of_a_block_is_left_out(tmp_path):
    journal = Journal(global_batch_size=16)
    rows_that_count_samples(journal)
    result = journal.read(tmp_path / "run.txt")
    assert 0.02 not in result.steps.column("seconds")
    assert [step.covers for step in result.steps] == [4] * 12
    assert [step.index for step in result.steps] == list(range(4, 49, 4))
    assert result.performance_metrics.total_time_seconds == pytest.approx(24.0)
    assert result.performance_metrics.samples_per_second == pytest.approx(32.0)


def test_blocks_of_one_step_whose_loss_row_another_rank_writes_after_the_block_count_once(tmp_path):
    """An evaluation after every step, as in deepseekv3_671b of v6.0; the last pipeline stage logs the loss late."""
    journal = Journal(global_batch_size=15360, max_sequence_length=4096, submission_platform="256xGB200")
    journal.say("run_start")
    for step in range(6):
        done = 15360 * (step + 1)
        journal.say("block_start", samples_count=15360, step=step)
        journal.track({"train_step_time": 60.0}, 60.0, samples_count=15360)
        journal.say("block_stop", samples_count=15360, step=step + 1)
        journal.say("eval_start", samples_count=done, step=step + 1)
        journal.track({"train_step_time": 59.9, "reduced_train_loss": 5.0 - step / 10}, 0.4, samples_count=done)
        journal.track({"validation_time": 2.0}, 1.6, step=step + 1)
        journal.say("eval_accuracy", 5.0 - step / 10, samples_count=done)
        journal.say("eval_stop", samples_count=done, step=step + 1)
    journal.say("run_stop", None, 0.0, samples_count=done, status="success")
    result = journal.read(tmp_path / "run.txt")
    assert sum(step.covers for step in result.steps) == 6
    assert result.performance_metrics.samples_per_second == pytest.approx(15360 / 60, rel=3e-3)


def close(journal: Journal, *, steps: int, done: int, mean: float, batch: int, after: float, evaluated: float) -> None:
    """Write the end of one of NVIDIA's blocks in v6.0: its mean, block_stop, and an evaluation."""
    journal.track({"train_step_time": mean}, after, samples_count=steps * batch)
    journal.say("block_stop", samples_count=steps * batch, step=done)
    journal.say("eval_start", samples_count=done * batch, step=done)
    journal.say("eval_stop", None, evaluated, samples_count=done * batch, step=done)


def test_rows_that_go_on_over_a_block_are_not_counted_twice_by_its_mean(tmp_path):
    journal = Journal(global_batch_size=8)
    journal.say("run_start")
    journal.say("block_start", samples_count=96, step=0)
    for row in range(1, 3):
        journal.track({"train_step_time": 0.7, "reduced_train_loss": 2.0}, 3.5, samples_count=40 * row)
    journal.track({"train_step_time": 0.7}, 1.4, samples_count=96)
    journal.say("block_stop", samples_count=96, step=12)
    journal.say("block_start", samples_count=96, step=12)
    for row in range(3, 5):
        journal.track({"train_step_time": 0.7, "reduced_train_loss": 2.0}, 3.5, samples_count=40 * row)
    result = journal.read(tmp_path / "run.txt")
    assert [step.covers for step in result.steps] == [0, 5, 7, 3, 5]
    assert result.performance_metrics.total_time_seconds == pytest.approx(20 * 0.7)


def test_blocks_shorter_than_the_interval_of_rows_are_measured_by_their_means(tmp_path):
    """As llama2_70b_lora on 512 GPUs: an evaluation every 6 steps, a row every 10, which says 0.175 s for 0.153 s."""
    journal = Journal(global_batch_size=64)
    journal.say("run_start")
    for block in range(20):
        done = 6 * block
        journal.say("block_start", samples_count=384, step=done)
        row = next((step for step in range(done + 1, done + 7) if step % 10 == 0), None)
        if row:
            spent = (row - done) * 0.153
            journal.track({"train_step_time": 0.175, "reduced_train_loss": 9.0}, spent, samples_count=row * 64)
        left = done + 6 - (row or done)
        close(journal, steps=6, done=done + 6, mean=0.153, batch=64, after=left * 0.153, evaluated=0.41)
    journal.say("run_stop", None, 0.0, samples_count=7680, status="success")
    result = journal.read(tmp_path / "run.txt")
    assert sum(step.covers for step in result.steps) == 120
    assert result.performance_metrics.samples_per_second == pytest.approx(64 / 0.153, rel=1e-3)
    assert 9.0 in result.steps.column("loss")
    assert not any("unexplained" in warning for warning in result.warnings)


def test_a_block_whose_rows_claim_more_time_than_it_took_is_measured_by_its_mean(tmp_path):
    """As llama2_70b_lora on 8 GPUs: a row of 10 steps says 3.19 s a step, and 8.8 s pass by the clock."""
    journal = Journal(global_batch_size=8)
    journal.say("run_start")
    for block in range(4):
        done = 48 * block
        journal.say("block_start", samples_count=384, step=done)
        for row in range(1, 5):
            claimed = 3.19 if (block, row) == (3, 2) else 0.725
            values = {"train_step_time": claimed, "reduced_train_loss": 1.4}
            journal.track(values, 7.25, samples_count=(done + 10 * row) * 8)
        close(journal, steps=48, done=done + 48, mean=0.72, batch=8, after=48 * 0.72 - 29.0, evaluated=7.3)
    journal.say("run_stop", None, 0.0, samples_count=4 * 384, status="success")
    result = journal.read(tmp_path / "run.txt")
    assert sum(step.covers for step in result.steps) == 4 * 48
    assert result.performance_metrics.samples_per_second == pytest.approx(8 / 0.72, rel=1e-3)
    assert result.performance_metrics.total_time_seconds == pytest.approx(4 * 48 * 0.72, rel=1e-3)
    assert all(0.6 < (step.seconds or 0.0) < 0.8 for step in result.steps if step.covers)


def test_the_dates_of_rows_that_divide_a_block_do_not_contradict_its_time(tmp_path):
    """As llama2_70b_lora on 8 GPUs, where one row dates steps that began before its block."""
    journal = Journal(global_batch_size=8)
    journal.say("run_start")
    for block, (steps, mean) in enumerate([(192, 0.723), (48, 0.726), (48, 0.708), (48, 0.708), (48, 1.08)]):
        done = [0, 192, 240, 288, 336][block]
        journal.say("block_start", samples_count=steps * 8, step=done)
        at = done
        for row in range(-(-(done + 1) // 10) * 10, done + steps, 10):
            values = {"train_step_time": mean, "reduced_train_loss": 1.4 - row / 1000}
            journal.track(values, (row - at) * mean, samples_count=row * 8)
            at = row
        after = (done + steps - at) * mean
        close(journal, steps=steps, done=done + steps, mean=mean, batch=8, after=after, evaluated=7.3)
    journal.say("run_stop", None, 0.0, samples_count=384 * 8, status="success")
    result = journal.read(tmp_path / "run.txt")
    assert sum(step.covers for step in result.steps) == 384
    assert not any(warning.startswith("audit") for warning in result.warnings)


def late_rows(journal: Journal, *, blocks: int, steps: int) -> None:
    """Write rows as llama31_405b has on 2048 GPUs: one a step, half a second late, with the samples before its step."""
    journal.say("run_start")
    for block in range(blocks):
        done = steps * block
        journal.say("block_start", samples_count=steps * 1024, step=done)
        for row in range(steps):
            if row == steps - 1:
                close(journal, steps=steps, done=done + steps, mean=3.1, batch=1024, after=2.5, evaluated=0.0)
            values = {"train_step_time": 3.12, "reduced_train_loss": 7.0 - done / 100}
            journal.track(values, 3.1 if row < steps - 1 else 0.6, samples_count=(done + row) * 1024)


def test_the_row_of_a_step_that_is_written_after_its_block_counts_that_step_once(tmp_path):
    journal = Journal(global_batch_size=1024, max_sequence_length=8192)
    late_rows(journal, blocks=5, steps=18)
    journal.say("run_stop", None, 0.0, samples_count=5 * 18 * 1024, status="success")
    result = journal.read(tmp_path / "run.txt")
    assert sum(step.covers for step in result.steps) == 5 * 18
    assert result.performance_metrics.measured_steps == 5 * 18
    assert result.performance_metrics.samples_per_second == pytest.approx(1024 / 3.1, rel=1e-3)
    assert not any(result.steps.column("interrupted_by"))


def test_a_block_that_a_crash_leaves_open_is_measured_by_its_rows(tmp_path):
    journal = Journal(global_batch_size=1024, max_sequence_length=8192)
    late_rows(journal, blocks=2, steps=18)
    journal.say("block_start", samples_count=18 * 1024, step=36)
    for row in range(4):
        journal.track({"train_step_time": 3.1, "reduced_train_loss": 6.0}, 3.1, samples_count=(36 + row) * 1024)
    result = journal.read(tmp_path / "run.txt")
    assert sum(step.covers for step in result.steps) == 36 + 3
    assert result.performance_metrics.samples_per_second == pytest.approx(1024 / 3.1, rel=1e-3)


def test_the_loss_row_of_a_slow_step_is_not_a_second_slow_step(tmp_path):
    """As deepseekv3_671b, whose first steps take longer: the block states each, and the row of its loss again."""
    journal = Journal(global_batch_size=16384, max_sequence_length=4096)
    journal.say("run_start")
    paces = [3.77, 4.5, 4.5, *[3.5] * 20]
    for step, seconds in enumerate(paces):
        journal.say("block_start", samples_count=16384, step=step)
        journal.track({"train_step_time": seconds}, seconds, samples_count=16384)
        journal.say("block_stop", samples_count=16384, step=step + 1)
        journal.say("eval_start", samples_count=16384 * (step + 1), step=step + 1)
        values = {"train_step_time": seconds - 0.04, "reduced_train_loss": 5.0 - step / 25}
        journal.track(values, 0.05, samples_count=16384 * (step + 1))
        journal.say("eval_stop", None, 0.6, samples_count=16384 * (step + 1), step=step + 1)
    journal.say("run_stop", None, 0.0, samples_count=16384 * len(paces), status="success")
    result = journal.read(tmp_path / "run.txt")
    assert {"pace_changes", "stamps_too_coarse"}.isdisjoint(one.code for one in result.remarks)
    assert result.performance_metrics.samples_per_second == pytest.approx(16384 * len(paces) / sum(paces), rel=1e-3)


def rates_over_evaluations(journal: Journal, *, blocks: int, block: float, evaluated: float) -> None:
    """Write throughputs as AMD's reference runs of gpt_oss_20b: each is that of the time since the one before."""
    journal.say("run_start")
    journal.say("block_start", samples_count=0)
    for number in range(1, blocks + 1):
        since = block + (evaluated if number > 1 else 0.0)
        journal.track({"throughput": 12288 / since}, block, step=12288 * number)
        journal.say("block_stop", samples_count=12288 * number)
        journal.say("eval_start", samples_count=12288 * number)
        journal.say("eval_stop", None, evaluated, samples_count=12288 * number)
        if number < blocks:
            journal.say("block_start", samples_count=12288 * number)
    journal.say("run_stop", None, 0.0, samples_count=12288 * blocks, status="success")


def test_a_block_whose_throughput_includes_evaluation_is_timed_by_its_marks(tmp_path):
    journal = Journal(global_batch_size=64, max_sequence_length=8192)
    rates_over_evaluations(journal, blocks=5, block=1200.0, evaluated=130.0)
    result = journal.read(tmp_path / "run.txt")
    metrics = result.performance_metrics
    assert metrics.samples_per_second == pytest.approx(12288 / 1200, rel=1e-3)
    assert sum(step.covers for step in result.steps) == 5 * 192
    assert "reported_differs" in [one.code for one in result.remarks]
    assert not any(warning.startswith("audit") for warning in result.warnings)


def test_a_block_with_several_throughputs_counts_its_steps_once(tmp_path):
    journal = Journal(global_batch_size=64, max_sequence_length=8192)
    journal.say("run_start")
    for block in range(4):
        journal.say("block_start", samples_count=12288 * block)
        for half in (1, 2):
            journal.track({"throughput": 10.24}, 600.0, step=12288 * block + 6144 * half)
        journal.say("block_stop", samples_count=12288 * (block + 1))
        journal.say("eval_start", samples_count=12288 * (block + 1))
        journal.say("eval_stop", None, 130.0, samples_count=12288 * (block + 1))
    journal.say("run_stop", None, 0.0, samples_count=12288 * 4, status="success")
    result = journal.read(tmp_path / "run.txt")
    assert result.performance_metrics.samples_per_second == pytest.approx(10.24)
    assert sum(step.covers for step in result.steps) == 4 * 192


@pytest.mark.parametrize("order", [1, -1])
def test_tokens_of_reinforcement_learning_are_those_that_the_log_counts(tmp_path, order):
    """As NeMo-RL's GRPO runs: samples are far shorter than the maximum, and a row of its own counts their tokens."""
    journal = Journal(global_batch_size=1024, max_sequence_length=65536)
    journal.say("run_start")
    journal.say("block_start", samples_count=7168, step=0)
    for step in range(1, 8):
        place = {"samples_count": 1024 * step, "step": step}
        values = {"reduced_train_loss": -0.05, "global_valid_toks": 5.4e6, "global_valid_seqs": 1004.0}
        times = {"train_step_time": 900.0, "policy_training_time": 240.0}
        for seconds, row in zip((900.0, 0.0), (values, times)[::order], strict=True):
            journal.track(row, seconds, **place)
    journal.say("block_stop", samples_count=7168, step=7)
    journal.say("run_stop", None, 0.0, samples_count=7168, status="success")
    result = journal.read(tmp_path / "run.txt")
    assert result.performance_metrics.tokens_per_second == pytest.approx(6000.0)
    assert result.training_config.sequence_length is None
    assert ("length_is_maximum", 65536) in [(one.code, one.values.get("length")) for one in result.remarks]


def test_a_benchmark_whose_rules_are_not_known_has_samples_but_no_tokens(tmp_path):
    journal = Journal(submission_benchmark="qwen35_397b", global_batch_size=16, max_sequence_length=65536)
    rows_that_count_samples(journal)
    result = journal.read(tmp_path / "run.txt")
    assert result.performance_metrics.samples_per_second is not None
    assert result.performance_metrics.tokens_per_second is None
    assert any("the rules of qwen35_397b are not known" in warning for warning in result.warnings)


def test_the_samples_of_a_benchmark_with_rollouts_of_any_length_count_no_tokens(tmp_path):
    journal = Journal(submission_benchmark="qwen35_397b_grpo", global_batch_size=16, max_sequence_length=65536)
    rows_that_count_samples(journal)
    result = journal.read(tmp_path / "run.txt")
    assert result.performance_metrics.tokens_per_second is None
    assert result.performance_metrics.reported.quality_target == 0.69
    assert any("samples of qwen35_397b_grpo are shorter" in warning for warning in result.warnings)


def test_a_reference_run_that_spells_its_benchmark_with_dashes_has_the_benchmarks_model(tmp_path):
    journal = Journal(submission_benchmark="gpt-oss-20b", global_batch_size=64, max_sequence_length=8192)
    rates_over_evaluations(journal, blocks=5, block=1200.0, evaluated=130.0)
    result = journal.read(tmp_path / "run.txt")
    assert (result.model.name, result.performance_metrics.reported.quality_target) == ("gpt_oss_20b", 3.34)


SYSTEM = {"number_of_nodes": "1", "accelerators_per_node": "8", "accelerator_model_name": "NVIDIA B300 SXM6 AC"}


def launched(tmp_path, *lines, **changes):
    """Return a result file without the submission's description, behind what NVIDIA's launcher prints."""
    journal = Journal(submission_platform="1xSUBMISSION_PLATFORM_PLACEHOLDER", global_batch_size=16)
    rows_that_count_samples(journal)
    journal.lines = [f":::SYSJSON {json.dumps(SYSTEM | changes)}", *lines, *(f"0: {line}" for line in journal.lines)]
    return journal.read(tmp_path / "run.txt")


def test_the_lines_of_the_launcher_tell_device_and_gpus_where_no_description_is_stored(tmp_path):
    result = launched(tmp_path, "0: slurm2pytorch: MASTER_ADDR=a MASTER_PORT=29500 WORLD_SIZE=64")
    assert (result.gpu_info.device_name, result.training_config.num_gpus) == ("NVIDIA B300 SXM6 AC", 64)
    assert {"device_name", "num_gpus"} <= set(result.provenance.assumed)
    relaunched = launched(tmp_path, *(f"{task}: slurm2pytorch: WORLD_SIZE={8 * task}" for task in (1, 2)))
    assert relaunched.training_config.num_gpus is None
    assert ("processes_unclear", "8 and 16") in [(one.code, one.values.get("stated")) for one in relaunched.remarks]
    assert launched(tmp_path, *(f"{task}: hello" for task in range(8))).training_config.num_gpus == 8


def test_a_launcher_that_shows_more_gpus_than_tasks_ran_tells_no_number_of_gpus(tmp_path):
    result = launched(tmp_path, *(f"{task}: hello" for task in range(4)))
    assert (result.gpu_info.device_name, result.training_config.num_gpus) == ("NVIDIA B300 SXM6 AC", None)
    assert launched(tmp_path, accelerator_model_name="No devices were found").gpu_info.device_name is None
