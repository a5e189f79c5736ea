"""DeepSpeed's lines: the instantaneous rate, never the running one; times only where they follow exactly."""

import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.core.errors import NotALogError, TensorPrimatError
from tensorprimat.core.units import GIB
from tensorprimat.logs.format import UserFacts

BATCH = "[2026-01-05 08:00:00,100] [INFO] [config.py:964:print]   train_batch_size ............. 64"
CONFIGURATION = "\n".join(
    [
        "[2026-01-05 08:00:00,050] [INFO] [launch.py:163:main] dist_world_size=16",
        BATCH,
        "[2026-01-05 08:00:00,100] [INFO] [config.py:964:print]   train_micro_batch_size_per_gpu  4",
        "[2026-01-05 08:00:00,100] [INFO] [config.py:964:print]   bfloat16_enabled ............. True",
        "[2026-01-05 08:00:00,100] [INFO] [config.py:964:print]   fp16_enabled ................. False",
        "[2026-01-05 08:00:00,100] [INFO] [config.py:964:print]   zero_optimization_stage ...... 3",
        "[2026-01-05 08:00:00,100] [INFO] [config.py:964:print]   optimizer_name ............... None",
    ]
)


def timer(step, rate, running=99.0, minute=1):
    return (
        f"[2026-01-05 08:{minute:02}:{step % 60:02},250] [INFO] [timer.py:199:stop] epoch=0/micro_step={step}/"
        f"global_step={step}, RunningAvgSamplesPerSec={running}, CurrSamplesPerSec={rate}, "
        "MemAllocated=3.5GB, MaxMemAllocated=20.25GB"
    )


def read(folder, *lines):
    path = folder / "run.log"
    path.write_text("\n".join(lines) + "\n")
    return logs.read(path)


def test_the_instantaneous_rate_is_read_and_the_running_mean_is_not(tmp_path):
    result = read(tmp_path, timer(10, 120.0), timer(20, 128.0), timer(30, 128.0))
    assert result.steps.column("reported_samples_per_second").tolist() == [120.0, 128.0, 128.0]
    assert result.performance_metrics.samples_per_second == pytest.approx(128.0)
    assert (result.provenance.format, result.performance_metrics.basis) == ("deepspeed", "reported_rates")


def test_a_row_stands_for_the_steps_since_the_one_before_with_the_allocators_memory_in_gibibytes(tmp_path):
    step = read(tmp_path, timer(10, 160.0), timer(20, 128.0)).steps[1]
    assert (step.index, step.covers, step.seconds, step.line) == (20, 10, None, 2)
    assert (step.memory_allocated_bytes, step.memory_allocated_peak_bytes) == (3.5 * GIB, 20.25 * GIB)


def test_a_known_global_batch_gives_the_time_that_the_rate_was_made_of(tmp_path):
    result = read(tmp_path, CONFIGURATION, timer(10, 160.0), timer(20, 128.0))
    assert result.raw_step_times == [0.4, 0.5]
    assert result.performance_metrics.basis == "step_times"


def test_configuration_comes_from_what_the_engine_prints(tmp_path):
    config = read(tmp_path, CONFIGURATION, timer(10, 160.0), timer(20, 128.0)).training_config
    assert (config.global_batch_size, config.micro_batch_size, config.num_gpus) == (64, 4, 16)
    assert (config.precision, config.strategy, config.optimizer) == ("bf16", "zero-3", None)


