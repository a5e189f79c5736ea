"""MaxText's lines: what `seconds` measures under asynchronous dispatch, and what it does not."""

from typing import Any

import pytest
from each import in_each

from tensorprimat.core.errors import NotALogError

CONFIG = """Config param per_device_batch_size: 2.0
Config param max_target_length: 1024
Config param model_name: llama3.1-8b
Config param dtype: bfloat16
Config param attention: cudnn_flash_te
Config param steps: 50
System Information: Jax Version: 0.6.1
System Information: Jax Backend: PJRT C API
{backend}
Num_devices: 8, shape (1, 1, 8, 1)
"""
TOKENS = 2 * 1024 * 8


def row(step: int, seconds: float = 0.5, *, tail: str = "", weights: int = TOKENS, prefix: str = "") -> str:
    rates = f"TFLOP/s/device: {180 / seconds:.3f}, Tokens/s/device: {TOKENS / 8 / seconds:.3f}"
    return (
        f"{prefix}completed step: {step}, seconds: {seconds:.3f}, {rates}, total_weights: {weights}, loss: 9.125{tail}"
    )


def log(*lines: str, backend: str = "cuda 12080") -> str:
    return CONFIG.format(backend=backend) + "\n".join(lines) + "\n"


def test_every_number_of_a_row_is_read(read_text: Any) -> None:
    step = read_text(log(row(0, 40), row(1, 0.01), row(2), row(3, tail=", lm_loss: 9.0, moe_lb_loss: 0.01"))).steps[3]
    assert (step.index, step.seconds, step.tokens, step.loss) == (3, 0.5, TOKENS, 9.125)
    assert (step.reported_tflops_per_gpu, step.reported_tokens_per_second_per_gpu) == (360, 4096)


def test_configuration_comes_from_the_parameters(read_text: Any) -> None:
    result = read_text(log(row(0, 40), row(1, 0.01), row(2), row(3)))
    config = result.training_config
    assert (config.global_batch_size, config.sequence_length, config.num_gpus, config.max_steps) == (16, 1024, 8, 50)
    assert (config.precision, config.attention_backend, result.model.name) == ("bf16", "cudnn_flash_te", "llama")
    assert (result.platform, result.gpu_info.software_version) == ("nvd", "12.8")
    assert config.versions == {"jax": "0.6.1"}


def test_settings_of_release_0_2_are_read_where_they_are_enumerations_and_come_before_the_versions(
    read_text: Any,
) -> None:
    text = """I1124 02:42:42.100000 140637549984640 pyconfig.py:591] Config param dtype: bfloat16
I1124 02:42:42.100000 140637549984640 pyconfig.py:591] Config param global_batch_size_to_train_on: 16
I1124 02:42:42.100000 140637549984640 pyconfig.py:591] Config param max_target_length: 1024
I1124 02:42:42.100000 140637549984640 pyconfig.py:591] Config param opt_type: OptimizerType.ADAMW
I1124 02:42:42.100000 140637549984640 pyconfig.py:591] Config param quantization: QuantizationType.NONE
I1124 02:42:43.100000 140637549984640 max_utils.py:100] System Information: Jax Version: 0.12.0.1
I1124 02:42:43.100000 140637549984640 max_utils.py:101] System Information: Jaxlib Version: 0.12.0.1
I1124 02:42:43.100000 140637549984640 max_utils.py:102] System Information: Jax Backend: cpu
Num_devices: 8, shape (1, 8, 1)
"""
    result = read_text(text + "\n".join([row(0, 0.04), row(1, 0.01), *map(row, range(2, 10))]) + "\n")
    config = result.training_config
    assert (config.global_batch_size, config.sequence_length, config.num_gpus) == (16, 1024, 8)
    assert (config.precision, config.optimizer) == ("bf16", "adamw")
    fp8 = text.replace("QuantizationType.NONE", "QuantizationType.FP8")
    config = read_text(fp8 + "\n".join(map(row, range(10))) + "\n").training_config
    assert (config.precision, config.fp8_recipe) == ("fp8", "fp8")


def test_the_time_of_a_first_row_that_is_a_dispatch_alone_is_ignored(read_text: Any) -> None:
    result = read_text(log(row(0, 0.04), row(1, 0.01), row(2), row(3), row(4)))
    assert [step.seconds for step in result.steps] == [None, None, 0.5, 0.5, 0.5]
    assert "damaged_values" not in [one.code for one in result.remarks]


def test_rocm_is_recognised(read_text: Any) -> None:
    result = read_text(log(row(0, 40), row(1, 0.01), row(2), row(3), backend="rocm 60403"))
    assert (result.platform, result.gpu_info.software_version) == ("amd", "6.4")


