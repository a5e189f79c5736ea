"""Console rows of `name value` pairs, each framework of data/dialects.toml."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from each import in_each
from keyvalue_rows import ROWS, automodel, composer, log, mlx, nanotron, nemo_rl, torchtune, verl

from tensorprimat.core.errors import NotALogError
from tensorprimat.core.units import GIB
from tensorprimat.logs.dialects import DIALECTS

REINFORCEMENT = "steps: iterations of reinforcement learning, generation of the answers included"

AUTOMODEL_CONFIG = """step_scheduler:
  global_batch_size: 32
  local_batch_size: 4
distributed:
  tp_size: 2
World size: 8
"""
NANOTRON_CONFIG = """Config(general=GeneralArgs(project='debug', seed=42),
       parallelism=ParallelismArgs(dp=4, pp=1, tp=2, pp_engine=None, expert_parallel_size=1),
       tokens=TokensArgs(sequence_length=4096, train_steps=50, micro_batch_size=8, batch_accumulation_per_replica=4),
"""
each_dialect = in_each("name", ROWS)


def test_every_dialect_is_tested_here() -> None:
    assert {dialect.name for dialect in DIALECTS} == set(ROWS)


@each_dialect
def test_rows_are_read_by_the_format_of_their_framework(read_text: Any, name: str) -> None:
    result = read_text(log(name))
    assert result.provenance.format == name
    assert result.steps.column("index").tolist() == list(range(1, 21))
    assert not any(warning.startswith("format:") for warning in result.warnings)


def test_automodel_counts_all_tokens_and_its_rate_per_gpu_is_kept_separate(read_text: Any) -> None:
    result = read_text(log("automodel", before=AUTOMODEL_CONFIG))
    config, performance = result.training_config, result.performance_metrics
    assert (config.num_gpus, config.global_batch_size, config.micro_batch_size) == (8, 32, 4)
    assert config.tensor_model_parallel_size == 2
    assert performance.tokens_per_second == pytest.approx(131072)
    assert performance.tokens_per_second_per_gpu == pytest.approx(16384)
    assert result.memory_metrics.peak_memory_allocated_gb == pytest.approx(40.2 * GIB / 1e9)


@in_each(
    ("version", "tensor_parallel", "gpus"),
    [("0.7.0", 2, 8), ("0.10.1", 2, 8), ("0.6.0", 2, 16), ("0.6.0", 1, 8), (None, 1, 8), (None, 2, None)],
)
def test_the_gpus_of_automodel_follow_from_its_rates_and_its_version(
    read_text: Any, version: str | None, tensor_parallel: int, gpus: int | None
) -> None:
    opening = f"2026-01-05 08:00:00 | INFO | root | - nemo_automodel: {version} (/opt/nemo)\n" if version else ""
    result = read_text(log("automodel", before=f"{opening}  tp_size: {tensor_parallel}\n  pp_size: 1\n"))
    assert (result.training_config.num_gpus, result.training_config.framework_version) == (gpus, version)
    assert ("rate_of_replicas" in [one.code for one in result.remarks]) == (gpus is None)


def test_a_line_like_the_start_of_another_framework_hides_no_setting_before_it(read_text: Any) -> None:
    optimizer = "2026-01-05 08:00:00 | INFO | root | Hyperparameters:\n"  # llm.c begins with this text
    resumed = AUTOMODEL_CONFIG + optimizer + "Loading checkpoint from /ck/epoch_0_step_39\n"
    config = read_text(log("automodel", before=resumed)).training_config
    assert (config.num_gpus, config.global_batch_size, config.micro_batch_size) == (8, 32, 4)


def test_the_time_of_automodels_step_after_a_validation_includes_the_validation(read_text: Any) -> None:
    lines = log("automodel").splitlines()
    lines.insert(10, '[val] name "default" | step 10 | epoch 0 | loss 2.2 | lr 1.00e-05 | num_label_tokens 9')
    result = read_text("\n".join(lines) + "\n")
    assert [step.index for step in result.steps if step.interrupted_by == "validation"] == [11]
    assert len(result.steps) == 20


def test_nanotrons_rounded_numbers_are_scaled_and_reported(read_text: Any) -> None:
    result = read_text(log("nanotron", before=NANOTRON_CONFIG))
    config, performance = result.training_config, result.performance_metrics
    assert (config.num_gpus, config.global_batch_size, config.sequence_length) == (8, 128, 4096)
    assert (config.tensor_model_parallel_size, config.max_steps) == (2, 50)
    assert performance.avg_step_time_seconds == pytest.approx(1.05)
    assert performance.tokens_per_second == pytest.approx(128 * 4096 / 1.05)
    assert performance.reported.tokens_per_second == pytest.approx(499e3)
    assert result.provenance.rounding == pytest.approx(0.005 / 1.05, rel=0.01)


def test_nanotron_without_its_configuration_gives_the_rates_that_it_printed(read_text: Any) -> None:
    performance = read_text(log("nanotron")).performance_metrics
    assert performance.tokens_per_second == pytest.approx(499e3)
    assert performance.tokens_per_step is None


def test_composers_step_time_is_that_of_one_step_and_its_tokens_are_differences_of_the_total(read_text: Any) -> None:
    result = read_text(log("composer", before="max_seq_len: 2048\nglobal_train_batch_size: 32\nprecision: amp_bf16\n"))
    performance = result.performance_metrics
    assert performance.avg_step_time_seconds == pytest.approx(2.0)
    assert performance.tokens_per_step == 65536
    assert (result.training_config.num_gpus, result.training_config.precision) == (8, "bf16")
    assert performance.tokens_per_second_per_gpu == pytest.approx(4096)
    assert result.memory_metrics.peak_memory_allocated_gb == pytest.approx(20.1)
    assert not any("sliding window" in warning for warning in result.warnings)


def windowed(seconds: Sequence[float], window: int, *, every: int = 1, first: int = 1, unit: float = 3600.0) -> str:
    """Return rows as SpeedMonitor of Composer 0.32 logs them: rates over the last `window` steps, and totals before the
    step; the last row, which the end of the training prints, counts its own.
    """
    ended, rows = [0.0], []
    for duration in seconds:
        ended.append(ended[-1] + duration)
    for n in range(1, len(seconds) + 1):
        if n > 1 and n % every and n < len(seconds):
            continue
        done = n if n == len(seconds) and every > 1 else n - 1
        batch = first + done - 1
        rows += [
            f"[batch={first + n - 1}/500]:", f"\t Train time/batch: {batch}", f"\t Train time/sample: {batch * 32}",
            f"\t Train time/token: {batch * 65536}", f"\t Train loss/train/total: {9 - n / 100:.4f}",
        ]  # fmt: skip
        if n > window:
            rate = 65536 * window / (ended[n] - ended[n - window])
            rows += [
                f"\t Train throughput/batches_per_sec: {rate / 65536:.4f}",
                f"\t Train throughput/tokens_per_sec: {rate:.4f}",
                f"\t Train throughput/device/tokens_per_sec: {rate / 8:.4f}",
            ]
        rows.append(f"\t Train time/train: {ended[n] / unit:.4f}")
    return "\n".join(rows) + "\n"


SECONDS = [30.0, *(2.0 + 0.2 * (-1) ** (n // 5) for n in range(60))]
"""Times of steps: start-up, then stretches of five steps that take 2.2 and 1.8 s in turn."""


def test_rates_of_a_sliding_window_give_one_measurement_per_window(read_text: Any) -> None:
    result = read_text(windowed(SECONDS, 5))
    performance, covers = result.performance_metrics, result.steps.column("covers")
    assert result.steps.column("index")[covers == 5].tolist() == list(range(6, 62, 5))
    assert performance.avg_step_time_seconds == pytest.approx(2.0, rel=0.02)
    assert performance.std_step_time_seconds == pytest.approx(0.2, rel=0.1)
    assert (result.training_config.global_batch_size, result.training_config.sequence_length) == (32, 2048)
    assert [warning for warning in result.warnings if "44 of 56 rows are left out" in warning]
    assert not [warning for warning in result.warnings if warning.startswith("audit")]


def test_a_resumed_process_begins_its_window_anew(read_text: Any) -> None:
    result = read_text(windowed(SECONDS[:21], 10) + windowed(SECONDS, 10, first=21))
    steps = result.steps
    assert steps.column("index")[steps.column("covers") == 10].tolist() == [11, 21, 31, 41, 51, 61, 71, 81]


@in_each(("every", "window"), [(7, 5), (10, 100), (20, 5)])
def test_rows_of_every_so_many_steps_count_where_their_windows_cannot_overlap(
    read_text: Any, every: int, window: int
) -> None:
    result = read_text(windowed([30.0, *[2.0] * 400], window, every=every))
    timed = result.steps.column("index")[np.isfinite(result.steps.column("seconds"))]
    assert len(timed) > 2
    assert np.diff(timed).min() >= window
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0)
    assert result.performance_metrics.tokens_per_step == 65536


@in_each("unit", [1.0, 60.0, 3600.0, 86400.0])
def test_the_unit_of_composers_clock_follows_from_its_rates(read_text: Any, unit: float) -> None:
    text = windowed([30.0, *[2.0] * 400], 5, unit=unit)
    result = read_text(text)
    assert result.audit.clock == "time/train"
    assert not [warning for warning in result.warnings if warning.startswith("audit")]


def test_windows_of_unknown_size_keep_all_rows_with_a_warning(read_text: Any) -> None:
    text = "\n".join(
        line for line in log("composer").splitlines() if "secs_per_step" not in line and "token:" not in line
    )
    result = read_text(text + "\n")
    assert result.performance_metrics.tokens_per_second == pytest.approx(32768)
    assert "windows_unknown" in [one.code for one in result.remarks]


def test_composers_batches_continue_their_numbers_in_a_later_epoch(read_text: Any) -> None:
    rows = [f"[epoch={epoch}]" + composer(n).replace("/50", "/5") for epoch in (1, 2, 3) for n in range(1, 6)]
    result = read_text("\n".join(rows) + "\n")
    assert result.steps.column("index").tolist() == list(range(1, 16))
    assert len(result.runs) == result.runs[0].segments == 1


def test_torchtune_has_a_rate_per_gpu(read_text: Any) -> None:
    result = read_text(log("torchtune"), num_gpus=8)
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(16384.5)
    assert result.performance_metrics.tokens_per_second == pytest.approx(16384.5 * 8)
    assert result.memory_metrics.peak_memory_reserved_gb == pytest.approx(24.5 * GIB / 1e9)
    assert result.steps[0].loss == 1.9000381


def test_verls_iterations_include_generation_with_a_warning(read_text: Any) -> None:
    result = read_text(log("verl"))
    assert result.performance_metrics.avg_step_time_seconds == 25
    assert (result.training_config.num_gpus, result.performance_metrics.tokens_per_step) == (8, 1e6)
    assert result.steps[0].loss == -0.25
    assert REINFORCEMENT in result.warnings


def test_verls_iteration_with_a_validation_in_it_is_not_measured(read_text: Any) -> None:
    tested = log("verl").replace("step:15 - ", "step:15 - timing_s/testing:70.0 - ")
    result = read_text(tested)
    assert [step.index for step in result.steps if step.interrupted_by] == [15]


def test_verls_fine_tuning_is_not_reinforcement_learning(read_text: Any) -> None:
    text = "".join(f"step:{n} - train/loss:2.5 - train/lr(1e-3):0.02 - train/time(s):1.25\n" for n in range(1, 20))
    result = read_text(text)
    assert (result.performance_metrics.avg_step_time_seconds, result.steps[0].learning_rate) == (1.25, 2e-05)
    assert REINFORCEMENT not in result.warnings


def test_nemo_rls_steps_continue_their_numbers_in_a_second_epoch(read_text: Any) -> None:
    epoch = "\n========================= Epoch {}/2 =========================\n"
    text = epoch.format(1) + log("nemo_rl", 10) + epoch.format(2) + log("nemo_rl", 10)
    result = read_text(text)
    assert result.steps.column("index").tolist() == list(range(1, 21))
    assert (result.performance_metrics.avg_step_time_seconds, result.training_config.num_gpus) == (2.0, 8)


def test_nemo_rls_step_with_a_checkpoint_in_it_is_not_measured(read_text: Any) -> None:
    text = log("nemo_rl").replace(
        "Step 7/100 =========================", "Step 7/100 ==========\nSaving checkpoint for step 7..."
    )
    assert [step.index for step in read_text(text).steps if step.interrupted_by == "checkpoint"] == [7]


@each_dialect
def test_a_truncated_number_is_not_read(read_text: Any, name: str) -> None:
    text = log(name)
    whole = read_text(text).steps
    for cut in range(1, 60, 8):
        steps = read_text(text[:-cut]).steps
        for column in set(whole.seen) - {"line"}:
            known = dict(zip(whole.column("index").tolist(), whole.column(column).tolist(), strict=True))
            for index, value in zip(steps.column("index").tolist(), steps.column(column).tolist(), strict=True):
                assert value == pytest.approx(known[index], nan_ok=True) or value != value, cut


@each_dialect
def test_eight_ranks_that_print_the_same_are_one_log(read_text: Any, name: str) -> None:
    rows = [f"[default{rank}]:{line}" for n in range(1, 13) for rank in range(8) for line in ROWS[name](n).split("\n")]
    result = read_text("\n".join(rows) + "\n")
    assert result.steps.column("index").tolist() == list(range(1, 13))
    assert result.runs[0].segments == 1


@each_dialect
def test_a_step_number_that_goes_back_is_a_restart(read_text: Any, name: str) -> None:
    again = "".join(ROWS[name](n) + "\n" for n in range(5, 21))
    for first, second in (
        ("2.31", "2.41"), ("10.9", "10.8"), ("1.9000381", "1.8"), ("9.5000", "9.4"), ("0.25", "0.26"),
        ("2.250", "2.240"), ("11.9", "11.8"), ("9.1234", "9.1233"), ("loss=9.99", "loss=9.89"), ("11.8750", "11.7500"),
        ("Step time: 22.900", "Step time: 22.800"), ("'perf/step_time': 30.0", "'perf/step_time': 30.5"),
    ):  # fmt: skip
        again = again.replace(first, second)
    result = read_text(log(name, 9) + again)
    assert result.runs[0].segments == 2
    assert result.runs[0].segment == 1


def test_rounded_rates_of_many_gpus_do_not_give_their_number(read_text: Any) -> None:
    rows = "".join(nanotron(n).replace("499K", "33.1M").replace("62.4K", "64.6K") + "\n" for n in range(1, 20))
    assert read_text(rows).training_config.num_gpus is None


def test_rows_without_a_time_or_a_rate_are_not_rows(read_text: Any) -> None:
    with pytest.raises(NotALogError):
        read_text("".join(f"Step {n} | loss:1.9 lr:2e-05 \n" for n in range(20)), format="torchtune")


def bar(n: int, seconds: float, total: int = 100) -> str:
    at = round(n * seconds)
    clock = f"{at // 3600}:{at // 60 % 60:02}:{at % 60:02}" if at >= 3600 else f"{at // 60:02}:{at % 60:02}"
    return f"(TaskRunner pid=4711) Training Progress:  {n}%|█▎   | {n}/{total} [{clock}<1:00:00, {seconds:.2f}s/it]"


def with_bar(seconds: float) -> str:
    return "".join(f"{verl(n)}\r{bar(n, seconds)}\n" for n in range(1, 41))


def test_the_progress_bar_of_verl_is_the_clock_of_its_steps(read_text: Any) -> None:
    audit = read_text(with_bar(25.2)).audit
    assert (audit.clock, audit.ratio) == ("the progress bar", pytest.approx(25.2 / 25, rel=0.003))
    assert not audit.explained_by
    warnings = read_text(with_bar(29.0)).warnings
    assert warnings[0].startswith("audit: 39 steps take 975 s at the measured pace, but 1,131 s by the progress bar")


def test_verls_sum_of_step_times_reveals_missing_rows(read_text: Any) -> None:
    rows = "".join(f"step:{n} - train/loss:1.5 - train/time(s):2.0\n" for n in range(1, 21))
    assert read_text(rows + "Total time for train steps: 40.00s\n").audit.ratio == pytest.approx(1)
    assert read_text(rows + "Total time for train steps: 0.00s\n").audit is None
    warnings = read_text(rows + "Total time for train steps: 60.00s\n").warnings
    assert "but 60 s by Total time for train steps" in warnings[0]


def test_the_time_of_torchtunes_step_after_an_evaluation_or_a_checkpoint_includes_it(read_text: Any) -> None:
    rows = [torchtune(n, 4000.0 if n in (11, 16) else 16000.0) for n in range(1, 21)]
    rows.insert(15, "INFO:torchtune.utils._logging:Saving checkpoint. This may take some time. Retrieving full …")
    rows.insert(10, "Step 10 | val_loss:2.25 ")
    result = read_text("epochs: 3\nmax_steps_per_epoch: 20\n" + "\n".join(rows) + "\n")
    assert [(s.index, s.interrupted_by) for s in result.steps if s.interrupted_by] == [
        (11, "validation"),
        (16, "checkpoint"),
    ]
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(16000)
    assert result.training_config.max_steps == 60


def test_a_resumed_automodel_training_of_longer_sequences_is_another_one(read_text: Any) -> None:
    first = [automodel(n, rest=" | num_label_tokens 131070") for n in range(1, 21)]
    second = [automodel(n, 90000.0 if n == 21 else 131072.0, " | num_label_tokens 262140") for n in range(21, 41)]
    result = read_text("\n".join([*first, *second]) + "\n")
    assert [segment.same_benchmark for segment in result.provenance.segments] == [False, True]
    assert result.provenance.segments[0].differs == {"label_tokens_per_step": "131070"}
    assert result.performance_metrics.tokens_per_second == pytest.approx(131072)
    mixed = [automodel(n, rest=f" | num_label_tokens {100000 + 7919 * n % 60000}") for n in range(1, 41)]
    assert not read_text("\n".join(mixed) + "\n").provenance.segments


def test_a_progress_bar_that_begins_in_the_middle_of_an_epoch_is_a_resume(read_text: Any) -> None:
    def process(first: int, last: int) -> str:
        text = f"0|{first - 1}: {first - 1}%|# | {first - 1}/100 [00:00<?, ?it/s]"
        for n in range(first, last + 1):
            text += torchtune(n, 800.0 if n == first else 16384.0 + n % 5) + "\n"
            text += f"\r1|{n}|Loss: 1.9: {n}%|# | {n}/100 [00:{n % 60:02}<05:00, 3.00s/it]"
        return text

    result = read_text(process(1, 40) + "\n" + process(41, 80))
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(16386, rel=1e-3)
    assert result.performance_metrics.measured_steps == 78
    assert len(result.provenance.segments) == 2


def test_verls_rate_of_images_is_not_a_rate_of_tokens(read_text: Any) -> None:
    row = "step:{} - perf/total_num_images:64 - perf/time_per_step:10.0 - perf/throughput:0.8\n"
    performance = read_text("".join(row.format(n) for n in range(1, 20)), num_gpus=8).performance_metrics
    assert (performance.samples_per_second, performance.tokens_per_second_per_gpu) == (6.4, None)


def nemo_rl_of(n: int, seconds: float, tokens: int, gpus: int = 16) -> str:
    rates = f"(Tokens/sec/gpu): {tokens / seconds / gpus:.2f}\n    - E2E (Tokens/sec): {tokens / seconds:.2f}"
    return nemo_rl(n, seconds).partition("(Tokens/sec/gpu)")[0] + rates


def test_nemo_rls_steps_of_different_tokens_are_one_training(read_text: Any) -> None:
    rows = [nemo_rl_of(n, 20.0 + n % 5 * 4, 800_000 + n % 5 * 100_000) for n in range(1, 31)]
    result = read_text("\n".join(rows) + "\n")
    assert (result.performance_metrics.measured_steps, result.training_config.num_gpus) == (29, 16)
    assert not result.provenance.segments


def test_a_rate_that_is_printed_with_too_few_digits_is_left_out_or_reported(read_text: Any) -> None:
    text = "".join(nemo_rl(n, 0.4).replace("4096.00", "0.03") + "\n" for n in range(1, 20))
    result = read_text(text)
    assert result.performance_metrics.tokens_per_second_per_gpu is None
    told = [(one.field, one.values) for one in result.remarks if one.code == "printed_coarsely"]
    assert told == [
        (
            "tokens_per_second_per_gpu",
            {"unit": "to the nearest 0.01", "error": pytest.approx(1 / 6), "ends": "; it is left out"},
        ),
        (
            "step_time",
            {
                "unit": "to the nearest 0.01 s",
                "error": pytest.approx(0.0125),
                "ends": "; tokens_per_second is the measurement",
            },
        ),
    ]


def test_the_planned_steps_of_an_epoch_are_not_those_of_the_training(read_text: Any) -> None:
    epoch = "\n========================= Epoch {}/{} =========================\n"
    assert read_text(epoch.format(1, 2) + log("nemo_rl")).training_config.max_steps is None
    assert read_text(epoch.format(1, 1) + log("nemo_rl")).training_config.max_steps == 100


def test_nemo_rls_configuration_states_its_gpus(read_text: Any) -> None:
    config = "{'checkpointing': {'enabled': True},\n 'cluster': {'gpus_per_node': 8, 'num_nodes': 4},\n"
    rows = "".join(nemo_rl(n).partition("    - E2E")[0].replace("Loss", "loss") + "\n" for n in range(1, 20))
    result = read_text(config + rows)
    assert (result.training_config.num_gpus, result.steps[0].loss) == (32, 0.25)


def test_mlx_lms_row_is_timed_by_its_tokens_and_their_rate(read_text: Any) -> None:
    validation = "Iter 100: Val loss 2.300, Val took 31.400s\n"
    text = validation.join("".join(mlx(n) + "\n" for n in part) for part in (range(10, 100, 10), range(100, 310, 10)))
    result = read_text(text + mlx(305).replace("It/sec 2.000", "It/sec 4.000") + "\n", num_gpus=1)
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.5)
    assert (result.performance_metrics.tokens_per_second, result.performance_metrics.measured_steps) == (8192, 285)
    assert result.memory_metrics.peak_memory_allocated_gb == pytest.approx(12.345)


def mlx_table(mark: str = "{}", count: str = "{}") -> str:
    """Return the table of iterations of mlx-lm. mark, count: colours around a cell of the loss and of other columns."""
    rows = [
        f"  {count.format(f'{n:>4}')}    {mark.format(f'2.250 {chr(0x25BC) if n % 20 else chr(0x25B2)}')}"
        f"    {count.format('8,192')}    {count.format(f'{n * 4.096:>5.1f}k')}"
        for n in range(10, 310, 10)
    ]
    return "\n".join(["     1    val 3.200    3.40s", *rows]) + "\n"


@pytest.mark.parametrize("colours", [{}, {"mark": "\x1b[1;32m{}\x1b[0m", "count": "\x1b[38;5;244m{}\x1b[0m"}])
def test_mlx_lms_table_of_iterations_is_read(read_text: Any, colours: dict[str, str]) -> None:
    result = read_text(mlx_table(**colours), num_gpus=1)
    assert (result.provenance.format, result.steps[3].loss) == ("mlx", 2.25)
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.5, rel=1e-3)


def verl_rows(*, validated_every: int, included: bool, count: int = 30) -> str:
    """Return the console of verl: until 2025 the time of a step held its validation, later versions time it apart."""
    lines, elapsed = [], 0.0
    for step in range(1, count + 1):
        test = 21.2 if step % validated_every == 0 else 0.0
        seconds = 8.8 + (test if included else 0.0)
        elapsed += 8.8 + test
        testing = f" - timing_s/testing:{test}" if test else ""
        lines.append(
            f"(TaskRunner pid=267532) step:{step} - actor/pg_loss:-0.01{step} - actor/grad_norm:np.float64(0.0284)"
            " - timing_s/gen:5.4599 - timing_s/reward:0.06 - timing_s/old_log_prob:0.59 - timing_s/adv:0.0125 -"
            f" timing_s/update_actor:2.67{testing} - timing_s/step:{seconds:.4f} - perf/total_num_tokens:18603 -"
            f" perf/time_per_step:{seconds:.4f} - perf/throughput:{18603 / seconds / 2:.6f}"
        )
        at = f"{int(elapsed // 3600):02d}:{int(elapsed // 60 % 60):02d}:{int(elapsed % 60):02d}"
        lines.append(f"Training Progress:  {100 * step // count}%|██▉  | {step}/{count} [{at}<10:31:21,  9.00s/it]")
    return "\n".join(lines) + "\n"


def test_a_step_of_verl_with_a_separately_timed_validation_is_measured(read_text):
    for every in (1, 5):
        result = read_text(verl_rows(validated_every=every, included=False))
        assert result.performance_metrics.avg_step_time_seconds == pytest.approx(8.8)
        assert result.performance_metrics.measured_steps == 29
        assert not any(warning.startswith("audit") for warning in result.warnings)


def test_steps_of_verl_with_a_validation_are_left_out_where_other_steps_exist(read_text):
    result = read_text(verl_rows(validated_every=5, included=True))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(8.8)
    assert result.performance_metrics.excluded_steps == 6


def test_steps_that_all_hold_a_validation_are_measured_with_a_warning(read_text):
    result = read_text(verl_rows(validated_every=1, included=True))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(30.0)
    assert ("work_in_every_row", "a validation or checkpoint") in [
        (one.code, one.values.get("work")) for one in result.remarks
    ]