def trainer(rate):
    """Return a log of the Hugging Face Trainer with a step of 32 samples in every second."""
    return [
        "***** Running training *****",
        "  Num examples = 32,000",
        "  Instantaneous batch size per device = 4",
        "  Total train batch size (w. parallel, distributed & accumulation) = 32",
        "  Gradient Accumulation steps = 2",
        *(timer(step, rate, minute=1 + step // 60) for step in range(1, 120)),
    ]


def test_the_trainers_batch_lets_the_dates_of_rows_confirm_the_rate(tmp_path):
    result = read(tmp_path, *trainer(32.25))
    config = result.training_config
    assert (config.global_batch_size, config.micro_batch_size, config.gradient_accumulation_steps) == (32, 4, 2)
    assert result.performance_metrics.samples_per_second == pytest.approx(32.25)
    assert result.audit.ratio == pytest.approx(1.0, abs=0.02)


def test_the_batch_of_the_trainers_last_start_before_the_rows_counts(tmp_path):
    first = [line.replace("= 32", "= 64").replace("device = 4", "device = 8") for line in trainer(32.25)[:5]]
    config = read(tmp_path, *first, *trainer(32.25)).training_config
    assert (config.global_batch_size, config.micro_batch_size) == (32, 4)


def test_the_trainers_batch_lets_the_dates_of_rows_refute_the_rate(tmp_path):
    with pytest.raises(TensorPrimatError, match="no figure of this log can be trusted"):
        read(tmp_path, *trainer(56.0))


def test_rows_that_the_log_refutes_leave_the_figures_to_the_trainers_own_rows(tmp_path):
    row = "{{'loss': 2.5, 'learning_rate': 1e-05, 'epoch': {0}, 'step': {1}, 'train_runtime': {1}.0}}"
    rows = [row.format(step / 120, step) for step in range(4, 120, 4)]
    result = read(tmp_path, *trainer(56.0), *rows)
    assert (result.provenance.format, result.performance_metrics.avg_step_time_seconds) == ("huggingface", 1.0)
    assert (result.remarks[0].code, result.remarks[0].values["other"]) == ("other_format", "deepspeed")
    with pytest.raises(TensorPrimatError, match="no figure of this log can be trusted"):
        logs.read(tmp_path / "run.log", format="deepspeed")


def test_a_rate_that_no_batch_turns_into_a_time_is_said_to_be_unchecked(tmp_path):
    without = [line for line in trainer(32.25) if "batch size" not in line]
    result = read(tmp_path, *without)
    assert result.audit is None
    assert ["--global-batch-size"] in [one.values["flags"] for one in result.remarks if one.code == "rates_unchecked"]
    stated = logs.read(tmp_path / "run.log", facts=UserFacts(global_batch_size=32))
    assert stated.audit.ratio == pytest.approx(1.0, abs=0.02)
    assert "rates_unchecked" not in [one.code for one in stated.remarks]


def test_the_command_line_gives_model_and_sequence_length_with_a_warning(tmp_path):
    command = "cmd = deepspeed --num_gpus=8 main.py --model_name_or_path facebook/opt-1.3b --max_seq_len 512 --seed 7"
    command += " --per_device_train_batch_size 8 --gradient_accumulation_steps 2"
    result = read(tmp_path, command, timer(10, 160.0), timer(20, 128.0))
    assert (result.model.name, result.training_config.sequence_length) == ("opt-1.3b", 512)
    assert result.training_config.global_batch_size == 8 * 2 * 8
    assert ("length_of_command", "sequence_length") in [(one.code, one.field) for one in result.remarks]
    scores = "chosen_last_scores (higher is better) : 2.8, acc (higher is better) : 0.49"
    pairs = read(tmp_path, command, scores, timer(10, 160.0), timer(20, 128.0))
    assert (pairs.training_config.sequence_length, pairs.performance_metrics.tokens_per_second) == (None, None)
    assert "samples_of_pairs" in [one.code for one in pairs.remarks]


def test_learning_rate_and_skipped_steps_come_from_the_schedulers_line(tmp_path):
    schedule = "[INFO] [logging.py:96:log_dist] [Rank 0] step=20, skipped=3, lr=[9.6e-06, 9.6e-06], mom=[(0.9, 0.95)]"
    result = read(tmp_path, timer(10, 160.0), schedule, timer(20, 128.0))
    assert result.steps[1].learning_rate == 9.6e-06
    assert ("updates_overflowed", "3 steps") in [(one.code, one.values.get("skipped")) for one in result.remarks]


def test_a_line_repeated_by_another_rank_counts_once_and_a_restart_is_a_segment(tmp_path):
    lines = [timer(10, 160.0), timer(10, 160.0), timer(20, 128.0), timer(30, 128.0), timer(10, 100.0, minute=9)]
    assert [(step.index, step.segment) for step in read(tmp_path, *lines).steps] == [(10, 0), (20, 0), (30, 0), (10, 1)]


def test_the_pipeline_engine_averages_over_its_interval(tmp_path):
    lines = [f"steps: {step} loss: {12 - step} iter time (s): 0.500 samples/sec: 128.000" for step in (2, 4, 6)]
    result = read(tmp_path, *lines)
    assert [(step.index, step.covers, step.seconds, step.loss) for step in result.steps] == [
        (2, 2, 0.5, 10.0),
        (4, 2, 0.5, 8.0),
        (6, 2, 0.5, 6.0),
    ]
    assert result.performance_metrics.samples_per_second == pytest.approx(128.0)


def test_iterations_of_reinforcement_learning_hold_their_generation(tmp_path):
    line = (
        "|E2E latency={0:.2f}s |Gather latency=0.00s (0.00%) |Generate time=2.00s (50.00%) |Training time=1.50s (37.5%)"
        " |Others=0.50 (12.50%)|CurSamplesPerSec={1:.2f} |AvgSamplesPerSec=1.00"
    )
    result = read(tmp_path, *(line.format(4.0, 16.0) for _ in range(3)), timer(10, 160.0))
    assert result.raw_step_times == [4.0, 4.0, 4.0]
    assert result.performance_metrics.samples_per_second == pytest.approx(16.0)
    assert "steps_of_rl" in [one.code for one in result.remarks]


def test_an_old_log_of_running_means_alone_has_only_the_last_of_them(tmp_path):
    result = read(
        tmp_path, *(f"[INFO] [timer.py:154:stop] 0/{n}, SamplesPerSec={rate}" for n, rate in ((10, 5.0), (20, 6.0)))
    )
    assert (len(result.steps), result.performance_metrics.samples_per_second) == (0, 6.0)
    assert result.performance_metrics.basis == "reported_means"


def test_an_old_log_of_running_means_keeps_its_memory(tmp_path):
    rows = (
        f"[INFO] [timer.py:189:stop] 0/{step}, SamplesPerSec={rate}, MemAllocated=0.26GB, MaxMemAllocated={peak}GB"
        for step, rate, peak in ((40, 83.4, 9.02), (50, 83.7, 9.5), (60, 83.9, 9.5))
    )
    result = read(tmp_path, *rows)
    assert result.performance_metrics.samples_per_second == 83.9
    assert result.performance_metrics.basis == "reported_means"
    assert result.memory_metrics.peak_memory_allocated_gb == pytest.approx(9.5 * GIB / 1e9)
    assert not any(warning.startswith("memory_metrics") for warning in result.warnings)


def test_a_configuration_without_rows_has_no_step_times(tmp_path):
    with pytest.raises(NotALogError):
        read(tmp_path, CONFIGURATION)


@in_each("before", ["[INFO] [Rank 0] ", "[Rank 0] ", "rank=0 "])
def test_the_refusal_of_a_wall_clock_breakdown_says_which_lines_state_the_speed(tmp_path, before):
    rows = [f"{before}time (ms) | fwd: 9.1{n} | bwd: 20.10 | step: 3.00" for n in range(5)]
    with pytest.raises(
        NotALogError, match=r"DeepSpeed's wall clock breakdown .* level of the logger DeepSpeed to INFO"
    ):
        read(tmp_path, *rows)


@in_each(("others", "told"), [(0.4, ""), (0.408, "all steps took 1.8 % longer on average"), (0.39, "less")])
def test_steps_between_the_rows_that_take_another_time_have_a_warning(tmp_path, others, told):
    lines, passed = [], 0.0
    for step in range(3, 201):
        passed += 0.4 if step % 10 == 0 else others
        if step % 10 == 0:
            lines.append(timer(step, 160.0, running=(step - 2) * 64 / passed).partition("] ")[2])  # without its date
    warnings = [text for text in read(tmp_path, CONFIGURATION, *lines).warnings if text.startswith("step_time: ")]
    assert bool(warnings) == bool(told)
    assert told in "".join(warnings)
