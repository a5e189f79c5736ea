"""Logs that have nothing but a date, a step and a loss on each row: timed from stamps that are fine enough."""

from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from each import in_each

from tensorprimat import logs
from tensorprimat.core.errors import NotALogError
from tensorprimat.logs import clocks, timestamps

START = datetime(2026, 1, 5, 8, 0, 0)


def row(n: int, seconds: float = 2.0, form: str = "{:%Y-%m-%d %H:%M:%S},{ms:03} INFO", after: float = 0.0) -> str:
    moment = START + timedelta(seconds=n * seconds + after)
    return form.format(moment, ms=moment.microsecond // 1000) + f" step {n}/500 loss {3 - n / 1000:.4f} lr 1e-05"


def log(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def test_rows_are_timed_from_their_timestamps_with_a_warning(read_text: Any) -> None:
    result = read_text(log(*(row(n) for n in range(1, 31))), global_batch_size=8, sequence_length=1024, num_gpus=1)
    performance = result.performance_metrics
    assert (result.provenance.format, result.provenance.timing) == ("timestamps", "timestamps")
    assert performance.avg_step_time_seconds == pytest.approx(2.0)
    assert performance.tokens_per_second == pytest.approx(4096)
    assert ("timed_by_timestamps", 0.001) in [(one.code, one.values.get("resolution")) for one in result.remarks]
    assert (result.steps[3].loss, result.training_config.max_steps) == (2.996, 500)


def test_a_module_named_test_in_a_loggers_prefix_is_not_a_validation(read_text: Any) -> None:
    form = "[{:%Y-%m-%d %H:%M:%S}][I][ezpz/test_dist:170:__main__]"
    result = read_text(log(*(row(n, form=form) for n in range(1, 301))))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0)


@pytest.mark.parametrize(
    "bar",
    [
        "1|{0}|Loss: 1.25: {0}%|##   | {0}/100 [00:20<03:00, 2.00s/it]",
        "train: {0}%|##   | {0}/100 [00:20<03:00, 2.00s/it, loss=1.25]",
    ],
)
def test_progress_bars_alone_are_refused_with_the_reason(read_text: Any, bar: str) -> None:
    with pytest.raises(NotALogError, match="a progress bar does not state whether it counts optimizer steps"):
        read_text(log(*(bar.format(n) for n in range(1, 60))))


@in_each(
    "form",
    [
        "{:%Y-%m-%d %H:%M:%S} INFO",
        "[{:%m/%d/%Y %H:%M:%S}]",
        "{:%Y-%m-%dT%H:%M:%S}Z",
        "I{:%m%d %H:%M:%S}.000000  123 train.py:9]",
    ],
)
def test_whole_seconds_are_merged_until_they_are_fine_enough(read_text: Any, form: str) -> None:
    result = read_text(log(*(row(n, 0.7, form) for n in range(1, 1200))))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(0.7, rel=0.01)
    assert len(result.steps) <= 10


@in_each(
    ("seconds", "form", "count"),
    [(0.7, "{:%Y-%m-%d %H:%M:%S}", 49), (0.5, "{:%Y-%m-%d %H:%M:%S},123 INFO", 11)],  # a fraction that never changes
)
def test_stamps_too_coarse_for_any_step_are_refused_with_the_reason(
    read_text: Any, seconds: float, form: str, count: int
) -> None:
    with pytest.raises(NotALogError, match=r"only timestamps with a resolution of 1 s"):
        read_text(log(*(row(n, seconds, form) for n in range(1, count + 1))))


def test_a_validation_between_two_rows_is_not_measured(read_text: Any) -> None:
    lines = [row(n, after=60.0 * (n > 15)) for n in range(1, 31)]
    lines.insert(15, "2026-01-05 08:00:50,000 INFO running validation")
    result = read_text(log(*lines))
    assert [step.index for step in result.steps if step.interrupted_by] == [16]
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0)


def test_rows_of_a_validation_are_not_steps(read_text: Any) -> None:
    lines = [row(n) for n in range(1, 31)]
    lines.insert(15, row(15, after=0.5).replace("loss", "val_loss"))
    result = read_text(log(*lines))
    assert len(result.steps) == 30
    assert [step.index for step in result.steps if step.interrupted_by] == [16]


def test_a_restart_begins_a_new_stretch(read_text: Any) -> None:
    lines = [row(n) for n in range(1, 10)] + [row(n, after=500.0) for n in range(5, 31)]
    result = read_text(log(*lines))
    assert result.runs[0].segments == 2
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0)


def test_no_step_spans_the_moment_at_which_the_clock_was_set_back(read_text: Any) -> None:
    """The stamps are of local time, and summer time ends while the training runs: an hour of stamps comes twice."""
    rows = [*(row(n, 5.0) for n in range(1, 120)), *(row(n, 5.0, after=-3600.0) for n in range(120, 1200))]
    result = read_text(log(*rows))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(5.0)
    assert len(result.steps) == 1199