@in_each("seconds", [0.01, 0.5, 3.0])
def test_the_time_of_the_second_row_is_ignored(read_text: Any, seconds: float) -> None:
    result = read_text(log(row(7, 40), row(8, seconds), row(9), row(10)))
    assert [step.seconds for step in result.steps] == [40, None, 0.5, 0.5]
    assert result.steps[1].reported_tokens_per_second_per_gpu is None
    assert result.steps[1].loss == 9.125
    assert ("times_without_wait", {"untimed": 1, "rows": 4}) in [(one.code, one.values) for one in result.remarks]
    performance = result.performance_metrics
    assert performance.measured_time_seconds == pytest.approx(0.5 * performance.measured_steps)


@in_each(("second", "third", "known"), [(0.3, 0.72, False), (0.3, 1.0, True), (0.02, 0.9, True)])
def test_the_time_of_a_third_row_is_ignored_if_it_is_short_by_that_of_the_second(
    read_text: Any, second: float, third: float, known: bool
) -> None:
    result = read_text(log(row(0, 40), row(1, second), row(2, third), row(3, 1.0), row(4, 1.0)))
    assert (result.steps[2].seconds is not None) == known
    assert ("third_rows_left_out" in [one.code for one in result.remarks]) != known


def of_a_device(steps: int, *, every: int, evaluation: float, dispatch: float = 0.02) -> list[str]:
    """Return the rows of steps of one second with an evaluation after every few, dated as MaxText prints them.

    A step is dispatched while the one before runs; its row is printed in the next iteration, when it is done. An
    evaluation waits for the device.
    """
    lines: list[str] = []
    now = last = free = 0.0
    done, waiting = [], -1

    def say(text: str) -> None:
        lines.append(f"I1124 02:{int(now // 60):02}:{now % 60:09.6f} 140637 metric_logger.py:265] {text}")

    for number in range(steps):
        now += 30.0 if number == 0 else dispatch
        free = max(free, now) + 1.0
        done.append((free, now - last))
        last = now
        if number % every == 0 and waiting >= 0:
            now = max(now, done[waiting][0])
            say(row(waiting, done[waiting][1]))
            waiting = -1
            now = free = max(now, free) + evaluation
            say(f"eval metrics after step: {number}, loss=8.100, total_weights=8192.0")
        if waiting >= 0:
            now = max(now, done[waiting][0])
            say(row(waiting, done[waiting][1]))
        waiting = number
    return lines


@in_each(("every", "evaluation"), [(7, 1.0), (7, 3.0), (5, 1.0), (3, 3.0), (20, 20.0)])
def test_an_evaluation_that_delays_the_row_before_it_counts_once(read_text: Any, every: int, evaluation: float) -> None:
    result = read_text(log(*of_a_device(61, every=every, evaluation=evaluation)))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(1.0)
    assert not [warning for warning in result.warnings if warning.startswith("audit")]


@in_each("steps", range(28, 33))
@in_each("evaluation", [0.05, 5.0])
def test_a_log_that_ends_after_an_evaluation_contradicts_no_date(read_text: Any, steps: int, evaluation: float) -> None:
    """The row after an evaluation holds the wait for two steps; the row with the rest of the sum may be missing."""
    result = read_text(log(*of_a_device(steps, every=7, evaluation=evaluation)))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(1.0)
    assert not [warning for warning in result.warnings if warning.startswith("audit")]
    last = result.steps[-1]
    assert last.index == steps - 2
    assert (last.seconds is None, last.reported_tokens_per_second_per_gpu is None) == (steps == 31, steps in (31, 32))
    waits = sum(step.interrupted_by == "validation" and step.covers == 2 for step in result.steps)
    untimed = 1 + waits + (steps == 31)
    assert ("times_without_wait", {"untimed": untimed, "rows": len(result.steps)}) in [
        (one.code, one.values) for one in result.remarks
    ]


@in_each(
    ("announced", "what"),
    [
        ("Saved a checkpoint at step 4.", "checkpoint"),
        ("Started an asynchronous checkpoint save for step 4", "checkpoint"),
        ("Starting eval after train step 4", "validation"),
        ("eval metrics after step: 4, loss=8.100, total_weights=8192.0", "validation"),
        ("average loss after step=4: eval_step_count=2, eval_loss=8.1, total_weights=8192.0", "validation"),
    ],
)
def test_a_wait_is_in_the_time_of_the_next_two_steps_together(read_text: Any, announced: str, what: str) -> None:
    rows = [row(0, 40), row(1, 0.01), row(2), row(3), announced, row(4), row(5, 9.0), row(6, 0.02), row(7), row(8)]
    steps = read_text(log(*rows)).steps
    assert (steps[5].index, steps[5].seconds, steps[5].covers) == (5, None, 0)
    assert (steps[6].seconds, steps[6].covers, steps[6].interrupted_by) == (pytest.approx(9.02 / 2), 2, what)
    assert (steps[7].seconds, steps[7].covers) == (0.5, 1)


@pytest.mark.parametrize("every", [1, 2])
def test_a_log_whose_rows_all_include_an_evaluation_is_refused_with_the_reason(read_text: Any, every: int) -> None:
    lines = [line for line in of_a_device(61, every=every, evaluation=2.0) if "completed step: 2," not in line]
    with pytest.raises(NotALogError, match="an evaluation or checkpoint is in the time of every row") as refused:
        read_text(log(*lines))
    assert "eval_interval" in str(refused.value)


