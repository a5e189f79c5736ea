"""The progress bar of torchtune, which times the steps of a console log without rows."""

from collections.abc import Sequence
from typing import Any

import pytest

from tensorprimat.core.errors import NotALogError

CONFIG = """INFO:torchtune.utils._logging:Running LoRAFinetuneRecipeSingleDevice with resolved config:

batch_size: 4
compile: false
dtype: bf16
gradient_accumulation_steps: 2
max_steps_per_epoch: null

"""


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02}:{int(seconds) % 60:02}"


def bar(epoch: int, step: int, done: int, seconds: float, *, of: int = 100) -> str:
    return f"\r{epoch}|{step}|Loss: {3 - step / 100}: {done:3}%|#  | {done}/{of} [{clock(seconds)}<05:00,  3.70s/it]"


def console(times: Sequence[float], *, epochs: int = 1, between: dict[int, str] | None = None) -> str:
    """Return a log of steps that take `times` seconds, in each of the epochs."""
    text, of = CONFIG, len(times)
    for epoch in range(epochs):
        elapsed = 0.0
        for done, seconds in enumerate(times, 1):
            step, elapsed = epoch * of + done, elapsed + seconds
            text += bar(epoch + 1, step - 1, done, elapsed, of=of)  # the count moves before the description
            text += bar(epoch + 1, step, done, elapsed, of=of) + (between or {}).get(step, "")
        text += "INFO:torchtune.utils._logging:Saving checkpoint. This may take some time. Retrieving full model\n"
    return text


def test_steps_are_timed_by_the_clock_of_the_bar(read_text: Any) -> None:
    result = read_text(console([30.0] + [3.7] * 299))
    performance, config = result.performance_metrics, result.training_config
    assert (result.source, result.provenance.format, result.provenance.timing) == (
        "torchtune",
        "torchtune",
        "timestamps",
    )
    assert performance.avg_step_time_seconds == pytest.approx(3.7, rel=0.003)
    assert (config.micro_batch_size, config.global_batch_size, config.num_gpus) == (4, 8, 1)
    assert performance.samples_per_second == pytest.approx(8 / 3.7, rel=0.003)
    assert [step.loss for step in result.steps][-1] == pytest.approx(3 - result.steps[-1].index / 100)
    assert "timed_by_bar" in [one.code for one in result.remarks]


def test_the_bars_of_several_epochs_are_one_training_without_the_time_between_them(read_text: Any) -> None:
    result = read_text(console([3.7] * 150, epochs=3))
    assert not result.provenance.segments
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(3.7, rel=0.01)
    assert result.steps[-1].index > 300
    assert not result.steps.column("interrupted_by").any()


def test_an_evaluation_inside_an_epoch_is_not_measured(read_text: Any) -> None:
    lines = "\nINFO:torchtune.utils._logging:Validation loss: 1.5\n"
    times = [3.7] * 300
    times[150] = 60.0
    result = read_text(console(times, between={150: lines}))
    assert [step.interrupted_by for step in result.steps].count("validation") == 1
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(3.7, rel=0.005)


def test_rows_of_metrics_count_in_place_of_the_bar(read_text: Any) -> None:
    rows = {n: f"\nStep {n} | loss:1.9 lr:2e-05 tokens_per_second_per_gpu:4000.5 \n" for n in range(1, 300)}
    result = read_text(console([3.7] * 300, between=rows))
    assert result.performance_metrics.reported.tokens_per_second_per_gpu == pytest.approx(4000.5)
    assert "timed_by_bar" not in [one.code for one in result.remarks]


def test_a_bar_that_may_count_micro_batches_times_nothing(read_text: Any) -> None:
    old = console([3.7] * 300).replace("torchtune.utils._logging", "torchtune.utils.logging")
    with pytest.raises(NotALogError, match="does not state whether it counts optimizer steps"):
        read_text(old)
    single = old.replace("gradient_accumulation_steps: 2", "gradient_accumulation_steps: 1")
    assert read_text(single).performance_metrics.avg_step_time_seconds == pytest.approx(3.7, rel=0.003)
    assert read_text(console([3.7] * 150, epochs=2).replace(CONFIG, "")).performance_metrics.avg_step_time_seconds


def test_a_run_of_some_seconds_is_too_short_for_the_bars_clock(read_text: Any) -> None:
    with pytest.raises(NotALogError, match="too coarse for so short a run"):
        read_text(console([0.2] * 100))