def test_eight_ranks_that_print_the_same_are_one_log(read_text: Any) -> None:
    lines = [f"[rank{rank}]: {row(n, after=rank / 100)}" for n in range(1, 20) for rank in (3, 0, 1)]
    result = read_text(log(*lines))
    assert result.steps.column("index").tolist() == list(range(1, 20))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0)


@in_each(
    "text",
    [
        "2026-01-05 08:00:{0:02},000 Step {0}/9 : RUN pip install",
        "step {0} loss 2.5",
        "2026-01-05 08:00:{0:02},000 iteration of the loss, step by step",
        "2026-01-05 08:00:{0:02},000 epoch {0} loss 2.5",
    ],
)
def test_lines_without_a_date_a_step_or_a_loss_are_not_rows(read_text: Any, text: str) -> None:
    with pytest.raises(NotALogError):
        read_text(log(*(text.format(n) for n in range(1, 50))))


def test_any_other_format_is_preferred_to_timestamps_wherever_its_rows_are(read_text: Any) -> None:
    head = "".join(row(n) + " noise" * 3000 + "\n" for n in range(1, 80))  # more than detection looks at at a time
    rows = "".join(f"iter {n}: loss 4.2082, time 143{n % 10}.27ms, mfu 1.01%\n" for n in range(1, 20))
    assert read_text(head + rows).provenance.format == "nanogpt"
    assert [format.name for format in logs.FORMATS if format.last_resort] == ["loop", "timestamps"]


FORMS = (
    "2026-01-05 08:00:00,250 INFO step 12/500 loss 2.3450 lr 1e-05",
    "[rank3]: 2026-01-05T08:00:00.250+01:30 Step 7 Loss=2.345, learning_rate: 3.0e-4",
    "Jan  5 08:00:00 node17 python[123]: step 12 loss 2.5",
    "I0105 08:00:00.123456 77 train.py:12] iteration 12 of 500 loss: nan",
    "12: [default1]: 01/05/2026 08:00:00 global_step=12, loss=-1.5e+02 lr=0.0",
    "2026-01-05T08:00:00.123456789Z stdout F 2026-01-05 08:00:01 step 3 loss 1,234.5",
    "2026-13-05 08:00:00 01/05/2026 08:00:01 step 3 loss 1.5 \u0130stanbul \uff11",
)


@in_each("seed", range(20))
def test_a_row_that_is_read_by_the_columns_of_a_similar_row_has_its_own_values(seed: int) -> None:
    random, known = np.random.default_rng(seed), timestamps.SameShapes(timestamps._places)
    rows = 0
    for number in range(200):
        form = FORMS[number % len(FORMS)]
        share = 0.1 if number > 20 else 0  # of the digits; half the dates do not exist any more
        text = "".join(
            str(random.integers(10)) if letter.isdigit() and letter.isascii() and random.random() < share else letter
            for letter in form
        )
        alone = timestamps._row(text, timestamps.SameShapes(timestamps._places))
        assert timestamps._row(text, known) == alone
        rows += alone is not None
    assert rows > 100
    assert len(known._known) == len(FORMS)


def test_an_impossible_date_is_skipped_for_another_timestamp_of_the_row() -> None:
    row = timestamps._row(
        "2026-13-05 08:00:00 01/05/2026 08:00:01 step 3 loss 1.5", timestamps.SameShapes(timestamps._places)
    )
    assert row is not None
    assert row.moment.seconds == clocks.moment_in("2026-01-05 08:00:01").seconds


def test_a_stamp_is_read_alike_by_every_version_of_python() -> None:
    assert clocks.moment_in("2026-01-05 24:00:00") is None  # Python 3.14 parses it as the next midnight, others refuse
    arabic = "2026-01-05 08:00:01".translate({ord("0") + digit: 0x0660 + digit for digit in range(10)})
    assert clocks.moment_in(arabic) == clocks.moment_in("2026-01-05 08:00:01")


@in_each(
    "numbers", ["iter {micro} step {n}", "micro step {micro} global_step {n}", "step {micro} update {n}", "step {n:,}"]
)
def test_the_number_of_the_optimizer_step_counts(read_text: Any, numbers: str) -> None:
    rows = [row(n).replace(f"step {n}/500", numbers.format(n=n, micro=4 * n)) for n in range(980, 1040)]
    result = read_text(log(*rows))
    assert result.steps.column("index").tolist() == list(range(980, 1040))
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(2.0)


@in_each(("seconds", "last"), [(2.0, 500), (0.3, 5000), (30.0, 500)])
def test_a_log_of_every_tenth_step_counts_every_step(read_text: Any, seconds: float, last: int) -> None:
    form = "{:%Y-%m-%d %H:%M:%S} INFO"
    result = read_text(log(*(row(n, seconds=seconds, form=form) for n in range(10, last + 1, 10))))
    assert result.performance_metrics.total_steps == last
    assert result.performance_metrics.avg_step_time_seconds == pytest.approx(seconds, rel=0.05)