def test_the_one_row_without_an_evaluation_is_measured_alone(read_text: Any) -> None:
    performance = read_text(log(*of_a_device(61, every=2, evaluation=2.0))).performance_metrics
    assert (performance.avg_step_time_seconds, performance.measured_steps) == (1.0, 1)


def test_an_evaluation_after_every_fifth_step_contradicts_no_date(read_text: Any) -> None:
    lines, clock = [], 0.0
    for step in range(31):
        after = (step - 1) % 5 == 0 and step > 1  # the step after an evaluation of one second
        seconds = 2.0 if after else 0.01 if (step - 2) % 5 == 0 and step > 2 else 1.0
        clock += seconds
        lines.append(
            f"I1124 02:{int(clock // 60):02}:{clock % 60:09.6f} 140637 metric_logger.py:265] {row(step, seconds)}"
        )
        if step % 5 == 0:
            lines.append(f"Starting eval after train step {step}")
    result = read_text(log(*lines))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(1.0)
    assert result.performance_metrics.total_steps == 31
    assert not [warning for warning in result.warnings if warning.startswith("audit")]


def test_the_rows_of_a_batch_ramp_up_have_times_but_no_rates(read_text: Any) -> None:
    ramp = [
        f"[Rampup Batch Size Phase], completed step: {n}, seconds: {seconds:.3f}, total_weights: 4096, loss: 9.5"
        for n, seconds in enumerate((0.25, 0.01, 0.25))
    ]
    result = read_text(log(*ramp, row(3), row(4), row(5)))
    assert (result.steps[2].seconds, result.steps[2].tokens) == (0.25, 4096)
    assert result.steps[2].reported_tokens_per_second_per_gpu is None
    assert ("rows_of_ramp_up", {"ramping": 3, "rows": 6}) in [(one.code, one.values) for one in result.remarks]


def test_padding_does_not_count_as_tokens(read_text: Any) -> None:
    result = read_text(log(*(row(n, weights=TOKENS // 2) for n in range(6))))
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(2048)
    assert "reported_differs" in [one.code for one in result.remarks]
    assert [one.code for one in result.remarks].count("rate_without_padding") == 1
    full = read_text(log(*(row(n) for n in range(6))))
    assert "rate_without_padding" not in [one.code for one in full.remarks]


def test_rows_quoted_after_prose_form_a_segment_of_their_own(read_text: Any) -> None:
    prose = [
        "Let us look at step 3:",
        "```",
        row(3),
        "```",
        "With a real data set:",
        f"  {row(2, 0.55)}",
        f"  {row(3, 0.56)}",
    ]
    result = read_text(log(*(row(n) for n in range(4)), *prose))
    assert result.steps.column("index").tolist() == [0, 1, 2, 3, 2, 3]
    assert result.steps.column("segment").tolist() == [0, 0, 0, 0, 1, 1]


def test_hosts_that_print_the_same_step_are_one(read_text: Any) -> None:
    lines = [row(n, prefix=f"{host}: ") for n in range(4) for host in range(3)]
    assert read_text(log(*lines)).steps.column("index").tolist() == [0, 1, 2, 3]


def test_a_row_after_the_prefix_of_primus_is_read(read_text: Any) -> None:
    prefix = "[20260105 08:00:00][rank-0/8][INFO ] [--metric_logger.py:120] : "
    result = read_text(log(*(row(n, prefix=prefix) for n in range(4))))
    assert len(result.steps) == 4
    assert result.source == "Primus (MaxText backend)"


def test_rates_of_maxdiffusion_are_in_samples(read_text: Any) -> None:
    lines = [
        f"completed step: {n}, seconds: 2.000, TFLOP/s/device: 348.750, Tokens/s/device: 6760.245, "
        "Samples/s/device: 0.500, Frames/s/device: 7.255, loss: 1.540"
        for n in range(5)
    ]
    result = read_text("Num_devices: 8, shape (8,)\n" + "\n".join(lines) + "\n")
    assert result.steps[3].reported_samples_per_second == 4.0
    per_device = read_text("\n".join(lines) + "\n").performance_metrics
    assert (per_device.samples_per_second, per_device.samples_per_second_per_gpu) == (None, 0.5)
    assert read_text("\n".join(lines) + "\n", num_gpus=16).performance_metrics.samples_per_second == 8.0
    assert result.performance_metrics.tokens_per_second_per_gpu == pytest.approx(6760.245)


def test_a_profiler_step_without_a_time_is_not_a_row(read_text: Any) -> None:
    hidden = "completed profiler activation/deactivation step: 3, total_weights: 16384, loss: 9.1"
    assert read_text(log(row(0), row(1), row(2), hidden, row(4))).steps.column("index").tolist() == [0, 1, 2, 4]
